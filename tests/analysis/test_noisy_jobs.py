"""Test which rank is blamed in jobs whose ranks draw different kernels with different durations,
and pause at random: a rank that is a few percent slower in all its work, or none.
"""

from pathlib import Path

import numpy as np
import pytest
from tools.exports import (
    make_call,
    make_export,
    make_global_pid,
    make_global_tid,
    make_host,
    make_nvtx_range,
    make_strings,
)
from tools.nccl_exports import Rank, format_payload

import nsys2prv
from nsys2prv.figures.result import Finding

RANKS, STEPS, US = 16, 30, 1_000
#: What kernels last (ns), in the middle.
KERNELS = np.array([90, 95, 100, 105, 110]) * US
NAMES = (*Rank().names, *(f"kernel_{number}" for number in range(5)), "cudaStreamSynchronize_v3020")
MPI_NAMES = ("MPI_Init", "MPI_Finalize", "MPI_Allreduce", "python")
TRANSFER = 30 * US


class Draw:
    """The work of each rank in each step: pauses of its host (ns), then kernels (numbers, ns)."""

    def __init__(self, seed: int, tail: float = 0, noise: float = 0.03) -> None:
        """Set up the draws. tail: of the pauses, if they are heavy-tailed."""
        random = np.random.default_rng(seed)
        shape, pauses = (RANKS, STEPS), 0.1 if tail else 0.03
        lasts = random.pareto(tail, shape) if tail else random.exponential(2, shape)
        self.pause = 20 * US + (random.random(shape) < pauses) * 100 * US * lasts
        self.kernels = [
            [random.integers(0, len(KERNELS), 20) for _ in range(STEPS)] for _ in range(RANKS)
        ]
        self.times = [
            [KERNELS[own] * np.exp(random.normal(0, noise, len(own))) for own in steps]
            for steps in self.kernels
        ]
        self.slow, self.slower = int(random.integers(RANKS)), 1.0

    def list_times(self, rank: int, step: int) -> np.ndarray:
        slower = self.slower if rank == self.slow else 1.0
        return (self.times[rank][step] * slower).astype(np.int64)

    def measure(self) -> int:
        """Return how long all steps last (ns)."""
        work = [
            [self.pause[rank][step] + self.list_times(rank, step).sum() for step in range(STEPS)]
            for rank in range(RANKS)
        ]
        return int((np.max(work, axis=0) + TRANSFER).sum())

    def measure_gain(self) -> float:
        """Return the savings without the slow rank, by a rerun."""
        with_slow, slower = self.measure(), self.slower
        self.slower = 1.0
        gain = 1 - self.measure() / with_slow
        self.slower = slower
        return gain


def write_gpu_job(folder: Path, draw: Draw) -> list[Path]:
    """Write a job whose ranks launch kernels and one collective of NCCL, and wait for them."""
    ranks = [Rank(10 + rank, f"node{rank // 4}", NAMES) for rank in range(RANKS)]
    now = np.full(RANKS, 100 * US)
    for step in range(STEPS):
        begins, frees = now.copy(), np.zeros(RANKS, np.int64)
        for number, rank in enumerate(ranks):
            launch = int(now[number] + draw.pause[number][step])
            free = launch + 4 * US
            kernels = draw.kernels[number][step].tolist()
            for name, lasts in zip(kernels, draw.list_times(number, step).tolist(), strict=True):
                rank.add_kernel(launch, free, free + lasts, 5 + name)
                launch, free = launch + 1 * US, free + lasts + 1 * US
            now[number], frees[number] = launch, free
        end = int(frees.max()) + TRANSFER
        for number, rank in enumerate(ranks):
            thread = {"globalTid": make_global_tid(rank.pid, rank.pid)}
            launch = int(now[number])
            rank.add_collective(launch, int(frees[number]), end, format_payload(7, 4096))
            left = end + 5 * US
            rank.calls.append(make_call(launch + 2 * US, left, 0, nameId=len(NAMES), **thread))
            step_range = make_nvtx_range(int(begins[number]), left, f"step {step}", **thread)
            rank.nvtx.append(step_range)
            now[number] = left
    return [rank.write(folder / f"rank{number}.sqlite") for number, rank in enumerate(ranks)]


def write_mpi_job(folder: Path, draw: Draw) -> list[Path]:
    """Write a job without GPUs whose ranks do the same work between collectives of MPI."""
    reports, now = [], 100 * US
    arrivals, leaves = np.zeros((RANKS, STEPS), np.int64), []
    for step in range(STEPS):
        for rank in range(RANKS):
            work = draw.list_times(rank, step).sum() + draw.pause[rank][step]
            arrivals[rank, step] = now + work
        now = int(arrivals[:, step].max()) + TRANSFER
        leaves.append(now)
    for rank in range(RANKS):
        pid, host = 10 + rank, 1 + rank // 4
        thread = make_global_tid(pid, pid, host)

        def make_row(name: int, start: int, end: int, thread: int = thread) -> dict[str, int]:
            return {"start": start, "end": end, "globalTid": thread, "textId": name}

        calls = zip(arrivals[rank].tolist(), leaves, strict=True)
        ends = [make_row(1, 0, 100 * US), make_row(2, now, now + 50 * US)]
        tables = {
            "StringIds": make_strings(*MPI_NAMES),
            "MPI_RANKS": [{"globalTid": thread, "rank": rank}],
            "PROCESSES": [{"globalPid": make_global_pid(pid, host), "name": "python"}],
            "MPI_OTHER_EVENTS": ends,
            "MPI_COLLECTIVES_EVENTS": [make_row(3, *times) for times in calls],
            **make_host(f"node{host}"),
        }
        reports.append(make_export(folder / f"rank{rank}.sqlite", tables))
    return reports


WRITERS = {"nccl": write_gpu_job, "mpi": write_mpi_job}


def list_blamed(folder: Path, kind: str, draw: Draw) -> list[Finding]:
    """Return the findings that name ranks."""
    with nsys2prv.open(WRITERS[kind](folder, draw), align="none", jobs=1, quiet=True) as job:
        return [finding for finding in job.findings() if finding.ranks]


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("slower", [1.05, 1.08])
def test_a_rank_that_is_slower_in_all_its_work_is_named(
    kind: str, slower: float, tmp_path: Path
) -> None:
    draw = Draw(1)
    draw.slower = slower
    (blamed,) = list_blamed(tmp_path, kind, draw)
    assert blamed.ranks == (draw.slow,)
    assert blamed.share == pytest.approx(draw.measure_gain(), rel=0.25)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(("seed", "tail"), [(2, 0), (4, 1.3)])
def test_nobody_is_blamed_where_nobody_is_slower(
    kind: str, seed: int, tail: float, tmp_path: Path
) -> None:
    assert not list_blamed(tmp_path, kind, Draw(seed, tail))


def test_a_rank_is_not_blamed_for_what_balancing_gains(tmp_path: Path) -> None:
    """In each step another rank has twice the work; rank 2 is slower by a fifth. It is told what it costs
    by itself, not what it would save of all that is uneven.
    """
    count, work = 4, 1_000 * US
    ranks = [Rank(10 + number, names=NAMES) for number in range(count)]
    now, lasts, without = 100 * US, 0, 0
    for step in range(16):
        heavy = {number: work * (1 + (step % count == number)) for number in range(count)}
        without += max(heavy.values())
        heavy[2] += heavy[2] // 5
        lasts += max(heavy.values())
        end = now + 10 * US + max(heavy.values()) + TRANSFER
        for number, rank in enumerate(ranks):
            free = now + 10 * US + heavy[number]
            rank.add_kernel(now + 1 * US, now + 10 * US, free, 5)
            rank.add_collective(now + 3 * US, free, end, format_payload(7, 4096))
            thread = {"globalTid": make_global_tid(rank.pid, rank.pid)}
            rank.calls.append(
                make_call(now + 40 * US, end + 5 * US, 0, nameId=len(NAMES), **thread)
            )
            rank.nvtx.append(make_nvtx_range(now, end + 6 * US, f"step {step}", **thread))
        now = end + 10 * US
    reports = [rank.write(tmp_path / f"rank{number}.sqlite") for number, rank in enumerate(ranks)]
    with nsys2prv.open(reports, align="none", jobs=1) as job:
        found = {finding.kind: finding for finding in job.findings()}
    assert [*found] == ["imbalance", "straggler"]
    assert found["straggler"].ranks == (2,)
    assert found["straggler"].share == pytest.approx(1 - without / lasts, abs=0.01)
