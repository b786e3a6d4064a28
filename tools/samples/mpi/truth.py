"""What was put in: messages with both their ends, and collectives with everybody's times, all in true time."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..cluster import Cluster, Ints
from ..options import Options
from ..program import Kind, Program
from ..timeline import Block
from .calls import Table
from .teams import Team, build_grid, handle, uid

ABOUT = (
    "communicators: 'handles' are commHandle in each of 'ranks' (world ranks, in the order of their rank in the "
    "communicator). Times are true. messages: world ranks of sender and receiver; 'bytes' are those sent (a receiving "
    "row holds the size of its buffer, 'capacity'); 'ordinal' counts the messages of one sender, receiver, communicator "
    "and tag; 'send' and 'receive' are begin and end of the calls, 'arrived' when the data were there, 'completed' the "
    "end of the call that completed the receive. unmatched: messages nobody received. collectives: 'ordinal' counts "
    "those on a communicator, in the order of the calls; a rank's 'begin' and 'end' are those of its call, or of the "
    "call that waited for its request."
)


class MpiTruth:
    """Collects the truth about MPI over all phases, steps in a sample of them as for NCCL."""

    def __init__(self, options: Options, cluster: Cluster) -> None:
        self.grid = build_grid(options.ranks, options.lonely_ranks)
        self.ranks = range(len(cluster.ranks))
        self.limit, self.steps = max(1, options.truth_collectives), options.steps
        self.ordinals: dict[tuple[Any, ...], int] = {}
        self.totals = {"messages": 0, "unmatched": 0, "collectives": 0}
        self.messages: list[dict[str, Any]] = []
        self.unmatched: list[dict[str, Any]] = []
        self.collectives: list[dict[str, Any]] = []

    def record(self, program: Program, block: Block, epochs: Ints, first_step: int | None) -> None:
        """Runs of a program; ``first_step`` is None for one that is no step."""
        per_run = len(self.ranks) * max(1, len(program.messages))
        every = 1 if first_step is None else max(1, -(-per_run * self.steps // self.limit))
        for run in range(len(epochs)):
            step = None if first_step is None else first_step + run
            kept = step is None or step % every == 0
            at = int(epochs[run])
            self._messages(program, block, run, at, {"step": step}, kept)
            self._collectives(program, block, run, at, {"step": step}, kept)

    def _next(self, *key: Any) -> int:
        ordinal = self.ordinals.get(key, 0)
        self.ordinals[key] = ordinal + 1
        return ordinal

    def _messages(self, program: Program, block: Block, run: int, at: int, when: dict[str, Any], kept: bool) -> None:
        completing = _completing(program)
        begin, end = _absolute(block.host_begin[run], at), _absolute(block.host_end[run], at)
        arrived = _absolute(block.arrival[run], at)
        for number, message in enumerate(program.messages):
            for sender, receiver in enumerate(message.to):
                if receiver < 0:
                    continue
                number_on = uid(self.grid.members(message.team, sender), message.team)
                ordinal = self._next("message", number_on, sender, receiver, message.tag)
                lost = message.receive < 0
                self.totals["unmatched" if lost else "messages"] += 1
                if not kept:
                    continue
                said = {
                    **when,
                    "sender": sender,
                    "receiver": receiver,
                    "tag": message.tag,
                    "communicator": number_on,
                    "bytes": message.size,
                    "ordinal": ordinal,
                    "send": [int(begin[sender, message.send]), int(end[sender, message.send])],
                }
                if lost:
                    self.unmatched.append(said)
                    continue
                last = completing.get(message.receive, message.receive)
                call = program.ops[message.receive].mpi
                assert call is not None
                self.messages.append(
                    {
                        **said,
                        "capacity": message.capacity,
                        "functions": [
                            program.ops[message.send].mpi.function_of(sender),  # type: ignore[union-attr]
                            call.function_of(receiver),
                        ],
                        "receive": [int(begin[receiver, message.receive]), int(end[receiver, message.receive])],
                        "arrived": int(arrived[receiver, number]),
                        "completed": int(end[receiver, last]),
                    }
                )

    def _collectives(self, program: Program, block: Block, run: int, at: int, when: dict[str, Any], kept: bool) -> None:
        completing = _completing(program)
        begin, end = _absolute(block.host_begin[run], at), _absolute(block.host_end[run], at)
        for index, op in enumerate(program.ops):
            if op.kind is not Kind.MPI or op.mpi is None or op.mpi.table is not Table.COLLECTIVES:
                continue
            for members in self.grid.all_of(op.mpi.team):
                number_on = uid(members, op.mpi.team)
                ordinal = self._next("collective", number_on)
                self.totals["collectives"] += 1
                if not kept:
                    continue
                ranks, last = list(members), completing.get(index, index)
                self.collectives.append(
                    {
                        **when,
                        "function": op.mpi.function,
                        "communicator": number_on,
                        "ordinal": ordinal,
                        "root": members[op.mpi.root % len(members)] if op.mpi.root >= 0 else None,
                        "size": op.mpi.sent,
                        "recv_size": op.mpi.received,
                        "ranks": ranks,
                        "begin": begin[ranks, index].tolist(),
                        "end": end[ranks, last].tolist(),
                    }
                )

    def summary(self) -> dict[str, Any]:
        teams = [team for team in Team if team is not Team.OWN and (team is not Team.PART or self.grid.lonely)]
        known = [(team, members) for team in teams for members in self.grid.all_of(team)]
        known += [(Team.OWN, (rank,)) for rank in self.ranks if rank % 2]
        return {
            "about": ABOUT,
            "grid": [self.grid.rows, self.grid.columns],
            "communicators": [
                {
                    "uid": uid(members, team),
                    "kind": team.name.lower(),
                    "ranks": list(members),
                    "handles": [handle(team, rank) for rank in members],
                }
                for team, members in known
            ],
            "messages_total": self.totals["messages"],
            "unmatched_total": self.totals["unmatched"],
            "collectives_total": self.totals["collectives"],
            "messages": self.messages,
            "unmatched": self.unmatched,
            "collectives": self.collectives,
        }


def _completing(program: Program) -> dict[int, int]:
    """For every operation that starts a request, the one that completes it."""
    found: dict[int, int] = {}
    for index, op in enumerate(program.ops):
        if op.mpi is not None and op.mpi.blocks:
            found.update(dict.fromkeys(op.mpi.waits, index))
    return found


def _absolute(times: np.ndarray, at: int) -> Ints:
    """True times from times since an epoch; those unknown are 0."""
    return at + np.rint(np.nan_to_num(times)).astype(np.int64)
