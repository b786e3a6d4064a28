"""Test profiler overhead and messages of nsys, against the samples' truth and plain SQL on a folder
of real exports.
"""

import json
import re
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from tools.conversions import convert_and_read
from tools.corpus import REPORTS, name_report
from tools.exports import KERNEL, Row, make_export, make_global_pid, make_kernel, make_strings
from tools.sql_truth import make_label, read_thread_owners
from tools.trace import Trace

from nsys2prv._util.errors import NothingToWrite
from nsys2prv.cli import main
from nsys2prv.events.kind import Reason
from nsys2prv.export.outlines import TIMES

SAMPLES = Path(__file__).parents[2] / "sample_reports"
OVERHEAD, TYPE, SEVERITY, SOURCE, TEXT = 69201100, 69201101, 69201110, 69201111, 69201112
TABLES = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")
MESSAGES = "DIAGNOSTIC_EVENT"
FAKE_PROCESSES = (0, 0xFFFFFF)


def open_database(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"file:{path.absolute()}?mode=ro&immutable=1", uri=True)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    return connection


def list_columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def count_overheads(connection: sqlite3.Connection) -> Counter[tuple]:
    """Count ranges by (pid, tid, name, duration, type or None if there is none)."""
    result: Counter[tuple] = Counter()
    for table in TABLES:
        if have := list_columns(connection, table):
            kind = "nullif(overheadType, 0)" if "overheadType" in have else "NULL"
            result.update(
                (pid, tid, make_label(name), duration, what)
                for pid, tid, name, duration, what in connection.execute(
                    f"SELECT globalTid >> 24 & 0xFFFFFF, globalTid & 0xFFFFFF, value, max(end - start, 1), {kind} FROM {table} "
                    "LEFT JOIN StringIds ON id = nameId"
                )
            )
    return result


def copy_profiler_events(path: Path, folder: Path) -> Path:
    """Copy an export without events other than the profiler's.

    Beside others, its rows from before the first or after the last of those are cut or left out.
    """
    copy = Path(shutil.copy(path, folder / path.name))
    copy.chmod(0o644)
    with closing(sqlite3.connect(copy)) as connection:
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall()
        for (table,) in tables:
            if table not in (*TABLES, MESSAGES) and {*TIMES} & {*list_columns(connection, table)}:
                connection.execute(f'DROP TABLE "{table}"')
        connection.commit()
    return copy


def get_process(trace: Trace, row: tuple[int, int]) -> int:
    return trace.find_process(row)


def get_thread(trace: Trace, row: tuple[int, int]) -> int:
    return int(trace.get_row_name(row).split()[-1])


@pytest.fixture(scope="module", params=REPORTS, ids=name_report)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[sqlite3.Connection, Trace, dict]:
    connection = open_database(request.param)
    folder = tmp_path_factory.mktemp("trace")
    try:
        trace, summary = convert_and_read(
            [copy_profiler_events(request.param, folder)], folder / "o.prv", kinds=("profiler",)
        )
        events = summary.events
        assert summary.dropped == {}
        trace.owners = read_thread_owners(request.param)
    except NothingToWrite:
        trace, events = Trace(), {}
    return connection, trace, events


def test_overhead_by_thread_name_and_type(pair: tuple[sqlite3.Connection, Trace, dict]) -> None:
    connection, trace, events = pair
    expected = count_overheads(connection)
    actual = Counter(
        (
            get_process(trace, item.row),
            get_thread(trace, item.row),
            trace.get_label(OVERHEAD, item.value),
            item.end - item.begin,
            item.others.get(TYPE),
        )
        for item in trace.list_intervals(OVERHEAD)
    )
    assert actual == expected
    assert events.get("profiler_overhead", 0) == expected.total()


def test_messages_by_process_severity_and_source(
    pair: tuple[sqlite3.Connection, Trace, dict],
) -> None:
    """Messages of no process are on the main process, which has messages of its own."""
    connection, trace, _ = pair
    expected = Counter(
        connection.execute(
            f"SELECT globalPid >> 24 & 0xFFFFFF, severity, source FROM {MESSAGES}"
        ).fetchall()
        if list_columns(connection, MESSAGES)
        else []
    )
    items = trace.list_intervals(SEVERITY)
    assert all(
        get_process(trace, item.row) == get_thread(trace, item.row) and item.end - item.begin == 1
        for item in items
    )
    result = Counter(
        (get_process(trace, item.row), item.value, item.others[SOURCE]) for item in items
    )
    own = Counter({key: count for key, count in expected.items() if key[0] not in FAKE_PROCESSES})
    of_none = Counter(
        (severity, source) for pid, severity, source in expected.elements() if pid in FAKE_PROCESSES
    )
    assert own <= result
    rest = result - own
    assert Counter((severity, source) for _, severity, source in rest.elements()) == of_none
    assert len({pid for pid, _, _ in rest}) <= 1


def test_texts_have_no_folder_and_begin_as_the_messages_do(
    pair: tuple[sqlite3.Connection, Trace, dict],
) -> None:
    connection, trace, _ = pair
    labels = [text for value, text in trace.labels.values.get(TEXT, {}).items() if value]
    assert not [text for text in labels if re.search(r"(^|\s)(/|[A-Z]:\\)[^\s/]+[/\\]", text)]
    assert max(map(len, labels), default=0) <= 160
    texts = (
        [text for (text,) in connection.execute(f"SELECT DISTINCT text FROM {MESSAGES}")]
        if list_columns(connection, MESSAGES)
        else []
    )
    words = {" ".join(re.split(r"/|\\|\n|[A-Z]:", text)[0].split())[:80] for text in texts}
    assert not [
        start
        for start in words
        if not any(text.startswith(start.removesuffix(" C")) for text in labels)
    ]


def test_losses_come_first_in_the_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = json.loads((SAMPLES / "machine" / "truth.json").read_text())
    messages = truth["ranks"][0]["additions"]["profiler"]["messages"]
    reports = [str(SAMPLES / "machine" / rank["report"]) for rank in truth["ranks"]]
    assert main(["-v", *reports, str(tmp_path / "o.prv")]) == 0
    output = capsys.readouterr()
    quoted = [
        line[line.index("Nsight Systems ") :]
        for line in output.out.splitlines()
        if line.strip().removeprefix("Quality").strip().startswith("Nsight Systems ")
    ]
    order = [
        next((item["tells"] for item in messages if item["begins"].strip() in line), "warning")
        for line in quoted
    ]
    assert order == ["lost", "fallback", "error", "warning"]
    assert all(
        ' in rank0.sqlite, rank1.sqlite: "' in line and " times" not in line for line in quoted
    )
    assert quoted[-1].endswith(
        ': "Scheduling information is absent.". Check whether you need the missing data'
    )
    assert main(["report", *reports, "--json", str(tmp_path / "r.json")]) == 0
    assert (
        quoted[0].partition(". Trace fewer")[0]
        in json.loads((tmp_path / "r.json").read_text())["job"]["quality"][0]["text"]
    )
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir()).decode()
    assert "planted-user" not in written + output.err + output.out
    assert "Loaded CUPTI library: libcupti.so.13.1" in written


def message(at: int, text: str, severity: int = 1, pid: int | None = 10, source: int = 3) -> Row:
    return {
        "timestamp": at,
        "timestampType": 1,
        "source": source,
        "severity": severity,
        "text": text,
        "globalPid": None if pid is None else make_global_pid(pid),
    }


def test_messages_do_not_make_the_trace_longer_than_what_it_shows(tmp_path: Path) -> None:
    rows = [
        message(-900, "set up"),
        message(5, "Profiling has started."),
        message(100, "Profiling has stopped.", pid=None),
        message(5000, "made", 77, source=-1),
    ]
    report = make_export(
        tmp_path / "r.sqlite",
        {MESSAGES: rows, KERNEL: [make_kernel(20, 60)], "StringIds": make_strings("k")},
    )
    trace, summary = convert_and_read([report], tmp_path / "o.prv")
    assert trace.duration == 40
    assert sorted(
        (trace.get_label(TEXT, item.value), item.begin) for item in trace.list_intervals(TEXT)
    ) == [
        ("Profiling has started.", 0),
        ("Profiling has stopped.", 39),
        ("made", 39),
        ("set up", 0),
    ]
    assert sorted(summary.repaired.values()) == [2, 4]
    assert sorted(
        trace.get_label(SEVERITY, item.value) for item in trace.list_intervals(SEVERITY)
    ) == ["Info"] * 3 + ["Unknown"]


def test_overhead_is_cut_to_what_else_there_is(tmp_path: Path) -> None:
    """What lies wholly outside is left out, and both that and what is cut are counted."""
    spans = [(0, 10), (5, 30), (32, 35), (50, 90), (60, 70), (0, 100)]
    rows = [
        {"start": start, "end": end, "globalTid": 7 << 24 | 7, "nameId": 1} for start, end in spans
    ]
    report = make_export(
        tmp_path / "r.sqlite",
        {"PROFILER_OVERHEAD": rows, KERNEL: [make_kernel(20, 60)], "StringIds": make_strings("k")},
    )
    trace, summary = convert_and_read([report], tmp_path / "o.prv")
    assert trace.duration == 40
    assert sorted((item.begin, item.end) for item in trace.list_intervals(OVERHEAD)) == [
        (0, 10),
        (0, 40),
        (12, 15),
        (30, 40),
    ]
    assert sum(summary.dropped.values()) == 2
    assert summary.repaired == {("profiler_overhead", Reason.CUT_TO_PROGRAM): 3}
    assert summary.events["profiler_overhead"] == 4


@pytest.mark.parametrize(
    "row",
    [
        {"timestamp": 5},
        {"text": "lost"},
        {"severity": 2, "text": "Not all"},
        {"globalPid": "x", "timestamp": "y", "severity": "z", "source": None, "text": None},
    ],
)
def test_messages_without_their_columns_end_in_no_traceback(tmp_path: Path, row: Row) -> None:
    report = make_export(
        tmp_path / "r.sqlite",
        {
            MESSAGES: [row],
            KERNEL: [make_kernel(20, 60)],
            "StringIds": make_strings("k"),
            "OSRT_FILE_ACCESS_EVENTS": [{"startedAt": 20, "endedAt": 30}],
        },
    )
    trace, summary = convert_and_read([report], tmp_path / "o.prv")
    assert (
        len(trace.list_intervals(SEVERITY))
        == summary.events.get("diagnostic", 0)
        == (row.get("timestamp") == 5)
    )
    assert len(trace.list_intervals(68007000)) == 1
