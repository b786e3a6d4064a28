"""Give recorded reports other clocks: those of another host, wrong by a known offset and drift."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

#: Columns of times; those that lie between two others are stretched alone.
TIMES = ("start", "end", "timestamp", "rawTimestamp", "startTime", "stopTime", "startTimestamp")
LENGTHS = ("duration",)


def shift_clock(
    source: Path, target: Path, host: str, offset: int, drift: float, epoch: int
) -> Path:
    """Copy an export as if a host of this name had recorded it whose clock shows `offset` ns more at
    the UTC time `epoch` (ns), and gains `drift` (1e-6: 1 us a second).
    """
    shutil.copyfile(source, target)
    with closing(sqlite3.connect(target)) as connection:
        (utc,) = connection.execute(
            "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"
        ).fetchone()
        begin = offset + round(drift * (utc - epoch))
        connection.execute(
            "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = ?", (utc + begin,)
        )
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall()
        for (table,) in tables:
            columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
            for name in filter((*TIMES, *LENGTHS).__contains__, columns):
                connection.execute(
                    f'UPDATE "{table}" SET "{name}" = "{name}" + CAST(round("{name}" * ?) AS INTEGER)',
                    (drift,),
                )
        connection.execute(
            "UPDATE TARGET_INFO_SYSTEM_ENV SET value = ? WHERE name = 'Hostname'", (host,)
        )
        connection.commit()
    return target
