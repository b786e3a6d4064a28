"""Write small exports row by row, for cases missing from the samples.

Tables have only the columns that a test names.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from nsys2prv.conversion.convert import SMALL_JOB_ROWS

Row = Mapping[str, object]
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
PID = 4242


def make_global_pid(pid: int = PID, host: int = 1) -> int:
    """Return Nsight's globalPid: hardware id, virtual machine id, process id, thread id 0."""
    return host << 56 | 1 << 48 | pid << 24


def make_global_tid(tid: int, pid: int = PID, host: int = 1) -> int:
    """Return Nsight's globalTid: a globalPid with a thread id."""
    return make_global_pid(pid, host) | tid


def make_export(
    path: Path, tables: Mapping[str, Sequence[Row]], types: Mapping[str, str] | None = None
) -> Path:
    """Write an SQLite file with these tables; a table without rows gets one column.

    types: column -> declared type.
    """
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    for table, rows in tables.items():
        columns = list(dict.fromkeys(name for row in rows for name in row)) or ["start"]
        declared = ", ".join(f'"{name}" {(types or {}).get(name, "")}' for name in columns)
        connection.execute(f'CREATE TABLE "{table}" ({declared})')
        marks = ", ".join("?" * len(columns))
        connection.executemany(
            f'INSERT INTO "{table}" VALUES ({marks})',
            [[row.get(name) for name in columns] for row in rows],
        )
    connection.commit()
    connection.close()
    return path


def make_strings(*texts: str) -> list[Row]:
    """Return rows of StringIds with the texts numbered from 1."""
    return [{"id": number, "value": text} for number, text in enumerate(texts, 1)]


def make_rows(columns: str, *rows: Sequence[object]) -> list[Row]:
    """Return rows of the named columns."""
    return [dict(zip(columns.split(), row, strict=True)) for row in rows]


def make_host(name: str, utc: int | None = None, clock: int | None = None) -> dict[str, list[Row]]:
    """Return the tables that describe a host: its name and, where it is given, when its session starts (UTC
    and its own clock, ns).
    """
    start = [{"utcEpochNs": utc, "systemClockNs": clock}]
    return {
        "TARGET_INFO_SYSTEM_ENV": [{"name": "Hostname", "value": name}],
        **({} if utc is None else {"TARGET_INFO_SESSION_START_TIME": start}),
    }


def make_gpus(*uuids: str, first: int = 0) -> list[Row]:
    """Return the rows of GPUs with these UUIDs, numbered from `first`."""
    columns = "id name uuid busLocation"
    return make_rows(columns, *((at, "H100", uuid, "") for at, uuid in enumerate(uuids, first)))


def make_metrics(type_id: int, names: Sequence[str], first: int = 0) -> list[Row]:
    """Return rows that name the metrics of a GPU, numbered from `first`."""
    rows = ((type_id, 1, "GPU Metrics", *one) for one in enumerate(names, first))
    return make_rows("typeId sourceId typeName metricId metricName", *rows)


def make_sample(type_id: int, time: int | None, values: Mapping[int, int | None]) -> list[Row]:
    """Return the rows of one sample of a GPU: metric -> value."""
    rows = ((10**15, time, type_id, *one) for one in values.items())
    return make_rows("rawTimestamp timestamp typeId metricId value", *rows)


def make_kernel(start: int | None, end: int | None, **columns: object) -> Row:
    """Return a row of a kernel on stream 7 of device 0, named by string 1."""
    row: dict[str, object] = {
        "start": start,
        "end": end,
        "deviceId": 0,
        "contextId": 1,
        "streamId": 7,
        "correlationId": None,
        "globalPid": make_global_pid(),
        "demangledName": 1,
        "shortName": 1,
    }
    row.update(columns)
    return row


def make_call(start: int, end: int, correlation: int, **columns: object) -> Row:
    """Return a row of a runtime API call on the main thread, named by string 2."""
    row: dict[str, object] = {
        "start": start,
        "end": end,
        "eventClass": 0,
        "globalTid": make_global_tid(PID),
        "correlationId": correlation,
        "nameId": 2,
        "returnValue": 0,
    }
    row.update(columns)
    return row


def make_os_call(
    start: int | None,
    end: int | None,
    name: int | None = 1,
    tid: int = PID,
    level: int | None = 0,
    **columns: object,
) -> Row:
    """Return a row of an OS runtime call on the main thread, named by string 1."""
    row: dict[str, object] = {
        "start": start,
        "end": end,
        "eventClass": 27,
        "globalTid": make_global_tid(tid),
        "nameId": name,
        "returnValue": 0,
        "nestingLevel": level,
    }
    row.update(columns)
    return row


def make_nvtx_range(
    start: int | None,
    end: int | None,
    text: str | None,
    kind: int = 59,
    tid: int = PID,
    **columns: object,
) -> Row:
    """Return a row of an NVTX range in the default domain, on the main thread."""
    return {
        "start": start,
        "end": end,
        "eventType": kind,
        "text": text,
        "globalTid": make_global_tid(tid),
        "domainId": 0,
        **columns,
    }


def make_large_export(path: Path, rows: int = 2 * SMALL_JOB_ROWS + 100_000) -> Path:
    """Write a report large enough for two worker processes: kernels one after the other."""
    make_export(path, {"StringIds": make_strings("kern"), KERNEL: [make_kernel(1, 5)]})
    with sqlite3.connect(path) as connection:
        connection.execute(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) "
            f"INSERT INTO {KERNEL} SELECT start + 10 * i, end + 10 * i, deviceId, contextId, streamId, i, globalPid, 1, 1 "
            f"FROM {KERNEL}, n"
        )
    return path


def query_export(path: Path, sql: str, **values: object) -> list[tuple]:
    """Return the rows of an SQL query on a report; `values` bind the names behind colons."""
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        return connection.execute(sql, values).fetchall()
    finally:
        connection.close()
