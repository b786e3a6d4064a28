// Plots of a few lines in SVG, named at their ends; hover a point for its value.
import { addTip, make } from "./dom.js";
import { formatShare, formatTime, roundStep } from "./format.js";

const WIDTH = 560, HEIGHT = 300;
/** Margins; on the right are the names of the lines. */
const LEFT = 62, RIGHT = 178, TOP = 34, BOTTOM = 44;
const LINE = 14;  // Height of a line of text.
const LOOKS = 7, MOST_TICKS = 8;

/** Numbers at the vertical axis: powers of two, or about five from 0 on. */
export const chooseTicks = (values, isLog) => {
  const top = Math.max(...values, 0) || 1;
  if (isLog) {
    const first = Math.floor(Math.log2(Math.min(...values))), last = Math.max(Math.ceil(Math.log2(top)), first + 1);
    const step = Math.ceil((last - first) / MOST_TICKS), count = Math.ceil((last - first) / step) + 1;
    return Array.from({ length: count }, (_, at) => 2 ** (first + at * step));
  }
  const step = roundStep(top / 5.01), count = Math.ceil(top / step - 1e-6) + 1;
  return Array.from({ length: count }, (_, at) => at * step);
};

/** Places of names below each other: as near to those wanted as their height lets, none below the lowest. */
export const spreadNames = (wanted, lowest) => {
  const order = wanted.map((_, at) => at).sort((one, two) => wanted[one] - wanted[two]), places = [...wanted];
  order.slice(1).forEach((at, before) => { places[at] = Math.max(places[at], places[order[before]] + LINE); });
  for (const [at, number] of [...order].reverse().entries()) places[number] = Math.min(places[number], lowest - at * LINE);
  return places;
};

const WRITE = {
  ratio: value => String(Number(value.toFixed(2))),
  share: value => formatShare(value, Number.isInteger(Math.round(1000 * value) / 10) ? 0 : 1),
  time: value => formatTime(value),
};
/** How numbers at the axis are written: times in the unit of the greatest, without needless digits. */
const writeTick = (unit, value) => unit === "time" ? formatTime(value, value % 1e6 ? 1 : 0) : WRITE[unit](value);

const parsed = make("div");
parsed.innerHTML = "<svg></svg>";
export const makeShape = (tag, properties, ...children) => {
  const shape = document.createElementNS(parsed.firstChild.namespaceURI, tag);
  for (const [name, value] of Object.entries(properties)) shape.setAttribute(name, value);
  shape.append(...children);
  return shape;
};

/** plot: {title, axis, x, names, unit, lines: {name: values, null for unknown}, guide: the same of what is not measured}. */
export const drawLines = ({ title, axis, x, names, unit, lines, guide }) => {
  const isLog = unit === "ratio", all = [...Object.entries(lines), ...Object.entries(guide)];
  const ticks = chooseTicks(all.flatMap(([, values]) => values.filter(one => one !== null)), isLog);
  const scale = value => isLog ? Math.log2(value) : value, [low, high] = [ticks[0], ticks.at(-1)].map(scale);
  const [first, last] = [Math.min(...x), Math.max(...x)], width = WIDTH - LEFT - RIGHT, height = HEIGHT - TOP - BOTTOM;
  const getX = at => LEFT + width * (x.length > 1 ? (x[at] - first) / (last - first) : .5);
  const getY = value => HEIGHT - BOTTOM - height * (scale(value) - low) / (high - low);
  const write = (x, y, text, kind) => makeShape("text", { x, y, class: kind }, text);
  const svg = makeShape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title }, write(LEFT, 18, title, "title"));
  for (const tick of ticks) {
    const y = getY(tick);
    svg.append(makeShape("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y, class: "grid" }), write(LEFT - 8, y + 4, writeTick(unit, tick), "y"));
  }
  const every = Math.ceil(names.length / MOST_TICKS);
  names.forEach((name, at) => { if (at % every === 0) svg.append(write(getX(at), HEIGHT - BOTTOM + 18, name, "x")); });
  svg.append(write((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, axis, "x"));
  const points = all.map(([, values]) => values.flatMap((value, at) => value === null ? [] : [[getX(at), getY(value), value, at]]));
  const places = spreadNames(points.map(own => own.at(-1)[1]), HEIGHT - BOTTOM);
  all.forEach(([name], number) => {
    const isGuide = name in guide, line = makeShape("g", { class: isGuide ? "guide" : `line-${number % LOOKS}` });
    line.append(makeShape("polyline", { points: points[number].map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ") }));
    for (const [cx, cy, value, at] of isGuide ? [] : points[number]) {
      const point = makeShape("circle", { cx, cy, r: x.length > 40 ? 1.5 : 3.5 });
      addTip(point, () => [name, [`${axis}: ${names[at]}`, WRITE[unit](value)]]);
      line.append(point);
    }
    line.append(write(WIDTH - RIGHT + 10, places[number] + 4, name.length > 26 ? `${name.slice(0, 25)}…` : name, "name"));
    svg.append(line);
  });
  return make("figure", {}, svg);
};
