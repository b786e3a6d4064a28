"""Fractions as integers: how many decimals those of a name have, the same in all ranks and parts of a job.

Event kinds give fractions as the bits of floating point (:data:`nsys2prv.catalogue.counters.UNSCALED`), for a scale can only be chosen once
all of a name are known. They get as many decimals as their shortest decimal form has, so that different ones stay different, and no more
than leave the greatest within 64 bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nsys2prv.account import Account
from nsys2prv.catalogue.counters import UNSCALED, Metric
from nsys2prv.events import all_kinds
from nsys2prv.events.sampling import GREATEST, TOO_GREAT
from nsys2prv.reading.extracted import Extracted
from nsys2prv.store.normal import sample_shape
from nsys2prv.store.runs import COUNTER, Run, SpillWriter, stored

#: Decimals of the smallest fractions.
MOST = 30
TOO_SMALL = "fractions too small beside others of their name, made 0"
#: The greatest floating point number that an integer of 64 bits holds.
_LIMIT = np.nextafter(2.0 ** 63, 0)
_POWERS = 10.0 ** np.arange(MOST + 1)


@dataclass
class _Met:
    """What was met of a name. greatest: finite value; decimals: of the shortest forms as 64-bit numbers, single: as 32-bit numbers, -1
    where a value is none."""

    greatest: float = 0.0
    decimals: int = 0
    single: int = 0

    def add(self, values: np.ndarray) -> None:
        values = np.unique(values[np.isfinite(values) & (values > 0)])
        if not len(values):
            return
        self.greatest = max(self.greatest, float(values[-1]))
        self.decimals = max(self.decimals, _decimals(values, np.float64))
        if self.single >= 0:
            with np.errstate(over="ignore"):
                narrow = (values.astype(np.float32) == values).all()
            self.single = max(self.single, _decimals(values, np.float32)) if narrow else -1

    def scale(self) -> int:
        """How many decimals its integers have."""
        wanted = self.single if self.single >= 0 else self.decimals
        return min(wanted, max(int(np.searchsorted(_POWERS, _LIMIT / self.greatest, "right")) - 1, 0)) if self.greatest else wanted


def scale_fractions(results: Sequence[Extracted], folder: Path) -> tuple[list[Extracted], list[str]]:
    """The results with fractions as integers, stored in this folder, and warnings of those that are 0 though they were not."""
    met: dict[tuple[str, str], _Met] = {}
    for run in (run for result in results for run in result.runs if _has_fractions(run)):
        values = _values(stored(run))
        for place, metric in _unscaled(run):
            met.setdefault((run.shape.name, metric.name), _Met()).add(values[:, place])
    scales = {key: found.scale() for key, found in met.items()}
    lost: Counter[str] = Counter()
    scaled = [_scaled(result, scales, folder / f"fractions-{number}.bin", lost) if any(map(_has_fractions, result.runs)) else result
              for number, result in enumerate(results)]
    warnings = [f"{name}: {count:,} numbers that are not 0 are 0 in the trace: below 10^-{MOST}, or others of that name are too great"
                for name, count in sorted(lost.items())]
    return scaled, warnings


def _scaled(result: Extracted, scales: dict[tuple[str, str], int], path: Path, lost: Counter[str]) -> Extracted:
    """The result with its fractions as integers. scales: decimals by layout and name; lost: counts by name what becomes 0."""
    changed = replace(result, runs=[], accounts=result.accounts.copy())
    writer = SpillWriter(path, result.report, result.task)
    for run in result.runs:
        if not _has_fractions(run):
            changed.runs.append(run)
            continue
        records = stored(run)
        values, numbers, metrics, repaired = _values(records), records["values"].astype(np.int64), list(run.shape.metrics), Counter()
        for place, metric in _unscaled(run):
            there, exact = numbers[:, place] > 0, values[:, place]
            scale = scales[run.shape.name, metric.name]
            product = np.rint(exact * _POWERS[scale])
            repaired[TOO_GREAT] += int(np.count_nonzero(there & (product > _LIMIT)))
            small = int(np.count_nonzero(there & (product == 0) & (exact > 0)))
            repaired[TOO_SMALL] += small
            if small:
                lost[metric.name] += small
            whole = np.minimum(np.minimum(product, _LIMIT).astype(np.int64), GREATEST)
            numbers[:, place] = np.where(there, whole + 1, 0)
            metrics[place] = Metric(metric.name, scale)
        shape = sample_shape(run.shape.name, tuple(metrics), numbers)
        written = np.empty(len(records), shape.dtype)
        written["time"], written["object"], written["values"] = records["time"], records["object"], numbers
        changed.runs.append(writer.append(shape, written, run.last, run.object, run.values))
        kind = next(kind.name for kind in all_kinds() if run.shape.name in kind.layouts and kind.name in result.accounts)
        changed.add(kind, Account(repaired=+repaired))
    writer.close()
    return changed


def _has_fractions(run: Run) -> bool:
    return run.shape.stream == COUNTER and bool(_unscaled(run))


def _unscaled(run: Run) -> list[tuple[int, Metric]]:
    """The places of fractions among a run's metrics."""
    return [(place, metric) for place, metric in enumerate(run.shape.metrics) if metric.precision == UNSCALED]


def _values(records: np.ndarray) -> np.ndarray:
    """The numbers of records as floating point, 0 where there is none."""
    return np.maximum(records["values"].astype(np.int64) - 1, 0).view(np.float64)


def _decimals(values: np.ndarray, kind: type[np.floating]) -> int:
    """How many decimals the shortest decimal forms of numbers have at most; MOST where it is more than that."""
    for decimals, power in enumerate(_POWERS):
        with np.errstate(over="ignore"):
            product = np.rint(values * power)
            values = values[np.isfinite(product) & ((product / power).astype(kind) != values.astype(kind))]
        if not len(values):
            return decimals
    return MOST
