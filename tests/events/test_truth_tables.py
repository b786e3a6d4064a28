"""Every table with rows is translated or has a reason why not; file accesses, graphics and
libraries are as SQL and the truth say.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tools.conversions import convert_and_read
from tools.corpus import CORPUS, EXPORTS, UNSET
from tools.sql_truth import make_label
from tools.trace import Interval, Trace

from nsys2prv._util.errors import NothingToWrite
from nsys2prv.cli import main
from nsys2prv.events import all_kinds
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.kind import UNKNOWN_TABLE, explain_unread_table

SAMPLES = Path(__file__).parents[2] / "sample_reports"
ALL_SAMPLES = sorted(SAMPLES.glob("*/rank*.sqlite"))
CALL, ACTION, BYTES, FILE = range(68007000, 68007004)
PROCESS = 68007100
LINES = {line.table: line for line in load_catalogue().calls.values()}


def open_database(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{path.absolute()}?mode=ro&immutable=1", uri=True)


def list_tables_with_rows(path: Path) -> set[str]:
    connection = open_database(path)
    names = [
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]
    return {
        name for name in names if connection.execute(f'SELECT 1 FROM "{name}" LIMIT 1').fetchone()
    }


# ---------------------------------------------------------------------------------------------- kinds and reasons
def build_name_sql(path: Path | None) -> str:
    return f"{path.parent.name}-{path.stem}" if path else "corpus"


@pytest.mark.parametrize("path", [*ALL_SAMPLES, *(EXPORTS or [UNSET])], ids=build_name_sql)
def test_every_table_with_rows_has_a_kind_or_a_reason(path: Path) -> None:
    translated = {table for kind in all_kinds() for table in kind.tables}
    assert [
        table
        for table in sorted(list_tables_with_rows(path) - translated)
        if explain_unread_table(table) == UNKNOWN_TABLE
    ] == []


@pytest.mark.parametrize(
    "path", [SAMPLES / "machine" / "rank0.sqlite", *EXPORTS[::12]], ids=lambda path: path.stem
)
def test_the_list_names_every_table_with_rows(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--list", str(path)]) == 0
    listed = capsys.readouterr().out
    words = listed.replace("(", " ").replace(")", " ").replace(",", " ").split()
    expected = list_tables_with_rows(path)
    enums = {table for table in expected if table.startswith("ENUM_")}
    assert [table for table in sorted(expected - enums) if table not in words] == []
    assert not enums or f"{len(enums)} tables ENUM_..." in listed


def test_a_table_of_tomorrow_is_named_as_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE TOMORROW_EVENTS (start INTEGER); INSERT INTO TOMORROW_EVENTS VALUES (1)"
    )
    connection.close()
    assert main(["--list", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index(f"  {UNKNOWN_TABLE}:") + 1] == "    TOMORROW_EVENTS (1)"


# --------------------------------------------------------------------------------------------------- file accesses
@pytest.fixture(
    scope="module", params=EXPORTS or [UNSET], ids=lambda path: path.stem if path else "corpus"
)
def exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[sqlite3.Connection, Trace]:
    kinds = ("file_accesses", *load_catalogue().calls)
    try:
        trace, summary = convert_and_read(
            [request.param], tmp_path_factory.mktemp("trace") / "o.prv", kinds=kinds
        )
        assert summary.dropped == {}
    except NothingToWrite:
        trace = Trace()
    return open_database(request.param), trace


def locate(trace: Trace, item: Interval) -> tuple[int, int]:
    """Return process and thread id of a range."""
    return int(trace.get_task_name(item.row).split()[-1]), int(
        trace.get_row_name(item.row).split()[-1]
    )


def test_file_accesses_of_exports(exported: tuple[sqlite3.Connection, Trace]) -> None:
    connection, trace = exported
    expected: Counter[tuple] = Counter()
    if connection.execute(
        "SELECT 1 FROM sqlite_master WHERE name = 'OSRT_FILE_ACCESS_EVENTS'"
    ).fetchone():
        expected.update(
            (pid, tid, make_label(name), kind, size, make_label(path), duration)
            for pid, tid, name, kind, size, path, duration in connection.execute(
                "SELECT processId, threadId, value, eventType, nullif(bytesProcessed, 0), filePath, max(endedAt - startedAt, 1) "
                "FROM OSRT_FILE_ACCESS_EVENTS JOIN OSRT_FILE_ACCESS_DESCRIPTORS USING (fileAccessId) JOIN StringIds ON id = apiCallId"
            )
        )
    actual = Counter(
        (
            *locate(trace, item),
            trace.get_label(CALL, item.value),
            item.others[ACTION],
            item.others.get(BYTES),
            trace.get_label(FILE, item.others[FILE]),
            item.end - item.begin,
        )
        for item in trace.list_intervals(CALL)
    )
    assert actual == expected


def test_calls_and_work_of_exports(exported: tuple[sqlite3.Connection, Trace]) -> None:
    """Every table of the lines that an export has rows of, by process, thread or queue, name and
    duration.
    """
    connection, trace = exported
    have = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    for table in have & LINES.keys():
        line = LINES[table]
        assert (line.names == ("nameId",) and line.has_duration) or not connection.execute(
            f"SELECT 1 FROM {table} LIMIT 1"
        ).fetchone(), table
        place = f"'{line.queue} GPU' || {line.gpu}" if line.queue else "globalTid & 0xFFFFFF"
        rows = (
            connection.execute(
                f"SELECT globalTid >> 24 & 0xFFFFFF, {place}, value, max(end - start, 1) FROM {table} "
                "JOIN StringIds ON StringIds.id = nameId"
            ).fetchall()
            if line.names == ("nameId",) and line.has_duration
            else []
        )
        expected = Counter(
            (pid, str(where_), make_label(name), duration) for pid, where_, name, duration in rows
        )
        actual = Counter(
            (
                int(trace.get_task_name(item.row).split()[-1]),
                trace.get_row_name(item.row)
                if line.queue
                else trace.get_row_name(item.row).split()[-1],
                trace.get_label(line.code, item.value),
                item.end - item.begin,
            )
            for item in trace.list_intervals(line.code)
        )
        assert actual == expected, table


# ------------------------------------------------------------------------------------------------------ the samples
class Machine:
    """Hold the set `machine`, of one host whose clock nothing is compared with: durations are the
    truth's.
    """

    def __init__(self, folder: Path) -> None:
        self.truth: dict[str, Any] = json.loads((SAMPLES / "machine" / "truth.json").read_text())
        reports = [SAMPLES / "machine" / rank["report"] for rank in self.truth["ranks"]]
        self.trace, self.summary = convert_and_read(reports, folder / "o.prv", align="none")

    def list_intervals(self, rank: int, code: int) -> list[Interval]:
        return [item for item in self.trace.list_intervals(code) if item.row[0] == rank + 1]

    def sum_by_label(self, rank: int, code: int) -> dict[str, dict[str, dict[str, int]]]:
        """Return place (distance of the thread from the pid, or the queue's word) -> name -> rows
        and ns.
        """
        pid = self.truth["ranks"][rank]["pid"]
        result: dict[str, dict[str, dict[str, int]]] = {}
        for item in self.list_intervals(rank, code):
            row = self.trace.get_row_name(item.row)
            place = row.split(" GPU")[0] if " GPU" in row else str(int(row.split()[-1]) - pid)
            entry = result.setdefault(place, {}).setdefault(
                self.trace.get_label(code, item.value), {"rows": 0, "ns": 0}
            )
            entry["rows"] += 1
            entry["ns"] += item.end - item.begin
        return result


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("machine"))


@pytest.mark.parametrize("rank", [0, 1])
def test_graphics_and_libraries_of_the_sample(machine: Machine, rank: int) -> None:
    truth = machine.truth["ranks"][rank]["additions"]["graphics"]
    for table, expected in truth["tables"].items():
        assert machine.sum_by_label(rank, LINES[table].code) == expected, table
    frames = {
        item.others[LINES["OPENGL_API"].code + 2]
        for item in machine.list_intervals(rank, LINES["OPENGL_API"].code)
    }
    assert frames == set(range(1, truth["frames"] + 1))
    rows = {
        machine.trace.get_row_name(item.row)
        for item in machine.list_intervals(rank, LINES["VULKAN_WORKLOAD"].code)
    }
    assert rows == {f"Vulkan GPU{machine.truth['ranks'][rank]['gpu_index_on_host']}"}


@pytest.mark.parametrize("rank", [0, 1])
def test_file_accesses_of_the_sample(machine: Machine, rank: int) -> None:
    truth = machine.truth["ranks"][rank]["additions"]["system"]["file_accesses"]
    assert machine.sum_by_label(rank, CALL) == truth["by_thread"]
    moved: Counter[str] = Counter()
    for item in machine.list_intervals(rank, CALL):
        moved[machine.trace.get_label(FILE, item.others[FILE])] += item.others.get(BYTES, 0)
    assert moved == truth["bytes_by_file"]


@pytest.mark.parametrize("rank", [0, 1])
def test_contexts_on_gpus_of_the_sample(machine: Machine, rank: int) -> None:
    truth = machine.truth["ranks"][rank]["additions"]["system"]["gpu_contexts"]
    result: dict[str, dict[str, int]] = {}
    still: dict[str, int] = {}
    for item in machine.trace.list_intervals(PROCESS):
        if machine.trace.get_row_name(item.row) != f"Contexts GPU{rank}":
            continue
        pid = machine.trace.get_label(PROCESS, item.value).split()[-1]
        if item.end == machine.trace.duration:
            still[pid] = item.begin
            continue
        entry = result.setdefault(pid, {"rows": 0, "ns": 0})
        entry["rows"] += 1
        entry["ns"] += item.end - item.begin
    assert result == truth["by_process"]
    assert still.keys() == truth["open"].keys()
    dropped = {
        reason_: count
        for (kind, reason_), count in machine.summary.dropped.items()
        if kind == "gpu_contexts"
    }
    repaired = [
        count for (kind, _), count in machine.summary.repaired.items() if kind == "gpu_contexts"
    ]
    ranks = len(machine.truth["ranks"])
    assert list(dropped.values()) == [truth["before"] * ranks]
    assert sorted(repaired) == [truth["lost"] * ranks, len(truth["open"]) * ranks]
    assert {
        machine.trace.get_task_name(item.row) for item in machine.trace.list_intervals(PROCESS)
    } == {"devices of node01"}


@pytest.mark.skipif(not CORPUS, reason="no corpus")
def test_the_corpus_has_what_these_tests_are_for() -> None:
    met = set().union(*(list_tables_with_rows(path) for path in EXPORTS))
    assert {
        "OSRT_FILE_ACCESS_EVENTS",
        "PROFILER_OVERHEAD",
        "CUPTI_ACTIVITY_KIND_OVERHEAD",
        "DIAGNOSTIC_EVENT",
        "CUDNN_EVENTS",
    } <= met
