"""Tables that stand beside a job's own: what Nsight records of the machine, of further libraries and of itself; a module each.

A module here defines ``add(scene) -> dict``: it writes its rows into one report and returns what is true of them, which the truth has
under the report's rank, ``additions``, the module's name. Its CREATE TABLE statements lie beside it in ``<module>.sql``, rows of ENUM_*
tables in ``<module>.tsv`` (form: schema.py). A module draws nothing from the job's random numbers: it has its own.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from ..cluster import Ints
from ..rows import Report


@dataclass(frozen=True)
class Scene:
    """Where rows are added: ``steps`` (step, begin and end) and ``duration`` of the capture in ns on the report's clock."""

    report: Report
    steps: Ints
    duration: int
    random: np.random.Generator


def names() -> tuple[str, ...]:
    """All additions."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def add(wanted: Iterable[str], report: Report, steps: Ints, duration: int) -> None:
    """Write those wanted into a report, and what is true of them into its facts."""
    for name in wanted:
        random = np.random.default_rng([report.options.seed, report.rank.rank, *name.encode()])
        truth = import_module(f"{__name__}.{name}").add(Scene(report, steps, duration, random))
        report.facts.setdefault("additions", {})[name] = truth
