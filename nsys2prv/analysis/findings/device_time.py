"""The time of each device in the steady state as a partition: each moment counts once.

In this order: computing (kernels other than NCCL's, graphs), transfer (NCCL after the last rank has begun), wait (NCCL before that), other
NCCL (kernels of which that is not known), memory operations, idle; idle time by what the host does, and by the call that it is in.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsys2prv.analysis.collectives import matched_collectives
from nsys2prv.analysis.hosts import STATES, driving_threads, host_states
from nsys2prv.analysis.intervals import Spans, clipped, difference, gaps, union, united
from nsys2prv.analysis.unit import COMPUTE, CONVOLUTION, GEMM, GRAPH, MEMORY, NCCL, TENSOR_NO, Unit

#: Parts of a device's time that are not idle.
BUSY = ("compute", "transfer", "wait", "other_nccl", "memory")


def collect(unit: Unit) -> dict[str, pl.DataFrame]:
    """devices: a row each, its parts (ns). records: a row for each kernel of a matched collective, with its exposed parts. others: a row
    for each other NCCL kernel. calls: idle time by device and call."""
    begin, end = unit.question.steady_span(unit.duration)
    found: dict[str, list[pl.DataFrame]] = {"devices": [], "records": [], "others": [], "calls": []}
    kernels = unit.begins("nccl_kernel", ("operation", "bytes", "communicator")) if unit.has("nccl_kernel") else None
    matched = matched_collectives(unit, kernels) if kernels is not None and unit.has("nccl_collective") else None
    for device in unit.devices:
        compute, nccl = (clipped(unit.device_spans(device, *what), begin, end) for what in ((COMPUTE, GRAPH), (NCCL,)))
        parts = {"compute": compute}
        transfer = wait = other = Spans(*[np.zeros(0, np.int64)] * 2)
        if kernels is not None:
            mine = _of_device(unit, kernels, device, begin, end)
            if matched is not None:
                known = _of_device(unit, matched, device, begin, end).with_columns(
                    ready=pl.col("begin") + pl.col("wait"), until=pl.col("begin") + pl.col("wait") + pl.col("transfer"))
                mine = mine.join(known.select("thread", "begin"), on=["thread", "begin"], how="anti", maintain_order="left")
                transfer = difference(_union(known, "ready", "until", begin, end), compute)
                wait = difference(_union(known, "begin", "ready", begin, end), united([compute, transfer]))
                found["records"].append(known.with_columns(
                    exposed_wait=_own_part(known, "begin", "ready", wait), exposed_transfer=_own_part(known, "ready", "until", transfer)))
            other = difference(nccl, united([compute, transfer, wait]))
            found["others"].append(mine.with_columns(exposed=_own_part(mine, "begin", "end", other),
                                                     task=pl.Series(unit.task_of[mine["thread"].to_numpy()], dtype=pl.Int64)))
        parts |= {"transfer": transfer, "wait": wait, "other_nccl": other}
        memory = clipped(unit.device_spans(device, MEMORY), begin, end)
        parts["memory"] = difference(memory, united([compute, nccl]))
        idle = gaps(unit.active(device), begin, end)
        states = host_states(unit, device)
        task = _task_of(unit, device)
        work = unit.work.filter((pl.col("device") == device) & pl.col("class").is_in([GEMM, CONVOLUTION])
                                & (pl.col("tensor") == TENSOR_NO) & (pl.col("begin") >= begin) & (pl.col("begin") < end))
        found["devices"].append(pl.DataFrame({
            "device": [device], "task": [task], **{name: [spans.length] for name, spans in parts.items()}, "idle": [idle.length],
            **{f"idle_{name}": [int(states[name].within(idle.begin, idle.end).sum())] for name in STATES},
            "without_tensor_cores": [int((work["end"] - work["begin"]).sum())]}))
        if unit.has("cuda_api"):
            found["calls"].append(_idle_in_calls(unit, device, idle))
    return {name: pl.concat(frames) if frames else pl.DataFrame() for name, frames in found.items()}


def _task_of(unit: Unit, device: int) -> int:
    """The task that works most on a device."""
    threads = unit.work.filter(pl.col("device") == device)["thread"].to_numpy()
    return int(np.bincount(unit.task_of[threads]).argmax())


def _of_device(unit: Unit, frame: pl.DataFrame, device: int, begin: int, end: int) -> pl.DataFrame:
    """The rows of a device that begin in the steady state."""
    here = unit.device_of[frame["thread"].to_numpy()] == device
    return frame.filter(pl.Series(here, dtype=pl.Boolean) & (pl.col("begin") >= begin) & (pl.col("begin") < end)).sort("begin")


def _union(frame: pl.DataFrame, since: str, until: str, begin: int, end: int) -> Spans:
    return clipped(union(frame[since].to_numpy(), frame[until].to_numpy()), begin, end)


def _own_part(frame: pl.DataFrame, since: str, until: str, exposed: Spans) -> pl.Series:
    """How much of a set of times each row accounts for; what several rows cover counts for the first."""
    begin, end = frame[since].to_numpy(), frame[until].to_numpy()
    order = np.argsort(begin, kind="stable")
    reached = np.concatenate([[0], np.maximum.accumulate(end[order])[:-1]]) if len(end) else end
    own = np.zeros(len(begin), np.int64)
    own[order] = exposed.within(np.minimum(np.maximum(begin[order], reached), end[order]), end[order])
    return pl.Series(own, dtype=pl.Int64)


def _idle_in_calls(unit: Unit, device: int, idle: Spans) -> pl.DataFrame:
    """The idle time of a device by the call that the threads driving it are in: device, call (value), synchronises, count, time."""
    calls = unit.api.filter(pl.col("thread").is_in(driving_threads(unit, device)))
    time = idle.within(calls["begin"].to_numpy(), calls["end"].to_numpy())
    calls = calls.with_columns(time=pl.Series(time, dtype=pl.Int64)).filter(pl.col("time") > 0)
    return calls.group_by("call").agg(count=pl.len().cast(pl.Int64), time=pl.col("time").sum()).sort("call").select(
        pl.lit(device, pl.Int64).alias("device"), "call", pl.col("call").is_in(list(unit.question.synchronising)).alias("synchronises"),
        "count", "time")
