// Shares of the parts of time that fill a time of a lane: of single events where they are on the page,
// elsewhere of bins.

import { findFirst } from "./data.js";

/** The byte of a part that has all of a bin's time. */
export const FULL = 250;

/** Begins (1) and ends (-1) of the parts of a lane's time, by its single events: [time, part, 1 or -1]. */
const listEdges = (data, lane, isHost) => {
  const edges = [];
  const number = name => data.binParts.findIndex(part => part.name === name);
  const [moving, wait] = ["communication", "wait"].map(number);
  const ofKind = { k: number("compute"), n: moving, m: number("copies") };
  const ofClass = data.classes.map(
    name => data.binParts.findIndex(({ ofHost, colour }) => ofHost && colour === name));
  const add = (part, begin, end) => {
    if (part >= 0 && end > begin) edges.push([begin, part, 1], [end, part, -1]);
  };
  for (const kind of isHost ? "h" : "knm") {
    const track = data.getTrack(lane, kind);
    for (let i = 0; i < (track?.count ?? 0); i++) {
      const begin = track.begin[i];
      const end = track.end[i];
      const ready = kind === "n" ? Math.min(begin + track.wait[i], end) : begin;
      add(isHost ? ofClass[data.nameClasses[track.name[i]]] : ofKind[kind], ready, end);
      add(wait, begin, ready);
    }
  }
  return edges.sort((one, two) => one[0] - two[0]);
};

/** The division of a lane's time into parts, of each moment the first that applies, as sums up to any time.
 * */
class Division {
  constructor(data, lane, isHost) {
    const count = this.count = data.binParts.length;
    const pieces = this.pieces = [];
    const open = new Array(count).fill(0);
    let since = 0;
    for (const [time, part, change] of listEdges(data, lane, isHost)) {
      const now = time > since ? open.findIndex(one => one > 0) : -1;
      if (now >= 0) pieces.push({ begin: since, end: time, part: now });
      since = time;
      open[part] += change;
    }
    this.sums = new Float64Array((pieces.length + 1) * count);
    pieces.forEach(({ begin, end, part }, at) => {
      this.sums.copyWithin((at + 1) * count, at * count, (at + 1) * count);
      this.sums[(at + 1) * count + part] += end - begin;
    });
  }
  /** Add the time of each part before a time to sums, times a factor. */
  addUntil(time, factor, into) {
    const { pieces, sums, count } = this;
    const low = findFirst(pieces, piece => piece.begin >= time);
    for (let part = 0; part < count; part++) into[part] += factor * sums[low * count + part];
    if (low && pieces[low - 1].end > time)
      into[pieces[low - 1].part] -= factor * (pieces[low - 1].end - time);
  }
}

/** The time of some lanes in bins, their mean, as sums up to any time. */
class Bins {
  constructor(data, lanes) {
    const { binCount, binParts: { length: count }, binValues } = data;
    Object.assign(this,
      { binCount, count, length: data.duration / binCount, sums: new Float64Array((binCount + 1) * count) });
    for (const lane of lanes)
      for (let at = 0, from = lane * binCount * count; at < binCount * count; at++)
        this.sums[at + count] += binValues[from + at];
    for (let at = 0; at < binCount * count; at++)
      this.sums[at + count] = this.sums[at] + this.sums[at + count] * this.length / (FULL * lanes.length);
  }
  addUntil(time, factor, into) {
    const { sums, count } = this;
    const place = Math.max(time / this.length, 0);
    const bin = Math.min(Math.floor(place), this.binCount - 1);
    const inside = Math.min(place - bin, 1);
    for (let part = 0, at = bin * count; part < count; part++, at++)
      into[part] += factor * (sums[at] + inside * (sums[at + count] - sums[at]));
  }
}
/** The least and the most of the first part, which is drawn at the bottom, among lanes in each bin, as
 * shares. */
export const findSpread = (data, lanes, isHost) => remember(data.spreads, lanes, () => {
  const { binCount, binParts, binValues } = data;
  const part = binParts.findIndex(({ ofHost }) => ofHost === isHost);
  const low = new Float64Array(binCount).fill(1);
  const high = new Float64Array(binCount);
  for (const lane of lanes)
    for (let bin = 0; bin < binCount; bin++) {
      const share = binValues[(lane * binCount + bin) * binParts.length + part] / FULL;
      low[bin] = Math.min(low[bin], share);
      high[bin] = Math.max(high[bin], share);
    }
  return [low, high];
});

/** What is made once for lanes: by their list, or the number of one. */
export const remember = (known, key, build) => {
  if (!known.has(key)) known.set(key, build());
  return known.get(key);
};
const getBins = (data, lanes) => remember(
  ...lanes.length > 1 ? [data.binsOfLists, lanes] : [data.binsOf, lanes[0]], () => new Bins(data, lanes));

/** Shares of the parts of time (binParts) of lanes from begin to end, their mean: of the hosts, or of the
 * GPUs. Of one lane by its events, where all are on the page; lanes: always the same list for the same
 * lanes. */
export const measureShares = (data, lanes, begin, end, isHost) => {
  const shares = new Float64Array(data.binParts.length);
  const isExact = lanes.length === 1 && data.isCarried(lanes[0], begin, end);
  const whole = 1 / (end - begin);
  const add = (source, into) => {
    source.addUntil(end, whole, into);
    source.addUntil(begin, -whole, into);
  };
  add(isExact ? remember(data.divisions, `${lanes[0]} ${isHost}`, () => new Division(data, lanes[0], isHost))
              : getBins(data, lanes),
    shares);
  if (isExact && isHost) fillRest(data, shares, into => add(getBins(data, lanes), into));
  return shares.map((share, part) => data.binParts[part].ofHost === isHost ? Math.max(share, 0) : 0);
};

/** Divide the time in which a host is in no call as its bins do, among the parts that no call shows. */
const fillRest = (data, shares, addBins) => {
  const bins = new Float64Array(shares.length), sum = values => values.reduce((total, one) => total + one, 0);
  addBins(bins);
  bins.forEach((_, part) => {
    if (!data.binParts[part].ofHost || data.classes.includes(data.binParts[part].colour)) bins[part] = 0;
  });
  const rest = 1 - sum(shares), known = sum(bins);
  if (rest > 0 && known > 0) bins.forEach((share, part) => { shares[part] += rest * share / known; });
};

/** Stack shares from the bottom of a place up. shares: [colour, share]. */
export const stackShares = (c, x, y, width, size, shares) => {
  let bottom = y + size;
  for (const [colour, share] of shares)
    if (size * share > .05) {
      c.fillStyle = colour;
      c.fillRect(x, bottom -= size * share, width, size * share);
    }
};
