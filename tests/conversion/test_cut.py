"""Test cuts of the samples against the whole trace, filtered afterwards."""

import re
from collections import Counter
from pathlib import Path

import pytest
from tools import cut_filter
from tools.conversions import WITH_LAUNCHES, convert_and_read
from tools.cut_filter import CutRequest, ParsedTrace, Row
from tools.exports import (
    KERNEL,
    PID,
    RUNTIME,
    make_call,
    make_export,
    make_global_pid,
    make_global_tid,
    make_kernel,
    make_metrics,
    make_nvtx_range,
    make_sample,
    make_strings,
)
from tools.trace_reader import read_trace

from nsys2prv import Options, Summary, convert
from nsys2prv._util.errors import NothingToWrite, Nsys2prvError, UsageError
from nsys2prv.cli import main
from nsys2prv.conversion.options import CutOptions, Plan
from nsys2prv.events.kind import Reason
from nsys2prv.writers.paraver.views import find_views_for_trace

SAMPLES = Path(__file__).parents[2] / "sample_reports"


def check_cut(prv: Path, trace: ParsedTrace, request: CutRequest) -> None:
    """Check that a cut trace is, line for line, the whole one filtered; of begins at one time the
    outer ranges are first.
    """
    lines, order, duration = cut_filter.read_lines(prv)
    wanted, wanted_order = cut_filter.filter_trace(trace, request)
    assert lines == wanted, (
        f"{request}: {list((wanted - lines).items())[:5]} missing, {list((lines - wanted).items())[:5]} too much"
    )
    # States and samples have no order among each other but that of time.
    assert {key: item for key, item in order.items() if key in wanted_order} == wanted_order
    assert duration == request.last - (0 if request.keep_time else request.first)


def test_a_trace_of_one_moment(tmp_path: Path) -> None:
    tables = {
        "GPU_METRICS": make_sample(1, 50, {0: 7}),
        "StringIds": make_strings("a"),
        "TARGET_INFO_GPU_METRICS": make_metrics(1, ["SMs Active [Throughput %]"]),
    }
    report = make_export(tmp_path / "r.sqlite", tables)
    convert([report], tmp_path / "whole.prv", Options(cut=WITH_LAUNCHES))
    for options in ({}, {"arguments": False}, {"rates": {"all": 5}}):
        convert([report], tmp_path / "cut.prv", Options(cut=CutOptions(**options)))
        assert (tmp_path / "cut.prv").read_bytes() == (tmp_path / "whole.prv").read_bytes()
    with pytest.raises(NothingToWrite, match="does not overlap the trace"):
        convert([report], tmp_path / "cut.prv", Options(cut=CutOptions(time="0:50%")))


def test_ranks_of_one_report(tmp_path: Path) -> None:
    """Check that the processes of other ranks in the report, and lines to them, are excluded."""
    pids = [make_global_pid(PID), make_global_pid(PID + 100)]
    main = [make_global_tid(PID), make_global_tid(PID + 100, PID + 100)]
    rows = {
        "StringIds": make_strings("k", "cudaLaunchKernel_v7000"),
        "MPI_RANKS": [{"globalTid": thread, "rank": rank} for rank, thread in enumerate(main)],
        RUNTIME: [
            {**make_call(10 * rank, 10 * rank + 5, 1), "globalTid": thread}
            for rank, thread in enumerate(main)
        ],
        KERNEL: [
            {
                **make_kernel(100 + rank, 200 + rank, correlationId=1, demangledName=1),
                "globalPid": pid,
            }
            for rank, pid in enumerate(pids)
        ],
    }
    report = make_export(tmp_path / "r.sqlite", rows)
    convert([report], tmp_path / "whole.prv", Options(cut=WITH_LAUNCHES))
    summary = convert(
        [report], tmp_path / "cut.prv", Options(cut=CutOptions(ranks=("1",), lines="launches"))
    )
    trace = read_trace(tmp_path / "cut.prv")
    assert len(read_trace(tmp_path / "whole.prv").tasks) == 2
    assert [name.split()[:2] for name in trace.names["TASK"]] == [["rank", "1"]]
    assert [(item.begin, item.end) for item in trace.list_intervals(63000006)] == [(101, 201)]
    assert [(line.send, line.receive) for line in trace.comms] == [(10, 101)]
    assert summary.left_out["cuda_kernel", Reason.ROW_LEFT_OUT] == 1


@pytest.mark.slow
def test_a_cut_through_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a cut through the command line, with several processes."""
    monkeypatch.setattr("nsys2prv.conversion.convert.SMALL_JOB_ROWS", 1)
    reports = sorted((SAMPLES / "cluster").glob("rank*.sqlite"))
    convert(reports, tmp_path / "whole.prv", Options(cut=WITH_LAUNCHES))
    trace = cut_filter.parse_trace(tmp_path / "whole.prv")
    ranges = ["--time", "40%:41%"]
    options = ["-q", "-j", "2", "--no-args", "--no-lines", "--sample", "all=100"]
    assert main([*options, *ranges, *map(str, reports), str(tmp_path / "cut.prv")]) == 0
    check_cut(
        tmp_path / "cut.prv",
        trace,
        CutRequest(trace.duration * 40 // 100, trace.duration * 41 // 100, False, False, 100),
    )


def number_kept_rows(prv: Path, gone: object) -> dict[Row, Row | None]:
    """Return row of a trace -> its number where some rows are left out.

    gone: tells by (task from 1, name of the row).
    """
    trace = read_trace(prv)
    numbers: dict[Row, Row | None] = {}
    task_number = 0
    for task, (threads, _) in enumerate(trace.tasks, 1):
        task_rows = [
            (task, thread)
            for thread in range(1, threads + 1)
            if not gone(task, trace.get_row_name((task, thread)))
        ]
        task_number += bool(task_rows)
        numbers.update({(task, thread): None for thread in range(1, threads + 1)})
        numbers.update({row: (task_number, number) for number, row in enumerate(task_rows, 1)})
    return numbers


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ({"ranks": ("1-2",)}, (1, 2)),
        pytest.param({"ranks": ("0", "3")}, (0, 3), marks=pytest.mark.slow),
        ({"hosts": ("node02",)}, (2, 3)),
        pytest.param({"hosts": ("*1",), "ranks": ("1-3",)}, (1,), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", ["training", pytest.param("cluster", marks=pytest.mark.slow)])
def test_ranks_and_hosts_are_rows_of_the_trace(
    name: str, options: dict, files: tuple[int, ...], tmp_path: Path
) -> None:
    """They are aligned and related with all the others, which are left out then."""
    reports = sorted((SAMPLES / name).glob("rank*.sqlite"))
    # What is sampled of a machine stands with any of its ranks.
    kinds = ("cuda", "nccl", "nvtx", "osrt") if name == "training" else ()
    convert(reports, tmp_path / "whole.prv", Options(kinds=kinds, cut=WITH_LAUNCHES))
    convert(
        reports,
        tmp_path / "cut.prv",
        Options(kinds=kinds, cut=CutOptions(**options, lines="launches")),
    )
    names = read_trace(tmp_path / "whole.prv").names["TASK"]
    wanted = {
        number
        for number, text in enumerate(names, 1)
        if any(text.startswith(f"rank {rank} ") for rank in files)
    }
    assert len(wanted) == len(files)
    new_rows = number_kept_rows(tmp_path / "whole.prv", lambda task, row: task not in wanted)
    expected = _list_records(cut_filter.parse_trace(tmp_path / "whole.prv", new_rows.get))
    actual = _list_records(cut_filter.parse_trace(tmp_path / "cut.prv"))
    assert expected
    assert read_trace(tmp_path / "whole.prv").duration == read_trace(tmp_path / "cut.prv").duration
    violations = read_trace(tmp_path / "cut.prv").violations
    assert not violations, str(violations)
    assert name == "cluster" or actual == expected


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        (("main", "gpu"), r"(THREAD \S+ rank \d+ python3 |CUDA-|Metrics GPU)"),
        (
            ("main", "pt_auto*", "CUDA-D?.S7"),
            r"(THREAD \S+ (rank \d+ python3|pt_autograd_0) |CUDA-D.\.S7)",
        ),
    ],
)
def test_chosen_rows_are_rows_of_the_trace(
    words: tuple[str, ...], pattern: str, tmp_path: Path
) -> None:
    """They show the same as among all rows."""
    reports = sorted((SAMPLES / "training").glob("rank*.sqlite"))
    convert(reports, tmp_path / "whole.prv", Options(cut=WITH_LAUNCHES))
    cut = CutOptions(keep_rows=words, lines="launches")
    summary = convert(reports, tmp_path / "cut.prv", Options(cut=cut))
    kept = number_kept_rows(
        tmp_path / "whole.prv", lambda task, row: re.match(pattern, row) is None
    )
    expected = _list_records(cut_filter.parse_trace(tmp_path / "whole.prv", kept.get))
    actual = _list_records(cut_filter.parse_trace(tmp_path / "cut.prv"))
    assert expected
    assert actual == expected
    violations = read_trace(tmp_path / "cut.prv").violations
    assert not violations, str(violations)
    assert any(reason == Reason.ROW_LEFT_OUT for _, reason in summary.left_out)


def test_further_rows_stay_with_their_thread(tmp_path: Path) -> None:
    ranges = [make_nvtx_range(begin, begin + 50, "r", 60) for begin in (10, 20, 30)]
    other = [make_nvtx_range(5, 9, "s", tid=PID + 7)]
    report = make_export(tmp_path / "r.sqlite", {"NVTX_EVENTS": [*ranges, *other]})
    convert([report], tmp_path / "whole.prv")
    convert([report], tmp_path / "cut.prv", Options(cut=CutOptions(keep_rows=("main",))))
    rows = [read_trace(tmp_path / f"{name}.prv").tasks[0][0] for name in ("whole", "cut")]
    assert rows == [4, 3]


def test_rows_that_there_are_not_and_an_analysis_of_some(tmp_path: Path) -> None:
    reports = sorted((SAMPLES / "training").glob("rank*.sqlite"))
    with pytest.raises(Nsys2prvError, match="--keep-rows x: no row has this name; the rows are"):
        convert(reports, tmp_path / "a.prv", Options(cut=CutOptions(keep_rows=("x",))))
    with pytest.raises(UsageError, match="--keep-rows: an analysis needs all rows"):
        Plan.from_options(Options(report=True, cut=CutOptions(keep_rows=("main",))))


def _list_records(trace: ParsedTrace) -> Counter[tuple]:
    """Count the records of a trace, without their places in it."""
    ranges = ((item.row, item.begin, item.end, item.pairs) for item in trace.ranges)
    return Counter([*ranges, *trace.states, *trace.samples, *trace.lines])


@pytest.mark.slow
def test_a_region_of_ranges_that_are_not_shown(tmp_path: Path) -> None:
    """Check that `-t kernels` writes no NVTX ranges, but uses them to find the region."""
    reports = sorted((SAMPLES / "graphs").glob("rank*.sqlite"))
    convert(reports, tmp_path / "nvtx.prv", Options(kinds=("kernels", "nvtx")))
    trace = read_trace(tmp_path / "nvtx.prv")
    name, spans = next(
        (
            trace.get_label(9600, item.value),
            [
                (other.begin, other.end)
                for other in trace.list_intervals(9600)
                if other.value == item.value
            ],
        )
        for item in trace.list_intervals(9600)
    )
    convert(reports, tmp_path / "cut.prv", Options(kinds=("kernels",), cut=CutOptions(region=name)))
    assert ":9600:" not in (tmp_path / "cut.prv").read_text()
    assert read_trace(tmp_path / "cut.prv").duration == max(end for _, end in spans) - min(
        begin for begin, _ in spans
    )


def test_launches_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    """Without them a trace is otherwise the same; analyses run with it, which need them, add
    nothing."""
    reports = sorted((SAMPLES / "cluster").glob("rank*.sqlite"))

    def write(name: str, **options: object) -> tuple[str, Summary]:
        summary = convert(reports, tmp_path / name, Options(**options))
        return (tmp_path / name).read_text("latin-1"), summary

    usual, summary = write("usual.prv")
    every, asked = write("every.prv", cut=WITH_LAUNCHES)
    launches = re.findall(r"^3:.*:5500[12]\n", every, re.MULTILINE)
    rest = re.sub(r"^3:.*:5500[12]\n", "", every, flags=re.MULTILINE)
    assert re.sub(r":(9200|63000063):\d+", "", rest) == usual != rest
    made = summary.ledger.lines
    assert sum(one.left_out.get(Reason.LAUNCH_LEFT_OUT, 0) for one in made.values()) == len(
        launches
    )
    assert not summary.ledger.missing
    assert asked.lines - summary.lines == len(launches) > 0
    analysed, summary = write("analysed.prv", report=True)
    assert analysed == usual
    assert not summary.ledger.missing
    part, _ = write("part.prv", cut=CutOptions(time="0:99%"))
    assert all(f":{number}" in part for number in ("9200", "55001", "55002"))


def test_attributes_that_are_kept(tmp_path: Path) -> None:
    reports = sorted((SAMPLES / "graphs").glob("rank*.sqlite"))
    wanted = CutOptions(arguments=False, fields={"kernels": ("registers",)})
    convert(reports, tmp_path / "cut.prv", Options(kinds=("kernels", "memory"), cut=wanted))
    trace = read_trace(tmp_path / "cut.prv")
    kernels = trace.list_intervals(63000006)
    registers = {code for code, label in trace.labels.types.items() if "egisters" in label}
    assert kernels
    assert len(registers) == 1
    assert {code for item in kernels for code in item.others} == registers
    assert not any(item.others for item in trace.list_intervals(63000001))


def test_kernels_have_one_launch_configuration(tmp_path: Path) -> None:
    """Check that it replaces attributes that are written on request."""
    prv, rows = tmp_path / "o.prv", [make_kernel(5, 9, gridX=3, blockX=32, registersPerThread=40)]
    reports = [make_export(tmp_path / "r.sqlite", {KERNEL: rows})]
    usual, _ = convert_and_read(reports, prv, cut=CutOptions())
    (kernel,) = usual.list_intervals(63000006)
    assert set(kernel.others) == {63000060}
    lacking = {fit.path: fit.lacking for fit in find_views_for_trace(prv)}
    assert "--lines launches" in lacking["extra/basics/cuda_kernel_launch.cfg"]
    trace, summary = convert_and_read(reports, prv, cut=WITH_LAUNCHES)
    (kernel,) = trace.list_intervals(63000006)
    assert set(kernel.others) <= {63000060, 63000061, 63000063, 9200}
    label = trace.get_label(63000063, kernel.others[63000063])
    assert re.match(r"grid 3x.*, block 32x.*, 40 registers, ", label)
    assert any("--args kernels=all" in note for note in summary.notes)
    lacking = {fit.path: fit.lacking for fit in find_views_for_trace(prv)}
    assert "--args kernels=all" in lacking["extra/basics/cuda_kernel_grid_x.cfg"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time": "5"}, "give two times"),
        ({"time": "1:x"}, "give two times"),
        ({"time": ":"}, "give two times"),
        ({"time": "0:101%"}, "100%"),
        ({"region": "step:0"}, "counted from 1"),
        ({"region": "step:3-2"}, "counted from 1"),
        ({"ranks": ("a",)}, "give rank numbers"),
        ({"ranks": ("3-1",)}, "range is empty"),
        ({"fields": {"kernels": ("nonsense",)}}, "unknown attribute; the attributes are "),
        ({"fields": {"nonsense": ("bytes",)}}, "no such kind"),
        ({"time": "5s:1s"}, "--time 5s:1s: the end is before the start"),
        ({"rates": {"kernels": 5}}, "not a sampled kind"),
        ({"rates": {"gpu_metrics": 0}}, "number of samples"),
    ],
)
def test_what_cannot_be_asked(options: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Plan.from_options(Options(cut=CutOptions(**options)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"time": "100s:200s"},
            NothingToWrite,
            "this does not overlap the trace",
        ),
        ({"time": "2ns:2ns"}, NothingToWrite, "does not overlap the trace"),
        ({"region": "no such range"}, Nsys2prvError, "no NVTX range"),
        ({"ranks": ("77",)}, Nsys2prvError, "the reports have 0, 1"),
        ({"hosts": ("elsewhere",)}, Nsys2prvError, "the reports come from"),
    ],
)
def test_what_reports_do_not_hold(
    options: dict, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message) as raised:
        convert(
            sorted((SAMPLES / "graphs").glob("rank*.sqlite")),
            tmp_path / "out.prv",
            Options(cut=CutOptions(**options)),
        )
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments", [["--sample", "gpu_metrics"], ["--args", "kernels"], ["--ranks", "1,,2"]]
)
def test_arguments_that_cannot_be_read(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "in.sqlite", str(tmp_path / "out.prv")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_region_by_a_name_with_its_number(tmp_path: Path) -> None:
    rows = [make_nvtx_range(100 * number, 101 * number, f"step {number}") for number in range(1, 4)]
    report = make_export(tmp_path / "r.sqlite", {"NVTX_EVENTS": rows})
    prv = tmp_path / "cut.prv"
    for name, duration in (
        ("step 2", 2),
        ("step", 203),
        ("step:3", 3),
        ("step #1", 1),
        ("step [23]", 103),
        ("s* [!2-9]", 1),
        ("step ?:2-3", 103),
        ("[!a]* 3", 3),
    ):
        convert([report], prv, Options(cut=CutOptions(region=name)))
        assert read_trace(prv).duration == duration, name
    with pytest.raises(Nsys2prvError, match="no NVTX range"):
        convert([report], prv, Options(cut=CutOptions(region="step 4")))
