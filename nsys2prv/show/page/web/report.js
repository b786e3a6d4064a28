// The page of `nsys2prv report`: findings, the job's timeline, iterations, call stacks, kernels, metrics,
// tables.
import { Address } from "./address.js";
import { showCards } from "./cards.js";
import { loadJobs, prepareForPrint, preparePage, reportReady, showTables } from "./common.js";
import { addTip, find, getColours, make, offer, Painter } from "./dom.js";
import { FlameGraph } from "./flame.js";
import { formatCount, formatTime } from "./format.js";
import { showIterations } from "./iterations.js";
import { showKernelMaps, showMessages } from "./panels.js";
import { drawRoofline } from "./roofline.js";
import { makeFilterable, makeTable } from "./tables.js";
import { showWhole } from "./whole.js";

preparePage();
const [data] = await loadJobs();
const whole = data.lanes.length ? showWhole(data) : null;
const showInWhole = (lanes, begin, end) => {
  whole.reveal(lanes);
  whole.show(begin, end);
  find("#timeline").scrollIntoView({ behavior: "smooth" });
};
const drawCards = showCards(data, moment => showInWhole(moment.lanes, ...moment.view));
const iterations = Object.keys(data.grids).length ? showIterations(data) : null;
showKernels();
for (const [name, flames] of Object.entries(data.flames)) showFlames(name, flames);
showModules();
showMessages(data);
showKernelMaps(data, (lane, begin, end) => showInWhole([lane], begin, end));
showTables(data);
prepareForPrint(drawCards);
if (whole) new Address(whole, iterations);
reportReady();

// ---- the kernels --------------------------------------------------
/** The kernels that take most time, with the distributions of their durations. */
function showKernels() {
  const tables = data.tables.flatMap(analysis => analysis.tables), place = find("#kernel-table");
  const [kernels, durations] = ["kernels.kernels", "kernels.durations"].map(
    name => tables.find(one => one.name === name)?.columns);
  if (!place || !kernels) return;
  const shown = [
    "kernel", "class", "tensor_cores", "count", "time_ns", "time_share", "median_ns", "min_ns", "max_ns",
    "imbalance"
  ];
  const table = makeTable(shown.map(wanted => kernels.find(([name]) => name === wanted))), bins = new Map();
  durations?.[0][2].forEach((kernel, row) => {
    if (!bins.has(kernel)) bins.set(kernel, []);
    bins.get(kernel).push(durations.slice(1).map(([, , values]) => values[row]));
  });
  table.tHead.rows[0].cells[5].after(make("th", { scope: "col" }, "durations"));
  for (const row of table.tBodies[0].rows) {
    const [name] = row.cells, own = bins.get(name.textContent);
    Object.assign(name, { className: "name", title: name.textContent });
    row.cells[5].after(make("td", {}, own ? drawDistribution(own) : ""));
  }
  place.append(table);
  makeFilterable(find("#kernel-filter"), table, find("#kernel-count"));
}
function drawDistribution(bins) {
  const most = Math.max(...bins.map(([, , count]) => count));
  const canvas = make("canvas", { class: "spark", role: "img", "aria-label": "distribution of durations" });
  new Painter(canvas, (c, width, height) => {
    c.fillStyle = getColours().compute;
    bins.forEach(([, , count], at) => {
      const size = count ? Math.max(1.2, count / most * height) : 0;
      c.fillRect(at * width / bins.length, height - size, .88 * width / bins.length, size);
    });
  });
  addTip(canvas, event => {
    const { left, width } = canvas.getBoundingClientRect();
    const at = event ? Math.floor((event.clientX - left) / width * bins.length) : 0;
    const [low, high, count] = bins[Math.min(Math.max(at, 0), bins.length - 1)];
    return [`${formatTime(low)} – ${formatTime(high)}`, ["executions", formatCount(count)]];
  });
  return canvas;
}

// ---- call stacks, modules ----------------------------------------------------------------------------
function showFlames(name, flames) {
  const select = find(`#${name}-of`), search = find(`#${name}-search`);
  let graph = null;
  const draw = () => {
    graph = new FlameGraph(find(`#${name}-flame`), flames[Number(select.value)][1]);
    graph.search(search.value);
  };
  search.addEventListener("input", () => graph.search(search.value));
  offer(select, flames.map(([rank], at) => [at, rank === "all" ? "all ranks" : rank]), draw);
}
/** The modules of a model as a tree, the roofline of products, how iterations differ, and parallel
 * dimensions. */
function showModules() {
  const places = {
    "#module-table": ["modules.modules", makeTable],
    "#roofline": ["products.products", drawRoofline],
    "#iteration-spread": ["efficiencies.over_iterations", makeTable],
    "#dimension-table": ["groups.dimensions", makeTable],
    "#coordinate-table": ["groups.coordinates", makeTable]
  };
  const tables = new Map(
    data.tables.flatMap(analysis => analysis.tables).map(table => [table.name, table.columns]));
  for (const [place, [name, draw]] of Object.entries(places))
    if (tables.has(name)) find(place)?.append(draw(tables.get(name)));
}
