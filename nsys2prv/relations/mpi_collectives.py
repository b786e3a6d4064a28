"""MPI collectives on all their ranks: what their blocking calls tell of the clocks of hosts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from nsys2prv.clock.observations import MPI as SOURCE
from nsys2prv.clock.observations import Calls
from nsys2prv.columns import OPEN
from nsys2prv.events.mpi import MEETINGS
from nsys2prv.relations.kind import DEVICES, MPI, Observed, Relation
from nsys2prv.report.source import NULL


def observe(facts: Mapping[str, pl.DataFrame]) -> Observed:
    """The blocking calls of every process, by communicator; the n-th of each is the others' n-th unless rows are missing."""
    known = (pl.col("time_begin") != NULL) & ~pl.col("time_end").is_in((NULL, OPEN))
    calls = facts[MEETINGS].filter((pl.col("task") >= 0) & known)
    column = {name: calls[name].to_numpy() for name in (
        "communicator", "task", "host", "signature", "waits", "is_root", "members", "time_begin", "time_end")}
    count = calls.height
    return Observed(Calls(
        np.full(count, SOURCE), column["communicator"], column["task"] * DEVICES, column["host"], np.full(count, -1),
        column["signature"], column["waits"], column["is_root"], column["members"], column["time_begin"], column["time_end"]))


RELATIONS = (Relation("mpi_collectives", "MPI collectives", MPI, (MEETINGS,), observe=observe),)
