"""How many bytes of a trace the lines of runs will take, from a sample of their records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from nsys2prv.catalogue import DomainCode, NameSet, catalogue
from nsys2prv.catalogue.counters import counter_codes
from nsys2prv.cut.orders import Orders
from nsys2prv.job import Job
from nsys2prv.store.runs import BEGIN, COUNTER, LINE, Run, SpillReader

#: Records looked at of each run: all of a small one.
LOOKED_AT = 4096
SECOND = 1_000_000_000
_POWERS = 10 ** np.arange(1, 19)


@dataclass(frozen=True)
class Weight:
    """The lines of a run. each: how many of its records one looked at stands for. base: bytes of a record's lines without attributes.
    fields: of each attribute, by its bit. durations: ns, for ranges. times: of samples; of these `base` is without numbers, and `numbers`
    the bytes of these."""

    name: str
    each: float
    base: np.ndarray
    fields: dict[int, np.ndarray] = field(default_factory=dict)
    durations: np.ndarray | None = None
    numbers: float = 0.0
    samples: tuple[int, int, int] | None = None

    def bytes(self, orders: Orders) -> float:
        """Bytes that are left by these orders."""
        if self.name in orders.away:
            return 0.0
        if self.samples is not None:
            rows, first, last = self.samples
            rate = orders.rates.get(self.name)
            share = min(1.0, ((last - first) * rate / SECOND + 2) / rows) if rate else 1.0
            return share * (float(self.base.sum()) * self.each + self.numbers)
        present = orders.present.get(self.name, -1)
        total = self.base + sum(column for bit, column in self.fields.items() if present >> bit & 1)
        if self.durations is not None and (least := orders.least.get(self.name, 0)):
            total = total[self.durations >= least]
        return float(total.sum()) * self.each


def weights(job: Job) -> Iterator[Weight]:
    """The weight of every run of a job that is ready to be written, in which all runs are in trace time."""
    weigher = _Weigher(job)
    try:
        for run in job.runs:
            if run.shape.stream in (BEGIN, LINE, COUNTER):
                yield weigher.weight(run)
    finally:
        weigher.reader.close()


class _Weigher:
    def __init__(self, job: Job) -> None:
        self.job, self.reader = job, SpillReader()
        self._addresses = np.array([len(address) for address in job.model.tree.addresses], np.int64)
        metrics: dict[str, list[str]] = {}
        for shape in {run.shape for run in job.runs if run.shape.stream == COUNTER}:
            metrics.setdefault(shape.name, []).extend(metric.name for metric in shape.metrics)
        self._codes = counter_codes({layout: sorted(set(names)) for layout, names in metrics.items()})

    def weight(self, run: Run) -> Weight:
        step = -(-run.rows // LOOKED_AT)
        records = self.reader.every(run, step)
        each = run.rows / len(records)
        clock = self.job.clocks[run.report]
        time = clock.to_global(records["time"])
        if run.shape.stream == LINE:
            line = catalogue().lines[run.shape.name]
            tag = _digits(records["tag"]) if line.tag is None else len(str(line.tag))
            base = (10 + 2 * _digits(time) + 2 * _digits(clock.to_global(records["receive"])) + self._address(run, records["sender"])
                    + self._address(run, records["receiver"]) + _digits(records["size"]) + tag)
            return Weight(run.shape.name, each, base)
        if run.shape.stream == COUNTER:
            base = 4 + _digits(time) + self._address(run, np.full(len(records), run.object))
            numbers = 0.0
            for place, metric in enumerate(run.shape.metrics):
                stored = records["values"][:, place].astype(np.int64)
                code = 2 + len(str(self._codes[run.shape.name, metric.name]))
                numbers += float(((code + _digits(stored - 1)) * (stored > 0)).sum()) * each
            return Weight(run.shape.name, each, base, numbers=numbers, samples=(run.rows, run.first, run.until))
        return self._of_events(run, records, time, each)

    def _of_events(self, run: Run, records: np.ndarray, time: np.ndarray, each: float) -> Weight:
        layout = catalogue().layouts[run.shape.name]
        end = self.job.clocks[run.report].to_global(np.minimum(records["end"], 1 << 61))
        lines = 1 if layout.holds else 2
        base = lines * (4 + self._address(run, records["object"])) + _digits(time)
        if lines == 2:
            base = base + _digits(np.minimum(end, self.job.duration))
        fields = {}
        for bit, found in enumerate(layout.fields):
            if not run.shape.present >> bit & 1:
                continue
            values = records[found.name].astype(np.int64)
            if isinstance(found.values, NameSet):
                values = self.job.names[found.values.name][run.source][values]
            code = self._code(run, records, found.code)
            # The value, and where the range ends, 0.
            fields[bit] = lines * (2 + code) + _digits(values) + (lines - 1)
        base = base + fields.pop(0)
        return Weight(layout.name, each, base, fields, None if layout.holds else end - time)

    def _code(self, run: Run, records: np.ndarray, code: int | DomainCode) -> np.ndarray | int:
        if not isinstance(code, DomainCode):
            return len(str(code))
        widths = np.array([len(str(code.of(name, number))) for name, number in self.job.domain_codes], np.int64)
        return widths[self.job.domains[run.source][records["domain"]]]

    def _address(self, run: Run, objects: np.ndarray) -> np.ndarray:
        return self._addresses[self.job.threads[run.source][objects]]


def _digits(numbers: np.ndarray) -> np.ndarray:
    return np.searchsorted(_POWERS, numbers, "right") + 1


