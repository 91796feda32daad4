// Tables that sort and trees that filter: what the live view and exported pages have in common.

function compare(a, b) {
  const [x, y] = [Number(a), Number(b)];
  return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
}

function sortRows(section, order) {
  const head = section.querySelectorAll("th[data-column]");
  const body = section.querySelector("tbody");
  if (!body || order.column === null || !head[order.column]) return;
  const value = (row) => row.children[order.column].dataset.value ?? "";
  const rows = [...body.querySelectorAll("tr:not(.mir-baseline)")].sort((a, b) => order.sign * compare(value(a), value(b)));
  body.append(...rows);
  head[order.column].setAttribute("aria-sort", order.sign > 0 ? "ascending" : "descending");
}

// Shows the prefixes with one outcome, and what they stand below.
function filterTree(section) {
  const wanted = section.querySelector("[data-filter]")?.value ?? "";
  const fits = (node) => !wanted || node.dataset.outcome === wanted;
  section.querySelectorAll(".mir-leaf").forEach((leaf) => { leaf.hidden = !fits(leaf); });
  [...section.querySelectorAll("details")].reverse().forEach((branch) => {
    const own = branch.querySelector(":scope > summary");
    const below = branch.querySelector(":scope > .mir-leaf:not([hidden]), :scope > details:not([hidden])");
    branch.hidden = Boolean(wanted) && !below && !(own.dataset.outcome && fits(own));
  });
}
