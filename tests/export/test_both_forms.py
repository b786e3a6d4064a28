"""Test that a report gives the same result from SQLite (page reader, and SQLite itself) and from
Parquet.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tools.exports import make_export, make_strings
from tools.folders import convert_export_folder, write_as_nsys, write_by_polars

from nsys2prv.export import database, parquet, parquet_table, sqlite
from nsys2prv.export.database import Database
from nsys2prv.export.source import NULL, Part, SomeRows, Wanted
from nsys2prv.export.sqlite import open_database

ROWS = 1000
TABLE = "SAMPLING_CALLCHAINS"
CONDITIONS = (
    "{number} > 3 OR {few} IS NULL",
    "typeof({text}) = 'text'",
    "{text} LIKE 'name 1%'",
    "{real} BETWEEN 10 AND 20",
    "coalesce({lacking}, 7) = 7 AND {number} IN ({strings:k})",
    "{number} < 0",
)


def make_row(number: int) -> dict[str, object]:
    return {
        "id": number // 5,
        "stackDepth": number % 5,
        "symbol": number % 7,
        "module": number % 3,
        "number": number - 500,
        "few": None if number % 3 else number % 11,
        "text": None if number % 4 == 0 else f"name {number % 13}",
        "real": number / 8,
        "globalTid": -number,
    }


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [make_row(number) for number in range(1, ROWS + 1)]
    types = {"text": "TEXT", "value": "TEXT", "real": "REAL"}
    types |= {name: "INTEGER" for name in make_row(1) if name not in types}
    tables = {TABLE: rows, "StringIds": make_strings("k1", "other", "k2", "")}
    return make_export(tmp_path_factory.mktemp("forms") / "r.sqlite", tables, types)


#: Writers of Parquet files whose encodings differ.
WRITERS = {
    "nsys": partial(write_as_nsys, rows=128),
    "plain": partial(write_as_nsys, rows=300, use_dictionary=False),
    "polars": write_by_polars,
}


@pytest.fixture(params=WRITERS)
def forms(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[list[Database]]:
    """Both forms, and SQLite without the reader of pages."""
    folder = convert_export_folder(report, tmp_path / "r.parquetdir", WRITERS[request.param])
    for module in (database, parquet, parquet_table, sqlite):
        monkeypatch.setattr(module, "TABLE_ROWS", 300)
    with ExitStack() as stack:
        opened = [stack.enter_context(open_database(path)) for path in (report, folder)]
        monkeypatch.setattr(sqlite, "open_pages", lambda path: None)
        yield [*opened, stack.enter_context(open_database(report))]


PARTS = [
    Part(TABLE, 1, ROWS),
    Part(TABLE, 37, 700),
    Part(TABLE, 990, 5000),
    SomeRows.choose(Part(TABLE, 1, ROWS), (1, 5, 6, 400, 1000)),
    SomeRows.choose(Part(TABLE, 1, ROWS), (7, 8, 9)),
]


@pytest.mark.parametrize("part", PARTS)
def test_columns_and_conditions(part: Part, forms: list[Database]) -> None:
    integers, texts, reals = ("number", "few", "globalTid", "lacking"), ("text", "none"), ("real",)
    met = []
    for one in forms:
        columns = one.read(part, integers, texts, reals=reals)
        shared = one.read_once(part, Wanted(integers, texts, (), CONDITIONS))
        counts = [one.count_rows(part, where) for where in ("", *CONDITIONS)]
        codes, distinct = columns.texts["text"]
        words = [distinct.as_list()[code] for code in codes.tolist()]
        met.append([columns.rows, counts, shared.met.tolist(), words])
        met[-1] += [columns[name].tolist() for name in (*integers, *reals)]
        assert (columns["lacking"] == NULL).all()
        assert columns.damaged == 0
        for number, where in enumerate(CONDITIONS):
            alone = one.read(part, ("number",), (), where)
            assert np.array_equal(alone["number"], columns["number"][shared.mask_meeting(number)])
    assert met[0] == met[1] == met[2]


def test_values_of_other_types_are_counted(forms: list[Database]) -> None:
    for one in forms:
        columns = one.read(Part(TABLE, 1, 100), ("text", "real", "number"))
        assert columns.damaged == 75 + 100
        assert (columns["text"] == NULL).all()
        assert one.read_once(Part(TABLE, 1, 100), Wanted(("real",), (), (), CONDITIONS)) is None
        few = one.read(Part(TABLE, 1, 100), ("real",), (), "{few} IS NOT NULL")
        assert (few.rows, few.damaged) == (33, 33)


def test_small_tables_strings_and_stacks(
    forms: list[Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsys2prv.export.sqlite_pages.FEW_LEAVES", 0)
    found = []
    for few in (True, False):
        for one in forms:
            one.has_few_strings = few
            names = ("text", "real", "lacking", "few")
            rows = [one.read_small_table(TABLE, *names, where=where) for where in ("", *CONDITIONS)]
            typed = one.read_small_table(TABLE, "few", types=(int,))
            strings = one.read_strings([1, 3, 4, 99])
            stacks = [one.read_stacks(TABLE, 10, 30, of_all) for of_all in (False, True)]
            frames = [(read.ids.tolist(), read.lengths[read.codes].tolist()) for read in stacks]
            sampled = one.sample_integers({TABLE: "number"})
            found.append((rows, typed, strings, frames, sampled))
    assert found[0][2] == {1: "k1", 3: "k2", 4: ""}
    assert len(found[0][4]) == database.SAMPLED_ROWS
    assert all(one == found[0] for one in found)


def test_many_strings_are_found_by_how_they_begin(forms: list[Database]) -> None:
    for one in forms:
        one.has_few_strings = False
        rows = one.read_small_table(TABLE, "number", where="{number} IN ({strings:k})")
        assert sorted(rows) == [(1,), (3,)]
