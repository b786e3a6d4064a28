// Elements, colours of the theme, the box of texts beside the pointer, and canvases.

export const find = (selector, root = document) => root.querySelector(selector);
export const findAll = (selector, root = document) => [...root.querySelectorAll(selector)];

/** Make an element with properties, listeners (on...) and children; texts stay texts. */
export const make = (tag, properties = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
};

/** Make a button; a sign alone is named by its title. */
export const makeButton = (text, title, act, more = {}) => make("button",
  {type: "button", title, "aria-label": /[a-z]/i.test(text) ? null : title, onclick: act, ...more}, text);

/** Copy a text, which a button then says for a moment. */
export const copy = async (button, text) => {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", {}, text);
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const before = button.textContent;
  button.textContent = "copied";
  setTimeout(() => { button.textContent = before; }, 1200);
};

/** Fill a choice with [value, text]; `draw` draws what is chosen, first of all the first. */
export const offer = (select, choices, draw) => {
  select.append(...choices.map(([value, text]) => make("option", { value: String(value) }, text)));
  select.addEventListener("change", draw);
  draw();
};

let colours = null;
const themeListeners = new Set();
/** The colours of the theme, by the names of their CSS variables. */
export const getColours = () => {
  if (!colours) {
    const style = getComputedStyle(document.documentElement);
    const look = (known, name) => (known[name] ??= style.getPropertyValue(`--${name}`).trim() || "#888");
    colours = new Proxy({}, { get: look });
  }
  return colours;
};
export const onTheme = listener => themeListeners.add(listener);
const tellTheme = () => {
  colours = null;
  for (const listener of themeListeners) listener();
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tellTheme);

const prefersDark = () => matchMedia("(prefers-color-scheme: dark)").matches;
export const getTheme = () => document.documentElement.dataset.theme || (prefersDark() ? "dark" : "light");
/** Set the theme; empty: that of the system. */
export const setTheme = name => {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  tellTheme();
};

const tipBox = make("div", { class: "tip", role: "status", hidden: true });
/** Show lines beside the pointer: texts, or [name, value]; null hides the box. */
export const showTip = (lines, x = 0, y = 0) => {
  tipBox.hidden = !lines;
  if (!lines) return;
  if (!tipBox.isConnected) document.body.append(tipBox);
  tipBox.replaceChildren(...lines.filter(Boolean).map((line, number) => Array.isArray(line)
      ? make("div", { class: "pair" }, make("span", {}, line[0]), make("b", {}, line[1]))
      : make("div", { class: number ? "more" : "head" }, line)));
  const { offsetWidth: width, offsetHeight: height } = tipBox;
  const left = x + 16 + width > innerWidth ? x - width - 12 : x + 16;
  const top = Math.min(y + 14, innerHeight - height - 6);
  tipBox.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
};

// What was shown by keys has no pointer that leaves it.
addEventListener("wheel", () => showTip(null), { passive: true });

/** Show the lines of an element on hover and on focus. */
export const addTip = (element, list) => {
  const show = event => showTip(list(event), event.clientX, event.clientY);
  element.addEventListener("pointermove", show);
  element.addEventListener("pointerleave", () => showTip(null));
  element.addEventListener("focus", () => {
    const { left, bottom } = element.getBoundingClientRect();
    showTip(list(null), left, bottom - 10);
  });
  element.addEventListener("blur", () => showTip(null));
};

const painters = new Set();
/** Draw all canvases of the page at once, as where it has another width. */
export const drawAll = () => {
  for (const one of painters)
    if (one.canvas.isConnected) one.now();
    else painters.delete(one);
};

/** A canvas as sharp as the screen. `ask` has it drawn once in the next frame, `now` at once. */
export class Painter {
  constructor(canvas, draw) {
    Object.assign(this, { canvas, draw, pending: false, context: canvas.getContext("2d") });
    painters.add(this);
    new ResizeObserver(() => this.ask()).observe(canvas);
    onTheme(() => this.ask());
  }
  ask() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.now();
    });
  }
  now() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    const ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h)
      Object.assign(this.canvas, { width: w, height: h });
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, width, height);
    this.draw(this.context, width, height);
  }
}

/** Begin a path from point to point, to be filled or stroked. */
export const trace = (c, [first, ...others]) => {
  c.beginPath();
  c.moveTo(...first);
  for (const point of others) c.lineTo(...point);
  return c;
};
/** Fill a dot. */
export const drawDot = (c, x, y, radius) => {
  c.beginPath();
  c.arc(x, y, radius, 0, 7);
  c.fill();
};

export const FONT = size => `${size}px system-ui, sans-serif`;
export const cutBack = (context, text, room) => {
  if (context.measureText(text).width <= room) return text;
  while (text.length > 2 && context.measureText(`${text}…`).width > room) text = text.slice(0, -1);
  return `${text}…`;
};
/** A text cut to its room at its front: names of hosts differ at their ends. */
export const cutFront = (context, text, room) => {
  if (context.measureText(text).width <= room) return text;
  while (text.length > 2 && context.measureText(`…${text}`).width > room) text = text.slice(1);
  return `…${text}`;
};
