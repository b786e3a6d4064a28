// Tests of the modules of pages, which test_in_browser.py runs in a browser: `failures` says what differs.
import { findFirstEnding, JobData } from "./data.js";
import { describeEvent, describeMoment, findGap } from "./describe.js";
import { countNoun, formatBytes, formatCount, formatShare, formatSpan, formatTime, makeTimeTicks, roundStep, shortenName, splitWords } from "./format.js";
import { groupAlike, groupByHost, listRanges } from "./groups.js";
import { getRampColour } from "./heatmap.js";
import { findEvent, layOut, locateEvent } from "./layout.js";
import { parseSearch } from "./search.js";
import { measureShares } from "./shares.js";
import { makeFilterable, makeTable } from "./tables.js";

const failures = window.failures = [];
window.checked = 0;
const check = (what, found, expected) => {
  window.checked++;
  const [one, two] = [found, expected].map(value => JSON.stringify(value));
  if (one !== two) failures.push(`${what}: ${one}, not ${two}`);
};

// ---- numbers and names ------------------------------------------------------------------------
check("times", [0, 999, 1000, 1_234_567, 59_000_000_000, -2_500].map(one => formatTime(one)), ["0 ns", "999 ns", "1.00 µs", "1.23 ms", "59.0 s", "-2.50 µs"]);
check("spans have the digits that they need", [[0, 5], [1_094_980_000, 1_095_020_000], [10, 2_000_000]].map(span => formatSpan(...span)),
  ["0 to 5 ns (5 ns)", "1.094980 to 1.095020 s (40.0 µs)", "0.000 to 2.000 ms (2.00 ms)"]);
check("ranges", listRanges([0, 1, 2, 5, 7, 8]), "0 to 2, 5, 7 to 8");
check("bytes", [0, 999, 1000, 12_800_000, 4e12].map(formatBytes), ["0 B", "999 B", "1.00 kB", "12.80 MB", "4.00 TB"]);
check("shares", [formatShare(.12345), formatShare(1, 0)], ["12.3%", "100%"]);
check("counts", [formatCount(1234567), countNoun(1, "rank"), countNoun(1000, "rank")], ["1,234,567", "1 rank", "1,000 ranks"]);
check("steps", [.7, 1, 1.1, 3, 6, 1e6 + 1, 0, NaN].map(roundStep), [1, 1, 2, 5, 10, 2e6, 1, 1]);
check("ticks", makeTimeTicks(0, 1000, 5), [[0, "0.0 µs"], [200, "0.2 µs"], [400, "0.4 µs"], [600, "0.6 µs"], [800, "0.8 µs"], [1000, "1.0 µs"]]);
check("ticks far from 0 differ", new Set(makeTimeTicks(5e9, 5e9 + 300, 6).map(([, text]) => text)).size, 7);
check("ticks lie within", makeTimeTicks(17, 23, 3).map(([time]) => time), [18, 20, 22]);
check("names", ["void at::native::elementwise_kernel<4, Foo<int>>(int, (anonymous namespace)::Bar)", "ncclDevKernel_AllReduce(Args)", "<lambda>", "a > b"].map(shortenName),
  ["elementwise_kernel", "ncclDevKernel_AllReduce", "<lambda>", "a > b"]);
check("words", splitWords("  GEMM  No "), ["gemm", "no"]);
check("places to go to", ["rank 12", "1.5 s", "1.2-1.5 ms", "2 to 3µs"].map(parseSearch), [{ rank: 12 }, { time: [15e8, 15e8] }, { time: [12e5, 15e5] }, { time: [2e3, 3e3] }]);
const names = ["cudaLaunchKernel", "cudaFree", "layer_3 s"], listFound = text => names.filter(parseSearch(text).test);
check("searches", ["CUDA launch", "/^cuda(F|M)/", "3 s x"].map(listFound), [[names[0]], [names[1]], []]);
check("colours", [getRampColour(-1), getRampColour(2)], ["rgb(0,34,78)", "rgb(254,232,56)"]);

// ---- data -------------------------------------------------------------------------------------
/** A number as data.py writes it. */
const encode = number => { const bytes = []; do { bytes.push(number % 128 + (number > 127 ? 128 : 0)); number = Math.floor(number / 128); } while (number); return bytes; };
const columns = { k: ["begin", "end", "name", "before", "stream"], n: ["begin", "end", "name", "before", "stream", "bytes", "communicator", "collective", "late", "wait"],
  h: ["begin", "end", "name", "thread", "collective", "late", "wait", "other"], x: ["begin", "end", "name", "thread"], messages: ["begin", "end", "from", "to", "bytes", "on_gpu"] };
/** A job of two lanes; tracks: [lane, kind, rows of its columns], times as begin and end. */
const makeData = tracks => {
  const bytes = [], placed = tracks.map(([lane, kind, rows]) => {
    const at = bytes.length;
    columns[kind].forEach((_, column) => rows.forEach((row, i) =>
      bytes.push(...encode(column === 0 ? row[0] - (i ? rows[i - 1][0] : 0) : column === 1 ? row[1] - row[0] : row[column]))));
    return [lane, kind, rows.length, at];
  });
  const bins = bytes.length;
  bytes.push(...[0, 1].flatMap(lane => Array.from({ length: 10 }, (_, bin) => lane ? 250 : 25 * bin)));
  const grid = bytes.length;
  for (const value of [0, 65535, 13107, 39321]) bytes.push(value & 255, value >> 8);
  return new JobData({
    duration: 10_000_000, span: [0, 10_000_000], iterations: [0, 4_000_000, 10_000_000], group: 1, columns, tracks: placed, total: 0, carried: 0,
    lanes: [{ who: "rank 0", node: "n", device: true, label: "GPU0" }, { who: "rank 1", node: "n", device: true, label: "GPU1" }], hasStreams: true,
    bins: { parts: [{ name: "compute", title: "computing", colour: "compute", ofHost: false }], count: 10, at: bins }, metrics: [], grids: { wait: { at: grid, columns: 2, top: 10 } },
    cover: [[[0, 10_000_000]], []], names: ["outer", "inner", "void gemm<1>(int)", "AllReduce", "cudaLaunch"], classes: ["gemm", "nvtx", "nccl", "launch"],
    nameClasses: [1, 1, 0, 2, 3], communicators: { 7: "world (0-1)" }, threads: { 5: "main" }, moments: [], messages: { count: 0, at: 0 },
  }, Uint8Array.from(bytes));
};
const data = makeData([
  [0, "x", [[0, 9_000_000, 0, 5], [1_000_000, 4_000_000, 1, 5], [4_000_000, 8_000_000, 1, 5]]],
  [0, "k", [[2_000_000, 3_000_000, 2, 1_500_000, 1], [2_500_000, 3_500_000, 2, 0, 2], [6_000_000, 6_000_300, 2, 0, 1]]],
  [0, "h", [[500_000, 600_000, 4, 5, 0, 0, 0, 0]]],
  [0, "n", [[7_000_000, 9_000_000, 3, 0, 3, 4_000, 7, 1, 1_000_000, 0]]], [1, "n", [[6_000_000, 9_000_000, 3, 0, 3, 4_000, 7, 1, 0, 1_000_000]]],
]);
const ranges = data.getTrack(0, "x"), kernels = data.getTrack(0, "k");
check("times are unpacked", [...kernels.begin, ...kernels.end], [2_000_000, 2_500_000, 6_000_000, 3_000_000, 3_500_000, 6_000_300]);
check("nesting", ranges.depths, [[0], [1, 2]]);
check("overlaps", kernels.depths, [[0, 2], [1]]);
check("streams", [...kernels.streams], [[1, [0, 2]], [2, [1]]]);
check("a lane without", data.getTrack(1, "k"), null);
check("search in time", [0, 4_000_000, 7_999_999, 8_000_000].map(time => findFirstEnding([1, 2], ranges.end, time)), [0, 1, 1, 2]);
check("innermost", data.findEventAt(0, "x", 2_000_000).i, 1);
check("the call that launched", data.findLaunch(0, kernels, 0), { begin: 500_000, end: 600_000, depth: 0, i: 0, name: "cudaLaunch" });
check("a launch that is not known", data.findLaunch(0, kernels, 1), null);
check("iterations", [-1, 0, 3_999_999, 4_000_000, 10_000_001].map(time => data.findIteration(time)), [-1, 0, 0, 1, -1]);
const measure = (...of) => measureShares(data, ...of).map(share => Math.round(1e6 * share) / 1e6)[0], both = [0, 1];
check("shares of bins", [measure(both, 0, 10_000_000, false), measure([1], 9_000_000, 10_000_000, false), measure(both, 9_500_000, 10_000_000, false)], [.725, 1, .95]);
check("shares of events, each moment once", [measure([0], 0, 10_000_000, false), measure([0], 2_000_000, 4_000_000, false), measure([0], 3_400_000, 3_600_000, false)], [.15003, .75, .5]);
check("grids", data.grids.wait.map(row => [...row].map(Math.round)), [[0, 10], [2, 6]]);
check("what is on the page", [data.isCarried(0, 5, 6), data.isCarried(1, 5, 6)], [true, false]);
check("collectives", data.getCollective(1).map(({ lane, i }) => [lane, i]), [[0, 0], [1, 0]]);

const many = { span: [0, 40], duration: 40, binCount: 40, binParts: [{ name: "compute", ofHost: false }], lanes: Array.from({ length: 50 }, (_, lane) => ({ who: `rank ${lane}`, node: `n${lane >> 3}`, device: true })),
  binValues: Uint8Array.from({ length: 2000 }, (_, at) => at >= 280 && at < 320 ? 100 : 200 + at % 3), binsOf: new Map(), binsOfLists: new WeakMap(), grids: {}, isCarried: () => false };
check("odd ranks, those of findings, and like ones", groupAlike(many, [3]).map(({ lanes, open, note }) => [lanes.length, lanes[0], open, note]),
  [[2, 3, true, "2 GPUs"], [48, 0, false, "ranks 0 to 2, 4 to 6, 8 to 49"]]);
check("hosts", groupByHost(many).map(({ label, lanes }) => [label, lanes.length]).slice(-2), [["n5", 8], ["n6", 2]]);

// ---- places -----------------------------------------------------------------------------------
const lay = (options = {}, isDetailed = () => true) => layOut(data, { lanes: [0, 1], isDetailed, options });
const { rows, height } = lay();
check("tracks of a lane", rows[0].tracks.map(({ kind }) => kind), ["shares", "k", "n", "x", "h"]);
check("lanes do not overlap", rows[1].y, rows[0].height);
check("height", height, rows[0].height + rows[1].height);
check("tracks do not overlap", rows[0].tracks.every((one, at, all) => !at || all[at - 1].y + all[at - 1].rows.length * all[at - 1].size <= one.y), true);
check("streams apart", lay({ streams: true }).rows[0].tracks.filter(({ kind }) => kind === "s").map(({ label }) => label), ["stream 1", "stream 2", "stream 3"]);
check("one line", lay({}, () => false).rows.map(row => row.height), [17, 17]);
const groups = [{ label: "n", lanes: [0, 1], open: false }], fold = open => layOut(data, { groups: [{ ...groups[0], open }], isDetailed: () => false, options: {} }).rows.length;
check("a group folds", [fold(false), fold(true)], [1, 3]);
const place = rows[0].tracks[3], found = findEvent(rows[0], place.y + place.size + 1, 2_000_000, 0);
check("the event pointed at", [found.track === ranges, found.i, found.depth], [true, 1, 1]);
check("where nothing is", findEvent(rows[0], rows[0].tracks[1].y + 1, 5_000_000, 0).track, undefined);
check("near enough", findEvent(rows[0], rows[0].tracks[1].y + 1, 5_999_000, 2_000).i, 2);
check("its place", locateEvent(rows[0], ranges, 2).depth, 1);
check("a gap", findGap(rows[0].tracks[1], 5_000_000, data.duration), [3_500_000, 6_000_000]);
check("no gap", findGap(rows[0].tracks[1], 2_600_000, data.duration), null);

// ---- words ------------------------------------------------------------------------------------
const told = new Map(describeEvent(data, 0, data.getTrack(0, "n"), 0).filter(Array.isArray));
check("an event", [told.get("duration"), told.get("among"), told.get("bytes"), told.get("last")], ["2.00 ms", "world (0-1)", "4.00 kB", "rank 0"]);
check("a launch", new Map(describeEvent(data, 0, kernels, 0).filter(Array.isArray)).get("by"), "cudaLaunch");
const moment = { begin: 5_000_000, end: 6_000_000, view: [0, 1], lanes: [0, 1], culprits: [0], collective: 1 };
check("a moment", describeMoment(data, moment), "5.000 to 6.000 ms (1.00 ms), in iteration 2 of the steady state. The GPU of rank 0 does not compute then; its host is mostly outside recorded calls (1.00 ms, mainly in the NVTX range inner). "
  + "To AllReduce of 4.00 kB among world (0-1) rank 0 comes 1.00 ms after the first.");
const waiting = makeData([[1, "h", [[1_000_000, 4_500_000, 3, 5, 0, 0, 3_500_000, 0], [4_500_000, 5_900_000, 4, 5, 0, 0, 1_000_000, 1]]]]);
check("waits within a moment", describeMoment(waiting, { ...moment, collective: 0 }).split(". ").at(-1), "Meanwhile rank 1 waits in cudaLaunch, for rank 0: 500 µs of this time.");

// ---- tables -----------------------------------------------------------------------------------
const table = makeTable([["kernel", "kernel", ["b <i>", "a", "c"], true], ["time_ns", "time", [2000, null, 1e6], false], ["x_efficiency", "x", [.5, .7, .9], false]]);
const read = () => [...table.tBodies[0].rows].map(row => row.cells[0].textContent).join("");
const [byName, byTime] = table.tHead.querySelectorAll("button");
check("cells", [...table.tBodies[0].rows].map(row => row.cells[1].textContent), ["2.00 µs", "–", "1.00 ms"]);
check("ratings", [...table.tBodies[0].rows].map(row => row.cells[2].className), ["n poor", "n fair", "n good"]);
byTime.click();
check("most first", read(), "cb <i>a");
byTime.click();
check("least first, unknown in front", read(), "ab <i>c");
byName.click();
check("by name", read(), "ab <i>c");
const input = document.createElement("input"), count = document.createElement("small");
makeFilterable(input, table, count);
input.value = "<I> 2.00";
input.dispatchEvent(new Event("input"));
check("filter", [count.textContent, table.tBodies[0].querySelectorAll("tr:not([hidden])").length], ["1 of 3", 1]);
