"""Write results as text for a terminal, findings first.

Lines are no wider than the terminal. Tables with a row for each of many ranks, devices or hosts are
reduced to minimum, mean and maximum, then the worst rows.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import polars as pl
from msgspec import Struct

from nsys2prv._util.text import (
    PLAIN,
    Column,
    capitalize,
    escape_to_one_line,
    escape_unprintable,
    find_width,
    fold_command,
    fold_lines,
    format_count,
    format_nanoseconds,
    format_scaled,
    format_share,
    format_size,
    lay_out_table,
    list_some,
    shorten,
)
from nsys2prv.figures.host_time import TEXTS
from nsys2prv.figures.result import NOTHING, Finding, Result, comes_first, group_findings
from nsys2prv.figures.study_model import (
    SIGNS,
    Row,
    Work,
    list_known_rows,
    name_metrics,
    nest_rows,
    rate_efficiency,
)

#: Rows of a table that are printed; JSON has all.
MOST_ROWS = 20
#: A single row of more columns is printed upright.
UPRIGHT = 3
#: Characters of the longest text column.
WIDEST = 60
#: Columns of our own sentences, which are printed whole.
SENTENCES = ("advice", "rule")
#: Words of columns -> how they are written.
ACRONYMS = {
    one.lower(): one
    for one in (
        "NCCL",
        "MPI",
        "GPU",
        "GEMM",
        "SM",
        "OS",
        "CUDA",
        "UCX",
        "JIT",
        "Paraver",
        "FLOP",
        "TFLOP",
        "MFU",
    )
}
ACRONYMS["io"] = "I/O"
#: Endings of columns of fractions of 1, which are shown in percent.
FRACTIONS = ("share", "efficiency", "scalability", "_active")
#: Columns that are printed with --full alone.
COLUMNS_IN_DETAIL = ("communicator_hash",)
#: Maximum number of characters in a line of text, for any width of the terminal.
TEXT_WIDTH = 110
#: Findings that are printed without --full, and measurements that are printed of the first.
MOST_SHORT, MOST_EVIDENCE = 3, 2
#: Said of commands that open the trace.
TRACE = "  job.prv is the Paraver trace that `nsys2prv REPORT... job.prv` writes"
#: Group of findings -> the line above it.
GROUPS: dict[str, str] = TEXTS["groups"]
#: Lines that are printed without --full, and rows of each table then.
MOST_LINES, FEW_ROWS = 60, 5
#: The analysis whose first table gets space before all others.
FIRST_TABLES = "efficiencies"
#: Lines at the end that name further tables.
LAST_LINES = 3
BOLD = "\x1b[1m"
#: Columns before the details of a finding, and of their labels.
DETAILS, LABEL_WIDTH = 9, 10
#: Rating of an efficiency -> the text after it.
RATINGS = {"good": "", "fair": " low", "poor": " very low"}
#: Rating of an efficiency -> its color.
COLOURS = {"fair": "\x1b[33m", "poor": "\x1b[31m"}
#: A blank at which no line is broken.
NO_BREAK = "\u00a0"
#: Column that ranks or devices are compared by, in order of preference -> whether its highest value
#: is the worst.
WORST: dict[str, bool] = TEXTS["worst"]
PLACES = ("rank", "device", "node")
#: Label of a row for all devices together.
ALL = "all"
#: Tables of more ranks or devices than MANY are abridged; at least LEAST_SHOWN of the worst stay.
MANY, LEAST_SHOWN = 8, 3


def format_table(frame: pl.DataFrame, rows: int = MOST_ROWS, width: int | None = None) -> list[str]:
    """Return a frame as aligned lines of text, with durations in readable units and fractions in
    percent. rows: maximum number of rows. width: maximum width of the lines; None for any.
    """
    shown = frame.head(rows)
    columns = [
        Column(
            format_heading(name),
            [format_cell(name, value) for value in shown[name].to_list()],
            frame.schema[name] in (pl.String, pl.Categorical),
        )
        for name in frame.columns
    ]
    if frame.height == 1 and frame.width > UPRIGHT:
        heads, cells = zip(*((one.head, one.cells[0]) for one in columns), strict=True)
        columns = [Column(heads[0], list(heads[1:])), Column(cells[0], list(cells[1:]), False)]
    lines = lay_out_table(columns, width)
    return [*lines, f"  ... {frame.height - rows:,} more"] if frame.height > rows else lines


def format_heading(name: str) -> str:
    """Return a column name as a heading, without the unit, which is in the cells."""
    name = name.replace("balance_in_efficiency", "balance_within_nodes")
    name = name.replace("balance_out_efficiency", "balance_between_nodes")
    for ending in ("_ns", "_gb_s"):
        name = name.removesuffix(ending)
    name = name.replace("tflop_s", "TFLOP/s").replace("isation", "ization")
    return " ".join(ACRONYMS.get(word, word) for word in name.split("_"))


def format_cell(name: str, value: object) -> str:
    """Return a value of a column as text. name: of the column; its ending determines the unit."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        text = escape_to_one_line(value)
        return text if name in SENTENCES else shorten(text, WIDEST)
    if name in ("begin_ns", "end_ns"):
        return f"{float(value) / 1e9:.6f} s"
    if name.endswith("_ns"):
        return format_nanoseconds(float(value))
    if name.endswith("bytes"):
        return format_scaled(float(value), ("B", "kB", "MB", "GB", "TB"))
    if name.endswith("_gb_s"):
        return f"{value:.1f} GB/s"
    if name == "imbalance" or name.endswith(FRACTIONS) or "share_of_" in name:
        return format_share(float(value), 2)
    if isinstance(value, int):
        return f"{value:,}"
    number = float(str(value))
    return f"{number:,.2f}" if abs(number) >= 100 else f"{number:.4g}"


def use_micro_sign(text: str) -> str:
    """Return a text with µs instead of us."""
    return re.sub(r"(?<=\d )us\b", "µs", text)


def join_units(text: str) -> str:
    """Return a text in which numbers and units are joined by non-breaking spaces."""
    return re.sub(r"(?<=\d) (?=[%×a-z])", NO_BREAK, text)


def say_clock(clock: tuple[float, bool] | None) -> str:
    """Return the GPU clock as text (see `FinishedJob.clock`); "" if unknown."""
    if clock is None:
        return ""
    return f"{clock[0] / 1e6:,.0f} MHz ({'sampled' if clock[1] else 'at most'})"


def format_work(work: Work | None) -> str:
    """Return the time of some work in an iteration as text, with the number of kernels or transfers
    and their bytes.
    """
    if work is None:
        return "-"
    size = format_size(work.bytes) if work.bytes else ""
    waiting = f"waiting {format_nanoseconds(work.waiting_ns)}" if work.waiting_ns else ""
    parts = format_nanoseconds(work.time_ns), f"{work.count:,.4g} ×", size, waiting
    return ", ".join(filter(None, parts))


def format_figure(row: Row, value: float | None) -> str:
    """Return a value of a run as text; the row says which value it is."""
    if value is None:
        return "-"
    if row.is_efficiency:
        return format_share(value)
    return f"{value:.2f}" if row.path == "speedup" else format_nanoseconds(value)


def make_figure_column(
    head: str,
    figures: Iterable[tuple[Row | None, float | None]],
    style: Style,
    in_words: bool = False,
) -> Column:
    """Make a column of a table from values, each followed by its rating, with "" for missing rows.
    head: heading. in_words: write the rating in words instead of a sign.
    """
    signs = RATINGS if in_words else SIGNS
    width, figures = max(map(len, signs.values())), list(figures)
    has_devices = any(row is not None and row.path.startswith("device.") for row, _ in figures)
    column = Column(head, [], False, [])
    for row, value in figures:
        is_rated = row is not None and row.is_efficiency and value is not None
        if in_words and has_devices and row is not None:
            # Hosts are to wait for GPUs.
            is_rated = is_rated and row.path not in ("host.parallel", "host.offload")
        rating = rate_efficiency(value) if is_rated else "good"
        text = "" if row is None else f"{format_figure(row, value)}{signs[rating]:{width}}"
        column.cells.append(text)
        column.colours.append(COLOURS.get(rating, "") if style.colours else "")
    return column


def count_gpus(facts: Mapping[str, Any]) -> str:
    """Return the number of GPUs with work and, if nodes have more, of all GPUs: `1 of 2 GPUs used`."""
    used, present = facts["devices"], sum((facts.get("gpu_models") or {}).values())
    of_all = f"{used:,} of {format_count(present, 'GPU')} used"
    return of_all if present > used else format_count(used, "GPU")


def format_gpu_models(facts: Mapping[str, Any]) -> str:
    """Return the GPU models as text; "" if unknown."""
    models = facts.get("gpu_models") or {}
    if len(models) == 1:
        return next(iter(models))
    return list_some([f"{count:,} x {name}" for name, count in models.items()])


def format_recording(facts: dict[str, object]) -> str:
    """Return date and versions of a recording as text; "" if unknown."""
    begins, recorders = facts.get("begins_utc"), list(facts.get("recorded_by") or ())
    by = f"by nsys {list_some(recorders)}" if recorders else ""
    recorded = " ".join(filter(None, [f"{begins} UTC" if begins else "", by]))
    same = tuple(f"{version}." for version in recorders)
    exporters = [
        one
        for one in facts.get("exported_by") or ()
        if not one.startswith(same) and one not in recorders
    ]
    parts = (
        f"{'R' if begins else 'r'}ecorded {recorded}" if recorded else "",
        f"exported by nsys {list_some(exporters)}" if exporters else "",
        f"driver {list_some(list(facts['drivers']))}" if facts.get("drivers") else "",
    )
    return ", ".join(filter(None, parts))


def format_machine_line(facts: dict[str, object]) -> str:
    """Return GPUs, date and versions as text; "" if unknown."""
    return "; ".join(filter(None, [format_gpu_models(facts), format_recording(facts)]))


#: Titles for the work of an iteration.
WORKS = {
    "kernels": "Kernels of an iteration, by class: time and number on all GPUs",
    "communication": "Communication of an iteration: time, number, bytes and waiting for other ranks, on all ranks",
}


class Style(Struct, frozen=True):
    """Width, length and colors of printed text. In a pipe, nothing depends on a terminal: tables
    have all columns, and there are no escape sequences.
    """

    #: Columns of the terminal, None for tables of any width.
    width: int | None = None
    #: Whether everything is printed, or only as much as fits in MOST_LINES.
    full: bool = False
    #: Number of rows per table. None: MOST_ROWS, or FEW_ROWS if not everything is printed.
    rows: int | None = None
    #: Whether escape sequences for colours may be used.
    colours: bool = False
    #: Whether the analyses were chosen by name: all their tables are printed, or why there are
    #: none.
    chosen: bool = False

    @classmethod
    def for_output(cls, full: bool = False, rows: int | None = None, chosen: bool = False) -> Style:
        """Return the style that suits standard output. full: print everything. rows: number of rows
        per table, None by default. chosen: the user chose the analyses.
        """
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        width = find_width()
        return cls(width, full, rows, not (width is None or plain), chosen)

    @property
    def text_width(self) -> int:
        """Return the number of columns for text."""
        return min(self.width or TEXT_WIDTH, TEXT_WIDTH)

    def format_title(self, text: str) -> list[str]:
        """Return the lines of a title."""
        return [f"{BOLD}{text}{PLAIN}"] if self.colours else [text, "=" * len(text)]


def format_results(
    results: Iterable[Result],
    head: Iterable[str] = (),
    style: Style | None = None,
    whole: str = "the job",
) -> str:
    """Return the results of analyses as text. head: first lines. whole: name of the time to which
    shares refer without a steady state.
    """
    style, results = style or Style(), list(results)
    parts, blocks = _lay_out(results, head, style, whole)
    kept, last = [block for _, block in blocks], []
    if not (style.full or style.chosen):
        kept, not_whole = _fit_blocks(parts, blocks)
        names = dict.fromkeys(not_whole)
        only = ", ".join(name for name in names if name != "difference")
        more = f"more tables: --full shows all{f', --only one of {only}' if only else ''}"
        last = [fold_lines([more], style.text_width)] if names else []
    return "\n\n".join("\n".join(part) for part in (*parts, *kept, *last))


def _lay_out(
    results: Sequence[Result], head: Iterable[str], style: Style, whole: str = "the job"
) -> tuple[list[list[str]], list[tuple[str, list[str]]]]:
    """Return the parts that are always printed, and (analysis name, lines) of tables and notes."""
    head = list(head)
    parts = [fold_lines(head, style.text_width)] if head else []
    findings = [result for result in results if result.name == "findings"]
    findings = findings or [result for result in results if result.findings]
    asked = [result.tables["what_if"] for result in findings if "what_if" in result.tables]
    parts += [
        [*style.format_title(one.title), *format_table(one.frame, one.frame.height, style.width)]
        for one in asked
    ]
    parts += [_format_findings(result, style, whole) for result in findings]
    return parts, [
        (result.name, block) for result in results for block in _format_blocks(result, style)
    ]


def _fit_blocks(
    parts: Sequence[Sequence[str]], blocks: Sequence[tuple[str, list[str]]]
) -> tuple[list[list[str]], list[str]]:
    """Return the blocks that fit below the parts, and the analysis names of the other blocks."""
    room = MOST_LINES - LAST_LINES - sum(len(part) + 1 for part in parts)
    names = [name for name, _ in blocks]
    first = names.index(FIRST_TABLES) if FIRST_TABLES in names else 0
    kept = set()
    # Those of findings come last, which say the most important of them.
    order = sorted(range(len(blocks)), key=lambda at: (at != first, names[at] == "findings"))
    for number in order:
        if len(blocks[number][1]) < room:
            kept.add(number)
            room -= len(blocks[number][1]) + 1
    left_out = [name for number, name in enumerate(names) if number not in kept]
    return [blocks[number][1] for number in sorted(kept)], left_out


def format_findings(
    findings: Sequence[Finding],
    width: int = TEXT_WIDTH,
    full: bool = False,
    nothing: str = NOTHING,
    span: str = "the job",
    repeats: float | None = None,
    whole: str = "the job",
) -> list[str]:
    """Return the lines of the findings by group: savings and title, evidence, advice, and where to
    look. One-time costs get one line each, unless they come first.

    full: print all findings with all their evidence. nothing: sentence for a job without causes.
    span: time to which shares refer. repeats: share of the job in its steady state, or None. whole:
    time to which shares of one-time costs refer.
    """
    width, lines, shown, opens_trace = min(width, TEXT_WIDTH), [], 0, False
    others = [one for one in findings if not one.happens_once]
    said = [] if others else wrap_text(f"  {capitalize(nothing)}", width, 2)
    is_last = comes_first(findings, others, repeats)
    lines += [] if is_last else said
    for number, (group, own) in enumerate(group_findings(findings)):
        is_once, left = group == "once", MOST_SHORT - shown
        own = own if full or is_once else own[:left]
        if any(one.share for one in own):
            lines += wrap_text(f"  {GROUPS[group].format(span=span, whole=whole)}", width, 2)
        for finding in own:
            in_detail = full or not is_once or (not number and finding is own[0])
            most = 1 if shown else MOST_EVIDENCE
            shown += not is_once
            opens_trace |= in_detail and bool(finding.command)
            lines += (
                _format_finding(finding, width, full, most)
                if in_detail
                else _format_title(finding, width)
            )
    if len(others) > shown:
        lines.append(f"  and {len(others) - shown} more: --full")
    lines += said if is_last else []
    return lines + (fold_lines([TRACE], width) if opens_trace else [])


def _format_finding(finding: Finding, width: int, full: bool, most: int) -> list[str]:
    """Return the lines of a finding. most: number of lines of evidence, unless all are shown."""
    lines = _format_title(finding, width)
    indent = " " * DETAILS
    for label, text in list_details(finding, None if full else most, full):
        lines += wrap_text(f"{indent}{label:{LABEL_WIDTH}}{text}", width, DETAILS + LABEL_WIDTH)
    if finding.command:
        lines += fold_command(f"{indent}{finding.command}", width)
    return lines


def list_details(
    finding: Finding, most: int | None = None, full: bool = False
) -> list[tuple[str, str]]:
    """Return (label, text) for the known details of a finding. most: number of lines of evidence,
    None for all. full: also return further views.
    """
    view = f"view {PurePath(finding.views[0]).stem}" if finding.views else ""
    details = [
        *(
            ("" if number else "Evidence", text)
            for number, text in enumerate(finding.evidence[:most])
        ),
        ("Where", finding.where),
        ("Try", finding.advice),
        ("See", ", ".join(filter(None, [finding.look_at, view]))),
        ("Views", ", ".join(finding.views[1:]) if full else ""),
    ]
    return [(label, text) for label, text in details if text]


def _format_title(finding: Finding, width: int) -> list[str]:
    share = f"{format_share(finding.share):>6}" if finding.share else ""
    return wrap_text(f"{share}  {finding.title}", width, len(share) + 2)


def wrap_text(text: str, width: int, indent: int) -> list[str]:
    """Wrap a text that starts with its own indentation."""
    return textwrap.wrap(
        escape_unprintable(text), width, subsequent_indent=" " * indent, break_on_hyphens=False
    )


def _format_findings(result: Result, style: Style, whole: str) -> list[str]:
    width = style.text_width
    span, repeats = whole, None
    if phases := result.tables.get("phases"):
        [repeats] = phases.frame.filter(phase="steady state")["time_share"]
        span = "the steady state"
    nothing, shown = (result.missing or [NOTHING])[0], result.findings
    return [
        *style.format_title("Bottlenecks"),
        *[line for note in result.notes[:1] for line in wrap_text(f"  {note}", width, 2)],
        *format_findings(shown, width, style.full, nothing, span, repeats, whole),
    ]


def _format_blocks(result: Result, style: Style) -> list[list[str]]:
    """Return the parts of a result, each of which is printed or omitted as a whole."""
    if result.declared.special and not (result.tables or style.chosen):
        return []
    rows = style.rows or (MOST_ROWS if style.full else FEW_ROWS)
    notes: list[str] = []
    if style.full:
        # The first note of findings is printed above these.
        for note in result.notes[result.name == "findings" :]:
            notes += wrap_text(f"note: {note}", style.text_width, 6)
    if style.full or style.chosen:
        # Without findings the first reason is printed in their place.
        for lack in result.missing[
            result.name == "findings" and all(one.happens_once for one in result.findings) :
        ]:
            notes += wrap_text(f"not available: {lack}", style.text_width, 6)
    blocks = [_format_tree(result, style)]
    elsewhere = result.declared.drawn | {"what_if"}
    in_detail = elsewhere | result.declared.hidden
    # If there is nothing else to print, details were requested.
    if blocks[0] or not style.chosen or not in_detail.issuperset(result.tables):
        elsewhere = in_detail
    for name, table in result.tables.items():
        if name not in elsewhere and table.frame.height:
            frame = table.frame.drop(() if style.full else COLUMNS_IN_DETAIL, strict=False)
            # Only the worst of many ranks or devices.
            shown, left = choose_worst_rows(frame, rows)
            most = shown.height if left else rows
            lines = format_table(shown, most, style.width)
            more = [f"  ... {left:,} more"] if left else []
            title = fold_lines([table.title], style.width)
            if result.name == "findings":
                title = style.format_title(table.title)
            blocks.append([*title, *lines, *more])
    blocks = [block for block in (*blocks, notes) if block]
    if style.chosen and not (blocks or result.findings or result.missing):
        blocks = [[f"not available: {result.title}: none in this job"]]
    if blocks and result.name != "findings":
        # A heading is kept with the text below it.
        blocks[0] = [*style.format_title(result.title), *blocks[0]]
    return blocks


def list_efficiencies(
    result: Result,
) -> tuple[list[str], list[tuple[Row, Sequence[float | None]]]] | None:
    """Return the names of the parts of the job, and the rows of the efficiency tree, each with a
    value for each part; None without efficiencies.
    """
    tables = [result.tables.get(name) for name in ("device", "host")]
    if not any(tables):
        return None
    rows = [
        {} if table is None else {row["part"]: row for row in table.frame.iter_rows(named=True)}
        for table in tables
    ]
    parts = list(dict.fromkeys(part for of_table in rows for part in of_table))
    metrics = [name_metrics(*(one.get(part, {}) for one in rows)) for part in parts]
    known = nest_rows(list_known_rows(metrics))
    return (parts, known) if known else None


def _format_tree(result: Result, style: Style) -> list[str]:
    """Return the lines of the efficiency tree, with the steady state beside the whole job."""
    if result.name != FIRST_TABLES or not (found := list_efficiencies(result)):
        return []
    parts, known = found
    names = ["  " * row.depth + row.label for row, _ in known]
    rows_of_names, figures = zip(*known, strict=True)
    columns = [
        make_figure_column(part, zip(rows_of_names, values, strict=True), style, in_words=True)
        for part, values in zip(parts, zip(*figures, strict=True), strict=True)
    ]
    title = (
        "Each efficiency is the product of the ones below it (low: below 80%, very low: below 60%)"
    )
    if result.tables.get("device") and result.tables.get("host"):
        title += ". Low host efficiency is expected while hosts wait for GPUs."
    return [
        *fold_lines([title], style.text_width),
        *lay_out_table([Column("", names), *columns], style.width),
    ]


def choose_worst_rows(frame: pl.DataFrame, rows: int) -> tuple[pl.DataFrame, int]:
    """Choose the rows of a long table of ranks or devices to print. Return them, and the number of
    omitted ranks or devices.

    The rows are minimum, mean and maximum of all, then the worst, together `rows` or a few more.
    Tables of few ranks or devices, or with several rows for each, are returned unchanged.
    """
    place = next((name for name in PLACES if name in frame.columns), None)
    by = next((name for name in WORST if name in frame.columns), None)
    if (
        place is None
        or by is None
        or frame.height <= max(rows, MANY)
        or frame[place].is_duplicated().any()
    ):
        return frame, 0
    of_each = frame.with_columns(pl.col(place).cast(pl.String)).filter(pl.col(place) != ALL)
    numbers = [name for name, kind in frame.schema.items() if kind.is_numeric()]
    whole = {name: kind for name, kind in frame.schema.items() if kind.is_integer()}
    parts = []
    for statistic in ("min", "mean", "max"):
        values = of_each.select(getattr(pl.col(numbers), statistic)())
        values = values.with_columns(pl.col(*whole).round()).cast(whole) if whole else values
        parts.append(values.with_columns(pl.lit(f"{statistic} of {of_each.height:,}").alias(place)))
    worst = of_each.sort(by, descending=WORST[by], nulls_last=True, maintain_order=True)
    shown = worst.head(max(rows - len(parts), LEAST_SHOWN))
    abridged = pl.concat([*parts, shown], how="diagonal").select(frame.columns)
    return abridged, of_each.height - shown.height
