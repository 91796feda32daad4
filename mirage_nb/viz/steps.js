// Gives walkthroughs their slider: one event of a search at a time, forwards and backwards.
// The markup is made in Python, see mirage_nb/viz/steps.py; everything here only shows and hides it.

const STEP_MS = 600;

function attachStepper(stepper) {
  const slider = stepper.querySelector("input[type=range]");
  const events = [...stepper.querySelectorAll(".mir-step-events > li")];
  const map = stepper.querySelector(".mir-step-map");
  const button = (name) => stepper.querySelector(`[data-step=${name}]`);
  const values = [...stepper.querySelectorAll("[data-born]")];
  const others = [...stepper.querySelectorAll("[data-only]")];
  let playing = null;
  const kept = stepper.parentElement.dataset; // a section that is drawn anew goes on where it was
  const show = (at) => {
    slider.value = at + 1;
    [kept.stepsOf, kept.stepsAt] = [stepper.dataset.name, at];
    const read = (events[at].dataset.reads || "").split(" ").filter(Boolean);
    values.forEach((node) => {
      node.classList.toggle("mir-unborn", Number(node.dataset.born) > at);
      node.classList.toggle("mir-now", Number(node.dataset.born) === at);
      node.classList.toggle("mir-read", read.includes(node.dataset.born));
    });
    others.forEach((node) => node.classList.toggle("mir-now", Number(node.dataset.only) === at));
    events.forEach((node, number) => node.classList.toggle("mir-now", number === at));
    stepper.querySelector("output").textContent = `event ${at + 1} of ${events.length}`;
    const met = events.slice(0, at + 1);
    stepper.querySelectorAll("[data-count]").forEach((node) => {
      node.textContent = met.filter((event) => event.dataset.kind === node.dataset.count).length;
    });
    const box = map.querySelector(".mir-now > rect");
    if (!box) return;
    const [x, y] = [Number(box.getAttribute("x")), Number(box.getAttribute("y"))];
    if (x + 130 > map.scrollLeft + map.clientWidth || x < map.scrollLeft) map.scrollLeft = x - map.clientWidth / 2;
    if (y + 40 > map.scrollTop + map.clientHeight || y < map.scrollTop) map.scrollTop = y - map.clientHeight / 2;
  };
  const now = () => Number(slider.value) - 1;
  const stop = () => {
    clearInterval(playing);
    playing = null;
    button("play").textContent = "play";
  };
  const go = (by) => show(Math.min(events.length - 1, Math.max(0, now() + by)));
  slider.addEventListener("input", () => { stop(); show(now()); });
  button("next").addEventListener("click", () => { stop(); go(1); });
  button("back").addEventListener("click", () => { stop(); go(-1); });
  button("play").addEventListener("click", () => {
    if (playing !== null) return stop();
    if (now() === events.length - 1) show(0);
    button("play").textContent = "pause";
    playing = setInterval(() => {
      if (!stepper.isConnected || now() === events.length - 1) stop();
      else go(1);
    }, STEP_MS);
  });
  show(kept.stepsOf === stepper.dataset.name ? Math.min(Number(kept.stepsAt), events.length - 1) : 0);
  return stop;
}

// Returns a function that ends timers.
function attachSteps(root) {
  const ends = [...root.querySelectorAll(".mir-stepper:not(.mir-ready)")].map((stepper) => {
    stepper.classList.add("mir-ready");
    return attachStepper(stepper);
  });
  return () => ends.forEach((end) => end());
}
