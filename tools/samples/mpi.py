"""Write a program's MPI calls into reports, and the truth about its messages and collectives.

Known of real reports: MPI_Wait*, MPI_Test* have a row for every request, all with the call's times;
MPI_Sendrecv has two rows with the same times, one if rank, tag and size agree; nothing in a row
tells sending from receiving but the function. Inferred: ``remoteRank`` and ``rootRank`` are ranks
in the communicator; sizes of collectives are whole buffers, a Reduce receives only at its root;
``members`` lists world ranks by their rank in the communicator, on every rank; handles are
unsigned.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cluster import Ints, Team, make_handle, make_uid
from .program import LEAKED, Kind, Meeting, MpiCall, Program, Table
from .report import Report
from .timeline import Block

#: Handles of requests, as MPICH counts them; one is used again once its request is complete.
FIRST_REQUEST = 0x9800_0000


class MpiRows:
    """Writes the MPI calls of one program's runs into one report."""

    def __init__(self, program: Program, report: Report) -> None:
        self.program, self.report, self.rank = program, report, report.rank.rank
        self.grid = report.cluster.grid
        self.calls = [
            (index, call, function)
            for index in program.all_of(Kind.MPI)
            if (function := (call := program.ops[index].mpi).function_of(self.rank))
        ]
        self.rows: dict[Table, list[tuple[int, str, dict[str, Any]]]] = {one: [] for one in Table}
        for index, call, function in self.calls:
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
        where["commUid"] = make_uid(members, call.team)
        if call.table is Table.COLLECTIVES:
            root = call.root % len(members) if call.root >= 0 else None
            takes = call.meeting is not Meeting.TO_ROOT or members[root or 0] == self.rank
            taken = call.received if takes else 0
            return [{**where, "rootRank": root, "size": call.sent, "recvSize": taken, **request}]
        ends = []  # tag, the other's world rank, size, of what the call sends and receives
        for message in self.program.messages:
            if message.send == index and message.to[self.rank] >= 0:
                ends.append((message.tag, message.to[self.rank], message.size))
            if message.receive == index and (source := message.find_sources()[self.rank]) >= 0:
                ends.append((message.tag, source, message.capacity))
        return [
            {**where, "tag": tag, "remoteRank": members.index(other), "size": size, **request}
            for tag, other, size in dict.fromkeys(ends)
        ]

    def write(self, block: Block, epochs: Ints) -> None:
        """Write the calls of runs that begin at ``epochs`` (true time, ns)."""
        for table, rows in self.rows.items():
            if rows:
                indices, functions, columns = zip(*rows, strict=True)
                begin, end = self._local(block, epochs, [*indices])
                filled = {name: [one[name] for one in columns] for name in columns[0]}
                if "requestHandle" in filled:
                    filled["requestHandle"] = self._count_leaked(
                        filled["requestHandle"], len(epochs)
                    )
                main = self.report.rank.global_tid(0)
                filled |= {"textId": [*functions], "globalTid": main}
                self.report.insert(table.value, begin, end, **filled)
        created = [
            (int(self._local(block, epochs, [index])[1][0, 0]), call.creates)
            for index, call, _ in self.calls
            if call.creates is not None
        ]
        if created:
            self._write_communicators(created)

    def _local(self, block: Block, epochs: Ints, which: list[int]) -> tuple[Ints, Ints]:
        begin, end = (
            self.report.local(epochs, times[:, self.rank, which])
            for times in (block.host_begin, block.host_end)
        )
        return begin, end

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
        """Write the communicators, as they came to be (local ns); MPI_COMM_SELF with the world."""
        rows = []
        for at, team in created:
            for one in (Team.WORLD, Team.SELF) if team is Team.WORLD else (team,):
                members, parent = self.grid.members(one, self.rank), self.grid.find_parent(one)
                above = None if parent is None else make_handle(parent, self.rank)
                named = self.rank, at, make_handle(one, self.rank), above
                place = members.index(self.rank), len(members), members[0]
                listed = ",".join(map(str, members))
                rows.append((*named, *place, int(one), listed, make_uid(members, one)))
        names = "rank timestamp commHandle parentHandle localRank size groupRoot groupRootUid members commUid"
        self.report.add("MPI_COMMUNICATORS", names, rows)
        own = self.report.rank.global_tid(0), self.rank
        self.report.add("MPI_RANKS", "globalTid rank", [own])
