"""Calls of members brought together per host: what is left of them to find the hosts' corrections by. Groups are gathered one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from nsys2prv.clock.hosts import per_host, strangers, thin
from nsys2prv.clock.observations import Calls, Finding, call_frame
from nsys2prv.clock.sequences import number_calls

#: Findings of one kind that count what is left out of all groups.
SUMMED = "backwards"
#: Findings on calls that the trace numbers come before those on others.
FIRST = ("repeated", "unlike")


@dataclass(frozen=True)
class Gathered:
    """rows: of per_host. groups: communicator of each of their keys, which are numbers from 0. findings: of recognising collectives, and
    of leaving members out."""

    rows: pl.DataFrame
    groups: dict[int, int]
    recognising: list[Finding]
    members: list[Finding]


def gathered(calls: Calls, pivot: int) -> Gathered:
    """Some groups' calls. pivot: an instant amid all times."""
    table, findings = call_frame(calls, pivot)
    groups = dict(table.select("key", "group").unique().iter_rows())
    table, found = number_calls(table)
    findings += found
    table, members = strangers(thin(table))
    return Gathered(per_host(table), groups, findings, members)


def together(parts: Sequence[Gathered]) -> tuple[pl.DataFrame, dict[int, int], list[Finding]]:
    """Rows, groups by key, and findings of all parts, as if they had been gathered at once."""
    rows, groups = [], {}
    collectives = 0
    for part in parts:
        first = len(groups)
        rows.append(part.rows.with_columns(pl.col("key") + first, pl.col("collective") + collectives))
        groups |= {key + first: group for key, group in part.groups.items()}
        collectives += part.rows["collective"].n_unique()
    found = [finding for part in parts for finding in part.recognising]
    left = [finding for finding in found if finding.kind == SUMMED]
    findings = [Finding(SUMMED, left[0].reason, sum(finding.count for finding in left))] if left else []
    for kind in FIRST:
        findings += [finding for finding in found if finding.kind == kind]
    findings += [finding for finding in found if finding.kind not in (SUMMED, *FIRST)]
    findings += [finding for part in parts for finding in part.members]
    return pl.concat(rows), groups, findings
