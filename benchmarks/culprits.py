"""Whether `job.findings()` names the right culprit: jobs of the sample generator with one fault put
in each.

    python benchmarks/culprits.py                 some jobs of each fault (about a minute)
    python benchmarks/culprits.py --seeds 20      more of them
    python benchmarks/culprits.py --payload none  where NCCL's payloads were not recorded

A fault changes what the simulated machine does (its GPU, its host, its links, one moment of it),
never the reports: what is recorded is what a profiler would have seen.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

import nsys2prv

sys.path.append(str(Path(__file__).parents[1] / "tools"))
from samples import Options, generate, simulate
from samples.cluster import Group
from samples.program import Kind
from samples.timeline import Timeline


@dataclass(frozen=True)
class Fault:
    """What is wrong with a job."""

    # slow_gpu, slow_code, slow_host, slow_link, hiccup, exposed, none
    kind: str
    # whose fault it is; of a hiccup the first
    ranks: tuple[int, ...] = ()
    # by how much: a factor, or the length of a hiccup in ns
    amount: float = 1.0
    # steps in which a hiccup happens
    steps: tuple[int, ...] = ()


@dataclass
class Case:
    """A job and the fault in it."""

    # the size of the job, and its seed
    options: Options
    fault: Fault
    # kinds of findings that would be right to come first
    right: tuple[str, ...]
    # what came first
    found: list[nsys2prv.Finding] = field(default_factory=list)

    @property
    def hit(self) -> bool:
        """Whether who is named first is the culprit; of faults that are nobody's, whether the cause
        comes first and nobody is named.
        """
        named = [finding for finding in self.found if finding.ranks]
        if not self.fault.ranks:
            return not named and (not self.right or self.first)
        ranks = named[0].ranks if named and named[0].kind in self.right else ()
        return bool(ranks) and ranks[0] in self.fault.ranks and set(ranks) <= set(self.fault.ranks)

    @property
    def first(self) -> bool:
        """Whether nothing costs more than the fault."""
        return bool(self.found) and self.found[0].kind in self.right


def faulty(fault: Fault) -> type[Timeline]:
    """The machine with a fault."""

    class Faulty(Timeline):
        def __init__(self, program, cluster, options) -> None:
            super().__init__(program, cluster, options)
            self.is_step = any(op.kind is Kind.SYNC_STREAM for op in program.ops)
            self.number = 0
            ranks = list(fault.ranks)
            if fault.kind in ("slow_gpu", "slow_host"):
                self.gpu_speed[:, ranks] *= fault.amount
            elif fault.kind == "slow_code" and self.is_step:
                # Python that computes before it launches the work of a step, as a slow data loader
                # does.
                self.gap = np.repeat(self.gap[None, None, :], len(cluster.ranks), 1)
                self.gap[
                    :, ranks, np.flatnonzero([op.kind is Kind.SYNC_STREAM for op in program.ops])
                ] += fault.amount
                self.gap[:, ranks, 1] += fault.amount

        def run(self, rng, begin, delays=None):
            if fault.kind == "hiccup" and self.is_step:
                begin = begin.copy()
                for step in fault.steps:
                    if 0 <= step - self.number < len(begin):
                        begin[step - self.number, list(fault.ranks)] += fault.amount
                self.number += len(begin)
            return super().run(rng, begin, delays)

        def transfer_times(self, op, transfer):
            if fault.kind == "slow_link" and op.payload.function != "SendRecv":
                slow = [
                    list(comm.ranks)
                    for comm in self.cluster.all_of(op.payload.group)
                    if set(comm.ranks) == set(fault.ranks)
                ]
                for ranks in slow:
                    transfer = transfer.copy()
                    transfer[:, ranks] *= fault.amount
            elif (
                fault.kind == "exposed"
                and op.payload.group is Group.WORLD
                and op.payload.function != "SendRecv"
            ):
                transfer = transfer * fault.amount
            return transfer

    return Faulty


@contextmanager
def machine_with(fault: Fault):
    """Lets the generator simulate a machine with a fault."""
    usual, simulate.Timeline = simulate.Timeline, faulty(fault)
    try:
        yield
    finally:
        simulate.Timeline = usual


def judged(case: Case, folder: Path) -> Case:
    """The case with what is found in its job."""
    with machine_with(case.fault):
        generate(folder, case.options)
    reports = [folder / f"rank{rank}.sqlite" for rank in range(case.options.ranks)]
    with nsys2prv.open(reports, jobs=1, quiet=True) as job:
        case.found = job.findings()
    return case


def _job(rng: np.random.Generator, ranks: int, **more: object) -> Options:
    hosts = max(2, ranks // 8) if ranks > 2 else 2
    return Options(
        ranks=ranks,
        hosts=hosts,
        steps=int(rng.integers(10, 24)),
        layers=2,
        seed=int(rng.integers(1 << 30)),
        skew_us=float(rng.choice([20.0, 60.0, 250.0])),
        **more,
    )


def _slow_gpu(rng: np.random.Generator, ranks: int) -> Case:
    return Case(
        _job(rng, ranks),
        Fault("slow_gpu", (int(rng.integers(ranks)),), rng.uniform(1.2, 1.7)),
        ("straggler",),
    )


def _slow_code(rng: np.random.Generator, ranks: int) -> Case:
    return Case(
        _job(rng, ranks),
        Fault("slow_code", (int(rng.integers(ranks)),), rng.uniform(4e5, 2e6)),
        ("straggler",),
    )


def _slow_host(rng: np.random.Generator, ranks: int) -> Case:
    options = _job(rng, ranks)
    host, each = int(rng.integers(options.hosts)), options.gpus_per_host
    return Case(
        options,
        Fault("slow_host", tuple(range(host * each, (host + 1) * each)), rng.uniform(1.2, 1.7)),
        ("slow_host",),
    )


def _slow_link(rng: np.random.Generator, ranks: int) -> Case:
    options = _job(rng, ranks)
    host, each = int(rng.integers(options.hosts)), options.gpus_per_host
    return Case(
        options,
        Fault("slow_link", tuple(range(host * each, (host + 1) * each)), rng.uniform(6, 12)),
        ("slow_link",),
    )


def _hiccup(rng: np.random.Generator, ranks: int) -> Case:
    options = _job(rng, ranks)
    step = int(rng.integers(2, options.steps - 1))
    return Case(
        options,
        Fault("hiccup", (int(rng.integers(ranks)),), rng.uniform(1e7, 4e7), (step,)),
        ("hiccup",),
    )


def _exposed(rng: np.random.Generator, ranks: int) -> Case:
    return Case(
        _job(rng, ranks), Fault("exposed", (), rng.uniform(60, 100)), ("exposed_communication",)
    )


def _balanced(rng: np.random.Generator, ranks: int) -> Case:
    return Case(_job(rng, ranks), Fault("none"), ())


def _start_up(rng: np.random.Generator, ranks: int) -> Case:
    """A slow rank in a job of few steps, of which start-up is nearly all."""
    case = _slow_gpu(rng, ranks)
    case.options = Options(**{**case.options.__dict__, "steps": 8})
    return case


CASES: dict[str, Callable[[np.random.Generator, int], Case]] = {
    "slow GPU": _slow_gpu,
    "slow code": _slow_code,
    "slow host": _slow_host,
    "slow link": _slow_link,
    "hiccup": _hiccup,
    "exposed phase": _exposed,
    "balanced": _balanced,
    "start-up": _start_up,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="jobs of each fault and size"
    )
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[4, 8], metavar="N", help="sizes of jobs"
    )
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="the first seed")
    parser.add_argument(
        "--payload", default="both", metavar="HOW", help="how reports have NCCL's payloads"
    )
    parser.add_argument("--only", choices=CASES, help="one fault alone")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every finding")
    options = parser.parse_args()
    hits = firsts = total = 0
    for name in [options.only] if options.only else CASES:
        began, right, count = time.perf_counter(), 0, 0
        for ranks in options.ranks:
            for seed in range(options.first, options.first + options.seeds):
                case = CASES[name](np.random.default_rng([seed, ranks]), ranks)
                case.options = replace(case.options, payload=options.payload)
                with tempfile.TemporaryDirectory() as folder:
                    case = judged(case, Path(folder))
                right, count = right + case.hit, count + 1
                firsts += case.first or not case.right
                if options.verbose or not case.hit:
                    print(
                        f"  {'right' if case.hit else 'WRONG'}: {ranks} ranks, seed {seed}, {case.fault}"
                    )
                    for finding in case.found[:3]:
                        print(
                            f"    {finding.kind} {finding.share:.1%} {finding.ranks}: {finding.title}"
                        )
        hits, total = hits + right, total + count
        print(f"{name}: {right} of {count} ({time.perf_counter() - began:.0f} s)", flush=True)
    print(f"the right one named first: {hits} of {total}; nothing costs more: {firsts} of {total}")


if __name__ == "__main__":
    main()
