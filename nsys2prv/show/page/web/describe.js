// What is at a place of a timeline, in words: lines for the box beside the pointer and for screen readers.
import { findFirstEnding } from "./data.js";
import { measureShares } from "./shares.js";
import { capitalize, formatBytes, formatCount, formatFigure, formatShare, formatSpan, formatTime } from "./format.js";

const PRODUCTS = {
  gemm: "on tensor cores",
  "gemm-slow": "without tensor cores"
};

/** found: as Timeline.find returns it. */
export const describePlace = (data, found) => {
  const { row } = found;
  if (found.gutter) return describeName(data, row);
  if (found.metric) return describeMetric(data, found);
  if (found.lanes) return describeColumn(data, found);
  if (found.track) return describeEvent(data, row.lane, found.track, found.i);
  if (found.gap) return describeGap(data, found);
  return null;
};

const describeName = (data, row) => {
  if (row.type === "group")
    return [row.group.label, row.group.note, row.group.open ? "click: fold" : "click: show its ranks"];
  const { who, label } = data.lanes[row.lane];
  return [who, label, row.detailed ? "click: one line" : "click: all its tracks"];
};

/** What fills a time of lanes: title and share of each part, and the rest, in which GPUs are idle. */
export const describeShares = (data, lanes, begin, end, isHost) => {
  const shares = measureShares(data, lanes, begin, end, isHost);
  const rest = 1 - shares.reduce((sum, share) => sum + share, 0);
  const parts = data.binParts.map((part, number) => [part.title, formatShare(shares[number])])
                  .filter((_, number) => shares[number] >= .0005);
  return isHost ? parts : [...parts, ["idle", formatShare(Math.max(0, rest))]];
};

const describeColumn = (data, { row, lanes, column, isHost }) => {
  const isGroup = row.type === "group", [begin, end] = column, length = data.duration / data.binCount;
  const isExact = !isGroup && data.isCarried(row.lane, begin, end);
  const from = isExact ? begin : Math.floor(begin / length) * length;
  const to = isExact ? end : Math.max(Math.ceil(end / length) * length, from + length);
  return [
    isGroup ? `${row.group.label}, mean of ${lanes.length}`
            : `${data.describeLane(row.lane)}${isHost && data.lanes[row.lane].device ? ": host" : ""}`,
    ...describeShares(data, lanes, from, to, isHost),
    ["time", formatSpan(from, to)],
    isGroup || isExact ? null : "not all events of this time are on this page",
  ];
};

const describeMetric = (data, { row, metric, column }) => {
  const value = data.readMetric(metric, ...column);
  return [
    `${metric.label} ${metric.name}`, data.describeLane(row.lane),
    ["mean", value === null ? "not sampled" : formatFigure(value * metric.top, metric.unit)],
    ["around", formatTime(column[0])]
  ];
};

export const describeEvent = (data, lane, track, i) => {
  const kind = data.getClass(track, i), length = track.end[i] - track.begin[i];
  const lines = [
    track.kind === "n" ? `NCCL ${data.getName(track, i)}` : data.getName(track, i),
    data.describeLane(lane),
    ["duration", formatTime(length)],
    ["begins at", formatTime(track.begin[i], 4)],
  ];
  if (PRODUCTS[kind]) lines.push(["GEMM", PRODUCTS[kind]]);
  if (track.stream) lines.push(["stream", String(track.stream[i])]);
  if (track.thread?.[i]) lines.push(["thread", data.threads[track.thread[i]]]);
  if (track.communicator?.[i]) lines.push(["among", data.communicators[track.communicator[i]]]);
  if (track.bytes?.[i]) lines.push(["bytes", formatBytes(track.bytes[i])]);
  if (track.kind === "m" && track.bytes[i] && length)
    lines.push(["speed", `${(track.bytes[i] / length).toFixed(1)} GB/s`]);
  if (track.collective?.[i]) lines.push(...describeCollective(data, track, i));
  else if (track.wait?.[i]) lines.push([`waits for ${nameOther(data, track, i)}`, formatTime(track.wait[i])]);
  if (track.before?.[i]) {
    const call = data.findLaunch(lane, track, i);
    lines.push(["launched before", formatTime(track.before[i])], call && ["by", call.name]);
  }
  return lines;
};

const nameOther = (data, track, i) => track.other?.[i] ? data.nameLane(track.other[i] - 1) : "other ranks";

const describeCollective = (data, track, i) => {
  const last = findLast(data, track.collective[i]);
  return [
    ["came after the first", formatTime(track.late[i])],
    ["waits for the last", formatTime(track.wait[i])],
    ["transfer", formatTime(track.end[i] - track.begin[i] - track.wait[i])],
    last && ["last", data.nameLane(last.lane)],
  ];
};

/** Who comes last to a collective, and who first, of those on the page: lane, and how late (ns). */
export const findLast = (data, number) => {
  const members = data.getCollective(number).map(
    ({ lane, track, i }) => ({ lane, track, i, late: track.late[i], wait: track.wait[i] }));
  members.sort((one, two) => two.late - one.late);
  return members.length ? { ...members[0], members } : null;
};

const describeGap = (data, { row, place, gap, time }) => {
  const isGpu = place.kind !== "h" && place.kind !== "x", [begin, end] = gap;
  const lines = [
    isGpu ? "nothing runs here" : "the host is outside recorded calls", data.describeLane(row.lane),
    ["duration", formatTime(end - begin)], ["begins at", formatTime(begin, 4)]
  ];
  for (const [kind, text] of isGpu ? [["h", "host then in"], ["x", "NVTX range"]] : []) {
    const event = data.findEventAt(row.lane, kind, time);
    if (event) lines.push([text, data.getName(event.track, event.i)]);
    else if (kind === "h") lines.push(["host then", nameHostState(data, row.lane, time)]);
  }
  return lines;
};

/** The time without any event around a time, in a track. */
export const findGap = (place, time, duration) => {
  let [from, to] = [0, duration];
  for (const { track, list } of place.rows.flat()) {
    const at = findFirstEnding(list, track.end, time);
    if (at < list.length && track.begin[list[at]] <= time) return null;
    if (at < list.length) to = Math.min(to, track.begin[list[at]]);
    if (at > 0) from = Math.max(from, track.end[list[at - 1]]);
  }
  return [from, to];
};

/** The moment of a finding in a sentence or two, by the events that are on the page. */
export const describeMoment = (data, moment) => {
  const { begin, end, culprits } = moment, iteration = data.findIteration((begin + end) / 2);
  const where = iteration >= 0 ? `, in iteration ${formatCount(iteration + 1)} of the steady state` : "";
  const sentences = [`${formatSpan(begin, end)}${where}.`];
  const lane = culprits[0] ?? moment.lanes[0];
  if (lane !== undefined && data.isCarried(lane, begin, end))
    sentences.push(describeLaneThen(data, lane, begin, end));
  const last = moment.collective ? findLast(data, moment.collective) : null;
  const waiting = last?.members.filter(one => one.wait > 0) ?? [];
  const longest = Math.max(...waiting.map(one => one.wait), 0);
  const meanwhile = findLongestWait(data, moment);
  if (meanwhile?.time > longest) {
    const { name, time, who, other, count } = meanwhile;
    const waits = count > 1 ? `${count} ranks wait in ${name}, longest ${who}` : `${who} waits in ${name}`;
    sentences.push(`Meanwhile ${waits}, for ${other}: ${formatTime(time)} of this time.`);
  } else if (last?.late && last.track.begin[last.i] > begin) {
    const { track, i } = last;
    const among = track.communicator?.[i] ? ` among ${data.communicators[track.communicator[i]]}` : "";
    const size = track.bytes?.[i] ? ` of ${formatBytes(track.bytes[i])}` : "";
    const what = data.getName(track, i) + size + among, who = data.nameLane(last.lane);
    const others = waiting.length > 1 ? `; ${waiting.length} wait for it, up to ${formatTime(longest)}` : "";
    sentences.push(`To ${what} ${who} comes ${formatTime(last.late)} after the first${others}.`);
  }
  return sentences.join(" ");
};

/** The longest wait of other lanes then: {name, who, other, time, count (of lanes)}; undefined for none. */
const findLongestWait = (data, { begin, end, culprits, lanes }) => {
  const waits = [];
  for (const lane of lanes.filter(one => !culprits.includes(one))) {
    const track = data.getTrack(lane, "h");
    for (let i = 0; i < (track?.count ?? 0); i++) {
      const time = Math.min(track.begin[i] + track.wait[i], end) - Math.max(track.begin[i], begin);
      if (time > 0) waits.push({ time, lane, name: data.getName(track, i), other: nameOther(data, track, i) });
    }
  }
  const [longest] = waits.sort((one, two) => two.time - one.time);
  const alike = new Set(waits.filter(({ name }) => name === longest.name).map(({ lane }) => lane));
  return longest && { ...longest, who: data.nameLane(longest.lane), count: alike.size };
};

/** What a host does at a time in which it is in no call, by the words of its states. */
const nameHostState = (data, lane, time) => {
  const shares = measureShares(data, [lane], time, time + 1, true), most = Math.max(...shares);
  return most > 0 ? data.binParts[shares.indexOf(most)].title : "outside recorded calls";
};

/** Add up times by what they are of, and return the name with most of it, and its time. times: [name, time].
 * */
const findMost = times => {
  const sums = new Map();
  for (const [name, time] of times) sums.set(name, (sums.get(name) ?? 0) + time);
  return [...sums].sort(([, one], [, two]) => two - one)[0] ?? ["", 0];
};

/** What the host of a lane does from begin to end, one after the other: {name, from, to}; outside calls by
 * its states. */
const listHostTimes = (data, lane, begin, end) => {
  const calls = data.getTrack(lane, "h"), [list] = calls?.depths ?? [[]], times = [];
  let reached = begin;
  const add = (name, to) => {
    if (to > reached)
      times.push({ name: name ?? nameHostState(data, lane, (reached + to) / 2), from: reached, to });
    reached = Math.max(reached, to);
  };
  for (let at = findFirstEnding(list, calls?.end, begin); at < list.length && calls.begin[list[at]] < end;
    at++) {
    add(null, calls.begin[list[at]]);
    add(data.getName(calls, list[at]), Math.min(calls.end[list[at]], end));
  }
  add(null, end);
  return times;
};

/** What a lane does most from begin to end: its GPU, and its host with the NVTX range of most of that time.
 * */
const describeLaneThen = (data, lane, begin, end) => {
  const all = listHostTimes(data, lane, begin, end);
  const [most, time] = findMost(all.map(({ name, from, to }) => [name, to - from]));
  const [range] = findMost(all.filter(({ name }) => name === most).map(({ from, to }) => {
    const event = data.findEventAt(lane, "x", (from + to) / 2);
    return [event ? data.getName(event.track, event.i) : "", to - from];
  }));
  const where = range ? `, mainly in the NVTX range ${range}` : "";
  const inside = `is mostly ${data.names.includes(most) ? "in " : ""}${most} (${formatTime(time)}${where})`;
  if (!data.lanes[lane].device) return `${capitalize(data.nameLane(lane))}: its host ${inside}.`;
  let busy = 0, reached = begin;
  const kernels = data.getTrack(lane, "k");
  for (let i = 0; i < (kernels?.count ?? 0); i++) {
    const from = Math.max(kernels.begin[i], reached), to = Math.min(kernels.end[i], end);
    if (to > from) {
      busy += to - from;
      reached = to;
    }
  }
  const computes = busy ? `computes for ${formatTime(busy)} of it` : "does not compute then";
  return `The GPU of ${data.nameLane(lane)} ${computes}; its host ${inside}.`;
};
