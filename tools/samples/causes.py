"""What is put into a job to hold it back, and the truth of it: a rank that is late in every step,
one that stops once, communication that nothing hides, a GEMM that misses the tensor cores.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .cluster import Cluster, Ints
from .data import DATA, KERNELS
from .options import Options
from .program import Kind, Program
from .timeline import Block, Floats

FP32 = "gemm_fp32"


def scales_of(options: Options) -> dict[str, float]:
    """How long kernels last, as a multiple; by key, and of all others that compute by ""."""
    return {"": options.work, FP32: options.fp32_work}


class Causes:
    """Holds hosts up, and keeps what that and the rest of the job cost."""

    def __init__(self, options: Options, cluster: Cluster) -> None:
        self.options, self.cluster = options, cluster
        self.random = np.random.default_rng([options.seed, 7])
        self.late: list[float] = []  # ns, by step
        self.hiccup: dict[str, Any] = {}
        #: Begins and ends (true ns) of computing kernels and of NCCL's, by rank.
        self.compute: list[list[Ints]] = [[] for _ in cluster.ranks]
        self.nccl: list[list[Ints]] = [[] for _ in cluster.ranks]
        self.fp32 = [0.0] * len(cluster.ranks)

    def delays(self, first: int, runs: int) -> dict[str, Floats]:
        """For how long hosts are held up (run, rank; ns), by mark of the step's program."""
        options, held = self.options, {}
        if options.late_rank is not None:
            late = options.late_us * 1e3 * self.random.uniform(0.8, 1.2, runs)
            self.late += late.tolist()
            held["late"] = np.zeros((runs, options.ranks))
            held["late"][:, options.late_rank] = late
        if options.hiccup_rank is not None and first <= options.hiccup_step < first + runs:
            held["hiccup"] = np.zeros((runs, options.ranks))
            step = options.hiccup_step - first
            held["hiccup"][step, options.hiccup_rank] = options.hiccup_us * 1e3
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
                edges = [
                    (epochs[:, None] + times[:, rank, works]).ravel()
                    for times in (block.gpu_begin, block.gpu_end)
                ]
                kept[rank].append(np.rint(np.stack(edges, axis=1)).astype(np.int64))
            spent = block.gpu_end[:, rank, single] - block.gpu_begin[:, rank, single]
            self.fp32[rank] += float(spent.sum())
        if options.hiccup_rank is not None and first <= options.hiccup_step < first + len(epochs):
            run, place = options.hiccup_step - first, program.marks["hiccup"]
            end = epochs[run] + block.host_begin[run, options.hiccup_rank, place]
            begin = end - options.hiccup_us * 1e3
            self.hiccup = {"rank": options.hiccup_rank, "step": options.hiccup_step}
            self.hiccup |= {"begin": round(begin), "end": round(end)}

    def truth(self) -> dict[str, Any]:
        """What holds the job back; nothing where nothing was put in."""
        if not self.options.has_causes:
            return {}
        ranks = [
            _shares(np.concatenate(compute), np.concatenate(nccl))
            for compute, nccl in zip(self.compute, self.nccl, strict=True)
        ]
        late = None
        if self.late:
            late = {"rank": self.options.late_rank, "range": "load_batch"}
            late |= {"mean_ns": round(float(np.mean(self.late))), "steps": len(self.late)}
        gemm = {"kernel": KERNELS[FP32].short, "ns": [round(ns) for ns in self.fp32]}
        causes = {"late": late, "hiccup": self.hiccup or None, "gemm_without_tensor_cores": gemm}
        return {"about_causes": DATA["about"]["causes"], "causes": {**causes, "ranks": ranks}}


def _shares(compute: Ints, nccl: Ints) -> dict[str, int]:
    """For how long a GPU did something, computed and communicated, and how much of the latter
    nothing hid; ns.
    """
    both = _covered(np.concatenate([compute, nccl]))
    computed = _covered(compute)
    communicated = _covered(nccl)
    first = min(compute[:, 0].min(), nccl[:, 0].min())
    return {
        "steps_ns": int(max(compute[:, 1].max(), nccl[:, 1].max()) - first),
        "busy_ns": both,
        "compute_ns": computed,
        "nccl_ns": communicated,
        "exposed_ns": both - computed,
    }


def _covered(spans: Ints) -> int:
    """For how long at least one of these spans lasts, ns."""
    spans = spans[np.argsort(spans[:, 0])]
    reached = np.concatenate([[spans[0, 0]], np.maximum.accumulate(spans[:, 1])[:-1]])
    return int(np.maximum(spans[:, 1] - np.maximum(spans[:, 0], reached), 0).sum())
