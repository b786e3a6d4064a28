// Shares of the parts of time that fill a time of a lane: of single events where they are on the page, elsewhere of bins.

/** Time without other time; both are lists of [begin, end] that ascend and do not overlap. */
const takeOff = (some, taken) => {
  const left = [];
  let at = 0;
  for (let [begin, end] of some) {
    while (at < taken.length && taken[at][1] <= begin) at++;
    for (let next = at; next < taken.length && taken[next][0] < end; next++) {
      if (taken[next][0] > begin) left.push([begin, taken[next][0]]);
      begin = Math.max(begin, taken[next][1]);
    }
    if (end > begin) left.push([begin, end]);
  }
  return left;
};
/** Time that is in any of these. */
const unite = spans => {
  const whole = [];
  for (const [begin, end] of spans.sort((one, two) => one[0] - two[0]))
    if (whole.length && begin <= whole.at(-1)[1]) whole.at(-1)[1] = Math.max(end, whole.at(-1)[1]);
    else if (end > begin) whole.push([begin, end]);
  return whole;
};

/** Times of the parts of a lane's time by its single events: of each moment the first part that applies. */
const listTimes = (data, lane, isHost) => {
  const times = data.binParts.map(() => []), number = name => data.binParts.findIndex(part => part.name === name);
  const [compute, moving, wait, copies] = ["compute", "communication", "wait", "copies"].map(number);
  for (const kind of isHost ? "h" : "knm") {
    const track = data.getTrack(lane, kind);
    for (let i = 0; i < (track?.count ?? 0); i++) {
      const begin = track.begin[i], end = track.end[i], ready = kind === "n" ? Math.min(begin + track.wait[i], end) : begin;
      const part = isHost ? data.binParts.findIndex(({ ofHost, colour }) => ofHost && colour === data.getClass(track, i)) : { k: compute, n: moving, m: copies }[kind];
      times[part]?.push([ready, end]);
      if (ready > begin) times[wait]?.push([begin, ready]);
    }
  }
  return times;
};

/** The division of a lane's time into parts that exclude each other, as sums up to any time. */
class Division {
  constructor(data, lane, isHost) {
    this.count = data.binParts.length;
    let taken = [];
    const pieces = listTimes(data, lane, isHost).flatMap((times, part) => {
      const own = takeOff(unite(times), taken);
      if (own.length) taken = unite([...taken, ...own].map(one => [...one]));
      return own.map(([begin, end]) => ({ begin, end, part }));
    }).sort((one, two) => one.begin - two.begin);
    this.pieces = pieces;
    this.sums = new Float64Array((pieces.length + 1) * this.count);
    pieces.forEach(({ begin, end, part }, at) => {
      for (let one = 0; one < this.count; one++) this.sums[(at + 1) * this.count + one] = this.sums[at * this.count + one];
      this.sums[(at + 1) * this.count + part] += end - begin;
    });
  }
  /** Add the time of each part before a time to sums, times a factor. */
  addUntil(time, factor, into) {
    const { pieces, sums, count } = this;
    let low = 0, high = pieces.length;
    while (low < high) { const middle = (low + high) >> 1; if (pieces[middle].begin < time) low = middle + 1; else high = middle; }
    for (let part = 0; part < count; part++) into[part] += factor * sums[low * count + part];
    if (low && pieces[low - 1].end > time) into[pieces[low - 1].part] -= factor * (pieces[low - 1].end - time);
  }
}

/** The time of some lanes in bins, their mean, as sums up to any time. */
class Bins {
  constructor(data, lanes) {
    const { binCount, binParts: { length: count }, binValues } = data;
    Object.assign(this, { binCount, count, length: data.duration / binCount, sums: new Float64Array((binCount + 1) * count) });
    for (const lane of lanes) for (let at = 0, from = lane * binCount * count; at < binCount * count; at++) this.sums[at + count] += binValues[from + at];
    for (let at = 0; at < binCount * count; at++) this.sums[at + count] = this.sums[at] + this.sums[at + count] * this.length / (FULL * lanes.length);
  }
  addUntil(time, factor, into) {
    const { sums, count } = this, place = Math.max(time / this.length, 0), bin = Math.min(Math.floor(place), this.binCount - 1), inside = Math.min(place - bin, 1);
    for (let part = 0, at = bin * count; part < count; part++, at++) into[part] += factor * (sums[at] + inside * (sums[at + count] - sums[at]));
  }
}
/** The least and the most of the first part, which is drawn at the bottom, among lanes in each bin, as shares. */
export const findSpread = (data, lanes, isHost) => remember(data.spreads, lanes, () => {
  const { binCount, binParts, binValues } = data, part = binParts.findIndex(({ ofHost }) => ofHost === isHost), low = new Float64Array(binCount).fill(1), high = new Float64Array(binCount);
  for (const lane of lanes) for (let bin = 0; bin < binCount; bin++) {
    const share = binValues[(lane * binCount + bin) * binParts.length + part] / FULL;
    low[bin] = Math.min(low[bin], share);
    high[bin] = Math.max(high[bin], share);
  }
  return [low, high];
});
/** The byte of a part that has all of a bin's time. */
const FULL = 250;

/** What is made once for lanes: by their list, or the number of one. */
const remember = (known, key, build) => { if (!known.has(key)) known.set(key, build()); return known.get(key); };
const getBins = (data, lanes) => remember(...lanes.length > 1 ? [data.binsOfLists, lanes] : [data.binsOf, lanes[0]], () => new Bins(data, lanes));

/** Shares of the parts of time (binParts) of lanes from begin to end, their mean: of the hosts, or of the GPUs. Of one lane by its events,
 * where all are on the page; lanes: always the same list for the same lanes. */
export const measureShares = (data, lanes, begin, end, isHost, byBins = false) => {
  const shares = new Float64Array(data.binParts.length), isExact = !byBins && lanes.length === 1 && data.isCarried(lanes[0], begin, end), whole = 1 / (end - begin);
  const add = (source, into) => { source.addUntil(end, whole, into); source.addUntil(begin, -whole, into); };
  add(isExact ? remember(data.divisions, `${lanes[0]} ${isHost}`, () => new Division(data, lanes[0], isHost)) : getBins(data, lanes), shares);
  if (isExact && isHost) fillRest(data, shares, into => add(getBins(data, lanes), into));
  return shares.map((share, part) => data.binParts[part].ofHost === isHost ? Math.max(share, 0) : 0);
};

/** Divide the time in which a host is in no call as its bins do, among the parts that no call shows. */
const fillRest = (data, shares, addBins) => {
  const bins = new Float64Array(shares.length), sum = values => values.reduce((total, one) => total + one, 0);
  addBins(bins);
  bins.forEach((_, part) => { if (!data.binParts[part].ofHost || data.classes.includes(data.binParts[part].colour)) bins[part] = 0; });
  const rest = 1 - sum(shares), known = sum(bins);
  if (rest > 0 && known > 0) bins.forEach((share, part) => { shares[part] += rest * share / known; });
};

/** Stack shares from the bottom of a place up. shares: [colour, share]. */
export const stackShares = (c, x, y, width, size, shares) => {
  let bottom = y + size;
  for (const [colour, share] of shares) if (size * share > .05) {
    c.fillStyle = colour;
    c.fillRect(x, bottom -= size * share, width, size * share);
  }
};
