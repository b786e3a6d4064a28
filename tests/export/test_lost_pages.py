"""Test SQLite files with lost pages, and files in which every page is used."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tools.exports import KERNEL, make_export, make_kernel, make_strings

from nsys2prv import Options, convert
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.native import core
from nsys2prv.export.sqlite import open_database

PAGE = 512


@pytest.fixture(params=["compiled", "sqlite"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Read with the compiled core, then by SQLite alone."""
    if request.param == "sqlite":
        monkeypatch.setattr("nsys2prv.export.sqlite.open_pages", lambda path: None)
    elif core is None:
        pytest.skip("installed without a compiler")
    return request.param


def write_database(path: Path, *statements: str, page_size: int = PAGE) -> Path:
    """Write a file by statements of SQL."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {page_size}")
        for statement in statements:
            connection.execute(statement)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    return path


def check_file(path: Path) -> None:
    with open_database(path) as source:
        source.check()


def swap_pages(path: Path, first: int, second: int, page_size: int) -> None:
    data = bytearray(path.read_bytes())
    one, two = (slice((page - 1) * page_size, page * page_size) for page in (first, second))
    data[one], data[two] = data[two], data[one]
    path.write_bytes(data)


def find_page(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        return connection.execute(query, (table,)).fetchone()[0]


def fill(table: str, rows: int, values: str) -> str:
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {})"
    return f"{numbers.format(rows)} INSERT INTO {table} SELECT {values} FROM n"


# ---- lost pages ----------------------------------------------------------------------------------------------------------------------


def test_a_root_swapped_with_its_first_leaf(reader: str, tmp_path: Path) -> None:
    """All that is left of the table is the rows of that leaf; each page by itself is sound."""
    kernels = [make_kernel(10 * number, 10 * number + 5) for number in range(1000)]
    report = make_export(tmp_path / "r.sqlite", {"StringIds": make_strings("k"), KERNEL: kernels})
    root, data = find_page(report, KERNEL), report.read_bytes()
    start = (root - 1) * 4096
    first_cell = start + int.from_bytes(data[start + 12 : start + 14], "big")
    swap_pages(report, root, int.from_bytes(data[first_cell : first_cell + 4], "big"), 4096)
    with closing(sqlite3.connect(report)) as connection:
        assert 0 < connection.execute(f"SELECT count(*) FROM {KERNEL}").fetchone()[0] < 200
    with pytest.raises(Nsys2prvError, match=r"malformed: page \d+ is in no table\)") as raised:
        convert([report], tmp_path / "out.prv", Options(jobs=1))
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.glob("out*"))


def test_a_long_text_whose_row_is_lost(reader: str, tmp_path: Path) -> None:
    """An older version of a leaf: the row that went on in other pages is not there."""
    path = tmp_path / "r.sqlite"
    write_database(path, "CREATE TABLE t (a, b)", "INSERT INTO t VALUES (1, 2)")
    before, root = path.read_bytes(), find_page(path, "t")
    write_database(path, "INSERT INTO t VALUES (3, printf('%.2000c', 'x'))")
    data = bytearray(path.read_bytes())
    data[(root - 1) * PAGE : root * PAGE] = before[(root - 1) * PAGE : root * PAGE]
    path.write_bytes(data)
    with pytest.raises(Nsys2prvError, match="is in no table"):
        check_file(path)


def test_frames_of_stacks_are_in_no_other_page(reader: str, tmp_path: Path) -> None:
    path = write_database(
        tmp_path / "r.sqlite",
        "CREATE TABLE s (id INTEGER, symbol INTEGER, module INTEGER, stackDepth INTEGER)",
        fill("s", 500, "i / 5, i, i, i % 5"),
    )
    check_file(path)
    root, data = find_page(path, "s"), path.read_bytes()
    start = (root - 1) * PAGE
    assert data[start] == 5
    swap_pages(path, root, int.from_bytes(data[start + 8 : start + 12], "big"), PAGE)
    with pytest.raises(Nsys2prvError, match=r"malformed"):
        check_file(path)


# ---- pages that are in no table, as they should be ---------------------------------------------------------------------------------------

WORDS = "CREATE TABLE t (word TEXT PRIMARY KEY, n INTEGER)"
MANY_WORDS = fill("t", 300, "printf('%d %.*c', i, i % 90, 'w'), i")
LONG_WORDS = fill("t", 60, "printf('%d %.*c', i, i * 40, 'w'), i")
SOUND: dict[str, Sequence[str]] = {
    "an index of a key": [WORDS, MANY_WORDS],
    "an index with long entries": [WORDS, LONG_WORDS],
    "no rowids": [f"{WORDS} WITHOUT ROWID", LONG_WORDS],
    "free pages, more than a page lists": [
        WORDS,
        MANY_WORDS,
        "CREATE TABLE gone AS SELECT t.* FROM t, t AS u LIMIT 20000",
        "DROP TABLE gone",
    ],
    "pointer maps": ["PRAGMA auto_vacuum = 1", WORDS, MANY_WORDS, LONG_WORDS.replace("'w'", "'l'")],
    "pointer maps and free pages": [
        "PRAGMA auto_vacuum = 2",
        WORDS,
        MANY_WORDS,
        "DELETE FROM t WHERE n % 7",
    ],
    "counted rows, with long names of tables": [
        f"CREATE TABLE {'n' * 900} (i INTEGER PRIMARY KEY AUTOINCREMENT)",
        f"INSERT INTO {'n' * 900} VALUES (1)",
    ],
    "statistics": [WORDS, MANY_WORDS, "ANALYZE"],
    "views and triggers": [
        WORDS,
        "CREATE VIEW v AS SELECT * FROM t",
        "CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM t WHERE n = 0; END",
        MANY_WORDS,
    ],
    "a computed column": [
        "CREATE TABLE t (a TEXT, b AS (a || a), c AS (a || 'c') STORED)",
        fill("t (a)", 90, "printf('%.*c', i * 9, 'a')"),
    ],
    "frames of stacks that are long": [
        "CREATE TABLE t (id INTEGER, symbol INTEGER, module INTEGER, stackDepth INTEGER, text)",
        fill("t", 90, "i, i, i, 0, printf('%.*c', i * 19, 'a')"),
    ],
    "odd names": [
        'CREATE TABLE "a ""b" (x)',
        "CREATE TABLE [c d] (x)",
        "CREATE TABLE `e` (x)",
        "CREATE TABLE 'f g' (x)",
        "CREATE TABLE IF NOT EXISTS main.é (x)",
        'ALTER TABLE "é" RENAME TO "select"',
        "CREATE TABLE made AS SELECT 1 AS one",
        "CREATE UNIQUE INDEX i ON made (one)",
    ],
    "indexes of all sorts": [
        WORDS,
        MANY_WORDS,
        "CREATE INDEX i ON t (n)",
        "CREATE INDEX j ON t (n, word)",
        "CREATE UNIQUE INDEX k ON t (word || n)",
        "CREATE INDEX l ON t (n) WHERE n > 5",
    ],
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_files_are_accepted(name: str, reader: str, tmp_path: Path) -> None:
    check_file(write_database(tmp_path / "r.sqlite", *SOUND[name]))


def test_a_virtual_table_is_accepted(reader: str, tmp_path: Path) -> None:
    try:
        statements = ["CREATE VIRTUAL TABLE v USING fts5(x)", fill("v", 200, "'word ' || i")]
        path = write_database(tmp_path / "r.sqlite", *statements)
    except sqlite3.OperationalError:
        pytest.skip("no full-text search in this SQLite")
    check_file(path)


@pytest.mark.skipif(core is None, reason="installed without a compiler")
def test_a_damaged_index_hides_no_lost_table(tmp_path: Path) -> None:
    path = write_database(
        tmp_path / "r.sqlite", "CREATE TABLE t (a)", "CREATE INDEX i ON t (a)", fill("t", 900, "i")
    )
    root, data = find_page(path, "i"), bytearray(path.read_bytes())
    data[(root - 1) * PAGE : root * PAGE] = bytes(PAGE)
    path.write_bytes(data)
    check_file(path)
    root, start = find_page(path, "t"), (find_page(path, "t") - 1) * PAGE
    swap_pages(path, root, int.from_bytes(data[start + 8 : start + 12], "big"), PAGE)
    with pytest.raises(Nsys2prvError, match="malformed"):
        check_file(path)


# ---- what the schema says ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "SET name = 'other' WHERE name = 'a'",
        "SET type = 'index' WHERE name = 'a'",
        "SET type = 'tabLe' WHERE name = 'a'",
        "SET sql = NULL WHERE name = 'a'",
        "SET rootpage = NULL WHERE name = 'a'",
        "SET rootpage = 'x' WHERE name = 'a'",
        "SET rootpage = rootpage + (1 << 32) WHERE name = 'a'",
        "SET sql = replace(sql, 'INTEGER', 'IFTEGER') WHERE name = 'keyed'",
        "SET name = 'b', sql = 'CREATE TABLE b (x)' WHERE name = 'a'",
    ],
)
def test_tables_that_are_not_declared_so(change: str, reader: str, tmp_path: Path) -> None:
    """SQLite goes by the declarations: by the schema's own columns a table would be lost."""
    path = write_database(
        tmp_path / "r.sqlite",
        "CREATE TABLE a (x)",
        "CREATE TABLE b (x)",
        "CREATE TABLE keyed (id INTEGER PRIMARY KEY)",
        "INSERT INTO a VALUES (1)",
    )
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(f"UPDATE sqlite_master {change}")
        connection.commit()
    with pytest.raises(Nsys2prvError, match="malformed") as raised:
        check_file(path)
    assert "\n" not in str(raised.value)


# ---- a key that is the number of the row -------------------------------------------------------------------------------------------------


def store_key(path: Path, table: str, serial: int) -> None:
    """Put another type in place of NULL, which the records of a table have for their key."""
    data, root = bytearray(path.read_bytes()), find_page(path, table)
    start = (root - 1) * 4096
    for cell in range(int.from_bytes(data[start + 3 : start + 5], "big")):
        place = start + 8 + 2 * cell
        place = start + int.from_bytes(data[place : place + 2], "big") + 3
        assert data[place] == 0
        data[place] = serial
    path.write_bytes(data)


@pytest.mark.parametrize("serial", [8, 9])
def test_the_number_of_the_row_counts(serial: int, reader: str, tmp_path: Path) -> None:
    """Not what a record has in place of NULL for a key that is the rowid."""
    path = make_export(
        tmp_path / "r.sqlite",
        {"StringIds": make_strings("first", "second"), KERNEL: [make_kernel(1, 5)]},
        {"id": "INTEGER PRIMARY KEY"},
    )
    store_key(path, "StringIds", serial)
    with open_database(path) as source:
        source.check()
        rows = source.read(source.tables["StringIds"].everything, ("id",), ("value",), "{id} > 1")
        assert (rows["id"].tolist(), rows.texts["value"][1].as_list()) == ([2], [b"second"])
        reals = source.read(source.tables["StringIds"].everything, (), reals=("id",))
        assert reals["id"].tolist() == [1.0, 2.0]
        assert source.read_small_table("StringIds", "id", where="typeof({id}) = 'integer'") == [
            (1,),
            (2,),
        ]
        assert source.read_strings([1, 2, 3]) == {1: "first", 2: "second"}


# ---- pages of other tables ---------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(core is None, reason="installed without a compiler")
def test_a_number_in_a_column_of_texts_is_of_another_table(tmp_path: Path) -> None:
    """SQLite writes it as a text there."""
    path = write_database(
        tmp_path / "r.sqlite",
        "CREATE TABLE processes (globalPid INTEGER, pid INTEGER, name TEXT)",
        "INSERT INTO processes VALUES (7 << 24, 7, 'app')",
        "CREATE TABLE kinds (id INTEGER PRIMARY KEY, name TEXT, label VARCHAR(9))",
        "INSERT INTO kinds VALUES (1, 2, 'two'), (3, 4.5, x'00'), (4, NULL, '')",
    )
    check_file(path)
    swap_pages(path, find_page(path, "processes"), find_page(path, "kinds"), PAGE)
    with pytest.raises(Nsys2prvError, match="malformed: table kinds, page"):
        check_file(path)
