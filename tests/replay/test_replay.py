"""The replay of a job: exact without changes, as plain Python has it with changes, and right about who
holds a job up and what it costs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from msgspec.structs import replace
from tools.exports import KERNEL, RUNTIME, make_call, make_export, make_kernel, make_strings

import nsys2prv
from nsys2prv import OpenJob
from nsys2prv._util.native import core
from nsys2prv.analysis.findings import _skip_unmatched
from nsys2prv.replay.causes import Cause, KernelFacts, find_causes
from nsys2prv.replay.graph import NO_WEIGHT, Edges, Kind, arrange_graph, join_edges, make_edges
from nsys2prv.replay.ideal_network import IdealNetwork, replay_without_transfers
from nsys2prv.replay.job_graph import JobGraph, build_job_graph
from nsys2prv.replay.whatif import Replay

pytestmark = pytest.mark.skipif(core is None, reason="the replay needs the compiled core")
SAMPLES = Path(__file__).parents[2] / "sample_reports"


@pytest.fixture(scope="module", params=["training", "graphs", "machine", "mpi"])
def job(request: pytest.FixtureRequest) -> Iterator[OpenJob]:
    with nsys2prv.open(SAMPLES / request.param, quiet=True, jobs=1) as job:
        yield job


def make_replay(job: OpenJob) -> Replay:
    graph = build_job_graph(job.reader, job.labels)
    begin, end = (job.steady.begin, job.steady.end) if job.steady else (0, job.duration)
    return Replay(graph, begin, end)


def test_the_unchanged_replay_is_the_recording(job: OpenJob) -> None:
    graph = build_job_graph(job.reader, job.labels).graph
    assert (graph.run() == graph.time).all()
    assert graph.cycles == 0
    assert 0.9 < graph.run_typical().max() / graph.time.max() < 1.02


def make_random_graph(seed: int) -> tuple[np.ndarray, Edges]:
    random = np.random.default_rng(seed)
    times = random.integers(0, 10_000, 300)
    order = np.argsort(times, kind="stable")
    pairs = np.sort(random.integers(0, 300, (600, 2)), axis=1)
    pairs = pairs[pairs[:, 0] < pairs[:, 1]]
    kinds = random.choice([Kind.KERNEL, Kind.STREAM, Kind.LAUNCH], len(pairs)).astype(np.uint8)
    return times, make_edges(kinds, order[pairs[:, 1]], order[pairs[:, 0]], 0)


def replay_plainly(graph: object, changed: dict[int, int]) -> list[int]:
    times = graph.time.tolist()
    for node in range(len(times)):
        allowed = [
            times[graph.edges.source[edge]] + weight
            for edge in range(graph.first[node], graph.first[node + 1])
            if (weight := changed.get(edge, int(graph.weight[edge]))) != NO_WEIGHT
        ]
        times[node] = max(allowed, default=times[node])
    return times


@pytest.mark.parametrize("seed", range(4))
def test_the_pass_is_as_plain_python_has_it(seed: int) -> None:
    graph = arrange_graph(*make_random_graph(seed))
    assert (graph.run() == graph.time).all()
    assert (graph.edges.source < graph.edges.target).all()
    random = np.random.default_rng(seed)
    edges = np.sort(random.choice(len(graph.weight), 60, replace=False))
    weights = np.where(random.random(60) < 0.2, NO_WEIGHT, random.integers(0, 3_000, 60))
    changed = dict(zip(edges.tolist(), weights.tolist(), strict=True))
    assert graph.run(edges, weights).tolist() == replay_plainly(graph, changed)


def test_edges_on_cycles_are_left_out() -> None:
    edges = make_edges(Kind.STREAM, np.array([1, 2, 0]), np.array([0, 1, 2]), 0)
    graph = arrange_graph(np.array([5, 5, 5]), edges)
    assert graph.cycles > 0
    assert (graph.run() == graph.time).all()


def find_causes_of(folder: Path) -> tuple[list[Cause], JobGraph, int]:
    with nsys2prv.open(folder, quiet=True, jobs=1) as job:
        replay = make_replay(job)
        return find_causes(replay, KernelFacts()), replay.job, replay.span


def test_causes_of_the_sample_are_found_with_what_they_cost() -> None:
    """The truth tells how late a rank is in every step, and how long another one is held up once."""
    causes, _, span = find_causes_of(SAMPLES / "training")
    truth = json.loads((SAMPLES / "training" / "truth.json").read_text())["causes"]
    culprits = {cause.suspect.processes: cause for cause in causes if cause.suspect}
    late, hiccup = culprits[truth["late"]["rank"],], culprits[truth["hiccup"]["rank"],]
    assert (late.kind, hiccup.kind) == ("host", "hiccup")
    # Others are late too, now and then, by less.
    assert 0.6 < late.gain * span / (truth["late"]["mean_ns"] * truth["late"]["steps"]) < 1
    assert 0.6 < hiccup.gain * span / (truth["hiccup"]["end"] - truth["hiccup"]["begin"]) < 1


def simulate(durations: np.ndarray, transfer: int) -> tuple[np.ndarray, Edges]:
    """Return when kernels, and the collectives that follow them, begin and end; and what each waits
    for. durations: (ranks, iterations) of kernels, ns.
    """
    ranks, iterations = durations.shape
    times, parts = [], []
    ready = np.zeros(ranks, np.int64)
    last = np.full(ranks, -1)
    for iteration in range(iterations):
        ends = ready + durations[:, iteration]
        meeting = ends.max()
        first = len(times)
        times += [*ready.tolist(), *ends.tolist(), int(meeting), *[int(meeting) + transfer] * ranks]
        begin, end, met = (
            first + np.arange(ranks),
            first + ranks + np.arange(ranks),
            first + 2 * ranks,
        )
        if iteration:
            parts.append(make_edges(Kind.STREAM, begin, last, np.arange(ranks)))
        parts.append(make_edges(Kind.KERNEL, end, begin, np.arange(ranks), 7))
        parts.append(make_edges(Kind.MEET, np.full(ranks, met), end, -1, 0, 0))
        last = met + 1 + np.arange(ranks)
        parts.append(make_edges(Kind.NCCL, last, np.full(ranks, met), np.arange(ranks), 1))
        ready = np.full(ranks, meeting + transfer)
    return np.array(times), join_edges(parts)


def make_job(durations: np.ndarray, transfer: int = 50_000) -> Replay:
    times, edges = simulate(durations, transfer)
    graph = arrange_graph(times, edges)
    hosts = ["a", "b"] * (len(durations) // 2)
    channels = [((), ()), (tuple(range(len(durations))), ("a", "b"))]
    copies = pl.DataFrame(
        schema=dict.fromkeys(("edge", "bytes", "source", "destination"), pl.Int64)
    )
    idle = np.zeros(0, np.int64)
    job = JobGraph(graph, idle, channels, sorted(hosts), {}, copies, 0, 0, idle)
    return Replay(job, 0, int(times.max()))


@pytest.mark.parametrize("slower", [1.0, 1.02, 1.3])
@pytest.mark.parametrize("noise", [0.0, 0.005])
def test_a_gain_is_what_the_job_without_its_cause_is_faster(slower: float, noise: float) -> None:
    random = np.random.default_rng(11)
    usual = 1_000_000 * (1 + noise * random.random((8, 40)))
    slow = usual.copy()
    slow[5] *= slower
    span = simulate(slow.astype(np.int64), 50_000)[0].max()
    gain = 1 - simulate(usual.astype(np.int64), 50_000)[0].max() / span
    culprits = [
        cause
        for cause in find_causes(make_job(slow.astype(np.int64)), KernelFacts())
        if cause.suspect
    ]
    assert len(culprits) == (slower > 1)
    for culprit in culprits:
        assert (culprit.kind, culprit.suspect.processes) == ("gpu", (5,))
        assert culprit.gain == pytest.approx(gain, rel=0.25)


def test_on_an_ideal_network_the_job_lasts_as_without_transfers() -> None:
    durations = np.random.default_rng(3).integers(800_000, 1_200_000, (8, 40))
    replay = make_job(durations)
    ideal = replay_without_transfers(replay.job, replay.begin, replay.end)
    assert isinstance(ideal, IdealNetwork)
    ends = [simulate(durations, transfer)[0].max() for transfer in (0, 50_000)]
    assert ideal.share == pytest.approx(ends[0] / ends[1], rel=1e-9)
    # Where half of the kernels are not matched, nothing is told.
    job = replace(replay.job, kernels=10, met=5)
    assert "only 5 of 10" in replay_without_transfers(job, replay.begin, replay.end)


def test_kernels_launched_before_the_capture_come_before_those_launched_in_it(
    tmp_path: Path,
) -> None:
    """The last kernel is launched early, and runs behind others whose launches were not recorded."""
    kernels = [
        make_kernel(begin, end, correlationId=call)
        for begin, end, call in (
            (1_000, 20_000, None), (21_000, 520_000, None), (521_000, 900_000, 2),
        )
    ]  # fmt: skip
    strings = make_strings("work", "cudaLaunchKernel")
    calls = [make_call(10_000, 15_000, 2)]
    tables = {"StringIds": strings, KERNEL: kernels, RUNTIME: calls}
    with nsys2prv.open(make_export(tmp_path / "r.sqlite", tables), quiet=True, jobs=1) as job:
        graph = job.graph.graph
    stream = np.flatnonzero(graph.edges.kind == Kind.STREAM)
    assert sorted(graph.weight[stream]) == [1_000, 1_000]


def test_what_is_before_the_first_known_collective_is_left_out() -> None:
    replay = make_job(np.full((4, 20), 1_000_000))
    edges, time = replay.job.graph.edges, replay.job.graph.time
    ends = edges.kind == Kind.NCCL
    for known, begin in (
        (0, 0),
        (3, sorted({*time[edges.target[ends]].tolist()})[2]),
        (15, 0),
    ):
        edges.key[ends] = 1
        edges.key[ends & (time[edges.target] <= known * 1_050_000)] = 0
        assert _skip_unmatched(replay.job, 0, replay.end) == begin


def test_messages_of_mpi_hold_up_the_calls_that_complete_them() -> None:
    with nsys2prv.open(SAMPLES / "mpi", quiet=True, jobs=1) as job:
        edges, lines = job.graph.graph.edges, job.lines("mpi_message")
    held = (edges.kind == Kind.MPI) & (edges.size < 0)
    assert len(np.unique(edges.source[held])) == lines.height > 0


def test_who_waits_in_collectives_of_mpi() -> None:
    """All but the root of a broadcast wait for it, the root of a reduction for all others, and in a
    barrier everybody does; a call that nobody was waited for in goes on at once.
    """
    with nsys2prv.open(SAMPLES / "mpi", quiet=True, jobs=1) as job:
        graph, calls = job.graph, job.frame("mpi_collective")
    edges = graph.graph.edges
    held = edges.size[(edges.kind == Kind.MPI) & (edges.size >= 0)] // 1000
    names = Counter(graph.calls[name] for name in held.tolist())
    members = Counter(calls["call"].cast(str).to_list())
    for name, share in (("MPI_Bcast", 3 / 4), ("MPI_Reduce", 1 / 4), ("MPI_Barrier", 1)):
        assert names[name] == share * members[name] > 0
