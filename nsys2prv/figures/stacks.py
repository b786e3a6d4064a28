"""Find the program locations in which host threads spend time: first from the call stacks of calls,
then from CPU samples outside these calls. The stack of a call also applies to nested calls without
a stack. CPU samples also show ranks inside MPI if MPI was not traced.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import COUNT
from nsys2prv._util.intervals import EMPTY, Spans, measure_exclusive, merge_spans
from nsys2prv.events.catalogue import load_catalogue, map_labels
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.events.stacks import SEPARATOR, STACK_LAYOUTS
from nsys2prv.figures.device_group import OS, DeviceGroup, Frames, to_arrays
from nsys2prv.figures.result import DECLARED, Context
from nsys2prv.figures.thresholds import (
    LEAST_PLACE,
    LEAST_SAMPLES,
    LONGEST_SAMPLE,
    TOGETHER_AT_EXIT,
)

#: Owner of the code -> its display name, with callers and without a known function.
LIBRARIES, NO_FUNCTION = (DECLARED["stacks"].terms[name] for name in ("libraries", "no_function"))
#: A place is a number: caller 1, then the bits of caller 2 + 1, then those of the owner of the code.
CALLER_BITS, OWNER_BITS = 28, 4
SCHEMA = {"place": pl.Int64, "time": pl.Int64}
SAMPLES = ("cpu_sample", "cpu_sample_stack")
#: Layouts of calls with stacks. CUDA comes first, because OS runtime calls are nested in its calls.
CALLS = STACK_LAYOUTS[: -len(SAMPLES)]
#: Layouts of a thread's states.
STATES_OF_THREADS = ("thread_state", "thread_state_reason")
#: Owners of the code of samples: values of the catalogue.
_STATES = map_labels("thread_state")
#: Value of a thread that runs.
RUNNING = _STATES["running"]
PROFILER, SYSTEM = (map_labels("code_owner")[whose] for whose in ("the profiler", "the system"))
#: CPU samples in MPI: time, the time that each represents (ns), and the function without MPI_.
MPI_SAMPLES = {"begin": pl.Int64, "lasts": pl.Int64, "call": pl.String}


def read_layouts(unit: DeviceGroup, layouts: tuple[str, ...], *fields: str) -> pl.DataFrame:
    """Return the events of some layouts, sorted by start."""
    return pl.concat(
        [unit.read_begins(layout, fields) for layout in layouts if unit.has(layout)]
    ).sort("begin", maintain_order=True)


def read_samples(unit: DeviceGroup, thread: int, with_place: bool = False) -> pl.DataFrame:
    """Return the CPU samples of a thread while it runs, outside the profiler.

    Columns: begin, owner, own_1, own_2, lasts (ns since the previous sample, at most LONGEST_SAMPLE
    times the usual interval). with_place: return only samples whose owner is known. Often only
    every fourth sample has a stack of more than one function, and represents the others.
    """
    fields = ("owner", "own_1", "own_2", "state", "module")
    samples = unit.remember("cpu_samples", lambda: read_layouts(unit, SAMPLES, *fields)).filter(
        pl.col("thread") == thread
    )
    if with_place:
        samples = samples.join(
            _list_stacks(unit, thread), on="begin", maintain_order="left", how="left"
        )
        samples = keep_whole_stacks(samples, samples["is_whole"].fill_null(False))
        samples = samples.filter((pl.col("own_1") >= 0) | (pl.col("owner") != SYSTEM))
    return samples.with_columns(lasts=weigh_samples(samples["begin"])).filter(
        (pl.col("owner") != PROFILER) & (pl.col("state") <= 0)
    )


@cache
def _match_mpi_call() -> str:
    """Return a regular expression with a group for the name of an MPI function in the text of a
    stack, as in C and as Fortran compilers write it.
    """
    sets = load_catalogue().name_sets
    labels = {label for layout in MPI_LAYOUTS for label in sets[layout].list_known_values()}
    names = "|".join(sorted(label.removeprefix("MPI_") for label in labels))
    return rf"(?i)(?:^|;)P?MPI_({names})_{{0,2}}(?:;|$| \()"


def read_mpi_samples(unit: DeviceGroup, thread: int) -> pl.DataFrame:
    """Return the CPU samples of a thread with known stacks, if MPI was not traced.

    Columns: `begin`, `lasts` (ns that the sample represents), `call` (its MPI function, null
    outside MPI).
    """
    if unit.has(*MPI_LAYOUTS) or not unit.has(*SAMPLES):
        return pl.DataFrame(schema=MPI_SAMPLES)
    return unit.remember(("MPI samples", thread), lambda: _read_mpi_samples(unit, thread))


def _read_mpi_samples(unit: DeviceGroup, thread: int) -> pl.DataFrame:
    samples = read_samples(unit, thread).select("begin")
    samples = samples.join(_list_stacks(unit, thread), on="begin", maintain_order="left")
    samples = keep_whole_stacks(samples, samples["is_whole"])
    return samples.with_columns(lasts=weigh_samples(samples["begin"])).select(*MPI_SAMPLES)


def read_stacks(unit: DeviceGroup) -> tuple[pl.DataFrame, pl.Series]:
    """Return the call stacks of a unit sorted by start, and their texts, as
    :meth:`EventReader.read_stacks` does. They are read once.
    """

    def read() -> tuple[pl.DataFrame, pl.Series]:
        rows, texts = unit.reader.read_stacks(unit.number)
        return rows.sort("begin", maintain_order=True), texts

    return unit.remember("stacks", read)


def _list_stacks(
    unit: DeviceGroup, thread: int, layouts: tuple[str, ...] = SAMPLES
) -> pl.DataFrame:
    """Return the stacks of a thread's samples, or of other layouts: `begin`, whether it has more
    than one function (`is_whole`), and the MPI function in it if MPI was not traced (`call`, or
    null).
    """
    rows, texts = read_stacks(unit)

    def tell() -> pl.DataFrame:
        call = pl.lit(None, pl.String)
        if not unit.has(*MPI_LAYOUTS):
            call = pl.col("text").str.extract(_match_mpi_call())
        is_whole = pl.col("text").str.contains(SEPARATOR, literal=True)
        return texts.to_frame("text").select(is_whole=is_whole, call=call)

    numbers = [STACK_LAYOUTS.index(layout) for layout in layouts]
    own = rows.filter(pl.col("layout").is_in(numbers), thread=thread)
    own = own.unique("begin", keep="first", maintain_order=True)
    return own.select("begin").hstack(unit.remember("told by stacks", tell)[own["text"]])


def find_mpi_samples(unit: DeviceGroup, thread: int) -> Spans:
    """Return the spans in which CPU samples show a thread in MPI, if MPI was not traced."""
    samples = read_mpi_samples(unit, thread)
    if not samples.height:
        return EMPTY
    begin, lasts = to_arrays(samples.drop_nulls("call"), "begin", "lasts")
    return merge_spans(begin - lasts, begin)


def divide_time(
    time: Spans, calls: Iterable[pl.DataFrame], samples: pl.DataFrame | None
) -> pl.DataFrame:
    """Divide the time of a thread among places of the program. Return `place`, `time` (ns), and
    `count` of calls and samples.

    Calls take precedence, in the order of the frames; of nested calls, the innermost counts.
    Samples divide the remaining time, and represent no more than that. calls: `begin`, `end`,
    `place`. samples: `begin`, `lasts` (ns), `place`.
    """
    pieces, left = [], time
    for one in calls:
        begin, end = to_arrays(one, "begin", "end")
        own = pl.Series(measure_exclusive(left, begin, end))
        pieces.append(one.select(pl.col("place").cast(pl.Int64), time=own))
        left = left - merge_spans(begin, end)
    if samples is not None:
        samples = samples.filter(pl.Series(left.contains(samples["begin"].to_numpy())))
        lasts = samples["lasts"].to_numpy()
        share = min(1.0, left.length / max(int(lasts.sum()), 1))
        own = pl.Series((lasts * share).astype(np.int64))
        pieces.append(samples.select(pl.col("place").cast(pl.Int64), time=own))
    sums = pl.concat([pl.DataFrame(schema=SCHEMA), *pieces]).filter(pl.col("time") > 0)
    return sums.group_by("place", maintain_order=True).agg(pl.col("time").sum(), count=COUNT)


def keep_whole_stacks(samples: pl.DataFrame, is_whole: pl.Series) -> pl.DataFrame:
    """Return only the samples with stacks of more than one function, if the others are in the
    majority: Nsight Systems then took a stack only with every n-th sample, which represents the
    others.
    """
    count = is_whole.sum()
    return samples.filter(is_whole) if 0 < 2 * count <= samples.height else samples


def weigh_samples(begin: pl.Series) -> pl.Series:
    """Return the time that each sample of a thread represents (ns): since the previous one, at most
    LONGEST_SAMPLE times the usual interval. begin: sorted sample times.
    """
    lasts = begin.diff().fill_null(0)
    usual = float(lasts.filter(lasts > 0).median() or 0)
    return pl.Series(np.minimum(lasts.to_numpy(), LONGEST_SAMPLE * usual).astype(np.int64))


def find_sampled_spans(unit: DeviceGroup, thread: int, where: pl.Expr | bool = True) -> Spans:
    """Return the spans in which CPU samples show a thread computing, outside the profiler. where:
    expression that selects samples.
    """
    if not unit.has(*SAMPLES):
        return EMPTY
    begin, lasts = to_arrays(read_samples(unit, thread).filter(where), "begin", "lasts")
    return merge_spans(begin - lasts, begin)


def find_states(unit: DeviceGroup, thread: int) -> tuple[Spans, Spans, Spans, Spans]:
    """Divide the time of a thread into four sets: it runs; it is off the CPU; it has not begun, has
    ended or only waits (after it left the CPU for the last time, with no recorded call); and all
    threads are in that third state while GPU metrics are recorded.
    """
    return unit.remember(("states", thread), lambda: _find_states(unit, thread))


def _find_states(unit: DeviceGroup, thread: int) -> tuple[Spans, Spans, Spans, Spans]:
    nothing = (EMPTY,) * 4
    if not unit.has(*STATES_OF_THREADS):
        return nothing
    of_all = unit.remember("thread_states", lambda: read_layouts(unit, STATES_OF_THREADS, "state"))
    changes = of_all.filter(pl.col("thread") == thread)
    if not changes.height:
        return nothing
    of_all = unit.select_apart(of_all, thread)
    state, begin = to_arrays(changes, "state", "begin")
    runs, ends = state == RUNNING, np.isin(state, (0, _STATES["terminated"]))
    calls = unit.find_thread_spans([thread], "cuda_api", *OS)
    first, last = int(begin[0]) if runs[0] else 0, int(begin[-1])
    if len(calls):
        first = min(first, int(calls.begin[0]))
        if not runs[-1] and not ends[-1]:
            last = max(last, int(calls.end[-1]))
    end = np.append(begin[1:], last)
    off = ~runs & ~ends
    lasts = of_all.group_by("thread").last()
    later = lasts["begin"] - last
    # The threads of an exiting process end together, except the one that frees its memory.
    is_exit = (later > TOGETHER_AT_EXIT).sum() <= 1 and (later.abs() <= TOGETHER_AT_EXIT).sum() > 2
    goes_on = not is_exit and (lasts["state"] == RUNNING).any()
    begun, final = min(first, int(of_all["begin"][0])), max(last, int(of_all["begin"][-1]))
    final = last if is_exit else final
    ended, away = (
        merge_spans(np.array([0, since]), np.array([until, since if lives else unit.duration]))
        for until, since, lives in ((first, last, runs[-1]), (begun, final, goes_on))
    )
    return merge_spans(begin[runs], end[runs]), merge_spans(begin[off], end[off]), ended, away


def measure_places(unit: DeviceGroup, thread: int, spans: Spans) -> pl.DataFrame:
    """Return how long a thread is in each place of the program within a set of times, as `place` (a
    number that stands for functions, see :func:`label_place`) and `time` (ns). For the remaining
    time, too little is known.
    """
    samples, calls = None, []
    for layout in CALLS:
        if not unit.reader.has_callers(layout, unit.number):
            continue
        read = partial(unit.reader.read_begins, layout, ("caller_1", "caller_2"), unit.number)
        find = partial(read, keep=lambda columns: columns["caller_1"] >= 0)
        callers = unit.remember(f"callers of {layout}", find)
        if callers.height:
            called = callers.filter(pl.col("thread") == thread)
            owners = _find_owners(unit, layout, called)
            place = _join(*to_arrays(called, "caller_1", "caller_2"), owners)
            calls.append(called.with_columns(place=pl.Series(place)))
    if unit.has(*SAMPLES):
        samples = read_samples(unit, thread, with_place=True)
        # That CUDA calls are in the driver is no place.
        in_cuda = unit.find_thread_spans([thread], "cuda_api").contains(samples["begin"].to_numpy())
        samples = samples.filter((pl.col("own_1") >= 0) | ~pl.Series(in_cuda))
        first, second, owner, begin, lasts = to_arrays(
            samples, "own_1", "own_2", "owner", "begin", "lasts"
        )
        place = _join(np.maximum(first, 0), np.where(first >= 0, second, -1), np.maximum(owner, 0))
        # A sample represents no time off the CPU.
        lasts = lasts - find_states(unit, thread)[1].within(begin - lasts, begin)
        samples = samples.with_columns(place=pl.Series(place), lasts=pl.Series(lasts))
        samples = _forget_rare(samples.filter(pl.Series(spans.contains(begin))))
    if samples is None and not calls:
        return pl.DataFrame(schema=SCHEMA)
    return divide_time(spans, calls, samples).filter(pl.col("place") != 0).drop("count")


def _find_owners(unit: DeviceGroup, layout: str, calls: pl.DataFrame) -> np.ndarray | int:
    """Return the owner of each call of a thread: MPI, from the call stack, if MPI calls are not
    recorded; otherwise 0. calls: thread, begin.
    """
    if unit.has(*MPI_LAYOUTS) or not calls.height:
        return 0
    found = _list_stacks(unit, calls["thread"][0], (layout,)).drop_nulls("call")
    in_mpi = calls["begin"].is_in(found["begin"].implode()).to_numpy()
    return in_mpi * map_labels("code_owner")["mpi"]


def _forget_rare(samples: pl.DataFrame) -> pl.DataFrame:
    """Return samples in which rare callers have place 0. The other samples there share their time."""
    callers = pl.col("place") // (1 << OWNER_BITS)
    is_known = pl.len().over(callers) >= LEAST_SAMPLES
    return samples.with_columns(place=pl.when(is_known).then("place").otherwise(0))


def _join(first: np.ndarray, second: np.ndarray, owner: np.ndarray | int = 0) -> np.ndarray:
    return (first << CALLER_BITS | second + 1) << OWNER_BITS | owner


class Place(Struct, frozen=True):
    """The place in the program in which most of some time is spent."""

    #: Its share of the time.
    share: float
    #: Its display name.
    label: str
    #: Owner of the code, from the catalogue; "" for code of several owners.
    owner: str
    #: Whether it is in MPI, which was not traced.
    is_untraced: bool

    def __str__(self) -> str:
        return f"{self.share:.0%} in {self.label}"


def _name_owner(place: int) -> str:
    owners = {value: label for label, value in map_labels("code_owner").items()}
    return owners.get(place & (1 << OWNER_BITS) - 1, "")


def _is_untraced(owner: str, context: Context) -> bool:
    return owner == "mpi" and not context.reader.layouts & set(MPI_LAYOUTS)


def label_place(place: int, context: Context) -> str:
    """Return the name of a place for display: `alloc (app), called by main, in the CUDA driver`; ""
    if nothing is known.
    """
    owner = _name_owner(place)
    library = LIBRARIES.get(owner, "")
    if _is_untraced(owner, context):
        library += ", which was not traced: add mpi to --trace"
    callers = place >> OWNER_BITS
    if not callers:
        return library or NO_FUNCTION.get(owner, "")
    first = context.find_label(callers >> CALLER_BITS, "caller")
    second = context.find_label((callers & (1 << CALLER_BITS) - 1) - 1, "caller")
    name, _, module = second.rpartition(" (")
    if name and first.endswith(f"({module}"):
        second = name
    called = f", called by {second}" if second else ""
    return f"{first}{called}{f', in {library}' if library else ''}"


def find_place(places: pl.DataFrame, whole: float, context: Context) -> Place | None:
    """Return the place in the program where most of some time is spent, or None if too little of
    the time is known. places: from :func:`measure_places`. whole: length of the time (ns).
    """
    callers = pl.col("place") // (1 << OWNER_BITS)
    sums = places.group_by("place").agg(pl.col("time").sum()).sort("time", maintain_order=True)
    sums = sums.with_columns(of_callers=pl.col("time").sum().over(callers))
    for place, time, of_callers in sums.sort("of_callers", maintain_order=True).tail(1).rows():
        if of_callers < LEAST_PLACE * whole:
            continue
        if 2 * time < of_callers:  # callers of no one library alone
            place -= place % (1 << OWNER_BITS)
        if label := label_place(place, context):
            owner = _name_owner(place)
            share = min(of_callers / whole, 1.0)
            return Place(share, label, owner, _is_untraced(owner, context))
    return None


def list_places(frames: Frames, context: Context) -> pl.DataFrame:
    """Return where in the program hosts are while GPUs are idle, for each task the longest place
    first: `who`, `where`, `time_ns`, `idle_share` (of its GPUs' idle time). frames: `activities`
    and `uses`, from findings.py.
    """
    rows, uses = frames["activities"], frames["uses"]
    if not rows.height:
        return pl.DataFrame()
    is_idle = pl.col("when").is_in(["before", "idle", "after"])
    rows, uses = rows.filter(is_idle & (pl.col("part") == "where")), uses.filter(is_idle)
    sums = rows.group_by("task", "name").agg(time_ns=pl.col("time").sum())
    lengths = uses.group_by("task").agg(pl.col("length").sum())
    labels = pl.Series([label_place(place, context) for place in sums["name"]], dtype=pl.String)
    table = sums.with_columns(where=labels).filter(pl.col("where") != "")
    # Code of several owners may have one label.
    table = table.group_by("task", "where").agg(pl.col("time_ns").sum()).join(lengths, on="task")
    table = table.join(context.tasks.select("task", "who"), on="task")
    table = table.sort("task", -pl.col("time_ns"), "where")
    share = pl.col("time_ns") / pl.col("length")
    return table.select("who", "where", "time_ns", idle_share=share)


# ---- MPI that was not traced ---------------------------------------------------------------------


def count_mpi_samples(unit: DeviceGroup, thread: int, time: Spans) -> pl.DataFrame:
    """Return the number of CPU samples of a thread in each MPI call within a set of times, if MPI
    was not traced: `call` (null outside MPI) and `count`.
    """
    samples = read_mpi_samples(unit, thread)
    if not samples.height:
        return pl.DataFrame(schema={"call": pl.String, "count": pl.Int64})
    inside = pl.Series(time.contains(samples["begin"].to_numpy()), dtype=pl.Boolean)
    return samples.filter(inside).group_by("call").agg(count=COUNT)
