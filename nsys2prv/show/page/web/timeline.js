// A timeline: lanes of ranks over time, zoomed with the mouse, the keyboard or its buttons; searched by name.
import { describePlace, findGap } from "./describe.js";
import { find, getColours, make, makeButton, Painter, showTip } from "./dom.js";
import { Drawing } from "./drawing.js";
import { formatSpan, formatTime } from "./format.js";
import { listenToPointer, showHelp } from "./input.js";
import { AXIS, findEvent, GUTTER, layOut, locateEvent } from "./layout.js";
import { Search, unfoldEvent } from "./search.js";
import { Panel } from "./selection.js";

const SHORTEST = 200;  // The shortest time that a timeline shows (ns).
const SOFTLY = 140;    // How long a change of the view takes (ms).
const HINT = matchMedia("(pointer: coarse)").matches
  ? "drag: move · two fingers: zoom · tap: what it is · select, then drag: a table"
  : "w/s zoom · a/d move · Ctrl+wheel · Shift+drag: select";

export class Timeline {
  /** options: `lanes` (numbers) or `groups` ({label, note, lanes, open}); `view` [begin, end]; `label`, for
   * screen readers; `detailed`, the lanes that have all their tracks (default: all); `marks` ({lane, begin,
   * end, text}); `culprits`, lanes to point out; `collective`, its number; `highest` (px); `buttons`;
   * `onview`, `onchange`; `hasTable`, of what is visible; `isFree`, whether it may show time outside of the
   * job. */
  constructor(root, data, options) {
    root.timeline = this;
    Object.assign(this,
      { root, data, marks: [], collective: 0, highest: Infinity, detailed: null, options: {} }, options);
    this.culprits = new Set(this.culprits);
    this.home = [...this.view];
    this.toggled = new Set();
    Object.assign(
      this, { hover: null, selected: null, area: null, matches: null, scroll: 0, hatches: new Map() });
    this.build(options.label || "Timeline");
    this.painter = new Painter(this.canvas, (context, width, height) => this.draw(context, width, height));
    this.layOut();
    listenToPointer(this);
    this.tell();
  }
  build(label) {
    this.canvas = make("canvas", { role: "img", "aria-label": label });
    this.spacer = make("div", { class: "spacer" });
    const keys =
      "Keys: w and s zoom, a and d move, 0 shows the first view, comma and point step through events, " +
      "n and N through those of the same name, z shows the selection, Escape clears it, slash searches.";
    this.box = make("div", {
      class: "tl-box",
      tabindex: "0",
      role: "application",
      "aria-roledescription": "timeline",
      "aria-label": `${label}. ${keys}`
    },
      this.canvas, this.spacer);
    this.live = make("div", { class: "sr", "aria-live": "polite" });
    this.range = make("span", { class: "tl-range" });
    this.search = new Search(this);
    this.switches = new Map();
    const toggle = (name, text, title) => {
      const act = () => {
        this.setOptions({ [name]: !this.options[name] });
        this.layOut();
      };
      const button = makeButton(text, title, act, { "aria-pressed": "false", class: "toggle" });
      this.switches.set(name, button);
      return button;
    };
    const toggles = [
      this.data.hasStreams ? toggle("streams", "streams", "each stream of a GPU in a row of its own") : null,
      this.data.nvtxDepth > 3 && this.allLanes.length
        ? toggle("deep", "all NVTX", "all levels of NVTX ranges")
        : null,
    ];
    const metrics = this.data.metrics.length
      ? make(
          "select", { "aria-label": "metrics below ranks", onchange: () => this.toggleMetric(metrics.value) })
      : null;
    const bar = make("div", { class: "tl-bar" }, makeButton("−", "zoom out (s)", () => this.zoom(1 / .6)),
      makeButton("+", "zoom in (w)", () => this.zoom(.6)),
      makeButton("◂", "earlier (a)", () => this.pan(-.3)),
      makeButton("▸", "later (d)", () => this.pan(.3)),
      makeButton("reset", "back to the first view (0)", () => this.show(...this.home)),
      makeButton("select", "drag over time and ranks to select them (Shift+drag, or drag on the axis)",
        event => {
          this.selects = !this.selects;
          event.target.setAttribute("aria-pressed", String(this.selects));
        },
        { "aria-pressed": "false", class: "toggle" }),
      ...(this.buttons || []), ...toggles, metrics, ...this.search.elements,
      find("#help") && makeButton("?", "what keys, mouse and fingers do (?)", showHelp), this.range,
      make("span", { class: "tl-hint" }, HINT));
    this.panel = new Panel(this, this.hasTable);
    this.root.replaceChildren(bar, this.box, this.live, this.panel.element);
    this.metricSelect = metrics;
    this.toggleMetric("");
  }
  /** Change options: `streams`, `deep`, whether they are on, and `metrics`, names. */
  setOptions(options) {
    this.options = { ...this.options, ...options };
    for (const [name, button] of this.switches)
      button.setAttribute("aria-pressed", String(Boolean(this.options[name])));
  }
  /** Show or hide a metric below ranks. */
  toggleMetric(name) {
    const shown = new Set(this.options.metrics);
    if (name && !shown.delete(name)) shown.add(name);
    this.setOptions({ metrics: shown });
    this.metricSelect?.replaceChildren(make("option", { value: "" }, "metrics …"),
      ...this.data.metrics.map(
        one => make("option", { value: one.name }, `${shown.has(one.name) ? "✓ " : ""}${one.name}`)));
    if (this.painter) this.layOut();
  }

  // ---- rows -----------------------------------------------------------------------------------
  layOut() {
    const isDetailed = lane => (this.detailed ? this.detailed.has(lane) : true) !== this.toggled.has(lane);
    const { rows, height } = layOut(this.data, { ...this, isDetailed });
    const shown = Math.min(height, this.highest) + AXIS + 4;
    this.rows = rows;
    for (const [element, size] of [
           [this.canvas, shown], [this.box, shown], [this.spacer, height + AXIS + 4 - shown]])
      element.style.height = `${Math.max(0, size)}px`;
    this.box.classList.toggle("scrolls", height + AXIS + 4 > shown);
    for (const name of ["hover", "selected"]) this[name] = this.replace(this[name]);
    if (this.painter) this.change();
  }
  /** An event pointed at, in the rows as they are now. */
  replace(target) {
    const row = target?.track && this.rows.find(one => one.lane === target.row.lane);
    const place = row && locateEvent(row, target.track, target.i);
    return place ? { ...target, row, ...place } : null;
  }
  get allLanes() { return this.lanes || this.groups.flatMap(group => group.lanes); }
  findRow(lane) { return this.rows.find(one => one.lane === lane); }
  toggleLane(lane) {
    if (!this.toggled.delete(lane)) this.toggled.add(lane);
    this.layOut();
  }
  toggleGroup(group) {
    group.open = !group.open;
    this.layOut();
  }
  /** Unfold the groups of some lanes. */
  reveal(lanes) {
    for (const group of this.groups || []) group.open ||= group.lanes.some(lane => lanes.includes(lane));
    this.layOut();
  }

  // ---- the view -------------------------------------------------------------------------------
  show(begin, end, softly = true) {
    const length = Math.min(Math.max(end - begin, SHORTEST), this.data.duration), middle = (begin + end) / 2;
    const free = middle - length / 2;
    const first = this.isFree ? free : Math.min(Math.max(free, 0), this.data.duration - length);
    const to = [first, first + length];
    cancelAnimationFrame(this.moving);
    if (!softly || matchMedia("(prefers-reduced-motion: reduce)").matches) return this.set(to);
    const from = [...this.view], start = performance.now();
    const step = now => {
      const part = Math.min(1, (now - start) / SOFTLY), eased = 1 - (1 - part) ** 3;
      this.set(from.map((side, at) => side + (to[at] - side) * eased));
      if (part < 1) this.moving = requestAnimationFrame(step);
    };
    this.moving = requestAnimationFrame(step);
  }
  /** What is shown has changed. */
  change() {
    this.painter.ask();
    this.panel.update();
    this.onchange?.();
  }
  set(view) {
    this.view = view;
    showTip(null);
    this.tell();
    this.change();
  }
  zoom(factor, at = null, softly = true) {
    const [begin, end] = this.view, middle = at ?? (begin + end) / 2;
    this.show(middle - (middle - begin) * factor, middle + (end - middle) * factor, softly);
  }
  pan(part, softly = true) {
    this.show(...this.view.map((side, _, [begin, end]) => side + (end - begin) * part), softly);
  }
  tell() {
    const [begin, end] = this.view;
    this.range.textContent = formatSpan(begin, end);
    this.onview?.(this.view);
  }
  getTime(x) {
    const [begin, end] = this.view;
    return begin + (x - GUTTER) / (this.canvas.clientWidth - GUTTER) * (end - begin);
  }
  draw(context, width, height) { new Drawing(this, context, width, height, getColours()).draw(); }

  /** The lanes of the rows from a height to another; from the axis all. */
  listLanes(from, to) {
    const [top, bottom] = [from, to].sort((one, two) => one - two).map(y => y - AXIS + this.scroll);
    const rows = from < AXIS ? this.rows
                             : this.rows.filter(row => row.y <= bottom && row.y + row.height > top);
    return [...new Set(rows.flatMap(({ group, lane }) => group?.lanes ?? [lane]))];
  }

  // ---- what is there --------------------------------------------------------------------------
  find(x, y) {
    const inside = y - AXIS + this.scroll;
    const row = y < AXIS ? null : this.rows.find(one => inside >= one.y && inside < one.y + one.height);
    if (!row) return null;
    if (x < GUTTER) return { row, gutter: true };
    const time = this.getTime(x);
    const [begin, end] = this.view;
    const slack = 2.5 * (end - begin) / (this.canvas.clientWidth - GUTTER);
    // A pixel column of shares; where one event fills it, this.
    const column = [this.getTime(Math.floor(x)), this.getTime(Math.floor(x) + 1)];
    const shares = { row, time, column };
    if (row.type === "group")
      return { ...shares, lanes: row.group.lanes, isHost: !this.data.lanes[row.group.lanes[0]].device };
    const event = findEvent(row, inside - row.y, time, slack);
    const { place } = event ?? {};
    const { track, i } = event ?? {};
    if (place?.kind === "metric") return { ...shares, metric: place.metric };
    if (place?.kind === "shares" && !(track && track.begin[i] <= column[0] && track.end[i] >= column[1]))
      return { ...shares, lanes: row.lanes, isHost: place.isHost };
    if (track) return { row, time, ...event };
    if (event && this.data.isCarried(row.lane, time, time))
      return { row, time, ...event, gap: findGap(place, time, this.data.duration) };
    return { ...shares, lanes: row.lanes, isHost: !this.data.lanes[row.lane].device };
  }
  describe(found) { return describePlace(this.data, found); }
  select(found) {
    this.selected = found;
    const lines = this.describe(found) || [];
    this.live.textContent =
      lines.filter(Boolean).map(line => Array.isArray(line) ? line.join(" ") : line).join(", ");
    this.panel.show(found);
    this.change();
  }
  /** Select a time of lanes. */
  selectArea(begin, end, lanes) {
    this.area = { begin: Math.max(begin, 0), end: Math.min(end, this.data.duration), lanes };
    this.panel.table.open = true;
    this.change();
  }
  /** Show the selected time only, or the selected event. */
  zoomToArea() {
    const { track, i } = this.selected ?? {};
    if (this.area) this.show(this.area.begin, this.area.end);
    else if (track) this.show(track.begin[i], track.end[i]);
  }
  click(found) {
    if (!found) return this.clear();
    if (found.row.type === "group") this.toggleGroup(found.row.group);
    else if (found.gutter) this.toggleLane(found.row.lane);
    else if (found.track) this.select(found);
    else this.clear();
  }
  /** Select the event before or behind the selected one; without one the first in the view. */
  step(by) {
    let { selected } = this;
    if (!selected) {
      const row = this.rows.find(
        one => one.type === "lane" && one.tracks.some(place => place.rows[0].length));
      const place = row &&
        (row.tracks.find(one => one.kind === "n") || row.tracks.find(one => one.rows[0].length));
      if (!place) return;
      const { track, list } = place.rows[0][0], first = list.findIndex(i => track.end[i] > this.view[0]);
      selected = { row, place, depth: 0, track, list, at: (first < 0 ? list.length : first) - by };
    }
    const at = selected.at + by, i = selected.list[at];
    if (i !== undefined) this.pointOut({ ...selected, at, i });
  }
  /** Select an event, bring it into the view, and show what it is. */
  pointOut(found) {
    const { track, i, row } = found;
    const [begin, end] = this.view;
    const length = end - begin;
    const middle = (track.begin[i] + track.end[i]) / 2;
    this.select(found);
    if (track.begin[i] < begin || track.end[i] > end)
      this.show(middle - length / 2, middle + length / 2, false);
    if (row.y < this.scroll || row.y + row.height > this.scroll + this.box.clientHeight - AXIS)
      this.box.scrollTop = row.y;
    const { left, top, width } = this.canvas.getBoundingClientRect();
    const scale = (width - GUTTER) / (this.view[1] - this.view[0]);
    showTip(this.describe(found), left + GUTTER + (track.begin[i] - this.view[0]) * scale,
      top + row.y - this.scroll + AXIS + 30);
  }
  clear() {
    this.area = this.selected = null;
    showTip(null);
    this.panel.show(null);
    this.change();
  }

  /** Point out an event wherever it is. */
  goTo(lane, track, i) {
    const found = unfoldEvent(this, lane, track, i);
    if (found) this.pointOut(found);
  }
}
