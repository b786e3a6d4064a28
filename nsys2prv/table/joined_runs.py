"""Join small runs of one shape, before a trace is written.

A window looks into every run that it touches. A job of a thousand reports has some seventy thousand
runs of a few records each; looking into all of them for every window would cost more than their
records. So small ones are joined to runs in trace time, of global numbers, in memory that does not grow
with the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from nsys2prv._util.columns import ABSENT
from nsys2prv.events.catalogue import CALLERS, load_catalogue
from nsys2prv.table.global_ids import GlobalIds, load_global_ids
from nsys2prv.table.runs import RANGE, RESOLVED, TRACE, Run, SpillReader, SpillWriter
from nsys2prv.table.slices import read_slice

#: Records of a small run at most: to join it costs less than a hundred windows that look into it.
SMALL_RUN = 32_768
#: Records of a run that small ones are joined to, at most.
JOINED_RECORDS = 200_000
#: File with what the times and indices of runs that are joined mean.
GLOBAL_IDS = "global_ids"


def join_small_runs(
    runs: list[Run],
    global_ids: GlobalIds,
    parent: Path,
    run_tasks: Callable[[Callable, Sequence], Iterable],
) -> list[Run]:
    """Return the runs of a job, of which small ones are joined. parent: of the folder with those.
    run_tasks: maps over tasks.
    """
    groups = _group_small_runs(runs)
    several = [group for group in groups if len(group) > 1]
    if not several:
        return runs
    folder = Path(mkdtemp(prefix="joined-", dir=parent))
    global_ids.save(folder / GLOBAL_IDS)
    # Each task has about as many records as a run of joined ones.
    sizes = np.cumsum([sum(run.rows for run in group) for group in several])
    numbered = zip((sizes // JOINED_RECORDS).tolist(), several, strict=True)
    tasks = [
        (folder, number, [group for _, group in of_task])
        for number, of_task in groupby(numbered, key=itemgetter(0))
    ]
    joined = chain.from_iterable(run_tasks(join_task, tasks))
    return [group[0] if len(group) == 1 else next(joined) for group in groups]


def _group_small_runs(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs in groups, each to become one run, in the order of the first ones."""
    groups: list[list[Run]] = []
    filling: dict[list[Run]] = {}
    filled: dict[int] = {}
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


def join_task(task: tuple[Path, int, list[list[Run]]]) -> list[Run]:
    """Return a run for each group of runs of one shape, in a file of this number in the folder."""
    folder, number, groups = task
    global_ids = load_global_ids(folder / GLOBAL_IDS)
    with (
        SpillWriter(folder / f"runs-{number}.bin", TRACE, RESOLVED) as writer,
        SpillReader() as reader,
    ):
        return [_join_group(group, global_ids, reader, writer) for group in groups]


def _join_group(
    group: Sequence[Run], global_ids: GlobalIds, reader: SpillReader, writer: SpillWriter
) -> Run:
    """Join runs; rows of one time in the order of the runs."""
    shape, closings = group[0].shape, None
    slices = [read_slice(run, global_ids, reader) for run in group]
    times = np.concatenate([one.times for one in slices])
    order = np.argsort(times, kind="stable")
    pieces = [one.make_joinable() for one in slices]
    names = dict.fromkeys(name for piece in pieces for name in piece)
    columns = {
        name: np.concatenate([_find_column(name, piece) for piece in pieces])[order]
        for name in names
    }
    if shape.stream != RANGE:
        return writer.append(shape, columns, int(times.max()))
    origin = np.repeat(np.arange(len(slices)), [len(one) for one in slices])
    layout = load_catalogue().layouts[shape.name]
    if layout.is_state:
        closings = np.concatenate([one.find_closings() for one in slices], axis=1)
    return writer.append_ranges(layout, {**columns, "origin": origin[order]}, closings=closings)


def _find_column(name: str, piece: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return a column of a piece, which may lack it where others have it."""
    if name in piece:
        return piece[name]
    if name == "order":
        return piece["end"]
    return np.full(len(piece["begin"]), 0 if name == CALLERS else ABSENT)
