"""What a program says of its MPI calls and messages. Sizes are in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from .teams import Team

LEAKED = 64
"""The number of a request that is never waited for: every instance has a handle of its own."""


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
    """One MPI call of a program, as every rank makes it (but for ``by_rank``).

    Attributes:
        function: its name, such as "MPI_Isend".
        table: where its row stands.
        team: its communicator.
        meeting: who waits for whom.
        sent: bytes a rank gives, as the row says; None for a call without.
        received: bytes a rank takes, likewise.
        root: the root's rank in the communicator.
        request: number of the request it starts; -1 for a blocking call.
        waits: the operations whose requests it ends (or asks about, if it does not wait).
        blocks: whether it waits for those.
        by_rank: the function every world rank calls instead, "" for those that call none; None if all call the same.
        creates: the communicator that exists from its end on.
    """

    function: str
    table: Table
    team: Team = Team.WORLD
    meeting: Meeting = Meeting.NONE
    sent: int | None = None
    received: int | None = None
    root: int = -1
    request: int = -1
    waits: tuple[int, ...] = ()
    blocks: bool = True
    by_rank: tuple[str, ...] | None = None
    creates: Team | None = None

    def function_of(self, rank: int) -> str:
        """The function this world rank calls, "" for none."""
        return self.function if self.by_rank is None else self.by_rank[rank]


@dataclass(frozen=True)
class Message:
    """A message that every rank sends: by the call that is operation ``send``, received by operation ``receive``.

    ``to`` holds, for every world rank, the world rank it sends to (-1: none). ``capacity`` is the size of the buffer
    it is received in, which is what the receiving call's row says. With ``receive`` -1 nobody ever receives it.
    """

    send: int
    receive: int
    team: Team
    tag: int
    size: int
    capacity: int
    to: tuple[int, ...]

    def sources(self) -> tuple[int, ...]:
        """For every world rank the world rank it receives from (-1: none)."""
        found = [-1] * len(self.to)
        for sender, receiver in enumerate(self.to):
            if receiver >= 0:
                found[receiver] = sender
        return tuple(found)
