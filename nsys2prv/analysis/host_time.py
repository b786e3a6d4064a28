"""Find what host threads do in some time: what the reports show of it, and what they do not record.

Nothing is said that no row shows. That a thread computes is shown by CPU samples outside the
profiler's libraries, or by the states of threads; that it waits, by these or by calls of the
operating system. Calls of the operating system within a call of CUDA or MPI belong to that call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import polars as pl

from nsys2prv.analysis.intervals import (
    EMPTY,
    Spans,
    find_parents,
    intersect_spans,
    merge_spans,
    subtract_spans,
    unite_span_sets,
)
from nsys2prv.analysis.unit import Unit, find_io_spans, to_arrays
from nsys2prv.events.catalogue import map_labels

#: Layouts of calls of the operating system, and of what a thread's states and samples are.
OS, STATES_OF_THREADS, SAMPLES = (
    ("osrt", "pthread"),
    ("thread_state", "thread_state_reason"),
    ("cpu_sample", "cpu_sample_stack"),
)
#: Libraries of the profiler, by their names.
PROFILER = re.compile(r"(?i)nsys|nsight|cupti|ToolsInjection|libToolsInj|quadd")
#: Overhead that Nsight Systems records, and that CUDA or the program has without it too.
NO_PROFILER = re.compile(
    r"(?i)unknown|command buffer|module loading|lazy|compil|^dl(?:open|close)\((?!.*(?:nsys|nsight|cupti|Tools))"
)
#: Parts of time -> what people call it. Each moment counts for the first that applies.
PARTS = {
    "profiler": "in the profiler",
    "io": "in file or network I/O",
    "os": "in other calls of the operating system",
    "off_cpu": "off the CPU",
    "computing": "computing",
    "unknown": "in no recorded call",
}
#: What is not recorded -> the option of nsys that records it.
RECORDED_BY = {
    "calls of the operating system": "--trace=osrt",
    "states of threads": "--cpuctxsw=process-tree",
    "CPU samples": "--sample=process-tree",
}
#: A sample stands for the time since the one before on its thread, at most so many of the usual.
LONGEST_SAMPLE = 4.0


def divide_host_time(unit: Unit, thread: int, spans: Spans) -> dict[str, int]:
    """Return how long a thread is in each of PARTS within some time (ns)."""
    found = {
        "profiler": _find_profiler_spans(unit, thread),
        "io": find_io_spans(unit, [thread]),
        "os": unite_span_sets([unit.find_thread_spans(layout, [thread]) for layout in OS]),
        "off_cpu": _find_state(unit, thread, "Off the CPU"),
        "computing": unite_span_sets(
            [_find_state(unit, thread, "Running"), find_sampled_spans(unit, thread)]
        ),
    }
    parts, left = {}, spans
    for name, where in found.items():
        parts[name] = intersect_spans(left, where).length
        left = subtract_spans(left, where)
    return {**parts, "unknown": left.length}


def _find_profiler_spans(unit: Unit, thread: int) -> Spans:
    if not unit.has("profiler_overhead"):
        return EMPTY
    rows = unit.remember(
        "overhead", lambda: unit.read_begins("profiler_overhead", ("what",))
    ).filter(pl.col("thread") == thread)
    return unit.merge_rows(rows.filter(~pl.col("what").is_in(list(unit.options.no_profiler))))


def list_unrecorded(unit: Unit) -> list[str]:
    """Return what would tell more about hosts, of what is not recorded: keys of RECORDED_BY."""
    layouts = zip(RECORDED_BY, (OS, STATES_OF_THREADS, SAMPLES), strict=True)
    return [what for what, names in layouts if not unit.has(*names)]


def _find_state(unit: Unit, thread: int, state: str) -> Spans:
    """Return when a thread was in a state, from the changes of its state."""
    if not unit.has(*STATES_OF_THREADS):
        return EMPTY
    changes = unit.remember(
        "thread_states", lambda: _read_layouts(unit, STATES_OF_THREADS, "state")
    )
    changes = changes.filter(pl.col("thread") == thread)
    value, begin = to_arrays(changes, "state", "begin")
    in_state = value[:-1] == _STATES[state.lower()]
    return merge_spans(begin[:-1][in_state], begin[1:][in_state])


def _read_layouts(unit: Unit, layouts: tuple[str, ...], *fields: str) -> pl.DataFrame:
    return pl.concat(
        [unit.read_begins(layout, fields) for layout in layouts if unit.has(layout)]
    ).sort("begin", maintain_order=True)


def read_samples(unit: Unit, thread: int) -> pl.DataFrame:
    """Return the CPU samples of a thread while it runs, outside the profiler: begin, function,
    module, lasts (ns since the one before, at most LONGEST_SAMPLE times the usual).
    """
    samples = unit.remember(
        "cpu_samples", lambda: _read_layouts(unit, SAMPLES, "function", "module", "state")
    ).filter(pl.col("thread") == thread)
    lasts = samples["begin"].diff().fill_null(0)
    usual = float(lasts.filter(lasts > 0).median() or 0)
    return samples.with_columns(
        lasts=pl.Series(np.minimum(lasts.to_numpy(), LONGEST_SAMPLE * usual).astype(np.int64))
    ).filter(~pl.col("module").is_in(list(unit.options.profiler_modules)) & (pl.col("state") <= 0))


def find_sampled_spans(unit: Unit, thread: int) -> Spans:
    """Return when CPU samples show that a thread computes, outside the profiler."""
    if not unit.has(*SAMPLES):
        return EMPTY
    begin, lasts = to_arrays(read_samples(unit, thread), "begin", "lasts")
    return merge_spans(begin - lasts, begin)


def count_functions(unit: Unit, thread: int, spans: Spans) -> pl.DataFrame:
    """Return the time of a thread's samples within some time by function: function (value), time
    (ns).
    """
    if not unit.has(*SAMPLES):
        return pl.DataFrame(schema={"function": pl.Int64, "time": pl.Int64})
    samples = read_samples(unit, thread)
    inside = pl.Series(spans.contains(samples["begin"].to_numpy()))
    return samples.filter(inside).group_by("function").agg(time=pl.col("lasts").sum())


def sum_ranges(unit: Unit, thread: int, spans: Spans) -> pl.DataFrame:
    """Return how much of some time lies in each NVTX range of a thread and in none within it: by
    `group` of names as the options have them, `time` (ns) and `count`.
    """
    schema = dict.fromkeys(("group", "time", "count"), pl.Int64)
    if not unit.has("nvtx_pushpop"):
        return pl.DataFrame(schema=schema)
    ranges = unit.remember("nvtx_ranges", lambda: unit.read_begins("nvtx_pushpop", ("range",)))
    ranges = ranges.filter(pl.col("thread") == thread)
    begin, end, name = to_arrays(ranges, "begin", "end", "range")
    if not len(begin):
        return pl.DataFrame(schema=schema)
    own = spans.within(begin, end)
    _, parent = find_parents(ranges["thread"].to_numpy(), begin, end)
    inner = np.bincount(parent[parent >= 0], own[parent >= 0], len(own)).astype(np.int64)
    group = np.load(str(unit.options.groups), mmap_mode="r")[name].astype(np.int64)
    frame = pl.DataFrame({"group": group, "time": own - inner})
    return frame.group_by("group").agg(pl.col("time").sum(), count=pl.len().cast(pl.Int64))


def select_profiler_modules(labels: pl.DataFrame) -> tuple[int, ...]:
    """Return the values of the profiler's libraries. labels: value and label of modules."""
    return tuple(value for value, label in labels.rows() if PROFILER.search(label))


def select_no_profiler(labels: pl.DataFrame) -> tuple[int, ...]:
    """Return the values of overhead that is not the profiler's. labels: value and label."""
    return tuple(value for value, label in labels.rows() if NO_PROFILER.search(label))


def compare_with_others(
    frame: pl.DataFrame, name: str, tasks: tuple[int, ...]
) -> list[tuple[int, float, float]]:
    """Return what some tasks have more time of than the others: (value of `name`, mean of theirs,
    median of the others'), ns, the greatest difference first. frame: task, `name`, time.
    """
    is_own = pl.col("task").is_in(list(tasks))
    others = frame["task"].n_unique() - len(tasks)
    sums = frame.group_by(name).agg(
        own=pl.col("time").filter(is_own).sum() / max(len(tasks), 1),
        # A task without a row has none of it.
        usual=pl.when((~is_own).sum() * 2 > others)
        .then(pl.col("time").filter(~is_own).median())
        .otherwise(0.0),
    )
    sums = sums.filter(pl.col("own") > pl.col("usual"))
    return (
        sums.sort(pl.col("own") - pl.col("usual"), descending=True)
        .select(name, "own", "usual")
        .rows()
    )


def describe_parts(parts: Mapping[str, float], most: int = 3) -> str:
    """Describe in words what hosts do: `62 % computing, 30 % in file or network I/O`."""
    whole = sum(parts.values())
    if not whole:
        return ""
    shares = sorted(((value / whole, name) for name, value in parts.items()), reverse=True)
    return ", ".join(f"{share:.0%} {PARTS[name]}" for share, name in shares[:most] if share >= 0.05)


_STATES = {label.lower(): value for label, value in map_labels("thread_state").items()}
