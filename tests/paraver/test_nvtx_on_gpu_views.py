"""Compare the view of NVTX ranges on GPU streams in paramedir with SQL on the reports."""

from collections import Counter
from pathlib import Path

import pytest
from tools.conversions import find_time_zero
from tools.corpus import EXPORTS
from tools.installed_views import find_view_file
from tools.paramedir import run_paramedir, skip_without_paramedir
from tools.projected_truth import find_innermost_stretches, project_ranges_by_sql
from tools.sql_truth import Truth

from nsys2prv import Options, convert

SAMPLES = Path(__file__).parents[2] / "sample_reports"
REPORTS = [SAMPLES / sample / "rank0.sqlite" for sample in ("training", "graphs", "cluster")]
REPORTS += [path for path in EXPORTS if "h100" in path.name]


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: f"{path.parent.name}-{path.stem}"[:30])
def test_time_by_range(report: Path, tmp_path: Path) -> None:
    skip_without_paramedir()
    options = Options(
        ("cuda", "nvtx"),
        full_kernel_names=True,
        demanded=("nvtx_on_gpu",),
        nvtx_rules="none",
        align="none",
    )
    convert([report], tmp_path / "o.prv", options)
    truth = Truth(report)
    expected: Counter[str] = Counter()
    ranges = project_ranges_by_sql(truth, find_time_zero(tmp_path / "o.prv", report))
    for _, begin, end, name, _ in find_innermost_stretches(ranges):
        expected[name] += end - begin
    truth.close()
    view = find_view_file("analysis/nvtx_on_gpu_time_2dh.cfg")
    outcome, output = run_paramedir(tmp_path, tmp_path / "o.prv", view, tmp_path / "out")
    assert outcome == "done", output
    head, *rows = (tmp_path / "out").read_text().split("\n\n")[0].splitlines()
    sums: Counter[str] = Counter()
    for row in rows:
        for name, cell in zip(head.split("\t")[1:], row.split("\t")[1:], strict=True):
            sums[name] += float(cell or 0)
    assert +sums == expected
