// The whole job in one strip, the mean of all lanes: drag to zoom the timeline below it; pins of findings.
import { describeShares } from "./describe.js";
import { drawDot, FONT, getColours, trace } from "./dom.js";
import { countNoun, formatTime } from "./format.js";
import { GUTTER } from "./layout.js";
import { Plot } from "./plot.js";
import { measureShares, stackShares } from "./shares.js";

const TOP = 15;  // Room for the pins (px).

export class Strip extends Plot {
  /** pins: {number, time, title}. */
  constructor(root, data, timeline, pins) {
    super(root, "strip", "The whole job; drag to zoom the timeline", { data, timeline });
    this.pins = [...pins].sort((one, two) => one.time - two.time);
    this.lanes = data.lanes.map((_, lane) => lane);
    this.isHost = !data.lanes[0].device;
  }
  getTime(x) {
    return Math.min(Math.max((x - GUTTER) / (this.canvas.clientWidth - GUTTER), 0), 1) * this.data.duration;
  }
  find(x) { return this.getTime(x); }
  tell(time) {
    const { data } = this;
    const half = data.duration / data.binCount / 2;
    const pin = this.pins.find(one => Math.abs(one.time - time) < data.duration * .006);
    const noun = data.lanes[0].device ? "GPU" : "rank";
    return [
      `${formatTime(time)}: mean of ${countNoun(this.lanes.length, noun)}`,
      ...describeShares(data, this.lanes, time - half, time + half, this.isHost),
      pin && `finding ${pin.number}: ${pin.title}`
    ];
  }
  /** A drag shows its time, a click moves the view there. */
  release(from, to, isDrag) {
    const [begin, end] = [from, to].map(x => this.getTime(x)).sort((one, two) => one - two);
    if (isDrag) return this.timeline.show(begin, end);
    const half = (this.timeline.view[1] - this.timeline.view[0]) / 2;
    this.timeline.show(begin - half, begin + half);
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
    const [begin, end] = this.brush?.map(one => this.getTime(one)).sort((one, two) => one - two) ??
      this.timeline.view;
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
      trace(c, [[places[at], 13], [x(time), bottom]]).stroke();
      drawDot(c, places[at], 7, 6.5);
      c.fillStyle = colours.back;
      c.font = `700 ${FONT(9.5)}`;
      c.fillText(number, places[at], 7.5);
    });
    c.textAlign = "left";
  }
}
