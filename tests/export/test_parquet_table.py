"""Test that the compiled core reads Parquet tables as polars does, and survives damaged ones."""

import random
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tools.folders import Writer, write_as_nsys, write_by_polars

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.native import core
from nsys2prv.export.parquet_table import ParquetTable, ReadColumn
from nsys2prv.export.source import Part, SomeRows

ROWS = 5000
#: Columns that only polars reads.
OF_OTHERS = ("moment", "list", "short")
PARTS = (
    Part("t", 1, ROWS),
    Part("t", 2040, 2060),
    Part("t", 4990, 9999),
    Part("t", 0, 0),
    SomeRows.choose(Part("t", 1, ROWS), (1, 2048, 2049, 4097, 5000)),
    SomeRows.choose(Part("t", 3000, 3010), (3000, 3001, 3009)),
)
WRITERS = (
    write_as_nsys,
    partial(write_as_nsys, rows=700, use_dictionary=False),
    partial(write_as_nsys, rows=ROWS),
    partial(pl.DataFrame.write_parquet, compression="uncompressed", row_group_size=1000),
    write_by_polars,
)


def make_frame() -> pl.DataFrame:
    dice = random.Random(5)
    words = ["", "a", "name with spaces", "Straße", "x" * 3000]

    def with_nulls(values: list, share: float) -> list:
        return [None if dice.random() < share else value for value in values]

    numbers = [dice.randrange(-(1 << 62), 1 << 62) for _ in range(ROWS)]
    texts = [dice.choice(words) for _ in range(ROWS)]
    few = [dice.randrange(300) for _ in range(ROWS)]
    columns = {
        "alone": pl.Series(numbers),
        "zeros": pl.Series([0] * ROWS),
        "sorted": pl.Series(range(ROWS), dtype=pl.Int32),
        "text": pl.Series(texts),
        "bool": pl.Series([number > 0 for number in numbers]),
        "real": pl.Series(with_nulls([number / 7 for number in numbers], 0.2)),
        "single": pl.Series(with_nulls([number / 8 for number in few], 0.3), dtype=pl.Float32),
        "few": pl.Series(with_nulls(few, 0.5), dtype=pl.Int16),
        "seldom": pl.Series(with_nulls(numbers, 0.99)),
        "never": pl.Series([None] * ROWS, dtype=pl.Int64),
        "texts": pl.Series(with_nulls(texts, 0.4)),
        "ownText": pl.Series(with_nulls([f"number {one}" for one in numbers], 0.1)),
        "noText": pl.Series([None] * ROWS, dtype=pl.String),
        "optional": pl.Series(with_nulls([number > 0 for number in numbers], 0.1)),
        "globalTid": pl.Series([one + (1 << 63) for one in few], dtype=pl.UInt64),
        "unsigned": pl.Series([one + (1 << 31) for one in few], dtype=pl.UInt32),
        "moment": pl.Series([datetime(2026, 1, 1)] * ROWS),
        "list": pl.Series([[1, 2]] * ROWS),
        "short": pl.Series(few).cast(pl.Decimal(10, 2)),
    }
    return pl.DataFrame(columns)


FRAME = make_frame()


def list_column(column: ReadColumn) -> tuple[list, list]:
    """Return the values, and the distinct texts in their order. (Where most differ, one may come
    twice.)
    """
    values = column.to_list()
    texts = column.texts.as_list() if values and column.texts is not None else []
    return values, [*dict.fromkeys(texts)]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("part", PARTS)
def test_read_as_polars_reads(write: Writer, part: Part, tmp_path: Path) -> None:
    write(FRAME, tmp_path / "t.parquet")
    table = ParquetTable(tmp_path / "t.parquet")
    assert [*table.columns] == FRAME.columns
    if isinstance(part, SomeRows):
        rows = FRAME[part.rowids - 1]
    else:
        rows = FRAME.slice(max(part.first, 1) - 1, max(0, part.last - max(part.first, 1) + 1))
    names = [name for name in FRAME.columns if name != "list"]
    read = table.read(part, names)
    for name in names:
        expected = ReadColumn.from_polars(rows[name])
        assert read[name].type == expected.type
        assert list_column(read[name]) == list_column(expected), name
        alone = table.read(part, [name])[name]
        assert list_column(alone) == list_column(expected), name
    nan = read["real"].values[~read["real"].present]
    assert np.isnan(nan).all()


def test_the_core_reads_what_nsys_writes(tmp_path: Path) -> None:
    write_as_nsys(FRAME, tmp_path / "t.parquet")
    table = ParquetTable(tmp_path / "t.parquet")
    of_core = [name for name in FRAME.columns if name not in OF_OTHERS]
    assert table._read_by_core(PARTS[0], of_core).keys() == {*of_core}
    for name in OF_OTHERS:
        with pytest.raises(core.StandAside):
            table._read_by_core(PARTS[0], [name])
    write_by_polars(FRAME, tmp_path / "t.parquet")
    with pytest.raises(core.StandAside):
        ParquetTable(tmp_path / "t.parquet")._read_by_core(PARTS[0], ["alone"])


@pytest.mark.parametrize("seed", range(4))
def test_damaged_pages(seed: int, tmp_path: Path) -> None:
    frame, file = FRAME.drop(OF_OTHERS).head(600), tmp_path / "t.parquet"
    write_as_nsys(frame, file, rows=200)
    sound, dice = file.read_bytes(), random.Random(seed)
    refused = 0
    for _ in range(60):
        content = bytearray(sound)
        for _ in range(dice.choice((1, 3, 20))):
            content[dice.randrange(len(content))] = dice.randrange(256)
        file.write_bytes(content)
        table = ParquetTable(file)
        try:
            with table.explain_damage():
                if table.size.rows == len(frame):
                    table._read_by_core(table.whole, [*table.columns])
        except core.StandAside:
            pass
        except Nsys2prvError:
            refused += 1
    assert refused > 5
