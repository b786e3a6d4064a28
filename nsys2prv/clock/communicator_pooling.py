"""Hosts placed by all that two of them have in common: communicators that could not be settled one
by one are judged together.

Where that does not settle them either, the order of the calls is taken as it is, if both hosts have
equally many of each communicator, and these are so few that nothing speaks for another pairing, or
UTC speaks for this one: it is probably right, but nothing shows it. If it is wrong, the host is off
by no more than the calls reach over, as long as the two have one call in common.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv.clock import Role
from nsys2prv.clock.gathering import GatheredCalls, downsample, gather_per_host
from nsys2prv.clock.matching import (
    FEWEST,
    SURE,
    Ends,
    find_rival_distances,
    mask_compatible,
    rate_match,
    rate_order,
)
from nsys2prv.clock.observations import NOISE, fit_line
from nsys2prv.clock.sequences import (
    USUAL_UTC_ERROR,
    CallSequence,
    are_nearby,
    do_fit_in_order,
    pair_calls,
)

#: Hosts that one host is compared with before it is given up.
TRIES = 3
#: Signatures of a group are told from those of another by this.
KINDS = 1 << 32


class PooledCalls(Struct, frozen=True):
    """Calls of hosts that share communicators."""

    #: Calls of hosts that belong together.
    calls: GatheredCalls
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


class _Calls(Struct, dict=True):
    """The calls that are not settled."""

    #: All calls.
    frame: pl.DataFrame
    #: The rows of each group by host.
    places: dict[int, dict[tuple[int, int], np.ndarray]]

    def __post_init__(self) -> None:
        self.end = self.frame["end"].to_numpy().astype(np.float64)
        self.signature = self.frame["signature"].to_numpy()
        self.all = self.frame["role"].to_numpy() == Role.ALL

    def find_shared_groups(self, one: int, other: int) -> list[tuple[int, int]]:
        return sorted(self.places[one].keys() & self.places[other].keys())


def pool_calls(gathered: GatheredCalls, hosts: int, error: float) -> PooledCalls:
    """Return the calls that place hosts which no settled collectives connect. error: of the clocks
    as placed, ns.
    """
    settled = _find_parts(gathered.rows, hosts)
    part = settled.copy()
    frame = gathered.unsettled
    calls = _Calls(frame, {})
    for (source, group, host), rows in frame.with_row_index("row").group_by(
        "source", "group", "clock", maintain_order=True
    ):
        calls.places.setdefault(host, {})[source, group] = rows["row"].to_numpy().astype(np.int64)
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
                        or (tries[other] >= TRIES and (one, other) not in pairs)
                        or not calls.find_shared_groups(one, other)
                    ):
                        continue
                    if (one, other) not in pairs:
                        tries[other] += 1
                        pairs[one, other] = _pair_hosts(calls, one, other, error)
                    pair = pairs[one, other]
                    if pair is None or (sure and pair.doubt):
                        continue
                    host_pairs.append((one, other, pair))
                    new = np.flatnonzero(part == part[other])
                    part[new] = part[first]
                    todo += [host for host in new.tolist() if host in calls.places]
    sizes = np.bincount(part)
    left = [host for host in sorted(calls.places) if sizes[part[host]] == 1]
    return PooledCalls(_gather_pairs(frame, host_pairs), _add_up_doubts(settled, host_pairs), left)


def _add_up_doubts(settled: np.ndarray, pairs: list[tuple[int, int, _Pair]]) -> np.ndarray:
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


def _pair_hosts(calls: _Calls, one: int, other: int, error: float) -> _Pair | None:
    """Return the calls that two hosts have in common; None where nothing tells."""
    shared = calls.find_shared_groups(one, other)
    noise = max((NOISE[source] for source, _ in shared), key=lambda noise: noise.reach)
    here, theirs = ([calls.places[host][group] for group in shared] for host in (one, other))
    even = [
        at
        for at, (a, b) in enumerate(zip(here, theirs, strict=True))
        if len(a) == len(b)
        and mask_compatible(calls.signature[a], calls.signature[b]).all()
        and (calls.all[a] == calls.all[b]).all()
    ]
    if even:
        a, b = (np.concatenate([side[at] for at in even]) for side in (here, theirs))
        kind = np.repeat(even, [len(here[at]) for at in even]) * KINDS + calls.signature[a]
        kept = calls.all[a]
        a, b, kind = a[kept], b[kept], kind[kept]
        order = np.argsort(calls.end[a], kind="stable")
        a, b, kind = a[order], b[order], kind[order]
        if len(a):
            offset, slope, spread = fit_line(calls.end[a], calls.end[b] - calls.end[a])
            fits = do_fit_in_order(calls.end[a], calls.end[b], noise)
            own = Ends(calls.end[a], kind).move(offset, slope)
            other = Ends(calls.end[b], kind)
            own, other = (side[np.argsort(side.time, kind="stable")] for side in (own, other))
            width = max(noise.reach, 3 * spread)
            certainty = rate_match(own, other, width, find_rival_distances(other))
            if fits and certainty >= SURE:
                return _Pair(a, b)
    if len(shared) > 1:
        sides = [_concat_groups(calls, side) for side in (here, theirs)]
        numbers, _ = pair_calls(sides[1][1], sides[0][1], noise, False, error)
        if numbers is not None:
            kept = numbers >= 0
            return _Pair(sides[0][0][numbers[kept]], sides[1][0][kept])
    if not even or not len(a) or not fits or spread > noise.reach:
        return None
    if certainty == 0.0 and max(len(here[at]) for at in even) >= FEWEST:
        # Evidence is there only for the order of one group's calls, taking that of others as none.
        ends, others = calls.end[a], calls.end[b]
        if len(even) > 1 or not (
            are_nearby(ends, others, USUAL_UTC_ERROR)
            or rate_order(ends, others, calls.signature[a], noise) > 0
        ):
            return None
    reach = max(float(np.ptp(calls.end[here[at]])) for at in even)
    return _Pair(a, b, reach or np.inf)


def _concat_groups(calls: _Calls, groups: list[np.ndarray]) -> tuple[np.ndarray, CallSequence]:
    """Return the rows of all groups by their ends, and their sequence."""
    rows = np.concatenate(groups)
    sizes = [len(group) for group in groups]
    kind = np.repeat(np.arange(len(groups)) * KINDS, sizes) + calls.signature[rows]
    order = np.argsort(calls.end[rows], kind="stable")
    return rows[order], CallSequence(calls.end[rows][order], kind[order], calls.all[rows][order])


def _gather_pairs(frame: pl.DataFrame, pairs: list[tuple[int, int, _Pair]]) -> GatheredCalls:
    """Return the calls of all pairs by collective: of one host, those of its pairs with others are
    the same.
    """
    parts = [
        frame[rows].with_columns(hub=pl.lit(one, pl.Int32), ordinal=pl.Series(pair.one))
        for one, _, pair in pairs
        for rows in (pair.one, pair.other)
    ] or [frame.clear().with_columns(hub=pl.lit(0, pl.Int32), ordinal=pl.lit(0, pl.Int64))]
    table = pl.concat(parts).unique(["hub", "ordinal", "clock"], maintain_order=True)
    key = pl.struct("hub", "source", "group").rank("dense").cast(pl.Int32) - 1
    return GatheredCalls(
        gather_per_host(downsample(table.with_columns(key=key))), [], frame.clear(), frozenset()
    )
