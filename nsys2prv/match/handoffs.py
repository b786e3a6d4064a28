"""Match hand-offs between processes of a host: a thread waits in calls of the operating system until
one of another process, which does not wait, lets it go on.

No row says who ends a wait. What proves it: again and again, at the same place between calls, the
wait ends while one thread of the host is between two calls and waits for nothing, which goes on soon
after; and when the wait ends follows that thread, more closely than waits of one length would.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.native import core
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.match import BY_WAITS
from nsys2prv.table.event_reader import NO_UNIT, EventReader

#: Layouts of calls of the operating system.
OS_LAYOUTS = ("osrt", "pthread")
#: Calls that wait for others, or that are repeated until others have come.
WAITS = re.compile(
    r"^(p?poll|epoll_p?wait2?|p?select6?|futex\w*|sem_(timed|clock)?wait|semop|semtimedop|msgrcv"
    r"|pthread_(cond_\w*wait|\w*join\w*|barrier_wait|\w*lock)|cnd_(timed)?wait|mtx_(timed)?lock"
    r"|eventfd_read|readv?|recv(from|m?msg)?|accept4?|mq_(timed)?receive|io_(getevents|uring_enter)"
    r"|wait[34]?|waitp?id|sig(timed)?wait(info)?|pause|flock|sched_yield|(u|nano|clock_nano)?sleep)$"
)
#: Waits of a thread so close to each other are one; shorter ones, and shorter pauses, do not count (ns).
TOGETHER, SHORTEST = 20_000, 50_000
#: A thread that is let go on may need so long until it runs (ns).
WAKE_UP = 100_000
#: So many waits of a place show something, of which this share must be as the rule says.
FEWEST_WAITS, NEARLY_ALL = 8, 0.9
#: The time from the end of a wait until the other one's next call differs by this share of what waits
#: differ by, at most: three quarters of their variance follow it.
FOLLOWS = 0.5
#: Threads of a host that are compared with each other.
MOST_THREADS = 256
#: Columns of hand-offs, a row for each thread that waited: number of the hand-off (from 1), the `rule`;
#: row of the trace, begin and end of the wait (ns), the call in which it waits longest (event value of
#: its layout); the row of the thread that ended it, the end of its last wait or call before (`since`),
#: and when it let the others go on (`released`), which is the first end of a wait; the share of the
#: waits of the place that are as the rule says (`certain`).
HANDOFFS = {
    **dict.fromkeys(("handoff", "rule", "thread", "begin", "end", "call"), pl.Int64),
    **dict.fromkeys(("releaser", "since", "released"), pl.Int64),
    "certain": pl.Float64,
}
#: A pause of a thread between two calls of CUDA or MPI (ns), and the names of these; the time in which
#: it waits there, 0 to 0 where it does not, and in which call.
_PAUSES = ("thread", "begin", "end", "before", "after", "since", "until", "call")


class _Thread(Struct, frozen=True):
    """The pauses of a thread, by begin: columns of _PAUSES."""

    row: int
    task: int
    begin: np.ndarray
    end: np.ndarray
    #: Number of the place, by the names of the calls around it.
    place: np.ndarray
    since: np.ndarray
    until: np.ndarray
    call: np.ndarray


_COLUMNS = _Thread.__struct_fields__[2:]


def list_handoffs(reader: EventReader) -> pl.DataFrame:
    """Return the hand-offs between processes of a job: HANDOFFS."""
    return reader.remember("handoffs", lambda: _match_handoffs(reader))


def _match_handoffs(reader: EventReader) -> pl.DataFrame:
    none = pl.DataFrame(schema=HANDOFFS)
    waits = _read_waits(reader)
    if not waits.height:
        return none
    units = reader.rows.unit_numbers
    pauses = pl.concat([_list_pauses(reader, unit, waits) for unit in units])
    if not (pauses["until"] > 0).any():
        return none
    # What a process does is known where its calls of the system are recorded.
    known = _list_tasks(reader)
    place = pl.struct("before", "after").rank("dense").cast(pl.Int64)
    of_rows = reader.rows.threads.select("thread", "task", "node").cast({"thread": pl.Int64})
    pauses = pauses.with_columns(place=place).join(of_rows, on="thread", maintain_order="left")
    enough = pauses.filter(pl.col("task").is_in(known), pl.len().over("thread") >= FEWEST_WAITS)
    found = [none]
    for _, of_host in enough.group_by("node", maintain_order=True):
        threads = [
            _Thread(row, of_thread["task"][0], *(of_thread[name].to_numpy() for name in _COLUMNS))
            for (row,), of_thread in of_host.sort("thread", "begin").group_by(
                "thread", maintain_order=True
            )
        ]
        if len({one.task for one in threads}) > 1 and len(threads) <= MOST_THREADS:
            found += _match_threads(threads)
    rows = pl.concat(found)
    released = pl.col("end").min().over("releaser", "since", "handoff")
    number = pl.struct("releaser", "since", "handoff").rank("dense").cast(pl.Int64)
    rows = rows.with_columns(
        released=pl.min_horizontal(released, "released"), handoff=number, rule=pl.lit(BY_WAITS)
    )
    return rows.select(HANDOFFS.keys()).cast(HANDOFFS).sort("handoff", "thread")


def _read_waits(reader: EventReader) -> pl.DataFrame:
    """Return the calls of the system that wait, on all threads of units: thread, begin, end, call."""
    frames = [pl.DataFrame(schema=dict.fromkeys(("begin", "end", "thread", "call"), pl.Int64))]
    for layout in OS_LAYOUTS:
        if layout not in reader.layouts:
            continue
        known = load_catalogue().name_sets[layout].list_known_values()
        wanted = np.array([value for name, value in known.items() if WAITS.match(name)])
        frames.append(
            reader.read_begins(
                layout, ("call",), keep=lambda rows, of=wanted: np.isin(rows["call"], of)
            )
        )
    waits = pl.concat(frames)
    return waits.filter(pl.Series(reader.rows.units[waits["thread"].to_numpy()] != NO_UNIT))


def _list_tasks(reader: EventReader) -> list[int]:
    """Return the tasks of which calls of the system are recorded."""
    rows = [
        reader.read_begins(layout)["thread"].unique()
        for layout in OS_LAYOUTS
        if layout in reader.layouts
    ]
    return np.unique(reader.rows.get_column("task")[pl.concat(rows).to_numpy()]).tolist()


def _list_pauses(reader: EventReader, unit: int, waits: pl.DataFrame) -> pl.DataFrame:
    """Return the pauses of the threads of a unit that call CUDA or MPI: _PAUSES."""
    layouts = [name for name in ("cuda_api", *MPI_LAYOUTS) if name in reader.layouts]
    schema = {"begin": np.int64, "end": np.int64, "thread": np.int32, "call": np.int32}
    columns = reader.read_joined(
        dict.fromkeys(layouts, ("call",)), unit, schema, lambda _, rows: rows
    )
    begin, end, thread, name = columns.values()
    outer = np.empty(len(begin), np.int32)
    count = core.find_outermost(
        (begin, np.maximum(end, begin), thread), len(reader.rows.units), outer
    )
    first = np.full(count, -1, np.int64)
    first[outer[::-1]] = np.arange(len(outer))[::-1]
    first = first[np.argsort(thread[first], kind="stable")]
    before, after = first[:-1], first[1:]
    long = (begin[after] - end[before] >= SHORTEST) & (thread[before] == thread[after])
    before, after = before[long], after[long]
    pauses = pl.DataFrame(
        {
            "thread": thread[after].astype(np.int64), "begin": end[before], "end": begin[after],
            "before": name[before].astype(np.int64), "after": name[after].astype(np.int64),
        }
    )  # fmt: skip
    own = waits.filter(pl.col("thread").is_in(pauses["thread"].unique().implode()))
    inside = own.sort("begin").join_asof(
        pauses.select("thread", at="begin", ends="end").sort("at"),
        left_on="begin", right_on="at", by="thread", check_sortedness=False,
    ).filter(pl.col("end") <= pl.col("ends"))  # fmt: skip
    apart = pl.col("begin") - pl.col("end").cum_max().shift(1) > TOGETHER
    run = apart.fill_null(True).cum_sum().over("thread", "at")
    # Where a pause has several waits, the longest counts.
    runs = inside.with_columns(run=run).group_by("thread", "at", "run").agg(
        since=pl.col("begin").min(), until=pl.col("end").max(),
        call=pl.col("call").get((pl.col("end") - pl.col("begin")).arg_max()),
    ).filter(pl.col("until") - pl.col("since") >= SHORTEST)  # fmt: skip
    longest = runs.sort(pl.col("until") - pl.col("since"), "since").group_by("thread", "at").last()
    pauses = pauses.join(
        longest, left_on=("thread", "begin"), right_on=("thread", "at"), how="left"
    )
    return pauses.with_columns(pl.col("since", "until", "call").fill_null(0)).select(_PAUSES)


def _match_threads(threads: list[_Thread]) -> Iterator[pl.DataFrame]:
    """Yield the hand-offs of each place at which a thread of a host waits: HANDOFFS, numbered by the place
    at which others wait.
    """
    for waiter in threads:
        waits = waiter.until > 0
        for place in np.unique(waiter.place[waits]).tolist():
            own = np.flatnonzero(waits & (waiter.place == place))
            if len(own) < FEWEST_WAITS or _is_within_process(waiter, own, threads):
                continue
            others = (one for one in threads if one.task != waiter.task)
            fits = [(*fit, one) for one in others if (fit := _follow(waiter, own, one))]
            if fits:
                _, certain, rows, at, releaser = min(fits, key=lambda fit: fit[0])
                since = np.maximum(releaser.begin[at], _end_waits(releaser, at, waiter.until[rows]))
                yield pl.DataFrame(
                    {
                        "handoff": np.full(len(rows), place), "thread": waiter.row,
                        "begin": waiter.since[rows], "end": waiter.until[rows],
                        "call": waiter.call[rows], "releaser": releaser.row, "since": since,
                        "released": releaser.end[at] - 1, "certain": certain,
                        "rule": BY_WAITS,
                    }
                ).select(HANDOFFS.keys()).cast(HANDOFFS)  # fmt: skip


def _is_within_process(waiter: _Thread, own: np.ndarray, threads: list[_Thread]) -> bool:
    """Return whether waits end as calls of another thread of the process do."""
    ends = waiter.until[own]
    for one in threads:
        if one.task == waiter.task and one is not waiter:
            at = np.searchsorted(one.begin, ends, "right") - 1
            just_before = (at >= 0) & (ends - one.begin[np.maximum(at, 0)] <= WAKE_UP)
            if just_before.mean() >= NEARLY_ALL:
                return True
    return False


def _end_waits(releaser: _Thread, at: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return when a thread ends its wait in pauses, where that is before these times; else 0."""
    return np.where(releaser.until[at] < ends, releaser.until[at], 0)


def _follow(
    waiter: _Thread, own: np.ndarray, releaser: _Thread
) -> tuple[float, float, np.ndarray, np.ndarray] | None:
    """Return by how much the ends of waits differ from what a thread does, the share of them that end in
    its pauses while it does not wait, these waits, and the pauses; None where it does not end them.
    """
    ends = waiter.until[own]
    at = np.searchsorted(releaser.begin, ends + 1, "right") - 1
    is_waiting = (releaser.since[at] <= ends) & (releaser.until[at] >= ends - WAKE_UP)
    fits = (at >= 0) & (releaser.end[at] >= ends - WAKE_UP) & ~is_waiting
    certain = float(fits.mean())
    if certain < NEARLY_ALL:
        return None
    rows, at, ends = own[fits], at[fits], ends[fits]
    lasts, rest = ends - waiter.since[rows], releaser.end[at] - ends
    differs = _measure_spread(rest)
    if differs > FOLLOWS * _measure_spread(lasts) or np.median(rest) > np.median(lasts):
        return None
    return differs, certain, rows, at


def _measure_spread(values: np.ndarray) -> float:
    """Return the median difference from the median."""
    return float(np.median(np.abs(values - np.median(values))))
