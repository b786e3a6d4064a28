"""Project NVTX ranges onto the streams that they launched work on, by plain SQL: the definition of
nsys's nvtx_gpu_proj_trace, by stream.
"""

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

#: What nodes of graphs do in each launch counts in the ranges in which they were captured, but in those
#: of names in which graphs are launched.
REPLAYED = """
WITH range AS (SELECT rowid AS number, * FROM event WHERE kind = 'pushpop'),
  made AS (SELECT globalTid, graphNodeId AS node, coalesce(originalGraphNodeId, graphNodeId) AS root, start FROM CUDA_GRAPH_NODE_EVENTS),
  replay AS (
    SELECT work.*, 'thread ' || (first.globalTid & 0xFFFFFF) AS caller, first.start AS captured
    FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel JOIN made AS copy ON copy.node = graphNodeId JOIN made AS first ON first.node = copy.root
    JOIN event AS work ON work.process = globalPid AND work.correlation = correlationId AND work.start = kernel.start
      AND work.kind IN ('kernel', 'nccl_kernel'))
SELECT range.process >> 24 & 0xFFFFFF, replay.row, range.domain, range.name, min(replay.start) - :base, max(replay.end) - :base,
       replay.caller, range.start, range.end
FROM range JOIN replay ON replay.process = range.process AND replay.caller = range.row AND captured BETWEEN range.start AND range.end
WHERE range.name NOT IN (
  SELECT range.name FROM range JOIN first_call AS call ON call.process = range.process AND 'thread ' || call.thread = range.row
    AND call.start BETWEEN range.start AND range.end AND call.name GLOB 'cudaGraphLaunch*')
GROUP BY number, replay.row, replay.correlation
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
    queries = [SQL, REPLAYED] if truth.list_columns("CUDA_GRAPH_NODE_EVENTS") else [SQL]
    return [ProjectedRange(*row) for query in queries for row in truth.query(query, base=base)]


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
