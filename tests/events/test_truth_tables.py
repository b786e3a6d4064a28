"""Test that every table with rows is translated or has a reason, and that file accesses, graphics
and libraries agree with SQL and the truth.
"""

import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from tools.conversions import convert_and_read
from tools.corpus import REPORTS, name_report
from tools.sql_truth import make_label
from tools.trace import Interval, Trace

from nsys2prv._util.errors import NothingToWrite
from nsys2prv.cli import main
from nsys2prv.events import all_kinds
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.kind import UNKNOWN_TABLE, explain_unread_table

CALL, ACTION, BYTES, FILE = range(68007000, 68007004)
LINES = {line.table: line for line in load_catalogue().calls.values()}


def open_database(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{path.absolute()}?mode=ro&immutable=1", uri=True)


def list_tables_with_rows(path: Path) -> set[str]:
    connection = open_database(path)
    names = [
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]
    return {
        name for name in names if connection.execute(f'SELECT 1 FROM "{name}" LIMIT 1').fetchone()
    }


# ---------------------------------------------------------------------------------------------- kinds and reasons
@pytest.mark.parametrize("path", REPORTS, ids=name_report)
def test_every_table_with_rows_has_a_kind_or_a_reason(path: Path) -> None:
    translated = {table for kind in all_kinds() for table in kind.tables}
    assert [
        table
        for table in sorted(list_tables_with_rows(path) - translated)
        if explain_unread_table(table) == UNKNOWN_TABLE
    ] == []


@pytest.mark.parametrize("path", REPORTS[::12], ids=name_report)
def test_the_list_names_every_table_with_rows(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--list", str(path)]) == 0
    listed = capsys.readouterr().out
    words = listed.replace("(", " ").replace(")", " ").replace(",", " ").split()
    expected = list_tables_with_rows(path)
    enums = {table for table in expected if table.startswith("ENUM_")}
    assert [table for table in sorted(expected - enums) if table not in words] == []
    assert not enums or f"{len(enums)} tables ENUM_..." in listed


def test_a_table_of_tomorrow_is_named_as_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE StringIds (id INTEGER, value TEXT);"
        "CREATE TABLE TOMORROW_EVENTS (start INTEGER); INSERT INTO TOMORROW_EVENTS VALUES (1)"
    )
    connection.close()
    assert main(["--list", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index(f"  {UNKNOWN_TABLE}:") + 1] == "    TOMORROW_EVENTS (1)"


# --------------------------------------------------------------------------------------------------- file accesses
@pytest.fixture(scope="module", params=REPORTS, ids=name_report)
def exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[sqlite3.Connection, Trace]:
    kinds = ("file_accesses", *load_catalogue().calls)
    try:
        trace, summary = convert_and_read(
            [request.param], tmp_path_factory.mktemp("trace") / "o.prv", kinds=kinds
        )
        assert summary.dropped == {}
    except NothingToWrite:
        trace = Trace()
    return open_database(request.param), trace


def locate(trace: Trace, item: Interval) -> tuple[int, int]:
    """Return process and thread id of a range."""
    return int(trace.get_task_name(item.row).split()[-1]), int(
        trace.get_row_name(item.row).split()[-1]
    )


def test_file_accesses_of_exports(exported: tuple[sqlite3.Connection, Trace]) -> None:
    connection, trace = exported
    expected: Counter[tuple] = Counter()
    if connection.execute(
        "SELECT 1 FROM sqlite_master WHERE name = 'OSRT_FILE_ACCESS_EVENTS'"
    ).fetchone():
        expected.update(
            (pid, tid, make_label(name), kind, size, make_label(path), duration)
            for pid, tid, name, kind, size, path, duration in connection.execute(
                "SELECT processId, threadId, value, eventType, nullif(bytesProcessed, 0), filePath, max(endedAt - startedAt, 1) "
                "FROM OSRT_FILE_ACCESS_EVENTS JOIN OSRT_FILE_ACCESS_DESCRIPTORS USING (fileAccessId) JOIN StringIds ON id = apiCallId"
            )
        )
    actual = Counter(
        (
            *locate(trace, item),
            trace.get_label(CALL, item.value),
            item.others[ACTION],
            item.others.get(BYTES),
            trace.get_label(FILE, item.others[FILE]),
            item.end - item.begin,
        )
        for item in trace.list_intervals(CALL)
    )
    assert actual == expected


def test_calls_and_work_of_exports(exported: tuple[sqlite3.Connection, Trace]) -> None:
    """Every table of the lines that an export has rows of, by process, thread or queue, name and
    duration.
    """
    connection, trace = exported
    have = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    for table in have & LINES.keys():
        line = LINES[table]
        place = f"'{line.queue} GPU' || {line.gpu}" if line.queue else "globalTid & 0xFFFFFF"
        names = [f"(SELECT value FROM StringIds WHERE id = {column})" for column in line.names]
        rows = connection.execute(
            f"SELECT globalTid >> 24 & 0xFFFFFF, {place}, coalesce(NULL, {', '.join(names) or 'NULL'}), "
            f"{'max(coalesce(end, start) - start, 1)' if line.has_duration else 1} FROM {table}"
        )
        expected = Counter(
            (pid, str(where_), make_label(name), duration) for pid, where_, name, duration in rows
        )
        actual = Counter(
            (
                int(trace.get_task_name(item.row).split()[-1]),
                trace.get_row_name(item.row)
                if line.queue
                else trace.get_row_name(item.row).split()[-1],
                trace.get_label(line.code, item.value),
                item.end - item.begin,
            )
            for item in trace.list_intervals(line.code)
        )
        assert actual == expected, table
