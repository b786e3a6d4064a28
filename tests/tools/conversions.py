"""Conversions read back, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tools.trace import Trace
from tools.trace_reader import read_trace

from nsys2prv import Options, Summary, convert
from nsys2prv._util.errors import NothingToWrite


def convert_and_read(
    reports: Sequence[Path], output: Path, **options: object
) -> tuple[Trace, Summary]:
    """The trace of these reports, without violations, and its summary."""
    summary = convert(reports, output, Options(**options))
    trace = read_trace(output)
    assert not trace.violations, str(trace.violations)
    return trace, summary


def written(reports: Sequence[Path], folder: Path, **options: object) -> dict[str, bytes] | str:
    """The files of the trace by name, but for the one that says of what it was made; or why there
    is none.
    """
    folder.mkdir()
    try:
        convert(reports, folder / "out.prv", Options(**{"metadata": False, **options}))
    except NothingToWrite:
        return "nothing"
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def found(trace: Trace, code: int) -> list[tuple[str, int, int]]:
    """(label, begin, end) of the intervals of a type, by row and begin, the outer first."""
    items = sorted(trace.intervals(code), key=lambda item: (item.row, item.begin, -item.end))
    return [(trace.label(code, item.value), item.begin, item.end) for item in items]
