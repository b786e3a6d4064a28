"""Mutate exports that are folders of tables."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import polars as pl
from tools.folders import convert_export_folder

from . import files

TYPES = (
    pl.Int8,
    pl.UInt64,
    pl.Float32,
    pl.String,
    pl.Binary,
    pl.Boolean,
    pl.Datetime,
    pl.List(pl.Int64),
)


def find_folder(report: Path) -> Path:
    """Return the folder of a base, made when it is first asked for."""
    path = report.parent.with_name("folders") / f"{report.stem}.parquetdir"
    if not path.exists():
        new = path.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        convert_export_folder(report, new)
        new.rename(path)
    return path


def copy_damaged(random: Random, source: Path, target: Path) -> list[str]:
    """Copy a folder, damage some of its tables, and return what was done to them."""
    target.mkdir()
    for path in source.iterdir():
        if random.random() < 0.6 or path.stem.startswith(
            ("StringIds", "TARGET", "PROCESSES", "ANALYSIS")
        ):
            shutil.copyfile(path, target / path.name)
    changes = []
    for mutation in random.choices(
        list(MUTATIONS), list(MUTATIONS.values()), k=random.choice((1, 1, 2, 4))
    ):
        tables = sorted(
            path
            for path in target.iterdir()
            if path.is_file() and not path.is_symlink() and path.stat().st_size
        )
        if tables:
            mutation(random, random.choice(tables))
            changes.append(mutation.__name__)
    return changes


def change_column(random: Random, path: Path) -> None:
    """Drop a column, or make its values of another type, NULL where they do not fit."""
    try:
        frame = pl.read_parquet(path.read_bytes())
        name = random.choice(frame.columns)
        other = frame[name].cast(random.choice(TYPES), strict=False)
        changed = frame.drop(name) if random.random() < 0.3 else frame.with_columns(other)
        changed.write_parquet(path.with_suffix(".made"))
        path.with_suffix(".made").replace(path)
    except Exception:
        path.with_suffix(".made").unlink(missing_ok=True)


def damage_bytes(random: Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    for mutation in random.choices(files.MUTATIONS, k=random.choice((1, 1, 3))):
        if data:
            mutation(random, data)
    path.write_bytes(data)


def exchange_tables(random: Random, path: Path) -> None:
    other = random.choice(
        sorted(
            other for other in path.parent.iterdir() if other.is_file() and not other.is_symlink()
        )
    )
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


def change_form(random: Random, path: Path) -> None:
    path.rename(path.with_suffix(".arrow"))


def replace_by_no_file(random: Random, path: Path) -> None:
    """Put something other than a file under a table's name."""
    path.unlink()
    choice = random.randrange(5)
    if choice == 0:
        path.mkdir()
    elif choice == 1:
        path.symlink_to(path.name)
    elif choice == 2:
        path.symlink_to(path.parent / "nowhere")
    elif choice == 3:
        os.mkfifo(path)
    else:
        path.touch()


def rename_oddly(random: Random, path: Path) -> None:
    names = ("a b", "'; DROP TABLE x; --", "é", "*", "a\nb", "{start}", "sqlite_master", "x" * 200)
    path.rename(path.with_name(random.choice(names) + path.suffix))


MUTATIONS: dict[Callable[[Random, Path], None], int] = {
    change_column: 14,
    damage_bytes: 10,
    exchange_tables: 3,
    change_form: 1,
    replace_by_no_file: 2,
    rename_oddly: 1,
}
