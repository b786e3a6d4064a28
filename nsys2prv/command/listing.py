"""``--list``: what the reports hold, and what of it will not be translated and why."""

from __future__ import annotations

import tempfile
import textwrap
from datetime import datetime, timezone
from pathlib import Path

from nsys2prv.errors import Nsys2prvError
from nsys2prv.events import all_kinds
from nsys2prv.events.kind import EventKind
from nsys2prv.report.info import ReportInfo, inspect, pid_of
from nsys2prv.report.opening import open_source
from nsys2prv.report.prepare import prepared
from nsys2prv.report.tables import order, reason
from nsys2prv.store.archive import is_archive

#: Of the lists of tables.
WIDTH = 140


def describe(path: str | Path) -> str:
    """One report, for people. Raises Nsys2prvError for what is none."""
    if is_archive(Path(path)):
        raise Nsys2prvError(f"{path}: is a store; list the reports that it was made of")
    with tempfile.TemporaryDirectory(prefix="nsys2prv-") as folder:
        return _describe(*prepared(Path(path), Path(folder) / "export"))


def _describe(path: Path, source: Path) -> str:
    info = inspect(path, source)
    with open_source(path) as database:
        counts = {name: database.count(name) for name in info.parts}
        kinds = [(kind, {table: database.count(table, kind.condition(info)) for table in kind.tables if table in counts})
                 for kind in all_kinds() if not kind.on_demand]
    rows = [f"{source}",
            f"  host {info.host or 'unknown'}; schema {info.schema or 'older than 2.7'}; exported by nsys {info.product or 'unknown'}; "
            f"{_span(info)}",
            f"  processes: {_processes(info)}",
            f"  GPUs: {', '.join(f'{gpu.number} {gpu.name}' for gpu in info.gpus.values()) or 'none named'}"]
    rows.append(f"  rank: {_rank(info)}")
    rows.append("  translated:")
    rows += [f"    {kind.name:<22} {sum(tables.values()):>11,} {kind.title} ({', '.join(_read(kind, tables, counts))})"
             for kind, tables in kinds if any(tables.values())] or ["    nothing"]
    rows += _untranslated({table: count for table, count in counts.items() if count})
    return "\n".join(rows)


def _read(kind: EventKind, tables: dict[str, int], counts: dict[str, int]) -> list[str]:
    """The tables with rows that a kind reads."""
    return [*(table for table, count in tables.items() if count), *(table for table in kind.beside if counts.get(table))]


def _untranslated(counts: dict[str, int]) -> list[str]:
    """The tables with rows that no kind of event reads, by the reason why."""
    translated = {table for kind in all_kinds() for table in (*kind.tables, *kind.beside)}
    found: dict[str, list[str]] = {}
    for table in sorted(counts.keys() - translated):
        found.setdefault(reason(table), []).append(table)
    lines = []
    for why in sorted(found, key=order):
        enums = [table for table in found[why] if table.startswith("ENUM_")]
        named = [f"{table} ({counts[table]:,})" for table in found[why] if table not in enums]
        named += [f"{len(enums)} tables ENUM_..."] if enums else []
        lines += [f"    {why}:", *textwrap.wrap(", ".join(named), WIDTH,
                                               initial_indent=" " * 6, subsequent_indent=" " * 6, break_long_words=False)]
    return ["  not translated, with their rows:", *lines] if lines else []


def _span(info: ReportInfo) -> str:
    duration = f"{info.duration_ns / 1e9:.3f} s" if info.duration_ns else "unknown duration"
    if info.utc_ns is None:
        return duration
    try:
        start = datetime.fromtimestamp(info.utc_ns // 1_000_000_000, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return duration
    return f"{duration} from {start:%Y-%m-%d %H:%M:%S} UTC"


def _processes(info: ReportInfo) -> str:
    named = [f"{name or 'process'} {pid_of(pid)}" + (f" (rank {info.ranks[pid]})" if pid in info.ranks else "")
             for pid, name in info.processes.items()]
    return ", ".join(named[:6]) + (f" and {len(named) - 6} more" if len(named) > 6 else "") if named else "none named"


def _rank(info: ReportInfo) -> str:
    if info.ranks:
        return f"{', '.join(map(str, sorted(info.ranks.values())))} by MPI"
    by_variable = ", ".join(f"{rank} by {name}" for name, rank in info.launcher_ranks.items())
    return f"{by_variable} of the launcher's environment" if by_variable else "unknown"
