"""Simulate MPI: the calls of the job, and their rows in reports.

The job starts up, exchanges halos along a grid of processes and reduces in every step, and ends. Small
messages are sent at once ("eager"), large ones when the receiver has arrived (see :mod:`timeline`).

As in real reports, MPI_Wait*, MPI_Test* have a row for every request, all with the call's times; MPI_Sendrecv
has two rows with the same begin, the first of which (the message sent) ends at once, or one row if rank, tag
and size agree; ``remoteRank`` and ``rootRank`` are ranks in the communicator; a receive's size is the
buffer's if the call returns before the message arrives, otherwise the message's; sizes of collectives are
counted for all members together (:func:`count_bytes`); communicators list no members, and duplicates have
only their parent, unless requested (``mpi_teams``); calls that make communicators have no rows. Handles are
unsigned.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .cluster import Grid, Ints, Stream, Team, make_handle, make_uid
from .data import D2H, H2D_PINNED
from .report import Report

if TYPE_CHECKING:
    from .program import Builder, Program
    from .timeline import Block

LEAKED = 64  # the MPI request never waited for: every instance has a handle of its own


class Table(str, Enum):
    """The table that has a call's row."""

    P2P = "MPI_P2P_EVENTS"
    COLLECTIVES = "MPI_COLLECTIVES_EVENTS"
    START_WAIT = "MPI_START_WAIT_EVENTS"
    OTHER = "MPI_OTHER_EVENTS"


class Meeting(IntEnum):
    """Direction of waiting among the members of a communicator in a call."""

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
    sent: int | None = None  # bytes a rank gives by its count; None for a call without
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

    def find_received_size(self, receive: MpiCall) -> int:
        """Find the size in the row of the call that receives it."""
        return self.capacity if receive.request >= 0 else self.size

    def find_sources(self) -> list[int]:
        """Find for every world rank the world rank it receives from (-1: none)."""
        return [self.to.index(rank) if rank in self.to else -1 for rank in range(len(self.to))]


def count_bytes(call: MpiCall, members: int, is_root: bool) -> tuple[int | None, int | None]:
    """Return size and recvSize of a collective: the bytes that a member sends to or receives from each of
    them, summed over all members.
    """
    sent, received = call.sent, call.received
    if call.meeting is Meeting.FROM_ROOT:
        return (sent * members if sent and is_root else None), sent
    if call.meeting is Meeting.TO_ROOT:
        return sent, (received * members if received and is_root else None)
    return tuple(size * members if size else None for size in (sent, received))


FACE, EDGE = 65_536, 2_048  # bytes of a halo to the neighbours left and right, and up and down
UNRECEIVED_TAG = 999  # the tag of messages that are never received
PHASE = (3, 0xFFFF9800)  # category and color of its ranges


class MpiJob:
    """Writes the MPI parts of one of the job's programs."""

    def __init__(self, builder: Builder, grid: Grid) -> None:
        self.b, self.grid, self.everyone = builder, grid, range(grid.size)

    def start(self) -> None:
        """Write from MPI_Init_thread to the communicators, a window and a file."""
        odd = [rank for rank in self.everyone if rank % 2]
        with self.b.phase("mpi_startup", *PHASE):
            self._other("MPI_Initialized", 700)
            self._other("MPI_Init_thread", 24_000_000, 3_000_000, creates=Team.WORLD)
            self._other("MPI_Initialized", 600)
            if odd:
                own = {"by_rank": self._only("MPI_Comm_dup", odd), "creates": Team.OWN}
                self.b.mpi(MpiCall("MPI_Comm_dup", Table.OTHER, Team.SELF, **own), 45_000)
            self._other("MPI_Comm_dup", 90_000, 40_000, creates=Team.TEMPORARY)
            self._collective("MPI_Barrier", Team.TEMPORARY)
            self._collective("MPI_Bcast", Team.TEMPORARY, 128, meeting=Meeting.FROM_ROOT, root=0)
            self._other("MPI_Comm_split", 160_000, 60_000, creates=Team.ROW)
            self._other("MPI_Comm_free", 21_000)
            self._other("MPI_Comm_split", 150_000, 60_000, creates=Team.COLUMN)
            self._other("MPI_Win_create", 210_000, 80_000)
            self._other("MPI_File_open", 900_000, 500_000)
            self._collective("MPI_Barrier", Team.WORLD)

    def exchange(self) -> None:
        """Write a step's messages: halos along the grid, a ring along the rows, pairs."""
        b = self.b
        with b.phase("halo_exchange", *PHASE):
            b.kernel("pack")
            b.copy(D2H, 2 * (FACE + EDGE))
            b.sync_event(b.record(Stream.COMPUTE))
            self._exchange_halos()
            b.copy(H2D_PINNED, 2 * (FACE + EDGE))
        if self.grid.columns > 1:
            # Everybody sends to the next of its row and takes from the one before, into a buffer
            # larger than needed.
            call = b.mpi(MpiCall("MPI_Sendrecv", Table.P2P, Team.ROW), 1_900)
            b.message(call, call, Team.ROW, 21, 4_096, self._neighbors(Team.ROW, 1), 8_192)
        if self.grid.rows > 1:  # pairs of a column swap equally large pieces: one row says both
            to = [self.grid.find_partner(Team.COLUMN, rank) for rank in self.everyone]
            calls = self._only("MPI_Sendrecv", [rank for rank in self.everyone if to[rank] >= 0])
            call = b.mpi(MpiCall("MPI_Sendrecv", Table.P2P, Team.COLUMN, by_rank=calls), 2_100)
            b.message(call, call, Team.COLUMN, 31, 32_768, to)
        if self.grid.size > 1:
            self._send_in_pairs()
            self._send_unreceived()

    def reduce(self) -> None:
        """Write a step's collectives, one-sided communication and file access."""
        with self.b.phase("reductions", *PHASE):
            started = self._collective("MPI_Iallreduce", Team.WORLD, 16, 16, request=0)
            self._collective("MPI_Allreduce", Team.WORLD, 8, 8)
            self._collective("MPI_Bcast", Team.ROW, 1_024, meeting=Meeting.FROM_ROOT, root=0)
            rooted = {"meeting": Meeting.TO_ROOT, "root": self.grid.rows - 1}
            self._collective("MPI_Reduce", Team.COLUMN, 4_096, 4_096, **rooted)
            self.b.mpi(MpiCall("MPI_Wait", Table.START_WAIT, waits=(started,)), 800)
            self._collective("MPI_Allgather", Team.ROW, 512, 512)
            self._collective("MPI_Alltoall", Team.COLUMN, 2_048, 2_048)
        with self.b.phase("one_sided", *PHASE):
            self._other("MPI_Win_fence", 3_000, 4_000)
            self._other("MPI_Put", 2_200)
            self._other("MPI_Win_fence", 3_000, 4_000)
        self._other("MPI_File_write_at_all", 60_000, 90_000)
        self._collective("MPI_Barrier", Team.WORLD)

    def stop(self) -> None:
        """Write to MPI_Finalize."""
        with self.b.phase("mpi_shutdown", *PHASE):
            if self.grid.size > 1:
                self._send_unreceived()
            self._other("MPI_File_close", 300_000, 100_000)
            self._other("MPI_Win_free", 60_000, 30_000)
            self._other("MPI_Finalize", 2_000_000, 1_000_000)

    def _exchange_halos(self) -> None:
        """Post receives first; ask for one in vain, wait for all together."""
        # Along, places, bytes, tag.
        ways = [(Team.ROW, 1, FACE, 101), (Team.ROW, -1, FACE, 102)] * (self.grid.columns > 1)
        ways += [(Team.COLUMN, 1, EDGE, 103), (Team.COLUMN, -1, EDGE, 104)] * (self.grid.rows > 1)
        receives, sends = (
            [
                self.b.mpi(MpiCall(name, Table.P2P, Team.WORLD, request=first + number), ns)
                for number in range(len(ways))
            ]
            for name, first, ns in (("MPI_Irecv", 0, 900), ("MPI_Isend", len(ways), 1_400))
        )
        for (team, places, size, tag), send, receive in zip(ways, sends, receives, strict=True):
            self.b.message(send, receive, Team.WORLD, tag, size, self._neighbors(team, places))
        if ways:
            test = MpiCall("MPI_Test", Table.START_WAIT, waits=(receives[0],), blocks=False)
            self.b.mpi(test, 500)
            self.b.mpi(MpiCall("MPI_Waitall", Table.START_WAIT, waits=(*receives, *sends)), 1_500)

    def _send_in_pairs(self) -> None:
        """Call blocking: the even rank of a pair sends much, then the odd one answers with little."""
        partners = [self.grid.find_partner(Team.WORLD, rank) for rank in self.everyone]
        for tag, size, sender in ((41, 262_144, 0), (42, 512, 1)):
            to = [partner if rank % 2 == sender else -1 for rank, partner in enumerate(partners)]
            calls = tuple(
                "MPI_Send" if to[rank] >= 0 else "MPI_Recv" if partner >= 0 else ""
                for rank, partner in enumerate(partners)
            )
            call = self.b.mpi(MpiCall("MPI_Send", Table.P2P, Team.WORLD, by_rank=calls), 1_600)
            self.b.message(call, call, Team.WORLD, tag, size, to)

    def _send_unreceived(self) -> None:
        """Send from the first rank to the last, which never receives it."""
        only = {"request": LEAKED, "by_rank": self._only("MPI_Isend", [0])}
        send = self.b.mpi(MpiCall("MPI_Isend", Table.P2P, Team.WORLD, **only), 1_400)
        to = [-1 if rank else self.grid.size - 1 for rank in self.everyone]
        self.b.message(send, -1, Team.WORLD, UNRECEIVED_TAG, 256, to)

    def _neighbors(self, team: Team, places: int) -> list[int]:
        return [self.grid.find_neighbor(rank, team, places) for rank in self.everyone]

    def _only(self, function: str, ranks: list[int]) -> tuple[str, ...]:
        return tuple(function if rank in ranks else "" for rank in self.everyone)

    def _collective(self, function: str, team: Team, *sizes: int, **more: Any) -> int:
        """Write a collective, and its sizes (bytes sent and received). more: of :class:`MpiCall`."""
        how = {"meeting": Meeting.ALL} | dict(zip(("sent", "received"), sizes, strict=False)) | more
        call = MpiCall(function, Table.COLLECTIVES, team, **how)
        members = len(self.grid.members(team, 0))
        cost = 2_500 + 1_800 * members.bit_length() + (call.sent or 0) / 8
        return self.b.mpi(call, 1_700 if call.request < 0 else 1_100, cost)

    def _other(self, function: str, ns: float, cost_ns: float = 0.0, **more: Any) -> None:
        """Write a call that takes ``ns``; with ``cost_ns`` all wait for each other in it."""
        meeting = Meeting.ALL if cost_ns else Meeting.NONE
        self.b.mpi(MpiCall(function, Table.OTHER, Team.WORLD, meeting, **more), ns, cost_ns)


#: Handles of requests, as MPICH counts them; one is used again once its request is complete.
FIRST_REQUEST = 0x9800_0000


class MpiRows:
    """Writes the MPI calls of one program's runs into one report."""

    def __init__(self, program: Program, report: Report, teams: bool) -> None:
        self.program, self.report, self.rank = program, report, report.rank.rank
        self.teams = teams  # whether communicators list their members
        self.grid = report.cluster.grid
        self.calls = [
            (index, call, function)
            for index, call in program.list_mpi()
            if (function := call.function_of(self.rank))
        ]
        self.rows: dict[Table, list[tuple[int, str, dict[str, Any]]]] = {one: [] for one in Table}
        for index, call, function in self.calls:
            if function.startswith("MPI_Comm_"):
                continue
            for columns in self._list_columns(index, call):
                self.rows[call.table].append((index, function, columns))

    def _list_columns(self, index: int, call: MpiCall) -> list[dict[str, Any]]:
        """List the columns of the rows that a call leaves."""
        request = {"requestHandle": FIRST_REQUEST + call.request if call.request >= 0 else None}
        if call.table is Table.OTHER:
            return [{}]
        if call.table is Table.START_WAIT:  # a row for every request; their times are the same
            waited = [self.program.ops[index].mpi.request for index in call.waits]
            return [{"requestHandle": FIRST_REQUEST + one} for one in waited]
        members = self.grid.members(call.team, self.rank)
        where = {"commHandle": make_handle(call.team, self.rank)}
        if self.teams:
            where["commUid"] = make_uid(members, call.team)
        if call.table is Table.COLLECTIVES:
            root = call.root % len(members) if call.root >= 0 else None
            is_root = root is not None and members[root] == self.rank
            sent, received = count_bytes(call, len(members), is_root)
            return [{**where, "rootRank": root, "size": sent, "recvSize": received, **request}]
        ends = []  # tag, the other's world rank, size, of what the call sends and receives
        for message in self.program.messages:
            if message.send == index and message.to[self.rank] >= 0:
                ends.append((message.tag, message.to[self.rank], message.size))
            if message.receive == index and (source := message.find_sources()[self.rank]) >= 0:
                ends.append((message.tag, source, message.find_received_size(call)))
        return [
            {**where, "tag": tag, "remoteRank": members.index(other), "size": size, **request}
            for tag, other, size in dict.fromkeys(ends)
        ]

    def write(self, block: Block, epochs: Ints) -> None:
        """Write the calls of runs that begin at ``epochs`` (true time, ns)."""
        for table, rows in self.rows.items():
            if rows:
                indices, functions, columns = zip(*rows, strict=True)
                begin, end = self.report.edges(epochs, block.host, [*indices])
                if table is Table.P2P:  # the first of a call's two rows ends at once
                    first = [*(one == other for one, other in pairwise(indices)), False]
                    end = np.where(first, begin, end)
                filled = {name: [one[name] for one in columns] for name in columns[0]}
                if "requestHandle" in filled:
                    filled["requestHandle"] = self._count_leaked(
                        filled["requestHandle"], len(epochs)
                    )
                filled |= {"textId": [*functions], "thread": 0}
                self.report.insert(table.value, begin, end, **filled)
        created = [
            (int(self.report.edges(epochs, block.host, [index])[1][0, 0]), call.creates)
            for index, call, _ in self.calls
            if call.creates is not None
        ]
        if created:
            self._write_communicators(created)

    def _count_leaked(self, handles: list[int | None], runs: int) -> NDArray[Any]:
        """Return the handles of requests in several runs (run, call): every request that is never
        waited for has one of its own.
        """
        leaked = [handle == FIRST_REQUEST + LEAKED for handle in handles]
        found = np.tile(np.array(handles, dtype=object), (runs, 1))
        if any(leaked):
            found[:, leaked] += self.report.leaked + np.arange(runs)[:, None]
            self.report.leaked += runs
        return found

    def _write_communicators(self, created: list[tuple[int, Team]]) -> None:
        """Write the communicators in creation order (local ns); MPI_COMM_SELF with the world."""
        rows: list[tuple[int | str | None, ...]] = []
        for at, team in created:
            for one in (Team.WORLD, Team.SELF) if team is Team.WORLD and self.teams else (team,):
                members, parent = self.grid.members(one, self.rank), self.grid.find_parent(one)
                above = 0 if parent is None else make_handle(parent, self.rank)
                named = self.rank, at, make_handle(one, self.rank), above
                place = members.index(self.rank), len(members)
                root = (None, None) if one is Team.WORLD else (members[0], int(one))
                if self.teams:
                    listed = ",".join(map(str, members)), make_uid(members, one)
                    rows.append((*named, *place, members[0], int(one), *listed))
                elif one in (Team.OWN, Team.TEMPORARY):  # duplicates
                    rows.append((*named, *[None] * 6))
                else:
                    rows.append((*named, *place, *root, None, None))
        names = "rank timestamp commHandle parentHandle localRank size groupRoot groupRootUid members commUid"
        self.report.add("MPI_COMMUNICATORS", names, rows)
        own = self.report.rank.global_tid(0), self.rank
        self.report.add("MPI_RANKS", "globalTid rank", [own])
