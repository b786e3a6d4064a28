// Where things are in a timeline: rows of hosts and lanes, the tracks of a lane, the events of a track.
import { findFirstEnding } from "./data.js";

export const GUTTER = 136;  // Width of the names (px).
export const AXIS = 20;  // Height of the time axis.
const GROUP_HEIGHT = 27, COMPACT_HEIGHT = 17, STREAM_HEIGHT = 11;
/** Tracks of a lane: kind, name, height, and how many rows of events that overlap are shown. */
const TRACKS = [
  ["k", "GPU", 15, 2], ["n", "NCCL", 13, 2], ["m", "copies", 7, 1], ["x", "NVTX", 11, 3], ["h", "calls", 11, 2],
];
/** The tracks of a lane in one line, those drawn last on top. */
const COMPACT = [["h", 2, 13], ["m", 2, 13], ["n", 9, 6], ["k", 2, 8]];

/** A track of a lane: y and size of its rows, and in each row lists of events ({track, list}). */
const makeTrack = (kind, label, y, size, rows, hidden = 0) => ({ kind, label, y, size, rows, hidden });

const stackTracks = (data, lane, options) => {
  const tracks = [];
  let y = 3;
  const add = (kind, label, size, rows, hidden) => {
    tracks.push(makeTrack(kind, label, y, size, rows, hidden));
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
      add("s", `stream ${stream}`, STREAM_HEIGHT, [lists.get(stream)], 0);
  }
  for (const [kind, label, size, most] of TRACKS) {
    const track = data.getTrack(lane, kind), isOnGpu = "knm".includes(kind);
    if (isOnGpu && options.streams) continue;
    if (!track) {
      if (kind === "k" && data.lanes[lane].device) add(kind, label, size, [[]], 0);
      continue;
    }
    const depths = track.depths, shown = kind === "x" && options.deep ? depths.length : Math.min(depths.length, most);
    const rows = depths.slice(0, shown).map(list => [{ track, list }]);
    // What overlaps more is drawn over the last row; NVTX ranges are folded instead.
    if (kind !== "x") for (const list of depths.slice(shown)) rows[shown - 1].push({ track, list });
    add(kind, label, shown > 1 && size > 11 ? 11 : size, rows, kind === "x" ? depths.length - shown : 0);
  }
  return { tracks, height: y };
};

const compactTracks = (data, lane) => {
  const isHost = !data.lanes[lane].device;
  return COMPACT.filter(([kind]) => (kind === "h") === isHost && data.getTrack(lane, kind)).map(([kind, y, size]) => {
    const track = data.getTrack(lane, kind);
    return makeTrack(kind, "", y, size, [track.depths.map(list => ({ track, list }))]);
  });
};

/** Rows of a timeline: {type: "group" | "lane", y, height, ...}, and their height together. */
export const layOut = (data, { groups, lanes, isDetailed, options }) => {
  const rows = [];
  let y = 0;
  const add = row => { rows.push(Object.assign(row, { y })); y += row.height; };
  const addLane = (lane, indent) => {
    if (isDetailed(lane)) {
      const { tracks, height } = stackTracks(data, lane, options);
      add({ type: "lane", lane, indent, detailed: true, tracks, height: Math.max(height, 28) + 5 });
    } else add({ type: "lane", lane, indent, detailed: false, tracks: compactTracks(data, lane), height: COMPACT_HEIGHT });
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
      if (at < list.length && track.begin[list[at]] <= time + slack) return { track, i: list[at], list, at, place, depth };
    }
    if (row.detailed) return { place, depth };
  }
  return null;
};

/** The place of an event in a row that shows it: {place, depth, list, at}; null where it is folded. */
export const locateEvent = (row, track, i) => {
  for (const place of row.tracks) for (const [depth, lists] of place.rows.entries())
    for (const one of lists) {
      if (one.track !== track) continue;
      const at = one.list.indexOf(i);
      if (at >= 0) return { place, depth, list: one.list, at };
    }
  return null;
};
