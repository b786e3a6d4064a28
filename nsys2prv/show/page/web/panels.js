// Maps of the whole job: who sends to whom, and how long one kernel takes on each rank over time.
import { find, offer } from "./dom.js";
import { countNoun, formatBytes, formatCount, formatTime } from "./format.js";
import { HeatMap } from "./heatmap.js";

const MANY = 64;  // Lanes that have a row each; of more their hosts, or those that differ most.

export const showMessages = data => {
  const select = find("#messages-of"), isByHost = data.lanes.length > MANY;
  if (!select || !data.pairs.from) return;
  const getName = lane => isByHost ? data.lanes[lane].node : data.describeLane(lane);
  const { from, to, count, bytes, time } = data.pairs;
  const sums = new Map();
  const names = [...new Set(data.lanes.map((_, lane) => getName(lane)))];
  const places = new Map(names.map((name, at) => [name, at]));
  from.forEach((lane, at) => {
    const key = places.get(getName(lane)) * names.length + places.get(getName(to[at]));
    const sum = sums.get(key) ?? sums.set(key, { count: 0, bytes: 0, time: 0 }).get(key);
    for (const [name, values] of Object.entries({ count, bytes, time })) sum[name] += values[at];
  });
  const figures = {
    bytes: [sum => sum.bytes, formatBytes],
    messages: [sum => sum.count, formatCount],
    "mean time from send to receive": [sum => sum.time / sum.count, formatTime]
  };
  const draw = () => {
    const [get, write] = figures[select.value];
    const top = Math.max(...[...sums.values()].map(get)) || 1;
    const findSum = (row, column) => sums.get(row * names.length + column);
    new HeatMap(find("#messages-map"), {
      rows: names.map(label => ({ label })),
      columns: names.length,
      heads: names,
      label: `Messages from rows to columns: ${select.value}`,
      getValue: (row, column) => findSum(row, column) ? get(findSum(row, column)) / top : null,
      describe: (row, column) => [["to", names[column]],
        ...findSum(row, column) ? Object.entries(figures).map(
                                    ([name, [value, write]]) => [name, write(value(findSum(row, column)))])
                                : ["no messages"]]
    });
    find("#messages-top").textContent = write(top);
  };
  offer(select, Object.keys(figures).map(name => [name, name]), draw);
};

/** pick(lane, begin, end) shows a time of a lane. */
export const showKernelMaps = (data, pick) => {
  const select = find("#kernel-of");
  if (!select || !data.maps.length) return;
  const draw = () => {
    const map = data.maps[Number(select.value)], grid = data.readGrid(map), edges = data.mapEdges;
    const known = grid.map(row => row.filter(value => value > 0));
    const lanes = grid.map((_, lane) => lane).filter(lane => known[lane].length);
    const mean = lane => known[lane].reduce((sum, value) => sum + value, 0) / known[lane].length;
    const sorted = [...lanes].sort((one, two) => mean(one) - mean(two));
    const middle = mean(sorted[sorted.length >> 1]);
    const all = lanes.flatMap(lane => [...known[lane]]).sort((one, two) => one - two);
    // Differences of some percent are noise: the scale spans at least 5 % on either side of the median.
    const low = Math.min(all[0], .95 * middle), high = Math.max(all.at(-1), 1.05 * middle);
    const shown = [...lanes]
                    .sort((one, two) => Math.abs(mean(two) - middle) - Math.abs(mean(one) - middle))
                    .slice(0, MANY)
                    .sort((one, two) => one - two);
    const which = shown.length < lanes.length
      ? `; the ${MANY} of ${formatCount(lanes.length)} ranks that differ most from the median`
      : "";
    const scale = `${formatTime(low)} (dark) to ${formatTime(high)} (light)`;
    const median = `median of ${countNoun(lanes.length, "rank")} ${formatTime(middle)}`;
    find("#kernel-scale").textContent = `mean duration: ${scale}, ${median}${which}`;
    new HeatMap(find("#kernel-map"), {
      rows: shown.map(lane => ({ label: data.describeLane(lane) })),
      columns: map.columns,
      label: `Mean duration of ${map.name} on ranks over time`,
      getValue: (row, column) => grid[shown[row]][column] ? (grid[shown[row]][column] - low) / (high - low)
                                                          : null,
      describe: (row, column) => [["from", formatTime(edges[column])], ["to", formatTime(edges[column + 1])],
        [
          "mean duration",
          grid[shown[row]][column] ? formatTime(grid[shown[row]][column]) : "does not start here"
        ],
        ["on this rank", formatTime(mean(shown[row]))], "click: the timeline then"],
      pick: (column, row) => pick(shown[row], edges[column], edges[column + 1])
    });
  };
  offer(select,
    [...data.maps.entries()].sort(([, one], [, two]) => two.time - one.time).map(([at,
      { name }]) => [at, name.slice(0, 90)]),
    draw);
};
