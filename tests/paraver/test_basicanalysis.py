"""Test the properties of traces by which POP's BasicAnalysis recognizes nsys2prv: labels in the
.pcf, and row names of tasks with streams.

It takes a trace for one of nsys2prv if the .pcf has no STATES but one of two labels. A row named as
a stream is a device stream, a row `Metrics GPU0` is ignored, and every other row of a task with
streams is a host thread, which is useful outside CUDA API calls.
"""

import re
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tools.conversions import convert_and_read
from tools.exports import KERNEL, Row, make_export, make_global_tid, make_kernel, make_strings
from tools.trace import Trace

SAMPLES = Path(__file__).parents[2] / "sample_reports"
LABELS = ("CUDA memcpy kernel", "NCCL kernel")
STREAM, LEFT_OUT = (
    re.compile(r"(?:CUDA|HIP)-(D\d+)\.S(\d+)(?:-(\S+))?\s*"),
    re.compile(r"Metrics GPU\d+\s*"),
)
#: Work of a process outside CUDA, on rows of its own.
QUEUES = ("OpenGL GPU", "Vulkan GPU")


def list_host_rows(trace: Trace) -> list[str]:
    """Return the names of the rows that count as host threads."""
    names = iter(trace.names["THREAD"])
    result: list[str] = []
    for threads, _ in trace.tasks:
        task_names = [next(names) for _ in range(threads)]
        if any(STREAM.fullmatch(name) for name in task_names):
            result += [
                name
                for name in task_names
                if not STREAM.fullmatch(name) and not LEFT_OUT.fullmatch(name)
            ]
    return result


@pytest.mark.parametrize(
    "tables",
    [
        {KERNEL: [make_kernel(10, 20)]},
        {"CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [make_kernel(10, 20, graphId=1, graphExecId=1)]},
    ],
    ids=["kernels", "graphs"],
)
def test_traces_of_nothing_but_kernels_are_recognised(
    tmp_path: Path, tables: Mapping[str, Sequence[Row]]
) -> None:
    trace, _ = convert_and_read(
        [make_export(tmp_path / "r.sqlite", {**tables, "StringIds": make_strings("saxpy")})],
        tmp_path / "o.prv",
    )
    text = (tmp_path / "o.pcf").read_text()
    assert all(label in text for label in LABELS)
    assert "STATES" not in text.splitlines()
    assert {
        63000001: "CUDA memcpy kernel",
        63000007: "NCCL kernel",
    }.items() <= trace.labels.types.items()
    assert (
        trace.labels.values[63000001].items()
        >= {
            3: "CUDA memcpy Device-to-Device",
            4: "CUDA memcpy Device-to-Host",
            5: "CUDA memcpy Host-to-Device",
            6: "CUDA memset",
        }.items()
    )
    assert trace.labels.values[63000007] == {0: "End"}
    assert STREAM.fullmatch(trace.names["THREAD"][0])


#: Calls of MPI by table, and rows of CUDA: BasicAnalysis goes by three blanks before the first digits of types.
MPI = {
    "MPI_OTHER_EVENTS": [{"start": 5, "end": 9, "globalTid": make_global_tid(1), "textId": 1}],
    "StringIds": make_strings("MPI_Init"),
}
OF_EXTRAE = {"MPI": "   500000", "CUDA": "   630000", "OpenMP": "   60000", "sampling": "    30000"}


def find_models(pcf: str) -> set[str]:
    """Return the programming models that a .pcf of Extrae shows."""
    return {model for model, text in OF_EXTRAE.items() if text in pcf}


@pytest.mark.parametrize("states", [False, True], ids=["", "states"])
def test_mpi_is_found_in_traces_that_are_taken_for_those_of_extrae(
    states: bool, tmp_path: Path
) -> None:
    report = make_export(tmp_path / "r.sqlite", MPI)
    trace, _ = convert_and_read([report], tmp_path / "o.prv", states=states)
    text = (tmp_path / "o.pcf").read_text()
    assert find_models(text) == {"MPI"}
    assert trace.labels.types[50000003] == "MPI Other"
    assert trace.labels.values[50000003][1000033] == "Outside MPI"


def test_work_on_gpus_is_written_as_nsys2prv_does_unless_there_are_states(tmp_path: Path) -> None:
    report = make_export(tmp_path / "r.sqlite", {**MPI, KERNEL: [make_kernel(10, 20)]})
    convert_and_read([report], tmp_path / "o.prv")
    assert find_models((tmp_path / "o.pcf").read_text()) == set()
    convert_and_read([report], tmp_path / "s.prv", states=True)
    assert find_models((tmp_path / "s.pcf").read_text()) == {"MPI", "CUDA"}


def test_graphs_traced_as_a_whole_count_as_kernels(tmp_path: Path) -> None:
    """It takes as useful the time in which a kernel's event on a stream is not 0."""
    report = SAMPLES / "graphs" / "rank0.sqlite"
    trace, _ = convert_and_read([report], tmp_path / "o.prv")
    kernels = [*trace.list_intervals(63000006), *trace.list_intervals(63000007)]
    with sqlite3.connect(report) as connection:
        times = [
            connection.execute(f"SELECT start, end - start FROM {table}").fetchall()
            for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
        ]
    assert sorted(one.end - one.begin for one in kernels) == sorted(
        length for rows in times for _, length in rows
    )
    graphs = {one.value for one in trace.list_intervals(63000008)}
    assert len(graphs) == 4
    labels = trace.labels.values
    assert {labels[63000006][one] for one in graphs} == {labels[63000008][one] for one in graphs}


@pytest.mark.parametrize(("sample", "ranks"), [("mpi", 4), ("graphs", 0)])
def test_dimemas_finds_the_communicator_of_all_ranks(
    sample: str, ranks: int, tmp_path: Path
) -> None:
    convert_and_read(sorted((SAMPLES / sample).glob("*.sqlite")), tmp_path / "o.prv")
    header, first, *_ = (tmp_path / "o.prv").read_text().splitlines()
    assert header.endswith("),1") == first.startswith("c:") == bool(ranks)
    if ranks:
        assert first == "c:1:1:4:1:2:3:4"


@pytest.mark.parametrize("sample", ["graphs", "mpi"])
def test_types_are_declared_that_records_have(sample: str, tmp_path: Path) -> None:
    reports = sorted((SAMPLES / sample).glob("*.sqlite"))
    trace, _ = convert_and_read(reports, tmp_path / "o.prv")
    lines = (tmp_path / "o.prv").read_text().splitlines()
    present = {
        int(code) for line in lines if line.startswith("2:") for code in line.split(":")[6::2]
    }
    # Types of NVTX domains share names, and are declared together.
    assert {code for code in trace.labels.types.keys() - present if code > 60000} <= {
        63000001,
        63000007,
    }


def test_types_of_devices_are_not_declared_without_work_on_one(tmp_path: Path) -> None:
    ranges = [{"start": 1, "end": 2, "eventType": 59, "text": "a", "globalTid": 1 << 24}]
    report = make_export(tmp_path / "r.sqlite", {"NVTX_EVENTS": ranges})
    trace, _ = convert_and_read([report], tmp_path / "o.prv")
    assert not {63000001, 63000007} & trace.labels.types.keys()


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["cluster", "machine"])
def test_rows_of_devices_are_no_host_threads(sample: str, tmp_path: Path) -> None:
    trace, summary = convert_and_read(
        sorted((SAMPLES / sample).glob("rank*.sqlite")), tmp_path / "o.prv"
    )
    assert all(name.startswith(("THREAD ", *QUEUES)) for name in list_host_rows(trace))
    apart = [name for name in trace.names["TASK"] if name.startswith("devices of ")]
    assert apart == [f"devices of {node}" for node in trace.names["NODE"]]
    assert trace.names["TASK"][-len(apart) :] == apart
    assert (
        summary.ranks
        == len(trace.tasks) - len(apart)
        == len(list((SAMPLES / sample).glob("rank*.sqlite")))
    )
