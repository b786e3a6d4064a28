"""The floors of a conversion: reading its columns by the driver that it uses, and writing its bytes; nothing else.

    floors.py scan REPORT...            prints rows and CPU seconds, without those of starting Python
    floors.py write BYTES FILE          prints bytes and CPU seconds
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from inputs import SCANNED

#: Rows of one statement, and bytes of one write: as the conversion does it.
ROWS, BLOCK = 200_000, 1 << 20


def scan(reports: list[Path]) -> int:
    """Rows of a scan of the columns, by one process."""
    import adbc_driver_manager as manager
    import adbc_driver_sqlite
    import polars as pl

    rows = 0
    for report in reports:
        with (adbc_driver_sqlite.connect(f"file:{report}?mode=ro&immutable=1") as database,
              manager.AdbcConnection(database) as connection):
            for table, columns in SCANNED.items():
                chosen = ", ".join("COALESCE(text, '') AS text" if name == "text" else f'"{name}"' for name in columns)
                first = 1
                while True:
                    with manager.AdbcStatement(connection) as statement:
                        statement.set_options(**{"adbc.sqlite.query.batch_rows": "65536"})
                        statement.set_sql_query(f"SELECT {chosen} FROM {table} WHERE rowid BETWEEN {first} AND {first + ROWS - 1}")
                        found = pl.DataFrame(statement.execute_query()[0]).height
                    rows += found
                    first += ROWS
                    if found < ROWS:
                        break
    return rows


def write(size: int, path: Path) -> int:
    """Bytes written to a new file."""
    line = b"2:1:1:1:1:123456789:63000006:4001\n"
    block = (line * (BLOCK // len(line) + 1))[:BLOCK]
    left = size
    with path.open("wb", buffering=0) as file:
        while left > 0:
            left -= file.write(block[:left])
    return size


def main() -> None:
    what, *given = sys.argv[1:]
    if what == "scan":
        import adbc_driver_sqlite  # noqa: F401
        import polars  # noqa: F401
    wall, begun = time.perf_counter(), time.process_time()
    amount = scan([Path(name) for name in given]) if what == "scan" else write(int(given[0]), Path(given[1]))
    print(amount, time.process_time() - begun, time.perf_counter() - wall)


if __name__ == "__main__":
    main()
