"""How much memory of each kind is in use on every GPU, at every moment, by all processes in the trace.

An address means memory of one process, from its allocation to its release or to the next allocation at that address, whose missing
release is then made up for. Memory that was allocated before the capture is not known: releases of it change nothing and are counted.
A release gives back what its allocation took, whatever the release itself says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from nsys2prv.catalogue.counters import Metric, counter_tables
from nsys2prv.columns import ABSENT
from nsys2prv.events.gpu_memory import ALLOCATION, FACTS, RELEASE
from nsys2prv.events.kind import Counters
from nsys2prv.relations.kind import NO_MODEL, Related, Relation
from nsys2prv.report.sqlite import NULL

LAYOUT = "memory_in_use"
#: Event types are this plus the kind of memory.
BASE = 66500010
#: Beyond it (bytes) numbers are damage.
GREATEST = 1 << 52
OWNER = ("report", "process", "address")


def relate(facts: Mapping[str, pl.DataFrame]) -> Related:
    rows = facts[FACTS].filter((pl.col("time_at") != NULL) & pl.col("operation").is_in([ALLOCATION, RELEASE]))
    # Of an address, a release comes before an allocation at the same time.
    rows = rows.select(*OWNER, "time_at", "operation", "object_gpu", "memory", pl.col("bytes").clip(0, GREATEST)).sort(
        *OWNER, "time_at", "operation", descending=[False] * 4 + [True])
    same = pl.all_horizontal(pl.col(name) == pl.col(name).shift(1) for name in OWNER)
    follows = (same & (pl.col("operation").shift(1) == ALLOCATION)).fill_null(False)
    rows = rows.with_columns(live=follows, gpu_before=pl.col("object_gpu").shift(1), memory_before=pl.col("memory").shift(1),
                             bytes_before=pl.col("bytes").shift(1))
    taken = rows.filter(pl.col("operation") == ALLOCATION).select("object_gpu", "memory", "time_at", delta="bytes")
    given = rows.filter("live").select(object_gpu="gpu_before", memory="memory_before", time_at="time_at", delta=-pl.col("bytes_before"))
    changes = pl.concat([taken, given]).group_by("object_gpu", "memory", "time_at").agg(pl.col("delta").sum())
    unknown = rows.filter((pl.col("operation") == RELEASE) & ~pl.col("live")).height
    replaced = rows.filter((pl.col("operation") == ALLOCATION) & pl.col("live")).height
    return Related(notes=list(_notes(unknown, replaced)), counters=list(_counters(changes)))


def _notes(unknown: int, replaced: int) -> Iterator[str]:
    if unknown:
        yield f"memory in use: {unknown:,} releases of memory whose allocation is not in the reports, left out"
    if replaced:
        yield f"memory in use: {replaced:,} allocations at addresses in use, whose releases are not in the reports; taken for released"


def _counters(changes: pl.DataFrame) -> Iterator[Counters]:
    """The totals from the changes: per GPU, a record at each time at which one of them changed."""
    totals = changes.sort("object_gpu", "memory", "time_at").with_columns(
        total=pl.col("delta").cum_sum().over("object_gpu", "memory"))
    labels = counter_tables()[LAYOUT].labels
    for (gpu,), found in totals.group_by("object_gpu", maintain_order=True):
        times, instant = np.unique(found["time_at"].to_numpy(), return_inverse=True)
        kinds, kind = np.unique(found["memory"].to_numpy(), return_inverse=True)
        values = np.full((len(times), len(kinds)), ABSENT)
        values[instant.reshape(-1), kind.reshape(-1)] = found["total"].clip(0, GREATEST).to_numpy()
        yield Counters(LAYOUT, times, int(gpu), tuple(Metric(labels[BASE + int(number)]) for number in kinds), values)


RELATIONS = (
    Relation("gpu_memory", "Memory in use on GPUs", NO_MODEL, (FACTS,), (LAYOUT,), relate),
)
