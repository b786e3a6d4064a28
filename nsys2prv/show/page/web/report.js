// The page of `nsys2prv report`: findings, the job's timeline, iterations, call stacks, kernels, metrics,
// tables.
import { Address } from "./address.js";
import { showCards } from "./cards.js";
import { loadJobs, prepareForPrint, preparePage, reportReady, showTables } from "./common.js";
import { find, offer } from "./dom.js";
import { FlameGraph } from "./flame.js";
import { showIterations } from "./iterations.js";
import { showKernelMaps, showMessages } from "./panels.js";
import { makeFilterable, makeSortable, makeTable } from "./tables.js";
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
/** Sort and filter the table of kernels. */
function showKernels() {
  const table = find("#kernel-table table");
  if (!table) return;
  makeSortable(table);
  makeFilterable(find("#kernel-filter"), table, find("#kernel-count"));
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
/** Tables that have a place of their own. */
function showModules() {
  const places = {
    "modules.modules": "#module-table",
    "efficiencies.over_iterations": "#iteration-spread",
    "groups.dimensions": "#dimension-table",
    "groups.coordinates": "#coordinate-table"
  };
  for (const { name, columns } of data.tables.flatMap(analysis => analysis.tables))
    if (name in places) find(places[name])?.append(makeTable(columns));
}
