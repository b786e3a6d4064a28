"""The findings of a job, put together: each cause once, the most costly first."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
from msgspec.structs import replace

from nsys2prv.analysis.findings import device_time
from nsys2prv.analysis.findings.causes import slow_links, with_waits
from nsys2prv.analysis.findings.finding import Finding
from nsys2prv.analysis.findings.job_wide import job_wide
from nsys2prv.analysis.findings.people import People
from nsys2prv.analysis.findings.rank_wise import imbalance, of_culprits, of_event, of_link
from nsys2prv.analysis.findings.waiting import blame, segments_of
from nsys2prv.analysis.result import Analysis, Context, Result, Table
from nsys2prv.analysis.steady import phases
from nsys2prv.analysis.unit import WORK

#: More are not told.
MOST = 10
NOT_TOLD = "what holds the job back cannot be told without work on GPUs"


def conclude(found: Mapping[str, pl.DataFrame], context: Context) -> Result:
    steady = context.question.steady
    begin, end = context.question.steady_span(context.duration)
    others = with_waits(found["others"])
    found = (
        {**found, "devices": found["devices"].with_columns(pl.col("device").cast(pl.Int64))}
        if found["devices"].height
        else found
    )
    people = People.of(
        context, _parts(found["devices"], others), found["records"], others, end - begin
    )
    findings = []
    if found["devices"].height:
        kernels = (
            dict(context.labels["nccl_kernels"].rows()) if "nccl_kernels" in context.labels else {}
        )
        findings = _of_waits(people, kernels, steady, (begin, end))
        # One cause, one finding: what is a culprit's is not the whole job's too.
        culprits = {rank for finding in findings for rank in finding.ranks}
        findings += job_wide(people.without_excess_of(culprits), found["calls"], context)
    findings = sorted(findings, key=lambda finding: -finding.share)[:MOST]
    tables = {}
    if steady:
        tables["phases"] = Table(
            "Phases",
            phases(context.book, context.labels["nvtx"], steady),
            "Findings are of the steady state: shares are of its time.",
        )
    missing = [] if found["devices"].height else [f"{NOT_TOLD}: {context.absent(tuple(WORK))}"]
    return Result("findings", ANALYSIS.title, tables, [], missing, findings)


def _parts(devices: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """The parts of devices' time: of NCCL kernels that are not matched and of MPI the waits for
    other ranks told from the rest.
    """
    if not devices.height:
        return devices
    idle = [name for name in devices.columns if name.startswith("idle_")]
    devices = devices.with_columns(idle_unknown=(pl.col("idle") - pl.sum_horizontal(idle)).clip(0))
    nothing = pl.DataFrame(schema={"device": pl.Int64, "name": pl.String, "exposed_wait": pl.Int64})
    waits = (
        (others if others.height else nothing)
        .group_by("device")
        .agg(
            nccl=pl.col("exposed_wait").filter(pl.col("name").str.starts_with("NCCL")).sum(),
            mpi=pl.col("exposed_wait").filter(~pl.col("name").str.starts_with("NCCL")).sum(),
        )
    )
    devices = devices.join(waits, on="device", how="left", maintain_order="left")
    nccl, mpi = (
        pl.min_horizontal(pl.col(name).fill_null(0), part)
        for name, part in (("nccl", "other_nccl"), ("mpi", "idle_mpi"))
    )
    return devices.with_columns(
        wait=pl.col("wait") + nccl + mpi,
        transfer=pl.col("transfer") + pl.col("other_nccl") - nccl,
        idle_mpi=pl.col("idle_mpi") - mpi,
    )


def _of_waits(
    people: People, kernels: Mapping[int, str], steady: object, span: tuple[int, int]
) -> list[Finding]:
    """Find who makes others wait, and which links are slow. kernels: labels of NCCL kernels."""
    links = slow_links(people.records, people.others, kernels, people.length)
    found = [of_link(people, link) for link in links]
    if not people.records.height and not people.others.height:
        return found
    segments = segments_of(people.records, people.others, steady, span)
    culprits, events = blame(segments, people.length)
    told = 0
    if culprits:
        told += culprits.cost
        one = of_culprits(people, segments, culprits)
        same = [
            finding
            for finding, link in zip(found, links, strict=True)
            if set(culprits.tasks) & set(link.tasks)
        ]
        if same and one.kind == "slow_link":
            one = replace(
                same[0],
                share=max(same[0].share, one.share),
                evidence=(*same[0].evidence, *one.evidence),
            )
        elif same:
            # A slow GPU moves data slowly too.
            one = replace(one, evidence=(*one.evidence, *same[0].evidence))
        found = [one, *(finding for finding in found if finding not in same)]
    told += sum(event.cost for event in events)
    found += [of_event(people, event) for event in events]
    return [*found, *imbalance(people, segments, told)]


ANALYSIS = Analysis("findings", "Findings", (), device_time.collect, conclude)
