"""Collectives that only one rank's report has: programs of one collective each, run by that rank alone after a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .cluster import Cluster, Ints
from .mpi.calls import Table
from .mpi.teams import build_grid, uid
from .options import Options
from .program import Builder, Domain, Kind, Op, Program, Style
from .timeline import Block, Floats, Timeline

Write = Callable[[int, int, Block, Ints, int], None]
"""Writes runs of a program into a report: numbers of program and report, the runs, their epochs, the step of the first."""

_PAUSE_NS = 20_000
"""Between the end of what was before and an extra collective."""


def programs(step: Program, advanced: bool) -> list[Program]:
    """One for each kind of collective in a step."""
    kinds: dict[Any, Op] = {}
    for op in step.ops:
        if op.kind is Kind.COLLECTIVE and op.payload is not None and op.payload.function != "Group":
            kinds.setdefault(op.payload, op)
        elif op.kind is Kind.MPI and op.mpi is not None and op.mpi.table is Table.COLLECTIVES and op.mpi.request < 0:
            kinds.setdefault(op.mpi, op)
    found = []
    for op in kinds.values():
        b = Builder(advanced)
        if op.mpi is not None:
            with b.range("once more", Style.REGISTERED, Domain.JOB):
                b.mpi(op.mpi, op.api_ns, op.work_ns)
        elif op.payload is not None:
            b.collective(op.payload, op.kernel)
        found.append(b.program)
    return found


class Extras:
    """Draws them, block of steps by block of steps. A run takes the time of all, drawn or not."""

    def __init__(self, options: Options, cluster: Cluster, timelines: Sequence[Timeline]) -> None:
        self.options, self.cluster, self.timelines = options, cluster, timelines
        self.grid = build_grid(options.ranks, options.lonely_ranks)
        self.works = [_work(timeline.program) for timeline in timelines]
        self.found: list[dict[str, Any]] = []
        self.blocks: list[Block] = []

    def run(self, first: int, runs: int) -> int:
        """Simulate those of steps from ``first`` on; how long all of one step last, ns."""
        rng = np.random.default_rng([self.options.seed, 23, first])
        shape = (runs, len(self.cluster.ranks))
        self.blocks = [timeline.run(rng, np.zeros(shape)) for timeline in self.timelines]
        return sum(self._length(block) for block in self.blocks)

    @staticmethod
    def _length(block: Block) -> int:
        return _PAUSE_NS + int(np.ceil(block.ends().max()))

    def write(self, reports: Sequence[int], write: Write, epochs: Ints, ends: Floats, first: int) -> None:
        """Write them into the reports of the ranks ``reports``, behind steps that begin at ``epochs`` and end ``ends`` later (run,
        rank).
        """
        drawn = [(step, *chosen) for step in range(first, first + len(epochs)) for chosen in self._draw(step)]
        after = 0
        for number, block in enumerate(self.blocks):
            after += _PAUSE_NS
            for step, which, rank in drawn:
                if which != number:
                    continue
                run = step - first
                begin = int(epochs[run]) + int(np.ceil(ends[run, rank])) + after
                self.found.append(self._told(number, block, run, step, rank, begin))
                if rank in reports:
                    write(number, reports.index(rank), _only(block, run), np.array([begin]), step)
            after += self._length(block) - _PAUSE_NS

    def _draw(self, step: int) -> list[tuple[int, int]]:
        """Programs and the ranks that run them."""
        rng = np.random.default_rng([self.options.seed, 29, step])
        coins, ranks = rng.random((2, len(self.timelines)))
        some = np.flatnonzero(coins < self.options.extra_collectives).tolist()
        return [(number, int(ranks[number] * len(self.cluster.ranks))) for number in some]

    def _told(self, number: int, block: Block, run: int, step: int, rank: int, at: int) -> dict[str, Any]:
        index = self.works[number]
        op = self.timelines[number].program.ops[index]
        begin, end = (block.gpu_begin, block.gpu_end) if op.mpi is None else (block.host_begin, block.host_end)
        if op.mpi is None:
            assert op.payload is not None
            library, function = "NCCL", op.payload.function
            comm = self.cluster.communicator(op.payload.group, rank).hash
        else:
            library, function = "MPI", op.mpi.function
            comm = uid(self.grid.members(op.mpi.team, rank), op.mpi.team)
        times = [at + round(float(edge[run, rank, index])) for edge in (begin, end)]
        return {"library": library, "step": step, "rank": rank, "function": function, "communicator": comm,
                "begin": times[0], "end": times[1]}  # fmt: skip


def _work(program: Program) -> int:
    return next(index for index, op in enumerate(program.ops) if op.kind in (Kind.COLLECTIVE, Kind.MPI))


def _only(block: Block, run: int) -> Block:
    """One run of a block."""
    one = slice(run, run + 1)
    return Block(block.host_begin[one], block.host_end[one], block.gpu_begin[one], block.gpu_end[one], block.event_time[one],
                 block.arrival[one])  # fmt: skip
