"""Find threads and processes whose recorded CUDA API calls end early. The activity of their GPUs is
unknown afterwards.

Nsight Systems may stop recording the calls of a thread while everything else continues. The thread
then repeats activity that contained calls before, but without any: NVTX ranges with the same name
and duration, work between two equal OS runtime calls, or CPU samples inside CUDA. A rank's MPI
calls end early if other ranks continue to make collective calls that include it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import ABSENT, DURATION
from nsys2prv._util.text import format_moment
from nsys2prv.conversion.job import Job
from nsys2prv.events.catalogue import load_catalogue, map_labels
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.figures.device_group import NAMED_BY, OS, DeviceGroup, to_arrays
from nsys2prv.figures.stacks import SAMPLES
from nsys2prv.figures.thresholds import (
    FEWEST_MARKS,
    FEWEST_RANGES,
    LEAST_LEFT,
    LEAST_MPI_CALLS,
    NEARLY_EACH,
    SAME_LENGTH,
)
from nsys2prv.table.event_reader import RANGES, EventReader

#: Layout of collective MPI calls, which all members of a communicator make.
COLLECTIVE = "mpi_collective"
_FINALIZE = load_catalogue().name_sets["mpi_other"].list_known_values()["MPI_Finalize"]
#: Code in which CPU samples show a visit of CUDA.
_OWNERS = map_labels("code_owner")
IN_CUDA = (_OWNERS["a cuda library"], _OWNERS["the cuda driver"])


class Reach(Struct, frozen=True):
    """The early end of recorded CUDA or MPI calls: of one thread, or of all threads of a task,
    while other events go on.
    """

    #: Task of the trace (from 1), and the thread; -1 for all of the task's.
    task: int
    thread: int
    #: End of the last call, and of the last activity that continues without calls (ns).
    until: int
    goes_on: int
    #: The continuing activity (layout, and its name: an event value, or a group of names of ranges), and its
    #: count.
    layout: str
    name: int
    count: int

    def describe(self, who: str, find_label: Callable[..., str]) -> str:
        """Return a text about where the recording of calls ends, and the events that continue. who:
        name of the thread or task. find_label: as in :class:`Context`.
        """
        until, goes_on = (format_moment(time, self.goes_on) for time in (self.until, self.goes_on))
        if self.layout == COLLECTIVE:
            return f"{who} at {until} (other ranks make {self.count:,} collective calls with it until {goes_on})"
        label = find_label(self.name, "range" if self.layout in RANGES else self.layout)
        noun = f"returns from {label}" if self.layout in OS else f"NVTX ranges {label}"
        noun = "CPU samples in CUDA" if self.layout in SAMPLES else noun
        return f"{who} at {until} ({self.count:,} {noun} without such calls follow until {goes_on})"


def find_reaches(unit: DeviceGroup) -> list[Reach]:
    """Find threads that launch work whose recorded calls end early, and tasks in which the calls of
    all threads do.
    """
    if not unit.has("cuda_api"):
        return []
    main, limit = unit.reader.rows.main_rows, (1 - LEAST_LEFT) * unit.duration
    last, process_of = np.full(len(main), -1), unit.reader.rows.get_column("process")
    np.maximum.at(last, main, unit.reader.find_last_ends("cuda_api", unit.number))
    early, late = (last >= 0) & (last < limit), np.unique(process_of[last >= limit])
    if not early.any():
        return []
    tasks = np.setdiff1d(np.unique(process_of[early]), late)
    wanted = early[main] | np.isin(process_of, tasks)

    def read(layout: str, *fields: str) -> pl.DataFrame:
        events = unit.reader.read_begins(
            layout, fields, unit.number, keep=lambda columns: wanted[columns["thread"]]
        )
        thread = pl.Series("thread", main[events["thread"].to_numpy()])
        return events.with_columns(
            thread, unit.reader.rows.find("process", thread).alias("task")
        ).cast(pl.Int64)

    calls, marks = read("cuda_api"), pl.concat([*_list_marks(unit, read)])
    launching = main[[sender for sender, _ in unit.launch_pairs]]
    of_threads = marks.filter(pl.col("thread").is_in(np.flatnonzero(early).tolist()))
    found = [one for one in _judge(of_threads, calls, "thread") if one.thread in launching]
    known = {one.task for one in found}
    ranges = marks.filter(pl.col("layout").is_in(RANGES) & pl.col("task").is_in(tasks.tolist()))
    return found + [one for one in _judge(ranges, calls, "task") if one.task not in known]


def _list_marks(unit: DeviceGroup, read: Callable[..., pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Yield the repeated work of threads: thread, task, begin, end (ns), layout, name."""
    keys = ("thread", "task", "begin", "end")
    yield read("cuda_api").clear().select(*keys, layout=pl.lit(""), name=pl.lit(0, pl.Int64))
    for layout in filter(unit.has, RANGES):
        ranges = read(layout, "range")
        name = pl.Series(unit.options.find_groups(ranges["range"].to_numpy()), dtype=pl.Int64)
        yield ranges.select(*keys, layout=pl.lit(layout), name=name)
    for layout in filter(unit.has, OS):
        # From one call to the next of the same name.
        times = read(layout, NAMED_BY[layout]).rename({NAMED_BY[layout]: "name"})
        following = pl.col("begin").shift(-1).over("thread", "name")
        times = times.with_columns(begin="end", end=following).filter(
            pl.col("end") > pl.col("begin")
        )
        yield times.select(*keys, layout=pl.lit(layout), name="name")
    for layout in filter(unit.has, SAMPLES):
        samples = read(layout, "owner").sort("thread", "begin", maintain_order=True)
        is_in = pl.col("owner").is_in(IN_CUDA)
        visit = (is_in.ne_missing(is_in.shift()) | (pl.col("thread").diff() != 0)).cum_sum()
        visits = samples.with_columns(visit=visit).filter(is_in).group_by("thread", "task", "visit")
        visits = visits.agg(pl.col("begin").min(), end=pl.col("begin").max() + 1)
        yield visits.select(*keys, layout=pl.lit(layout), name=pl.lit(0, pl.Int64))


def _judge(marks: pl.DataFrame, calls: pl.DataFrame, by: str) -> Iterator[Reach]:
    """Yield the reach of each thread or task (by) that continues as before after its last call."""
    for (key,), own in marks.group_by(by, maintain_order=True):
        begin, end = to_arrays(calls.filter(pl.col(by) == key), "begin", "end")
        until = int(end.max())
        first, last = to_arrays(own, "begin", "end")
        inside = np.searchsorted(np.sort(begin), last) - np.searchsorted(
            np.sort(end), first, "right"
        )
        has, after = pl.col("has"), pl.col("begin") >= until
        sums = own.with_columns(has=pl.Series(inside > 0)).group_by("layout", "name")
        sums = sums.agg(
            task=pl.col("task").first(),
            before=(~after).sum(),
            having=has.sum(),
            after=after.sum(),
            ratio=DURATION.filter(after).median() / DURATION.filter(has).median(),
            goes_on=pl.col("end").filter(after).max(),
        )
        is_range = pl.col("layout").is_in(RANGES)
        fewest = pl.when(is_range).then(FEWEST_RANGES).otherwise(FEWEST_MARKS)
        sums = sums.filter(
            (pl.col("having") >= fewest)
            & (pl.col("having") >= NEARLY_EACH * pl.col("before"))
            & (pl.col("after") >= fewest)
            & pl.col("ratio").is_between(1 / SAME_LENGTH, SAME_LENGTH)
        )
        if sums.height:
            most = sums.sort(is_range, "after", "goes_on", "name").row(-1, named=True)
            thread = key if by == "thread" else -1
            what = most["goes_on"], most["layout"], most["name"], most["after"]
            yield Reach(most["task"], thread, until, *what)


def find_mpi_reaches(reader: EventReader) -> Iterator[Reach]:
    """Yield the times at which the MPI calls of a task end early: it has no MPI_Finalize, and
    another rank makes later collective calls on a communicator of both.
    """
    if COLLECTIVE not in reader.layouts:
        return
    task_of, units = reader.rows.get_column("process"), reader.rows.unit_numbers
    last = np.full(task_of.max(initial=0) + 1, -1)
    for layout in reader.layouts.intersection(MPI_LAYOUTS):
        for unit in units:
            np.maximum.at(last, task_of, reader.find_last_ends(layout, unit))
    early = (last >= 0) & (last < (1 - LEAST_LEFT) * reader.duration)
    if not early.any():
        return

    def read(layout: str, field: str) -> pl.DataFrame:
        if layout not in reader.layouts:
            return pl.DataFrame(schema=dict.fromkeys(("begin", "end", "task", field), pl.Int64))
        events = pl.concat([reader.read_begins(layout, (field,), unit) for unit in units])
        return events.with_columns(reader.rows.find("process", events["thread"]).alias("task"))

    others = read("mpi_other", "call")
    early[others.filter(pl.col("call") == _FINALIZE)["task"].unique().to_numpy()] = False
    calls = read(COLLECTIVE, "communicator").filter(pl.col("communicator") != ABSENT)
    for task in np.flatnonzero(early).tolist():
        until, is_own = int(last[task]), pl.col("task") == task
        own = calls.filter(is_own)["communicator"].unique()
        later = calls.filter(
            ~is_own & (pl.col("begin") > until) & pl.col("communicator").is_in(own.implode())
        )
        count = later.group_by("task").len()["len"].max() or 0
        if count >= LEAST_MPI_CALLS:
            yield Reach(task, -1, until, later["end"].max(), COLLECTIVE, 0, count)


def place_reaches(reaches: Sequence[Reach], whole: Job, part: Job) -> Iterator[Reach]:
    """Convert early ends of recording from the time of a job to the time of a part of it. Those
    that end after the part are left out. whole: the job. part: the job cut to the part.
    """
    origin = part.epoch - whole.epoch
    keys = {thread: key for key, thread in whole.model.rows.items()}
    tasks = {task: key for key, task in whole.model.tasks.items()}
    for one in reaches:
        until, goes_on = (
            min(max(time - origin, 0), part.duration) for time in (one.until, one.goes_on)
        )
        task = part.model.tasks.get(tasks[one.task - 1])
        thread = part.model.rows.get(keys[one.thread], -1) if one.thread >= 0 else -1
        if task is not None and until < part.duration:
            yield replace(one, task=task + 1, thread=thread, until=until, goes_on=goes_on)
