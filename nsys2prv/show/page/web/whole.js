// The timeline of the whole job: a strip to zoom with, below it ranks, of many their hosts.
import { markMoment } from "./cards.js";
import { find, make, makeButton } from "./dom.js";
import { countNoun, formatTime } from "./format.js";
import { Strip } from "./strip.js";
import { Timeline } from "./timeline.js";

/** Lanes from which on hosts are folded, and from which on not all lanes have all their tracks. */
export const MANY = 16, FEW = 8;
/** What the colours of kernels mean, and of what is not a part of time: class, text. */
const KEYS = [
  ["gemm", "matrix products, tensor cores"], ["gemm-slow", "matrix products without them"], ["attention", "attention"], ["kernel", "other kernels"],
];
/** Metrics that are shown at first. */
const FIRST = [/^SMs? Active|^GR Active/, /^Device memory in use/];

export const sumGrid = (grid, lane) => grid?.[lane].reduce((total, value) => total + value, 0) ?? 0;

/** Hosts with their ranks: those that wait least first, as the others wait for them. */
const groupByHost = (data, order) => {
  const hosts = new Map();
  data.lanes.forEach(({ node }, lane) => { if (!hosts.has(node)) hosts.set(node, []); hosts.get(node).push(lane); });
  const { wait, compute } = data.grids, noun = data.lanes[0].device ? "GPU" : "rank";
  const groups = [...hosts].map(([label, own]) => {
    const mean = grid => own.reduce((total, lane) => total + sumGrid(grid, lane), 0) / own.length;
    const sorted = order === "rank" ? own : [...own].sort((one, two) => sumGrid(wait, one) - sumGrid(wait, two));
    const waits = wait ? `, wait ${formatTime(mean(wait), 1)}` : "";
    return { label, lanes: sorted, open: false, waits: mean(wait), computes: mean(compute), note: countNoun(own.length, noun) + waits };
  });
  if (order === "wait") groups.sort((one, two) => one.waits - two.waits);
  if (order === "compute") groups.sort((one, two) => two.computes - one.computes);
  return groups;
};

export const showWhole = data => {
  const lanes = data.lanes.map((_, lane) => lane);
  let timeline = null;
  const isGrouped = lanes.length > MANY, canSort = Boolean(data.grids.wait);
  const buttons = [
    makeButton("whole job", "from the first event to the last", () => timeline.show(0, data.duration)),
  ];
  if (data.iterations.length) buttons.push(makeButton("steady state", "the time of the iterations", () => timeline.show(...data.span)));
  if (isGrouped) {
    const orders = [["wait", "waits least first (others wait for it)"], ["compute", "computes most first"], ["rank", "by rank"]];
    const regroup = event => { timeline.groups = groupByHost(data, event.target.value); timeline.layOut(); };
    if (canSort) buttons.push(make("select", { "aria-label": "order of hosts", onchange: regroup }, ...orders.map(([value, text]) => make("option", { value }, text))));
    buttons.push(makeButton("unfold all", "show or hide the ranks of all hosts", () => {
      const open = !timeline.groups.every(group => group.open);
      timeline.groups.forEach(group => { group.open = open; });
      timeline.layOut();
    }));
  }
  // Three iterations, unless these are too short to be found again.
  const { iterations } = data, third = iterations[Math.min(3, iterations.length - 1)];
  const few = iterations.length > 1 && !isGrouped && third - iterations[0] > .01 * data.duration;
  timeline = new Timeline(find("#whole"), data, {
    ...(isGrouped ? { groups: groupByHost(data, canSort ? "wait" : "rank"), detailed: new Set() } : { lanes, detailed: lanes.length > FEW ? new Set() : null }),
    options: { metrics: FIRST.map(one => data.metrics.find(({ name }) => one.test(name))?.name).filter(Boolean) },
    view: few ? [iterations[0], third] : [...data.span], highest: 620, hasTable: true,
    marks: data.moments.filter(Boolean).flatMap(moment => markMoment(data, moment)), buttons, label: "Timeline of the whole job", onview: () => timeline?.strip?.painter.ask(),
  });
  const pins = data.moments.map((moment, at) => moment && { number: at + 1, time: moment.begin, title: find(`#finding-${at + 1} h3`).textContent });
  timeline.strip = new Strip(find("#strip"), data, timeline, pins.filter(Boolean));
  const classes = new Set(data.nameClasses.map(number => data.classes[number])), list = isHost => data.binParts.filter(({ ofHost }) => ofHost === isHost).map(({ colour, title }) => [colour, title]);
  for (const [noun, keys] of [["GPU", list(false)], ["kernels", KEYS.filter(([name]) => classes.has(name))], ["host", list(true)]])
    if (keys.length) find("#keys").append(make("li", {}, make("b", {}, noun)), ...keys.map(([name, text]) => make("li", {}, make("i", { class: `b-${name}` }), text)));
  return timeline;
};
