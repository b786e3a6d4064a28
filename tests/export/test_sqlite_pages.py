"""Test that rows read from SQLite pages equal those from the sqlite3 module, or that none are read."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tools.commands import SAMPLES
from tools.core_rows import ALL, compare_tables
from tools.exports import KERNEL, make_export, make_kernel, make_strings

from nsys2prv import Options, convert
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.native import core
from nsys2prv.export.database import find_condition_columns
from nsys2prv.export.report_files import prepare_export
from nsys2prv.export.source import NULL, Part, Wanted
from nsys2prv.export.sqlite import open_database
from nsys2prv.export.sqlite_pages import INTEGERS, REALS, TEXTS, VALUES

pytestmark = pytest.mark.skipif(core is None, reason="installed without a compiler")
ROOT = Path(__file__).parents[2]
CORPUS = sorted(Path(os.environ.get("NSYS2PRV_CORPUS", "/nowhere")).glob("*.sqlite"))
#: Types by their numbers; SQLite's text comes as bytes.
NONE, INTEGER, REAL, TEXT, BLOB = range(5)


def find_roots(path: Path) -> dict[str, int]:
    """Return the first page of each table."""
    with open_database(path) as source:
        return {name: table.root for name, table in source.tables.items()}


@pytest.mark.parametrize(
    "path",
    [*sorted(SAMPLES.glob("*/rank0.sqlite")), *CORPUS],
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_every_value_of_every_table(path: Path) -> None:
    values, aside = compare_tables(path)
    assert values > 0
    assert aside == []


# ---- databases that exports are not --------------------------------------------------------------------------------------------------

ROWS = [
    (number, "x" * (number * 37 % 20000), b"\0" * (number * 13 % 9000), number * 1.5)
    for number in range(300)
]
TABLE = "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT, c BLOB, d REAL)"
FOUR = "INSERT INTO t VALUES (?, ?, ?, ?)"
HUNDRED = [(number, number) for number in range(100)]
WIDE = ", ".join(f"c{number}" for number in range(1900))
Case = tuple[list[str], str, str, list[tuple], list[str]]


def make_case(
    table: str = TABLE,
    insert: str = FOUR,
    rows: Iterable[tuple] = ROWS,
    then: Iterable[str] = (),
    before: Iterable[str] = (),
) -> Case:
    return list(before), table, insert, list(rows), list(then)


def make_two_tables(table: str, rows: list[tuple] = HUNDRED, *then: str) -> Case:
    return make_case(table, "INSERT INTO t VALUES (?, ?)", rows, then)


EQUAL = {
    **{
        f"pages of {size} bytes": make_case(before=[f"PRAGMA page_size = {size}"])
        for size in (512, 1024, 4096, 8192, 65536)
    },
    "pointer maps": make_case(
        before=["PRAGMA auto_vacuum = 1"], then=["DELETE FROM t WHERE a % 3 = 0"]
    ),
    "freed pages and moved rows": make_case(
        then=["DELETE FROM t WHERE a % 7 < 5", "UPDATE t SET b = 'y' || b WHERE a % 2"]
    ),
    "a log that was taken over": make_case(before=["PRAGMA journal_mode = WAL"]),
    "a column of newer rows": make_two_tables(
        "CREATE TABLE t (a, b)",
        HUNDRED,
        "ALTER TABLE t ADD COLUMN c INTEGER",
        "INSERT INTO t VALUES (1, 2, 3)",
    ),
    "a column less": make_case(
        "CREATE TABLE t (a, b, c, d)",
        then=["ALTER TABLE t DROP COLUMN b"] if sqlite3.sqlite_version_info >= (3, 35) else [],
    ),
    "a default that no row needs": make_two_tables("CREATE TABLE t (a, b DEFAULT 7)"),
    "a key that is no rowid": make_two_tables("CREATE TABLE t (a INT PRIMARY KEY, b)"),
    "a descending key that is no rowid": make_two_tables(
        "CREATE TABLE t (a INTEGER PRIMARY KEY DESC, b)"
    ),
    "a key of two columns": make_two_tables(
        "CREATE TABLE t (a INTEGER, b INTEGER, PRIMARY KEY (a, b))"
    ),
    "the rowid under another name": make_two_tables(
        "CREATE TABLE t (b, a INTEGER, PRIMARY KEY (a))"
    ),
    "rowids from end to end": make_two_tables(
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b)",
        [(-(2**63), 2**63 - 1), (-1, -(2**63)), (2**63 - 1, 0), (5, 1)],
    ),
    "integers of all lengths": make_case(
        "CREATE TABLE t (a, b, c)",
        "INSERT INTO t VALUES (?, ?, ?)",
        [
            (sign * (1 << power) + more, more, sign)
            for power in range(63)
            for sign in (1, -1)
            for more in (-1, 0, 1)
        ],
    ),
    "reals stored as integers": make_case(
        "CREATE TABLE t (a REAL, b DOUBLE PRECISION, c NUMERIC, d)",
        rows=[
            (1, 2, 3, 4.0),
            (0, 1, 0.0, 1.0),
            (1.5, 1e300, -0.5, float("inf")),
            (None, None, None, None),
            (-7, 2**40, "x", -float("inf")),
            (float("nan"), 0.1, 2**53, -0.0),
        ],
    ),
    "texts that are no text": make_case(
        "CREATE TABLE t (a TEXT)",
        "INSERT INTO t VALUES (CAST(? AS TEXT))",
        [(b"a\0b",), (b"\xff\xfe",), (b"",), (None,)],
    ),
    "values of every type anywhere": make_case(
        "CREATE TABLE t (a INTEGER, b TEXT, c REAL, d BLOB)",
        rows=[
            tuple([None, 1, 2.5, "text", b"blob"][number // 5**place % 5] for place in range(4))
            for number in range(625)
        ],
    ),
    "nineteen hundred columns": make_case(
        f"CREATE TABLE t ({WIDE})",
        f"INSERT INTO t VALUES ({', '.join('?' * 1900)})",
        [tuple(range(number, 1900 + number)) for number in range(30)],
        before=["PRAGMA page_size = 512"],
    ),
    "no row": make_two_tables("CREATE TABLE t (a, b)", []),
    "a deep tree": make_case(
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b, c)",
        "INSERT INTO t VALUES (?, ?, ?)",
        [(3 * number, number, "q" * (number % 50)) for number in range(50_000)],
        before=["PRAGMA page_size = 512"],
    ),
    "names that need quotes": make_case('CREATE TABLE t ("a b", "c""d", "select", "é")'),
}
ASIDE = {
    "UTF-16": make_case(before=["PRAGMA encoding = 'UTF-16'"]),
    "no rowids": make_two_tables("CREATE TABLE t (a INTEGER PRIMARY KEY, b) WITHOUT ROWID"),
    "a computed column": make_case(
        "CREATE TABLE t (a, b AS (a + 1), c)", "INSERT INTO t (a, c) VALUES (?, ?)", HUNDRED
    ),
    "a computed column that is stored": make_case(
        "CREATE TABLE t (a, b AS (a + 1) STORED, c)", "INSERT INTO t (a, c) VALUES (?, ?)", HUNDRED
    ),
    "a default of older rows": make_two_tables(
        "CREATE TABLE t (a, b)", HUNDRED, "ALTER TABLE t ADD COLUMN c INTEGER DEFAULT 7"
    ),
}


def make_database(path: Path, case: Case) -> Path:
    before, table, insert, rows, then = case
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in [*before, table, "BEGIN"]:
            connection.execute(statement)
        connection.executemany(insert, rows)
        for statement in ["COMMIT", *then]:
            connection.execute(statement)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", EQUAL)
def test_equal(name: str, tmp_path: Path) -> None:
    values, aside = compare_tables(make_database(tmp_path / "r.sqlite", EQUAL[name]))
    assert aside == []
    assert values == 0 if name == "no row" else values > 0


@pytest.mark.parametrize("name", ASIDE)
def test_standing_aside(name: str, tmp_path: Path) -> None:
    path = make_database(tmp_path / "r.sqlite", ASIDE[name])
    assert compare_tables(path) == (0, ["t"])
    with open_database(path) as source:
        assert source.read(source.tables["t"].whole, ("a",)).rows == len(ASIDE[name][3])


def test_a_log_with_data_and_reserved_bytes(tmp_path: Path) -> None:
    path = make_database(tmp_path / "r.sqlite", make_two_tables("CREATE TABLE t (a, b)"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("INSERT INTO t VALUES (1, 2)")
        connection.commit()
        copy, given = prepare_export(path, tmp_path / "copy")
        assert given == path
        with open_database(copy) as source:
            assert source._read_pages(source.tables["t"].whole, Wanted(("a",)))[0].rows == 101
    data = bytearray(path.read_bytes())
    data[20] = 8
    path.write_bytes(data)
    with pytest.raises(core.StandAside):
        core.TableFile(path)


# ---- parts and columns ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def gaps(tmp_path: Path) -> Path:
    """Write a table of many leaves, with gaps in its rowids."""
    return make_database(
        tmp_path / "r.sqlite",
        make_case(
            "CREATE TABLE t (a INTEGER, b TEXT, c REAL, n INTEGER)",
            rows=[
                (
                    number * 7 % 1000,
                    f"name {number % 13}" if number % 10 else None,
                    number / 4,
                    None if number % 3 else number,
                )
                for number in range(1, 5001)
            ],
            then=["DELETE FROM t WHERE rowid BETWEEN 1000 AND 2500 OR rowid % 5 = 0"],
        ),
    )


@pytest.mark.parametrize(
    ("first", "last"),
    [(1, 5000), (1, 1), (7, 3000), (1000, 2500), (990, 2510), (4999, 9999), (-5, 0), (*ALL,)],
)
def test_parts(first: int, last: int, gaps: Path) -> None:
    with closing(sqlite3.connect(gaps)) as connection:
        connection.text_factory = bytes
        expected = connection.execute(
            f"SELECT a, b, c, n FROM t WHERE rowid BETWEEN {first} AND {last} ORDER BY rowid"
        ).fetchall()
    with open_database(gaps) as source:
        columns, ((numbers, of_n), (types, of_types)) = source.tables["t"].read(
            Part("t", first, last),
            Wanted(("a", "n", "lacking"), ("b", "other")),
            find_condition_columns(("{n} > 3 AND typeof({c}) = 'real' AND {b} IS NULL",)),
        )
    assert columns.rows == len(expected)
    assert columns["a"].tolist() == [row[0] for row in expected]
    assert (
        columns["n"].tolist()
        == numbers.tolist()
        == [NULL if row[3] is None else row[3] for row in expected]
    )
    packed = [REAL + 8 * (NONE if row[1] is None else TEXT) for row in expected]
    assert types.tolist() == packed
    assert (list(of_n), list(of_types)) == (["n"], ["c", "b"])
    assert [of_types[name](REAL + 8 * TEXT) for name in ("c", "b")] == ["0.5", "''"]
    assert (columns["lacking"] == NULL).all()
    codes, texts = columns.texts["b"][0], columns.texts["b"][1].series
    assert texts.gather(codes).to_list() == [row[1] or b"" for row in expected]
    assert (texts.n_unique(), columns.damaged) == (len(texts), 0)


def test_kinds_of_columns(gaps: Path) -> None:
    table = core.TableFile(gaps).table(find_roots(gaps)["t"])
    room = table.most_rows(0, table.leaves)
    integers, reals, texts = np.empty(room, np.int64), np.empty(room), np.empty(room, np.int64)
    rows, counts = table.decode(
        0,
        table.leaves,
        *ALL,
        [
            (3, INTEGERS, False, False, NULL, integers, None, None),
            (3, REALS, False, False, NULL, reals, None, None),
            (1, INTEGERS, False, False, -7, texts, None, None),
        ],
    )
    with closing(sqlite3.connect(gaps)) as connection:
        expected = connection.execute("SELECT n, b FROM t").fetchall()
    assert rows == len(expected)
    numbers = np.array([np.nan if number is None else number for number, _ in expected])
    assert np.array_equal(reals[:rows], numbers, equal_nan=True)
    assert counts[0] == counts[1] == (np.isnan(numbers).sum(), 0)
    assert counts[2] == (
        sum(text is None for _, text in expected),
        sum(text is not None for _, text in expected),
    )
    assert (texts[:rows] == -7).all()


def test_what_does_not_fit_is_refused(gaps: Path) -> None:
    table = core.TableFile(gaps).table(find_roots(gaps)["t"])
    column = (0, INTEGERS, False, False, NULL, np.empty(10, np.int64), None, None)
    with pytest.raises(core.StandAside, match="more rows"):
        table.decode(0, table.leaves, *ALL, [column])
    for invalid in (
        (-2, *column[1:]),
        (0, 9, *column[2:]),
        (*column[:5], np.empty(9, np.uint8), None, None),
        (*column[:5], None, None, None),
        (0, TEXTS, *column[2:]),
        (0, VALUES, *column[2:]),
    ):
        with pytest.raises(ValueError, match="column"):
            table.decode(0, 1, *ALL, [column, invalid])
    for leaves in ((-1, 1), (0, table.leaves + 1), (2, 1)):
        with pytest.raises(ValueError, match="no such leaves"):
            table.decode(*leaves, *ALL, [column])


# ---- damage --------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return make_export(
        tmp_path / "r.sqlite",
        {
            "StringIds": make_strings("k"),
            KERNEL: [make_kernel(10 * number, 10 * number + 5) for number in range(1000)],
        },
    )


DAMAGES = ("record", "kind of page", "child", "cycle", "rows less", "overlap", "cut", "shared")


def damage_page(report: Path, damage: str) -> int:
    """Damage a page of the table of kernels; returns the page that is to be named."""
    data, root_page = bytearray(report.read_bytes()), find_roots(report)[KERNEL]
    root = (root_page - 1) * 4096
    assert data[root] == 5
    leaf_page = int.from_bytes(data[root + 8 : root + 12], "big")
    leaf = (leaf_page - 1) * 4096
    cell = leaf + int.from_bytes(data[leaf + 8 : leaf + 10], "big")
    if damage == "record":
        # Behind its size and its rowid, of two bytes, a header that is longer than the record.
        data[cell + 3] = 0x7F
    elif damage == "kind of page":
        data[leaf] = 0
    elif damage == "rows less":
        data[leaf + 4] -= 1
    elif damage == "overlap":
        data[leaf + 8 : leaf + 10] = (cell - leaf + 1).to_bytes(2, "big")
    elif damage == "cut":
        data = data[:leaf]
        data[28:32] = bytes(4)
    else:
        children = {
            "child": 2**31 - 1,
            "cycle": root_page,
            "shared": find_roots(report)["StringIds"],
        }
        data[root + 8 : root + 12] = children[damage].to_bytes(4, "big")
    report.write_bytes(data)
    return {"cycle": root_page, "shared": find_roots(report)["StringIds"], "child": 2**31 - 1}.get(
        damage, leaf_page
    )


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_an_error_that_names_table_and_page(
    damage: str, compiled: bool, report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = damage_page(report, damage)
    if not compiled:
        monkeypatch.setattr("nsys2prv.export.sqlite.open_pages", lambda path: None)
    with pytest.raises(Nsys2prvError) as raised:
        convert([report], tmp_path / "out.prv", Options(jobs=1))
    message = str(raised.value)
    assert f"{report}: cannot be read as an SQLite export (" in message
    assert "malformed" in message
    if compiled:
        # Of a page in two tables, the second one that is read.
        assert f"table {KERNEL}, page {page})" in message or damage == "shared"
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("rows", [["(1, 2)"], ["(1, NULL, 3)"]])
def test_rows_of_another_table_are_damage(rows: list[str], tmp_path: Path) -> None:
    """Of more columns, or NULL where that cannot be."""
    path = tmp_path / "r.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE a ({', '.join('xyz'[: rows[0].count(',') + 1])})")
        connection.execute(f"INSERT INTO a VALUES {', '.join(rows)}")
        connection.execute("CREATE TABLE b (x NOT NULL, y NOT NULL, z)")
        connection.execute("INSERT INTO b VALUES (4, 5, 6)")
        connection.commit()
    pages = find_roots(path)
    data = bytearray(path.read_bytes())
    first, second = (slice((pages[name] - 1) * 4096, pages[name] * 4096) for name in "ab")
    data[first], data[second] = data[second], data[first]
    path.write_bytes(data)
    with (
        open_database(path) as source,
        pytest.raises(Nsys2prvError, match=r"malformed: table [ab], page"),
    ):
        source.check()


def test_indexes_and_free_pages_may_be_damaged(report: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(report)) as connection:
        connection.execute(f"CREATE INDEX i ON {KERNEL} (start)")
        connection.execute("CREATE TABLE gone AS SELECT * FROM StringIds")
        connection.execute("DROP TABLE gone")
        connection.commit()
        root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'i'").fetchone()
        free = connection.execute("PRAGMA page_count").fetchone()
    convert([report], tmp_path / "sound.prv", Options(jobs=1))
    data = bytearray(report.read_bytes())
    for (page,) in (root, free):
        data[(page - 1) * 4096 : page * 4096] = b"\xa5" * 4096
    report.write_bytes(data)
    convert([report], tmp_path / "damaged.prv", Options(jobs=1))
    assert (tmp_path / "sound.prv").read_bytes() == (tmp_path / "damaged.prv").read_bytes()


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
def test_texts_in_utf_16(encoding: str, tmp_path: Path) -> None:
    rows = {"StringIds": make_strings("größe"), KERNEL: [make_kernel(1, 5)]}
    report = make_export(tmp_path / "r.sqlite", rows)
    other = tmp_path / "utf16.sqlite"
    with closing(sqlite3.connect(report)) as connection, closing(sqlite3.connect(other)) as target:
        target.execute(f"PRAGMA encoding = '{encoding}'")
        target.executescript("\n".join(connection.iterdump()))
    for path in (report, other):
        convert([path], path.with_suffix(".prv"), Options(jobs=1))
    assert report.with_suffix(".pcf").read_bytes() == other.with_suffix(".pcf").read_bytes()
    assert r"gr\u00f6\u00dfe" in other.with_suffix(".pcf").read_text()


def test_a_file_cut_while_it_is_open_is_no_crash(report: Path) -> None:
    table = core.TableFile(report).table(find_roots(report)[KERNEL])
    with report.open("r+b") as file:
        file.truncate(4096)
    with pytest.raises(core.StandAside, match="cannot be read"):
        table.decode(0, table.leaves, *ALL, [])


@pytest.mark.slow
def test_thousands_of_damaged_pages_under_sanitizers(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("clang")
    native = ROOT / "nsys2prv" / "_util" / "native"
    if compiler is None or sys.platform != "linux":
        pytest.skip("no compiler, or no memfd_create")
    program = tmp_path / "fuzz_pages"
    sources = [
        ROOT / "tests/fuzz/fuzz_pages.c",
        *(
            native / f"{name}.c"
            for name in ("lost", "outline", "pages", "records", "stacks", "texts")
        ),
    ]
    built = subprocess.run(
        [
            compiler,
            "-g",
            "-O1",
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all",
            "-DBLOCK_BYTES=1",
            f"-I{native}",
            *sources,
            "-lm",
            "-o",
            program,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if "sanitizer" in built.stderr or "asan" in built.stderr:
        pytest.skip("no sanitizers here")
    assert built.returncode == 0, built.stderr
    files = [
        make_database(tmp_path / f"{number}.sqlite", EQUAL[name])
        for number, name in enumerate(
            (
                "pages of 512 bytes",
                "pointer maps",
                "values of every type anywhere",
                "a deep tree",
                "integers of all lengths",
            )
        )
    ]
    process = subprocess.run(
        [program, "5000", "1", *files, SAMPLES / "graphs" / "rank0.sqlite"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    # All of them refused would show nothing.
    assert int(process.stdout.split(" rows decoded")[0].split()[-1]) > 1000


# ---- conversions ---------------------------------------------------------------------------------------------------------------------
