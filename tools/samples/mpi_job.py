"""What the job does with MPI: it starts up, exchanges halos and reduces in every step, and ends.

Small messages are sent at once ("eager"), large ones when the receiver has come (see
:mod:`timeline`).
"""

from __future__ import annotations

from dataclasses import replace

from .cluster import Stream
from .mpi import LEAKED, Grid, Meeting, Message, MpiCall, Table, Team
from .program import D2H, H2D_PINNED, Builder

FACE, EDGE = 65_536, 2_048  # bytes of a halo to the neighbours left and right, and up and down
UNRECEIVED_TAG = 999  # the tag of messages that are never received
PHASE = (3, 0xFFFF9800)  # category and color


class MpiJob:
    """Writes the MPI parts of the job's programs."""

    def __init__(self, grid: Grid) -> None:
        self.grid, self.everyone, self.all = grid, range(grid.size), grid.everyone

    def start(self, b: Builder) -> None:
        """From MPI_Init_thread to the communicators, a window and a file."""
        odd = [rank for rank in self.everyone if rank % 2]
        with b.phase("mpi_startup", *PHASE):
            self._other(b, "MPI_Initialized", 700)
            self._other(b, "MPI_Init_thread", 24_000_000, 3_000_000, creates=Team.WORLD)
            self._other(b, "MPI_Initialized", 600)
            if self.grid.lonely:
                self._other(b, "MPI_Comm_split", 170_000, 60_000, creates=Team.PART)
            if odd:
                call = MpiCall("MPI_Comm_dup", Table.OTHER, Team.SELF, creates=Team.OWN)
                b.mpi(replace(call, by_rank=self._only("MPI_Comm_dup", odd)), 45_000)
            self._other(b, "MPI_Comm_dup", 90_000, 40_000, creates=Team.TEMPORARY)
            self._collective(b, "MPI_Barrier", Team.TEMPORARY)
            self._collective(b, "MPI_Bcast", Team.TEMPORARY, 128, meeting=Meeting.FROM_ROOT, root=0)
            self._other(b, "MPI_Comm_split", 160_000, 60_000, creates=Team.ROW)
            self._other(b, "MPI_Comm_free", 21_000)
            self._other(b, "MPI_Comm_split", 150_000, 60_000, creates=Team.COLUMN)
            self._other(b, "MPI_Win_create", 210_000, 80_000)
            self._other(b, "MPI_File_open", 900_000, 500_000)
            self._collective(b, "MPI_Barrier", self.all)

    def exchange(self, b: Builder) -> None:
        """A step's messages: halos over both directions of the grid, a ring along the rows, pairs."""
        with b.phase("halo_exchange", *PHASE):
            b.kernel("pack")
            b.copy(D2H, 2 * (FACE + EDGE))
            b.sync_event(b.record(Stream.COMPUTE))
            self._halo(b)
            b.copy(H2D_PINNED, 2 * (FACE + EDGE))
        if self.grid.columns > 1:
            # Everybody sends to the next of its row and takes from the one before, into a buffer
            # larger than needed.
            call = b.mpi(MpiCall("MPI_Sendrecv", Table.P2P, Team.ROW), 1_900)
            self._message(b, call, call, Team.ROW, 21, 4_096, self._neighbors(Team.ROW, 1), 8_192)
        if self.grid.rows > 1:  # pairs of a column swap equally large pieces: one row says both
            to = [self.grid.partner(Team.COLUMN, rank) for rank in self.everyone]
            calls = self._only("MPI_Sendrecv", [rank for rank in self.everyone if to[rank] >= 0])
            call = b.mpi(MpiCall("MPI_Sendrecv", Table.P2P, Team.COLUMN, by_rank=calls), 2_100)
            self._message(b, call, call, Team.COLUMN, 31, 32_768, to)
        if self.grid.size > 1:
            self._pairs(b)
            self._send_unreceived(b)

    def reduce(self, b: Builder) -> None:
        """A step's collectives, one-sided communication and file access."""
        with b.phase("reductions", *PHASE):
            started = self._collective(b, "MPI_Iallreduce", self.all, 16, 16, request=0)
            self._collective(b, "MPI_Allreduce", self.all, 8, 8)
            self._collective(b, "MPI_Bcast", Team.ROW, 1_024, meeting=Meeting.FROM_ROOT, root=0)
            rooted = {"meeting": Meeting.TO_ROOT, "root": self.grid.rows - 1}
            self._collective(b, "MPI_Reduce", Team.COLUMN, 4_096, 4_096, **rooted)
            b.mpi(MpiCall("MPI_Wait", Table.START_WAIT, waits=(started,)), 800)
            self._collective(b, "MPI_Allgather", Team.ROW, 512, 512 * self.grid.columns)
            whole = 2_048 * self.grid.rows
            self._collective(b, "MPI_Alltoall", Team.COLUMN, whole, whole)
        with b.phase("one_sided", *PHASE):
            self._other(b, "MPI_Win_fence", 3_000, 4_000)
            self._other(b, "MPI_Put", 2_200)
            self._other(b, "MPI_Win_fence", 3_000, 4_000)
        self._other(b, "MPI_File_write_at_all", 60_000, 90_000)
        self._collective(b, "MPI_Barrier", self.all)

    def stop(self, b: Builder) -> None:
        """To MPI_Finalize."""
        with b.phase("mpi_shutdown", *PHASE):
            if self.grid.size > 1:
                self._send_unreceived(b)
            self._other(b, "MPI_File_close", 300_000, 100_000)
            self._other(b, "MPI_Win_free", 60_000, 30_000)
            self._other(b, "MPI_Finalize", 2_000_000, 1_000_000)

    def _halo(self, b: Builder) -> None:
        """Receives are posted first; one is asked for in vain, all are waited for together."""
        # Along, places, bytes, tag.
        ways = [(Team.ROW, 1, FACE, 101), (Team.ROW, -1, FACE, 102)] * (self.grid.columns > 1)
        ways += [(Team.COLUMN, 1, EDGE, 103), (Team.COLUMN, -1, EDGE, 104)] * (self.grid.rows > 1)
        receives = [
            b.mpi(MpiCall("MPI_Irecv", Table.P2P, self.all, request=number), 900)
            for number in range(len(ways))
        ]
        sends = [
            b.mpi(MpiCall("MPI_Isend", Table.P2P, self.all, request=len(ways) + number), 1_400)
            for number in range(len(ways))
        ]
        for (team, places, size, tag), send, receive in zip(ways, sends, receives, strict=True):
            self._message(b, send, receive, self.all, tag, size, self._neighbors(team, places))
        if ways:
            b.mpi(MpiCall("MPI_Test", Table.START_WAIT, waits=(receives[0],), blocks=False), 500)
            b.mpi(MpiCall("MPI_Waitall", Table.START_WAIT, waits=(*receives, *sends)), 1_500)

    def _pairs(self, b: Builder) -> None:
        """Blocking calls: the even rank of a pair sends much, then the odd one answers with little."""
        partners = [self.grid.partner(self.all, rank) for rank in self.everyone]
        for tag, size, sender in ((41, 262_144, 0), (42, 512, 1)):
            to = [partner if rank % 2 == sender else -1 for rank, partner in enumerate(partners)]
            calls = tuple(
                "MPI_Send" if to[rank] >= 0 else "MPI_Recv" if partner >= 0 else ""
                for rank, partner in enumerate(partners)
            )
            call = b.mpi(MpiCall("MPI_Send", Table.P2P, self.all, by_rank=calls), 1_600)
            self._message(b, call, call, self.all, tag, size, to)

    def _send_unreceived(self, b: Builder) -> None:
        """The first rank sends to the last (that is not lonely), which never receives it."""
        only = self._only("MPI_Isend", [0])
        send = b.mpi(MpiCall("MPI_Isend", Table.P2P, self.all, request=LEAKED, by_rank=only), 1_400)
        last = self.grid.size - self.grid.lonely - 1
        to = [-1 if rank else last for rank in self.everyone]
        self._message(b, send, -1, self.all, UNRECEIVED_TAG, 256, to)

    def _neighbors(self, team: Team, places: int) -> list[int]:
        return [self.grid.neighbor_of(rank, team, places) for rank in self.everyone]

    def _only(self, function: str, ranks: list[int]) -> tuple[str, ...]:
        return tuple(function if rank in ranks else "" for rank in self.everyone)

    def _message(
        self,
        b: Builder,
        send: int,
        receive: int,
        team: Team,
        tag: int,
        size: int,
        to: list[int],
        capacity: int = 0,
    ) -> None:
        message = Message(send, receive, team, tag, size, capacity or size, tuple(to))
        b.program.messages.append(message)

    def _collective(
        self,
        b: Builder,
        function: str,
        team: Team,
        sent: int | None = None,
        received: int | None = None,
        meeting: Meeting = Meeting.ALL,
        root: int = -1,
        request: int = -1,
    ) -> int:
        call = MpiCall(function, Table.COLLECTIVES, team, meeting, sent, received, root, request)
        cost = 2_500 + 1_800 * len(self.grid.members(team, 0)).bit_length() + (sent or 0) / 8
        return b.mpi(call, 1_700 if request < 0 else 1_100, cost)

    def _other(
        self,
        b: Builder,
        function: str,
        ns: float,
        cost_ns: float = 0.0,
        creates: Team | None = None,
    ) -> None:
        """A call that takes ``ns``; with ``cost_ns`` all wait for each other in it."""
        meeting = Meeting.ALL if cost_ns else Meeting.NONE
        b.mpi(MpiCall(function, Table.OTHER, self.all, meeting, creates=creates), ns, cost_ns)
