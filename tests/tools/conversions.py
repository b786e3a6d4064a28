"""Convert reports and read the traces back."""

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from tools.trace import Trace
from tools.trace_reader import read_trace

from nsys2prv import Options, Summary, convert
from nsys2prv._util.errors import NothingToWrite
from nsys2prv.conversion.options import CutOptions

#: Every attribute of every kind.
EVERY_ATTRIBUTE = CutOptions(fields={"all": ("all",)}, lines="launches")
#: Lines of launches, too.
WITH_LAUNCHES = CutOptions(lines="launches")
#: Shorter than any time since 1970 and longer than any capture, ns.
A_YEAR = 365 * 86400 * 10**9


def convert_and_read(
    reports: Sequence[Path], output: Path, **options: object
) -> tuple[Trace, Summary]:
    """Convert reports, with lines of launches unless there is a cut, check that the trace has no
    violations, and return it with the summary.
    """
    summary = convert(reports, output, Options(**{"cut": WITH_LAUNCHES, **options}))
    trace = read_trace(output)
    assert not trace.violations, str(trace.violations)
    return trace, summary


def find_time_zero(output: Path, report: Path) -> int:
    """Return the time of a report (ns, on its own clock) that is 0 in the trace of it alone."""
    begins = json.loads(output.with_suffix(".nsys2prv.json").read_text())["trace"]["begins_utc_ns"]
    if abs(begins) < A_YEAR:
        # Not aligned to UTC.
        return begins
    connection = sqlite3.connect(f"file:{report}?mode=ro&immutable=1", uri=True)
    try:
        return (
            begins
            - connection.execute(
                "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"
            ).fetchone()[0]
        )
    finally:
        connection.close()


def convert_to_bytes(
    reports: Sequence[Path], folder: Path, **options: object
) -> dict[str, bytes] | str:
    """Convert reports and return the trace's files by name, without the metadata file; "nothing" if
    there was nothing to write.
    """
    folder.mkdir()
    try:
        convert(reports, folder / "out.prv", Options(**{"metadata": False, **options}))
    except NothingToWrite:
        return "nothing"
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def list_labelled_intervals(trace: Trace, code: int) -> list[tuple[str, int, int]]:
    """Return (label, begin, end) of the intervals of a type, by row and begin, the outer first."""
    intervals = sorted(
        trace.list_intervals(code),
        key=lambda interval: (interval.row, interval.begin, -interval.end),
    )
    return [
        (trace.get_label(code, interval.value), interval.begin, interval.end)
        for interval in intervals
    ]
