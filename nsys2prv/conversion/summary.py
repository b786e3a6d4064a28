"""Summarize a conversion: outputs, clocks, an account of every row and record, missing data, and
suggested views.

Input: a written job. Output: a `Summary` and its text.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from shlex import quote

from msgspec import Struct, field

from nsys2prv._util.text import Note, format_count, format_nanoseconds, format_size
from nsys2prv.conversion.clocks import describe_clocks, describe_hosts, find_host_clocks
from nsys2prv.conversion.job import Job, sum_counters
from nsys2prv.conversion.quality import (
    QualityNote,
    assess_quality,
    collect_notes,
    collect_warnings,
    format_quality,
)
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.kind import Account, Reason, describe_reason, is_routine
from nsys2prv.writers import Writer
from nsys2prv.writers.paraver.cfg import make_view_command

#: The reason for samples that are also in another report.
IN_OTHER_REPORT = Reason("in-other-report")
#: Layouts named in the short summary.
MOST_EVENTS = 4
#: Number of lines from which on Paraver takes long to open a trace, and the advice given then.
LARGE_TRACE = 2_000_000
SMALLER = "large trace; omit attributes (--no-args) or communication lines (--lines none), select a part (--time, --ranks), or compress it (-z)"
#: Notes in the short summary that need attention.
MOST_NOTES = 6
#: Columns of the labels of its parts.
LABEL_WIDTH = 8


class RecordBalance(Struct):
    """Shows that no record is lost: of a layout's records or samples, or of a kind of lines, made =
    written + left_out.
    """

    #: Number that was made.
    made: int = 0
    #: Number that is in the trace.
    written: int = 0
    #: Reason -> number.
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """Return the number of records that are not accounted for; must be 0."""
        return self.made - self.written - sum(self.left_out.values())


class Ledger(Struct):
    """Shows what became of all rows and records of a job, by event kind, layout and kind of lines."""

    #: By kind of event, or relation.
    kinds: dict[str, Account] = field(default_factory=dict)
    #: By layout.
    records: dict[str, RecordBalance] = field(default_factory=dict)
    #: By kind of line.
    lines: dict[str, RecordBalance] = field(default_factory=dict)
    #: Tables with rows selected by conditions -> number of rows, and of rows that no kind selected.
    tables: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def missing(self) -> dict[str, int]:
        """Return name -> number of rows or records that are not accounted for, by kind, layout or
        kind of lines; empty if everything is correct.
        """
        accounts: list[tuple[str, Account | RecordBalance]] = [*self.kinds.items()]
        accounts += [*self.records.items(), *self.lines.items()]
        return {name: account.missing for name, account in accounts if account.missing}

    def list_reasons(self, fate: str) -> dict[tuple[str, str], int]:
        """Return counts by reason for a fate of rows or records: `dropped` or `repaired` rows by
        (kind, reason), or `left_out` records by (layout or kind of lines, reason).
        """
        accounts = self.records | self.lines if fate == "left_out" else self.kinds
        return {
            (name, reason): count
            for name, account in accounts.items()
            for reason, count in sorted(getattr(account, fate).items())
            if count
        }

    @classmethod
    def from_job(
        cls, job: Job, written: Mapping[str, int], left_out: Mapping[tuple[str, str], int]
    ) -> Ledger:
        """Count what became of all rows and records of a job. written: number of records by layout,
        and of lines by kind. left_out: by (layout or kind of lines, reason).
        """
        reasons: dict[str, dict[str, int]] = defaultdict(dict)
        for (name, reason), count in sorted(left_out.items()):
            if count:
                reasons[name][reason] = count
        kinds: dict[str, Account] = defaultdict(Account)
        for kind, account in (item for one in job.results for item in one.accounts.items()):
            if account.rows or account.synthesized:
                kinds[kind].add(account)
        events, lines, tables, taken = (
            sum_counters(getattr(result, name) for result in job.results)
            for name in ("events", "lines", "tables", "of_table")
        )
        for (name, reason), count in sum_counters(one.left_out for one in job.results).items():
            # These were taken off the events.
            events[name] += count * (reason == IN_OTHER_REPORT)
        records_balance, lines_balance = (
            {
                name: RecordBalance(count, written.get(name, 0), reasons[name])
                for name, count in sorted(made.items())
            }
            for made in (+events, lines)
        )
        unselected = Reason.NOT_SELECTED  # type: ignore[attr-defined]
        rest = {
            table: {"rows": rows, unselected: rows - taken[table]}
            for table, rows in sorted(tables.items())
        }
        outside = Reason.OUTSIDE_CUT  # type: ignore[attr-defined]
        for table, (rows, unread) in job.read_part.unread.items() if job.read_part else ():
            rest[table] = {**rest.get(table, {}), "rows": rows, outside: unread}
        return cls(dict(sorted(kinds.items())), records_balance, lines_balance, rest)


class Summary(Struct, dict=True):
    """Summary of the output of a conversion: numbers of ranks, events and files, clocks, notes and
    warnings.
    """

    #: Number of ranks.
    ranks: int
    #: Number of hosts.
    hosts: int
    #: Number of GPUs with work.
    devices: int
    #: Number of rows of the trace.
    threads: int
    #: Length of the trace, ns.
    duration: int
    #: Number of lines of the trace, or of its `unit`.
    lines: int
    #: Numbers of processes and ranks, such as "6 processes of 4 ranks".
    processes: str
    #: Sources of the ranks.
    ranks_by: list[str]
    #: The alignment of hosts' clocks, in a line or two.
    clock_lines: list[str]
    #: Records written, by layout.
    events: dict[str, int]
    #: Size of every file, bytes.
    sizes: dict[Path, int]
    #: Account of all rows and records.
    ledger: Ledger = field(default_factory=Ledger)
    #: Notes, and which of them need attention.
    noted: list[Note] = field(default_factory=list)
    #: The placement of each report in time, a line for each.
    placed: list[str] = field(default_factory=list)
    #: The alignment of each host's clock.
    clocks: list[str] = field(default_factory=list)
    #: Warnings for the user, a line each.
    warnings: list[str] = field(default_factory=list)
    #: Missing data of the reports.
    quality: list[QualityNote] = field(default_factory=list)
    #: The unit of the trace's contents, and how to open it, see :class:`nsys2prv.writers.Writer`.
    unit: str = "lines"
    opening: str = ""
    #: Event types in the trace.
    types: frozenset[int] = frozenset()
    #: Text of the analyses, "" if they were not asked for.
    report: str = ""
    #: One line for each report that could not be read, with keep_going.
    unread: list[str] = field(default_factory=list)
    #: True if only a part of the job was requested.
    is_cut: bool = False

    @property
    def dropped(self) -> dict[tuple[str, str], int]:
        """Return the number of rows dropped, by (kind, key of
        :class:`nsys2prv.events.kind.Reason`).
        """
        return self.ledger.list_reasons("dropped")

    @property
    def repaired(self) -> dict[tuple[str, str], int]:
        """Return the number of rows whose values were changed, by (kind, key of the reason)."""
        return self.ledger.list_reasons("repaired")

    @property
    def left_out(self) -> dict[tuple[str, str], int]:
        """Return the number of records not written, by (layout or kind of lines, key of the
        reason).
        """
        return self.ledger.list_reasons("left_out")

    @property
    def trace(self) -> str:
        """Return the path of the trace, or ""."""
        return str(next(iter(self.sizes), ""))

    @cached_property
    def views(self) -> dict[str, str]:
        """Return the Paraver views to open first, as path -> one-sentence description; empty
        without a Paraver trace.
        """
        if self.opening:
            return {}
        from nsys2prv.writers.paraver.cfg import choose_first_views

        return choose_first_views(self.types)

    @classmethod
    def from_job(
        cls,
        job: Job,
        events: Counter[str],
        left_out: Counter[tuple[str, str]],
        *,
        writer: Writer,
        lines: int,
        types: frozenset[int],
        sizes: dict[Path, int],
    ) -> Summary:
        """Return the summary of a written trace. events: number of records and samples by layout,
        and of lines by kind. left_out: records that were made but not written, by (layout or kind
        of lines, reason). lines: number of lines in the trace. types: its event types. sizes: file
        -> bytes.
        """
        model, record = job.model, job.clock_record
        ledger = Ledger.from_job(job, events, left_out)
        unaccounted = [
            f"{name}: {count:,} rows or records are missing from the accounting; please report this bug in nsys2prv"
            for name, count in ledger.missing.items()
        ]
        return cls(
            ranks=model.count,
            hosts=len(model.tree.nodes),
            devices=model.devices,
            threads=model.tree.threads,
            duration=job.duration,
            lines=lines,
            unit=writer.unit,
            opening=writer.opening,
            processes=model.describe_processes(),
            ranks_by=model.rank_sources,
            clock_lines=describe_clocks(record, job.placements, len(find_host_clocks(job)[1])),
            is_cut=job.uncut is not None,
            events={
                name: count for name, count in events.items() if name in load_catalogue().layouts
            },
            ledger=ledger,
            sizes=sizes,
            types=types,
            unread=job.unread,
            noted=collect_notes(job),
            quality=assess_quality(job),
            placed=_describe_placements(job),
            clocks=describe_hosts(record) if record else [],
            warnings=[*collect_warnings(job), *unaccounted],
        )

    def __repr__(self) -> str:
        return (
            f"<Summary of {self.trace}: {self.processes} on {format_count(self.hosts, 'node')}, {format_nanoseconds(self.duration)}, "
            f"{self.lines:,} {self.unit}, {format_count(len(self.warnings), 'warning')}; .text() has the details>"
        )

    @property
    def notes(self) -> list[str]:
        """Notes on findings and omitted data, one line each."""
        return [note.text for note in self.noted]

    def text(self, verbose: bool = False) -> str:
        """Return the summary as text. verbose: include all events by kind, every note, and the
        placement of reports.
        """
        parts = [
            f"  {'' if number else label:{LABEL_WIDTH}}{line}"
            for label, lines in _make_parts(self, verbose).items()
            for number, line in enumerate(lines)
        ]
        return "\n".join([*_describe_trace(self), *parts, "Next", *_describe_next_steps(self)])


def _describe_placements(job: Job) -> list[str]:
    earliest = min(placement.map.offset for placement in job.placements)
    return [
        f"{info.alias or info.given}: host {info.host or 'unknown'}; its time 0 is {placement.map.offset - earliest:,} ns "
        f"after time 0 of the first report (method: {placement.method})"
        for info, placement in zip(job.infos, job.placements, strict=True)
    ]


def _make_parts(summary: Summary, verbose: bool) -> dict[str, list[str]]:
    """Return label -> lines for each part of the summary."""
    gpus = f", {format_count(summary.devices, 'GPU')}" if summary.devices else ""
    ranks_by = f"; rank numbers from {' and '.join(summary.ranks_by)}" if summary.ranks_by else ""
    parts = {
        "Also": [f"{path.name} {format_size(size)}" for path, size in [*summary.sizes.items()][1:]],
        "Job": [
            f"{summary.processes} on {format_count(summary.hosts, 'node')}{gpus}; {format_nanoseconds(summary.duration)}{ranks_by}"
        ],
        "Quality": format_quality(summary.quality, verbose),
        "Clocks": [
            *summary.clock_lines,
            *(note.text for note in summary.noted if note.is_on_clocks),
            *(summary.clocks if verbose else []),
        ],
        "Events": _describe_events(summary, verbose),
        "Notes": _list_notes(summary, verbose),
    }
    # Files in one line.
    parts["Also"] = [", ".join(parts["Also"])] if parts["Also"] else []
    if verbose:
        parts["Reports"] = summary.placed
    return parts


def _describe_trace(summary: Summary) -> list[str]:
    size = format_size(next(iter(summary.sizes.values()), 0))
    rows = format_count(summary.threads, "row")
    return [f"Wrote {summary.trace}: {size}, {summary.lines:,} {summary.unit}, {rows}"]


def _describe_events(summary: Summary, verbose: bool) -> list[str]:
    counts = +Counter(summary.events)
    if verbose:
        layouts, width = load_catalogue().layouts, len(f"{max(counts.values(), default=0):,}")
        return [f"{count:>{width},} {layouts[name].title}" for name, count in counts.items()]
    main = [f"{count:,} {_find_title(name)}" for name, count in counts.most_common(MOST_EVENTS)]
    if (further := len(counts) - MOST_EVENTS) > 0:
        main.append(f"{format_count(further, 'more kind')} (-v lists all)")
    return [", ".join(main)]


def _list_notes(summary: Summary, verbose: bool) -> list[str]:
    """Return notes on missing or changed data: all, or only those that need attention."""
    notes = (note for note in summary.noted if not note.is_on_clocks)
    noted = [*((note.is_routine, note.text) for note in notes), *_list_reasons(summary)]
    shown = [line for routine, line in noted if verbose or not routine]
    quiet = len(noted) - len(shown)
    if len(shown) > MOST_NOTES and not verbose:
        further = len(shown) - MOST_NOTES + 1
        shown[MOST_NOTES - 1 :] = [f"{format_count(further, 'more note')}: -v lists all"]
    elif quiet:
        shown.append(f"{format_count(quiet, 'routine note')}: -v lists all")
    if summary.lines >= LARGE_TRACE:
        shown.append(SMALLER)
    return shown


def _list_reasons(summary: Summary) -> Iterator[tuple[bool, str]]:
    """Yield (whether it is routine, note) for each kind and reason of rows and records."""
    for fate, counts in (("discarded", summary.dropped), ("changed", summary.repaired)):
        for (kind, reason), count in sorted(counts.items()):
            what = f"{format_count(count, 'row')} of {kind} {fate}"
            yield is_routine(reason), f"{what}: {describe_reason(reason)}"
    for (name, reason), count in sorted(summary.left_out.items()):
        if reason != IN_OTHER_REPORT:
            is_line = name in load_catalogue().lines
            kind = (
                f"{format_count(count, 'communication line')} ({_find_title(name)})"
                if is_line
                else f"{count:,} {_find_title(name)}"
            )
            what = f"{kind} discarded: {describe_reason(reason)}"
            # The note on a cut has its numbers in one line.
            yield summary.is_cut or is_routine(reason), what


def _find_title(name: str) -> str:
    """Return the title of a layout, or of a kind of lines, within a sentence."""
    layout = load_catalogue().layouts.get(name)
    # A label of lines also states the meaning of a line's size.
    title = layout.title if layout else load_catalogue().lines[name].label.partition(";")[0]
    return title if title[1:2].isupper() or title[2:3].isupper() else title[:1].lower() + title[1:]


def _describe_next_steps(summary: Summary) -> list[str]:
    names = {Path(view).stem: shown for view, shown in summary.views.items()}
    width = max(map(len, names), default=0)
    opening = [f"  {summary.opening.format(trace=summary.trace)}"] if summary.opening else []
    trace = summary.trace or "TRACE"
    if names:
        opening = [
            f"  nsys2prv cfgs --for {quote(trace)} --install   add its views to Paraver's Hints menu",
            f"  {make_view_command(trace, next(iter(names)))}",
            *(f"    {name:<{width}}  {shown}" for name, shown in names.items()),
        ]
    return [
        "  nsys2prv report REPORT...     find the bottlenecks (--html FILE writes a web page)",
        *opening,
    ]
