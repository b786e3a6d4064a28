"""The time of each device in the steady state as a partition: each moment counts once.

In this order: computing (kernels other than NCCL's, graphs), transfer (NCCL after the last rank has
begun), wait (NCCL before that, and the part of the transfer that is exposed because computation
that would have hidden it has run during the wait), other NCCL (kernels of which that is not known),
memory operations, idle; idle time by what the host does, and by the call that it is in.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from nsys2prv._util.columns import ABSENT
from nsys2prv.analysis.collectives import list_matched_collectives
from nsys2prv.analysis.intervals import (
    EMPTY,
    Spans,
    clip_spans,
    find_gaps,
    merge_spans,
    subtract_spans,
    unite_span_sets,
)
from nsys2prv.analysis.unit import (
    COMPUTE,
    CONVOLUTION,
    GEMM,
    GRAPH,
    MEMORY,
    MPI,
    NCCL,
    STATES,
    TENSOR_NO,
    Unit,
    find_driving_threads,
    find_host_states,
    to_arrays,
)

#: Parts of a device's time that are not idle.
BUSY = ("compute", "transfer", "wait", "other_nccl", "memory")


def collect(unit: Unit) -> Iterator[tuple[str, pl.DataFrame]]:
    """Collect how devices spent their time. devices: a row each, its parts (ns). records: a row for
    each kernel of a matched collective, with its exposed parts. others: a row for each other NCCL
    kernel, and each call of MPI with which a device is idle. calls: idle time by device and call.
    """
    begin, end = unit.options.get_steady_span(unit.duration)
    kernels = matched = None
    if unit.has("nccl_kernel"):
        fields = ("operation", "bytes", "communicator", "kernel")
        kernels = _number_occurrences(unit, unit.read_begins("nccl_kernel", fields), "kernel")
        if unit.has("nccl_collective"):
            matched = list_matched_collectives(unit, kernels)
    for device in unit.devices:
        compute = clip_spans(unit.find_device_spans(device, COMPUTE, GRAPH), begin, end)
        nccl = clip_spans(unit.find_device_spans(device, NCCL), begin, end)
        delayed, transfer, wait, other = 0, EMPTY, EMPTY, EMPTY
        if kernels is not None:
            own_kernels = _select_device_rows(unit, kernels, device, begin, end)
            if matched is not None:
                until = pl.col("begin") + pl.col("wait") + pl.col("transfer")
                records = _select_device_rows(unit, matched, device, begin, end).with_columns(
                    ready=pl.col("begin") + pl.col("wait"), until=until
                )
                place = ["thread", "begin"]
                own_kernels = own_kernels.join(
                    records.select(place), on=place, how="anti", maintain_order="left"
                )
                transfer = _merge_rows(records, "ready", "until", begin, end)
                transfer = subtract_spans(transfer, compute)
                wait = _merge_rows(records, "begin", "ready", begin, end)
                wait = subtract_spans(wait, unite_span_sets([compute, transfer]))
                records = records.with_columns(
                    exposed_wait=_find_own_parts(records, "begin", "ready", wait),
                    exposed_transfer=_find_own_parts(records, "ready", "until", transfer),
                )
                late = _find_avoidable_exposure(records, compute)
                yield (
                    "records",
                    records.with_columns(exposed_transfer=pl.col("exposed_transfer") - late),
                )
                delayed = int(late.sum())
            other = subtract_spans(nccl, unite_span_sets([compute, transfer, wait]))
            name = pl.format("NCCL {}", "kernel")
            yield "others", _make_other_rows(unit, own_kernels, other, device, name)
        memory = clip_spans(unit.find_device_spans(device, MEMORY), begin, end)
        memory = subtract_spans(memory, unite_span_sets([compute, nccl]))
        idle = find_gaps(unit.active(device), begin, end)
        for layout, calls in _list_mpi_calls(unit, device, begin, end):
            name = pl.format(f"{layout} {{}}", "call")
            yield "others", _make_other_rows(unit, calls, idle, device, name)
        states = find_host_states(unit, device)
        parts = {
            "device": device,
            "task": _find_main_task(unit, device),
            "compute": compute.length,
            "transfer": transfer.length - delayed,
            "wait": wait.length + delayed,
            "other_nccl": other.length,
            "memory": memory.length,
            "idle": idle.length,
            **{
                f"idle_{name}": int(states[name].within(idle.begin, idle.end).sum())
                for name in STATES
            },
            "without_tensor_cores": _sum_without_tensor_cores(unit, device, begin, end),
        }
        yield "devices", pl.DataFrame([parts])
        if unit.has("cuda_api"):
            yield "calls", _sum_idle_by_call(unit, device, idle)


def _sum_without_tensor_cores(unit: Unit, device: int, begin: int, end: int) -> int:
    """Return the time of matrix products without tensor cores that begin in the steady state (ns)."""
    products = unit.work.filter(
        (pl.col("device") == device)
        & pl.col("class").is_in([GEMM, CONVOLUTION])
        & (pl.col("tensor") == TENSOR_NO)
        & pl.col("begin").is_between(begin, end, closed="left")
    )
    return int((products["end"] - products["begin"]).sum())


def _make_other_rows(
    unit: Unit, frame: pl.DataFrame, exposed: Spans, device: int, name: pl.Expr
) -> pl.DataFrame:
    """Return rows of `others`: task, device, name, begin, end, operation, bytes, communicator
    (ABSENT for what is not known), number and total (in the whole job, of this name on its row's
    device), exposed (ns).
    """
    optional_columns = [
        name if name in frame.columns else pl.lit(ABSENT, pl.Int64).alias(name)
        for name in ("operation", "bytes", "communicator")
    ]
    return frame.select(
        unit.list_tasks(frame),
        pl.lit(device, pl.Int64).alias("device"),
        name.alias("name"),
        "begin",
        "end",
        "number",
        "total",
        *optional_columns,
        _find_own_parts(frame, "begin", "end", exposed).alias("exposed"),
    )


def _list_mpi_calls(
    unit: Unit, device: int, begin: int, end: int
) -> Iterator[tuple[str, pl.DataFrame]]:
    """Return the calls of MPI that begin in the steady state, of the threads that drive a device."""
    threads = find_driving_threads(unit, device) if unit.has(*MPI) else []
    for layout in MPI:
        if unit.has(layout):
            calls = unit.read_begins(layout, ("call",)).filter(pl.col("thread").is_in(threads))
            calls = calls.with_columns(
                number=pl.int_range(pl.len()).over("call"), total=pl.len().over("call")
            )
            yield layout, calls.filter(pl.col("begin").is_between(begin, end, closed="left"))


def _number_occurrences(unit: Unit, frame: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return the rows, by begin, with their `number` among those of the same name on their device,
    and how many there are, `total`.
    """
    frame = frame.sort("begin", maintain_order=True)
    device = pl.Series("device", unit.device_of[frame["thread"].to_numpy()])
    return frame.with_columns(device).with_columns(
        number=pl.int_range(pl.len()).over("device", name), total=pl.len().over("device", name)
    )


def _find_main_task(unit: Unit, device: int) -> int:
    """Return the task that works most on a device."""
    threads = unit.work.filter(pl.col("device") == device)["thread"].to_numpy()
    return int(np.bincount(unit.task_of[threads]).argmax())


def _select_device_rows(
    unit: Unit, frame: pl.DataFrame, device: int, begin: int, end: int
) -> pl.DataFrame:
    """Return the rows of a device that begin in the steady state."""
    here = unit.device_of[frame["thread"].to_numpy()] == device
    in_span = pl.col("begin").is_between(begin, end, closed="left")
    return frame.filter(pl.Series(here, dtype=pl.Boolean) & in_span).sort("begin")


def _merge_rows(frame: pl.DataFrame, since: str, until: str, begin: int, end: int) -> Spans:
    return clip_spans(merge_spans(*to_arrays(frame, since, until)), begin, end)


def _find_own_parts(frame: pl.DataFrame, since: str, until: str, exposed: Spans) -> pl.Series:
    """Return how much of a set of times each row accounts for; what several rows cover counts for
    the first.
    """
    begin, end = to_arrays(frame, since, until)
    order = np.argsort(begin, kind="stable")
    reached = np.concatenate([[0], np.maximum.accumulate(end[order])[:-1]]) if len(end) else end
    own = np.zeros(len(begin), np.int64)
    own[order] = exposed.within(
        np.minimum(np.maximum(begin[order], reached), end[order]), end[order]
    )
    return pl.Series(own, dtype=pl.Int64)


def _find_avoidable_exposure(records: pl.DataFrame, compute: Spans) -> pl.Series:
    """Return how much of each kernel's exposed transfer computation would have hidden if the last
    rank had come at once (ns): that computation has run while the others waited.
    """
    begin, transfer, exposed = to_arrays(records, "begin", "transfer", "exposed_transfer")
    at_once = transfer - compute.within(begin, begin + transfer)
    return pl.Series(np.clip(exposed - at_once, 0, None), dtype=pl.Int64)


def _sum_idle_by_call(unit: Unit, device: int, idle: Spans) -> pl.DataFrame:
    """Return the idle time of a device by the call that the threads driving it are in: device, call
    (value), synchronises, count, time.
    """
    calls = unit.select_calls("cuda_api", find_driving_threads(unit, device))
    time = idle.within(*to_arrays(calls, "begin", "end"))
    calls = calls.select("call", time=pl.Series(time, dtype=pl.Int64)).filter(pl.col("time") > 0)
    sums = calls.group_by("call").agg(count=pl.len().cast(pl.Int64), time=pl.col("time").sum())
    return sums.sort("call").with_columns(
        device=pl.lit(device, pl.Int64),
        synchronises=pl.col("call").is_in(list(unit.options.synchronising)),
    )
