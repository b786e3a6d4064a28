"""Physical GPUs: which process's context is active (``--gpuctxsw``), and what each GPU does in
which state.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from nsys2prv._util.columns import OPEN, factorize
from nsys2prv.events.attributes import group_rows, optional
from nsys2prv.events.extraction import GPU_CONTEXTS, DeviceKey, Extraction
from nsys2prv.events.kind import POINTS, EventKind, RowRules, Rows, SelectionRules
from nsys2prv.events.reasons import Reason
from nsys2prv.nsight.info import pid_of
from nsys2prv.nsight.source import NULL, Columns, Part, quote_name

TABLES = ("GPU_CONTEXT_SWITCH_EVENTS", "FECS_EVENTS")
SAVE_END, RESTORE_START, ENGINE_RESET = 7, 8, 11
KEY = ("gpuId", "vmId", "contextId")


def extract_contexts(extraction: Extraction, part: Part) -> Iterator[Rows]:
    table = extraction.database.tables[part.table]
    if not extraction.has(part.table, "tag", "timestamp", *KEY):
        rows = extraction.database.count_of(part)
        extraction.account.rows += rows
        extraction.account.dropped[Reason.NO_SWITCH_COLUMNS] += rows
        return
    if part.first == table.extent.first:
        _count_earlier(extraction, part.table)
    columns = extraction.read(
        part, (*KEY, "timestamp", "globalPid"), where=f"{{tag}} = {RESTORE_START}", times=()
    )
    rows = extraction.database.count_of(part)
    extraction.account.rows += rows
    # Those of contexts that were there before are counted with the first part, wherever they are.
    extraction.account.skipped[Reason.WITHIN_SWITCH] += (
        rows - columns.rows - extraction.account.dropped[Reason.SWITCHED_IN_BEFORE]
    )
    known = columns["timestamp"] != NULL
    if not known.all():
        extraction.account.dropped[Reason.NO_TIME] += int((~known).sum())
        columns = columns.where(known)
    if not columns.rows:
        return
    ends = _ends(extraction, part.table, columns)
    if extraction.least:
        long = extraction.long_enough(columns["timestamp"], np.where(ends == OPEN, NULL, ends))
        columns, ends = columns.where(long), ends[long]
    for gpu, rows in group_rows(columns["gpuId"]):
        pids, codes = factorize(columns["globalPid"][rows])
        begin = columns["timestamp"][rows]
        device = extraction.device(DeviceKey(GPU_CONTEXTS, number=max(gpu, 0)))
        yield Rows(
            "gpu_context",
            begin,
            ends[rows],
            np.full(len(begin), device),
            {
                "process": extraction.name(
                    "gpu_contexts", codes, text=[_owner(extraction, int(pid)) for pid in pids]
                ),
                "context": optional(columns["contextId"][rows]),
            },
        )


def _owner(extraction: Extraction, pid: int) -> str:
    if pid == NULL:
        return "unknown process"
    return f"{extraction.report.processes.get(pid) or 'process'} {pid_of(pid)}"


def _ends(extraction: Extraction, table: str, begins: Columns) -> np.ndarray:
    """Return when each context leaves the GPU (local ns), OPEN for those that stay."""
    low, high = int(begins["timestamp"].min()), int(begins["timestamp"].max())
    keys = ", ".join(f"CAST(coalesce({name}, 0) AS INTEGER) AS {name}" for name in KEY)
    wanted = f"FROM {quote_name(table)} WHERE tag IN ({SAVE_END}, {RESTORE_START}, {ENGINE_RESET}) AND typeof(timestamp) = 'integer'"
    # Behind the last begin one moment of each context suffices: memory is that of the rows around
    # this part.
    moments = extraction.database.select(
        f"SELECT {keys}, timestamp, tag {wanted} AND timestamp BETWEEN {low} AND {high} UNION ALL "
        f"SELECT {keys}, min(timestamp), tag {wanted} AND timestamp > {high} "
        f"GROUP BY gpuId, vmId, tag, CASE WHEN tag = {SAVE_END} THEN contextId END"
    ).sort("timestamp")
    asked = pl.DataFrame(
        {
            **{name: np.where(begins[name] == NULL, 0, begins[name]) for name in KEY},
            "after": begins["timestamp"] + 1,
        }
    )
    saved = _next(asked, moments.filter(pl.col("tag") == SAVE_END), KEY)
    restored = _next(asked, moments.filter(pl.col("tag") == RESTORE_START), KEY[:2])
    reset = _next(asked, moments.filter(pl.col("tag") == ENGINE_RESET), KEY[:2])
    left = np.minimum(saved, reset)
    lost = int((restored < left).sum())
    if lost:
        extraction.account.repaired[Reason.NO_SWITCH_OUT] += lost
    return np.minimum(left, restored)


def _next(asked: pl.DataFrame, moments: pl.DataFrame, by: tuple[str, ...]) -> np.ndarray:
    """Return, for each row asked for, the first moment of the same key from `after` on, else OPEN."""
    found = (
        asked.with_row_index("row")
        .sort("after")
        .join_asof(
            moments.select(*by, "timestamp", after="timestamp"),
            on="after",
            by=list(by),
            strategy="forward",
            check_sortedness=False,
        )
    )
    return found.sort("row")["timestamp"].fill_null(OPEN).to_numpy()


def _count_earlier(extraction: Extraction, table: str) -> None:
    """Count as dropped the contexts whose first row in the table is a switch out."""
    first = (
        f"SELECT tag, min(timestamp) FROM {quote_name(table)} WHERE tag IN ({SAVE_END}, {RESTORE_START}) "
        "GROUP BY gpuId, vmId, contextId"
    )
    count = extraction.database.query(f"SELECT count(*) FROM ({first}) WHERE tag = {SAVE_END}")[0][
        0
    ]
    if count:
        extraction.account.dropped[Reason.SWITCHED_IN_BEFORE] += count


NAME = LAYOUT = "device_state"
NCCL, MEMORY, COMPUTE = 1, 2, 4
#: Layout of operations -> its bit in the values of the value set.
BITS = {
    "nccl_kernel": NCCL,
    "memory_operation": MEMORY,
    "cuda_kernel": COMPUTE,
    "cuda_graph": COMPUTE,
}


def extract_device_states(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield nothing: the kind has no tables."""
    yield from ()


KINDS = (
    EventKind(
        "gpu_contexts",
        "Contexts on GPUs",
        "physical GPU",
        TABLES,
        ("gpu_context",),
        extract_contexts,
        rows=RowRules(open_ended=True),
    ),
    EventKind(
        NAME,
        "States of GPUs that tasks share, or of which a task has several; of all GPUs if named",
        "physical GPU",
        (),
        (LAYOUT,),
        extract_device_states,
        groups=("cuda",),
        selection=SelectionRules(implied_by=("kernels",)),
        rows=POINTS,
    ),
)
