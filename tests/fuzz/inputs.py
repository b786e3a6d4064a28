"""One input by its seed: a mutated export, and what the command is asked to do with it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from . import files, rows
from .bases import WHOLE

#: Options of a conversion, each taken now and then.
OPTIONS = (["--states"], ["--causal"], ["--report"], ["-z"], ["--kernel-names", "full"], ["--project-nvtx"], ["--align", "none"],
           ["--align", "utc"], ["--align", "nccl"], ["--min-duration", "osrt=1us"], ["--callstack", "3"], ["--keep-going"],
           ["--nvtx-rules", "none"], ["-t", "all"], ["-t", "nvtx,kernels,nccl"], ["-v"])


@dataclass
class Input:
    """commands: run one after the other; output: of the last, if it writes. told: what was done to the export."""

    commands: list[list[str]]
    output: Path | None
    told: list[str]


def make(seed: int, bases: Sequence[Path], folder: Path) -> Input:
    """The input of a seed, in an empty folder."""
    random = Random(seed)
    base = random.choice(bases)
    report = folder / "in.sqlite"
    shutil.copyfile(base, report)
    told = [base.name]
    fewer(random, report)
    if random.random() < 0.72:
        told += mutated_rows(random, report)
    if len(told) == 1 or random.random() < 0.12:
        told += mutated_bytes(random, report)
    reports = [str(report)]
    if random.random() < 0.25:
        other = folder / "other.sqlite"
        shutil.copyfile(random.choice(bases), other)
        reports.append(str(other))
    what = random.random()
    chosen = [word for option in OPTIONS if random.random() < 0.12 for word in option]
    if "--causal" in chosen and "--align" in chosen:
        chosen.remove("--causal")
    if what < 0.84:
        output = folder / "out.prv"
        arguments = [*chosen, "-j", "1", *reports, str(output)]
        return Input([arguments], output.with_suffix(".prv.gz") if "-z" in chosen else output, told)
    if what < 0.90:
        return Input([["--list", *reports]], None, told)
    if what < 0.94:
        return Input([["report", "-q", "-j", "1", "--tmp", str(folder), *reports]], None, told)
    store = folder / "store"
    return Input([["extract", "-q", "-j", "1", *reports, "-o", str(store)], ["merge", "-j", "1", str(store), str(folder / "out.prv")]],
                 folder / "out.prv", told)


def fewer(random: Random, path: Path) -> None:
    """Leave out tables of events, so that the others are soon read."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        for table in rows.tables(connection):
            if table != "StringIds" and not table.startswith(WHOLE) and random.random() < 0.6:
                connection.execute(f"DROP TABLE {rows.quoted(table)}")
        connection.commit()


def mutated_rows(random: Random, path: Path) -> list[str]:
    """Some mutations of what a database says; those that it refuses are left out."""
    told = []
    chosen = random.choices(list(rows.MUTATIONS), list(rows.MUTATIONS.values()), k=random.choice((1, 1, 2, 3, 6, 15)))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        for mutation in chosen:
            with suppress(sqlite3.Error, IndexError, OverflowError, MemoryError):
                mutation(random, connection)
                told.append(mutation.__name__)
        with suppress(sqlite3.Error):
            connection.commit()
    return told


def mutated_bytes(random: Random, path: Path) -> list[str]:
    data = bytearray(path.read_bytes())
    told = []
    for mutation in random.choices(files.MUTATIONS, k=random.choice((1, 1, 2, 4))):
        if data:
            mutation(random, data)
            told.append(mutation.__name__)
    path.write_bytes(data)
    return told
