"""Make faults: something that holds the job back, and in its reports rows of collectives that get
lost, collectives that only one report has, a report that is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .cluster import Cluster, Ints, build_grid, make_uid
from .data import DATA, KERNELS
from .options import Options
from .program import Builder, Kind, Op, Program, Table
from .report import NEVER, Report, Truth
from .timeline import Block, Floats, Timeline

FP32 = "gemm_fp32"
NCCL_PARTS = ("range", "call", "kernel")
PAUSE_NS = 20_000  # between the end of what was before and an extra collective


class Causes:
    """Holds hosts up: a rank is late in every step, one stops once. Keeps what that costs, and
    communication that nothing hides, and a GEMM that misses the tensor cores.
    """

    def __init__(self, options: Options, cluster: Cluster) -> None:
        self.options = options
        self.random = np.random.default_rng([options.seed, 7])
        self.late: list[float] = []  # ns, by step
        self.hiccup: Truth | None = None
        #: Begins and ends (true ns) of computing kernels and of NCCL's, by rank.
        self.compute: list[list[Ints]] = [[] for _ in cluster.ranks]
        self.nccl: list[list[Ints]] = [[] for _ in cluster.ranks]
        self.fp32 = [0.0] * len(cluster.ranks)

    def _stops(self, first: int, runs: int) -> bool:
        step = self.options.hiccup_step
        return self.options.hiccup_rank is not None and first <= step < first + runs

    def draw_delays(self, first: int, runs: int) -> dict[str, Floats]:
        """Draw for how long hosts are held up (run, rank; ns), by mark of the step's program."""
        options, held = self.options, {}
        if options.late_rank is not None:
            late = options.late_us * 1e3 * self.random.uniform(0.8, 1.2, runs)
            self.late += late.tolist()
            held["late"] = np.zeros((runs, options.ranks))
            held["late"][:, options.late_rank] = late
        if self._stops(first, runs):
            held["hiccup"] = np.zeros((runs, options.ranks))
            held["hiccup"][options.hiccup_step - first, options.hiccup_rank] = (
                options.hiccup_us * 1e3
            )
        return held

    def record(self, program: Program, block: Block, epochs: Ints, first: int) -> None:
        """Keep what steps that begin at ``epochs`` (true ns) did; the first is step ``first``."""
        options = self.options
        if not options.has_causes:
            return
        kernels, collectives = program.all_of(Kind.KERNEL), program.all_of(Kind.COLLECTIVE)
        single = [index for index in kernels if program.ops[index].kernel == FP32]
        for rank in range(options.ranks):
            for works, kept in ((kernels, self.compute), (collectives, self.nccl)):
                begin, end = (
                    (epochs[:, None] + times[:, rank, works]).ravel()
                    for times in (block.gpu_begin, block.gpu_end)
                )
                kept[rank].append(np.rint(np.stack([begin, end], axis=1)).astype(np.int64))
            spent = block.gpu_end[:, rank, single] - block.gpu_begin[:, rank, single]
            self.fp32[rank] += float(spent.sum())
        if self._stops(first, len(epochs)):
            run, place = options.hiccup_step - first, program.marks["hiccup"]
            end = epochs[run] + block.host_begin[run, options.hiccup_rank, place]
            self.hiccup = {"rank": options.hiccup_rank, "step": options.hiccup_step}
            self.hiccup |= {"begin": round(end - options.hiccup_us * 1e3), "end": round(end)}

    def tell(self) -> Truth:
        """Tell what holds the job back; nothing where nothing was put in."""
        if not self.options.has_causes:
            return {}
        ranks = [
            _sum_shares(np.concatenate(compute), np.concatenate(nccl))
            for compute, nccl in zip(self.compute, self.nccl, strict=True)
        ]
        late = None
        if self.late:
            late = {"rank": self.options.late_rank, "range": "load_batch"}
            late |= {"mean_ns": round(float(np.mean(self.late))), "steps": len(self.late)}
        gemm = {"kernel": KERNELS[FP32].short, "ns": [round(ns) for ns in self.fp32]}
        causes = {"late": late, "hiccup": self.hiccup, "gemm_without_tensor_cores": gemm}
        return {"about_causes": DATA["about"]["causes"], "causes": {**causes, "ranks": ranks}}


def _sum_shares(compute: Ints, nccl: Ints) -> Truth:
    """Sum for how long a GPU worked, and communicated while it computed nothing; ns."""
    work = np.concatenate([compute, nccl])
    busy, computed = _sum_covered(work), _sum_covered(compute)
    told = {"steps_ns": int(work[:, 1].max() - work[:, 0].min()), "busy_ns": busy}
    told |= {"compute_ns": computed, "nccl_ns": _sum_covered(nccl)}
    return {**told, "exposed_ns": busy - computed}


def _sum_covered(spans: Ints) -> int:
    """Sum for how long at least one of these spans lasts, ns."""
    spans = spans[np.argsort(spans[:, 0])]
    reached = np.concatenate([[spans[0, 0]], np.maximum.accumulate(spans[:, 1])[:-1]])
    return int(np.maximum(spans[:, 1] - np.maximum(spans[:, 0], reached), 0).sum())


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
    """Write nothing before the moment of a cut at the beginning, wherever that will be."""
    if options.cut_report == "begin" and options.cut_rank == report.rank.rank:
        report.first = NEVER - 1


@dataclass(frozen=True)
class Collective:
    """A collective of a step: its operation, its ranks, its place in the communicator."""

    library: str
    operation: int
    function: str
    communicator: int
    ranks: tuple[int, ...]
    calls: int = 1  # of a group, which the reports' ranges count one by one
    ordinal: int = 0  # in the first step
    per_step: int = 0  # so many more in each that follows


def _list_nccl(program: Program, cluster: Cluster) -> Iterator[Collective]:
    for index in program.all_of(Kind.COLLECTIVE):
        op = program.ops[index]
        calls = len(op.calls) if op.payload.function == "Group" else 1
        for comm in cluster.all_of(op.payload.group):
            yield Collective("NCCL", index, op.payload.function, comm.hash, comm.ranks, calls)


def _list_mpi(program: Program, cluster: Cluster) -> Iterator[Collective]:
    grid = build_grid(len(cluster.ranks), cluster.lonely)
    for index in program.all_of(Kind.MPI):
        call = program.ops[index].mpi
        for ranks in grid.teams[call.team] if call.table is Table.COLLECTIVES else ():
            yield Collective("MPI", index, call.function, make_uid(ranks, call.team), ranks)


def list_collectives(step: Program, before: Program, cluster: Cluster) -> list[Collective]:
    """List all of NCCL and MPI in a step; ``before`` is what ran before the first."""
    found = []
    earlier = [(one.communicator, one.ranks) for one in _list_mpi(before, cluster)]
    for listed in ([*_list_nccl(step, cluster)], [*_list_mpi(step, cluster)]):
        for place, one in enumerate(listed):
            ordinal, per_step = (
                sum(other.calls for other in some if other.communicator == one.communicator)
                for some in (listed[:place], listed)
            )
            if one.library == "MPI":
                ordinal += earlier.count((one.communicator, one.ranks))
            found.append(replace(one, ordinal=ordinal, per_step=per_step))
    return found


class Losses:
    """Draws what gets lost, step by step, and tells the reports."""

    def __init__(self, step: Program, before: Program, cluster: Cluster, options: Options) -> None:
        self.options, self.program = options, step
        self.known = list_collectives(step, before, cluster) if options.lost_collectives else []
        self.found: list[Truth] = []

    def draw(self, reports: Sequence[Report], block: Block, epochs: Ints, first: int) -> None:
        """Draw before the runs of a block are written, the first of which is step ``first``."""
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
        """Draw the losses of a step: half of NCCL's are of all rows, the others of one kind."""
        random = np.random.default_rng([self.options.seed, 17, step])
        coins, members, kinds = random.random((3, len(self.known)))
        for place in np.flatnonzero(coins < self.options.lost_collectives).tolist():
            one = self.known[place]
            parts = NCCL_PARTS if kinds[place] < 0.5 else (NCCL_PARTS[int(kinds[place] * 6) % 3],)
            rank = one.ranks[int(members[place] * len(one.ranks))]
            yield one, rank, ("mpi",) if one.library == "MPI" else parts


def _describe(library: str, step: int, rank: int, function: str, communicator: int) -> Truth:
    """Say what the truth says of a collective first."""
    told = {"library": library, "step": step, "rank": rank, "function": function}
    return {**told, "communicator": communicator}


def build_extra_programs(step: Program, options: Options) -> list[Program]:
    """Build a program for each kind of collective in a step, to be run by one rank alone."""
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
        self.found: list[Truth] = []
        self.blocks: list[Block] = []
        self.lengths: list[int] = []  # ns, with the pause before

    def run(self, first: int, runs: int) -> int:
        """Simulate those of steps from ``first`` on; return how long all of one step last, ns."""
        rng = np.random.default_rng([self.options.seed, 23, first])
        begin = np.zeros((runs, self.options.ranks))
        self.blocks = [timeline.run(rng, begin) for timeline in self.timelines]
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
            for number in np.flatnonzero(coins < self.options.extra_collectives).tolist():
                drawn.append((number, step, int(ranks[number] * self.options.ranks)))
        after = np.cumsum([0, *self.lengths]) + PAUSE_NS
        for number, step, rank in sorted(drawn, key=lambda one: one[0]):
            run = step - first
            begin = int(epochs[run]) + int(np.ceil(ends[run, rank])) + int(after[number])
            self.found.append(self._tell(number, run, step, rank, begin))
            writers[number](rank, self.blocks[number].take_run(run), np.array([begin]), step)

    def _tell(self, number: int, run: int, step: int, rank: int, at: int) -> Truth:
        """Tell of one that begins its program at true time ``at``."""
        program = self.timelines[number].program
        index = program.all_of(Kind.COLLECTIVE, Kind.MPI)[0]
        op = program.ops[index]
        begin, end = (
            at + round(float(edge[run, rank, index])) for edge in self.blocks[number].edges(op.kind)
        )
        if op.mpi:
            comm = make_uid(self.grid.members(op.mpi.team, rank), op.mpi.team)
            told = _describe("MPI", step, rank, op.mpi.function, comm)
        else:
            comm = self.cluster.communicator(op.payload.group, rank).hash
            told = _describe("NCCL", step, rank, op.payload.function, comm)
        return {**told, "begin": begin, "end": end}
