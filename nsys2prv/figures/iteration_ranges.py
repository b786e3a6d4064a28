"""Find the NVTX ranges that are the iterations of a process: those of one name (numbers in it apart) that
repeat without overlapping on a thread, hold most of the kernels, and about as many of them each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import polars as pl

from nsys2prv._util.columns import ABSENT
from nsys2prv._util.intervals import SIDES
from nsys2prv.figures.device_group import to_arrays
from nsys2prv.figures.nvtx_operations import NUMBER, TAIL
from nsys2prv.figures.thresholds import (
    AS_MANY,
    LEAST_COUNT,
    LEAST_KERNELS,
    LEAST_NUMBERED,
    NEARLY,
    USUAL,
)
from nsys2prv.table.event_reader import EventReader

#: Ranges that are pushed and popped, and those that are started and ended anywhere.
LAYOUTS = ("nvtx_pushpop", "nvtx_startend")
#: Calls of libraries, and layers of a network, are no iterations.
NO_ITERATION = r"^(P?MPI_|nccl[A-Z:])|(?i:(^|[^a-z])(layer|block)s?([^a-z]|$))"
#: Ranges that are tried.
MOST_TRIED = 20


def find_range_name(
    reader: EventReader,
    patterns: pl.DataFrame,
    launches: Mapping[int, np.ndarray],
    may_be: Callable[[int, np.ndarray, float], bool],
) -> str | None:
    """Return the pattern of the names of the ranges that are iterations of most units looked at, None for
    none. patterns: as of :func:`make_patterns`. launches: of each unit when its kernels were launched.
    may_be: whether ranges without a number are iterations: by the unit, edges (ns), usual number of kernels.
    """
    # Ranges that are pushed and popped before those that are started and ended anywhere.
    for layout in LAYOUTS:
        names = [
            _find_by_ranges(
                _list_ranges(reader, unit, patterns, layout),
                patterns,
                begins,
                partial(may_be, unit),
            )
            for unit, begins in launches.items()
        ]
        if names := [name for name in names if name]:
            return max(names, key=names.count)
    return None


def make_patterns(labels: pl.DataFrame) -> pl.DataFrame:
    """Return `value` -> `pattern`: the name with its numbers folded, and `code`, its place
    in alphabetical order (int32, from 1).
    """
    return labels.select(
        value=pl.col("value").cast(pl.Int64),
        pattern=pl.col("label").str.replace(TAIL, "").str.replace_all(NUMBER, "#"),
    ).with_columns(code=pl.col("pattern").rank("dense").cast(pl.Int32))


def _list_ranges(
    reader: EventReader,
    unit: int,
    patterns: pl.DataFrame,
    layout: str,
) -> list[pl.DataFrame]:
    """Return the ranges of a unit whose names are known, a frame for each window of the trace: begin,
    end, thread, code (int32), and number (ABSENT for none).
    """
    values = patterns["value"].to_numpy()
    codes = np.zeros(int(values.max(initial=-1)) + 2, np.int32)
    codes[values] = patterns["code"].to_numpy()
    frames = []
    for _, frame in reader.read_windows(layout, ("range", "number"), unit, np.int64):
        # A range without a name has the value -1, and so the last code, which is 0.
        code = pl.Series(codes[frame["range"].to_numpy()])
        frame = frame.select(
            "begin",
            "end",
            pl.col("thread").cast(pl.Int32),
            code=code,
            number=pl.col("number"),
        )
        frames.append(frame.filter(pl.col("code") > 0))
    return frames


def _find_by_ranges(
    ranges: Sequence[pl.DataFrame],
    patterns: pl.DataFrame,
    kernels: np.ndarray,
    may_be: Callable[[np.ndarray, float], bool],
) -> str | None:
    """Return the pattern of the names of the ranges that are iterations of one task, None for none.
    ranges: by begin, in several frames. kernels: when those of its device were launched. may_be: as of
    :func:`find_range_name`.
    """
    groups = _summarize_groups(ranges)
    with_numbers = patterns.filter(pl.col("pattern").str.contains("#", literal=True))["code"]
    with_numbers = with_numbers.unique().to_list()
    numbered = pl.col("numbered") | pl.col("code").is_in(with_numbers)
    groups = groups.with_columns(numbered=numbered)
    # Two are enough where they are numbered and one follows the other.
    two = (
        (pl.col("count") == LEAST_NUMBERED)
        & pl.col("numbered")
        & (pl.col("covered") >= NEARLY * (pl.col("last") - pl.col("first")))
    )
    calls = patterns.filter(pl.col("pattern").str.contains(NO_ITERATION))["code"].unique()
    is_iteration = ~pl.col("overlaps") & ~pl.col("code").is_in(calls.to_list())
    groups = groups.filter(((pl.col("count") >= LEAST_COUNT) | two) & is_iteration)
    inside = np.searchsorted(kernels, groups["last"].to_numpy()) - np.searchsorted(
        kernels, groups["first"].to_numpy()
    )
    groups = groups.filter(
        pl.Series(inside >= LEAST_KERNELS * len(kernels), dtype=pl.Boolean)
    ).sort(["covered", "count", "code", "thread"], descending=[True, True, False, False])
    if not groups.height:
        return None
    for row in groups.head(MOST_TRIED).iter_rows(named=True):
        is_same = (pl.col("thread") == row["thread"]) & (pl.col("code") == row["code"])
        own = pl.concat(one.filter(is_same) for one in ranges)
        begins, ends, numbers = to_arrays(own, *SIDES, "number")
        # Work of the last iteration may run after its range has ended.
        edges = np.append(begins, ends[-1])
        counts = np.diff(np.searchsorted(kernels, edges))
        # What programs count are iterations; operations have numbers of other things.
        counted = np.mean(np.diff(numbers.clip(0)) == 1) >= USUAL or row["code"] in with_numbers
        if _are_alike(counts) and (counted or may_be(edges, float(np.median(counts)))):
            return str(patterns.filter(pl.col("code") == row["code"])["pattern"][0])
    return None


def _summarize_groups(ranges: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return a row for each thread and code: count, covered (their lengths together), first begin
    and last end (ns), whether any overlaps the next one, whether any is numbered. ranges: by begin.
    """
    begin, end, overlaps = pl.col("begin"), pl.col("end"), pl.col("overlaps")
    parts = [
        frame.group_by("thread", "code").agg(
            count=pl.len().cast(pl.Int64),
            covered=(end - begin).sum(),
            first=begin.first(),
            last=end.max(),
            until=end.last(),
            overlaps=(begin.shift(-1) < end).any(),
            numbered=(pl.col("number") != ABSENT).any(),
        )
        for frame in ranges
    ]
    follows = (pl.col("first").shift(-1) < pl.col("until")).any()
    return (
        pl.concat(parts)
        .group_by("thread", "code")
        .agg(
            pl.col("count", "covered").sum(),
            pl.col("first").first(),
            pl.col("last").max(),
            overlaps.any() | follows,
            pl.col("numbered").any(),
        )
    )


def _are_alike(counts: np.ndarray) -> bool:
    """Return whether most kernels run in intervals that have about as many kernels as the one in
    the middle: those of iterations do, those from one call of a function to the next do not.
    """
    usual = np.median(counts)
    alike = (counts <= AS_MANY * usual) & (AS_MANY * counts >= usual)
    return bool(counts[alike].sum() > LEAST_KERNELS * counts.sum())
