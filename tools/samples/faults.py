"""What is wrong in reports: rows of collectives that get lost, collectives that only one report
has, a report that is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .cluster import Cluster, Ints
from .mpi import Table, build_grid, uid
from .options import Options
from .program import Builder, Kind, Op, Program
from .report import NEVER, Report
from .timeline import Block, Floats, Timeline

NCCL_PARTS = ("range", "call", "kernel")
PAUSE_NS = 20_000  # between the end of what was before and an extra collective


def cut_report(options: Options, report: Report, epochs: Ints, lengths: Ints, first: int) -> None:
    """Cut a report if it is to be cut within these steps, which begin at ``epochs`` and last
    ``lengths`` (true ns) and are not written yet; the first is step ``first``.
    """
    place = options.cut_at * options.steps
    run = int(place) - first
    asked = options.cut_report != "none" and options.cut_rank == report.rank.rank
    if not asked or not 0 <= run < len(epochs):
        return
    at = int(epochs[run]) + int(lengths[run] * (place - int(place)))
    local = int(report.rank.local(np.asarray(at)))
    if options.cut_report == "begin":
        report.first = local
    else:
        report.last = local
    report.facts["cut"] = {"lacks": options.cut_report, "true_ns": at, "local_ns": local}


def hide_beginning(options: Options, report: Report) -> None:
    """Nothing before the moment of a cut at the beginning is written, wherever that will be."""
    if options.cut_report == "begin" and options.cut_rank == report.rank.rank:
        report.first = NEVER - 1


@dataclass(frozen=True)
class Collective:
    """A collective of a step: its operation, who takes part, and its place among those of one
    communicator.
    """

    library: str
    operation: int
    function: str
    communicator: int
    ranks: tuple[int, ...]
    ordinal: int  # in the first step
    per_step: int  # so many more in each that follows


def list_collectives(step: Program, before: Program, cluster: Cluster) -> list[Collective]:
    """All of NCCL and MPI in a step; ``before`` is what ran before the first. Collectives of one
    group (one kernel) count once for each call in it, as the reports' ranges do, but are listed
    once.
    """
    grid = build_grid(len(cluster.ranks), cluster.lonely)

    def of_mpi(program: Program) -> list[tuple[int, str, int, tuple[int, ...], int]]:
        calls = [(index, program.ops[index].mpi) for index in program.all_of(Kind.MPI)]
        return [
            (index, call.function, uid(ranks, call.team), ranks, 1)
            for index, call in calls
            if call.table is Table.COLLECTIVES
            for ranks in grid.teams[call.team]
        ]

    of_nccl = []
    for index in step.all_of(Kind.COLLECTIVE):
        op = step.ops[index]
        count = len(op.calls) if op.payload.function == "Group" else 1
        of_nccl += [
            (index, op.payload.function, comm.hash, comm.ranks, count)
            for comm in cluster.all_of(op.payload.group)
        ]
    found = []
    for library, listed, earlier in (("NCCL", of_nccl, []), ("MPI", of_mpi(step), of_mpi(before))):
        for place, (operation, function, number, ranks, _) in enumerate(listed):
            ordinal, per_step = (
                sum(one[4] for one in some if one[2] == number) for some in (listed[:place], listed)
            )
            ordinal += sum(one[2:4] == (number, ranks) for one in earlier)
            found.append(Collective(library, operation, function, number, ranks, ordinal, per_step))
    return found


class Losses:
    """Draws what gets lost, step by step, and tells the reports."""

    def __init__(self, step: Program, before: Program, cluster: Cluster, options: Options) -> None:
        self.options, self.program = options, step
        self.known = list_collectives(step, before, cluster) if options.lost_collectives else []
        self.found: list[dict[str, Any]] = []

    def draw(self, reports: Sequence[Report], block: Block, epochs: Ints, first: int) -> None:
        """Before the runs of a block are written, the first of which is step ``first``."""
        for report in reports:
            report.lost = {}
        for run in range(len(epochs)) if self.known else ():
            for one, rank, parts in self._draw_step(first + run):
                begin, end = (
                    int(epochs[run] + round(float(edge[run, rank, one.operation])))
                    for edge in block.edges(self.program.ops[one.operation].kind)
                )
                told = _describe(one.library, first + run, rank, one.function, one.communicator)
                told["ordinal"] = one.ordinal + one.per_step * (first + run)
                self.found.append({**told, "rows": list(parts), "begin": begin, "end": end})
                for part in parts:
                    none = np.zeros((len(epochs), len(self.program.ops)), np.bool_)
                    reports[rank].lost.setdefault(part, none)[run, one.operation] = True

    def _draw_step(self, step: int) -> Iterator[tuple[Collective, int, tuple[str, ...]]]:
        """The losses of one step: half of NCCL's are of all rows, the others of one kind of row."""
        random = np.random.default_rng([self.options.seed, 17, step])
        coins, members, kinds = random.random((3, len(self.known)))
        for place in np.flatnonzero(coins < self.options.lost_collectives).tolist():
            one = self.known[place]
            parts = NCCL_PARTS if kinds[place] < 0.5 else (NCCL_PARTS[int(kinds[place] * 6) % 3],)
            rank = one.ranks[int(members[place] * len(one.ranks))]
            yield one, rank, ("mpi",) if one.library == "MPI" else parts


def _describe(library: str, step: int, rank: int, function: str, number: int) -> dict[str, Any]:
    """What the truth says of a collective first; ``number``: of its communicator."""
    told = {"library": library, "step": step, "rank": rank, "function": function}
    return {**told, "communicator": number}


def extra_programs(step: Program, options: Options) -> list[Program]:
    """A program of one collective for each kind of collective in a step, to be run by one rank
    alone.
    """
    kinds: dict[Any, Op] = {}
    for op in step.ops:
        if op.kind is Kind.COLLECTIVE and op.payload.function != "Group":
            kinds.setdefault(op.payload, op)
        elif op.kind is Kind.MPI and op.mpi.table is Table.COLLECTIVES and op.mpi.request < 0:
            kinds.setdefault(op.mpi, op)
    found = []
    for op in kinds.values():
        b = Builder(options.advanced)
        if op.mpi:
            with b.phase("once more", None, None):
                b.mpi(op.mpi, op.api_ns, op.work_ns)
        else:
            b.collective(op.payload, op.kernel)
        found.append(b.program)
    return found


class Extras:
    """Draws collectives that only one rank's report has, behind steps. Each step takes the time of
    all, drawn or not.
    """

    def __init__(self, options: Options, cluster: Cluster, timelines: Sequence[Timeline]) -> None:
        self.options, self.cluster, self.timelines = options, cluster, timelines
        self.grid = build_grid(options.ranks, options.lonely_ranks)
        self.found: list[dict[str, Any]] = []
        self.blocks: list[Block] = []
        self.lengths: list[int] = []  # ns, with the pause before

    def run(self, first: int, runs: int) -> int:
        """Simulate those of steps from ``first`` on; how long all of one step last, ns."""
        rng = np.random.default_rng([self.options.seed, 23, first])
        self.blocks = [
            timeline.run(rng, np.zeros((runs, self.options.ranks))) for timeline in self.timelines
        ]
        self.lengths = [PAUSE_NS + int(np.ceil(block.find_ends().max())) for block in self.blocks]
        return sum(self.lengths)

    def write(
        self,
        writers: Sequence[Callable[[int, Block, Ints, int], None]],
        epochs: Ints,
        ends: Floats,
        first: int,
    ) -> None:
        """Write them behind steps that begin at ``epochs`` and end ``ends`` later (run, rank), with
        functions, one for each, that take rank, a run of it, its epoch and the step.
        """
        drawn = []
        for step in range(first, first + len(epochs)):
            random = np.random.default_rng([self.options.seed, 29, step])
            coins, ranks = random.random((2, len(self.timelines)))
            drawn += [
                (number, step, int(ranks[number] * self.options.ranks))
                for number in np.flatnonzero(coins < self.options.extra_collectives).tolist()
            ]
        after = np.cumsum([0, *self.lengths]) + PAUSE_NS
        for number, step, rank in sorted(drawn, key=lambda one: one[0]):
            run = step - first
            begin = int(epochs[run]) + int(np.ceil(ends[run, rank])) + int(after[number])
            self.found.append(self._truth(number, run, step, rank, begin))
            writers[number](rank, self.blocks[number].take_run(run), np.array([begin]), step)

    def _truth(self, number: int, run: int, step: int, rank: int, at: int) -> dict[str, Any]:
        """What the truth says of one that begins its program at true time ``at``."""
        program = self.timelines[number].program
        index = program.all_of(Kind.COLLECTIVE, Kind.MPI)[0]
        op = program.ops[index]
        begin, end = (
            at + round(float(edge[run, rank, index])) for edge in self.blocks[number].edges(op.kind)
        )
        if op.mpi:
            comm = uid(self.grid.members(op.mpi.team, rank), op.mpi.team)
            told = _describe("MPI", step, rank, op.mpi.function, comm)
        else:
            comm = self.cluster.communicator(op.payload.group, rank).hash
            told = _describe("NCCL", step, rank, op.payload.function, comm)
        return {**told, "begin": begin, "end": end}
