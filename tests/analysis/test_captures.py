"""Replayed graphs: their work counts in the NVTX ranges that were open when it was captured."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.exports import (
    KERNEL,
    PID,
    RUNTIME,
    Row,
    make_call,
    make_export,
    make_global_tid,
    make_kernel,
    make_nvtx_range,
    make_strings,
)

import nsys2prv

NODES = "CUDA_GRAPH_NODE_EVENTS"
LAUNCH, END_CAPTURE, GRAPH_LAUNCH = 2, 3, 4
NAMES = ("k", "cudaLaunchKernel_v7000", "cudaStreamEndCapture_v10000", "cudaGraphLaunch_v10000")
STEPS, FIRST_NODE, FIRST_COPY = 3, 1 << 32, 1 << 33
#: How long the kernels of both layers last (ns).
LASTS = 10_000, 30_000


def make_node(time: int, node: int, original: int | None = None) -> Row:
    thread = make_global_tid(PID, PID)
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
        calls.append(make_call(begin + 100, begin + 200, 10 + layer, nameId=LAUNCH))
        nodes.append(make_node(4_100 + layer if made_at_end else begin + 150, FIRST_NODE + layer))
    calls.append(make_call(4_000, 5_000, 12, nameId=END_CAPTURE))
    nodes += [make_node(6_000, FIRST_COPY + layer, FIRST_NODE + layer) for layer in range(2)]
    for step in range(1, STEPS + 1):
        launch, free = 100_000 * step, 100_000 * step + 5_000
        nvtx.append(make_nvtx_range(launch, launch + 1_000, f"step {step}"))
        calls.append(make_call(launch + 100, launch + 200, 20 + step, nameId=GRAPH_LAUNCH))
        for layer, lasts in enumerate(LASTS):
            of_node = {"correlationId": 20 + step, "graphNodeId": FIRST_COPY + layer}
            kernels.append(make_kernel(free, free + lasts, demangledName=1, shortName=1, **of_node))
            free += lasts + 1_000
    tables = {"StringIds": make_strings(*NAMES), "NVTX_EVENTS": nvtx, RUNTIME: calls}
    return make_export(path, {**tables, KERNEL: kernels, NODES: nodes})


@pytest.mark.parametrize("made_at_end", [False, True])
def test_replayed_work_counts_in_the_ranges_of_its_capture(
    tmp_path: Path, made_at_end: bool
) -> None:
    report = write_graph_job(tmp_path / "r.sqlite", made_at_end)
    with nsys2prv.open(report, jobs=1) as job:
        tables = job.analyse("operations")["operations"].tables
    rows = {row["operation"]: row for row in tables["operations"].frame.iter_rows(named=True)}
    for layer, lasts in enumerate(LASTS):
        assert rows[f"layer_{layer}"]["gpu_ns"] == STEPS * lasts
        assert rows[f"layer_{layer}"]["kernels"] == STEPS
    # Launched in steps, and captured within layers of one: each nanosecond is exclusive once.
    assert rows["step"]["gpu_ns"] == STEPS * sum(LASTS)
    assert sum(row["gpu_exclusive_ns"] for row in rows.values()) == STEPS * sum(LASTS)
