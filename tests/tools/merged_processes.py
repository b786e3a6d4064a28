"""Make one process, with a GPU and threads for each, of the processes of several exports."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from tools.exports import KERNEL, MEMCPY, RUNTIME

#: Tables of events; of all others those of the first export are kept.
EVENTS = (
    *(KERNEL, MEMCPY, RUNTIME, "CUPTI_ACTIVITY_KIND_MEMSET", "NVTX_EVENTS"),
    *("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_CUDA_EVENT"),
)
#: Columns that are names.
NAMES = ("demangledName", "shortName", "mangledName", "nameId", "textId")
#: What tells threads, calls, streams and events of one export from those of others.
APART = {"correlationId": 1 << 20, "streamId": 100, "eventId": 1 << 20, "contextId": 10}


def merge_processes(reports: Sequence[Path], path: Path) -> Path:
    """Write an export of a process that does what the processes of these do, each on a GPU of its own, and
    nothing else.
    """
    path.unlink(missing_ok=True)
    path.write_bytes(reports[0].read_bytes())
    merged = sqlite3.connect(path)
    (pid,) = merged.execute(f"SELECT globalPid FROM {KERNEL}").fetchone()
    for number, report in enumerate(reports):
        if number:
            merged.execute("ATTACH ? AS other", [str(report)])
            _add_events(merged, number, pid)
            merged.commit()
            merged.execute("DETACH other")
    merged.commit()
    merged.close()
    return path


def _add_events(merged: sqlite3.Connection, number: int, pid: int) -> None:
    strings = dict(merged.execute("SELECT value, id FROM StringIds"))
    new = {}
    for identity, value in merged.execute("SELECT id, value FROM other.StringIds").fetchall():
        if value not in strings:
            strings[value] = max(strings.values()) + 1
            merged.execute("INSERT INTO StringIds VALUES (?, ?)", [strings[value], value])
        new[identity] = strings[value]
    merged.create_function("name", 1, new.get)
    clock = "SELECT systemClockNs FROM {}.TARGET_INFO_SESSION_START_TIME"
    for table in EVENTS:
        columns = [row[1] for row in merged.execute(f"PRAGMA table_info({table})")]
        values = []
        for column in columns:
            value = f'"{column}"'
            if column in ("start", "end", "timestamp"):
                value += f" + ({clock.format('other')}) - ({clock.format('main')})"
            elif column == "globalTid":
                value = f"({value} & 0xFFFFFF) + {pid + 20 * number}"
            elif column == "globalPid":
                value = str(pid)
            elif column == "deviceId":
                value = str(number)
            elif column in NAMES:
                value = f"name({value})"
            elif column in APART:
                value = f"CASE WHEN {value} < 0 THEN {value} ELSE {value} + {number * APART[column]} END"
            values.append(value)
        merged.execute(f"INSERT INTO {table} SELECT {', '.join(values)} FROM other.{table}")
