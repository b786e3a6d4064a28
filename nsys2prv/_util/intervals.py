"""Process time intervals in columns of int64 ns: set arithmetic, nesting of ranges, and
distributions of durations.

Intervals are half open: begin <= time < end. Distributions are exact and need bounded memory: units
write durations sorted by group to a file, and groups are then read one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.budget import EXECUTIONS, INTERVAL_ROWS
from nsys2prv._util.columns import (
    find_edges,
    find_modes,
    is_sorted,
    mask_changes,
    number_rows,
    take_rows,
)
from nsys2prv._util.files import create_temporary_file
from nsys2prv._util.native import core

#: Columns that describe two modes of durations.
MODES = {"two_modes": pl.Boolean} | dict.fromkeys(("low_ns", "high_ns", "high_share"), pl.Float64)


class Spans(Struct, frozen=True, eq=False):
    """A set of times, stored as sorted maximal intervals."""

    #: Begins of the intervals, ascending (int64 ns).
    begin: np.ndarray
    #: Their ends.
    end: np.ndarray

    @property
    def length(self) -> int:
        """The total time in the set (ns)."""
        return int((self.end - self.begin).sum())

    def __len__(self) -> int:
        return len(self.begin)

    def find_longest(self) -> tuple[int, int]:
        """Return (start, end) of the longest interval (the first of several), or zeros for an empty
        set.
        """
        if not len(self):
            return 0, 0
        longest = int(np.argmax(self.end - self.begin))
        return int(self.begin[longest]), int(self.end[longest])

    def find_hull(self) -> tuple[int, int]:
        """Return (start of the first interval, end of the last one), or zeros for an empty set."""
        return (int(self.begin[0]), int(self.end[-1])) if len(self) else (0, 0)

    def until(self, times: np.ndarray) -> np.ndarray:
        """Return how much of the set is before each time (ns)."""
        times = np.ascontiguousarray(times, np.int64)
        if not len(self):
            return np.zeros(times.shape, np.int64)
        lengths = np.empty(times.shape, np.int64)
        core.time_before(_list_sides(self), times, lengths)
        return lengths

    def __and__(self, other: Spans) -> Spans:
        """Return the times that are in both sets."""
        for one, inner in ((self, other), (other, self)):
            is_around = len(one) == 1 and len(inner) and one.begin[0] <= inner.begin[0]
            if is_around and inner.end[-1] <= one.end[0]:
                return inner
        return _compute(core.intersect_spans, self, other)

    def __sub__(self, other: Spans) -> Spans:
        """Return the times in this set that are not in the other."""
        if not len(self) or not len(other):
            return self
        return _compute(core.subtract_spans, self, other)

    def split(self) -> Iterator[Spans]:
        """Yield the set in parts of a few intervals, to limit the memory for processing."""
        for first in range(0, len(self), INTERVAL_ROWS):
            yield Spans(
                self.begin[first : first + INTERVAL_ROWS], self.end[first : first + INTERVAL_ROWS]
            )

    def clip(self, begin: int, end: int) -> Spans:
        """Return the part of the set within [begin, end)."""
        return self & merge_spans(np.array([begin]), np.array([end]))

    def within(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return how much of the set is within each [begin, end) (ns)."""
        lengths = self.until(end)
        for first in range(0, len(begin), INTERVAL_ROWS):
            part = slice(first, first + INTERVAL_ROWS)
            lengths[part] -= self.until(begin[part])
        return lengths

    def overlap(self, other: Spans) -> int:
        """Return the length of the time that is in both sets (ns)."""
        return int(self.within(other.begin, other.end).sum())

    def touches(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return a mask of the intervals [begin, end), none of them empty, that contain a time of
        the set.
        """
        last = np.append(self.begin, np.iinfo(np.int64).max)
        return last[np.searchsorted(self.end, begin, "right")] < end

    def contains(self, times: np.ndarray) -> np.ndarray:
        """Return a mask of the times that are in the set."""
        if not len(self):
            return np.zeros(np.shape(times), bool)
        index = np.searchsorted(self.begin, times, "right") - 1
        return (index >= 0) & (times < self.end[np.maximum(index, 0)])


SIDES = ("begin", "end")
EMPTY = Spans(*np.zeros((2, 0), np.int64))


def merge_spans(begin: np.ndarray, end: np.ndarray) -> Spans:
    """Return the union of the intervals [begin, end), which may be in any order, as a set of times.
    Empty intervals are ignored.
    """
    begin, end = np.asarray(begin, np.int64), np.asarray(end, np.int64)
    if not is_sorted(begin):
        order = np.argsort(begin, kind="stable")
        begin, end = begin[order], end[order]
    return _unite_two(Spans(begin, end), EMPTY)


def unite(*sets: Spans) -> Spans:
    """Return the times that are in any of the sets."""
    sets = tuple(one for one in sets if len(one))
    return reduce(_unite_two, sets) if sets else EMPTY


def _unite_two(first: Spans, second: Spans) -> Spans:
    """Return the union of two lists of intervals, each sorted by start."""
    return _compute(core.unite_spans, first, second)


def _compute(function: Callable[..., tuple[bytes, bytes]], first: Spans, second: Spans) -> Spans:
    """Return the result of a compiled set function."""
    found = function(*_list_sides(first), *_list_sides(second))
    return Spans(*(np.frombuffer(side, np.int64) for side in found))


def _list_sides(spans: Spans) -> tuple[np.ndarray, np.ndarray]:
    return np.ascontiguousarray(spans.begin), np.ascontiguousarray(spans.end)


def take_first(sets: Iterable[tuple[str, Spans]]) -> Iterator[tuple[str, Spans]]:
    """Give each time to the first set that contains it: yield each (name, set) without the times
    that are in earlier sets.
    """
    taken = EMPTY
    for name, spans in sets:
        yield name, spans - taken
        taken = unite(taken, spans)


def find_reaching(begin: np.ndarray, end: np.ndarray, first: int, last: int) -> slice:
    """Return rows that include all ranges with a part in [first, last). The ranges are sorted by
    begin; rows before these are left out only if the ranges are also sorted by end.
    """
    rows = slice(0, int(np.searchsorted(begin, last)))
    if is_sorted(end[rows]):
        return slice(int(np.searchsorted(end[rows], first, "right")), rows.stop)
    return rows


def order_by_thread(thread: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Return the indices that sort rows by thread, then time. If rows are already sorted by time
    and there are few threads, no times are compared.
    """
    if not is_sorted(time) or thread.max(initial=0) >= 1 << 16 or thread.min(initial=0) < 0:
        return np.lexsort((time, thread))
    return np.argsort(thread.astype(np.uint16), kind="stable")


def order_ranges(begin: np.ndarray, end: np.ndarray, *keys: np.ndarray) -> np.ndarray:
    """Return the indices that sort ranges by keys (such as threads), then by start, longer ranges
    first.
    """
    order = order_by_thread(*keys, begin) if len(keys) == 1 else np.lexsort((begin, *keys[::-1]))
    same = np.flatnonzero(~mask_changes(begin[order], *(key[order] for key in keys))[1:])
    if (end[order[same]] < end[order[same + 1]]).any():
        # Only the few ranges that start together are still in the wrong order.
        places = np.union1d(same, same + 1)
        alike = order[places]
        columns = (-end[alike], begin[alike], *(key[alike] for key in keys[::-1]))
        order[places] = alike[np.lexsort(columns)]
    return order


def find_parents(
    thread: np.ndarray, begin: np.ndarray, end: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find how ranges are nested. Return two arrays: the depth (from 0) and the parent (row index,
    or -1) of each range. Rows are sorted by thread and start, longer ranges first.

    If a range overlaps others without being nested, its parent is the open range that started last.
    """
    depths, parents = np.empty((2, len(begin)), np.int32)
    columns = (thread, np.int32), (begin, np.int64), (end, np.int64)
    given = (np.ascontiguousarray(column, dtype) for column, dtype in columns)
    core.find_parents(*given, depths, parents)
    return depths, parents


def find_innermost(
    ranges: Sequence[np.ndarray], parent: np.ndarray, at_thread: np.ndarray, at: np.ndarray
) -> np.ndarray:
    """Find for each pair of a thread and a time the innermost range of the thread that is open
    then. Return its row index, or -1. ranges: thread, begin and end, as for :func:`find_parents`;
    parent: its result.
    """
    thread, begin, end = ranges
    found = np.full(len(at), -1)
    order = np.argsort(at_thread, kind="stable")
    ordered = at_thread[order]
    for first, last in pairwise(find_edges(thread).tolist()):
        own = order[slice(*np.searchsorted(ordered, (thread[first], thread[first] + 1)))]
        places = np.searchsorted(begin[first:last], at[own], "right")
        found[own] = np.where(places > 0, first + places - 1, -1)
    if (found < 0).all():
        return found
    while (over := (found >= 0) & (end[found] < at)).any():
        found[over] = parent[found[over]]
    return found


def take_off_inner(values: np.ndarray, parent: np.ndarray) -> np.ndarray:
    """Subtract from each range's value the values of ranges nested directly in it (int64). parent:
    from :func:`find_parents`.
    """
    own = values.copy()
    for first in range(0, len(parent), INTERVAL_ROWS):
        above = parent[first : first + INTERVAL_ROWS]
        inner = np.flatnonzero(above >= 0)
        np.subtract.at(own, above[inner], values[first + inner])
    return own


def measure_exclusive(time: Spans, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Measure how much of a set of times is in each range of a thread, but in no range nested in it
    (ns). begin, end: of the ranges.
    """
    row = np.zeros(len(begin), np.int32)
    order = order_ranges(begin, end, row)
    begin, end = begin[order], end[order]
    _, parent = find_parents(row, begin, end)
    exclusive = np.empty(len(begin), np.int64)
    exclusive[order] = np.maximum(take_off_inner(time.within(begin, end), parent), 0)
    return exclusive


class Outermost(Struct, frozen=True):
    """Ranges of threads that are not nested in others and do not overlap, sorted by thread and
    start, and therefore also by end.
    """

    #: Row of the trace, begin and end (ns).
    thread: np.ndarray
    begin: np.ndarray
    end: np.ndarray

    def find_next(self, thread: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Find for each pair of thread and time the range of the thread that contains this time,
        otherwise the next one. Return its index, or -1.
        """
        return self._search(self.end, thread, time, "right")

    def find(self, thread: np.ndarray, time: np.ndarray, at_end: bool) -> np.ndarray:
        """Find, for each pair of a thread and a time, the outermost range that starts exactly at
        this time (with `at_end`: that ends then). Return its index, or -1.
        """
        own = self.end if at_end else self.begin
        found = self._search(own, thread, time, "left")
        return np.where(np.append(own, -1)[found] == time, found, -1)

    def _search(
        self, own: np.ndarray, thread: np.ndarray, time: np.ndarray, side: Literal["left", "right"]
    ) -> np.ndarray:
        """Return the first range of each thread at (left) or after (right) a time, or -1."""
        span = np.int64(self.end.max(initial=0) + 1)
        keys = self.thread * span + own
        found = np.searchsorted(keys, thread * span + np.minimum(time, span), side)
        return np.where(np.append(self.thread, -1)[found] == thread, found, -1)


def find_outermost(
    columns: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray | slice]:
    """Find the outermost ranges of threads. Return three parts: the columns sorted by start (longer
    ranges first), the number of the outermost range around each range (int32), and the rows of the
    outermost ranges.

    columns: `begin`, `end` (int64 ns), `thread` (int32) and others, sorted by begin.
    """
    columns = {**columns, "end": np.maximum(columns["end"], columns["begin"])}
    begin, end, thread = (columns[name] for name in ("begin", "end", "thread"))
    if ((begin[1:] == begin[:-1]) & (end[1:] > end[:-1])).any():
        order = order_ranges(begin, end)
        columns = take_rows(columns, order)
        begin, end, thread = (columns[name] for name in ("begin", "end", "thread"))
    outer = np.empty(len(begin), np.int32)
    count = core.find_outermost((begin, end, thread), int(thread.max(initial=0)) + 1, outer)
    if count == len(begin):
        return columns, outer, slice(None)
    first = np.full(count, -1, np.int64)
    first[outer[::-1]] = np.arange(len(outer))[::-1]
    return columns, outer, first


def split_ranges(row: np.ndarray, begin: np.ndarray, end: np.ndarray) -> Iterator[slice]:
    """Divide ranges into slices of about EXECUTIONS ranges, so that nested ranges are in the slice
    of the range around them. Ranges are sorted by row and start. At least one slice is yielded.
    """
    first, size = 0, EXECUTIONS
    while first + size < len(row):
        part = slice(first, first + size)
        # Before this place all ranges of its row have ended, or a row begins.
        starts = np.flatnonzero(row[part][1:] != row[part][:-1]) + 1
        since = int(starts[-1]) if len(starts) else 0
        reached = np.maximum.accumulate(end[part][since:])
        free = np.flatnonzero(begin[part][since + 1 :] > reached[:-1])
        last = since + 1 + int(free[-1]) if len(free) else since
        if not last:
            size *= 2
            continue
        yield slice(first, first + last)
        first, size = first + last, EXECUTIONS
    yield slice(first, len(row))


def find_points_within(
    thread: np.ndarray, begin: np.ndarray, end: np.ndarray, at_thread: np.ndarray, at: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find for each range the points in time of its thread in [begin, end]. Return two arrays: the
    index of the first such point, and the index after the last.

    Ranges are sorted as for :func:`find_parents`. at_thread, at: thread and time of the points,
    sorted by these.
    """
    since, until = np.zeros((2, len(begin)), np.int64)
    for first, last in pairwise(find_edges(thread).tolist()):
        low, high = np.searchsorted(at_thread, (thread[first], thread[first] + 1))
        points = at[low:high]
        since[first:last] = low + np.searchsorted(points, begin[first:last], "left")
        until[first:last] = low + np.searchsorted(points, end[first:last], "right")
    return since, until


def spill_durations(
    frame: pl.DataFrame, by: Sequence[str], path: Path, apart: np.ndarray | None = None
) -> pl.DataFrame:
    """Write the durations (end - begin) of a frame's rows to a file, by group, as int64. Return a
    row per group: the columns `by`, `count`, `time_ns` (the sum), and the location as `file` and
    `start`.

    apart: unit of each row, if there are several units; a group contains the durations unit by
    unit.
    """
    first, codes = number_rows(*(frame[name].to_numpy() for name in by))
    # Few numbers are sorted in time proportional to their count.
    codes = codes.astype(np.min_scalar_type(len(first)))
    order = np.argsort(codes, kind="stable") if apart is None else np.lexsort((apart, codes))
    durations = (frame["end"] - frame["begin"]).to_numpy()[order]
    counts = np.bincount(codes, minlength=len(first))
    sums = np.add.reduceat(durations, np.cumsum(counts) - counts) if len(first) else durations
    with create_temporary_file(path) as file:
        file.write(durations.astype("<i8").data)
    groups = frame.select(by)[first].with_columns(count=counts, time_ns=sums)
    return groups.with_columns(
        file=pl.lit(str(path)), start=pl.col("count").cum_sum() - pl.col("count")
    )


def make_statistics(groups: pl.DataFrame, by: Sequence[str], modes: bool = False) -> pl.DataFrame:
    """Merge groups that were written in pieces, and return a row of statistics for each value of
    `by`, the largest total time first.

    Columns: count, time_ns, mean_ns, median_ns, min_ns, max_ns, std_dev_ns (of a sample; null for
    one execution). With `modes` also two_modes, low_ns and high_ns (means of the two modes),
    high_share (share of executions in the higher mode).
    """
    durations, frames = pl.col("durations").list, []
    for gathered in _gather_durations(groups, by):
        figures = gathered.select(
            *by,
            count=durations.len().cast(pl.Int64),
            time_ns=durations.sum(),
            mean_ns=durations.mean(),
            median_ns=durations.median(),
            min_ns=durations.min(),
            max_ns=durations.max(),
            std_dev_ns=durations.std(ddof=1),
        )
        if modes:
            found = [find_modes(one.to_numpy()) for one in gathered["durations"]]
            figures = figures.hstack(pl.DataFrame(found, schema=MODES, orient="row"))
        frames.append(figures)
    return pl.concat(frames).sort("time_ns", *by, descending=[True, *[False] * len(by)])


def count_durations(groups: pl.DataFrame, by: Sequence[str], bins: int) -> pl.DataFrame:
    """Merge groups from :func:`spill_durations` by some of their columns, and return histograms of
    their durations.

    Each group has `bins` bins from the shortest to the longest duration: `low_ns`, `high_ns`,
    `count`.
    """
    frames = []
    for gathered in _gather_durations(groups, by):
        for row, durations in enumerate(gathered["durations"]):
            count, edges = np.histogram(durations.to_numpy(), bins)
            limits = np.rint(edges).astype(np.int64)
            own = pl.DataFrame({"low_ns": limits[:-1], "high_ns": limits[1:], "count": count})
            frames.append(gathered.select(by)[[row] * bins].hstack(own))
    return pl.concat(frames)


def _gather_durations(groups: pl.DataFrame, by: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Yield some groups at a time, each with all its durations (`durations`, a list of int64 ns)."""
    files = {
        name: np.memmap(name, "<i8", "r")
        for name in groups["file"].unique()
        if Path(name).stat().st_size
    }
    joined = groups.group_by(by, maintain_order=True).agg("file", "start", "count")
    size = pl.col("count").list.sum()
    joined = joined.with_columns(piece=(size.cum_sum() - size) // EXECUTIONS)
    for some in joined.partition_by("piece", maintain_order=True):
        durations = [
            np.concatenate(
                [files[one][at : at + count] for one, at, count in zip(*row, strict=True)]
            )
            for row in some.select("file", "start", "count").rows()
        ]
        lists = pl.Series("durations", [pl.Series(one) for one in durations])
        yield some.select(by).with_columns(lists)
