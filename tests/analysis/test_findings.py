"""Findings: the right culprit, of jobs with a known fault and of figures made by hand."""

from __future__ import annotations

import ast
import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from msgspec.structs import replace
from tools.view_answers import SAMPLES

import nsys2prv
from nsys2prv.analysis import findings, stragglers
from nsys2prv.analysis.collectives import add_waits, find_device_groups, find_slow_links
from nsys2prv.analysis.intervals import merge_spans
from nsys2prv.analysis.page import SECTION_OF, SECTIONS
from nsys2prv.analysis.result import FINDING_KINDS, NOTHING, Finding, JobRanks
from nsys2prv.analysis.stragglers import (
    Segments,
    compute_binomial_tail,
    compute_mean_chance,
    find_culprits,
)
from nsys2prv.analysis.text import format_findings
from nsys2prv.analysis.unit import AnalysisOptions, Unit
from nsys2prv.paraver.cfg import list_core_views

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import culprits


def make_segments(waits: np.ndarray, step: int = 1_000) -> Segments:
    count = waits.shape[1]
    return Segments(
        np.arange(1, count + 1),
        waits.astype(float),
        step * np.arange(1, len(waits) + 1),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
    )


def draw_waits(rng: np.random.Generator, count: int, ranks: int, late: np.ndarray) -> np.ndarray:
    """Return the waits of ranks that come late by noise and, each, by so much more: until the last
    one has come.
    """
    arrivals = rng.exponential(20, (count, ranks)) + late
    return arrivals.max(axis=1, keepdims=True) - arrivals


def test_a_rank_that_is_often_the_last_is_named() -> None:
    """Though not often enough to be the culprit: in 4 of 9 intervals, and in 2 it is not named."""
    tasks = pl.DataFrame({"task": [1, 2, 3], "rank": [0, 1, 2], "node": ["a", "a", "b"]})
    job = JobRanks(
        tasks.with_columns(who=pl.format("rank {}", "rank")),
        pl.DataFrame({"task": [1, 2, 3], "label": ["a GPU0", "a GPU1", "b GPU0"]}),
        pl.DataFrame(),
        pl.DataFrame(),
        900,
    )
    least = np.array([1, 1, 1, 1, 0, 0, 0, 2, 2])
    waits = np.full((9, 3), 90.0)
    waits[np.arange(9), least] = 0
    (result,) = stragglers.make_imbalance_findings(job, make_segments(waits), 0)
    assert result.evidence[0].endswith(
        "; the others wait most often for rank 1 (a GPU1): in 4 of 9 intervals between collectives"
    )
    waits = np.full((9, 3), 90.0)
    waits[:2, 1] = 0
    waits[2:, 0] = np.where(np.arange(7) < 2, 0, 90)
    (result,) = stragglers.make_imbalance_findings(job, make_segments(waits[:4]), 0)
    assert "most often" not in result.evidence[0]


@pytest.mark.parametrize("ranks", [4, 64, 256])
def test_a_slow_rank_is_not_hidden_by_a_hiccup(ranks: int) -> None:
    """Nor the other way round: both are told, each with its own cost."""
    rng = np.random.default_rng(ranks)
    late = np.zeros(ranks)
    late[ranks // 2] = 200
    arrivals = rng.exponential(20, (90, ranks)) + late
    arrivals[40, 1] += 30_000
    result, events = find_culprits(
        make_segments(arrivals.max(axis=1, keepdims=True) - arrivals), 90_000
    )
    assert result is not None
    assert result.tasks == [ranks // 2 + 1]
    assert result.segments == 89
    # 200 of 1,000 ns, and not less for the noise of the others.
    assert result.cost / 90_000 == pytest.approx(0.2, rel=0.06)
    assert [event.tasks for event in events] == [[2]]
    assert events[0].cost == pytest.approx(30_000, rel=0.03)
    assert events[0].times[0] == pytest.approx(41_000 - 30_000, rel=0.1)


def test_a_hiccup_that_makes_a_whole_host_late() -> None:
    """The ranks of its host wait for rank 7 first; then those of the other one, for all of these."""
    waits = np.random.default_rng(5).exponential(5, (40, 8))
    waits[20, 4:7] += 30_000
    waits[22, :4] += 30_000
    assert [event.tasks for event in find_culprits(make_segments(waits), 70_000)[1]] == [[8]]
    # Nobody can tell where they did not wait.
    waits[20, 4:7] -= 30_000
    (event,) = find_culprits(make_segments(waits), 70_000)[1]
    assert sorted(event.tasks) == [5, 6, 7, 8]


@pytest.mark.parametrize("ranks", [2, 4, 64])
def test_nobody_is_named_where_all_are_alike(ranks: int) -> None:
    for seed in range(50):
        waits = draw_waits(np.random.default_rng(seed), 40, ranks, np.zeros(ranks))
        assert find_culprits(make_segments(waits), 40_000) == (None, [])


def test_a_group_that_is_late_together() -> None:
    late = np.zeros(16)
    late[4:8] = 150
    result, events = find_culprits(
        make_segments(draw_waits(np.random.default_rng(3), 40, 16, late)), 40_000
    )
    assert result is not None
    assert sorted(result.tasks) == [5, 6, 7, 8]
    assert not events


def test_the_greatest_noise_is_no_event() -> None:
    """In 300 jobs of balanced ranks with exponential noise, of one at most; an event is found."""
    rng, named = np.random.default_rng(8), 0
    for _ in range(300):
        waits = draw_waits(rng, 22, 4, np.zeros(4))
        _, events = find_culprits(make_segments(waits), 22_000)
        named += len(events)
    assert named <= 3
    waits[7] += np.array([600, 600, 0, 600])
    _, (event,) = find_culprits(make_segments(waits), 22_000)
    assert event.tasks == [3]


def make_grouped_kernels(groups: list[list[int]], clock_error_ns: int = 0) -> pl.DataFrame:
    """Return NCCL kernels of one name, 20 on each device.

    All kernels of a group end together to some us, begin at random and last 300 us; the others'
    ends vary by ms. wrong: how far the clock of odd devices is off (ns).
    """
    rng, frames = np.random.default_rng(4), []
    for group in groups:
        ends = np.arange(1, 21) * 10_000_000 + rng.integers(0, 2_000_000, 20)
        for device in group:
            end = ends + rng.integers(0, 5_000, 20) + clock_error_ns * (device % 2)
            frames.append(
                pl.DataFrame(
                    {"device": device, "number": range(20), "begin": end - 300_000, "end": end}
                )
            )
    return pl.concat(frames).select(pl.lit("NCCL 1").alias("name"), pl.all())


@pytest.mark.parametrize("clock_error_ns", [0, 4_000_000])
def test_devices_whose_kernels_end_together_are_a_group(clock_error_ns: int) -> None:
    kernels = make_grouped_kernels([[0, 2, 3], [1, 4]], clock_error_ns)
    result = find_device_groups(kernels).sort("device")
    assert result["device"].to_list() == [0, 1, 2, 3, 4]
    assert result["group"].rank("dense").to_list() == [1, 2, 1, 1, 2]


def test_waits_of_groups_are_those_for_their_own_last() -> None:
    """Device 1 waits 100 us for device 0 in each kernel, device 3 as long for device 2, whose kernels
    are ten times as long: their link is slow. Their clock is wrong, and counts for nothing.
    """
    slow, late = pl.col("device") >= 2, pl.col("device") % 2 == 0
    length = pl.when(slow).then(3_000_000).otherwise(300_000) + pl.when(late).then(0).otherwise(
        100_000
    )
    kernels = make_grouped_kernels([[0, 1], [2, 3]]).with_columns(
        pl.lit(20).alias("total"),
        *(pl.lit(-1).alias(name) for name in ("operation", "bytes", "communicator")),
        task=pl.col("device") + 1,
        end=pl.col("end") + pl.when(slow).then(4_000_000).otherwise(0),
        exposed=length,
    )
    kernels = kernels.with_columns(begin=pl.col("end") - pl.col("exposed"))
    result = add_waits(kernels)
    waits = result.group_by("device").agg(pl.col("exposed_wait").median()).sort("device")
    assert waits["exposed_wait"].to_list() == pytest.approx([0, 1e5, 0, 1e5], abs=5_000)
    first = result.filter(pl.col("device") == 0).sort("number")["end"].to_list()
    for device in range(4):
        assert result.filter(pl.col("device") == device).sort("number")["when"].to_list() == first
    (link,) = find_slow_links(pl.DataFrame(), result, {1: "ncclDevKernel_AllGather"}, 100_000_000)
    assert (link.tasks, link.what) == ([3, 4], "ncclDevKernel_AllGather")
    assert link.transfer / link.usual == pytest.approx(10, rel=0.02)
    assert link.cost == pytest.approx(20 * 2_700_000, rel=0.02)


def test_chance() -> None:
    assert compute_binomial_tail(0, 10, 0.5) == 1
    assert compute_binomial_tail(10, 10, 0.5) == pytest.approx(2**-10)
    assert compute_binomial_tail(9, 10, 0.5) == pytest.approx(11 * 2**-10)
    assert compute_binomial_tail(1500, 2000, 0.5) < 1e-9
    # Student's t of 10 degrees of freedom beyond 2.764 is 1 %.
    values = np.array([-1.0, 1.0] * 5 + [0.0])
    assert compute_mean_chance(values + 2.764 * values.std(ddof=1) / 11**0.5) == pytest.approx(
        0.01, rel=0.2
    )
    assert compute_mean_chance(-1 - values) == 1


@pytest.mark.parametrize(
    ("fault", "payload"),
    [
        ("slow GPU", "both"),
        ("slow code", "both"),
        ("slow link", "both"),
        ("hiccup", "both"),
        ("balanced", "both"),
        ("slow link", "none"),
        ("hiccup", "none"),
    ],
)
def test_jobs_with_a_known_fault(fault: str, payload: str, tmp_path: Path) -> None:
    case = culprits.CASES[fault](np.random.default_rng([1, 4]), 4)
    case.options = dataclasses.replace(case.options, steps=10, skew_us=20.0, payload=payload)
    case.fault = dataclasses.replace(case.fault, steps=(5,) if case.fault.steps else ())
    result = culprits.judged(case, tmp_path).found
    assert case.hit, result
    shares = [finding.share for finding in result]
    assert shares == sorted(shares, reverse=True)
    for finding in result:
        assert len(finding.devices) == len(finding.ranks)
        assert 0 < finding.share <= 1
        assert finding.evidence
        assert finding.advice


def test_transfers_that_a_wait_exposes() -> None:
    """Computation lasts until 80. A transfer of 50 that is complete at 150 would have been hidden at
    once, one of 100 for the most part; without a wait nothing changes.
    """
    records = pl.DataFrame(
        {
            "begin": [0, 0, 70, 200],
            "transfer": [50, 100, 50, 50],
            "exposed_transfer": [50, 100, 40, 50],
        }
    )
    compute = merge_spans(np.array([0]), np.array([80]))
    assert findings._find_avoidable_exposure(records, compute).to_list() == [50, 80, 0, 0]


def test_the_parts_of_the_time_of_devices_are_all_of_it() -> None:
    with nsys2prv.open(SAMPLES["training"], jobs=1) as job:
        options = AnalysisOptions(steady=job.steady, covered=job.coverage.common)
        begin, end = options.get_steady_span(job.duration)
        for number in np.unique(job.reader.rows.units).tolist():
            unit = Unit(job.reader, number, options, job._saved.parent)
            collected = findings.collect(unit)
            devices = pl.concat([frame for name, frame in collected if name == "devices"])
            assert (
                devices.select(
                    pl.sum_horizontal("compute", "transfer", "wait", "other_nccl", "memory", "idle")
                )["compute"].to_list()
                == [end - begin] * devices.height
            )


def test_every_kind_is_explained_and_has_its_section() -> None:
    assert {SECTION_OF[kind] for kind in FINDING_KINDS} <= set(SECTIONS)
    text = (Path(__file__).parents[2] / "docs" / "analysis.md").read_text()
    for kind, meaning in FINDING_KINDS.items():
        assert f"* `{kind}`: {meaning}" in text.replace("\n  ", " ")


def test_views_of_findings_are_there() -> None:
    core = {Path(name).stem for name in list_core_views()}
    named = {
        view
        for module in Path(nsys2prv.analysis.__file__).parent.rglob("*.py")
        for view in _find_views(ast.parse(module.read_text(encoding="utf-8")))
    }
    assert named >= {"nccl_wait", "gpu-gaps", "critical_path_time_2dh"}
    assert named <= core, f"cfgs/ lacks {sorted(named - core)}"


def _find_views(module: ast.Module) -> set[str]:
    """Return the views that the findings of a module name: in the calls, or in a constant."""
    constants = {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    place = Finding.__struct_fields__.index("views")
    values = []
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Finding", "replace"):
            values += [item.value for item in node.keywords if item.arg == "views"]
            values += node.args[place : place + 1]
    values += [
        side
        for value in values
        if isinstance(value, ast.IfExp)
        for side in (value.body, value.orelse)
    ]
    values = [value for value in values if not isinstance(value, ast.IfExp)]
    resolved = [constants[value.id] if isinstance(value, ast.Name) else value for value in values]
    return {view for value in resolved for view in ast.literal_eval(value)}


def test_findings_as_text() -> None:
    finding = Finding(
        "straggler",
        "Rank 1 (n GPU0) is late.",
        0.123,
        (1,),
        ("n GPU0",),
        ("first", "second"),
        "look",
        ("nccl_wait",),
    )
    assert format_findings([finding]) == [
        " 12.3 %  Rank 1 (n GPU0) is late.",
        "         measured: first",
        "         do: look",
    ]
    assert format_findings([finding], full=True)[-3:] == [
        "         measured: second",
        "         do: look",
        "         views: nccl_wait",
    ]
    assert format_findings([finding] * 7)[-1] == "  and 2 smaller ones: --full"
    assert all(
        len(line) <= 40
        for line in format_findings([replace(finding, title="word " * 40, advice="word " * 40)], 40)
    )
    assert " ".join(line.strip() for line in format_findings([], 50)) == NOTHING
    assert Finding.from_dict(json.loads(json.dumps(finding.as_dict()))) == finding
