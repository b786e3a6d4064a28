// The data of the page: one compressed block of JSON and columns of numbers, as data.py writes it.

/** Read columns of numbers into an object: the first two are begin, by difference, and length. */
const readColumns = (bytes, at, count, names, into) => {
  for (const name of names) {
    const column = (into[name] = new Float64Array(count));
    for (let i = 0; i < count; i++) {
      let value = 0, factor = 1, byte;
      do {
        byte = bytes[at++];
        value += (byte & 127) * factor;
        factor *= 128;
      } while (byte > 127);
      column[i] = value;
    }
  }
  const [begin, end] = names.slice(0, 2).map(name => into[name]);
  for (let i = 1; i < count; i++) begin[i] += begin[i - 1];
  for (let i = 0; i < count; i++) end[i] += begin[i];
  return into;
};

/** Events of one kind on a lane, by begin. Columns: begin, end (ns), name, and those of the kind. */
class Track {
  constructor(bytes, at, kind, count, names) {
    Object.assign(this, { kind, count });
    readColumns(bytes, at, count, names, this);
  }
  /** Numbers of the events in lists of which no two overlap: outer ranges first. */
  get depths() {
    if (this.byDepth) return this.byDepth;
    const reached = [];
    this.byDepth = [];
    for (let i = 0; i < this.count; i++) {
      let depth = 0;
      while (depth < reached.length && reached[depth] > this.begin[i]) depth++;
      (this.byDepth[depth] ??= []).push(i);
      reached[depth] = this.end[i];
    }
    return this.byDepth;
  }
  /** Numbers of the events by stream. */
  get streams() {
    if (this.byStream) return this.byStream;
    this.byStream = new Map();
    for (let i = 0; i < this.count; i++) {
      if (!this.byStream.has(this.stream[i])) this.byStream.set(this.stream[i], []);
      this.byStream.get(this.stream[i]).push(i);
    }
    return this.byStream;
  }
}

/** The place of the first of a list that is meant, where all behind it are, too. */
export const findFirst = (list, isMeant) => {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    [low, high] = isMeant(list[middle]) ? [low, middle] : [middle + 1, high];
  }
  return low;
};
/** The place in a list of events of the first that ends after a time; their ends ascend. */
export const findFirstEnding = (list, ends, time) => findFirst(list, i => ends[i] > time);

const unpack = async base64 => {
  const text = atob(base64.trim()), packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
};

/** Kinds of events that meet those of other lanes in collectives: kernels of NCCL, calls of MPI. */
export const MEETING = ["n", "h"];

/** The job as the page has it. */
export class JobData {
  static async load(element) {
    const bytes = await unpack(element.textContent);
    element.remove();
    const length = new DataView(bytes.buffer).getUint32(0, true);
    const facts = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
    return new JobData(facts, bytes.subarray(4 + length));
  }
  constructor(facts, bytes) {
    // A page without events lacks what is of these.
    const nothing = {
      tracks: [],
      names: [],
      nameClasses: [],
      moments: [],
      messages: { count: 0, at: 0 },
      hasStreams: false
    };
    Object.assign(this, nothing, { cover: facts.lanes.map(() => []) }, facts, { bytes });
    this.places = this.lanes.map(() => ({}));
    for (const [lane, kind, count, at] of this.tracks) this.places[lane][kind] = { count, at };
    const { count, at } = this.bins;
    this.binCount = count;
    this.binParts = this.bins.parts;
    this.binValues = bytes.subarray(at, at + this.lanes.length * count * this.binParts.length);
    Object.assign(this, { binsOf: new Map(), binsOfLists: new WeakMap(), spreads: new WeakMap() });
    this.divisions = new Map();
    this.messages = readColumns(
      bytes, this.messages.at, this.messages.count, this.columns.messages, { ...this.messages });
    for (const table of Object.keys(this.grids)) this.grids[table] = this.readGrid(this.grids[table]);
  }
  /** The events of a kind on a lane, decoded when they are first asked for; null for none. */
  getTrack(lane, kind) {
    const place = this.places[lane][kind];
    if (!place) return null;
    return (place.track ??= new Track(this.bytes, place.at, kind, place.count, this.columns[kind]));
  }
  /** A grid of numbers by lane: 16 bits each, of the greatest. */
  readGrid({ at, columns, top }) {
    const view = new DataView(this.bytes.buffer, this.bytes.byteOffset + at, 2 * columns * this.lanes.length);
    return this.lanes.map(
      (_, lane) => Float64Array.from({ length: columns },
        (_, column) => view.getUint16(2 * (lane * columns + column), true) / 65535 * top));
  }
  get hasHosts() { return this.binParts.some(({ ofHost }) => ofHost); }
  /** Places of metrics (names) below a lane: {name, label, unit, top, columns, at}. */
  listMetrics(lane, names) {
    return this.metrics.filter(({ name }) => names?.has(name))
      .flatMap(
        metric => metric.places.filter(place => place.lane === lane).map(place => ({ ...metric, ...place })));
  }
  /** The mean of a metric from begin to end, as a share of its scale's top; null for not sampled. */
  readMetric({ at, columns }, begin, end) {
    const first = Math.max(Math.floor(begin / this.duration * columns), 0);
    const last = Math.min(Math.max(Math.ceil(end / this.duration * columns), first + 1), columns);
    const known = this.bytes.subarray(at + first, at + last).filter(Boolean);
    return known.length ? known.reduce((sum, one) => sum + one - 1, 0) / known.length / 254 : null;
  }
  /** Whether all events of a lane from begin to end are on the page. */
  isCarried(lane, begin, end) { return this.cover[lane].some(([from, to]) => from <= begin && end <= to); }
  getName(track, i) { return this.names[track.name[i]]; }
  getClass(track, i) { return this.classes[this.nameClasses[track.name[i]]]; }
  /** The members of a collective, of NCCL or MPI, on all lanes that carry it, as {lane, track, i}. */
  getCollective(number) {
    if (!this.collectives) {
      this.collectives = new Map();
      this.lanes.forEach((_, lane) => {
        for (const track of MEETING.map(kind => this.getTrack(lane, kind)))
          for (let i = 0; i < (track?.count ?? 0); i++) {
            if (!track.collective[i]) continue;
            if (!this.collectives.has(track.collective[i])) this.collectives.set(track.collective[i], []);
            this.collectives.get(track.collective[i]).push({ lane, track, i });
          }
      });
    }
    return this.collectives.get(number) || [];
  }
  /** The event of a kind on a lane that covers a time, innermost; null for none. */
  findEventAt(lane, kind, time) {
    const track = this.getTrack(lane, kind);
    for (const list of [...(track?.depths ?? [])].reverse()) {
      const at = findFirstEnding(list, track.end, time);
      if (at < list.length && track.begin[list[at]] <= time) return { track, i: list[at] };
    }
    return null;
  }
  /** The call that launched an event, null where it is not known or not on the page. */
  findLaunch(lane, track, i) {
    const calls = this.getTrack(lane, "h"), sent = track.begin[i] - (track.before?.[i] ?? 0);
    if (!calls || !track.before?.[i]) return null;
    for (const [depth, list] of calls.depths.entries()) {
      const at = findFirstEnding(list, calls.end, sent);
      if (at < list.length && calls.begin[list[at]] === sent)
        return {
          begin: sent,
          end: calls.end[list[at]],
          depth,
          i: list[at],
          name: this.getName(calls, list[at])
        };
    }
    return null;
  }
  nameLane(lane) { return this.lanes[lane].who; }
  describeLane(lane) { return [this.lanes[lane].who, this.lanes[lane].label].filter(Boolean).join(" · "); }
  /** Levels of NVTX ranges; of many lanes only some are looked at. */
  get nvtxDepth() {
    return (this.deepest ??= Math.max(
              0, ...this.lanes.slice(0, 16).map((_, lane) => this.getTrack(lane, "x")?.depths.length ?? 0)));
  }
  findIteration(time) {
    const edges = this.iterations;
    const after = findFirst(edges, edge => edge > time);
    return after > 0 && after < edges.length ? after - 1 : -1;
  }
}
