"""Move overlapping ranges of one row to lanes, which are additional rows.

Paraver shows one value of a type at a time on a row: the first end of two overlapping kernels would
hide both. Kernels of one stream overlap if branches of a graph are traced node by node, or if a
kernel may start before its predecessor ends. NVTX start/end ranges may overlap on any thread. Each
such range goes to the first lane of its row that is free when it starts; lane 0 is the row itself.

Nested ranges, such as NVTX ranges on the GPU, share a lane if none of them crosses another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, pairwise

import numpy as np
from msgspec import Struct

from nsys2prv._util.budget import LANE_ROWS
from nsys2prv._util.columns import (
    OPEN,
    count_occurrences,
    factorize,
    factorize_together,
    find_edges,
    reduce_slices,
)
from nsys2prv._util.intervals import order_ranges
from nsys2prv.clock.maps import ClockMap
from nsys2prv.events import all_kinds
from nsys2prv.events.kind import Account, Reason
from nsys2prv.table.runs import (
    LINE,
    NEVER,
    Run,
    SpillReader,
    read_run,
    rewrite_column,
)
from nsys2prv.table.task_result import TaskResult
from nsys2prv.table.windows import choose_window_bounds

#: Maximum number of lanes of one row; further overlapping ranges share the last one and are
#: counted.
MOST_LANES = 64
#: The reason under which ranges that share the last lane are counted.
TOO_MANY = Reason.TOO_MANY_OVERLAPS.with_detail(str(MOST_LANES))


def separate_overlaps(
    results: Sequence[TaskResult], run_tasks: Callable[[Callable, Sequence, int], Iterable]
) -> None:
    """Move rows that overlap others on the same object to additional rows (lanes), because Paraver
    cannot show them on one. Files of runs are changed in place. run_tasks: runs a function on tasks
    of this many rows.
    """
    grouped = list_overlap_groups()
    tasks: dict[int, list[TaskResult]] = defaultdict(list)
    moving = set()
    for result in results:
        # Only runs that may move, and lines: each run is sent to a worker.
        runs = [run for run in result.runs if run.shape.stream == LINE or run.shape.name in grouped]
        own = TaskResult(result.task, result.report, result.rows, runs, result.objects)
        tasks[result.report].append(own)
        if any(run.shape.name in grouped for run in runs):
            moving.add(result.report)
    by_task = {result.task: result for result in results}
    reports = [tasks[report] for report in sorted(moving)]
    rows = sum(result.rows for result in results)
    for change in chain.from_iterable(run_tasks(separate_overlaps_of_report, reports, rows)):
        result = by_task[change.task]
        result.objects = change.objects
        if change.crowded:
            result.add("overlaps", Account(repaired=Counter({TOO_MANY: change.crowded})))


class _AddedLanes(Struct):
    """Objects that were added to a result for lanes, and the number of rows that found no free
    lane.
    """

    #: Number of the result's task.
    task: int
    #: Its objects, with the new ones.
    objects: list
    #: Rows that found all lanes taken.
    crowded: int = 0


@cache
def list_overlap_groups() -> dict[str, str]:
    """Return layout -> overlap group. Rows of layouts in one group share the additional rows
    (lanes) for overlaps.
    """
    return {
        layout: kind.overlap_group
        for kind in all_kinds()
        if kind.overlap_group
        for layout in kind.layouts
    }


def separate_overlaps_of_report(results: Sequence[TaskResult]) -> list[_AddedLanes]:
    """Move overlapping rows in all results of one report to additional rows (lanes). Return the
    lanes that were added.
    """
    groups = list_overlap_groups()
    runs = [
        (result, item)
        for result in results
        for item in result.runs
        if item.index is not None and item.shape.name in groups
    ]
    keys: dict = {}
    object_numbers = {
        result.task: np.array([keys.setdefault(key, len(keys)) for key in result.objects], np.int64)
        for result in results
    }
    moved: dict[Run, list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
    crowded = 0
    with SpillReader() as reader:
        for group in sorted({groups[run.shape.name] for _, run in runs}):
            members = [(result, run) for result, run in runs if groups[run.shape.name] == group]
            lane_ends: dict[int, list[int]] = {}
            pieces = _read_pieces(members, object_numbers, reader)
            for owner, position, object_, begin, end in pieces:
                lanes, over = assign_first_free_lanes(object_, begin, end, lane_ends)
                crowded += over
                away = np.flatnonzero(lanes)
                for index in factorize(owner[away])[0]:
                    rows = away[owner[away] == index]
                    moved[members[index][1]].append((position[rows], lanes[rows]))
        changes = [change for result in results if (change := _move_rows(result, moved, reader))]
    if crowded and changes:
        changes[0].crowded = crowded
    return changes


def _read_pieces(
    runs: list[tuple[TaskResult, Run]], object_numbers: dict[int, np.ndarray], reader: SpillReader
) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the report's ranges sorted by time, in pieces: run index, row in the run, object,
    begin, end; sorted by object, outer ranges first.
    """
    # All are of one report, in its own time.
    own, clocks = [run for _, run in runs], defaultdict(ClockMap)
    _, *bounds = choose_window_bounds(own, clocks, size=LANE_ROWS)
    for first, last in pairwise([-OPEN, *bounds, None]):
        pieces = []
        for index, (result, run) in enumerate(runs):
            spans = run.find_spans(run.find_blocks(first, last)) if bounds else [(0, run.rows)]
            for start, stop in spans:
                columns, _ = reader.read(run, [(start, stop)], ("begin", "end", "row"))
                begin = columns["begin"]
                low = int(begin.searchsorted(first))
                high = len(begin) if last is None else int(begin.searchsorted(last))
                rows = slice(low, high)
                places = start + np.arange(low, high)
                objects = object_numbers[result.task][columns["row"][rows]]
                owners = np.full(len(places), index)
                pieces.append((owners, places, objects, begin[rows], columns["end"][rows]))
        if not pieces:
            continue
        columns = [np.concatenate(column) for column in zip(*pieces, strict=True)]
        _, _, object_, begin, end = columns
        if len(object_):
            order = order_ranges(begin, end, object_)
            yield tuple(column[order] for column in columns)


def assign_first_free_lanes(
    object_: np.ndarray, begin: np.ndarray, end: np.ndarray, lane_ends: dict[int, list[int]]
) -> tuple[np.ndarray, int]:
    """Put overlapping rows of an object into lanes: each into the first lane that is free. Return
    two values: the lane of each row (from 0), and the number of rows for which all lanes were
    taken.

    Rows are sorted by object, then start. lane_ends: object -> end of the last row in each lane,
    kept between pieces.
    """
    lanes = np.zeros(len(object_), np.int64)
    crowded = 0
    edges = find_edges(object_)
    starts, stops = edges[:-1], edges[1:]
    before = np.empty(len(end), np.int64)
    before[1:] = end[:-1]
    before[starts] = [lane_ends.get(number, [NEVER])[0] for number in object_[starts].tolist()]
    # Of each object, whether any row begins before the one ahead ends, or an earlier piece's does.
    overlapping = np.logical_or.reduceat(begin < before, starts)
    for start, stop, overlaps in zip(
        starts.tolist(), stops.tolist(), overlapping.tolist(), strict=True
    ):
        ends, rows = lane_ends.setdefault(int(object_[start]), []), slice(start, stop)
        if overlaps:
            crowded += _fill_lanes(begin[rows], end[rows], ends, lanes[rows])
        else:
            ends[:1] = [int(end[stop - 1])]
    return lanes, crowded


def _fill_lanes(begin: np.ndarray, end: np.ndarray, ends: list[int], lanes: np.ndarray) -> int:
    """Assign the first free lane to each row; return the number of rows without one."""
    left = np.arange(len(begin))
    lane = 0
    while len(left) and lane < MOST_LANES:
        if lane == len(ends):
            ends.append(NEVER)
        taken = _mask_rows_of_lane(begin[left], end[left], ends[lane])
        if taken.any():
            ends[lane] = int(end[left[taken]][-1])
        lanes[left[taken]] = lane
        left = left[~taken]
        lane += 1
    lanes[left] = MOST_LANES - 1
    return len(left)


def _mask_rows_of_lane(begin: np.ndarray, end: np.ndarray, free: int) -> np.ndarray:
    """Return a mask of the rows for one lane: the first row that starts when the lane is free, then
    repeatedly the first row that starts after the end of the previous one. free: time from which
    the lane is free (ns).

    The successor of each row is computed first. The rows of the chain are then found by doubling
    the steps, without a loop over rows.
    """
    count = len(begin)
    following = np.append(np.searchsorted(begin, end, "left"), count)
    # A row with the same start comes later in order, never the row itself: ends are after starts.
    on_chain = np.zeros(count + 1, bool)
    on_chain[np.searchsorted(begin, free, "left")] = True
    jumps = [following]
    while len(jumps) < int(count).bit_length():
        jumps.append(jumps[-1][jumps[-1]])
    for jump in reversed(jumps):
        on_chain[jump[np.flatnonzero(on_chain)]] = True
    return on_chain[:count]


def _move_rows(
    result: TaskResult,
    moved: Mapping[Run, Sequence[tuple[np.ndarray, np.ndarray]]],
    reader: SpillReader,
) -> _AddedLanes | None:
    """Move rows of a result to their lanes, with the lines that lead to them. Return None if the
    result has no such rows. moved: run -> (rows, lanes) in pieces.
    """
    known = {*result.runs}
    own = [run for run in moved if run in known]
    if not own:
        return None
    places = {key: place for place, key in enumerate(result.objects)}
    targets = []
    for run in own:
        rows, lanes = map(np.concatenate, zip(*moved[run], strict=True))
        columns, _ = reader.read(run, names=("begin", "end", "row"))
        old = columns["row"][rows].astype(np.int64)
        (numbers, wanted), codes = factorize_together(old, lanes)
        lane_objects = [
            places.setdefault(result.objects[number]._replace(lane=lane), len(places))
            for number, lane in zip(numbers.tolist(), wanted.tolist(), strict=True)
        ]
        new = np.array(lane_objects)[codes]
        objects = columns["row"].copy()
        objects[rows] = new
        rewrite_column(run, "row", objects)
        targets.append((old, columns["begin"][rows], columns["end"][rows], new))
    _redirect_lines(result, *map(np.concatenate, zip(*targets, strict=True)))
    return _AddedLanes(result.task, list(places))


def _redirect_lines(
    result: TaskResult, old: np.ndarray, begin: np.ndarray, end: np.ndarray, new: np.ndarray
) -> None:
    """Move the ends of lines to the new objects of moved rows.

    A line identifies its row by object, start and end. If several rows are equal in these, lane 0
    keeps one, and the lines are distributed in order.
    """
    runs = [run for run in result.runs if run.shape.stream == LINE]
    lines = [read_run(run, "receiver", "receive", "until") for run in runs]
    if not lines:
        return
    columns = [
        np.concatenate([moved, *(run[name].astype(np.int64) for run in lines)])
        for moved, name in ((old, "receiver"), (begin, "receive"), (end, "until"))
    ]
    codes = factorize_together(*columns)[1]
    count = int(codes.max()) + 1
    moved, leading = codes[: len(old)], codes[len(old) :]
    rows_of, lines_of = (np.bincount(moved, minlength=count), np.bincount(leading, minlength=count))
    moved_order = np.argsort(moved, kind="stable")
    rank = count_occurrences(leading) - np.maximum(lines_of - rows_of, 0)[leading]
    hit = np.flatnonzero((rows_of[leading] > 0) & (rank >= 0))
    receivers = np.concatenate([run["receiver"] for run in lines])
    receivers[hit] = new[moved_order[(np.cumsum(rows_of) - rows_of)[leading[hit]] + rank[hit]]]
    start = 0
    for run in runs:
        rewrite_column(run, "receiver", receivers[start : start + run.rows])
        start += run.rows


def assign_nesting_lanes(
    object_: np.ndarray, owner: np.ndarray, begin: np.ndarray, end: np.ndarray
) -> tuple[np.ndarray, int]:
    """Put ranges of an object into lanes, so that the ranges of a lane nest. Return two values: the
    lane of each range (0 for the object itself), and the number of ranges that nest in no lane.
    owner: ranges of one owner always nest.
    """
    layers, lanes = np.zeros(len(begin), np.int64), np.zeros(len(begin), np.int64)
    if not len(begin):
        return lanes, 0
    crowded = sum(
        _assign_layers(rows, begin, end, layers) for rows in _group_rows(begin, end, object_, owner)
    )
    stretch = _find_stretches(begin, end, object_, owner, layers)
    crowded += sum(
        _assign_nested_lanes(rows, begin, end, stretch, lanes)
        for rows in _group_rows(begin, end, object_)
    )
    return lanes, crowded


def _group_rows(begin: np.ndarray, end: np.ndarray, *keys: np.ndarray) -> list[np.ndarray]:
    """Return the rows of each group, sorted by start, longer rows first."""
    _, codes = factorize_together(*keys)
    order = order_ranges(begin, end, codes)
    return np.split(order, find_edges(codes[order])[1:-1])


def _find_crossing(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return a mask of the rows that start within an earlier row and end after it."""
    order = np.argsort(end, kind="stable")
    ends = end[order]
    first, last = (np.searchsorted(ends, begin, "right"), np.searchsorted(ends, end, "left"))
    crossing = np.zeros(len(begin), bool)
    spanning = np.flatnonzero(first < last)
    if len(spanning):
        crossing[spanning] = (
            reduce_slices(begin[order], first[spanning], last[spanning], np.minimum)
            < begin[spanning]
        )
    return crossing


def _assign_layers(rows: np.ndarray, begin: np.ndarray, end: np.ndarray, layers: np.ndarray) -> int:
    """Set the layers of an owner's rows, so that the rows of each layer nest. Return the number of
    rows that remain in the last layer without nesting.
    """
    for layer in range(MOST_LANES):
        layers[rows] = layer
        rows = rows[_find_crossing(begin[rows], end[rows])]
        if not len(rows):
            return 0
    return len(rows)


def _find_stretches(begin: np.ndarray, end: np.ndarray, *keys: np.ndarray) -> np.ndarray:
    """Return the number of each row's stretch. A stretch consists of rows with equal keys between
    two times that no row covers.
    """
    _, codes = factorize_together(*keys)
    order = np.lexsort((begin, codes))
    group = codes[order]
    # Ends as numbers that grow from group to group, so that one running maximum serves all.
    times, place = np.unique(end[order], return_inverse=True)
    reach = times[np.maximum.accumulate(group * len(times) + place.reshape(-1)) % len(times)]
    fresh = np.ones(len(order), bool)
    fresh[1:] = (group[1:] != group[:-1]) | (begin[order][1:] >= reach[:-1])
    stretch = np.empty(len(order), np.int64)
    stretch[order] = np.cumsum(fresh) - 1
    return stretch


def _assign_nested_lanes(
    rows: np.ndarray, begin: np.ndarray, end: np.ndarray, stretch: np.ndarray, lanes: np.ndarray
) -> int:
    """Set the lanes of an object's rows, stretch by stretch. Return the number of rows without a
    lane.
    """
    _, unit = np.unique(stretch[rows], return_inverse=True)
    unit = unit.reshape(-1)
    for lane in range(MOST_LANES):
        stays = np.ones(int(unit.max()) + 1, bool)
        stays[unit[_find_crossing(begin[rows], end[rows])]] = False
        if not stays[unit].any():
            return _assign_free_lanes(rows, begin, end, unit, lanes, lane)
        lanes[rows] = lane
        rows, unit = rows[~stays[unit]], unit[~stays[unit]]
        if not len(rows):
            return 0
    return len(rows)


def _assign_free_lanes(
    rows: np.ndarray,
    begin: np.ndarray,
    end: np.ndarray,
    unit: np.ndarray,
    lanes: np.ndarray,
    free: int,
) -> int:
    """Set lanes from `free` on so that no stretches overlap in a lane. Return the number of rows
    without a lane.
    """
    numbers, unit = np.unique(unit, return_inverse=True)
    unit = unit.reshape(-1)
    first, last = np.zeros((2, len(numbers)), np.int64)
    # Any row's times to begin with.
    first[unit], last[unit] = begin[rows], end[rows]
    np.minimum.at(first, unit, begin[rows])
    np.maximum.at(last, unit, end[rows])
    order = np.lexsort((-last, first))
    of_unit = np.empty(len(numbers), np.int64)
    of_unit[order], _ = assign_first_free_lanes(
        np.zeros(len(numbers), np.int64), first[order], last[order], {}
    )
    wanted = of_unit[unit] + free
    lanes[rows] = np.minimum(wanted, MOST_LANES - 1)
    return int(np.count_nonzero(wanted >= MOST_LANES))
