"""Find the ranks and links that slow a job down: those with the largest savings if they worked like
the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from statistics import NormalDist

import numpy as np
import polars as pl
from msgspec import Struct, structs

from nsys2prv._util.workers import prepare_next
from nsys2prv.replay.path_bound import PathBound
from nsys2prv.replay.thresholds import (
    APART,
    BY_CHANCE,
    FAR_BEYOND,
    FAR_OUT,
    FEW,
    FEWEST_PARTS,
    LEAST_CERTAIN,
    LEAST_EXCESS,
    LEAST_GAIN,
    LEAST_HIGH,
    LEAST_OF_SET,
    LONGEST,
    MANY_ERRORS,
    MOST_HANDED,
    MOST_IN_A_ROW,
    MOST_LOOKED_AT,
    MOST_OF_SPAN,
    MUCH_ALONE,
    NEARLY_ALL,
    NEARLY_ALL_KERNELS,
    NEARLY_ALL_TIME,
    OF_BALANCED,
    ONCE_BY_CHANCE,
    SEVERAL,
    SHARE_OF_GREATEST,
    SLOWER,
    SOME_ERRORS,
    UNLIKE,
)
from nsys2prv.replay.transfers import (
    hand_off_as_usual,
    hand_off_at_once,
    is_late_at_times,
    list_slow_links,
    send_as_others,
)
from nsys2prv.replay.unequal_work import (
    find_longer_lines,
    find_work_of,
    leave_out,
    list_owners,
    mask_waiting,
    share_longer,
)
from nsys2prv.replay.whatif import COPIES, GPU, HOST, Changes, Replay, WorkTable

#: Kinds of suspects that are links of a host, or between two processes, or of one.
LINK_WITHIN, LINK_TO_OTHERS, LINK_OF = "link within", "link to others", "link of"
#: Kinds of suspects while whose host works others wait: sometimes longer than usual, or always.
LATE_HANDOFF, HANDOFF = "late hand-off", "hand-off"
_HANDOFFS = {HANDOFF: hand_off_at_once, LATE_HANDOFF: hand_off_as_usual}
#: Name of work that ranks may do slower -> its kinds.
KINDS = {"gpu": GPU, "host": HOST, "copies": COPIES}


class Suspect(Struct, frozen=True):
    """Processes that may be slow: a set of them, and what would be saved if some of their work were
    like the others'.
    """

    #: Share of the span that is gained.
    gain: float
    #: gpu, host, copies, LINK_WITHIN, LINK_TO_OTHERS, LINK_OF, LATE_HANDOFF, HANDOFF.
    kind: str
    #: Processes, ascending.
    processes: tuple[int, ...]
    #: Name of the set: a host, or "".
    host: str = ""
    #: Factor by which its kernels take longer than the others', if all are slow; otherwise 0.
    ratio: float = 0.0
    #: Whether it is about work that the others do not have, rather than do faster.
    is_own: bool = False
    #: Whether it concerns extra work in some kernels, to be shared equally by all.
    is_shared: bool = False

    @property
    def is_link(self) -> bool:
        """Return True if the suspect is the network or NVLink connection of the processes, not
        their work.
        """
        return self.kind in (LINK_WITHIN, LINK_TO_OTHERS, LINK_OF)

    @property
    def is_pair(self) -> bool:
        """Return True if the suspect is the connection between two processes."""
        return self.kind == LINK_OF and len(self.processes) == 2

    @property
    def hands_off(self) -> bool:
        """Return True if the suspect is the host work of processes while others wait for its
        result.
        """
        return self.kind in (LATE_HANDOFF, HANDOFF)

    @property
    def least(self) -> float:
        """The smallest savings (share of the span) with which this suspect may be named as a
        culprit.
        """
        return LEAST_CERTAIN if self.ratio else LEAST_GAIN


def list_suspects(replay: Replay) -> list[Suspect]:
    """Return sets of processes with what would be saved if they worked like the others, the largest
    savings first.
    """
    if len(replay.processes) < 2:
        return []
    slow = (list_slow_processes(replay, kind) for kind in ("gpu", "host"))
    links = (
        Suspect(0.0, kind, members, host)
        for host, members in group_by_host(replay).items()
        for kind in (LINK_WITHIN, LINK_TO_OTHERS)
    )
    replay.prepare()
    own = (
        Suspect(0.0, kind, owners, is_own=True)
        for kind, kinds in KINDS.items()
        for owners in list_owners(replay, kinds)
    )
    single = (Suspect(0.0, LINK_OF, processes) for processes in list_slow_links(replay))
    suspects = chain(_list_work(replay), *slow, links, single, own)
    bound, found = PathBound(replay), []

    def make_changes(one: Suspect) -> Changes:
        is_known = one.is_link or one.is_own or one.is_shared or one.ratio
        reacts = one.kind == "host"
        if not is_known and bound.is_below(KINDS[one.kind], one.processes, reacts, one.least):
            return []
        return do_as_others(replay, one)

    for suspect, changes in prepare_next((one, make_changes(one)) for one in suspects):
        # For slow processes and links all savings are needed.
        least = 0.0 if suspect.ratio or suspect.is_link else suspect.least
        found.append(structs.replace(suspect, gain=replay.compute_gain(changes, least)))
    found += _list_handoffs(replay)
    return sorted(found, key=lambda suspect: -suspect.gain)


def _list_handoffs(replay: Replay) -> Iterator[Suspect]:
    """Yield processes for which others wait while they work: those that sometimes take longer than
    usual, and those whose work takes most of the time. The latter are limits, because some of the
    work is necessary.
    """
    for process in np.unique(replay.edges.process[replay.find_releases()]).tolist():
        whole, late = (
            Suspect(replay.compute_gain(make(replay, [process])), kind, (process,))
            for kind, make in _HANDOFFS.items()
        )
        is_late = is_late_at_times(replay, [process])
        if whole.gain >= MOST_OF_SPAN and not (is_late and late.gain >= MOST_HANDED * whole.gain):
            yield whole
        elif is_late:
            yield late


def do_as_others(replay: Replay, suspect: Suspect) -> Changes:
    """Return changes in which a suspect is like the others: its processes do their work, or the
    links of its host transfer data, as fast.
    """
    kind, host, processes = suspect.kind, suspect.host, suspect.processes
    if suspect.hands_off:
        return _HANDOFFS[kind](replay, processes)
    if kind == LINK_WITHIN:
        return replay.transfer_as_others(lambda hosts: hosts == (host,))
    if kind == LINK_TO_OTHERS:
        return replay.transfer_as_others(lambda hosts: host in hosts and len(hosts) > 1)
    if kind == LINK_OF:
        return send_as_others(replay, processes)
    if suspect.is_own:
        return leave_out(replay, KINDS[kind], processes)
    if suspect.is_shared:
        return share_longer(replay, processes)
    if suspect.ratio:
        changes = replay.scale(KINDS[kind], 1 / suspect.ratio, processes=processes)
    elif kind == "gpu":
        changes = replay.compare_kernels(processes)
    else:
        changes = replay.do_as_others(KINDS[kind], processes)
    return changes + (replay.react_as_others(processes) if kind == "host" else [])


def choose_culprit(replay: Replay, suspects: list[Suspect]) -> Suspect | None:
    """Return the smallest suspect with nearly the largest savings; None unless exactly one suspect
    has them.
    """
    suspects = [one for one in suspects if one.gain >= one.least and _stands_out(replay, one)]
    certain = next((one for one in suspects if one.ratio), None)
    if not suspects or suspects[0].gain < LEAST_GAIN:
        return certain
    near = [one for one in suspects if one.gain >= max(LEAST_GAIN, NEARLY_ALL * suspects[0].gain)]
    # Each time of the work compared says more than the ratio of all.
    found = min(near, key=lambda one: (len(one.processes), one.is_own, one.ratio > 0, -one.gain))
    # A process with large savings of its own is a separate cause; the rest of the set follows.
    alone = [
        one
        for one in suspects
        if len(one.processes) == 1
        and {*one.processes} < {*found.processes}
        and one.gain >= max(LEAST_GAIN, MUCH_ALONE * found.gain)
    ]
    found = _widen(replay, max(alone, key=lambda one: one.gain, default=found), suspects)
    if found.is_link:
        # One pair that gains nearly as much as all links of a host or a process is what is slow.
        pairs = (one for one in near if one.is_pair and {*one.processes} & {*found.processes})
        found = max(pairs, key=lambda one: one.gain, default=found)
    is_gpu = found.kind == "gpu" and not found.ratio
    if is_gpu and found.gain < OF_BALANCED * replay.compute_gain(replay.balance()):
        return certain
    return found


def _widen(replay: Replay, found: Suspect, suspects: list[Suspect]) -> Suspect:
    """Return the largest suspect that contains these processes and others of one host or group, if
    all have equally large extra work, because they then have a common cause.
    """
    if found.is_link or found.hands_off or found.is_own or found.is_shared or found.ratio:
        return found
    table = replay.tabulate(KINDS[found.kind])
    mean, sets = table.excess.mean, list_sets(replay, table.processes)

    def find_least(processes: tuple[int, ...]) -> float:
        return float(mean[table.find_columns(processes)].min())

    wider = [
        one
        for one in suspects
        if (one.kind, one.is_own, one.is_shared, one.ratio) == (found.kind, False, False, 0.0)
        and one.processes in sets
        and {*found.processes} <= {*one.processes}
        and find_least(one.processes) >= NEARLY_ALL * find_least(found.processes)
    ]
    return max(wider, key=lambda one: len(one.processes), default=found)


def _stands_out(replay: Replay, suspect: Suspect) -> bool:
    """Return True if the excess time of each process exceeds chance: in the mean of all its work,
    at a time far beyond the usual, or in nearly all repetitions.
    """
    if suspect.is_link or suspect.hands_off:
        return True
    table = replay.tabulate(KINDS[suspect.kind])
    count = len(table.processes)
    mean, error = table.excess.mean, table.excess.error
    own = table.find_columns(suspect.processes)
    if suspect.ratio:
        return _count_errors(table, int(own[0]), own) > SOME_ERRORS
    others = np.delete(np.arange(count), own)
    place = len(others) - (2 if len(others) >= SEVERAL else 1)
    if suspect.is_own:
        whole = table.by_key[1].sum(axis=0)
        apart = np.sort(np.abs(whole[others] - np.median(whole[others])))[place]
        lasts = find_work_of(replay, KINDS[suspect.kind], suspect.processes).lasts[own]
        return bool(lasts.min() > APART * apart)
    usual = np.median(mean[others])
    longer, apart = mean[own] - usual, np.sort(np.abs(mean[others] - usual))[place]
    errors = np.sqrt(error[own] + np.median(error[others]))
    least = SOME_ERRORS * errors if len(table.edges) > FEW else 0.0
    is_little = (longer <= APART * apart) | (longer <= least)
    unclear = own[(longer <= MANY_ERRORS * errors) & is_little]
    if len(unclear) and (is_far_beyond(replay, suspect) or is_long_for_a_while(replay, suspect)):
        return True
    certain = NormalDist().inv_cdf(1 - BY_CHANCE / count)
    return all(_count_errors(table, one, own) > certain for one in unclear.tolist())


def is_long_for_a_while(replay: Replay, suspect: Suspect) -> bool:
    """Return True if each process of a suspect is slower than all others at least for a while, as a
    throttled GPU is: in more parts of the time than chance explains, or by far.
    """
    table = replay.tabulate(KINDS[suspect.kind])
    sums, own = table.excess.sums, table.find_columns(suspect.processes)
    others = np.delete(sums, own, axis=0)
    most, fewest = others.max(initial=0), FEWEST_PARTS[suspect.kind]
    longer = np.arange((sums[own] > most).sum(axis=1).min())
    if len(longer) < fewest:
        return False
    count, parts = len(others) + 1, sums.shape[1]
    chance = count * np.prod((parts - longer) / (count * parts - longer))
    return bool(chance < BY_CHANCE or np.sort(sums[own])[:, -fewest].min() > FAR_BEYOND * most)


def is_far_beyond(replay: Replay, suspect: Suspect) -> bool:
    """Return True if some work of each process of a suspect, in the same part of the time, takes so
    much longer than usual that it is no chance, such as random pauses of all processes.
    """
    table = replay.tabulate(KINDS[suspect.kind])
    excess, own = table.excess, table.find_columns(suspect.processes)
    longest = excess.longest[own]
    if np.ptp(longest.argmax(axis=1)):
        return False
    most, usually = float(longest.max(axis=1).min()), max(excess.usually, 1.0)
    others = -np.sort(-np.delete(excess.longest, own, axis=0), axis=None)[: max(LONGEST)]
    others = np.maximum(others, usually)
    if most <= max(FAR_BEYOND * usually, others[0]):
        return False
    # Of a heavy tail the logarithms are apart by exponential times: the n-th by one n-th as much.
    apart = np.cumsum(np.log(others[:-1] / others[1:]) * np.arange(2, len(others) + 1))
    count = np.minimum(LONGEST, len(others)) - 1
    sums = apart[count - 1]
    chance = (sums / (sums + np.log(most / others[0]))) ** count
    return bool(chance.min() < ONCE_BY_CHANCE)


def _count_errors(table: WorkTable, column: int, columns: np.ndarray) -> float:
    """Return how often the longest work in a column exceeds the median of the columns outside
    `columns`, in standard errors beyond half of its repetitions, which chance would give.
    """
    others = table.find_medians(~table.mask_columns(columns))
    key = np.repeat(table.keys, np.diff(table.first))
    own = table.measure(column)
    rows = pl.DataFrame({"key": key, "part": table.part, "own": own, "others": others})
    rows = rows.with_row_index("line").filter((pl.col("own") >= 0) & ~pl.col("others").is_nan())
    # One long repetition is no long work.
    places = (
        rows.group_by("key")
        .agg(lasts=pl.col("others").median() * pl.len())
        .sort("lasts", "key", descending=True)
    )
    before = pl.col("lasts").cum_sum() - pl.col("lasts")
    longest = places.filter(before < NEARLY_ALL_TIME * pl.col("lasts").sum())
    chosen = rows.join(longest, on="key", how="semi", maintain_order="left")
    above = chosen.select("part", above=pl.col("own") > pl.col("others"))
    shares = above.group_by("part").agg(pl.col("above").mean())["above"].to_numpy()
    if not len(shares):
        return 0.0
    rest = np.delete(np.arange(table.edges.shape[1]), columns)
    error = max(
        shares.var() / len(shares), 0.25 * _count_in_a_row(table, chosen, rest) / chosen.height
    )
    return float(shares.mean() - 0.5) / error**0.5


def _count_in_a_row(table: WorkTable, rows: pl.DataFrame, columns: np.ndarray) -> float:
    """Return how many repetitions count as one independent repetition, if a process that is slow
    remains slow for the next ones: one plus twice the sum of the autocorrelations of these columns.
    rows: repetitions with `line`, `key`, and the median of `others` (ns).
    """
    line, others = rows["line"].to_numpy(), rows["others"].to_numpy()
    key = rows["key"].rank("dense").to_numpy() - 1
    length = min(np.bincount(key).max(initial=0) // 3, MOST_IN_A_ROW)
    products = np.zeros(length + 1)
    for column in columns[:: max(len(columns) // MOST_LOOKED_AT, 1)].tolist():
        own = table.measure(column)[line]
        above, keys = (own > others)[own >= 0].astype(float), key[own >= 0]
        above -= (np.bincount(keys, above) / np.maximum(np.bincount(keys), 1))[keys]
        power = np.abs(np.fft.rfft(above, 2 * len(above) + 1)) ** 2
        found = np.fft.irfft(power, 2 * len(above) + 1)[: length + 1]
        products[: len(found)] += found
    alike = products[1:] / max(products[0], 1.0)
    unlike = np.flatnonzero(alike < UNLIKE)
    return 1 + 2 * float(alike[: unlike[0] if len(unlike) else None].sum())


def _list_work(replay: Replay) -> Iterator[Suspect]:
    """Yield processes with more work than others, without savings yet."""
    for name, kinds in KINDS.items():
        table = replay.tabulate(kinds)
        excess, processes = table.total_excess, table.processes
        # Only who has more work than others can gain anything.
        chosen = {
            (int(processes[column]),): ""
            for column in np.flatnonzero(excess > LEAST_EXCESS * replay.span)
        }
        for members, host in list_sets(replay, processes).items():
            columns = table.find_columns(members)
            if excess[columns].min() > LEAST_OF_SET * replay.span:
                chosen.setdefault(members, host)
        most = max(LEAST_HIGH * replay.span, SHARE_OF_GREATEST * excess.max(initial=0))
        high = tuple(processes[excess > most].tolist())
        if 1 < len(high) <= len(processes) / 2:
            chosen.setdefault(high, "")
        for members, host in chosen.items():
            lines = find_longer_lines(replay, members) if name == "gpu" else None
            yield Suspect(0.0, name, members, host, is_shared=lines is not None)


def is_awaited(replay: Replay, suspect: Suspect) -> bool:
    """Return True if other processes communicate with the processes of a suspect, or if this is
    unknown. Replicas that serve different requests do not communicate; they need not be equal, and
    their hosts wait.
    """
    if suspect.hands_off:
        return True
    own = {*suspect.processes}
    own |= {gpu for gpu, driver in replay.job.drivers.items() if driver in own}
    meet = replay.remember("members", lambda: [{*one} for one, _ in replay.job.channels if one])
    if not meet:
        return suspect.kind != "host" or replay.job.kernels > 0
    return suspect.is_link or any(own & one and one - own for one in meet)


def list_sets(replay: Replay, processes: np.ndarray) -> dict[tuple[int, ...], str]:
    """Return sets of processes that may be slow for one reason, as processes -> name of their host
    ("" if they are not a host). Sets are hosts, members of communicators, and blocks of equal size.
    """
    hosts, known = group_by_host(replay), {*processes.tolist()}
    sets: dict[tuple[int, ...], str] = {
        tuple(one for one in members if one in known): host for host, members in hosts.items()
    }
    count = len(processes)
    for members in (*replay.groups, *(members for members, _ in replay.job.channels)):
        if 1 < len(members) <= count / 2 and known.issuperset(members):
            sets.setdefault(members, "")
    for parts in (2, 4, 8):
        if count % parts == 0 and count // parts > 1:
            for block in np.split(processes, parts):
                sets.setdefault(tuple(block.tolist()), "")
    return {members: host for members, host in sets.items() if 1 < len(members) < count}


def group_by_host(replay: Replay) -> dict[str, tuple[int, ...]]:
    """Return host -> its processes, sorted."""
    hosts: dict[str, list[int]] = {}
    for process in replay.processes.tolist():
        hosts.setdefault(replay.job.hosts[process], []).append(process)
    return {host: tuple(members) for host, members in hosts.items()}


def list_slow_processes(replay: Replay, kind: str) -> Iterator[Suspect]:
    """Yield processes, and sets of them, that are slower than the others in nearly everything they
    do; their savings are not computed yet (0). They are compared by the median durations of each
    kernel, or between two calls, however their work is numbered. kind: of suspects, such as `gpu`
    or `host`.
    """
    table = replay.tabulate(KINDS[kind])
    usual, total, _ = table.by_key
    if not len(usual):
        return
    if kind == "gpu":
        # Graphs inside of which ranks wait tell nothing of them.
        total = np.where(mask_waiting(replay)[:, None], 0, total)
    ratios = usual / np.maximum(np.nanmedian(usual, axis=1, keepdims=True), 1)
    whole = np.maximum(total.sum(axis=0), 1)
    order = np.argsort(ratios, axis=0)
    reached = np.take_along_axis(total, order, 0).cumsum(axis=0) / whole
    middle = order[(reached >= 0.5).argmax(axis=0), np.arange(len(whole))]
    ratio = ratios[middle, np.arange(len(whole))]
    slower = (total * (ratios > (1 + ratio) / 2)).sum(axis=0) / whole
    logs = np.log(np.maximum(ratio, 1e-9))
    apart = logs - np.nanmedian(logs)
    is_far = apart > FAR_OUT * max(float(np.nanmedian(np.abs(apart))), 1e-4)
    is_slow = is_far & (ratio > SLOWER) & (slower >= NEARLY_ALL_KERNELS)
    for process, slow in zip(table.processes[is_slow], ratio[is_slow], strict=True):
        yield Suspect(0.0, kind, (int(process),), "", float(slow))
    for members, host in list_sets(replay, table.processes).items():
        columns = table.find_columns(members)
        if is_slow[columns].all():
            yield Suspect(0.0, kind, members, host, float(np.median(ratio[columns])))
