// The whole job in one strip, the mean of all lanes: drag to zoom the timeline below it; pins of findings.
import { describeShares } from "./describe.js";
import { FONT, getColours, make, Painter, showTip } from "./dom.js";
import { countNoun, formatTime } from "./format.js";
import { GUTTER } from "./layout.js";
import { measureShares, stackShares } from "./shares.js";

const TOP = 15;  // Room for the pins (px).

export class Strip {
  /** pins: {number, time, title}. */
  constructor(root, data, timeline, pins) {
    Object.assign(
      this, { data, timeline, pins: [...pins].sort((one, two) => one.time - two.time), brush: null });
    this.lanes = data.lanes.map((_, lane) => lane);
    this.isHost = !data.lanes[0].device;
    this.canvas = make(
      "canvas", { class: "strip", role: "img", "aria-label": "The whole job; drag to zoom the timeline" });
    root.replaceChildren(this.canvas);
    this.painter = new Painter(this.canvas, (context, width, height) => this.draw(context, width, height));
    this.listen();
  }
  listen() {
    const { canvas, data } = this;
    const getTime = event => {
      const { left, width } = canvas.getBoundingClientRect();
      const part = (event.clientX - left - GUTTER) / (width - GUTTER);
      return Math.min(Math.max(part, 0), 1) * data.duration;
    };
    canvas.addEventListener("pointerdown", event => {
      this.brush = [getTime(event), getTime(event)];
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", event => {
      if (this.brush) {
        this.brush[1] = getTime(event);
        this.painter.ask();
        return;
      }
      const time = getTime(event);
      const half = data.duration / data.binCount / 2;
      const pin = this.pins.find(one => Math.abs(one.time - time) < data.duration * .006);
      showTip(
        [
          `${formatTime(time)}: mean of ${
            countNoun(this.lanes.length, data.lanes[0].device ? "GPU" : "rank")}`,
          ...describeShares(data, this.lanes, time - half, time + half, this.isHost),
          pin && `finding ${pin.number}: ${pin.title}`
        ],
        event.clientX, event.clientY);
    });
    canvas.addEventListener("pointerleave", () => showTip(null));
    canvas.addEventListener("pointerup", () => {
      if (!this.brush) return;
      let [begin, end] = [...this.brush].sort((one, two) => one - two);
      const [from, to] = this.timeline.view, half = (to - from) / 2;
      this.brush = null;
      // A click moves the view there.
      if (end - begin < data.duration * .003)
        [begin, end] = [(begin + end) / 2 - half, (begin + end) / 2 + half];
      this.timeline.show(begin, end);
    });
  }
  draw(c, width, height) {
    const colours = getColours(), { data } = this, across = width - GUTTER, size = height - TOP - 2;
    const x = time => GUTTER + time / data.duration * across;
    const getTime = place => (place - GUTTER) / across * data.duration;
    c.textBaseline = "middle";
    c.fillStyle = colours.ground;
    c.fillRect(GUTTER, TOP, across, size);
    const fills = data.binParts.map(({ colour }) => colours[colour]);
    for (let x0 = GUTTER; x0 < width; x0++)
      stackShares(c, x0, TOP, 1, size,
        [...measureShares(data, this.lanes, getTime(x0), getTime(x0 + 1), this.isHost)].map(
          (share, part) => [fills[part], share]));
    const [begin, end] = this.brush ? [...this.brush].sort((one, two) => one - two) : this.timeline.view;
    c.fillStyle = colours.veil;
    c.fillRect(GUTTER, TOP, x(begin) - GUTTER, size);
    c.fillRect(x(end), TOP, width - x(end), size);
    c.strokeStyle = colours.link;
    c.lineWidth = 2;
    c.strokeRect(x(begin), TOP, Math.max(x(end) - x(begin), 2), size);
    c.fillStyle = colours.soft;
    c.font = FONT(10.5);
    c.fillText("whole job", 6, TOP + 10);
    c.font = FONT(9.5);
    c.fillText("drag to zoom", 6, TOP + 23);
    this.drawPins(c, colours, x, TOP + size, width);
  }
  drawPins(c, colours, x, bottom, width) {
    // Pins that would lie over each other stand side by side, from the last one backwards.
    const places = this.pins.map(pin => x(pin.time));
    for (let at = 0, last = -99; at < places.length; at++)
      last = places[at] = Math.max(places[at], last + 15);
    for (let at = places.length - 1, next = width + 7; at >= 0; at--)
      next = places[at] = Math.min(places[at], next - 15);
    c.textAlign = "center";
    this.pins.forEach(({ number, time }, at) => {
      c.strokeStyle = c.fillStyle = colours["mark-line"];
      c.lineWidth = 1;
      c.beginPath();
      c.moveTo(places[at], 13);
      c.lineTo(x(time), bottom);
      c.stroke();
      c.beginPath();
      c.arc(places[at], 7, 6.5, 0, 7);
      c.fill();
      c.fillStyle = colours.back;
      c.font = `700 ${FONT(9.5)}`;
      c.fillText(number, places[at], 7.5);
    });
    c.textAlign = "left";
  }
}
