// An exported session: rows open what stands below, columns sort, trees filter. Everything is in the page already;
// without a script it is all shown.

function attachPage(root) {
  const order = { column: null, sign: 1 };
  const table = root.querySelector(".mir-section-candidates");
  root.querySelectorAll("th[data-column]").forEach((th) => {
    th.tabIndex = 0;
    th.setAttribute("aria-sort", "none");
  });
  const open = (name) => {
    const kind = name.split(":")[0];
    const wanted = [...root.querySelectorAll("[data-opened]")].filter((n) => n.dataset.opened.startsWith(`${kind}:`));
    const found = wanted.some((n) => n.dataset.opened === name);
    wanted.forEach((n) => { n.hidden = n.dataset.opened !== (found ? name : `${kind}:`); });
    root.querySelectorAll(`[data-choose^='${kind}:']`)
      .forEach((n) => n.setAttribute("aria-current", String(n.dataset.choose === name)));
    attachExplorers(root);
  };
  const act = (event) => {
    const row = event.target.closest("[data-choose]");
    const column = event.target.closest("th[data-column]");
    if (row) open(row.dataset.choose);
    if (column) {
      const number = Number(column.dataset.column);
      order.sign = order.column === number ? -order.sign : 1;
      order.column = number;
      root.querySelectorAll("th[data-column]").forEach((th) => th.setAttribute("aria-sort", "none"));
      sortRows(table, order);
    }
  };
  root.addEventListener("click", act);
  root.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    if (!event.target.matches("tr[data-choose],.mir-leaf,th[data-column]")) return;
    event.preventDefault();
    act(event);
  });
  root.addEventListener("input", (event) => {
    if (event.target.matches("[data-filter]")) filterTree(root.querySelector(".mir-section-prefixes"));
  });
  root.classList.add("mir-live");
  ["candidate", "prefix"].forEach((kind) => {
    const first = root.querySelector(`[data-choose^='${kind}:'][aria-current=true]`);
    open(first ? first.dataset.choose : `${kind}:`);
  });
}
