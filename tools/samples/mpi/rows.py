"""What one rank's report records of the MPI calls of a program.

Known of real reports: MPI_Wait*, MPI_Test* have a row for every request, all with the call's times; MPI_Sendrecv has two
rows with the same times, one if rank, tag and size agree; nothing in a row tells sending from receiving but the function.
Inferred: ``remoteRank`` and ``rootRank`` are ranks in the communicator; sizes of collectives are whole buffers, a Reduce
receives only at its root; ``members`` lists world ranks by their rank in the communicator, on every rank; handles are
unsigned.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..cluster import Ints
from ..missing import Bools, Part
from ..program import Kind, Op, Program
from ..rows import Report
from ..timeline import Block
from .calls import LEAKED, Meeting, Message, Table
from .teams import Grid, Team, build_grid, handle, uid

_FIRST_REQUEST = 0x9800_0000
"""Handles of requests, as MPICH counts them; a handle is used again as soon as its request is complete."""


@dataclass
class _Rows:
    """The rows of one table that one run of the program leaves: operations, functions, columns."""

    ops: list[int] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    columns: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, op: int, function: str, **values: Any) -> None:
        self.ops.append(op)
        self.functions.append(function)
        for name, value in values.items():
            self.columns.setdefault(name, []).append(value)


class MpiRows:
    """Writes the MPI calls of one program's runs into one report."""

    def __init__(self, program: Program, report: Report) -> None:
        self.program, self.report = program, report
        self.rank = report.rank.rank
        self.grid: Grid = build_grid(report.options.ranks, report.options.lonely_ranks)
        self.tables = {table: _Rows() for table in Table}
        self.calls: list[tuple[int, str]] = []
        self.created: list[tuple[int, Team]] = []
        for index, op in enumerate(program.ops):
            if op.kind is Kind.MPI and op.mpi is not None and op.mpi.function_of(self.rank):
                self._add(index, op)

    def _add(self, index: int, op: Op) -> None:
        call = op.mpi
        assert call is not None
        function = call.function_of(self.rank)
        rows = self.tables[call.table]
        self.calls.append((index, function))
        if call.creates is not None:
            self.created.append((index, call.creates))
        request = _FIRST_REQUEST + call.request if call.request >= 0 else None
        if call.table is Table.OTHER:
            rows.add(index, function)
        elif call.table is Table.START_WAIT:
            for waited in call.waits:  # a row for every request; their times are the same
                rows.add(index, function, requestHandle=_FIRST_REQUEST + self._request(waited))
        elif call.table is Table.COLLECTIVES:
            members = self.grid.members(call.team, self.rank)
            root = call.root % len(members) if call.root >= 0 else None
            at_root = members[root or 0] == self.rank
            taken = 0 if call.meeting is Meeting.TO_ROOT and not at_root else call.received
            where = self._named(call.team)
            rows.add(index, function, **where, rootRank=root, size=call.sent, recvSize=taken, requestHandle=request)
        else:
            for tag, remote, size in self._ends(index):
                where = self._named(call.team)
                rows.add(index, function, **where, tag=tag, remoteRank=remote, size=size, requestHandle=request)

    def _ends(self, index: int) -> list[tuple[int, int, int]]:
        """Tag, the other's rank in the communicator, and size, of what operation ``index`` sends and receives here.

        MPI_Sendrecv has one row if both are the same.
        """
        found: list[tuple[int, int, int]] = []
        for message in self.program.messages:
            source = message.sources()[self.rank]
            if message.send == index and message.to[self.rank] >= 0:
                found.append((message.tag, self._local(message, message.to[self.rank]), message.size))
            if message.receive == index and source >= 0:
                found.append((message.tag, self._local(message, source), message.capacity))
        return list(dict.fromkeys(found))

    def _local(self, message: Message, rank: int) -> int:
        return self.grid.members(message.team, self.rank).index(rank)

    def _request(self, op: int) -> int:
        call = self.program.ops[op].mpi
        assert call is not None
        return call.request

    def _named(self, team: Team) -> dict[str, int | None]:
        """The columns that name a communicator."""
        known = uid(self.grid.members(team, self.rank), team) if self.report.options.mpi_comm_uids else None
        return {"commHandle": handle(team, self.rank), "commUid": known}

    def write(self, block: Block, epochs: Ints) -> None:
        """Write the calls of runs that begin at ``epochs`` (true time, ns)."""
        for table, rows in self.tables.items():
            if rows.ops:
                self._write(table, rows, block, epochs)
        totals = self.report.facts.setdefault("mpi_calls", {})
        for index, function in self.calls:
            begin, end = self._local_times(block, epochs, np.array([index]))
            kept = self.report.missing.kept("MPI", begin, end, self._lost(np.array([index])))
            entry = totals.setdefault(function, {"calls": 0, "ns": 0})
            entry["calls"] += begin.size if kept is None else int(kept.sum())
            entry["ns"] += int((end - begin).sum() if kept is None else (end - begin)[kept].sum())
        if self.created:
            self._write_communicators(block, epochs)

    def _lost(self, operations: Ints) -> Bools | None:
        return self.report.missing.of(Part.MPI, operations)

    def _local_times(self, block: Block, epochs: Ints, which: Ints) -> tuple[Ints, Ints]:
        rank = self.report.rank
        begin, end = (
            rank.local(epochs[:, None] + np.rint(times[:, self.rank, which]).astype(np.int64))
            for times in (block.host_begin, block.host_end)
        )
        return begin, end

    def _write(self, table: Table, rows: _Rows, block: Block, epochs: Ints) -> None:
        report = self.report
        begin, end = self._local_times(block, epochs, np.array(rows.ops))
        columns: dict[str, Any] = {
            "globalTid": report.rank.global_tid(0),
            "textId": np.array([report.export.string(function) for function in rows.functions]),
        }
        for name, values in rows.columns.items():
            column = np.empty((len(epochs), len(values)), dtype=object)
            column[:] = values
            if name == "requestHandle":
                leaked = np.array([value == _FIRST_REQUEST + LEAKED for value in values])
                column[:, leaked] += report.leaked + np.arange(len(epochs))[:, None]
                report.leaked += len(epochs) * int(leaked.any())
            columns[name] = column
        sizes = [value or 0 for value in rows.columns.get("size", [0] * len(rows.ops))]
        report.insert(table.value, rows.functions, columns, begin, end, np.array(sizes, dtype=np.int64), self._lost(np.array(rows.ops)))

    def _write_communicators(self, block: Block, epochs: Ints) -> None:
        """The communicators, as they came to be; MPI_COMM_SELF with the world."""
        report, local = self.report, self.rank
        found: list[tuple[int, Team]] = []
        for index, team in self.created:
            at = int(self._local_times(block, epochs, np.array([index]))[1][0, 0])
            found += [(at, Team.WORLD), (at, Team.SELF)] if team is Team.WORLD else [(at, team)]
        columns: dict[str, list[Any]] = {}
        for at, team in found:
            members = self.grid.members(team, local)
            parent = self.grid.parent(team)
            row = {
                "rank": local,
                "timestamp": at,
                "commHandle": handle(team, local),
                "parentHandle": None if parent is None else handle(parent, local),
                "localRank": members.index(local),
                "size": len(members),
                "groupRoot": members[0],
                "groupRootUid": int(team),
                "members": ",".join(map(str, members)),
                "commUid": uid(members, team) if report.options.mpi_comm_uids else None,
            }
            for name, value in row.items():
                columns.setdefault(name, []).append(value)
        report.export.insert("MPI_COMMUNICATORS", columns)
        report.export.insert("MPI_RANKS", {"globalTid": [report.rank.global_tid(0)], "rank": [local]})
