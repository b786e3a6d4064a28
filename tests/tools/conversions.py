"""Conversions read back, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tools.trace import Trace
from tools.trace_reader import read_trace

from nsys2prv import Options, Summary, convert


def convert_and_read(reports: Sequence[Path], output: Path, **options: object) -> tuple[Trace, Summary]:
    """The trace of these reports, without violations, and its summary."""
    summary = convert(reports, output, Options(**options))
    trace = read_trace(output)
    assert not trace.violations, str(trace.violations)
    return trace, summary


def found(trace: Trace, code: int) -> list[tuple[str, int, int]]:
    """(label, begin, end) of the intervals of a type, by row and begin, the outer first."""
    items = sorted(trace.intervals(code), key=lambda item: (item.row, item.begin, -item.end))
    return [(trace.label(code, item.value), item.begin, item.end) for item in items]
