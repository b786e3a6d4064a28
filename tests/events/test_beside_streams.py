"""Test host callbacks, streams that wait for them, compilation, decompression, and UCX messages."""

from pathlib import Path

from tools.conversions import convert_and_read, list_labelled_intervals
from tools.exports import (
    PID,
    Row,
    make_call,
    make_export,
    make_global_pid,
    make_global_tid,
    make_kernel,
    make_nvtx_range,
    make_os_call,
    make_strings,
)

import nsys2prv
from nsys2prv.writers.paraver.views import find_views_for_trace

NAMES = make_strings(
    "k", "cudaLaunchHostFunc", "my_callback", "ucp_tag_send_nbx", "ucp_tag_recv_nbx"
)
OPERATION = {"deviceId": 0, "streamId": 7, "contextId": 1, "globalPid": make_global_pid(PID)}


def convert_rows(tmp_path: Path, tables: dict[str, list[Row]]) -> object:
    report = make_export(tmp_path / "r.sqlite", {**tables, "StringIds": NAMES})
    return convert_and_read([report], tmp_path / "o.prv")[0]


def list_ranges(trace: object, code: int) -> list[tuple[str, int, int]]:
    return sorted(list_labelled_intervals(trace, code), key=lambda one: one[1])


def test_a_callback_holds_its_stream(tmp_path: Path) -> None:
    callback = {"start": 20, "end": 60, "globalTid": make_global_tid(9), "correlationId": 1}
    tables = {
        "CUPTI_ACTIVITY_KIND_RUNTIME": [make_call(0, 10, 1)],
        "CUDA_HOST_CALLBACK": [
            {**callback, "nameId": 3},
            {**callback, "start": 70, "end": 80, "nameId": None},
        ],
        "CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE_AND_HOST_LAUNCH": [
            {**OPERATION, "start": 15, "end": 65, "correlationId": 1, "graphNodeId": None},
            {**OPERATION, "start": 68, "end": 82, "correlationId": 2, "graphNodeId": 77},
        ],
    }
    trace = convert_rows(tmp_path, tables)
    assert list_ranges(trace, 69200300) == [("my_callback", 20, 60), ("host callback", 70, 80)]
    assert list_ranges(trace, 69200400) == [
        ("Host callback (cudaLaunchHostFunc)", 15, 65),
        ("Host node of a graph", 68, 82),
    ]


def test_compilation_and_decompression(tmp_path: Path) -> None:
    compilation = {"globalTid": make_global_tid(PID), "jitEntryType": 1, "correlationId": 1}
    path = "/home/private/.nv"
    tables = {
        "CUPTI_ACTIVITY_KIND_RUNTIME": [make_call(0, 100, 1)],
        "CUPTI_ACTIVITY_KIND_JIT": [
            {**compilation, "start": 5, "end": 15, "jitOperationType": 1, "cachePath": path},
            {**compilation, "start": 15, "end": 90, "jitOperationType": 3, "cacheSize": 12},
        ],
        "CUPTI_ACTIVITY_KIND_MEM_DECOMPRESS": [
            {**OPERATION, "start": 95, "end": 99, "sourceBytes": 4096, "NumberOfOperations": 16}
        ],
    }
    trace = convert_rows(tmp_path, tables)
    assert list_ranges(trace, 69200500) == [("Load from the cache", 5, 15), ("Compilation", 15, 90)]
    compiled = max(trace.list_intervals(69200500), key=lambda one: one.end)
    (decompressed,) = trace.list_intervals(69200600)
    assert (compiled.others[69200502], decompressed.others[69200601]) == (12, 4096)
    written = b"".join(file.read_bytes() for file in tmp_path.glob("o.*"))
    assert b"private" not in written


def test_messages_of_ucx_lead_from_submission_to_completion(tmp_path: Path) -> None:
    """The receiver may come first; what lacks a peer is no message; processes know each other by
    the numbers of their workers.
    """

    def make_report(rank: int, *operations: tuple[int, int, int, int | None]) -> Path:
        tid = make_global_tid(PID + rank, PID + rank, rank + 1)
        transfers = [
            {
                "start": start,
                "end": end,
                "globalTid": tid,
                "textId": name,
                "packedSize": 64,
                "peerWorkerUid": None if peer is None else peer,
                "tag": 0,
            }
            for start, end, name, peer in operations
        ]
        tables = {
            "UCP_PROGRESS_EVENTS": transfers,
            "UCP_WORKERS": [{"globalTid": tid, "workerUid": 10 + rank}],
            "StringIds": NAMES,
            "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": 10**18}],
        }
        return make_export(tmp_path / f"{rank}.sqlite", tables)

    reports = [
        make_report(0, (100, 200, 4, 11), (110, 300, 4, 11), (400, 500, 4, None)),
        make_report(1, (50, 250, 5, 10), (60, 350, 5, 10)),
    ]
    trace, _ = convert_and_read(reports, tmp_path / "o.prv", align="utc")
    assert sorted((line.send, line.receive, line.size) for line in trace.comms) == [
        (100 - 50, 250 - 50, 64),
        (110 - 50, 350 - 50, 64),
    ]


def test_ucx_beside_kernels(tmp_path: Path) -> None:
    """Check that concurrent operations count once, and that overlapping computation is reported."""
    operation = {"globalTid": make_global_tid(PID), "textId": 4, "packedSize": 64}
    tables = {
        "UCP_PROGRESS_EVENTS": [
            {**operation, "start": begin, "end": end} for begin, end in ((0, 100), (50, 150))
        ],
        "CUPTI_ACTIVITY_KIND_KERNEL": [make_kernel(120, 200)],
        "StringIds": NAMES,
    }
    with nsys2prv.open(make_export(tmp_path / "r.sqlite", tables), quiet=True, jobs=1) as job:
        (row,) = job.analyse("overlap")["overlap"].tables["ucx"].frame.rows(named=True)
    times = {name: row[name] for name in ("count", "time_ns", "overlapped_ns", "exposed_ns")}
    assert times == {"count": 2, "time_ns": 150, "overlapped_ns": 30, "exposed_ns": 120}


def test_what_idle_gpus_wait_for(tmp_path: Path) -> None:
    """Compilation within a call, callbacks that hold streams, and calls of OpenSHMEM are named; calls
    of the system within these are not told again.
    """
    names = make_strings("k", "cuModuleLoadDataEx", "poll")
    system = [make_os_call(41_000, 49_000, 3), make_os_call(86_000, 99_000, 3)]
    compilation = {"start": 1_000, "end": 39_000, "jitOperationType": 3, "correlationId": 9}
    held = {"start": 51_000, "end": 84_000, "correlationId": 3, "graphNodeId": 7}
    barrier = make_nvtx_range(85_000, 100_000, "shmem_barrier_all")
    tables = {
        "CUPTI_ACTIVITY_KIND_RUNTIME": [make_call(0, 40_000, 9), make_call(100_000, 100_010, 1)],
        "CUPTI_ACTIVITY_KIND_JIT": [{**compilation, "globalTid": make_global_tid(PID)}],
        "CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE_AND_HOST_LAUNCH": [{**OPERATION, **held}],
        "CUPTI_ACTIVITY_KIND_KERNEL": [make_kernel(100_010, 100_100, correlationId=1)],
        "NVTX_EVENTS": [barrier],
        "OSRT_API": system,
        "StringIds": names,
    }
    with nsys2prv.open(make_export(tmp_path / "r.sqlite", tables), quiet=True, jobs=1) as job:
        first = job.findings()[0].evidence[0]
    assert first == (
        "host: 38% compiling GPU code, 33% waiting for host callbacks, which block streams, "
        "15% in NVSHMEM or OpenSHMEM calls, 8% in OS runtime calls (poll 8.00 us)"
    )


def test_metrics_of_a_system_on_a_chip(tmp_path: Path) -> None:
    source = 5 << 56
    samples = [
        {"rawTimestamp": time, "timestamp": time, "typeId": source, "metricId": 0, "value": value}
        for time, value in ((0, 10), (100, 50), (200, 0))
    ]
    metric = {"typeId": source, "metricId": 0, "metricName": "DLA0 Active [%]"}
    tables = {"SOC_METRICS": samples, "TARGET_INFO_SOC_METRICS": [metric]}
    trace = convert_rows(tmp_path, tables)
    (code,) = (code for code, label in trace.labels.types.items() if label == metric["metricName"])
    assert [sample.numbers[code] for sample in trace.samples][:2] == [10, 50]
    assert {trace.get_row_name(sample.row) for sample in trace.samples} == {"system on a chip"}


def test_blocks_are_counted_on_each_gpu(tmp_path: Path) -> None:
    """Three blocks on two multiprocessors; ranges of a warp are none of their own."""
    block = {"globalPid": make_global_pid(PID), "deviceId": 0, "BlockID": 1}
    warp = {**block, "SMId": 1, "start": 10, "end": 30}
    tables = {
        "CUPTI_ACTIVITY_KIND_KERNEL": [make_kernel(0, 50)],
        "CUPTI_ACTIVITY_KIND_BLOCK_TRACE": [
            {**block, "SMId": 0, "start": 0, "end": 20},
            {**block, "SMId": 0, "start": 10, "end": 40},
            {**block, "SMId": 1, "start": 10, "end": 30},
        ],
        "CUPTI_ACTIVITY_KIND_WARP_PHASE_TRACE": [
            {**warp, "eventType": 2},
            {**warp, "eventType": 0},
        ],
    }
    trace = convert_rows(tmp_path, tables)
    found: dict[int, dict[int, int]] = {code: {} for code in (69200701, 69200702, 69200703)}
    for sample in trace.samples:
        for code in found.keys() & sample.numbers.keys():
            found[code][sample.time] = sample.numbers[code]
    assert found[69200701] == {0: 1, 10: 3, 20: 2, 30: 1, 40: 0, 50: 0}
    assert found[69200702] == {10: 1, 30: 0, 50: 0}
    assert found[69200703] == {0: 1, 10: 2, 30: 1, 40: 0, 50: 0}
    shown = {fit.path for fit in find_views_for_trace(tmp_path / "o.prv") if not fit.lacking}
    assert "extra/hwcounters/multiprocessors_with_a_block_or_warp.cfg" in shown
