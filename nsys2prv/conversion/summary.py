"""Summarize a conversion for people: outputs, clocks, missing data, and what to look at.

In: a job that is written. Out: a `Summary`, and its text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import ceil
from pathlib import Path

from msgspec import Struct, field

from nsys2prv._util.errors import ClockNote, Detail
from nsys2prv._util.text import format_count, format_size, list_some
from nsys2prv.clock.maps import ClockRecord, HostClock, Placement
from nsys2prv.conversion.clocks import AS_THEY_ARE, is_aligned
from nsys2prv.conversion.job import Job
from nsys2prv.conversion.metadata import Ledger, list_reasons
from nsys2prv.conversion.quality import (
    QualityNote,
    assess_quality,
    collect_notes,
    collect_warnings,
    format_quality,
)
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.kind import Reason, describe_reason, is_routine
from nsys2prv.export.info import ReportInfo
from nsys2prv.writers.paraver.cfg import make_view_command
from nsys2prv.writers.writer import Writer

#: Layouts named in the short summary.
MOST_EVENTS = 4
#: From so many lines on Paraver takes long to open a trace; the advice that is given then.
LARGE_TRACE = 2_000_000
SMALLER = "smaller: without attributes (--no-args) or communication lines (--no-lines), a part (--time, --ranks), or -z"
#: Notes in the short summary on what is not as it should be.
MOST_NOTES = 6
#: Causality that is violated by less than this (ns) is within what clocks can be aligned to.
SLIGHT = 1_000
#: Hosts listed in a summary.
MOST_HOSTS = 8
#: The error in the whole trace is shown beside the one where clocks were observed if it is more than
#: so many times as large.
NOTICEABLE_RATIO = 1.2
#: Shortest time (ns) that is shown in ms instead of us.
SHORTEST_IN_MS = 10_000_000


class Summary(Struct, dict=True):
    """Summary of a conversion."""

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
    #: Number of lines of the trace, or what it consists of (`unit`).
    lines: int
    #: How many processes and ranks there are, as in "6 processes of 4 ranks".
    processes: str
    #: Where the ranks come from.
    ranks_by: list[str]
    #: How the clocks of hosts were aligned, in a line or two.
    clock_lines: list[str]
    #: Records written, by layout.
    events: dict[str, int]
    #: Size of every file, bytes.
    sizes: dict[Path, int]
    #: Account of all rows and records.
    ledger: Ledger = field(default_factory=Ledger)
    #: Notes; those that are :class:`nsys2prv._util.errors.Detail` need no attention.
    notes: list[str] = field(default_factory=list)
    #: Where each report was placed in time, a line for each.
    placed: list[str] = field(default_factory=list)
    #: How the clock of each host was aligned.
    clocks: list[str] = field(default_factory=list)
    #: What the user should know, a line each.
    warnings: list[str] = field(default_factory=list)
    #: What the reports lack.
    quality: list[QualityNote] = field(default_factory=list)
    #: What the trace consists of, and how it is opened, see :class:`nsys2prv.writers.writer.Writer`.
    unit: str = "lines"
    opening: str = ""
    #: Event types in the trace.
    types: frozenset[int] = frozenset()
    #: Text of the analyses, "" if they were not asked for.
    report: str = ""
    #: One line for each report that could not be read, with keep_going.
    unread: list[str] = field(default_factory=list)
    #: True if only a part of the job was asked for.
    is_cut: bool = False

    @property
    def dropped(self) -> dict[tuple[str, str], int]:
        """Return the rows dropped, by (kind, key of :class:`nsys2prv.events.kind.Reason`)."""
        return list_reasons({name: one.dropped for name, one in self.ledger.kinds.items()})

    @property
    def repaired(self) -> dict[tuple[str, str], int]:
        """Return the rows changed, by (kind, key)."""
        return list_reasons({name: one.repaired for name, one in self.ledger.kinds.items()})

    @property
    def left_out(self) -> dict[tuple[str, str], int]:
        """Return the records not written, by (layout or kind of lines, key)."""
        balances = self.ledger.records | self.ledger.lines
        return list_reasons({name: one.left_out for name, one in balances.items()})

    @property
    def trace(self) -> str:
        """Return the path of the trace, "" without one."""
        return str(next(iter(self.sizes), ""))

    @cached_property
    def views(self) -> dict[str, str]:
        """Return the Paraver views to be opened first, and what each shows in a sentence."""
        if self.opening:
            return {}
        from nsys2prv.writers.paraver.cfg.fits import choose_first_views

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
        """Return the summary of a written trace. events: records and samples by layout,
        communication lines by kind. left_out: records that were made but not written, by (layout or
        kind of lines, reason).
        """
        model, record = job.model, job.clock_record
        ledger = Ledger.from_job(job, events, left_out)
        unaccounted = [
            f"{name}: {count:,} rows or records are not accounted for: a bug in nsys2prv, please report it"
            for name, count in ledger.missing.items()
        ]
        return cls(
            ranks=model.ranks,
            hosts=len(model.tree.nodes),
            devices=model.devices,
            threads=model.tree.threads,
            duration=job.duration,
            lines=lines,
            unit=writer.unit,
            opening=writer.opening,
            processes=model.describe_processes(),
            ranks_by=model.rank_sources,
            clock_lines=describe_clocks(record, job.placements, len(model.tree.nodes)),
            is_cut=job.is_cut,
            events={
                name: count for name, count in events.items() if name in load_catalogue().layouts
            },
            ledger=ledger,
            sizes=sizes,
            types=types,
            unread=job.unread,
            notes=collect_notes(job),
            quality=assess_quality(job),
            placed=_describe_placements(job.infos, job.placements),
            clocks=describe_hosts(record, MOST_HOSTS) if record else [],
            warnings=[*collect_warnings(job), *unaccounted],
        )

    def __repr__(self) -> str:
        return (
            f"<Summary of {self.trace}: {self.processes} on {format_count(self.hosts, 'host')}, {self.duration / 1e9:.3f} s, "
            f"{self.lines:,} {self.unit}, {format_count(len(self.warnings), 'warning')}; .text() tells all>"
        )

    def text(self, verbose: bool = False) -> str:
        """Return the closing summary for people. verbose: with all events by kind, every note and
        where the reports were placed.
        """
        return "\n".join(
            line
            for title, lines in _make_parts(self, verbose).items()
            if lines
            for line in (f"{title}:", *(f"  {line}" for line in lines))
        )


def _describe_placements(infos: list[ReportInfo], placements: list[Placement]) -> list[str]:
    earliest = min(placement.map.offset for placement in placements)
    return [
        f"{info.given}: host {info.host or 'unknown'}, local time 0 at {placement.map.offset - earliest:,} ns "
        f"after the first report's, by {placement.method}"
        for info, placement in zip(infos, placements, strict=True)
    ]


def _make_parts(summary: Summary, verbose: bool) -> dict[str, list[str]]:
    """Return the lines of each part, by its title."""
    parts = {
        "the job": _describe_job(summary),
        "quality of the capture": format_quality(summary.quality, verbose),
        "its clocks": [
            *summary.clock_lines,
            *(note for note in summary.notes if isinstance(note, ClockNote)),
            *(summary.clocks if verbose else []),
        ],
        "what was written": [
            *_describe_files(summary),
            *(_describe_all_events if verbose else _describe_main_events)(summary),
            *_list_notes(summary, verbose),
        ],
        "what to look at now": _describe_next_steps(summary),
    }
    if verbose:
        parts["where the reports were placed"] = summary.placed
    return parts


def _describe_job(summary: Summary) -> list[str]:
    told = f"; ranks by {' and '.join(summary.ranks_by)}" if summary.ranks_by else ""
    gpus = f", {format_count(summary.devices, 'GPU')}" if summary.devices else ""
    return [
        f"{summary.processes} on {format_count(summary.hosts, 'host')}{gpus}; {summary.duration / 1e9:.3f} s{told}"
    ]


def _describe_files(summary: Summary) -> list[str]:
    (trace, size), *others = [(path, format_size(size)) for path, size in summary.sizes.items()]
    beside = ", ".join(f"{path.name} {size}" for path, size in others)
    return [
        f"{trace}  {size}, {summary.lines:,} {summary.unit} for {format_count(summary.threads, 'row')}",
        *([f"beside it: {beside}"] if beside else []),
    ]


def _describe_main_events(summary: Summary) -> list[str]:
    counts = (+Counter(summary.events)).most_common()
    more = ""
    if len(counts) > MOST_EVENTS:
        more = f", and {format_count(len(counts) - MOST_EVENTS, 'other kind')} (-v lists all)"
    main = (f"{count:,} {_find_title(name)}" for name, count in counts[:MOST_EVENTS])
    return [", ".join(main) + more]


def _describe_all_events(summary: Summary) -> list[str]:
    layouts = load_catalogue().layouts
    width = max((len(f"{count:,}") for count in summary.events.values()), default=1)
    counts = +Counter(summary.events)
    return [f"{count:>{width},} {layouts[name].title}" for name, count in counts.items()]


def _list_notes(summary: Summary, verbose: bool) -> list[str]:
    """Return notes on missing or changed data: those that need attention, or all."""
    notes = [note for note in summary.notes if not isinstance(note, ClockNote)]
    noted = [*((isinstance(note, Detail), note) for note in notes), *_list_reasons(summary)]
    shown = [line for routine, line in noted if verbose or not routine]
    quiet = len(noted) - len(shown)
    if len(shown) > MOST_NOTES and not verbose:
        further = len(shown) - MOST_NOTES + 1
        shown[MOST_NOTES - 1 :] = [f"{format_count(further, 'further note')}: -v lists all"]
    elif quiet:
        shown.append(
            f"{format_count(quiet, 'note')} that {'needs' if quiet == 1 else 'need'} no action: -v lists all"
        )
    if summary.lines >= LARGE_TRACE:
        shown.append(SMALLER)
    return shown


def _list_reasons(summary: Summary) -> Iterator[tuple[bool, str]]:
    """Yield whether a note is routine, and the note, for each kind and reason of rows and records."""
    for fate, counts in (("left out", summary.dropped), ("changed", summary.repaired)):
        for (kind, reason), count in sorted(counts.items()):
            what = f"{format_count(count, 'row')} of {kind} {fate}"
            yield is_routine(reason), f"{what}: {describe_reason(reason)}"
    for (name, reason), count in sorted(summary.left_out.items()):
        if reason != Reason("in-other-report"):
            what = f"{count:,} {_find_title(name)} left out: {describe_reason(reason)}"
            # The note on a cut has its numbers in one line.
            yield summary.is_cut or is_routine(reason), what


def _find_title(name: str) -> str:
    """Return the title of a layout or of a kind of lines, as used within a sentence."""
    layout = load_catalogue().layouts.get(name)
    title = layout.title if layout else load_catalogue().lines[name].label
    return title if title[1:2].isupper() or title[2:3].isupper() else title[:1].lower() + title[1:]


def _describe_next_steps(summary: Summary) -> list[str]:
    names = {Path(view).stem: shown for view, shown in summary.views.items()}
    width = max(map(len, names), default=0)
    opening = [summary.opening.format(trace=summary.trace)] if summary.opening else []
    if names:
        opening = [
            "in Paraver: `nsys2prv cfgs --install` puts the views into its menu Hints; any opens at once, as the first of these by",
            f"  {make_view_command(summary.trace or 'TRACE', next(iter(names)))}",
            *(f"  {name:<{width}}  {shown}" for name, shown in names.items()),
        ]
    return [
        *opening,
        "in tables: `nsys2prv report REPORT...` shows what holds the job back; --html FILE writes a web page",
    ]


def describe_clocks(
    record: ClockRecord | None, placements: Sequence[Placement], hosts: int
) -> list[str]:
    """Return lines on how many hosts were aligned, by what and how well, then on problems."""
    if any(placement.method == AS_THEY_ARE for placement in placements):
        return ["not aligned: every report keeps its own time (--align none)"]
    if hosts < 2:
        one = "1 report" if len(placements) == 1 else "1 host"
        return [f"{one}, one clock: nothing to align"]
    if record is None:
        return [f"{hosts:,} hosts placed by UTC alone, which may be wrong by milliseconds"]
    alone = [name for name, clock in record.hosts.items() if not is_aligned(clock)]
    aligned = [clock for name, clock in record.hosts.items() if name not in alone]
    lines = _describe_aligned(aligned, hosts)
    if alone:
        state = "not aligned with the others" if aligned else "not aligned"
        lines.append(
            f"{format_count(len(alone), 'host')} {state} ({list_some(alone)}): placed by UTC, "
            "which may be wrong by milliseconds"
        )
    return [*lines, *_describe_remaining_violations(record)]


def _describe_aligned(clocks: Sequence[HostClock], hosts: int) -> list[str]:
    if clocks and not any(clock.method for clock in clocks):
        return [f"{format_count(len(clocks), 'host')} corrected as the given clock file says"]
    if len(clocks) < 2:
        return []
    how_many = f"{len(clocks):,}" + (f" of {hosts:,}" if len(clocks) < hosts else "")
    by_messages = any("causality" in clock.method for clock in clocks)
    evidence = "messages and collectives" if by_messages else "collectives"
    observed = max(clock.observations for clock in clocks)
    bounds = [clock.bound_ns for clock in clocks if clock.bound_ns is not None]
    error = f"below {_format_time_bound(max(bounds))}" if bounds else "unknown"
    return [f"{how_many} hosts aligned by {observed:,} {evidence}, error {error}"]


def _describe_remaining_violations(record: ClockRecord) -> Iterator[str]:
    after = [
        times["after"]
        for times in record.causality.values()
        if times.get("after", {}).get("largest_ns", 0) >= SLIGHT
    ]
    if after and record.hosts:
        yield (
            f"{sum(counts.get('violated', 0) for counts in after):,} messages or collectives still end before they can, by up to "
            f"{_format_time_bound(max(counts['largest_ns'] for counts in after))}"
        )


def _format_time_bound(ns: int) -> str:
    """Format an upper bound: in whole microseconds, from 10 ms on in ms with one decimal."""
    return f"{ns / 1e6:,.1f} ms" if ns >= SHORTEST_IN_MS else f"{ceil(ns / 1000):,} us"


def describe_hosts(record: ClockRecord, most: int | None = None) -> list[str]:
    """Return a line for each host (at most `most`, those with the largest errors), then causality
    and notes.
    """
    hosts = list(record.hosts.items())
    shown = hosts
    if most is not None and len(hosts) > most:
        shown = sorted(hosts, key=lambda item: -(item[1].bound_ns or 0))[:most]
    width = max((len(name) for name, _ in shown), default=0)
    lines = [f"{name:<{width}}  {_describe_host(clock)}" for name, clock in shown]
    if len(shown) < len(hosts):
        lines.append(f"and {len(hosts) - len(shown)} more, known at least as well")
    return [*lines, *_describe_causality(record), *record.notes]


def _describe_host(clock: HostClock) -> str:
    if clock.method == "reference":
        return f"reference; {clock.observations:,} observations"
    moved = f"{clock.offset_ns:+,} ns, {clock.drift_ppm:+.3f} ppm"
    if clock.bound_ns is None:
        return f"{moved}, by {clock.method or 'a clock file'}"
    spread = "" if clock.spread_ns is None else f", spread {clock.spread_ns / 1000:,.1f} us"
    near = clock.bound_ns if clock.observed_bound_ns is None else clock.observed_bound_ns
    below = _format_time(clock.bound_ns)
    if clock.bound_ns > NOTICEABLE_RATIO * near:
        below = f"{_format_time(near)} where observed, {below} anywhere in the trace"
    return (
        f"{moved} against {clock.reference}, by {clock.method}: {clock.observations:,} observations{spread}, "
        f"error below {below}"
    )


def _format_time(ns: int) -> str:
    return f"{ns / 1e6:,.1f} ms" if ns >= SHORTEST_IN_MS else f"{ns / 1000:,.1f} us"


def _describe_causality(record: ClockRecord) -> Iterable[str]:
    for used, times in record.causality.items():
        before, after = times.get("before", {}), times.get("after", {})
        if before.get("checked"):
            yield (
                f"causality, observations {used}: {_describe_violations(before)} before the alignment, {_describe_violations(after)} after it"
            )


def _describe_violations(counts: Mapping[str, int]) -> str:
    violated, largest = counts.get("violated", 0), counts.get("largest_ns", 0)
    far = f" (by up to {largest / 1000:,.1f} us)" if violated else ""
    return f"{violated:,} of {counts.get('checked', 0):,} violated{far}"


def make_comment_lines(record: ClockRecord | None) -> str:
    """Return the comment lines of the .prv on clocks, "" without corrections."""
    if record is None:
        return ""
    hosts = (f"clock of {name}  {_describe_host(clock)}" for name, clock in record.hosts.items())
    lines = [*hosts, *_describe_causality(record)]
    return "".join(f"# {_escape_comment(line)}\n" for line in lines)


def _escape_comment(text: str) -> str:
    """Return text that Paraver takes for a comment: without colons, which it searches for keywords."""
    return "".join(
        character if character.isprintable() and character != ":" else " " for character in text
    )
