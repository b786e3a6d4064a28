"""Use the package as scripts of users do. mypy checks their types in .ci/run."""

from pathlib import Path

import polars as pl

import nsys2prv
from nsys2prv import Finding, OpenJob, Options, Summary, convert


def write_trace(reports: list[Path], output: Path) -> list[str]:
    """Convert reports; return the warnings."""
    summary: Summary = convert(reports, output, Options(kinds=("kernels",), jobs=2))
    print(summary.text())
    return list(summary.warnings)


def longest_kernels(pattern: str) -> pl.DataFrame:
    """Return the kernels of a job, the longest first."""
    with nsys2prv.open(pattern) as job:
        kernels = job.frame("kernels", "kernel")
        return kernels.sort(pl.col("end") - pl.col("begin"), descending=True)


def costs(job: OpenJob) -> dict[str, float]:
    """Return the titles of findings and the share of the time that each costs."""
    findings: list[Finding] = job.findings()
    return {finding.title: finding.share for finding in findings}
