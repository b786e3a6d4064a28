// Where things are in a timeline: rows of hosts and lanes, the tracks of a lane, the events of a track.
import { findFirstEnding } from "./data.js";

export const GUTTER = 136;  // Width of the names (px).
export const AXIS = 20;     // Height of the time axis.
const GROUP_HEIGHT = 27, COMPACT_HEIGHT = 17, STREAM_HEIGHT = 11;
/** The tracks of events of a lane: kind, name, height, and how many rows of events that overlap are shown. */
const TRACKS = [
  ["k", "kernels", 15, 2],
  ["n", "NCCL", 13, 2],
  ["m", "copies", 7, 1],
  ["x", "NVTX", 11, 3],
  ["h", "calls", 11, 2],
];
/** What the shares of a lane's time are of, those that count last in front. */
const SHARED = {
  true: ["h"],
  false: ["m", "n", "k"]
};
const SHARES_HEIGHT = 13, METRIC_HEIGHT = 24;

/** A track of a lane: y and size of its rows, and in each row lists of events ({track, list}). */
const makeTrack = (kind, label, y, size, rows, more) => ({ kind, label, y, size, rows, ...more });
/** The track with the shares of a lane's time: of its GPU, or of its host. */
const makeShares = (data, lane, y, isHost, label = "") => makeTrack("shares", label, y, SHARES_HEIGHT,
  [SHARED[isHost]
      .map(kind => data.getTrack(lane, kind))
      .filter(Boolean)
      .flatMap(track => track.depths.map(list => ({ track, list })))],
  { isHost });

const stackTracks = (data, lane, options) => {
  const isOnGpu = data.lanes[lane].device;
  const tracks = [makeShares(data, lane, 2, !isOnGpu, isOnGpu ? "GPU" : "host")];
  let y = SHARES_HEIGHT + 4;
  const add = (kind, label, size, rows, more) => {
    tracks.push(makeTrack(kind, label, y, size, rows, more));
    y += rows.length * size + 2;
  };
  if (options.streams) {
    const lists = new Map();
    for (const kind of "knm") {
      const track = data.getTrack(lane, kind);
      for (const [stream, list] of track?.streams ?? []) {
        if (!lists.has(stream)) lists.set(stream, []);
        lists.get(stream).push({ track, list });
      }
    }
    for (const stream of [...lists.keys()].sort((one, two) => one - two))
      add("s", `stream ${stream}`, STREAM_HEIGHT, [lists.get(stream)]);
  }
  for (const [kind, label, size, most] of TRACKS) {
    const track = data.getTrack(lane, kind);
    if (!track || options.streams && "knm".includes(kind)) continue;
    const depths = track.depths;
    const shown = kind === "x" && options.deep ? depths.length : Math.min(depths.length, most);
    const rows = depths.slice(0, shown).map(list => [{ track, list }]);
    // What overlaps more is drawn over the last row; NVTX ranges are folded instead.
    if (kind !== "x")
      for (const list of depths.slice(shown)) rows[shown - 1].push({ track, list });
    add(kind, label, shown > 1 && size > 11 ? 11 : size, rows,
      { hidden: kind === "x" ? depths.length - shown : 0 });
  }
  if (isOnGpu && data.hasHosts) {
    tracks.push(makeShares(data, lane, y, true, "host"));
    y += SHARES_HEIGHT + 2;
  }
  for (const metric of data.listMetrics(lane, options.metrics)) {
    tracks.push(makeTrack("metric", "", y, METRIC_HEIGHT, [[]], { metric }));
    y += METRIC_HEIGHT + 3;
  }
  return { tracks, height: y };
};

/** Rows of a timeline: {type: "group" | "lane", y, height, ...}, and their height together. */
export const layOut = (data, {groups, lanes, isDetailed, options}) => {
  const rows = [];
  let y = 0;
  const add = row => {
    rows.push(Object.assign(row, { y }));
    y += row.height;
  };
  const addLane = (lane, indent) => {
    if (isDetailed(lane)) {
      const { tracks, height } = stackTracks(data, lane, options);
      add({
        type: "lane",
        lane,
        lanes: [lane],
        indent,
        detailed: true,
        tracks,
        height: Math.max(height, 28) + 5
      });
    } else
      add({
        type: "lane",
        lane,
        lanes: [lane],
        indent,
        detailed: false,
        tracks: [makeShares(data, lane, 2, !data.lanes[lane].device)],
        height: COMPACT_HEIGHT
      });
  };
  if (!groups) lanes.forEach(lane => addLane(lane, 0));
  for (const group of groups || []) {
    add({ type: "group", group, height: GROUP_HEIGHT });
    if (group.open) group.lanes.forEach(lane => addLane(lane, 12));
  }
  return { rows, height: y };
};

/** The event at a place of a lane's row: {track, i, list, at, place, depth}; null for none. */
export const findEvent = (row, y, time, slack) => {
  // What is drawn last is on top.
  for (const place of [...row.tracks].reverse()) {
    const depth = Math.floor((y - place.y) / place.size);
    if (depth < 0 || depth >= place.rows.length) continue;
    for (const { track, list } of [...place.rows[depth]].reverse()) {
      const at = findFirstEnding(list, track.end, time - slack);
      if (at < list.length && track.begin[list[at]] <= time + slack)
        return { track, i: list[at], list, at, place, depth };
    }
    return { place, depth };
  }
  return null;
};

/** The place of an event in a row that shows it: {place, depth, list, at}; null where it is folded. */
export const locateEvent = (row, track, i) => {
  const places = [...row.tracks].sort((one, two) => (one.kind === "shares") - (two.kind === "shares"));
  for (const place of places)
    for (const [depth, lists] of place.rows.entries())
      for (const one of lists) {
        if (one.track !== track) continue;
        const at = one.list.indexOf(i);
        if (at >= 0) return { place, depth, list: one.list, at };
      }
  return null;
};
