"""Compute the memory in use on every GPU, by kind of memory, over all processes in the trace.

An address identifies memory of a process from its allocation to its release, or to the next
allocation at that address; the missing release is then added. Memory allocated before the capture
is unknown: its releases change nothing and are counted. A release frees as much as its allocation
took, whatever size the release records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from nsys2prv._util.budget import ALLOCATION_ROWS
from nsys2prv._util.columns import sum_changes
from nsys2prv._util.text import Note
from nsys2prv.events.catalogue import Metric, load_counter_tables
from nsys2prv.events.cuda import ALLOCATION, GPU_MEMORY, RELEASE
from nsys2prv.events.kind import Counters
from nsys2prv.export.source import NULL
from nsys2prv.match import FactFile, RelationContext, read_fact, write_result
from nsys2prv.table.task_result import TaskResult

#: The relation, and the layout of its records.
NAME, LAYOUT = "gpu_memory", "memory_in_use"
#: Event types are this plus the kind of memory.
EVENT_TYPE_BASE = 66500010
#: Greatest size of memory, bytes; beyond it numbers are damage.
GREATEST_SIZE = 1 << 52
#: Columns that identify a piece of memory, and columns of operations on it.
ALLOCATION_KEY = ("report", "process", "address")
OPERATION_COLUMNS = ("time_at", "operation", "object_gpu", "memory", "bytes")


def find_memory_in_use(context: RelationContext) -> list[TaskResult]:
    """Compute how much GPU memory is in use over time, as counters. A single task computes it,
    because it depends on all operations of a process.
    """
    more = (context.first_task, context.folder)
    return context.run_all(
        [partial(add_up_memory, context.files[GPU_MEMORY], context.tasks, *more)]
    )


def add_up_memory(
    files: tuple[FactFile, ...], tasks: Mapping[tuple[int, int], int], number: int, folder: Path
) -> TaskResult:
    """Add up allocations and releases to the memory in use on each GPU, and store it as counters.
    tasks: (report, process) -> task of the trace. number: of this task.
    """
    parts = [_find_changes(rows) for rows in _split_by_address(read_fact(files, tasks))]
    changes, unknown, replaced = zip(*parts, strict=True) if parts else ((), (), ())
    counters = _make_counters(pl.concat(changes)) if changes else ()
    result = write_result(NAME, number, folder, counters)
    notes = (
        (unknown, "releases of memory without a recorded allocation, discarded"),
        (
            replaced,
            "allocations at addresses in use, without a recorded release; the earlier ones count as released",
        ),
    )
    for counts, what in notes:
        if count := sum(counts):
            result.notes.append(Note(f"memory in use: {count:,} {what}", is_routine=True))
    return result


def _split_by_address(rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the rows with times in pieces of about ALLOCATION_ROWS. All rows of an address are in
    one piece.
    """
    usable = (pl.col("time_at") != NULL) & pl.col("operation").is_in([ALLOCATION, RELEASE])
    count = -(-rows.height // ALLOCATION_ROWS)
    for number in range(count):
        in_piece = pl.col("address").hash() % count == number
        yield (
            rows.lazy()
            .filter(usable & in_piece)
            .select(*ALLOCATION_KEY, *OPERATION_COLUMNS)
            .collect()
        )


def _find_changes(rows: pl.DataFrame) -> tuple[pl.DataFrame, int, int]:
    """Return the change by each allocation and release (object_gpu, memory, time_at, delta in
    bytes), relative to the previous row at its address. Return also the number of releases without
    an allocation, and of allocations at addresses in use.
    """
    # At one address, a release precedes an allocation at the same time.
    rows = rows.sort(*ALLOCATION_KEY, "time_at", "operation", descending=[False] * 4 + [True])
    allocates = rows["operation"].to_numpy() == ALLOCATION
    owner = rows.select(pl.struct(ALLOCATION_KEY).rle_id()).to_series().to_numpy()
    ends = np.flatnonzero((owner[1:] == owner[:-1]) & allocates[:-1])
    live = np.zeros(rows.height, bool)
    live[ends + 1] = True
    size = rows["bytes"].to_numpy().clip(0, GREATEST_SIZE)
    begins = np.flatnonzero(allocates)
    changes = rows[np.append(begins, ends)].select(
        "object_gpu",
        "memory",
        time_at=rows["time_at"].gather(np.append(begins, ends + 1)),
        delta=pl.Series(np.append(size[begins], -size[ends])),
    )
    return changes, int((~allocates & ~live).sum()), int((allocates & live).sum())


def _make_counters(changes: pl.DataFrame) -> Iterator[Counters]:
    """Yield the totals for each GPU and kind of memory, with a record at each change."""
    labels = load_counter_tables()[LAYOUT].labels
    for (gpu, memory), gpu_changes in sorted(
        changes.partition_by("object_gpu", "memory", as_dict=True, include_key=False).items()
    ):
        time, total = sum_changes(
            gpu_changes["time_at"].to_numpy(), gpu_changes["delta"].to_numpy()
        )
        total = total.clip(0, GREATEST_SIZE)
        metrics = (Metric(labels[EVENT_TYPE_BASE + int(memory)]),)
        yield Counters(LAYOUT, time, int(gpu), metrics, total[:, None])
