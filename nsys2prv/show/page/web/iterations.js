// Iterations: how long each takes and what of, and a map of ranks over iterations; a click shows the
// timeline of one.
import { markMoment } from "./cards.js";
import { BarChart } from "./chart.js";
import { find, make } from "./dom.js";
import { capitalize, countNoun, formatSpan, formatTime } from "./format.js";
import { sumGrid } from "./groups.js";
import { HeatMap } from "./heatmap.js";
import { Timeline } from "./timeline.js";
import { MANY } from "./whole.js";

const MAPS = [
  ["own", "how long others wait for it, less its own waits"],
  ["delays", "how long others wait for it alone"],
  ["late", "how late it comes at collectives"],
  ["wait", "how long it waits for others"],
  ["compute", "how long it computes"],
  ["idle", "how long its GPU idles"],
];
const MOST_ROWS = 48;  // Of those with most; all where they are in order.
const IDLE_OF = ["compute", "communication", "wait", "copies"];

/** Add how late lanes are by themselves, as who waits for a late one is late behind it; and the time in which
 * GPUs are idle: what is left of each iteration. */
function addDerived(data) {
  const { grids } = data;
  if (grids.delays && grids.wait)
    grids.own = grids.delays.map(
      (row, lane) => row.map((time, column) => Math.max(0, time - grids.wait[lane][column])));
  if (!grids.compute) return;
  grids.idle = grids.compute.map(
    (row, lane) => Float64Array.from(row,
      (_, column) => Math.max(
        0, measureColumn(data, column) - IDLE_OF.reduce((sum, name) => sum + grids[name][lane][column], 0))));
}
/** Iterations of a column of the grids: first, and the one behind the last. */
function listColumn(data, column) {
  return [column * data.group, Math.min((column + 1) * data.group, data.iterations.length - 1)];
}
function measureColumn(data, column) {
  const [first, last] = listColumn(data, column);
  return data.iterations[last] - data.iterations[first];
}
function nameColumn(data, column) {
  const [first, last] = listColumn(data, column);
  return last - first > 1 ? `iterations ${first + 1} to ${last}` : `iteration ${first + 1}`;
}
/** Ranks that the timeline of an iteration shows. */
const SHOWN = 8;
/** The lanes of an iteration that are worth a look: of many those that others wait for most, and least. */
function chooseLanes(data, column) {
  const { delays, wait } = data.grids, lanes = data.lanes.map((_, lane) => lane);
  if (lanes.length <= SHOWN || !delays) return lanes.slice(0, SHOWN);
  const order = [...lanes].sort((one, two) => delays[two][column] - delays[one][column] ||
      (wait ? wait[one][column] - wait[two][column] : 0));
  return [...order.slice(0, SHOWN / 2), ...order.slice(-SHOWN / 2)];
}
/** Show iterations. Returns {picked, pick(column), onpick}: which one's timeline is shown, -1 for none, and
 * what to call for another. */
export const showIterations = data => {
  const lanes = data.lanes.map((_, lane) => lane);
  addDerived(data);
  const isThere = name => data.grids[name] && lanes.some(lane => sumGrid(data.grids[name], lane) > 0);
  /** Parts of an iteration: grid, text, colour. */
  const known = [
    ...data.binParts.filter(({ ofHost }) => ofHost === !data.lanes[0].device)
      .map(({ name, title, colour }) => [name, title, colour]),
    ["idle", "idle", "idle-bar"]
  ];
  const parts = known.filter(([name]) => isThere(name));
  const columns = Object.values(data.grids)[0]?.[0].length ?? 0;
  if (!columns) return null;
  let lane = -1, heat = null;
  const noun = data.lanes[0].device ? "GPU" : "rank";
  find("#iteration-keys").append(...parts.flatMap(([, text,
    colour]) => [make("i", { class: `b-${colour === "wait-bin" ? "wait" : colour}` }), `${text} `]));
  const getPart = name => Float64Array.from({ length: columns },
    (_, column) => lane < 0
      ? lanes.reduce((total, one) => total + data.grids[name][one][column], 0) / lanes.length
      : data.grids[name][lane][column]);
  const chart = new BarChart(find("#iteration-bars"), {
    label: "Iterations: how long each takes, and what of",
    parts: parts.map(([, , colour]) => ({ colour })),
    getValues: () => parts.map(([name]) => getPart(name)),
    formatValue: (value, each) => formatTime(value, each % 1e6 ? 1 : 0),
    pick,
    describe: column => [nameColumn(data, column), ["duration", formatTime(measureColumn(data, column))],
      ...parts.map(([, text], part) => [text, formatTime(chart.values[part][column])]),
      ["begins at", formatTime(data.iterations[listColumn(data, column)[0]])], "click: its timeline"],
  });
  const select = find("#iteration-of");
  select.append(make("option", { value: "-1" }, `mean of ${countNoun(lanes.length, noun)}`),
    ...lanes.map(one => make("option", { value: String(one) }, data.describeLane(one))));
  select.addEventListener("change", () => {
    lane = Number(select.value);
    chart.refresh();
  });

  const ofHosts = data.grids.compute ? [] : parts.map(([name, text]) => [name, `how long it is ${text}`]);
  const maps = [...MAPS, ...ofHosts].filter(([name]) => isThere(name));
  const metric = find("#heat-of"), byMost = find("#heat-order");
  metric.append(...maps.map(([value, text]) => make("option", { value }, text)));
  byMost.checked = lanes.length > MANY;
  const draw = () => {
    const grid = data.grids[metric.value];
    const text = maps.find(([name]) => name === metric.value)[1];
    const order = [...lanes];
    if (byMost.checked) order.sort((one, two) => sumGrid(grid, two) - sumGrid(grid, one)).splice(MOST_ROWS);
    find("#heat-count").textContent = order.length < lanes.length ? ` (${order.length} of ${lanes.length})`
                                                                  : "";
    const top = Math.max(...lanes.map(one => grid[one].reduce((most, value) => Math.max(most, value), 0))) ||
      1;
    find("#heat-top").textContent = formatTime(top, 1);
    heat = new HeatMap(find("#heat"), {
      rows: order.map(one => ({ label: data.describeLane(one) })),
      columns,
      getValue: (row, column) => Math.sqrt(grid[order[row]][column] / top),
      picked: heat?.picked ?? -1,
      label: `Ranks over iterations: ${text}`,
      pick,
      describe: (row, column) => [
        ["", nameColumn(data, column)], [text, formatTime(grid[order[row]][column])], "click: its timeline"],
    });
  };
  metric.addEventListener("change", draw);
  byMost.addEventListener("change", draw);
  if (maps.length) draw();

  const shownNow = { picked: -1, pick, onpick: null };
  return shownNow;

  function pick(column) {
    if (column >= columns || column === shownNow.picked) return;
    shownNow.picked = chart.picked = column;
    shownNow.onpick?.();
    chart.painter.ask();
    if (heat) {
      heat.picked = column;
      heat.painter.ask();
    }
    find("#iteration-excerpt").hidden = column < 0;
    if (column < 0) return;
    const [first, last] = listColumn(data, column);
    const [begin, end] = [data.iterations[first], data.iterations[last]];
    const pad = .03 * (end - begin);
    const shown = chooseLanes(data, column), isCarried = shown.some(one => data.isCarried(one, begin, end));
    const most = lanes.length > SHOWN
      ? "; the four that others wait for most, and the four that are waited for least"
      : "";
    const name = capitalize(nameColumn(data, column));
    const time = [begin, end].map(one => (one / 1e9).toFixed(6)).join(":");
    find("#iteration-title").textContent = `${name}: ${formatSpan(begin, end)}${most}`;
    find("#iteration-note").textContent = isCarried
      ? ""
      : "Single events of this time are not on this page: " +
        `nsys2prv report … --time ${time} --html FILE makes one that has them.`;
    new Timeline(find("#iteration-timeline"), data, {
      lanes: shown,
      detailed: shown.length > 4 ? new Set(shown.slice(0, 1)) : null,
      view: [begin - pad, end + pad],
      label: `Timeline of ${nameColumn(data, column)}`,
      marks: data.moments.filter(moment => moment && moment.begin < end && moment.end > begin)
        .flatMap(moment => markMoment(data, moment)),
    });
  }
};
