"""Test that the replay of a job is exact without changes, equals plain Python with changes, and
finds the rank that delays a job and its cost.
"""

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
from nsys2prv.match.groups import Pipeline
from nsys2prv.replay.causes import Cause, find_causes
from nsys2prv.replay.graph import (
    AS_RECORDED,
    COLUMNS,
    NO_KIND,
    NO_WEIGHT,
    TO_ESTIMATE,
    TRANSFERS,
    Columns,
    Durations,
    Graph,
    Kind,
    Times,
    make_durations,
)
from nsys2prv.replay.job_graph import JobGraph
from nsys2prv.replay.path import IdealNetwork, replay_without_transfers
from nsys2prv.replay.suspects import Suspect, choose_culprit, is_awaited, list_slow_processes
from nsys2prv.replay.unit_graph import finish_graph, mark_clear
from nsys2prv.replay.whatif import GPU, Replay, WorkTable
from nsys2prv.verdict.findings import _skip_unmatched

pytestmark = pytest.mark.skipif(core is None, reason="the replay needs the compiled core")
SAMPLES = Path(__file__).parents[2] / "sample_reports"


@pytest.fixture(scope="module", params=["training", "graphs", "machine", "mpi"])
def job(request: pytest.FixtureRequest) -> Iterator[OpenJob]:
    with nsys2prv.open(SAMPLES / request.param, quiet=True, jobs=1) as job:
        yield job


def list_times(times: Times) -> np.ndarray:
    """Return the times of all moments."""
    return times[np.arange(2 * len(times.nodes))]


def make_replay(job: OpenJob) -> Replay:
    assert job.graph is not None
    begin, end = (job.steady.begin, job.steady.end) if job.steady else (0, job.duration)
    return Replay(job.graph, begin, end)


def test_the_unchanged_replay_is_the_recording(job: OpenJob) -> None:
    graph = make_replay(job).job.graph
    assert (list_times(graph.run()[0]) == list_times(graph.time)).all()
    # With typical latencies it is nearly that.
    kinds = graph.kind[: len(graph.binding)]
    rows = np.flatnonzero(~np.isin(kinds, TRANSFERS)).astype(np.int32)
    values = np.empty_like(graph.weight.value)
    times, _ = graph.run(graph.weight.change([(rows, graph.typical[rows])], out=values))
    ends = list_times(Times(times.nodes, graph.weight))
    assert 0.9 < ends.max() / list_times(graph.time).max() < 1.02


def make_graph(
    times: np.ndarray, edges: list[tuple[np.ndarray | int, ...]], own: int | None = None
) -> Graph:
    """Return the graph of nodes without work. edges: (kind, target, source, key) of nodes of any order;
    own: how many nodes are the unit's, the others being meetings, where the order is that of a unit.
    """
    kind, target, source, key = (
        np.concatenate(column)
        for column in zip(
            *(np.broadcast_arrays(*(np.atleast_1d(one) for one in part)) for part in edges),
            strict=True,
        )
    )
    number = np.arange(len(times))
    if own is None:
        number[np.argsort(times, kind="stable")] = np.arange(len(times))
    order = np.argsort(number[target], kind="stable")
    typical = np.where(np.isin(kind, (Kind.STREAM, Kind.LAUNCH)), TO_ESTIMATE, AS_RECORDED)
    typical[kind == Kind.MEET] = 0
    none = np.zeros(len(times), np.int32)
    # Node n is on row n % 8, which is of that process.
    values = {"time": times, "row": np.arange(len(times)) % 8}
    values = {name: column[np.argsort(number)] for name, column in values.items()}
    values |= {"work": none + NO_KIND, "lasts": none, "name": none}
    values |= {"target": number[target][order], "source": 2 * number[source][order]}
    values |= {"kind": kind[order], "typical": typical[order]}
    columns = Columns(
        {name: bytearray(column.astype(COLUMNS[name])) for name, column in values.items()}
    )
    long = none[:0].astype(np.int64), none[:0].astype(np.int64)
    processes = np.append(np.arange(8), -1).astype(np.int32)
    groups = mark_clear(columns, Durations(columns.view("lasts"), *long), processes)
    joined = len(target) if own is None else 0
    channels = key[order][joined:].astype(np.int32)
    bounds = [0, len(times) if own is None else own]
    return finish_graph(columns, long, joined, channels, 0 * channels, processes, groups, bounds)


def make_random_graph(seed: int) -> Graph:
    random = np.random.default_rng(seed)
    # Of some seeds durations have no place in 32 bits.
    times = np.sort(random.integers(0, 10_000, 300)) * (10_000_000 if seed % 2 else 1)
    pairs = np.sort(random.integers(0, 300, (600, 2)), axis=1)
    pairs = pairs[pairs[:, 0] < pairs[:, 1]]
    kinds = random.choice([Kind.KERNEL, Kind.STREAM, Kind.LAUNCH], len(pairs))
    return make_graph(times, [(kinds, pairs[:, 1], pairs[:, 0], 0)])


def replay_plainly(graph: Graph, changed: dict[int, int]) -> list[int]:
    times = graph.time.nodes.tolist()
    count = len(graph.binding)
    target, source = (
        column[np.arange(count)] // 2 for column in (graph.edges.target, graph.edges.source)
    )
    for node in range(len(times)):
        allowed = [
            times[source[edge]] + weight
            for edge in np.flatnonzero(target == node).tolist()
            if (weight := changed.get(edge, int(graph.weight[edge]))) != NO_WEIGHT
        ]
        times[node] = max(allowed, default=times[node])
    return times


@pytest.mark.parametrize("seed", range(4))
def test_the_pass_is_as_plain_python_has_it(seed: int) -> None:
    graph = make_random_graph(seed)
    assert (graph.run()[0].nodes == graph.time.nodes).all()
    random = np.random.default_rng(seed)
    edges = random.choice(len(graph.binding), 60, replace=False).astype(np.int32)
    weights = np.where(random.random(60) < 0.2, NO_WEIGHT, random.integers(0, 10**10, 60))
    longer = weights[:30] + 5
    changed = dict(zip(edges.tolist(), weights.tolist(), strict=True))
    # Of two changes of one edge the least counts.
    changes = [(edges[:30], longer), (edges, weights)]
    expected = replay_plainly(graph, changed)
    weight = graph.weight.change(changes, out=np.empty_like(graph.weight.value))
    assert graph.run(weight)[0].nodes.tolist() == expected
    assert (graph.run()[0].nodes == graph.time.nodes).all()
    # Stored alone, changed durations are the same.
    every = np.arange(len(graph.weight))
    assert (graph.weight.change(changes)[every] == weight[every]).all()


@pytest.mark.parametrize("seed", range(4))
def test_changes_make_edges_that_are_kept_no_shorter(seed: int) -> None:
    weight = make_random_graph(seed).weight
    random = np.random.default_rng(seed)
    every = np.arange(len(weight), dtype=np.int32)
    least = np.where(random.random(len(every)) < 0.3, weight[every] // 2, -1)
    kept = np.flatnonzero(least >= 0).astype(np.int32), least[least >= 0]
    new = random.integers(0, 10**10, len(every))
    for changes, expected in (
        ([(every, new)], np.maximum(new, least)),
        ([(every, 0.25)], np.maximum((weight[every] * 0.25).astype(np.int64), least)),
        ([(every[:50], NO_WEIGHT * np.ones(50, np.int64))], np.where(every < 50, np.where(least < 0, NO_WEIGHT, least), weight[every])),
    ):  # fmt: skip
        for out in (None, np.empty_like(weight.value)):
            assert (weight.change(changes, kept, out)[every] == expected).all()


def test_edges_on_cycles_are_left_out() -> None:
    """A call waits for what it launched, which began after the call: clocks are apart a bit."""
    zero, one = np.zeros(1, np.int32), np.ones(1, np.uint8)
    begin, end = np.array([[100_000, 121_000], [120_000, 135_000]])
    *_, cycles = core.build_unit(
        (begin[:1], end[:1], zero, zero, 2 * one, 0 * one),
        (begin[1:], end[1:], zero, zero, zero, 0 * one),
        tuple(np.zeros(0, dtype) for dtype in (np.int64, np.uint8, np.int32, np.int32, np.int32)),
        (zero, zero),
        np.zeros(4, np.int32),
    )
    assert cycles == 1


def test_a_meeting_that_its_unit_has_in_another_order_takes_place() -> None:
    """Node 0 waits for the meeting, node 2, that node 1 of the same unit comes to at the same time."""
    edges = [(Kind.MEET, 2, 1, 0), (Kind.NCCL, 0, 2, 1)]
    graph = make_graph(np.array([10, 10, 10]), edges, own=2)
    changes = [(np.array([0], np.int32), np.array([7]))]
    weight = graph.weight.change(changes, out=np.empty_like(graph.weight.value))
    assert graph.run(weight)[0].nodes.tolist() == [17, 10, 10]


def find_causes_of(folder: Path) -> tuple[list[Cause], JobGraph, int]:
    with nsys2prv.open(folder, quiet=True, jobs=1) as job:
        replay = make_replay(job)
        return find_causes(replay), replay.job, replay.span


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


def simulate(durations: np.ndarray, transfer: int) -> tuple[np.ndarray, list]:
    """Return when kernels, and the collectives that follow them, begin and end; and what each waits
    for. durations: (8, iterations) of kernels, ns.
    """
    ranks, iterations = durations.shape
    times, edges = [], []
    ready = np.zeros(ranks, np.int64)
    last = np.full(ranks, -1)
    for iteration in range(iterations):
        ends = ready + durations[:, iteration]
        meeting = ends.max()
        first = len(times)
        # A meeting of each rank's own keeps nodes in eights.
        times += [*ready.tolist(), *ends.tolist(), *[int(meeting)] * ranks]
        times += [int(meeting) + transfer] * ranks
        begin, end, met, left = (first + number * ranks + np.arange(ranks) for number in range(4))
        if iteration:
            edges.append((Kind.STREAM, begin, last, 0))
        edges.append((Kind.KERNEL, end, begin, 7))
        edges += [(Kind.MEET, met, np.roll(end, turn), 0) for turn in range(ranks)]
        edges.append((Kind.NCCL, left, met, 1))
        last = left
        ready = np.full(ranks, meeting + transfer)
    return np.array(times), edges


def make_job(durations: np.ndarray, transfer: int = 50_000) -> Replay:
    graph = make_graph(*simulate(durations, transfer))
    hosts = ["a", "b"] * (len(durations) // 2)
    channels = [((), ()), (tuple(range(len(durations))), ("a", "b"))]
    copies, spans = (
        pl.DataFrame(schema=dict.fromkeys(names, pl.Int64))
        for names in (("edge", "bytes", "source", "destination"), ("begin", "end", "device"))
    )
    idle, devices = np.zeros(0, np.int64), np.arange(9)
    job = JobGraph(graph, idle, channels, sorted(hosts), {}, copies, 0, 0, spans, devices)
    return Replay(job, 0, int(graph.time.nodes.max()))


@pytest.mark.parametrize(("slower", "until"), [(1.0, 40), (1.02, 40), (1.3, 40), (1.3, 13)])
@pytest.mark.parametrize("noise", [0.0, 0.005])
def test_a_gain_is_that_of_a_rerun(slower: float, until: int, noise: float) -> None:
    random = np.random.default_rng(11)
    usual = 1_000_000 * (1 + noise * random.random((8, 40)))
    slow = usual.copy()
    slow[5, :until] *= slower
    span = simulate(slow.astype(np.int64), 50_000)[0].max()
    gain = 1 - simulate(usual.astype(np.int64), 50_000)[0].max() / span
    causes = find_causes(make_job(slow.astype(np.int64)))
    culprits = [cause for cause in causes if cause.suspect]
    assert len(culprits) == (slower > 1)
    for culprit in culprits:
        assert (culprit.kind, culprit.suspect.processes) == ("gpu", (5,))
        assert culprit.gain == pytest.approx(gain, rel=0.25)


def test_what_others_hide_says_what_it_gains_by_itself() -> None:
    durations = np.full((8, 40), 1_000_000)
    durations[[2, 5]] = [[1_120_000], [1_500_000]]
    first, second = (one for one in find_causes(make_job(durations)) if one.suspect)
    assert (first.alone, second.alone, second.gain > 0.05) == (None, 0.0, True)


@pytest.mark.parametrize(("longer", "named"), [(1.2, (0, 1)), (1.01, (0, 1)), (1.19, (0, 1, 4, 5))])
def test_a_whole_group_is_named_where_each_of_it_is_as_slow(
    longer: float, named: tuple[int, ...]
) -> None:
    """Others hide what two of them do. Where the two others are of no group these are not named."""
    durations = np.random.default_rng(2).integers(990_000, 1_010_000, (8, 40)) * 1.0
    durations[[0, 1]] *= 1.2
    durations[[4, 5]] *= longer
    suspects = [Suspect(0.101, "gpu", (0, 1, 4, 5)), Suspect(0.1, "gpu", (0, 1))]
    groups = {} if longer == 1.2 else {(0, 1, 4, 5): ("replica", 1, 2)}
    job = make_job(durations.astype(np.int64))
    found = choose_culprit(replace(job, groups=groups), suspects)
    assert found
    assert found.processes == named


def test_kernels_are_compared_with_those_of_the_same_stage() -> None:
    """Where a whole stage is asked for, with those of the others."""
    durations = np.full((8, 40), 1_000_000)
    durations[4:] *= 2
    durations[5] += 400_000
    pipeline = Pipeline(((0, 1, 2, 3), (4, 5, 6, 7)), None)
    job = replace(make_job(durations), pipeline=pipeline)
    for processes, lasts in (([5], 2_000_000), ([4, 5, 6, 7], 1_000_000)):
        changes = job.compare_kernels(processes)
        assert {*np.concatenate([new for _, new in changes]).tolist()} == {lasts}


def test_groups_are_slow_if_all_of_them_are() -> None:
    durations = np.random.default_rng(2).integers(999_000, 1_001_000, (8, 40)) * 1.0
    durations[[0, 1, 2]] *= 1.2
    groups = {(0, 1): ("group", 1, 4), (2, 3): ("group", 2, 4)}
    job = replace(make_job(durations.astype(np.int64)), groups=groups)
    slow = [one.processes for one in list_slow_processes(job, "gpu")]
    assert slow == [(0,), (1,), (2,), (0, 1)]


@pytest.mark.parametrize(("times", "kind"), [(3, "hiccup"), (4, "gpu")])
def test_what_comes_back_is_no_hiccup(times: int, kind: str) -> None:
    durations = np.full((8, 40), 1_000_000)
    durations[5, 5 : 5 + 8 * times : 8] *= 4
    culprits = [one for one in find_causes(make_job(durations)) if one.suspect]
    assert [(one.kind, one.suspect.processes) for one in culprits] == [(kind, (5,))]


def test_on_an_ideal_network_the_job_lasts_as_without_transfers() -> None:
    durations = np.random.default_rng(3).integers(800_000, 1_200_000, (8, 40))
    replay = make_job(durations)
    ideal = replay_without_transfers(replay.job, replay.begin, replay.end)
    assert isinstance(ideal, IdealNetwork)
    ends = [simulate(durations, transfer)[0].max() for transfer in (0, 50_000)]
    assert ideal.share == pytest.approx(ends[0] / ends[1], rel=1e-9)
    # Where half of the kernels are not matched, nothing is told.
    job = replace(replay.job, kernels=10, met=5)
    assert "(5 of 10)" in replay_without_transfers(job, replay.begin, replay.end)


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


def test_nobody_waits_for_hosts_that_exchange_data_with_each_other_alone() -> None:
    job = make_job(np.full((4, 4), 1_000_000)).job
    for channels, awaited in (
        ([()], False),
        ([(), (0, 1), (2, 3)], False),
        ([(), (0, 1), (1, 2)], True),
    ):
        replay = Replay(replace(job, channels=[(one, ("a",)) for one in channels]), 0, 1)
        assert is_awaited(replay, Suspect(0.1, "host", (0, 1))) == awaited


@pytest.mark.parametrize(
    ("gap", "lasts", "room"),
    [(5_000, 2_000, 300), (5_000, 400_000, 300), (300_000, 2_000, 300), (5_000, 200_000, 600)],
)
def test_a_job_of_short_kernels_waits_for_launches(
    gap: int, lasts: int, room: int, tmp_path: Path
) -> None:
    """All that hosts do is one cause where most of it is to launch: neither a pause before each
    launch, nor what is hidden behind long kernels. A launch that waits for room is no work of hosts.
    """
    calls, ends, now = [], [0] * room, 100_000
    for number in range(2 * room if room > 300 else 300):
        begin, now = now, max(now + 4_000, ends[-room] + 2_000)
        calls.append(make_call(begin, now, number))
        ends.append(max(now + 1_000, ends[-1] + 1_000) + lasts)
        now += gap
    kernels = [make_kernel(end - lasts, end, correlationId=k) for k, end in enumerate(ends[room:])]
    tables = {
        "StringIds": make_strings("work", "cudaLaunchKernel"), KERNEL: kernels, RUNTIME: calls
    }  # fmt: skip
    with nsys2prv.open(make_export(tmp_path / "r.sqlite", tables), quiet=True, jobs=1) as job:
        replay = make_replay(job)
        causes = {cause.kind: cause for cause in find_causes(replay)}
    assert ("launching" in causes) == (gap < 100_000 and lasts < 20_000)
    if "launching" in causes:
        assert causes["launching"].gain == pytest.approx(1 - 3 / 9, abs=0.01)
        assert causes["launching"].is_specific
    if room > 300:
        faster = replay.compute_gain(replay.scale(GPU, 0.25))
        assert faster == pytest.approx(150 / 201, abs=0.02)


def test_what_is_before_the_first_known_collective_is_left_out() -> None:
    replay = make_job(np.full((8, 20), 1_000_000))
    edges = replay.job.graph.edges
    transfers = np.flatnonzero(edges.kind == Kind.NCCL)
    ends = replay.job.graph.time[edges.target[transfers]]
    for known, begin in ((0, 0), (3, np.unique(ends)[2]), (15, 0)):
        edges.key = np.zeros(len(edges.kind), bool)
        edges.key[transfers] = ends > known * 1_050_000
        assert _skip_unmatched(replay.job, 0, replay.end) == begin


def test_messages_of_mpi_hold_up_the_calls_that_complete_them() -> None:
    with nsys2prv.open(SAMPLES / "mpi", quiet=True, jobs=1) as job:
        edges, lines = job.graph.graph.edges, job.lines("mpi_message")
    rows = np.flatnonzero(edges.kind == Kind.MPI)
    held = rows[edges.size[rows] < 0]
    # What lets a sender go on may be another call than the one that completes the receive.
    assert len(np.unique(edges.source[held])) >= lines.height > 0
    calls = np.flatnonzero(edges.kind == Kind.CALL)
    calls = calls[np.isin(edges.target[calls], edges.target[held])]
    ends = {job.graph.calls[name] for name in edges.key[calls].tolist()}
    assert ends == {"MPI_Recv", "MPI_Sendrecv", "MPI_Waitall"}


def test_who_waits_in_collectives_of_mpi() -> None:
    """All but the root of a broadcast wait for it, the root of a reduction for all others, and in a
    barrier everybody does; a call that nobody was waited for in goes on at once.
    """
    with nsys2prv.open(SAMPLES / "mpi", quiet=True, jobs=1) as job:
        graph, calls = job.graph, job.frame("mpi_collective")
    edges = graph.graph.edges
    sizes = edges.size[np.flatnonzero(edges.kind == Kind.MPI)]
    held = sizes[sizes >= 0] // 1000
    names = Counter(graph.calls[name] for name in held.tolist())
    members = Counter(calls["call"].cast(str).to_list())
    for name, share in (("MPI_Bcast", 3 / 4), ("MPI_Reduce", 1 / 4), ("MPI_Barrier", 1)):
        assert names[name] == share * members[name] > 0


def test_only_what_is_done_as_often_is_compared() -> None:
    """Of two stages with two ranks each, the second alone has work of the first key; the last rank alone
    does that of the second one twice.
    """
    edges = np.array([[-1, -1, 0, 1], [-1, -1, 2, 3], [4, 5, 6, 7], [-1, -1, -1, 8]], np.int32)
    edges = np.concatenate([edges, np.full((2, 4), -1, np.int32)])
    edges[4:, 3] = 9, 10
    lasts = make_durations(np.full(11, 100, np.int32), lambda place: place)
    table = WorkTable(
        edges, np.array([1, 2], np.int32), np.array([0, 2, 6], np.int64), lasts, np.arange(4)
    )
    masks = [table.mask_columns(np.array([column])) for column in (2, 3)]
    assert [table.find_alike(mask).tolist() for mask in masks] == [[True, True], [True, False]]
    assert table.find_alike(table.mask_columns(slice(None))).tolist() == [True, False]
