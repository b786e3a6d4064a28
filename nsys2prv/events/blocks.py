"""Blocks and warps inside of kernels (``-t gpu_blocks``): how many run on each GPU, and on how many
of its multiprocessors. A row for each would be more than anybody can look at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from nsys2prv._util.columns import ABSENT, blank_negative, sum_changes
from nsys2prv.events.catalogue import Metric, load_counter_tables
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import Counters, Reason, Rows
from nsys2prv.export.source import Part, mask_usable

LAYOUT = FACT = "gpu_blocks"
#: Event types of the catalogue.
BLOCKS, WARPS, MULTIPROCESSORS = 69200701, 69200702, 69200703


def extract_blocks(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Set blocks or warps aside: when and where they ran."""
    columns = extraction.read(part, ("start", "end", "globalPid", "deviceId", "SMId"))
    timed = mask_usable(columns["start"]) & mask_usable(columns["end"])
    columns = extraction.drop_rows(columns, ~timed, Reason.NO_TIME)
    facts = {
        "time_begin": columns["start"],
        "time_end": np.maximum(columns["end"], columns["start"]),
        "object_gpu": extraction.number_gpus(columns),
        "processor": blank_negative(columns["SMId"]),
        "type": np.full(columns.rows, WARPS if "_WARP_" in part.table else BLOCKS),
    }
    extraction.add_fact(FACT, facts)
    yield from ()


def count_running(facts: Mapping[str, pl.DataFrame]) -> Iterator[Counters]:
    """Yield how many blocks, warps and multiprocessors are busy at a time, for each GPU."""
    rows = facts[FACT].rename({"time_begin": "begin", "time_end": "end"})
    for (gpu, type_), own in rows.group_by("object_gpu", "type", maintain_order=True):
        yield _count(int(gpu), int(type_), own)
    for (gpu,), own in rows.filter(pl.col("processor") != ABSENT).group_by(
        "object_gpu", maintain_order=True
    ):
        own = own.sort("processor", "begin").with_columns(
            reached=pl.col("end").cum_max().shift(1).over("processor")
        )
        begins = pl.col("reached").is_null() | (pl.col("begin") > pl.col("reached"))
        busy = own.group_by(begins.cum_sum().alias("time")).agg(
            pl.col("begin").min(), pl.col("end").max()
        )
        yield _count(int(gpu), MULTIPROCESSORS, busy)


def _count(gpu: int, type_: int, rows: pl.DataFrame) -> Counters:
    """Return how many of some times (`begin`, `end`) there are at once."""
    time = np.concatenate([rows["begin"].to_numpy(), rows["end"].to_numpy()])
    time, count = sum_changes(time, np.repeat([1, -1], rows.height))
    metric = Metric(load_counter_tables()[LAYOUT].labels[type_])
    return Counters(LAYOUT, time, gpu, (metric,), count[:, None])
