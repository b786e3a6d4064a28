"""What the simulation shows to those who sample it."""

from __future__ import annotations

from typing import Any, Protocol

from ..cluster import Ints
from ..program import Program
from ..timeline import Block

ABOUT = (
    "gpus: by uuid, all samples of a GPU in any report, sums and means of the values as stored; what each report has is "
    "under its rank's gpu_metrics. nics: bytes that crossed each interface between hosts in the whole job (a switch's "
    "port receives what its NIC sends); under a rank's network the number of samples per interface or port, and the sum "
    "of the values of each counter, as stored. switches: congestion events between interfaces; those in a report under its "
    "rank's congestion. storage: bytes read and written on a host; under a rank's generic_events "
    "events and sums of the values by device and field."
)


class Watcher(Protocol):
    """Watches the job and writes samples into reports."""

    def watch(self, program: Program, block: Block, epochs: Ints, until: int) -> None:
        """Runs of a program that begin at ``epochs``; nothing later begins before ``until`` (true times, ns)."""

    def finish(self, stop: int) -> None:
        """The captures end at true time ``stop`` (ns)."""

    def truth(self) -> dict[str, Any]:
        """What is said of devices, by kind and name; the same from every process that knows the device."""
