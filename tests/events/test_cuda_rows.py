"""Test CUDA rows made by hand: copies between and within GPUs, the objects of synchronizations,
launches.
"""

from pathlib import Path

import pytest
from tools.exports import (
    KERNEL,
    MEMCPY,
    RUNTIME,
    Row,
    make_call,
    make_export,
    make_global_pid,
    make_kernel,
)

import nsys2prv

SYNCHRONIZATION = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
NONE = 0xFFFFFFFF
#: Kinds of copies as Nsight numbers them.
TO_DEVICE, WITHIN, PEER = 1, 8, 10


def make_names(*names: str) -> list[Row]:
    """Return rows of StringIds: a kernel, then these functions from 2 on."""
    return [{"id": number, "value": text} for number, text in enumerate(("k", *names), 1)]


@pytest.mark.parametrize(
    ("kind", "source", "destination", "label"),
    [
        (WITHIN, 0, 0, "Device-to-Device"),
        (WITHIN, 1, 1, "Device-to-Device"),
        (WITHIN, None, None, "Device-to-Device"),
        (WITHIN, None, 1, "Device-to-Device"),
        (WITHIN, 0, 1, "Peer-to-Peer"),
        (WITHIN, 1, 0, "Peer-to-Peer"),
        (PEER, 0, 1, "Peer-to-Peer"),
        (TO_DEVICE, None, 1, "Host-to-Device"),
        (TO_DEVICE, 0, 1, "Host-to-Device"),
    ],
)
def test_a_copy_is_between_gpus_only_if_these_differ(
    kind: int, source: int | None, destination: int | None, label: str, tmp_path: Path
) -> None:
    row = {"start": 10, "end": 20, "deviceId": 0, "contextId": 1, "streamId": 7, "bytes": 64}
    row |= {"copyKind": kind, "srcDeviceId": source, "dstDeviceId": destination}
    row |= {"globalPid": make_global_pid(), "correlationId": 1, "srcKind": 2, "dstKind": 2}
    with nsys2prv.open(make_export(tmp_path / "r.sqlite", {MEMCPY: [row]})) as job:
        assert job.frame("memory_operation")["operation"].to_list() == [f"CUDA memcpy {label}"]


@pytest.mark.parametrize(
    ("function", "stream", "event", "expected"),
    [
        ("cudaStreamSynchronize", 7, NONE, (7, None)),
        ("cudaStreamSynchronize", NONE, NONE, (None, None)),
        ("cuStreamSynchronize_ptsz", 0, NONE, (0, None)),
        ("cudaDeviceSynchronize", 7, NONE, (None, None)),
        ("cudaDeviceSynchronize", NONE, 3, (None, None)),
        ("cudaEventSynchronize", 7, 3, (None, 3)),
        ("cudaEventSynchronize", NONE, NONE, (None, None)),
        ("cudaStreamWaitEvent", 7, 3, (7, 3)),
        ("cudaStreamWaitEvent", NONE, 3, (None, 3)),
    ],
)
def test_what_a_synchronization_is_of(
    function: str, stream: int, event: int, expected: tuple[int | None, int | None], tmp_path: Path
) -> None:
    """The columns have other numbers for a synchronization without stream or event."""
    row = {"start": 12, "end": 18, "deviceId": 0, "contextId": 1, "correlationId": 1}
    row |= {"streamId": stream, "eventId": event, "syncType": 1, "globalPid": make_global_pid()}
    tables = {
        SYNCHRONIZATION: [row],
        RUNTIME: [make_call(10, 20, 1)],
        "StringIds": make_names(function),
        KERNEL: [make_kernel(0, 5)],
    }
    with nsys2prv.open(make_export(tmp_path / "r.sqlite", tables)) as job:
        frame = job.frame("cuda_synchronization")
        named = "event_stream" if "event_stream" in frame.columns else "stream"
        assert frame.select(named, "event").rows() == [expected]


@pytest.mark.parametrize("begins", [(10, 40), (40, 10)])
@pytest.mark.parametrize("part", [1, 400_000])
def test_of_two_calls_with_one_id_the_first_launched_the_kernel(
    begins: tuple[int, int], part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any order of the table, in one part of it or in two."""
    monkeypatch.setattr("nsys2prv.conversion.read.PART_ROWS", part)
    tables = {
        RUNTIME: [make_call(begin, begin + 5, 9) for begin in begins],
        "StringIds": make_names("cudaLaunchKernel"),
        KERNEL: [make_kernel(60, 90, correlationId=9)],
    }
    with nsys2prv.open(make_export(tmp_path / "r.sqlite", tables)) as job:
        assert job.lines("launch").select("sent", "begin", "end").rows() == [(0, 50, 80)]
