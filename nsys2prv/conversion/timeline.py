"""Lay out the trace's timeline: which clocks there are, the method of aligning asked for, and the
map of each report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import read_given
from nsys2prv.clock.clock_file import CausalRecord, ClockRecord, read_record
from nsys2prv.clock.maps import UNPLACED, ClockMap, Placement
from nsys2prv.conversion.report_spans import Span
from nsys2prv.nsight.info import ReportInfo
from nsys2prv.relations import MPI, NCCL

#: What --align takes beside the name of a clock file: everything observed, one model's
#: observations, UTC alone, local times as they are.
AUTO, UTC, NONE = "auto", "utc", "none"
METHODS = (AUTO, UTC, MPI, NCCL, NONE)


def parse_method(method: str) -> str | ClockRecord:
    """Return the method or the clock file that --align names. Raises Nsys2prvError for anything
    else.
    """
    if method in METHODS:
        return method
    path = Path(method)
    try:
        # How ranks were moved beyond the corrections belongs to the trace that the file was written
        # with.
        return replace(read_record(read_given(path).decode("utf-8"), method), causal=None)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
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
    numbers, names = [], []
    for report, (info, placement) in enumerate(zip(infos, placements, strict=True)):
        alone = placement.method == UNPLACED or (not info.host and info.system_ns is None)
        key = (placement.machine, report if alone else -1)
        if key not in keys:
            keys[key] = len(names)
            name = (info.host or "unknown host") + (
                f" {info.name}" if alone and len(infos) > 1 else ""
            )
            before = sum(other == name or other.startswith(f"{name} (") for other in names)
            names.append(f"{name} ({before + 1})" if before else name)
        numbers.append(keys[key])
    return numbers, names


def correct_placements(
    placements: Sequence[Placement],
    clocks: Sequence[int],
    names: Sequence[str],
    record: ClockRecord,
) -> list[Placement]:
    """Return the placements with their clocks' corrections."""
    result = []
    for placement, clock in zip(placements, clocks, strict=True):
        host_clock = record.hosts.get(names[clock])
        result.append(
            replace(placement, map=host_clock.correct(placement.map)) if host_clock else placement
        )
    return result


#: The method of reports whose clocks are not to be heeded.
AS_THEY_ARE = "local times as they are"


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
    #: Moves of ranks by --causal; None if that was not asked for.
    causal: CausalRecord | None = None


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
    """Return the timeline of settled placements and what is known of their hosts' clocks. spans: of
    the events of each report, local ns.
    """
    warnings = []
    if record is not None:
        numbers, names = find_host_clocks(infos, placements)
        unknown = [name for name in names if name not in record.hosts]
        if unknown:
            warnings.append(
                f"{', '.join(unknown[:3])}{f' and {len(unknown) - 3} more' if len(unknown) > 3 else ''}: "
                "not in the clock file, placed by UTC"
            )
        warnings += [f"clocks: {line}" for line in record.warnings]
        placements = correct_placements(placements, numbers, names, record)
        record = (
            replace(
                record, hosts={name: record.hosts[name] for name in names if name in record.hosts}
            )
            if len(names) > 1
            else None
        )
    return start_at_first_event(Timeline(list(placements), record, [], 0, tuple(warnings)), spans)


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


def start_at_first_event(timeline: Timeline, spans: Mapping[int, Span]) -> Timeline:
    """Return the timeline, of these placements, with the epoch and the clocks that follow from
    them. spans: of the events of each report, local ns.
    """
    epoch = min(_find_first_times(timeline.placements, spans).values())
    # The writer begins a range of 1 ns, of which a slowed clock leaves nothing, 1 ns earlier: also
    # the very first.
    slowed = [placement.map for placement in timeline.placements if placement.map.slack]
    epoch -= any(
        (clock.to_global(clock.to_local(epoch) + np.arange(-4, 5)) == epoch).sum() > 1
        for clock in slowed
    )
    return replace(
        timeline,
        clocks=[*(placement.map.delay(-epoch) for placement in timeline.placements), ClockMap()],
        epoch=epoch,
    )


def _find_first_times(placements: Sequence[Placement], spans: Mapping[int, Span]) -> dict[int, int]:
    """Return the time of the first event of each report, as they are placed."""
    return {
        report: int(placements[report].map.to_global(np.array([first]))[0])
        for report, (first, _) in spans.items()
    }
