"""Delay the job: a rank is late in every step, one stops once."""

from __future__ import annotations

import numpy as np

from .cluster import Cluster, Ints
from .data import DATA, KERNELS
from .options import Options
from .program import FP32, Kind, Program
from .report import Truth
from .timeline import Block, Floats


class Causes:
    """Delays hosts: a rank is late in every step, one stops once. Keeps the cost of that, exposed
    communication, and a GEMM without Tensor Cores.
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
        """Record the work of steps that begin at ``epochs`` (true ns); the first is step ``first``, or no
        step.
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
        """Describe the delays of the job; empty without any."""
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
