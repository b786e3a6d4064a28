"""Find the real exports in the folder that NSYS2PRV_CORPUS names, and the sample reports."""

import os
import sqlite3
from pathlib import Path

import pytest

CORPUS = os.environ.get("NSYS2PRV_CORPUS")
EXPORTS = sorted(Path(CORPUS).glob("*.sqlite")) if CORPUS else []
NO_CORPUS = "NSYS2PRV_CORPUS does not name a folder of .sqlite exports"
#: One report of each sample, and every real export: what a truth by plain SQL is compared on.
REPORTS = [*sorted((Path(__file__).parents[2] / "sample_reports").glob("*/*0.sqlite")), *EXPORTS]
#: The parameter of a test for each export, where there is none.
UNSET = pytest.param(None, marks=pytest.mark.skip(reason=NO_CORPUS))


def name_report(path: Path) -> str:
    """Return the name by which tests call a report."""
    return f"{path.parent.name}-{path.stem}"[:60]


def skip_without_corpus() -> None:
    """Skip the test without a corpus."""
    if not CORPUS:
        pytest.skip(NO_CORPUS)


def read_rows_from_corpus(query: str) -> list[tuple]:
    """Return the rows of an SQL query on every export that has its tables and columns.

    Skip the test without a corpus; fail if no export has any such row.
    """
    skip_without_corpus()
    rows: list[tuple] = []
    for path in EXPORTS:
        connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        try:
            rows += connection.execute(query).fetchall()
        except sqlite3.OperationalError:  # no such table or column
            continue
        finally:
            connection.close()
    assert rows
    return rows
