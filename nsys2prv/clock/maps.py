"""Convert local times to global times.

Each report's local time 0 is placed by its recorded clocks. The correction of each host is recorded
in the clock file (`out.clock.yaml`), which another conversion can use. Corrected times in it are
UTC + offset_ns + drift_ppm / 1e6 * (UTC - at_utc_ns), where UTC is the time of the host's own
clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct, ValidationError, convert, field, to_builtins
from msgspec.structs import replace

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import parse_yaml


class ClockMap(Struct, frozen=True, dict=True):
    """Map from local time (of a report or host) to global time (of all): global = local + offset +
    drift * (local - pivot). All in ns; drift is a plain ratio (1e-6 = 1 ppm).

    The map is monotone for |drift| < 1, so sorting by local time also sorts by global time. Times 1
    ns apart may become equal.
    """

    #: ns at the pivot.
    offset: int = 0
    #: Plain ratio, 1e-6 = 1 ppm.
    drift: float = 0.0
    #: Local time of the offset (ns).
    pivot: int = 0

    def to_global(self, local: np.ndarray) -> np.ndarray:
        """Return global times (int64 ns) for local times, which must be well inside the range of
        int64.
        """
        moved = local + np.asarray(self.offset, np.int64)
        if self.slack:
            moved += np.floor((local - self.pivot) * self.drift).astype(np.int64)
        return moved

    def to_local(self, time: int) -> int:
        """Return the local time for a global time, to within `slack` ns."""
        if not self.drift:
            return time - self.offset
        return round((time - self.offset + self.drift * self.pivot) / (1 + self.drift))

    @cached_property
    def slack(self) -> int:
        """Return by how much (ns) a span converted by :meth:`to_local` must be widened to contain
        the whole span.
        """
        return 2 if self.drift else 0

    def delay(self, by: int) -> ClockMap:
        """Return a map whose global times are `by` ns later."""
        return ClockMap(self.offset + by, self.drift, self.pivot)


#: Two reports whose UTC and monotonic clocks disagree by more than this do not come from one
#: machine.
SAME_MACHINE_NS = 1_000_000_000
#: The method of a report that says nothing of its clock.
UNPLACED = "none"


#: Clocks that are far off are first shifted by a multiple of this (ns: one hour).
COARSE = 3_600 * 1_000_000_000


def find_coarse_shifts(spans: np.ndarray) -> np.ndarray:
    """Return by how much (ns, int64, whole hours) each host's clock must be shifted so that its
    first event comes about when that of the first host does. 0 for hosts with times in common with
    the first host, because the hosts of a job run at the same time.

    spans: first and last time of each host (ns), shape (hosts, 2); nan if unknown.
    """
    known = np.flatnonzero(np.isfinite(spans).all(axis=1))
    shifts = np.zeros(len(spans), np.int64)
    if len(known):
        first, last = spans[known].astype(np.int64).T
        is_apart = (first > last[0]) | (last < first[0])
        hours = np.round((first - first[0]) / COARSE).astype(np.int64)
        shifts[known] = np.where(is_apart, -COARSE * hours, 0)
    return shifts


class ReportClock(Struct, frozen=True):
    """The clocks of a report: their times at its local time 0 (ns); None if unknown."""

    #: Name of the host.
    host: str
    #: UTC at local time 0, ns since 1970.
    utc_ns: int | None
    #: Host's monotonic clock at local time 0, ns.
    system_ns: int | None
    #: UUIDs of the GPUs of the host.
    gpus: frozenset[str] = frozenset()

    @property
    def boot(self) -> int | None:
        """Return the UTC time at which the monotonic clock was 0 (ns); None if unknown."""
        return None if None in (self.utc_ns, self.system_ns) else self.utc_ns - self.system_ns


class Placement(Struct, frozen=True):
    """A report's map to UTC, its machine (equal numbers mean one machine), and how it was placed."""

    #: Equal numbers mean one machine.
    machine: int
    #: Map of local times to UTC.
    map: ClockMap
    #: Clocks by which the report was placed.
    method: str


def place_reports(reports: list[ReportClock]) -> list[Placement]:
    """Find the UTC time of each report by its clocks. Return the placement of each. Reports without
    any clock are UNPLACED, at 0; the caller knows where the events of the others begin.
    """
    machines, boots = _number_machines(reports)
    placements = []
    for report, machine in zip(reports, machines, strict=True):
        offset, method = 0, UNPLACED
        if report.boot is not None:
            offset, method = boots[machine] + report.system_ns, "host clock + UTC"
        elif report.utc_ns is not None:
            offset, method = report.utc_ns, "UTC"
        placements.append(Placement(machine, ClockMap(offset), method))
    return placements


def _number_machines(reports: list[ReportClock]) -> tuple[list[int], list[int | None]]:
    """Return the machine of each report, and the first known `boot` of each machine.

    Reports belong to one machine if they have a common name or GPU (containers have their own
    names) and, if both clocks are known, the clocks agree (containers may share names). A report
    with neither a name nor a monotonic clock belongs to a machine only through a common GPU.
    """
    boots: list[int | None] = []
    machines_of: dict[str, set[int]] = defaultdict(set)
    numbers = []
    for report in reports:
        boot = report.boot
        names = [*report.gpus]
        if report.host or boot is not None:
            names.append(f"host {report.host}")
        number = min(
            (
                machine
                for machine in set().union(*(machines_of[name] for name in names))
                if None in (boot, boots[machine]) or abs(boot - boots[machine]) <= SAME_MACHINE_NS
            ),
            default=len(boots),
        )
        if number == len(boots):
            boots.append(None)
        if boots[number] is None:
            boots[number] = boot
        for name in names:
            machines_of[name].add(number)
        numbers.append(number)
    return numbers, boots


#: Comments at the head of a clock file.
RECORD_HEAD = """# Corrections of the host clocks. `nsys2prv --align THIS_FILE` applies them again.
# corrected time = UTC + offset_ns + drift_ppm / 1e6 * (UTC - at_utc_ns), where UTC is the time of the host's own clock; times in ns.
"""


class HostClock(Struct, frozen=True, forbid_unknown_fields=True):
    """The correction of a host's clock, with method and error, as in the clock file."""

    #: Correction at `at_utc_ns`.
    offset_ns: Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]
    #: Change of the correction.
    drift_ppm: Annotated[float, Meta(ge=-10_000, le=10_000)] = 0.0
    #: Time of the offset, in UTC.
    at_utc_ns: Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)] = 0
    #: Method that found the correction.
    method: str = ""
    #: Host that this one is corrected to.
    reference: str = ""
    #: Number of collectives or messages used.
    observations: int = 0
    #: Standard deviation of the ends of collectives about their common time, ns.
    spread_ns: int | None = None
    #: Largest error against `reference` anywhere in the trace, ns; None if unknown.
    bound_ns: int | None = None
    #: Largest error against `reference` where something was observed, ns; None if unknown.
    observed_bound_ns: int | None = None
    #: True if its times may be compared with those of hosts with the same reference.
    sure: bool = True

    def correct(self, placed: ClockMap) -> ClockMap:
        """Return the map from a report's local times to corrected times. placed: its map to UTC,
        without drift.
        """
        return ClockMap(
            placed.offset + self.offset_ns, self.drift_ppm / 1e6, self.at_utc_ns - placed.offset
        )


class ClockRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """Corrections of the clocks of all hosts, as in the clock file."""

    #: Host name -> correction.
    hosts: Mapping[str, HostClock]
    #: Precedences checked, violated, the largest violation and their sum (ns), by whether used or
    #: held back, before and after the correction.
    causality: Mapping[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    #: Notes for the user.
    notes: tuple[str, ...] = ()
    #: Warnings for the user.
    warnings: tuple[str, ...] = ()

    def format(self) -> str:
        """Return the text of the clock file."""
        import yaml

        content = {name: value for name, value in to_builtins(self).items() if value}
        content["hosts"] = {
            name: {
                key: value
                for key, value in clock.items()
                if value not in (None, ()) and (key, value) != ("sure", True)
            }
            for name, clock in content.get("hosts", {}).items()
        }
        return RECORD_HEAD + yaml.dump(
            content,
            Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper),
            default_flow_style=None,
            sort_keys=False,
            allow_unicode=True,
            width=120,
        )


def read_record(text: str, source: str) -> ClockRecord:
    """Return the corrections in a clock file. Raise Nsys2prvError, in one line, if the text is not
    a valid clock file.
    """
    import yaml

    where, hosts = source, {}
    try:
        content = parse_yaml(text)
        hosts = content.get("hosts") if isinstance(content, dict) else None
        if not isinstance(hosts, dict):
            raise Nsys2prvError(
                f"{source}: not a clock file; it needs `hosts:` with offset_ns and drift_ppm for each host, as in the .clock.yaml of a trace"
            )
        clocks = {}
        for name, fields in hosts.items():
            where = f"{source}: {name}"
            if isinstance(fields, dict):
                fields.pop("samples", None)  # of earlier versions
            clock = clocks[str(name)] = convert(fields, HostClock, strict=False)
            if clock.drift_ppm and not clock.at_utc_ns:
                raise Nsys2prvError(
                    f"{where}: a drift needs at_utc_ns, the time at which the clock is off by offset_ns alone"
                )
        where = source
        return replace(convert(content | {"hosts": {}}, ClockRecord), hosts=clocks)
    except yaml.YAMLError as error:
        raise Nsys2prvError(f"{source}: not YAML: {str(error).splitlines()[0]}") from None
    except ValidationError as error:
        raise Nsys2prvError(
            f"{where}: not a valid clock file: {error}; see a trace's .clock.yaml"
        ) from None
