"""Compute the values of an Nsight Systems export with plain SQL: the values that a trace of it must
show.

The rules are those documented for the trace, stated again in SQL:

* Rows of the API table with event class 67 repeat a call and do not count. API names lose `_v` and
  four or more digits.
* A range without duration lasts 1 ns. An NVTX range without an end lasts to the end of the trace.
* A kernel has its demangled name, otherwise its short name. NVTX text is inline, otherwise the
  registered string.
* An id that is NULL counts as 0.
* NVTX domains are numbered per process and named by their creation event.
* A device-to-device copy between two devices is a peer-to-peer copy.
* The line of an operation, and the thread and type of a synchronization, come from the call with
  the same process and correlation id, the earliest of several.
"""

import re
import sqlite3
from collections import Counter
from pathlib import Path

#: A process id, and `thread TID` or `CUDA-Ddevice.Sstream`.
Row = tuple[int, str]

LONGEST_LABEL = 1000
NO_TEXT = "(no text)"
NO_NAME = "(no name)"
#: Kinds of events that a call starts -> kind of the line that leads to them.
OPERATIONS = {"kernel": "launch", "nccl_kernel": "launch", "graph": "launch", "memory": "memory"}

COPIES = {
    1: "CUDA memcpy Host-to-Device",
    2: "CUDA memcpy Device-to-Host",
    3: "CUDA memcpy Host-to-Array",
    4: "CUDA memcpy Array-to-Host",
    5: "CUDA memcpy Array-to-Array",
    6: "CUDA memcpy Array-to-Device",
    7: "CUDA memcpy Device-to-Array",
    8: "CUDA memcpy Device-to-Device",
    9: "CUDA memcpy Host-to-Host",
    10: "CUDA memcpy Peer-to-Peer",
    11: "Unified memory migration Host-to-Device",
    12: "Unified memory migration Device-to-Host",
    13: "Unified memory migration Device-to-Device",
}
MEMORY_KINDS = (
    "Pageable",
    "Pinned",
    "Device",
    "Array",
    "Managed",
    "Device static",
    "Managed static",
    "Unknown",
)
GEOMETRY = (
    "gridX",
    "gridY",
    "gridZ",
    "blockX",
    "blockY",
    "blockZ",
    "staticSharedMemory",
    "dynamicSharedMemory",
    "localMemoryTotal",
    "registersPerThread",
)

#: SQL for the operating system's id of a process, from Nsight's globalPid.
PID = "process >> 24 & 0xFFFFFF"

EVENTS = """
CREATE TEMP TABLE event (kind TEXT, process INTEGER, row TEXT, domain TEXT, name TEXT, start INTEGER, end INTEGER,
                         bytes INTEGER, correlation INTEGER)
"""
CALLS = """
CREATE TEMP TABLE call AS
SELECT coalesce(globalTid, 0) & ~0xFFFFFF AS process, coalesce(globalTid, 0) & 0xFFFFFF AS thread, {correlationId} AS correlation,
       api_name(value) AS name, start, max(end, start + 1) AS end, {returnValue} AS result
FROM CUPTI_ACTIVITY_KIND_RUNTIME LEFT JOIN StringIds ON StringIds.id = nameId
WHERE start IS NOT NULL AND end IS NOT NULL AND {eventClass} IS NOT 67
"""
FIRST_CALLS = """
CREATE TEMP TABLE first_call AS
SELECT process, correlation, min(start) AS start, thread, name FROM call WHERE correlation != 0
GROUP BY process, correlation
"""
API = """
INSERT INTO event SELECT 'api', process, 'thread ' || thread, '', name, start, end, NULL, correlation FROM call
"""
KERNELS = """
INSERT INTO event
SELECT CASE WHEN name GLOB 'nccl*Kernel*' OR name GLOB 'void nccl*Kernel*' OR name GLOB '*oneRankReduce<*'
            THEN 'nccl_kernel' ELSE 'kernel' END, globalPid, row, '', name, start, end, NULL, correlation
FROM (SELECT coalesce(nullif(long.value, ''), short.value, '') AS name, globalPid, {row} AS row, start, max(end, start + 1) AS end,
             {correlationId} AS correlation
      FROM CUPTI_ACTIVITY_KIND_KERNEL AS operation
      LEFT JOIN StringIds AS long ON long.id = demangledName LEFT JOIN StringIds AS short ON short.id = shortName
      WHERE start IS NOT NULL AND end IS NOT NULL)
"""
COPIED = """
INSERT INTO event
SELECT 'memory', globalPid, {row}, '',
       copy_name(CASE WHEN copyKind = 8 AND {srcDeviceId} != {dstDeviceId} THEN 10 ELSE copyKind END),
       start, max(end, start + 1), bytes, {correlationId}
FROM CUPTI_ACTIVITY_KIND_MEMCPY AS operation WHERE start IS NOT NULL AND end IS NOT NULL
"""
SET = """
INSERT INTO event
SELECT 'memory', globalPid, {row}, '', 'CUDA memset', start, max(end, start + 1), bytes, {correlationId}
FROM CUPTI_ACTIVITY_KIND_MEMSET AS operation WHERE start IS NOT NULL AND end IS NOT NULL
"""
GRAPHS = """
INSERT INTO event
SELECT 'graph', globalPid, {row}, '', 'CUDA graph exec ' || graphExecId, start, max(end, start + 1), NULL, {correlationId}
FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE AS operation WHERE start IS NOT NULL AND end IS NOT NULL
"""
SYNCHRONIZATIONS = """
INSERT INTO event
SELECT 'sync', globalPid, 'thread ' || coalesce(thread, globalPid >> 24 & 0xFFFFFF), '',
       CASE WHEN name LIKE '%StreamWaitEvent%' THEN 'Stream wait event'
            WHEN name LIKE '%EventSynchronize%' THEN 'Event synchronize'
            WHEN name LIKE '%EventQuery%' THEN 'Event query'
            WHEN name LIKE '%StreamSynchronize%' THEN 'Stream synchronize'
            WHEN name LIKE '%StreamQuery%' THEN 'Stream query'
            WHEN name LIKE '%DeviceSynchronize%' OR name LIKE '%CtxSynchronize%' OR name LIKE '%ThreadSynchronize%'
            THEN 'Context synchronize' ELSE 'Synchronization of unknown type' END,
       operation.start, max(end, operation.start + 1), NULL, NULL
FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION AS operation
LEFT JOIN first_call ON process = globalPid AND correlation = correlationId
WHERE operation.start IS NOT NULL AND end IS NOT NULL
"""
OS_CALLS = """
INSERT INTO event
SELECT CASE WHEN value LIKE 'pthread%' THEN 'pthread' ELSE 'osrt' END, globalTid & ~0xFFFFFF, 'thread ' || (globalTid & 0xFFFFFF), '',
       value, start, max(end, start + 1), NULL, NULL
FROM OSRT_API LEFT JOIN StringIds ON id = nameId WHERE eventClass = 27
"""
NVTX = """
INSERT INTO event
SELECT CASE WHEN range.eventType IN (59, 70) THEN 'pushpop' WHEN range.eventType IN (60, 71) THEN 'startend' ELSE 'mark' END,
       coalesce(globalTid, 0) & ~0xFFFFFF, 'thread ' || (coalesce(globalTid, 0) & 0xFFFFFF),
       CASE WHEN coalesce({domainId}, 0) = 0 THEN '' ELSE coalesce(domain.name, 'domain ' || {domainId}) END,
       coalesce(nullif(text, ''), nullif(value, ''), :no_text), start,
       CASE WHEN range.eventType IN (34, 65) THEN start + 1 WHEN end IS NULL THEN NULL ELSE max(end, start + 1) END, NULL, NULL
FROM NVTX_EVENTS AS range LEFT JOIN StringIds ON StringIds.id = {textId}
LEFT JOIN domain ON domain.process = globalTid & ~0xFFFFFF AND domain.number = {domainId}
WHERE start IS NOT NULL AND range.eventType IN (59, 70, 60, 71, 34, 65)
"""
DOMAINS = """
CREATE TEMP TABLE domain AS
SELECT globalTid & ~0xFFFFFF AS process, {domainId} AS number, min(coalesce(nullif(text, ''), value)) AS name
FROM NVTX_EVENTS LEFT JOIN StringIds ON StringIds.id = {textId} WHERE eventType = 75 GROUP BY 1, 2
"""


def make_label(name: str | None) -> str:
    """Return a name as a .pcf can hold it: one line, without pairs of brackets, not empty, at most
    1000 characters.
    """
    line = re.sub(r"[\x00-\x1f\x7f\x85\u2028\u2029]+", " ", name or "").strip()
    if len(line) > LONGEST_LABEL:
        line = line[: LONGEST_LABEL - 3].rstrip() + "..."
    if re.fullmatch(r"\[[^][]*\]", line):
        line = f"({line[1:-1]})" if len(line) > 2 else ""
    if {"[", "]"} <= {*line}:
        line = line.replace("[", "{").replace("]", "}")
    return line or NO_NAME


class Truth:
    """The events of one export as a table, and sums over it.

    Ranges without an end last to `end`, or to the last of these events.
    """

    def __init__(self, path: Path, end: int | None = None) -> None:
        self.connection = sqlite3.connect(f"file:{path.absolute()}?mode=ro&immutable=1", uri=True)
        self.connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        self.connection.create_function(
            "api_name", 1, lambda name: re.sub(r"_v\d{4,}$", "", name or "")
        )
        self.connection.create_function("label", 1, make_label)
        self.connection.create_function(
            "copy_name", 1, lambda kind: COPIES.get(kind, "CUDA memcpy of unknown kind")
        )
        #: The time that is 0 in the trace; None: that of the first of these events.
        self.zero: int | None = None
        self.connection.execute(EVENTS)
        self._load(end)

    def query(self, sql: str, **parameters: object) -> list[tuple]:
        """Return the rows of a query."""
        return self.connection.execute(sql, parameters).fetchall()

    def list_columns(self, table: str) -> set[str]:
        """Return the columns of a table, or none."""
        return {row[1] for row in self.query(f"PRAGMA table_info({table})")}

    def _load(self, end: int | None) -> None:
        """Fill the table of events from the export's tables."""
        self.connection.execute(
            "CREATE TEMP TABLE call (process, thread, correlation, name, start, end, result)"
        )
        if self.list_columns("CUPTI_ACTIVITY_KIND_RUNTIME"):
            self.connection.execute("DROP TABLE call")
            self._insert(CALLS, "CUPTI_ACTIVITY_KIND_RUNTIME")
        self.connection.execute(FIRST_CALLS)
        self.connection.execute(
            "CREATE INDEX temp.by_correlation ON first_call (correlation, process)"
        )
        self.connection.execute(API)
        for statement, table in (
            (KERNELS, "CUPTI_ACTIVITY_KIND_KERNEL"),
            (COPIED, "CUPTI_ACTIVITY_KIND_MEMCPY"),
            (SET, "CUPTI_ACTIVITY_KIND_MEMSET"),
            (GRAPHS, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"),
            (SYNCHRONIZATIONS, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"),
            (OS_CALLS, "OSRT_API"),
            (DOMAINS, "NVTX_EVENTS"),
            (NVTX, "NVTX_EVENTS"),
        ):
            if self.list_columns(table):
                self._insert(statement, table)
        self.connection.execute("UPDATE event SET name = label(name)")
        last = end or self.query("SELECT max(coalesce(end, start + 1)) FROM event")[0][0]
        self.connection.execute(
            "UPDATE event SET end = max(:last, start + 1) WHERE end IS NULL", {"last": last}
        )

    def _insert(self, statement: str, table: str) -> None:
        """Run a statement in which `{column}` is NULL where the export lacks the column."""
        have = self.list_columns(table)
        optional = (
            "correlationId",
            "returnValue",
            "eventClass",
            "srcDeviceId",
            "dstDeviceId",
            "domainId",
            "textId",
        )
        parts = {name: name if name in have else "NULL" for name in optional}
        self.connection.execute(statement.format(row=self._stream(), **parts), {"no_text": NO_TEXT})

    def _stream(self) -> str:
        """Return SQL for the row name of an operation: by GPU number where ordinals are tied to
        GPUs, else by CUDA ordinal.
        """
        device = "deviceId"
        if self.list_columns("TARGET_INFO_CUDA_DEVICE"):
            device = """coalesce((SELECT gpuId FROM TARGET_INFO_CUDA_DEVICE AS device WHERE device.cudaId = operation.deviceId
                                  AND device.pid = operation.globalPid >> 24 & 0xFFFFFF), deviceId)"""
        return f"'CUDA-D' || coalesce({device}, 0) || '.S' || coalesce(streamId, 0)"

    @property
    def empty(self) -> bool:
        return not self.query("SELECT 1 FROM event LIMIT 1")

    def list_kinds(self) -> list[str]:
        """Return the kinds of events that the export has."""
        return [kind for (kind,) in self.query("SELECT DISTINCT kind FROM event ORDER BY kind")]

    def find_time_zero(self) -> int:
        """Return the time of the export that is 0 in the trace."""
        if self.zero is not None:
            return self.zero
        return self.query("SELECT min(start) FROM event")[0][0]

    def find_span(self) -> tuple[int, int]:
        """Return begin of the first event and end of the last one, in trace time."""
        ((first, last),) = self.query("SELECT min(start), max(end) FROM event")
        return first - self.find_time_zero(), last - self.find_time_zero()

    def sum_by_name(self, kind: str) -> dict[str, tuple[int, int]]:
        """Return name -> count and total duration of a kind."""
        sql = "SELECT name, count(*), sum(end - start) FROM event WHERE kind = :kind GROUP BY name"
        return {name: (count, total) for name, count, total in self.query(sql, kind=kind)}

    def count_ranges(self, kind: str) -> Counter[tuple]:
        """Count the ranges of a kind by process id, row, NVTX domain, name, begin and end in trace
        time.
        """
        sql = f"SELECT {PID}, row, domain, name, start - :base, end - :base FROM event WHERE kind = :kind"
        return Counter(self.query(sql, kind=kind, base=self.find_time_zero()))

    def sum_bytes_by_operation(self) -> dict[str, int]:
        """Return memory operation -> bytes."""
        return dict(
            self.query("SELECT name, sum(bytes) FROM event WHERE kind = 'memory' GROUP BY name")
        )

    def count_lines(self, kind: str) -> Counter[tuple]:
        """Count the lines of a kind by process, calling thread, begin of the call, row, begin of
        the operation and size.
        """
        operations = ", ".join(
            f"'{operation}'" for operation, line in OPERATIONS.items() if line == kind
        )
        sql = f"""SELECT {PID}, 'thread ' || thread, first_call.start - :base, row, event.start - :base, coalesce(bytes, 0)
                  FROM event JOIN first_call USING (process, correlation) WHERE kind IN ({operations})"""
        return Counter(self.query(sql, base=self.find_time_zero()))

    def count_errors(self) -> dict[tuple[str, int], int]:
        """Count the calls that failed by API name and code."""
        sql = "SELECT label(name), result, count(*) FROM call WHERE result > 0 GROUP BY 1, 2"
        return {(name, code): count for name, code, count in self.query(sql)}

    def count_geometries(self) -> Counter[tuple]:
        """Count kernels by name, grid, block, memory and registers."""
        have = self.list_columns("CUPTI_ACTIVITY_KIND_KERNEL")
        if not have:
            return Counter()
        chosen = ", ".join(
            f"max(coalesce({name}, 0), 0)" if name in have else "0" for name in GEOMETRY
        )
        sql = f"""SELECT label(coalesce(nullif(long.value, ''), short.value, '')), {chosen} FROM CUPTI_ACTIVITY_KIND_KERNEL
                  LEFT JOIN StringIds AS long ON long.id = demangledName LEFT JOIN StringIds AS short ON short.id = shortName
                  WHERE start IS NOT NULL AND end IS NOT NULL"""
        return Counter(self.query(sql))

    def count_memory_kinds(self) -> Counter[tuple[str, str]]:
        """Count copies by the kinds of memory that they read and write, empty where the export does
        not say.
        """
        if not {"srcKind", "dstKind"} <= self.list_columns("CUPTI_ACTIVITY_KIND_MEMCPY"):
            return Counter()
        named = dict(enumerate(MEMORY_KINDS))
        pairs = self.query(
            "SELECT srcKind, dstKind FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE start IS NOT NULL AND end IS NOT NULL"
        )
        return Counter((named.get(source, ""), named.get(target, "")) for source, target in pairs)

    def close(self) -> None:
        self.connection.close()


def read_thread_owners(path: Path) -> dict[int, int]:
    """Return thread id -> process id of all threads that an export names or has events of."""
    connection = sqlite3.connect(f"file:{path.absolute()}?mode=ro&immutable=1", uri=True)
    owners: dict[int, int] = {}
    for (table,) in connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table'"
    ).fetchall():
        columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
        if "globalTid" in columns:
            query = f'SELECT DISTINCT globalTid & 0xFFFFFF, globalTid >> 24 & 0xFFFFFF FROM "{table}" WHERE globalTid IS NOT NULL'
            owners |= dict(connection.execute(query).fetchall())
    connection.close()
    return owners
