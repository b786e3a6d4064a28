"""Test replayed graphs: their work counts in the NVTX ranges that were open during the capture, and
NCCL kernels belong to the captured calls.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tools.exports import (
    KERNEL,
    PID,
    RUNTIME,
    Row,
    make_call,
    make_export,
    make_global_pid,
    make_global_tid,
    make_kernel,
    make_nvtx_range,
    make_strings,
)
from tools.nccl_exports import Rank, format_payload

import nsys2prv
from nsys2prv.conversion.options import CutOptions

NODES = "CUDA_GRAPH_NODE_EVENTS"
LAUNCH, END_CAPTURE, GRAPH_LAUNCH = 2, 3, 4
NAMES = ("k", "cudaLaunchKernel_v7000", "cudaStreamEndCapture_v10000", "cudaGraphLaunch_v10000")
STEPS, FIRST_NODE, FIRST_COPY = 3, 1 << 32, 1 << 33
#: How long the kernels of both layers last, and one that is not captured (ns).
LASTS, BESIDE = (10_000, 30_000), 50


def make_node(time: int, node: int, original: int | None = None, pid: int = PID) -> Row:
    thread = make_global_tid(pid, pid)
    return {
        "start": time, "end": time, "eventClass": 0, "globalTid": thread, "nameId": 1,
        "graphNodeId": node, "originalGraphNodeId": original,
    }  # fmt: skip


def write_graph_job(path: Path, made_at_end: bool) -> Path:
    """Write a capture of two layers within a first step, and replays of it in further ones."""
    nvtx = [make_nvtx_range(900, 9_000, "step 0")]
    calls, nodes, kernels = [], [], []
    for layer in range(2):
        begin = 1_000 + 1_000 * layer
        nvtx.append(make_nvtx_range(begin, begin + 500, f"layer_{layer}"))
        product = f"aten::mm, sizes = [[2, 3], [3, {4 + layer}]]"
        nvtx.append(make_nvtx_range(begin + 50, begin + 450, product))
        calls.append(make_call(begin + 100, begin + 200, 10 + layer, nameId=LAUNCH))
        nodes.append(make_node(4_100 + layer if made_at_end else begin + 150, FIRST_NODE + layer))
    # Beside the capture a stream works as usual.
    calls.append(make_call(3_000, 3_100, 13, nameId=LAUNCH))
    names = {"demangledName": 1, "shortName": 1}
    kernels.append(make_kernel(3_200, 3_200 + BESIDE, correlationId=13, **names))
    calls.append(make_call(4_000, 5_000, 12, nameId=END_CAPTURE))
    nodes += [make_node(6_000, FIRST_COPY + layer, FIRST_NODE + layer) for layer in range(2)]
    for step in range(1, STEPS + 1):
        launch, free = 100_000 * step, 100_000 * step + 5_000
        nvtx.append(make_nvtx_range(launch, launch + 1_000, f"step {step}"))
        calls.append(make_call(launch + 100, launch + 200, 20 + step, nameId=GRAPH_LAUNCH))
        for layer, lasts in enumerate(LASTS):
            of_node = {"correlationId": 20 + step, "graphNodeId": FIRST_COPY + layer}
            kernels.append(make_kernel(free, free + lasts, **names, **of_node))
            free += lasts + 1_000
    tables = {"StringIds": make_strings(*NAMES), "NVTX_EVENTS": nvtx, RUNTIME: calls}
    return make_export(path, {**tables, KERNEL: kernels, NODES: nodes})


@pytest.mark.parametrize("made_at_end", [False, True])
@pytest.mark.parametrize("steps", [STEPS, STEPS - 1])
def test_replayed_work_counts_in_the_ranges_of_its_capture(
    tmp_path: Path, made_at_end: bool, steps: int
) -> None:
    report = write_graph_job(tmp_path / "r.sqlite", made_at_end)
    # The trace begins with the first event, of step 0.
    cut = CutOptions(time="" if steps == STEPS else "150us:")
    with nsys2prv.open(report, jobs=1, cut=cut) as job:
        found = job.analyse("operations", "modules", "products", whole=True)
    tables, modules = (found[name].tables for name in ("operations", "modules"))
    rows = {row["operation"]: row for row in tables["operations"].frame.iter_rows(named=True)}
    for layer, lasts in enumerate(LASTS):
        assert rows[f"layer_{layer}"]["gpu_ns"] == steps * lasts
        assert rows[f"layer_{layer}"]["kernels"] == steps
        assert rows[f"layer_{layer}"]["calls"] == (steps == STEPS)
    # Launched in steps, and captured within layers of one: each nanosecond is exclusive once.
    whole = steps * sum(LASTS) + (steps == STEPS) * BESIDE
    assert rows["step"]["gpu_ns"] == whole
    assert sum(row["gpu_exclusive_ns"] for row in rows.values()) == whole
    (layers,) = modules["layers"].frame.iter_rows(named=True)
    assert (layers["operation"], layers["calls"]) == ("step / layer_*", 2 * steps)
    assert layers["median_gpu_ns"] == sum(LASTS) / 2
    # Each replay computes the captured product again.
    products = found["products"].tables["products"].frame.select("flop", "count", "time_ns")
    assert products.sort("flop").rows() == [
        (2 * 2 * 3 * (4 + layer), steps, steps * lasts) for layer, lasts in enumerate(LASTS)
    ]


#: Communicator, bytes and function of each captured call.
CAPTURED = ((7, 4096, "ncclAllReduce"), (9, 512, "ncclAllGather"))
REPLAYS = 10


def make_rank(pid: int, late: int, is_recorded: bool, at_end: bool) -> Rank:
    """Return a rank that replays two collectives, the second from a copy in half of the replays.
    late: how late it is at the first collective of each replay (ns).
    """
    rank, thread, nodes = Rank(pid), make_global_tid(pid, pid), []
    rank.names += ("ncclDevKernel_AllGather_RING_LL()", "cudaStreamEndCapture_v10000")
    for node, (communicator, size, text) in enumerate(CAPTURED):
        begin = 1_000 * (node + 1)
        if is_recorded:
            made = format_payload(communicator, 0, Rank=pid - 4242, **{"No. of ranks": 2})
            rank.add_range(100 * node, 100 * node + 50, "ncclCommInitRank", jsonText=made)
            payload = format_payload(communicator, size)
            rank.add_range(begin, begin + 100, text, jsonText=payload)
        rank.calls.append(make_call(begin + 20, begin + 40, 1 + node, globalTid=thread))
        nodes.append(
            make_node(5_010 + node if at_end else begin + 30, FIRST_NODE + node, None, pid)
        )
    rank.calls.append(make_call(5_000, 5_100, 3, globalTid=thread, nameId=6))
    # A copy of the graph, two executable ones of it.
    for copy, of in ((2, 1), (3, 2), (4, 2)):
        nodes += [
            make_node(6_000, (copy << 32) + node, (of << 32) + node, pid) for node in range(2)
        ]
    if is_recorded:
        rank.more[NODES] = nodes
    rank.correlation = 100
    for replay in range(REPLAYS):
        begin = 1_000_000 * (replay + 1)
        graph = 3 + (replay >= REPLAYS // 2) << 32
        rank.add_kernel(begin, begin + 10_000 + late, begin + 90_000, graphNodeId=graph)
        rank.add_kernel(begin, begin + 100_000, begin + 190_000 + replay, 5, graphNodeId=graph + 1)
        rank.calls.pop()
        rank.kernels[-1]["correlationId"] = rank.kernels[-2]["correlationId"]
    return rank


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize("at_end", [True, False])
def test_replayed_kernels_of_nccl_are_of_the_captured_calls(
    tmp_path: Path, is_recorded: bool, at_end: bool
) -> None:
    """Check this also on a rank without a recorded capture, by simultaneous ends."""
    ranks = make_rank(4242, 0, True, at_end), make_rank(4243, 20_000, is_recorded, at_end)
    reports = [
        rank.write(tmp_path / f"r{at}" / f"rank{at}.sqlite") for at, rank in enumerate(ranks)
    ]
    with nsys2prv.open(reports, jobs=1) as job:
        tables = job.analyse("collectives")["collectives"].tables
        kernels = job.frame("nccl_kernel", "operation", "bytes", "communicator")
        notes = job.warnings
    found = tables["across_ranks"].frame.sort("operation")
    wanted = {"operation": ["AllGather", "AllReduce"], "collectives": [REPLAYS] * 2}
    wanted |= {"bytes": [2 * REPLAYS * 512, 2 * REPLAYS * 4096]}
    wanted |= {"wait_ns": [0, REPLAYS * 20_000]}
    assert found.select(*wanted).to_dict(as_series=False) == wanted
    assert tables["stragglers"].frame["times_last"].to_list() == [REPLAYS, 0]
    known = kernels.filter(pl.col("bytes") >= 0).group_by("bytes").len().sort("bytes")
    each = REPLAYS * (1 + is_recorded)
    assert known.rows() == [(512, each), (4096, each)]
    assert not any("payload" in note for note in notes)


def test_nodes_without_a_capture_are_matched_by_their_places_in_the_graphs(tmp_path: Path) -> None:
    """On one stream, collectives of all ranks and of pairs of ranks take turns."""
    rng, free = np.random.default_rng(3), np.zeros(4)
    ranks, truth = [Rank(4242 + rank) for rank in range(4)], []
    for step in range(30):
        free += rng.uniform(300_000, 800_000)
        for node, groups in enumerate([[[0, 1, 2, 3]], [[0, 1], [2, 3]]] * 2):
            for group in groups:
                begin = free[group] + 20_000 + np.abs(rng.normal(0, 40_000, len(group)))
                end = begin.max() + 15_000 + np.abs(rng.normal(0, 2_000, len(group)))
                truth.append(begin.astype(int).tolist())
                free[group] = end
                for rank, first, last in zip(group, begin, end, strict=True):
                    columns = {"graphNodeId": FIRST_COPY + node, "correlationId": 1 + step}
                    times = int(first), int(last)
                    kernel = make_kernel(*times, demangledName=1, shortName=1, **columns)
                    ranks[rank].kernels.append(
                        {**kernel, "globalPid": make_global_pid(4242 + rank)}
                    )
    reports = [
        rank.write(tmp_path / f"r{at}" / f"rank{at}.sqlite") for at, rank in enumerate(ranks)
    ]
    with nsys2prv.open(reports, jobs=1) as job:
        found = job.frame("nccl_collective", "collective").group_by("collective").agg("begin")
    first = min(map(min, truth))
    wanted = sorted(sorted(time - first for time in begins) for begins in truth)
    assert sorted(map(sorted, found["begin"].to_list())) == wanted


def test_messages_of_replayed_kernels_have_lines(tmp_path: Path) -> None:
    """Groups that send, receive or do both, in other orders on the two ranks, have one launch together."""
    reports, sizes = [], (1_000, 2_000, 4_000)
    for own in range(2):
        rank, nodes, pid = Rank(4242 + own), [], 4242 + own
        made = format_payload(7, 0, Rank=own, **{"No. of ranks": 2})
        rank.add_range(0, 50, "ncclCommInitRank", jsonText=made)
        for node, size in enumerate(sizes):
            begin, both = 1_000 * (node + 1), ["ncclSend", "ncclRecv"]
            rank.add_range(begin, begin + 5, "ncclGroupStart")
            for at, call in enumerate((both, both[own : own + 1], both[::-1])[node]):
                payload = format_payload(7, size, **{"Peer rank": 1 - own})
                rank.add_range(begin + 10 + 10 * at, begin + 15 + 10 * at, call, jsonText=payload)
            rank.add_range(begin + 50, begin + 100, "ncclGroupEnd")
            nodes.append(make_node(begin + 70, FIRST_NODE + node, None, pid))
            nodes.append(make_node(9_000, FIRST_COPY + node, FIRST_NODE + node, pid))
        rank.more[NODES] = nodes
        for replay in range(REPLAYS):
            launch, rank.correlation = 1_000_000 * (replay + 1), replay
            for node in range(len(sizes)):
                begin, end = launch + 10_000 + 100_000 * node, launch + 60_000 + 100_000 * node
                rank.correlation = replay
                rank.add_kernel(launch, begin + 5_000 * own, end, 3, graphNodeId=FIRST_COPY + node)
        reports.append(rank.write(tmp_path / f"r{own}" / f"rank{own}.sqlite"))
    with nsys2prv.open(reports, jobs=1) as job:
        lines = job.lines("nccl_message").group_by("bytes").len().sort("bytes")
    assert lines.rows() == [(1_000, 2 * REPLAYS), (2_000, REPLAYS), (4_000, 2 * REPLAYS)]


def test_that_a_capture_is_not_recorded_is_said(tmp_path: Path) -> None:
    report = write_graph_job(tmp_path / "r.sqlite", False)
    with closing(sqlite3.connect(report)) as connection, connection:
        connection.execute(f"DELETE FROM {NODES}")
    with nsys2prv.open(report, jobs=1) as job:
        missing = job.analyse("operations")["operations"].missing
    assert any(f"lack the capture of {2 * STEPS} operations" in one for one in missing)
