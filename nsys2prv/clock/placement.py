"""Where each report's local time 0 lies on the common timeline, by what the reports say of their clocks.

Reports of one host share that host's monotonic clock, which places them to the nanosecond against each other; hosts are
placed by UTC at their captures' start. Refining hosts against each other by what the ranks did together can replace the maps
made here: everything downstream sees only :class:`~nsys2prv.clock.maps.ClockMap`.
"""

from __future__ import annotations

from dataclasses import dataclass

from nsys2prv.clock.maps import ClockMap

#: Two reports whose UTC and monotonic clocks disagree by more than this do not come from one machine.
SAME_MACHINE_NS = 1_000_000_000
#: The method of a report that says nothing of its clock.
UNPLACED = "none"


@dataclass(frozen=True)
class ReportClock:
    """What a report says of its clock: times at its local time 0 in ns, None where unknown. `absolute`: local times are UTC."""

    host: str
    utc_ns: int | None
    system_ns: int | None
    absolute: bool = False


@dataclass(frozen=True)
class Placement:
    """One report's map to UTC, its machine (equal numbers = one machine) and the method that placed it."""

    machine: int
    map: ClockMap
    method: str


def place(reports: list[ReportClock]) -> list[Placement]:
    """Place every report. One without any clock is UNPLACED, at 0: the caller knows where the others' events begin."""
    machines = _machines(reports)
    anchors: dict[int, ReportClock] = {}
    for report, machine in zip(reports, machines, strict=True):
        if _has_both(report):
            anchors.setdefault(machine, report)
    placements = []
    for report, machine in zip(reports, machines, strict=True):
        anchor = anchors.get(machine)
        if report.absolute:
            placements.append(Placement(machine, ClockMap(0), "UTC by the exporter"))
        elif anchor is not None and _has_both(report):
            offset = anchor.utc_ns + report.system_ns - anchor.system_ns
            placements.append(Placement(machine, ClockMap(offset), "host clock + UTC"))
        elif report.utc_ns is not None:
            placements.append(Placement(machine, ClockMap(report.utc_ns), "UTC"))
        else:
            placements.append(Placement(machine, ClockMap(0), UNPLACED))
    return placements


def _has_both(report: ReportClock) -> bool:
    return report.utc_ns is not None and report.system_ns is not None and not report.absolute


def _machines(reports: list[ReportClock]) -> list[int]:
    """Number the machines: one name, and clocks that agree where both are known (containers share names)."""
    clusters: list[tuple[str, int | None]] = []
    numbers = []
    for report in reports:
        boot = report.utc_ns - report.system_ns if _has_both(report) else None
        for number, (host, known) in enumerate(clusters):
            if host == report.host and (boot is None or known is None or abs(boot - known) <= SAME_MACHINE_NS):
                if known is None:
                    clusters[number] = (host, boot)
                numbers.append(number)
                break
        else:
            clusters.append((report.host, boot))
            numbers.append(len(clusters) - 1)
    return numbers
