"""How the clocks of a job's hosts were brought together, in a line or two for the closing summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from nsys2prv.alignment.timeline import AS_THEY_ARE
from nsys2prv.clock.placement import Placement
from nsys2prv.clock.record import ClockRecord, HostClock
from nsys2prv.sizes import plural, some

#: The method of a host that nothing aligned (as in nsys2prv.clock.adjust, which is not imported for a job of one host).
UTC = "UTC"
#: Causality that is violated by less than this (ns) is within what clocks can be aligned to.
SLIGHT = 1_000


def clock_lines(record: ClockRecord | None, placements: Sequence[Placement], hosts: int) -> list[str]:
    """Lines for people: how many hosts were aligned by what and how well, then what is wrong, if anything is."""
    if record is None or hosts < 2 or any(placement.method == AS_THEY_ARE for placement in placements):
        return [_without_alignment(placements, hosts)]
    alone = [name for name, clock in record.hosts.items() if not _is_aligned(clock)]
    aligned = [clock for name, clock in record.hosts.items() if name not in alone]
    return [*_aligned(aligned, hosts), *_not_aligned(alone, bool(aligned)), *_violated(record)]


def _is_aligned(clock: HostClock) -> bool:
    """Whether its times can be compared with those of others, by what was observed or by a clock file that was given."""
    return clock.sure and clock.method != UTC and (not clock.method or clock.observations > 0 or clock.bound_ns is not None)


def _aligned(clocks: Sequence[HostClock], hosts: int) -> Iterator[str]:
    if clocks and not any(clock.method for clock in clocks):
        yield f"{plural(len(clocks), 'host')} corrected as the given clock file says"
    elif len(clocks) > 1:
        bounds = [clock.bound_ns for clock in clocks if clock.bound_ns is not None]
        how_many = f"{len(clocks):,}" + (f" of {hosts:,}" if len(clocks) < hosts else "")
        what = "messages and collectives" if any("causality" in clock.method for clock in clocks) else "collectives"
        observed = max(clock.observations for clock in clocks)
        yield f"{how_many} hosts aligned by {observed:,} {what}, {f'error below {time_text(max(bounds))}' if bounds else 'error unknown'}"


def _not_aligned(names: Sequence[str], others: bool) -> Iterator[str]:
    if names:
        yield (f"{plural(len(names), 'host')} {'not aligned with the others' if others else 'not aligned'} ({some(names)}): placed by UTC, "
               "which may be wrong by milliseconds")


def _violated(record: ClockRecord) -> Iterator[str]:
    after = [times["after"] for times in record.causality.values() if times.get("after", {}).get("largest_ns", 0) >= SLIGHT]
    if after and record.hosts and record.causality:
        yield (f"{sum(counts.get('violated', 0) for counts in after):,} messages or collectives still end before they can, by up to "
               f"{time_text(max(counts['largest_ns'] for counts in after))}: --causal moves ranks so that none does")


def _without_alignment(placements: Sequence[Placement], hosts: int) -> str:
    methods = {placement.method for placement in placements}
    if AS_THEY_ARE in methods:
        return "not aligned: every report keeps its own time (--align none)"
    if hosts > 1:
        return f"{hosts:,} hosts placed by UTC alone, which may be wrong by milliseconds"
    return f"{'1 report' if len(placements) == 1 else '1 host'}, one clock: nothing to align"


def time_text(ns: int) -> str:
    """An upper bound, in whole microseconds or, from 10 ms on, in ms with a tenth."""
    return f"{ns / 1e6:,.1f} ms" if ns >= 10_000_000 else f"{ceil(ns / 1000):,} us"
