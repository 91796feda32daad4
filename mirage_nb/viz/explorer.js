// Brings explorers to life: zoom and pan, tiles of any block and iteration, and links between picture and source.
// The markup is made in Python, see mirage_nb/viz/explorer.py; everything here only moves, fills or marks it.

const ZOOM = 1.3;
const MOST_HEIGHT = 760;
const CUT = 1.25; // so much wider than its frame a picture may begin
const NEARLY = 0.87; // from this scale on a picture that can begin as wide as its frame does
const READABLE = 0.95; // below this scale text is small: a picture that is taller begins at its top instead
const PLAY_MS = 450;

// The viewBox of the picture under the canvas; every change keeps its proportions to those of the canvas.
function makeZoom(canvas) {
  const svg = canvas.querySelector("svg");
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  svg.style.cssText = "display:block;width:100%;height:100%;max-width:none";
  let box = { x: 0, y: 0, scale: 1 };
  const size = () => {
    const across = Math.max(1, canvas.clientWidth);
    return { across, tall: Math.max(1, canvas.clientHeight) };
  };
  const fitted = () => {
    const { across, tall } = size();
    return Math.min(across / width, tall / height, 1.15);
  };
  const draw = () => {
    const { across, tall } = size();
    svg.setAttribute("viewBox", `${box.x} ${box.y} ${across / box.scale} ${tall / box.scale}`);
  };
  const fit = () => {
    const across = Math.max(1, canvas.clientWidth);
    canvas.style.height = `${Math.min(MOST_HEIGHT, Math.ceil(height * Math.min(1.15, across / width)) + 4)}px`;
    const scale = fitted();
    const shown = size();
    box = { scale, x: (width - shown.across / scale) / 2, y: (height - shown.tall / scale) / 2 };
    draw();
  };
  const by = (factor, at) => {
    const { across, tall } = size();
    const scale = Math.min(8, Math.max(fitted() / 2, box.scale * factor));
    const [px, py] = at ?? [across / 2, tall / 2];
    box = { scale, x: box.x + px / box.scale - px / scale, y: box.y + py / box.scale - py / scale };
    draw();
  };
  const move = (dx, dy) => {
    box = { ...box, x: box.x - dx / box.scale, y: box.y - dy / box.scale };
    draw();
  };
  const begin = () => {
    fit();
    if (box.scale >= READABLE) return;
    const { across } = size();
    const wide = across / width;
    const scale = Math.max(box.scale, Math.min(READABLE, wide < NEARLY ? CUT * wide : wide));
    box = { scale, x: Math.min(0, (width - across / scale) / 2), y: 0 }; // as one reads: what is cut off is on the right
    draw();
  };
  return { begin, fit, by, move };
}

function attachZoom(explorer) {
  const canvas = explorer.querySelector(".mir-canvas");
  if (!canvas?.querySelector("svg")) return () => {};
  const zoom = makeZoom(canvas);
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "group");
  canvas.setAttribute("aria-label", "picture of the muGraph; arrows move it, plus and minus zoom, 0 fits it");
  const watch = new ResizeObserver(() => {
    if (canvas.clientWidth !== seen) zoom.begin();
    seen = canvas.clientWidth;
  });
  let seen = canvas.clientWidth;
  canvas.querySelector("svg").setAttribute("role", "group"); // it has parts that take the focus
  zoom.begin();
  watch.observe(canvas);

  const acts = { in: () => zoom.by(ZOOM), out: () => zoom.by(1 / ZOOM), fit: zoom.fit };
  explorer.querySelectorAll("[data-zoom]").forEach((b) => b.addEventListener("click", () => acts[b.dataset.zoom]()));
  const keys = {
    "+": acts.in, "=": acts.in, "-": acts.out, 0: zoom.fit,
    ArrowLeft: () => zoom.move(40, 0), ArrowRight: () => zoom.move(-40, 0),
    ArrowUp: () => zoom.move(0, 40), ArrowDown: () => zoom.move(0, -40),
  };
  canvas.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation(); // the notebook has plans for these keys, too
    keys[event.key]();
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const frame = canvas.getBoundingClientRect();
    zoom.by(event.deltaY < 0 ? 1.12 : 1 / 1.12, [event.clientX - frame.left, event.clientY - frame.top]);
  }, { passive: false });
  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button === 0) held = { x: event.clientX, y: event.clientY };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!held || !(event.buttons & 1)) return;
    canvas.classList.add("mir-dragging");
    zoom.move(event.clientX - held.x, event.clientY - held.y);
    held = { x: event.clientX, y: event.clientY };
  });
  ["pointerup", "pointerleave"].forEach((name) => canvas.addEventListener(name, () => {
    held = null;
    canvas.classList.remove("mir-dragging");
  }));
  return () => watch.disconnect();
}

const numbers = (text) => text.split(" ").map((word) => (word === "-" || word === "" ? null : Number(word)));

// First element and count along every dimension, as `Access.part` has it in mirage_nb/viz/tiles.py.
function part(tensor, grid, loop, block, iteration) {
  return tensor.shape.map((extent, dim) => {
    let [start, size] = [0, tensor.covered[dim]];
    grid.forEach((splits, axis) => {
      if (tensor.dims[axis] !== dim) return;
      size = Math.floor(size / splits);
      start += block[axis] * size;
    });
    if (tensor.loopDim === dim && iteration !== null) {
      size = Math.floor(size / loop);
      start += iteration * size;
    }
    return [start, Math.min(size, extent - start)];
  });
}

function drawTiles(figure, grid, loop, block, iteration) {
  const tensor = {
    shape: numbers(figure.dataset.shape),
    covered: numbers(figure.dataset.covered),
    dims: numbers(figure.dataset.dims),
    loopDim: figure.dataset.loopDim === "" ? null : Number(figure.dataset.loopDim),
  };
  if (figure.dataset.shape === "") tensor.shape = [];
  const reads = figure.dataset.verb === "reads";
  const spans = {
    "mir-block-part": part(tensor, grid, loop, block, null),
    "mir-tile-part": part(tensor, grid, loop, block, reads ? iteration : null),
  };
  figure.querySelectorAll("rect[data-box]").forEach((rect) => {
    const [x, y, width, height] = numbers(rect.dataset.box);
    const [down, across] = numbers(rect.dataset.dims);
    const span = spans[rect.getAttribute("class")];
    const along = (dim, from, length) =>
      dim === null
        ? [from, length]
        : [from + (length * span[dim][0]) / tensor.shape[dim], Math.max(2, (length * span[dim][1]) / tensor.shape[dim])];
    const [left, wide] = along(across, x, width);
    const [top, tall] = along(down, y, height);
    rect.setAttribute("x", left);
    rect.setAttribute("y", top);
    rect.setAttribute("width", wide);
    rect.setAttribute("height", tall);
  });
  const slices = spans["mir-tile-part"].map(([start, size]) => `${start}:${start + size}`).join(", ");
  figure.querySelector(".mir-part").textContent = `${figure.dataset.verb} [${slices}]`;
}

function attachTiles(tiles) {
  const grid = numbers(tiles.dataset.grid);
  const loop = Number(tiles.dataset.loop);
  const block = grid.map(() => 0);
  let iteration = 0;
  let playing = null;
  const sliders = [...tiles.querySelectorAll("input[type=range]")];
  const button = (name) => tiles.querySelector(`[data-tiles=${name}]`);
  const show = () => {
    sliders.forEach((slider) => {
      const value = "block" in slider.dataset ? block[Number(slider.dataset.block)] : iteration;
      slider.value = value;
      slider.nextElementSibling.textContent = value;
    });
    tiles.querySelectorAll(".mir-tensor").forEach((figure) => drawTiles(figure, grid, loop, block, iteration));
  };
  // One iteration further; after the last one comes the first of the next block.
  const step = (by) => {
    const total = grid.reduce((a, b) => a * b, loop);
    let at = block.reduce((sum, index, axis) => sum * grid[axis] + index, 0) * loop + iteration;
    at = (at + by + total) % total;
    iteration = at % loop;
    at = Math.floor(at / loop);
    for (let axis = grid.length - 1; axis >= 0; axis -= 1) {
      block[axis] = at % grid[axis];
      at = Math.floor(at / grid[axis]);
    }
    show();
  };
  const stop = () => {
    clearInterval(playing);
    playing = null;
    button("play").textContent = "play";
    button("play").setAttribute("aria-pressed", "false");
  };
  sliders.forEach((slider) => slider.addEventListener("input", () => {
    stop();
    if ("block" in slider.dataset) block[Number(slider.dataset.block)] = Number(slider.value);
    else iteration = Number(slider.value);
    show();
  }));
  button("next").addEventListener("click", () => { stop(); step(1); });
  button("back").addEventListener("click", () => { stop(); step(-1); });
  button("play").addEventListener("click", () => {
    if (playing !== null) return stop();
    button("play").textContent = "pause";
    button("play").setAttribute("aria-pressed", "true");
    playing = setInterval(() => (tiles.isConnected ? step(1) : stop()), PLAY_MS);
  });
  if (window.matchMedia("(prefers-reduced-motion: reduce)").matches) {
    button("play").disabled = true;
    button("play").title = "your system asks for reduced motion; step or drag instead";
  }
  if (!sliders.length) tiles.querySelector(".mir-tile-controls").hidden = true;
  return stop;
}

// The operators that an element stands for. A tensor stands for itself and, on hover, shows what is known of it.
const opsOf = (node) => (node.dataset.ops ?? node.dataset.op ?? "").split(" ").filter(Boolean);

// Whether lines or boxes of operator `a` should light up for `b`: the same one, or one stands inside the other.
const related = (a, b) => a === b || b.startsWith(`${a}.`);

function attachLinks(explorer) {
  const inspect = explorer.querySelector(".mir-inspect");
  const linked = [...explorer.querySelectorAll("[data-op],[data-ops]")];
  const listing = explorer.querySelector(".mir-source");
  let pinned = false;
  const clear = () => explorer.querySelectorAll(".mir-lit").forEach((node) => node.classList.remove("mir-lit"));
  const light = (from) => {
    clear();
    const wanted = opsOf(from);
    const exact = linked.filter((node) => opsOf(node).some((op) => wanted.includes(op)));
    const near = exact.some((node) => node.matches(".mir-source .mir-line"))
      ? exact
      : [...exact, ...linked.filter((n) => n.matches(".mir-line,tr") && opsOf(n).some((op) => wanted.some((w) => related(op, w))))];
    near.forEach((node) => node.classList.add("mir-lit"));
    const line = near.find((node) => node.matches(".mir-source .mir-line"));
    if (line && listing && !listing.contains(from)) listing.scrollTop = line.offsetTop - listing.offsetTop - 60;
  };
  const tell = (event) => {
    const tensor = event.target.closest("[data-tensor]");
    const source = event.target.closest("[data-op],[data-ops]");
    const op = event.target.closest(".mir-canvas [data-op]");
    const known = (node) => node?.querySelector(":scope > title")?.textContent;
    const results = tensor ? [tensor] : [...(op?.querySelectorAll(":scope > g [data-tensor], :scope > [data-tensor]") ?? [])];
    const words = [tensor ? null : known(op), ...(tensor || known(op) ? results.map(known) : [])].filter(Boolean);
    if (words.length && inspect) inspect.textContent = words.join(" → ");
    return source && explorer.contains(source) ? source : null;
  };
  const over = (event) => {
    const source = tell(event);
    if (source && !pinned) light(source);
  };
  const click = (event) => {
    if (event.target.closest("button,input,summary,label")) return;
    const source = tell(event);
    pinned = Boolean(source) && source.dataset.op !== "";
    if (source) light(source);
    else clear();
  };
  explorer.addEventListener("pointerover", over);
  explorer.addEventListener("focusin", over);
  explorer.addEventListener("click", click);
  explorer.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { pinned = false; clear(); }
    if (event.key === "Enter" && event.target.matches(".mir-canvas [data-op]")) { event.preventDefault(); click(event); }
  });
  explorer.querySelectorAll(".mir-canvas [data-op]").forEach((node) => {
    node.setAttribute("tabindex", "0");
    node.setAttribute("role", node.querySelector("[data-op]") ? "group" : "button");
    node.setAttribute("aria-label", node.querySelector("title")?.textContent ?? "operator");
  });
}

// Returns a function that ends timers and observers.
function attachExplorers(root) {
  const ends = [];
  root.querySelectorAll(".mir-explorer:not(.mir-ready)").forEach((explorer) => {
    explorer.classList.add("mir-ready");
    ends.push(attachZoom(explorer));
    explorer.querySelectorAll(".mir-tiles").forEach((tiles) => ends.push(attachTiles(tiles)));
    attachLinks(explorer);
  });
  return () => ends.forEach((end) => end());
}
