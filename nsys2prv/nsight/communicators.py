"""The MPI communicators of a report: handles, which mean something within one process only, to
names that all ranks share.

MPI_COMMUNICATORS has a row for every communicator of every rank that the report covers. `members`
lists world ranks by their rank in the communicator; a list by world rank of the ranks in the
communicator is understood too (the row's own `rank` and `localRank` tell which it is). A handle
that was freed may come again, so a call's communicator is the latest of its handle at that time.
"""

from __future__ import annotations

import hashlib
import re
from itertools import chain

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv.nsight.info import ReportInfo
from nsys2prv.nsight.source import NULL, Source

TABLE = "MPI_COMMUNICATORS"
WORLD, SELF = "MPI_COMM_WORLD", "MPI_COMM_SELF"
#: What MPICH and its relatives (Intel MPI, Cray MPI, MVAPICH) call MPI_COMM_WORLD in every process.
MPICH_WORLD = 0x44000000
#: Names list so many characters of ranks at most.
LONGEST_LIST = 60
UNKNOWN = -1


class _Row(Struct, frozen=True):
    """A communicator of one rank."""

    #: World rank of the process that made it.
    rank: int
    #: Its commHandle, None if not known.
    handle: int | None
    #: Handle of the communicator that it was made of.
    parent: int | None
    #: When it was made (local ns).
    time: int
    #: Number of its ranks, None if not known.
    size: int | None
    #: World rank and number that its root gave it.
    root: tuple[int, int] | None
    #: Number that means it in all reports.
    uid: int | None
    #: World rank of each of its ranks, None if not known.
    members: tuple[int, ...] | None


class Communicators:
    """The communicators of one report. names: of each, the same on all its ranks and in all
    reports.

    Names come from the unique number of newer exports, else from the number that the first member
    gave it, else from the names of its parent and its members and how many of these there were
    before.
    """

    def __init__(self, info: ReportInfo, database: Source) -> None:
        rows = _read_rows(database)
        ranks = {row.rank for row in rows} or set(list(info.launcher_ranks.values())[:1])
        self._ranks = info.ranks
        #: Of processes whose rank is not told: where there is but one.
        self._only_rank = ranks.pop() if len(ranks) == 1 and not info.ranks else UNKNOWN
        named = _name_communicators(rows)
        self._mpich_world = len(named)
        self.names = [*(name for _, name in named), WORLD]
        columns = dict.fromkeys(("rank", "handle", "uid", "time", "index"), pl.Int64)
        table = pl.DataFrame(
            [
                (row.rank, row.handle, row.uid, row.time, index)
                for index, (row, _) in enumerate(named)
            ],
            schema=columns,
            orient="row",
        )
        self._handles = _extend_first(table.drop_nulls("handle").drop("uid"))
        uids = table.drop_nulls("uid").select("rank", "uid", by_uid="index")
        self._uids = uids.unique(["rank", "uid"], keep="first", maintain_order=True)
        members = [row.members or () for row, _ in named]
        self._length = np.array([*map(len, members), 0], np.int64)
        self._start = np.cumsum(self._length) - self._length
        self._table = np.array([*chain.from_iterable(members), UNKNOWN], np.int64)

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
        commUid, and when. UNKNOWN where none is.
        """
        calls = pl.DataFrame({"rank": ranks, "handle": handles, "uid": uids, "time": times})
        calls = calls.with_row_index("row").sort("time")
        found = (
            calls.join_asof(self._handles, on="time", by=["rank", "handle"], check_sortedness=False)
            .join(self._uids, on=["rank", "uid"], how="left")
            .sort("row")
        )
        indices = found.select(pl.coalesce("by_uid", "index", UNKNOWN)).to_series().to_numpy()
        return np.where((indices == UNKNOWN) & (handles == MPICH_WORLD), self._mpich_world, indices)

    def to_world_ranks(self, communicators: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """Return ranks in communicators as ranks in MPI_COMM_WORLD; UNKNOWN for what is no rank, or
        of a communicator not known.
        """
        inside = (communicators != UNKNOWN) & (ranks >= 0) & (ranks < self._length[communicators])
        listed = self._table[np.where(inside, self._start[communicators] + ranks, -1)]
        return np.where((communicators == self._mpich_world) & (ranks >= 0), ranks, listed)

    def find_keys(self, communicators: np.ndarray) -> np.ndarray:
        """Return a number for each that means the same communicator in all reports; 0 for one not
        known.
        """
        numbers = [_hash_name(name) for name in self.names]
        return np.array([*numbers, 0], np.int64)[communicators]


def _read_rows(database: Source) -> list[_Row]:
    columns = (
        *("rank", "timestamp", "commHandle", "parentHandle", "localRank", "size"),
        *("groupRoot", "groupRootUid", "members", "commUid"),
    )
    read = database.read_small_table(TABLE, *columns)
    rows = []
    for rank, time, handle, parent, local, size, root, root_uid, members, uid in read:
        if isinstance(rank, int):
            root_known = isinstance(root, int) and isinstance(root_uid, int)
            rows.append(
                _Row(
                    rank,
                    _to_integer(handle),
                    _to_integer(parent),
                    time if isinstance(time, int) else NULL,
                    _to_integer(size),
                    (root, root_uid) if root_known else None,
                    _to_integer(uid),
                    _parse_members(members, rank, local, size),
                )
            )
    return sorted(rows, key=lambda row: row.time)


def _to_integer(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _parse_members(text: object, rank: int, local: object, size: object) -> tuple[int, ...] | None:
    """Return world ranks by rank in the communicator, if the text states them without a
    contradiction.
    """
    numbers = [int(number) for number in re.findall(r"-?\d+", str(text or ""))]
    if not isinstance(local, int):
        return tuple(numbers) if numbers and rank in numbers else None
    is_whole = not isinstance(size, int) or len(numbers) == size
    if is_whole and 0 <= local < len(numbers) and numbers[local] == rank:
        return tuple(numbers)
    by_rank = {number: world for world, number in enumerate(numbers) if number >= 0}
    if by_rank.get(local) == rank and sorted(by_rank) == list(range(len(by_rank))):
        return tuple(by_rank[number] for number in range(len(by_rank)))
    return None


def _name_communicators(rows: list[_Row]) -> list[tuple[_Row, str]]:
    """Return the rows (in order of time) with their communicators' names."""
    worlds, selves = _find_predefined(rows)
    latest: dict[tuple[int, int | None], str] = {}
    before: dict[tuple[int, str, tuple[int, ...] | None], int] = {}
    named = []
    for row in rows:
        if row is worlds.get(row.rank):
            name = WORLD
        elif row is selves.get(row.rank):
            name = SELF
        else:
            parent = latest.get((row.rank, row.parent), "")
            earlier = before.get((row.rank, parent, row.members), 0)
            before[row.rank, parent, row.members] = earlier + 1
            name = f"{_format_ranks(row.members)} #{_identify(row, parent, earlier)}"
        latest[row.rank, row.handle] = name
        named.append((row, name))
    return named


def _find_predefined(rows: list[_Row]) -> tuple[dict[int, _Row], dict[int, _Row]]:
    """Return MPI_COMM_WORLD and MPI_COMM_SELF of each rank: the first with all ranks in order, and
    the first of one rank besides it.
    """
    largest = max((len(row.members) for row in rows if row.members), default=0)
    worlds: dict[int, _Row] = {}
    selves: dict[int, _Row] = {}
    for row in rows:
        if row.members == tuple(range(largest)) and row.rank not in worlds:
            worlds[row.rank] = row
        elif row.members == (row.rank,) and row.rank not in selves:
            selves[row.rank] = row
    return worlds, selves


def _identify(row: _Row, parent: str, earlier: int) -> str:
    if row.uid is not None:
        return str(row.uid)
    return f"{row.root[0]}.{row.root[1]}" if row.root else f"{earlier + 1} of {parent or 'unknown'}"


def _format_ranks(members: tuple[int, ...] | None) -> str:
    """Return the ranks in a few characters, equal for equal lists only."""
    if members is None:
        return "unknown ranks"
    text = ""
    first = 0
    for position in range(1, len(members) + 1):
        if position == len(members) or members[position] != members[position - 1] + 1:
            text += f",{members[first]}"
            text += f"-{members[position - 1]}" if position - 1 > first else ""
            first = position
        if len(text) > LONGEST_LIST:
            digest = hashlib.blake2b(repr(members).encode(), digest_size=4).hexdigest()
            return f"{len(members)} ranks from {members[0]} ({digest})"
    return f"ranks {text[1:]}"


def _hash_name(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1 | 1


def _extend_first(handles: pl.DataFrame) -> pl.DataFrame:
    """Let the first communicator of each handle count for earlier calls too: rows are stamped when
    the creating call ends.
    """
    is_first = pl.col("index").cum_count().over("rank", "handle") == 1
    handles = handles.sort("time", maintain_order=True)
    handles = handles.with_columns(time=pl.when(is_first).then(NULL).otherwise("time"))
    return handles.sort("time", maintain_order=True)
