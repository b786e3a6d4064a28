"""Facts that event kinds set aside while reading, brought together for what compares the ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import OPEN, StoredFrame, factorize, read_frame
from nsys2prv.clock.maps import ClockMap
from nsys2prv.events.extraction import OBJECT, TIME
from nsys2prv.nsight.columns import NULL
from nsys2prv.store.task_result import TaskResult

#: Facts (bytes) that one step of a relation brings into order, unless one report has more: of NCCL,
#: fifty thousand kernels.
BATCH_BYTES = 10_000_000


class FactFile(Struct, frozen=True):
    """Facts of one reading task."""

    #: The facts, on disk; times are local ns.
    frame: StoredFrame
    #: Index of the report.
    report: int
    #: Clock map of the report.
    clock: ClockMap
    #: Index of the report's host.
    host: int
    #: Thread index of each local object of the task, int64.
    threads: np.ndarray
    #: Part of the job; times of different parts cannot be compared.
    part: int = 0


class FactBook(Struct, frozen=True):
    """Index of all facts of a job."""

    #: Results of reading.
    results: Sequence[TaskResult]
    #: Clock map of each report.
    clocks: Sequence[ClockMap]
    #: Index of the host of each report.
    hosts: Sequence[int]
    #: Reading task -> thread index of each of its local objects.
    threads: Mapping[int, np.ndarray]
    #: (report, globalPid) -> 0-based task of the trace.
    tasks: Mapping[tuple[int, int], int]
    #: Part of the job of each report; times of different parts cannot be compared.
    parts: Sequence[int] = ()

    def files(self, names: Sequence[str]) -> dict[str, tuple[FactFile, ...]]:
        """Return the files of these facts, in the order of their tasks."""
        ordered = sorted(self.results, key=lambda result: result.task)
        return {
            name: tuple(
                FactFile(
                    result.facts[name],
                    result.report,
                    self.clocks[result.report],
                    self.hosts[result.report],
                    self.threads[result.task],
                    self.parts[result.report] if self.parts else 0,
                )
                for result in ordered
                if name in result.facts
            )
            for name in names
        }


def batch_by_report(files: Sequence[FactFile]) -> list[tuple[FactFile, ...]]:
    """Return the files in batches for a step each, all of a report in one."""
    batches: list[list[FactFile]] = []
    room, report = 0, -1
    for file in sorted(files, key=lambda file: file.report):
        if room <= 0 and file.report != report:
            batches.append([])
            room = BATCH_BYTES
        batches[-1].append(file)
        room -= file.frame.size
        report = file.report
    return [tuple(batch) for batch in batches]


def read_fact(
    files: Sequence[FactFile],
    tasks: Mapping[tuple[int, int], int],
    columns: Sequence[str] | None = None,
) -> pl.DataFrame:
    """Return the facts of one name, from all its files, or some columns of them."""
    read = [(file, read_frame(file.frame, columns)) for file in files]
    alike = [
        list(group) for _, group in groupby(read, key=lambda item: list(item[1].schema.items()))
    ]
    return (
        pl.concat([_translate_facts(group, tasks) for group in alike], how="diagonal")
        if alike
        else pl.DataFrame()
    )


def _translate_facts(
    frames: Sequence[tuple[FactFile, pl.DataFrame]], tasks: Mapping[tuple[int, int], int]
) -> pl.DataFrame:
    """Return the facts of tasks whose frames have the same columns."""
    files = [file for file, _ in frames]
    heights = np.array([frame.height for _, frame in frames])
    bounds = np.cumsum(heights)[:-1]
    frame = pl.concat([frame for _, frame in frames])

    def by_file(name: str, translate: Callable[[FactFile, np.ndarray], np.ndarray]) -> np.ndarray:
        parts = np.split(frame[name].to_numpy(), bounds)
        return np.concatenate(
            [translate(file, part) for file, part in zip(files, parts, strict=True)]
        )

    def process_tasks(file: FactFile, processes: np.ndarray) -> np.ndarray:
        distinct, codes = factorize(processes)
        return np.array(
            [tasks.get((file.report, int(process)), -1) for process in distinct], np.int64
        )[codes]

    columns = {
        "report": np.repeat(np.array([file.report for file in files], np.int64), heights),
        "host": np.repeat(np.array([file.host for file in files], np.int64), heights),
        "part": np.repeat(np.array([file.part for file in files], np.int64), heights),
    }
    for name in frame.columns:
        if name.startswith(TIME):
            columns[name] = by_file(name, _to_trace_times)
        elif name.startswith(OBJECT):
            columns[name] = by_file(name, lambda file, objects: file.threads[objects])
    if "process" in frame.columns:
        columns["task"] = by_file("process", process_tasks)
    return frame.with_columns(pl.Series(name, values) for name, values in columns.items())


def _to_trace_times(file: FactFile, times: np.ndarray) -> np.ndarray:
    is_time = (times != NULL) & (times != OPEN)
    return np.where(is_time, file.clock.to_global(np.where(is_time, times, 0)), times)
