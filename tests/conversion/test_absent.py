"""Test data missing from a trace: kinds that no report contains, GPU work that is absent or was not
selected.
"""

from pathlib import Path

import pytest
from tools.exports import (
    KERNEL,
    PID,
    RUNTIME,
    make_call,
    make_export,
    make_kernel,
    make_os_call,
    make_strings,
)

from nsys2prv import Options, Summary, convert
from nsys2prv.events import all_kinds

SAMPLES = Path(__file__).parents[2] / "sample_reports"
IDLE = "no GPU work"
BY_NODE = "graphs: the reports contain no events of this kind: graphs were traced node by node, and their nodes are rows of `kernels`"


def convert_tables(folder: Path, *reports: Path, kinds: tuple[str, ...]) -> Summary:
    return convert(list(reports), folder / "out.prv", Options(kinds=kinds))


@pytest.mark.slow
def test_work_on_gpus_that_was_not_asked_for_is_no_lack_of_it(tmp_path: Path) -> None:
    reports = sorted((SAMPLES / "cluster").glob("rank*.sqlite"))
    summary = convert_tables(tmp_path, *reports, kinds=("cuda_api_trace", "nvtx_pushpop_trace"))
    assert not any(IDLE in note.text for note in summary.quality)
    assert [note for note in summary.notes if "GPU" in note] == [
        "the reports contain GPU work that -t does not select: kernels, memory"
    ]
    assert not any(
        "GPU" in note for note in convert_tables(tmp_path, *reports, kinds=("cuda",)).notes
    )


def test_a_report_without_work_is_named_where_some_was_asked_for(tmp_path: Path) -> None:
    calls = {
        RUNTIME: [make_call(0, 5, 1)],
        "OSRT_API": [make_os_call(0, 5)],
        "StringIds": make_strings("k", "cudaMalloc"),
        "TARGET_INFO_CUDA_CONTEXT_INFO": [{"processId": PID}],
    }
    idle = make_export(tmp_path / "idle.sqlite", calls)
    busy = make_export(tmp_path / "busy.sqlite", {**calls, KERNEL: [make_kernel(0, 5)]})
    assert any(
        note.text == f"idle.sqlite: {IDLE}"
        for note in convert_tables(tmp_path, idle, busy, kinds=("kernels", "osrt")).quality
    )
    assert any(
        note.text == f"idle.sqlite: {IDLE}"
        for note in convert_tables(tmp_path, idle, busy, kinds=()).quality
    )
    assert not any(
        IDLE in note.text
        for note in convert_tables(tmp_path, idle, busy, kinds=("cuda_api_trace",)).quality
    )
    # Copies were asked for and are not there, but the GPU did work.
    assert convert_tables(tmp_path, busy, kinds=("memory", "osrt")).warnings == [
        "memory: the reports contain no events of this kind"
    ]


def test_work_of_other_programming_models_counts() -> None:
    on_gpu = {kind.name for kind in all_kinds() if kind.gpu_work}
    assert {"kernels", "memory", "graphs", "opengl_gpu", "vulkan_gpu"} <= on_gpu
    assert not {"cuda_sync", "cuda_events", "cuda_api_trace", "nvtx_on_gpu", "gpu_metrics"} & on_gpu


def test_nodes_of_graphs_are_pointed_at(tmp_path: Path) -> None:
    by_node, whole = SAMPLES / "graphs" / "rank1.sqlite", SAMPLES / "graphs" / "rank0.sqlite"
    assert (
        convert_tables(tmp_path, by_node, kinds=("cuda_api_trace", "graphs")).warnings[-1]
        == BY_NODE
    )
    assert not any(
        BY_NODE in warning
        for warning in convert_tables(
            tmp_path, by_node, whole, kinds=("cuda_api_trace", "graphs")
        ).warnings
    )
    none = make_export(
        tmp_path / "r.sqlite",
        {
            KERNEL: [make_kernel(0, 5, graphNodeId=node) for node in (None, 0)],
            "StringIds": make_strings("k"),
        },
    )
    assert (
        "graphs: the reports contain no events of this kind"
        in convert_tables(tmp_path, none, kinds=("kernels", "graphs")).warnings
    )
