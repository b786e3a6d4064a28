"""How a GPU spends an iteration of the steady state (computing, communication alone, copies alone,
idle): median, minimum, maximum.

The steady state is the time in which a job repeats itself: its iterations without the first, from
the moment that all ranks take part. It is the focus of efficiencies and findings.

Iterations are NVTX ranges that are asked for, or those of one name (numbers in it apart) that
repeat without overlapping on a thread, hold most of the kernels, and about as many of them each.
A few tasks are looked at to find that name, for all do the same; of every task the thread that is
longest in such ranges has the iterations. Hosts run ahead of their devices: an iteration begins
when what was launched before it has ended on the devices, and ends when what was launched in it
has. Where there are no such ranges, iterations are periods of the sequence of kernels of a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import ABSENT
from nsys2prv._util.errors import UsageError
from nsys2prv._util.text import suggest_range
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.events.name_rules import NamePattern
from nsys2prv.figures.device_group import (
    BUSY,
    ITERATION_COLUMNS,
    WORK,
    DeviceGroup,
    Steady,
    to_arrays,
)
from nsys2prv.figures.intervals import SIDES, Spans, take_first
from nsys2prv.figures.nvtx_operations import NUMBER, TAIL
from nsys2prv.figures.result import DECLARED, KERNEL_NAMES, Context, Result
from nsys2prv.figures.thresholds import (
    ALIKE,
    AS_MANY,
    LEAST_COUNT,
    LEAST_KERNELS,
    LEAST_NUMBERED,
    LEAST_STEADY,
    MOST_APART,
    NEARLY,
    REGULAR,
    WARM,
)
from nsys2prv.table.event_reader import EventReader

LAYOUTS = ("nvtx_pushpop", "nvtx_startend")
#: Units that are looked at.
MOST_UNITS = 4
#: Calls of libraries are no iterations.
LIBRARY_CALL = r"^(P?MPI_|nccl[A-Z:])"
#: Ranges that are tried.
MOST_TRIED = 20
#: Periods that are tried.
MOST_PERIODS = 40
GRAPHS = "cuda_graph"
KERNELS = ("cuda_kernel", GRAPHS)
PERIOD = "the period of the sequence of kernels"
#: Description of the tables; columns of what devices do -> names for people.
ABOUT, PARTS = (DECLARED["iterations"].terms[name] for name in ("about", "parts"))


class _Found(Struct, frozen=True):
    """Iterations of a job."""

    #: Begins, ascending, and the end of the last one (ns).
    begins: np.ndarray
    end: int
    #: Description, as in Steady.
    found_by: str
    #: Those of each task, as :func:`list_task_iterations` returns them; empty for periods of kernels.
    of_tasks: pl.DataFrame


def find_steady_state(
    reader: EventReader,
    labels: pl.DataFrame,
    pattern: str,
    covered: Spans,
    list_all: Callable[[NamePattern], pl.DataFrame],
    show: Callable[[str], str] = str,
) -> tuple[Steady, pl.DataFrame] | None:
    """Return the steady state of a job with the iterations of its tasks (ITERATION_COLUMNS), None
    where it does not repeat itself.

    labels: value and label of NVTX names. pattern: of the names of the ranges that are the
    iterations, "" to find them. covered: what the reports of all tasks cover: between two captures
    nothing is known. list_all: returns what :func:`list_task_iterations` does of all units. show: how to print a name. Raises
    UsageError where no range matches the pattern.
    """
    if pattern:
        names, found_by = NamePattern.from_glob(pattern, labels), f"NVTX ranges {show(pattern)}"
        found = _join_tasks(list_all(names), found_by, reader.edges is not None)
        if found is None:
            raise UsageError(
                f"--iterations {pattern}: no NVTX range has such a name; "
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
    left_out = ", without the first" * (warm_up > 0) + f" {warm_up}" * (warm_up > 1)
    if not inside.all():
        left_out = ", in the longest time that all reports cover"
    first, last = int(kept[0]), int(kept[-1]) + 1
    steady = Steady(
        int(begins[first]),
        int(ends[last - 1]),
        tuple(begins[first:last].tolist()),
        found.found_by,
        len(ends),
        left_out,
    )
    number = pl.col("iteration") - whole.start - first
    of_tasks = found.of_tasks.filter(number.is_between(0, last - first - 1))
    return steady, of_tasks.with_columns(iteration=number).sort("unit", "task", "iteration")


def _find_whole(reader: EventReader, found: _Found, ends: np.ndarray) -> tuple[slice, bool]:
    """Return the iterations that a cut does not leave a part of, all of them where there are no such; and
    whether the first of them may be the job's.
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
    """Return the ranges of a unit whose names match, of each task those of the thread that is longest in
    such: columns ITERATION_COLUMNS, numbered by their begins, and the `number` in their names. Ranges within
    others do not count.
    """
    ranges = read_ranges(unit, names)
    longest = find_longest_threads(ranges)
    ranges = keep_outermost(ranges.join(longest, on=["task", "thread"], how="semi"))
    # Until when what was launched before each side runs.
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
    return ranges.with_columns(
        unit=pl.lit(unit.number, pl.Int64),
        iteration=pl.int_range(pl.len()).over("task"),
        since=pl.Series(reached["begin"]),
        until=pl.Series(reached["end"]),
    ).select(*ITERATION_COLUMNS, "number")


def _add_work_beyond(
    unit: DeviceGroup,
    task: np.ndarray,
    sides: Mapping[str, np.ndarray],
    reached: Mapping[str, np.ndarray],
) -> None:
    """Take into account the work that a cut leaves without its launch, or leaves out. task: of each
    range, whose sides are times of its host; reached: until when what was launched before these
    runs.
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
    """Return the NVTX ranges of a unit: begin, end, thread, range, number, task. names: those that match
    alone.
    """

    def match(columns: Mapping[str, np.ndarray]) -> np.ndarray:
        return names.find_matches(columns["range"], columns["number"])

    ranges = pl.concat(
        unit.reader.read_begins(layout, ("range", "number"), unit.number, names and match)
        for layout in LAYOUTS
    )
    return ranges.with_columns(unit.list_tasks(ranges))


def find_longest_threads(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return for each task the thread that is longest in its ranges: task, thread."""
    lasts = (pl.col("end") - pl.col("begin")).sum()
    threads = ranges.group_by("task", "thread").agg(lasts=lasts)
    threads = threads.sort("lasts", "thread", descending=[True, False])
    return threads.unique("task", keep="first").select("task", "thread")


def keep_outermost(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges of each thread that lie within no other, by thread and begin."""
    ranges = ranges.sort("thread", "begin", "end", descending=[False, False, True])
    reached = pl.col("end").cum_max().shift(1).over("thread").fill_null(-1)
    return ranges.filter(pl.col("begin") >= reached)


def _join_tasks(
    of_tasks: pl.DataFrame, found_by: str, is_cut: bool, most_apart: float = np.inf
) -> _Found | None:
    """Return the iterations that all tasks with iterations take part in; None if tasks are further apart
    in iterations, on average. is_cut: whether these are of a part of a job.
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
    """Return how many iterations at the beginning are warm-up. is_first: whether the first may be the
    job's.
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
    units = reader.rows.unit_numbers
    chosen = np.unique(np.linspace(0, len(units) - 1, MOST_UNITS).astype(int)).tolist()
    launches = {units[at]: _list_launches(reader, units[at]) for at in chosen}
    launches = {unit: begins for unit, begins in launches.items() if len(begins)}
    patterns = _make_patterns(labels)
    # Ranges that are pushed and popped before those that are started and ended anywhere.
    for layout in LAYOUTS:
        names = [
            _find_by_ranges(_list_ranges(reader, unit, patterns, layout), patterns, begins)
            for unit, begins in launches.items()
        ]
        names = [name for name in names if name]
        if names:
            # What most of the tasks looked at found.
            name = max(names, key=names.count)
            values = patterns.filter(pl.col("pattern") == name).select("value", label="pattern")
            pattern = NamePattern("", values, values.clear())
            is_cut, found_by = reader.edges is not None, f"NVTX ranges {show(name)}"
            return _join_tasks(list_all(pattern), found_by, is_cut, MOST_APART)
    has_work = bool(reader.layouts & {*WORK})
    periods = [_find_by_kernels(_list_kernels(reader, unit)) for unit in launches if has_work]
    periods = [one for one in periods if one]
    if not periods:
        return None
    most = max(periods, key=lambda one: len(one.begins))
    begin, end = min(one.begins[0] for one in periods), max(one.end for one in periods)
    begins = np.append(min(begin, most.begins[0]), most.begins[1:])
    return _Found(begins, min(end, reader.duration), most.found_by, most.of_tasks)


def find_phases(length: int, covered: Spans, steady: Steady) -> pl.DataFrame:
    """Return the job's start-up, steady state and shutdown, as far as they are recorded: `phase`,
    `begin_ns`, `time_ns`, `time_share` of the job (length: ns), and of the steady state `iterations`,
    and `activity`, by what these were found.
    """
    edges = covered.find_hull()[0], steady.begin, steady.end, covered.find_hull()[1]
    phases = pl.DataFrame(
        {
            "phase": ["start-up", "steady state", "shutdown"],
            "begin_ns": edges[:3],
            "time_ns": np.diff(edges),
            "time_share": np.diff(edges) / max(length, 1),
            "iterations": [None, steady.count, None],
            "activity": [None, steady.found_by, None],
        }
    )
    return phases.filter(pl.col("time_ns") > 0)


def _list_kernels(reader: EventReader, unit: int) -> pl.DataFrame:
    """Return kernels and graphs of a unit's first device, or calls of MPI in a job without GPUs, by
    begin: begin, end, thread, name. When kernels of NCCL begin depends on other ranks: they count alone.
    """
    kinds = KERNELS if reader.layouts & {*KERNELS} else ("nccl_kernel",)
    layouts = {name: WORK[name][1]["name"] for name in kinds}
    if not reader.layouts & {*WORK}:
        layouts = dict.fromkeys(MPI_LAYOUTS, "call")
    frames = []
    for layout, field in layouts.items():
        frame = reader.read_begins(layout, (field,), unit, dtype=np.int32).rename({field: "name"})
        # Names of graphs are numbered by themselves.
        frames.append(frame.with_columns(-pl.col("name") - 1) if layout == GRAPHS else frame)
    frames = [one for one in frames if one.height] or frames[:1]
    frame = frames[0] if len(frames) == 1 else pl.concat(frames, how="vertical_relaxed")
    device = reader.rows.get_column("device")[frame["thread"].to_numpy()]
    of_first = device == device.min(initial=1 << 40)
    frame = frame if of_first.all() else frame.filter(pl.Series(of_first))
    return frame if len(frames) == 1 else frame.sort("begin")


def _list_launches(reader: EventReader, unit: int) -> np.ndarray:
    """Return when the calls begin that launch the kernels of a unit's first device; where most are not
    known, when these begin.
    """
    kernels = _list_kernels(reader, unit)
    lines = reader.read_lines(["launch"], unit, ("sent", "thread"), np.int32)
    streams = kernels["thread"].unique().to_list()
    sent = lines.filter(pl.col("thread").is_in(streams))["sent"].to_numpy()
    return sent if 2 * len(sent) > kernels.height else kernels["begin"].to_numpy()


def _make_patterns(labels: pl.DataFrame) -> pl.DataFrame:
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
    end, thread, code (int32), and whether they are numbered.
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
            numbered=pl.col("number") != ABSENT,
        )
        frames.append(frame.filter(pl.col("code") > 0))
    return frames


def _find_by_ranges(
    ranges: Sequence[pl.DataFrame], patterns: pl.DataFrame, kernels: np.ndarray
) -> str | None:
    """Return the pattern of the names of the ranges that are iterations of one task, None for none.
    ranges: by begin, in several frames. kernels: when those of its device were launched.
    """
    groups = _summarize_groups(ranges)
    with_numbers = patterns.filter(pl.col("pattern").str.contains("#", literal=True))["code"]
    numbered = pl.col("numbered") | pl.col("code").is_in(with_numbers.unique().to_list())
    groups = groups.with_columns(numbered=numbered)
    # Two are enough where they are numbered and one follows the other.
    two = (
        (pl.col("count") == LEAST_NUMBERED)
        & pl.col("numbered")
        & (pl.col("covered") >= NEARLY * (pl.col("last") - pl.col("first")))
    )
    calls = patterns.filter(pl.col("pattern").str.contains(LIBRARY_CALL))["code"].unique()
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
        begins, ends = to_arrays(pl.concat(one.filter(is_same) for one in ranges), *SIDES)
        # Work of the last iteration may run after its range has ended.
        if _do_launch_alike(np.append(begins, ends[-1]), kernels):
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
            numbered=pl.col("numbered").any(),
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


def _do_launch_alike(edges: np.ndarray, kernels: np.ndarray) -> bool:
    """Return whether most kernels run in intervals that have about as many kernels as the one in
    the middle: those of iterations do, those from one call of a function to the next do not.
    """
    counts = np.diff(np.searchsorted(kernels, edges))
    usual = np.median(counts)
    alike = (counts <= AS_MANY * usual) & (AS_MANY * counts >= usual)
    return bool(counts[alike].sum() > LEAST_KERNELS * counts.sum())


def _find_by_kernels(kernels: pl.DataFrame) -> _Found | None:
    """Find iterations by the period in the names of kernels."""
    names = kernels["name"].to_numpy()
    for period in _list_periods(names):
        alike = names[period:] == names[:-period]
        first, last = _find_longest_alike(alike, period)
        if last - first >= (
            LEAST_COUNT - 1
        ) * period and last - first + period >= LEAST_KERNELS * len(names):
            count = (last - first) // period + 1
            begins = kernels["begin"].to_numpy()[first : last + period : period][:count]
            end = int(kernels["end"][first : last + period].max())
            # What takes as long as it happens to, as requests come, does not repeat itself.
            # The first of several is warm-up.
            lengths = np.diff(np.append(begins, end))[count > LEAST_COUNT :]
            short, long = np.quantile(lengths, (0.1, 0.9))
            if long <= REGULAR * short:
                return _Found(begins, end, PERIOD, pl.DataFrame(schema=ITERATION_COLUMNS))
    return None


def _list_periods(names: np.ndarray) -> list[int]:
    """Return periods that the sequence may have, ascending: the usual distances of the same name."""
    _, codes, counts = np.unique(names, return_inverse=True, return_counts=True)
    order = np.argsort(codes, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)])
    periods = set()
    for number in np.argsort(counts, kind="stable").tolist():
        if counts[number] >= LEAST_COUNT and len(periods) < MOST_PERIODS:
            periods.add(int(np.median(np.diff(order[starts[number] : starts[number + 1]]))))
    return sorted(period for period in periods if 0 < period <= len(names) // LEAST_COUNT)


def _find_longest_alike(alike: np.ndarray, period: int) -> tuple[int, int]:
    """Return begin and end of the longest stretch in which each window of a period has enough matches."""
    if len(alike) < period:
        return 0, 0
    sums = np.concatenate([[0], np.cumsum(alike)])
    good = sums[period:] - sums[:-period] >= ALIKE * period
    edges = np.flatnonzero(np.diff(np.concatenate([[0], good.astype(np.int8), [0]])))
    if not len(edges):
        return 0, 0
    begins, ends = edges[::2], edges[1::2]
    longest = int(np.argmax(ends - begins))
    return int(begins[longest]), int(ends[longest]) - 1 + period


def collect(unit: DeviceGroup) -> Iterator[tuple[str, pl.DataFrame]]:
    """Collect how the devices spend each iteration of the steady state (ns, added up)."""
    steady = unit.options.steady
    if steady is None or not unit.known_devices:
        return
    begin = np.array(steady.iteration_begins, np.int64)
    end = np.append(begin[1:], steady.end)
    whole = unit.covered.within(begin, end) == end - begin
    sums = np.zeros((3, len(begin)), np.int64)
    for device in unit.known_devices:
        uses = ("compute", "nccl", "memory")
        found = ((name, unit.find_device_spans(device, *BUSY[name])) for name in uses)
        for row, (_, spans) in enumerate(take_first(found)):
            sums[row] += spans.within(begin, end)
    idle = len(unit.known_devices) * (end - begin) - sums.sum(axis=0)
    frame = pl.DataFrame(dict(zip(PARTS, (*sums, idle), strict=True))).with_columns(
        iteration=pl.int_range(1, len(begin) + 1), devices=len(unit.known_devices)
    )
    yield "iterations", frame.filter(pl.Series(whole))


def conclude(frames: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    """Add the iterations of the steady state, and what is usual of them."""
    steady, parts = context.options.steady, frames["iterations"]
    if steady is not None and not parts.height:
        result.missing.append(f"iterations: {context.explain_absence(tuple(WORK))}")
        return
    if steady is None:
        result.missing.append("iterations: none found; the job does not repeat itself")
        return
    begin = np.array(steady.iteration_begins, np.int64)
    times = pl.DataFrame(
        {
            "iteration": np.arange(1, len(begin) + 1),
            "begin_ns": begin,
            "time_ns": np.diff(np.append(begin, steady.end)),
        }
    )
    means = parts.group_by("iteration").agg(
        (pl.col(*PARTS).sum() / pl.col("devices").sum()).round().cast(pl.Int64)
    )
    each = times.join(means, on="iteration", maintain_order="left")
    if KERNEL_NAMES not in context.available:
        each = each.drop("compute_ns", "exposed_nccl_ns")
        why = context.explain_absence((KERNEL_NAMES,))
        result.missing.append(f"communication of iterations: {why}")
    result.add("summary", _summarize(each), f"Found by {steady.found_by}. {ABOUT}")
    result.add("each", each)


def _summarize(each: pl.DataFrame) -> pl.DataFrame:
    """Return the median, minimum and maximum of each part, and the iterations that have
    these.
    """
    return pl.DataFrame(
        [
            {
                "part": name,
                "median_ns": each[column].median(),
                "min_ns": each[column].min(),
                "min_in_iteration": each["iteration"][each[column].arg_min()],
                "max_ns": each[column].max(),
                "max_in_iteration": each["iteration"][each[column].arg_max()],
            }
            for column, name in {"time_ns": "whole iteration", **PARTS}.items()
            if column in each.columns
        ]
    )
