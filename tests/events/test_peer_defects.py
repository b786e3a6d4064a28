"""Test inputs on which other converters of Nsight Systems exports failed, each as a small export,
unless another test has it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tools.conversions import convert_and_read, list_labelled_intervals
from tools.exports import (
    KERNEL,
    RUNTIME,
    Row,
    make_call,
    make_export,
    make_global_pid,
    make_global_tid,
    make_host,
    make_kernel,
    make_nvtx_range,
    make_os_call,
    make_strings,
)
from tools.trace import Trace

NVTX, GRAPHS, EVENTS = (
    "NVTX_EVENTS",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
)
CALLS, BYTES, KERNELS, GRAPH, PUSHPOP, STARTEND, SMS = (
    63000000,
    63000002,
    63000006,
    63000008,
    9600,
    9610,
    9403,
)
OTHER_MPI, NESMIK = 50000003, 81000
UTC = 1_780_000_000_000_000_000
CLOCKS = UTC, 10**12
LAUNCH = make_strings("k", "cudaLaunchKernel_v7000")
Tables = Mapping[str, Sequence[Row]]


def convert_tables(folder: Path, *reports: Tables) -> Trace:
    """Convert rank0, rank1... made of these tables, and return the trace, which has no violations."""
    paths = [
        make_export(folder / f"rank{number}.sqlite", tables)
        for number, tables in enumerate(reports)
    ]
    return convert_and_read(paths, folder / "o.prv")[0]


def test_reports_of_one_name_in_two_folders_are_both_read(tmp_path: Path) -> None:
    paths = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        paths.append(
            make_export(
                tmp_path / str(number) / "report.sqlite",
                {
                    KERNEL: [make_kernel(10, 20 + number)],
                    "StringIds": make_strings(f"kernel{number}"),
                    **make_host(f"node{number}", *CLOCKS),
                },
            )
        )
    trace, _ = convert_and_read(paths, tmp_path / "o.prv")
    assert [
        (label, end - begin) for label, begin, end in list_labelled_intervals(trace, KERNELS)
    ] == [("kernel0", 10), ("kernel1", 11)]


def test_a_call_named_like_mpi_init_moves_no_rank(tmp_path: Path) -> None:
    """MPI_Initialized is asked a second earlier on one rank than on the other; both end MPI_Init
    together.
    """

    def calls(asked: int) -> dict[str, list[Row]]:
        rows = [
            {"start": start, "end": end, "globalTid": make_global_tid(4242), "textId": name}
            for name, start, end in ((1, asked, asked + 5), (2, 2_000_000_000, 2_000_000_100))
        ]
        return {"MPI_OTHER_EVENTS": rows, "StringIds": make_strings("MPI_Initialized", "MPI_Init")}

    trace = convert_tables(
        tmp_path,
        {**calls(0), **make_host("a", *CLOCKS)},
        {**calls(1_000_000_000), **make_host("b", *CLOCKS)},
    )
    inits = {
        (begin, end)
        for label, begin, end in list_labelled_intervals(trace, OTHER_MPI)
        if label == "MPI_Init"
    }
    assert len(inits) == 1


def test_domains_named_by_registered_string_and_created_on_two_threads(tmp_path: Path) -> None:
    created = [
        make_nvtx_range(0, None, None, 75, tid=tid, domainId=1, textId=1) for tid in (4242, 4243)
    ]
    trace = convert_tables(
        tmp_path,
        {
            NVTX: [*created, make_nvtx_range(5, 9, "work", domainId=1)],
            "StringIds": make_strings("own domain"),
        },
    )
    [code] = [
        code
        for code, label in trace.labels.types.items()
        if label == "NVTX pushpop ranges own domain"
    ]
    assert list_labelled_intervals(trace, code) == [("work", 0, 4)]


def test_ranges_of_nesmik_have_the_type_that_its_views_ask_for(tmp_path: Path) -> None:
    created = make_nvtx_range(0, None, "neSmiK", 75, domainId=1)
    trace = convert_tables(
        tmp_path,
        {
            NVTX: [
                created,
                make_nvtx_range(5, 9, "timestep", domainId=1),
                make_nvtx_range(6, 8, "other"),
            ]
        },
    )
    assert (list_labelled_intervals(trace, NESMIK), list_labelled_intervals(trace, PUSHPOP)) == (
        [("timestep", 0, 4)],
        [("other", 1, 3)],
    )


def test_nodes_and_threads_have_their_names_and_no_two_rows_one_place(tmp_path: Path) -> None:
    tables = {
        RUNTIME: [make_call(0, 10, 1)],
        KERNEL: [make_kernel(5, 9, correlationId=1)],
        "StringIds": [*LAUNCH, {"id": 3, "value": "main loop"}],
        "ThreadNames": [{"globalTid": make_global_tid(4242), "nameId": 3, "priority": 1}],
    }
    trace = convert_tables(
        tmp_path,
        {**tables, **make_host("alpha", *CLOCKS)},
        {**tables, **make_host("beta", UTC, 5 * 10**12)},
    )
    assert trace.names["NODE"] == ["alpha", "beta"]
    assert [node for _, node in trace.tasks] == [1, 2]
    threads = [
        f"THREAD 1.{task}.{number} rank {task - 1} main loop 4242"
        for task, number in trace.find_rows("4242")
    ]
    assert len(threads) == 2
    assert sorted(trace.names["THREAD"]) == sorted(
        [*threads, "CUDA-D0.S7-alpha", "CUDA-D0.S7-beta"]
    )
    assert len(trace.names["CPU"]) == len(set(trace.names["CPU"]))


# ---- refused -------------------------------------------------------------------------------------------------------------------------
ALONE: dict[str, Tables] = {
    "kernels": {KERNEL: [make_kernel(0, 5)], "StringIds": make_strings("k")},
    "calls": {RUNTIME: [make_call(0, 5, 1)], "StringIds": LAUNCH},
    "ranges": {NVTX: [make_nvtx_range(0, 5, "r")]},
    "os calls": {"OSRT_API": [make_os_call(0, 5)], "StringIds": make_strings("read")},
    "events": {
        EVENTS: [
            {
                "globalPid": make_global_pid(),
                "correlationId": 1,
                "eventId": 2,
                "deviceId": 0,
                "streamId": 7,
                "contextId": 1,
            }
        ],
        RUNTIME: [make_call(0, 5, 1)],
        "StringIds": make_strings("", "cudaEventRecord_v3020"),
    },
    "graphs": {
        GRAPHS: [
            {
                "start": 0,
                "end": 5,
                "deviceId": 0,
                "streamId": 7,
                "globalPid": make_global_pid(),
                "correlationId": 1,
            }
        ]
    },
}


@pytest.mark.parametrize("alone", ALONE)
def test_events_of_one_kind_need_no_other_table(alone: str, tmp_path: Path) -> None:
    """No META_DATA_EXPORT, CUDA contexts, GPUs, host name or columns of later schemas."""
    trace = convert_tables(tmp_path, ALONE[alone])
    assert trace.duration == 5
    assert sum(map(len, trace.events.values())) >= 1


@pytest.mark.parametrize("lacking", [NVTX, KERNEL, RUNTIME])
def test_one_report_of_several_may_lack_a_table(lacking: str, tmp_path: Path) -> None:
    whole = {
        NVTX: [make_nvtx_range(0, 50, "r")],
        KERNEL: [make_kernel(20, 30, correlationId=1)],
        RUNTIME: [make_call(5, 10, 1)],
        "StringIds": LAUNCH,
    }
    trace = convert_tables(
        tmp_path,
        {**whole, **make_host("a", *CLOCKS)},
        {
            **{name: rows for name, rows in whole.items() if name != lacking},
            **make_host("b", *CLOCKS),
        },
    )
    counts = {code: len(trace.list_intervals(code)) for code in (PUSHPOP, KERNELS, CALLS)}
    assert counts == {
        PUSHPOP: 1 + (lacking != NVTX),
        KERNELS: 1 + (lacking != KERNEL),
        CALLS: 1 + (lacking != RUNTIME),
    }
