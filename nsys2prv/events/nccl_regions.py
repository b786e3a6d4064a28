"""The index of NCCL calls: which of them, on which thread, a kernel does the work of.

A kernel's launch lies inside the NCCL range of its call, on the same thread. Between ncclGroupStart and ncclGroupEnd calls only
queue up, and the launch lies inside ncclGroupEnd; in the advanced trace calls and launch lie inside an "API Group". Either way
the ranges of a thread fall into *units* that follow each other: an outermost range, or a whole group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from nsys2prv.columns import ABSENT
from nsys2prv.frames import FrameWriter, StoredFrame, read_frame
from nsys2prv.naming.nccl import GROUP, GROUP_END, GROUP_START, LAST_OPERATION, RECEIVE, SEND
from nsys2prv.report.info import PROCESS_MASK

#: Operations by how their payload's bytes count in bandwidths: AllReduce; those whose bytes are one rank's share; all others.
ALL_REDUCE, SHARES = 1, (4, 5, 8, 9, 10)
#: What a unit's operations have in common, or ABSENT.
_COMMON = ("reduction", "root", "peer", "group", "type")


def save_regions(found: Sequence[pl.DataFrame], frames: FrameWriter) -> list[StoredFrame]:
    """Store the ranges that one task found, if there are any."""
    return [frames.append(pl.concat(found))] if found else []


@dataclass
class Tied:
    """For each kernel asked for: its unit (null columns without one), in the order asked."""

    frame: pl.DataFrame

    def __getitem__(self, name: str) -> np.ndarray:
        return self.frame[name].to_numpy()

    @property
    def hit(self) -> np.ndarray:
        return self["unit"] >= 0


class RegionIndex:
    """The NCCL ranges of one report, by thread. Read when first asked."""

    def __init__(self, stored: Sequence[StoredFrame] = ()) -> None:
        self._stored = tuple(stored)

    def __bool__(self) -> bool:
        return bool(self._stored)

    @cached_property
    def _ranges(self) -> pl.DataFrame:
        """All ranges in order with their unit."""
        ranges = pl.concat([read_frame(stored) for stored in self._stored]).sort("thread", "begin", "end", descending=[False, False, True])
        reach = pl.col("end").cum_max().shift(1).over("thread")
        ranges = ranges.with_columns(outer=reach.is_null() | (pl.col("begin") >= reach))
        step = pl.when(~pl.col("outer")).then(0).when(pl.col("operation") == GROUP_START).then(1) \
            .when(pl.col("operation") == GROUP_END).then(-1).otherwise(0)
        ranges = ranges.with_columns(level=step.cum_sum().over("thread"))
        # A capture may begin inside a group: its end then counts for nothing.
        ranges = ranges.with_columns(level=pl.col("level") - pl.min_horizontal(pl.col("level").cum_min().over("thread"), 0))
        before = pl.col("level").shift(1).over("thread").fill_null(0)
        return ranges.with_columns(unit=(pl.col("outer") & (before == 0)).cum_sum().cast(pl.Int64) - 1)

    @cached_property
    def operations(self) -> pl.DataFrame:
        """The operations that move data, each with its unit and its place in it; calls within calls left out."""
        moving = self._ranges.filter(pl.col("operation").is_between(1, LAST_OPERATION))
        reach = pl.col("end").cum_max().shift(1).over("thread")
        moving = moving.filter(reach.is_null() | (pl.col("begin") >= reach))
        process = (pl.col("thread") & PROCESS_MASK).alias("process")
        moving = moving.with_columns(process, place=pl.int_range(pl.len()).over("unit"))
        made = self._communicators
        moving = moving.join(made, on=["process", "communicator"], how="left", maintain_order="left")
        return moving.with_columns(
            ranks=pl.when(pl.col("ranks") > 0).then("ranks").otherwise(pl.col("made_ranks").fill_null(ABSENT)),
            rank=pl.when(pl.col("rank") >= 0).then("rank").when(pl.col("shared") == 1).then("made_rank").otherwise(None).fill_null(ABSENT))

    @cached_property
    def _communicators(self) -> pl.DataFrame:
        """What the calls that made communicators say, by process; shared: of how many ranks the process is."""
        made = self._ranges.filter((pl.col("communicator") != 0) & (pl.col("operation").is_between(30, 36)) & (pl.col("ranks") > 0))
        return made.with_columns((pl.col("thread") & PROCESS_MASK).alias("process")).group_by("process", "communicator").agg(
            made_ranks=pl.col("ranks").max(), made_rank=pl.col("rank").min(), shared=pl.col("rank").n_unique().cast(pl.Int64))

    @cached_property
    def _units(self) -> pl.DataFrame:
        moving = self.operations
        of_rank = pl.col("bytes").filter(pl.col("operation") == ALL_REDUCE).sum()
        shares = pl.col("bytes").filter(pl.col("operation").is_in(SHARES)).sum()
        pairs = pl.col("operation").is_in((SEND, RECEIVE))
        first = pl.col("operation").filter(~pairs).first().fill_null(0)
        units = moving.group_by("unit", maintain_order=True).agg(
            pl.col("thread", "process").first(),
            fused=pl.len().cast(pl.Int64), messages=pairs.sum().cast(pl.Int64),
            several=pl.col("communicator").n_unique() > 1, shared=pl.col("shared").max().fill_null(0),
            communicator=pl.col("communicator").first(), first_operation=first,
            sequence=pl.col("sequence").filter(~pairs).first().fill_null(ABSENT),
            operation=pl.when(pl.col("operation").n_unique() == 1).then(pl.col("operation").first()).otherwise(GROUP),
            known=(pl.col("bytes") >= 0).all(), bytes=pl.col("bytes").sum(),
            reduce_bytes=of_rank, share_bytes=shares, message_bytes=pl.col("bytes").filter(pairs).sum(),
            ranks=pl.col("ranks").max(), rank=pl.when(pl.col("rank").n_unique() == 1).then(pl.col("rank").first()).otherwise(ABSENT),
            **{name: pl.when(pl.col(name).n_unique() == 1).then(pl.col(name).first()).otherwise(ABSENT) for name in _COMMON},
        )
        spans = self._ranges.group_by("unit").agg(begin=pl.col("begin").min(), end=pl.col("end").max())
        return units.join(spans, on="unit", how="left")

    def tie(self, threads: np.ndarray, times: np.ndarray, devices: np.ndarray) -> Tied:
        """The units in which kernels were launched: by thread (globalTid) and time (local ns) of the launching call.

        A process with several GPUs makes the calls of all of them in one group, of equal shares: each device has its part of the
        sums. Of several communicators in one group nothing tells which kernel belongs to which: communicator and bytes stay unknown.
        """
        asked = pl.DataFrame({"thread": threads, "time": times, "device": devices}).with_row_index("row")
        units = self._units.sort("begin")
        tied = asked.sort("time").join_asof(units, left_on="time", right_on="begin", by="thread", strategy="backward",
                                            check_sortedness=False).sort("row")
        inside = (pl.col("time") <= pl.col("end")).fill_null(False)
        met = pl.col("device").n_unique().over("unit")
        parts = pl.when(pl.col("shared") > 0).then("shared").otherwise(met)
        parts = pl.when((parts > 1) & (pl.col("fused") % parts == 0)).then(parts).otherwise(1)
        tied = tied.with_columns(parts=parts)
        sums = ("fused", "messages", "bytes", "reduce_bytes", "share_bytes", "message_bytes")
        tied = tied.with_columns(pl.col(sums) // pl.col("parts"))
        unknown = {"communicator": 0, "ranks": ABSENT, "rank": ABSENT}
        known = pl.col("known") & ~pl.col("several")
        tied = tied.with_columns(
            bytes=pl.when(known).then("bytes").otherwise(ABSENT), known=known.cast(pl.Int64),
            **{name: pl.when(pl.col("several")).then(value).otherwise(pl.col(name)) for name, value in unknown.items()})
        others = [name for name in tied.columns if name not in ("row", "thread", "time", "device", "communicator", "process")]
        return Tied(tied.with_columns(
            *(pl.when(inside).then(name).otherwise(ABSENT).cast(pl.Int64).alias(name) for name in others if name not in ("begin", "end")),
            communicator=pl.when(inside).then("communicator").otherwise(0)))
