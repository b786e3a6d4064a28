"""Find the activities of host threads in a set of times, and the data that was not recorded.

Only recorded activity counts. CPU samples outside the profiler's libraries, or thread states, show
that a thread computes. These or OS runtime calls show that it waits. OS runtime calls within a CUDA
API call or MPI call belong to that call.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

import numpy as np
import polars as pl

from nsys2prv._util.budget import INTERVAL_ROWS
from nsys2prv._util.columns import DURATION, number_as_met, sum_by
from nsys2prv._util.intervals import (
    EMPTY,
    SIDES,
    Spans,
    find_parents,
    find_reaching,
    merge_spans,
    take_first,
    take_off_inner,
    unite,
)
from nsys2prv.conversion.quality import WOULD_TELL
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.figures.device_group import (
    NAMED_BY,
    OS,
    UCX,
    DeviceGroup,
    Frames,
    find_io_spans,
    to_arrays,
)
from nsys2prv.figures.result import TEXTS, Context
from nsys2prv.figures.stacks import (
    SAMPLES,
    STATES_OF_THREADS,
    find_mpi_samples,
    find_sampled_spans,
    find_states,
    measure_places,
)
from nsys2prv.figures.thresholds import (
    SET_UP,
)
from nsys2prv.replay.graph import Kind, split_rows
from nsys2prv.replay.whatif import Replay
from nsys2prv.table.event_reader import RANGES

#: Layout of calls -> part of PARTS.
CALLS = {
    "cuda_api": "cuda",
    **dict.fromkeys(MPI_LAYOUTS, "mpi"),
    "nccl_call": "nccl",
    **dict.fromkeys(UCX, "ucx"),
    **dict.fromkeys(OS, "os"),
}
#: Layout of calls -> the set of their names, where it has another name.
NAME_SETS = {"nccl_call": "nvtx", **dict.fromkeys(UCX, "ucx")}
#: Meaning of names of calls, ranges, kernels and GPUs, as regular expressions.
NAMES = TEXTS["names"]
#: Parts of time -> the display name of it. Each moment counts for the first that applies.
PARTS: dict[str, str] = {part: said for part, (said, *_) in TEXTS["parts"].items()}
#: CUDA API calls that wait for GPUs, shown separately in pictures and tables.
WAITING = "synchronisation"
#: Time that belongs to CUDA calls of other threads.
BESIDE = "beside"
#: Parts of time that calls of a part may be in, if there are others.
INSIDE = {"cuda": ("cuda", BESIDE, "mpi"), "os": ("io", "os")}
#: Columns of the times of a thread's activities that are summed.
ROW_COLUMNS = ("at", "source", "name", "time", "begin", "longest")
#: Recordable host data -> its layouts.
TOLD_BY: dict[str, Collection[str]] = {
    "CUDA API calls": ("cuda_api",),
    "OS runtime calls": OS,
    "thread states": STATES_OF_THREADS,
    "CPU samples": SAMPLES,
}


def find_host_parts(
    unit: DeviceGroup, thread: int, time: Spans, others: bool = False
) -> Iterator[tuple[str, Spans]]:
    """Divide some covered times by the activity of a thread: yield (part, spans) for each of PARTS.
    If several parts apply at a time, the first one counts.

    Many spans are processed piece by piece, so a part may be yielded several times. others: include
    NCCL calls for which the thread waits, and CUDA calls (BESIDE) of other threads of its process
    while it neither computes nor does I/O.
    """
    key = ("host parts", thread, others)
    found = unit.remember(key, lambda: _find_candidates(unit, thread, others))
    if sum(len(spans) for _, spans in found) <= INTERVAL_ROWS:
        every = [*found, ("unknown", unit.covered)]
        divided = unit.remember(("divided", *key), lambda: [*take_first(every)])
        yield from ((part, time & spans) for part, spans in divided)
        return
    for some in time.split():
        within = ((part, some & spans) for part, spans in found)
        yield from take_first(chain(within, [("unknown", some)]))


def _find_candidates(unit: DeviceGroup, thread: int, others: bool) -> list[tuple[str, Spans]]:
    """Return (part, spans) for the spans in which a thread may be in each of PARTS, as input of
    :func:`find_host_parts`.
    """
    runs, off_cpu, ended, away = find_states(unit, thread)
    is_compiler = pl.col("module").is_in(list(unit.options.compilers))
    found = (
        *_find_before_system(unit, thread).items(),
        ("io", find_io_spans(unit, [thread])),
        ("nccl", _find_others(unit, thread, "nccl_call") if others else EMPTY),
        (BESIDE, _find_others(unit, thread, "cuda_api") if others else EMPTY),
        ("os", unit.find_thread_spans([thread], *OS)),
        ("exiting", _find_exit(unit, int(unit.task_of[thread]), unite(runs, off_cpu))),
        ("away", away),
        ("off_cpu", off_cpu),
        ("compiling", find_sampled_spans(unit, thread, is_compiler)),
        ("computing", _find_computing(unit, thread)),
        ("ended", ended),
    )
    return [(part, spans) for part, spans in found if len(spans)]


def sum_host_parts(found: Iterable[tuple[str, Spans]]) -> dict[str, int]:
    """Sum the result of :func:`find_host_parts`: return part -> time (ns)."""
    parts = dict.fromkeys(PARTS, 0)
    for part, spans in found:
        parts["cuda" if part == BESIDE else part] += spans.length
    return parts


def find_task_parts(unit: DeviceGroup, task: int, time: Spans) -> Iterator[tuple[str, Spans]]:
    """Divide some time by the activity of a task's main thread: yield (part, spans) for each of
    PARTS, with WAITING for CUDA API calls that wait for GPUs.
    """
    task = unit.find_host(task)
    if task not in unit.tasks:
        yield "unknown", time
        return
    synchronising = unit.options.synchronising
    waits = unit.find_thread_spans(unit.list_rows(task), "cuda_api", only=synchronising)
    for part, spans in find_host_parts(unit, choose_thread(unit, task), time, others=True):
        if part in ("cuda", BESIDE):
            yield WAITING, spans & waits
            yield "cuda", spans - waits
        else:
            yield part, spans


def _find_exit(unit: DeviceGroup, task: int, lives: Spans) -> Spans:
    """Return the spans in which a thread exists, by its states, after the last call, sample or NVTX
    range of any thread of its task: the process is exiting.

    Return nothing if this is unknown: neither CPU samples nor OS runtime calls are recorded, which
    a process makes as long as it exists, and the profiler writes no pending data at the end.
    """
    if not len(lives):
        return EMPTY

    def find() -> int | None:
        rows = unit.list_rows(task)
        layouts = (*CALLS, *SAMPLES, "nvtx_pushpop", "profiler_overhead")
        ends = (_find_last_ends(unit, layout)[rows] for layout in filter(unit.has, layouts))
        last = max([0, *(int(own.max()) for own in ends)])
        if unit.has(*SAMPLES, *OS):
            return last
        writes = pl.col("what").is_in(list(unit.options.writing_out))
        has_written = (
            unit.has("profiler_overhead")
            and last in unit.select_events("profiler_overhead", rows).filter(writes)["end"]
        )
        return last if has_written else None

    last = unit.remember(("last event", task), find)
    return EMPTY if last is None else lives - unit.covered.clip(0, last)


def _find_last_ends(unit: DeviceGroup, layout: str) -> np.ndarray:
    """Return the end of the last event of a layout on each thread of the job (ns), or -1."""
    find = partial(unit.reader.find_last_ends, layout, unit.number)
    return unit.remember(("last ends", layout), find)


def _find_computing(unit: DeviceGroup, thread: int) -> Spans:
    """Return the spans in which a thread computes, according to its states and CPU samples."""
    return unit.remember(
        ("computing", thread),
        lambda: unite(find_states(unit, thread)[0], find_sampled_spans(unit, thread)),
    )


def _find_others(unit: DeviceGroup, thread: int, layout: str) -> Spans:
    """Return the spans in which other threads of a process are in calls of a layout while the given
    thread does not compute.
    """
    others = [one for one in unit.list_rows(unit.task_of[thread]) if one != thread]
    others = unit.find_thread_spans(others, layout)
    return others - _find_computing(unit, thread)


def _find_before_system(unit: DeviceGroup, thread: int) -> dict[str, Spans]:
    """Return part -> spans of a thread, for those of PARTS that include nested OS runtime calls."""
    return unit.remember(("before system", thread), lambda: _list_before_system(unit, thread))


def _list_before_system(unit: DeviceGroup, thread: int) -> dict[str, Spans]:
    in_ranges = ["nvtx_pushpop"] if unit.options.shmem else []
    # Host functions block streams of their process.
    of_task = unit.list_rows(unit.task_of[thread])
    return {
        "profiler": find_profiler_spans(unit, thread),
        "mpi": unite(unit.find_mpi_spans([thread]), find_mpi_samples(unit, thread)),
        "nccl": unit.find_thread_spans([thread], "nccl_call"),
        "ucx": unit.find_thread_spans([thread], *UCX),
        "shmem": unit.find_thread_spans([thread], *in_ranges, only=unit.options.shmem),
        "callback": unit.find_thread_spans(of_task, "graph_host_node"),
        "jit": unit.find_thread_spans([thread], "jit"),
        "cuda": unit.find_thread_spans([thread], "cuda_api"),
    }


def find_profiler_spans(unit: DeviceGroup, thread: int) -> Spans:
    """Return the spans of profiler overhead on a thread, in its calls and between them. Overhead
    rows that contain a whole call of the thread do not count.
    """
    if not unit.has("profiler_overhead"):
        return EMPTY

    def find() -> Spans:
        rows = unit.select_events("profiler_overhead", [thread])
        since, until, what = to_arrays(rows, *SIDES, "what")
        begin, end = to_arrays(unit.select_events("cuda_api", [thread], SIDES), *SIDES)
        ends = np.append(end, np.iinfo(np.int64).max)[np.searchsorted(begin, since)]
        works = (until < ends) & ~np.isin(what, unit.options.no_profiler)
        return unit.covered & merge_spans(since[works], until[works])

    return unit.remember(("profiler", thread), find)


def sum_parts(hosts: pl.DataFrame) -> dict[str, float]:
    """Return part of the host time -> time (ns), summed over all hosts; empty without hosts. hosts:
    frame with a column for each part.
    """
    return {part: float(hosts[part].sum()) for part in PARTS} if hosts.height else {}


def describe_unrecorded(frames: Frames, context: Context) -> str:
    """Return a text that names the options that would record more about hosts, and NVTX ranges if
    there are none: `--trace=osrt --sample=process-tree and NVTX ranges`. frames: `unrecorded`, as
    findings.py collects it.
    """
    what = frames["unrecorded"]["what"].unique(maintain_order=True)
    ranges = [] if {"nvtx_pushpop", "nvtx_startend"} & context.reader.layouts else ["NVTX ranges"]
    options = " ".join(WOULD_TELL[one]["option"] for one in what)
    return " and ".join(filter(None, [options, *ranges]))


def list_unrecorded(unit: DeviceGroup) -> list[str]:
    """Return the data about hosts that was not recorded, although it would show more: keys of
    TOLD_BY.
    """
    lacking = [what for what, names in TOLD_BY.items() if not unit.has(*names)]
    return [one for one in lacking if unit.spans_of_work or one != "CUDA API calls"]


def choose_thread(unit: DeviceGroup, task: int) -> int:
    """Return the main thread of a task. If it makes no CUDA or MPI calls, return the thread with
    the most time in such calls; without such calls, the thread with the most NVTX ranges, CPU
    samples or OS runtime calls.
    """
    main = unit.find_main_thread(task)
    layouts = ("cuda_api", *filter(unit.has, MPI_LAYOUTS))
    if any((unit.read_named(layout)["thread"].to_numpy() == main).any() for layout in layouts):
        return main
    frames = [unit.select_events(layout, unit.list_rows(task)) for layout in layouts]
    calls = [rows.select(pl.col("thread").cast(pl.Int64), time=DURATION) for rows in frames]
    sums = pl.concat(calls).group_by("thread").agg(pl.col("time").sum())
    for layout in () if sums.height else ("nvtx_pushpop", *SAMPLES, *OS):
        rows = unit.read_begins(layout)
        rows = rows.filter(unit.list_tasks(rows) == task)
        if rows.height:
            sums = rows.group_by(pl.col("thread").cast(pl.Int64)).agg(time=pl.len())
            break
    return int(sums.sort("time", -pl.col("thread"))["thread"][-1]) if sums.height else main


def find_outside_calls(unit: DeviceGroup, thread: int, time: Spans) -> Spans:
    """Return the part of a set of times in which a thread is outside CUDA and MPI calls."""
    return time - unit.find_thread_spans([thread], "cuda_api", *MPI_LAYOUTS)


def list_activities(
    unit: DeviceGroup,
    thread: int,
    times: Sequence[Spans],
    ranges: Sequence[Mapping[str, np.ndarray]],
    found: Sequence[Sequence[tuple[str, Spans]]],
    others: bool = False,
) -> dict[str, np.ndarray | list[str]]:
    """Return the activities of a thread in each of several sets of times, as columns.

    Columns: `at` (index of the set, sorted); `part` (one of PARTS, or `range`, or `where`); `names`
    (a name set, or `range`, or `place`) and `name` (a value of it); `time` and `longest` (ns);
    `first`, whether the longest one initializes CUDA. A call counts in the same time as its part
    (:func:`find_host_parts`); CUDA API calls inside MPI calls count as MPI. ranges: of these times,
    from :func:`sum_ranges`. found, others: result and argument of find_host_parts for these times.
    """
    sources: dict[tuple[str, str], int] = {}
    columns = [np.zeros((len(ROW_COLUMNS), 0), np.int64)]

    def sum_rows(rows: np.ndarray) -> np.ndarray:
        sums = sum_times(dict(zip(ROW_COLUMNS, rows, strict=True)), "at", "source", "name")
        return np.stack([sums[name] for name in ROW_COLUMNS])

    def add(
        at: int, part: str, names: str, name: np.ndarray, lasts: np.ndarray, begin: np.ndarray | int
    ) -> None:
        for first in range(0, len(lasts), INTERVAL_ROWS):
            own = first + np.flatnonzero(lasts[first : first + INTERVAL_ROWS] > 0)
            if not len(own):
                continue
            piece = np.empty((len(ROW_COLUMNS), len(own)), np.int64)
            piece[0], piece[1] = at, sources.setdefault((part, names), len(sources))
            piece[2], piece[3] = name[own], lasts[own]
            piece[4] = begin if isinstance(begin, int) else begin[own]
            piece[5] = piece[3]
            columns.append(sum_rows(piece) if len(lasts) > INTERVAL_ROWS else piece)

    def add_calls(part: str, layout: str, calls: Sequence[np.ndarray]) -> None:
        begin, until, name = calls
        since = begin
        if part == BESIDE or (others and part == "nccl"):
            # If several threads are in calls, the call that began first counts.
            reached = np.maximum.accumulate(np.append(0, until))[:-1]
            since = np.clip(reached, since, until)
        names = "cuda" if part == BESIDE else part, NAME_SETS.get(layout, layout)
        for at, parts in enumerate(found):
            lasts = np.zeros(len(begin), np.int64)
            for time in (time for one, time in parts if one == part and len(time)):
                rows = find_reaching(begin, until, *time.find_hull())
                lasts[rows] += time.within(since[rows], until[rows])
            add(at, *names, name, lasts, begin)

    task = int(unit.task_of[thread])
    there = {name for parts in found for name, time in parts if len(time)}
    for layout, part in CALLS.items():
        if not unit.has(layout) or there.isdisjoint(INSIDE.get(part, (part,))):
            continue
        calls = unit.select_events(layout, unit.list_rows(task))
        *called, of_thread = to_arrays(calls, *SIDES, NAMED_BY[layout], "thread")
        is_own = of_thread == thread
        counted = {part: is_own | (others and part == "nccl")}
        if part == "cuda":
            counted |= {BESIDE: ~is_own, "mpi": is_own}
        elif part == "os":
            is_io = np.isin(called[2], unit.options.io)
            counted = {"io": is_own & is_io, "os": is_own & ~is_io}
        for one, counts in counted.items():
            if one not in there or not counts.any():
                continue
            add_calls(one, layout, called if counts.all() else [side[counts] for side in called])
    for at, (time, of_time) in enumerate(zip(times, ranges, strict=True)):
        places = measure_places(unit, thread, time)
        add(at, "where", "place", *to_arrays(places, "place", "time"), -1)
        add(at, "range", "range", of_time["group"], of_time["time"], -1)
    sums = sum_rows(np.concatenate(columns, axis=1))
    sums = sums[:, np.argsort(sums[0], kind="stable")]
    known = [*sources]
    parts, names = ([known[one][side] for one in sums[1].tolist()] for side in (0, 1))
    is_first = np.array([part == "cuda" for part in parts], bool)
    if is_first.any():
        is_first &= sums[4] == unit.remember(("set up", task), lambda: _find_set_up(unit, task))
    named = {"part": parts, "names": names, "name": sums[2], "time": sums[3]}
    return {"at": sums[0], **named, "longest": sums[5], "first": is_first}


def sum_times(rows: Mapping[str, np.ndarray], *by: str) -> dict[str, np.ndarray]:
    """Sum the column `time` over rows with equal values in the columns `by`, in the order of their
    first rows. Keep the `longest`, and the other columns of its row (int64).
    """
    first, codes = number_as_met(*(rows[name] for name in by))
    sums, longest = np.zeros(len(first), np.int64), rows["longest"][first]
    np.add.at(sums, codes, rows["time"])
    np.maximum.at(longest, codes, rows["longest"])
    place, most = first.copy(), np.flatnonzero(rows["longest"] == longest[codes])[::-1]
    # Of equal ones the first, which is assigned last.
    place[codes[most]] = most
    return {name: column[place] for name, column in rows.items()} | {
        "time": sums,
        "longest": longest,
    }


def _find_set_up(unit: DeviceGroup, task: int) -> int:
    """Return the start of the first CUDA API call in a process that takes SET_UP and may initialize
    CUDA; otherwise -2.

    No GPU works before it, and no earlier call shows that CUDA was initialized, unless the call is
    a launch.
    """
    needs, launches, uses = (pl.col("call").is_in(list(one)) for one in unit.options.set_up_calls)
    calls = unit.select_events("cuda_api", unit.list_rows(task))
    first = calls.filter((DURATION >= SET_UP) & ~needs).head(1)
    begin = int(first["begin"][0]) if first.height else -2
    work = unit.find_span_of_work(unit.find_main_thread(task))
    if begin < 0 or (work and work[0] < begin):
        return -2
    is_late = calls.select((uses & (pl.col("end") <= begin) & (pl.col("error") <= 0)).any()).item()
    return -2 if is_late and not first.filter(launches).height else begin


def sum_ranges(
    unit: DeviceGroup, thread: int, *times: Spans, alone: bool = False
) -> list[dict[str, np.ndarray]]:
    """Measure for each of several sets of times how long a thread is in each NVTX range and in no
    range nested in it (start/end ranges if it has no others).

    Each result has the columns `group` (of names, according to the options), `time` (ns), the
    number of ranges from the start of the time to its end (`count`), and the sum of their durations
    (`lasts`, ns). alone: of the unit's threads, only this one is asked about.
    """
    for layout in RANGES:
        if alone:
            columns = unit.read_ordered_ranges(layout, thread)
        else:
            columns = unit.remember(("ranges", layout), partial(unit.read_ordered_ranges, layout))
        rows = slice(*np.searchsorted(columns[0], (thread, thread + 1)))
        row, begin, end, group = (column[rows] for column in columns)
        if len(row):
            break
    parent = find_parents(row, begin, end)[1]
    sums = []
    for time in times:
        first, last = time.find_hull()
        inside, pieces = take_off_inner(time.within(begin, end), parent), []
        for start in range(0, max(1, len(begin)), INTERVAL_ROWS):
            of = slice(start, start + INTERVAL_ROWS)
            own = start + np.flatnonzero((begin[of] < last) & (end[of] > first))
            spent, lasts = np.maximum(inside[own], 0), end[own] - begin[own]
            given = {"time": spent, "lasts": lasts, "count": np.ones(len(own), np.int64)}
            pieces.append(sum_by({"group": group[own].astype(np.int64)}, **given))
        joined = pieces[0]
        if len(pieces) > 1:
            joined = {name: np.concatenate([one[name] for one in pieces]) for name in joined}
            joined = sum_by({"group": joined.pop("group")}, **joined)
        sums.append(joined)
    return sums


def select_gpus(models: Collection[str], *lacking: str) -> set[str]:
    """Return the GPU models, of these, that lack none of some features. lacking: keys of NAMES,
    whose patterns match the models without the feature.
    """
    return {one for one in models if not any(re.search(NAMES[key], one) for key in lacking)}


def select_named(labels: pl.DataFrame, key: str) -> tuple[int, ...]:
    """Return the values with names that match a pattern. labels: value and label. key: of the
    pattern in NAMES.
    """
    is_found = re.compile(NAMES[key]).search
    return tuple(value for value, label in labels.rows() if is_found(label))


def compare_with_others(
    frame: pl.DataFrame, name: str, tasks: Sequence[int]
) -> list[tuple[int, float, float, float]]:
    """Find the names for which some tasks need more time than others. Return (value of `name`, mean
    of these tasks, median of the others, maximum of the others) in ns, the largest difference
    first. frame: task, `name`, time.
    """
    is_own = pl.col("task").is_in(list(tasks))
    others = frame["task"].n_unique() - len(tasks)
    sums = frame.group_by(name).agg(
        own=pl.col("time").filter(is_own).sum() / max(len(tasks), 1),
        # A task without a row has none of it.
        usual=pl.when((~is_own).sum() * 2 > others)
        .then(pl.col("time").filter(~is_own).median())
        .otherwise(0.0),
        most=pl.col("time").filter(~is_own).max().fill_null(0),
    )
    more = pl.col("own") - pl.col("usual")
    sums = sums.filter(more > 0).sort(more, descending=True)
    return sums.select(name, "own", "usual", "most").rows()


def describe_parts(
    parts: Mapping[str, float], most: int = 3, named: Mapping[str, str] | None = None
) -> str:
    """Return a text about host activity: `62% computing, 30% in file or network I/O`. parts: part
    -> time. most: number of parts to name. named: part -> its longest item, such as ` (read 2 ms)`.
    """
    whole = sum(parts.values())
    if not whole:
        return ""
    shares = sorted(((value / whole, name) for name, value in parts.items()), reverse=True)
    return ", ".join(
        f"{share:.0%} {PARTS[name]}" + (named or {}).get(name, "")
        for share, name in shares[:most]
        if share >= 0.05
    )


def collect_overhead(unit: DeviceGroup) -> Iterator[pl.DataFrame]:
    """Yield the profiler overhead on each thread: thread, begin, end (ns)."""
    if unit.has("profiler_overhead"):
        for thread in unit.read_named("profiler_overhead")["thread"].unique().sort().to_list():
            spans = find_profiler_spans(unit, thread)
            yield pl.DataFrame({"thread": thread, "begin": spans.begin, "end": spans.end})


def find_overhead(replay: Replay, overhead: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays: the edges of host calls and pauses with profiler overhead on the same
    thread (sorted), and the overhead in each (ns). overhead: from :func:`collect_overhead`.
    """
    return measure_edges(replay, replay.select((Kind.GAP, Kind.CALL)), overhead)


def measure_edges(
    replay: Replay, edges: np.ndarray, overhead: pl.DataFrame
) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays: the edges during which given events happen on their target's thread
    (sorted), and for how long (ns, at most the duration of the edge). overhead: `thread`, `begin`,
    `end` of these events.
    """
    if not overhead.height:
        return np.zeros(0, np.int32), np.zeros(0, np.int64)
    graph, is_there = replay.graph, np.zeros(len(replay.graph.processes), bool)
    spans = {
        thread: Spans(*to_arrays(rows, *SIDES)) for (thread,), rows in overhead.group_by("thread")
    }
    kept, lasts = [edges[:0]], [np.zeros(0, np.int64)]
    for part in split_rows(len(edges)):
        row = graph.row[graph.find_nodes(edges[part])]
        is_there[:], is_there[row] = False, True
        for thread in filter(is_there.__getitem__, spans):
            some = edges[part][row == thread]
            sides = (graph.time[side[some]] for side in (graph.edges.source, graph.edges.target))
            inside = np.minimum(spans[thread].within(*sides), graph.weight[some])
            kept.append(some[inside > 0])
            lasts.append(inside[inside > 0])
    order = np.argsort(places := np.concatenate(kept))
    return places[order], np.concatenate(lasts)[order]
