"""Test transfers between ranks: when data moves, and the savings if it arrives earlier or
faster."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tools.nccl_exports import Rank, format_payload

import nsys2prv
from nsys2prv._util.native import core
from nsys2prv.replay.path_bound import PathBound
from nsys2prv.replay.suspects import choose_culprit, list_suspects
from nsys2prv.replay.thresholds import LEAST_GAIN
from nsys2prv.replay.transfers import find_beside, list_slow_links, run_alone, send_as_others
from nsys2prv.replay.unequal_work import find_longer_lines, list_owners
from nsys2prv.replay.whatif import GPU, Replay

pytestmark = pytest.mark.skipif(core is None, reason="the replay needs the compiled core")
RANKS, STEPS = 4, 12
#: Until all is launched, between two operations of a stream, and of a message whatever its size (ns).
BEGIN, GAP, LATENCY = 1_000_000, 1_000, 10_000


def simulate(
    work: np.ndarray, sizes: np.ndarray, slow: tuple[int, ...] = (), sharing: int = 0
) -> np.ndarray:
    """Return begins and ends of the kernels of steps in which each rank works, then exchanges with those
    others to which it sends: (steps, ranks, 4). work: ns; sizes: bytes, each of which takes 1 ns,
    (steps, from, to); slow: pairs between which it takes 5 ns, one behind the other. sharing: so many
    ranks are on the first of two hosts, between which one link moves what has come, all at once.
    """
    ranks = work.shape[1]
    pace = np.ones((ranks, ranks))
    for one, other in zip(slow[::2], slow[1::2], strict=True):
        pace[[one, other], [other, one]] = 5
    found, free = np.zeros((STEPS, ranks, 4), np.int64), np.full(ranks, BEGIN)
    for step in range(STEPS):
        worked = free + work[step]
        come = worked + GAP
        both = (np.maximum(sizes[step], sizes[step].T) * pace).astype(np.int64)
        moved = np.maximum(come, come[:, None]) + LATENCY + both
        moved[both == 0] = 0
        if sharing:
            begun, link = np.maximum(come, come[:, None])[:sharing, sharing:], 0
            for at, lasts in sorted(zip(begun.flat, both[:sharing, sharing:].flat, strict=True)):
                link = max(link, at) + lasts
            moved[:sharing, sharing:] = moved[sharing:, :sharing] = link + LATENCY
        done = moved.max(axis=1)
        found[step] = np.stack([free, worked, come, done], axis=1)
        free = done + GAP
    return found


@contextmanager
def open_exchanges(
    folder: Path,
    work: np.ndarray,
    sizes: np.ndarray,
    slow: tuple[int, ...] = (),
    of_host: int = 8,
    kernels: tuple[int, ...] = (),
    sharing: int = 0,
) -> Iterator[Replay]:
    """Yield the replay of such a job. of_host: ranks of a host; kernels: in how many each rank works."""
    times, reports, ranks = simulate(work, sizes, slow, sharing), [], work.shape[1]
    for number in range(ranks):
        rank = Rank(4242 + number, f"node{number // of_host}")
        init = format_payload(7, 0, **{"No. of ranks": ranks, "Rank": number})
        rank.add_range(10, 20, "ncclCommInitRankConfig", jsonText=init)
        at = 1_000
        for step in range(STEPS):
            begin, worked, come, done = times[step, number].tolist()
            edges = np.linspace(begin, worked, (kernels or [1] * ranks)[number] + 1, dtype=int)
            for part, (since, until) in enumerate(pairwise(edges.tolist())):
                rank.add_kernel(at + part, since, until, 5)
            rank.add_range(at + 10, at + 11, "ncclGroupStart")
            for place, peer in enumerate(np.flatnonzero(sizes[0, number])):
                for name, way in (("ncclSend", (number, peer)), ("ncclRecv", (peer, number))):
                    begin_call = at + 20 + 4 * place + 2 * (name == "ncclRecv")
                    size = int(sizes[step][way])
                    payload = format_payload(7, size, **{"Peer rank": int(peer)})
                    rank.add_range(begin_call, begin_call + 1, name, jsonText=payload)
            rank.add_range(at + 50, at + 90, "ncclGroupEnd").add_kernel(at + 60, come, done, 3)
            at += 1_000
        rank.names += ("gemm",)
        reports.append(rank.write(folder / f"rank{number}.sqlite"))
    # Their messages alone do not tell how far clocks are apart.
    align = "none" if sharing else "auto"
    with nsys2prv.open(reports, quiet=True, jobs=1, align=align) as job:
        assert job.graph is not None
        yield Replay(job.graph, 0, job.duration)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_data_moves_once_the_last_partner_has_come(
    seed: int, spread: float, tmp_path: Path
) -> None:
    random = np.random.default_rng(seed)
    work = (400_000 * np.exp(random.normal(0, 0.02, (STEPS, RANKS)))).astype(np.int64)
    shape = STEPS, RANKS, RANKS
    sizes = (90_000 * np.exp(random.normal(0, spread, shape))).astype(np.int64)
    sizes *= 1 - np.eye(RANKS, dtype=np.int64)
    slow = work.copy()
    slow[:, 2] *= 2
    before, after = (simulate(some, sizes)[-1, :, 3].max() - BEGIN for some in (slow, work))
    with open_exchanges(tmp_path, slow, sizes) as replay:
        gain = replay.compute_gain(replay.do_as_others(GPU, [2])) * replay.span
        none = replay.compute_gain(replay.do_as_others(GPU, [1])) * replay.span
    assert gain == pytest.approx(before - after, rel=0.03)
    assert none == pytest.approx(0, abs=0.01 * before)


def test_no_more_is_gained_than_what_a_rank_has_on_the_critical_path(tmp_path: Path) -> None:
    work = np.random.default_rng(8).integers(390_000, 410_000, (STEPS, RANKS))
    work[:, 2] *= 2
    sizes = np.stack([90_000 * (1 - np.eye(RANKS, dtype=np.int64))] * STEPS)
    with open_exchanges(tmp_path, work, sizes) as replay:
        bound = PathBound(replay)
        for rank in range(RANKS):
            gain = replay.compute_gain(replay.do_as_others(GPU, [rank]))
            assert not bound.is_below(GPU, (rank,), False, gain)
            assert bound.is_below(GPU, (rank,), False, LEAST_GAIN) == (rank != 2)
            assert (gain > LEAST_GAIN) == (rank == 2)


@pytest.mark.parametrize("slow", [(), (0, 3)])
def test_a_slow_link_of_two_ranks_is_found(slow: tuple[int, ...], tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    work = (400_000 * np.exp(random.normal(0, 0.02, (STEPS, RANKS)))).astype(np.int64)
    sizes = (90_000 * np.exp(random.normal(0, 0.3, (STEPS, RANKS, RANKS)))).astype(np.int64)
    sizes *= 1 - np.eye(RANKS, dtype=np.int64)
    saved = np.ptp([simulate(work, sizes, links)[-1, :, 3].max() for links in ((), slow)])
    with open_exchanges(tmp_path, work, sizes, slow) as replay:
        assert list(list_slow_links(replay)) == ([slow] if slow else [])
        gain = replay.compute_gain(send_as_others(replay, (0, 3))) * replay.span
        assert gain == pytest.approx(saved, rel=0.15, abs=0.01 * replay.span)
        culprit = choose_culprit(replay, list_suspects(replay))
    assert (culprit.processes if culprit else ()) == slow


def test_a_slow_network_of_a_host_is_found_though_it_hides_the_link_within(tmp_path: Path) -> None:
    """A ring of two ranks on each host: all messages within that host end with slow ones of others."""
    ranks = 8
    work = np.random.default_rng(6).integers(390_000, 410_000, (STEPS, ranks))
    ring = np.roll(np.eye(ranks, dtype=np.int64), 1, axis=1)
    sizes = np.stack([90_000 * (ring + ring.T)] * STEPS)
    slow = (3, 4, 5, 6)
    saved = np.ptp([simulate(work, sizes, links)[-1, :, 3].max() for links in ((), slow)])
    with open_exchanges(tmp_path, work, sizes, slow, of_host=2) as replay:
        culprit = choose_culprit(replay, list_suspects(replay))
        gain = culprit.gain * replay.span
    assert (culprit.kind, culprit.host) == ("link to others", "node2")
    assert gain == pytest.approx(saved, rel=0.05)


@pytest.mark.parametrize(("ends_meet", "owners"), [(0, []), (1, [(1,)])])
def test_more_work_is_nobodys_own_where_it_is_for_more_partners(
    ends_meet: int, owners: list[tuple[int, ...]], tmp_path: Path
) -> None:
    """The middle one of three ranks has twice the work, and twice the partners if the ends have one each."""
    work = np.tile([200_000, 400_000, 200_000], (STEPS, 1))
    meet = np.array([[0, 1, ends_meet], [1, 0, 1], [ends_meet, 1, 0]])
    sizes = np.stack([90_000 * meet] * STEPS)
    with open_exchanges(tmp_path, work, sizes, kernels=(1, 2, 1)) as replay:
        assert list(list_owners(replay, GPU)) == owners


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_a_late_rank_finds_the_link_of_its_host_free(spread: float, tmp_path: Path) -> None:
    """Nobody moves data between hosts while the others wait for it: it gains less than it is late."""
    random = np.random.default_rng(7)
    work = (400_000 * np.exp(random.normal(0, 0.02, (STEPS, RANKS)))).astype(np.int64)
    sizes = (90_000 * np.exp(random.normal(0, spread, (STEPS, RANKS, RANKS)))).astype(np.int64)
    sizes *= 1 - np.eye(RANKS, dtype=np.int64)
    slow = work.copy()
    slow[:, 2] += 250_000
    saved = np.ptp([simulate(some, sizes, sharing=2)[-1, :, 3].max() for some in (work, slow)])
    with open_exchanges(tmp_path, slow, sizes, of_host=2, sharing=2) as replay:
        gain = replay.compute_gain(replay.do_as_others(GPU, [2])) * replay.span
        culprits = [one for one in list_suspects(replay) if one.gain * replay.span > saved / 2]
    assert gain == pytest.approx(saved, rel=0.15)
    assert saved < STEPS * 150_000
    assert not any(one.is_link for one in culprits)


@pytest.mark.parametrize("meets", [True, False])
def test_ranks_wait_for_each_other_inside_graphs_traced_as_a_whole(
    meets: bool, tmp_path: Path
) -> None:
    random = np.random.default_rng(1)
    usual = random.integers(195_000, 205_000, (STEPS, 2))
    usual[:, 1] += 400_000 * (np.arange(STEPS) % 3 == 0)

    def run(work: np.ndarray) -> np.ndarray:
        found, free = np.zeros((STEPS, 2, 4), np.int64), np.full(2, BEGIN)
        for step in range(STEPS):
            worked = free + work[step]
            come = worked + GAP
            done = (come.max() if meets else come) + 300_000 + 2_000 * np.arange(2)
            found[step] = np.stack([free, worked, come, done], axis=1)
            free = done + GAP
        return found

    times, reports = run(usual), []
    for number in range(2):
        rank, graphs = Rank(4242 + number), []
        for step in range(STEPS):
            begin, worked, come, done = times[step, number].tolist()
            rank.add_kernel(1_000 * (step + 1), begin, worked, 5)
            rank.add_kernel(1_000 * (step + 1) + 500, come, done)
            kept = (
                "start",
                "end",
                "deviceId",
                "contextId",
                "streamId",
                "correlationId",
                "globalPid",
            )
            kernel = rank.kernels.pop()
            graphs.append({name: kernel[name] for name in kept} | {"graphId": 1, "graphExecId": 2})
        rank.names += ("gemm",)
        rank.more["CUPTI_ACTIVITY_KIND_GRAPH_TRACE"] = graphs
        reports.append(rank.write(tmp_path / f"rank{number}.sqlite"))
    equal = usual.copy()
    equal[:, 1] = usual[:, 0]
    saved = times[-1, :, 3].max() - run(equal)[-1, :, 3].max()
    with nsys2prv.open(reports, quiet=True, jobs=1) as job:
        assert job.graph is not None
        replay = Replay(job.graph, 0, job.duration)
        assert replay.span == job.duration
        gain = replay.compute_gain(replay.do_as_others(GPU, [1])) * replay.span
        assert gain == pytest.approx(saved, rel=0.03)
        # Who waits inside takes no longer than who comes last.
        assert replay.compute_gain(replay.do_as_others(GPU, [0])) == pytest.approx(0, abs=0.01)
        assert any(len(members) == 2 for members, _ in job.graph.channels) == meets
        # Nor does it show that a rank takes longer in some kernels alone.
        assert (find_longer_lines(replay, (1,)) is None) == meets


def open_beside(folder: Path, slower: float, transfer: int) -> Iterator[tuple[Replay, int]]:
    """Yield the replay of two ranks whose kernels run beside an AllReduce in every other step, and by how
    much it would be shorter if they did not. slower: how many times as long they last then.
    """
    random = np.random.default_rng(3)
    names = ("norm", "gemm", "gelu", "gemm", "add")
    usual = np.array([20_000, 100_000, 30_000, 60_000, 15_000])
    reports, saved = [], []
    for number in range(2):
        rank = Rank(4242 + number)
        rank.names += ("norm", "gemm", "gelu", "add")
        at = alone = BEGIN
        for step in range(40):
            first, is_beside = at, step % 2
            for place, lasts in enumerate((usual * random.normal(1, 0.01, 5)).astype(int).tolist()):
                inside = is_beside and 0 < place < 4
                took = int(lasts * (slower if inside else 1))
                name = 5 + ("norm", "gemm", "gelu", "add").index(names[place])
                rank.add_kernel(1_000 + 10 * rank.correlation, at, at + took, name)
                at += took + GAP
                alone += lasts + GAP
                if inside and place == 1:
                    first = at - took - GAP
            if is_beside:
                end = max(at - 15_000, first + transfer)
                launch = 1_000 + 10 * rank.correlation
                rank.add_kernel(launch, first - 500, end, streamId=9)
        saved.append(at - alone)
        reports.append(rank.write(folder / f"rank{number}.sqlite"))
    with nsys2prv.open(reports, quiet=True, jobs=1) as job:
        assert job.graph is not None
        yield Replay(job.graph, 0, job.duration), max(saved)


@pytest.mark.parametrize("slower", [1.0, 1.2])
def test_kernels_beside_nccl_are_as_fast_as_alone_without_it(slower: float, tmp_path: Path) -> None:
    with contextmanager(open_beside)(tmp_path, slower, 100_000) as (replay, saved):
        beside = find_beside(replay)
        assert beside.ratio == pytest.approx(slower, abs=0.01)
        gain = replay.compute_gain(run_alone(replay)) * replay.span
        assert gain == pytest.approx(saved, rel=0.1)
