"""Convert SQLite exports into folders of tables, as `nsys export -t parquetdir` writes them: uncompressed,
in groups of 2,048 rows with dictionaries (Nsight Systems 2024.2), or in the encodings of polars.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

Writer = Callable[[pl.DataFrame, Path], None]

#: Declared type -> that of the column; the integers of nsys' files have several.
TYPES = {"REAL": pl.Float64, "TEXT": pl.String, "BLOB": pl.Binary}


#: Rows of a group in files of Nsight Systems.
GROUP_ROWS = 2048


def convert_export_folder(report: Path, folder: Path, write: Writer | None = None) -> Path:
    """Write the report's tables as files of a new folder. write: writes a table, as Nsight Systems does
    by default.
    """
    folder.mkdir(parents=True)
    with closing(sqlite3.connect(f"file:{report}?mode=ro&immutable=1", uri=True)) as connection:
        connection.text_factory = bytes
        names = [
            name.decode()
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        for name in names:
            if not name.startswith("sqlite_"):
                frame = _read_frame(connection, name)
                (write or write_as_nsys)(frame, folder / f"{name}.parquet")
    return folder


def write_as_nsys(
    frame: pl.DataFrame, path: Path, rows: int = GROUP_ROWS, use_dictionary: bool = True
) -> None:
    """Write a table as Nsight Systems does. rows: of a group."""
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    # Some columns cannot have nulls.
    fields = [
        field.with_nullable(frame[field.name].null_count() > 0 or field.name > "m")
        for field in table.schema
    ]
    pq.write_table(
        table.cast(pa.schema(fields)),
        path,
        row_group_size=rows,
        version="1.0",
        compression="none",
        use_dictionary=use_dictionary,
    )


def write_by_polars(frame: pl.DataFrame, path: Path) -> None:
    """Write a table compressed, in groups of more rows."""
    frame.write_parquet(path, row_group_size=50_000)


def _read_frame(connection: sqlite3.Connection, table: str) -> pl.DataFrame:
    """Return a table of the report as a frame."""
    declared = [
        (row[1].decode(), row[2].decode().upper())
        for row in connection.execute(f'PRAGMA table_info("{table}")')
    ]
    rows = connection.execute(f'SELECT * FROM "{table}"').fetchall()
    return pl.DataFrame(
        [
            _make_column(name, kind, [row[index] for row in rows])
            for index, (name, kind) in enumerate(declared)
        ]
    )


def _make_column(name: str, declared: str, values: list) -> pl.Series:
    """Return a column of a table in the type that nsys gives it."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int} and declared not in TYPES:
        column = pl.Series(name, values, pl.Int64)
        if column.null_count() == len(column):
            return column
        if name.startswith("global"):
            return column.cast(pl.UInt64, wrap_numerical=True)
        if name.startswith("is") and column.is_in([0, 1]).all():
            return column.cast(pl.Boolean)
        return column.shrink_dtype() if name.endswith("Id") else column
    if kinds == {float, int} or kinds == {float} or (declared == "REAL" and kinds <= {float}):
        return pl.Series(name, values, pl.Float64, strict=False)
    if bytes in kinds or declared in ("TEXT", "BLOB"):
        texts = [
            value if value is None or isinstance(value, bytes) else str(value).encode()
            for value in values
        ]
        try:
            if declared != "BLOB":
                return pl.Series(name, texts, pl.Binary).cast(pl.String)
        except pl.exceptions.PolarsError:
            pass
        return pl.Series(name, texts, pl.Binary)
    return pl.Series(name, values, TYPES.get(declared, pl.Int64), strict=False)
