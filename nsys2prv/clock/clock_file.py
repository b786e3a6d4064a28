"""The clock file, `out.clock.yaml`: how each host's clock was corrected, and how well. It can be
given to another conversion.

corrected = UTC + offset_ns + drift_ppm / 1e6 * (UTC - at_utc_ns), where UTC is what the host's own
clock says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, ValidationError, convert, field, to_builtins

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.yaml_files import parse_yaml
from nsys2prv.clock.maps import ClockMap

HEAD = """# How the clocks of the hosts were corrected. `nsys2prv --align THIS_FILE` uses these corrections again;
# `nsys2prv clock THIS_FILE` prints them, and draws them with --plot.
# corrected time = UTC + offset_ns + drift_ppm / 1e6 * (UTC - at_utc_ns), UTC as the host's own clock says; times in ns.
"""
CAUSAL_HEAD = "# causal: how far ranks were then moved in the trace beside this file; that is not done again where the file is used.\n"


class HostClock(Struct, frozen=True):
    """Correction of one host's clock."""

    #: Correction at `at_utc_ns`.
    offset_ns: int = 0
    #: Change of the correction.
    drift_ppm: float = 0.0
    #: Time of the offset, in UTC.
    at_utc_ns: int = 0
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
    #: The same, only where something was observed.
    observed_bound_ns: int | None = None
    #: True if its times may be compared with those of hosts with the same reference.
    sure: bool = True
    #: (UTC ns, deviation before, deviation after) of some collectives.
    samples: tuple[tuple[int, int, int], ...] = ()

    def correct(self, placed: ClockMap) -> ClockMap:
        """Return the map of local times to corrected ones, from that (without drift) to UTC."""
        return ClockMap(
            placed.offset + self.offset_ns, self.drift_ppm / 1e6, self.at_utc_ns - placed.offset
        )


class RankMove(Struct, frozen=True):
    """Move of a rank beyond its host's correction."""

    #: Largest move, ns.
    largest_ns: int
    #: Mean over the rank's calls, ns.
    mean_ns: int
    #: Corrected UTC of the largest move, ns since 1970.
    at_utc_ns: int = 0


class CausalRecord(Struct, frozen=True):
    """Effect of --causal."""

    #: Number of reports.
    ranks: int
    #: Before: checked, violated, the largest violation and their sum (ns).
    before: Mapping[str, int]
    #: The same afterwards.
    after: Mapping[str, int]
    #: Name -> move of the ranks that moved.
    moved: Mapping[str, RankMove]


class ClockRecord(Struct, frozen=True):
    """Corrections of all hosts, as in the file beside the trace."""

    #: Host name -> correction.
    hosts: Mapping[str, HostClock]
    #: Precedences checked, violated, the largest violation and their sum (ns), by whether used or
    #: held back, before and after the correction.
    causality: Mapping[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    #: Effect of --causal on this trace; not repeated where the file is used.
    causal: CausalRecord | None = None
    #: Notes for the user.
    notes: tuple[str, ...] = ()
    #: Warnings for the user.
    warnings: tuple[str, ...] = ()

    def format(self) -> str:
        """Return the file."""
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
        return (
            HEAD
            + (CAUSAL_HEAD if self.causal else "")
            + yaml.dump(
                content,
                Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper),
                default_flow_style=None,
                sort_keys=False,
                allow_unicode=True,
                width=120,
            )
        )


def read_record(text: str, source: str) -> ClockRecord:
    """Return the record of a clock file. Raises Nsys2prvError, with one line, for what is none."""
    import yaml

    try:
        content = parse_yaml(text)
    except yaml.YAMLError as error:
        raise Nsys2prvError(f"{source}: not YAML: {str(error).splitlines()[0]}") from None
    hosts = content.get("hosts") if isinstance(content, dict) else None
    if not isinstance(hosts, dict) or not all(isinstance(clock, dict) for clock in hosts.values()):
        raise Nsys2prvError(
            f"{source}: not a clock file: needs `hosts:` with offset_ns and drift_ppm of each, as in a trace's .clock.yaml"
        )
    _check_keys(content, ClockRecord, source)
    hosts = {str(name): _parse_host(clock, f"{source}: {name}") for name, clock in hosts.items()}
    try:
        return convert({**content, "hosts": hosts}, ClockRecord)
    except ValidationError as error:
        raise Nsys2prvError(f"{source}: not a clock file: {error}") from None


def _check_keys(content: Mapping[str, Any], struct: type[Struct], where: str) -> None:
    for key in content:
        if key not in struct.__struct_fields__:
            keys = ", ".join(struct.__struct_fields__)
            raise Nsys2prvError(f"{where}: unknown key {str(key)[:40]!r}; known are {keys}")


def _parse_host(clock: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of a host's clock, times in whole ns."""
    _check_keys(clock, HostClock, where)
    if "offset_ns" not in clock:
        raise Nsys2prvError(
            f"{where}: offset_ns is missing: by how much the clock is moved, in nanoseconds"
        )
    numbers = {}
    for name, limit in (("offset_ns", 1 << 62), ("drift_ppm", 10_000), ("at_utc_ns", 1 << 62)):
        value = clock.get(name, 0)
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
            or abs(value) > limit
        ):
            raise Nsys2prvError(
                f"{where}: {name} is not a possible correction of a clock: {str(value)[:40]}"
            )
        numbers[name] = value if name == "drift_ppm" else round(value)
    if numbers["drift_ppm"] and not numbers["at_utc_ns"]:
        raise Nsys2prvError(
            f"{where}: a drift needs at_utc_ns, the time at which the clock is off by offset_ns alone"
        )
    return {**clock, **numbers}
