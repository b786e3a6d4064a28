"""Which clocks there are, and reports placed by what is known of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nsys2prv.clock.placement import UNPLACED, Placement
from nsys2prv.clock.record import ClockRecord
from nsys2prv.report.info import ReportInfo


def host_clocks(infos: Sequence[ReportInfo], placements: Sequence[Placement]) -> tuple[list[int], list[str]]:
    """The clock that each report's times are of, and the clocks' names: of hosts, and of reports that no clock places or no host names.

    Hosts of one name get the number of the machine behind it, in the order of the ranks.
    """
    keys: dict[tuple[int, int], int] = {}
    numbers, names = [], []
    for report, (info, placement) in enumerate(zip(infos, placements, strict=True)):
        alone = placement.method == UNPLACED or (not info.host and info.system_ns is None)
        key = (placement.machine, report if alone else -1)
        if key not in keys:
            keys[key] = len(names)
            name = (info.host or "unknown host") + (f" {info.name}" if alone and len(infos) > 1 else "")
            before = sum(other == name or other.startswith(f"{name} (") for other in names)
            names.append(f"{name} ({before + 1})" if before else name)
        numbers.append(keys[key])
    return numbers, names


def corrected(placements: Sequence[Placement], clocks: Sequence[int], names: Sequence[str], record: ClockRecord) -> list[Placement]:
    """The placements with their clocks' corrections."""
    result = []
    for placement, clock in zip(placements, clocks, strict=True):
        known = record.hosts.get(names[clock])
        result.append(replace(placement, map=known.correct(placement.map)) if known else placement)
    return result
