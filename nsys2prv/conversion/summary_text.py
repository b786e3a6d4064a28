"""The text that closes a conversion: the job, its clocks, what was written, what to look at now;
notes that need no action.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil
from typing import TYPE_CHECKING

from nsys2prv._util.errors import ClockNote, Detail
from nsys2prv._util.text import format_count, format_size, list_some
from nsys2prv.clock.clock_file import ClockRecord, HostClock
from nsys2prv.clock.maps import Placement
from nsys2prv.conversion.timeline import AS_THEY_ARE
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.reasons import Reason, describe_reason, is_routine

if TYPE_CHECKING:
    from nsys2prv.conversion.summary import Summary


#: The method of a host that nothing aligned (as in nsys2prv.clock.adjust, which is not imported for
#: a job of one host).
UTC = "UTC"
#: Causality that is violated by less than this (ns) is within what clocks can be aligned to.
SLIGHT = 1_000


def describe_clocks(
    record: ClockRecord | None, placements: Sequence[Placement], hosts: int
) -> list[str]:
    """Return lines for people: how many hosts were aligned by what and how well, then what is
    wrong, if anything is.
    """
    if (
        record is None
        or hosts < 2
        or any(placement.method == AS_THEY_ARE for placement in placements)
    ):
        return [_describe_unaligned_job(placements, hosts)]
    alone = [name for name, clock in record.hosts.items() if not _is_aligned(clock)]
    aligned = [clock for name, clock in record.hosts.items() if name not in alone]
    return [
        *_describe_aligned(aligned, hosts),
        *_describe_not_aligned(alone, bool(aligned)),
        *_describe_violations(record),
    ]


def _is_aligned(clock: HostClock) -> bool:
    """True if the report's times can be compared with those of others, by observations or by a
    given clock file.
    """
    return (
        clock.sure
        and clock.method != UTC
        and (not clock.method or clock.observations > 0 or clock.bound_ns is not None)
    )


def _describe_aligned(clocks: Sequence[HostClock], hosts: int) -> Iterator[str]:
    if clocks and not any(clock.method for clock in clocks):
        yield f"{format_count(len(clocks), 'host')} corrected as the given clock file says"
    elif len(clocks) > 1:
        bounds = [clock.bound_ns for clock in clocks if clock.bound_ns is not None]
        how_many = f"{len(clocks):,}" + (f" of {hosts:,}" if len(clocks) < hosts else "")
        evidence = (
            "messages and collectives"
            if any("causality" in clock.method for clock in clocks)
            else "collectives"
        )
        observed = max(clock.observations for clock in clocks)
        yield f"{how_many} hosts aligned by {observed:,} {evidence}, {f'error below {format_time_bound(max(bounds))}' if bounds else 'error unknown'}"


def _describe_not_aligned(names: Sequence[str], others: bool) -> Iterator[str]:
    if names:
        yield (
            f"{format_count(len(names), 'host')} {'not aligned with the others' if others else 'not aligned'} ({list_some(names)}): placed by UTC, "
            "which may be wrong by milliseconds"
        )


def _describe_violations(record: ClockRecord) -> Iterator[str]:
    after = [
        times["after"]
        for times in record.causality.values()
        if times.get("after", {}).get("largest_ns", 0) >= SLIGHT
    ]
    if after and record.hosts and record.causality:
        yield (
            f"{sum(counts.get('violated', 0) for counts in after):,} messages or collectives still end before they can, by up to "
            f"{format_time_bound(max(counts['largest_ns'] for counts in after))}: --causal moves ranks so that none does"
        )


def _describe_unaligned_job(placements: Sequence[Placement], hosts: int) -> str:
    methods = {placement.method for placement in placements}
    if AS_THEY_ARE in methods:
        return "not aligned: every report keeps its own time (--align none)"
    if hosts > 1:
        return f"{hosts:,} hosts placed by UTC alone, which may be wrong by milliseconds"
    return f"{'1 report' if len(placements) == 1 else '1 host'}, one clock: nothing to align"


def format_time_bound(ns: int) -> str:
    """Return an upper bound, in whole microseconds or, from 10 ms on, in ms with a tenth."""
    return f"{ns / 1e6:,.1f} ms" if ns >= 10_000_000 else f"{ceil(ns / 1000):,} us"


#: Layouts named in the short summary, and further lines on what is not as it should be.
MOST_EVENTS, MOST_LINES = 4, 6
#: How tasks are ordered, for people, by what the model calls it.
ORDERS = {
    "MPI ranks": "in the order of their MPI ranks",
    "launcher's environment": "in the order of the launcher's rank numbers",
    "file names": "in the order of the file names, as no report tells a rank",
}


def format_summary(summary: Summary, verbose: bool = False) -> str:
    """Return the summary for people. verbose: with all events by kind, every note and where the
    time went.
    """
    parts = make_summary_parts(summary, verbose)
    return "\n".join(
        line
        for title, lines in parts.items()
        for line in (f"{title}:", *(f"  {line}" for line in lines))
    )


def format_summary_html(summary: Summary) -> str:
    """Return the summary for notebooks, with its warnings first."""
    parts = {"warnings": summary.warnings, **make_summary_parts(summary)}
    return "".join(
        f"<b>{escape(title)}</b><ul style='list-style: none'>{''.join(f'<li>{_format_html_line(line)}</li>' for line in lines)}</ul>"
        for title, lines in parts.items()
        if lines
    )


def _format_html_line(line: str) -> str:
    return escape(line.strip()).replace("  ", " &nbsp;")


def make_summary_parts(summary: Summary, verbose: bool = False) -> dict[str, list[str]]:
    """Return the lines of each part, by its title."""
    parts = {
        "the job": _describe_job(summary),
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
        parts["where the reports were placed, and where the time went"] = [
            *map(str.strip, summary.placed),
            *filter(None, [summary.cpu]),
        ]
    return parts


def _describe_job(summary: Summary) -> list[str]:
    order = f"; tasks {ORDERS.get(summary.order, summary.order)}" if summary.ranks > 1 else ""
    return [
        f"{format_count(summary.ranks, 'task')} on {format_count(summary.hosts, 'host')}, {format_count(summary.devices, 'GPU')}; "
        f"{summary.duration / 1e9:.3f} s{order}"
    ]


def _describe_files(summary: Summary) -> list[str]:
    sizes = [(path, format_size(size)) for path, size in summary.sizes.items()]
    (trace, size), *others = sorted(sizes, key=lambda item: ".prv" not in item[0].suffixes)
    beside = ", ".join(f"{path.name} {size}" for path, size in others)
    return [
        f"{trace}  {size}, {summary.lines:,} lines for {format_count(summary.threads, 'row')}",
        *([f"beside it: {beside}"] if beside else []),
    ]


def _describe_main_events(summary: Summary) -> list[str]:
    counts = sorted(
        ((count, _find_title(name)) for name, count in summary.events.items() if count),
        key=lambda item: -item[0],
    )
    more = (
        f", and {format_count(len(counts) - MOST_EVENTS, 'other kind')} (-v lists all)"
        if len(counts) > MOST_EVENTS
        else ""
    )
    return [", ".join(f"{count:,} {title}" for count, title in counts[:MOST_EVENTS]) + more]


def _describe_all_events(summary: Summary) -> list[str]:
    layouts = load_catalogue().layouts
    width = max((len(f"{count:,}") for count in summary.events.values()), default=1)
    return [
        f"{count:>{width},} {layouts[name].title}"
        for name, count in summary.events.items()
        if count
    ]


def _list_notes(summary: Summary, verbose: bool) -> list[str]:
    """Return notes on what is missing or changed in the trace: those that need attention, or all."""
    noted = [
        *(
            (isinstance(note, Detail), note)
            for note in summary.notes
            if not isinstance(note, ClockNote)
        ),
        *_list_reasons(summary),
    ]
    loud = [line for routine, line in noted if verbose or not routine]
    shown = loud if verbose or len(loud) <= MOST_LINES else loud[: MOST_LINES - 1]
    if len(shown) < len(loud):
        shown.append(f"{format_count(len(loud) - len(shown), 'further note')}: -v lists all")
    elif len(loud) < len(noted):
        count = len(noted) - len(loud)
        shown.append(
            f"{format_count(count, 'note')} that {'needs' if count == 1 else 'need'} no action: -v lists all"
        )
    return [*shown, *filter(None, [summary.smaller])]


def _list_reasons(summary: Summary) -> Iterator[tuple[bool, str]]:
    """Yield, by kind and reason, whether all is routine and what became of rows and records."""
    for fate, counts in (("left out", summary.dropped), ("changed", summary.repaired)):
        for (kind, reason), count in sorted(counts.items()):
            yield (
                is_routine(reason),
                f"{format_count(count, 'row')} of {kind} {fate}: {describe_reason(reason)}",
            )
    for (name, reason), count in sorted(summary.left_out.items()):
        if reason != Reason.IN_OTHER_REPORT:
            # Of a cut its note tells it in one line.
            yield (
                summary.is_cut or is_routine(reason),
                f"{count:,} {_find_title(name)} left out: {describe_reason(reason)}",
            )


def _find_title(name: str) -> str:
    """Return the title of a layout or of a kind of lines, as used within a sentence."""
    title = (
        load_catalogue().layouts[name].title
        if name in load_catalogue().layouts
        else load_catalogue().lines[name].label
    )
    return title if title[1:2].isupper() or title[2:3].isupper() else title[:1].lower() + title[1:]


def _describe_next_steps(summary: Summary) -> list[str]:
    width = max(map(len, summary.views), default=0)
    trace = next((path for path in summary.sizes if ".prv" in path.suffixes), "TRACE")
    views = [f"  {view:<{width}}  {shown}" for view, shown in summary.views.items()]
    if views:
        views.insert(
            0,
            f"in Paraver: copy the views with `nsys2prv cfgs views`; open one with `wxparaver {trace} views/VIEW`; to begin with:",
        )
    return [
        *views,
        "in tables: `nsys2prv report REPORT...` shows what holds the job back; --html FILE writes a web page",
    ]
