// Numbers and names as people read them.

/** A duration with three significant digits, or with this many decimals. */
export const formatTime = (ns, digits) => {
  const size = Math.abs(ns);
  if (size < 999.5) return `${Math.round(ns)} ns`;
  const [unit, name] = [[1e3, "µs"], [1e6, "ms"], [1e9, "s"]].find(([one]) => size < 999.5 * one) ?? [1e9, "s"];
  const whole = size / unit, usual = whole < 9.995 ? 2 : whole < 99.95 ? 1 : 0;
  const decimals = digits === undefined ? usual : name === "s" ? Math.max(digits, 3) : digits;
  return `${(ns / unit).toFixed(decimals)} ${name}`;
};

/** The unit in which a time is written: its size (ns) and name. */
const chooseUnit = time =>
  [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]].find(([size]) => time >= size) ?? [1, "ns"];

/** Two times with digits that tell them apart, and the time between them. */
export const formatSpan = (begin, end, digits = 3) => {
  const [size, unit] = chooseUnit(end);
  const shown = Math.min(
    Math.max(digits, Math.ceil(Math.log10(size / Math.max(end - begin, 1))) + 1), Math.log10(size));
  const write = time => (time / size).toFixed(shown);
  return `${write(begin)} to ${write(end)} ${unit} (${formatTime(end - begin)})`;
};

export const formatBytes = bytes => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (Math.abs(bytes) >= 1000 && unit < units.length - 1) {
    bytes /= 1000;
    unit++;
  }
  return `${unit ? bytes.toFixed(2) : bytes} ${units[unit]}`;
};

/** A figure with its unit. */
export const formatFigure = (value, unit) => unit === "bytes"
  ? formatBytes(value)
  : `${Number(value.toPrecision(3)).toLocaleString("en-US")}${unit === "%" ? "" : " "}${unit}`;

export const formatShare = (share, digits = 1) => `${(100 * share).toFixed(digits)}%`;

const COUNTS = new Intl.NumberFormat("en-US");
export const formatCount = number => COUNTS.format(Math.round(number));

/** A count with its noun: "1 rank", "2 ranks". */
export const countNoun = (number, noun) => `${formatCount(number)} ${noun}${number === 1 ? "" : "s"}`;

/** Ticks of a time axis, as [time, text]: about so many, at round times. */
export const makeTimeTicks = (begin, end, count) => {
  const step = roundStep((end - begin) / Math.max(1, count));
  const [size, unit] = chooseUnit(end);
  const digits = Math.min(9, Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9)));
  const ticks = [];
  for (let time = Math.ceil(begin / step) * step; time <= end; time += step)
    ticks.push([time, `${(time / size).toFixed(digits)} ${unit}`]);
  return ticks;
};

/** The least of 1, 2, 5 times a power of ten that is not below a number. */
export const roundStep = least => {
  if (!(least > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].find(factor => factor * power >= least) * power;
};

/** The name of a kernel or a range, short enough for a bar: without its types and namespaces. */
export const shortenName = name => {
  const plain = name.replace(/^void\s+/, "").replace(/\(anonymous namespace\)::/g, "");
  let depth = 0, outside = "";
  for (const letter of plain) {
    if (letter === "<" || letter === "(") depth++;
    if (!depth) outside += letter;
    if ((letter === ">" || letter === ")") && depth) depth--;
  }
  return outside.trim().split("::").slice(-1)[0] || plain;
};

/** The words of a search: lower case; all must be in what is found. */
export const splitWords = text => text.toLowerCase().split(/\s+/).filter(Boolean);

export const capitalize = text => text[0].toUpperCase() + text.slice(1);
