"""Test that the causes built into the first sample are reported as findings, with their costs."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import nsys2prv
from nsys2prv import OpenJob, Options
from nsys2prv.figures.result import Finding

SAMPLE = Path(__file__).parents[2] / "sample_reports" / "training"
TRUTH = json.loads((SAMPLE / "truth.json").read_text())
CAUSES = TRUTH["causes"]


@pytest.fixture(scope="module")
def job() -> Iterator[OpenJob]:
    with nsys2prv.open(SAMPLE, quiet=True, jobs=1) as job:
        yield job


@pytest.fixture(scope="module")
def findings(job: OpenJob) -> dict[str, Finding]:
    """Return kind -> its most expensive finding."""
    found: dict[str, Finding] = {}
    for finding in job.findings():
        found.setdefault(finding.kind, finding)
    return found


def test_samples_together_are_small() -> None:
    assert sum(path.stat().st_size for path in SAMPLE.parent.rglob("*.*")) < 5_200_000


def test_the_conversion_warns_of_nothing(tmp_path: Path) -> None:
    summary = nsys2prv.convert(SAMPLE, tmp_path / "out.prv", Options(quiet=True, jobs=1))
    assert summary.warnings == []
    host = next(line for line in summary.text().splitlines() if " nodes aligned by " in line)
    assert float(re.search(r"error below (\d+) us", host)[1]) < 50


def test_the_late_rank(findings: dict[str, Finding]) -> None:
    result = findings["straggler"]
    assert result.ranks == (CAUSES["late"]["rank"],)
    assert CAUSES["late"]["range"] in result.title


def test_the_hiccup(findings: dict[str, Finding]) -> None:
    hiccup = CAUSES["hiccup"]
    result = findings["hiccup"]
    assert result.ranks == (hiccup["rank"],)
    begin, end, ranks = result.moments[0]
    assert ranks == result.ranks
    assert 0.5 < (end - begin) / (hiccup["end"] - hiccup["begin"]) <= 1.01


def test_the_exposed_communication(job: OpenJob, findings: dict[str, Finding]) -> None:
    assert findings["exposed_communication"].ranks == ()
    frame = job.analyse("overlap")["overlap"].tables["devices"].frame
    exposed = frame.filter(pl.col("device") != "all")["nccl_exposed_ns"].to_list()
    assert exposed == pytest.approx([rank["exposed_ns"] for rank in CAUSES["ranks"]], rel=0.01)


def test_the_gemm_without_tensor_cores(findings: dict[str, Finding]) -> None:
    (evidence,) = findings["no_tensor_cores"].evidence
    # Of 19 of the 20 iterations.
    total = np.sum(CAUSES["gemm_without_tensor_cores"]["ns"]) * 19 / 20
    assert float(re.search(r": ([\d.]+) ms", evidence)[1]) * 1e6 == pytest.approx(total, rel=0.002)


def test_nothing_is_found_that_was_not_put_in(job: OpenJob, findings: dict[str, Finding]) -> None:
    """Kernels of two ranks last longer by chance, as the truth says too."""
    compute = [rank["compute_ns"] for rank in CAUSES["ranks"]]
    for finding in job.findings():
        if "kernels take" in finding.title:
            others = [compute[rank] for rank in range(4) if rank not in finding.ranks]
            assert min(compute[rank] for rank in finding.ranks) > max(others)
    put_in = {"straggler", "hiccup", "exposed_communication", "no_tensor_cores"}
    # Hosts that load batches and stop leave their GPUs idle: the same causes, seen from the GPUs.
    assert put_in <= findings.keys() <= {*put_in, "host_work", "startup"}
