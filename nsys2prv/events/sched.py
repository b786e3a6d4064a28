"""Thread states: when the scheduler put a thread on a CPU and took it off, on which CPU, and why where the report tells.

Nsight Systems records both moments as points, in rows of their own and in any order. Each is a change of state that stands until the
thread's next one, so that neither has to find the other. A thread is off the CPU for reasons that only some systems record (QNX and
Windows; on Linux the state is known when a thread ends). Before its first row nothing is known of a thread, and one that has ended
has no state: its end is told for 1 ns.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsys2prv.catalogue import catalogue
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import EventKind, Rows
from nsys2prv.events.profiled import of_profiled
from nsys2prv.report.source import NULL, Part

TABLE = "SCHED_EVENTS"
LAYOUT, WITH_REASON = "thread_state", "thread_state_reason"
#: Values of the catalogue's set `thread_state`.
OFF, RUNNING, TERMINATED, READY, OTHER_STATE = 1, 2, 6, 20, 99
OTHER_REASON = 999
#: Rows at the begin of a table that tell whether the system records reasons.
LOOKED_AT = 100_000
NO_KIND_OF_EVENT = "rows that are neither in nor out"


def extract(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = of_profiled(extraction, extraction.read(part, ("start", "cpu", "isSchedIn", "globalTid", "threadState", "threadBlock")))
    unknown = columns["isSchedIn"] == NULL
    if unknown.any():
        extraction.account.dropped[NO_KIND_OF_EVENT] += int(unknown.sum())
        columns = columns.where(~unknown)
    if not columns.rows:
        return
    runs, reason = columns["isSchedIn"] != 0, columns["threadBlock"]
    state = known_states(columns["threadState"])
    # A thread off the CPU that is said to run was put off it, and waits for another turn.
    state = np.select([runs, state == RUNNING, state == 0], [RUNNING, READY, OFF], state)
    fields = {"state": state, "cpu": np.where(runs, np.maximum(columns["cpu"], -1) + 1, 0)}
    with_reason = _reasons_recorded(extraction) or bool((reason != NULL).any())
    if with_reason:
        fields["reason"] = np.where(runs, 0, _known(reason, "thread_block", OTHER_REASON))
    start, thread = columns["start"], extraction.threads(columns["globalTid"])
    ended = np.flatnonzero((state == TERMINATED) & (start != NULL))
    extraction.account.beyond["ends of threads, told for 1 ns"] += len(ended)
    start, thread = np.append(start, start[ended] + 1), np.append(thread, thread[ended])
    fields = {name: np.append(column, np.zeros(len(ended), np.int64)) for name, column in fields.items()}
    yield Rows(WITH_REASON if with_reason else LAYOUT, start, start, thread, fields)


def known_states(states: np.ndarray) -> np.ndarray:
    """Values of the catalogue's set of Nsight's thread states; 0 for NULL."""
    return _known(states, "thread_state", OTHER_STATE)


def _known(values: np.ndarray, value_set: str, other: int) -> np.ndarray:
    """Nsight's values + 1, `other` for one that the set lacks, 0 for NULL."""
    labels = [value for value, _ in catalogue().value_sets[value_set].labels if value != other]
    numbers = np.where(values == NULL, -1, np.clip(values, -2, other)) + 1
    return np.where((numbers == 0) | np.isin(numbers, labels), numbers, other)


def _reasons_recorded(extraction: Extraction) -> bool:
    """Whether the report's system records why threads are off the CPU; it does so for all or for none."""
    found = extraction.kept.get("reasons")
    if found is None:
        first = extraction.report.parts[TABLE].first
        looked_at = extraction.database.read(Part(TABLE, first, first + LOOKED_AT - 1), ("threadBlock",))
        found = bool((looked_at["threadBlock"] != NULL).any())
        extraction.kept["reasons"] = found
    return found


KINDS = (
    EventKind("sched", "Thread states", "host thread", (TABLE,), (LAYOUT, WITH_REASON), extract, groups=("cpu",), lasting=False),
)
