"""Test the steady state of a job, and reports of parts of it."""

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from samples import generate
from tools.view_answers import SAMPLES

import nsys2prv
from nsys2prv._util.columns import ABSENT
from nsys2prv.cli import main
from nsys2prv.figures import iterations, process_events

TRAINING = list(map(str, SAMPLES["training"]))


def make_ranges(rows: list[tuple[int, int, int]]) -> tuple[list[pl.DataFrame], pl.DataFrame]:
    """Return ranges (begin, end, name) of one thread in two frames, and their patterns."""
    labels = pl.DataFrame({"value": [1, 2, 3, 4], "label": ["epoch", "step 1", "step 2", "layer"]})
    frame = pl.DataFrame(
        rows, schema={"begin": pl.Int64, "end": pl.Int64, "range": pl.Int64}, orient="row"
    )
    patterns = process_events.make_patterns(labels)
    frame = frame.join(patterns.select("code", range="value"), on="range", maintain_order="left")
    frame = frame.with_columns(thread=pl.lit(0), number=pl.lit(ABSENT))
    return [frame[:5], frame[5:]], patterns


def find_by_ranges(*args: object) -> str | None:
    return process_events._find_by_ranges(*args, lambda *_: True)


def test_iterations_are_ranges_whose_names_differ_in_numbers() -> None:
    steps = [(100 + 10 * number, 109 + 10 * number, 2 + number % 2) for number in range(6)]
    layers = [(begin + part, begin + part + 2, 4) for begin, _, _ in steps for part in (0, 4)]
    table = make_ranges([(0, 400, 1), *steps, *layers])
    result = find_by_ranges(*table, np.arange(100, 160))
    assert result == "step #"
    # Most kernels run elsewhere.
    assert find_by_ranges(*table, np.arange(200, 400)) is None


def test_calls_of_a_function_are_no_iterations() -> None:
    """Three in each of two steps, with most kernels elsewhere; two numbered steps are iterations."""
    calls = [(begin + part, begin + part + 3, 4) for begin in (100, 200) for part in (0, 4, 8)]
    table = make_ranges(calls)
    kernels = np.concatenate([np.arange(begin, begin + 100) for begin in (100, 200)])
    assert find_by_ranges(*table, kernels) is None
    steps = [(100, 199, 2), (200, 299, 3)]
    assert find_by_ranges(*make_ranges(sorted([*steps, *calls])), kernels) == "step #"
    # The same where the number stands beside the name.
    frames, patterns = make_ranges([(begin, end, 1) for begin, end, _ in steps])
    assert find_by_ranges(frames, patterns, kernels) is None
    frames = [frame.with_columns(number=pl.int_range(pl.len())) for frame in frames]
    assert find_by_ranges(frames, patterns, kernels) == "epoch"


def test_the_first_iteration_is_warm_up_and_so_are_long_ones_behind_it() -> None:
    assert iterations._count_warm_up(np.full(10, 50)) == 1
    assert iterations._count_warm_up(np.array([600, 300, *[50] * 8])) == 2
    assert iterations._count_warm_up(np.array([50, 300, *[50] * 8])) == 1
    assert iterations._count_warm_up(np.array([50])) == 0


def test_start_up_of_any_length_changes_no_finding(tmp_path: Path) -> None:
    """Check that the values of the steady state are shown beside those of the whole job."""
    generate(tmp_path, ranks=2, hosts=1, steps=6, layers=2)
    with nsys2prv.open([tmp_path / f"rank{rank}.sqlite" for rank in range(2)]) as job:
        assert job.steady is not None
        assert job.steady.count == 5
        phases = job.analyse("findings")["findings"].tables["phases"].frame
        assert phases["phase"].to_list() == ["startup", "steady state", "shutdown"]
        assert phases["time_ns"].sum() == job.duration
        assert phases["activity"][1].startswith("NVTX ranges ")
        rows = job.analyse("efficiencies")["efficiencies"].tables["device"].frame
        part, whole = rows.row(0, named=True), rows.row(1, named=True)
        begin, end = job.steady.begin, job.steady.end
        assert part["elapsed_ns"] == end - begin
        assert part["parallel_efficiency"] == pytest.approx(part["useful_ns"] / 2 / (end - begin))
        assert part["parallel_efficiency"] > 2 * whole["parallel_efficiency"]


@pytest.mark.slow
def test_a_slower_job_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that status 4 depends on the time of an iteration, not of startup, from the given
    share.
    """
    for name, layers in (("a", 2), ("b", 4)):
        generate(tmp_path / name, ranks=2, hosts=1, steps=4, layers=layers)
        assert (
            main(
                [
                    "report",
                    *(str(tmp_path / name / f"rank{rank}.sqlite") for rank in range(2)),
                    "-q",
                    "--json",
                    str(tmp_path / f"{name}.json"),
                ]
            )
            == 0
        )
    a, b = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    capsys.readouterr()
    assert main(["diff", a, b, "--fail-above", "5%"]) == 4
    headline = " ".join(capsys.readouterr().out.split())
    assert re.match(
        r"Comparable with reservations: the work differs \(only 56% of the kernels are the same\)\. "
        r"B takes [\d.]+% longer than A \(iteration [\d.]+ ms → [\d.]+ ms, up to [\d.]+% may be chance\)\. Main cause: kernel",
        headline,
    )
    assert main(["diff", a, b, "--fail-above", "500%"]) == 0
    assert main(["diff", b, a, "--fail-above", "0"]) == 0
    assert "% less time than A (" in " ".join(capsys.readouterr().out.split())
    assert main(["diff", a, a, "--fail-above", "0"]) == 0
    assert capsys.readouterr().out.startswith("B takes as long as A (")
    assert main(["diff", a, b, "--fail-above", "much"]) == 2
    assert "--fail-above much: give a share" in capsys.readouterr().err
