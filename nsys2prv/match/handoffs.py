"""Match hand-offs between threads of a host: one thread waits in OS runtime calls until another
thread, usually of another process, lets it continue.

No row records which thread ends a wait. Two patterns prove it:

1. Waits repeatedly end just after waking calls of one thread, more often than by chance.
2. Waits repeatedly end while one thread is between two calls and does not wait. The waiter
   continues soon after, and the ends of its waits follow that thread more closely than waits of a
   fixed length would.

Threads are compared within a node, and with threads of nodes that meet in collectives and have
comparable clocks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import DURATION, number_linked
from nsys2prv._util.text import list_some
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.match import BY_WAITS
from nsys2prv.match.meetings import ON_KNOWN_CLOCKS, list_collectives
from nsys2prv.table.event_reader import NO_UNIT, EventReader

#: Layouts of OS runtime calls.
OS_LAYOUTS = ("osrt", "pthread")
#: Calls that wait for others, or that are repeated until others arrive; and waking calls.
WAITS = re.compile(
    r"^(p?poll|epoll_p?wait2?|p?select6?|futex(_waitv?)?|sem_(timed|clock)?wait|semop|semtimedop|msgrcv"
    r"|pthread_(cond_\w*wait|\w*join\w*|barrier_wait|\w*lock)|cnd_(timed)?wait|mtx_(timed)?lock"
    r"|eventfd_read|readv?|recv(from|m?msg)?|accept4?|mq_(timed)?receive|io_(getevents|uring_enter)"
    r"|wait[34]?|waitp?id|sig(timed)?wait(info)?|pause|flock|sched_yield|(u|nano|clock_nano)?sleep)$"
)
WAKES = re.compile(
    r"^(futex_wake|sem_post|pthread_(cond_(signal|broadcast)|\w*unlock|kill)|cnd_(signal|broadcast)"
    r"|mtx_unlock|eventfd_write|writev?|send(to|m?msg)?|mq_(timed)?send|msgsnd|(tg|t)?kill)$"
)
#: Waits of a thread so close to each other are one; shorter ones, and shorter pauses, do not count (ns).
TOGETHER, SHORTEST = 20_000, 50_000
#: A thread that is let go on may need so long until it runs (ns).
WAKE_UP = 100_000
#: This many waits are evidence if this share of them follows the rule; this share would be expected by
#: chance.
FEWEST_WAITS, NEARLY_ALL, BY_CHANCE = 8, 0.9, 0.3
#: The distances from the other thread's action to the end of a wait vary by at most this share of the
#: variation of waits: three quarters of their variance follow the action.
FOLLOWS = 0.5
#: Waits of a timer differ by less than this share, as nothing but the time ends them.
OF_TIMER = 0.01
#: Longer than any trace (ns).
LONG_AGO = 1 << 62
#: Most threads that are compared with each other (above, those of each node are), and by so many waits first.
MOST_THREADS, SAMPLE = 1024, 256
#: Columns of hand-offs, a row for each thread that waited: number of the hand-off (from 1), the `rule`; row
#: of the trace, begin and end of the wait (ns), its longest call (event value of its layout); the row of the
#: thread that ended it, the end of its last wait or call before (`since`), whether that was a wait ended by
#: an unknown thread (`waited`), and the time of its waking call (`released`), or the first end of a wait
#: without such a call; whether it calls CUDA or MPI (`calls`); the share of the waits of the thread, or of
#: the place, that follow the rule (`certain`).
HANDOFFS = {
    **dict.fromkeys(("handoff", "rule", "thread", "begin", "end", "call"), pl.Int64),
    **dict.fromkeys(("releaser", "since", "released"), pl.Int64),
    **dict.fromkeys(("waited", "calls"), pl.Boolean),
    "certain": pl.Float64,
}
#: Columns of calls, and of pauses of a thread between two CUDA calls or MPI (ns), and the names of these.
_CALLS = dict.fromkeys(("thread", "begin", "end", "call"), pl.Int64)
_PAUSES = dict.fromkeys(("thread", "begin", "end", "before", "after"), pl.Int64)


class _Thread(Struct, frozen=True):
    """Waits of a thread, and its pauses between them. Times in ns, sorted."""

    row: int
    #: Its task, or a number for itself in a helper.
    owner: int
    #: Whether it calls CUDA or MPI, and whether it, or another thread of its task, is known to wait.
    calls: bool
    is_known: bool
    #: Places of waits (a number), and the call of each.
    since: np.ndarray
    until: np.ndarray
    place: np.ndarray
    call: np.ndarray
    #: Pauses between calls; of a thread without any the time between its waits.
    begin: np.ndarray
    end: np.ndarray
    #: Times of its waking calls.
    wakes: np.ndarray

    def find_last_waits(self, times: np.ndarray) -> np.ndarray:
        """Return the index of the thread's last wait that has begun at each time, or -1."""
        return np.searchsorted(self.since, times, "right") - 1


class _Found(Struct, frozen=True):
    """Work of another thread that ends some waits of a thread."""

    #: The variation of the ends of waits relative to its action (ns), and the share of the waits that it
    #: ends.
    differs: float
    certain: float
    #: Numbers of the waits, when the thread begins the awaited action, and when it ends the waits.
    waits: np.ndarray
    since: np.ndarray
    released: np.ndarray
    #: Whether it has waited until then.
    waited: np.ndarray
    thread: _Thread


def list_handoffs(reader: EventReader) -> pl.DataFrame:
    """Find where a thread of one process waits until another process hands over work. Return these
    hand-offs, with the columns HANDOFFS.
    """
    return reader.remember("handoffs", lambda: _match_handoffs(reader))[0]


def describe_limits(reader: EventReader) -> list[str]:
    """Return a line for each limit on the number of examined threads that was reached, so that
    hand-offs may be missing.
    """
    return reader.remember("handoffs", lambda: _match_handoffs(reader))[1]


def list_joining_handoffs(reader: EventReader) -> pl.DataFrame:
    """Return the hand-offs by which several ranks wait for one process. This process is a rank, a
    helper that serves at least two ranks, or a helper of such a helper. Work of a process for a
    single rank counts as this rank's own time.
    """
    rows, owners = list_handoffs(reader), _list_owners(reader)
    columns = (
        pl.Series(name, owners[rows[thread].to_numpy()])
        for name, thread in (("own", "thread"), ("other", "releaser"))
    )
    rows = rows.with_columns(columns)
    is_apart = (pl.col("own") >= 0) & (pl.col("own") != pl.col("other"))
    enough = pl.col("own").n_unique().over("other") >= min(len(np.unique(owners[owners >= 0])), 2)
    kept, key = rows.filter(is_apart).filter(enough | (pl.col("other") >= 0)), ("handoff", "thread")
    left = rows.join(kept, on=key, how="anti")
    # Also threads that wake the threads for which ranks wait.
    while (more := left.filter(pl.col("thread").is_in(kept["releaser"].implode()))).height:
        kept, left = pl.concat([kept, more]), left.join(more, on=key, how="anti")
    return kept.select(HANDOFFS.keys()).sort("handoff", "thread")


def _list_owners(reader: EventReader) -> np.ndarray:
    """Return the owner of each row: the task, or a negative number for each row of a helper."""
    tasks, units = reader.rows.get_column("task"), reader.rows.units
    return np.where(units == NO_UNIT, -1 - np.arange(len(units)), tasks)


def _match_handoffs(reader: EventReader) -> tuple[pl.DataFrame, list[str]]:
    """Return the hand-offs of a job, and a line for each limit that was reached."""
    none = pl.DataFrame(schema=HANDOFFS)
    waits, wakes = (_read_os_calls(reader, names) for names in (WAITS, WAKES))
    # The activity of a process is known if its OS runtime calls are recorded.
    known = {*waits["thread"].unique(), *wakes["thread"].unique()}
    waits = _merge_waits(waits)
    if not waits.height or _has_none(reader, waits, wakes):
        return none, []
    pauses = pl.concat(_list_pauses(reader, unit) for unit in reader.rows.unit_numbers)
    threads = _list_threads(reader, pauses, waits, wakes, known)
    groups, limits = _group_threads(reader, threads)
    found = [none]
    for group in groups:
        found += _match_threads(group)
    rows = pl.concat(found)
    ends = rows.select(releaser="thread", since="end", known=pl.lit(True)).unique()
    rows = rows.join(ends, on=("releaser", "since"), how="left", maintain_order="left")
    rows = rows.with_columns(
        handoff=pl.struct("releaser", "released").rank("dense"),
        waited=pl.col("waited") & pl.col("known").is_null(),
    )
    return rows.select(HANDOFFS.keys()).cast(HANDOFFS).sort("handoff", "thread"), limits


def _has_none(reader: EventReader, waits: pl.DataFrame, wakes: pl.DataFrame) -> bool:
    """Return True if it is clear without the calls between waits that there are no hand-offs and no
    limits: no thread waits often, or the threads of one process wait and none often wakes another.
    """
    most = [rows["thread"].value_counts()["count"].max() or 0 for rows in (waits, wakes)]
    owners = _list_owners(reader)
    tasks = {*owners[owners >= 0], *owners[waits["thread"].to_numpy()]}
    is_none = most[0] < FEWEST_WAITS or (len(tasks) < 2 and most[1] < FEWEST_WAITS)
    return is_none and len(owners) <= MOST_THREADS


def _read_os_calls(reader: EventReader, names: re.Pattern[str]) -> pl.DataFrame:
    """Return the OS runtime calls with matching names, with the columns _CALLS."""
    calls = reader.read_named_calls(OS_LAYOUTS, names)
    return calls.select(_CALLS.keys()).sort("thread", "begin", maintain_order=True)


def _merge_waits(waits: pl.DataFrame) -> pl.DataFrame:
    """Merge waits of a thread that are close together, and return those of at least SHORTEST, with
    the columns _CALLS. waits: sorted by thread and start.
    """
    reached = pl.col("end").cum_max().shift(1).over("thread")
    run = (pl.col("begin") - reached > TOGETHER).fill_null(True).cum_sum()
    merged = waits.group_by("thread", run.alias("run"), maintain_order=True).agg(
        pl.col("begin").min(), pl.col("end").max(), pl.col("call").get(DURATION.arg_max())
    )
    return merged.filter(DURATION >= SHORTEST).select(_CALLS.keys())


def _list_pauses(reader: EventReader, unit: int) -> pl.DataFrame:
    """Return the pauses of threads in a unit that call CUDA or MPI, with the columns _PAUSES."""
    calls = reader.read_outermost_calls(("cuda_api", *MPI_LAYOUTS), unit)
    thread, begin, end, call = (
        calls[name].to_numpy() for name in ("thread", "begin", "end", "call")
    )
    after = 1 + np.flatnonzero((thread[1:] == thread[:-1]) & (begin[1:] - end[:-1] >= SHORTEST))
    columns = thread[after], end[after - 1], begin[after], call[after - 1], call[after]
    return pl.DataFrame(dict(zip(_PAUSES, columns, strict=True))).cast(_PAUSES)


def _list_threads(
    reader: EventReader, pauses: pl.DataFrame, waits: pl.DataFrame, wakes: pl.DataFrame,
    known: Collection[int],
) -> Iterator[_Thread]:  # fmt: skip
    """Yield the threads that call CUDA or MPI, or that wait. known: threads with recorded OS
    runtime calls.
    """
    place = pl.struct("before", "after").rank("dense").cast(pl.Int64)
    pauses = pauses.with_columns(place=place).sort("thread", "begin")
    callers, owners = {*pauses["thread"].unique()}, _list_owners(reader)
    # Waits within a call belong to that call.
    inside = waits.sort("begin").join_asof(
        pauses.select("thread", "place", at="begin", ends="end").sort("at"),
        left_on="begin", right_on="at", by="thread", check_sortedness=False,
    ).filter((pl.col("end") <= pl.col("ends")) | ~pl.col("thread").is_in(callers))  # fmt: skip
    inside = inside.with_columns(pl.col("place").fill_null(-pl.col("call")))
    # The longest of several waits in a pause counts.
    longest = DURATION.arg_max()
    own = pl.when(pl.col("ends").is_null()).then("begin").otherwise("at").alias("pause")
    inside = inside.group_by("thread", own, maintain_order=True).agg(pl.all().get(longest))
    waits = inside.sort("thread", "begin")
    frames = {
        name: {rows["thread"][0]: rows for rows in frame.partition_by("thread")}
        for name, frame in (("waits", waits), ("pauses", pauses), ("wakes", wakes))
    }
    known = {int(owners[row]) for row in known}
    none = {"waits": waits.clear(), "pauses": pauses.clear(), "wakes": wakes.clear()}
    for row in sorted(callers | {*frames["waits"]}):
        parts = {name: frame.get(row, none[name]) for name, frame in frames.items()}
        since, until, of_place, call = (
            parts["waits"][name].to_numpy() for name in ("begin", "end", "place", "call")
        )
        begin, end = (
            (parts["pauses"][name].to_numpy() for name in ("begin", "end"))
            if row in callers
            else (until[:-1], since[1:])
        )
        yield _Thread(
            row, int(owners[row]), row in callers, int(owners[row]) in known, since, until,
            of_place, call, begin, end, parts["wakes"]["begin"].to_numpy(),
        )  # fmt: skip


def _group_threads(
    reader: EventReader, threads: Iterable[_Thread]
) -> tuple[list[list[_Thread]], list[str]]:
    """Return groups of threads to compare, and a line for each limit on their number that was
    reached.
    """
    nodes, numbers = reader.rows.threads["node"].to_list(), _link_nodes(reader)
    linked, of_node = defaultdict(list), defaultdict(list)
    for thread in threads:
        linked[numbers[nodes[thread.row]]].append(thread)
    groups, limits = [one for one in linked.values() if len(one) <= MOST_THREADS], []
    for thread in chain.from_iterable(one for one in linked.values() if len(one) > MOST_THREADS):
        of_node[nodes[thread.row]].append(thread)
    groups += (one for one in of_node.values() if len(one) <= MOST_THREADS)
    if len(of_node) > 1:
        limits.append(
            f"hand-offs were searched for only within each of the {len(of_node):,} nodes, because there are more "
            f"than {MOST_THREADS:,} threads"
        )
    if left := [node for node, one in of_node.items() if len(one) > MOST_THREADS]:
        limits.append(
            f"hand-offs within {list_some(left)} were not searched for, because there are more than {MOST_THREADS:,} threads"
        )
    return groups, limits


def _link_nodes(reader: EventReader) -> dict[str, int]:
    """Return node -> number. Nodes that meet in collectives and have comparable clocks have the
    same number.
    """
    nodes = reader.rows.threads["node"]
    if nodes.n_unique() < 2:
        return dict.fromkeys(nodes, 0)
    table = list_collectives(reader).filter(ON_KNOWN_CLOCKS)
    members = table.select("collective", node=nodes.gather(table["thread"])).unique()
    linked = members.group_by("collective").agg(pl.col("node").sort())["node"].unique()
    sets = [[node] for node in nodes.unique(maintain_order=True)] + linked.to_list()
    numbers = number_linked(sets)
    return {node: one for own, one in zip(sets, numbers, strict=True) for node in own}


def _match_threads(threads: Sequence[_Thread]) -> Iterator[pl.DataFrame]:
    """Yield the hand-offs to threads that call CUDA or MPI, and to the threads that wake these,
    with the columns HANDOFFS.
    """
    left = [one for one in threads if one.calls]
    seen = {one.row for one in left}
    while left:
        waiter = left.pop()
        if len(waiter.since) < FEWEST_WAITS:
            continue
        waits = np.arange(len(waiter.since))
        near = [one for one in threads if one is not waiter and _is_near(waiter, one)]
        groups = [waits]
        if not (found := [_find_releaser(waiter, waits, near)])[0]:
            groups = [waits[waiter.place == place] for place in np.unique(waiter.place)]
            found = [_find_releaser(waiter, own, near) for own in groups]
            rest = [own for own, one in zip(groups, found, strict=True) if one is None]
            found += _divide_waits(waiter, np.concatenate(rest), near) if rest else []
        for one in filter(None, found):
            yield _list_rows(waiter, one)
            if one.thread.row not in seen:
                seen.add(one.thread.row)
                left.append(one.thread)


def _is_near(waiter: _Thread, other: _Thread) -> bool:
    """Return True if another thread may end some waits of a thread, because it wakes others just
    before these end, or does not wait when they end.
    """
    ends = waiter.until[:: max(len(waiter.until) // SAMPLE, 1)]
    fits = np.append(other.until, 0)[other.find_last_waits(ends)] < ends
    if len(other.wakes):
        fits |= _find_last(other.wakes, ends)[1] <= WAKE_UP
    return bool(
        np.count_nonzero(fits) >= FEWEST_WAITS * NEARLY_ALL * len(ends) / max(len(waiter.until), 1)
    )


def _list_rows(waiter: _Thread, found: _Found) -> pl.DataFrame:
    """Return the hand-offs that end some waits, with the columns HANDOFFS except their numbers."""
    columns = {
        "handoff": 0, "rule": BY_WAITS, "thread": waiter.row, "begin": waiter.since[found.waits],
        "end": waiter.until[found.waits], "call": waiter.call[found.waits],
        "releaser": found.thread.row, "since": found.since, "released": found.released,
        "waited": found.waited, "calls": found.thread.calls, "certain": found.certain,
    }  # fmt: skip
    return pl.DataFrame(columns).select(HANDOFFS.keys()).cast(HANDOFFS)


def _find_releaser(waiter: _Thread, waits: np.ndarray, threads: Iterable[_Thread]) -> _Found | None:
    """Return the work of another thread that ends some waits. Return None if it is unknown, or if
    nearly all waits end just after CUDA or MPI calls in a thread of the same process.
    """
    if len(waits) < FEWEST_WAITS:
        return None
    ends = waiter.until[waits]
    # Timers of two threads end at the same time by chance, again and again.
    is_timer = _is_regular(ends - waiter.since[waits])
    found = []
    for one in threads:
        if is_timer and _is_regular((one.until - one.since)[one.until > 0]):
            continue
        if one.calls and one.owner == waiter.owner:
            _, ago = _find_last(one.begin, ends)
            if (ago <= WAKE_UP).mean() >= NEARLY_ALL:
                return None
        found.append((_follow_wakes(waiter, waits, one), _follow(waiter, waits, one)))
    # Waking calls are stronger evidence than simultaneous ends.
    by_rule = (filter(None, rule) for rule in zip(*found, strict=True))
    best = (min(rule, key=lambda one: one.differs, default=None) for rule in by_rule)
    return next(filter(None, best), None)


def _divide_waits(
    waiter: _Thread, waits: np.ndarray, threads: Iterable[_Thread]
) -> Iterator[_Found]:
    """Yield the ends of a thread's waits if several threads end them in turn, for example requests
    and replies.

    Nearly each waking call of the other thread must be followed at once by the end of a wait, with
    no other thread's call in between.
    """
    threads = [one for one in threads if one.owner != waiter.owner and len(one.wakes)]
    ends, closest = waiter.until[waits], np.full(len(waits), WAKE_UP + 1)
    for one in threads:
        closest = np.minimum(closest, _find_last(one.wakes, ends)[1])
    often = len(ends) / max(int(np.ptp(waiter.until)), 1)
    for one in threads:
        at, delay = _find_last(one.wakes, ends)
        own = delay == closest
        is_each = len(np.unique(at[own])) >= NEARLY_ALL * len(one.wakes)
        is_each &= own.sum() >= FEWEST_WAITS and often * np.median(closest[own]) <= BY_CHANCE
        if is_each and (found := _follow_wakes(waiter, waits[own], one)):
            yield found


def _follow_wakes(waiter: _Thread, waits: np.ndarray, other: _Thread) -> _Found | None:
    """Return the waits of a thread that end just after waking calls of another thread."""
    if len(other.wakes) < FEWEST_WAITS:
        return None
    ends = waiter.until[waits]
    at, delay = _find_last(other.wakes, ends)
    fits = delay <= WAKE_UP
    if fits.mean() < NEARLY_ALL:
        return None
    often = len(other.wakes) / max(int(other.wakes[-1] - other.wakes[0]), 1)
    if often * np.quantile(delay[fits], NEARLY_ALL) > BY_CHANCE:
        return None
    return _make_found(waits, fits, delay, other, other.wakes[at])


def _follow(waiter: _Thread, waits: np.ndarray, other: _Thread) -> _Found | None:
    """Return the waits of a thread that end in pauses of another thread in which this does not
    wait, if the first thread continues soon after.
    """
    if not other.is_known or other.owner == waiter.owner or not len(other.begin):
        return None
    ends = waiter.until[waits]
    at = np.searchsorted(other.begin, ends, "right") - 1
    last = other.find_last_waits(ends)
    is_waiting = (last >= 0) & (np.append(other.until, 0)[last] >= ends)
    fits = (at >= 0) & (other.end[at] >= ends - WAKE_UP) & ~is_waiting
    rest, lasts = other.end[at] - ends, ends - waiter.since[waits]
    if fits.mean() < NEARLY_ALL or np.median(rest[fits]) > np.median(lasts[fits]):
        return None
    if _measure_spread(rest[fits]) > FOLLOWS * _measure_spread(lasts[fits]):
        return None
    # The first of several waits that end in a pause is when it lets them go on.
    released = np.minimum(ends, other.end[at] - 1)
    first = pl.DataFrame({"at": at, "released": released, "place": waiter.place[waits]})
    released = first.select(pl.col("released").min().over("at", "place"))["released"].to_numpy()
    return _make_found(waits, fits, rest, other, released)


def _make_found(
    waits: np.ndarray, fits: np.ndarray, apart: np.ndarray, other: _Thread, released: np.ndarray
) -> _Found:
    """Return the ends of the waits in the mask `fits`. apart: delay from the other thread's action
    to the end of each wait (ns).
    """
    certain, differs = float(fits.mean()), _measure_spread(apart[fits])
    released = released[fits]
    at = np.searchsorted(other.until, released, "right") - 1
    waited = np.where(at >= 0, np.append(other.until, 0)[at], released if not other.calls else 0)
    pause = np.searchsorted(other.begin, released, "right") - 1
    since = np.where(pause >= 0, np.append(other.begin, 0)[pause], 0) if other.calls else waited
    has_waited = (at >= 0) & (waited >= since)
    since = np.minimum(np.maximum(since, waited), released)
    return _Found(differs, certain, waits[fits], since, released, has_waited, other)


def _find_last(times: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of the last time before each end, and the distance (ns); -1 and LONG_AGO if
    there is none. times: sorted.
    """
    at = np.searchsorted(times, ends, "right") - 1
    return at, np.where(at >= 0, ends - np.append(times, 0)[at], LONG_AGO)


def _is_regular(lasts: np.ndarray) -> bool:
    """Return True if the lengths of waits (ns) are as equal as those of a timer."""
    return len(lasts) > 0 and _measure_spread(lasts) < OF_TIMER * np.median(lasts)


def _measure_spread(values: np.ndarray) -> float:
    """Return the median absolute deviation from the median."""
    return float(np.median(np.abs(values - np.median(values))))
