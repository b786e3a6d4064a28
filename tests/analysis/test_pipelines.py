"""Test pipelines: their stages, their bubble, and stages that compute more, with times made by
hand.
"""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from tools.exports import make_call, make_nvtx_range
from tools.nccl_exports import COMM, Rank, format_payload

import nsys2prv
from nsys2prv.figures.result import Finding
from nsys2prv.match.groups import Pipeline, find_pipeline

STAGES, MICRO_BATCHES, STEPS = 3, 4, 8
WORK, LATENCY = 1_000_000, 20_000
ALL_REDUCE, SEND_RECV, ADD, SYNCHRONIZE, HEAD = 1, 3, 5, 6, 7
NAMES = (*Rank().names, "add_one", "cudaStreamSynchronize_v3020", "output_layer")


class Stage:
    """A rank on its way: when its GPU is free, and when its host launches."""

    def __init__(self, number: int, told: bool) -> None:
        self.rank, self.told = Rank(10 + number, names=NAMES), told
        payload = f'{{"{COMM}":7,"No. of ranks":{STAGES},"Rank":{number}}}' if told else None
        self.rank.add_range(1, 2, "ncclCommInitRank", jsonText=payload)
        self.free = self.launch = 100_000

    def call_nccl(self, text: str, begin: int, end: int, name: int, peer: int = -1) -> None:
        payload = format_payload(7, 4096, **({"Peer rank": peer} if peer >= 0 else {}))
        told = payload if self.told else None
        self.rank.add_range(self.launch, self.launch + 20, text, jsonText=told)
        self.run_kernel(begin, end, name)

    def run_kernel(self, begin: int, end: int, name: int = ADD) -> None:
        self.rank.add_kernel(self.launch + 8, begin, end, name)
        self.launch, self.free = self.launch + 1_000, end + 1_000


def send_on(sender: Stage, receiver: Stage) -> None:
    """Send from one stage to the next: both wait for each other."""
    end = max(sender.free, receiver.free) + LATENCY
    number = receiver.rank.pid - 10
    receiver.call_nccl("ncclRecv", receiver.free, end, SEND_RECV, peer=number - 1)
    sender.call_nccl("ncclSend", sender.free, end, SEND_RECV, peer=number)


def list_findings(
    folder: Path, work: list[int], told: bool, head: int = 0, name: int = HEAD, layers: int = 1
) -> list[Finding]:
    """Return the findings of a pipeline whose stages compute for so long (ns), in so many kernels. told: by
    payloads. head: how long the last stage's output layer takes, a kernel of that name.
    """
    stages = [Stage(number, told) for number in range(STAGES)]
    for step in range(STEPS):
        begins = [stage.launch for stage in stages]
        for _ in range(MICRO_BATCHES):
            for number, stage in enumerate(stages):
                if number:
                    send_on(stages[number - 1], stage)
                for _ in range(layers):
                    stage.run_kernel(stage.free, stage.free + work[number] // layers)
            if head:
                stages[-1].run_kernel(stages[-1].free, stages[-1].free + head, name)
        end = max(stage.free for stage in stages) + LATENCY
        for begin, stage in zip(begins, stages, strict=True):
            stage.call_nccl("ncclAllReduce", stage.free, end, ALL_REDUCE)
            thread = {"globalTid": stage.rank.nvtx[0]["globalTid"]}
            sync = make_call(stage.launch, end + 5_000, 0, nameId=SYNCHRONIZE, **thread)
            stage.rank.calls.append(sync)
            stage.launch = end + 5_000
            stage.free = stage.launch + 10_000
            stage.rank.nvtx.append(make_nvtx_range(begin, stage.launch, f"step {step}", **thread))
    reports = [
        stage.rank.write(folder / f"rank{number}.sqlite") for number, stage in enumerate(stages)
    ]
    with nsys2prv.open(reports, align="none", jobs=1) as job:
        return job.findings()


def test_the_bubble_of_a_pipeline_is_nobodys_fault(tmp_path: Path) -> None:
    bubble = (STAGES - 1) / (MICRO_BATCHES + STAGES - 1)
    first, *more = list_findings(tmp_path, [WORK] * STAGES, told=True)
    assert first.kind == "pipeline_bubble"
    assert first.share == pytest.approx(bubble, rel=0.1)
    assert f"p = {STAGES} stages with m = {MICRO_BATCHES} micro-batches" in first.evidence[0]
    assert first.evidence[0].endswith(f"= {bubble:.1%}")
    # More than a rank waits on average.
    assert f"would be {(STAGES - 1) * (STEPS - 1)}.0 ms shorter" in first.evidence[-1]
    assert not any(finding.ranks for finding in more)
    ((begin, end, _),) = first.moments
    assert end - begin > WORK


@pytest.mark.parametrize("told", [True, False])
def test_a_stage_that_computes_more_is_named(told: bool, tmp_path: Path) -> None:
    work = [WORK, WORK, 2 * WORK]
    found = {finding.kind: finding for finding in list_findings(tmp_path, work, told)}
    assert (found["straggler"].ranks, found["straggler"].share > 0.35) == ((2,), True)
    assert ("stage 3 of 3" in found["straggler"].title) == ("pipeline_bubble" in found) == told


def test_serialisation_is_never_worse_than_what_was_measured(tmp_path: Path) -> None:
    """Without the first transfer both kernels compute at once, for half as long in all, while the wait
    for rank 1 stays: fewer transfers make nobody less efficient.
    """
    reports = []
    for number in range(2):
        rank, late = Rank(10 + number, names=NAMES), 100_000 * number
        payload = f'{{"{COMM}":7,"No. of ranks":2,"Rank":{number}}}'
        rank.add_range(1, 2, "ncclCommInitRank", jsonText=payload)
        rank.add_kernel(1_000, 2_000, 102_000, ADD, streamId=8)
        rank.add_collective(1_500, 2_000, 102_000, format_payload(7, 4096))
        rank.add_kernel(1_900, 103_000, 203_000, ADD)
        begin = 204_000 + late
        rank.add_collective(begin - 2_000, begin, 306_000, format_payload(7, 4096))
        reports.append(rank.write(tmp_path / f"rank{number}.sqlite"))
    with nsys2prv.open(reports, align="none", jobs=1) as job:
        row = job.analyse("efficiencies")["efficiencies"].tables["device"].frame.row(0, named=True)
    measured = 200 / 302
    assert row["communication_efficiency"] == pytest.approx(measured)
    assert row["serialisation_efficiency"] == pytest.approx(measured)
    assert row["transfer_efficiency"] == pytest.approx(1)


def test_the_output_layer_of_the_last_stage_is_spread(tmp_path: Path) -> None:
    """Check that this is work that no other stage has; a smaller output layer is usual and not
    reported.
    """
    work = [WORK] * STAGES
    small, large = (
        list_findings(make_folder(tmp_path / f"{head}"), work, told=True, head=head)
        for head in (WORK // 5, WORK // 2)
    )
    assert not any(finding.ranks for finding in small)
    found = next(finding for finding in large if finding.ranks)
    assert (found.ranks, found.what_if) == ((2,), "rank 2: no own gpu work")
    assert "stage 3 of 3, has work that other ranks do not have" in found.title
    # All stages have a third of it then, and it takes the time of the pipeline's begin and end too.
    gone = MICRO_BATCHES - (MICRO_BATCHES + STAGES - 1) / STAGES
    whole = (MICRO_BATCHES + STAGES - 1) * WORK + MICRO_BATCHES * WORK / 2
    assert found.share == pytest.approx(gone * WORK / 2 / whole, rel=0.15)


def test_an_output_layer_may_have_the_names_of_other_kernels(tmp_path: Path) -> None:
    """Of 31 kernels of a micro-batch one is larger: too few more to tell by how often each name comes."""
    kept = [
        next(
            one
            for one in list_findings(folder, [WORK] * STAGES, True, WORK // 2, name, 30)
            if one.ranks
        )
        for name in (HEAD, ADD)
        for folder in [make_folder(tmp_path / f"{name}")]
    ]
    named, alike = ((one.ranks, one.what_if, one.evidence[-1]) for one in kept)
    assert alike == named
    assert kept[1].share == pytest.approx(kept[0].share, rel=0.01)


def make_folder(path: Path) -> Path:
    """Return the path of a new folder."""
    path.mkdir()
    return path


def find(messages: list[tuple[int, int, int, int]], ranks: int, begins: list[int]) -> object:
    """Return the pipeline of messages: sender, when it is sent, receiver, when it is received."""
    columns = ["sender", "sent", "thread", "received"]
    frame = pl.DataFrame(messages, schema=columns, orient="row")
    rows = SimpleNamespace(get_column=lambda _: np.arange(ranks) + 1)
    reader = SimpleNamespace(rows=rows, remember=lambda *_: frame)
    return find_pipeline(reader, 0, 1_000_000, begins)


def test_rings_of_stages_are_interleaved_pipelines() -> None:
    """Each micro-batch passes all three ranks twice, and its gradients come back."""
    messages = []
    for begin in (0, 1000):
        for batch in range(4):
            path = [0, 1, 2, 0, 1, 2]
            way = [*pairwise(path), *pairwise(path[::-1])]
            messages += [
                (a, begin + 10 * step + batch, b, begin + 10 * step + batch + 5)
                for step, (a, b) in enumerate(way)
            ]
    found = find(messages, 3, [0, 1000])
    assert found == Pipeline(((0,), (1,), (2,)), 4, 2)
    assert found.bubble == pytest.approx(2 / (2 * 4 + 2))


@pytest.mark.parametrize("is_ring", [False, True])
def test_ranks_that_exchange_halos_are_no_pipeline(is_ring: bool) -> None:
    pairs = [*pairwise(range(4)), *([(3, 0)] if is_ring else [])]
    messages = [
        (a, step * 100 + a + b, other, step * 100 + 40)
        for step in range(5)
        for one in pairs
        for a, other in (one, one[::-1])
        for b in [other]
    ]
    assert find(messages, 4, [100 * step for step in range(5)]) is None
