"""Idle devices, what their hosts do then, launches, API calls, and memory operations.

A gap is a stretch in which a device executes nothing, those before its first and after its last
operation among them. Its time is split by what the threads that drive the device do.
Launch latency: from the begin of the launching call to the begin of the work; queued: from the
call's end, where the work begins later. The rules are those of Nsight's expert system, in our
words.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from nsys2prv.analysis.distributions import make_statistics, spill_durations
from nsys2prv.analysis.intervals import find_gaps
from nsys2prv.analysis.result import Analysis, Context, Result, Table, divide_columns
from nsys2prv.analysis.unit import (
    MEMORY,
    STATES,
    WORK,
    Unit,
    find_driving_threads,
    find_host_states,
    find_rows,
    label_values,
    to_arrays,
)
from nsys2prv.events.names.calls import ASYNCHRONOUS, COPYING, SETTING

#: Classes of gaps by length: names, and bounds in ns.
LENGTHS = ("< 1 us", "1-10 us", "10-100 us", "100 us - 1 ms", "1-10 ms", "10-100 ms", ">= 100 ms")
BOUNDS = 10 ** np.arange(3, 9)
#: Gaps this long are listed on their own, so many of a device.
LONG_NS, MOST_LONG = 1_000_000, 5
#: Chunks of the job in which a device is busy for less than this share are low in use.
CHUNKS, LOW = 30, 0.5
#: Whether a memory operation reads or writes pageable memory.
PAGEABLE = (pl.col("source") == 1) | (pl.col("destination") == 1)
#: Memory operations within a GPU, which no pageable memory slows.
DEVICE_TO_DEVICE = 3
MOVES = ["name", "source", "destination", "call"]


def collect(unit: Unit) -> dict[str, pl.DataFrame]:
    by_table: dict[str, list[pl.DataFrame]] = {"gaps": [], "long": [], "chunks": []}
    edges = np.linspace(0, unit.duration, CHUNKS + 1).astype(np.int64)
    for device in unit.devices:
        idle = find_gaps(unit.active(device), 0, unit.duration)
        length = idle.end - idle.begin
        states = find_host_states(unit, device)
        columns = {name: states[name].within(idle.begin, idle.end) for name in STATES}
        frame = pl.DataFrame(
            {
                "device": np.full(len(length), device),
                "class": np.searchsorted(BOUNDS, length, "right"),
                "begin": idle.begin,
                "time_ns": length,
                **columns,
            }
        )
        count = pl.len().cast(pl.Int64).alias("count")
        by_table["gaps"].append(
            frame.group_by("device", "class", maintain_order=True).agg(
                count, pl.col("time_ns", *STATES).sum()
            )
        )
        by_table["long"].append(
            frame.filter(pl.col("time_ns") >= LONG_NS).top_k(MOST_LONG, by="time_ns")
        )
        busy = unit.active(device).within(edges[:-1], edges[1:]) / np.maximum(np.diff(edges), 1)
        by_table["chunks"].append(
            pl.DataFrame(
                {
                    "device": np.full(CHUNKS, device),
                    "begin": edges[:-1],
                    "end": edges[1:],
                    "busy_share": busy,
                }
            )
        )
    result = {
        name: pl.concat(frames) if frames else pl.DataFrame() for name, frames in by_table.items()
    }
    return (
        result
        | {"blocking": _find_blocking_calls(unit)}
        | _measure_latencies(unit)
        | _sum_calls(unit)
        | _sum_memory_operations(unit)
    )


def _find_blocking_calls(unit: Unit) -> pl.DataFrame:
    """Return calls that wait for a device and leave it idle meanwhile: a row for each device, with
    their count and the idle time (ns). Waiting beside a busy device costs nothing.
    """
    rows = []
    for device in unit.devices if unit.has("cuda_api") else ():
        calls = unit.api.filter(
            pl.col("thread").is_in(find_driving_threads(unit, device))
            & pl.col("call").is_in(list(unit.options.synchronising))
        )
        begin, end = to_arrays(calls, "begin", "end")
        idle = find_gaps(unit.active(device), 0, unit.duration).within(begin, end)
        rows.append((int(np.count_nonzero(idle)), int(idle.sum())))
    return pl.DataFrame(rows, schema={"count": pl.Int64, "time_ns": pl.Int64}, orient="row")


def _measure_latencies(unit: Unit) -> dict[str, pl.DataFrame]:
    if not unit.has("launch") or not unit.has("cuda_api"):
        return {}
    sender, sent, begin, what = to_arrays(unit.launched, "sender", "sent", "begin", "what")
    call, returned = unit.launching, unit.api["end"].to_numpy()
    task, kernel = unit.task_of[sender], what != MEMORY
    returned = np.where(call >= 0, returned[call], begin) if len(returned) else begin
    later = kernel & (begin > returned)
    latency = pl.DataFrame({"task": task[kernel], "begin": sent[kernel], "end": begin[kernel]})
    queued = pl.DataFrame({"task": task[later], "begin": returned[later], "end": begin[later]})
    folder = unit.folder
    return {
        "latencies": spill_durations(latency, ["task"], folder / f"latencies-{unit.number}.bin"),
        "queued": spill_durations(queued, ["task"], folder / f"queued-{unit.number}.bin"),
    }


def _sum_calls(unit: Unit) -> dict[str, pl.DataFrame]:
    if not unit.has("cuda_api"):
        return {}
    return {
        "calls": spill_durations(
            unit.api, ["call"], unit.folder / f"call-durations-{unit.number}.bin"
        )
    }


def _sum_memory_operations(unit: Unit) -> dict[str, pl.DataFrame]:
    if not unit.has("memory_operation"):
        return {}
    moves = unit.read_begins(
        "memory_operation", ("operation", "bytes", "source", "destination")
    ).rename({"operation": "name"})
    if unit.has("memory") and unit.has("cuda_api"):
        place = find_rows(
            *to_arrays(unit.launched, "thread", "begin"), *to_arrays(moves, "thread", "begin")
        )
        call = np.where(place >= 0, unit.launching[place], -1) if unit.launched.height else place
        names = unit.api["call"].to_numpy()
        call_names = pl.Series(
            np.where(call >= 0, names[call], -1) if len(names) else call, dtype=pl.Int32
        )
        moves = moves.with_columns(call=call_names.set(call_names < 0, None))
    else:
        moves = moves.with_columns(call=pl.lit(None, pl.Int32))
    return {
        "memory": moves.group_by(MOVES, maintain_order=True).agg(
            count=pl.len().cast(pl.Int64),
            bytes=pl.col("bytes").sum(),
            time_ns=(pl.col("end") - pl.col("begin")).sum(),
        )
    }


def conclude(frames: Mapping[str, pl.DataFrame], context: Context) -> Result:
    tables, missing = {}, []
    if frames["gaps"].height:
        tables |= _make_gap_tables(frames, context)
    else:
        missing.append(f"gaps of devices: {context.absent(tuple(WORK))}")
    nothing = pl.DataFrame()
    if frames.get("latencies", nothing).height:
        tables["latencies"] = Table(
            "Launch latency: from the begin of the call to the begin of the kernel or graph",
            context.name_tasks(
                make_statistics(frames["latencies"], ["task"]).drop("time_ns").sort("task")
            ),
        )
        if frames["queued"].height:
            tables["queued"] = Table(
                "Queue time: from the end of the call to the begin of the kernel or graph",
                context.name_tasks(
                    make_statistics(frames["queued"], ["task"]).drop("time_ns").sort("task")
                ),
            )
    else:
        missing.append(
            f"launch latencies: {context.absent(('cuda_api',))}, or no kernel that its calls launched"
        )
    calls = frames.get("calls", nothing)
    if calls.height:
        rows = context.label_names(make_statistics(calls, ["call"]), "call", "cuda_api")
        rows = rows.with_columns(time_share=pl.col("time_ns") / pl.col("time_ns").sum())
        tables["calls"] = Table(
            "CUDA API calls",
            rows.select(
                "call",
                "count",
                "time_ns",
                "time_share",
                "mean_ns",
                "median_ns",
                "min_ns",
                "max_ns",
                "std_dev_ns",
            ),
        )
    else:
        missing.append(f"CUDA API calls: {context.absent(('cuda_api',))}")
    memory = frames.get("memory", nothing)
    if memory.height:
        tables["memory"] = Table("Memory operations", _sum_moves(memory))
    else:
        missing.append(f"memory operations: {context.absent(('memory_operation',))}")
    rules = _apply_rules(frames, tables, context)
    tables["rules"] = Table("Expert rules, as in Nsight Systems", rules)
    return Result("idle", ANALYSIS.title, tables, [], missing)


def _make_gap_tables(frames: Mapping[str, pl.DataFrame], context: Context) -> dict[str, Table]:
    unknown = (pl.col("time_ns") - pl.sum_horizontal(*STATES)).alias("unknown_ns")
    states = [pl.col(name).alias(f"{name}_ns") for name in STATES]
    by_device = frames["gaps"].sort("device", "class")
    names = (
        pl.col("class")
        .replace_strict(dict(enumerate(LENGTHS)), return_dtype=pl.String)
        .alias("length")
    )
    share = (pl.col("time_ns") / context.duration).alias("elapsed_share")
    whole = (
        by_device.group_by("class", maintain_order=True)
        .agg(pl.col("count", "time_ns", *STATES).sum())
        .sort("class")
    )
    devices = frames["gaps"]["device"].n_unique()
    of_all = (pl.col("time_ns") / (context.duration * devices)).alias("elapsed_share")
    tables = {
        "gaps": Table(
            "Idle time of devices by gap length, and what the host did",
            whole.select(names, "count", "time_ns", of_all, *states, unknown),
            __doc__ or "",
        ),
        "gaps_of_devices": Table(
            "Idle time of each device by gap length, and what the host did",
            context.name_devices(
                by_device.select("device", names, "count", "time_ns", share, *states, unknown)
            ),
        ),
    }
    if frames["long"].height:
        long = (
            frames["long"]
            .sort("time_ns", descending=True, maintain_order=True)
            .select("device", "begin", "time_ns", *states, unknown)
        )
        tables["long_gaps"] = Table(
            f"Longest gaps (1 ms or more; up to {MOST_LONG} per device)",
            context.name_devices(long.rename({"begin": "begin_ns"})),
        )
    return tables


def _sum_moves(memory: pl.DataFrame) -> pl.DataFrame:
    rows = memory.group_by("name", "source", "destination", maintain_order=True).agg(
        pl.col("count", "bytes", "time_ns").sum()
    )
    return rows.sort("time_ns", descending=True, maintain_order=True).select(
        label_values("name", "memory_operation", "other").alias("operation"),
        label_values("source", "memory_kind", None),
        label_values("destination", "memory_kind", None),
        "count",
        "bytes",
        "time_ns",
        divide_columns(pl.col("bytes").cast(pl.Float64), pl.col("time_ns")).alias("bandwidth_gb_s"),
        PAGEABLE.alias("pageable"),
    )


def _apply_rules(
    frames: Mapping[str, pl.DataFrame], tables: Mapping[str, Table], context: Context
) -> pl.DataFrame:
    """Return a row for each rule that can be judged: its name, how often it is met, for how long
    (ns), and what to do.
    """
    rows: list[tuple[str, int, int, str]] = []
    memory = frames.get("memory", pl.DataFrame())
    if memory.height and memory["call"].null_count() < memory.height:
        labels = context.labels["cuda_api"].select(
            pl.col("value").cast(memory["call"].dtype).alias("call"), "label"
        )
        moves = memory.join(labels, on="call", how="left").with_columns(
            pl.col("label").fill_null("")
        )
        asynchronous = pl.col("label").str.contains(ASYNCHRONOUS)
        copies = pl.col("label").str.contains(COPYING)
        across = pl.col("name") != DEVICE_TO_DEVICE
        for rule, condition, advice in (
            (
                "asynchronous copies of pageable memory",
                copies & asynchronous & PAGEABLE,
                "they block the host: use pinned memory",
            ),
            (
                "synchronous copies",
                copies & ~asynchronous & across,
                "they block the host: use asynchronous ones",
            ),
            (
                "synchronous sets",
                pl.col("label").str.contains(SETTING) & ~asynchronous,
                "they may block the host",
            ),
        ):
            matching = moves.filter(condition)
            rows.append(
                (rule, int(matching["count"].sum()), int(matching["time_ns"].sum()), advice)
            )
    if "calls" in tables:
        blocking = frames["blocking"]
        rows.append(
            (
                "API calls that wait for the device and leave it idle",
                int(blocking["count"].sum()),
                int(blocking["time_ns"].sum()),
                "wait for events or streams rather than the device, and as late as possible",
            )
        )
    if frames["gaps"].height:
        long = frames["gaps"].filter(pl.col("class") >= 6)
        rows.append(
            (
                "gaps of 100 ms or more",
                int(long["count"].sum()),
                int(long["time_ns"].sum()),
                "look at what the host does in them",
            )
        )
        low = frames["chunks"].filter(pl.col("busy_share") < LOW)
        rows.append(
            (
                f"parts of the job (1/{CHUNKS} each) in which a device is busy less than {LOW:.0%}",
                low.height,
                int(((low["end"] - low["begin"]) * (1 - low["busy_share"])).sum()),
                "launch more work at a time, or overlap it with the host",
            )
        )
    return pl.DataFrame(
        rows,
        schema={"rule": pl.String, "count": pl.Int64, "time_ns": pl.Int64, "advice": pl.String},
        orient="row",
    )


ANALYSIS = Analysis(
    "idle",
    "Idle devices, launches and memory operations",
    (
        "idle time of devices by gap length and by what the host does; launch latency; CUDA API "
        "calls; memory operations; Nsight's expert rules"
    ),
    ((*WORK, "cuda_api"),),
    collect,
    conclude,
)
