"""The folder of real exports that NSYS2PRV_CORPUS names."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest


def in_corpus(query: str) -> list[tuple]:
    """The rows of an SQL query on all exports that have its tables and columns, of which there is at least one.

    Without a corpus the test is skipped.
    """
    folder = os.environ.get("NSYS2PRV_CORPUS")
    if not folder:
        pytest.skip("NSYS2PRV_CORPUS does not name a folder of exports")
    found: list[tuple] = []
    for path in sorted(Path(folder).glob("*.sqlite")):
        connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        try:
            found += connection.execute(query).fetchall()
        except sqlite3.OperationalError:  # no such table or column
            continue
        finally:
            connection.close()
    assert found
    return found
