"""The order of events on different clocks: what must have begun before something else can have ended.

A receive ends after its send begins. Nobody leaves a collective in which all wait for all before the
last has entered it; of collectives with a root, the others wait for the root or the root for them.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsys2prv._util.columns import Table, number_rows
from nsys2prv.clock import NOISE, Corrections, Role, gathering

#: Messages between two hosts, in one direction.
MOST_MESSAGES = 2_000
#: Largest number of pairs of hosts of which all collectives together are made. Of more, each host is
#: compared with the last to come and with the lowest host, so that time grows with the number of hosts.
MOST_PAIRS = 1 << 18
#: Only the tightest row in each of so many parts of a host's span is kept of two hosts: a line
#: between clocks touches no more than a few.
PARTS_OF_SPAN = 64


class Precedences(Table, frozen=True):
    """`begin` on clock `before` is not later than `end` on clock `after`: float ns relative to the
    pivot.
    """

    #: Key of NOISE.
    noise_kind: np.ndarray
    #: Clock of the begin.
    before: np.ndarray
    #: The earlier time.
    begin: np.ndarray
    #: Clock of the end.
    after: np.ndarray
    #: The later time.
    end: np.ndarray
    #: Held back from the estimate, to judge it by.
    held: np.ndarray

    def correct(self, corrections: Corrections) -> tuple[np.ndarray, np.ndarray]:
        """Return the begins and the ends by corrected clocks."""
        return (corrections.apply(self.begin, self.before), corrections.apply(self.end, self.after))

    def find_slack(self) -> np.ndarray:
        """Return by how much clocks of devices within a host may contradict each other, ns."""
        return np.array([noise.slack for noise in NOISE.values()])[self.noise_kind]

    def find_spans(self, corrections: Corrections) -> tuple[np.ndarray, np.ndarray]:
        """Return the first and the last corrected time of each host; inf and -inf without any."""
        begin, end = self.correct(corrections)
        return find_spans(len(corrections.offset), (self.before, begin), (self.after, end))

    def find_tightest(self, hosts: int) -> np.ndarray:
        """Return the places of the tightest rows of each two hosts in each part of the first one's
        span.
        """
        first, last = find_spans(hosts, (self.before, self.begin))
        length = np.maximum(last - first, 1.0)[self.before]
        part = ((self.begin - first[self.before]) / length * (PARTS_OF_SPAN - 1)).astype(np.int64)
        order = np.argsort(self.end - self.begin, kind="stable")
        where = (self.before * hosts + self.after) * PARTS_OF_SPAN + part
        return order[number_rows(where[order])[0]]


def find_spans(hosts: int, *times: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the last time of each host, of pairs of hosts and times."""
    first, last = np.full(hosts, np.inf), np.full(hosts, -np.inf)
    for host, time in times:
        np.minimum.at(first, host, time)
        np.maximum.at(last, host, time)
    return first, last


def find_collective_precedences(hosts: pl.DataFrame, binding: bool = False) -> Precedences:
    """Return the precedences of collectives. binding: of those in which all wait for all, only the
    begins of the last to come.

    hosts: rows of :func:`nsys2prv.clock.gathering.gather_per_host`.
    """
    collective = ["collective", "role"]
    begins = hosts.filter(pl.col("begin").is_not_null())
    ends = hosts.filter(pl.col("first_end").is_not_null())
    ends = ends.select(*collective, "key", end="first_end", after="clock")
    rooted = pl.col("role") != Role.ALL
    if binding:
        begins, others = begins.filter(rooted | pl.col("late")), begins.clear()
    else:
        pairs = pl.len().over("collective").sum().over("key")
        many = ~rooted & (pairs > MOST_PAIRS // (hosts["key"].max() + 1 if hosts.height else 1))
        lowest = pl.col("clock") == pl.col("clock").min().over("key")
        begins, others = begins.filter(~many | pl.col("late") | lowest), begins.filter(many)
    begins, others = (
        side.select(*collective, "noise_kind", "held", "begin", before="clock")
        for side in (begins, others)
    )
    joined = begins.join(ends, on=collective)
    if others.height:
        lowest_ends = ends.filter(pl.col("after") == pl.col("after").min().over("key"))
        joined = pl.concat([joined, others.join(lowest_ends, on=collective)])
    return _to_precedences(joined)


def find_message_precedences(messages: pl.DataFrame, pivot: int) -> Precedences:
    """Return the precedences of messages, a frame of MESSAGES."""
    pair = ("before", "after")
    table = (
        messages.with_columns(pl.col("begin", "end") - pivot)
        .filter(pl.col("before") != pl.col("after"))
        .sort(*pair, "begin", "end", "noise_kind")
        .with_columns(place=pl.int_range(pl.len()).over(pair), size=pl.len().over(pair))
    )
    # The place after which a whole step of size / MOST_MESSAGES begins: spread evenly, as many as
    # allowed.
    step, place = pl.col("size") / MOST_MESSAGES, pl.col("place")
    begins_step = (place / step).floor() != ((place - 1) / step).floor()
    held = place % gathering.HOLD_BACK == gathering.HOLD_BACK - 1
    table = table.filter((pl.col("size") <= MOST_MESSAGES) | begins_step)
    return _to_precedences(table.with_columns(held=held))


def _to_precedences(table: pl.DataFrame) -> Precedences:
    """Return the precedences between two hosts. table: their columns."""
    table = table.filter(pl.col("before") != pl.col("after")).with_columns(
        pl.col("noise_kind", "before", "after").cast(pl.Int64),
        pl.col("begin", "end").cast(pl.Float64),
    )
    return Precedences(*(table[name].to_numpy() for name in Precedences.__struct_fields__))
