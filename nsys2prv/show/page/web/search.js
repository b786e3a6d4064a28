// Find events by name, also by a regular expression, and go to ranks and times.
import { make, makeButton, showTip } from "./dom.js";
import { formatCount, splitWords } from "./format.js";
import { locateEvent } from "./layout.js";

const SIZES = {
  ns: 1,
  us: 1e3,
  µs: 1e3,
  ms: 1e6,
  s: 1e9
};

/** What a text asks for: a rank, the begin and end of a time (ns), or whether a name is meant. Throws
 * SyntaxError. */
export const parseSearch = text => {
  const rank = /^rank\s*(\d+)$/i.exec(text);
  const time = /^([\d.]+)\s*(?:(?:-|–|to)\s*([\d.]+)\s*)?(ns|us|µs|ms|s)$/i.exec(text);
  if (rank) return { rank: Number(rank[1]) };
  if (time)
    return { time: [time[1], time[2] ?? time[1]].map(one => Number(one) * SIZES[time[3].toLowerCase()]) };
  const pattern = /^\/(.+?)\/?$/.exec(text), words = splitWords(text);
  if (pattern) {
    const expression = new RegExp(pattern[1], "i");
    return { test: name => expression.test(name) };
  }
  return words.length ? { test: name => words.every(word => name.toLowerCase().includes(word)) } : {};
};

/** The box in which one searches a timeline, with its buttons. */
export class Search {
  constructor(timeline) {
    Object.assign(this, { timeline, data: timeline.data, asked: {}, hits: null, hit: -1 });
    this.found = make("small", { class: "tl-found", "aria-live": "polite" });
    const onkeydown = event => event.key === "Enter" && this.step(event.shiftKey ? -1 : 1);
    this.input = make("input", {
      type: "search",
      placeholder: "name, /regex/, rank 3, 1.2 s",
      onkeydown,
      oninput: () => this.ask(this.input.value),
      "aria-label":
        "find events by name or /regular expression/, or go to a rank or time; Enter: the next one"
    });
    this.steps = [["‹", "previous occurrence (N)", -1], ["›", "next occurrence (n)", 1]].map(
      ([sign, title, by]) => makeButton(sign, title, () => this.step(by), { hidden: true }));
    this.elements = [this.input, ...this.steps, this.found];
  }
  /** Point out the events with such names; the others pale. */
  ask(text) {
    this.input.value = text;
    try {
      this.asked = parseSearch(text.trim());
    } catch {
      this.asked = { isWrong: true };
    }
    const { test, isWrong, rank, time } = this.asked;
    const names = test && new Set(this.data.names.flatMap((name, number) => test(name) ? [number] : []));
    this.timeline.matches = names ?? null;
    this.hits = test ? this.list(names) : null;
    this.hit = -1;
    for (const button of this.steps) button.hidden = !this.hits?.length;
    this.found.textContent = this.hits
      ? `${formatCount(this.hits.length)} on this page${this.hits.length ? "; Enter: the next" : ""}`
      : isWrong                    ? "not a regular expression"
      : time || rank !== undefined ? "Enter: go there"
                                   : "";
    this.timeline.change();
  }
  list(names) {
    const hits = [];
    for (const lane of this.timeline.allLanes)
      for (const kind of "knmxh") {
        const track = this.data.getTrack(lane, kind);
        for (let i = 0; i < (track?.count ?? 0); i++)
          if (names.has(track.name[i])) hits.push({ lane, track, i });
      }
    return hits.sort((one, two) => one.track.begin[one.i] - two.track.begin[two.i]);
  }
  /** Go to the next one, or to the rank or time; without anything asked for to the next event named as the
   * selected one. */
  step(by) {
    const { timeline, asked } = this, { selected } = timeline;
    showTip(null);
    if (asked.isWrong) return;
    const [begin, end] = timeline.view, [from, to] = asked.time ?? [], half = (end - begin) / 2;
    if (asked.time) return to > from ? timeline.show(from, to) : timeline.show(from - half, from + half);
    if (asked.rank !== undefined) return this.goToRank(asked.rank);
    if (!this.hits && selected?.track) {
      this.ask(
        `/^${this.data.getName(selected.track, selected.i).replace(/[.*+?^${}()|[\]\\/]/g, "\\$&")}$/`);
      this.hit = this.hits.findIndex(({ track, i }) => track === selected.track && i === selected.i);
    }
    if (!this.hits?.length) return;
    const after = this.hits.findIndex(({ track, i }) => track.end[i] > begin);
    const next = this.hit < 0 ? after - (by < 0) : this.hit + by;
    this.hit = (next + this.hits.length) % this.hits.length;
    this.found.textContent = `${formatCount(this.hit + 1)} of ${formatCount(this.hits.length)}`;
    const { lane, track, i } = this.hits[this.hit], length = track.end[i] - track.begin[i];
    if (length * 20 < end - begin)
      timeline.show(track.begin[i] - 10 * length, track.end[i] + 10 * length, false);
    timeline.goTo(lane, track, i);
  }
  goToRank(rank) {
    const { timeline } = this;
    const lanes = timeline.allLanes.filter(lane => RegExp(`rank ${rank}\\b`).test(this.data.nameLane(lane)));
    this.found.textContent = lanes.length ? "" : `there is no rank ${rank}`;
    if (!lanes.length) return;
    timeline.reveal(lanes);
    if (!timeline.findRow(lanes[0]).detailed) timeline.toggleLane(lanes[0]);
    timeline.box.scrollTop = timeline.findRow(lanes[0]).y;
    timeline.box.focus({ preventScroll: true });
  }
}

/** Where an event is in the rows of a timeline, which unfolds what hides it; null for nowhere. */
export const unfoldEvent = (timeline, lane, track, i) => {
  const find = () => {
    const row = timeline.findRow(lane), place = row && locateEvent(row, track, i);
    return place && { row, track, i, ...place };
  };
  timeline.reveal([lane]);
  let found = find();
  if (!found && !timeline.findRow(lane)?.detailed) {
    timeline.toggleLane(lane);
    found = find();
  }
  if (!found && !timeline.options.deep) {
    timeline.options = { ...timeline.options, deep: true };
    timeline.layOut();
    found = find();
  }
  return found;
};
