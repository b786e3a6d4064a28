"""What happens around a program: the files that it accesses, the contexts that share its GPUs
(``--gpuctxsw``), and what Nsight Systems has to say.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from nsys2prv._util.columns import OPEN, factorize, factorize_together
from nsys2prv.events.attributes import blank_negative, group_rows, list_columns, read_fields
from nsys2prv.events.extraction import GPU_CONTEXTS, DeviceKey, Extraction
from nsys2prv.events.kind import Rows, declare_kind
from nsys2prv.events.reasons import Reason
from nsys2prv.nsight.capture import (
    NO_PROCESSES,
    find_capture_span,
    find_main_process,
    shorten_message,
)
from nsys2prv.nsight.columns import NULL, Columns, decode_texts
from nsys2prv.nsight.info import pid_of
from nsys2prv.nsight.source import Part, quote_name

FILES = "OSRT_FILE_ACCESS_DESCRIPTORS"
NO_FILE = "unknown file"
_HOST_BITS = ~0xFFFF_FFFF_FFFF


def extract_file_accesses(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(
        part,
        ("fileAccessId", "threadId", "startedAt", "endedAt", *list_columns("file_access")),
    )
    if extraction.least:
        columns = columns.where(
            extraction.mask_long_enough(columns["startedAt"], columns["endedAt"])
        )
    if not columns.rows:
        return
    ids, places = factorize(columns["fileAccessId"])
    described = _describe_files(extraction, int(ids[ids != NULL].min(initial=0)), int(ids.max()))
    files = [described.get(int(number), (0, NO_FILE)) for number in ids]
    pids = np.array([pid for pid, _ in files], np.int64)[places]
    file = extraction.number_names("files", places, text=[path for _, path in files])
    yield Rows(
        "file_access",
        columns["startedAt"],
        columns["endedAt"],
        _find_threads(extraction, pids, columns["threadId"]),
        {"file": file, **read_fields(extraction, "file_access", columns)},
    )


def _describe_files(extraction: Extraction, first: int, last: int) -> dict[int, tuple[int, str]]:
    """Return file access id -> process id and path, of ids from `first` to `last`."""
    rows = extraction.database.read_small_table(
        FILES,
        "fileAccessId",
        "processId",
        "filePath",
        where=f"{{fileAccessId}} BETWEEN {first} AND {last}",
    )
    return {
        number: (pid if isinstance(pid, int) else 0, str(path or NO_FILE))
        for number, pid, path in rows
    }


def _find_threads(extraction: Extraction, pids: np.ndarray, tids: np.ndarray) -> np.ndarray:
    """Return objects of threads by the ids that the operating system gave processes and threads."""
    values, codes = factorize_together(pids, np.where(tids == NULL, 0, tids))
    process_of_pid = {pid_of(pid): pid for pid in extraction.report.processes}
    host = next(iter(extraction.report.processes), 0) & _HOST_BITS
    pairs = zip(*map(np.ndarray.tolist, values), strict=True)
    ids = [
        process_of_pid.get(pid, host | (pid & 0xFFFFFF) << 24) | (tid & 0xFFFFFF)
        for pid, tid in pairs
    ]
    return extraction.number_threads(np.array(ids, np.int64)[codes])


SAVE_END, RESTORE_START, ENGINE_RESET = 7, 8, 11
KEY = ("gpuId", "vmId", "contextId")


def extract_contexts(extraction: Extraction, part: Part) -> Iterator[Rows]:
    table = extraction.database.tables[part.table]
    if not extraction.has_table(part.table, "tag", "timestamp", *KEY):
        rows = extraction.database.count_rows(part)
        extraction.account.rows += rows
        extraction.account.dropped[Reason.NO_SWITCH_COLUMNS] += rows
        return
    if part.first == table.extent.first:
        _count_switched_in_before(extraction, part.table)
    columns = extraction.read(
        part, (*KEY, "timestamp", "globalPid"), where=f"{{tag}} = {RESTORE_START}", times=()
    )
    rows = extraction.database.count_rows(part)
    extraction.account.rows += rows
    # Those of contexts that were there before are counted with the first part, wherever they are.
    extraction.account.skipped[Reason.WITHIN_SWITCH] += (
        rows - columns.rows - extraction.account.dropped[Reason.SWITCHED_IN_BEFORE]
    )
    columns = extraction.drop_rows(columns, columns["timestamp"] == NULL, Reason.NO_TIME)
    if not columns.rows:
        return
    ends = _find_switches_out(extraction, part.table, columns)
    if extraction.least:
        long = extraction.mask_long_enough(columns["timestamp"], np.where(ends == OPEN, NULL, ends))
        columns, ends = columns.where(long), ends[long]
    context = blank_negative(columns["contextId"])
    for gpu, rows in group_rows(columns["gpuId"]):
        pids, codes = factorize(columns["globalPid"][rows])
        begin = columns["timestamp"][rows]
        device = extraction.number_device(DeviceKey(GPU_CONTEXTS, number=max(gpu, 0)))
        yield Rows(
            "gpu_context",
            begin,
            ends[rows],
            np.full(len(begin), device),
            {
                "process": extraction.number_names(
                    "gpu_contexts", codes, text=[_name_owner(extraction, int(pid)) for pid in pids]
                ),
                "context": context[rows],
            },
        )


def _name_owner(extraction: Extraction, pid: int) -> str:
    if pid == NULL:
        return "unknown process"
    return f"{extraction.report.processes.get(pid) or 'process'} {pid_of(pid)}"


def _find_switches_out(extraction: Extraction, table: str, begins: Columns) -> np.ndarray:
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
    switches_in = pl.DataFrame(
        {
            **{name: np.where(begins[name] == NULL, 0, begins[name]) for name in KEY},
            "after": begins["timestamp"] + 1,
        }
    )
    saved = _find_next(switches_in, moments.filter(pl.col("tag") == SAVE_END), KEY)
    restored = _find_next(switches_in, moments.filter(pl.col("tag") == RESTORE_START), KEY[:2])
    reset = _find_next(switches_in, moments.filter(pl.col("tag") == ENGINE_RESET), KEY[:2])
    left = np.minimum(saved, reset)
    lost = int((restored < left).sum())
    if lost:
        extraction.account.repaired[Reason.NO_SWITCH_OUT] += lost
    return np.minimum(left, restored)


def _find_next(rows: pl.DataFrame, moments: pl.DataFrame, by: tuple[str, ...]) -> np.ndarray:
    """Return, for each row asked for, the first moment of the same key from `after` on, else OPEN."""
    next_moments = (
        rows.with_row_index("row")
        .sort("after")
        .join_asof(
            moments.select(*by, "timestamp", after="timestamp"),
            on="after",
            by=list(by),
            strategy="forward",
            check_sortedness=False,
        )
    )
    return next_moments.sort("row")["timestamp"].fill_null(OPEN).to_numpy()


def _count_switched_in_before(extraction: Extraction, table: str) -> None:
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


def extract_messages(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(
        part, ("timestamp", "source", "severity", "globalPid"), ("text",), times=()
    )
    if not columns.rows:
        return
    database = extraction.database
    main = extraction.find_once("main process", lambda: find_main_process(database))
    first, last = extraction.find_once(
        "span", lambda: find_capture_span(database, extraction.report.capture)
    )
    pids = columns["globalPid"]
    of_none = (pids == NULL) | np.isin(pids >> 24 & 0xFFFFFF, NO_PROCESSES)
    threads = extraction.find_main_threads(np.where(of_none, 0 if main is None else main, pids))
    codes, texts = columns.texts["text"]
    has_time = columns["timestamp"] != NULL
    begin = np.where(has_time, np.clip(columns["timestamp"], first, last), NULL)
    outside = int((begin != columns["timestamp"]).sum())
    if outside:
        extraction.account.repaired[Reason.MOVED_TO_CAPTURE] += outside
    yield Rows(
        "diagnostic",
        begin,
        np.where(has_time, begin + 1, NULL),
        extraction.number_threads(threads),
        {
            **read_fields(extraction, "diagnostic", columns),
            "text": extraction.number_names(
                "diagnostics",
                codes,
                text=[shorten_message(text) for text in decode_texts(texts.series)],
            ),
        },
    )


KINDS = (
    declare_kind("file_accesses", extract_file_accesses),
    declare_kind("gpu_contexts", extract_contexts),
    declare_kind("diagnostics", extract_messages),
)
