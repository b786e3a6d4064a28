"""Test two runs of a program: whether they are comparable, and the extra work of one, in the
terminal, as JSON and as a page.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tools.pages import Page
from tools.view_answers import SAMPLES

from nsys2prv._util.errors import UsageError
from nsys2prv.cli import main
from nsys2prv.figures.result import Result, Table
from nsys2prv.show.difference.comparison import compare_jobs
from nsys2prv.show.difference.facts import Limit
from nsys2prv.show.difference.limits import check_limits, compare_sides, find_jump
from nsys2prv.show.difference.pictures import draw_bars, list_bars
from nsys2prv.show.difference.runs import NOT_COMPARABLE
from nsys2prv.show.finished_job import FinishedJob

US, MS, STEPS = 1_000, 1_000_000, 10
#: What a rank of the job does in an iteration: part, name, kernel before, count, ns; and what is on the path.
WORK = (
    ("kernel", "gemm_128x128<float>(int)", "norm", 4, 400 * US),
    ("kernel", "norm", "gemm_128x128<float>(int)", 2, 20 * US),
    ("nccl", "AllReduce", None, 1, 50 * US),
    ("host", "between a and b", None, 1, 30 * US),
)


def make_run(
    work: Mapping[str, Any] | None = None,
    spread: int = 0,
    steps: int = STEPS,
    start: int = 500 * US,
    **described: Any,
) -> FinishedJob:
    """Return a run of two ranks. work: name, or rank and name -> other ns, count and name; the path is on the
    second rank, whose host is exposed for 5 us less than it does.
    """
    rows, path = [], [("", "start", "in calls of CUDA", "", start)]
    for rank in ("rank 0", "rank 1"):
        for part, name, follows, count, time in WORK:
            more = {**(work or {}).get(name, {}), **(work or {}).get(f"{rank} {name}", {})}
            named, time = more.get("name", name), more.get("time", time)
            rows.append(
                (rank, part, named, follows, time * steps, more.get("count", count) * steps)
            )
            if rank == "rank 1":
                on_path = (time - 5 * US if part == "host" else time) * steps
                path.append((rank, part, named, "load" if part == "host" else "", on_path))
    length = sum(row[4] for row in path[1:])
    each = [length // steps + (spread if at % 2 else -spread) for at in range(steps)]
    begins = start + pl.Series([0, *each]).cum_sum()
    frames = {
        ("findings", "path"): pl.DataFrame(
            path, ["rank", "part", "name", "range", "time_ns"], orient="row"
        ),
        ("findings", "work"): pl.DataFrame(
            rows, ["rank", "part", "name", "follows", "time_ns", "count"], orient="row"
        ),
        ("findings", "phases"): pl.DataFrame(
            {
                "phase": ["steady state"],
                "begin_ns": [start],
                "time_ns": [length],
                "iterations": [steps],
                "activity": ["NVTX ranges step"],
            }
        ),
        ("efficiencies", "focus"): pl.DataFrame(
            {"found_by": ["NVTX ranges step"], "of_ranges": [True]}
        ),
        ("time", "by_iteration"): pl.DataFrame({"lane": 0, "begin_ns": begins[:-1]}),
        ("operations", "operations"): pl.DataFrame(
            {"operation": ["load"], "calls": [2 * steps], "host_ns": [60 * US * steps]}
        ),
    }
    results: dict[str, Result] = {}
    for (analysis, name), frame in frames.items():
        result = results.setdefault(analysis, Result(analysis, ""))
        result.tables[name] = Table("", frame)
    facts = {"name": "run", "duration_ns": start + length, "ranks": 2, "devices": 2}
    return FinishedJob({**facts, "gpu_models": {"H100": 2}, **described}, results)


GEMM = WORK[0][1]


@pytest.mark.parametrize(
    ("work", "said"),
    [
        ({GEMM: {"time": 600 * US}}, "kernel gemm_128x128<float>(int) takes 200 us longer (each 50% longer), 100%"),
        (
            {GEMM: {"time": 500 * US, "count": 5}},
            "kernel gemm_128x128<float>(int) takes 100 us longer (executed 5 times per rank instead of 4), 100%",
        ),
        ({"rank 1 between a and b": {"time": 330 * US}}, "rank 1 takes 300 us longer in load, 100%"),
        ({"between a and b": {"time": 330 * US}}, ": hosts take 300 us longer in load, 100%"),
        ({"AllReduce": {"time": 100 * US}}, "communication takes 50.0 us longer in AllReduce (each 2 times as long), 100%"),
        (
            {f"rank 1 {GEMM}": {"time": 500 * US}, "rank 1 norm": {"time": 120 * US}},
            "kernels on rank 1 take 200 us longer (each 48% longer), mostly in gemm_128x128<float>(int), 100%",
        ),
        (
            {"norm": {"time": 120 * US}, "rank 1 between a and b": {"time": 330 * US}},
            "rank 1 takes 300 us longer in load, 75% of the difference. Second cause: kernel norm takes 100 us longer"
            " (each 6 times as long), 25%",
        ),
        ({"AllReduce": {"name": "AllGather", "time": 100 * US}}, ": communication takes 50.0 us longer, 100%"),
        # Other names of the same kernel.
        ({GEMM: {"name": "gemm_64x256<double>(long)", "time": 600 * US}}, "kernel gemm_64x256<double>(long) takes 200 us"),
        ({GEMM: {"name": "other", "time": 600 * US}}, "kernel gemm_128x128<float>(int) → other takes 200 us longer"),
    ],
)  # fmt: skip
def test_causes(work: Mapping[str, Any], said: str) -> None:
    """Check that causes are distinguished, and that all parts add up."""
    first, second = make_run(), make_run(work)
    comparison, result = compare_jobs(first, second)
    assert comparison.unit == "iteration"
    assert said in comparison.headline
    difference = comparison.unit_ns[1] - comparison.unit_ns[0]
    for name in ("reasons", "parts"):
        assert result.tables[name].frame["change_ns"].sum() == pytest.approx(difference)
    # Nothing is infinite.
    assert FinishedJob({}, {"difference": result}).to_json()
    rest = result.tables["parts"].frame.filter(family="rest")
    assert rest["change_ns"].to_list() == pytest.approx([0], abs=0.01)


@pytest.mark.parametrize(
    ("second", "verdict", "said"),
    [
        (make_run(devices=4), "with reserve", "Comparable with reservations: A has 2 GPUs, B has 4 GPUs. B takes as long as A"),
        (make_run(gpu_models={"A100": 2}), "with reserve", "A ran on H100, B ran on A100"),
        (make_run(devices=0), NOT_COMPARABLE, "A and B cannot be compared: B has no GPU work"),
        (make_run({GEMM: {"name": "a"}, "norm": {"name": "b"}}), NOT_COMPARABLE, "the programs differ (common kernels take only"),
        (make_run({GEMM: {"count": 7}}), "with reserve", "the work differs (only 67% of the kernels are the same). B takes as long as A (iteration"),
        (make_run({GEMM: {"count": 40}}), "with reserve", "the work differs (only 14% of the kernels are the same). B takes as long as A (job 5.45 ms → 5.45 ms)."
            " Times of common NVTX ranges (GPU time of the launched work, or else host time): load 30.0 us → 30.0 us"),
        # Iterations are equal, but there are more of them.
        (make_run(steps=40), "comparable", "B takes as long as A (iteration 495 us → 495 us, up to 0.5% may be chance)."
            " The whole job takes 3.72 times as long (5.45 ms → 20.3 ms), because there are 40 iterations instead of 10"),
        (make_run(start=5_500 * US), "comparable", "startup takes 5.00 ms longer, mostly in calls of CUDA"),
    ],
)  # fmt: skip
def test_what_compares(second: FinishedJob, verdict: str, said: str) -> None:
    comparison, result = compare_jobs(make_run(), second)
    assert comparison.verdict == verdict
    assert said in comparison.headline
    # Runs that cannot be compared have amounts, and no changes in percent.
    shares = {
        one
        for table in result.tables.values()
        for one in table.frame.columns
        if one.endswith("_share")
    }
    assert bool(shares) == (verdict != NOT_COMPARABLE)


def test_what_makes_up_for_a_cause() -> None:
    """Check that both changes are stated if hosts wait less because kernels take longer, although
    the iteration takes as long.
    """
    slow = {"norm": {"time": 220 * US}, "rank 1 between a and b": {"time": 100 * US}}
    comparison, _ = compare_jobs(
        make_run({"between a and b": {"time": 300 * US}}),
        make_run({**slow, "rank 0 between a and b": {"time": 100 * US}}),
    )
    assert comparison.change == 0
    assert not comparison.causes, "nothing is to be explained"
    slow["norm"]["time"] = 215 * US
    first = make_run({"between a and b": {"time": 300 * US}})
    comparison, _ = compare_jobs(first, make_run(slow))
    assert (
        ": hosts take 200 us less in load. In the other direction: kernel norm takes 195 us longer (each 10.8 times as long)"
        in comparison.headline
    )
    assert [one.change_ns for one in comparison.against] == pytest.approx([195 * US])


@pytest.mark.parametrize(("time", "is_said"), [(520, True), (480, False)])
def test_clocks(time: int, is_said: bool) -> None:
    """Check that kernels which are slower by the ratio of the clocks are reported as such."""
    runs = (
        make_run(gpu_clocks_hertz=[1_980_000_000]),
        make_run({GEMM: {"time": time * US}}, gpu_clocks_hertz=[1_523_000_000]),
    )
    headline = compare_jobs(*runs)[0].headline
    assert (
        "the GPU clock of A is 1,980 MHz (at most), the GPU clock of B is 1,523 MHz (at most)"
        in headline
    )
    assert (", because the clock is lower)" in headline) == is_said


def test_ends_that_one_run_alone_shows() -> None:
    """Compare GPU work alone where only one run recorded its hosts, and so begins and ends elsewhere."""
    runs = [
        make_run({GEMM: {"count": 40 * at}}, start=at * MS, records={layout: 1})
        for at, layout in ((1, "nvtx"), (40, "thread_state"))
    ]
    comparison, result = compare_jobs(*runs)
    assert comparison.unit == "work"
    assert comparison.unit_ns == (4_950 * US, 4_950 * US)
    assert "host activity before and after GPU work is recorded only in B" in comparison.headline
    assert "startup" not in [*result.tables["parts"].frame["family"]]


def test_bars_add_up() -> None:
    """Check that longer parts less shorter parts are the difference, to the character."""
    comparison, result = compare_jobs(
        make_run(), make_run({GEMM: {"time": 600 * US}, "norm": {"time": 10 * US}})
    )
    a, b, longer, less = list_bars(comparison, result)
    assert (a.length, b.length) == comparison.unit_ns
    assert longer.length - less.length == pytest.approx(b.length - a.length)
    lines = draw_bars([a, b, longer, less], 80)
    counts = [sum(map(line.split("|")[1].count, "#~=.")) for line in lines[:4]]
    assert counts[1] - counts[0] == pytest.approx(counts[2] - counts[3], abs=2)
    assert draw_bars([a], 20) == []


def test_what_is_new_and_what_is_gone() -> None:
    _, result = compare_jobs(make_run(), make_run({"norm": {"name": "new", "count": 1}}))
    assert result.notes[1:] == ["kernels of A only: norm", "kernels of B only: new"]


def test_counts_that_are_means_are_called_so() -> None:
    comparison, _ = compare_jobs(
        make_run(), make_run({"rank 1 norm": {"count": 9, "time": 400 * US}})
    )
    assert "executed 5.5 times per rank instead of 2 on average" in comparison.headline


def test_limits() -> None:
    """Check that a change that may be chance exceeds no limit."""
    slow = make_run({GEMM: {"time": 440 * US}})
    first, second = make_run(spread=50 * US), make_run({GEMM: {"time": 440 * US}}, 50 * US)
    for sides, found in (
        ([[make_run()], [slow]], [True, True, True, True, False, False]),
        # Two standard errors of iterations that differ by so much are more than 8%.
        ([[first], [second]], [False, False, True, True, False, False]),
        # So are those of runs.
        ([[make_run(), slow, make_run()], [slow, slow]], [False] * 6),
    ):
        limits = [
            Limit("", "", 0.05),
            Limit("iteration", "", 0.05),
            Limit("job", "", 0.05),
            Limit("kernel", "gemm", 0.05),
            Limit("region", "lo*", 0.05),
            Limit("communication", "", 0.05),
        ]
        comparison, *_ = compare_sides(sides)
        checked = check_limits(sides, comparison, limits)
        assert [one.is_exceeded for one in checked] == found
    with pytest.raises(UsageError, match="kernel:none: A has no such figure"):
        check_limits(sides, comparison, [Limit("kernel", "none", 0.05)])


def test_a_series() -> None:
    runs = [make_run({GEMM: {"time": time * US}}) for time in (400, 401, 402, 600, 590)]
    at, series = find_jump(runs)
    assert at == 3
    assert series["time_ns"].to_list() == [495 * US + one * US for one in (0, 1, 2, 200, 190)]
    assert series["since_first_share"][-1] == pytest.approx(190 / 495)


def test_equal_jobs_without_work_on_gpus() -> None:
    """Check that ranges are compared by host time, and that nothing differs."""
    comparison, result = compare_jobs(make_run(), make_run())
    assert result.tables["operations_operations"].frame.row(0)[:5] == (
        "load",
        20,
        600 * US,
        20,
        600 * US,
    )
    assert comparison.causes == []
    assert "reasons" not in result.tables


def test_a_difference_as_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that the page contains the sentence of the terminal and of JSON, and every table."""
    json_file, page = tmp_path / "graphs.json", tmp_path / "diff.html"
    assert main(["report", *map(str, SAMPLES["graphs"]), "-q", "--json", str(json_file)]) == 0
    capsys.readouterr()
    both = tmp_path / "diff.json"
    options = ["--fail-above", "kernel:e=1%", "--html", str(page), "--json", str(both)]
    assert main(["diff", *[str(json_file)] * 3, *options]) == 0
    content = json.loads(both.read_text())
    headline = content["job"]["comparison"]["headline"]
    assert headline in " ".join(capsys.readouterr().out.split())
    other, report = tmp_path / "other.json", json.loads(json_file.read_text())
    report["job"]["devices"] = 0
    other.write_text(json.dumps(report))
    versus = [str(json_file), str(json_file), "--versus", str(json_file)]
    assert main(["diff", *versus]) == 0
    assert ", medians of 2 and 1 runs" in " ".join(capsys.readouterr().out.split())
    assert main(["diff", str(json_file), str(other), "--fail-above", "5%"]) == 5
    result = Page(page.read_text(encoding="utf-8"))
    assert headline in result.text
    assert "takes as long as" in headline
    tables = content["analyses"]["difference"]["tables"]
    assert {"series", "parts", "job", "kernels_kernels"} <= set(tables)
    assert "reasons" not in tables, "nothing changed"
    for name, table in tables.items():
        if table["columns"] and any(table["columns"].values()):
            assert f"difference.{name}" in result.jobs[0].tables
