// Puts the HTML sections of a session into the page and tells the kernel what the reader does.
// The sections are made (and escaped) in Python, see mirage_nb/viz/html.py and mirage_nb/widgets/actions.py; here
// they are only placed. mirage_nb/viz/explorer.js, steps.js and sections.js stand in front of this text.

// What stands below each other; a list in a list is a column. Results come first; a title makes a closed section.
const LAYOUT = [
  { sections: ["steer", "header", "notice"] },
  { className: "mir-results", columns: [["candidates", "messages"], ["candidate"]] },
  { sections: ["compared", "controls", "editor", "answer"] },
  { title: "what the search did", sections: ["counters"], columns: [["chart"], ["history"]] },
  { title: "step through the search", sections: ["steps"] },
  { title: "verifier outcomes", sections: ["outcomes", "rejected"] },
  { title: "prefixes", className: "mir-walk", columns: [["prefixes"], ["prefix"]] },
];
const PAUSE_MS = 800;
const GONE = "The kernel that searched this was restarted: what is seen is the last that it said. Run the cell again; " +
  "a session that was kept goes on where it was.";

function make(tag, className, parent) {
  const node = document.createElement(tag);
  node.className = className;
  parent?.append(node);
  return node;
}

const branches = (section) => [...section.querySelectorAll("details[data-branch]")];

// Replaces a section; what the reader did with the old one (scrolled, focused, sorted, opened, typed) is done to
// the new one.
function replaceSection(section, html, order) {
  const old = [...section.querySelectorAll(".mir-scroll,.mir-picture")].map((n) => [n.scrollTop, n.scrollLeft]);
  const open = new Map(branches(section).map((n) => [n.dataset.branch, n.open]));
  const tuning = section.querySelector(".mir-tuning")?.open;
  const filter = section.querySelector("[data-filter]")?.value;
  const input = (n) => `${n.form.dataset.do}.${n.name}`;
  const typed = new Map([...section.querySelectorAll("form [name]")]
    .filter((n) => n.dataset.touched).map((n) => [input(n), n.type === "checkbox" ? n.checked : n.value]));
  const focused = section.contains(document.activeElement) ? document.activeElement : null;
  const name = focused && { ...focused.dataset, field: focused.name };
  section.innerHTML = html;
  section.querySelectorAll("th[data-column]").forEach((th) => {
    th.tabIndex = 0;
    th.setAttribute("aria-sort", "none");
  });
  sortRows(section, order);
  branches(section).forEach((n) => { if (open.has(n.dataset.branch)) n.open = open.get(n.dataset.branch); });
  const panel = section.querySelector(".mir-tuning");
  if (panel && tuning !== undefined) panel.open = tuning;
  const select = section.querySelector("[data-filter]");
  if (select) {
    if (filter) select.value = filter;
    filterTree(section);
  }
  section.querySelectorAll("form [name]").forEach((n) => {
    if (!typed.has(input(n)) || n.tagName === "TEXTAREA") return;
    n[n.type === "checkbox" ? "checked" : "value"] = typed.get(input(n));
    n.dataset.touched = "1";
  });
  section.querySelectorAll(".mir-scroll,.mir-picture").forEach((node, i) => {
    if (old[i]) [node.scrollTop, node.scrollLeft] = old[i];
  });
  if (!name) return;
  const same = (n) => ["choose", "column", "do"].some((k) => name[k] && n.dataset[k] === name[k] && !n.matches("form")) ||
    (name.field && n.name === name.field);
  [...section.querySelectorAll("[tabindex],summary,button,input,select")].find(same)?.focus({ preventScroll: true });
}

// A closed section with nothing in it is not shown.
function fold(title, parent) {
  const node = make("details", "mir-fold", parent);
  make("summary", "", node).textContent = title;
  return node;
}

function build(el) {
  const root = make("div", "mir mir-view mir-live", el);
  const sections = {};
  const place = (names, parent) => names.forEach((name) => {
    sections[name] = make("div", `mir-section-${name}`, parent);
  });
  for (const { title, className, sections: names, columns } of LAYOUT) {
    const parent = title ? fold(title, root) : root;
    place(names ?? [], parent);
    if (!columns) continue;
    const row = make("div", `mir-columns ${className ?? ""}`, parent);
    columns.forEach((column, n) => place(column, make("div", n ? "mir-main" : "mir-side", row)));
  }
  return { root, sections };
}

function hideEmpty(section) {
  const around = section.closest("details.mir-fold");
  if (around) around.hidden = ![...around.querySelectorAll("[class^=mir-section-]")].some((n) => n.innerHTML);
}

// Keys pressed on what has the focus in here belong to the view, not to the notebook, which asks for this attribute
// on the element itself.
function keepKeys(section) {
  section.querySelectorAll("input,select,textarea,button,summary,[tabindex]")
    .forEach((node) => { node.dataset.lmSuppressShortcuts = "true"; });
}

function choose(root, row) {
  const kind = row.dataset.choose.split(":")[0];
  root.querySelectorAll(`[data-choose^='${kind}:'][aria-current=true]`)
    .forEach((n) => n.setAttribute("aria-current", "false"));
  row.setAttribute("aria-current", "true");
}

function rest(button) {
  button.disabled = true;
  setTimeout(() => { button.disabled = false; }, PAUSE_MS);
}

// What is asked of a kernel that is gone has no answer.
function retire(root, notice) {
  notice.innerHTML = "<p class='mir-complaint' role='alert'></p>";
  notice.firstChild.textContent = GONE;
  root.classList.add("mir-gone");
  root.querySelectorAll("[data-do],form :is(input,select,textarea)").forEach((n) => { n.disabled = true; });
}

function render({ model, el }) {
  const { root, sections } = build(el);
  const gone = () => retire(root, sections.notice);
  const send = (said) => {
    try {
      model.send(said);
    } catch { // nobody is there to hear it
      gone();
    }
  };
  const order = { column: null, sign: 1 };
  const ends = {};
  const bound = Object.entries(sections).map(([name, section]) => {
    const show = () => {
      ends[name]?.();
      replaceSection(section, model.get(name), order);
      hideEmpty(section);
      const [explorers, steppers] = [attachExplorers(section), attachSteps(section)];
      ends[name] = () => { explorers(); steppers(); };
      keepKeys(section);
    };
    show();
    model.on(`change:${name}`, show);
    return [`change:${name}`, show];
  });
  model.on("comm_live_update", gone); // of ipywidgets: the channel to the kernel was closed

  const act = (event) => {
    const button = event.target.closest("button[data-do]");
    const row = event.target.closest("[data-choose]");
    const column = event.target.closest("th[data-column]");
    if (button && button.type !== "submit") {
      rest(button);
      send({ ...button.dataset });
    } else if (row) {
      choose(root, row);
      send({ choose: row.dataset.choose });
    } else if (column) {
      const number = Number(column.dataset.column);
      order.sign = order.column === number ? -order.sign : 1;
      order.column = number;
      replaceSection(sections.candidates, model.get("candidates"), order);
      keepKeys(sections.candidates);
    }
  };
  root.addEventListener("click", act);
  root.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    if (!event.target.matches("tr[data-choose],.mir-leaf,th[data-column]")) return;
    event.preventDefault();
    event.stopPropagation(); // Shift-Enter and the like belong to the notebook, these two belong to the row
    act(event);
  });
  root.addEventListener("submit", (event) => {
    event.preventDefault();
    if (event.submitter) rest(event.submitter);
    const name = event.submitter?.dataset.do ?? event.target.dataset.do;
    send({ ...Object.fromEntries(new FormData(event.target)), do: name });
  });
  root.addEventListener("input", (event) => {
    event.target.dataset.touched = "1";
    if (event.target.matches("[data-filter]")) filterTree(sections.prefixes);
  });
  return () => {
    [...bound, ["comm_live_update", gone]].forEach(([name, show]) => model.off(name, show));
    Object.values(ends).forEach((end) => end());
  };
}

export default { render };
