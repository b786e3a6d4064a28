"""Find GPUs whose metrics do not cover all of the time in which a report has work of GPUs, or metrics of
other GPUs: their sampling began later, or stopped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from nsys2prv.conversion.job import Job
from nsys2prv.events import all_kinds
from nsys2prv.events.extraction import DeviceKey
from nsys2prv.table.runs import COUNTER, Run
from nsys2prv.table.samples import HOLE_PERIODS, LAYOUT


class PartlySampled(Struct, frozen=True):
    """A GPU with metrics for a part of the time."""

    #: Index of the report.
    report: int
    #: The GPU.
    gpu: DeviceKey
    #: When its metrics begin and end (ns of the trace), None where nothing is lacking there.
    begin: int | None
    end: int | None


def list_partly_sampled(job: Job) -> Iterator[PartlySampled]:
    """Yield the GPUs whose metrics lack more than a few periods at the begin or the end."""
    layouts = {name for kind in all_kinds() if kind.gpu_work for name in kind.layouts}
    work: dict[int, list[Run]] = defaultdict(list)
    sampled: dict[int, dict[DeviceKey, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for result in job.results:
        for run in result.runs:
            if run.index is not None and run.shape.name in layouts:
                work[run.report].append(run)
            elif run.shape.stream == COUNTER and run.shape.name == LAYOUT and not run.filler:
                sampled[run.report][result.objects[run.object]].append(run)
    for report, gpus in sampled.items():
        begin = min((run.first_time for run in work[report]), default=None)
        ends = [run.greatest_time for run in work[report]]
        ends += [run.last_time for runs in gpus.values() for run in runs]
        for gpu, runs in gpus.items():
            period = max((run.last_time - run.first_time) // max(run.rows - 1, 1) for run in runs)
            first, last = min(run.first_time for run in runs), max(run.last_time for run in runs)
            is_late = begin is not None and first > begin + HOLE_PERIODS * period
            stops = last < max(ends) - HOLE_PERIODS * period
            times = job.clocks[report].to_global(np.array([first, last])).tolist()
            # A part of the job may lie within.
            is_late, stops = is_late and times[0] > 0, stops and times[1] < job.duration
            if is_late or stops:
                yield PartlySampled(
                    report, gpu, times[0] if is_late else None, times[1] if stops else None
                )
