// Mouse and keys of timelines: as in Perfetto, w and s zoom, a and d move, for as long as they are held.
import { find, showTip } from "./dom.js";
import { AXIS, GUTTER } from "./layout.js";

/** The timeline that keys go to: the one with the focus, or under the pointer. */
let active = null;
/** Keys that are held -> change of the view a second: [zoom, movement]. */
const HELD = {
  w: [-2.6, 0],
  s: [2.6, 0],
  a: [0, -1.3],
  d: [0, 1.3]
};
const held = new Set();
let heldSince = 0, lastFrame = 0;

export const listenToPointer = timeline => {
  const { canvas, box } = timeline;
  let press = null, pinched = null;
  /** Fingers on it -> where. */
  const fingers = new Map();
  const place = event => {
    const { left, top } = canvas.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  };
  box.addEventListener("scroll", () => {
    timeline.scroll = box.scrollTop;
    timeline.painter.ask();
    timeline.onchange?.();
  });
  box.addEventListener("focus", () => { active = timeline; });
  box.addEventListener("pointerenter", () => { active = timeline; });
  box.addEventListener("pointerleave", () => {
    if (active === timeline && document.activeElement !== box) active = null;
    Object.assign(timeline, { hover: null, pointer: null });
    showTip(null);
    timeline.painter.ask();
  });
  canvas.addEventListener("pointerdown", event => {
    if (event.button) return;
    const [x, y] = place(event);
    press = {
      x,
      y,
      view: [...timeline.view],
      moved: false,
      selects: event.shiftKey || timeline.selects || y < AXIS
    };
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, x);
    if (fingers.size !== 2) return;
    press = null;
    pinched = [...fingers.values()].map(one => timeline.getTime(one));
  });
  canvas.addEventListener("pointermove", event => {
    const [x, y] = place(event);
    timeline.pointer = x;
    if (fingers.has(event.pointerId)) fingers.set(event.pointerId, x);
    if (pinched) pinch(timeline, pinched, [...fingers.values()]);
    else if (press) drag(timeline, press, x, y);
    else point(timeline, x, y, event);
  });
  const release = event => {
    canvas.classList.remove("pans");
    if (press && !press.moved) timeline.click(timeline.find(...place(event)));
    if (press?.moved && press.selects) timeline.panel.reveal();
    lift(event);
  };
  const lift = event => {
    fingers.delete(event.pointerId);
    press = pinched = null;
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("dblclick", event => {
    const [x] = place(event);
    if (x > GUTTER) timeline.zoom(.35, timeline.getTime(x));
  });
  box.addEventListener("wheel", event => {
    const [x] = place(event), turn = Math.max(-80, Math.min(80, event.deltaY));
    if (event.ctrlKey || event.metaKey)
      timeline.zoom(Math.exp(turn * .0045), timeline.getTime(Math.max(x, GUTTER)), false);
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
      timeline.pan((event.deltaX || event.deltaY) / 900, false);
    else return;
    event.preventDefault();
  }, { passive: false });
};

/** Keep the times under two fingers there. */
const pinch = (timeline, [first, second], [x0, x1]) => {
  if (Math.abs(x1 - x0) < 10) return;
  const scale = (second - first) / (x1 - x0), begin = first - (x0 - GUTTER) * scale;
  if (scale > 0) timeline.show(begin, begin + (timeline.canvas.clientWidth - GUTTER) * scale, false);
};

const drag = (timeline, press, x, y) => {
  press.moved ||= Math.abs(x - press.x) > 3;
  if (!press.moved || press.x <= GUTTER) return;
  showTip(null);
  timeline.hover = null;
  if (press.selects) {
    const times =
      [press.x, x].map(one => timeline.getTime(Math.max(one, GUTTER))).sort((one, two) => one - two);
    return timeline.selectArea(...times, timeline.listLanes(press.y, y));
  }
  const [begin, end] = press.view;
  const moved = (press.x - x) / (timeline.canvas.clientWidth - GUTTER) * (end - begin);
  timeline.canvas.classList.add("pans");
  timeline.show(begin + moved, end + moved, false);
};

const point = (timeline, x, y, event) => {
  const found = timeline.find(x, y), before = timeline.hover;
  timeline.canvas.classList.toggle("points", Boolean(found?.gutter || found?.track));
  timeline.hover = found;
  if (before?.i !== found?.i || before?.track !== found?.track) timeline.painter.ask();
  showTip(found ? timeline.describe(found) : null, event.clientX, event.clientY);
};

// ---- keys -------------------------------------------------------------------------------------
const getPointedTime = timeline => timeline.pointer > GUTTER ? timeline.getTime(timeline.pointer) : null;

/** Change the view while keys are held: slowly at first, so that a tap is a small step. */
const move = now => {
  if (!held.size || !active) {
    held.clear();
    return;
  }
  const passed = Math.min(50, now - lastFrame) / 1000, speed = Math.min(1, .45 + (now - heldSince) / 700);
  lastFrame = now;
  let [zoom, pan] = [0, 0];
  for (const key of held) {
    zoom += HELD[key][0];
    pan += HELD[key][1];
  }
  if (zoom) active.zoom(Math.exp(zoom * speed * passed), getPointedTime(active), false);
  if (pan) active.pan(pan * speed * passed, false);
  requestAnimationFrame(move);
};
const hold = key => {
  if (held.has(key)) return;
  if (!held.size) {
    heldSince = lastFrame = performance.now();
    requestAnimationFrame(move);
  }
  held.add(key);
  // A tap, too, is seen.
  const [zoom, pan] = HELD[key];
  if (zoom) active.zoom(Math.exp(zoom * .07), getPointedTime(active), false);
  else active.pan(pan * .05, false);
};
/** Say what keys, mouse and fingers do. */
export const showHelp = () => find("#help").showModal();
find("#help button")?.addEventListener("click", () => find("#help").close());

const TAPPED = {
  "?": () => find("#help") && showHelp(),
  0: timeline => timeline.show(...timeline.home),
  f: timeline => timeline.show(...timeline.home),
  ",": timeline => timeline.step(-1),
  ".": timeline => timeline.step(1),
  z: timeline => timeline.zoomToArea(),
  "+": timeline => timeline.zoom(.65),
  "-": timeline => timeline.zoom(1 / .65),
  "/": timeline => timeline.search.input.focus(),
  n: timeline => timeline.search.step(1),
  N: timeline => timeline.search.step(-1),
  Escape: timeline => timeline.clear(),
};
const ARROWS = {
  ArrowLeft: "a",
  ArrowRight: "d",
  ArrowUp: "w",
  ArrowDown: "s"
};

document.addEventListener("keydown", event => {
  if (!active || event.ctrlKey || event.metaKey || event.altKey || find("dialog[open]")) return;
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const isArrow = event.key in ARROWS, key = isArrow ? ARROWS[event.key] : event.key.toLowerCase();
  if (isArrow &&
    (document.activeElement !== active.box || active.box.classList.contains("scrolls") && HELD[key][0]))
    return;
  if (HELD[key]) hold(key);
  else if (TAPPED[event.key]) TAPPED[event.key](active);
  else return;
  event.preventDefault();
});
document.addEventListener("keyup", event => { held.delete(ARROWS[event.key] || event.key.toLowerCase()); });
addEventListener("blur", () => held.clear());
