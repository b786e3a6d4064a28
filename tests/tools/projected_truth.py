"""Project NVTX ranges onto the streams that they launched work on, by plain SQL: the definition of
nsys's nvtx_gpu_proj_trace, by stream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tools.sql_truth import Truth

LAUNCHED = """
CREATE TEMP TABLE IF NOT EXISTS launched AS
  SELECT process, 'thread ' || thread AS caller, thread, returned, row, called, start, end FROM event JOIN (
    SELECT call.process, call.thread, call.correlation, call.start AS called, max(call.end) AS returned
    FROM call JOIN first_call USING (process, correlation, start, thread) GROUP BY 1, 2, 3, 4) USING (process, correlation)
  WHERE kind IN ('kernel', 'nccl_kernel', 'memory', 'graph')
"""
BY_CALL = "CREATE INDEX IF NOT EXISTS temp.by_call ON launched (process, caller, called)"
SQL = """
SELECT range.process >> 24 & 0xFFFFFF, work.row, domain, name, min(work.start) - :base, max(work.end) - :base, work.thread, range.start,
       range.end
FROM (SELECT rowid AS number, * FROM event WHERE kind = 'pushpop') AS range
CROSS JOIN launched AS work ON work.process = range.process AND work.caller = range.row
  AND work.called BETWEEN range.start AND range.end AND work.returned <= range.end
GROUP BY number, work.row
"""


class ProjectedRange(NamedTuple):
    """A range on a stream (begin, end in trace time), and on its thread (pushed, popped in the
    export's time).
    """

    pid: int
    row: str
    domain: str
    name: str
    begin: int
    end: int
    thread: int
    pushed: int
    popped: int


def project_ranges_by_sql(truth: Truth, base: int = 0) -> list[ProjectedRange]:
    """Return all projected ranges of an export.

    base: the time of the export (ns) that is 0 in the trace.
    """
    for statement in (LAUNCHED, BY_CALL):
        truth.query(statement)
    return [ProjectedRange(*row) for row in truth.query(SQL, base=base)]


def find_innermost_stretches(
    ranges: Iterable[ProjectedRange],
) -> Iterator[tuple[tuple[int, str], int, int, str, int]]:
    """Yield the stretches of each row in which one range is the innermost: row (process id and
    name), begin, end, name and depth.
    """
    rows: dict[tuple[int, str], list[ProjectedRange]] = defaultdict(list)
    for item in ranges:
        rows[item.pid, item.row].append(item)
    for row, stretches in rows.items():
        stretches.sort(
            key=lambda item: (item.begin, -item.end, item.thread, item.pushed, -item.popped)
        )
        edges = sorted(
            edge
            for place, item in enumerate(stretches)
            for edge in ((item.begin, 1, place), (item.end, 0, place))
        )
        stack: list[int] = []
        last = 0
        for time, begins, place in edges:
            if stack and time > last:
                yield row, last, time, stretches[stack[-1]].name, len(stack)
            last = time
            if begins:
                stack.append(place)
            else:
                stack.remove(place)
