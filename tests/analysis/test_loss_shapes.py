"""Test the shape of a loss: constant, for a while, every n-th iteration, growing, or in one kernel;
and work that only one rank has. The times are made by hand.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tools.exports import make_call, make_nvtx_range
from tools.nccl_exports import COMM, Rank, format_payload

import nsys2prv
from nsys2prv.figures.result import Finding
from nsys2prv.verdict.loss_shape import classify_losses

RANKS, STEPS, KERNELS = 4, 13, 8
WORK, PAUSE, LATENCY = 500_000, 200_000, 20_000
ADD, MULTIPLY, SYNCHRONIZE, LOAD = 5, 6, 7, 8
NAMES = (
    *Rank().names,
    "add_one",
    "multiply_two",
    "cudaStreamSynchronize_v3020",
    "cuModuleLoadData",
)
#: Step and kernel of the late rank -> how long it lasts (ns), step -> how long the host pauses (ns).
Lasts = Callable[[int, int], float]
Pauses = Callable[[int], float]


def list_findings(
    folder: Path,
    lasts: Lasts = lambda step, kernel: WORK,
    pauses: Pauses = lambda step: PAUSE,
    own: Pauses = lambda step: 0,
    loads: Pauses = lambda step: 0,
    waits: int = 0,
) -> list[Finding]:
    """Return the findings of a job whose rank 2 is different. own: how long a kernel lasts that only it
    has, loads: how long it loads code; ns by step. waits: it waits for each kernel, and goes on so long after.
    """
    ranks, free, random = [], np.zeros(RANKS), np.random.default_rng(1)
    for number in range(RANKS):
        rank = Rank(10 + number, names=NAMES)
        payload = f'{{"{COMM}":7,"No. of ranks":{RANKS},"Rank":{number}}}'
        ranks.append(rank.add_range(1, 2, "ncclCommInitRank", jsonText=payload))
    begin = 100_000
    for step in range(STEPS):
        launches = []
        for number, rank in enumerate(ranks):
            thread, is_late = {"globalTid": rank.nvtx[0]["globalTid"]}, number == 2
            at = begin + int(pauses(step) if is_late else PAUSE)
            if is_late and loads(step):
                rank.calls.append(make_call(at, at + int(loads(step)), 0, nameId=LOAD, **thread))
                at += int(loads(step)) + 2_000
            free[number] = at + 10_000
            kernels = [(ADD + k % 2, lasts(step, k) if is_late else WORK) for k in range(KERNELS)]
            kernels += [(2, own(step))] * bool(is_late and own(step))
            for name, long in kernels:
                end = free[number] + long * random.normal(1, 0.001)
                rank.add_kernel(at, int(free[number]), int(end), name)
                free[number], at = end + 1_000, at + 1_000
                if is_late and waits:
                    until = int(end) + waits
                    rank.calls.append(make_call(at, until, 0, nameId=SYNCHRONIZE, **thread))
                    at, free[number] = until + 1_000, until + 11_000
            launches.append(at)
        end = int(free.max()) + LATENCY
        for number, rank in enumerate(ranks):
            at, thread = launches[number], {"globalTid": rank.nvtx[0]["globalTid"]}
            rank.add_collective(at, int(free[number]), end, format_payload(7, 4096))
            until = end + 5_000
            rank.calls.append(make_call(at + 3_000, until, 0, nameId=SYNCHRONIZE, **thread))
            rank.nvtx.append(make_nvtx_range(begin, until, f"step {step}", **thread))
        begin = end + 5_000
    reports = [rank.write(folder / f"rank{number}.sqlite") for number, rank in enumerate(ranks)]
    with nsys2prv.open(reports, align="none", jobs=1) as job:
        return job.findings()


def get_first(found: list[Finding]) -> Finding:
    """Return the first finding, which is the only one that names a rank, and names rank 2."""
    assert found[0].ranks == (2,)
    assert not any(one.ranks for one in found[1:])
    return found[0]


def test_nobody_is_named_where_all_ranks_are_alike(tmp_path: Path) -> None:
    assert not any(one.ranks for one in list_findings(tmp_path))


@pytest.mark.parametrize(
    ("lasts", "says", "advice", "loss"),
    [
        (lambda step, kernel: 1.2 * WORK, "kernels run 20.0% longer than on other ranks", "Compare clocks", 0.2 * KERNELS * 12),
        (lambda step, kernel: WORK * (1.4 if 4 <= step < 7 else 1), "in 3 consecutive iterations of 12", "at that time", 0.4 * KERNELS * 3),
        (lambda step, kernel: WORK * (1.3 if step > 6 else 1), "in the last 6 of 12 iterations", "at that time", 0.3 * KERNELS * 6),
        (lambda step, kernel: WORK * (1 + step / 20), "growing", "at that time", KERNELS * 78 / 20),
        (lambda step, kernel: WORK * (1.5 if kernel % 2 else 1), "mainly multiply_two, run 50.0% longer than on other ranks; other kernels do not, which indicates more work", "equal work in this kernel", 0.5 * KERNELS / 2 * 12),
    ],
    ids=["always", "for a while", "from then on", "growing", "one kernel"],
)  # fmt: skip
def test_kernels_that_are_longer(
    lasts: Lasts, says: str, advice: str, loss: float, tmp_path: Path
) -> None:
    first = get_first(list_findings(tmp_path, lasts))
    assert says in first.title
    assert advice in first.advice
    whole = 12 * (KERNELS * (WORK + 1_000) + PAUSE + LATENCY + 15_000) + loss * WORK
    # What is longer in some kernels alone has to be done by all.
    gone = 1 - 1 / RANKS if "more work" in first.title else 1
    assert first.share == pytest.approx(gone * loss * WORK / whole, rel=0.05)


@pytest.mark.parametrize(
    ("pauses", "says", "advice", "loss"),
    [
        (lambda step: 2_000_000 * (step % 4 == 3), "2.00 ms longer than on other ranks, in every 4th of 12 iterations", "periodic work", 3),
        (lambda step: 100_000 * step, "growing", "the data that grows", 3.9),
        (lambda step: 1_200_000 * (4 <= step < 8), "in 4 consecutive iterations of 12", "", 2.4),
    ],
    ids=["every", "growing", "for a while"],
)  # fmt: skip
def test_hosts_that_pause(
    pauses: Pauses, says: str, advice: str, loss: float, tmp_path: Path
) -> None:
    first = get_first(list_findings(tmp_path, pauses=lambda step: PAUSE + pauses(step)))
    assert says in first.title
    assert advice in first.advice
    whole = 12 * (KERNELS * (WORK + 1_000) + PAUSE + LATENCY + 15_000) + loss * 2_000_000
    assert first.share == pytest.approx(loss * 2_000_000 / whole, rel=0.05)


def test_a_kernel_that_one_rank_has_alone(tmp_path: Path) -> None:
    first = get_first(list_findings(tmp_path, own=lambda step: WORK))
    assert "has work that other ranks do not have, mostly in kernel" in first.title
    assert first.what_if == "rank 2: no own gpu work"
    assert first.share == pytest.approx(1 / (KERNELS + 1.48), rel=0.05)


def test_code_that_one_rank_loads_once(tmp_path: Path) -> None:
    first = get_first(list_findings(tmp_path, loads=lambda step: 8_000_000 * (step == 5)))
    assert "mostly in cuModuleLoadData, in one of 12 iterations" in first.title
    assert first.share == pytest.approx(8.0 / (8.0 + 12 * 4.243), rel=0.05)


def test_calls_that_one_rank_makes_alone(tmp_path: Path) -> None:
    """Check that such calls are named by their kind, and not compared."""
    found = list_findings(tmp_path, loads=lambda step: 400_000)
    assert "cuModuleLoadData" in " ".join((found[0].title, *found[0].evidence))
    assert get_first(found).share == pytest.approx(0.4 / 4.643, rel=0.05)


def test_a_rank_that_waits_for_each_of_its_kernels(tmp_path: Path) -> None:
    """All wait at the end of a step, in the same call."""
    first = get_first(list_findings(tmp_path, waits=40_000))
    assert "more often than other ranks, mostly in cudaStreamSynchronize" in first.title
    assert first.share == pytest.approx(0.4 / 4.643, rel=0.05)


@pytest.mark.parametrize(
    ("losses", "kind"),
    [
        ([10, 11, 9, 10, 12, 8, 10, 11, 9], "each"),
        ([0, 0, 0, 10, 0, 0, 0, 10, 0, 0, 0, 10], "every"),
        ([0, 0, 9, 10, 11, 0, 0, 0, 0, 0], "while"),
        ([0, 0, 0, 0, 0, 10, 11, 10, 9, 10], "since"),
        ([0, 0, 0, 0, 90, 0, 0, 1, 0, 0], "once"),
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0], "growing"),
        ([0, 9, 0, 0, 7, 8, 0, 3, 0, 0, 0, 10], "some"),
        ([1, 2, 3], ""),
        ([0, 0, 0, 0, 0, 0], ""),
    ],
)
def test_shapes(losses: list[int], kind: str) -> None:
    assert classify_losses(np.array(losses) * 1_000_000).kind == kind
