// The timeline of the whole job: a strip to zoom with, below it ranks, many in groups.
import { markMoment } from "./cards.js";
import { find, make, makeButton } from "./dom.js";
import { groupAlike, groupByHost } from "./groups.js";
import { Strip } from "./strip.js";
import { Timeline } from "./timeline.js";

/** Lanes from which on they are in groups, and from which on not all lanes have all their tracks. */
export const MANY = 16, FEW = 8;
/** What the colours of kernels mean, and of what is not a part of time: class, text. */
const KEYS = [
  ["gemm", "GEMMs with tensor cores"],
  ["gemm-slow", "GEMMs without them"],
  ["attention", "attention"],
  ["kernel", "other kernels"],
];
/** Metrics that are shown at first. */
const FIRST = [/^SMs? Active|^GR Active/, /^Device memory in use/];

export const showWhole = data => {
  const lanes = data.lanes.map((_, lane) => lane);
  let timeline = null;
  const isGrouped = lanes.length > MANY, culprits = data.moments.flatMap(moment => moment?.culprits ?? []);
  const groupers = {
    "like ones together": () => groupAlike(data, culprits),
    "by node": () => groupByHost(data)
  };
  const buttons = [
    makeButton("whole job", "from the first event to the last", () => timeline.show(0, data.duration)),
  ];
  if (data.iterations.length)
    buttons.push(makeButton("steady state", "the time of the iterations", () => timeline.show(...data.span)));
  if (isGrouped) {
    const regroup = event => {
      timeline.groups = groupers[event.target.value]();
      timeline.layOut();
    };
    buttons.push(make("select", { "aria-label": "groups", onchange: regroup },
      ...Object.keys(groupers).map(name => make("option", {}, name))));
    buttons.push(makeButton("unfold all", "show or hide the ranks of all groups", () => {
      const open = !timeline.groups.every(group => group.open);
      timeline.groups.forEach(group => { group.open = open; });
      timeline.layOut();
    }));
  }
  // Three iterations, unless these are too short to be found again.
  const { iterations } = data, third = iterations[Math.min(3, iterations.length - 1)];
  const few = iterations.length > 1 && !isGrouped && third - iterations[0] > .01 * data.duration;
  timeline = new Timeline(find("#whole"), data, {
    ...(isGrouped ? { groups: groupAlike(data, culprits), detailed: new Set() }
                  : { lanes, detailed: lanes.length > FEW ? new Set() : null }),
    options:
      { metrics: FIRST.map(one => data.metrics.find(({ name }) => one.test(name))?.name).filter(Boolean) },
    view: few ? [iterations[0], third] : [...data.span],
    highest: 620,
    hasTable: true,
    marks: data.moments.filter(Boolean).flatMap(moment => markMoment(data, moment)),
    buttons,
    label: "Timeline of the whole job",
    onview: () => timeline?.strip?.painter.ask(),
  });
  const pins = data.moments.map((moment, at) => moment &&
      { number: at + 1, time: moment.begin, title: find(`#finding-${at + 1} h3`).textContent });
  timeline.strip = new Strip(find("#strip"), data, timeline, pins.filter(Boolean));
  const classes = new Set(data.nameClasses.map(number => data.classes[number]));
  const list = isHost =>
    data.binParts.filter(({ ofHost }) => ofHost === isHost).map(({ colour, title }) => [colour, title]);
  for (const [noun, keys] of [
         ["GPU", list(false)], ["kernels", KEYS.filter(([name]) => classes.has(name))], ["host", list(true)]])
    if (keys.length)
      find("#keys").append(make("li", {}, make("b", {}, noun)),
        ...keys.map(([name, text]) => make("li", {}, make("i", { class: `b-${name}` }), text)));
  return timeline;
};
