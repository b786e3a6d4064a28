"""Compute the contents of the page for two runs: bars whose parts add up, the headline's moment in
both runs, and findings side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
from msgspec.structs import replace

from nsys2prv._util.text import format_nanoseconds, shorten_name
from nsys2prv.figures.result import Finding
from nsys2prv.show.difference.facts import Comparison, Reason
from nsys2prv.show.difference.pictures import LOOKS
from nsys2prv.show.difference.pictures import Bar as Times
from nsys2prv.show.finished_job import FinishedJob
from nsys2prv.show.page.excerpts import Excerpts, Moment
from nsys2prv.show.page.sections import ACROSS, Bar, Part
from nsys2prv.show.thresholds import APART

#: Room on either side of the event of a headline, as a part of the longer one of both runs.
AROUND = 1.0


def place_bars(bars: Sequence[Times]) -> list[tuple[Bar, float, float]]:
    """Return each bar with its length relative to the longest one (0 to 1), and its time (ns)."""
    longest = max((bar.length for bar in bars), default=0.0)
    placed = []
    for bar in bars:
        if bar.length:
            x, parts = 0.0, []
            for family, time in bar.parts.items():
                share, text = time / bar.length, format_nanoseconds(time)
                parts.append(Part(family, family, LOOKS[family][1], share, round(x, 3), text))
                x += ACROSS * share
            placed.append((Bar(bar.label, 1, parts), bar.length / longest, bar.length))
    return placed


def show_headline(comparison: Comparison, jobs: Sequence[FinishedJob]) -> list[FinishedJob]:
    """Return the runs, each with two moments for the page: the first cause of the difference, then
    the median iteration (the whole job if iterations are not compared). Without an event of the
    first cause, both moments are equal.
    """
    if not all(job.excerpts for job in jobs):
        return [*jobs]
    cause = next(iter(comparison.causes), None)
    whole = [_find_whole(job, comparison.unit, cause) for job in jobs]
    found = [
        _find_event(job, moment, cause) for job, moment in zip(jobs, whole, strict=True) if cause
    ]
    moments = list(whole)
    if len(found) == len(jobs) and all(found):
        around = int(AROUND * max(end - begin for begin, end in found))
        moments = [
            replace(moment, begin=begin - around, end=end + around)
            for moment, (begin, end) in zip(whole, found, strict=True)
        ]
    return [
        replace(job, excerpts=replace(job.excerpts, moments=[*each]))
        for job, *each in zip(jobs, moments, whole, strict=True)
    ]


def _find_whole(job: FinishedJob, unit: str, cause: Reason | None) -> Moment:
    """Return the median iteration of a run, or the whole run. Lanes of ranks at fault come first."""
    moment = job.excerpts.moments[0]
    if unit != "iteration":
        moment = replace(moment, begin=0, end=job.duration, view=(0, job.duration))
    lanes = job.lanes
    if not (cause and cause.ranks and "rank" in lanes.columns):
        return moment
    numbers = lanes.with_row_index("lane").filter(pl.col("rank").is_in(cause.ranks))["lane"]
    others = [one for one in moment.lanes if one not in set(numbers)]
    return replace(moment, lanes=(*numbers, *others)[: len(moment.lanes)], culprits=(*numbers,))


def _find_event(job: FinishedJob, moment: Moment, cause: Reason) -> tuple[int, int] | None:
    """Return start and end (ns) of the longest event of a cause (kernel, call or NVTX range) within
    a moment, or None. If lanes are at fault, only these are searched.
    """
    excerpts: Excerpts = job.excerpts
    if cause.family == "startup":
        begins = [
            frame["begin"].min() for kind, frame in excerpts.events.tracks.items() if kind in "knm"
        ]
        first = min((one for one in begins if one is not None), default=None)
        return None if first is None else (0, first)
    wanted = {*filter(None, (cause.name, cause.inside))}
    if not wanted or not excerpts.names.height:
        return None
    labels = map(shorten_name, excerpts.names["label"].to_list())
    named = excerpts.names.filter([one in wanted for one in labels])
    lanes = list(moment.culprits or moment.lanes)
    key = ("source", "name", "class")
    spans = [
        frame.join(named, on=key)
        .filter(
            pl.col("lane").is_in(lanes),
            pl.col("begin") >= moment.begin,
            pl.col("end") <= moment.end,
        )
        .select("begin", "end")
        for frame in excerpts.events.tracks.values()
    ]
    events = pl.concat(spans).sort(pl.col("begin") - pl.col("end"), "begin") if spans else None
    return None if events is None or events.is_empty() else events.row(0)


def compare_findings(first: FinishedJob, second: FinishedJob) -> list[dict[str, Any]]:
    """Return the findings of two jobs, the second job's first, each with `title`, `shares` (in
    both) and `state` (new, gone or changed). Findings of one kind with the same ranks are the same.
    """
    before, after = (
        {(one.kind, one.ranks): one for one in job.findings} for job in (first, second)
    )

    def describe(old: Finding | None, new: Finding | None) -> str:
        if not (old and new):
            return "gone" if old else "new"
        if abs(new.share - old.share) < APART:
            return "as before"
        return "grew" if new.share > old.share else "shrank"

    pairs = [(before.get(key), after.get(key)) for key in {**after, **before}]
    return [
        {
            "title": (new or old).title,
            "shares": [one and one.share for one in (old, new)],
            "state": describe(old, new),
        }
        for old, new in pairs
    ]
