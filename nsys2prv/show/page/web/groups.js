// Groups of many lanes: those that do the same at the same time in one line, odd ones apart; or hosts.
import { countNoun } from "./format.js";
import { FULL } from "./shares.js";

/** In how many parts of the steady state lanes are compared, and in what share of it like ones differ at
 * most: twice what a finding has to gain (2%), so that noise does not part them. A group of at most this
 * share of all lanes is odd. */
const PARTS = 40, DIFFERS = .04, ODD = .02;

export const sumGrid = (grid, lane) => grid?.[lane].reduce((total, value) => total + value, 0) ?? 0;
const getNoun = data => data.lanes[0].device ? "GPU" : "rank";

/** Numbers as ranges: "0 to 3, 5". */
export const listRanges = numbers => {
  const ranges = [];
  for (const number of numbers)
    if (ranges.length && number === ranges.at(-1)[1] + 1) ranges.at(-1)[1] = number;
    else ranges.push([number, number]);
  return ranges.map(([first, last]) => first === last ? first : `${first} to ${last}`).join(", ");
};
/** The shares of a lane's time in each part of the steady state, one after the other. */
const profile = ({ binCount, binParts, binValues, duration, lanes, span }, lane) => {
  const [first, last] = span.map(time => Math.round(time / duration * binCount));
  const count = binParts.length;
  const size = Math.max(1, Math.floor((last - first) / PARTS));
  const shares = new Float64Array(Math.ceil((last - first) / size) * count), isHost = !lanes[lane].device;
  for (let bin = first; bin < last; bin++)
    for (let part = 0, at = (lane * binCount + bin) * count; part < count; part++, at++)
      if (binParts[part].ofHost === isHost)
        shares[Math.floor((bin - first) / size) * count + part] += binValues[at] / (FULL * (last - first));
  return shares;
};
/** The share of time in which two lanes do something else. */
const measureDifference = (one, two) => one.reduce((sum, share, at) => sum + Math.max(share - two[at], 0), 0);

/** Lanes in groups of like ones, the largest last and folded; in front, open, those unlike all others, and
 * `wanted` ones. */
export const groupAlike = (data, wanted) => {
  const groups = [];
  data.lanes.forEach((_, lane) => {
    const own = profile(data, lane);
    const near = groups.find(
      ({ first }) => Math.max(measureDifference(own, first), measureDifference(first, own)) <= DIFFERS);
    if (near) near.lanes.push(lane);
    else groups.push({ first: own, lanes: [lane] });
  });
  const least = Math.max(ODD * data.lanes.length, 1);
  const isOdd = ({ lanes }) => lanes.length <= least && groups.length > 1;
  const odd = [...new Set([...wanted, ...groups.filter(isOdd).flatMap(({ lanes }) => lanes)])].sort(
    (one, two) => one - two);
  const alike = groups.filter(group => !isOdd(group))
                  .map(({ lanes }) => lanes.filter(lane => !odd.includes(lane)))
                  .filter(lanes => lanes.length);
  const name = lanes => `ranks ${listRanges([
    ...new Set(lanes.map(lane => Number(/\d+/.exec(data.lanes[lane].who)?.[0] ?? lane)))
  ].sort((one, two) => one - two))}`;
  return [
    ...odd.length ? [{
      label: "to look at",
      lanes: odd,
      open: true,
      note: countNoun(odd.length, getNoun(data))
    }]
                  : [],
    ...alike.sort((one, two) => one.length - two.length).map(lanes => ({
      label: `${countNoun(lanes.length, getNoun(data))} alike`,
      lanes,
      open: false,
      note: name(lanes)
    }))
  ];
};

/** Hosts with their lanes: those that wait least first, as the others wait for them. */
export const groupByHost = data => {
  const sum = lane => sumGrid(data.grids.wait, lane);
  const groups = new Map();
  const order = data.lanes.map((_, lane) => lane).sort((one, two) => sum(one) - sum(two));
  for (const lane of order) {
    const { node } = data.lanes[lane];
    const group = groups.get(node) ?? groups.set(node, { label: node, lanes: [], open: false }).get(node);
    group.lanes.push(lane);
    group.note = countNoun(group.lanes.length, getNoun(data));
  }
  return [...groups.values()];
};
