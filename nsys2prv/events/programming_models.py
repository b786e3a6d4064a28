"""OpenMP events, OpenACC constructs and operations of UCX, on the host threads that execute them.

OpenMP is as its tools interface (OMPT) reports it to Nsight Systems. Tables and columns: NVIDIA's
"SQLite Schema Reference", OPENMP_EVENT_KIND_*. Kinds: Nsight's ENUM_OPENMP_* tables, which are
OMPT's. A capture that stops early leaves ranges without an end, or with one on another clock; they
end with their parallel region.

Types, labels and values of OpenACC are those of BSC's nsys2prv 0.6: a construct's value is Nsight's
event kind plus one, and its source, where it stands in the code, is `name@file:line`.

Operations of UCX last from their submission to their completion, many at a time on one thread.
Those that are messages are set aside for the lines between processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
import polars as pl

from nsys2prv._util.columns import ABSENT, blank_negative, factorize
from nsys2prv.events.attributes import THREAD_COLUMNS, list_columns, make_rows
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import Reason, Rows
from nsys2prv.events.stacks import name_lines
from nsys2prv.export.info import PROCESS_MASK, find_processes
from nsys2prv.export.source import NULL, Columns, Part

#: OpenMP's tables of tasks and of parallel regions.
TASKS, REGIONS = "OPENMP_EVENT_KIND_TASK", "OPENMP_EVENT_KIND_PARALLEL"
#: ompt_task_flag_t: bits for the type of a task, below those for how it runs.
TASK_TYPE = 0x1F
#: A range longer than this (ns) has no end on the report's clock, where the report does not say how
#: long it lasts.
LONGEST_RANGE = 1 << 53
#: Parallel regions looked at together.
MOST_REGIONS = 400_000
#: ENUM_OPENACC_DEVICE of devices that have a CUDA ordinal.
NVIDIA_DEVICE = 4
#: UCX: facts of each send and receive with a known peer and tag; `worker` is the process's own.
TRANSFERS = "ucx_transfers"
#: Functions of UCX that send and receive messages.
IS_SEND, IS_RECEIVE = r"^ucp_(tag|stream)_send", r"^ucp_(tag|stream)_(msg_)?recv"


def extract_openmp(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield the rows of a table by layout; those of points have their begin alone."""
    kind = extraction.kind.name
    layouts = load_catalogue().kinds[kind]["tables"][part.table]
    wanted = (*THREAD_COLUMNS, *list_columns(*layouts))
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
        yield rows.where(np.isin(rows.columns["event"], values or taken, invert=not values))


def _find_ends(extraction: Extraction, part: Part, columns: Columns) -> np.ndarray:
    """Return the ends of ranges; of one that has none, or one on another clock, its parallel
    region's, else NULL.
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
    """Return the end of each (process of a globalTid, parallelId), NULL where the report has no
    plausible one.
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
    """Yield OpenACC constructs, with their place in the code."""
    (layout,) = load_catalogue().kinds["openacc"]["tables"][part.table]
    wanted = ("start", "end", "globalTid", "nameId", "srcFile", "cuDeviceId", *list_columns(layout))
    columns = extraction.read(part, wanted)
    device = columns["DeviceType"]
    has_ordinal = (device == NVIDIA_DEVICE) | (device == NULL)
    fields = {
        "source": _name_sources(extraction, columns),
        "device": np.where(has_ordinal, blank_negative(columns["cuDeviceId"]), ABSENT),
        "caller_line": name_lines(extraction, columns["srcFile"], columns["lineNo"]),
    }
    yield make_rows(extraction, layout, columns, fields)


def _name_sources(extraction: Extraction, columns: Columns) -> np.ndarray:
    """Return name indices of `name@file:line`, or of the name alone where no file is known."""

    def make_texts(*places: np.ndarray) -> list[str]:
        names, files = map(extraction.read_strings, places[:2])
        lines = ["" if line == NULL else f":{line}" for line in places[2].tolist()]
        triples = zip(names, files, lines, strict=True)
        return [f"{name}@{file}{line}" if file else name for name, file, line in triples]

    places = [columns[name] for name in ("nameId", "srcFile", "lineNo")]
    return extraction.name_rows("openacc_source", places, make_texts)


def extract_transfers(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield operations under way, and set aside those that are messages with a known peer and tag.
    Of a process with several workers it is not known which one an operation is of.
    """
    columns = extraction.read(part, (*THREAD_COLUMNS, *list_columns(TRANSFERS)))
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
        extraction.add_fact(TRANSFERS, {name: column[known] for name, column in facts.items()})
    yield make_rows(extraction, TRANSFERS, columns, objects=threads)


def _find_workers(extraction: Extraction) -> dict[int, int]:
    """Return the worker of each process (globalPid) that has one alone."""
    workers: dict[int, set[int]] = {}
    rows = extraction.database.read_small_table(
        "UCP_WORKERS", "globalTid", "workerUid", types=(int, int)
    )
    for tid, uid in rows:
        workers.setdefault(tid & PROCESS_MASK, set()).add(uid)
    return {pid: min(uids) for pid, uids in workers.items() if len(uids) == 1}
