// Stacked bars over a number that counts up: hover, click, drag to zoom, double click for all.
import { FONT, getColours, trace } from "./dom.js";
import { roundStep } from "./format.js";
import { GUTTER } from "./layout.js";
import { Plot } from "./plot.js";
import { stackShares } from "./shares.js";

const TOP = 8, BOTTOM = 24;  // Room above the bars, and for the axis (px).

export class BarChart extends Plot {
  /** options: `parts` ({colour}), `getValues()`: for each part the value of each bar, `formatValue`,
   * `describe(bar)`, lines, `pick(bar)`, `label`. */
  constructor(root, options) {
    super(root, "chart", options.label, { picked: -1, range: null, ...options });
    this.canvas.addEventListener("dblclick", () => this.zoom(0, this.count));
    this.refresh();
  }
  refresh() {
    this.values = this.getValues();
    this.count = this.values[0].length;
    this.sums = Float64Array.from(
      { length: this.count }, (_, bar) => this.values.reduce((sum, part) => sum + part[bar], 0));
    this.range ??= [0, this.count];
    this.painter.ask();
  }
  getBar(x) {
    const [first, last] = this.range;
    const bar = Math.floor(first + (x - GUTTER) / (this.canvas.clientWidth - GUTTER) * (last - first));
    return Math.min(Math.max(bar, 0), this.count - 1);
  }
  find(x) { return x > GUTTER ? this.getBar(x) : null; }
  tell(bar) { return this.describe(bar); }
  zoom(...range) {
    this.range = range;
    this.painter.ask();
  }
  release(from, to, isDrag) {
    const [first, last] = [from, to].map(x => this.getBar(x)).sort((one, two) => one - two);
    if (isDrag) this.zoom(first, last + 1);
    else if (from > GUTTER) this.pick(first);
  }
  draw(c, width, height) {
    const colours = getColours();
    const [first, last] = this.range;
    const across = width - GUTTER;
    const wide = across / (last - first);
    const step = Math.max(1, Math.floor(1.5 / wide)), bars = [];
    for (let bar = first; bar < last; bar += step) {
      // Of several bars on a pixel the longest.
      let longest = bar;
      for (let at = bar; at < Math.min(bar + step, last); at++)
        if (this.sums[at] > this.sums[longest]) longest = at;
      bars.push([bar, longest]);
    }
    const top = 1.04 * Math.max(...bars.map(([, bar]) => this.sums[bar]), 1e-9);
    const scale = (height - TOP - BOTTOM) / top;
    const x = bar => GUTTER + (bar - first) * wide, ground = height - BOTTOM, gap = Math.min(.14 * wide, 4);
    c.textBaseline = "middle";
    c.font = FONT(10.5);
    c.lineWidth = .6;
    for (let value = 0, each = roundStep(top / 4); value <= top; value += each) {
      c.strokeStyle = colours.line;
      trace(c, [[GUTTER, ground - value * scale], [width, ground - value * scale]]).stroke();
      c.fillStyle = colours.soft;
      c.textAlign = "right";
      c.fillText(this.formatValue(value, each), GUTTER - 8, ground - value * scale);
    }
    for (const [bar, longest] of bars)
      stackShares(c, x(bar) + gap / 2, TOP, Math.max(wide * step - gap, .8), ground - TOP,
        this.parts.map(({ colour }, part) => [colours[colour], this.values[part][longest] / top]));
    c.fillStyle = colours.soft;
    c.textAlign = "center";
    const each = Math.max(1, roundStep((last - first) / Math.max(1, across / 70)));
    for (let number = Math.ceil((first + 1) / each) * each; number <= last; number += each)
      c.fillText(number, x(number - .5), ground + 12);
    c.textAlign = "left";
    c.strokeStyle = colours.ink;
    for (const [bar, line] of [[this.picked, 1.6], [this.hover ?? -1, .8]])
      if (bar >= first && bar < last) {
        c.lineWidth = line;
        c.strokeRect(x(bar) + 1, TOP, Math.max(wide - 2, 2), ground - TOP);
      }
    if (this.brush) {
      c.fillStyle = colours.select;
      c.fillRect(Math.min(...this.brush), TOP, Math.abs(this.brush[1] - this.brush[0]), ground - TOP);
    }
  }
}
