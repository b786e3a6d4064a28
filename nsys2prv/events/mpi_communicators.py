"""Which communicator the MPI calls of a report are in, and the ranks of their partners."""

from __future__ import annotations

from functools import cached_property
from itertools import chain

import numpy as np
import polars as pl

from nsys2prv.nsight.communicators import (
    MPICH_WORLD,
    SELF,
    UNKNOWN,
    WORLD,
    Communicator,
    make_key,
)
from nsys2prv.nsight.info import ReportInfo
from nsys2prv.nsight.source import NULL


class Communicators:
    """The communicators of one report; their numbers are indices into `names`."""

    def __init__(self, info: ReportInfo) -> None:
        rows = self._rows = info.communicators
        ranks = {row.rank for row in rows} or set(list(info.launcher_ranks.values())[:1])
        self._ranks = info.ranks
        #: Of processes whose rank is not told: where there is but one.
        self._only_rank = ranks.pop() if len(ranks) == 1 and not info.ranks else UNKNOWN
        #: MPICH's handle means the world where no row says so.
        self._mpich_world = len(rows)
        self.names = [*(row.name for row in rows), WORLD]
        #: Of each and of UNKNOWN a number that means it in all reports, and how many ranks it has.
        self.keys = np.array([*(row.key for row in rows), make_key(WORLD), 0], np.int64)
        members = [row.members or () for row in rows]
        self.sizes = np.array([*map(len, members), 0, 0], np.int64)
        self._start = np.cumsum(self.sizes) - self.sizes
        self._table = np.array([*chain.from_iterable(members), UNKNOWN], np.int64)
        self._handles = _list_handles(rows)
        table = pl.DataFrame(
            [(row.rank, row.uid, index) for index, row in enumerate(rows) if row.uid is not None],
            schema=dict.fromkeys(("rank", "uid", "by_uid"), pl.Int64),
            orient="row",
        )
        self._uids = table.unique(["rank", "uid"], keep="first", maintain_order=True)

    def find_own_ranks(self, processes: np.ndarray) -> np.ndarray:
        """Return the rank in MPI_COMM_WORLD of each of these processes (globalPid), UNKNOWN where
        nothing tells.
        """
        ranks = [self._ranks.get(process, self._only_rank) for process in processes.tolist()]
        return np.array(ranks, np.int64)

    def find(
        self, ranks: np.ndarray, handles: np.ndarray, uids: np.ndarray, times: np.ndarray
    ) -> np.ndarray:
        """Return the communicator of each call: by the rank that made it, its commHandle and
        commUid, and when. UNKNOWN where none is known. A handle that was freed may come again, so
        the latest of its handle at that time counts.
        """
        calls = pl.DataFrame({"rank": ranks, "handle": handles, "uid": uids, "time": times})
        calls = calls.with_row_index("row").sort("time")
        found = (
            calls.join_asof(self._handles, on="time", by=["rank", "handle"], check_sortedness=False)
            .join(self._uids, on=["rank", "uid"], how="left")
            .sort("row")
        )
        indices = found.select(pl.coalesce("by_uid", "index", UNKNOWN)).to_series().to_numpy()
        indices = np.where(
            (indices == UNKNOWN) & (handles == MPICH_WORLD), self._mpich_world, indices
        )
        return np.where(self.keys[indices] != 0, indices, UNKNOWN)

    def to_world_ranks(self, communicators: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """Return ranks in communicators as ranks in MPI_COMM_WORLD; UNKNOWN for what is no rank, or
        of a communicator not known, NOT_REPORTED for a member of which there is no report.
        """
        inside = (communicators != UNKNOWN) & (ranks >= 0) & (ranks < self.sizes[communicators])
        listed = self._table[np.where(inside, self._start[communicators] + ranks, -1)]
        return np.where((communicators == self._mpich_world) & (ranks >= 0), ranks, listed)

    def find_own_places(self, communicators: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """Return the rank in each communicator of the process that called in it, by its rank in
        MPI_COMM_WORLD; UNKNOWN where it has none.
        """
        return np.where(communicators == self._mpich_world, ranks, self._places[communicators])

    @cached_property
    def _places(self) -> np.ndarray:
        places = [
            row.members.index(row.rank) if row.rank in (row.members or ()) else UNKNOWN
            for row in self._rows
        ]
        return np.array([*places, UNKNOWN, UNKNOWN], np.int64)


def _list_handles(rows: tuple[Communicator, ...]) -> pl.DataFrame:
    """Return `rank`, `handle`, `time` (local ns) from which it means the communicator, and the
    `index` of that, by time. Those that no call made are there from the beginning.
    """
    predefined = {WORLD, SELF}
    columns = dict.fromkeys(("rank", "handle", "time", "index"), pl.Int64)
    return pl.DataFrame(
        [
            (row.rank, row.handle, NULL if row.name in predefined else row.time, index)
            for index, row in enumerate(rows)
            if row.handle is not None
        ],
        schema=columns,
        orient="row",
    ).sort("time", maintain_order=True)
