"""Identify the MPI communicators of a job in the rows of each rank, and find their members.

MPI_COMMUNICATORS has a row for every communicator that a rank saw created. Handles are valid only
within one process. `members`, if exported (NSYS_MPI_STORE_TEAMS_PER_RANK), lists world ranks by
rank in the communicator. The inverse list, ranks in the communicator by world rank, is also
recognized, by the row's own `rank` and `localRank`. Without `members`, the rows of all ranks
together determine the members:

* MPI_COMM_WORLD has no parent. Its ranks are those from 0 to its size.
* Most others have the world rank of their root and a number assigned by this root. These two
  numbers identify a communicator in all reports. Its members are the ranks of the rows with these
  numbers, each at its `localRank`.
* A duplicate has only a parent, and the same members. All members duplicate a communicator in the
  same order, so the n-th duplicates on all ranks are one communicator.

Intercommunicators, and communicators merged from them, are not recorded.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv.export.database import Database
from nsys2prv.export.source import NULL

TABLE = "MPI_COMMUNICATORS"
WORLD, SELF = "MPI_COMM_WORLD", "MPI_COMM_SELF"
#: MPI_COMM_WORLD in every process with MPICH and MPIs derived from it (Intel MPI, Cray MPI,
#: MVAPICH).
MPICH_WORLD = 0x44000000
#: Maximum number of characters in names: for lists of ranks, and for parents.
LONGEST_LIST, LONGEST_ORIGIN = 60, 100
#: Communicators and jobs of more ranks are damaged rows.
MOST_RANKS = 10_000_000
#: Replace a rank: unknown; or it belongs to a process without a report.
UNKNOWN, NOT_REPORTED = -1, -2

Ranks = Sequence[int]


class Communicator(Struct, frozen=True):
    """An MPI communicator, as one rank sees it."""

    #: World rank of the process that made it.
    rank: int
    #: When it was made (local ns).
    time: int = NULL
    #: Its commHandle, None if not known.
    handle: int | None = None
    #: Handle of the communicator that it was made of, None if of none.
    parent: int | None = None
    #: The process's rank in it.
    local_rank: int | None = None
    #: Number of its ranks, None if not known.
    size: int | None = None
    #: World rank of its root, and the number that this gave it.
    root: tuple[int, int] | None = None
    #: Number that means it in all reports.
    uid: int | None = None
    #: World rank of each of its ranks, or NOT_REPORTED; None if not known.
    members: Ranks | None = None
    #: Its name, the same on all its ranks and in all reports; "" if it cannot be distinguished from
    #: others.
    name: str = ""
    #: A number that identifies it in all reports; 0 if it cannot be distinguished from others.
    key: int = 0


def read_communicators(database: Database) -> tuple[Communicator, ...]:
    """Return the communicators of a report in order of creation, without names."""
    columns = (
        *("rank", "timestamp", "commHandle", "parentHandle", "localRank", "size"),
        *("groupRoot", "groupRootUid", "commUid", "members"),
    )
    rows = []
    for *values, text in database.read_small_table(TABLE, *columns, types=(int,)):
        numbers = (value if isinstance(value, int) else None for value in values)
        rank, time, handle, parent, local, size, root, root_uid, uid = numbers
        size = size if size is not None and 0 < size <= MOST_RANKS else None
        time = NULL if time is None else time
        made_by = None if root is None or root_uid is None else (root, root_uid)
        listed = _parse_members(text, rank, local, size)
        own = Communicator(rank, time, handle, parent or None, local, size, made_by, uid, listed)
        rows.append(own)
    return tuple(sorted(rows, key=lambda row: row.time))


def _parse_members(text: object, rank: int, local: int | None, size: int | None) -> Ranks | None:
    """Return the world ranks of the members by rank in the communicator; None if the text does not
    state them consistently.
    """
    numbers = [int(number) for number in re.findall(r"-?\d{1,18}", str(text or ""))]
    if local is None:
        return _shorten(numbers) if numbers and rank in numbers else None
    is_whole = size is None or len(numbers) == size
    if is_whole and 0 <= local < len(numbers) and numbers[local] == rank:
        return _shorten(numbers)
    by_rank = {number: world for world, number in enumerate(numbers) if number >= 0}
    if by_rank.get(local) == rank and sorted(by_rank) == list(range(len(by_rank))):
        return _shorten([by_rank[number] for number in range(len(by_rank))])
    return None


def _shorten(ranks: Sequence[int]) -> Ranks:
    """Return consecutive ranks as a range, so that equal ranks compare equal."""
    whole = range(ranks[0], ranks[0] + len(ranks)) if ranks else range(0)
    return whole if all(map(int.__eq__, ranks, whole)) else tuple(ranks)


class _Team(Struct):
    """An MPI communicator, as described by the rows of all its ranks."""

    #: Text that distinguishes it from others, without its members.
    label: str
    #: Its members as its rows list them.
    listed: Ranks | None
    #: Its size, None if unknown.
    size: int | None
    #: The communicator from which it was made, if it has no other name.
    parent: _Team | None
    #: Rank in it -> world rank.
    places: dict[int, int] = field(default_factory=dict)
    #: True if rows contradict each other, or may mean different duplicates.
    is_doubtful: bool = False
    #: World rank of each of its ranks, once all rows are known.
    members: Ranks | None = None

    def add_row(self, row: Communicator) -> None:
        """Add the place of a rank, as stated by the rank's row."""
        if row.local_rank is not None:
            first = self.places.setdefault(row.local_rank, row.rank)
            self.is_doubtful |= first != row.rank

    def find_members(self) -> Ranks | None:
        """Return the world ranks of the members, or None if unknown. The members of the parent must
        be known.
        """
        if self.listed is not None or self.is_doubtful:
            return self.listed
        if self.label == WORLD:
            return range(self.size) if self.size else None
        if not self.places:
            return self.parent.members if self.parent is not None else None
        if self.size is None or not 0 <= min(self.places) <= max(self.places) < self.size:
            return None
        return _shorten([self.places.get(place, NOT_REPORTED) for place in range(self.size)])


def name_communicators(reports: Sequence[Sequence[Communicator]]) -> list[tuple[Communicator, ...]]:
    """Find out which communicators of several reports are the same, and name them. Return the known
    communicators of each report, in order of creation, with names, keys and members.
    """
    teams: dict[Hashable, _Team] = {}
    found = [_find_teams(rows, teams) for rows in reports]
    lists: dict[str, list[_Team]] = defaultdict(list)
    for team in _doubt_duplicates(reports, found, teams):  # parents come first
        team.members = team.find_members()
        if team.listed is not None:
            lists[team.label].append(team)
    for team in teams.values():
        # Where some reports list the members and others do not.
        if team.listed is None and len(lists[team.label]) == 1:
            team.members = lists[team.label][0].members
    names = {id(team): _name_team(team) for team in teams.values()}
    return [
        tuple(
            row if team is None else replace(row, **names[id(team)])
            for row, team in zip(rows, teams_of_rows, strict=True)
        )
        for rows, teams_of_rows in zip(reports, found, strict=True)
    ]


def _name_team(team: _Team) -> dict[str, Any]:
    """Return the fields `name`, `key` and `members` for all rows of a communicator."""
    if team.members is None:
        return {"members": None}
    text = team.label if team.label == WORLD else _join(team.members, team.label)
    name = SELF if team.label == SELF else text
    return {"name": name, "key": make_key(text), "members": team.members}


def make_key(text: str) -> int:
    """Return a number above 0 that identifies the communicator that this text describes."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 | 1


def _find_teams(rows: Sequence[Communicator], teams: dict[Hashable, _Team]) -> list[_Team | None]:
    """Return the communicator of each row of a report, or None if unknown. New communicators are
    added to `teams`.
    """
    predefined = _find_predefined(rows)
    latest: dict[tuple[int, int | None], _Team | None] = {}
    before: Counter[Hashable] = Counter()
    found = []
    for row in rows:
        parent, listed, size = None, row.members, row.size
        if row.handle == MPICH_WORLD or id(row) in predefined:
            label = predefined.get(id(row), WORLD)
            listed = (row.rank,) if label == SELF else listed
        elif row.uid is not None:
            label = f"#{row.uid}"
        elif row.root is not None:
            label = f"#{row.root[0]}.{row.root[1]}"
        else:
            parent, size = latest.get((row.rank, row.parent)), None
            origin = "unknown" if parent is None else _join(parent.listed, parent.label)
            if len(origin) > LONGEST_ORIGIN:
                origin = hashlib.blake2b(origin.encode(), digest_size=4).hexdigest()
            before[row.rank, origin, listed] += 1
            label = f"#{before[row.rank, origin, listed]} of {origin}"
        team = teams.setdefault((label, listed, size), _Team(label, listed, row.size, parent))
        team.add_row(row)
        latest[row.rank, row.handle] = team
        found.append(team)
    return found


def _doubt_duplicates(
    reports: Sequence[Sequence[Communicator]],
    found: Sequence[Sequence[_Team]],
    teams: Mapping[Hashable, _Team],
) -> Iterable[_Team]:
    """Mark duplicates of a communicator as doubtful if some ranks have more duplicates than others, because
    the n-th duplicates may then not correspond.
    """
    counts: dict[int, Counter[tuple[int, int]]] = defaultdict(Counter)
    for number, (rows, teams_of_rows) in enumerate(zip(reports, found, strict=True)):
        for row, team in zip(rows, teams_of_rows, strict=True):
            if team.parent is not None and team.listed is None:
                counts[id(team.parent)][number, row.rank] += 1
    for team in teams.values():
        told = set(counts[id(team.parent)].values())
        team.is_doubtful |= len(told) > 1
    return teams.values()


def _find_predefined(rows: Sequence[Communicator]) -> dict[int, str]:
    """Return row id -> "MPI_COMM_WORLD" or "MPI_COMM_SELF".

    Among the communicators of a rank without a parent, the first one with all ranks in order (or
    without a list of members) is the world. One with a single rank is self.
    """
    whole = {
        id(row): row.members if row.members is not None else range(row.size)
        for row in rows
        if row.members is not None
        or (row.size and row.parent is None and row.root is None and row.local_rank == row.rank)
    }
    largest = range(max(map(len, whole.values()), default=0))
    worlds: dict[int, int] = {}
    selves: dict[int, int] = {}
    for row in rows:
        if whole.get(id(row)) == largest and row.rank not in worlds:
            worlds[row.rank] = id(row)
        elif (
            row.parent is None
            and row.rank not in selves
            and (whole.get(id(row)) == range(row.rank, row.rank + 1) or row.size == 1)
        ):
            selves[row.rank] = id(row)
    return dict.fromkeys(worlds.values(), WORLD) | dict.fromkeys(selves.values(), SELF)


def _join(members: Ranks | None, label: str) -> str:
    return label if members is None else f"{_format_ranks(members)} {label}"


def _format_ranks(members: Ranks) -> str:
    """Return a short text for a list of ranks, different for different lists."""
    known = [rank for rank in members if rank != NOT_REPORTED]
    runs: list[list[int]] = []
    for rank in known:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)
    if len(text) > LONGEST_LIST:
        digest = hashlib.blake2b(repr(members).encode(), digest_size=4).hexdigest()
        return f"{len(members)} ranks from {known[0]} ({digest})"
    return f"ranks {text}" + (f" of {len(members)}" if len(known) < len(members) else "")
