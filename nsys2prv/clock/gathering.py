"""Gather the calls of all members per host, one row per host and collective, without members that
do not belong.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import factorize
from nsys2prv.clock import UNCLEAR_KINDS, UTC_ERROR, Role
from nsys2prv.clock.observations import (
    Calls,
    ClockFinding,
    choose_evenly,
    find_shared_calls,
    group_rows,
    sort_findings,
)
from nsys2prv.clock.sequences import Member, number_calls, number_group

#: At most so many collectives of a group are used; more add no information.
MOST_COLLECTIVES = 4_000
#: One in this many collectives and messages is held back from the estimate, to judge it by.
HOLD_BACK = 10
#: Calls of a group and host that are looked at where its ends are unclear: all that two hosts have
#: in common may still tell them apart.
MOST_UNCLEAR_CALLS = 512


class GatheredCalls(Struct, frozen=True):
    """Calls of groups, gathered per host."""

    #: Rows of :func:`gather_per_host`.
    rows: pl.DataFrame
    #: What was found odd on the way.
    findings: list[ClockFinding]
    #: Calls of groups some of whose members could not be numbered, of one member of each host:
    #: noise_kind, group, clock, signature, role, is_root, begin, end.
    unsettled: pl.DataFrame
    #: Hosts that are in groups of several hosts.
    hosts: frozenset[int]


def gather_calls(calls: Calls, pivot: int) -> GatheredCalls:
    """Return some groups' calls. pivot: an instant amid all times."""
    everything, findings = find_shared_calls(calls, pivot)
    table, order_findings = number_calls(everything)
    unclear = {finding.group for finding in order_findings if finding.kind in UNCLEAR_KINDS}
    is_unclear = pl.col("group").is_in(sorted(unclear)) & ~pl.col("numbered")
    return GatheredCalls(
        gather_per_host(sample_collectives(table)),
        [*findings, *order_findings],
        _choose_one_per_host(everything.filter(is_unclear)),
        frozenset(everything["clock"].unique()),
    )


def gather_by_member(members: Sequence[Member], noise_kind: int, group: int) -> GatheredCalls:
    """Return the calls of one group as :func:`gather_calls` does, loading one member at a time; for
    groups without recorded numbers of calls. `members` ascend, and load frames of
    :func:`make_call_frame`.
    """
    hosts = frozenset(member.clock for member in members)
    if len(hosts) < 2:
        return gather_calls(Calls.make_empty(), 0)
    fits, findings = number_group(members, noise_kind, group, UTC_ERROR)
    ordinals = np.empty(0, np.int64)
    for fit in fits.values():
        if not np.array_equal(fit, ordinals):
            ordinals = np.union1d(ordinals, fit[fit >= 0])
    kept, held = _choose_sample_indices(len(ordinals))
    sample = pl.DataFrame({"ordinal": ordinals[kept], "held": held})
    table = pl.concat(
        members[at].load().with_columns(ordinal=pl.Series(fits[at])).join(sample, on="ordinal")
        for at in sorted(fits)
    )
    is_open = any(finding.kind in UNCLEAR_KINDS for finding in findings)
    first_of_hosts = {member.clock: member for member in reversed(members)} if is_open else {}
    heads = [member.load().head(MOST_UNCLEAR_CALLS) for member in first_of_hosts.values()]
    return GatheredCalls(
        gather_per_host(table.with_columns(key=pl.lit(0, pl.Int32))),
        findings,
        _choose_one_per_host(pl.concat([table.drop(sample.columns).clear(), *heads])),
        hosts,
    )


def _choose_one_per_host(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the first calls of one member of each group and host, in their order."""
    owner = ("noise_kind", "group", "clock")
    return (
        calls.filter(pl.col("member") == pl.col("member").min().over(owner))
        .sort(*owner, "begin")
        .group_by(owner, maintain_order=True)
        .head(MOST_UNCLEAR_CALLS)
        .select(*owner, "signature", "role", "is_root", "begin", "end")
    )


def merge_groups(parts: Sequence[GatheredCalls]) -> GatheredCalls:
    """Return all parts, as if they had been gathered at once."""
    parts = parts or [gather_calls(Calls.make_empty(), 0)]
    return GatheredCalls(
        concat_rows([part.rows for part in parts]),
        sort_findings(part.findings for part in parts),
        pl.concat([part.unsettled for part in parts]),
        frozenset().union(*(part.hosts for part in parts)),
    )


def concat_rows(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of all parts, with keys and collectives numbered through."""
    numbered, keys, collectives = [], 0, 0
    for rows in parts:
        numbered.append(rows.with_columns(pl.col("key") + keys, pl.col("collective") + collectives))
        keys += rows["key"].max() + 1 if rows.height else 0
        collectives += rows["collective"].n_unique()
    return pl.concat(numbered)


def sample_collectives(table: pl.DataFrame) -> pl.DataFrame:
    """Return calls of at most MOST_COLLECTIVES collectives of each group, spread evenly over its
    order; every HOLD_BACK-th is `held`.
    """
    ordinals = table.select("key", "ordinal").unique().sort("key", "ordinal")
    if not ordinals.height:
        return table.with_columns(held=pl.lit(False))
    chosen = []
    for rows in group_rows(ordinals["key"].to_numpy()):
        kept, held = _choose_sample_indices(len(rows))
        chosen.append((rows[kept], held))
    kept, held = map(np.concatenate, zip(*chosen, strict=True))
    return table.join(ordinals[kept].with_columns(held=pl.Series(held)), on=["key", "ordinal"])


def _choose_sample_indices(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the collectives to look at, and which of them are held back."""
    kept = choose_evenly(count, MOST_COLLECTIVES)
    return kept, np.arange(len(kept)) % HOLD_BACK == HOLD_BACK - 1


def gather_per_host(table: pl.DataFrame) -> pl.DataFrame:
    """Return one row per collective and host, sorted by both, of collectives on several hosts.

    Columns: key, noise_kind, ordinal, clock, held, role; begin: the latest of the host's members
    that no end may precede, null without any; first_end: their earliest that comes after such
    begins, null without any; end: their mean end; late: the last to come of all members is here,
    who has the shortest duration as all end together; collective: number from 0.
    """
    role = pl.col("role").first()
    hosts = table.group_by("key", "ordinal", "clock").agg(
        pl.col("noise_kind", "held", "role").first(),
        begin=pl.col("begin").filter(pl.col("is_root") | (role != Role.FROM_ROOT)).max(),
        first_end=pl.col("end").filter(pl.col("is_root") | (role != Role.TO_ROOT)).min(),
        end=pl.col("end").mean(),
        duration=(pl.col("end") - pl.col("begin")).min(),
    )
    hosts = hosts.sort("key", "ordinal", "clock")
    number = hosts.select(pl.struct("key", "ordinal").rle_id()).to_series().to_numpy()
    several = (np.bincount(number, minlength=1) > 1)[number]
    hosts = hosts.filter(pl.Series(several))
    _, number = factorize(number[several])
    duration = hosts["duration"].to_numpy()
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    shortest = np.minimum.reduceat(duration, starts) if len(duration) else duration
    late = duration == shortest[number]
    # Of equal durations the first alone is the last to come.
    at = np.flatnonzero(late)
    late[at[1:][number[at[1:]] == number[at[:-1]]]] = False
    return hosts.with_columns(collective=pl.Series(number), late=pl.Series(late))
