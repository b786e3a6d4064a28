"""Views of NVTX ranges on GPU streams: what paramedir makes of them is what SQL finds in the
reports.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tools.conversions import find_time_zero
from tools.corpus import EXPORTS
from tools.installed_views import find_view_file
from tools.projected_truth import ProjectedRange, find_innermost_stretches, project_ranges_by_sql
from tools.sql_truth import Truth
from tools.trace_reader import Trace, read_trace

from nsys2prv import Options, convert

ROOT = Path(__file__).parents[2]
REPORTS = [
    ROOT / "sample_reports" / sample / "rank0.sqlite"
    for sample in ("training", "graphs", "cluster")
]
REPORTS += [path for path in EXPORTS if "h100" in path.name]
PARAMEDIR = shutil.which("paramedir")
pytestmark = pytest.mark.skipif(
    PARAMEDIR is None, reason="paramedir, Paraver's command line program, is not on the PATH"
)
WORK = ("kernel", "nccl_kernel", "memory", "graph")


@dataclass
class ConvertedReport:
    """A converted report, its truth by SQL, and the folder that paramedir writes into."""

    trace: Trace
    ranges: list[ProjectedRange]
    work: list[tuple]
    folder: Path

    def run_view(self, view: str) -> str:
        """Return what paramedir writes for a view."""
        process = subprocess.run(
            [PARAMEDIR, "o.prv", find_view_file(f"{view}.cfg"), "out"],
            cwd=self.folder,
            check=True,
            capture_output=True,
            text=True,
        )
        assert "rror" not in process.stdout + process.stderr
        assert "abort" not in process.stdout + process.stderr
        [written] = [
            path for path in (self.folder / "out", self.folder / "out.csv") if path.exists()
        ]
        text = written.read_text()
        written.unlink()
        return text

    def list_work(
        self, row: tuple[int, str], begin: int, end: int, kinds: tuple[str, ...] = WORK
    ) -> Iterator[tuple[str, int]]:
        """Yield name and length of what runs on a row within a time."""
        for kind, pid, name, label, start, stop in self.work:
            if (pid, name) == row and kind in kinds and start < end and begin < stop:
                yield label, min(stop, end) - max(start, begin)


@pytest.fixture(
    scope="module", params=REPORTS, ids=lambda path: f"{path.parent.name}-{path.stem}"[:30]
)
def report(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConvertedReport]:
    folder = tmp_path_factory.mktemp("views")
    truth = Truth(request.param)
    convert(
        [request.param],
        folder / "o.prv",
        Options(
            ("cuda", "nvtx"),
            full_kernel_names=True,
            demanded=("nvtx_on_gpu",),
            nvtx_rules="none",
            align="none",
        ),
    )
    trace = read_trace(folder / "o.prv")
    rows = {
        item.row
        for code, label in trace.labels.types.items()
        if label.startswith("NVTX on GPU")
        for item in trace.list_intervals(code)
    }
    places = Counter((trace.get_task_name(row), trace.get_row_name(row)) for row in rows)
    assert set(places.values()) == {1}, "all ranges of a stream nest on its row"
    base = find_time_zero(folder / "o.prv", request.param)
    work = truth.query(
        "SELECT kind, process >> 24 & 0xFFFFFF, row, name, start - :base, end - :base FROM event WHERE row LIKE 'CUDA%'",
        base=base,
    )
    yield ConvertedReport(trace, project_ranges_by_sql(truth, base), work, folder)
    truth.close()


def sum_columns(table: str) -> dict[str, float]:
    """Return column -> sum over the rows of a table."""
    head, *rows = table.split("\n\n")[0].splitlines()
    sums: Counter[str] = Counter()
    for row in rows:
        for name, cell in zip(head.split("\t")[1:], row.split("\t")[1:], strict=True):
            if name:
                sums[name] += float(cell)
    return {name: cell for name, cell in sums.items() if cell}


def find_innermost_times(report: ConvertedReport, default_domain: bool = False) -> list[tuple]:
    """Return the stretches in which one range is the innermost: of all domains, or of the default
    one.
    """
    return list(
        find_innermost_stretches(
            item for item in report.ranges if not (default_domain and item.domain)
        )
    )


def test_time_by_range(report: ConvertedReport) -> None:
    expected: Counter[str] = Counter()
    for _, begin, end, name, _ in find_innermost_times(report):
        expected[name] += end - begin
    assert sum_columns(report.run_view("analysis/nvtx_on_gpu_time_2dh")) == expected


def test_work_by_range(report: ConvertedReport) -> None:
    expected: Counter[str] = Counter()
    for row, begin, end, name, _ in find_innermost_times(report):
        expected[name] += sum(length for _, length in report.list_work(row, begin, end))
    assert sum_columns(report.run_view("extra/analysis/nvtx_on_gpu_work_2dh")) == {
        name: time for name, time in expected.items() if time
    }


def test_kernels_by_range(report: ConvertedReport) -> None:
    expected: dict[str, Counter[str]] = defaultdict(Counter)
    for row, begin, end, name, _ in find_innermost_times(report):
        for kernel, length in report.list_work(row, begin, end, ("kernel", "nccl_kernel", "graph")):
            expected[name][kernel] += length
    result = {}
    for plane in report.run_view("extra/analysis/nvtx_on_gpu_kernels_3dh").split("Avg/Max")[:-1]:
        name, _, table = (
            (plane if not result else plane.split("\n\n", 1)[1]).lstrip("\n").partition("\n")
        )
        result[name] = sum_columns(table)
    assert result == {name: dict(kernels) for name, kernels in expected.items()}


@pytest.mark.parametrize(
    ("view", "default_domain", "field"),
    [
        ("views/nvtx_on_gpu", False, 3),
        ("extra/basics/nvtx_on_gpu", True, 3),
        ("extra/views/nvtx_on_gpu_depth", False, 4),
    ],
)
def test_timelines(report: ConvertedReport, view: str, default_domain: bool, field: int) -> None:
    expected: Counter[object] = Counter()
    for stretch in find_innermost_times(report, default_domain):
        expected[stretch[field]] += stretch[2] - stretch[1]
    actual: Counter[object] = Counter()
    labels = {
        value: label
        for code, values in report.trace.labels.values.items()
        if report.trace.labels.types[code].startswith("NVTX on GPU")
        for value, label in values.items()
    }
    for line in report.run_view(view).splitlines():
        _, _, length, value = line.split("\t")
        if float(value) and float(length):
            actual[labels[int(float(value))] if field == 3 else int(float(value))] += float(length)
    assert actual == expected


def test_ranges_beside_kernels_are_shown(report: ConvertedReport) -> None:
    assert report.run_view("extra/views/nvtx_on_gpu_beside_kernels")
