// A map of lanes over iterations or time: hover for values, click for what is there.
import { cutFront, FONT, getColours } from "./dom.js";
import { GUTTER } from "./layout.js";
import { Plot } from "./plot.js";

/** Red, green and blue of the points of the scale. */
const RAMP = getColours().ramp.split(")").slice(0, -1).map(point => point.match(/\d+/g).map(Number));
const HIGHEST = 704;  // Height of the rows together (px): 64 have a label each.
const HEAD = 14;      // Height of the labels of columns (px).

const COLOURS = Array.from({ length: 256 }, (_, step) => {
  const x = step / 255 * (RAMP.length - 1), at = Math.min(Math.floor(x), RAMP.length - 2);
  const mix = RAMP[at].map((low, channel) => Math.round(low + (RAMP[at + 1][channel] - low) * (x - at)));
  return `rgb(${mix.join(",")})`;
});
export const getRampColour = share => COLOURS[Math.round(255 * Math.min(Math.max(share, 0), 1))];

export class HeatMap extends Plot {
  /** options: `rows` ({label}), `columns` (their number), `heads`, their labels, `getValue(row, column)` as a
   * share of the greatest, null for unknown, `describe(row, column)`, lines, `pick(column, row)`, `label`. */
  constructor(root, options) {
    super(root, "heat", options.label, { picked: -1, ...options });
    this.size = Math.max(3, Math.min(20, Math.floor(HIGHEST / this.rows.length)));
    this.top = this.heads ? HEAD : 0;
    this.canvas.style.height = `${this.size * this.rows.length + this.top}px`;
  }
  find(x, y) {
    const column = Math.floor((x - GUTTER) / ((this.canvas.clientWidth - GUTTER) / this.columns));
    const row = Math.floor((y - this.top) / this.size);
    return this.rows[row] && column >= 0 && column < this.columns ? [row, column] : null;
  }
  tell([row, column]) { return [this.rows[row].label, ...this.describe(row, column)]; }
  release() {
    if (this.hover) this.pick?.(this.hover[1], this.hover[0]);
  }
  draw(c, width, height) {
    const colours = getColours(), cell = (width - GUTTER) / this.columns, { size } = this;
    let written = -Infinity;
    const step = Math.max(1, Math.floor(1 / cell));
    c.textBaseline = "middle";
    c.font = FONT(10);
    this.rows.forEach(({ label }, row) => {
      const y = this.top + row * size;
      const middle = Math.max(y + size / 2, 6);
      if (middle >= written + 11) {
        c.fillStyle = colours.soft;
        c.fillText(cutFront(c, label, GUTTER - 10), 5, middle);
        written = middle;
      }
      for (let column = 0; column < this.columns; column += step) {
        // Of several columns on a pixel the greatest.
        let value = null;
        for (let at = column; at < Math.min(column + step, this.columns); at++) {
          const one = this.getValue(row, at);
          if (one !== null) value = Math.max(value ?? -Infinity, one);
        }
        c.fillStyle = value === null ? colours.ground : getRampColour(value);
        c.fillRect(GUTTER + column * cell, y, cell * step + (cell > 6 ? -1 : .4), size - (size > 6 ? 1 : 0));
      }
    });
    c.fillStyle = colours.soft;
    for (let at = 0, each = Math.ceil(36 / cell); at < (this.heads?.length ?? 0); at += each)
      c.fillText(cutFront(c, this.heads[at], cell * each - 14), GUTTER + at * cell, HEAD / 2);
    c.lineWidth = 1.6;
    c.strokeStyle = colours.ink;
    if (this.picked >= 0) c.strokeRect(GUTTER + this.picked * cell - .5, .8, Math.max(cell, 3), height - 1.6);
    if (this.hover)
      c.strokeRect(GUTTER + this.hover[1] * cell, this.top + this.hover[0] * size, Math.max(cell, 2), size);
  }
}
