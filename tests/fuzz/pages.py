"""Test SQLite exports with damaged pages, one page each.

A conversion may refuse the export with one line, the same each time, or write the trace of the
sound export. It may write another trace only if this is the trace of the rows that SQLite itself
reads from the damaged tables (changed values, which no format without checksums can detect).
"""

import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random

from nsys2prv import Options, convert
from nsys2prv._util.errors import Nsys2prvError

PAGE_SIZES = (512, 1024, 4096, 65536)
Damage = Callable[[Random, bytearray, int], None]


def _pick_page(random: Random, data: bytearray, size: int) -> int:
    return random.randrange(len(data) // size) * size


def flip_page_header(random: Random, data: bytearray, size: int) -> None:
    start = _pick_page(random, data, size) or 100
    data[start + random.randrange(12)] ^= 1 << random.randrange(8)


def flip_cell_pointer(random: Random, data: bytearray, size: int) -> None:
    start = _pick_page(random, data, size)
    header = start or 100
    cells = int.from_bytes(data[header + 3 : header + 5], "big")
    place = header + 8 + random.randrange(max(1, 2 * min(cells, (size - 120) // 2)))
    data[place] ^= 1 << random.randrange(8)


def flip_bits_anywhere(random: Random, data: bytearray, size: int) -> None:
    start = _pick_page(random, data, size)
    for _ in range(random.choice((1, 1, 4))):
        data[start + random.randrange(size)] ^= 1 << random.randrange(8)


def flip_file_header(random: Random, data: bytearray, size: int) -> None:
    data[random.randrange(16, 100)] ^= 1 << random.randrange(8)


def write_random_bytes(random: Random, data: bytearray, size: int) -> None:
    start = _pick_page(random, data, size)
    first, last = sorted(random.randrange(size + 1) for _ in range(2))
    data[start + first : start + last] = random.randbytes(last - first)


def zero_page(random: Random, data: bytearray, size: int) -> None:
    start = _pick_page(random, data, size)
    data[start : start + size] = bytes(size)


def swap_pages(random: Random, data: bytearray, size: int) -> None:
    first, second = (_pick_page(random, data, size) for _ in range(2))
    one, other = data[first : first + size], data[second : second + size]
    data[first : first + size], data[second : second + size] = other, one


def truncate(random: Random, data: bytearray, size: int) -> None:
    del data[random.randrange(size, len(data)) :]


DAMAGES: tuple[Damage, ...] = (
    flip_page_header,
    flip_cell_pointer,
    flip_bits_anywhere,
    flip_file_header,
    write_random_bytes,
    zero_page,
    swap_pages,
    truncate,
)


def make_bases(reports: Sequence[Path], folder: Path) -> list[Path]:
    """Write each report in each page size, with an index and free pages."""
    return [
        make_base(report, size, folder / f"base{number}-{size}.sqlite")
        for number, report in enumerate(reports)
        for size in PAGE_SIZES
    ]


def make_base(report: Path, page_size: int, target: Path) -> Path:
    """Write a report with this page size, an index and free pages."""
    shutil.copyfile(report, target)
    target.chmod(0o644)
    with closing(sqlite3.connect(target, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {page_size}")
        connection.execute("VACUUM")
        connection.execute("CREATE INDEX names ON StringIds (value)")
        connection.execute("CREATE TABLE gone AS SELECT * FROM StringIds")
        connection.execute("DROP TABLE gone")
    return target


def convert_to_trace(report: Path, folder: Path) -> bytes | str:
    """Return the bytes of the trace, or the error."""
    folder.mkdir(exist_ok=True)
    try:
        convert([report], folder / "out.prv", Options(jobs=1, quiet=True, callstack=2))
    except Nsys2prvError as error:
        return str(error)
    return b"".join((folder / f"out.{ending}").read_bytes() for ending in ("prv", "pcf", "row"))


def rebuild(report: Path, target: Path) -> Path:
    """Write a sound database with the rows that SQLite reads from a damaged one's tables."""
    target.unlink(missing_ok=True)
    with closing(sqlite3.connect(target, isolation_level=None, uri=True)) as connection:
        connection.execute(f"ATTACH 'file:{report}?mode=ro&immutable=1' AS damaged")
        tables = connection.execute(
            "SELECT name, sql FROM damaged.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        ).fetchall()
        for name, sql in tables:
            connection.execute(sql)
            described = connection.execute(f'PRAGMA main.table_info("{name}")')
            names = ", ".join(f'"{row[1]}"' for row in described)
            connection.execute(
                f'INSERT INTO main."{name}" (rowid, {names}) SELECT rowid, {names} FROM damaged."{name}" NOT INDEXED'
            )
    return target


def is_sound(report: Path) -> bool:
    """True if SQLite's own check finds nothing."""
    try:
        with closing(sqlite3.connect(f"file:{report}?mode=ro&immutable=1", uri=True)) as connection:
            return connection.execute("PRAGMA integrity_check(1)").fetchall() == [("ok",)]
    except (sqlite3.Error, UnicodeError):
        return False


def try_damage(seed: int, bases: Sequence[Path], traces: dict[Path, bytes | str], folder: Path):
    """Damage a page. Return the kind of damage, whether SQLite's check sees it, the outcome, and
    the fault of the outcome ("" for none).
    """
    random = Random(seed)
    base, damage = random.choice(bases), random.choice(DAMAGES)
    data, report = bytearray(base.read_bytes()), folder / "damaged.sqlite"
    damage(random, data, int(base.stem.rpartition("-")[2]))
    report.write_bytes(data)
    told = damage.__name__, "sound for SQLite" if is_sound(report) else "not sound"
    if base not in traces:
        traces[base] = convert_to_trace(base, folder / "sound")
    try:
        result = convert_to_trace(report, folder / "damaged")
    except Exception as error:
        return *told, "raised", f"{type(error).__name__}: {error}"
    if result == traces[base]:
        return *told, "same trace", ""
    if isinstance(result, str):
        again = convert_to_trace(report, folder / "damaged")
        one_line = "\n" not in result and str(report) in result and "INTERNAL" not in result
        left = list((folder / "damaged").glob(".nsys2prv*"))
        wrong = "" if again == result and one_line and not left else f"{result!r}, {again!r}"
        named = "table and page" if ", page " in result else "another line"
        return *told, f"refused, {named}", wrong
    try:
        if (
            convert_to_trace(rebuild(report, folder / "rebuilt.sqlite"), folder / "rebuilt")
            == result
        ):
            return *told, "other values, as SQLite reads them", ""
        return *told, "another trace", "not of the rows that SQLite reads"
    except sqlite3.Error as error:
        return *told, "another trace", f"SQLite: {error}"


def try_damages(seeds: range, reports: Sequence[Path], folder: Path) -> Iterator[tuple]:
    """Yield the seed and the outcome of each damage."""
    bases, traces = make_bases(reports, folder), {}
    for seed in seeds:
        yield seed, *try_damage(seed, bases, traces, folder)
