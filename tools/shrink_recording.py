"""Make a small sample of recorded exports of MPI ranks, with what their MPI tables say and nothing
of the machine that they were recorded on: other processes, paths, environment, names.

    python tools/shrink_recording.py FOLDER EXPORT...
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

#: Tables that stay, and the condition on their rows.
KEPT = {
    "ANALYSIS_DETAILS": "1",
    "META_DATA_EXPORT": "name LIKE 'EXPORT_SCHEMA_VERSION%' OR name = 'EXPORT_PRODUCT_VERSION'",
    "MPI_COLLECTIVES_EVENTS": "1",
    "MPI_COMMUNICATORS": "1",
    "MPI_OTHER_EVENTS": "1",
    "MPI_P2P_EVENTS": "1",
    "MPI_RANKS": "1",
    "MPI_START_WAIT_EVENTS": "1",
    "PROCESSES": "globalPid IN (SELECT globalTid & ~0xFFFFFF FROM MPI_RANKS)",
    "TARGET_INFO_SESSION_START_TIME": "1",
    "TARGET_INFO_SYSTEM_ENV": "name = 'Hostname'",
}
#: Tables whose rows name texts.
CALLS = ("MPI_COLLECTIVES_EVENTS", "MPI_OTHER_EVENTS", "MPI_P2P_EVENTS", "MPI_START_WAIT_EVENTS")


def shrink_recording(export: Path, target: Path) -> None:
    """Write the sample of an export to another file."""
    with closing(sqlite3.connect(f"file:{export}?mode=ro", uri=True)) as source:
        tables = dict(source.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
        target.unlink(missing_ok=True)
        with closing(sqlite3.connect(target)) as result:
            result.execute("PRAGMA page_size = 512")
            texts = " UNION ".join(f"SELECT textId FROM {one}" for one in CALLS if one in tables)
            kept = KEPT | {"StringIds": f"id IN ({texts})"}
            for table in sorted(kept.keys() & tables.keys()):
                result.execute(tables[table])
                rows = source.execute(f"SELECT * FROM {table} WHERE {kept[table]}").fetchall()
                for row in rows:
                    marks = ", ".join("?" * len(row))
                    result.execute(f"INSERT INTO {table} VALUES ({marks})", row)
            result.execute("UPDATE PROCESSES SET name = 'program'")
            result.execute("UPDATE TARGET_INFO_SYSTEM_ENV SET value = 'node1'")
            result.commit()
            result.execute("VACUUM")


if __name__ == "__main__":
    folder, *exports = map(Path, sys.argv[1:])
    for path in exports:
        shrink_recording(path, folder / path.name)
