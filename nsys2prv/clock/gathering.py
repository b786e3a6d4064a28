"""Calls of members brought together per host: what is left of them to find the hosts' corrections by. Groups are gathered one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl

from nsys2prv.clock.hosts import per_host, strangers, thin, thinned
from nsys2prv.clock.observations import Calls, Finding, Role, call_frame
from nsys2prv.clock.sequences import CallSequence, Member, number_calls, number_group

#: Calls looked at together.
ROWS = 300_000
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


@dataclass(frozen=True)
class MemberCalls:
    """One member's calls of a group, by their begins: arrays of one length, as in :class:`Calls`, times relative to the pivot."""

    begin: np.ndarray
    end: np.ndarray
    signature: np.ndarray
    role: np.ndarray
    is_root: np.ndarray


@dataclass(frozen=True)
class Participant:
    """A member of a group, its clock, how many calls it has, and where to get them, as often as they are asked for."""

    member: int
    clock: int
    count: int
    load: Callable[[], MemberCalls]


def gathered_by_member(members: Sequence[Participant], source: int, group: int) -> Gathered:
    """A group's calls, of which the trace does not number all and none ends before it begins; a member's at a time. `members` ascend."""
    nothing = gathered(Calls.none(), 0)
    if len({member.clock for member in members}) < 2:
        return nothing
    fits, findings = number_group([Member(member.member, member.count, partial(_sequence, member)) for member in members], source, group)
    ordinals = np.empty(0, np.int64)
    for found in fits.values():
        if not np.array_equal(found, ordinals):
            ordinals = np.union1d(ordinals, found[found >= 0])
    kept, held = thinned(len(ordinals))
    ordinals = ordinals[kept]
    parts = [_chosen(members[at], fits[at], ordinals) for at in sorted(fits)]
    table = pl.concat([part for part in parts if part.height]).with_columns(
        key=pl.lit(0, pl.Int32), source=pl.lit(source, pl.Int64), held=pl.Series(held)[pl.concat(parts)["place"]])
    rows = [nothing.rows]
    step = max(1, ROWS // len(members))
    collectives = 0
    for first in range(0, len(ordinals), step):
        part = per_host(table.filter(pl.col("place").is_between(first, first + step - 1)))
        rows.append(part.with_columns(pl.col("collective") + collectives).select(nothing.rows.columns))
        collectives += part["collective"].n_unique()
    return Gathered(pl.concat(rows), {0: group}, findings, [])


def _sequence(member: Participant) -> CallSequence:
    calls = member.load()
    return CallSequence(calls.end.astype(np.float64), calls.signature, calls.role == Role.ALL)


def _chosen(member: Participant, numbers: np.ndarray, ordinals: np.ndarray) -> pl.DataFrame:
    """The member's calls of these collectives, with their places among them."""
    place = np.searchsorted(ordinals, numbers)
    rows = np.flatnonzero(ordinals[np.minimum(place, len(ordinals) - 1)] == numbers) if len(ordinals) else np.empty(0, np.int64)
    calls = member.load()
    return pl.DataFrame({
        "place": place[rows].astype(np.int32), "ordinal": numbers[rows], "clock": np.full(len(rows), member.clock, np.int32),
        "role": calls.role[rows].astype(np.int8), "begin": calls.begin[rows], "end": calls.end[rows], "is_root": calls.is_root[rows]})


def together(parts: Sequence[Gathered]) -> tuple[pl.DataFrame, dict[int, int], list[Finding]]:
    """Rows, groups by key, and findings of all parts, as if they had been gathered at once."""
    rows, groups = [], {}
    collectives = 0
    for part in parts:
        first = len(groups)
        rows.append(part.rows.with_columns(pl.col("key") + first, pl.col("collective") + collectives))
        groups |= {key + first: group for key, group in part.groups.items()}
        collectives += part.rows["collective"].n_unique()
    return pl.concat(rows), groups, in_turn([part.recognising for part in parts], [part.members for part in parts])


def in_turn(recognising: Sequence[list[Finding]], members: Sequence[list[Finding]]) -> list[Finding]:
    """The findings of all parts, as if there had been one: of recognising collectives, then of leaving members out."""
    found = [finding for part in recognising for finding in part]
    left = [finding for finding in found if finding.kind == SUMMED]
    findings = [Finding(SUMMED, left[0].reason, sum(finding.count for finding in left))] if left else []
    for kind in FIRST:
        findings += [finding for finding in found if finding.kind == kind]
    findings += [finding for finding in found if finding.kind not in (SUMMED, *FIRST)]
    return findings + [finding for part in members for finding in part]
