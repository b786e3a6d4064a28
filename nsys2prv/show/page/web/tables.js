// Tables: sorted by a click on a heading, filtered, made when they are opened.
import { copy, make, makeButton } from "./dom.js";
import { formatBytes, formatCount, formatShare, formatTime, splitWords } from "./format.js";

const IS_SHARE = /(share|efficiency|scalability|imbalance|_active)$|share_of_/;
/** How the figures of a column are written, by its name. */
const chooseFormat = name => {
  if (name.endsWith("_ns")) return formatTime;
  if (name.endsWith("bytes")) return formatBytes;
  if (IS_SHARE.test(name)) return value => formatShare(value, 2);
  if (name.endsWith("_gb_s")) return value => `${value.toFixed(1)} GB/s`;
  return value => Number.isInteger(value) ? formatCount(value) : value.toPrecision(4);
};
export const rateEfficiency = value => value >= .8 ? "good" : value >= .6 ? "fair" : "poor";

export const makeSortable = table => {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach(head => {
    if (head.classList.contains("fixed")) return;
    const isNumber = head.classList.contains("n");
    const getKey = row => {
      const cell = row.cells[head.cellIndex];
      return isNumber ? (cell.dataset.v ? Number(cell.dataset.v) : -Infinity) : cell.textContent;
    };
    const sort = () => {
      const now = head.getAttribute("aria-sort"), up = isNumber ? now === "descending" : now !== "ascending";
      heads.forEach(one => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...body.rows].map(row => [getKey(row), row]), sign = up ? 1 : -1;
      const compare = isNumber ? (one, two) => one - two || 0
                               : (one, two) => one.localeCompare(two, undefined, { numeric: true });
      rows.sort(([one], [two]) => sign * compare(one, two));
      body.append(...rows.map(([, row]) => row));
    };
    head.replaceChildren(
      make("button", { type: "button", class: "sort", onclick: sort }, ...head.childNodes));
  });
};

/** Show only rows with all words of an input; count says how many. */
export const makeFilterable = (input, table, count) => input.addEventListener("input", () => {
  const words = splitWords(input.value), rows = [...table.tBodies[0].rows];
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
  }
  count.textContent = `${formatCount(rows.filter(row => !row.hidden).length)} of ${formatCount(rows.length)}`;
});

/** columns: [name, heading, values, is text]. */
export const makeTable = columns => {
  const table = make(
    "table", {}, make("thead", {}, make("tr", {}, ...columns.map(([name, heading, ,
      isText]) => make("th", { scope: "col", class: isText ? "" : "n", title: name }, heading)))));
  const formats = columns.map(([name]) => chooseFormat(name)), body = make("tbody");
  // Paths of a tree are shown by their last part, indented.
  const depths = columns.find(([name]) => name === "depth")?.[2];
  const paths = columns.findIndex(([name]) => name === "path");
  columns[0][2].forEach(
    (_, row) => body.append(make("tr", {}, ...columns.map(([name, , values, isText], column) => {
      const value = values[row], isNone = value === null, cell = make("td", { class: isText ? "" : "n" });
      cell.textContent = isNone ? "–" : isText ? value : formats[column](value);
      if (!isText && !isNone) cell.dataset.v = value;
      if (name.endsWith("efficiency") && !isNone) cell.classList.add(rateEfficiency(value));
      if (depths && column === paths) indentPath(cell, value, depths[row]);
      return cell;
    }))));
  table.append(body);
  makeSortable(table);
  return table;
};
const indentPath = (cell, path, depth) => {
  const parent = path.split(" / ").slice(0, depth).join(" / ");
  cell.title = path;
  cell.textContent = depth ? path.slice(parent.length + 3) : path;
  cell.style.paddingLeft = `${.5 + 1.1 * depth}rem`;
};

/** The rows of a table that are shown, in their order, as CSV with its plain numbers, or aligned as a text.
 * */
export const writeTable = (table, isCsv) => {
  const quote = text => /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  const [head, ...body] = [...table.rows].filter(row => !row.hidden);
  if (isCsv)
    return [
      [...head.cells].map(cell => cell.title),
      ...body.map(row => [...row.cells].map(cell => cell.dataset.v ?? (cell.title || cell.textContent)))
    ].map(cells => cells.map(quote).join(","))
      .join("\n");
  const rows = [head, ...body].map(row => [...row.cells].map(cell => cell.textContent));
  const isNumber = [...head.cells].map(cell => cell.classList.contains("n"));
  const widths = isNumber.map((_, at) => Math.max(...rows.map(cells => cells[at].length)));
  return rows
    .map(cells => cells.map((text, at) => isNumber[at] ? text.padStart(widths[at]) : text.padEnd(widths[at]))
           .join("  ")
           .trimEnd())
    .join("\n");
};
/** Buttons that copy a table, as a text below its title. */
export const makeCopyButtons = (table,
  title) => [makeButton("copy as text", "aligned, for a mail",
               event => copy(event.target, `${title}\n${writeTable(table, false)}`)),
  makeButton(
    "copy as CSV", "plain numbers, for a spreadsheet", event => copy(event.target, writeTable(table, true)))];

/** All tables of an analysis, folded. analysis: {title, tables: [{title, about, rows, columns}], notes,
 * missing}. */
export const makeTables = analysis => make("div", {class: "analysis"}, make("h3", {}, analysis.title),
  ...[...analysis.notes, ...analysis.missing].map(text => make("p", {}, text)),
  ...analysis.tables.map(({name, title, about, rows, columns}) => {
    const details = make("details", { "data-source": name },
      make("summary", {}, title, make("small", {}, ` ${formatCount(rows)} row${rows === 1 ? "" : "s"}`)));
    details.addEventListener("toggle", () => {
      const table = makeTable(columns), count = make("small"), shown = columns[0][2].length;
      const input = make("input",
        { type: "search", placeholder: "show rows with …", "aria-label": "show rows with this text" });
      makeFilterable(input, table, count);
      details.append(
        ...[...about.split("\n\n").map(text => text && make("p", {}, text)),
          shown < rows && make("p", {}, `The first ${formatCount(shown)} rows; all are in --json.`),
          make(
            "p", { class: "tools" }, ...shown > 12 ? [input, count] : [], ...makeCopyButtons(table, title))]
          .filter(Boolean),
        make("div", { class: "wide", tabindex: "0" }, table));
    }, { once: true });
    return details;
  }));
