"""Find the steady state: the time in which a job repeats itself. It consists of all iterations
except the first, from the time when all ranks take part. Efficiencies and findings cover it.

Iterations are NVTX ranges chosen by the user, or ranges of one name that repeat
(process_events.py). Only a few tasks are searched for that name, because all tasks do the same;
each task uses the thread with the most time in such ranges. Hosts run ahead of their devices. On
devices, an iteration begins when work launched before it has ended, and ends when work launched in
it has ended. Without such ranges, iterations are periods in the sequence of kernels of a device, or
of MPI calls (repeats.py), that a few tasks have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import DURATION
from nsys2prv._util.errors import UsageError
from nsys2prv._util.intervals import SIDES, Spans
from nsys2prv._util.text import suggest_range
from nsys2prv.events.name_rules import NamePattern
from nsys2prv.figures.device_group import (
    ITERATION_COLUMNS,
    WORK,
    DeviceGroup,
    Steady,
    to_arrays,
)
from nsys2prv.figures.process_events import (
    find_range_name,
    list_events,
    list_launches,
    make_patterns,
)
from nsys2prv.figures.repeats import choose_alike, find_periods, find_signs
from nsys2prv.figures.thresholds import LEAST_COUNT, LEAST_STEADY, MOST_APART, WARM
from nsys2prv.table.event_reader import RANGES, EventReader

#: Units that are looked at.
MOST_UNITS = 4
PERIOD = "the repeating sequence of "


class _Found(Struct, frozen=True):
    """Iterations of a job."""

    #: Begins, ascending, and the end of the last one (ns).
    begins: np.ndarray
    end: int
    #: Description, as in Steady.
    found_by: str
    #: Those of each task, as :func:`list_task_iterations` returns them; empty for periods.
    of_tasks: pl.DataFrame


def find_steady_state(
    reader: EventReader,
    labels: pl.DataFrame,
    pattern: str,
    covered: Spans,
    list_all: Callable[[NamePattern], pl.DataFrame],
    show: Callable[[str], str] = str,
) -> tuple[Steady, pl.DataFrame] | None:
    """Find the steady state of a job: the time in which it repeats itself. Return it with the
    iterations of its tasks (ITERATION_COLUMNS), or None if the job does not repeat itself.

    labels: value and label of NVTX names. pattern: glob pattern of the ranges that are iterations,
    "" to detect them. covered: time that the reports of all tasks cover; nothing is known between
    two captures. list_all: function that returns the result of :func:`list_task_iterations` for all
    units. show: formats a name. Raises UsageError if no range matches the pattern.
    """
    if pattern:
        names, found_by = NamePattern.from_glob(pattern, labels), f"NVTX ranges {show(pattern)}"
        found = _join_tasks(list_all(names), found_by, reader.edges is not None)
        if found is None:
            raise UsageError(
                f"--iterations {pattern}: no NVTX range has this name; "
                + suggest_range(pattern, labels["label"].to_list())
            )
    else:
        found = _find_iterations(reader, labels, list_all, show)
        if found is None or found.end - found.begins[0] < LEAST_STEADY * reader.duration:
            return None
    ends = np.append(found.begins[1:], found.end)
    whole, is_first = _find_whole(reader, found, ends)
    begins, ends = found.begins[whole], ends[whole]
    warm_up = _count_warm_up(ends - begins, is_first)
    begin, end = covered.find_longest()
    inside = (begins >= begin) & (ends <= end)
    kept = np.flatnonzero(inside)[warm_up * inside[0] :]
    is_shortened = len(begins) < len(found.begins) or not inside.all()
    if not len(kept) or (is_shortened and len(kept) < LEAST_COUNT):
        return None
    left_out = ", excluding the first" * (warm_up > 0) + f" {warm_up}" * (warm_up > 1)
    if not inside.all():
        left_out = ", in the longest time covered by all reports"
    first, last = int(kept[0]), int(kept[-1]) + 1
    steady = Steady(
        int(begins[first]),
        int(ends[last - 1]),
        tuple(begins[first:last].tolist()),
        found.found_by,
        len(ends),
        left_out,
        not found.of_tasks.is_empty(),
    )
    number = pl.col("iteration") - whole.start - first
    of_tasks = found.of_tasks.filter(number.is_between(0, last - first - 1))
    return steady, of_tasks.with_columns(iteration=number).sort("unit", "task", "iteration")


def _find_whole(reader: EventReader, found: _Found, ends: np.ndarray) -> tuple[slice, bool]:
    """Return the iterations that a cut leaves complete (all iterations if none is complete), and
    whether the first of them may be the first of the job.
    """
    first, last, edges = 0, len(ends), reader.edges
    if edges is not None and edges.before:
        first = np.count_nonzero(found.begins <= edges.begin)
    if edges is not None and edges.behind:
        beyond = found.of_tasks.filter(pl.col("until") >= reader.duration)["iteration"].min()
        last = np.count_nonzero(ends < reader.duration)
        last = last if beyond is None else min(last, beyond)
    if edges is None or last <= first:
        return slice(0, len(ends)), True
    return slice(first, last), not edges.before


def list_task_iterations(unit: DeviceGroup, names: NamePattern) -> pl.DataFrame:
    """Return the ranges with matching names as iterations of each task of a unit, from the thread
    with the most time in them.

    Columns: ITERATION_COLUMNS, numbered by start, and the `number` in the names. Nested ranges do
    not count.
    """
    ranges = read_ranges(unit, names)
    longest = find_longest_threads(ranges)
    ranges = keep_outermost(ranges.join(longest, on=["task", "thread"], how="semi"))
    # End of the work launched before each side.
    task, sides = (
        to_arrays(ranges, "task")[0],
        dict(zip(SIDES, to_arrays(ranges, *SIDES), strict=True)),
    )
    reached = {side: times.copy() for side, times in sides.items()}
    fields = ("sent", "sender", "end")
    lines = unit.reader.read_lines(("launch", "memory"), unit.number, fields, np.int32)
    sent, sender, end = to_arrays(lines, *fields)
    for one in np.unique(task).tolist():
        own, rows = unit.task_of[sender] == one, task == one
        times, ended = sent[own], np.maximum.accumulate(end[own])
        for side, latest in reached.items():
            before = np.searchsorted(times, sides[side]) - 1
            at = np.flatnonzero(rows & (before >= 0))
            latest[at] = np.maximum(latest[at], ended[before[at]])
    _add_work_beyond(unit, task, sides, reached)
    numbered = ranges.lazy().with_columns(
        unit=pl.lit(unit.number, pl.Int64),
        iteration=pl.int_range(pl.len()).over("task"),
        since=pl.Series(reached["begin"]),
        until=pl.Series(reached["end"]),
    )
    return numbered.select(*ITERATION_COLUMNS, "number").collect()


def _add_work_beyond(
    unit: DeviceGroup,
    task: np.ndarray,
    sides: Mapping[str, np.ndarray],
    reached: Mapping[str, np.ndarray],
) -> None:
    """Account for work that a cut separates from its launch, or removes. task: of each range.
    sides: in its host's times. reached: end of the work launched before these.
    """
    if (edges := unit.reader.edges) is None:
        return
    for side, latest in reached.items():
        for thread, until in edges.carried.items():
            # A range that the cut clips began before that.
            rows = (task == unit.task_of[thread]) & (sides["begin"] > edges.begin)
            latest[rows] = np.maximum(latest[rows], until)
        for thread, since in edges.pending.items():
            latest[(task == unit.task_of[thread]) & (sides[side] > since)] = unit.reader.duration


def read_ranges(unit: DeviceGroup, names: NamePattern | None = None) -> pl.DataFrame:
    """Return the NVTX ranges of a unit: begin, end, thread, range, number, task. names: only ranges
    that match; None for all.
    """

    def match(columns: Mapping[str, np.ndarray]) -> np.ndarray:
        return names.find_matches(columns["range"], columns["number"])

    ranges = pl.concat(
        unit.reader.read_begins(layout, ("range", "number"), unit.number, names and match)
        for layout in RANGES
    )
    return ranges.with_columns(unit.list_tasks(ranges))


def find_longest_threads(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return for each task the thread with the most time in its ranges, as a frame of `task` and
    `thread`.
    """
    lasts = DURATION.sum()
    threads = ranges.lazy().group_by("task", "thread").agg(lasts=lasts)
    threads = threads.sort("lasts", "thread", descending=[True, False])
    return threads.unique("task", keep="first").select("task", "thread").collect()


def keep_outermost(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges that are not nested in others, sorted by thread and start."""
    ordered = ranges.lazy().sort("thread", "begin", "end", descending=[False, False, True])
    reached = pl.col("end").cum_max().shift(1).over("thread")
    return ordered.filter(reached.is_null() | (pl.col("begin") >= reached)).collect()


def _join_tasks(
    of_tasks: pl.DataFrame, found_by: str, is_cut: bool, most_apart: float = np.inf
) -> _Found | None:
    """Return the iterations in which all tasks that have iterations take part; None if tasks are
    further apart on average than `most_apart` iterations. is_cut: the job is part of a longer one.
    """
    if not of_tasks.height:
        return None
    counts = of_tasks.group_by("task").agg(count=pl.len())
    # Where the task with most iterations is in those of each task.
    most = counts.sort("count", "task", descending=[True, False])["task"][0]
    times = of_tasks.filter(pl.col("task") == most)["since"].to_numpy()
    nearest = np.searchsorted((times[1:] + times[:-1]) // 2, of_tasks["since"].to_numpy())
    of_tasks = of_tasks.with_columns(later=nearest - of_tasks["iteration"].to_numpy())
    later = pl.col("later").median().over("task").cast(pl.Int64)
    if of_tasks.select((pl.col("later") - later).abs().mean()).item() > most_apart:
        return None
    # A number of 0 is none.
    number = pl.col("number").clip(0)
    following = number.diff().over("task").fill_null(1) == 1
    if is_cut and of_tasks.select(following.all()).item():
        # A part may begin with another one of each task.
        of_tasks = of_tasks.with_columns(iteration=number)
    elif is_cut or counts["count"].n_unique() > 1:
        # Tasks that were captured later, say, are numbered by the task that has most.
        of_tasks = of_tasks.with_columns(iteration=pl.col("iteration") + later)
    joined = of_tasks.group_by("iteration").agg(
        pl.col("since").min(), pl.col("until").max(), tasks=pl.len()
    )
    everywhere = joined.filter(pl.col("tasks") == pl.col("tasks").max()).sort("iteration")
    begins = np.maximum.accumulate(everywhere["since"].to_numpy())
    places = pl.Series(range(everywhere.height), dtype=pl.Int64)
    places = everywhere.select("iteration", place=places)
    of_tasks = of_tasks.join(places, on="iteration", how="inner")
    of_tasks = of_tasks.with_columns(iteration=pl.col("place")).select(*ITERATION_COLUMNS)
    return _Found(begins, int(everywhere["until"][-1]), found_by, of_tasks)


def _count_warm_up(lengths: np.ndarray, is_first: bool = True) -> int:
    """Return the number of warm-up iterations at the start. is_first: the first iteration may be
    the first of the job.
    """
    first = 0
    while first < len(lengths) and lengths[first] > WARM * np.median(lengths[first:]):
        first += 1
    return max(first, min(int(is_first), len(lengths) - 1))


def _find_iterations(
    reader: EventReader,
    labels: pl.DataFrame,
    list_all: Callable[[NamePattern], pl.DataFrame],
    show: Callable[[str], str],
) -> _Found | None:
    units, is_cut = reader.rows.unit_numbers, reader.edges is not None
    chosen = np.unique(np.linspace(0, len(units) - 1, MOST_UNITS).astype(int)).tolist()
    launches = {units[at]: list_launches(reader, units[at]) for at in chosen}
    launches = {unit: begins for unit, begins in launches.items() if len(begins)}
    patterns = make_patterns(labels)

    def may_be(unit: int, edges: np.ndarray, size: float) -> bool:
        return find_signs(next(list_events(reader, unit)), edges, size) is not False

    if name := find_range_name(reader, patterns, launches, may_be):
        values = patterns.filter(pl.col("pattern") == name).select("value", label="pattern")
        pattern = NamePattern("", values, values.clear())
        return _join_tasks(list_all(pattern), f"NVTX ranges {show(name)}", is_cut, MOST_APART)
    agreed = choose_alike(
        [
            [one for events in list_events(reader, unit) for one in find_periods(events)]
            for unit in launches
        ]
    )
    if not agreed:
        return None
    columns = (*ITERATION_COLUMNS, "number")
    frames = []
    for task, one in enumerate(agreed):
        zeros = np.zeros(len(one.begins), np.int64)
        until = np.append(one.begins[1:], one.end)
        own = {"task": zeros + task, "iteration": np.arange(len(zeros))}
        own |= {"since": one.begins, "until": until}
        frames.append(pl.DataFrame({name: own.get(name, zeros) for name in columns}))
    what = "kernels" if reader.layouts & {*WORK} else "MPI calls"
    found = _join_tasks(pl.concat(frames), PERIOD + what, is_cut, MOST_APART)
    return found and replace(found, of_tasks=found.of_tasks.clear())
