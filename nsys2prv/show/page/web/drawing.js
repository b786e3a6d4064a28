// Draw a timeline: the shares of a lane's time in each pixel column, at all zooms; single events; what
// belongs together
// over lanes; marks.
import { findFirstEnding, MEETING } from "./data.js";
import { cutBack, cutFront, drawDot, FONT, trace } from "./dom.js";
import { formatFigure, formatTime, makeTimeTicks, shortenName } from "./format.js";
import { AXIS, GUTTER } from "./layout.js";
import { findSpread, measureShares, remember, stackShares } from "./shares.js";

/** Classes on whose colours texts are dark. */
const LIGHT = new Set(["sync", "nvtx", "copy", "kernel", "os"]);
const INK = {
  nvtx: "nvtx-ink"
};
/** More collectives than these are not joined, but the one pointed at. */
const MOST_JOINS = 160, MOST_LOOKED_AT = 3000, MOST_MESSAGES = 1500;

/** Events narrower than this (px) fill columns together. */
const NARROW = 3;

/** Pixel columns of a track, each with the shares of the narrow events in it: at least a pixel high, so that
 * a single one is seen. */
class Columns {
  constructor(drawing, y, size) { Object.assign(this, { drawing, y, size, x: 0, shares: new Map() }); }
  add(x0, x1, colour) {
    for (let x = Math.floor(x0); x < x1; x++) {
      if (x !== this.x) this.paint();
      this.x = x;
      this.shares.set(colour, (this.shares.get(colour) ?? 0) + Math.min(x1, x + 1) - Math.max(x0, x));
    }
  }
  paint() {
    const { drawing, shares, size } = this, least = shares.size > 1 ? 0 : 1 / size;
    drawing.c.globalAlpha = 1;
    stackShares(drawing.c, this.x, this.y, 1, size,
      [...shares].sort().map(([colour, share]) => [drawing.getFill(colour), Math.max(share, least)]));
    shares.clear();
  }
}

/** Draws one timeline in one frame. */
export class Drawing {
  constructor(timeline, context, width, height, colours) {
    const [begin, end] = timeline.view;
    Object.assign(this, { timeline, c: context, width, height, colours, begin, end, data: timeline.data });
    this.scale = (width - GUTTER) / (end - begin);
    this.top = AXIS - timeline.scroll;
    this.rows = timeline.rows.filter(row => row.y + this.top + row.height > 0 && row.y + this.top < height);
  }
  x(time) { return GUTTER + (time - this.begin) * this.scale; }

  draw() {
    const { c, width, height } = this;
    c.textBaseline = "middle";
    c.save();
    this.clip(0);
    for (const row of this.rows)
      if (row.type === "group") this.drawGroup(row);
      else this.drawLane(row);
    this.clip(GUTTER);
    const strong = this.drawCollectives();
    const marks = this.timeline.marks.map(mark => this.placeMark(mark)).filter(Boolean);
    this.c.fillStyle = this.colours.mark;
    for (const { x, y, width, height } of marks) this.c.fillRect(x, y, width, height);
    for (const row of this.rows)
      if (row.type === "lane") this.drawEvents(row);
    this.drawMessages();
    if (strong) this.joinEvents(strong, true, true);
    this.drawPointed();
    this.tags = [];
    for (const mark of marks) this.frameMark(mark);
    c.restore();
    this.drawAxis();
    if (this.timeline.area) this.drawArea(this.timeline.area);
    c.textAlign = "left";
    return { width, height };
  }
  clip(x) {
    this.c.beginPath();
    this.c.rect(x, AXIS, this.width - x, this.height - AXIS);
    this.c.clip();
  }

  // ---- the axis -------------------------------------------------------------------------------
  drawAxis() {
    const { c, colours, begin, end, width, height } = this, edges = this.data.iterations;
    const line = (x, from, to) => trace(c, [[x, from], [x, to]]).stroke();
    c.lineWidth = 1;
    c.strokeStyle = colours.iteration;
    c.setLineDash([2, 3]);
    if ((end - begin) / (edges[1] - edges[0]) < 300)
      for (const edge of edges)
        if (edge >= begin && edge <= end) line(Math.round(this.x(edge)) + .5, AXIS, height);
    c.setLineDash([]);
    c.strokeStyle = colours.line;
    c.fillStyle = colours.soft;
    c.font = FONT(10.5);
    for (const [time, text] of makeTimeTicks(begin, end, (width - GUTTER) / 110)) {
      const x = Math.round(this.x(time)) + .5;
      line(x, AXIS - 4, AXIS);
      c.textAlign = x > width - 30 ? "right" : "center";
      c.fillText(text, Math.max(x, GUTTER + 12), 8);
    }
    c.textAlign = "left";
    trace(c, [[GUTTER, AXIS - .5], [width, AXIS - .5]]).stroke();
    const iteration = this.data.findIteration((begin + end) / 2);
    if (iteration < 0) return;
    const isOne = end - begin <= 1.2 * (edges[iteration + 1] - edges[iteration]);
    c.fillText(isOne ? `iteration ${iteration + 1}` : "iterations", 6, 9);
  }
  drawArea({ begin, end, lanes }) {
    const { c, colours } = this;
    const [x0, x1] = [begin, end].map(time => Math.min(Math.max(this.x(time), GUTTER), this.width));
    const wanted = new Set(lanes);
    c.fillStyle = colours.select;
    for (const { y, height, lane, group } of this.rows)
      if ((group?.lanes ?? [lane]).some(one => wanted.has(one))) {
        const top = Math.max(y + this.top, AXIS);
        c.fillRect(x0, top, x1 - x0, y + this.top + height - top);
      }
    c.fillStyle = colours.ink;
    c.textAlign = "center";
    if (x1 > x0) c.fillText(formatTime(end - begin), (x0 + x1) / 2, AXIS + 10);
  }

  // ---- hosts and lanes ------------------------------------------------------------------------
  drawGroup({ group, y }) {
    const { c, colours } = this, top = y + this.top;
    c.fillStyle = colours.ink;
    c.font = `600 ${FONT(11)}`;
    c.fillText(`${group.open ? "▾" : "▸"} ${cutFront(c, group.label, GUTTER - 28)}`, 5, top + 8);
    c.font = FONT(9.5);
    c.fillStyle = colours.soft;
    c.fillText(cutBack(c, group.note, GUTTER - 22), 16, top + 20);
    const isHost = !this.data.lanes[group.lanes[0]].device;
    c.fillStyle = colours.ground;
    c.fillRect(GUTTER, top + 2, this.width - GUTTER, 22);
    this.drawShares(group.lanes, top + 2, 22, isHost);
    if (group.lanes.length > 1)
      for (const side of findSpread(this.data, group.lanes, isHost)) this.drawSide(side, top + 2, 22);
  }
  /** A line through a share of each bin: the least or the most that a lane of a group has. */
  drawSide(shares, y, size) {
    const { c, data } = this;
    const length = data.duration / data.binCount;
    const first = Math.max(Math.floor(this.begin / length), 0);
    c.strokeStyle = this.colours.ink;
    c.lineWidth = .9;
    c.beginPath();
    for (let bin = first; bin < data.binCount && bin * length < this.end; bin++)
      for (const at of [bin, bin + 1])
        c.lineTo(Math.max(this.x(at * length), GUTTER), y + size * (1 - shares[bin]));
    c.stroke();
  }
  drawLane(row) {
    const { c, colours, data } = this, top = row.y + this.top;
    this.nameLane(row, top);
    for (const place of row.tracks) {
      const y = top + place.y;
      if (place.kind === "metric") {
        this.drawMetric(place.metric, y, place.size);
        continue;
      }
      const isShared = place.kind === "shares", height = place.rows.length * place.size;
      if (!isShared) this.coverUnknown(row.lane, y, height);
      // The ground is time in which nothing runs: where all events are on the page.
      c.fillStyle = colours.ground;
      for (const [from, to] of isShared ? [[0, data.duration]] : data.cover[row.lane]) {
        const x = Math.max(this.x(from), GUTTER), wide = Math.min(this.x(to), this.width) - x;
        if (wide > 0) c.fillRect(x, y, wide, height);
      }
    }
  }
  /** Say of time whose events are not on the page that they are not. */
  coverUnknown(lane, y, height) {
    const { c, colours, data } = this;
    const [x0, x1] = [Math.max(this.x(0), GUTTER), Math.min(this.x(data.duration), this.width)];
    if (x1 <= x0 || data.isCarried(lane, Math.max(this.begin, 0), Math.min(this.end, data.duration))) return;
    c.fillStyle = this.hatch("back", "line");
    c.fillRect(x0, y, x1 - x0, height);
  }
  nameLane(row, top) {
    const { c, colours, data } = this;
    const lane = data.lanes[row.lane];
    const isCulprit = this.timeline.culprits.has(row.lane);
    c.font = `${isCulprit ? 700 : 600} ${FONT(11)}`;
    c.fillStyle = isCulprit ? colours["mark-line"] : colours.ink;
    const left = 5 + row.indent;
    const name = cutFront(
      c, `${isCulprit ? "► " : ""}${lane.who.replace(" (by file name)", "")}`, GUTTER - 40);
    c.fillText(name, left, top + 9);
    const taken = c.measureText(name).width;
    c.font = FONT(9.5);
    c.fillStyle = colours.soft;
    if (row.detailed) {
      if (row.height > 26) c.fillText(cutFront(c, lane.label, 84), left, top + 21);
      c.textAlign = "right";
      for (const place of row.tracks) {
        const more = place.hidden ? ` +${place.hidden}` : "";
        c.fillText(place.label + more, GUTTER - 6, top + place.y + place.rows.length * place.size / 2 + .5);
      }
      c.strokeStyle = colours.line;
      c.lineWidth = 1;
      const bottom = top + row.height - 1.5;
      trace(c, [[0, bottom], [this.width, bottom]]).stroke();
    } else {
      c.textAlign = "right";
      const label = row.indent ? lane.label.split(" ").slice(-1)[0] : lane.label;
      c.fillText(cutFront(c, label, GUTTER - 16 - left - taken), GUTTER - 6, top + 9);
    }
    c.textAlign = "left";
  }
  /** Stack the shares of the parts of time in each pixel column, of lanes their mean. */
  drawShares(lanes, y, size, isHost) {
    const { c, data, width } = this;
    const first = Math.max(GUTTER, Math.floor(this.x(0)));
    const last = Math.min(width, this.x(data.duration));
    let since = first, before = null;
    const fills = data.binParts.map(({ colour }) => this.getFill(colour));
    const paint = to => before &&
      stackShares(c, since, y, to - since, size, fills.map((fill, part) => [fill, before[part]]));
    for (let x = first; x < last; x++) {
      const now = measureShares(data, lanes, this.getTime(x), this.getTime(x + 1), isHost);
      // Equal columns side by side are one.
      if (before && now.every((share, part) => Math.abs(share - before[part]) < .004)) continue;
      paint(x);
      [since, before] = [x, now];
    }
    paint(last);
  }
  /** A metric in each pixel column, where it was sampled, on its scale, which its name says. */
  drawMetric(metric, y, size) {
    const { c, colours, data, width } = this;
    for (let x = Math.max(GUTTER, Math.floor(this.x(0))); x < Math.min(width, this.x(data.duration)); x++) {
      const value = data.readMetric(metric, this.getTime(x), this.getTime(x + 1));
      if (value === null) continue;
      c.fillStyle = colours.ground;
      c.fillRect(x, y, 1, size);
      c.fillStyle = colours.metric;
      c.fillRect(x, y + size * (1 - value), 1, size * value);
    }
    c.font = FONT(9.5);
    c.fillStyle = colours.ink;
    c.fillText(
      `${metric.label} ${metric.name}, 0 to ${formatFigure(metric.top, metric.unit)}`, GUTTER + 4, y + 6);
  }
  getTime(x) { return this.begin + (x - GUTTER) / this.scale; }
  getFill(name) { return name === "wait-bin" ? this.hatch() : this.colours[name]; }

  // ---- events ---------------------------------------------------------------------------------
  drawEvents(row) {
    for (const place of row.tracks)
      if (place.kind === "shares")
        this.drawShares(row.lanes, row.y + this.top + place.y, place.size, place.isHost);
      else
        place.rows.forEach((lists, depth) => {
          const y = row.y + this.top + place.y + depth * place.size, size = place.size - 1;
          for (const { track, list } of lists) this.drawList(track, list, y, size);
        });
    this.c.globalAlpha = 1;
  }
  drawList(track, list, y, size) {
    const { c, colours, data, begin, end, width } = this;
    const { matches } = this.timeline;
    const columns = new Columns(this, y, size);
    for (let at = findFirstEnding(list, track.end, begin); at < list.length; at++) {
      const i = list[at], from = track.begin[i];
      if (from >= end) break;
      const x0 = Math.max(this.x(from), GUTTER - 2);
      const x1 = Math.min(this.x(track.end[i]), width + 2);
      const wide = x1 - x0;
      const kind = data.getClass(track, i), alpha = !matches || matches.has(track.name[i]) ? 1 : .18;
      const ready = track.wait ? Math.min(Math.max(this.x(from + track.wait[i]), x0), x1) : x0;
      if (wide < NARROW) {
        if (alpha === 1) {
          columns.add(x0, ready, "wait-bin");
          columns.add(ready, x1, kind);
        }
        continue;
      }
      c.globalAlpha = alpha;
      if (ready > x0) {
        c.fillStyle = this.hatch();
        c.fillRect(x0, y, ready - x0, size);
      }
      c.fillStyle = colours[kind];
      c.fillRect(ready, y, x1 - ready - (wide > 4 ? .6 : 0), size);
      if (wide <= 26 || size <= 8) continue;
      if (ready - x0 > 60)
        this.write(`waits ${formatTime(track.wait[i])}`, x0, y, ready - x0, size, "wait-ink");
      if (x1 - ready > 26)
        this.write(shortenName(data.getName(track, i)), ready, y, x1 - ready, size,
          INK[kind] || (LIGHT.has(kind) ? "bar-ink-dark" : "bar-ink"));
    }
    columns.paint();
  }
  write(text, x, y, width, size, ink) {
    const room = Math.floor((width - 6) / 5.7);
    if (room < 3) return;
    this.c.font = FONT(size > 10 ? 10 : 9);
    this.c.fillStyle = this.colours[ink];
    const shown = text.length > room ? `${text.slice(0, room - 1)}…` : text;
    this.c.fillText(shown, Math.max(x, GUTTER) + 3, y + size / 2 + .5);
  }
  /** Stripes: those for waiting, or of other colours, whose names are given. */
  hatch(ground = "wait", line = "wait-line") {
    const { colours, timeline } = this, key = `${colours[ground]} ${colours[line]}`;
    return remember(timeline.hatches, key, () => {
      const tile = document.createElement("canvas"), c = tile.getContext("2d");
      tile.width = tile.height = 6;
      c.fillStyle = colours[ground];
      c.fillRect(0, 0, 6, 6);
      c.strokeStyle = colours[line];
      c.lineWidth = 1.1;
      c.beginPath();
      for (const offset of [-6, 0, 6]) {
        c.moveTo(offset, 6);
        c.lineTo(offset + 6, 0);
      }
      c.stroke();
      return this.c.createPattern(tile, "repeat");
    });
  }

  // ---- what belongs together ------------------------------------------------------------------
  /** Join collectives over the lanes; returns the one to point out, which is drawn over the events. */
  drawCollectives() {
    const lanes = new Map(this.rows.filter(row => row.type === "lane").map(row => [row.lane, row]));
    const wanted = new Set();
    for (const lane of lanes.keys())
      for (const kind of MEETING) {
        const track = this.data.getTrack(lane, kind);
        let seen = 0;
        for (const list of track?.depths ?? [])
          for (let at = findFirstEnding(list, track.end, this.begin);
            at < list.length && track.begin[list[at]] < this.end; at++) {
            const i = list[at];
            if (track.collective[i] && (track.end[i] - track.begin[i]) * this.scale > 3)
              wanted.add(track.collective[i]);
            if (++seen > MOST_LOOKED_AT) break;
          }
      }
    const pointed = this.timeline.hover?.track ? this.timeline.hover : this.timeline.selected;
    const special = pointed?.track?.collective?.[pointed.i] || this.timeline.collective;
    if (wanted.size > MOST_JOINS) {
      wanted.clear();
      if (special) wanted.add(special);
    }
    let strong = null;
    for (const number of wanted) {
      const members = this.data.getCollective(number)
                        .filter(({ lane }) => lanes.has(lane))
                        .map(({ lane, track, i }) => this.placeCollective(lanes.get(lane), track, i))
                        .sort((one, two) => one.top - two.top);
      if (number === special) strong = members;
      this.joinEvents(members, number === special);
    }
    return strong;
  }
  placeCollective(row, track, i) {
    const [y, size] = this.placeTrack(row, track.kind), colour = this.colours[this.data.getClass(track, i)];
    const [begin, ready, end] = [track.begin[i], track.begin[i] + track.wait[i], track.end[i]].map(
      time => this.x(time));
    return { top: y, bottom: y + size - 1, begin, ready, end, colour };
  }
  /** Top and height of a kind's track in a row, or of the shares of its time. */
  placeTrack(row, kind) {
    const place = row.tracks.find(one => one.kind === kind) || row.tracks[0] || { y: 2, size: 13 };
    return [row.y + this.top + place.y, place.size];
  }
  /** Connect events of neighbouring lanes: what they transfer is filled, under the events; their begins are
   * lines, of the one to point out over the events. */
  joinEvents(members, strong, isOver = false) {
    const { c, colours } = this;
    for (let at = 1; at < members.length; at++) {
      const [one, two] = [members[at - 1], members[at]];
      if (!isOver) {
        c.fillStyle = one.colour;
        c.globalAlpha = strong ? .18 : .07;
        const upper = [[one.ready, one.bottom], [one.end, one.bottom]];
        trace(c, [...upper, [two.end, two.top], [two.ready, two.top]]).fill();
      }
      if (strong !== isOver) continue;
      c.strokeStyle = strong ? colours.join : one.colour;
      c.globalAlpha = strong ? .9 : .3;
      c.lineWidth = strong ? 1.3 : .8;
      for (const side of strong ? ["begin", "ready", "end"] : ["begin"])
        trace(c, [[one[side], one.bottom], [two[side], two.top]]).stroke();
    }
    c.globalAlpha = 1;
  }
  /** Lines from sends to receives. */
  drawMessages() {
    const { c, colours, data } = this, { messages } = data;
    if (!messages.count) return;
    const lanes = new Map(this.rows.filter(row => row.type === "lane").map(row => [row.lane, row]));
    let drawn = 0;
    c.strokeStyle = colours.message;
    c.lineWidth = 1;
    c.fillStyle = colours.message;
    c.globalAlpha = .75;
    for (let i = 0; i < messages.count && drawn < MOST_MESSAGES; i++) {
      const [sent, received] = [messages.begin[i], messages.end[i]];
      const rows = [messages.from[i], messages.to[i]].map(lane => lanes.get(lane));
      if (received < this.begin || sent > this.end || !rows[0] || !rows[1]) continue;
      const kind = messages.on_gpu[i] ? "n" : "h", [one, two] = rows.map(row => this.placeTrack(row, kind));
      const [x0, x1] = [this.x(sent), this.x(received)];
      const [y0, y1] = [one, two].map(([y, size]) => y + size / 2);
      drawn++;
      trace(c, [[x0, y0], [x1, y1]]).stroke();
      drawDot(c, x1, y1, 2);
    }
    c.globalAlpha = 1;
  }
  /** Outline the event pointed at, and draw the arrow from the call that launched it. */
  drawPointed() {
    const { c, colours, data, timeline } = this;
    const target = timeline.hover?.track ? timeline.hover : timeline.selected;
    if (!target?.track || !timeline.rows.includes(target.row)) return;
    const { row, track, i, place, depth } = target, top = row.y + this.top;
    const y = top + place.y + depth * place.size, x = this.x(track.begin[i]);
    c.strokeStyle = c.fillStyle = colours.ink;
    c.lineWidth = 1.6;
    c.strokeRect(x, y - .5, Math.max(this.x(track.end[i]) - x, 1.5), place.size);
    const launch = row.detailed && data.findLaunch(row.lane, track, i);
    const calls = row.tracks.find(one => one.kind === "h");
    if (!launch || !calls) return;
    const from = this.x(launch.begin);
    const down = top + calls.y + Math.min(launch.depth, calls.rows.length - 1) * calls.size;
    const up = y + place.size - 1, middle = (down + up) / 2;
    c.lineWidth = 1.3;
    c.strokeRect(from, down - .5, Math.max(this.x(launch.end) - from, 2), calls.size);
    c.beginPath();
    c.moveTo(from, down);
    c.bezierCurveTo(from + (x - from) * .1, middle, x - (x - from) * .1, middle, x, up + 4);
    c.stroke();
    trace(c, [[x, up], [x - 3, up + 6], [x + 3, up + 6]]).fill();
  }

  // ---- marks ----------------------------------------------------------------------------------
  /** Where the mark of a time of a lane is; null for nowhere to be seen. */
  placeMark({ lane, begin, end, text }) {
    const row = this.rows.find(one => one.type === "lane" && one.lane === lane);
    const x = Math.max(this.x(begin), GUTTER - 4), right = Math.min(this.x(end), this.width + 4);
    if (!row || right < GUTTER || x > this.width) return null;
    return {
      x,
      y: row.y + this.top + 1,
      width: Math.max(right - x, 1),
      height: row.height - 4,
      text: row.detailed ? text : ""
    };
  }
  frameMark({ x, y, width, height, text }) {
    const { c, colours } = this;
    c.strokeStyle = colours["mark-line"];
    c.lineWidth = 1.2;
    c.setLineDash([4, 2]);
    c.strokeRect(x, y, width, height);
    c.setLineDash([]);
    if (text && width > 40) this.drawTag(text, x + 3, y + height - 15);
  }
  /** Write a label where no other is: else above it. */
  drawTag(text, x, y) {
    const { c, colours } = this;
    c.font = `700 ${FONT(10.5)}`;
    const width = c.measureText(text).width + 8;
    const left = Math.min(Math.max(x, GUTTER + 3), this.width - width - 2);
    const isTaken = ([from, to, at]) => from < left + width && to > left && Math.abs(at - y) < 15;
    while (y > AXIS && this.tags.some(isTaken)) y -= 16;
    this.tags.push([left, left + width, y]);
    c.fillStyle = colours["mark-line"];
    c.fillRect(left, y, width, 14);
    c.fillStyle = colours.back;
    c.fillText(text, left + 4, y + 7.5);
  }
}
