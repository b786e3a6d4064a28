"""Idle time of devices by gap length and by what the host does; launch latency; CUDA API calls;
memory operations; Nsight's expert rules.

A gap is a stretch in which a device executes nothing, those before its first and after its last
operation among them, within the time that the reports of all processes cover. Its time is split by
what the threads that drive the device do. Launch latency: from the begin of the launching call to
the begin of the work; queued: from the call's end, where the work begins later. The rules are those
of Nsight's expert system, in our words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from nsys2prv._util.columns import ABSENT
from nsys2prv.analysis.device_group import (
    MEMORY,
    STATES,
    WORK,
    DeviceGroup,
    find_driving_threads,
    find_host_states,
    find_rows,
    label_values,
    to_arrays,
)
from nsys2prv.analysis.intervals import Spans, make_statistics, spill_durations
from nsys2prv.analysis.result import Analysis, Context, Result, divide_columns, sum_known
from nsys2prv.events.catalogue import map_labels
from nsys2prv.events.cuda import ASYNCHRONOUS, COPYING, DEVICE_TO_DEVICE, SETTING

#: Classes of gaps by length: names, and bounds in ns.
LENGTHS = ("< 1 us", "1-10 us", "10-100 us", "100 us - 1 ms", "1-10 ms", "10-100 ms", ">= 100 ms")
BOUNDS = 10 ** np.arange(3, 9)
#: Gaps this long are listed on their own, so many of a device.
LONG_NS, MOST_LONG = 1_000_000, 5
#: Chunks of the job in which a device is busy for less than this share are low in use.
CHUNKS, LOW = 30, 0.5
_PAGEABLE_MEMORY = map_labels("memory_kind")["pageable"]
#: Whether a memory operation reads or writes pageable memory.
PAGEABLE = (pl.col("source") == _PAGEABLE_MEMORY) | (pl.col("destination") == _PAGEABLE_MEMORY)
#: Columns that tell memory operations of one sort from others.
MOVES = ["name", "source", "destination", "call"]
#: Tables of latencies -> their titles.
LATENCIES = {
    "latencies": "Launch latency: from the begin of the call to the begin of the kernel or graph",
    "queued": "Queue time: from the end of the call to the begin of the kernel or graph",
}

#: A rule: its name, what meets it (`count`, `time_ns`), and what to do.
Rule = tuple[str, pl.DataFrame, str]


def collect(unit: DeviceGroup) -> Iterator[tuple[str, pl.DataFrame]]:
    """Collect gaps by length (`gaps`), the longest (`long`), how busy parts of the job are
    (`chunks`), idle time by the call that waits (`blocking`), durations of calls and
    latencies, and sums of memory operations.
    """
    edges = np.linspace(0, unit.duration, CHUNKS + 1).astype(np.int64)
    chunks = unit.covered.within(edges[:-1], edges[1:])
    for device in unit.known_devices:
        active = unit.find_active_spans(device)
        idle = unit.covered - active
        length = idle.end - idle.begin
        states = find_host_states(unit, device)
        gaps = pl.DataFrame(
            {
                "device": np.full(len(length), device),
                "class": np.searchsorted(BOUNDS, length, "right"),
                "begin": idle.begin,
                "time_ns": length,
                **{name: states[name].within(idle.begin, idle.end) for name in STATES},
            }
        )
        by_class = gaps.group_by("device", "class", maintain_order=True).agg(
            pl.len().cast(pl.Int64).alias("count"), pl.col("time_ns", *STATES).sum()
        )
        yield "gaps", by_class
        yield "long", gaps.filter(pl.col("time_ns") >= LONG_NS).top_k(MOST_LONG, by="time_ns")
        busy = active.within(edges[:-1], edges[1:]) / np.maximum(chunks, 1)
        shares = pl.DataFrame({"length": chunks, "busy_share": busy})
        yield "chunks", shares.filter(pl.col("length") > 0)
        if unit.has("cuda_api"):
            yield "blocking", sum_idle_by_call(unit, device, idle).filter("synchronises")
    if unit.has("cuda_api"):
        yield "calls", _spill(unit, unit.api, "call", "call-durations")
        if unit.has("launch"):
            yield from _measure_latencies(unit)
    if unit.has("memory_operation"):
        yield "memory", _sum_memory_operations(unit)


def _spill(unit: DeviceGroup, frame: pl.DataFrame, by: str, name: str) -> pl.DataFrame:
    return spill_durations(frame, [by], unit.folder / f"{name}-{unit.number}.bin")


def sum_idle_by_call(unit: DeviceGroup, device: int, idle: Spans) -> pl.DataFrame:
    """Return the idle time of a device by the call that the threads driving it are in: device, call
    (value), synchronises, count, time_ns. Waiting beside a busy device costs nothing.
    """
    calls = unit.select_calls("cuda_api", find_driving_threads(unit, device))
    calls = calls.select("call", time_ns=unit.measure_within(idle, calls))
    sums = calls.filter(pl.col("time_ns") > 0).group_by("call")
    sums = sums.agg(pl.len().cast(pl.Int64).alias("count"), pl.col("time_ns").sum())
    return sums.sort("call").with_columns(
        device=pl.lit(device, pl.Int64),
        synchronises=pl.col("call").is_in(list(unit.options.synchronising)),
    )


def _measure_latencies(unit: DeviceGroup) -> Iterator[tuple[str, pl.DataFrame]]:
    sender, sent, begin, what = to_arrays(unit.launched_work, "sender", "sent", "begin", "what")
    call, returned = unit.launch_call_rows, unit.api["end"].to_numpy()
    task, kernel = unit.task_of[sender], what != MEMORY
    returned = np.where(call >= 0, returned[call], begin) if len(returned) else begin
    times = {"latencies": (kernel, sent), "queued": (kernel & (begin > returned), returned)}
    for name, (own, since) in times.items():
        rows = pl.DataFrame({"task": task[own], "begin": since[own], "end": begin[own]})
        yield name, _spill(unit, rows, "task", name)


def _sum_memory_operations(unit: DeviceGroup) -> pl.DataFrame:
    """Return memory operations by MOVES; `call`: the value of that which launched them, null where
    it is not known.
    """
    moves = unit.read_begins("memory_operation", ("operation", "bytes", "source", "destination"))
    call = np.full(moves.height, ABSENT)
    if unit.has("memory") and unit.has("cuda_api"):
        place = find_rows(
            *to_arrays(unit.launched_work, "thread", "begin"), *to_arrays(moves, "thread", "begin")
        )
        launched = np.flatnonzero(place >= 0)
        row = unit.launch_call_rows[place[launched]]
        call[launched[row >= 0]] = unit.api["call"].to_numpy()[row[row >= 0]]
    calls = pl.Series(call, dtype=pl.Int32)
    return (
        moves.rename({"operation": "name"})
        .with_columns(call=calls.set(calls < 0, None))
        .group_by(MOVES, maintain_order=True)
        .agg(
            count=pl.len().cast(pl.Int64),
            bytes=sum_known(pl.col("bytes")),
            time_ns=(pl.col("end") - pl.col("begin")).sum(),
        )
    )


def conclude(frames: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    """Add tables of gaps, latencies, calls and memory operations, and the rules."""
    if frames["gaps"].height:
        _add_gap_tables(frames, context, result)
    else:
        result.missing.append(f"gaps of devices: {context.explain_absence(tuple(WORK))}")
    for name, title in LATENCIES.items():
        if frames[name].height:
            by_task = make_statistics(frames[name], ["task"]).drop("time_ns").sort("task")
            result.add(name, title, context.label_tasks(by_task))
    absent = context.explain_absence(("cuda_api",))
    if not frames["latencies"].height:
        result.missing.append(f"launch latencies: {absent}, or no kernel that its calls launched")
    if frames["calls"].height:
        rows = make_statistics(frames["calls"], ["call"])
        rows = context.label_names(rows, "call", "cuda_api").select(
            "call",
            "count",
            "time_ns",
            (pl.col("time_ns") / pl.col("time_ns").sum()).alias("time_share"),
            pl.exclude("call", "count", "time_ns"),
        )
        result.add("calls", "CUDA API calls", rows)
    else:
        result.missing.append(f"CUDA API calls: {absent}")
    if frames["memory"].height:
        result.add("memory", "Memory operations", _sum_moves(frames["memory"]))
    else:
        result.missing.append(
            f"memory operations: {context.explain_absence(('memory_operation',))}"
        )
    rules = _apply_rules(frames, context)
    result.add("rules", "Expert rules, as in Nsight Systems", rules)


def _add_gap_tables(frames: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    unknown = (pl.col("time_ns") - pl.sum_horizontal(*STATES)).alias("unknown_ns")
    states = [*(pl.col(name).alias(f"{name}_ns") for name in STATES), unknown]
    by_device = (
        frames["gaps"]
        .sort("device", "class")
        .with_columns(
            pl.col("class")
            .replace_strict(dict(enumerate(LENGTHS)), return_dtype=pl.String)
            .alias("length"),
            elapsed_share=pl.col("time_ns") / context.elapsed,
        )
    )
    whole = (
        by_device.group_by("class", "length", maintain_order=True)
        .agg(pl.col("count", "time_ns", *STATES).sum())
        .sort("class")
        .with_columns(
            elapsed_share=pl.col("time_ns") / (context.elapsed * by_device["device"].n_unique())
        )
    )
    columns = ("length", "count", "time_ns", "elapsed_share", *states)
    title = "by gap length, and what the host did"
    result.add("gaps", f"Idle time of devices {title}", whole.select(columns), __doc__)
    result.add(
        "gaps_of_devices",
        f"Idle time of each device {title}",
        context.label_devices(by_device.select("device", *columns)),
    )
    if frames["long"].height:
        long = frames["long"].sort("time_ns", descending=True, maintain_order=True)
        long = long.select("device", pl.col("begin").alias("begin_ns"), "time_ns", *states)
        title = f"Longest gaps (1 ms or more; up to {MOST_LONG} per device)"
        result.add("long_gaps", title, context.label_devices(long))


def _sum_moves(memory: pl.DataFrame) -> pl.DataFrame:
    rows = memory.group_by("name", "source", "destination", maintain_order=True).agg(
        pl.col("count", "time_ns").sum(), bytes=sum_known(pl.col("bytes").fill_null(ABSENT))
    )
    return rows.sort("time_ns", descending=True, maintain_order=True).select(
        label_values("name", "memory_operation", "other").alias("operation"),
        label_values("source", "memory_kind", None),
        label_values("destination", "memory_kind", None),
        "count",
        "bytes",
        "time_ns",
        divide_columns(pl.col("bytes").cast(pl.Float64), "time_ns").alias("bandwidth_gb_s"),
        PAGEABLE.alias("pageable"),
    )


def _apply_rules(frames: Mapping[str, pl.DataFrame], context: Context) -> pl.DataFrame:
    """Return a row for each rule that can be judged: its name, how often it is met, for how long
    (ns), and what to do.
    """
    rules: list[Rule] = []
    memory = frames["memory"]
    if memory.height and memory["call"].null_count() < memory.height:
        rules += _judge_memory_operations(memory, context)
    if frames["calls"].height:
        rules.append(
            (
                "API calls that wait for the device and leave it idle",
                frames["blocking"],
                "wait for events or streams rather than the device, and as late as possible",
            )
        )
    if frames["gaps"].height:
        rules += _judge_gaps(frames["gaps"], frames["chunks"])
    rows = [
        (
            rule,
            *(int(met[name].sum()) if met.height else 0 for name in ("count", "time_ns")),
            advice,
        )
        for rule, met, advice in rules
    ]
    schema = {"rule": pl.String, "count": pl.Int64, "time_ns": pl.Int64, "advice": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _judge_memory_operations(memory: pl.DataFrame, context: Context) -> list[Rule]:
    """Return the rules about memory operations, of which some were launched by known calls."""
    labels = context.labels["cuda_api"].select(
        pl.col("value").cast(memory["call"].dtype).alias("call"), "label"
    )
    moves = memory.join(labels, on="call", how="left").with_columns(pl.col("label").fill_null(""))
    asynchronous, copies, sets = (
        pl.col("label").str.contains(pattern) for pattern in (ASYNCHRONOUS, COPYING, SETTING)
    )
    # No pageable memory slows those within a GPU.
    across = pl.col("name") != DEVICE_TO_DEVICE
    return [
        (
            "asynchronous copies of pageable memory",
            moves.filter(copies & asynchronous & PAGEABLE),
            "they block the host: use pinned memory",
        ),
        (
            "synchronous copies",
            moves.filter(copies & ~asynchronous & across),
            "they block the host: use asynchronous ones",
        ),
        ("synchronous sets", moves.filter(sets & ~asynchronous), "they may block the host"),
    ]


def _judge_gaps(gaps: pl.DataFrame, chunks: pl.DataFrame) -> list[Rule]:
    """Return the rules about gaps, and about parts of the job with little work."""
    low = chunks.filter(pl.col("busy_share") < LOW)
    idle_part = (pl.col("length") * (1 - pl.col("busy_share"))).sum()
    return [
        (
            "gaps of 100 ms or more",
            gaps.filter(pl.col("class") == LENGTHS.index(">= 100 ms")),
            "look at what the host does in them",
        ),
        (
            f"parts of the job (1/{CHUNKS} each) in which a device is busy less than {LOW:.0%}",
            low.select(count=pl.len(), time_ns=idle_part),
            "launch more work at a time, or overlap it with the host",
        ),
    ]


ANALYSIS = Analysis(
    "idle",
    "Idle devices, launches and memory operations",
    ((*WORK, "cuda_api"),),
    collect,
    conclude,
    is_of_covered=True,
)
