"""Facts that event kinds set aside while reading, brought together for what compares the ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from nsys2prv.clock.maps import ClockMap
from nsys2prv.columns import OPEN, read_frame
from nsys2prv.extract import Extracted
from nsys2prv.relations.kind import OBJECT, TIME
from nsys2prv.report.source import NULL


@dataclass(frozen=True)
class FactFile:
    """Facts of one reading task. clock, host: of its report; threads: thread index of each of its local objects."""

    path: Path
    report: int
    clock: ClockMap
    host: int
    threads: np.ndarray


@dataclass(frozen=True)
class FactBook:
    """Where all facts are. results: of reading. clocks, hosts: by report. threads: by reading task, as in FactFile. tasks: (report,
    globalPid) -> 0-based task of the trace."""

    results: Sequence[Extracted]
    clocks: Sequence[ClockMap]
    hosts: Sequence[int]
    threads: Mapping[int, np.ndarray]
    tasks: Mapping[tuple[int, int], int]

    def files(self, names: Sequence[str]) -> dict[str, tuple[FactFile, ...]]:
        """The files of these facts, in the order of their tasks."""
        ordered = sorted(self.results, key=lambda result: result.task)
        return {name: tuple(FactFile(result.facts[name], result.report, self.clocks[result.report], self.hosts[result.report],
                                     self.threads[result.task]) for result in ordered if name in result.facts)
                for name in names}


def read_facts(files: Mapping[str, Sequence[FactFile]], tasks: Mapping[tuple[int, int], int]) -> dict[str, pl.DataFrame]:
    """The facts by name, as a relation sees them. tasks: (report, globalPid) -> 0-based task of the trace."""
    return {name: _frame(found, tasks) for name, found in files.items()}


def _frame(files: Sequence[FactFile], tasks: Mapping[tuple[int, int], int]) -> pl.DataFrame:
    """The facts of all tasks as one frame, translated."""
    frames = []
    for file in files:
        frame = read_frame(file.path)
        columns = [pl.lit(file.report, pl.Int64).alias("report"), pl.lit(file.host, pl.Int64).alias("host")]
        for name in frame.columns:
            values = frame[name].to_numpy() if name.startswith((TIME, OBJECT)) else None
            if name.startswith(TIME):
                known = (values != NULL) & (values != OPEN)
                columns.append(pl.Series(name, np.where(known, file.clock.to_global(np.where(known, values, 0)), values)))
            elif name.startswith(OBJECT):
                columns.append(pl.Series(name, file.threads[values]))
        if "process" in frame.columns:
            numbers = {process: tasks.get((file.report, process), -1) for process in frame["process"].unique()}
            columns.append(frame["process"].replace_strict(numbers, return_dtype=pl.Int64).alias("task"))
        frames.append(frame.with_columns(columns))
    return pl.concat(frames, how="diagonal") if frames else pl.DataFrame()
