"""UCX (``-t ucx``): operations from their submission to their completion, set aside for the messages
between processes. One thread has many under way at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from nsys2prv._util.columns import factorize
from nsys2prv.events.attributes import THREAD_COLUMNS, list_columns, make_rows
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import Rows
from nsys2prv.export.info import PROCESS_MASK, find_processes
from nsys2prv.export.source import NULL, Part

LAYOUT, WORKERS = "ucx_transfers", "UCP_WORKERS"
#: Facts of each send and receive with a known peer and tag; `worker` is the process's own.
TRANSFERS = "ucx_transfers"
IS_SEND, IS_RECEIVE = r"^ucp_(tag|stream)_send", r"^ucp_(tag|stream)_(msg_)?recv"


def extract_transfers(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield operations under way, and set aside those that are messages with a known peer and tag.
    Of a process with several workers it is not known which one an operation is of.
    """
    columns = extraction.read(part, (*THREAD_COLUMNS, *list_columns(LAYOUT)))
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
    yield make_rows(extraction, LAYOUT, columns, objects=threads)


def _find_workers(extraction: Extraction) -> dict[int, int]:
    """Return the worker of each process (globalPid) that has one alone."""
    workers: dict[int, set[int]] = {}
    rows = extraction.database.read_small_table(WORKERS, "globalTid", "workerUid", types=(int, int))
    for tid, uid in rows:
        workers.setdefault(tid & PROCESS_MASK, set()).add(uid)
    return {pid: min(uids) for pid, uids in workers.items() if len(uids) == 1}
