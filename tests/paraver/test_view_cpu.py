"""Views of the CPU: what paramedir makes of them on the sample and on two real exports, against the
truth and the trace itself.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from tools.corpus import EXPORTS, UNSET
from tools.installed_views import VIEWS, find_view_path, install_views
from tools.trace import Trace
from tools.trace_reader import read_trace
from tools.view_answers import PARAMEDIR, needs_paraver
from tools.view_reader import find_reason_to_ask

from nsys2prv import Options, convert

pytestmark = needs_paraver
STATE, REASON, CPU, FUNCTION, MODULE = 67000000, 67000001, 67000002, 67000100, 67000101
MACHINE = sorted((Path(__file__).parents[2] / "sample_reports" / "machine").glob("rank*.sqlite"))
#: Real exports with thread states and samples: with recorded states of 2025, and without of 2022.
CHOSEN = [path for path in EXPORTS if path.name.startswith(("p4arth__cuda-perf", "NCAR__GPU"))]
#: Shares are printed with two decimals.
ROUGHLY = 0.0051
#: View -> its rows: name, and what is not 0 by column.
Tables = dict[str, list[tuple[str, dict[str, float]]]]


def run_cpu_views(exports: list[Path], folder: Path) -> tuple[Trace, Tables, str]:
    """Convert exports; return the trace, the tables that paramedir makes of the views of the CPU,
    and its messages.
    """
    trace = folder / "out.prv"
    convert(exports, trace, Options(kinds=("cpu",), callstack=2))
    trace_read = read_trace(trace)
    views = [
        view
        for view in VIEWS
        if not find_reason_to_ask(view.cfg, set(trace_read.labels.types))
        and ("cpu" in view.path or "thread" in view.path)
    ]
    outputs = {
        view.path: folder / view.path.replace("/", "_").removesuffix(".cfg") for view in views
    }
    arguments = [
        argument
        for view, output in outputs.items()
        for argument in (install_views() / view, output)
    ]
    process = subprocess.run(
        [str(PARAMEDIR), str(trace), *arguments],
        env={**os.environ, "HOME": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=600,
        check=False,
    )
    tables = {
        view.path: _read_rows(outputs[view.path].read_text(errors="replace"))
        for view in views
        if view.cfg.histogram
    }
    return trace_read, tables, process.stdout


def _read_rows(text: str) -> list[tuple[str, dict[str, float]]]:
    head, *rows = text.split("\n\n")[0].splitlines()
    return [
        (
            row.split("\t")[0],
            {
                name: float(cell)
                for name, cell in zip(head.split("\t")[1:], row.split("\t")[1:], strict=True)
                if name and float(cell)
            },
        )
        for row in rows
    ]


@pytest.fixture(
    scope="module",
    params=[MACHINE, *([path] for path in CHOSEN or [UNSET.values[0]])],
    ids=["machine", *(path.stem for path in CHOSEN or [Path("corpus")])],
)
def views(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Trace, Tables, str]:
    if request.param == [None]:
        pytest.skip("NSYS2PRV_CORPUS does not name a folder of .sqlite exports")
    return run_cpu_views(request.param, tmp_path_factory.mktemp("cpu"))


def sum_by_row(trace: Trace, code: int, weigh: str) -> list[tuple[str, dict[str, float]]]:
    """Return row -> label -> time or number of intervals of a type, of all rows."""
    rows = [
        (task, thread)
        for task, (threads, _) in enumerate(trace.tasks, 1)
        for thread in range(1, threads + 1)
    ]
    sums: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    for item in trace.list_intervals(code):
        sums[item.row][trace.get_label(code, item.value)] += (
            item.end - item.begin if weigh == "time" else 1
        )
    return [(trace.get_row_name(row), dict(sums[row])) for row in rows]


def test_paraver_does_not_complain(views: tuple[Trace, Tables, str]) -> None:
    _, tables, output = views
    assert tables
    assert not [
        line
        for line in output.splitlines()
        if "rror" in line or "Cannot" in line or "Some of the events" in line
    ]


def test_tables_by_state_reason_function_and_module(views: tuple[Trace, Tables, str]) -> None:
    trace, tables, _ = views
    for view, code, weigh in (
        ("thread_state_time_2dh", STATE, "time"),
        ("thread_state_calls_2dh", STATE, "count"),
        ("thread_off_cpu_time_2dh", REASON, "time"),
        ("cpu_samples_2dh", FUNCTION, "count"),
        ("cpu_samples_by_module_2dh", MODULE, "count"),
    ):
        if code in trace.labels.types:
            assert tables[find_view_path(f"analysis/{view}.cfg")] == sum_by_row(
                trace, code, weigh
            ), view


def test_time_by_cpu_and_by_threads_that_run(views: tuple[Trace, Tables, str]) -> None:
    trace, tables, _ = views
    times: Counter[int] = Counter()
    changes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for item in trace.list_intervals(STATE):
        if item.others[CPU]:
            times[item.others[CPU]] += item.end - item.begin
            changes[item.row[0]] += [(item.begin, 1), (item.end, -1)]
    result = Counter()
    for _, row in tables["extra/analysis/thread_cpu_time_2dh.cfg"]:
        result.update({int(column.removeprefix("value ")): time for column, time in row.items()})
    assert result == times
    expected = []
    for task in range(1, len(trace.tasks) + 1):
        running, before, spent = 0, 0, Counter()
        for time, change in sorted(changes[task]):
            spent[str(running)] += time - before
            running, before = running + change, time
        expected.append({number: time for number, time in spent.items() if time and number != "0"})
    assert [row for _, row in tables["extra/analysis/threads_running_2dh.cfg"]] == expected


def test_the_sample_is_as_its_truth_has_it(tmp_path: Path) -> None:
    _, tables, _ = run_cpu_views(MACHINE, tmp_path)
    truth = {
        thread: figures
        for rank in json.loads((MACHINE[0].parent / "truth.json").read_text())["ranks"]
        for thread, figures in rank["additions"]["cpu"]["threads"].items()
    }
    times = {
        name.split()[-1]: row
        for name, row in tables["extra/analysis/thread_state_time_2dh.cfg"]
        if name.startswith("THREAD")
    }
    assert {thread: row["Running"] for thread, row in times.items()} == {
        thread: true["running_ns"] for thread, true in truth.items()
    }
    samples = {
        name.split()[-1]: row
        for name, row in tables["analysis/cpu_samples_2dh.cfg"]
        if name.startswith("THREAD")
    }
    assert samples == {thread: true["samples"]["functions"] for thread, true in truth.items()}
