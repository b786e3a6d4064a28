"""The index of NCCL calls: which of them, on which thread, a kernel does the work of.

A kernel's launch lies inside the NCCL range of its call, on the same thread. Between ncclGroupStart
and ncclGroupEnd calls only queue up, and the launch lies inside ncclGroupEnd; in the advanced trace
calls and launch lie inside an "API Group". Either way the ranges of a thread fall into *units* that
follow each other: an outermost range, or a whole group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import (
    ABSENT,
    FrameWriter,
    StoredFrame,
    factorize,
    factorize_together,
    read_frame,
)
from nsys2prv.events.names.calls import (
    ALL_REDUCE,
    FIRST_MAKING,
    GROUP,
    GROUP_END,
    GROUP_START,
    LAST_MAKING,
    LAST_OPERATION,
    RECEIVE,
    SEND,
    SHARES,
)
from nsys2prv.nsight.info import PROCESS_MASK

#: What a unit's operations have in common, or ABSENT.
_COMMON = ("reduction", "root", "peer", "group", "type")
#: What the index takes of the payloads of ranges.
SAID = ("communicator", "bytes", "ranks", "rank", "sequence", *_COMMON)
#: What several kernels that do the work of one unit share.
_SUMS = ("fused", "messages", "bytes", "reduce_bytes", "share_bytes", "message_bytes")


def save_regions(found: Sequence[pl.DataFrame], frames: FrameWriter) -> list[StoredFrame]:
    """Store the ranges that one task found, if there are any."""
    return [frames.append(pl.concat(found))] if found else []


class KernelUnits(Struct):
    """For each kernel asked for, in the order asked, what its unit says
    (:meth:`RegionIndex.units`), and parts: of how many kernels that do the unit's work it is one.
    ABSENT, the communicator 0, where there is no unit.
    """

    columns: dict[str, np.ndarray]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    @property
    def hit(self) -> np.ndarray:
        return self["unit"] >= 0


class Units(Struct):
    """Units that move data, in order of thread and begin.

    thread, begin, end: when; shared: of how many ranks the process is, 0 unknown; columns: what
    their operations have in common (or ABSENT), are (fused, messages) and move in all (bytes and
    other sums).
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
    def _ranges(self) -> dict[str, np.ndarray]:
        """Return all ranges in order, in columns, with their unit."""
        frame = pl.concat([read_frame(stored) for stored in self._stored])
        columns = {column.name: column.to_numpy() for column in frame.iter_columns()}
        # The complement turns an order round.
        order = np.lexsort((~columns["end"], columns["begin"], columns["thread"]))
        columns = {name: column[order] for name, column in columns.items()}
        operation, threads = columns["operation"], _group_slices(columns["thread"])
        outer = _outer(columns, threads)
        step = np.where(
            outer, (operation == GROUP_START).astype(np.int64) - (operation == GROUP_END), 0
        )
        before = np.zeros(len(outer), np.int64)
        for first, last in threads:
            level = np.cumsum(step[first:last])
            # A capture may begin inside a group: its end then counts for nothing.
            level -= np.minimum(np.minimum.accumulate(level), 0)
            before[first + 1 : last] = level[:-1]
        return {**columns, "unit": np.cumsum(outer & (before == 0)) - 1}

    @cached_property
    def operations(self) -> pl.DataFrame:
        """Return the operations that move data, each with its unit and its place in it; calls
        within calls left out.
        """
        operation = self._ranges["operation"]
        moving = _rows(self._ranges, (operation >= 1) & (operation <= LAST_OPERATION))
        moving = _rows(moving, _outer(moving, _group_slices(moving["thread"])))
        moving["process"] = moving["thread"] & PROCESS_MASK
        first = _first_rows(moving["unit"])
        moving["place"] = np.arange(len(moving["unit"])) - np.repeat(
            first, np.diff(first, append=len(moving["unit"]))
        )
        made_ranks, made_rank, shared = self._made(moving["process"], moving["communicator"])
        moving["ranks"] = np.where(moving["ranks"] > 0, moving["ranks"], made_ranks)
        moving["rank"] = np.where(
            moving["rank"] >= 0, moving["rank"], np.where(shared == 1, made_rank, ABSENT)
        )
        return pl.DataFrame({**moving, "shared": shared})

    def _made(
        self, process: np.ndarray, communicator: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what the calls that made communicators state: ranks, the least rank (or ABSENT),
        and the number of the process's ranks (or 0).
        """
        found = (
            np.full(len(process), ABSENT),
            np.full(len(process), ABSENT),
            np.zeros(len(process), np.int64),
        )
        operation, known = (
            self._ranges["operation"],
            (self._ranges["communicator"] != 0) & (self._ranges["ranks"] > 0),
        )
        making = _rows(
            self._ranges, known & (operation >= FIRST_MAKING) & (operation <= LAST_MAKING)
        )
        if not len(making["thread"]):
            return found
        frame = (
            pl.DataFrame({**making, "process": making["thread"] & PROCESS_MASK})
            .group_by("process", "communicator")
            .agg(
                pl.col("ranks").max(),
                pl.col("rank").min(),
                shared=pl.col("rank").n_unique().cast(pl.Int64),
            )
        )
        made = {
            column.name: column.to_numpy()
            for column in frame.sort("process", "communicator").iter_columns()
        }
        for first, last in _group_slices(made["process"]):
            ids = made["communicator"][first:last]
            place = np.minimum(np.searchsorted(ids, communicator), len(ids) - 1)
            rows = np.flatnonzero(
                (process == made["process"][first]) & (ids[place] == communicator)
            )
            for column, name in zip(found, ("ranks", "rank", "shared"), strict=True):
                column[rows] = made[name][first:last][place[rows]]
        return found

    @cached_property
    def units(self) -> Units:
        """Return the units that move data."""
        moving = {column.name: column.to_numpy() for column in self.operations.iter_columns()}
        unit, operation, size, communicator = (
            moving[name] for name in ("unit", "operation", "bytes", "communicator")
        )
        first = _first_rows(unit)

        count = np.diff(first, append=len(unit))
        # Most are units of one operation, which is all they say.
        many = np.flatnonzero(count > 1)
        of_many, first_of_many = np.repeat(count > 1, count), np.cumsum(count[many]) - count[many]

        def over(ufunc: np.ufunc, values: np.ndarray) -> np.ndarray:
            result = values[first].astype(np.int64)
            if len(many):
                result[many] = ufunc.reduceat(values[of_many], first_of_many)
            return result

        def common(values: np.ndarray, otherwise: int = ABSENT) -> np.ndarray:
            return np.where(
                over(np.minimum, values) == over(np.maximum, values), values[first], otherwise
            )

        pairs = np.isin(operation, (SEND, RECEIVE))
        rows = np.arange(len(unit))
        collective = over(np.minimum, np.where(pairs, len(rows), rows))
        known = over(np.minimum, size) >= 0
        several = over(np.minimum, communicator) != over(np.maximum, communicator)
        columns = {
            "unit": unit[first],
            "fused": count,
            "messages": over(np.add, pairs.astype(np.int64)),
            "operation": common(operation, GROUP),
            "first_operation": np.append(operation, 0)[collective],
            "sequence": np.append(moving["sequence"], ABSENT)[collective],
            "bytes": np.where(known & ~several, over(np.add, size), ABSENT),
            "known": (known & ~several).astype(np.int64),
            "reduce_bytes": over(np.add, np.where(operation == ALL_REDUCE, size, 0)),
            "share_bytes": over(np.add, np.where(np.isin(operation, SHARES), size, 0)),
            "message_bytes": over(np.add, np.where(pairs, size, 0)),
            "communicator": np.where(several, 0, communicator[first]),
            "ranks": np.where(several, ABSENT, over(np.maximum, moving["ranks"])),
            "rank": np.where(several, ABSENT, common(moving["rank"])),
            **{name: common(moving[name]) for name in _COMMON},
        }
        of_unit = _first_rows(self._ranges["unit"])
        begin, end = self._ranges["begin"][of_unit], self._ranges["end"]
        end = np.maximum.reduceat(end, of_unit) if len(of_unit) else end
        return Units(
            moving["thread"][first],
            begin[unit[first]],
            end[unit[first]],
            over(np.maximum, moving["shared"]),
            columns,
        )

    def tie(self, threads: np.ndarray, times: np.ndarray, devices: np.ndarray) -> KernelUnits:
        """Return the units in which kernels were launched: by thread (globalTid) and time (local
        ns) of the launching call.

        A process with several GPUs makes the calls of all of them in one group, of equal shares:
        each device has its part of the sums. Of several communicators in one group nothing tells
        which kernel belongs to which: communicator and bytes stay unknown.
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
        return KernelUnits({**tied, "parts": np.append(parts, ABSENT)[place]})


def _rows(columns: Mapping[str, np.ndarray], wanted: np.ndarray) -> dict[str, np.ndarray]:
    return (
        dict(columns)
        if wanted.all()
        else {name: column[wanted] for name, column in columns.items()}
    )


def _first_rows(keys: np.ndarray) -> np.ndarray:
    """Return the index of the first row of each group, in rows sorted by group."""
    return (
        np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        if len(keys)
        else np.zeros(0, np.int64)
    )


def _group_slices(keys: np.ndarray) -> list[tuple[int, int]]:
    """Return the first row of each group and the one after its last, in rows sorted by group."""
    first = _first_rows(keys).tolist()
    return list(zip(first, [*first[1:], len(keys)][: len(first)], strict=True))


def _outer(ranges: Mapping[str, np.ndarray], threads: list[tuple[int, int]]) -> np.ndarray:
    """Return a mask of the ranges, in order, that begin after all earlier ones of their thread have
    ended.
    """
    begin, end = ranges["begin"], ranges["end"]
    outer = np.ones(len(begin), bool)
    for first, last in threads:
        outer[first + 1 : last] = begin[first + 1 : last] >= np.maximum.accumulate(
            end[first : last - 1]
        )
    return outer


def _last_begun(units: Units, threads: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the last unit that had begun on a thread at a time, -1 for none."""
    place = np.full(len(threads), -1)
    distinct, codes = factorize(threads)
    for code, thread in enumerate(distinct):
        first, last = (
            np.searchsorted(units.thread, thread, "left"),
            np.searchsorted(units.thread, thread, "right"),
        )
        if first < last:
            rows = np.flatnonzero(codes == code)
            found = np.searchsorted(units.begin[first:last], times[rows], "right") - 1
            place[rows] = np.where(found >= 0, first + found, -1)
    return place


def _devices(place: np.ndarray, devices: np.ndarray, units: int) -> np.ndarray:
    """Return, for each unit, the number of devices for whose kernels it is the last begun."""
    tied = place >= 0
    (unit, _), _ = factorize_together(place[tied], devices[tied])
    return np.bincount(unit, minlength=units)
