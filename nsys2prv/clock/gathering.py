"""Calls of members brought together per host: what is left of them to find the hosts' corrections by. Groups are gathered one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import polars as pl

from nsys2prv.clock.hosts import per_host, strangers, thin, thinned
from nsys2prv.clock.observations import Calls, Finding, Role, call_frame
from nsys2prv.clock.sequences import AMBIGUOUS, FEW_CALLS, CallSequence, Member, number_calls, number_group

#: Calls looked at together.
ROWS = 300_000
#: Findings of one kind that count what is left out of all groups.
SUMMED = "backwards"
#: Findings on calls that the trace numbers come before those on others.
FIRST = ("repeated", "unlike")
#: Findings on calls that all that two hosts have in common may still tell apart; so many calls of a group and host are looked at then.
OPEN, MOST_OPEN = (FEW_CALLS, AMBIGUOUS), 512


#: Columns of calls that are not numbered.
OPEN_COLUMNS = {"source": pl.Int64, "group": pl.Int64, "clock": pl.Int32, "member": pl.Int64, "began": pl.Boolean, "signature": pl.Int64,
                "role": pl.Int8, "is_root": pl.Boolean, "begin": pl.Int64, "end": pl.Int64}


@dataclass(frozen=True)
class Gathered:
    """rows: of per_host. groups: communicator of each of their keys, which are numbers from 0. findings: of recognising collectives, and
    of leaving members out. unsettled: calls (OPEN_COLUMNS) of groups some of whose members could not be numbered, of one member of each
    host. hosts: that are in groups of several hosts."""

    rows: pl.DataFrame
    groups: dict[int, int]
    recognising: list[Finding]
    members: list[Finding]
    unsettled: pl.DataFrame
    hosts: frozenset[int]


def gathered(calls: Calls, pivot: int) -> Gathered:
    """Some groups' calls. pivot: an instant amid all times."""
    everything, findings = call_frame(calls, pivot)
    groups = dict(everything.select("key", "group").unique().iter_rows())
    table, found = number_calls(everything)
    if any(finding.kind in OPEN for finding in found):
        clocks = dict(everything.select("member", "clock").unique().iter_rows())
        found = [replace(finding, clock=clocks[finding.member]) if finding.kind in OPEN else finding for finding in found]
    findings += found
    table, members = strangers(thin(table))
    keys = {finding.group for finding in found if finding.kind in OPEN}
    unsettled = everything.filter(pl.col("group").is_in(sorted(keys)) & ~pl.col("numbered")) if keys else everything.clear()
    return Gathered(per_host(table), groups, findings, members, _one_of_each_host(unsettled), frozenset(everything["clock"].unique()))


def _one_of_each_host(calls: pl.DataFrame) -> pl.DataFrame:
    """The first calls of one member of each group and host, in their order."""
    calls = calls.filter(pl.col("member") == pl.col("member").min().over("source", "group", "clock"))
    return calls.sort("source", "group", "clock", "begin").group_by("source", "group", "clock", maintain_order=True).head(MOST_OPEN).select(
        pl.col(name).cast(kind) for name, kind in OPEN_COLUMNS.items())


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
    """A member of a group, its clock, how many calls it has, where to get them, as often as they are asked for, and whether its report
    has the beginning of the group."""

    member: int
    clock: int
    count: int
    load: Callable[[], MemberCalls]
    began: bool = False


def gathered_by_member(members: Sequence[Participant], source: int, group: int) -> Gathered:
    """A group's calls, of which the trace does not number all and none ends before it begins; a member's at a time. `members` ascend."""
    nothing = gathered(Calls.none(), 0)
    if len({member.clock for member in members}) < 2:
        return nothing
    fits, findings = number_group([Member(member.member, member.count, partial(_sequence, member), member.began) for member in members],
                                  source, group)
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
    unsettled = nothing.unsettled
    if any(finding.kind in OPEN for finding in findings):
        clocks = {member.member: member.clock for member in members}
        findings = [replace(finding, clock=clocks[finding.member]) if finding.kind in OPEN else finding for finding in findings]
        first_of = {member.clock: member for member in reversed(members)}
        unsettled = _one_of_each_host(pl.concat([_all(member, source, group) for member in first_of.values()]))
    return Gathered(pl.concat(rows), {0: group}, findings, [], unsettled, frozenset(member.clock for member in members))


def _all(member: Participant, source: int, group: int) -> pl.DataFrame:
    calls = member.load()
    some = slice(MOST_OPEN)
    return pl.DataFrame({
        "source": source, "group": group, "clock": member.clock, "member": member.member, "began": member.began,
        "signature": calls.signature[some], "role": calls.role[some], "is_root": calls.is_root[some], "begin": calls.begin[some],
        "end": calls.end[some]}, schema=OPEN_COLUMNS)


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


def together(parts: Sequence[Gathered]) -> Gathered:
    """All parts, as if they had been gathered at once; all findings under `recognising`."""
    rows, groups = [], {}
    collectives = 0
    for part in parts:
        first = len(groups)
        rows.append(part.rows.with_columns(pl.col("key") + first, pl.col("collective") + collectives))
        groups |= {key + first: group for key, group in part.groups.items()}
        collectives += part.rows["collective"].n_unique()
    return Gathered(pl.concat(rows), groups, in_turn([part.recognising for part in parts], [part.members for part in parts]), [],
                    pl.concat([part.unsettled for part in parts]), frozenset().union(*(part.hosts for part in parts)))


def in_turn(recognising: Sequence[list[Finding]], members: Sequence[list[Finding]]) -> list[Finding]:
    """The findings of all parts, as if there had been one: of recognising collectives, then of leaving members out."""
    found = [finding for part in recognising for finding in part]
    left = [finding for finding in found if finding.kind == SUMMED]
    findings = [Finding(SUMMED, left[0].reason, sum(finding.count for finding in left))] if left else []
    for kind in FIRST:
        findings += [finding for finding in found if finding.kind == kind]
    findings += [finding for finding in found if finding.kind not in (SUMMED, *FIRST)]
    return findings + [finding for part in members for finding in part]
