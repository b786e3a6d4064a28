"""Test memory in use on GPUs: shared GPUs, odd addresses and orders, tables in pieces; and page
faults of several processes on one GPU.
"""

from pathlib import Path

import pytest
from tools.conversions import convert_and_read
from tools.exports import (
    KERNEL,
    PID,
    Row,
    make_export,
    make_global_pid,
    make_gpus,
    make_host,
    make_kernel,
    make_strings,
)
from tools.trace import Trace

from nsys2prv import Summary
from nsys2prv.events.kind import Reason

USAGE, GPU_FAULTS = "CUDA_GPU_MEMORY_USAGE_EVENTS", "CUDA_UM_GPU_PAGE_FAULT_EVENTS"
DEVICE, PINNED = 66500013, 66500012
UUID = "01234567-89ab-cdef-0123-456789abcdef"


def make_allocation(
    start: int | None,
    size: int | None,
    address: int | None = 1,
    kind: int | None = 2,
    pid: int = PID,
    device: int = 0,
) -> Row:
    return {
        "start": start,
        "globalPid": make_global_pid(pid),
        "deviceId": device,
        "address": address,
        "bytes": size,
        "memKind": kind,
        "memoryOperationType": 0,
    }


def make_release(start: int, size: int = 0, address: int = 1, **columns: object) -> Row:
    return make_allocation(start, size, address, **columns) | {"memoryOperationType": 1}


def convert_memory_events(
    folder: Path, *reports: list[Row], **options: object
) -> tuple[Trace, Summary]:
    """Convert reports of one host with these rows, each of a process on its GPU 0."""
    paths = []
    for number, rows in enumerate(reports):
        tables = {
            USAGE: rows,
            KERNEL: [make_kernel(0, 1000, globalPid=rows[0]["globalPid"])],
            "StringIds": make_strings("k"),
            "TARGET_INFO_GPU": make_gpus(UUID),
            **make_host("node", 10**18),
        }
        paths.append(make_export(folder / f"{number}.sqlite", tables))
    return convert_and_read(paths, folder / "o.prv", **options)


def list_totals(trace: Trace, code: int = DEVICE) -> list[tuple[int, int]]:
    return [
        (sample.time, sample.numbers[code])
        for sample in trace.samples
        if code in sample.numbers and sample.time < trace.duration
    ]


def test_what_is_taken_and_given_back(tmp_path: Path) -> None:
    rows = [
        make_allocation(10, 100),
        make_allocation(20, 50, 2),
        make_release(30, 100),
        make_allocation(30, 7, 3, kind=1),
        make_release(40, address=2),
        make_release(40, address=3),
    ]
    trace, summary = convert_memory_events(tmp_path, rows)
    assert list_totals(trace) == [(10, 100), (20, 150), (30, 50), (40, 0)]
    assert list_totals(trace, PINNED) == [(30, 7), (40, 0)]
    assert not [note for note in summary.notes if "memory" in note]


@pytest.mark.parametrize("release_first", [True, False])
def test_memory_released_and_allocated_again_at_one_moment(
    release_first: bool, tmp_path: Path
) -> None:
    """Of an address in use the release comes first, in any order of the table."""
    both = [make_release(30), make_allocation(30, 7)]
    rows = [make_allocation(10, 100), *(both if release_first else both[::-1]), make_release(50)]
    trace, summary = convert_memory_events(tmp_path, rows)
    assert list_totals(trace) == [(10, 100), (30, 7), (50, 0)]
    assert not [note for note in summary.notes if "memory" in note]


def test_an_address_is_one_of_a_process(tmp_path: Path) -> None:
    trace, _ = convert_memory_events(
        tmp_path,
        [
            make_allocation(10, 100),
            make_allocation(20, 30, pid=77),
            make_release(30),
            make_release(40, pid=77),
        ],
    )
    assert list_totals(trace) == [(10, 100), (20, 130), (30, 30), (40, 0)]


def test_reports_that_share_a_gpu_add_up(tmp_path: Path) -> None:
    """Equal globalPids too: reports of containers repeat them."""
    trace, _ = convert_memory_events(
        tmp_path,
        [make_allocation(10, 100), make_release(50)],
        [make_allocation(20, 30), make_release(60)],
        align="utc",
    )
    assert list_totals(trace) == [(10, 100), (20, 130), (50, 30), (60, 0)]
    assert len({sample.row for sample in trace.samples}) == 1


def test_releases_of_what_is_not_known_and_addresses_taken_twice(tmp_path: Path) -> None:
    rows = [
        make_release(5, 1000),
        make_allocation(10, 100),
        make_allocation(20, 30),
        make_release(30, 30),
        make_release(40, 30),
        make_allocation(50, 1),
    ]
    trace, summary = convert_memory_events(tmp_path, rows)
    assert list_totals(trace) == [(10, 100), (20, 30), (30, 0), (50, 1)]
    assert [note for note in summary.notes if "memory" in note] == [
        "memory in use: 2 releases of memory without a recorded allocation, discarded",
        "memory in use: 1 allocations at addresses in use, without a recorded release; the earlier ones count as released",
    ]


def test_rows_that_say_too_little_or_too_much(tmp_path: Path) -> None:
    rows = [
        make_allocation(10, None),
        make_allocation(20, -5, 2),
        make_allocation(30, 40, 3, kind=None),
        make_allocation(40, 40, 4, kind=55),
        make_allocation(None, 40, 5),
        make_allocation(50, 60, None),
        make_allocation(60, 1 << 62, 6),
        make_allocation(70, 1 << 62, 7),
        make_allocation(80, 1 << 62, 8),
        {**make_allocation(90, 5, 9), "memoryOperationType": 7},
    ]
    trace, summary = convert_memory_events(tmp_path, rows)
    assert list_totals(trace, 66500018) == [(30, 40), (40, 80)]
    assert list_totals(trace)[:3] == [(10, 0), (20, 0), (50, 60)]
    assert all(value >= 0 for _, value in list_totals(trace))
    assert summary.dropped == {("memory_usage", Reason.NO_TIME): 1}
    assert [trace.get_label(66500003, item.value) for item in trace.list_intervals(66500003)].count(
        "Memory usage event of unknown kind"
    ) == 1


def test_page_faults_of_several_reports_on_one_gpu_are_all_written(tmp_path: Path) -> None:
    paths = []
    for number in range(2):
        fault = {
            "start": 10 + number,
            "end": 20,
            "globalPid": make_global_pid(),
            "deviceId": 0,
            "numberOfPageFaults": 3,
            "faultAccessType": number,
        }
        paths.append(
            make_export(
                tmp_path / f"{number}.sqlite",
                {
                    GPU_FAULTS: [fault],
                    KERNEL: [make_kernel(0, 100)],
                    "StringIds": make_strings("k"),
                    "TARGET_INFO_GPU": make_gpus(UUID),
                    **make_host("node", 10**18),
                },
            )
        )
    trace, summary = convert_and_read(paths, tmp_path / "o.prv", align="utc")
    assert [
        (trace.get_label(66500035, item.value), item.begin)
        for item in sorted(trace.list_intervals(66500035), key=lambda item: item.begin)
    ] == [("Unknown", 10), ("Read", 11)]
    assert len({item.row for item in trace.list_intervals(66500035)}) == 1
    assert not [note for note in summary.notes if "left out" in note]
