"""Describe how a loss is spread over the iterations and kernels of a job, which limits its possible
causes.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from nsys2prv.replay.suspects import KINDS, Suspect
from nsys2prv.replay.whatif import HOST, WorkTable
from nsys2prv.verdict.cause_context import CauseContext
from nsys2prv.verdict.thresholds import (
    FEWEST_REPEATED,
    GROWN,
    LINEAR,
    MAY_DIFFER,
    MOST_OF_LOSS,
    MOST_REPEATED,
    NEARLY_EACH,
)
from nsys2prv.verdict.words import Said, say


class Shape(Struct, frozen=True):
    """Says in which iterations time is lost: in each, in some, once, since one, ..."""

    #: `each` (nearly all of them), `while` (several in a row), `since` (all from one on), `every`
    #: (every n-th), `growing`, `once`, or `some`; "" if there are too few to decide.
    kind: str
    #: Iterations with most of the loss (a mask), and every how many there is one of `every`.
    chosen: np.ndarray
    period: int
    #: Median loss of each; loss of the first and the last iterations of a growing one (ns).
    each: float
    first: float
    last: float
    #: Name of the iterations.
    unit: str = "iterations"

    @property
    def count(self) -> int:
        """Return the number of iterations with most of the loss."""
        return int(self.chosen.sum())

    @property
    def when(self) -> Said | None:
        """Return a text about the iterations with the loss; None if it always occurs, or if they
        are unknown.
        """
        if self.kind in ("", "each"):
            return None
        return say(
            f"when {self.kind}",
            count=self.count,
            of=len(self.chosen),
            period=self.period,
            first=self.first,
            last=self.last,
            step=(self.last - self.first) / max(len(self.chosen) - 1, 1),
            unit=self.unit,
        )


def classify_losses(losses: np.ndarray, unit: str = "iterations") -> Shape:
    """Find out in which iterations time is lost. losses: time lost in each iteration (ns). unit:
    noun for an iteration.
    """
    losses = np.maximum(losses.astype(float), 0)
    whole, count = losses.sum(), len(losses)
    place = np.arange(count)
    if count < FEWEST_REPEATED or not whole:
        return Shape("", losses > 0, 0, float(whole / max(count, 1)), 0.0, 0.0, unit)
    # Half of all is lost in iterations that lose this much, or more.
    order = np.sort(losses)[::-1]
    usual = order[np.searchsorted(order.cumsum(), whole / 2)]
    chosen = losses >= usual / 2
    each = float(np.median(losses[chosen]))
    slope, start = np.polyfit(place, losses, 1)
    # A few iterations may not have it all, as the first and the last one.
    apart = np.abs(losses - start - slope * place)
    kept = np.sort(np.argsort(apart, kind="stable")[: count - count // MAY_DIFFER])
    slope, start = np.polyfit(kept, losses[kept], 1)
    first, last = max(float(start), 0.0), float(start + slope * (count - 1))

    def make(kind: str, period: int = 0) -> Shape:
        return Shape(kind, chosen, period, each, first, last, unit)

    near = losses[kept]
    left = np.square(near - start - slope * kept).sum()
    is_line = left < (1 - LINEAR) * np.square(near - near.mean()).sum()
    if is_line and last > GROWN * max(first, 1.0) and left < _measure_step(near):
        return make("growing")
    if losses[chosen].sum() < MOST_OF_LOSS * whole:
        return make("some")
    at = np.flatnonzero(chosen)
    if len(at) >= NEARLY_EACH * count:
        return make("each")
    if len(at) == 1:
        return make("once")
    steps = np.diff(at)
    period = int(np.median(steps))
    if len(at) > 2 and period > 1 and (steps == period).mean() >= NEARLY_EACH:
        return make("every", period)
    if len(at) >= NEARLY_EACH * (at[-1] - at[0] + 1):
        return make("since" if at[-1] == count - 1 and len(at) > 2 else "while")
    return make("some")


def _measure_step(losses: np.ndarray) -> float:
    """Return the smallest sum of squares that remains if two consecutive levels are fitted."""
    at = np.arange(1, len(losses))
    before, whole = losses.cumsum()[:-1], losses.sum()
    explained = np.square(before) / at + np.square(whole - before) / (len(losses) - at)
    return float(np.square(losses).sum() - explained.max())


class Loss(Struct, frozen=True):
    """The time that processes lose in one kind of work: when, and how much longer the work takes."""

    #: Over the iterations.
    shape: Shape
    #: Factor by which the work takes longer than on other ranks, where the loss is largest.
    times: float


def find_loss(facts: CauseContext, suspect: Suspect, edges: np.ndarray, saved: np.ndarray) -> Loss:
    """Return the loss of a suspect's processes in these edges: of all their work, or only of work
    that all processes could share. saved: loss of each edge (ns).
    """
    table = facts.replay.tabulate(KINDS[suspect.kind])
    is_work = np.isin(facts.edges.kind[edges], KINDS[suspect.kind])
    edges, saved = edges[is_work], saved[is_work]
    columns = table.find_columns(suspect.processes)
    steady = facts.options.steady
    number, unit = (steady.count, "iterations") if steady else (0, "executions")
    if not number:
        number = _count_longest(table, columns, edges, saved) if len(edges) else 1
        number, unit = (
            (number, unit) if number <= MOST_REPEATED else (10, "equal parts of the time")
        )
    losses = np.zeros(number)
    whole, left = 0.0, 0.0
    for column in columns.tolist():
        iteration, _, gone = _list_losses(facts, column, table, edges, saved, number)
        losses += np.bincount(iteration, gone, number)
    shape = classify_losses(losses / len(columns), unit)
    for column in columns.tolist():
        iteration, lasts, gone = _list_losses(facts, column, table, edges, saved, number)
        inside = shape.chosen[iteration] & ((gone > 0) | (not suspect.is_shared))
        whole += lasts[inside].sum()
        left += (lasts - gone)[inside].sum()
    return Loss(shape, whole / max(left, 1))


def _count_longest(
    table: WorkTable, columns: np.ndarray, edges: np.ndarray, saved: np.ndarray
) -> int:
    """Return how often a process takes longest for the work with the largest loss."""
    own = table.edges[:, columns]
    lines = np.flatnonzero(np.isin(own, edges[[np.argmax(saved)]]).any(axis=1))
    key = np.searchsorted(table.first, lines[0], "right") - 1
    return int(table.by_key[2][key, columns].max())


def _list_losses(
    facts: CauseContext,
    column: int,
    table: WorkTable,
    edges: np.ndarray,
    saved: np.ndarray,
    number: int,
) -> tuple[np.ndarray, ...]:
    """Return for each item of work in a column its iteration (of `number`), its duration, and the
    time lost in it (ns). Work that is done equally often in each iteration is assigned by its
    place, all other work by time.
    """
    lines = np.flatnonzero(table.edges[:, column] >= 0)
    own = table.edges[lines, column]
    order = np.argsort(own)
    at = order[np.searchsorted(own, edges, sorter=order).clip(0, len(own) - 1)]
    is_own = own[at] == edges
    gone = np.zeros(len(own))
    np.add.at(gone, at[is_own], saved[is_own])
    key = np.searchsorted(table.first, lines, "right") - 1
    count = table.by_key[2][key, column]
    iteration = table.turn[lines] * number // np.maximum(count, 1)
    # Parts of an iteration at the begin and the end may be one more, or less.
    rare = np.flatnonzero(np.abs(count - number * np.maximum((count + 1) // number, 1)) > 1)
    process = int(table.processes[column])
    begins = _list_begins(facts, process, number, facts.edges.kind[own[0]] in HOST)
    iteration[rare] = np.searchsorted(begins, facts.find_times(own[rare])[0], "right") - 1
    return np.clip(iteration, 0, number - 1), table.weight[own], gone


def _list_begins(facts: CauseContext, process: int, number: int, is_host: bool) -> np.ndarray:
    """Return the starts of these iterations (ns); for a host its own, if its ranges show them."""
    options, replay = facts.options, facts.replay
    if not options.steady:
        return np.linspace(replay.begin, replay.end, number, endpoint=False)
    if is_host:
        own = options.read_iterations("task", process + 1)
        if own.height == number:
            return own["begin"].sort().to_numpy()
    return np.array(options.steady.iteration_begins)
