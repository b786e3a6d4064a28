"""CPU scheduling and CPU samples: when threads ran, where, and in which functions. Rows are for
profiled processes only.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from nsys2prv._util.columns import ABSENT, factorize, factorize_together
from nsys2prv._util.errors import UsageError
from nsys2prv.events.attributes import list_columns, read_fields
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import Rows, declare_kind
from nsys2prv.events.reasons import Reason
from nsys2prv.nsight.columns import NULL, Columns
from nsys2prv.nsight.info import PROCESS_MASK, pid_of
from nsys2prv.nsight.job_checks import list_profiled_processes
from nsys2prv.nsight.source import Part

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


KINDS = (
    declare_kind("sched", extract_thread_states),
    declare_kind("cpu_samples", extract_samples),
)
