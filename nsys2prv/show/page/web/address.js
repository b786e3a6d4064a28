// The view of a timeline in the address of the page: a reload keeps it, Back undoes a step, a link shares it.
import { copy, find, makeButton, onTheme, setTheme } from "./dom.js";
import { listRanges } from "./groups.js";
import { unfoldEvent } from "./search.js";

const SETTLED = 350;  // A view that stays so long is a step (ms).
const writeTimes = times => times.map(Math.round).join("-"), readTimes = text => text?.split("-").map(Number);
/** Numbers as ranges, "0-3.7", and back. */
const writeNumbers = numbers =>
  listRanges([...numbers].sort((one, two) => one - two)).replaceAll(" to ", "-").replaceAll(", ", ".");
const readNumbers = text =>
  (text || "").match(/\d+(-\d+)?/g)?.map(range => range.split("-").map(Number)).flatMap(([
    first, last = first
  ]) => Array.from({ length: last - first + 1 }, (_, at) => first + at)) ??
  [];
/** What differs from how it was at first; "none" for nothing. */
const tellApart = (now, before) => now === before ? "" : now || "none";
const isTyped = ({ target }) => /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName);

/** Names of what can be shown or hidden. */
const SWITCHES = ["streams", "deep"];

export class Address {
  /** iterations: as showIterations returns it. */
  constructor(timeline, iterations) {
    const shown = this.listShown(timeline);
    Object.assign(this, { timeline, iterations, step: 0, top: 0, home: this.listOpen(timeline), shown });
    const later = () => {
      clearTimeout(this.waiting);
      this.waiting = setTimeout(() => this.push(), SETTLED);
    };
    timeline.onchange = later;
    if (iterations) iterations.onpick = later;
    onTheme(later);
    timeline.search.input.before(makeButton("↶", "undo (Ctrl+Z, or Back)", () => this.undo()),
      makeButton("↷", "redo (Ctrl+Shift+Z)", () => this.redo()),
      makeButton("copy link", "a link to this view of the page", event => this.copyLink(event.target)));
    addEventListener("popstate", () => {
      if (history.state || location.hash.includes("&")) this.restore();
      else this.write("replaceState");
    });
    document.addEventListener("keydown", event => {
      if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "z" || isTyped(event)) return;
      event.preventDefault();
      if (event.shiftKey) this.redo();
      else this.undo();
    });
    this.restore();
    if (location.hash.includes("&")) find(`#${CSS.escape(this.section)}`)?.scrollIntoView();
    this.write("replaceState");
  }
  undo() {
    this.push();
    if (this.step > 0) history.back();
  }
  redo() {
    if (this.step < this.top) history.forward();
  }
  /** Copy a link to what is shown; colours are those of whoever opens it. */
  copyLink(button) {
    this.push();
    copy(button, location.href.replace(/&theme=\w+/, ""));
  }
  get section() { return location.hash.slice(1).split("&")[0]; }
  listOpen({ groups }) {
    return writeNumbers((groups ?? []).filter(group => group.open).map(group => Math.min(...group.lanes)));
  }
  /** The metrics that are shown, by their numbers. */
  listShown({ data, options }) {
    return writeNumbers(data.metrics.flatMap(({ name }, at) => options.metrics?.has(name) ? [at] : []));
  }
  /** What is shown, without what is as at first. */
  get state() {
    const { view, home, area, selected, search, toggled, options, scroll } = this.timeline;
    const isHome = view.every((side, at) => Math.abs(side - home[at]) < 1);
    const known = {
      time: isHome ? "" : writeTimes(view),
      selected: area && writeTimes([area.begin, area.end]),
      ranks: area && writeNumbers(area.lanes),
      event: selected?.track && `${selected.row.lane}.${selected.track.kind}.${selected.i}`,
      find: search.input.value,
      hosts: tellApart(this.listOpen(this.timeline), this.home),
      unfolded: writeNumbers(toggled),
      show: SWITCHES.filter(name => options[name]).join("."),
      metrics: tellApart(this.listShown(this.timeline), this.shown),
      scroll: Math.round(scroll),
      iteration: this.iterations?.picked >= 0 && this.iterations.picked + 1,
      theme: document.documentElement.dataset.theme,
    };
    const parts = Object.entries(known).filter(([, value]) => value);
    return parts.map(([name, value]) => `&${name}=${encodeURIComponent(value)}`).join("");
  }
  push() {
    clearTimeout(this.waiting);
    if (this.state === this.now) return;
    this.top = ++this.step;
    this.write("pushState");
  }
  write(method) {
    const { state } = this, fragment = `${this.section || (state && "timeline")}${state}`;
    this.now = state;
    // A frame of a notebook has no address.
    try {
      history[method]({ step: this.step }, "", fragment ? `#${fragment}` : undefined);
    } catch {
      this.step = 0;
    }
  }
  restore() {
    const { timeline, iterations } = this;
    const state = new URLSearchParams(location.hash.slice(1).split("&").slice(1).join("&"));
    const readOr = (name, usual) => new Set(readNumbers(state.get(name) ?? usual));
    const hosts = readOr("hosts", this.home), metrics = readOr("metrics", this.shown);
    const shown = (state.get("show") ?? "").split(".");
    this.top = Math.max(this.top, this.step = history.state?.step ?? 0);
    timeline.toggled = new Set(readNumbers(state.get("unfolded")));
    timeline.groups?.forEach(group => { group.open = hosts.has(Math.min(...group.lanes)); });
    timeline.setOptions(Object.fromEntries(SWITCHES.map(name => [name, shown.includes(name)])));
    timeline.setOptions(
      { metrics: new Set(timeline.data.metrics.map(({ name }) => name).filter((_, at) => metrics.has(at))) });
    timeline.toggleMetric("");
    timeline.clear();
    timeline.layOut();
    timeline.search.ask(state.get("find") ?? "");
    timeline.show(...readTimes(state.get("time")) ?? timeline.home, false);
    if (state.has("selected"))
      timeline.selectArea(...readTimes(state.get("selected")), readNumbers(state.get("ranks")));
    const [lane, kind, i] = (state.get("event") ?? "").split(".");
    const track = kind && timeline.data.getTrack(Number(lane), kind);
    if (track && i < track.count) timeline.select(unfoldEvent(timeline, Number(lane), track, Number(i)));
    timeline.box.scrollTop = timeline.scroll = Number(state.get("scroll") ?? 0);
    iterations?.pick(Number(state.get("iteration") ?? 0) - 1);
    if ((state.get("theme") ?? "") !== (document.documentElement.dataset.theme ?? ""))
      setTheme(state.get("theme"));
    this.now = this.state;
  }
}
