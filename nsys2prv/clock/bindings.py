"""Bounds between the times of reports: begins that no end of the others may precede, per collective
or message.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import astuple, replace

from nsys2prv.clock import Role
from nsys2prv.clock.gathering import drop_unrelated_members
from nsys2prv.clock.observations import Calls, Finding, Messages, call_frame, sort_findings
from nsys2prv.clock.sequences import number_calls
from nsys2prv.clock.verdict import Violations

#: No bound: beyond every time, and sums of two do not overflow.
FAR = 1 << 60


class GroupTimes(Struct, frozen=True):
    """Begins or ends by group, ascending; arrays of one length. Each report has at most one in a
    group.
    """

    group: np.ndarray
    report: np.ndarray
    time: np.ndarray
    #: Index of its time among the knots.
    knot: np.ndarray

    def of(self, groups: np.ndarray) -> GroupTimes:
        """Return the part of the groups that are True in the mask."""
        if groups.all():
            return self
        rows = np.flatnonzero(groups[self.group])
        return GroupTimes(*(column[rows] for column in astuple(self)))

    def greatest_of_others(self, values: np.ndarray, groups: int, asked: GroupTimes) -> np.ndarray:
        """Return the greatest of the values that other reports have in the group of each time asked
        for; -FAR where there is none.
        """
        first, owner, second = np.full(groups, -FAR), np.full(groups, -1), np.full(groups, -FAR)
        if len(values):
            starts = np.flatnonzero(np.diff(self.group, prepend=-1))
            at = self.group[starts]
            if len(starts) == len(values):
                first[at], owner[at] = values, self.report
            else:
                first[at] = np.maximum.reduceat(values, starts)
                rows = np.flatnonzero(values == first[self.group])
                owner[self.group[rows]] = self.report[rows]
                others = np.where(self.report == owner[self.group], -FAR, values)
                second[at] = np.maximum.reduceat(others, starts)
        own = owner[asked.group] == asked.report
        return np.where(own, second[asked.group], first[asked.group])


class Bindings(Struct, frozen=True):
    """Bindings of `groups` groups: in each, no end is before a begin of another report."""

    groups: int
    begins: GroupTimes
    ends: GroupTimes
    #: Times, int64 ns relative to the pivot; those of report r are knots[bounds[r]:bounds[r + 1]],
    #: ascending and distinct.
    knots: np.ndarray
    bounds: np.ndarray

    def of(self, groups: np.ndarray) -> Bindings:
        """Return the bindings with only the groups that are True."""
        return replace(self, begins=self.begins.of(groups), ends=self.ends.of(groups))

    def parts(self) -> list[slice]:
        """Return where the knots of each report are."""
        return [slice(*ends) for ends in pairwise(self.bounds.tolist())]

    def lacks(self, shifts: np.ndarray) -> np.ndarray:
        """Return how far each end lies before the last begin of the others, ns; negative where it
        is after it. shifts: of every knot, ns.
        """
        begins = self.begins.time + shifts[self.begins.knot]
        last = self.begins.greatest_of_others(begins, self.groups, self.ends)
        return last - (self.ends.time + shifts[self.ends.knot])

    def room(self, shifts: np.ndarray) -> np.ndarray:
        """Return how far each begin may be moved in all, ns, until it reaches the first end of the
        others. shifts: those of ends, ns.
        """
        ends = self.ends.time + shifts[self.ends.knot]
        return -self.ends.greatest_of_others(-ends, self.groups, self.begins) - self.begins.time

    def violations(self, shifts: np.ndarray) -> Violations:
        late = self.lacks(shifts)
        late = late[late > -FAR // 2]
        wrong = late[late > 0]
        return Violations(len(late), len(wrong), float(wrong.max(initial=0)), float(wrong.sum()))


class BoundCalls(Struct, frozen=True):
    """Bindings of some groups' calls."""

    #: Begins and ends of collectives (group, report, time).
    begins: pl.DataFrame
    ends: pl.DataFrame
    #: Number of collectives, which are numbered from 0.
    collectives: int
    findings: list[Finding]
    #: Number of collectives that are not heeded.
    torn: int


def bind_calls(calls: Calls, pivot: int) -> BoundCalls:
    """Return the bindings of calls; whole groups, whose clocks are their reports."""
    table, findings = call_frame(calls, pivot)
    table, found = number_calls(table)
    table, lost = drop_unrelated_members(table)
    begins, ends, collectives, torn = _bind_collectives(table)
    return BoundCalls(begins, ends, collectives, [*findings, *found, *lost], torn)


def bindings_of(
    parts: Sequence[BoundCalls], messages: Messages, reports: int, pivot: int
) -> tuple[Bindings, list[Finding]]:
    """Return the bindings between reports, which are the messages' clocks. parts: ascending by
    source and group.
    """
    parts = parts or [bind_calls(Calls.none(), pivot)]
    *firsts, first = np.cumsum([0, *(part.collectives for part in parts)]).tolist()
    begins, ends = (
        pl.concat(
            [
                getattr(part, side).with_columns(pl.col("group") + before)
                for part, before in zip(parts, firsts, strict=True)
            ]
        )
        for side in ("begins", "ends")
    )
    findings = sort_findings(part.findings for part in parts)
    torn = sum(part.torn for part in parts)
    if torn:
        findings.append(Finding("torn", torn))
    sent = messages.sender != messages.receiver
    number = np.arange(first, first + int(sent.sum()))
    sides = []
    for frame, report, time in (
        (begins, messages.sender, messages.send_begin),
        (ends, messages.receiver, messages.receive_end),
    ):
        sides.append(
            (
                np.concatenate([frame["group"].to_numpy(), number]),
                np.concatenate([frame["report"].to_numpy(), report[sent]]),
                np.concatenate([frame["time"].to_numpy(), time[sent] - np.int64(pivot)]),
            )
        )
    knots, places, bounds = _knots(sides, reports)
    return Bindings(
        first + len(number),
        GroupTimes(*sides[0], places[0]),
        GroupTimes(*sides[1], places[1]),
        knots,
        bounds,
    ), findings


def _bind_collectives(table: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, int, int]:
    """Return begins and ends of collectives (group, report, time), the latest and the first of a
    report, by group; how many collectives these are, and how many are torn.
    """
    root = pl.col("is_root")
    for_all = pl.col("role") == Role.ALL
    binds = for_all | (root == (pl.col("role") == Role.FROM_ROOT))
    bound = for_all | (root == (pl.col("role") == Role.TO_ROOT))
    table = table.with_columns(
        begin=pl.when(binds).then("begin"), end=pl.when(bound).then("end")
    ).rename({"clock": "report"})
    keys = ["key", "ordinal", "report"]
    rows = table.sort(keys)
    same = rows.select(
        pl.all_horizontal(pl.col(name) == pl.col(name).shift(1) for name in keys).any()
    ).item()
    if same:
        rows = rows.group_by(keys, maintain_order=True).agg(
            pl.col("role").first(), pl.col("begin").max(), pl.col("end").min()
        )
    rows = rows.with_columns(group=pl.struct("key", "ordinal").rle_id())
    # Times of one report cannot be moved against each other: where its own members contradict
    # themselves, nothing is known.
    torn = rows.filter((pl.col("role") == Role.ALL) & (pl.col("begin") > pl.col("end")))[
        "group"
    ].unique()
    if len(torn):
        rows = rows.filter(~pl.col("group").is_in(torn.implode()))
    number = rows["group"].to_numpy()
    rows = rows.filter(
        pl.Series((np.bincount(number, minlength=1) > 1)[number], dtype=pl.Boolean)
    ).with_columns(
        group=pl.col("group").rle_id().cast(pl.Int64), report=pl.col("report").cast(pl.Int64)
    )
    begins, ends = (
        rows.filter(pl.col(name).is_not_null()).select("group", "report", time=name)
        for name in ("begin", "end")
    )
    return begins, ends, int(rows["group"].max()) + 1 if rows.height else 0, len(torn)


def _knots(
    sides: list[tuple[np.ndarray, np.ndarray, np.ndarray]], reports: int
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Return all times by report, where each side's are among them, and where each report's begin."""
    times = [side[2] for side in sides]
    low = min((int(time.min()) for time in times if len(time)), default=0)
    high = max((int(time.max()) for time in times if len(time)), default=0)
    width = max((high - low).bit_length(), 1)
    if width + max(reports - 1, 1).bit_length() > 62:
        raise ValueError("Times of more than a century, or too many reports")
    packed = [(report.astype(np.int64) << width) | (time - low) for _, report, time in sides]
    distinct = np.sort(np.concatenate(packed))
    distinct = distinct[np.diff(distinct, prepend=-1) > 0]
    places = [np.searchsorted(distinct, one) for one in packed]
    return (
        (distinct & ((1 << width) - 1)) + low,
        places,
        np.searchsorted(distinct, np.arange(reports + 1) << width),
    )
