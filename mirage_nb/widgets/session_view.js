// Puts the HTML sections of a session into the page and tells the kernel what the reader does.
// The sections are made (and escaped) in Python, see mirage_nb/viz/html.py; here they are only placed.

const SIDE = ["chart", "prefixes", "prefix"];
const MAIN = ["candidates", "candidate"];
const RUNNING = ["waiting", "running", "paused"];

function make(tag, className, parent) {
  const node = document.createElement(tag);
  node.className = className;
  parent.append(node);
  return node;
}

function compare(a, b) {
  const [x, y] = [Number(a), Number(b)];
  return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
}

function sortRows(section, order) {
  const head = section.querySelectorAll("th[data-column]");
  const body = section.querySelector("tbody");
  if (!body || order.column === null || !head[order.column]) return;
  const value = (row) => row.children[order.column].dataset.value ?? "";
  const rows = [...body.children].sort((a, b) => order.sign * compare(value(a), value(b)));
  body.append(...rows);
  head[order.column].setAttribute("aria-sort", order.sign > 0 ? "ascending" : "descending");
}

// Replaces a section; what the reader did with the old one (scrolled, focused, sorted) is done to the new one.
function replaceSection(section, html, order) {
  const scrolled = [...section.querySelectorAll(".mir-scroll,.mir-picture")].map((n) => [n.scrollTop, n.scrollLeft]);
  const focused = section.contains(document.activeElement) ? document.activeElement.dataset : {};
  section.innerHTML = html;
  section.querySelectorAll("th[data-column]").forEach((th) => {
    th.tabIndex = 0;
    th.setAttribute("aria-sort", "none");
  });
  sortRows(section, order);
  section.querySelectorAll(".mir-scroll,.mir-picture").forEach((node, i) => {
    if (scrolled[i]) [node.scrollTop, node.scrollLeft] = scrolled[i];
  });
  const again = [...section.querySelectorAll("[tabindex]")].find(
    (n) =>
      (focused.choose && n.dataset.choose === focused.choose) ||
      (focused.column && n.dataset.column === focused.column),
  );
  again?.focus({ preventScroll: true });
}

function buildControls(model, root) {
  const controls = make("div", "mir-controls", root);
  const button = (label, hint, action) => {
    const node = make("button", "mir-button", controls);
    node.type = "button";
    node.textContent = label;
    node.title = hint;
    node.addEventListener("click", () => {
      node.disabled = true;
      model.send({ do: action });
    });
    return node;
  };
  const pause = button("pause", "let the workers sleep", "pause");
  const resume = button("resume", "go on", "resume");
  const stop = button("stop", "end the search and keep what was found", "stop");
  return () => {
    const state = model.get("state");
    controls.hidden = !RUNNING.includes(state);
    pause.hidden = state === "paused";
    resume.hidden = state !== "paused";
    pause.disabled = resume.disabled = stop.disabled = false;
  };
}

function render({ model, el }) {
  const root = make("div", "mir mir-view mir-live", el);
  const showControls = buildControls(model, root);
  const sections = { header: make("div", "mir-section-header", root) };
  const columns = make("div", "mir-columns", root);
  const side = make("div", "mir-side", columns);
  const main = make("div", "mir-main", columns);
  for (const name of SIDE) sections[name] = make("div", `mir-section-${name}`, side);
  for (const name of MAIN) sections[name] = make("div", `mir-section-${name}`, main);
  sections.messages = make("div", "mir-section-messages", root);
  const order = { column: null, sign: 1 };

  const bound = Object.entries(sections).map(([name, section]) => {
    const show = () => replaceSection(section, model.get(name), order);
    show();
    model.on(`change:${name}`, show);
    return [`change:${name}`, show];
  });
  showControls();
  model.on("change:state", showControls);
  bound.push(["change:state", showControls]);

  const act = (event) => {
    const row = event.target.closest("[data-choose]");
    const column = event.target.closest("th[data-column]");
    if (row) {
      row.parentNode.querySelectorAll("[aria-selected=true]").forEach((n) => n.setAttribute("aria-selected", "false"));
      row.setAttribute("aria-selected", "true");
      model.send({ choose: row.dataset.choose });
    } else if (column) {
      const number = Number(column.dataset.column);
      order.sign = order.column === number ? -order.sign : 1;
      order.column = number;
      replaceSection(sections.candidates, model.get("candidates"), order);
    }
  };
  root.addEventListener("click", act);
  root.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    if (!event.target.matches("[data-choose],th[data-column]")) return;
    event.preventDefault();
    event.stopPropagation(); // Shift-Enter and the like belong to the notebook, these two belong to the row
    act(event);
  });
  return () => bound.forEach(([name, show]) => model.off(name, show));
}

export default { render };
