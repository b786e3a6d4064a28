"""OS runtime and pthread calls of a trace equal what plain SQL finds in the export, on a folder of
real exports.

The folder is named by NSYS2PRV_CORPUS. As in ``test_truth_corpus``, the converter is never compared
with itself.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tools.conversions import find_time_zero
from tools.corpus import EXPORTS, REPORTS, name_report, skip_without_corpus
from tools.sql_truth import make_label
from tools.trace_reader import Trace, read_trace

from nsys2prv import Options, Summary, convert
from nsys2prv._util.errors import NothingToWrite

CODES = {"osrt": 66400000, "pthread": 61000000}
LEAST_NS = 5_000
SELECT = """
SELECT CASE WHEN value LIKE 'pthread%' THEN 'pthread' ELSE 'osrt' END, globalTid >> 24 & 0xFFFFFF, globalTid & 0xFFFFFF, value,
       start, max(end, start + 1), nestingLevel
FROM OSRT_API LEFT JOIN StringIds ON id = nameId WHERE eventClass = 27
"""


@dataclass(frozen=True)
class Call:
    """A call: process and thread id, label, times in ns, and how many calls it lies within."""

    kind: str
    pid: int
    tid: int
    name: str
    begin: int
    end: int
    level: int


@dataclass
class Pair:
    """The calls of an export, by SQL, and a trace of it that holds nothing else (an empty one where
    nothing was written).
    """

    path: Path
    calls: list[Call]
    trace: Trace
    summary: Summary | None = None


def read_true_calls(path: Path, zero: int = 0) -> list[Call]:
    """Return the calls of an export, in ns since a time."""
    connection = sqlite3.connect(f"file:{path.absolute()}?mode=ro&immutable=1", uri=True)
    try:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'OSRT_API'").fetchone():
            return []
        rows = connection.execute(SELECT).fetchall()
    finally:
        connection.close()
    return [
        Call(kind, pid, tid, make_label(name), begin - zero, end - zero, level)
        for kind, pid, tid, name, begin, end, level in rows
    ]


def convert_calls(
    paths: Iterable[Path], output: Path, **options: object
) -> tuple[Trace, Summary | None]:
    """Convert the calls of these exports."""
    try:
        summary = convert(list(paths), output, Options(kinds=tuple(CODES), **options))
    except NothingToWrite:
        return Trace(), None
    return read_trace(output), summary


def read_traced_calls(trace: Trace) -> list[Call]:
    """Return the calls of a trace.

    The level of each is how many calls of its thread, of either kind, it lies within.
    """
    ranges = defaultdict(list)
    for kind, code in CODES.items():
        for item in trace.list_intervals(code):
            ranges[item.row].append(
                (item.begin, -item.end, kind, trace.get_label(code, item.value))
            )
    calls = []
    for row, items in ranges.items():
        pid, tid = (
            int(trace.get_task_name(row).split()[-1]),
            int(trace.get_row_name(row).split()[-1]),
        )
        around: list[int] = []
        for begin, minus_end, kind, name in sorted(items):
            while around and around[-1] <= begin:
                around.pop()
            calls.append(Call(kind, pid, tid, name, begin, -minus_end, len(around)))
            around.append(-minus_end)
    return calls


def sum_totals(calls: Iterable[Call]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return kind and name -> count and total duration."""
    counts: Counter[tuple[str, str]] = Counter()
    sums: Counter[tuple[str, str]] = Counter()
    for call in calls:
        counts[call.kind, call.name] += 1
        sums[call.kind, call.name] += call.end - call.begin
    return {key: (count, sums[key]) for key, count in counts.items()}


@pytest.fixture(scope="module", params=REPORTS, ids=name_report)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    output = tmp_path_factory.mktemp("trace") / "out.prv"
    trace, summary = convert_calls([request.param], output)
    zero = find_time_zero(output, request.param) if summary else 0
    return Pair(request.param, read_true_calls(request.param, zero), trace, summary)


@pytest.mark.slow
def test_a_trace_is_written_unless_there_are_no_calls(pair: Pair) -> None:
    assert (pair.summary is not None) == bool(pair.calls)


def test_the_trace_is_sound_and_nothing_is_lost(pair: Pair) -> None:
    assert not pair.trace.violations, str(pair.trace.violations)
    if pair.summary:
        assert pair.summary.dropped == pair.summary.repaired == {}
        assert pair.trace.duration >= max(call.end for call in pair.calls)


def test_every_call_begins_and_ends_where_it_did_and_as_deep(pair: Pair) -> None:
    assert Counter(read_traced_calls(pair.trace)) == Counter(pair.calls)


def test_short_calls_are_dropped_and_counted(pair: Pair, tmp_path: Path) -> None:
    trace, summary = convert_calls(
        [pair.path], tmp_path / "out.prv", min_duration=dict.fromkeys(CODES, LEAST_NS)
    )
    assert not trace.violations, str(trace.violations)
    long = [call for call in pair.calls if call.end - call.begin >= LEAST_NS]
    assert sum_totals(read_traced_calls(trace)) == sum_totals(long)
    if summary:
        assert sum(summary.dropped.values()) == len(pair.calls) - len(long)


def test_counts_and_durations_add_up_over_exports(tmp_path: Path) -> None:
    """In one compressed trace of all exports, whose processes and names meet in it (their times are
    years apart).
    """
    skip_without_corpus()
    trace, _ = convert_calls(EXPORTS, tmp_path / "out.prv.gz")
    result = (
        (kind, trace.get_label(code, item.value), item.end - item.begin)
        for kind, code in CODES.items()
        for item in trace.list_intervals(code)
    )
    assert sum_totals(
        Call(kind, 0, 0, name, 0, duration, 0) for kind, name, duration in result
    ) == sum_totals(call for path in EXPORTS for call in read_true_calls(path))
