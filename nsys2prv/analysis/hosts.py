"""What the host threads that drive a device are doing, as disjoint sets of times.

The threads are those that launched work on the device, and the main threads of their tasks. Where several calls are open at a time, on
one thread or on several, the first of STATES counts.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsys2prv.analysis.intervals import EMPTY, Spans, difference, union, united
from nsys2prv.analysis.unit import Unit

#: In MPI, in NCCL (calls on the host), in file or network I/O, waiting for the device, in another call of the CUDA API.
STATES = ("mpi", "nccl", "io", "synchronisation", "launch")


def driving_threads(unit: Unit, device: int) -> list[int]:
    """Host threads that launch work on a device, and the main threads of the tasks that it works for."""
    threads = unit.work.filter(pl.col("device") == device)["thread"].unique().to_numpy()
    tasks = np.unique(unit.task_of[threads]).tolist()
    found = {unit.main_thread(task) for task in tasks if task in unit.tasks}
    if unit.has("launch", "memory"):
        found |= set(unit.launched.filter(pl.col("device") == device)["sender"].unique().to_list())
    return sorted(found)


def host_states(unit: Unit, device: int) -> dict[str, Spans]:
    """When the threads that drive a device are in each of STATES."""
    known = unit.cache.setdefault("host_states", {})
    if device not in known:
        known[device] = _host_states(unit, driving_threads(unit, device))
    return known[device]


def _host_states(unit: Unit, threads: list[int]) -> dict[str, Spans]:
    api = unit.api.filter(pl.col("thread").is_in(threads)) if unit.has("cuda_api") else None
    synchronising, launching = EMPTY, EMPTY
    if api is not None:
        waits = pl.col("call").is_in(list(unit.question.synchronising))
        parts = api.filter(waits), api.filter(~waits)
        synchronising, launching = (union(part["begin"].to_numpy(), part["end"].to_numpy()) for part in parts)
    found = {"mpi": unit.mpi_spans(threads), "nccl": unit.thread_spans("nccl_call", threads), "io": _io(unit, threads),
             "synchronisation": synchronising, "launch": launching}
    states, before = {}, EMPTY
    for name in STATES:
        states[name] = difference(found[name], before)
        before = united([before, found[name]])
    return states


def _io(unit: Unit, threads: list[int]) -> Spans:
    if not unit.has("osrt"):
        return EMPTY
    calls = unit.begins("osrt", ("call",)).filter(pl.col("thread").is_in(threads) & pl.col("call").is_in(list(unit.question.io)))
    return union(calls["begin"].to_numpy(), calls["end"].to_numpy())
