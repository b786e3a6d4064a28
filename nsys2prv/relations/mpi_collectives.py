"""MPI collectives on all their ranks: what their blocking calls tell of the clocks of hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from nsys2prv.clock.observations import MPI as SOURCE
from nsys2prv.columns import OPEN
from nsys2prv.events.mpi import MEETINGS, PROCESSES
from nsys2prv.reading.facts import FactFile, batches, read_fact
from nsys2prv.relations.call_blocks import CallBlocks, CallPortion, portions_of, sorted_calls
from nsys2prv.relations.kind import DEVICES, MPI, Division, Relation
from nsys2prv.report.source import NULL


def portions(division: Division) -> list[CallPortion]:
    """The blocking calls of every process, by communicator; the n-th of each is the others' n-th unless rows are missing."""
    processes = read_fact(division.files[PROCESSES], division.tasks)
    began = frozenset(processes.filter("began")["task"].to_list()) if processes.height else frozenset()
    steps = [MeetingsStep(files, division.tasks, began, division.folder / f"mpi-calls-{number}.blocks")
             for number, files in enumerate(batches(division.files[MEETINGS]))]
    return portions_of(list(division.run(steps)), SOURCE)


@dataclass(frozen=True)
class MeetingsStep:
    """Sorts the calls of some reports by communicator, process and begin. began: tasks recorded from MPI_Init on."""

    files: tuple[FactFile, ...]
    tasks: Mapping[tuple[int, int], int]
    began: frozenset[int]
    path: Path

    def run(self) -> CallBlocks:
        nothing = pl.lit(0, pl.Int64)
        return sorted_calls(_known(read_fact(self.files, self.tasks)).select(
            "communicator", "host", "members", member=pl.col("task") * DEVICES, number=nothing - 1, function=nothing, role="waits",
            is_root="is_root", begin="time_begin", end="time_end", operation="signature", count=nothing, size=nothing,
            began=pl.col("task").is_in(sorted(self.began)).cast(pl.Int64)), self.path)


def _known(calls: pl.DataFrame) -> pl.DataFrame:
    """The calls with both times."""
    known = (pl.col("time_begin") != NULL) & ~pl.col("time_end").is_in((NULL, OPEN))
    return calls.filter((pl.col("task") >= 0) & known)


RELATIONS = (Relation("mpi_collectives", "MPI collectives", MPI, (MEETINGS, PROCESSES), portions=portions),)
