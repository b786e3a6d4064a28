"""The timeline of a trace: each report's place in trace time by its host's clock, and descriptions
of the clocks for people.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from math import ceil
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import read_given
from nsys2prv._util.text import format_count, list_some
from nsys2prv.clock import ALIGNED_ERROR
from nsys2prv.clock.maps import UNPLACED, ClockMap, ClockRecord, HostClock, Placement, read_record
from nsys2prv.export.info import ReportInfo
from nsys2prv.relations import MPI, NCCL
from nsys2prv.store.runs import Span

#: What --align takes beside the name of a clock file: everything observed, one model's
#: observations, UTC alone, local times as they are.
AUTO, UTC, NONE = "auto", "utc", "none"
METHODS = (AUTO, UTC, MPI, NCCL, NONE)
METHODS_WITH_OBSERVATIONS = (AUTO, MPI, NCCL)
#: The method of a host that nothing aligned (as in nsys2prv.clock.adjust, which is not imported for
#: a job of one host).
PLACED_BY_UTC = "UTC"
#: The method of reports whose clocks are not to be heeded.
AS_THEY_ARE = "local times as they are"
#: Causality that is violated by less than this (ns) is within what clocks can be aligned to.
SLIGHT = 1_000
#: Hosts listed in a summary.
MOST_HOSTS = 8
#: The bound in the whole trace is told beside the one where clocks were observed if it is more than
#: so many times as large.
NOTICEABLE_RATIO = 1.2
#: Shortest time (ns) that is told in ms instead of us.
SHORTEST_IN_MS = 10_000_000
#: Times (UTC, ns) before which a trace begins.
END_OF_DATES = 250_000_000_000_000_000_000


def parse_method(method: str) -> str | ClockRecord:
    """Return the method or the clock file that --align names. Raises Nsys2prvError, in one line, for
    anything else.
    """
    if method in METHODS:
        return method
    try:
        return read_record(read_given(Path(method)).decode("utf-8"), method)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        raise Nsys2prvError(
            f"--align {method}: give {', '.join(METHODS)} or a clock file; this is not a clock file ({why})"
        ) from None


def find_host_clocks(
    infos: Sequence[ReportInfo], placements: Sequence[Placement]
) -> tuple[list[int], list[str]]:
    """Return the clock that each report's times are of, and the clocks' names: of hosts, and of
    reports that no clock places or no host names.

    Hosts of one name get the number of the machine behind it, in the order of the ranks.
    """
    keys: dict[tuple[int, int], int] = {}
    used: Counter[str] = Counter()
    numbers, names = [], []
    for report, (info, placement) in enumerate(zip(infos, placements, strict=True)):
        alone = placement.method == UNPLACED or (not info.host and info.system_ns is None)
        key = (placement.machine, report if alone else -1)
        if key not in keys:
            keys[key] = len(names)
            name = info.host or "unknown host"
            if alone and len(infos) > 1:
                name += f" {info.name}"
            used[name] += 1
            names.append(f"{name} ({used[name]})" if used[name] > 1 else name)
        numbers.append(keys[key])
    return numbers, names


class Timeline(Struct, frozen=True):
    """Placement of all reports in trace time."""

    #: Placement of each report in UTC.
    placements: list[Placement]
    #: Corrections of the hosts' clocks; None if there is only one clock, or none was to be
    #: corrected.
    record: ClockRecord | None
    #: Maps to trace time: of each report, and last the identity for runs in trace time.
    clocks: list[ClockMap]
    #: UTC at trace time 0, ns.
    epoch: int
    #: Warnings for the summary.
    warnings: tuple[str, ...] = ()

    @property
    def begin_utc(self) -> datetime | None:
        """Return when the trace begins, in UTC; None where the reports do not tell."""
        is_placed = any(placement.method != UNPLACED for placement in self.placements)
        if not is_placed or not 0 < self.epoch < END_OF_DATES:
            return None
        return datetime.fromtimestamp(self.epoch // 1_000_000_000, timezone.utc)


def place_unclocked(
    placements: Sequence[Placement], spans: Mapping[int, Span], method: str | ClockRecord
) -> list[Placement]:
    """Return the placements with a place for every report: those without any clock begin with the
    first event of the others. spans: of the events of each report, local ns.
    """
    if method == NONE:
        return [replace(placement, map=ClockMap(0), method=AS_THEY_ARE) for placement in placements]
    firsts = _find_first_times(placements, spans)
    placed = [time for report, time in firsts.items() if placements[report].method != UNPLACED]
    start = ClockMap(min(placed, default=0))
    return [
        replace(placement, map=start) if placement.method == UNPLACED else placement
        for placement in placements
    ]


def make_timeline(
    placements: Sequence[Placement],
    infos: Sequence[ReportInfo],
    spans: Mapping[int, Span],
    record: ClockRecord | None,
) -> Timeline:
    """Return the timeline from final placements and the record of the hosts' clocks. spans: of the
    events of each report, local ns.
    """
    warnings = []
    if record is not None:
        numbers, names = find_host_clocks(infos, placements)
        hosts = {name: record.hosts[name] for name in names if name in record.hosts}
        if unknown := [name for name in names if name not in hosts]:
            warnings.append(f"{list_some(unknown)}: not in the clock file, placed by UTC")
        warnings += [f"clocks: {line}" for line in record.warnings]
        host_clocks = [hosts.get(names[number]) for number in numbers]
        placements = [
            replace(placement, map=clock.correct(placement.map)) if clock else placement
            for placement, clock in zip(placements, host_clocks, strict=True)
        ]
        record = replace(record, hosts=hosts) if len(names) > 1 else None
    epoch = min(_find_first_times(placements, spans).values())
    # The writer begins a range of 1 ns, of which a slowed clock leaves nothing, 1 ns earlier: also
    # the very first.
    epoch -= any(
        (clock.to_global(clock.to_local(epoch) + np.arange(-4, 5)) == epoch).sum() > 1
        for clock in (placement.map for placement in placements)
        if clock.slack
    )
    clocks = [*(placement.map.delay(-epoch) for placement in placements), ClockMap()]
    return Timeline(list(placements), record, clocks, epoch, tuple(warnings))


def group_comparable_reports(timeline: Timeline, infos: Sequence[ReportInfo]) -> list[int]:
    """Return a number for each report; times of reports of one number can be compared with each
    other. All can where nobody looked.
    """
    if timeline.record is None or not timeline.record.hosts:
        return [0] * len(infos)
    numbers, names = find_host_clocks(infos, timeline.placements)
    hosts = timeline.record.hosts
    references = [
        hosts[name].reference or None if name in hosts and hosts[name].sure else name
        for name in names
    ]
    # A reference that is not sure of itself is one all the same; clocks of a file without
    # references are all to be believed.
    group_numbers = {name: number for number, name in enumerate(dict.fromkeys(references))}
    return [group_numbers[references[number]] for number in numbers]


def find_clock_error(timeline: Timeline, infos: Sequence[ReportInfo]) -> int:
    """Return the largest error (ns) of times of comparable reports against each other."""
    if len(set(find_host_clocks(infos, timeline.placements)[0])) == 1:
        return 0
    hosts = timeline.record.hosts.values() if timeline.record else ()
    bounds = [clock.bound_ns for clock in hosts if is_aligned(clock)]
    if len(bounds) < 2 or None in bounds:
        return ALIGNED_ERROR
    return min(sum(sorted(bounds)[-2:]), ALIGNED_ERROR)


def _find_first_times(placements: Sequence[Placement], spans: Mapping[int, Span]) -> dict[int, int]:
    """Return the time of the first event of each report, as they are placed."""
    return {
        report: int(placements[report].map.to_global(np.array([first]))[0])
        for report, (first, _) in spans.items()
    }


def describe_clocks(
    record: ClockRecord | None, placements: Sequence[Placement], hosts: int
) -> list[str]:
    """Return lines for people: how many hosts were aligned, by what and how well, then problems."""
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


def is_aligned(clock: HostClock) -> bool:
    """True if the report's times can be compared with those of others, by observations or by a
    given clock file.
    """
    return (
        clock.sure
        and clock.method != PLACED_BY_UTC
        and (not clock.method or clock.observations > 0 or clock.bound_ns is not None)
    )


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
    """Return an upper bound, in whole microseconds or, from 10 ms on, in ms with a tenth."""
    return f"{ns / 1e6:,.1f} ms" if ns >= SHORTEST_IN_MS else f"{ceil(ns / 1000):,} us"


def describe_hosts(record: ClockRecord, most: int | None = None) -> list[str]:
    """Return a line for each host (at most `most`, the worst known), then causality and notes."""
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


def _describe_violations(counts: dict[str, int]) -> str:
    violated, largest = counts.get("violated", 0), counts.get("largest_ns", 0)
    far = f" (by up to {largest / 1000:,.1f} us)" if violated else ""
    return f"{violated:,} of {counts.get('checked', 0):,} violated{far}"


def make_comment_lines(record: ClockRecord | None) -> str:
    """Return comment lines of the .prv, or nothing."""
    if record is None:
        return ""
    hosts = (f"clock of {name}  {_describe_host(clock)}" for name, clock in record.hosts.items())
    lines = [*hosts, *_describe_causality(record)]
    return "".join(f"# {_escape_comment(line)}\n" for line in lines)


def _escape_comment(text: str) -> str:
    """Return text that is a comment to Paraver: it looks for its own marks between colons."""
    return "".join(
        character if character.isprintable() and character != ":" else " " for character in text
    )
