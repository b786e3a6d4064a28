"""The findings of a job, put together: each cause once, the most costly first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from nsys2prv.analysis.findings import device_time
from nsys2prv.analysis.findings.causes import slow_links, with_waits
from nsys2prv.analysis.findings.finding import Finding
from nsys2prv.analysis.findings.job_wide import job_wide
from nsys2prv.analysis.findings.people import People
from nsys2prv.analysis.findings.rank_wise import imbalance, of_culprits, of_event, of_link
from nsys2prv.analysis.findings.waiting import blame, segments_of
from nsys2prv.analysis.result import Analysis, Context, Result, Table
from nsys2prv.analysis.steady import phases

#: More are not told.
MOST = 10


def conclude(found: Mapping[str, pl.DataFrame], context: Context) -> Result:
    steady = context.question.steady
    begin, end = context.question.steady_span(context.duration)
    others = with_waits(found["others"])
    people = People.of(context, _parts(found["devices"], others), found["records"], others, end - begin)
    findings = [*_of_waits(people, steady, (begin, end)), *job_wide(people, found["calls"], context)] if found["devices"].height else []
    findings = sorted(findings, key=lambda finding: -finding.share)[:MOST]
    tables = {}
    if steady:
        tables["phases"] = Table("Phases", phases(context.book, context.labels["nvtx"], steady),
                                 "Findings are of the steady state: shares are of its time.")
    return Result("findings", ANALYSIS.title, tables, [], [], findings)


def _parts(devices: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """The parts of devices' time, of NCCL kernels that are not matched the waits told from the transfers."""
    if not devices.height:
        return devices
    idle = [name for name in devices.columns if name.startswith("idle_")]
    devices = devices.with_columns(idle_unknown=(pl.col("idle") - pl.sum_horizontal(idle)).clip(0))
    waited = pl.lit(0, pl.Int64).alias("more")
    if others.height:
        waits = others.group_by("task").agg(more=pl.col("exposed_wait").sum())
        devices, waited = devices.join(waits, on="task", how="left", maintain_order="left"), pl.col("more").fill_null(0)
    waited = pl.min_horizontal(waited, "other_nccl")
    return devices.with_columns(wait=pl.col("wait") + waited, transfer=pl.col("transfer") + pl.col("other_nccl") - waited)


def _of_waits(people: People, steady: object, span: tuple[int, int]) -> list[Finding]:
    """Who makes others wait, and which links are slow."""
    links = slow_links(people.records, people.length)
    found = [of_link(people, link) for link in links]
    if not people.records.height and not people.others.height:
        return found
    segments = segments_of(people.records, people.others, steady, span)
    culprits, events = blame(segments, people.length)
    told = 0
    if culprits:
        told += culprits.cost
        one = of_culprits(people, segments, culprits)
        same = next((at for at, link in enumerate(links) if set(culprits.tasks) <= set(link.tasks)), None)
        if same is not None and one.kind == "slow_link":
            found[same] = replace(found[same], share=max(found[same].share, one.share), evidence=(*found[same].evidence, *one.evidence))
        else:
            found.append(one)
    told += sum(event.cost for event in events)
    found += [of_event(people, event) for event in events]
    return [*found, *imbalance(people, segments, told)]


ANALYSIS = Analysis("findings", "Findings", (), device_time.collect, conclude)
