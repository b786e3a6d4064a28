// Below a timeline: what fills the selected or visible time, as a table, and the selected event with its
// collective.
import { describeEvent, findLast } from "./describe.js";
import { make, makeButton } from "./dom.js";
import { countNoun, formatCount, formatShare, formatSpan, formatTime } from "./format.js";
import { measureShares, remember } from "./shares.js";
import { makeCopyButtons, makeTable } from "./tables.js";

/** What events of a class are. */
const SORTS = {
  nccl: "NCCL",
  copy: "copy",
  sync: "CUDA synchronization",
  launch: "CUDA API call",
  ncclcall: "NCCL API call",
  mpi: "MPI or UCX call",
  io: "I/O call",
  os: "OS runtime call",
  nvtx: "NVTX range"
};
const ORDER = ["knm", "h", "x"];  // Of the kinds of events in the table.
const SOON = 120;                 // Until the table follows the view (ms).

/** How much of a time spans cover that may overlap. spans: [begin, end]. */
const measureUnion = spans =>
  spans.sort(([one], [two]) => one - two)
    .reduce(([total, reached],
              [from, to]) => [total + Math.max(to - Math.max(from, reached), 0), Math.max(to, reached)],
      [0, -Infinity])[0];

/** The columns of a table of what some lanes do from begin to end, by events: time within, share of the time
 * of all these lanes; count, mean and longest of the whole events that are at least partly in it. Where
 * events of it are not on the page the shares of its bins, and no counts. covered: the share that each sort
 * of events covers, counting once what overlaps on a lane. */
export const sumUp = (data, lanes, begin, end) => {
  const isWhole = lanes.every(lane => data.isCarried(lane, begin, end));
  const all = (end - begin) * lanes.length;
  const rows = new Map();
  const covered = new Map();
  const add = (order, sort, name, time, length = null, wait = 0) => {
    const key = `${sort}\n${name}`;
    const none = { order, sort, name, time: 0, whole: 0, longest: length, wait: 0 };
    const row = remember(rows, key, () => ({ ...none, count: length === null ? null : 0 }));
    row.time += time;
    row.wait += wait;
    if (length !== null) {
      row.count++;
      row.whole += length;
      row.longest = Math.max(row.longest, length);
    }
  };
  if (!isWhole) {
    const [gpu, host] = [false, true].map(isHost => measureShares(data, lanes, begin, end, isHost));
    const rest = 1 - gpu.reduce((sum, share) => sum + share, 0);
    data.binParts.forEach(
      ({ title, ofHost }, part) => add(
        Number(ofHost), ofHost ? "share of host" : "share of time", title, (gpu[part] + host[part]) * all));
    if (data.lanes[lanes[0]].device) add(0, "share of time", "idle", Math.max(rest, 0) * all);
  } else
    for (const lane of lanes) {
      const own = new Map();
      const measure = (...sorts) => measureUnion(sorts.flatMap(sort => own.get(sort)));
      const seen = [new Set(), new Set(), new Set()];
      for (const kind of "knmhx") {
        const track = data.getTrack(lane, kind);
        for (let i = 0; i < (track?.count ?? 0) && track.begin[i] < end; i++) {
          const from = Math.max(track.begin[i], begin);
          const to = Math.min(track.end[i], end);
          const length = track.end[i] - track.begin[i];
          if (to < from || (to === from && length)) continue;
          const wait = track.wait?.[i] ? Math.max(Math.min(track.begin[i] + track.wait[i], to) - from, 0) : 0;
          const sort = SORTS[data.getClass(track, i)] ?? "kernel";
          const order = ORDER.findIndex(kinds => kinds.includes(kind));
          add(order, sort, data.getName(track, i), to - from, length, wait);
          (own.get(sort) ?? own.set(sort, []).get(sort)).push([from, to]);
          seen[order].add(sort);
        }
      }
      if (data.lanes[lane].device) add(0, "GPU", "no GPU work", end - begin - measure(...seen[0]));
      if (data.getTrack(lane, "h"))
        add(1, "host", "outside recorded calls", end - begin - measure(...seen[1]));
      for (const sort of own.keys()) covered.set(sort, (covered.get(sort) ?? 0) + measure(sort) / all);
    }
  const list = [...rows.values()]
                 .filter(row => row.time || row.count)
                 .sort((one, two) => one.order - two.order || two.time - one.time);
  const columns = [
    ["sort", "what", row => row.sort, true],
    ["name", "name", row => row.name, true],
    ["time_ns", "time", row => Math.round(row.time)],
    ["share", "share", row => row.time / all]
  ];
  if (isWhole)
    columns.push(["count", "count", row => row.count],
      ["mean_ns", "mean", row => row.count ? row.whole / row.count : null],
      ["longest_ns", "longest", row => row.longest]);
  if (list.some(row => row.wait)) columns.push(["wait_ns", "of it waiting", row => row.wait || null]);
  return {
    columns: columns.map(([name, head, get, isText]) => [name, head, list.map(get), isText]),
    isWhole,
    covered: [...covered],
    rows: list.length
  };
};

export class Panel {
  /** isShown: there is a table of what is visible while nothing is selected. */
  constructor(timeline, isShown) {
    Object.assign(this, { timeline, data: timeline.data, isShown, drawn: "" });
    this.summary = make("summary");
    this.body = make("div");
    this.table = make(
      "details", { class: "selection", ontoggle: () => this.draw() }, this.summary, this.body);
    this.event = make("div", { class: "event", hidden: true });
    this.element = make("div", {}, this.event, this.table);
  }
  update() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.draw(), SOON);
  }
  /** Bring the table into sight. */
  reveal() {
    clearTimeout(this.waiting);
    this.draw();
    this.table.scrollIntoView({ block: "nearest", behavior: "smooth" });
  }
  draw() {
    const { data, timeline } = this;
    const { area } = timeline;
    const { begin, end, lanes } = area ??
      { begin: timeline.view[0], end: timeline.view[1], lanes: timeline.allLanes };
    this.table.hidden = !(area || this.isShown) || !lanes.length;
    const whose = lanes.length > 1 ? countNoun(lanes.length, data.lanes[lanes[0]].device ? "GPU" : "rank")
      : lanes.length               ? data.nameLane(lanes[0])
                                   : "";
    const what = `Table of what is ${area ? "selected" : "visible"}: ${whose}, ${formatSpan(begin, end)}`;
    this.summary.textContent = what;
    const key = `${begin} ${end} ${lanes}`;
    if (this.table.hidden || !this.table.open || key === this.drawn) return;
    this.drawn = key;
    const { columns, isWhole, covered, rows } = sumUp(
      data, lanes, Math.max(begin, 0), Math.min(end, data.duration));
    const table = rows ? makeTable(columns) : null;
    const bin = formatTime(data.duration / data.binCount);
    const time = [begin, end].map(one => (one / 1e9).toFixed(6)).join(":");
    const shares = covered.map(([sort, share]) => `${sort} ${formatShare(share)}`).join(", ");
    const says = isWhole
      ? `By all events. ${shares} of the time; ` +
        "mean and longest are of whole events, calls those of threads that drive GPUs."
      : `Not all events of this time are on this page: shares of time by bins of ${bin}. ` +
        `Single events: nsys2prv report … --time ${time} --html FILE`;
    const buttons = area ? [
      makeButton("zoom to it", "show only the selected time (z)", () => timeline.zoomToArea()),
      makeButton("clear", "select nothing (Escape)", () => timeline.clear())
    ] : [];
    if (table) buttons.push(...makeCopyButtons(table, what));
    this.body.replaceChildren(make("p", { class: "tools" }, ...buttons, make("span", {}, says)),
      make("div", { class: "wide tall", tabindex: "0" }, table ?? "Nothing is recorded here."));
  }
  /** Show the selected event, its launch and its collective on all ranks; null for none. */
  show(found) {
    const { data, timeline } = this;
    this.event.hidden = !found?.track;
    if (!found?.track) return;
    const { track, i, row: { lane } } = found;
    const [name, where, ...lines] = describeEvent(data, lane, track, i);
    const launch = data.findLaunch(lane, track, i);
    const fields = [["where", where], ...lines, ["ends at", formatTime(track.end[i], 4)]].filter(Boolean);
    const members = track.collective?.[i] ? findLast(data, track.collective[i]).members : [];
    const columns = [
      ["rank", "rank", (of, at, one) => data.nameLane(one), true],
      ["begin_ns", "begins at", (of, at) => of.begin[at]],
      ["late_ns", "after the first", (of, at) => of.late[at]],
      ["wait_ns", "waits for the last", (of, at) => of.wait[at]],
      ["transfer_ns", "transfer", (of, at) => of.end[at] - of.begin[at] - of.wait[at]],
      ["duration_ns", "duration", (of, at) => of.end[at] - of.begin[at]]
    ];
    const table = members.length > 1 && makeTable(columns.map(([key, head, get,
      isText]) => [key, head, members.map(({ lane: one, track: of, i: at }) => get(of, at, one)), isText]));
    if (table)
      [...table.tBodies[0].rows].forEach(
        ({ cells: [cell] }, at) => cell.replaceChildren(makeButton(cell.textContent, "show it there",
          () => timeline.goTo(members[at].lane, members[at].track, members[at].i))));
    this.event.replaceChildren(...[make("h3", {}, name),
      make("p", { class: "tools" },
        makeButton("zoom to it", "show only its time (z)", () => timeline.zoomToArea()),
        launch &&
          makeButton(
            "its launch", launch.name, () => timeline.goTo(lane, data.getTrack(lane, "h"), launch.i)),
        makeButton("‹ same name", "previous occurrence (N)", () => timeline.search.step(-1)),
        makeButton("same name ›", "next occurrence (n)", () => timeline.search.step(1)),
        makeButton("close", "select nothing (Escape)", () => timeline.clear())),
      make("dl", {},
        ...fields.map(([field, value]) => make("div", {}, make("dt", {}, field), make("dd", {}, value)))),
      table &&
        make("p", {},
          `Its collective, on the ${formatCount(members.length)} ranks on this page, last to come first`),
      table && make("div", { class: "wide tall", tabindex: "0" }, table)]
        .filter(Boolean));
  }
}
