"""One reading of a table for several kinds: what each of them gets is what plain SQL finds,
whatever the table is like.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from events.test_nvtx_payloads import MARK, make_event
from tools.conversions import convert_and_read
from tools.exports import make_export, query_export

from nsys2prv.conversion.reading import group_by_table
from nsys2prv.events import all_kinds
from nsys2prv.nsight.source import NULL, Part, SomeRows, decode_texts
from nsys2prv.nsight.sqlite import Database

ROWS = 1000
CONDITIONS = (
    "{kind} = 1",
    "{kind} IN (2, 3) AND NOT coalesce({thread}, 0) = 5",
    "{lacking} IS NOT NULL",
    "{name} GLOB 'r*77'",
    "",
)
FORMS = ("plain", "gaps", "without rowid")


def open_table(form: str, folder: Path) -> tuple[Database, Path]:
    """Return a table in this form, and the SQLite file with the same rows."""
    path = folder / "r.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE T (number INTEGER PRIMARY KEY, kind INT, thread INT, name TEXT)"
        + " WITHOUT ROWID" * (form == "without rowid")
    )
    rows = [
        (
            number,
            number % 4,
            None if number % 10 == 3 else number % 7,
            None if number % 11 == 5 else f"r{number % 300}",
        )
        for number in range(1, ROWS + 1)
    ]
    connection.executemany("INSERT INTO T VALUES (?, ?, ?, ?)", rows)
    if form == "gaps":
        connection.execute("DELETE FROM T WHERE number BETWEEN 300 AND 310")
    connection.commit()
    connection.close()
    return Database(path), path


@pytest.mark.parametrize("form", FORMS)
def test_each_condition_gets_its_rows(form: str, tmp_path: Path) -> None:
    source, path = open_table(form, tmp_path)
    few = False
    with source:
        for part in (source.get_whole_table("T"), Part("T", 201, 600)):
            between = f"number BETWEEN {part.first} AND {part.last}"
            shared = source.read_once(part, ("number", "thread", "lacking"), ("name",), CONDITIONS)
            assert shared is not None
            assert (
                len(shared.met)
                == query_export(path, f"SELECT count(*) FROM T WHERE {between}")[0][0]
            )
            for number, condition in enumerate(CONDITIONS):
                where = (
                    condition.format(kind="kind", thread="thread", name="name", lacking="NULL")
                    or "1"
                )
                expected = query_export(
                    path,
                    f"SELECT number, thread, coalesce(name, '') FROM T WHERE {between} AND ({where}) ORDER BY 1",
                )
                narrowed = shared.narrow(number)
                few |= isinstance(narrowed, SomeRows) and len(expected) > 0
                for columns in (
                    shared.select_meeting(number, ("number", "thread", "lacking"), ("name",)),
                    source.read(narrowed, ("number", "thread", "lacking"), ("name",), condition),
                ):
                    codes, texts = columns.texts["name"][0], columns.texts["name"][1].series
                    threads = [
                        None if thread == NULL else thread for thread in columns["thread"].tolist()
                    ]
                    assert (
                        list(
                            zip(
                                columns["number"].tolist(),
                                threads,
                                decode_texts(texts).gather(codes),
                                strict=True,
                            )
                        )
                        == expected
                    )
                    assert (columns["lacking"] == NULL).all()
                assert shared.mask_meeting(number).sum() == len(expected)
                assert source.count_rows(narrowed, condition) == len(expected)
                assert source.select(
                    f"SELECT number FROM {source.select_rows(narrowed, condition)}"
                ).height == len(expected)
    # A few rows are read one by one where it is certain which they are.
    assert few == (form != "gaps")


@pytest.mark.parametrize("value", ["'text'", "2.5", "x'00'"])
@pytest.mark.parametrize("row", [1, 700])
def test_damaged_columns_are_read_by_each_kind(value: str, row: int, tmp_path: Path) -> None:
    source, path = open_table("plain", tmp_path)
    source.close()
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE T SET thread = {value} WHERE number = {row}")
    connection.commit()
    connection.close()
    with Database(path) as source:
        assert (
            source.read_once(source.get_whole_table("T"), ("number", "thread"), (), CONDITIONS)
            is None
        )
        assert (
            source.read_once(source.get_whole_table("T"), ("number",), (), CONDITIONS) is not None
        )
        assert source.read(source.get_whole_table("T"), ("number", "thread")).damaged == 1


def test_a_table_is_walked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Part] = []
    once, alone = Database.read_once, Database.read
    monkeypatch.setattr(
        Database,
        "read_once",
        lambda self, part, *more: (read.append(part), once(self, part, *more))[1],
    )
    monkeypatch.setattr(
        Database, "read", lambda self, part, *more: (read.append(part), alone(self, part, *more))[1]
    )
    ranges = [
        make_event(10 * number, 10 * number + 5, text=f"p{number}", domain=0)
        for number in range(1, 90)
    ]
    report = make_export(
        tmp_path / "r.sqlite",
        {"NVTX_EVENTS": [*ranges, make_event(1000, None, kind=MARK, text="m")]},
    )
    convert_and_read([report], tmp_path / "o.prv")
    assert read == [Part("NVTX_EVENTS", 1, 90)]


def test_kinds_that_are_read_together() -> None:
    kinds = {kind.name: kind for kind in all_kinds()}
    both = (kinds["osrt"], kinds["pthread"])
    assert group_by_table([kinds["kernels"], *both]) == [(kinds["kernels"],), both]
    assert group_by_table([kinds["pthread"], kinds["kernels"]]) == [
        (kinds["pthread"],),
        (kinds["kernels"],),
    ]
