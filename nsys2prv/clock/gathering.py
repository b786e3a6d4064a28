"""Gather the calls of all members per host, one row per host and collective, without members that
do not belong; and find the calls that two hosts have in common where no settled communicator
connects them.

Such hosts are placed by all that two of them have in common: communicators that could not be settled
one by one are judged together. Where that does not settle them either, the order of the calls is
taken as it is, if both hosts have equally many of each communicator, and these are so few that
nothing speaks for another pairing, or UTC speaks for this one: it is probably right, but nothing
shows it. If it is wrong, the host is off by no more than the calls reach over, as long as the two
have one call in common.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import factorize
from nsys2prv.clock import (
    CALLS,
    NOISE,
    UNCLEAR_KINDS,
    UTC_ERROR,
    ClockFinding,
    FindingKind,
    Noise,
    Role,
    find_shared_calls,
)
from nsys2prv.clock.matching import (
    FEWEST_CALLS,
    SURE_RATING,
    Ends,
    choose_evenly,
    find_rival_distances,
    fit_line,
    mask_compatible,
    rate_in_order,
)
from nsys2prv.clock.sequences import (
    USUAL_UTC_ERROR,
    CallSequence,
    Member,
    are_nearby,
    do_fit_in_order,
    number_calls,
    number_group,
    pair_calls,
)

#: Largest number of collectives of a group that are used; more add no information.
MOST_COLLECTIVES = 4_000
#: Number of kinds of findings that come before others: on calls that cannot be used at all.
FIRST_KINDS = 3
#: Every 10th collective and message is held back from the estimate, to judge it by.
HOLD_BACK = 10
#: Largest number of calls of a group and host that are kept where the ends of the group are unclear:
#: together with other groups of the two hosts they may still be matched.
MOST_UNCLEAR_CALLS = 512
#: Hosts that one host is compared with before it is given up.
MOST_TRIES = 3
#: Signatures are below this: group * MOST_SIGNATURES + signature tells those of one group from
#: another's.
MOST_SIGNATURES = 1 << 32


class GatheredCalls(Struct, frozen=True):
    """Calls of groups, gathered per host."""

    #: Rows of :func:`gather_per_host`.
    rows: pl.DataFrame
    #: Findings about these calls.
    findings: list[ClockFinding]
    #: Calls of groups some of whose members could not be numbered, of one member of each host:
    #: noise_kind, group, clock, signature, role, is_root, begin, end.
    unsettled: pl.DataFrame
    #: Hosts that are in groups of several hosts.
    hosts: frozenset[int]


def gather_calls(calls: pl.DataFrame, pivot: int) -> GatheredCalls:
    """Return some groups' calls, given as a frame of CALLS. pivot: an instant amid all times."""
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
    CALLS with times relative to the pivot.
    """
    hosts = frozenset(member.clock for member in members)
    if len(hosts) < 2:
        return gather_calls(pl.DataFrame(schema=CALLS), 0)
    fits, findings = number_group(members, noise_kind, group, UTC_ERROR)
    ordinals = np.empty(0, np.int64)
    for fit in fits.values():
        if not np.array_equal(fit, ordinals):
            ordinals = np.union1d(ordinals, fit[fit >= 0])
    sample = _choose_sample(pl.DataFrame({"ordinal": ordinals}))
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
    parts = parts or [gather_calls(pl.DataFrame(schema=CALLS), 0)]
    kinds = list(FindingKind)
    findings = (finding for part in parts for finding in part.findings)
    return GatheredCalls(
        concat_rows([part.rows for part in parts]),
        sorted(findings, key=lambda finding: min(kinds.index(finding.kind), FIRST_KINDS)),
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
    parts = ordinals.partition_by("key", maintain_order=True) or [ordinals]
    return table.join(pl.concat(map(_choose_sample, parts)), on=["key", "ordinal"])


def _choose_sample(collectives: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives of a group to look at; `held`: those that are held back."""
    kept = collectives[choose_evenly(collectives.height, MOST_COLLECTIVES)]
    return kept.with_columns(held=pl.int_range(pl.len()) % HOLD_BACK == HOLD_BACK - 1)


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
    # Where several have the shortest duration, the first one counts as the last to come.
    at = np.flatnonzero(late)
    late[at[1:][number[at[1:]] == number[at[:-1]]]] = False
    return hosts.with_columns(collective=pl.Series(number), late=pl.Series(late))


class ConnectingCalls(Struct, frozen=True):
    """Calls of hosts that share communicators."""

    #: Calls of hosts that belong together, rows of :func:`gather_per_host`.
    rows: pl.DataFrame
    #: Per host: possible error in addition to its bound, ns; 0 where the calls surely belong
    #: together, inf where nothing is known.
    doubt: np.ndarray
    #: Hosts that share calls with others but could not be placed by them.
    left: list[int]


class _Pair(Struct):
    """Calls of two hosts that belong together: rows of the frame, of one and of the other."""

    #: Rows of one host.
    one: np.ndarray
    #: Rows of the other.
    other: np.ndarray
    #: How far they may be off each other, ns; 0 where they surely belong together.
    doubt: float = 0.0


class _UnsettledCalls(Struct):
    """The calls that are not settled."""

    #: All calls.
    frame: pl.DataFrame
    #: The same.
    sequence: CallSequence
    #: The rows of each group by host.
    places: dict[int, dict[tuple[int, int], np.ndarray]]

    def find_shared_groups(self, one: int, other: int) -> list[tuple[int, int]]:
        """Return the groups in which two hosts have calls, ascending."""
        return sorted(self.places[one].keys() & self.places[other].keys())


def find_connecting_calls(gathered: GatheredCalls, hosts: int) -> ConnectingCalls:
    """Return the calls that place hosts which no settled collectives connect."""
    settled = _find_parts(gathered.rows, hosts)
    part = settled.copy()
    frame = gathered.unsettled
    calls = _UnsettledCalls(frame, CallSequence.from_frame(frame), {})
    for (noise_kind, group, host), rows in frame.with_row_index("row").group_by(
        "noise_kind", "group", "clock", maintain_order=True
    ):
        calls.places.setdefault(host, {})[noise_kind, group] = (
            rows["row"].to_numpy().astype(np.int64)
        )
    pairs: dict[tuple[int, int], _Pair | None] = {}
    host_pairs: list[tuple[int, int, _Pair]] = []
    for sure in (True, False):
        tries = dict.fromkeys(calls.places, 0)
        for first in sorted(calls.places):
            todo = [host for host in sorted(calls.places) if part[host] == part[first]]
            for one in todo:
                for other in sorted(calls.places):
                    if (
                        part[other] == part[first]
                        or (tries[other] >= MOST_TRIES and (one, other) not in pairs)
                        or not calls.find_shared_groups(one, other)
                    ):
                        continue
                    if (one, other) not in pairs:
                        tries[other] += 1
                        pairs[one, other] = _pair_hosts(calls, one, other)
                    pair = pairs[one, other]
                    if pair is None or (sure and pair.doubt):
                        continue
                    host_pairs.append((one, other, pair))
                    new = np.flatnonzero(part == part[other])
                    part[new] = part[first]
                    todo += [host for host in new.tolist() if host in calls.places]
    sizes = np.bincount(part)
    left = [host for host in sorted(calls.places) if sizes[part[host]] == 1]
    return ConnectingCalls(
        _gather_pairs(frame, host_pairs), _sum_doubts_by_host(settled, host_pairs), left
    )


def _find_parts(rows: pl.DataFrame, hosts: int) -> np.ndarray:
    """Return the lowest host that each host is connected to by collectives in which all wait for
    all.
    """
    root = np.arange(hosts)
    used = rows.filter((pl.col("role") == Role.ALL) & ~pl.col("held"))
    for clocks in used.group_by("key").agg(pl.col("clock").unique())["clock"]:
        roots = np.unique(root[clocks.to_numpy()])
        root[np.isin(root, roots)] = roots[0]
    return root


def _pair_hosts(calls: _UnsettledCalls, one: int, other: int) -> _Pair | None:
    """Return the calls that two hosts have in common; None where they cannot be told apart."""
    shared = calls.find_shared_groups(one, other)
    noise = max((NOISE[noise_kind] for noise_kind, _ in shared), key=lambda noise: noise.reach)
    here, theirs = ([calls.places[host][group] for group in shared] for host in (one, other))
    in_order = _pair_in_order(calls, here, theirs, noise)
    if len(shared) > 1 and (in_order is None or in_order.doubt):
        own_rows, own = _concat_groups(calls, here)
        other_rows, others = _concat_groups(calls, theirs)
        places, _ = pair_calls(others, own, noise, False, UTC_ERROR)
        if places is not None:
            return _Pair(own_rows[places[places >= 0]], other_rows[places >= 0])
    return in_order


def _pair_in_order(
    calls: _UnsettledCalls, here: list[np.ndarray], theirs: list[np.ndarray], noise: Noise
) -> _Pair | None:
    """Return the calls of two hosts paired in their order, for groups in which both have the same
    calls; None if they do not fit. here, theirs: rows of each host, by group.
    """
    even = [
        at
        for at, (a, b) in enumerate(zip(here, theirs, strict=True))
        if len(a) == len(b)
        and mask_compatible(calls.sequence.signature[a], calls.sequence.signature[b]).all()
        and (calls.sequence.all[a] == calls.sequence.all[b]).all()
    ]
    if not even:
        return None
    a, b = (np.concatenate([side[at] for at in even]) for side in (here, theirs))
    kind = (
        np.repeat(even, [len(here[at]) for at in even]) * MOST_SIGNATURES
        + calls.sequence.signature[a]
    )
    kept = calls.sequence.all[a]
    a, b, kind = a[kept], b[kept], kind[kept]
    order = np.argsort(calls.sequence.end[a], kind="stable")
    a, b, kind = a[order], b[order], kind[order]
    ends, others = calls.sequence.end[a], calls.sequence.end[b]
    if not len(a) or not do_fit_in_order(ends, others, noise):
        return None
    own, other = (
        side[np.argsort(side.time, kind="stable")]
        for side in (Ends(ends, kind), Ends(others, kind))
    )
    certainty = rate_in_order(own, other, noise, find_rival_distances(other))
    spread = fit_line(ends, others - ends)[2]
    if certainty >= SURE_RATING:
        return _Pair(a, b)
    if spread > noise.reach:
        return None
    # Only the order within a group is evidence, not the order across groups.
    if (
        certainty == 0.0
        and max(len(here[at]) for at in even) >= FEWEST_CALLS
        and not (len(even) == 1 and are_nearby(ends, others, USUAL_UTC_ERROR))
    ):
        return None
    reach = max(float(np.ptp(calls.sequence.end[here[at]])) for at in even)
    return _Pair(a, b, reach or np.inf)


def _concat_groups(
    calls: _UnsettledCalls, groups: list[np.ndarray]
) -> tuple[np.ndarray, CallSequence]:
    """Return the rows of all groups by their ends, and their sequence."""
    rows = np.concatenate(groups)
    group = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    order = np.argsort(calls.sequence.end[rows], kind="stable")
    sequence = calls.sequence[rows[order]]
    kind = group[order] * MOST_SIGNATURES + sequence.signature
    return rows[order], replace(sequence, signature=kind)


def _gather_pairs(frame: pl.DataFrame, pairs: list[tuple[int, int, _Pair]]) -> pl.DataFrame:
    """Return the calls of all pairs by collective. Calls of one host in several pairs are the
    same.
    """
    parts = [
        frame[rows].with_columns(hub=pl.lit(one, pl.Int32), ordinal=pl.Series(pair.one))
        for one, _, pair in pairs
        for rows in (pair.one, pair.other)
    ] or [frame.clear().with_columns(hub=pl.lit(0, pl.Int32), ordinal=pl.lit(0, pl.Int64))]
    table = pl.concat(parts).unique(["hub", "ordinal", "clock"], maintain_order=True)
    key = pl.struct("hub", "noise_kind", "group").rank("dense").cast(pl.Int32) - 1
    return gather_per_host(sample_collectives(table.with_columns(key=key)))


def _sum_doubts_by_host(settled: np.ndarray, pairs: list[tuple[int, int, _Pair]]) -> np.ndarray:
    """Return by host how far it may be off the lowest host that it is connected to. settled: parts
    without the pairs, which connect them.
    """
    near: dict[int, list[tuple[int, float]]] = {}
    for one, other, pair in pairs:
        for a, b in ((settled[one], settled[other]), (settled[other], settled[one])):
            near.setdefault(int(a), []).append((int(b), pair.doubt))
    reached: dict[int, float] = {}
    for start in sorted(set(settled.tolist())):
        todo = [(start, 0.0)]
        while todo:
            at, doubt = todo.pop()
            if at not in reached:
                reached[at] = doubt
                todo += [(to, doubt + more) for to, more in near.get(at, [])]
    return np.array([reached[at] for at in settled.tolist()])
