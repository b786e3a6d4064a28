"""Find work that only some processes have, and remove it, or spread it over the stages of a
pipeline, which must do it between them. Also find kernels in which some processes have more work,
which all should share.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from nsys2prv.replay.graph import NO_WEIGHT, Kind
from nsys2prv.replay.thresholds import ALL_KERNELS, LEAST_EXCESS, MORE_OF_STAGE, MORE_OFTEN
from nsys2prv.replay.whatif import GPU, HOST, Changes, Replay, WorkTable


class OwnWork(Struct, frozen=True):
    """Work of a kind that only some processes do, or that they do more often than others."""

    #: Columns of the table of the kind that have it (a mask).
    columns: np.ndarray
    #: Lines of `keys` of the table with such work, and the share of each that is not the others' too.
    keys: np.ndarray
    share: np.ndarray
    #: Additional repetitions compared with the others, for each line and column.
    more: np.ndarray
    #: Its duration (ns) in each column, minus the work that others do instead.
    lasts: np.ndarray


def find_own_work(replay: Replay, kinds: tuple[Kind, ...]) -> Iterator[OwnWork]:
    """Yield the work of some kinds that only a minority of the processes does, grouped by these
    processes.
    """
    table = replay.tabulate(kinds)
    _, totals, counts = table.by_key
    if not counts.size:
        return
    # At least half of all have no more, or as many more as they have more partners.
    half = (counts.shape[1] - 1) // 2
    usual = np.sort(counts, axis=1)[:, half, None]
    partners = _count_partners(replay, table.processes)
    more_partners = np.maximum(partners / max(int(np.sort(partners)[half]), 1), 1)
    has_more = counts > usual * MORE_OFTEN * more_partners
    lasts = np.sort(totals, axis=1)[:, half, None]
    share = np.where(has_more, np.clip(1 - lasts / np.maximum(totals, 1), 0, 1), 0.0)
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
        yield OwnWork(columns, keys, share[keys], (counts - usual)[keys], lasts)


def _count_partners(replay: Replay, processes: np.ndarray) -> np.ndarray:
    """Return with how many others each process exchanges messages (int64)."""
    pairs = {members for members, _ in replay.job.channels if len(members) == 2}
    ends = np.array([end for pair in pairs for end in pair], np.int64)
    return (ends[:, None] == processes).sum(axis=0)


def _is_at_edge(replay: Replay, table: WorkTable, key: int, column: int) -> bool:
    """Return True if one more execution in a column may be in the span by chance: at its start or
    end, outside which others may execute it.
    """
    edges = table.list_edges(key, column)[[0, -1]]
    lasts, time = replay.graph.weight[edges], replay.graph.time
    begin, end = time[replay.edges.source[edges]], time[replay.edges.target[edges]]
    near = (begin - lasts < replay.begin) | (end + lasts > replay.end)
    return bool(near.any())


def find_work_of(replay: Replay, kinds: tuple[Kind, ...], processes: tuple[int, ...]) -> OwnWork:
    """Return the work of some kinds that only these processes do, or that they do more often than
    the others.
    """
    table = replay.tabulate(kinds)
    wanted = table.mask_processes(processes)
    same = (one for one in find_own_work(replay, kinds) if (one.columns == wanted).all())
    nothing = np.zeros((0, len(wanted)))
    none = OwnWork(wanted, np.zeros(0, np.int64), nothing, nothing, np.zeros(len(wanted)))
    return next(same, none)


def list_owners(replay: Replay, kinds: tuple[Kind, ...]) -> Iterator[tuple[int, ...]]:
    """Yield sets of processes that do enough work of their own for savings: without it, the job
    would be shorter.
    """
    table = replay.tabulate(kinds)
    whole = table.by_key[1].sum(axis=0)
    for own in find_own_work(replay, kinds):
        owners = tuple(table.processes[own.columns].tolist())
        least = LEAST_EXCESS * replay.span
        if np.median(whole[~own.columns]) < least:
            # The others do nothing of the kind: their part is another one.
            continue
        is_stage = _find_share_of_stage(replay, kinds, owners) > 0
        if is_stage:
            least = max(least, MORE_OF_STAGE * np.median(whole[~own.columns]))
        # Other sets have other parts of the whole, as those in the middle have more neighbours.
        if (is_stage or len(owners) == 1) and own.lasts[own.columns].min() > least:
            yield owners


def leave_out(
    replay: Replay,
    kinds: tuple[Kind, ...],
    processes: tuple[int, ...],
    is_needed: bool = True,
) -> Changes:
    """Return changes without the work that only these processes do. is_needed: kernels of a
    pipeline stage are usually needed; the stages then share them equally.
    """
    own, table = find_work_of(replay, kinds, processes), replay.tabulate(kinds)
    kept = _find_share_of_stage(replay, kinds, processes) if is_needed else 0.0
    changes: Changes = []
    more = [np.zeros(0, np.int32)]
    for column in np.flatnonzero(own.columns).tolist():
        share = own.share[:, column]
        whole = (table.by_key[1][own.keys, column] * share).sum()
        gone = own.lasts[column] / max(whole, 1) * (1 - kept)
        for key, of_key, beyond in zip(own.keys, share, own.more[:, column], strict=True):
            edges = table.list_edges(key, column)
            changes.append((edges, 1 - of_key * gone))
            if of_key:
                # As many stay as others have, the last of parts of equal numbers.
                count = len(edges) - int(beyond)
                stay = np.arange(1, count + 1) * len(edges) // max(count, 1) - 1
                more.append(np.delete(edges, stay))
    if kinds == HOST:
        # Nor do they wait in calls that the others do not make, or not as often.
        edges, returns = replay.edges, replay.select((Kind.RETURN,), processes=processes)
        returns = returns[np.isin(edges.target[returns], edges.target[np.concatenate(more)])]
        changes.append((returns, np.full(len(returns), NO_WEIGHT)))
    if kept:
        changes += _do_more(replay, kinds, ~own.columns, kept * own.lasts[own.columns].mean())
    return changes


def _find_share_of_stage(
    replay: Replay, kinds: tuple[Kind, ...], processes: tuple[int, ...]
) -> float:
    """Return the share of a pipeline's work in one stage, if these processes form a stage;
    otherwise 0.
    """
    stages = replay.pipeline.stages if replay.pipeline and kinds == GPU else ()
    return 1 / len(stages) if processes in stages else 0.0


def _do_more(replay: Replay, kinds: tuple[Kind, ...], columns: np.ndarray, more: float) -> Changes:
    """Return changes in which the work of the columns in a mask takes this much longer in total
    (ns).
    """
    table = replay.tabulate(kinds)
    changes: Changes = []
    for column in np.flatnonzero(columns).tolist():
        edges = np.ascontiguousarray(table.edges[:, column])
        factor = 1 + more / max(table.by_key[1][:, column].sum(), 1)
        changes.append((edges[edges >= 0], float(factor)))
    return changes


def mask_waiting(replay: Replay) -> np.ndarray:
    """Return a mask of the keys of CUDA graphs, traced as a whole, in which ranks may wait for each
    other, so that all last as long as the slowest. Some of these graphs communicate.
    """
    table, edges = replay.tabulate(GPU), replay.edges
    firsts = table.edges[table.first[:-1]]
    if not any(members for members, _ in replay.job.channels):
        return np.zeros(len(firsts), bool)
    # Their own work ends where ranks meet, not a node before that.
    met = edges.source[replay.select((Kind.MEET,))]
    waits = np.isin(edges.target[np.maximum(firsts, 0)], met[met & 1 == 1])
    return (waits & (firsts >= 0)).any(axis=1)


def find_longer_lines(replay: Replay, processes: tuple[int, ...]) -> np.ndarray | None:
    """Return a mask of the repetitions of kernels (lines of the work table) in which these
    processes take longer than others. Return None if they do in nearly all lines: they are then
    slow, and do not have more work.
    """
    found = replay.tabulate(GPU).longer
    if processes not in found:
        found[processes] = _find_longer_lines(replay, processes)
    return found[processes]


def _find_longer_lines(replay: Replay, processes: tuple[int, ...]) -> np.ndarray | None:
    table = replay.tabulate(GPU)
    own = table.mask_processes(processes)
    usual, lasts = table.find_medians(~own), table.find_medians(own)
    known = ~(np.isnan(usual) | np.isnan(lasts))
    known &= np.repeat(table.find_alike(own) & ~mask_waiting(replay), np.diff(table.first))
    more = np.where(known, lasts - usual, 0.0)
    counts = np.diff(table.first)
    # A place for each kernel of an iteration, where these are known.
    each = np.maximum(np.round(counts / max(replay.known.iterations, 1)), 1).astype(np.int64)
    each = np.where(replay.known.iterations > 0, each, 1)
    place = np.repeat(table.first[:-1], counts) + table.turn % np.repeat(each, counts)
    more_by, usual_by = (
        np.bincount(place, np.where(known, values, 0.0), len(usual)) for values in (more, usual)
    )
    whole = usual_by.sum()
    if more_by.sum() < LEAST_EXCESS * replay.span:
        return None
    is_longer = (more_by >= more_by.sum() / max(whole, 1) / 2 * usual_by) & (usual_by > 0)
    return None if usual_by[is_longer].sum() >= ALL_KERNELS * whole else is_longer[place] & known


def share_longer(replay: Replay, processes: tuple[int, ...]) -> Changes:
    """Return changes in which all processes share the extra time of some processes equally, in the
    kernels that have it.
    """
    lines = find_longer_lines(replay, processes)
    table = replay.tabulate(GPU)
    if lines is None:
        return []
    own = table.mask_processes(processes)
    lines = np.flatnonzero(lines)
    usual, edges = table.find_medians(~own)[lines], table.edges[lines]
    lasts = np.where(edges >= 0, table.weight[np.maximum(edges, 0)], 0)
    more = np.where(own & (edges >= 0), np.maximum(lasts - usual[:, None], 0), 0)
    shared = more.sum(axis=1) / (edges >= 0).sum(axis=1)
    new = np.where(own, lasts - more, lasts) + shared[:, None]
    there = edges >= 0
    return [(edges[there], new[there].astype(np.int64))]
