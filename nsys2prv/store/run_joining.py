"""Many small runs become few before the trace is written.

A window of the trace looks into every run that it touches. A job of a thousand reports has some
seventy thousand runs of a few records each; looking into all of them for every window would cost
more than their records. So small runs of one shape are joined to runs in trace time, of global
numbers, in memory that does not grow with the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.store.runs import BEGIN, RESOLVED, TRACE, Run, Shape, SpillWriter, read_run
from nsys2prv.store.spilling import MOST_NARROW
from nsys2prv.store.windows import GlobalIds, WindowRecords, load_global_ids

#: Records of a run that is small, for which joining costs less than a hundred windows that look
#: into it; and of a run made of such.
SMALL_RUN, JOINED_RECORDS = 32_768, 200_000
#: File with what the runs' times and indices mean, see :mod:`nsys2prv.store.windows`.
GLOBAL_IDS = "global_ids"


class JoinTask(Struct, frozen=True):
    """Groups of runs, each of one shape, of which each becomes one run."""

    #: Of the task.
    number: int
    #: Runs that become one.
    groups: tuple[tuple[Run, ...], ...]
    #: Of all tasks and what is in their runs (GLOBAL_IDS).
    folder: Path


def group_small_runs(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs, in groups of those that are to become one; in the order of their first."""
    groups: list[list[Run]] = []
    filling: dict[Shape, list[Run]] = {}
    filled: dict[Shape, int] = {}
    for run in runs:
        shape = run.shape
        if run.rows > SMALL_RUN:
            groups.append([run])
            continue
        if shape not in filling or filled[shape] + run.rows > JOINED_RECORDS:
            filling[shape], filled[shape] = [], 0
            groups.append(filling[shape])
        filling[shape].append(run)
        filled[shape] += run.rows
    return groups


def plan_join_tasks(groups: Sequence[Sequence[Run]], folder: Path) -> list[JoinTask]:
    """Return tasks for the groups of several runs, each with about as many records as a run of
    joined ones has. folder: a new one.
    """
    tasks: list[JoinTask] = []
    gathered: list[tuple[Run, ...]] = []
    records = 0
    for group in groups:
        if len(group) > 1:
            gathered.append(tuple(group))
            records += sum(run.rows for run in group)
        if records >= JOINED_RECORDS:
            tasks.append(JoinTask(len(tasks), tuple(gathered), folder))
            gathered, records = [], 0
    if gathered:
        tasks.append(JoinTask(len(tasks), tuple(gathered), folder))
    return tasks


def replace_joined_groups(
    groups: Sequence[Sequence[Run]], joined: Iterator[list[Run]]
) -> list[Run]:
    """Return all runs, where the joined ones stand for the groups of several, in order."""
    runs = chain.from_iterable(joined)
    return [group[0] if len(group) == 1 else next(runs) for group in groups]


def remove_replaced_files(files: Iterable[Path], runs: Iterable[Run]) -> None:
    """Remove those of these files in which none of the runs is."""
    for path in set(files) - {run.path for run in runs}:
        path.unlink(missing_ok=True)


def join_task(task: JoinTask) -> list[Run]:
    """Return a run for each group."""
    global_ids = load_global_ids(task.folder / GLOBAL_IDS)
    writer = SpillWriter(task.folder / f"runs-{task.number}.bin", TRACE, RESOLVED)
    try:
        return [_join_group(group, global_ids, writer) for group in task.groups]
    finally:
        writer.close()


def _join_group(group: Sequence[Run], global_ids: GlobalIds, writer: SpillWriter) -> Run:
    shape = group[0].shape
    pieces = WindowRecords(shape, global_ids, [(run, read_run(run)) for run in group])
    columns = pieces.translate_columns()
    order = np.argsort(pieces.times, kind="stable")
    records = pieces.take_stored(order)
    if shape.stream == BEGIN:
        fields = load_catalogue().layouts[shape.name].fields
        wide = sum(
            1 << bit
            for bit, field in enumerate(fields)
            if field.name in columns and int(columns[field.name].max()) > MOST_NARROW
        )
        shape = replace(shape, wide=shape.wide | wide)
        records = records.astype(shape.dtype, copy=False)
    records["time"] = pieces.times[order]
    for name, column in columns.items():
        records[name] = column[order]
    return writer.append(shape, records, int(pieces.times.max()))
