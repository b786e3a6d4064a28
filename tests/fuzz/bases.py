"""Provide the exports that are mutated: the samples, and small ones of a corpus, cut to a few rows
per table, with secrets planted.
"""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from nsys2prv.export.info import MACHINE

ROOT = Path(__file__).resolve().parents[2]
#: Stands in every row of an environment; nothing that is written may have it.
SECRET = "s3cr3t0f7h3env"
ROWS, STRINGS, LARGEST = 24, 500, 800_000
#: Tables that are small and say what others mean.
WHOLE = (
    "META_DATA",
    "TARGET_INFO",
    "ANALYSIS",
    "PROCESSES",
    "ThreadNames",
    "MPI_RANKS",
    "MPI_COMM",
)


def make_bases(folder: Path) -> list[Path]:
    """Write small copies into a folder, in an order that is always the same."""
    samples = sorted(ROOT.glob("sample_reports/*/rank[01].sqlite"))
    corpus = os.environ.get("NSYS2PRV_CORPUS")
    if corpus:
        samples += sorted(
            path for path in Path(corpus).glob("*.sqlite") if path.stat().st_size < LARGEST
        )
    return [
        copy_few_rows(path, folder / f"base{number}.sqlite") for number, path in enumerate(samples)
    ]


def copy_few_rows(source: Path, target: Path) -> Path:
    """Write a copy with a few rows of each table, and secrets in the rows of environments."""
    shutil.copyfile(source, target)
    target.chmod(0o644)
    with closing(sqlite3.connect(target)) as connection:
        names = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        )
        tables = [name for (name,) in names]
        for table in tables:
            if not table.startswith(WHOLE):
                limit = STRINGS if table == "StringIds" else ROWS
                connection.execute(
                    f'DELETE FROM "{table}" WHERE rowid NOT IN (SELECT rowid FROM "{table}" LIMIT {limit})'
                )
            if (
                table.startswith("ENUM_")
                and connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0] == ROWS
            ):
                connection.execute(f'DROP TABLE "{table}"')
        plant_secrets(connection)
        connection.commit()
        connection.execute("VACUUM")
    return target


def plant_secrets(connection: sqlite3.Connection, secret: str = SECRET) -> None:
    """Put the secret into every text of the environment that is no launcher's variable, and into
    some of those too.
    """
    for table in ("TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE"):
        columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
        if not {"name", "value"} <= set(columns):
            continue
        environment = (
            f"name NOT IN {('Hostname', *MACHINE.values())}"
            if table == "TARGET_INFO_SYSTEM_ENV"
            else "name LIKE '%ENVIRONMENT_VARIABLE'"
        )
        for column in columns:
            if column != "name":
                connection.execute(
                    f'UPDATE "{table}" SET "{column}" = "{column}" || ? WHERE {environment} '
                    f"AND typeof(\"{column}\") = 'text' AND value NOT GLOB '*RANK=*' "
                    "AND value NOT GLOB '*PROCID=*'",
                    (secret,),
                )
        for name, value in (
            ("DeviceEnvironment", f"API_TOKEN={secret}"),
            (f"Name{secret}", secret),
            ("PROCESS_0:ENVIRONMENT_VARIABLE", f'API_TOKEN="{secret}"'),
            ("PROCESS_0:ENVIRONMENT_VARIABLE", f'RANK="{secret}"'),
            ("PROCESS_0:ENVIRONMENT_VARIABLE", f'PMIX_RANK="0" {secret}'),
            ("PROCESS_0:ENVIRONMENT_VARIABLE", f'SLURM_JOB_ID="{secret}"'),
            ("PROCESS_0:ENVIRONMENT_VARIABLE", f"{secret}=1"),
        ):
            row = {"name": name, "value": value, "devStateName": secret}
            marks = ", ".join("?" * len(columns))
            connection.execute(
                f'INSERT INTO "{table}" VALUES ({marks})',
                [row.get(column, 0) for column in columns],
            )
