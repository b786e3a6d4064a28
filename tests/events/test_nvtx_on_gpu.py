"""Test NVTX ranges on GPU streams: they equal plain SQL on all kinds of exports, nest on their
rows, and are correct if clocks jitter.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tools.conversions import convert_and_read, find_time_zero, list_labelled_intervals
from tools.corpus import EXPORTS
from tools.exports import (
    KERNEL,
    MEMCPY,
    RUNTIME,
    Row,
    make_call,
    make_export,
    make_global_tid,
    make_kernel,
    make_nvtx_range,
    make_strings,
)
from tools.projected_truth import project_ranges_by_sql
from tools.sql_truth import Truth
from tools.trace_reader import Trace, read_trace

from nsys2prv import Options, convert
from nsys2prv._util.errors import NothingToWrite
from nsys2prv.cli import main
from nsys2prv.events import select_kinds
from nsys2prv.events.kind import Reason
from nsys2prv.table.overlaps import assign_nesting_lanes

SAMPLES = sorted((Path(__file__).parent.parent.parent / "sample_reports").glob("*/rank*.sqlite"))
ON_GPU = Options(
    ("cuda", "nvtx"),
    full_kernel_names=True,
    demanded=("nvtx_on_gpu",),
    nvtx_rules="none",
    align="none",
)
LABEL = "NVTX on GPU "
TYPE = 9630


def list_projected_ranges(trace: Trace) -> Iterator[tuple]:
    """Yield process id, row, domain, name, begin and end of the ranges on streams."""
    for code, label in trace.labels.types.items():
        if label.startswith(LABEL):
            domain = label.removeprefix(LABEL)
            for item in trace.list_intervals(code):
                name = re.sub(r" #\d+$", "", trace.get_label(code, item.value))
                yield (
                    int(trace.get_task_name(item.row).split()[-1]),
                    trace.get_row_name(item.row),
                    "" if domain == "default domain" else domain,
                    name,
                    item.begin,
                    item.end,
                )


@pytest.mark.parametrize(
    "export", [*EXPORTS, *SAMPLES], ids=lambda path: f"{path.parent.name}-{path.stem}"[-60:]
)
def test_equal_to_sql(export: Path, tmp_path: Path) -> None:
    truth = Truth(export)
    try:
        convert([export], tmp_path / "o.prv", ON_GPU)
    except NothingToWrite:
        assert not project_ranges_by_sql(truth)
        return
    expected = Counter(
        (item.pid, item.row, item.domain, re.sub(r" #\d+$", "", item.name), item.begin, item.end)
        for item in project_ranges_by_sql(truth, find_time_zero(tmp_path / "o.prv", export))
    )
    truth.close()
    trace = read_trace(tmp_path / "o.prv")
    assert not trace.violations, str(trace.violations)
    assert Counter(list_projected_ranges(trace)) == expected


def make_range(name: str, start: int, end: int | None, tid: int = 4242, **columns: object) -> Row:
    return make_nvtx_range(start, end, name, tid=tid, **columns)


def make_launch(correlation: int, start: int, end: int, tid: int = 4242) -> Row:
    return make_call(start, end, correlation, globalTid=make_global_tid(tid))


def make_launched_kernel(correlation: int, start: int, end: int, **columns: object) -> Row:
    return make_kernel(start, end, correlationId=correlation, **columns)


def convert_projected(
    folder: Path, ranges: list[Row], calls: list[Row], kernels: list[Row], **tables: object
) -> Trace:
    """Convert an export with these ranges, calls and kernels, with the ranges on streams."""
    report = make_export(
        folder / "r.sqlite",
        {
            "NVTX_EVENTS": ranges,
            RUNTIME: calls,
            KERNEL: kernels,
            "StringIds": make_strings("k", "launch"),
            **tables,
        },
    )
    return convert_and_read([report], folder / "o.prv", demanded=("nvtx_on_gpu",))[0]


def test_a_range_goes_from_its_first_work_to_its_last_on_each_stream(tmp_path: Path) -> None:
    copy = {
        "start": 400,
        "end": 450,
        "deviceId": 0,
        "streamId": 7,
        "correlationId": 4,
        "globalPid": make_kernel(0, 1)["globalPid"],
        "copyKind": 1,
        "bytes": 8,
    }
    trace = convert_projected(
        tmp_path,
        [make_range("step", 0, 100), make_range("idle", 45, 50), make_range("last", 60, 90)],
        [
            make_launch(1, 10, 20),
            make_launch(2, 30, 40),
            make_launch(3, 65, 70),
            make_launch(4, 75, 80),
        ],
        [
            make_launched_kernel(1, 200, 250),
            make_launched_kernel(2, 210, 220, streamId=8),
            make_launched_kernel(3, 300, 350),
        ],
        **{MEMCPY: [copy]},
    )
    assert list_labelled_intervals(trace, TYPE) == [
        ("step", 200, 450),
        ("last", 300, 450),
        ("step", 210, 220),
    ]


def test_a_call_that_outlasts_its_range_counts_for_the_range_around(tmp_path: Path) -> None:
    trace = convert_projected(
        tmp_path,
        [make_range("outer", 0, 100), make_range("inner", 10, 25), make_range("open", 90, None)],
        [make_launch(1, 15, 30), make_launch(2, 95, 105)],
        [make_launched_kernel(1, 200, 250), make_launched_kernel(2, 300, 301)],
    )
    assert list_labelled_intervals(trace, TYPE) == [("outer", 200, 250), ("open", 300, 301)]


def test_threads_that_share_a_stream_nest_on_rows_of_their_own(tmp_path: Path) -> None:
    trace = convert_projected(
        tmp_path,
        [
            make_range("a", 0, 100),
            make_range("a in", 0, 50),
            make_range("b", 0, 100, 4243),
            make_range("b in", 0, 40, 4243),
            make_range("c", 500, 600),
        ],
        [
            make_launch(1, 10, 20),
            make_launch(2, 60, 70),
            make_launch(3, 10, 20, 4243),
            make_launch(4, 60, 70, 4243),
            make_launch(5, 510, 520),
        ],
        [
            make_launched_kernel(1, 200, 210),
            make_launched_kernel(3, 210, 220),
            make_launched_kernel(2, 220, 230),
            make_launched_kernel(4, 230, 240),
            make_launched_kernel(5, 700, 710),
        ],
    )
    rows: dict[object, list[str]] = {}
    for item in sorted(trace.list_intervals(TYPE), key=lambda item: (item.begin, -item.end)):
        rows.setdefault(item.row, []).append(trace.get_label(TYPE, item.value))
        assert trace.get_row_name(item.row).endswith(".S7")
    assert sorted(rows.values()) == [["a", "a in", "c"], ["b", "b in"]]


def test_short_ranges_are_left_out_as_on_their_threads(tmp_path: Path) -> None:
    report = make_export(
        tmp_path / "r.sqlite",
        {
            "NVTX_EVENTS": [make_range("long", 0, 100), make_range("short", 5, 30)],
            RUNTIME: [make_launch(1, 10, 20)],
            KERNEL: [make_launched_kernel(1, 200, 201)],
            "StringIds": make_strings("k", "launch"),
        },
    )
    for kinds in ((), ("nvtx", "kernels")):
        trace, summary = convert_and_read(
            [report],
            tmp_path / "o.prv",
            kinds=kinds,
            demanded=("nvtx_on_gpu",),
            min_duration={"nvtx": 50},
        )
        assert list_labelled_intervals(trace, TYPE) == [("long", 200, 201)]
        assert summary.dropped["nvtx_on_gpu", Reason.TOO_SHORT.with_detail("50 ns")] == 1


def test_without_work_there_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = make_export(tmp_path / "r.sqlite", {"NVTX_EVENTS": [make_range("one", 0, 100)]})
    assert main(["-q", "--project-nvtx", str(report), str(tmp_path / "o.prv")]) == 0
    assert (
        "nsys2prv: warning: nvtx_on_gpu: the reports contain no events of this kind"
        in capsys.readouterr().err.splitlines()
    )


def test_only_on_demand() -> None:
    names = {kind.name for kind in select_kinds(()).kinds}
    assert "nvtx_on_gpu" not in names
    assert "nvtx_on_gpu" not in {kind.name for kind in select_kinds(("nvtx", "all")).kinds}
    assert {kind.name for kind in select_kinds((), ("nvtx_on_gpu",)).kinds} == names | {
        "nvtx_on_gpu"
    }
    assert {kind.name for kind in select_kinds(("graphs",), ("nvtx_on_gpu",)).kinds} == {
        "graphs",
        "nvtx_on_gpu",
    }
    assert {kind.name for kind in select_kinds(("graphs", "-nvtx"), ("nvtx_on_gpu",)).kinds} == {
        "graphs",
        "nvtx_on_gpu",
    }
    assert "nvtx_on_gpu" not in {kind.name for kind in select_kinds(("nvtx_on_gpu", "-nvtx")).kinds}
    assert {kind.name for kind in select_kinds(("nvtx_on_gpu", "graphs")).kinds} == {
        "graphs",
        "nvtx_on_gpu",
    }


def test_rows_nest_whatever_the_ranges() -> None:
    random = np.random.default_rng(3)
    assert assign_nesting_lanes(*(np.zeros(0, np.int64),) * 4)[1] == 0
    for _ in range(50):
        count = int(random.integers(1, 60))
        begin = random.integers(0, 200, count)
        end = begin + random.integers(1, 60, count)
        object_, owner = random.integers(0, 3, count), random.integers(0, 3, count)
        lanes, crowded = assign_nesting_lanes(object_, owner, begin, end)
        assert not crowded
        for row in set(zip(object_.tolist(), lanes.tolist(), strict=True)):
            mine = [index for index in range(count) if (object_[index], lanes[index]) == row]
            for item in mine:
                for other in mine:
                    assert not begin[item] < begin[other] < end[item] < end[other]
