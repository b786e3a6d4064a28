// The page of `nsys2prv report`: the findings' timelines, the job's, iterations, kernels, metrics, tables.
import { BarChart } from "./chart.js";
import { loadJobs, prepareForPrint, preparePage, reportReady, root, showTables } from "./common.js";
import { describeMoment, findLast } from "./describe.js";
import { addTip, find, findAll, getColours, make, makeButton, Painter, showTip } from "./dom.js";
import { FlameGraph } from "./flame.js";
import { countNoun, formatCount, formatShare, formatTime } from "./format.js";
import { getRampColour, HeatMap } from "./heatmap.js";
import { Strip } from "./strip.js";
import { makeFilterable, makeSortable } from "./tables.js";
import { Timeline } from "./timeline.js";

/** Lanes from which on hosts are folded, and from which on not all lanes have all their tracks. */
const MANY = 16, FEW = 8;
/** What the colours of events mean: class, text. */
const KEYS = [
  ["gemm", "matrix products, tensor cores"], ["gemm-slow", "matrix products without them"], ["attention", "attention"],
  ["kernel", "other kernels"], ["nccl", "NCCL"], ["wait", "NCCL waiting for the last rank"], ["copy", "copies"],
  ["sync", "host waits for the GPU"], ["launch", "other CUDA calls"], ["ncclcall", "NCCL calls"], ["mpi", "MPI and UCX"], ["io", "I/O"],
  ["os", "operating system"], ["nvtx", "NVTX ranges"],
];
/** Parts of an iteration: grid, text, colour. */
const PARTS = [
  ["compute", "computing", "compute"], ["communication", "communication alone", "nccl"], ["wait", "of it waiting", "wait-bin"],
  ["copies", "copies alone", "copy"], ["mpi", "in MPI", "mpi"], ["io", "in I/O", "io"], ["os", "in other OS calls", "os"],
  ["idle", "idle", "idle-bar"], ["rest", "in no such call", "idle-bar"],
];
const MAPS = [
  ["delays", "how much others wait for it alone"], ["late", "how late it comes at collectives"], ["wait", "how long it waits for others"],
  ["compute", "how long it computes"], ["idle", "how long its GPU idles"], ["mpi", "how long it is in MPI"], ["rest", "how long it is in no such call"],
];
const IDLE_OF = ["compute", "communication", "wait", "copies"];

preparePage();
labelBar();
prepareKernels();
const [data] = await loadJobs();
const lanes = data.lanes.map((_, lane) => lane), excerpts = [];
if (data.grids.compute) data.grids.idle = lanes.map(lane => Float64Array.from(data.grids.compute[lane], (_, column) =>
  Math.max(0, measureColumn(column) - IDLE_OF.reduce((sum, name) => sum + data.grids[name][lane][column], 0))));
const whole = lanes.length ? showWhole() : null;
showCards();
if (lanes.length && data.grids && find("#iterations")) showIterations();
if (data.flames) showFlames();
showMetrics();
showTables(data);
prepareForPrint(() => {
  findAll("article[data-moment]").forEach(openCard);
  [...excerpts, whole, whole?.strip].forEach(one => one?.painter.now());
});
reportReady();

// ---- the bar and the kernels, which need no data --------------------------------------------------
/** Write shares on the large bar, where there is room. */
function labelBar() {
  const bar = find("#big");
  if (!bar) return;
  const write = () => {
    findAll("span", bar).forEach(one => one.remove());
    for (const part of findAll("rect", bar)) {
      const share = Number(part.getAttribute("width")) / 1000, room = share * bar.clientWidth;
      if (room < 62) continue;
      const [title] = JSON.parse(part.dataset.tip), text = formatShare(share, 0) + (room > 60 + 8 * title.length ? ` ${title}` : "");
      const label = make("span", { class: `on ${part.getAttribute("class")}`, "aria-hidden": "true" }, text);
      label.style.left = `${(Number(part.getAttribute("x")) / 1000 + share / 2) * 100}%`;
      bar.append(label);
    }
  };
  write();
  addEventListener("resize", write);
}
function prepareKernels() {
  const table = find("#kernel-table");
  if (!table) return;
  makeSortable(table);
  makeFilterable(find("#kernel-filter"), table, find("#kernel-count"));
  for (const path of findAll("path[data-bins]", table)) {
    const bins = JSON.parse(path.dataset.bins), box = path.ownerSVGElement;
    addTip(box, event => {
      const { left, width } = box.getBoundingClientRect(), at = event ? Math.floor((event.clientX - left) / width * bins.length) : 0;
      const [low, high, count] = bins[Math.min(Math.max(at, 0), bins.length - 1)];
      return [`${formatTime(low)} – ${formatTime(high)}`, ["executions", formatCount(count)]];
    });
  }
}

// ---- findings -------------------------------------------------------------------------------------
/** Marks of a moment: its time on the lanes of those at fault (of nobody: on all), and by how much one is late. */
function markMoment(moment) {
  const text = formatTime(moment.end - moment.begin), last = moment.collective ? findLast(data, moment.collective) : null;
  const marked = moment.culprits.length ? moment.culprits : moment.lanes;
  const marks = marked.map(lane => ({ lane, begin: moment.begin, end: moment.end, text }));
  if (last?.late > 0 && moment.culprits.includes(last.lane)) {
    const came = last.track.begin[last.i];
    marks.push({ lane: last.lane, begin: came - last.late, end: came, text: `late by ${formatTime(last.late)}` });
  }
  return marks;
}
function showCards() {
  const cards = findAll("article[data-moment]");
  const observer = new IntersectionObserver(entries => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) { observer.unobserve(target); openCard(target); }
  }, { rootMargin: "300px" });
  for (const card of cards) {
    const moment = data.moments[Number(card.dataset.moment)];
    find(".sentence", card).textContent = describeMoment(data, moment);
    observer.observe(card);
  }
}
function openCard(card) {
  const moment = data.moments[Number(card.dataset.moment)];
  if (card.dataset.drawn) return;
  card.dataset.drawn = "1";
  const [first] = moment.culprits, other = moment.lanes.find(lane => !moment.culprits.includes(lane));
  const go = makeButton("in the whole timeline", "show this moment in the timeline of the job", () => {
    whole.reveal(moment.lanes);
    whole.show(...moment.view);
    find("#timeline").scrollIntoView({ behavior: "smooth" });
  });
  excerpts.push(new Timeline(find(".excerpt", card), data, {
    lanes: moment.lanes, view: moment.view, marks: markMoment(moment), culprits: moment.culprits, collective: moment.collective,
    detailed: moment.lanes.length > 4 ? new Set([first, other].filter(lane => lane !== undefined)) : null, buttons: [go],
    label: `Timeline of finding ${Number(card.dataset.moment) + 1}: ${describeMoment(data, moment)}`,
  }));
}

// ---- the whole job --------------------------------------------------------------------------------
function sum(grid, lane) { return grid?.[lane].reduce((total, value) => total + value, 0) ?? 0; }
/** Hosts with their ranks: those that wait least first, as the others wait for them. */
function groupByHost(order) {
  const hosts = new Map();
  data.lanes.forEach(({ node }, lane) => { if (!hosts.has(node)) hosts.set(node, []); hosts.get(node).push(lane); });
  const { wait, compute } = data.grids, noun = data.lanes[0].device ? "GPU" : "rank";
  const groups = [...hosts].map(([label, own]) => {
    const mean = grid => own.reduce((total, lane) => total + sum(grid, lane), 0) / own.length;
    const sorted = order === "rank" ? own : [...own].sort((one, two) => sum(wait, one) - sum(wait, two));
    const waits = wait ? `, wait ${formatTime(mean(wait), 1)}` : "";
    return { label, lanes: sorted, open: false, waits: mean(wait), computes: mean(compute), note: countNoun(own.length, noun) + waits };
  });
  if (order === "wait") groups.sort((one, two) => one.waits - two.waits);
  if (order === "compute") groups.sort((one, two) => two.computes - one.computes);
  return groups;
}
function showWhole() {
  let timeline = null;
  const isGrouped = lanes.length > MANY, canSort = Boolean(data.grids.wait);
  const buttons = [
    makeButton("whole job", "from the first event to the last", () => timeline.show(0, data.duration)),
    makeButton("steady state", "the time of the iterations", () => timeline.show(...data.span)),
  ];
  if (isGrouped) {
    const orders = [["wait", "waits least first (others wait for it)"], ["compute", "computes most first"], ["rank", "by rank"]];
    const regroup = event => { timeline.groups = groupByHost(event.target.value); timeline.layOut(); };
    if (canSort) buttons.push(make("select", { "aria-label": "order of hosts", onchange: regroup }, ...orders.map(([value, text]) => make("option", { value }, text))));
    buttons.push(makeButton("unfold all", "show or hide the ranks of all hosts", () => {
      const open = !timeline.groups.every(group => group.open);
      timeline.groups.forEach(group => { group.open = open; });
      timeline.layOut();
    }));
  }
  const { iterations } = data, few = iterations.length > 1 && !isGrouped;
  timeline = new Timeline(find("#whole"), data, {
    ...(isGrouped ? { groups: groupByHost(canSort ? "wait" : "rank"), detailed: new Set() } : { lanes, detailed: lanes.length > FEW ? new Set() : null }),
    view: few ? [iterations[0], iterations[Math.min(3, iterations.length - 1)]] : [...data.span], highest: 620,
    marks: data.moments.filter(Boolean).flatMap(markMoment), buttons, label: "Timeline of the whole job", onview: () => timeline?.strip?.painter.ask(),
  });
  timeline.home = [0, data.duration];
  const pins = data.moments.map((moment, at) => moment && { number: at + 1, time: moment.begin, title: find(`#finding-${at + 1} h3`).textContent });
  timeline.strip = new Strip(find("#strip"), data, timeline, pins.filter(Boolean));
  const classes = new Set(data.nameClasses.map(number => data.classes[number]));
  if (classes.has("nccl")) classes.add("wait");
  find("#keys").append(...(classes.size ? KEYS.filter(([name]) => classes.has(name)) : data.binParts.map(part => [part.colour, part.title]))
    .map(([name, text]) => make("li", {}, make("i", { class: `b-${name}` }), text)));
  return timeline;
}

// ---- iterations -----------------------------------------------------------------------------------
/** Iterations of a column of the grids: first, and the one behind the last. */
function listColumn(column) { return [column * data.group, Math.min((column + 1) * data.group, data.iterations.length - 1)]; }
function measureColumn(column) {
  const [first, last] = listColumn(column);
  return data.iterations[last] - data.iterations[first];
}
function nameColumn(column) {
  const [first, last] = listColumn(column);
  return last - first > 1 ? `iterations ${first + 1} to ${last}` : `iteration ${first + 1}`;
}
/** The lanes of an iteration that are worth a look: of many those that others wait for most, and least. */
function chooseLanes(column) {
  const { delays, wait } = data.grids;
  if (lanes.length <= FEW || !delays) return lanes.slice(0, FEW);
  const order = [...lanes].sort((one, two) => delays[two][column] - delays[one][column] || wait[one][column] - wait[two][column]);
  return [...order.slice(0, 4), ...order.slice(-4)];
}
function showIterations() {
  const parts = PARTS.filter(([name]) => data.grids[name]), columns = Object.values(data.grids)[0]?.[0].length ?? 0;
  if (!columns) return;
  let lane = -1, heat = null;
  const noun = data.lanes[0].device ? "GPU" : "rank";
  find("#iteration-keys").append(...parts.flatMap(([, text, colour]) => [make("i", { class: `b-${colour === "wait-bin" ? "wait" : colour}` }), `${text} `]));
  const getPart = name => Float64Array.from({ length: columns }, (_, column) => lane < 0
    ? lanes.reduce((total, one) => total + data.grids[name][one][column], 0) / lanes.length : data.grids[name][lane][column]);
  const chart = new BarChart(find("#iteration-bars"), {
    label: "Iterations: how long each takes, and what of", parts: parts.map(([, , colour]) => ({ colour })),
    getValues: () => parts.map(([name]) => getPart(name)), formatValue: (value, each) => formatTime(value, each % 1e6 ? 1 : 0), pick,
    describe: column => [nameColumn(column), ["duration", formatTime(measureColumn(column))],
      ...parts.map(([, text], part) => [text, formatTime(chart.values[part][column])]),
      ["begins at", formatTime(data.iterations[listColumn(column)[0]])], "click: its timeline"],
  });
  const select = find("#iteration-of");
  select.append(make("option", { value: "-1" }, `mean of ${countNoun(lanes.length, noun)}`), ...lanes.map(one => make("option", { value: String(one) }, data.describeLane(one))));
  select.addEventListener("change", () => { lane = Number(select.value); chart.refresh(); });

  const maps = MAPS.filter(([name]) => data.grids[name] && (name !== "delays" || lanes.some(one => sum(data.grids.delays, one) > 0)));
  const metric = find("#heat-of"), byMost = find("#heat-order");
  metric.append(...maps.map(([value, text]) => make("option", { value }, text)));
  byMost.checked = lanes.length > MANY;
  const draw = () => {
    const grid = data.grids[metric.value], text = maps.find(([name]) => name === metric.value)[1], order = [...lanes];
    if (byMost.checked) order.sort((one, two) => sum(grid, two) - sum(grid, one));
    const top = Math.max(...lanes.map(one => grid[one].reduce((most, value) => Math.max(most, value), 0))) || 1;
    find("#heat-top").textContent = formatTime(top, 1);
    heat = new HeatMap(find("#heat"), {
      rows: order.map(one => ({ label: data.describeLane(one) })), columns, getValue: (row, column) => Math.sqrt(grid[order[row]][column] / top),
      picked: heat?.picked ?? -1, label: `Ranks over iterations: ${text}`, pick,
      describe: (row, column) => [["", nameColumn(column)], [text, formatTime(grid[order[row]][column])], "click: its timeline"],
    });
  };
  metric.addEventListener("change", draw);
  byMost.addEventListener("change", draw);
  if (maps.length) draw();
  const ramp = find("#ramp");
  new Painter(ramp, (c, width, height) => { for (let x = 0; x < width; x++) { c.fillStyle = getRampColour(x / width); c.fillRect(x, 0, 1.5, height); } }).ask();

  function pick(column) {
    chart.picked = column;
    chart.painter.ask();
    if (heat) { heat.picked = column; heat.painter.ask(); }
    const [first, last] = listColumn(column), [begin, end] = [data.iterations[first], data.iterations[last]], pad = .03 * (end - begin);
    const shown = chooseLanes(column), isCarried = shown.some(one => data.isCarried(one, begin, end));
    const most = lanes.length > FEW ? "; the four that others wait for most, and the four that are waited for least" : "";
    find("#iteration-title").textContent = `${nameColumn(column)[0].toUpperCase()}${nameColumn(column).slice(1)}: ${formatTime(end - begin)}, from ${formatTime(begin)} to ${formatTime(end)}${most}`;
    find("#iteration-note").textContent = isCarried ? "" : `Single events of this time are not on this page: nsys2prv report … --time ${(begin / 1e9).toFixed(6)}:${(end / 1e9).toFixed(6)} --html FILE makes one that has them.`;
    find("#iteration-excerpt").hidden = false;
    new Timeline(find("#iteration-timeline"), data, {
      lanes: shown, detailed: shown.length > 4 ? new Set(shown.slice(0, 1)) : null, view: [begin - pad, end + pad], label: `Timeline of ${nameColumn(column)}`,
      marks: data.moments.filter(moment => moment && moment.begin < end && moment.end > begin).flatMap(markMoment),
    });
  }
}

// ---- call stacks ----------------------------------------------------------------------------------
function showFlames() {
  const select = find("#flame-of"), search = find("#flame-search");
  let graph = null;
  const draw = () => { graph = new FlameGraph(find("#flame"), data.flames[Number(select.value)][1]); graph.search(search.value); };
  select.append(...data.flames.map(([rank], at) => make("option", { value: String(at) }, rank === "all" ? "all ranks" : rank)));
  select.addEventListener("change", draw);
  search.addEventListener("input", () => graph.search(search.value));
  draw();
}

// ---- sampled metrics ------------------------------------------------------------------------------
function showMetrics() {
  for (const { name, top, rows, columns, at } of data.metrics) {
    const box = make("div"), values = data.bytes.subarray(at, at + rows.length * columns), getByte = (row, column) => values[row * columns + column];
    const written = number => Number(number.toPrecision(3)).toLocaleString("en-US");
    find("#metrics-maps").append(make("figure", {}, make("figcaption", {}, name, make("small", {}, ` 0 – ${written(top)}`)), box));
    new HeatMap(box, {
      rows: rows.map(label => ({ label })), columns, label: name, getValue: (row, column) => getByte(row, column) ? (getByte(row, column) - 1) / 254 : null,
      describe: (row, column) => [["time", formatTime((column + .5) / columns * data.duration)],
        [name, getByte(row, column) ? written((getByte(row, column) - 1) / 254 * top) : "not sampled"]],
      pick: column => {
        whole?.show((column - 3) / columns * data.duration, (column + 4) / columns * data.duration);
        find("#timeline").scrollIntoView({ behavior: "smooth" });
      },
    });
  }
}
