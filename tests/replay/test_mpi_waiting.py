"""Test MPI jobs with a late rank: it is named with its cost, whatever calls the others wait in."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tools.mpi_jobs import LATENCY, MS, Job, Protocols, Rank, Steps

import nsys2prv
from nsys2prv.figures.result import Gain
from nsys2prv.match.meetings import list_messages
from nsys2prv.match.mpi_protocols import LOCAL, NEEDS_CALL, RENDEZVOUS

STEPS, RANKS, LATE = 12, 6, 1
#: What a rank does after its work of a step, by patterns.
Pattern = Callable[[Rank, int, int], Steps]


def reduce_small(rank: Rank, left: int, right: int) -> Steps:
    root = rank.number == 0
    yield from rank.meet("MPI_Reduce", lambda one: root, root=0, size=800)


def reduce_large(rank: Rank, left: int, right: int) -> Steps:
    yield from rank.meet("MPI_Reduce", lambda one: one > 0, root=0, size=400_000)


def bcast(rank: Rank, left: int, right: int) -> Steps:
    root = rank.number == LATE
    yield from rank.meet("MPI_Bcast", lambda one: not root and one == LATE, root=LATE, size=800)


def alltoall(rank: Rank, left: int, right: int) -> Steps:
    yield from rank.meet("MPI_Alltoall", lambda one: True, size=800)


def ring(size: int) -> Pattern:
    def step(rank: Rank, left: int, right: int) -> Steps:
        yield from rank.sendrecv(right, left, size)

    return step


def recv_barrier(rank: Rank, left: int, right: int) -> Steps:
    if rank.number == LATE:
        for one in range(len(rank.job.ranks)):
            if one != LATE:
                yield from rank.send(one, 800)
    else:
        yield from rank.recv(LATE, 800)
    yield from rank.barrier()


def gather(rank: Rank, left: int, right: int) -> Steps:
    others = range(1, len(rank.job.ranks))
    if rank.number:
        yield from rank.send(0, 800)
        yield from rank.recv(0, 800)
    else:
        for one in others:
            yield from rank.recv(one, 800)
        for one in others:
            yield from rank.send(one, 800)


def irecv_send_wait(name: str, size: int) -> Pattern:
    def step(rank: Rank, left: int, right: int) -> Steps:
        request = yield from rank.start("MPI_Irecv", left, size)
        yield from rank.send(right, size, name)
        yield from rank.wait(request, name="MPI_Wait")

    return step


def waitall(size: int) -> Pattern:
    def step(rank: Rank, left: int, right: int) -> Steps:
        receive = yield from rank.start("MPI_Irecv", left, size)
        send = yield from rank.start("MPI_Isend", right, size)
        yield from rank.wait(send, receive)

    return step


def waits(size: int) -> Pattern:
    def step(rank: Rank, left: int, right: int) -> Steps:
        receive = yield from rank.start("MPI_Irecv", left, size)
        send = yield from rank.start("MPI_Isend", right, size)
        yield from rank.wait(send, name="MPI_Wait")
        yield from rank.wait(receive, name="MPI_Wait")

    return step


def pipeline(size: int) -> Pattern:
    def step(rank: Rank, left: int, right: int) -> Steps:
        if right:
            yield from rank.send(right, size)
        if rank.number:
            yield from rank.recv(left, size)

    return step


def polls(rank: Rank, left: int, right: int) -> Steps:
    receive = yield from rank.start("MPI_Irecv", left, 8)
    yield from rank.send(right, 8)
    yield from rank.poll(receive)


def scan(rank: Rank, left: int, right: int) -> Steps:
    yield from rank.meet("MPI_Scan", lambda one: one <= rank.number, size=800)


def post_start(rank: Rank, left: int, right: int) -> Steps:
    """Open an epoch with either neighbour, as in a ring."""
    done = rank.job.epochs
    for name, awaited in (
        ("post", None), ("start", ("post", right)), ("complete", None), ("wait", ("complete", left)),
    ):  # fmt: skip
        own = done.setdefault((name, rank.number), [])
        own.append(rank.now)
        place = len(own) - 1

        def is_done(
            now: int = rank.now, awaited: object = awaited, place: int = place
        ) -> int | None:
            times = done.get(awaited, []) if awaited else [now] * (place + 1)
            return times[place] + LATENCY if len(times) > place else None

        yield from rank.call(f"MPI_Win_{name}", "MPI_OTHER_EVENTS", is_done)


PATTERNS: dict[str, Pattern] = {
    "scan": scan,
    "post, start": post_start,
    "barrier": lambda rank, left, right: rank.barrier(),
    "alltoall": alltoall,
    "bcast": bcast,
    "reduce, little data": reduce_small,
    "reduce, much data": reduce_large,
    "recv, barrier": recv_barrier,
    "gather": gather,
    "ring, much data": ring(400_000),
    "ring, needs a call": ring(2000),
    "ring, little data": ring(8),
    "irecv, send, wait": irecv_send_wait("MPI_Send", 400_000),
    "ssend": irecv_send_wait("MPI_Ssend", 8),
    "waitall": waitall(400_000),
    "waits": waits(8000),
    "tests in a loop": polls,
    "pipeline, much data": pipeline(8000),
    "pipeline, little data": pipeline(8),
}


def run_job(
    pattern: Pattern,
    work: Callable[[int, int], float],
    ranks: int = RANKS,
    steps: int = STEPS,
    **network: Any,
) -> Job:
    """Run a job. work: of a rank in a step (ms); network: as of Job."""

    def program(rank: Rank) -> Steps:
        left, right = (rank.number - 1) % ranks, (rank.number + 1) % ranks
        for step in range(steps):
            yield from rank.work(
                int(work(rank.number, step) * MS * (1 + 0.01 * ((7 * rank.number + 3 * step) % 5)))
            )
            yield from pattern(rank, left, right)

    return Job(ranks, Protocols(), program, **network)


def list_gains(job: Job, folder: Path) -> list[Gain]:
    """Return the findings of a job that are no limits."""
    job.write(folder)
    with nsys2prv.open(folder, quiet=True, jobs=1) as opened:
        return [one for one in opened.findings() if isinstance(one, Gain)]


@pytest.mark.parametrize("name", PATTERNS)
def test_a_late_rank_is_named_with_its_gain(name: str, tmp_path: Path) -> None:
    late = run_job(PATTERNS[name], lambda rank, _: 60 if rank == LATE else 20)
    usual = run_job(PATTERNS[name], lambda *_: 20)
    found = list_gains(late, tmp_path / "late")
    assert [(one.kind, one.ranks) for one in found] == [("straggler", (LATE,))]
    assert found[0].share == pytest.approx(1 - usual.length / late.length, rel=0.1)
    assert not list_gains(usual, tmp_path / "usual")


@pytest.mark.parametrize("name", ["barrier", "ring, much data", "waitall"])
def test_ranks_that_are_late_in_turn_are_not_accused(name: str, tmp_path: Path) -> None:
    """Who waits for whom less often is as fast as if each step were balanced."""
    job = run_job(PATTERNS[name], lambda rank, step: 60 if step % RANKS == rank else 20)
    alone = STEPS * (20 + 40 / RANKS) * MS
    (found,) = list_gains(job, tmp_path)
    assert (found.kind, found.ranks) == ("imbalance", ())
    assert found.share == pytest.approx(1 - alone / job.length, rel=0.2)
    assert "less often" in found.advice


@pytest.mark.parametrize("seed", [14, 16])
def test_load_that_comes_and_goes_accuses_nobody(seed: int, tmp_path: Path) -> None:
    """On a machine with other load a rank is slow for some steps in a row: one of a few is always slowest in all."""
    rng = np.random.default_rng(seed)
    load = rng.standard_normal((RANKS, STEPS * 4))
    for step in range(1, STEPS * 4):
        load[:, step] = 0.8 * load[:, step - 1] + 0.6 * load[:, step]
    times = 20 * np.exp(0.6 * load)
    job = run_job(PATTERNS["barrier"], lambda rank, step: times[rank, step], steps=STEPS * 4)
    assert not [one for one in list_gains(job, tmp_path) if one.ranks]


def test_who_sends_little_data_goes_ahead(tmp_path: Path) -> None:
    """Ranks that are late in turn do not hold each other up where sends are local."""
    lengths = [
        run_job(PATTERNS[name], lambda rank, step: 60 if step % RANKS == rank else 20).length
        for name in ("pipeline, little data", "pipeline, much data")
    ]
    assert lengths[0] < 0.8 * lengths[1]


def test_the_size_from_which_sends_wait_is_learnt(tmp_path: Path) -> None:
    """A receiver that is late in MPI, and later with its receive, tells three protocols apart."""

    def program(rank: Rank) -> Steps:
        for size in (8, 100, 1000, 3000, 20_000, 50_000) * 4:
            if rank.number == 0:
                yield from rank.send(1, size)
            else:
                yield from rank.work(2 * MS)
                yield from rank.meet("MPI_Bcast", lambda _: False, root=1)
                yield from rank.work(2 * MS)
                yield from rank.recv(0, size)
            yield from rank.barrier()
            if rank.number == 0:
                yield from rank.meet("MPI_Bcast", lambda _: False, root=1)

    Job(2, Protocols(local=500, inside=9000), program).write(tmp_path)
    with nsys2prv.open(tmp_path, quiet=True, jobs=1) as job:
        messages = list_messages(job.reader)
    assert dict(messages.select("bytes", "protocol").unique().rows()) == {
        8: LOCAL, 100: LOCAL, 1000: NEEDS_CALL, 3000: NEEDS_CALL, 20_000: RENDEZVOUS, 50_000: RENDEZVOUS,
    }  # fmt: skip
    assert messages["learnt"].all()
    waits = (
        messages.group_by("protocol")
        .agg(pl.col("late_receiver", "late_sender").mean())
        .sort("protocol")
    )
    assert (waits["late_receiver"] / MS).round(1).to_list() == [0.0, 2.0, 5.0]
    assert waits["late_sender"].to_list() == [0, 0, 0]


@pytest.mark.parametrize(
    ("slow", "per_host"), [((2, 3), 1), ((3, 4), 2), ((1, 2), RANKS), ((2,), 1), ((), 1)]
)
def test_a_slow_link_is_named_by_its_pair_or_rank(
    slow: tuple[int, ...], per_host: int, tmp_path: Path
) -> None:
    """Neighbours of a stencil exchange data; between two ranks, or to and from one, they move six times as slowly."""

    def is_slow(source: int, to: int) -> bool:
        return {source, to} == {*slow} if len(slow) > 1 else bool({source, to} & {*slow})

    def exchange(rank: Rank, left: int, right: int) -> Steps:
        requests = []
        for name in ("MPI_Irecv", "MPI_Isend"):
            for other in (left, right):
                requests.append((yield from rank.start(name, other, 10_000_000)))
        yield from rank.wait(*requests)

    def run(slower: Callable[[int, int], float]) -> Job:
        return run_job(exchange, lambda *_: 2, slower=slower, per_host=per_host)

    job, usual = run(lambda *ends: 6 if is_slow(*ends) else 1), run(lambda *_: 1)
    found = [one for one in list_gains(job, tmp_path) if one.ranks]
    assert [(one.kind, one.ranks) for one in found] == [("slow_link", slow)] * bool(slow)
    for one in found:
        assert one.share == pytest.approx(1 - usual.length / job.length, rel=0.1)
