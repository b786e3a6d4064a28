"""Store the critical path of a job as records on the rows that it leads over."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsys2prv._util.columns import ABSENT
from nsys2prv._util.native import core
from nsys2prv.conversion.job import Job
from nsys2prv.conversion.job_reader import make_event_reader
from nsys2prv.events.kind import Rows
from nsys2prv.relations import write_result
from nsys2prv.replay.job_graph import build_job_graph
from nsys2prv.replay.path import Cause, PathPieces, find_pieces
from nsys2prv.replay.whatif import Replay
from nsys2prv.store.event_reader import EventReader
from nsys2prv.store.work_result import WorkResult

#: Why there is no path.
NO_CORE = "the critical path needs the compiled core, which this installation lacks"


def make_critical_path(job: Job) -> WorkResult:
    """Return the critical path of a job, as runs in trace time."""
    number = 1 + max(result.task for result in job.results)
    rows = []
    if core is None:
        job.warnings.append(NO_CORE)
    else:
        reader = make_event_reader(job)
        labels = {name: values.labels for name, values in job.values.items()}
        pieces = find_pieces(Replay(build_job_graph(reader, labels), 0, job.duration))
        cause, kernel_class = _describe_work(reader, pieces)
        columns = {"cause": cause, "class": kernel_class}
        rows = [Rows("critical_path", pieces.begin, pieces.end, pieces.row, columns)]
    return write_result(
        "critical_path", number, job.folder, [one for one in rows if len(one.begin)]
    )


def _describe_work(reader: EventReader, pieces: PathPieces) -> tuple[np.ndarray, np.ndarray]:
    """Return the causes of pieces, with graphs apart from kernels, and their kernel classes, ABSENT
    for others.
    """
    on_path = pl.DataFrame({"thread": pieces.row, "end": pieces.end})
    on_path = on_path.with_row_index("piece").filter(
        pl.Series(np.isin(pieces.cause, (Cause.COMPUTATION, Cause.NCCL)))
    )
    cause, kernel_class = pieces.cause.copy(), np.full(len(pieces.begin), ABSENT)
    for layout in ("cuda_kernel", "nccl_kernel", "cuda_graph"):
        if layout not in reader.layouts:
            continue
        is_graph = layout == "cuda_graph"
        for unit in np.unique(reader.rows.units).tolist():
            work = reader.read_begins(layout, () if is_graph else ("class",), unit)
            found = on_path.join(work, on=("thread", "end")).unique("piece", keep="first")
            piece = found["piece"].to_numpy()
            if is_graph:
                cause[piece] = Cause.GRAPH
            else:
                kernel_class[piece] = found["class"].to_numpy()
    return cause, kernel_class
