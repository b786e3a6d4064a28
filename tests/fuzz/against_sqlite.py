"""Compare how nsys2prv and SQLite read damaged SQLite files: a file is refused in one line, or
every column of every table is what SQLite reads. Bytes, cells and whole pages are damaged.
"""

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from random import Random

import numpy as np
from msgspec import Struct
from tools.core_rows import compare_tables, connect

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.export.source import FRAME_COLUMNS, Wanted
from nsys2prv.export.sqlite import open_database

from . import pages

#: What a base has: its page size, whether it has pointer maps, and indexes.
SHAPES = ((512, 0, False), (512, 1, True), (1024, 0, True), (1024, 2, False), (4096, 0, False))
LEAF, INTERIOR, INDEX_LEAF, INDEX_INTERIOR = 13, 5, 10, 2


class Base(Struct, frozen=True):
    """A sound file, to be damaged."""

    data: bytes
    page_size: int
    has_pointer_maps: bool
    has_indexes: bool


#: Damages a file, and may take pages from another one.
Damage = Callable[[Random, bytearray, int, bytes], None]


def make_base(path: Path, page_size: int, vacuum: int, has_indexes: bool) -> Base:
    """Write a file with tables of every shape that matters to a reader of pages."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        run = connection.execute
        run("PRAGMA journal_mode = OFF")
        run("PRAGMA synchronous = OFF")
        run(f"PRAGMA page_size = {page_size}")
        run(f"PRAGMA auto_vacuum = {vacuum}")
        run("BEGIN")
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {}) "
        for name, columns, rows, values in (
            (
                "KERNELS",
                '"start" INTEGER NOT NULL, "end" INTEGER NOT NULL, stream INTEGER, part INTEGER',
                400,
                "i * 1000003, i * 1000003 + 5, i % 3, nullif(i % 2, 0)",
            ),
            (
                "StringIds",
                "id INTEGER PRIMARY KEY, value TEXT NOT NULL",
                150,
                "i * 2, printf('name %d %.*c', i, i * i % 700, 'x')",
            ),
            ("copies", "start INTEGER, bytes INTEGER", 120, "i, i * 2"),
            (
                "mixed",
                "a INTEGER, b TEXT, c REAL, d BLOB, e NUMERIC",
                60,
                "CASE i % 5 WHEN 0 THEN i / 4.0 WHEN 1 THEN 'x' || i ELSE i END, "
                "CASE i % 3 WHEN 0 THEN x'00ff' ELSE 'text ' || i END, i, "
                "CASE i % 4 WHEN 0 THEN zeroblob(i * 60) WHEN 1 THEN i ELSE 'blob' END, i / 2.0",
            ),
            (
                "CALLCHAINS",
                "id INTEGER NOT NULL, symbol INTEGER NOT NULL, module INTEGER NOT NULL, "
                f"stackDepth INTEGER NOT NULL{', PRIMARY KEY (id, stackDepth)' * has_indexes}",
                300,
                "i / 5, i % 7, i % 3, i % 5",
            ),
            (
                "counted",
                f"id INTEGER PRIMARY KEY{' AUTOINCREMENT' * has_indexes}, a INTEGER",
                30,
                "i, i",
            ),
            (
                "noted",
                f"word TEXT{' PRIMARY KEY' * has_indexes}, a INTEGER",
                60,
                "'word ' || (i * i), i",
            ),
        ):
            run(f"CREATE TABLE {name} ({columns})")
            run(f"{numbers.format(rows)} INSERT INTO {name} SELECT {values} FROM n")
        run("ALTER TABLE copies ADD COLUMN later INTEGER")
        run("CREATE TABLE gone AS SELECT * FROM KERNELS")
        if has_indexes:
            run("CREATE INDEX by_start ON KERNELS (start)")
            run("CREATE INDEX by_text ON StringIds (value)")
            run("CREATE TABLE keyed (a TEXT PRIMARY KEY, b INTEGER) WITHOUT ROWID")
            run("INSERT INTO keyed SELECT word || printf('%.*c', a * 9, 'y'), a FROM noted")
        run("CREATE VIEW seen AS SELECT * FROM KERNELS")
        run("DROP TABLE gone")
        run("DELETE FROM KERNELS WHERE rowid % 9 = 4")
        run("UPDATE StringIds SET value = value || 'more' WHERE id % 16 = 0")
        run("COMMIT")
    return Base(path.read_bytes(), page_size, vacuum > 0, has_indexes)


def make_bases(folder: Path, reports: Sequence[Path] = ()) -> list[Base]:
    """Write a file of each shape and each report in each page size, and read them."""
    made = [make_base(folder / "base.sqlite", *shape) for shape in SHAPES]
    for number, path in enumerate(pages.make_bases(reports, folder)):
        page_size = pages.PAGE_SIZES[number % len(pages.PAGE_SIZES)]
        made.append(Base(path.read_bytes(), page_size, False, True))
    return made


# ---- damages of whole pages --------------------------------------------------------------------------------------------------------


def _pick_page(random: Random, data: bytes, size: int) -> int:
    """Return where a page begins: any, or one of a kind that few may have."""
    starts = range(0, len(data), size)
    kind = random.choice((None, LEAF, INTERIOR, INDEX_LEAF, INDEX_INTERIOR))
    chosen = [start for start in starts if data[start or 100] == kind]
    return random.choice(chosen or starts)


def swap_pages(random: Random, data: bytearray, size: int, other: bytes) -> None:
    first, second = (_pick_page(random, data, size) for _ in range(2))
    one = data[first : first + size]
    data[first : first + size] = data[second : second + size]
    data[second : second + size] = one


def copy_page(random: Random, data: bytearray, size: int, other: bytes) -> None:
    first, second = (_pick_page(random, data, size) for _ in range(2))
    data[first : first + size] = data[second : second + size]


def copy_page_of_another_file(random: Random, data: bytearray, size: int, other: bytes) -> None:
    first = _pick_page(random, data, size)
    second = first if random.random() < 0.3 else _pick_page(random, other, size)
    if page := other[second : second + size]:
        data[first : first + size] = page


def shift_pages(random: Random, data: bytearray, size: int, other: bytes) -> None:
    first, second = sorted(_pick_page(random, data, size) for _ in range(2))
    moved = data[first:second]
    if random.random() < 0.5:
        data[first + size : second + size] = moved
    else:
        data[first - size if first else 0 : second - size if first else second] = moved


def drop_page(random: Random, data: bytearray, size: int, other: bytes) -> None:
    start = _pick_page(random, data, size)
    del data[start : start + size]


def change_child(random: Random, data: bytearray, size: int, other: bytes) -> None:
    """Let a page refer to another one."""
    interior = (INTERIOR, INDEX_INTERIOR)
    starts = [start for start in range(0, len(data), size) if data[start or 100] in interior]
    start = random.choice(starts or [0])
    place = random.choice((8, 12 + 2 * random.randrange(8))) + (start or 100)
    if place - (start or 100) != 8:
        place = start + int.from_bytes(data[place : place + 2], "big")
    data[place : place + 4] = random.randrange(1, len(data) // size + 1).to_bytes(4, "big")


# ---- damages of cells --------------------------------------------------------------------------------------------------------------


def _pick_cell(random: Random, data: bytes, size: int) -> tuple[int, int, int]:
    """Return where a page begins, where a pointer of it stands, and where the cell begins."""
    start = _pick_page(random, data, size)
    header = start or 100
    cells = int.from_bytes(data[header + 3 : header + 5], "big")
    most = max(1, min(cells, (size - 120) // 2))
    pointer = header + random.choice((8, 12)) + 2 * random.randrange(most)
    cell = start + int.from_bytes(data[pointer : pointer + 2], "big") % size
    return start, min(pointer, start + size - 2), min(cell, start + size - 16)


def move_cell(random: Random, data: bytearray, size: int, other: bytes) -> None:
    start, pointer, cell = _pick_cell(random, data, size)
    moved = (cell - start + random.choice((-4, -2, -1, 1, 2, 4, 8))) % 65536
    data[pointer : pointer + 2] = moved.to_bytes(2, "big")


def exchange_cells(random: Random, data: bytearray, size: int, other: bytes) -> None:
    start, pointer, _ = _pick_cell(random, data, size)
    second = min(pointer + 2 * random.choice((1, 1, 2, 5)), start + size - 2)
    one, two = data[pointer : pointer + 2], data[second : second + 2]
    data[pointer : pointer + 2] = two
    data[second : second + 2] = one if random.random() < 0.7 else two


def change_head_of_cell(random: Random, data: bytearray, size: int, other: bytes) -> None:
    """Change its size, its rowid, or the types of its values."""
    *_, cell = _pick_cell(random, data, size)
    place = cell + random.randrange(12)
    data[place] = random.choice((data[place] ^ 1 << random.randrange(8), random.randrange(16)))


def change_types(random: Random, data: bytearray, size: int, other: bytes) -> None:
    """Change the type of one value to another type of the same size."""
    *_, cell = _pick_cell(random, data, size)
    same = {0: 8, 8: 9, 9: 0, 6: 7, 7: 6, 14: 15, 15: 14, 13: 12, 12: 13, 1: 15, 20: 6}
    for place in range(cell + 2, cell + 12):
        if data[place] in same and random.random() < 0.5:
            data[place] = same[data[place]]
            break


def change_schema(random: Random, data: bytearray, size: int, other: bytes) -> None:
    words = [b"table", b"index", b"StringIds", b"KERNELS", b"INTEGER", b"PRIMARY", b"REAL", b"view"]
    word = random.choice(words)
    places = [found.start() for found in re.finditer(word, data)]
    if places:
        place = random.choice(places) + random.randrange(len(word))
        data[place] = random.choice((data[place] ^ 0x20, data[place] ^ 1 << random.randrange(8)))


MOVES: tuple[Damage, ...] = (
    swap_pages,
    copy_page,
    copy_page_of_another_file,
    shift_pages,
    drop_page,
    change_child,
)
CELLS: tuple[Damage, ...] = (
    move_cell,
    exchange_cells,
    change_head_of_cell,
    change_types,
    change_schema,
)


def _take_no_other(damage: pages.Damage) -> Damage:
    def damaged(random: Random, data: bytearray, size: int, other: bytes) -> None:
        damage(random, data, size)

    damaged.__name__ = damage.__name__
    return damaged


BYTES: tuple[Damage, ...] = tuple(map(_take_no_other, pages.DAMAGES))
FAMILIES = (MOVES, MOVES, CELLS, BYTES)


# ---- what comes of it --------------------------------------------------------------------------------------------------------------


#: Of a column, as those of the catalogue.
CONDITIONS = ("{} > 5", "{} IS NULL", "typeof({}) = 'integer'", "{} IN (1, 8)")


def compare_reading(path: Path, has_pointer_maps: bool = False) -> list[str]:
    """Return the differences between reading a file from its pages and with SQLite. Raises
    Nsys2prvError if the file is refused.

    With pointer maps, SQLite may use these to find the end of a record; then only complete records
    are compared.
    """
    with open_database(path) as source:
        source.check()
        wrong = []
        for name, table in source.tables.items():
            # In SQL there is no name that is no text, and nobody asks for one.
            columns = tuple(column for column in table.columns if "\ufffd" not in column)
            part = table.whole
            for kinds in ((columns, (), ()), ((), columns, ()), ((), (), columns)):
                wanted = Wanted(*kinds)
                one = source._read_pages(part, wanted)
                if one is None or has_pointer_maps:
                    continue
                two = source._read_by_sql(part, wanted)
                wrong += [f"{name}: {what}" for what in _compare(one[0], two[0])]
            for column in columns:
                conditions = [condition.format(f"{{{column}}}") for condition in CONDITIONS]
                wanted = Wanted(conditions=conditions)
                one, two = source._read_pages(part, wanted), source._read_by_sql(part, wanted)
                if one is not None and not has_pointer_maps and not np.array_equal(one[1], two[1]):
                    wrong.append(f"{name}: conditions on {column}")
            if not set(FRAME_COLUMNS).difference(columns):
                by_pages = source.read_stacks(name, *_IDS)
                by_sql = source.read_stacks(name, *_IDS, True)
                wrong += [f"{name}: stacks"] * (_list_stacks(by_pages) != _list_stacks(by_sql))
        with closing(connect(path)) as connection:
            # Older versions of SQLite say nothing here.
            listed = connection.execute("PRAGMA table_list").fetchall()
        names = {
            name.decode("utf-8", "replace")
            for (_, schema), (_, name), (_, kind), *_ in listed
            if (schema, kind) == (b"main", b"table") and not name.startswith(b"sqlite_")
        }
        if listed and names != {*source.tables}:
            wrong.append(f"tables {names ^ {*source.tables}}")
    try:
        compare_tables(path)
    except AssertionError as difference:
        wrong.append(f"values: {str(difference)[:200]}")
    return wrong


_IDS = 0, 1 << 40


def _compare(one: object, two: object) -> list[str]:
    """Return the names of columns that differ."""
    if (one.rows, one.damaged) != (two.rows, two.damaged):
        return [f"{one.rows} rows, {one.damaged} damaged; {two.rows}, {two.damaged}"]
    wrong = [
        name
        for name, values in one.integers.items()
        if not np.array_equal(values, two.integers[name], equal_nan=values.dtype == np.float64)
    ]
    return wrong + [
        name
        for name, (codes, texts) in one.texts.items()
        if [texts.as_list()[code] for code in codes.tolist()]
        != [two.texts[name][1].as_list()[code] for code in two.texts[name][0].tolist()]
    ]


def _list_stacks(stacks: object) -> list:
    """Return the frames of each stack by its id."""
    ends = np.cumsum(stacks.lengths).tolist()
    frames = [
        sorted(map(tuple, stacks.frames[end - length : end].tolist()))
        for end, length in zip(ends, stacks.lengths.tolist(), strict=True)
    ]
    return sorted(
        (number, frames[code])
        for number, code in zip(stacks.ids.tolist(), stacks.codes.tolist(), strict=True)
    )


#: What SQLite's check says of values, of indexes, and of free pages.
_NOT_OF_PAGES = re.compile(
    r"(?i)missing from index|entries in index|non-unique|CHECK constraint|NULL value|NUMERIC value|TEXT value"
    r"|\w* value in|freelist|free-page|ptr ?map|pointer map|rootpage|^\*\*\*|^ok$"
)


def find_unseen_damage(path: Path) -> list[str]:
    """Return damage that SQLite's check finds outside values, indexes and the list of free pages.
    For files without indexes.
    """
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        connection.text_factory = bytes
        said = connection.execute("PRAGMA integrity_check").fetchall()
    lines = b"\n".join(text for (text,) in said).decode("utf-8", "replace").splitlines()
    if any("freelist" in line for line in lines):
        lines = [line for line in lines if not re.search("never used|2nd reference", line)]
    return [line for line in lines if not _NOT_OF_PAGES.search(line)]


def try_seed(seed: int, bases: Sequence[Base], folder: Path) -> tuple[str, str, list[str]]:
    """Return the damage, the outcome, and the fault of the outcome ("" for none)."""
    random = Random(seed)
    base = random.choice(bases)
    others = [one.data for one in bases if one.page_size == base.page_size and one is not base]
    damage = random.choice(random.choice(FAMILIES))
    data, path = bytearray(base.data), folder / "damaged.sqlite"
    damage(random, data, base.page_size, random.choice(others or [base.data]))
    path.write_bytes(data)
    if data == base.data:
        return damage.__name__, "unchanged", compare_reading(path, base.has_pointer_maps)
    try:
        wrong = compare_reading(path, base.has_pointer_maps)
    except Nsys2prvError as error:
        message = str(error)
        one_line = "\n" not in message and str(path) in message
        return damage.__name__, "refused", [] if one_line else [message]
    if not wrong and not base.has_indexes:
        wrong = find_unseen_damage(path)
    return damage.__name__, "equal", wrong


def try_seeds(seeds: range, bases: Sequence[Base], folder: Path) -> tuple[Counter, dict]:
    """Return damage -> number of each outcome, and seed -> fault."""
    results, faults = Counter(), {}
    for seed in seeds:
        try:
            damage, result, wrong = try_seed(seed, bases, folder)
        except Exception as error:
            damage, result, wrong = "?", "raised", [f"{type(error).__name__}: {error}"]
        results[damage, result] += 1
        if wrong:
            faults[seed] = [damage, *wrong]
    return results, faults
