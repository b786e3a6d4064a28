"""Read tables of test data."""

from pathlib import Path


def read_table(path: Path) -> list[list[str]]:
    """Return the rows of a file with tabs between its columns; lines that begin with # are none."""
    lines = path.read_text().splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]
