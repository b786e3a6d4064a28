"""When NVTX ranges of a name were: the span of a region."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import translate

import numpy as np
import polars as pl

from nsys2prv.catalogue import NameSet, catalogue
from nsys2prv.columns import factorize
from nsys2prv.cut.asked import Region
from nsys2prv.errors import Nsys2prvError
from nsys2prv.events.extraction import ThreadKey
from nsys2prv.job import Job
from nsys2prv.store import placing
from nsys2prv.store.runs import BEGIN, Run, SpillReader, picked

#: The name set of NVTX ranges, and the layout with such names that does not last.
NAMES, MARKS = "nvtx", "nvtx_mark"


def region_layouts() -> frozenset[str]:
    """The layouts of NVTX ranges."""
    return frozenset(name for name, layout in catalogue().layouts.items()
                     if name != MARKS and layout.fields and _is_named(layout.fields[0].values))


def _is_named(values: object) -> bool:
    return isinstance(values, NameSet) and values.name == NAMES


def span_of(region: Region, job: Job) -> tuple[int, int]:
    """Begin and end (ns of the trace) of the region. Raises Nsys2prvError where there is no such range."""
    labels = job.values[NAMES].labels if NAMES in job.values else pl.DataFrame(schema={"value": pl.Int64, "label": pl.String})
    wanted = re.compile(translate(region.pattern))
    values = labels.filter(pl.Series([bool(wanted.match(label)) for label in labels["label"]], dtype=pl.Boolean))["value"].to_numpy()
    found = list(_ranges(job, values))
    if not found:
        raise Nsys2prvError(f"--region {region.pattern}: no NVTX range of the reports has such a name")
    thread, begin, end = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.lexsort((-end, begin, thread))
    _, codes = factorize(thread[order])
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - np.searchsorted(codes, codes) + 1
    chosen = (place >= region.first) & (place <= (region.last or len(place)))
    if not chosen.any():
        raise Nsys2prvError(f"--region {region.pattern}: there are {int(place.max())} iterations at most, none is number {region.first}")
    return int(begin[chosen].min()), int(end[chosen].max())


def _ranges(job: Job, values: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Thread, begin and end of the ranges with these names."""
    layouts = region_layouts()
    threads: dict[tuple[int, int], int] = {}
    by_task = sorted(job.results, key=lambda result: result.task)
    reader = SpillReader()
    try:
        for run in job.runs:
            if run.shape.stream != BEGIN or run.shape.name not in layouts:
                continue
            names = job.names[NAMES][run.source]
            of_name = np.flatnonzero(np.isin(names, values))
            if not len(of_name):
                continue
            records = _named(run, reader, of_name)
            # Ranges that overlap are on further rows of their thread.
            keys = by_task[run.source].objects
            own = np.array([threads.setdefault((run.report, key.tid if isinstance(key, ThreadKey) else -1), len(threads)) for key in keys])
            clock = job.clocks[run.report]
            yield own[records["object"]], placing.begins(records, clock), placing.ends(records, clock, job.duration)
    finally:
        reader.close()


def _named(run: Run, reader: SpillReader, names: np.ndarray) -> np.ndarray:
    records = reader.between(run, run.first, None)
    return picked(records, np.isin(records[catalogue().layouts[run.shape.name].fields[0].name], names))
