"""Write a program's MPI calls into reports, and the truth about its messages and collectives.

Known of real reports: MPI_Wait*, MPI_Test* have a row for every request, all with the call's times;
MPI_Sendrecv has two rows with the same times, one if rank, tag and size agree; nothing in a row
tells sending from receiving but the function. Inferred: ``remoteRank`` and ``rootRank`` are ranks
in the communicator; sizes of collectives are whole buffers, a Reduce receives only at its root;
``members`` lists world ranks by their rank in the communicator, on every rank; handles are
unsigned.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .cluster import Cluster, Ints, Team, build_grid, make_handle, make_uid
from .data import DATA
from .options import Options
from .program import LEAKED, Kind, Meeting, MpiCall, Program, Table
from .report import Report, Truth
from .timeline import Block

#: Handles of requests, as MPICH counts them; one is used again once its request is complete.
FIRST_REQUEST = 0x9800_0000


class MpiRows:
    """Writes the MPI calls of one program's runs into one report."""

    def __init__(self, program: Program, report: Report) -> None:
        self.program, self.report, self.rank = program, report, report.rank.rank
        self.grid = build_grid(report.options.ranks, report.options.lonely_ranks)
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
        where = {"commHandle": make_handle(call.team, self.rank), "commUid": self._uid(call.team)}
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

    def _uid(self, team: Team) -> int | None:
        known = self.report.options.mpi_comm_uids
        return make_uid(self.grid.members(team, self.rank), team) if known else None

    def _local(self, block: Block, epochs: Ints, which: Any) -> tuple[Ints, Ints]:
        begin, end = (
            self.report.local(epochs, times[:, self.rank, which])
            for times in (block.host_begin, block.host_end)
        )
        return begin, end

    def write(self, block: Block, epochs: Ints) -> None:
        """Write the calls of runs that begin at ``epochs`` (true time, ns)."""
        report = self.report
        for table, rows in self.rows.items():
            if rows:
                self._write(table, rows, *self._local(block, epochs, [row[0] for row in rows]))
        totals, created = report.facts.setdefault("mpi_calls", {}), []
        for index, call, function in self.calls:
            begin, end = self._local(block, epochs, [index])
            kept = report.kept(begin, end, report.lost_rows("mpi", np.array([index])))
            kept = np.ones(begin.shape, np.bool_) if kept is None else kept
            entry = totals.setdefault(function, {"calls": 0, "ns": 0})
            entry["calls"] += int(kept.sum())
            entry["ns"] += int((end - begin)[kept].sum())
            if call.creates is not None:
                created.append((int(end[0, 0]), call.creates))
        if created:
            self._write_communicators(created)

    def _write(self, table: Table, rows: list[Any], begin: Ints, end: Ints) -> None:
        report = self.report
        indices, functions, columns = zip(*rows, strict=True)
        filled: dict[str, Any] = {"globalTid": report.rank.global_tid(0)}
        filled["textId"] = report.strings(functions)
        for name in columns[0]:
            filled[name] = np.empty(begin.shape, dtype=object)
            filled[name][:] = [one[name] for one in columns]
        leaked = np.array([one.get("requestHandle") == FIRST_REQUEST + LEAKED for one in columns])
        if leaked.any():
            filled["requestHandle"][:, leaked] += report.leaked + np.arange(len(begin))[:, None]
            report.leaked += len(begin)
        sizes = np.array([one.get("size") or 0 for one in columns], dtype=np.int64)
        lost = report.lost_rows("mpi", np.array(indices))
        report.insert(table.value, functions, filled, begin, end, sizes, lost)

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
                rows.append((*named, *place, int(one), listed, self._uid(one)))
        names = "rank timestamp commHandle parentHandle localRank size groupRoot groupRootUid members commUid"
        self.report.add("MPI_COMMUNICATORS", names, rows)
        own = self.report.rank.global_tid(0), self.rank
        self.report.add("MPI_RANKS", "globalTid rank", [own])


class MpiTruth:
    """Collects the truth about MPI over all phases, steps in a sample of them as for NCCL."""

    def __init__(self, options: Options, cluster: Cluster) -> None:
        self.options, self.grid = options, build_grid(options.ranks, cluster.lonely)
        self.ordinals: dict[tuple[Any, ...], int] = {}
        self.kept = True  # whether the run being recorded is told in full
        self.totals = {"messages": 0, "unmatched": 0, "collectives": 0}
        self.found: dict[str, list[Truth]] = {kind: [] for kind in self.totals}

    def record(self, program: Program, block: Block, epochs: Ints, first_step: int | None) -> None:
        """Record runs of a program; ``first_step`` is None for one that is no step."""
        messages = self.options.ranks * max(1, len(program.messages)) * self.options.steps
        every = max(1, -(-messages // max(1, self.options.truth_collectives)))
        completing = {}  # of every operation that starts a request the one that completes it
        for index in program.all_of(Kind.MPI):
            if program.ops[index].mpi.blocks:
                completing |= dict.fromkeys(program.ops[index].mpi.waits, index)
        for run, epoch in enumerate(epochs.tolist()):
            step = None if first_step is None else first_step + run
            begin, end, arrived = (
                epoch + np.rint(np.nan_to_num(one[run])).astype(np.int64)
                for one in (block.host_begin, block.host_end, block.arrival)
            )
            self.kept = step is None or step % every == 0
            found = self._list_messages(program, completing, begin, end, arrived)
            for kind, told in [*found, *self._list_collectives(program, completing, begin, end)]:
                self.found[kind].append({"step": step, **told})

    def _next(self, kind: str, *key: int) -> int:
        """Count one more; return how many there were before."""
        self.totals[kind] += 1
        ordinal = self.ordinals.get(known := (kind == "collectives", *key), 0)
        self.ordinals[known] = ordinal + 1
        return ordinal

    def _list_messages(
        self, program: Program, completing: dict[int, int], begin: Ints, end: Ints, arrived: Ints
    ) -> Iterator[tuple[str, Truth]]:
        for number, message in enumerate(program.messages):
            kind = "unmatched" if message.receive < 0 else "messages"
            for sender, receiver in enumerate(message.to):
                if receiver < 0:
                    continue
                communicator = make_uid(self.grid.members(message.team, sender), message.team)
                ordinal = self._next(kind, communicator, sender, receiver, message.tag)
                if not self.kept:
                    continue
                told = {"sender": sender, "receiver": receiver, "tag": message.tag}
                told |= {"communicator": communicator, "bytes": message.size, "ordinal": ordinal}
                told["send"] = [int(edge[sender, message.send]) for edge in (begin, end)]
                if message.receive >= 0:
                    ends = ((message.send, sender), (message.receive, receiver))
                    functions = [program.ops[op].mpi.function_of(rank) for op, rank in ends]
                    last = completing.get(message.receive, message.receive)
                    told |= {"capacity": message.capacity, "functions": functions}
                    received = [int(edge[receiver, message.receive]) for edge in (begin, end)]
                    told |= {"receive": received, "arrived": int(arrived[receiver, number])}
                    told["completed"] = int(end[receiver, last])
                yield kind, told

    def _list_collectives(
        self, program: Program, completing: dict[int, int], begin: Ints, end: Ints
    ) -> Iterator[tuple[str, Truth]]:
        for index in program.all_of(Kind.MPI):
            call = program.ops[index].mpi
            for members in self.grid.teams[call.team] if call.table is Table.COLLECTIVES else ():
                communicator, ranks = make_uid(members, call.team), list(members)
                ordinal = self._next("collectives", communicator)
                if not self.kept:
                    continue
                told = {"function": call.function, "communicator": communicator, "ordinal": ordinal}
                told["root"] = members[call.root % len(members)] if call.root >= 0 else None
                told |= {"size": call.sent, "recv_size": call.received, "ranks": ranks}
                ends = end[ranks, completing.get(index, index)]
                told |= {"begin": begin[ranks, index].tolist(), "end": ends.tolist()}
                yield "collectives", told

    def summarize(self) -> Truth:
        """Return the section of the truth."""
        teams = [team for team in Team if team not in (Team.OWN, Team.PART)]
        teams += [Team.PART] * bool(self.grid.lonely)
        known = [(team, members) for team in sorted(teams) for members in self.grid.teams[team]]
        known += [(Team.OWN, (rank,)) for rank in range(self.options.ranks) if rank % 2]
        communicators = [
            {"uid": make_uid(members, team), "kind": team.name.lower(), "ranks": list(members)}
            | {"handles": [make_handle(team, rank) for rank in members]}
            for team, members in known
        ]
        told: Truth = {"about": DATA["about"]["mpi"], "grid": [self.grid.rows, self.grid.columns]}
        told["communicators"] = communicators
        told |= {f"{kind}_total": total for kind, total in self.totals.items()}
        return told | self.found
