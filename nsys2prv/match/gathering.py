"""Gather the calls of all members per host: one row per host and collective, without members that
do not belong. Also find the calls that two hosts share if no settled communicator connects them.

Two such hosts are placed by everything they share: communicators that could not be settled one by
one are judged together. If this fails too, the order of the calls is accepted if both hosts have
equally many calls of each communicator, and if the calls are so few that no other pairing is
indicated, or UTC supports this pairing. The order is then probable but not proven. If it is wrong,
the host is off by at most the time span of the calls, provided that the hosts share at least one
call.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import DURATION, factorize, find_edges, join_linked
from nsys2prv.clock import (
    CALLS,
    HOLD_BACK,
    NOISE,
    UNCLEAR_KINDS,
    UTC_ERROR,
    ClockFinding,
    FindingKind,
    Noise,
    Observations,
    Role,
    choose_evenly,
    fit_line,
)
from nsys2prv.match import ends as matching
from nsys2prv.match import sequences

#: Largest number of collectives of a group that are used; more add no information.
MOST_COLLECTIVES = 4_000
#: Number of kinds of findings to report first: those on unusable calls.
FIRST_KINDS = 3
#: Maximum number of calls per group and host that are kept if the ends of the group are unclear.
#: Together with other groups of the two hosts, they may still be matched.
MOST_UNCLEAR_CALLS = 512
#: Hosts that one host is compared with before it is given up.
MOST_TRIES = 3
#: Signatures are below this: group * MOST_SIGNATURES + signature is unique across groups.
MOST_SIGNATURES = 1 << 32


def find_shared_calls(calls: pl.DataFrame, pivot: int) -> tuple[pl.DataFrame, list[ClockFinding]]:
    """Select the calls of groups (communicators) that exist on several clocks. Return them as a
    frame, with times relative to `pivot`, and findings about unusable calls.

    `key` numbers the pairs (noise_kind, group). `numbered` is True if the report numbers all calls
    of the group.
    """
    table = calls.with_columns(pl.col("begin", "end") - pivot)
    findings = []
    backwards = table.filter(pl.col("end") < pl.col("begin")).height
    if backwards:
        findings.append(ClockFinding(FindingKind.BACKWARDS, backwards))
        table = table.filter(pl.col("end") >= pl.col("begin"))
    groups = table.group_by("noise_kind", "group").agg(
        clocks=pl.col("clock").min() != pl.col("clock").max(),
        numbered=(pl.col("number") >= 0).all(),
    )
    groups = (
        groups.filter("clocks").sort("noise_kind", "group").drop("clocks").with_row_index("key")
    )
    return table.join(groups.cast({"key": pl.Int32}), on=["noise_kind", "group"]), findings


class GatheredCalls(Struct, frozen=True):
    """Observations of host clocks in the calls of some groups: a row for each collective and host,
    and findings.
    """

    #: Rows of :func:`gather_per_host`.
    rows: pl.DataFrame
    #: Findings about these calls.
    findings: list[ClockFinding]
    #: Calls of groups with members that could not be numbered, for one member of each host: noise_kind,
    #: group, clock, signature, role, is_root, begin, end.
    unsettled: pl.DataFrame
    #: Hosts that are in groups of several hosts.
    hosts: frozenset[int]


def gather_calls(calls: pl.DataFrame, pivot: int) -> GatheredCalls:
    """Find the collectives among the calls of some groups, with their ends on each host. calls: a
    frame with the columns CALLS. pivot: a time in the middle of all times (ns).
    """
    everything, findings = find_shared_calls(calls, pivot)
    table, order_findings = sequences.number_calls(everything)
    unclear = {finding.group for finding in order_findings if finding.kind in UNCLEAR_KINDS}
    is_unclear = pl.col("group").is_in(sorted(unclear)) & ~pl.col("numbered")
    return GatheredCalls(
        gather_per_host(_sample_collectives(table)),
        [*findings, *order_findings],
        _choose_one_per_host(everything.filter(is_unclear)),
        frozenset(everything["clock"].unique()),
    )


def gather_by_member(
    members: Sequence[sequences.Member], noise_kind: int, group: int
) -> GatheredCalls:
    """Find the collectives of one group as :func:`gather_calls` does, but load one member at a
    time. This is for groups without recorded call numbers.

    members: sorted; each loads a frame of CALLS, with times relative to the pivot. noise_kind: how
    exactly such calls end together.
    """
    hosts = frozenset(member.clock for member in members)
    if len(hosts) < 2:
        return gather_calls(pl.DataFrame(schema=CALLS), 0)
    fits, findings = sequences.number_group(members, noise_kind, group, UTC_ERROR)
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
    """Return the calls of one member (the first) of each group and host, in their order."""
    owner = ("noise_kind", "group", "clock")
    return (
        calls.filter(pl.col("member") == pl.col("member").min().over(owner))
        .sort(*owner, "begin")
        .group_by(owner, maintain_order=True)
        .head(MOST_UNCLEAR_CALLS)
        .select(*owner, "signature", "role", "is_root", "begin", "end")
    )


def merge_observations(
    parts: Sequence[GatheredCalls], messages: pl.DataFrame, hosts: int
) -> Observations:
    """Merge observations of clocks: the collectives of all parts, and messages between hosts
    (columns MESSAGES). parts: whole groups, sorted by kind of noise and group. hosts: total number.
    """
    parts = parts or [gather_calls(pl.DataFrame(schema=CALLS), 0)]
    rows = _concat_rows([part.rows for part in parts])
    unsettled = pl.concat([part.unsettled for part in parts])
    connecting, doubt, left = _find_connecting_calls(rows, unsettled, hosts)
    kinds = list(FindingKind)
    # Unclear groups matter only for hosts that all groups together do not place either.
    findings = [
        finding
        for part in parts
        for finding in part.findings
        if finding.kind not in UNCLEAR_KINDS or finding.clock in left
    ]
    shared = frozenset().union(
        *(part.hosts for part in parts), messages["before"], messages["after"]
    )
    return Observations(
        _concat_rows([rows, connecting]),
        messages,
        sorted(findings, key=lambda finding: min(kinds.index(finding.kind), FIRST_KINDS)),
        shared,
        doubt,
        left,
    )


def _concat_rows(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of all parts, with consecutive numbers for keys and collectives."""
    numbered, keys, collectives = [], 0, 0
    for rows in parts:
        numbered.append(rows.with_columns(pl.col("key") + keys, pl.col("collective") + collectives))
        keys += rows["key"].max() + 1 if rows.height else 0
        collectives += rows["collective"].n_unique()
    return pl.concat(numbered)


def _sample_collectives(table: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of at most MOST_COLLECTIVES collectives per group, evenly spaced. Every
    HOLD_BACK-th collective is `held` back as a test.
    """
    ordinals = table.select("key", "ordinal").unique().sort("key", "ordinal")
    parts = ordinals.partition_by("key", maintain_order=True) or [ordinals]
    return table.join(pl.concat(map(_choose_sample, parts)), on=["key", "ordinal"])


def _choose_sample(collectives: pl.DataFrame) -> pl.DataFrame:
    """Return the sampled collectives of a group. `held`: held back as a test."""
    kept = collectives[choose_evenly(collectives.height, MOST_COLLECTIVES)]
    return kept.with_columns(held=pl.int_range(pl.len()) % HOLD_BACK == HOLD_BACK - 1)


def gather_per_host(table: pl.DataFrame) -> pl.DataFrame:
    """Summarize calls by host: return one row per collective and host, sorted by both, for
    collectives on several hosts. table: the numbered calls.

    Columns: key, noise_kind, ordinal, clock, held, role; begin (the latest start among the host's
    members before which no end may be, or null); first_end (their earliest end after such starts,
    or null); end (their mean end); late (True if the last of all members to arrive is on this host:
    it has the shortest duration, because all end together); collective (number from 0).
    """
    role = pl.col("role").first()
    hosts = table.group_by("key", "ordinal", "clock").agg(
        pl.col("noise_kind", "held", "role").first(),
        begin=pl.col("begin").filter(pl.col("is_root") | (role != Role.FROM_ROOT)).max(),
        first_end=pl.col("end").filter(pl.col("is_root") | (role != Role.TO_ROOT)).min(),
        end=pl.col("end").mean(),
        duration=DURATION.min(),
    )
    hosts = hosts.sort("key", "ordinal", "clock")
    number = hosts.select(pl.struct("key", "ordinal").rle_id()).to_series().to_numpy()
    several = (np.bincount(number, minlength=1) > 1)[number]
    hosts = hosts.filter(pl.Series(several))
    _, number = factorize(number[several])
    duration = hosts["duration"].to_numpy()
    starts = find_edges(number)[:-1]
    shortest = np.minimum.reduceat(duration, starts) if len(duration) else duration
    late = duration == shortest[number]
    # If several have the shortest duration, the first one counts as the last to arrive.
    at = np.flatnonzero(late)
    late[at[1:][number[at[1:]] == number[at[:-1]]]] = False
    return hosts.with_columns(collective=pl.Series(number), late=pl.Series(late))


#: Matching rows of calls of two hosts, and their largest possible distance, ns: 0 if they certainly match.
_Pair = tuple[np.ndarray, np.ndarray, float]


def _find_connecting_calls(
    rows: pl.DataFrame, frame: pl.DataFrame, hosts: int
) -> tuple[pl.DataFrame, np.ndarray, list[int]]:
    """Return the calls that place hosts which no settled collectives connect.

    Return rows as from :func:`gather_per_host`, the doubt of each host, and the hosts that remain
    unconnected (see Observations). rows: of settled collectives. frame: `unsettled` calls.
    """
    settled = _find_parts(rows, hosts)
    part = settled.copy()
    calls = sequences.CallSequence.from_frame(frame)
    # The rows of each group by host.
    places: dict[int, dict[tuple[int, int], np.ndarray]] = {}
    by_group = frame.with_row_index("row").group_by(
        "noise_kind", "group", "clock", maintain_order=True
    )
    for (noise_kind, group, host), calls_of_group in by_group:
        own = calls_of_group["row"].to_numpy().astype(np.int64)
        places.setdefault(host, {})[noise_kind, group] = own
    pairs: dict[tuple[int, int], _Pair | None] = {}
    chosen: dict[tuple[int, int], _Pair] = {}
    for sure in (True, False):
        tries = dict.fromkeys(places, 0)
        for first in sorted(places):
            todo = [host for host in sorted(places) if part[host] == part[first]]
            for one, other in ((one, other) for one in todo for other in sorted(places)):
                shared = sorted(places[one].keys() & places[other].keys())
                if part[other] == part[first] or not shared:
                    continue
                if (one, other) not in pairs:
                    if tries[other] >= MOST_TRIES:
                        continue
                    tries[other] += 1
                    both = ([places[host][group] for group in shared] for host in (one, other))
                    noise = max((NOISE[kind] for kind, _ in shared), key=lambda one: one.reach)
                    pairs[one, other] = _pair_hosts(calls, *both, noise)
                pair = pairs[one, other]
                if pair is not None and not (sure and pair[2]):
                    chosen[one, other] = pair
                    new = np.flatnonzero(part == part[other])
                    part[new] = part[first]
                    todo += [host for host in new.tolist() if host in places]
    sizes = np.bincount(part)
    left = [host for host in sorted(places) if sizes[part[host]] == 1]
    return _gather_pairs(frame, chosen), _sum_doubts_by_host(settled, chosen), left


def _find_parts(rows: pl.DataFrame, hosts: int) -> np.ndarray:
    """Return for each host the lowest host to which collectives in which all wait for all connect
    it.
    """
    used = rows.filter((pl.col("role") == Role.ALL) & ~pl.col("held"))
    root = np.arange(hosts)
    for linked in join_linked(
        used.group_by("key").agg(pl.col("clock").unique())["clock"].to_list()
    ):
        root[[*linked]] = min(linked)
    return root


def _pair_hosts(
    calls: sequences.CallSequence, here: list[np.ndarray], theirs: list[np.ndarray], noise: Noise
) -> _Pair | None:
    """Return the calls that two hosts have in common, or None if they are ambiguous. here, theirs:
    rows of each host, by group.
    """
    in_order = _pair_in_order(calls, here, theirs, noise)
    if len(here) > 1 and (in_order is None or in_order[2]):
        own_rows, own = _concat_groups(calls, here)
        other_rows, others = _concat_groups(calls, theirs)
        places, _ = sequences.pair_calls(others, own, noise, UTC_ERROR)
        if places is not None:
            return own_rows[places[places >= 0]], other_rows[places >= 0], 0.0
    return in_order


def _pair_in_order(
    calls: sequences.CallSequence, here: list[np.ndarray], theirs: list[np.ndarray], noise: Noise
) -> _Pair | None:
    """Return the calls of two hosts paired in order, for groups in which both have the same calls;
    None if they do not fit.
    """
    even = [
        (at, a, b)
        for at, (a, b) in enumerate(zip(here, theirs, strict=True))
        if len(a) == len(b)
        and matching.mask_compatible(calls.signature[a], calls.signature[b]).all()
        and (calls.all[a] == calls.all[b]).all()
    ]
    if not even:
        return None
    group = np.repeat([at for at, _, _ in even], [len(a) for _, a, _ in even])
    a, b = (np.concatenate([one[side] for one in even]) for side in (1, 2))
    order = np.argsort(calls.end[a], kind="stable")
    order = order[calls.all[a[order]]]
    a, b, kind = a[order], b[order], (group * MOST_SIGNATURES + calls.signature[a])[order]
    ends, others = calls.end[a], calls.end[b]
    if not len(a) or not sequences.do_fit_in_order(ends, others, noise):
        return None
    own, other = (
        side[np.argsort(side.time, kind="stable")]
        for side in (matching.Ends(ends, kind), matching.Ends(others, kind))
    )
    certainty = matching.rate_in_order(own, other, noise, matching.find_rival_distances(other))
    if certainty >= matching.SURE_RATING:
        return a, b, 0.0
    # Only the order within a group is evidence, not the order across groups.
    if fit_line(ends, others - ends)[2] > noise.reach or (
        certainty == 0.0
        and max(len(own) for _, own, _ in even) >= matching.FEWEST_CALLS
        and not (len(even) == 1 and sequences.are_nearby(ends, others, sequences.USUAL_UTC_ERROR))
    ):
        return None
    reach = max(float(np.ptp(calls.end[own])) for _, own, _ in even)
    return a, b, reach or np.inf


def _concat_groups(
    calls: sequences.CallSequence, groups: list[np.ndarray]
) -> tuple[np.ndarray, sequences.CallSequence]:
    """Return the rows of all groups sorted by end, and their sequence."""
    rows = np.concatenate(groups)
    group = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    order = np.argsort(calls.end[rows], kind="stable")
    sequence = calls[rows[order]]
    kind = group[order] * MOST_SIGNATURES + sequence.signature
    return rows[order], replace(sequence, signature=kind)


def _gather_pairs(frame: pl.DataFrame, pairs: dict[tuple[int, int], _Pair]) -> pl.DataFrame:
    """Return the calls of all pairs by collective. Calls of one host that occur in several pairs
    are the same.
    """
    parts = [
        frame[rows].with_columns(hub=pl.lit(one, pl.Int32), ordinal=pl.Series(pair[0]))
        for (one, _), pair in pairs.items()
        for rows in pair[:2]
    ] or [frame.clear().with_columns(hub=pl.lit(0, pl.Int32), ordinal=pl.lit(0, pl.Int64))]
    table = pl.concat(parts).unique(["hub", "ordinal", "clock"], maintain_order=True)
    key = pl.struct("hub", "noise_kind", "group").rank("dense").cast(pl.Int32) - 1
    return gather_per_host(_sample_collectives(table.with_columns(key=key)))


def _sum_doubts_by_host(settled: np.ndarray, pairs: dict[tuple[int, int], _Pair]) -> np.ndarray:
    """Return for each host by how much it may be off relative to the lowest host to which it is
    connected. settled: parts that are connected without the pairs.
    """
    near: dict[int, list[tuple[int, float]]] = {}
    for hosts, (_, _, doubt) in pairs.items():
        for a, b in permutations(settled[[*hosts]].tolist()):
            near.setdefault(a, []).append((b, doubt))
    reached: dict[int, float] = {}
    for start in sorted(set(settled.tolist())):
        todo = [(start, 0.0)]
        while todo:
            at, doubt = todo.pop()
            if at not in reached:
                reached[at] = doubt
                todo += [(to, doubt + more) for to, more in near.get(at, [])]
    return np.array([reached[at] for at in settled.tolist()])
