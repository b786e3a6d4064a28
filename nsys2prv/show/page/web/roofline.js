// The roofline of products: operations per second over operations per byte, both in powers of ten, below
// what GPUs can do.
import { addTip, make, makeShape } from "./dom.js";
import { formatCount, formatShare, formatTime, shortenName } from "./format.js";

const WIDTH = 760, HEIGHT = 400, LEFT = 62, RIGHT = 190, TOP = 16, BOTTOM = 44;
/** Radius of the product that takes most time; areas are as times. */
const LARGEST = 14, SMALLEST = 2.5;

/** The decades around some numbers: exponents of ten. */
export const findDecades = numbers => {
  const first = Math.floor(Math.log10(Math.min(...numbers)));
  const last = Math.ceil(Math.log10(Math.max(...numbers)));
  return Array.from({ length: Math.max(last - first, 1) + 1 }, (_, at) => first + at);
};

/** What each kind of GPU and data type can do, once: {name, peak (TFLOP/s), memory (GB/s)}. */
export const listRoofs =
  products => [...new Map(products.map(({data_type: name,
    peak_tflop_s: peak,
    memory_gb_s: memory}) => [`${name} ${peak} ${memory}`, {name, peak, memory}]))
      .values()];

/** columns: of the table of products. */
export const drawRoofline = columns => {
  const rows = columns[0][2].map(
    (_, row) => Object.fromEntries(columns.map(([name, , values]) => [name, values[row]])));
  const products = rows.filter(one => one.allowed_tflop_s !== null && one.tflop_s > 0);
  const roofs = listRoofs(products);
  const across = findDecades(
    [...products.map(one => one.flop_per_byte), ...roofs.map(({ peak, memory }) => 1e3 * peak / memory)]);
  const up = findDecades([...products.map(one => one.tflop_s), ...roofs.map(({ peak }) => peak)]);
  const getX = value => LEFT +
    (WIDTH - LEFT - RIGHT) * (Math.log10(value) - across[0]) / (across.at(-1) - across[0]);
  const getY = value => HEIGHT - BOTTOM -
    (HEIGHT - TOP - BOTTOM) * (Math.log10(value) - up[0]) / (up.at(-1) - up[0]);
  const write = (x, y, text, kind) => makeShape("text", { x, y, class: kind }, text);
  const [bottom, right] = [HEIGHT - BOTTOM, WIDTH - RIGHT];
  const svg = makeShape(
    "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "Roofline of products" });
  for (const one of up)
    svg.append(
      makeShape("line", { x1: LEFT, x2: right, y1: getY(10 ** one), y2: getY(10 ** one), class: "grid" }),
      write(LEFT - 8, getY(10 ** one) + 4, String(10 ** one), "y"));
  for (const one of across) svg.append(write(getX(10 ** one), bottom + 18, String(10 ** one), "x"));
  svg.append(write((LEFT + right) / 2, HEIGHT - 8,
    "FLOP per byte (left: TFLOP/s; area: time; second colour: attention with a known mask)", "x"));
  for (const { name, peak, memory } of roofs) {
    const from = Math.max(10 ** across[0], 1e3 * 10 ** up[0] / memory), turn = 1e3 * peak / memory;
    const corners = [[from, from * memory / 1e3], [turn, peak], [10 ** across.at(-1), peak]].map(
      ([x, y]) => `${getX(x)},${getY(y)}`);
    svg.append(makeShape("g", { class: "guide" }, makeShape("polyline", { points: corners.join(" ") }),
      write(
        right + 8, getY(peak) + 4, `${name}: ${peak} TFLOP/s, ${(memory / 1e3).toFixed(2)} TB/s`, "name")));
  }
  const longest = Math.max(...products.map(one => one.time_ns));
  for (const one of products) {
    const size = Math.max(LARGEST * Math.sqrt(one.time_ns / longest), SMALLEST);
    const point = makeShape("circle", {
      cx: getX(one.flop_per_byte),
      cy: getY(one.tflop_s),
      r: size,
      tabindex: 0,
      class: one.mask === undefined || one.mask === null ? "line-0" : "line-1",
      "fill-opacity": .6
    });
    addTip(point,
      () => [one.range, [shortenName(one.kernel, 60), ""], ["executions", formatCount(one.count)],
        ["time", formatTime(one.time_ns)], ["TFLOP/s", one.tflop_s.toPrecision(3)],
        ["of what its shape allows", formatShare(one.roofline_share)],
        ["FLOP per byte", one.flop_per_byte.toPrecision(3)]]);
    svg.append(point);
  }
  return make("div", { class: "plots" }, make("figure", {}, svg));
};
