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

from nsys2prv.columns import ABSENT, factorize, factorize_together
from nsys2prv.frames import FrameWriter, StoredFrame, read_frame
from nsys2prv.naming.nccl import GROUP, GROUP_END, GROUP_START, LAST_OPERATION, RECEIVE, SEND
from nsys2prv.report.info import PROCESS_MASK

#: Operations by how their payload's bytes count in bandwidths: AllReduce; those whose bytes are one rank's share; all others.
ALL_REDUCE, SHARES = 1, (4, 5, 8, 9, 10)
#: What a unit's operations have in common, or ABSENT.
_COMMON = ("reduction", "root", "peer", "group", "type")
#: What the index takes of the payloads of ranges.
SAID = ("communicator", "bytes", "ranks", "rank", "sequence", *_COMMON)
#: What several kernels that do the work of one unit share.
_SUMS = ("fused", "messages", "bytes", "reduce_bytes", "share_bytes", "message_bytes")


def save_regions(found: Sequence[pl.DataFrame], frames: FrameWriter) -> list[StoredFrame]:
    """Store the ranges that one task found, if there are any."""
    return [frames.append(pl.concat(found))] if found else []


@dataclass
class Tied:
    """For each kernel asked for, in the order asked, what its unit says (:meth:`RegionIndex.units`), and parts: of how many kernels that do
    the unit's work it is one. ABSENT, the communicator 0, where there is no unit."""

    columns: dict[str, np.ndarray]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    @property
    def hit(self) -> np.ndarray:
        return self["unit"] >= 0


@dataclass
class Units:
    """Units that move data, in order of thread and begin.

    thread, begin, end: when; shared: of how many ranks the process is, 0 unknown; columns: what their operations have in common (or
    ABSENT), are (fused, messages) and move in all (bytes and other sums).
    """

    thread: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    shared: np.ndarray
    columns: dict[str, np.ndarray]


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
        moving = moving.with_columns(process, place=_places(moving["unit"].to_numpy()))
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
    def units(self) -> Units:
        """The units that move data."""
        moving = {column.name: column.to_numpy() for column in self.operations.drop("shared").iter_columns()}
        unit, operation, size, communicator = (moving[name] for name in ("unit", "operation", "bytes", "communicator"))
        first = _heads(unit)

        def over(ufunc: np.ufunc, values: np.ndarray) -> np.ndarray:
            return ufunc.reduceat(values, first).astype(np.int64, copy=False) if len(first) else np.zeros(0, np.int64)

        def common(values: np.ndarray, otherwise: int = ABSENT) -> np.ndarray:
            return np.where(over(np.minimum, values) == over(np.maximum, values), values[first], otherwise)

        pairs = np.isin(operation, (SEND, RECEIVE))
        rows = np.arange(len(unit))
        collective = over(np.minimum, np.where(pairs, len(rows), rows))
        known = over(np.minimum, size) >= 0
        several = over(np.minimum, communicator) != over(np.maximum, communicator)
        columns = {
            "unit": unit[first], "fused": over(np.add, np.ones(len(rows), np.int64)), "messages": over(np.add, pairs.astype(np.int64)),
            "operation": common(operation, GROUP),
            "first_operation": np.append(operation, 0)[collective], "sequence": np.append(moving["sequence"], ABSENT)[collective],
            "bytes": np.where(known & ~several, over(np.add, size), ABSENT), "known": (known & ~several).astype(np.int64),
            "reduce_bytes": over(np.add, np.where(operation == ALL_REDUCE, size, 0)),
            "share_bytes": over(np.add, np.where(np.isin(operation, SHARES), size, 0)),
            "message_bytes": over(np.add, np.where(pairs, size, 0)),
            "communicator": np.where(several, 0, communicator[first]),
            "ranks": np.where(several, ABSENT, over(np.maximum, moving["ranks"])),
            "rank": np.where(several, ABSENT, common(moving["rank"])),
            **{name: common(moving[name]) for name in _COMMON},
        }
        shared = over(np.maximum, self.operations["shared"].fill_null(0).to_numpy())
        ranges = {name: self._ranges[name].to_numpy() for name in ("unit", "begin", "end")}
        of_unit = _heads(ranges["unit"])
        end = np.maximum.reduceat(ranges["end"], of_unit) if len(of_unit) else ranges["end"]
        return Units(moving["thread"][first], ranges["begin"][of_unit][unit[first]], end[unit[first]], shared, columns)

    def tie(self, threads: np.ndarray, times: np.ndarray, devices: np.ndarray) -> Tied:
        """The units in which kernels were launched: by thread (globalTid) and time (local ns) of the launching call.

        A process with several GPUs makes the calls of all of them in one group, of equal shares: each device has its part of the
        sums. Of several communicators in one group nothing tells which kernel belongs to which: communicator and bytes stay unknown.
        """
        units = self.units
        place = _last_begun(units, threads, times)
        fused = units.columns["fused"]
        parts = np.where(units.shared > 0, units.shared, _devices(place, devices, len(fused)))
        parts = np.where((parts > 1) & (fused % np.maximum(parts, 1) == 0), parts, 1)
        # One more unit stands for none.
        place[(place >= 0) & (times > np.append(units.end, 0)[place])] = -1
        divided = (parts > 1).any()
        tied = {}
        for name, column in units.columns.items():
            values = column // parts if divided and name in _SUMS else column
            tied[name] = np.append(values, 0 if name == "communicator" else ABSENT)[place]
        return Tied({**tied, "parts": np.append(parts, ABSENT)[place]})


def _heads(unit: np.ndarray) -> np.ndarray:
    """Where each unit begins, in rows that stand unit by unit."""
    return np.flatnonzero(np.concatenate([[True], unit[1:] != unit[:-1]])) if len(unit) else np.zeros(0, np.int64)


def _places(unit: np.ndarray) -> np.ndarray:
    """Each row's place in its unit, in rows that stand unit by unit."""
    first = _heads(unit)
    return np.arange(len(unit)) - np.repeat(first, np.diff(first, append=len(unit)))


def _last_begun(units: Units, threads: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The last unit that had begun on a thread at a time, -1 for none."""
    place = np.full(len(threads), -1)
    distinct, codes = factorize(threads)
    for code, thread in enumerate(distinct):
        first, last = np.searchsorted(units.thread, thread, "left"), np.searchsorted(units.thread, thread, "right")
        if first < last:
            rows = np.flatnonzero(codes == code)
            found = np.searchsorted(units.begin[first:last], times[rows], "right") - 1
            place[rows] = np.where(found >= 0, first + found, -1)
    return place


def _devices(place: np.ndarray, devices: np.ndarray, units: int) -> np.ndarray:
    """For each unit the number of devices whose kernels it is the last begun of."""
    tied = place >= 0
    (unit, _), _ = factorize_together(place[tied], devices[tied])
    return np.bincount(unit, minlength=units)
