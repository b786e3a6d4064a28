"""Load a folder of Parquet files (``nsys export -t parquetdir``) into an SQLite database, which is then
read as any other (:func:`load_folder`). Memory is that of a piece of a table.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import polars as pl

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import hide_stderr
from nsys2prv.export.source import quote_name

#: What reading a damaged file raises.
DAMAGE = pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError
#: Of the database: it is temporary.
FAST = "PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF", "BEGIN"
#: Rows of a piece, and bytes of its texts; a longer text is a piece of its own.
PIECE_ROWS, PIECE_BYTES = 50_000, 64 << 20
#: A few KB can unpack to any amount of text: tables of more than so many bytes are refused if a row
#: has more than so many on average.
MOST_BYTES, LONG_ROW_BYTES = 1 << 30, 10_000
AFFINITIES = {pl.Int64: "INTEGER", pl.Float64: "REAL", pl.String: "TEXT", pl.Binary: "TEXT"}
#: The table whose rows are looked up by their ids, and these.
STRINGS, ID = "StringIds", "id"


def load_folder(folder: Path, target: Path) -> None:
    """Write the tables of a folder into a new database. Raises one clear line for a file that is no
    table, and for a folder of Arrow's files.
    """
    files = [file for file in sorted(folder.glob("*.parquet")) if file.is_file()]
    if not files:
        raise Nsys2prvError(
            f"{folder}: holds Arrow tables, which nsys2prv does not read; {_advise(folder)}"
        )
    with closing(sqlite3.connect(target, isolation_level=None)) as connection:
        for statement in FAST:
            connection.execute(statement)
        for file in files:
            # SQLite keeps such names to itself.
            if not file.stem.lower().startswith("sqlite_"):
                _load_table(file, connection)
        connection.execute("COMMIT")


def _load_table(file: Path, connection: sqlite3.Connection) -> None:
    table, rows = quote_name(file.stem), 0
    try:
        with hide_stderr():
            for piece in _read_pieces(file):
                columns = _drop_rows_without_key(file.stem, piece).get_columns()
                if not rows and columns:
                    declared = (
                        f"{quote_name(column.name)} {AFFINITIES[column.dtype.base_type()]}"
                        f"{' PRIMARY KEY' * _is_key(file.stem, column)}"
                        for column in columns
                    )
                    connection.execute(
                        f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(declared)})"
                    )
                # Text that is no UTF-8 is among bytes.
                values = ", ".join(
                    "CAST(? AS TEXT)" if column.dtype == pl.Binary else "?" for column in columns
                )
                if columns:
                    connection.executemany(
                        f"INSERT OR REPLACE INTO {table} VALUES ({values})",
                        zip(*(column.to_list() for column in columns), strict=True),
                    )
                rows += piece.height
    except sqlite3.OperationalError as error:
        if "disk" in str(error):
            raise Nsys2prvError(
                f"no room for the tables of {file.parent} in the folder of temporary files ({error}); give another with --tmp"
            ) from None
        raise _make_unreadable_error(file, error) from None
    except (*DAMAGE, sqlite3.Error) as error:
        raise _make_unreadable_error(file, error) from None


def _make_unreadable_error(file: Path, error: BaseException) -> Nsys2prvError:
    # polars quotes values.
    reason = re.split(r"[\[\"'`\n]", str(error), maxsplit=1)[0].strip() or type(error).__name__
    return Nsys2prvError(
        f"{file}: cannot be read as a table ({reason[:160]}); {_advise(file.parent)}"
    )


def _advise(folder: Path) -> str:
    name = re.sub("_(pqt|arw)dir$", "", folder.stem)
    return f"export the report again with: nsys export --type sqlite --force-overwrite true {name}.nsys-rep"


def _is_key(table: str, column: pl.Series) -> bool:
    return (table, column.name, column.dtype) == (STRINGS, ID, pl.Int64)


def _drop_rows_without_key(table: str, piece: pl.DataFrame) -> pl.DataFrame:
    return piece.drop_nulls(ID) if table == STRINGS and ID in piece.columns else piece


def _read_pieces(file: Path) -> Iterator[pl.DataFrame]:
    """Yield the rows of a table in SQLite's types, the first time perhaps none."""
    scanned, first, total = pl.scan_parquet(file), 0, 0
    while True:
        piece = scanned.slice(first, PIECE_ROWS).collect()
        piece = piece.with_columns(_to_plain_column(column) for column in piece.iter_columns())
        # Equal texts are in memory once: none of them is copied here.
        of_rows = pl.Series([0]).new_from_index(0, piece.height)
        for column in piece.select(pl.col(pl.String, pl.Binary)).iter_columns():
            of_rows += column.cast(pl.Binary).bin.size().cast(pl.Int64).fill_null(0)
        total += of_rows.sum()
        if total > max(MOST_BYTES, (first + piece.height) * LONG_ROW_BYTES):
            raise ValueError(f"its texts take more than {MOST_BYTES >> 30} GiB unpacked")
        if piece.height or not first:
            yield from piece.iter_slices(max(1, PIECE_BYTES // max(1, of_rows.max() or 0)))
        first += piece.height
        if piece.height < PIECE_ROWS:
            return


def _to_plain_column(column: pl.Series) -> pl.Series:
    """Return a column in one of SQLite's types."""
    kind = column.dtype
    if kind.is_temporal():
        column, kind = column.to_physical(), pl.Int64()
    if kind == pl.UInt64:
        return column.cast(pl.Int64, wrap_numerical=True)
    if kind.is_integer() or kind in (pl.Boolean, pl.Null):
        return column.cast(pl.Int64)
    if kind.is_float():
        return column.cast(pl.Float64)
    if kind in (pl.String, pl.Binary):
        return column
    return column.cast(pl.String, strict=False)
