"""MPI: communicators, calls and messages. Sizes are in bytes.

Handles are like MPICH's: the predefined ones are the same in every process, the others count up in
each process for itself, and the number of a freed communicator is used again. Odd ranks have one
communicator more (their own copy of MPI_COMM_SELF), so that one and the same handle is the row's
communicator in some processes and the column's in others. With a lonely host the world is split
first, into its ranks and the others; all else happens in these parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, IntEnum

LEAKED = 64  # the request that is never waited for: every instance has a handle of its own
WORLD_HANDLE, SELF_HANDLE, FIRST_HANDLE = 0x4400_0000, 0x4400_0001, 0x8400_0000


class Team(IntEnum):
    """Kinds of communicators, one of each for every rank; the value is its number at its root."""

    WORLD = 1
    SELF = 2
    TEMPORARY = 3  # a copy of the world (or part), freed before the columns' communicators are made
    ROW = 4
    COLUMN = 5
    OWN = 6  # odd ranks' copy of MPI_COMM_SELF
    PART = 7  # the lonely host's ranks, and the others


class Table(str, Enum):
    """The table that has a call's row."""

    P2P = "MPI_P2P_EVENTS"
    COLLECTIVES = "MPI_COLLECTIVES_EVENTS"
    START_WAIT = "MPI_START_WAIT_EVENTS"
    OTHER = "MPI_OTHER_EVENTS"


class Meeting(IntEnum):
    """Who of a communicator waits for whom in a call."""

    NONE = 0
    ALL = 1  # everybody for the last
    FROM_ROOT = 2  # everybody for the root
    TO_ROOT = 3  # the root for the last


@dataclass(frozen=True)
class MpiCall:
    """One MPI call of a program, as every rank makes it (but for ``by_rank``)."""

    function: str
    table: Table
    team: Team = Team.WORLD  # its communicator
    meeting: Meeting = Meeting.NONE
    sent: int | None = None  # bytes a rank gives, as the row says; None for a call without
    received: int | None = None  # bytes a rank takes, likewise
    root: int = -1  # the root's rank in the communicator
    request: int = -1  # number of the request it starts; -1 for a blocking call
    #: The operations whose requests it ends (or asks about, if it does not wait).
    waits: tuple[int, ...] = ()
    blocks: bool = True  # whether it waits for those
    #: The function every world rank calls instead, "" for none; None if all call the same.
    by_rank: tuple[str, ...] | None = None
    creates: Team | None = None  # the communicator that exists from its end on

    def function_of(self, rank: int) -> str:
        """Return the function this world rank calls, "" for none."""
        return self.function if self.by_rank is None else self.by_rank[rank]


@dataclass(frozen=True)
class Message:
    """A message that every rank sends, by one operation, and receives by another."""

    send: int
    receive: int  # -1: nobody ever receives it
    team: Team
    tag: int
    size: int
    capacity: int  # of the buffer it is received in, which is what the receiving call's row says
    to: tuple[int, ...]  # for every world rank the world rank it sends to (-1: none)

    def find_sources(self) -> list[int]:
        """Find for every world rank the world rank it receives from (-1: none)."""
        return [self.to.index(rank) if rank in self.to else -1 for rank in range(len(self.to))]


@dataclass(frozen=True)
class Grid:
    """A torus of ``rows`` x ``columns`` processes, numbered row by row; the ``lonely`` ones behind
    them are a torus of one row.
    """

    rows: int
    columns: int
    lonely: int
    #: Every communicator of each kind: world ranks by their rank in it.
    teams: dict[Team, list[tuple[int, ...]]]

    @property
    def size(self) -> int:
        return self.rows * self.columns + self.lonely

    @property
    def everyone(self) -> Team:
        """The largest communicator in which there is communication."""
        return Team.PART if self.lonely else Team.WORLD

    def find_parent(self, team: Team) -> Team | None:
        """Find the communicator one of this kind is made from; MPI_Init makes those without."""
        known = {Team.WORLD: None, Team.SELF: None, Team.OWN: Team.SELF, Team.PART: Team.WORLD}
        return known.get(team, self.everyone)

    def members(self, team: Team, rank: int) -> tuple[int, ...]:
        """Return the communicator of this kind that ``rank`` belongs to."""
        return next(ranks for ranks in self.teams[team] if rank in ranks)

    def find_neighbor(self, rank: int, team: Team, places: int) -> int:
        """Find the world rank so many places further in the communicator, going round."""
        members = self.members(team, rank)
        return members[(members.index(rank) + places) % len(members)]

    def find_partner(self, team: Team, rank: int) -> int:
        """Find the world rank of the other of a pair in the communicator; -1 for one left over."""
        members = self.members(team, rank)
        other = members.index(rank) ^ 1
        return members[other] if other < len(members) else -1


def build_grid(size: int, lonely: int = 0) -> Grid:
    """Build the most nearly square grid of ``size`` processes, the last ``lonely`` of them apart."""
    connected = size - lonely
    rows = next(number for number in range(math.isqrt(connected), 0, -1) if connected % number == 0)
    every, columns = tuple(range(size)), connected // rows
    parts = [part for part in (every[:connected], every[connected:]) if part]
    alone = [(rank,) for rank in every]
    teams = {
        Team.WORLD: [every],
        Team.SELF: alone,
        Team.OWN: alone,
        Team.TEMPORARY: parts,
        Team.PART: parts,
        Team.ROW: [every[at : at + columns] for at in range(0, connected, columns)] + parts[1:],
        Team.COLUMN: [every[at:connected:columns] for at in range(columns)] + alone[connected:],
    }
    return Grid(rows, columns, lonely, teams)


def handle(team: Team, rank: int) -> int:
    """Return what the process ``rank`` calls its communicator of this kind."""
    if team in (Team.WORLD, Team.SELF):
        return WORLD_HANDLE if team is Team.WORLD else SELF_HANDLE
    own = rank % 2
    places = {Team.OWN: 0, Team.TEMPORARY: own, Team.ROW: own + 1, Team.COLUMN: own, Team.PART: 3}
    return FIRST_HANDLE + places[team]


def uid(members: tuple[int, ...], team: Team) -> int:
    """Return the globally unique id: the root's world rank and its number for the communicator."""
    return members[0] << 32 | team
