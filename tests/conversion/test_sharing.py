"""One reading of a table for several kinds: what each of them gets is what plain SQL finds,
whatever the table is like.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from events.test_nvtx_payloads import DOMAIN, MARK, PUSHPOP, STARTEND, list_numbers, make_event
from tools.conversions import convert_and_read, list_labelled_intervals
from tools.exports import Row, make_export, query_export

from nsys2prv.conversion import reading
from nsys2prv.conversion.reading import group_by_table
from nsys2prv.events import all_kinds
from nsys2prv.events.kind import Reason
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


def make_rows_of_all_kinds() -> list[Row]:
    """Return rows of each kind of NVTX event, with NCCL's, some with numbers."""
    created = [
        make_event(0, None, kind=DOMAIN, text="NCCL", domain=2),
        make_event(0, None, kind=DOMAIN, text="lib"),
    ]
    ranges = [
        make_event(10 * number, 10 * number + 5, text=f"p{number}", domain=0, int64Value=None)
        for number in range(90)
    ]
    others = [
        make_event(1000, 1010, kind=STARTEND, text="s"),
        make_event(1020, None, kind=MARK, text="m", int64Value=7),
        make_event(1030, 1040, {"n": 3}, text="q"),
        make_event(1050, 1060, text="ncclAllReduce", domain=2),
        make_event(1070, 1080, kind=STARTEND, text="AllReduce", domain=2),
    ]
    return [*created, *ranges, *others]


@pytest.mark.slow
@pytest.mark.parametrize("rows_of_a_part", [1, 7, 200_000])
@pytest.mark.parametrize("damage", [{}, {"category": "text"}, {"textId": 1.5}])
def test_all_kinds_of_nvtx_events(
    rows_of_a_part: int, damage: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PART_ROWS", rows_of_a_part)
    report = make_export(
        tmp_path / "r.sqlite",
        {
            "NVTX_EVENTS": [
                *make_rows_of_all_kinds(),
                make_event(1090, 1100, text="last", domain=0, **damage),
            ]
        },
    )
    trace, summary = convert_and_read([report], tmp_path / "o.prv")
    pushed = query_export(
        report,
        f"SELECT text, start, end FROM NVTX_EVENTS WHERE eventType = {PUSHPOP} AND domainId = 0 ORDER BY start",
    )
    [lib, default] = [
        next(
            code
            for code, label in trace.labels.types.items()
            if label == f"NVTX pushpop ranges {domain}"
        )
        for domain in ("lib", "default domain")
    ]
    assert list_labelled_intervals(trace, default) == pushed
    assert list_labelled_intervals(trace, lib) == [("q", 1030, 1040)]
    assert list_numbers(trace, "lib: n") == [(1030, 3), (1040, 0)]
    assert list_numbers(trace, "lib: payload") == [(1020, 7), (1021, 0)]
    assert {
        kind: account.rows for kind, account in summary.ledger.kinds.items() if account.rows
    } == {
        "nccl": 1,
        "nccl_operations": 1,
        "nvtx_marks": 1,
        "nvtx_payloads": 1,
        "nvtx_pushpop_trace": len(pushed) + 1,
        "nvtx_startend_trace": 1,
        "nvtx_values": 1,
    }
    rows = query_export(report, "SELECT count(*) FROM NVTX_EVENTS")[0][0]
    assert summary.ledger.tables["NVTX_EVENTS"] == {
        "rows": rows,
        Reason.NOT_SELECTED: 2,
    }
    assert summary.ledger.missing == {}
    assert sum(
        count for (_, reason), count in summary.repaired.items() if reason == Reason.NOT_INTEGER
    ) == len(damage)


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
