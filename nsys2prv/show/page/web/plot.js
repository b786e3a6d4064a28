// A picture on a canvas: says what is under the pointer; drags and clicks are told to it.
import { make, Painter, showTip } from "./dom.js";

const DRAG = 4;  // A pointer that moved further drags (px).

/** Those that extend it have `draw(context, width, height)`, `find(x, y)`, what is there, null for nothing,
 * `tell(it)`, lines on it, and `release(from, to, isDrag)`, called with the places (px) of a drag or a
 * click. */
export class Plot {
  constructor(root, kind, label, options) {
    Object.assign(this, { hover: null, brush: null }, options);
    this.canvas = make("canvas", { role: "img", "aria-label": label, class: kind });
    root.replaceChildren(this.canvas);
    this.painter = new Painter(this.canvas, (context, width, height) => this.draw(context, width, height));
    this.listen();
  }
  place(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  }
  point(event) {
    this.hover = event && this.find(...this.place(event));
    showTip(this.hover === null || this.brush ? null : this.tell(this.hover), event?.clientX, event?.clientY);
    this.painter.ask();
  }
  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", event => {
      const [x] = this.place(event);
      this.brush = [x, x];
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", event => {
      if (this.brush) [this.brush[1]] = this.place(event);
      this.point(event);
    });
    canvas.addEventListener("pointerleave", () => this.point(null));
    canvas.addEventListener("pointerup", event => {
      const { brush } = this;
      this.brush = null;
      this.point(event);
      if (brush) this.release(...brush, Math.abs(brush[1] - brush[0]) > DRAG);
    });
    canvas.addEventListener("pointercancel", () => { this.brush = null; });
  }
}
