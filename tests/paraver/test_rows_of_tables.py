"""Test that tables written for a trace have only the rows with data, and the first rows of tasks."""

from itertools import chain
from pathlib import Path

import pytest

from nsys2prv.cli import main
from nsys2prv.writers.paraver.cfg import LARGE_VALUE
from nsys2prv.writers.paraver.views import TraceContents, copy_views

KERNEL, CLASS, API, METRIC = 63000006, 63000060, 63000000, 9403
#: Two tasks of three threads and one of two: a thread, a stream with kernels and one without; in the
#: third a thread and the samples of a GPU.
TRACE = f"""#Paraver (01/01/2026 at 00:00):100_ns:1(8):1:3(3:1,3:1,2:1)
2:1:1:1:1:0:{API}:1
2:2:1:1:2:10:{KERNEL}:4000:{CLASS}:3
2:2:1:1:2:20:{KERNEL}:0:{CLASS}:0
2:5:1:2:2:30:{KERNEL}:4000:{CLASS}:1
3:1:1:1:1:10:10:2:1:1:2:20:20:0:55001
1:4:1:2:1:0:100:2
2:5:1:2:2:40:{KERNEL}:0:{CLASS}:0
2:8:1:3:2:40:{METRIC}:7
2:8:1:4:2:40:{METRIC}:7
2:8:1:3:3:40:{METRIC}:7
2:8:2:1:1:40:{METRIC}:7
"""


def test_contents_are_told_by_row(tmp_path: Path) -> None:
    path = tmp_path / "t.prv"
    path.write_text(TRACE)
    rows = TraceContents(path).rows
    assert [sorted(row.types) for row in rows["thread"]] == [
        [API],
        [KERNEL, CLASS],
        [],
        [],
        [KERNEL, CLASS],
        [],
        [],
        [METRIC],
    ]
    assert [sorted(row.types) for row in rows["task"]] == [
        [API, KERNEL, CLASS],
        [KERNEL, CLASS],
        [METRIC],
    ]
    assert [sorted(row.states) for row in rows["task"]] == [[], [2], []]
    assert rows["thread"][1].values == {(KERNEL, LARGE_VALUE), (KERNEL, 0), (CLASS, 3), (CLASS, 0)}
    assert rows["thread"][1].filled == {KERNEL, CLASS}
    assert {row.tags for row in chain(*rows.values())} == {frozenset({55001})}


def test_a_damaged_header_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.prv"
    path.write_text(TRACE.replace("3(3:1,3:1,2:1)", "3(3:1"))
    assert main(["cfgs", "--for", str(path), str(tmp_path / "views")]) == 1
    assert capsys.readouterr().err.endswith(
        "its header is damaged; `nsys2prv check` describes the damage\n"
    )
    assert not (tmp_path / "views").exists()


@pytest.mark.parametrize(
    ("view", "rows"),
    [
        # With the first row of each task, which says the rank.
        ("analysis/kernel_time_2dh", "0,1,3,4"),
        ("analysis/api_time_2dh", "0"),
        ("model/GPU_LB", "0,1"),
        ("model/Device_State", "0,1"),
        # Values of kernels' classes are told by row, too.
        ("analysis/kernel-class-time_2dh", "0,1,3,4"),
        # Of states, with a column for 0.
        ("analysis/state_time_2dh", "All"),
    ],
)
def test_tables_written_for_a_trace_have_rows_with_data(
    view: str, rows: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.prv"
    path.write_text(TRACE)
    copy_views(tmp_path / "views", path)
    result = [*(tmp_path / "views").rglob(f"{view.rpartition('/')[2]}.cfg")]
    text = result[0].read_text()
    assert f"\nAnalyzer2D.Objects: {rows}\n" in text
    # Without a range of its own: paramedir names rows wrongly where there are both.
    assert rows == "All" or "\nAnalyzer2D.ComputeYScale: True\n" in text
