"""Paraver itself shows in a trace what SQL finds in the export, where its ``paramedir`` is on the
PATH.

The exports are those of NSYS2PRV_CORPUS that hold the most of something. paramedir reports success
even when it refuses a record or a view, so its messages and its output files are what is judged.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tools.conversions import find_time_zero
from tools.corpus import EXPORTS, NO_CORPUS
from tools.sql_truth import Truth
from tools.trace_reader import Trace, read_trace

from nsys2prv import Options, convert

PARAMEDIR = shutil.which("paramedir")
COMPLAINTS = re.compile(
    r"Error reading|Unkwnown|Unknown record|Cannot load|aborted|Undefined error|Missing tracefile|None of the events|not loaded",
    re.IGNORECASE,
)
SECONDS = 120
DECIMALS = re.compile(r"(<(?:cell_)?decimal_precision>)\d+(<)")

API, MEMORY, KERNEL, NCCL_KERNEL, NVTX = 63000000, 63000001, 63000006, 63000007, 9600
FLAT = [(KERNEL, "kernel"), (NCCL_KERNEL, "nccl_kernel"), (MEMORY, "memory")]
NESTED = [(API, "api"), (NVTX, "pushpop")]

TIMELINE = """#ParaverCFG
ConfigFile.Version: 3.4
ConfigFile.NumWindows: 1

window_name view
window_type single
window_units Nanoseconds
window_level thread
window_logical_filtered true
window_intracomms_enabled true
window_intercomms_enabled true
window_selected_functions {{ 2, {{ {{thread, Last Evt Val}}, {{evt_type, =}} }} }}
window_compose_functions {{ 1, {{ {{compose_thread, {composed}}} }} }}
window_filter_module evt_type 1 {code}
"""
HISTOGRAM = """
< NEW ANALYZER2D >
Analyzer2D.Name: histogram
Analyzer2D.ControlWindow: 1
Analyzer2D.DataWindow: 1
Analyzer2D.Accumulator: {accumulator}
Analyzer2D.Statistic: {statistic}
Analyzer2D.CalculateAll: True
Analyzer2D.HideCols: False
Analyzer2D.HorizVert: Horizontal
Analyzer2D.AnalysisLimits: Alltrace
Analyzer2D.ComputeYScale: False
Analyzer2D.Minimum: {first}.0
Analyzer2D.Maximum: {last}.0
Analyzer2D.Delta: 1.0
Analyzer2D.UseFixedDelta: True
Analyzer2D.ShortHeaderLabels: False
"""

ACTIVITIES = ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION", "GRAPH_TRACE")
#: Of each of these tables the export with the most rows is taken, and the one with the most
#: processes.
MOST_OF = (*(f"CUPTI_ACTIVITY_KIND_{activity}" for activity in ACTIVITIES), "NVTX_EVENTS")


def query_number(path: Path, sql: str) -> int:
    """Return the single number of a query, 0 where the export lacks the table."""
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        return connection.execute(sql).fetchone()[0]
    except sqlite3.OperationalError:
        return 0
    finally:
        connection.close()


def list_varied_exports() -> list[Path]:
    queries = [f"SELECT count(*) FROM {table}" for table in MOST_OF]
    queries.append("SELECT count(DISTINCT globalPid) FROM CUPTI_ACTIVITY_KIND_KERNEL")
    return (
        sorted({max(EXPORTS, key=lambda path: query_number(path, sql)) for sql in queries})
        if EXPORTS
        else []
    )


@dataclass
class ConvertedReport:
    """A trace, as Paraver and the independent reader see it, and the truth about it."""

    home: Path
    prv: Path
    trace: Trace
    truth: Truth

    def list_bursts(
        self, code: int, composed: str = "As Is"
    ) -> Iterator[tuple[tuple[int, str], str, int, int]]:
        """Yield row as the truth names it, label, begin and length of every burst that is not 0."""
        for line in run_view(
            self.home, self.prv, TIMELINE.format(code=code, composed=composed)
        ).splitlines():
            address, *numbers = line.split("\t")
            _, task, thread = map(int, address.split("."))
            begin, length, value = (int(float(number)) for number in numbers)
            if value and length:
                yield (
                    locate(self.trace, task, thread),
                    self.trace.get_label(code, value),
                    begin,
                    length,
                )

    def sum_by_label(self, code: int, statistic: str) -> dict[str, int]:
        """Return label of a type's value -> the statistic of its bursts, summed over all rows."""
        values = [value for value in self.trace.labels.values[code] if value]
        labels, cells = self._run_histogram(code, "Semantic", statistic, min(values), max(values))
        sums: Counter[str] = Counter()
        for (_, column), cell in cells.items():
            sums[labels[column]] += cell
        return dict(sums)

    def sum_by_partner(self, statistic: str) -> dict[tuple, int]:
        """Return row of the sender and row of the receiver, as the truth names them -> the
        statistic of the lines.
        """
        _, cells = self._run_histogram(
            next(iter(self.trace.events)), "Communication", statistic, 0, 1
        )
        rows = [
            locate(self.trace, task, thread)
            for task, (threads, _) in enumerate(self.trace.tasks, 1)
            for thread in range(1, threads + 1)
        ]
        sums: Counter[tuple] = Counter()
        for (row, column), cell in cells.items():
            sums[rows[row], rows[column]] += cell
        return dict(sums)

    def _run_histogram(
        self, code: int, accumulator: str, statistic: str, first: int, last: int
    ) -> tuple[list[str], dict]:
        """Return the labels of the columns, and the cells that are not 0 by row and column from 0."""
        view = TIMELINE.format(code=code, composed="As Is")
        view += HISTOGRAM.format(
            accumulator=accumulator, statistic=statistic, first=first, last=last
        )
        head, *lines = run_view(self.home, self.prv, view).split("\n\n")[0].splitlines()
        cells = {}
        for row, line in enumerate(lines):
            for column, cell in enumerate(line.rstrip("\t").split("\t")[1:]):
                if float(cell):
                    cells[row, column] = round(float(cell))
        return [label.strip() for label in head.rstrip("\t").split("\t")[1:]], cells


def run_view(home: Path, prv: Path, view: str) -> str:
    """Return what paramedir writes for a view; fail on any complaint."""
    cfg, output = home / "view.cfg", home / "output"
    cfg.write_text(view)
    for old in (output, home / "output.csv"):
        old.unlink(missing_ok=True)
    process = subprocess.run(
        [str(PARAMEDIR), str(prv), str(cfg), str(output)],
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SECONDS,
        check=True,
    )
    messages = process.stdout + process.stderr
    assert not COMPLAINTS.search(messages), messages
    written = output if output.exists() else home / "output.csv"
    assert written.exists(), messages
    return written.read_text(errors="replace")


@pytest.fixture(
    scope="module",
    params=list_varied_exports() or [None],
    ids=lambda path: path.stem if path else "corpus",
)
def report(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConvertedReport]:
    if PARAMEDIR is None:
        pytest.skip("paramedir is not on the PATH")
    if request.param is None:
        pytest.skip(NO_CORPUS)
    folder = tmp_path_factory.mktemp("paraver")
    prv = folder / "out.prv"
    convert(
        [request.param], prv, Options(("cuda", "nvtx"), full_kernel_names=True, nvtx_rules="none")
    )
    trace, truth = read_trace(prv), Truth(request.param)
    truth.zero = find_time_zero(prv, request.param)
    run_view(folder, prv, TIMELINE.format(code=next(iter(trace.events)), composed="As Is"))
    preferences = folder / ".paraver" / "paraver.xml"
    preferences.write_text(DECIMALS.sub(r"\g<1>9\2", preferences.read_text()))
    yield ConvertedReport(folder, prv, trace, truth)
    truth.close()


def locate(trace: Trace, task: int, thread: int) -> tuple[int, str]:
    """Return process id and row, as the truth names them."""
    name = trace.get_row_name((task, thread))
    pid = int(trace.get_task_name((task, thread)).split()[-1])
    return pid, name if name.startswith("CUDA-D") else f"thread {name.split()[-1]}"


def sum_self_times(ranges: Counter[tuple]) -> dict[tuple, int]:
    """Return process, row and name -> time during which this name is the innermost range."""
    by_row: dict[tuple, list[tuple[int, int, str]]] = defaultdict(list)
    for (pid, row, _, name, begin, end), count in ranges.items():
        by_row[pid, row] += [(begin, -end, name)] * count
    times: Counter[tuple] = Counter()
    for row, item in by_row.items():
        open_ranges: list[tuple[int, str]] = []
        for begin, minus_end, name in sorted(item):
            while open_ranges and open_ranges[-1][0] <= begin:
                open_ranges.pop()
            if open_ranges:
                times[(*row, open_ranges[-1][1])] -= min(-minus_end, open_ranges[-1][0]) - begin
            times[(*row, name)] += -minus_end - begin
            open_ranges.append((-minus_end, name))
    return {key: time for key, time in times.items() if time}


@pytest.mark.parametrize(("code", "kind"), FLAT)
def test_timelines(report: ConvertedReport, code: int, kind: str) -> None:
    """Every kernel and every memory operation is a burst on its own row, at its time."""
    result = Counter()
    if report.trace.list_intervals(code):
        result.update(
            (*row, "", label, begin, begin + length)
            for row, label, begin, length in report.list_bursts(code)
        )
    assert result == report.truth.count_ranges(kind)


@pytest.mark.parametrize(("code", "kind"), FLAT)
def test_histograms(report: ConvertedReport, code: int, kind: str) -> None:
    """Time and number of bursts by label."""
    expected = report.truth.sum_by_name(kind)
    if not report.trace.list_intervals(code):
        assert not expected
        return
    assert report.sum_by_label(code, "Time") == {
        name: total for name, (_, total) in expected.items()
    }
    assert report.sum_by_label(code, "# Bursts") == {
        name: count for name, (count, _) in expected.items()
    }


@pytest.mark.parametrize(("code", "kind"), NESTED)
def test_nested_ranges(report: ConvertedReport, code: int, kind: str) -> None:
    """Stacked Val shows at every moment the innermost range (of NVTX, in the default domain)."""
    result: Counter[tuple] = Counter()
    if report.trace.list_intervals(code):
        for row, label, _, length in report.list_bursts(code, "Stacked Val"):
            result[(*row, label)] += length
    assert result == sum_self_times(
        Counter(
            {key: count for key, count in report.truth.count_ranges(kind).items() if key[2] == ""}
        )
    )


def test_lines(report: ConvertedReport) -> None:
    """Number and bytes of the lines from every thread to every stream."""
    counts: Counter[tuple] = Counter()
    sizes: Counter[tuple] = Counter()
    for kind in ("launch", "memory"):
        for (pid, caller, _, row, _, size), count in report.truth.count_lines(kind).items():
            counts[(pid, caller), (pid, row)] += count
            sizes[(pid, caller), (pid, row)] += count * size
    assert report.sum_by_partner("#Sends") == dict(counts)
    assert report.sum_by_partner("Bytes sent") == {
        rows: size for rows, size in sizes.items() if size
    }
