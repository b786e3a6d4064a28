"""Describe reports for ``--list``: one table of their contents, with marks at differences, and the
tables that are not translated, with reasons.

Input: paths of reports. Output: text and warnings.
"""

from __future__ import annotations

import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timezone
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.text import (
    Column,
    find_width,
    format_count,
    format_nanoseconds,
    lay_out_table,
    list_some,
)
from nsys2prv.conversion.anonymous import Pseudonyms, hide_report
from nsys2prv.conversion.quality import list_unrecorded
from nsys2prv.events import all_kinds
from nsys2prv.events.kind import UnreadTable, explain_unread_table, rank_reason
from nsys2prv.export.info import ReportInfo, pid_of, read_report_info
from nsys2prv.export.ranks import check_claims, check_job, check_missing_ranks
from nsys2prv.export.report_files import ForeignFile, prepare_export
from nsys2prv.export.sqlite import open_database

#: Columns that lists of tables take.
WIDTH = 140
#: Marks differences between reports.
MARK = "*"
#: A number below this share of another one differs from it.
ALIKE = 0.9
#: With more reports than this, only those that differ from the others get a line, and at most this
#: number of them.
MOST_LINES = 32


class _ReportContents(Struct, frozen=True):
    """The contents of one report."""

    #: Facts about the report.
    info: ReportInfo
    #: Rows by table.
    counts: dict[str, int]
    #: Rows that a kind of event would read, and their tables.
    kinds: dict[str, tuple[int, tuple[str, ...]]]


def describe_reports(
    paths: Sequence[Path], found: Collection[Path] = (), anonymous: bool = False
) -> tuple[str, list[str]]:
    """Return a description of the reports, and warnings about missing or repeated ranks.

    found: reports from folders, which are skipped if they are files of other programs. anonymous:
    use pseudonyms. Raise Nsys2prvError for a file that is not a report.
    """
    inspected, foreign = [], []
    for path in paths:
        try:
            inspected.append(_inspect_reports(path))
        except ForeignFile as error:
            if path not in found:
                raise
            foreign.append(error)
    if not inspected:
        raise foreign[0]
    warnings = [f"skipped: {error}" for error in foreign]
    if anonymous:
        names = Pseudonyms(one.info for one in inspected)
        inspected = [replace(one, info=hide_report(one.info, names)) for one in inspected]
    reports = _describe_reports(inspected)
    kinds = _describe_kinds(inspected)
    columns = ([COLUMNS[title](one.info) for one in inspected] for title in ALIKE_EVERYWHERE)
    rows = ([one.kinds.get(kind.name, (0,))[0] for one in inspected] for kind in all_kinds())
    marked = any(len({*one}) > 1 for one in columns) or any(map(_differ, rows))
    first = f"{format_count(len(inspected), 'report')}{f'; {MARK} marks differences' if marked else ''}:"
    tables = {table for one in inspected for table in one.counts}
    more = [f"  {what}: {how}" for what, how in list_unrecorded(tables).items()]
    more = ["", "Not recorded, but useful", *more] if more else []
    text = "\n".join([first, *reports, "", *kinds, *_describe_untranslated(inspected), *more])
    infos = [one.info for one in inspected]
    if len(infos) < 2:
        return text, warnings
    doubts = [*check_missing_ranks(infos), *check_job(infos), *check_claims(infos)]
    return text, [*warnings, *doubts]


def _inspect_reports(path: Path) -> _ReportContents:
    with tempfile.TemporaryDirectory(prefix="nsys2prv-") as folder:
        export, source = prepare_export(path, Path(folder) / "export")
        info = read_report_info(export, source)
        with open_database(export) as database:
            counts = {
                name: count
                for name in info.parts
                if (count := database.count_rows(info.parts[name]))
            }
            kinds = {}
            for kind in all_kinds():
                tables = {
                    table: database.count_rows(info.parts[table], kind.make_condition(info))
                    for table in kind.tables
                    if table in counts
                }
                if not kind.opt_in and any(tables.values()):
                    read = (
                        *(table for table, count in tables.items() if count),
                        *(table for table in kind.lookup_tables if table in counts),
                    )
                    kinds[kind.name] = sum(tables.values()), read
    return _ReportContents(info, counts, kinds)


def _describe_reports(reports: Sequence[_ReportContents]) -> list[str]:
    """Return a line per report, in columns, with marks at values that differ but should be equal in
    all reports. If there are many reports, return only those that differ from most.
    """
    columns = {
        title: [describe(one.info) for one in reports] for title, describe in COLUMNS.items()
    }
    unusual = {title: _find_unusual(columns[title]) for title in ALIKE_EVERYWHERE}
    marked = {
        title: [
            f"{cell} {MARK}" if odd else cell for cell, odd in zip(columns[title], of, strict=True)
        ]
        for title, of in unusual.items()
    }
    if len(reports) <= MOST_LINES:
        return _format_table(columns | marked)
    odd = [
        place
        for place in range(len(reports))
        if any(of_column[place] for of_column in unusual.values())
    ]
    hosts, what = format_count(len(set(columns["host"])), "host"), ", ".join(marked)
    if not odd:
        return [f"  {hosts}; all reports agree in {what}"]
    shown = {
        title: [cells[place] for place in odd[:MOST_LINES]]
        for title, cells in (columns | marked).items()
    }
    lines = [f"  {hosts}; {len(odd):,} differ from most in {what}:", *_format_table(shown)]
    further = len(odd) - MOST_LINES
    return [*lines, f"  and {further:,} more"] if further > 0 else lines


def _format_table(columns: dict[str, list[str]]) -> list[str]:
    """Return the lines of a table. columns: title -> cells."""
    return lay_out_table([Column(*column) for column in columns.items()], find_width())


def _find_unusual(cells: list[str]) -> list[bool]:
    """Return a mask of the cells that differ from most others."""
    [(usual, _)] = Counter(cells).most_common(1)
    return [cell != usual for cell in cells]


def _describe_kinds(reports: Sequence[_ReportContents]) -> list[str]:
    """Return a line per event kind in the reports: the rows in total and in each report."""
    names, titles, counts = [], [], []
    for kind in all_kinds():
        read = [one.kinds.get(kind.name, (0, ())) for one in reports]
        if tables := dict.fromkeys(table for _, read_tables in read for table in read_tables):
            names.append(kind.name)
            titles.append(f"{kind.title} ({', '.join(tables)})")
            counts.append([rows for rows, _ in read])
    if not names:
        return ["no event kind that nsys2prv translates"]
    sums = [f"{sum(rows):,}" for rows in counts]
    width = max(map(len, ["rows", *sums]))
    columns = {"kind (for -t)": names, "rows".rjust(width): [text.rjust(width) for text in sums]}
    if len(reports) > 1:
        report_names = [one.info.name for one in reports]
        columns["in each report"] = [_format_counts(rows, report_names) for rows in counts]
    return ["Translated event kinds", *_format_table({**columns, "description": titles})]


def _differ(rows: Sequence[int]) -> bool:
    """Return True if some reports have no rows, or far fewer rows than others."""
    return min(rows) < ALIKE * max(rows)


def _format_counts(rows: Sequence[int], names: Sequence[str]) -> str:
    """Return the number of rows in each report as text, with marks if some have none or far fewer
    than others.
    """
    least, most = min(rows), max(rows)
    if least == most:
        return f"{most:,}"
    having, lacking = (
        [name for name, count in zip(names, rows, strict=True) if bool(count) == wanted]
        for wanted in (True, False)
    )
    if lacking:
        least = min(filter(None, rows))
        elsewhere = f"{least:,} to {most:,}" if least < most else f"{most:,}"
        if len(lacking) > len(having):
            return f"{MARK} {elsewhere}, only in {list_some(having, 2)}"
        return f"{MARK} none in {list_some(lacking, 2)}; {elsewhere} elsewhere"
    mark = f"{MARK} " if _differ(rows) else ""
    return f"{mark}{least:,} ({names[rows.index(least)]}) to {most:,} ({names[rows.index(most)]})"


def _describe_untranslated(reports: Sequence[_ReportContents]) -> list[str]:
    """Return the tables with rows that no event kind reads, by reason."""
    translated = {table for kind in all_kinds() for table in (*kind.tables, *kind.lookup_tables)}
    counts: Counter[str] = Counter()
    for one in reports:
        counts.update(one.counts)
    tables: dict[UnreadTable, list[str]] = {}
    for table in sorted(counts.keys() - translated):
        tables.setdefault(explain_unread_table(table), []).append(table)
    lines = []
    for why in sorted(tables, key=rank_reason):
        enums = [table for table in tables[why] if table.startswith("ENUM_")]
        named = [f"{table} ({counts[table]:,})" for table in tables[why] if table not in enums]
        named += [f"{len(enums)} tables ENUM_..."] if enums else []
        width = min(find_width() or WIDTH, WIDTH)
        wrapped = textwrap.wrap(", ".join(named), width - 4, break_long_words=False)
        lines += [f"  {why}:", *(f"    {line}" for line in wrapped)]
    return ["", "Not translated (rows)", *lines] if lines else []


def _format_begin(info: ReportInfo) -> str:
    if info.utc_ns is None:
        return "unknown"
    try:
        return f"{datetime.fromtimestamp(info.utc_ns // 1_000_000_000, timezone.utc):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return "unknown"


def _count_processes(info: ReportInfo) -> str:
    """Return the number of profiled processes in a report; of all processes if the profiled ones
    are unknown.
    """
    own = {pid for pid, _ in info.cuda_gpus} | {pid_of(pid) for pid in info.ranks}
    named = [
        f"{name or 'process'} {pid_of(pid)}"
        + (f" (rank {info.ranks[pid]})" if len(info.ranks) > 1 and pid in info.ranks else "")
        for pid, name in info.processes.items()
        if not own or pid_of(pid) in own
    ]
    return list_some(named, 2) if named else "unknown"


def _describe_gpus(info: ReportInfo) -> str:
    names = Counter(gpu.name or "GPU" for gpu in info.gpus.values())
    counted = (f"{count} x {name}" if count > 1 else name for name, count in names.items())
    return ", ".join(counted) or "none named"


def _format_rank(info: ReportInfo) -> str:
    """Return the ranks of a report as text, with their source and the number of ranks of the job."""
    if info.ranks:
        name, ranks = "MPI", list_some(list(map(str, sorted(info.ranks.values()))), 4)
    elif info.launcher_ranks:
        name, ranks = next(iter(info.launcher_ranks.items()))
    else:
        return "unknown"
    sizes = " or ".join(map(str, sorted(set(info.launcher_sizes.values()))))
    return f"{ranks} ({name}){f' of {sizes}' if sizes else ''}"


#: Columns of the table of reports.
COLUMNS: dict[str, Callable[[ReportInfo], str]] = {
    "report": lambda info: info.name,
    "rank": _format_rank,
    "host": lambda info: info.host or "unknown",
    "processes": _count_processes,
    "GPUs": _describe_gpus,
    "start (UTC)": _format_begin,
    "duration": lambda info: (
        format_nanoseconds(info.duration_ns) if info.duration_ns else "unknown"
    ),
    "recorded by": lambda info: info.recorder or "unknown",
    "exported by": lambda info: info.exporter or "unknown",
    "schema": lambda info: info.schema or "before 2.7",
}
#: Columns that should be equal everywhere.
ALIKE_EVERYWHERE = ("GPUs", "recorded by", "exported by", "schema")
