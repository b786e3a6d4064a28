"""Test which GPU a process's CUDA ordinal means, and which GPUs and hosts are the same."""

from pathlib import Path

import pytest
from tools.exports import (
    KERNEL,
    PID,
    Row,
    make_export,
    make_global_pid,
    make_host,
    make_kernel,
    make_strings,
)

import nsys2prv
from nsys2prv.export.info import read_report_info

UUIDS = [f"{number}26facd2-aeb0-daf2-a972-cd3fa02fd44f" for number in range(3)]
NO_UUID, NO_BUS = "00000000-0000-0000-0000-000000000000", "0000:00:00.0"
#: As CUDA numbers them, which the report does otherwise.
ORDINALS = (2, 0, 1)


def make_gpus(**columns: object) -> list[Row]:
    return [
        {
            "id": number,
            "name": "H100",
            "uuid": UUIDS[number],
            "busLocation": f"0000:1{number}:00.0",
            "smCount": 132,
            "cuDevice": ORDINALS[number],
            **columns,
        }
        for number in range(3)
    ]


def make_environment(*settings: str) -> list[Row]:
    values = ['HOME="/"', *(f'CUDA_VISIBLE_DEVICES="{setting}"' for setting in settings)]
    return [{"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": value} for value in values]


def make_contexts(*used: tuple[int, int]) -> list[Row]:
    return [{"processId": pid, "deviceId": device} for pid, device in used]


def find_gpus(
    path: Path, *, gpus: list[Row] | None = None, **tables: list[Row]
) -> list[int | None]:
    export = make_export(path / "r.sqlite", {"TARGET_INFO_GPU": gpus or make_gpus(), **tables})
    info = read_report_info(export)
    return [info.find_gpu(make_global_pid(), ordinal) for ordinal in range(3)]


def test_cuda_visible_devices_tells_the_gpus_of_ordinals(tmp_path: Path) -> None:
    def find(*settings: str, **tables: list[Row]) -> list[int | None]:
        return find_gpus(tmp_path, META_DATA_CAPTURE=make_environment(*settings), **tables)

    assert find() == [1, 2, 0]
    assert find("2,0") == [0, 1, None]
    # The list ends where CUDA's does.
    assert find("1,7,0") == [2, None, None]
    assert find("") == [1, 2, 0]
    assert find(f"GPU-{UUIDS[2]},gpu-126f") == [2, 1, None]
    # Those that the export names count.
    devices = [{"pid": PID, "cudaId": 0, "gpuId": 2}]
    assert find("1", TARGET_INFO_CUDA_DEVICE=devices) == [2, None, None]
    # One model without ordinals: as CUDA does, by PCI location.
    assert find("1", gpus=make_gpus(cuDevice=None)) == [1, None, None]
    # Not known: what the program was started with, the order, or what a launcher did.
    assert find("0", "1") == [None] * 3
    assert find("1", gpus=make_gpus(cuDevice=None, busLocation="")) == [None] * 3
    both = make_contexts((PID, 0), (PID + 1, 0))
    assert find("0,1", TARGET_INFO_CUDA_CONTEXT_INFO=both) == [None] * 3
    assert find("1", TARGET_INFO_CUDA_CONTEXT_INFO=both) == [2, None, None]
    apart = make_contexts((PID, 0), (PID + 1, 1))
    assert find("0,1", TARGET_INFO_CUDA_CONTEXT_INFO=apart) == [1, 2, None]
    assert find_gpus(tmp_path) == [None] * 3


def write_ranks(folder: Path, *ranks: dict[str, list[Row]], hosts: tuple[str, ...]) -> list[Path]:
    """Write a report of one kernel for each rank. hosts: their names."""
    tables = {"StringIds": make_strings("kern"), KERNEL: [make_kernel(1, 5)]}
    return [
        make_export(
            folder / f"rank{number}.sqlite",
            {**tables, **make_host(host, 10**18 + number, 10**12 + number), **rank},
        )
        for number, (rank, host) in enumerate(zip(ranks, hosts, strict=True))
    ]


def count_gpus_and_hosts(reports: list[Path]) -> tuple[int, int]:
    with nsys2prv.open(reports) as job:
        return job.devices.height, job.rows["node"].n_unique()


def use_gpu(number: int, gpus: list[Row], **columns: object) -> dict[str, list[Row]]:
    device = {"pid": PID, "cudaId": 0, "gpuId": number, **columns}
    return {"TARGET_INFO_GPU": gpus, "TARGET_INFO_CUDA_DEVICE": [device]}


@pytest.mark.parametrize("columns", [{"uuid": NO_UUID, "busLocation": NO_BUS}, {"uuid": UUIDS[0]}])
def test_gpus_that_nothing_tells_apart_are_told_by_their_numbers(
    tmp_path: Path, columns: dict[str, object]
) -> None:
    ranks = [use_gpu(number, make_gpus(**columns)) for number in (0, 1, 1)]
    reports = write_ranks(tmp_path, *ranks, hosts=("a", "a", "a"))
    assert count_gpus_and_hosts(reports) == (2, 1)


def test_pods_with_a_gpu_in_common_are_one_host(tmp_path: Path) -> None:
    pods = [use_gpu(number, make_gpus()) for number in (0, 1, 1)]
    assert count_gpus_and_hosts(write_ranks(tmp_path, *pods, hosts=("x", "y", "z"))) == (2, 1)
    apart = [use_gpu(0, make_gpus()[number:][:1]) for number in (0, 1, 2)]
    assert count_gpus_and_hosts(write_ranks(tmp_path, *apart, hosts=("x", "y", "z"))) == (3, 3)
    nothing = [use_gpu(number, make_gpus(uuid=NO_UUID)) for number in (0, 1, 1)]
    assert count_gpus_and_hosts(write_ranks(tmp_path, *nothing, hosts=("x", "y", "z"))) == (3, 3)


def test_instances_of_a_partitioned_gpu_are_devices(tmp_path: Path) -> None:
    def count(*ranks: dict[str, list[Row]]) -> tuple[int, int]:
        return count_gpus_and_hosts(write_ranks(tmp_path, *ranks, hosts=("a", "a")))

    gpu = make_gpus()[:1]
    parts = [use_gpu(0, gpu, uuid=UUIDS[one], numMultiprocessors=14) for one in (1, 2)]
    assert count(*parts) == (2, 1)
    assert count(parts[0], parts[0]) == (1, 1)
    by_name = [
        {"TARGET_INFO_GPU": gpu, "META_DATA_CAPTURE": make_environment(f"MIG-{UUIDS[one]}")}
        for one in (1, 2)
    ]
    assert count(*by_name) == (2, 1)
    # A share of a GPU's processors (MPS) is no device of its own.
    share = use_gpu(0, gpu, uuid=UUIDS[0], numMultiprocessors=14)
    assert count(share, use_gpu(0, gpu, uuid=UUIDS[0], numMultiprocessors=132)) == (1, 1)
