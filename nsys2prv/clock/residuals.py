"""How far each host's ends of collectives lie from the usual ones, before and after the correction: a sample to look at."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsys2prv.clock.observations import Role
from nsys2prv.clock.robust import evenly

#: Collectives of the sample, per host.
MOST = 100

#: (placed time, deviation with it, deviation with the corrected time), ns.
Sample = tuple[int, int, int]


def residual_samples(hosts: pl.DataFrame, offset: np.ndarray, drift: np.ndarray, pivot: int) -> list[tuple[Sample, ...]]:
    """A sample for each host. `hosts` as of per_host; corrected = time + offset + drift * time by host, relative to the pivot.

    Deviations are from the median over the hosts of a collective in which all wait for all.
    """
    some = hosts.filter(pl.col("role") == Role.ALL).select("collective", "clock", "end")
    clock = some["clock"].to_numpy()
    end = some["end"].to_numpy().astype(np.float64)
    some = some.with_columns(before=pl.Series(end), after=pl.Series(end * (1 + drift[clock]) + offset[clock]))
    some = some.with_columns(pl.col(name) - pl.col(name).median().over("collective") for name in ("before", "after"))
    found: list[tuple[Sample, ...]] = [()] * len(offset)
    for part in some.sort("clock", "end").partition_by("clock", maintain_order=True):
        kept = part[evenly(part.height, MOST)]
        columns = [(kept["end"].round().cast(pl.Int64) + pivot).to_list(),
                   *(kept[name].round().cast(pl.Int64).to_list() for name in ("before", "after"))]
        found[part["clock"][0]] = tuple(zip(*columns, strict=True))
    return found
