"""Making a trace fit a size: what is left out for it, in which order, from counts of rows and the bytes of their lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from nsys2prv.catalogue import catalogue
from nsys2prv.cut.orders import Orders
from nsys2prv.cut.plan import layouts_called, sampled
from nsys2prv.cut.weights import Weight, weights
from nsys2prv.durations import duration_text
from nsys2prv.errors import Nsys2prvError
from nsys2prv.job import Job
from nsys2prv.sizes import size_text

US, MS = 1_000, 1_000_000
#: Bytes of the header's comments and the like, and what estimates may be wrong by.
BESIDE, MARGIN = 2_000, 1.01
NUMBERS = "sampled numbers"


@dataclass(frozen=True)
class Step:
    """Something to leave out: what, for people, and what becomes of the orders. A later step of the same subject goes further."""

    subject: str
    what: str
    take: Callable[[Orders], Orders]


def _without(what: str, *kinds: str) -> Step:
    names = frozenset(layout for kind in kinds for layout in layouts_called(kind))
    return Step(what, what, lambda orders: replace(orders, away=orders.away | names))


def _long(what: str, least: int, *kinds: str) -> Step:
    names = [layout for kind in kinds for layout in layouts_called(kind) if not catalogue().layouts[layout].holds]
    return Step(what, f"{what} shorter than {duration_text(least)}",
                lambda orders: replace(orders, least={**orders.least, **{name: max(least, orders.least.get(name, 0)) for name in names}}))


def _thinned(rate: int) -> Step:
    names = sampled(catalogue().layouts)
    return Step(NUMBERS, f"{NUMBERS} beyond {rate:,} a second", lambda orders: replace(
        orders, rates={**orders.rates, **{name: min(rate, orders.rates.get(name, rate)) for name in names}}))


def steps() -> list[Step]:
    """What is left out, one after the other, until the trace fits; the order is that of docs/cutting.md."""
    layouts, lines = catalogue().layouts, frozenset(catalogue().lines)
    bare = {name: 1 for name, layout in layouts.items() if len(layout.fields) > 1}
    counters = frozenset(sampled(layouts))
    calls = ("osrt", "pthread", "file_accesses")
    return [
        _without("CPU samples", "cpu_samples"),
        _without("thread states", "sched"),
        *(_long("OS runtime calls", least, *calls) for least in (10 * US, 100 * US, MS)),
        Step("attributes", "attributes of events", lambda orders: replace(orders, present={
            name: mask & orders.present.get(name, -1) for name, mask in bare.items()})),
        Step("lines", "communication lines", lambda orders: replace(orders, away=orders.away | lines)),
        *(_thinned(rate) for rate in (1_000, 100, 10)),
        *(_long("NVTX ranges", least, "nvtx_pushpop_trace", "nvtx_startend_trace") for least in (10 * US, 100 * US, MS)),
        _without("OS runtime calls", *calls),
        Step(NUMBERS, NUMBERS, lambda orders: replace(orders, away=orders.away | counters)),
        *(_long("CUDA calls", least, "cuda_api_trace") for least in (10 * US, 100 * US)),
        *(_long("ranges", least, "all") for least in (10 * US, 100 * US, MS, 10 * MS)),
    ]


@dataclass(frozen=True)
class Fitting:
    """How far a trace has been made to fit. bytes: of the trace as it is; done: steps that changed something; left: further steps.
    orders: all those done. parts: what the lines of the runs weigh before any step."""

    limit: int
    bytes: float
    orders: Orders
    parts: tuple[Weight, ...]
    beside: int
    done: tuple[Step, ...] = ()
    left: tuple[Step, ...] = ()

    @classmethod
    def of(cls, job: Job, orders: Orders, limit: int) -> Fitting:
        parts = tuple(weights(job))
        beside = BESIDE + len(job.model.tree.header("01/01/2000 at 00:00", job.duration))
        return cls(limit, _total(parts, orders) + beside, orders, parts, beside, (), tuple(steps()))

    @property
    def fits(self) -> bool:
        return self.bytes * MARGIN <= self.limit

    def further(self) -> Orders:
        """The orders by which the trace should fit. Raises Nsys2prvError where no step is left."""
        return self._advanced().orders

    def again(self, job: Job) -> Fitting:
        """After a cut by :meth:`further`: with what came out of it."""
        return replace(self._advanced(), bytes=_total(weights(job), Orders(self.orders.window)) + self.beside)

    def _advanced(self) -> Fitting:
        orders, done, left, size = self.orders, self.done, self.left, self.bytes
        while left:
            step, left = left[0], left[1:]
            taken = step.take(orders)
            smaller = _total(self.parts, taken) + self.beside
            if smaller < size:
                done = (*(found for found in done if found.subject != step.subject), step)
            orders, size = taken, min(size, smaller)
            if size * MARGIN <= self.limit:
                return replace(self, orders=orders, done=done, left=left, bytes=size)
        share = max(0.01, 100 * self.limit / (size * MARGIN))
        raise Nsys2prvError(f"--max-size: the trace would still be about {size_text(size)} after leaving out all that may be for it; "
                            f"cut its time as well, as in --time 0:{share:.2g}%")

    def notes(self) -> list[str]:
        """What was left out, for people."""
        return [f"left out to stay within {size_text(self.limit)}: {'; '.join(step.what for step in self.done)}"] if self.done else []


def _total(parts: Iterable[Weight], orders: Orders) -> float:
    return float(np.sum([part.bytes(orders) for part in parts]))
