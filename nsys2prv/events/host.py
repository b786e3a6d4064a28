"""Read host events other than CUDA, MPI, NCCL and NVTX.

These are OS runtime calls, thread scheduling and CPU samples (of profiled processes), file
accesses, contexts that share GPUs (``--gpuctxsw``), messages of Nsight Systems, OpenMP events,
OpenACC constructs, and UCX operations.

OpenMP events come from the OMPT interface. Tables and columns: NVIDIA's "SQLite Schema Reference",
OPENMP_EVENT_KIND_*. Kinds: Nsight's ENUM_OPENMP_* tables, equal to OMPT's. If a capture stops
early, ranges have no end, or an end on another clock. They then end with their parallel region.

Types, labels and values of OpenACC are the same as in BSC's nsys2prv 0.6. The value of a construct
is Nsight's event kind plus one, and its source location is `name@file:line`.

UCX operations last from submission to completion, many at a time on one thread. Messages among them
are stored as facts, for the lines between processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
import polars as pl

from nsys2prv._util.columns import ABSENT, OPEN, blank_negative, factorize, take_rows
from nsys2prv._util.errors import UsageError
from nsys2prv.events.attributes import (
    list_columns,
    list_row_columns,
    make_rows,
    read_fields,
)
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.extraction import GPU_CONTEXTS, DeviceKey, Extraction
from nsys2prv.events.kind import Reason, Rows
from nsys2prv.events.stacks import (
    CHAIN,
    add_callers,
    name_lines,
    name_sources,
    open_stacks,
    take_file_name,
)
from nsys2prv.export.info import PROCESS_MASK, ReportInfo, find_processes, pid_of
from nsys2prv.export.ranks import list_profiled_processes
from nsys2prv.export.recording import (
    NO_PROCESSES,
    find_capture_span,
    find_main_process,
    read_diagnostics,
    shorten_message,
)
from nsys2prv.export.source import NULL, Columns, Part, decode_texts, zero_nulls

#: Number of processes other than the profiled ones that are counted by name; a whole machine has
#: hundreds.
MOST_NAMED = 8
SCHED_TABLE = "SCHED_EVENTS"
STATE_LAYOUT, WITH_REASON = "thread_state", "thread_state_reason"
#: Values of the catalogue's set `thread_state`.
OFF, RUNNING, TERMINATED, READY = 1, 2, 6, 20
#: Number of rows at the start of a table that show whether the system records reasons.
LOOKED_AT = 100_000
CHAINS = "SAMPLING_CALLCHAINS"
SAMPLE_LAYOUT, WITH_CALLERS = "cpu_sample", "cpu_sample_stack"
NO_CHAIN = "(no call chain)"
#: Frames that a sample can have in the catalogue.
MOST_FRAMES = 32
ACCESSED_FILES = "OSRT_FILE_ACCESS_DESCRIPTORS"
NO_FILE = "unknown file"
_HOST_BITS = ~0xFFFF_FFFF_FFFF
OS_STACKS = "OSRT_CALLCHAINS"
#: Rows of other classes (31, 32) are not calls: on thread 0, they mark where the tracing of a
#: process started and ended.
OS_CALLS = "coalesce({eventClass}, 27) = 27"
OF_PTHREAD = "coalesce({nameId} IN ({strings:pthread}), 0)"
SAVE_END, RESTORE_START, ENGINE_RESET = 7, 8, 11
CONTEXT_KEY = ("gpuId", "vmId", "contextId")
#: Columns of switches of contexts.
SWITCHES = dict.fromkeys((*CONTEXT_KEY, "timestamp", "tag"), pl.Int64)
#: OpenMP's tables of tasks and of parallel regions.
TASKS, REGIONS = "OPENMP_EVENT_KIND_TASK", "OPENMP_EVENT_KIND_PARALLEL"
#: ompt_task_flag_t: bits for the type of a task; the bits above describe its execution.
TASK_TYPE = 0x1F
#: Ranges longer than this (ns) have no end on the report's clock, if the report does not state
#: their duration.
LONGEST_RANGE = 1 << 53
#: Number of parallel regions that are processed together.
MOST_REGIONS = 400_000
#: ENUM_OPENACC_DEVICE of devices that have a CUDA ordinal.
NVIDIA_DEVICE = 4
#: UCX: facts of each send and receive with a known peer and tag; `worker` is the process's own.
TRANSFERS = "ucx_transfers"
#: Functions of UCX that send and receive messages.
IS_SEND, IS_RECEIVE = r"^ucp_(tag|stream)_send", r"^ucp_(tag|stream)_(msg_)?recv"


def select_pthread_calls(info: ReportInfo) -> str:
    """Return the SQL condition for rows of the OS runtime table that are pthread calls."""
    return f"{OS_CALLS} AND {OF_PTHREAD}" if "StringIds" in info.parts else "0"


def select_other_calls(info: ReportInfo) -> str:
    """Return the SQL condition for rows of the OS runtime table that are not pthread calls,
    including calls without a name.
    """
    return f"{OS_CALLS} AND NOT {OF_PTHREAD}" if "StringIds" in info.parts else OS_CALLS


def extract_os_calls(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield OS runtime calls, or only pthread calls, depending on the kind's layout."""
    columns = extraction.read(part, extraction.kind.columns)
    if (np.diff(columns["start"]) <= 0).any():
        # A call within another may start and end with it. The one that is stored later is then the
        # inner one.
        order = np.argsort(columns["nestingLevel"], kind="stable")
        in_order = take_rows(columns.integers, order)
        columns = Columns(columns.rows, in_order, {})
    rows = make_rows(extraction, extraction.kind.layouts[0], columns)
    yield add_callers(extraction, OS_STACKS, columns[CHAIN], rows)


def keep_profiled(extraction: Extraction, columns: Columns) -> Columns:
    """Return the rows on threads of profiled processes. If the report does not identify these,
    return all rows.
    """
    own = extraction.find_once("profiled", lambda: list_profiled_processes(extraction.database))
    pids, codes = factorize(find_processes(columns["globalTid"]))
    wanted = np.array([not own or pid in own for pid in pids.tolist()], bool)
    for number in np.flatnonzero(~wanted):
        reason = _explain_skip(extraction, int(pids[number]))
        extraction.account.dropped[reason] += int(np.count_nonzero(codes == number))
    return columns.where(wanted[codes])


def _explain_skip(extraction: Extraction, pid: int) -> str:
    report = extraction.report
    of_threads = (name for tid, name in sorted(report.threads.items()) if tid & PROCESS_MASK == pid)
    name = report.processes.get(pid) or report.threads.get(pid | pid_of(pid))
    name = name or next(of_threads, "a process without a name")
    named = extraction.find_once("other processes", set)
    if name not in named and len(named) >= MOST_NAMED:
        return Reason.OTHERS_NOT_PROFILED
    named.add(name)
    return Reason.NOT_PROFILED.with_detail(name)


def extract_thread_states(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield the states of threads. Each state begins at a row of the scheduler; after the end of a
    thread there are none.
    """
    wanted = ("start", "cpu", "isSchedIn", "globalTid", *list_columns(WITH_REASON))
    columns = keep_profiled(extraction, extraction.read(part, wanted))
    lacking = columns["isSchedIn"] == NULL
    columns = extraction.drop_rows(columns, lacking, Reason.NO_SCHEDULING_DIRECTION)
    runs, not_told = columns["isSchedIn"] != 0, columns["threadBlock"] == NULL
    fields = read_fields(extraction, WITH_REASON, columns)
    state, reason = fields["state"], fields.pop("reason")
    # If a thread off the CPU is marked as running, it was preempted and waits for its next turn.
    cases = [runs, state == RUNNING, columns["threadState"] == NULL]
    state = np.select(cases, [RUNNING, READY, OFF], state)
    fields |= {"state": state, "cpu": np.where(runs, np.maximum(columns["cpu"], -1) + 1, 0)}
    recorded = extraction.find_once("reasons", lambda: _records_reasons(extraction))
    if with_reason := recorded or not not_told.all():
        fields["reason"] = np.where(runs | not_told, 0, reason)
    start, thread = columns["start"], extraction.intern_threads(columns["globalTid"])
    ended = np.flatnonzero((state == TERMINATED) & (start != NULL))
    extraction.account.synthesized[Reason.THREAD_END] += len(ended)
    start, thread = np.append(start, start[ended] + 1), np.append(thread, thread[ended])
    zeros = np.zeros(len(ended), np.int64)
    fields = {name: np.append(column, zeros) for name, column in fields.items()}
    yield Rows(WITH_REASON if with_reason else STATE_LAYOUT, start, start, thread, fields)


def _records_reasons(extraction: Extraction) -> bool:
    """Return True if the report contains the reasons why threads leave the CPU. It does so for all
    threads or for none.
    """
    first_rows = next(extraction.report.parts[SCHED_TABLE].split(LOOKED_AT))
    looked_at = extraction.database.read(first_rows, ("threadBlock",))
    return bool((looked_at["threadBlock"] != NULL).any())


def check_callstack(frames: int) -> int:
    """Return the number of stack frames to write if it is valid. Raise UsageError otherwise."""
    if not 1 <= frames <= MOST_FRAMES:
        raise UsageError(
            f"--callstack {frames}: a sample has from 1 to {MOST_FRAMES} frames in a trace"
        )
    return frames


def extract_samples(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield CPU samples with their function and, on request, with their callers."""
    wanted = ("id", "start", "globalTid", *list_columns(SAMPLE_LAYOUT))
    columns = keep_profiled(extraction, extraction.read(part, wanted))
    depth = extraction.settings.callstack
    stacks = open_stacks(extraction, CHAINS, depth)
    held, found = stacks.find(columns["id"], least=0)
    numbers = np.full(columns.rows, -1)
    numbers[held] = found
    function, module = stacks.take_frames(numbers, 0)
    state = read_fields(extraction, SAMPLE_LAYOUT, columns)["state"]
    fields = {
        "function": _name_functions(extraction, function, module),
        "module": _name_modules(extraction, module),
        "state": np.where(state == RUNNING, ABSENT, state),
        "owner": stacks.take_owners(numbers),
    }
    if depth > 1:
        absent = np.full(columns.rows, ABSENT)
        fields |= {f"caller_{number}": absent for number in range(1, MOST_FRAMES)}
        for number in range(1, depth):
            function, module = stacks.take_frames(numbers, number)
            named = function != NULL
            fields[f"caller_{number}"] = _name_functions(extraction, function, module, named)
    layout = WITH_CALLERS if depth > 1 else SAMPLE_LAYOUT
    rows = make_rows(extraction, layout, columns, fields)
    yield stacks.complete(rows, held, found)


def _name_functions(
    extraction: Extraction,
    function: np.ndarray,
    module: np.ndarray,
    named: np.ndarray | None = None,
) -> np.ndarray:
    """Return the local name index of each function, or of its module if it has no name. Rows
    outside the mask `named` get ABSENT.
    """

    def make_texts(*met: np.ndarray) -> list[str]:
        return list(map(_make_label, met[0].tolist(), *map(extraction.read_strings, met)))

    return extraction.name_rows("cpu_function", [function, module], make_texts, named)


def _make_label(symbol: int, name: str, module: str) -> str:
    if symbol == NULL:
        return NO_CHAIN
    # The column `unresolved` cannot be used: it also marks functions that have names, and exports
    # differ.
    return f"unresolved in {take_file_name(module)}" if name.startswith("0x") else name


def _name_modules(extraction: Extraction, module: np.ndarray) -> np.ndarray:
    """Return the local name index of each module, ABSENT without a module."""

    def make_texts(ids: np.ndarray) -> list[str]:
        return list(map(take_file_name, extraction.read_strings(ids)))

    return extraction.name_rows("cpu_module", [module], make_texts, module != NULL)


def extract_file_accesses(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield file accesses on the threads that make them."""
    wanted = ("fileAccessId", "threadId", "startedAt", "endedAt", *list_columns("file_access"))
    columns = extraction.drop_short(extraction.read(part, wanted), "startedAt", "endedAt")
    if not columns.rows:
        return
    ids, places = factorize(columns["fileAccessId"])
    described = _describe_files(extraction, int(ids[ids != NULL].min(initial=0)), int(ids.max()))
    pids, paths = zip(
        *(described.get(number, (0, NO_FILE)) for number in ids.tolist()), strict=True
    )
    file = extraction.intern_names("files", places, text=paths)
    threads = _find_threads(extraction, np.array(pids, np.int64)[places], columns["threadId"])
    fields = {"file": file, **read_fields(extraction, "file_access", columns)}
    yield Rows("file_access", columns["startedAt"], columns["endedAt"], threads, fields)


def _describe_files(extraction: Extraction, first: int, last: int) -> dict[int, tuple[int, str]]:
    """Return file access id -> (process ID, path) for ids from `first` to `last`."""
    where = f"{{fileAccessId}} BETWEEN {first} AND {last}"
    rows = extraction.database.read_small_table(
        ACCESSED_FILES, "fileAccessId", "processId", "filePath", where=where
    )
    return {
        number: (pid if isinstance(pid, int) else 0, str(path or NO_FILE))
        for number, pid, path in rows
    }


def _find_threads(extraction: Extraction, pids: np.ndarray, tids: np.ndarray) -> np.ndarray:
    """Return the object of each thread. pids, tids: operating system IDs."""
    distinct, codes = factorize(pids)
    process_of_pid = {pid_of(pid): pid for pid in extraction.report.processes}
    host = next(iter(extraction.report.processes), 0) & _HOST_BITS
    processes = [
        process_of_pid.get(pid, host | (pid & 0xFFFFFF) << 24) for pid in distinct.tolist()
    ]
    ids = np.array(processes, np.int64)[codes] | (zero_nulls(tids) & 0xFFFFFF)
    return extraction.intern_threads(ids)


def extract_contexts(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield the times in which a context is active on a GPU, from a switch in to the next switch
    out.
    """
    if not extraction.database.has(part.table, "tag", "timestamp", *CONTEXT_KEY):
        rows = extraction.database.count_rows(part)
        extraction.account.rows += rows
        extraction.account.dropped[Reason.NO_SWITCH_COLUMNS] += rows
        return
    if part.first == extraction.database.tables[part.table].whole.first:
        _count_switched_in_before(extraction, part.table)
    columns = extraction.read(
        part, (*CONTEXT_KEY, "timestamp", "globalPid"), where=f"{{tag}} = {RESTORE_START}", times=()
    )
    rows = extraction.database.count_rows(part)
    extraction.account.rows += rows
    # Switches of contexts that existed before are counted with the first part, wherever they are.
    extraction.account.skipped[Reason.WITHIN_SWITCH] += (
        rows - columns.rows - extraction.account.dropped[Reason.SWITCHED_IN_BEFORE]
    )
    columns = extraction.drop_rows(columns, columns["timestamp"] == NULL, Reason.NO_TIME)
    if not columns.rows:
        return
    ends = _find_switches_out(extraction, part.table, columns)
    long = extraction.mask_long_enough(columns["timestamp"], np.where(ends == OPEN, NULL, ends))
    columns, ends = columns.where(long), ends[long]

    def make_texts(pids: np.ndarray) -> list[str]:
        return [_name_owner(extraction, pid) for pid in pids.tolist()]

    fields = {
        "process": extraction.name_rows("gpu_contexts", [columns["globalPid"]], make_texts),
        "context": blank_negative(columns["contextId"]),
    }
    objects = extraction.number_objects(
        lambda gpu: DeviceKey(GPU_CONTEXTS, number=max(gpu, 0)), columns["gpuId"]
    )
    yield Rows("gpu_context", columns["timestamp"], ends, objects, fields)


def _name_owner(extraction: Extraction, pid: int) -> str:
    if pid == NULL:
        return "unknown process"
    return f"{extraction.report.processes.get(pid) or 'process'} {pid_of(pid)}"


def _find_switches_out(extraction: Extraction, table: str, begins: Columns) -> np.ndarray:
    """Return the time (local ns) at which each context leaves the GPU; OPEN if it stays."""
    low, high = int(begins["timestamp"].min()), int(begins["timestamp"].max())
    moments = _read_moments(extraction, table, low, high)
    switches_in = pl.DataFrame({name: zero_nulls(begins[name]) for name in CONTEXT_KEY})
    switches_in = switches_in.with_columns(after=begins["timestamp"] + 1)
    saved = _find_next(switches_in, moments.filter(pl.col("tag") == SAVE_END), CONTEXT_KEY)
    restored = _find_next(
        switches_in, moments.filter(pl.col("tag") == RESTORE_START), CONTEXT_KEY[:2]
    )
    reset = _find_next(switches_in, moments.filter(pl.col("tag") == ENGINE_RESET), CONTEXT_KEY[:2])
    left = np.minimum(saved, reset)
    extraction.account.repaired[Reason.NO_SWITCH_OUT] += int((restored < left).sum())
    return np.minimum(left, restored)


def _read_switches(
    extraction: Extraction, table: str, tags: tuple[int, ...]
) -> Iterator[pl.DataFrame]:
    """Yield the context switches with these tags, some rows at a time."""
    for piece in extraction.database.read_pieces(table, tuple(SWITCHES)):
        switches = pl.DataFrame({name: piece[name] for name in SWITCHES}, schema=SWITCHES)
        known = switches.filter(pl.col("tag").is_in(tags), pl.col("timestamp") != NULL)
        yield known.with_columns(pl.col(*CONTEXT_KEY).replace(NULL, 0))


def _read_moments(extraction: Extraction, table: str, low: int, high: int) -> pl.DataFrame:
    """Return the sorted times at which contexts leave a GPU: SAVE_END, the next RESTORE_START, or
    ENGINE_RESET.

    After the last start, `high`, one time per context is sufficient. This limits memory to the rows
    of the part.
    """
    within, later = [], pl.DataFrame(schema=SWITCHES)
    for switches in _read_switches(extraction, table, (SAVE_END, RESTORE_START, ENGINE_RESET)):
        within.append(switches.filter(pl.col("timestamp").is_between(low, high)))
        later = pl.concat([later, switches.filter(pl.col("timestamp") > high)])
        later = later.sort("timestamp").unique([*CONTEXT_KEY, "tag"], keep="first")
    return pl.concat([*within, later]).sort("timestamp")


def _find_next(rows: pl.DataFrame, moments: pl.DataFrame, by: tuple[str, ...]) -> np.ndarray:
    """Return, for each requested row, the first time of the same key at or after `after`; OPEN if
    there is none.
    """
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
    """Count as dropped the contexts that were active before their first switch in the table."""
    firsts = pl.DataFrame(schema=SWITCHES)
    for switches in _read_switches(extraction, table, (SAVE_END, RESTORE_START)):
        firsts = pl.concat([firsts, switches]).sort("timestamp", maintain_order=True)
        firsts = firsts.unique(list(CONTEXT_KEY), keep="first", maintain_order=True)
    count = int((firsts["tag"] == SAVE_END).sum())
    extraction.account.dropped[Reason.SWITCHED_IN_BEFORE] += count


def extract_messages(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield the messages of Nsight Systems, on the main thread of the process concerned."""
    columns = extraction.read(
        part, ("timestamp", "source", "severity", "globalPid"), ("text",), times=()
    )
    database = extraction.database
    main = extraction.find_once("main process", lambda: find_main_process(database))
    capture = extraction.report.capture
    first, last = extraction.find_once(
        "span", lambda: find_capture_span(read_diagnostics(database), capture.first, capture.last)
    )
    pids = columns["globalPid"]
    of_none = (pids == NULL) | np.isin(pids >> 24 & 0xFFFFFF, NO_PROCESSES)
    threads = extraction.find_main_threads(np.where(of_none, 0 if main is None else main, pids))
    codes, texts = columns.texts["text"]
    has_time = columns["timestamp"] != NULL
    begin = np.where(has_time, np.clip(columns["timestamp"], first, last), NULL)
    moved = begin != columns["timestamp"]
    extraction.account.repaired[Reason.MOVED_TO_CAPTURE] += int(moved.sum())
    messages = [shorten_message(text) for text in decode_texts(texts.series)]
    fields = read_fields(extraction, "diagnostic", columns)
    fields["text"] = extraction.intern_names("diagnostics", codes, text=messages)
    end = np.where(has_time, begin + 1, NULL)
    yield Rows("diagnostic", begin, end, extraction.intern_threads(threads), fields)


# ---- programming models --------------------------------------------------------------------------


def extract_openmp(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield the rows of an OpenMP table, each in the layout of its kind of event. Points in time
    have only a start.
    """
    kind = extraction.kind.name
    layouts = load_catalogue().kinds[kind]["tables"][part.table]
    wanted = list_row_columns(extraction.kind, *layouts)
    columns = extraction.read(part, wanted, short=True, times=("start",))
    if kind == "openmp":
        columns.integers["end"] = _find_ends(extraction, part, columns)
        columns = extraction.drop_short(columns)
    else:
        columns.integers["end"] = np.where(columns["start"] == NULL, NULL, columns["start"] + 1)
    if part.table == TASKS:
        columns.integers["kind"] = columns["kind"] & TASK_TYPE
    taken = list(chain.from_iterable(layouts.values()))
    for layout, values in layouts.items():
        rows = make_rows(extraction, layout, columns)
        # If rows are read only for their times, their layout does not matter.
        if extraction.stores:
            rows = rows.where(np.isin(rows.columns["event"], values or taken, invert=not values))
        yield rows


def _find_ends(extraction: Extraction, part: Part, columns: Columns) -> np.ndarray:
    """Return the ends of ranges. If a range has no end, or one on another clock, return the end of
    its parallel region, or NULL.
    """
    begin, end = columns["start"], columns["end"]
    longest = max(extraction.report.duration_ns or 0, 0) or LONGEST_RANGE
    # Unsigned differences are right for all times.
    too_long = (end > begin) & ((end - begin).view(np.uint64) > np.uint64(longest))
    lost = np.flatnonzero((begin != NULL) & ((end == NULL) | too_long | ((end == 0) & (begin > 0))))
    if not len(lost):
        return end
    closed = end.copy()
    closed[lost] = NULL
    if "parallelId" in columns.integers and part.table != REGIONS:
        region_ends = _find_region_ends(
            extraction, columns["globalTid"][lost], columns["parallelId"][lost], longest
        )
        closed[lost] = np.where(region_ends > begin[lost], region_ends, NULL)
        extraction.account.repaired[Reason.NO_END_IN_REGION] += int((closed[lost] != NULL).sum())
    return closed


def _find_region_ends(
    extraction: Extraction, thread: np.ndarray, region: np.ndarray, longest: int
) -> np.ndarray:
    """Return the end of each parallel region; NULL if the report has no plausible one. thread:
    globalTid, for its process. region: parallelId.
    """
    part = extraction.report.parts.get(REGIONS)
    if part is None:
        return np.full(len(region), NULL)
    where = f"{{end}} - {{start}} BETWEEN 0 AND {longest}"
    pieces = []
    for piece in part.split(MOST_REGIONS):
        rows = extraction.database.read(piece, ("end", "parallelId", "globalTid"), (), where)
        columns = rows["globalTid"] & PROCESS_MASK, rows["parallelId"], rows["end"]
        pieces.append(pl.DataFrame(columns, schema=("process", "region", "until")))
    known = pl.concat(pieces).filter(pl.col("region") != NULL)
    by_region = known.group_by("process", "region").agg(pl.col("until").max())
    regions = pl.DataFrame({"process": thread & PROCESS_MASK, "region": region})
    found = regions.join(by_region, on=["process", "region"], how="left", maintain_order="left")
    return found["until"].fill_null(NULL).to_numpy()


def extract_openacc(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield OpenACC constructs with their source locations."""
    (layout,) = load_catalogue().kinds["openacc"]["tables"][part.table]
    wanted = list_row_columns(extraction.kind, layout)
    columns = extraction.read(part, (*wanted, "nameId", "srcFile", "cuDeviceId"))
    device = columns["DeviceType"]
    has_ordinal = (device == NVIDIA_DEVICE) | (device == NULL)
    fields = {
        "source": name_sources(
            extraction, "openacc_source", columns["srcFile"], columns["lineNo"], columns["nameId"]
        ),
        "device": np.where(has_ordinal, blank_negative(columns["cuDeviceId"]), ABSENT),
        "caller_line": name_lines(extraction, columns["srcFile"], columns["lineNo"]),
    }
    yield make_rows(extraction, layout, columns, fields)


def extract_transfers(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield UCX operations in progress, and store messages with a known peer and tag as facts. If a
    process has several UCX workers, the worker of an operation is unknown.
    """
    columns = extraction.read(part, list_row_columns(extraction.kind, TRANSFERS))
    workers = extraction.find_once("workers", lambda: _find_workers(extraction))
    processes = find_processes(columns["globalTid"])
    distinct, codes = factorize(processes)
    own = np.array([workers.get(pid, NULL) for pid in distinct.tolist()], np.int64)[codes]
    ids, codes = factorize(columns["textId"])
    names = pl.Series(extraction.read_strings(ids), dtype=pl.String)
    sends, receives = (names.str.contains(which).to_numpy() for which in (IS_SEND, IS_RECEIVE))
    threads = extraction.intern_threads(columns["globalTid"])
    known = (sends | receives)[codes] & (own != NULL)
    for column in ("end", "peerWorkerUid", "tag"):
        known &= columns[column] != NULL
    if known.any():
        facts = {
            "time_begin": columns["start"],
            "time_end": columns["end"],
            "object_thread": threads,
            "process": processes,
            "worker": own,
            "peer": columns["peerWorkerUid"],
            "tag": columns["tag"],
            "bytes": columns["packedSize"],
            "is_send": sends[codes],
        }
        extraction.add_fact(TRANSFERS, take_rows(facts, known))
    yield make_rows(extraction, TRANSFERS, columns, objects=threads)


def _find_workers(extraction: Extraction) -> dict[int, int]:
    """Return process (globalPid) -> UCX worker, for processes with exactly one."""
    workers: dict[int, set[int]] = {}
    rows = extraction.database.read_small_table(
        "UCP_WORKERS", "globalTid", "workerUid", types=(int, int)
    )
    for tid, uid in rows:
        workers.setdefault(tid & PROCESS_MASK, set()).add(uid)
    return {pid: min(uids) for pid, uids in workers.items() if len(uids) == 1}
