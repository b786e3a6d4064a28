"""Test that thread states and CPU samples of a trace equal the result of plain SQL on the export,
for a folder of real exports.

NSYS2PRV_CORPUS names the folder. As in ``test_truth_corpus``, the converter is never compared with
itself.
"""

import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tools.conversions import find_time_zero
from tools.corpus import REPORTS, name_report
from tools.sql_truth import make_label, read_thread_owners
from tools.trace_reader import Trace, read_trace

from nsys2prv import Options, Summary, convert
from nsys2prv._util.errors import NothingToWrite

STATE, CPU, FUNCTION, MODULE, CALLER = 67000000, 67000002, 67000100, 67000101, 67000200
FRAMES = 4
#: Process and thread id.
Thread = tuple[int, int]

OF_PROCESSES = [
    ("PROFILER_OVERHEAD", "globalTid"),
    ("ProcessStreams", "globalPid"),
    ("DIAGNOSTIC_EVENT", "globalPid"),
    ("MPI_RANKS", "globalTid"),
]
STATES = """
SELECT globalTid >> 24 & 0xFFFFFF, globalTid & 0xFFFFFF,
       CASE WHEN isSchedIn THEN 'Running' WHEN coalesce({threadState}, 0) = 0 THEN 'Off the CPU'
            ELSE (SELECT label FROM ENUM_SAMPLING_THREAD_STATE WHERE id = {threadState}) END,
       CASE WHEN isSchedIn THEN cpu + 1 ELSE 0 END, start,
       CASE WHEN {ends} THEN start + 1 ELSE lead(start, 1, {end}) OVER (PARTITION BY globalTid ORDER BY start, rowid) END
FROM SCHED_EVENTS WHERE globalTid >> 24 IN ({own})
"""
SAMPLES = """
SELECT globalTid >> 24 & 0xFFFFFF, globalTid & 0xFFFFFF, stackDepth, f.value, m.value, count(*)
FROM COMPOSITE_EVENTS e JOIN SAMPLING_CALLCHAINS c ON c.id = e.id LEFT JOIN StringIds f ON f.id = symbol
     LEFT JOIN StringIds m ON m.id = module
WHERE globalTid >> 24 IN ({own}) AND stackDepth < 4 GROUP BY 1, 2, 3, 4, 5
"""


@dataclass
class Truth:
    """states: thread, state, CPU + 1, begin and end (trace time, ns). functions: thread, depth and
    label -> samples. last: of all events (trace time).
    """

    states: Counter[tuple[Thread, str, int, int, int]] = field(default_factory=Counter)
    functions: Counter[tuple[Thread, int, str]] = field(default_factory=Counter)
    modules: Counter[tuple[Thread, str]] = field(default_factory=Counter)
    others: int = 0
    last: int = 0


@dataclass
class Pair:
    path: Path
    truth: Truth
    trace: Trace
    summary: Summary | None = None


def load_truth(path: Path, zero: int, duration: int) -> Truth:
    """Return the truth about an export, read once."""
    connection = sqlite3.connect(f"file:{path.absolute()}?mode=ro&immutable=1", uri=True)
    try:
        return _read_truth(connection, zero, duration)
    finally:
        connection.close()


def _read_truth(connection: sqlite3.Connection, zero: int, duration: int) -> Truth:
    tables = {
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    }
    event_tables = [table for table in ("SCHED_EVENTS", "COMPOSITE_EVENTS") if table in tables]
    pieces = [
        f"SELECT {column} >> 24 AS process FROM {table}"
        for table, column in OF_PROCESSES
        if table in tables
    ]
    pieces = (
        pieces
        if pieces and connection.execute(" UNION ".join(pieces)).fetchone()
        else [f"SELECT globalTid >> 24 AS process FROM {table}" for table in event_tables]
    )
    if not event_tables:
        return Truth()
    own = " UNION ".join(pieces)
    columns = {row[1] for row in connection.execute("PRAGMA table_info(SCHED_EVENTS)")}
    ends = "NOT isSchedIn AND coalesce(threadState, 0) = 5" if "threadState" in columns else "0"
    times = [
        connection.execute(
            f"SELECT min(start), max(start + ({ends if table == 'SCHED_EVENTS' else '0'})) FROM {table} "
            f"WHERE globalTid >> 24 IN ({own})"
        ).fetchone()
        for table in event_tables
    ]
    times = [(first, last) for first, last in times if first is not None]
    if not times:
        return Truth()
    end = zero + duration
    truth = Truth(last=max(last for _, last in times) - zero)
    for table in event_tables:
        truth.others += connection.execute(
            f"SELECT count(*) FROM {table} WHERE NOT globalTid >> 24 IN ({own})"
        ).fetchone()[0]
    if "SCHED_EVENTS" in event_tables:
        query = STATES.format(
            threadState="threadState" if "threadState" in columns else "NULL",
            end=end,
            own=own,
            ends=ends,
        )
        if "threadState" not in columns:
            query = query.replace(
                "(SELECT label FROM ENUM_SAMPLING_THREAD_STATE WHERE id = NULL)", "NULL"
            )
        truth.states.update(
            ((pid, tid), state, cpu, begin - zero, until - zero)
            for pid, tid, state, cpu, begin, until in connection.execute(query)
        )
    if "COMPOSITE_EVENTS" in event_tables:
        for pid, tid, depth, function, module, count in connection.execute(SAMPLES.format(own=own)):
            name = module.rstrip("/").split("/")[-1]
            truth.functions[
                (pid, tid),
                depth,
                make_label(f"unresolved in {name}" if function.startswith("0x") else function),
            ] += count
            truth.modules[(pid, tid), make_label(name)] += count if not depth else 0
    return truth


def get_thread(trace: Trace, row: tuple[int, int]) -> Thread:
    return trace.find_process(row), int(trace.get_row_name(row).split()[-1])


@pytest.fixture(scope="module", params=REPORTS, ids=name_report)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    output = tmp_path_factory.mktemp("trace") / "out.prv"
    try:
        summary = convert([request.param], output, Options(kinds=("cpu",), callstack=FRAMES))
    except NothingToWrite:
        return Pair(request.param, load_truth(request.param, 0, 0), Trace())
    trace = read_trace(output)
    trace.owners = read_thread_owners(request.param)
    truth = load_truth(request.param, find_time_zero(output, request.param), trace.duration)
    return Pair(request.param, truth, trace, summary)


def test_the_trace_is_sound_and_others_are_counted(pair: Pair) -> None:
    assert (pair.summary is not None) == bool(pair.truth.states or pair.truth.functions)
    assert not pair.trace.violations, str(pair.trace.violations)
    if pair.summary:
        assert sum(pair.summary.dropped.values()) == pair.truth.others
        assert not pair.summary.repaired
        assert pair.trace.duration > pair.truth.last


def test_every_state_stands_where_it_did(pair: Pair) -> None:
    result = Counter(
        (
            get_thread(pair.trace, item.row),
            pair.trace.get_label(STATE, item.value),
            item.others[CPU],
            item.begin,
            item.end,
        )
        for item in pair.trace.list_intervals(STATE)
    )
    assert result == pair.truth.states


def test_samples_by_function_and_caller(pair: Pair) -> None:
    result = Counter(
        (get_thread(pair.trace, item.row), 0, pair.trace.get_label(FUNCTION, item.value))
        for item in pair.trace.list_intervals(FUNCTION)
    )
    for depth in range(1, FRAMES):
        result.update(
            (
                get_thread(pair.trace, item.row),
                depth,
                pair.trace.get_label(CALLER + depth, item.value),
            )
            for item in pair.trace.list_intervals(CALLER + depth)
        )
    assert result == pair.truth.functions


def test_samples_by_module(pair: Pair) -> None:
    result = Counter(
        (get_thread(pair.trace, item.row), pair.trace.get_label(MODULE, item.value))
        for item in pair.trace.list_intervals(MODULE)
    )
    assert result == +pair.truth.modules
