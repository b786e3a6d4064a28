"""Find work that some processes have and the others do not, and leave it out, or spread it over the stages
of a pipeline, which have to do it between them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from nsys2prv.replay.graph import NO_WEIGHT, Kind
from nsys2prv.replay.thresholds import LEAST_EXCESS, MORE_OF_STAGE, MORE_OFTEN
from nsys2prv.replay.whatif import GPU, HOST, Changes, Replay, WorkTable


class OwnWork(Struct, frozen=True):
    """Work of a kind that some processes have alone, or more often than the others."""

    #: Columns of the table of the kind that have it (a mask).
    columns: np.ndarray
    #: Lines of `keys` of the table with such work, and the share of each that is not the others' too.
    keys: np.ndarray
    share: np.ndarray
    #: How long it lasts (ns) in each column, without what others do instead of it.
    lasts: np.ndarray


def find_own_work(replay: Replay, kinds: tuple[Kind, ...]) -> Iterator[OwnWork]:
    """Yield the work of some kinds that a smaller part of all processes has, by who these are."""
    table = replay.tabulate(kinds)
    _, totals, counts = table.by_key
    if not counts.size:
        return
    # At least half of all have no more.
    usual = np.sort(counts, axis=1)[:, (counts.shape[1] - 1) // 2, None]
    has_more = counts > usual * MORE_OFTEN
    share = np.where(has_more, 1 - usual / np.maximum(counts, 1), 0.0)
    long = totals * share > LEAST_EXCESS / 2 * replay.span
    for key, column in np.argwhere(has_more & (counts - usual == 1) & long).tolist():
        has_more[key, column] = not _is_at_edge(replay, table, key, column)
    owners, number = np.unique(has_more, axis=0, return_inverse=True)
    whole = totals.sum(axis=0)
    for one, columns in enumerate(owners):
        if not columns.any():
            continue
        keys = np.flatnonzero(number.ravel() == one)
        own = (totals[keys] * share[keys]).sum(axis=0)
        # Others may do other work instead.
        more = whole - np.median(whole[~columns])
        lasts = np.where(columns, np.clip(more, 0, own), 0.0)
        yield OwnWork(columns, keys, share[keys], lasts)


def _is_at_edge(replay: Replay, table: WorkTable, key: int, column: int) -> bool:
    """Return whether what a column does once more than others may lie in the span by chance: at its begin or
    end, beyond which others may do it.
    """
    edges = table.edges[table.first[key] : table.first[key + 1], column]
    edges = edges[edges >= 0][[0, -1]]
    lasts, time = replay.graph.weight[edges], replay.graph.time
    begin, end = time[replay.edges.source[edges]], time[replay.edges.target[edges]]
    near = (begin - lasts < replay.begin) | (end + lasts > replay.end)
    return bool(near.any())


def find_work_of(replay: Replay, kinds: tuple[Kind, ...], processes: tuple[int, ...]) -> OwnWork:
    """Return the work that these processes alone have."""
    table = replay.tabulate(kinds)
    wanted = table.mask_columns(np.searchsorted(replay.processes, processes))
    same = (one for one in find_own_work(replay, kinds) if (one.columns == wanted).all())
    none = OwnWork(wanted, np.zeros(0, np.int64), np.zeros((0, len(wanted))), np.zeros(len(wanted)))
    return next(same, none)


def list_owners(replay: Replay, kinds: tuple[Kind, ...]) -> Iterator[tuple[int, ...]]:
    """Yield processes that have so much work of their own that the job may gain without it."""
    whole = replay.tabulate(kinds).by_key[1].sum(axis=0)
    for own in find_own_work(replay, kinds):
        owners = tuple(replay.processes[own.columns].tolist())
        least = LEAST_EXCESS * replay.span
        is_stage = _find_share_of_stage(replay, kinds, owners) > 0
        if is_stage:
            least = max(least, MORE_OF_STAGE * np.median(whole[~own.columns]))
        # Other sets have other parts of the whole, as those in the middle have more neighbours.
        if (is_stage or len(owners) == 1) and own.lasts[own.columns].min() > least:
            yield owners


def leave_out(replay: Replay, kinds: tuple[Kind, ...], processes: tuple[int, ...]) -> Changes:
    """Let processes do nothing that the others do not do. Kernels of a stage of a pipeline are needed:
    the stages share them equally.
    """
    own, table = find_work_of(replay, kinds, processes), replay.tabulate(kinds)
    kept = _find_share_of_stage(replay, kinds, processes)
    changes: Changes = []
    calls = list[np.ndarray]()
    for column in np.flatnonzero(own.columns).tolist():
        share = own.share[:, column]
        whole = (table.by_key[1][own.keys, column] * share).sum()
        gone = own.lasts[column] / max(whole, 1) * (1 - kept)
        for key, of_key in zip(own.keys.tolist(), share.tolist(), strict=True):
            edges = table.edges[table.first[key] : table.first[key + 1], column]
            edges = np.ascontiguousarray(edges[edges >= 0])
            changes.append((edges, 1 - of_key * gone))
            if of_key == 1:
                calls.append(edges)
    if kinds == HOST and calls:
        # Nor do they wait for what is done nowhere else.
        returns = replay.select((Kind.RETURN,), processes=processes)
        edges = replay.edges
        returns = returns[np.isin(edges.target[returns], edges.target[np.concatenate(calls)])]
        changes.append((returns, np.full(len(returns), NO_WEIGHT)))
    if kept:
        changes += _do_more(replay, kinds, ~own.columns, kept * own.lasts[own.columns].mean())
    return changes


def _find_share_of_stage(
    replay: Replay, kinds: tuple[Kind, ...], processes: tuple[int, ...]
) -> float:
    """Return which part of the work of a pipeline one stage has, if these are one; else 0."""
    stages = replay.pipeline.stages if replay.pipeline and kinds == GPU else ()
    return 1 / len(stages) if processes in stages else 0.0


def _do_more(replay: Replay, kinds: tuple[Kind, ...], columns: np.ndarray, more: float) -> Changes:
    """Let the work of each of some columns (a mask) last longer by so much (ns) in all."""
    table = replay.tabulate(kinds)
    changes: Changes = []
    for column in np.flatnonzero(columns).tolist():
        edges = np.ascontiguousarray(table.edges[:, column])
        factor = 1 + more / max(table.by_key[1][:, column].sum(), 1)
        changes.append((edges[edges >= 0], float(factor)))
    return changes
