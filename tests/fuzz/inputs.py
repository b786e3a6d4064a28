"""Make one input from its seed: a mutated export, and the commands for it."""

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from . import folders, rows, texts
from .bases import WHOLE

#: Options of a conversion, each taken now and then.
OPTIONS = (
    ["--states"],
    ["--report"],
    ["-z"],
    ["--kernel-names", "full"],
    ["--project-nvtx"],
    ["--align", "none"],
    ["--align", "utc"],
    ["--align", "nccl"],
    ["--min-duration", "osrt=1us"],
    ["--callstack", "3"],
    ["--keep-going"],
    ["--nvtx-rules", "none"],
    ["-t", "all"],
    ["-t", "nvtx,kernels,nccl"],
    ["-v"],
)


@dataclass
class Input:
    """commands: run one after another. output: of the last command, if it writes one. told: how the
    export was mutated.
    """

    commands: list[list[str]]
    output: Path | None
    told: list[str]


def make_input(seed: int, bases: Sequence[Path], folder: Path) -> Input:
    """Make the input of a seed in an empty folder."""
    random = Random(seed)
    base = random.choice(bases)
    family = (make_database, make_text, make_tables, make_database)[seed % 4]
    return family(random, base, bases, folder)


def make_tables(random: Random, base: Path, bases: Sequence[Path], folder: Path) -> Input:
    """Make a folder of tables, some of them damaged."""
    path = folder / "in"
    changes = [base.name, *folders.copy_damaged(random, folders.find_folder(base), path)]
    share = random.random()
    if share < 0.1:
        return Input([["--list", str(path)]], None, changes)
    if share < 0.2:
        return Input([["report", "-q", "-j", "1", "--tmp", str(folder), str(path)]], None, changes)
    chosen = [
        word for option in OPTIONS if option != ["-z"] and random.random() < 0.1 for word in option
    ]
    return Input(
        [[*chosen, "-j", "1", str(path), str(folder / "out.prv")]], folder / "out.prv", changes
    )


def make_text(random: Random, base: Path, bases: Sequence[Path], folder: Path) -> Input:
    """Make a file that people give beside reports, or have nsys2prv look at."""
    kind = random.choice(
        ("align", "--kernel-rules", "--nvtx-rules", "report", "diff", "check", "cfgs")
    )
    base_folder = texts.make_folder(base)
    source = {
        "align": "out.clock.yaml",
        "--kernel-rules": "kernel_rules.yaml",
        "--nvtx-rules": "nvtx_rules.yaml",
        "report": "out.report.json",
        "diff": "out.report.json",
    }
    name = source.get(kind) or random.choice(("out.prv", "out.pcf", "out.row"))
    for path in base_folder.iterdir():
        shutil.copyfile(
            path,
            folder / f"given{path.name.removeprefix('out')}"
            if path.name.startswith("out")
            else folder / path.name,
        )
    path = folder / f"given{name.removeprefix('out')}" if name.startswith("out") else folder / name
    content, changes = texts.mutate(random, path.read_bytes())
    path.write_bytes(content)
    changes = [base.name, kind, *changes]
    if kind == "report":
        return Input([["report", "-q", str(path)]], None, changes)
    if kind == "diff":
        return Input(
            [["diff", "-q", str(path), str(base_folder / "out.report.json")]], None, changes
        )
    if kind == "check":
        return Input(
            [["check", *(["--json"] if random.random() < 0.3 else []), str(folder / "given.prv")]],
            None,
            changes,
        )
    if kind == "cfgs":
        return Input([["cfgs", "--for", str(folder / "given.prv")]], None, changes)
    option = "--align" if kind == "align" else kind
    return Input(
        [
            [
                "-j",
                "1",
                option,
                str(path),
                str(base_folder.parent.with_name("bases") / base.name),
                str(folder / "out.prv"),
            ]
        ],
        folder / "out.prv",
        changes,
    )


def make_database(random: Random, base: Path, bases: Sequence[Path], folder: Path) -> Input:
    """Make an SQLite export."""
    report = folder / "in.sqlite"
    shutil.copyfile(base, report)
    changes = [base.name]
    drop_event_tables(random, report)
    changes += mutate_rows(random, report)
    reports = [str(report)]
    if random.random() < 0.25:
        other = folder / "other.sqlite"
        shutil.copyfile(random.choice(bases), other)
        reports.append(str(other))
    share = random.random()
    chosen = [word for option in OPTIONS if random.random() < 0.12 for word in option]
    if share < 0.84:
        output = folder / "out.prv"
        arguments = [*chosen, "-j", "1", *reports, str(output)]
        return Input(
            [arguments], output.with_suffix(".prv.gz") if "-z" in chosen else output, changes
        )
    if share < 0.93:
        return Input([["--list", *reports]], None, changes)
    return Input([["report", "-q", "-j", "1", "--tmp", str(folder), *reports]], None, changes)


def drop_event_tables(random: Random, path: Path) -> None:
    """Leave out tables of events, so that the others are soon read."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        for table in rows.list_tables(connection):
            if table != "StringIds" and not table.startswith(WHOLE) and random.random() < 0.6:
                connection.execute(f"DROP TABLE {rows.quote(table)}")
        connection.commit()


def mutate_rows(random: Random, path: Path) -> list[str]:
    """Apply some mutations to the contents of a database, skipping those that it refuses."""
    changes = []
    chosen = random.choices(
        list(rows.MUTATIONS), list(rows.MUTATIONS.values()), k=random.choice((1, 1, 2, 3, 6, 15))
    )
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        for mutation in chosen:
            with suppress(sqlite3.Error, IndexError, OverflowError, MemoryError):
                mutation(random, connection)
                changes.append(mutation.__name__)
        with suppress(sqlite3.Error):
            connection.commit()
    return changes
