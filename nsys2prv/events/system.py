"""CPU scheduling and CPU samples: when threads ran, where, and in which functions. Rows are for
profiled processes only.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from nsys2prv._util.columns import ABSENT, OPEN, blank_negative, factorize, factorize_together
from nsys2prv._util.errors import UsageError
from nsys2prv.events.attributes import group_rows, list_columns, read_fields
from nsys2prv.events.extraction import GPU_CONTEXTS, DeviceKey, Extraction
from nsys2prv.events.kind import Reason, Rows, declare_kind
from nsys2prv.nsight.info import (
    NO_PROCESSES,
    PROCESS_MASK,
    find_capture_span,
    find_main_process,
    pid_of,
    shorten_message,
)
from nsys2prv.nsight.job_checks import list_profiled_processes
from nsys2prv.nsight.source import NULL, Columns, Part, decode_texts, quote_name

#: So many other processes are counted by name; a whole machine has hundreds.
MOST_NAMED = 8


def keep_profiled(extraction: Extraction, columns: Columns) -> Columns:
    """Return the rows on threads of the processes that the report profiles; all where it does not
    tell which these are.
    """
    own = extraction.find_once("profiled", lambda: list_profiled_processes(extraction.database))
    tids = columns["globalTid"]
    pids, codes = factorize(np.where(tids == NULL, 0, tids & PROCESS_MASK))
    wanted = np.array([not own or int(pid) in own for pid in pids], bool)
    if wanted.all():
        return columns
    for pid, count in zip(
        pids[~wanted].tolist(),
        np.bincount(codes, minlength=len(pids))[~wanted].tolist(),
        strict=True,
    ):
        extraction.account.dropped[_explain_skip(extraction, pid)] += count
    return columns.where(wanted[codes])


def _explain_skip(extraction: Extraction, pid: int) -> str:
    report = extraction.report
    main = pid | pid_of(pid)
    name = (
        report.processes.get(pid)
        or report.threads.get(main)
        or next(
            (name for tid, name in sorted(report.threads.items()) if tid & PROCESS_MASK == pid),
            "a process without a name",
        )
    )
    named = extraction.state_between_parts.setdefault("other processes", set())
    if name not in named and len(named) >= MOST_NAMED:
        return Reason.OTHERS_NOT_PROFILED
    named.add(name)
    return Reason.NOT_PROFILED.with_detail(name)


SCHED_TABLE = "SCHED_EVENTS"
STATE_LAYOUT, WITH_REASON = "thread_state", "thread_state_reason"
#: Values of the catalogue's set `thread_state`.
OFF, RUNNING, TERMINATED, READY = 1, 2, 6, 20
#: Rows at the begin of a table that tell whether the system records reasons.
LOOKED_AT = 100_000


def extract_thread_states(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = keep_profiled(
        extraction,
        extraction.read(
            part, ("start", "cpu", "isSchedIn", "globalTid", *list_columns(WITH_REASON))
        ),
    )
    columns = extraction.drop_rows(columns, columns["isSchedIn"] == NULL, Reason.NO_DIRECTION)
    if not columns.rows:
        return
    runs, not_told = columns["isSchedIn"] != 0, columns["threadBlock"] == NULL
    fields = read_fields(extraction, WITH_REASON, columns)
    state, reason = fields["state"], fields.pop("reason")
    # A thread off the CPU that is said to run was put off it, and waits for another turn.
    state = np.select(
        [runs, state == RUNNING, columns["threadState"] == NULL], [RUNNING, READY, OFF], state
    )
    fields |= {"state": state, "cpu": np.where(runs, np.maximum(columns["cpu"], -1) + 1, 0)}
    with_reason = (
        extraction.find_once("reasons", lambda: _records_reasons(extraction)) or not not_told.all()
    )
    if with_reason:
        fields["reason"] = np.where(runs | not_told, 0, reason)
    start, thread = columns["start"], extraction.number_threads(columns["globalTid"])
    ended = np.flatnonzero((state == TERMINATED) & (start != NULL))
    extraction.account.synthesized[Reason.THREAD_END] += len(ended)
    start, thread = np.append(start, start[ended] + 1), np.append(thread, thread[ended])
    fields = {
        name: np.append(column, np.zeros(len(ended), np.int64)) for name, column in fields.items()
    }
    yield Rows(WITH_REASON if with_reason else STATE_LAYOUT, start, start, thread, fields)


def _records_reasons(extraction: Extraction) -> bool:
    """True if the report's system records why threads leave the CPU; it does so for all or for
    none.
    """
    first = extraction.report.parts[SCHED_TABLE].first
    looked_at = extraction.database.read(
        Part(SCHED_TABLE, first, first + LOOKED_AT - 1), ("threadBlock",)
    )
    return bool((looked_at["threadBlock"] != NULL).any())


SAMPLE_TABLE, CHAINS = "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS"
SAMPLE_LAYOUT, WITH_CALLERS = "cpu_sample", "cpu_sample_stack"
NO_CHAIN = "(no call chain)"
#: Frames that a sample can have in the catalogue.
MOST_FRAMES = 32


def check_callstack(frames: int) -> int:
    """Return a number of frames that can be asked for. Raises UsageError for one that cannot."""
    if not 1 <= frames <= MOST_FRAMES:
        raise UsageError(
            f"--callstack {frames}: a sample has from 1 to {MOST_FRAMES} frames in a trace"
        )
    return frames


def extract_samples(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = keep_profiled(
        extraction,
        extraction.read(part, ("id", "start", "globalTid", *list_columns(SAMPLE_LAYOUT))),
    )
    if not columns.rows:
        return
    depth = extraction.settings.callstack
    frames = _find_frames(extraction, part, columns["id"], depth)
    function, module = next(frames)
    state = read_fields(extraction, SAMPLE_LAYOUT, columns)["state"]
    fields = {
        "function": _name_functions(extraction, function, module),
        "module": _name_modules(extraction, module),
        "state": np.where(state == RUNNING, ABSENT, state),
    }
    if depth > 1:
        none = np.full(columns.rows, ABSENT)
        fields |= {f"caller_{number}": none for number in range(1, MOST_FRAMES)}
        for number, (function, module) in enumerate(frames, 1):
            rows = np.flatnonzero(function != NULL)
            fields[f"caller_{number}"] = none.copy()
            fields[f"caller_{number}"][rows] = _name_functions(
                extraction, function[rows], module[rows]
            )
    start = columns["start"]
    yield Rows(
        WITH_CALLERS if depth > 1 else SAMPLE_LAYOUT,
        start,
        start + 1,
        extraction.number_threads(columns["globalTid"]),
        fields,
    )


def _find_frames(
    extraction: Extraction, part: Part, samples: np.ndarray, depth: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the ids of function and module of each of a part's samples at each depth, found by the
    key of their table; NULL where there is no frame.
    """
    names = {"sample": "id", "depth": "stackDepth", "function": "symbol", "module": "module"}
    sample_frame = pl.DataFrame({"sample": samples})
    frames = pl.DataFrame(schema=dict.fromkeys(names, pl.Int64))
    if extraction.has_table(CHAINS, *names.values()) and extraction.has_table(SAMPLE_TABLE, "id"):
        chains = extraction.database.read_joined(
            part, "id", CHAINS, tuple(names.values()), f"{{stackDepth}} < {depth}"
        )
        frames = pl.DataFrame({name: chains[column] for name, column in names.items()})
    for number in range(depth):
        at_depth = frames.filter(depth=number).unique("sample", keep="first", maintain_order=True)
        joined = sample_frame.join(at_depth, on="sample", how="left", maintain_order="left")
        yield tuple(joined[name].fill_null(NULL).to_numpy() for name in ("function", "module"))


def _name_functions(extraction: Extraction, function: np.ndarray, module: np.ndarray) -> np.ndarray:
    """Return local names of functions; of those without a name, of their modules."""
    (functions, modules), codes = factorize_together(function, module)
    texts = [
        _make_label(name, where)
        for name, where in zip(
            extraction.read_strings(functions), extraction.read_strings(modules), strict=True
        )
    ]
    return extraction.number_names("cpu_function", codes, text=texts)


def _make_label(name: str, module: str) -> str:
    if not name:
        return NO_CHAIN
    # The column `unresolved` is no measure: it also marks functions that have names, and exports
    # differ in it.
    return f"unresolved in {_take_file_name(module)}" if name.startswith("0x") else name


def _name_modules(extraction: Extraction, module: np.ndarray) -> np.ndarray:
    """Return local names of modules, ABSENT where a sample has none."""
    rows = np.flatnonzero(module != NULL)
    result = np.full(len(module), ABSENT)
    if len(rows):
        ids, codes = factorize(module[rows])
        result[rows] = extraction.number_names(
            "cpu_module",
            codes,
            text=[_take_file_name(text) for text in extraction.read_strings(ids)],
        )
    return result


def _take_file_name(module: str) -> str:
    """Return a module's file name; the folders before it differ from machine to machine."""
    return module.replace("\\", "/").rstrip("/").rpartition("/")[2] or "a module without a name"


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
    declare_kind("sched", extract_thread_states),
    declare_kind("cpu_samples", extract_samples),
    declare_kind("file_accesses", extract_file_accesses),
    declare_kind("gpu_contexts", extract_contexts),
    declare_kind("diagnostics", extract_messages),
)
