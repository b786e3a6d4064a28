// A flame graph: functions above those that call them, as wide as the time in them; a click widens one.
import { addTip, make } from "./dom.js";
import { formatShare, formatTime, splitWords } from "./format.js";

const HEIGHT = 18;  // Of a frame (px).
const SHADES = 5;
/** A shade for a name, always the same: neighbours differ, and colours mean nothing. */
const chooseShade = name => [...name].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) % 9973, 7) %
  SHADES;

export class FlameGraph {
  /** frames: [depth, name, begin, time], the first one being all of it. */
  constructor(root, frames) {
    Object.assign(this, { root, frames, whole: frames[0], words: [] });
    this.root.classList.add("flame");
    this.draw(this.whole);
  }
  draw(focus) {
    const [, , begin, time] = focus;
    const [, , , all] = this.whole;
    const deepest = Math.max(...this.frames.map(([depth]) => depth));
    this.focus = focus;
    this.root.style.height = `${(deepest + 1) * HEIGHT}px`;
    const shown = this.frames.filter(([, , from, length]) => from < begin + time && from + length > begin);
    this.root.replaceChildren(...shown.map(frame => {
      const [depth, name, from, length] = frame;
      const left = Math.max((from - begin) / time, 0);
      const right = Math.min((from + length - begin) / time, 1);
      const box = make("button",
        { type: "button", class: `shade-${chooseShade(name)}`, onclick: () => this.draw(frame) }, name);
      Object.assign(
        box.style, { left: `${100 * left}%`, width: `${100 * (right - left)}%`, top: `${depth * HEIGHT}px` });
      box.classList.toggle(
        "pale", this.words.length > 0 && !this.words.every(word => name.toLowerCase().includes(word)));
      box.classList.toggle("whole", depth < focus[0] || frame === this.whole);
      addTip(box,
        () => [name, ["time", formatTime(length)], ["share", formatShare(length / all)],
          "click: widen it; a frame above widens again"]);
      return box;
    }));
  }
  search(text) {
    this.words = splitWords(text);
    this.draw(this.focus);
  }
}
