"""Make faults: something that holds the job back, and in its reports rows of collectives that get
lost, collectives that only one report has, a report that is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .cluster import Cluster, Ints, make_uid
from .data import DATA, KERNELS, read_columns
from .mpi import Table
from .nvtx import CATEGORY, DOMAIN, THREAD
from .options import Options
from .program import FP32, Builder, Domain, Kind, Op, Program
from .report import Report, Truth
from .timeline import Block, Floats

if TYPE_CHECKING:
    from .simulate import Phase

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

    def record(self, program: Program, block: Block, epochs: Ints, first: int | None) -> None:
        """Keep what steps that begin at ``epochs`` (true ns) did; the first is step ``first``, or
        no step at all.
        """
        options = self.options
        if not options.has_causes or first is None:
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
        gemm = {"kernel": KERNELS[FP32].columns["shortName"], "ns": [round(ns) for ns in self.fp32]}
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


def find_cut(options: Options, steps: Ints) -> int | None:
    """Find the true time (ns) at which a report is cut, if one is; ``steps`` are the begins of the
    steps, and the last one's end.
    """
    if options.cut_report == "none":
        return None
    run, share = divmod(options.cut_at * options.steps, 1)
    return int(steps[int(run)]) + int(np.diff(steps)[int(run)] * share)


def cut_report(report: Report, true_ns: int) -> None:
    """Cut a report: it loses what begins before the cut, or what ends after it. NVTX ranges that
    are open there lose their end only, definitions stay, and an event on the GPU goes with its call.
    """
    options, export, local = report.options, report.export, report.rank.local_time(true_ns)
    told = {"lacks": options.cut_report, "true_ns": true_ns, "local_ns": local}
    report.facts["cut"] = told
    side = "start <" if options.cut_report == "begin" else "end >"
    for table in export.rows:
        if "start" in read_columns(table) and table != "NVTX_EVENTS":
            export.delete(table, f"{side} {local}")
    ranges = f"eventType NOT IN ({CATEGORY}, {THREAD}, {DOMAIN})"
    if options.cut_report == "end":
        open_ranges = f"{ranges} AND end > {local}"
        export.database.execute(f"UPDATE NVTX_EVENTS SET end = NULL WHERE {open_ranges}")
        side = "start >"
    export.delete("NVTX_EVENTS", f"{ranges} AND {side} {local}")
    unknown = "correlationId NOT IN (SELECT correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME)"
    export.delete("CUPTI_ACTIVITY_KIND_CUDA_EVENT", unknown)


def lose_collectives(
    options: Options, nccl: list[Truth], mpi: list[Truth], reports: Sequence[Report]
) -> list[Truth]:
    """Delete rows of some of the collectives that the truth tells of, each in one report: half of
    NCCL's lose all rows, the others those of one kind. Return what is lost.
    """
    found = []
    for step in range(options.steps if options.lost_collectives else 0):
        listed = [
            ("NCCL" if known is nccl else "MPI", one)
            for known in (nccl, mpi)
            for one in known
            if one["step"] == step
        ]
        random = np.random.default_rng([options.seed, 17, step])
        coins, members, kinds = random.random((3, len(listed)))
        for number in np.flatnonzero(coins < options.lost_collectives).tolist():
            library, one = listed[number]
            place, kind = int(members[number] * len(one["ranks"])), kinds[number]
            rank, begin, end = (one[key][place] for key in ("ranks", "begin", "end"))
            told = _describe(library, step, rank, one["function"], one["communicator"])
            told |= {"ordinal": one["ordinal"], "rows": ["mpi"], "begin": begin, "end": end}
            if library == "NCCL":
                told["rows"] = [*NCCL_PARTS] if kind < 0.5 else [NCCL_PARTS[int(kind * 6) % 3]]
            _delete_rows(reports[rank], told["rows"], begin, end)
            found.append(told)
    return found


def _delete_rows(report: Report, parts: Sequence[str], begin: int, end: int) -> None:
    """Delete rows of a collective with these true times: of NCCL its kernel, the kernel's launch,
    or NCCL's ranges within PyTorch's range around the launch.
    """
    export = report.export
    start, stop = report.rank.local(np.array([begin, end])).tolist()
    if "mpi" in parts:
        export.delete("MPI_COLLECTIVES_EVENTS", f"start = {start}")
        return
    kernel = f"FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE start = {start} AND end = {stop}"
    launch = f"correlationId = (SELECT correlationId {kernel})"
    call = f"FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE {launch}"
    if "range" in parts:
        around = (
            f"text LIKE 'nccl:%' AND start < (SELECT start {call}) AND end > (SELECT end {call})"
        )
        query = f"SELECT start, end FROM NVTX_EVENTS WHERE {around}"
        first, last = export.database.execute(query).fetchone()
        inside = f"start > {first} AND end < {last} AND domainId = {int(Domain.NCCL)}"
        export.delete("NVTX_EVENTS", inside)
    if "call" in parts:
        export.delete("CUPTI_ACTIVITY_KIND_RUNTIME", launch)
    if "kernel" in parts:
        export.delete("CUPTI_ACTIVITY_KIND_KERNEL", f"start = {start} AND end = {stop}")


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

    def __init__(self, options: Options, cluster: Cluster, phases: Sequence[Phase]) -> None:
        self.options, self.cluster, self.phases = options, cluster, phases
        self.found: list[Truth] = []
        self.blocks: list[Block] = []
        self.lengths: list[int] = []  # ns, with the pause before

    def run(self, first: int, runs: int) -> int:
        """Simulate those of steps from ``first`` on; return how long all of one step last, ns."""
        rng = np.random.default_rng([self.options.seed, 23, first])
        begin = np.zeros((runs, self.options.ranks))
        self.blocks = [phase.timeline.run(rng, begin) for phase in self.phases]
        self.lengths = [PAUSE_NS + int(np.ceil(block.find_ends().max())) for block in self.blocks]
        return sum(self.lengths)

    def write(self, epochs: Ints, ends: Floats, first: int) -> None:
        """Write them behind steps that begin at ``epochs`` and end ``ends`` later (run, rank)."""
        drawn = []
        for run in range(len(epochs)):
            random = np.random.default_rng([self.options.seed, 29, first + run])
            coins, ranks = random.random((2, len(self.phases)))
            for number in np.flatnonzero(coins < self.options.extra_collectives).tolist():
                drawn.append((number, run, int(ranks[number] * self.options.ranks)))
        after = np.cumsum([0, *self.lengths]) + PAUSE_NS
        for number, run, rank in sorted(drawn, key=lambda one: one[0]):
            begin = int(epochs[run]) + int(np.ceil(ends[run, rank])) + int(after[number])
            phase, block = self.phases[number], self.blocks[number].take_run(run)
            self.found.append(self._tell(phase.program, block, first + run, rank, begin))
            phase.write_report(rank, block, np.array([begin]), first + run)

    def _tell(self, program: Program, block: Block, step: int, rank: int, at: int) -> Truth:
        """Tell of one that begins its program at true time ``at``."""
        index = program.all_of(Kind.COLLECTIVE, Kind.MPI)[0]
        op = program.ops[index]
        if op.mpi:
            comm = make_uid(self.cluster.grid.members(op.mpi.team, rank), op.mpi.team)
            told = _describe("MPI", step, rank, op.mpi.function, comm)
        else:
            comm = self.cluster.communicator(op.payload.group, rank).hash
            told = _describe("NCCL", step, rank, op.payload.function, comm)
        edges = (
            at + round(float(edge[0, rank, index]))
            for edge in (block.host if op.mpi else block.gpu)
        )
        return told | dict(zip(("begin", "end"), edges, strict=True))
