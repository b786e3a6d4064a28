"""Test helper processes in traces and figures: shells, launchers, daemons, data loaders."""

import json
import re
from pathlib import Path

import pytest
from tools.conversions import convert_and_read
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
    make_rows,
    make_strings,
)
from tools.nccl_exports import COMM, Rank

import nsys2prv
from nsys2prv import convert
from nsys2prv.cli import main

NAMES = ("MPI_Init", "MPI_Finalize", "MPI_Allreduce", "read", "cudaGetDeviceCount", "load")
#: Processes of each rank: a shell of the wrapper, the program, and a worker that loads data.
SHELL, PROGRAM, WORKER = 100, 110, 120
STEP, STEPS = 1_000_000, 20


def write_mpi_job(folder: Path, with_helpers: bool) -> list[Path]:
    """Write two ranks, of which rank 1 computes three times as long, with a wrapper and a worker
    each.
    """
    reports = []
    for rank in range(2):
        shell, program, worker = (
            make_global_tid(pid + rank, pid + rank) for pid in (SHELL, PROGRAM, WORKER)
        )
        collectives = [
            (step + (3 * STEP if rank else STEP), step + 3 * STEP + 5_000, program, 3)
            for step in range(100_000, 100_000 + 4 * STEP * STEPS, 4 * STEP)
        ]
        last = collectives[-1][1]
        others = [(0, 90_000, program, 1), (last + STEP, last + STEP + 50_000, program, 2)]
        columns = "start end globalTid textId"
        tables: dict[str, list[Row]] = {
            "StringIds": make_strings(*NAMES),
            "MPI_RANKS": [{"globalTid": program, "rank": rank}],
            "PROCESSES": make_rows(
                "globalPid name",
                (make_global_pid(SHELL + rank), "/usr/bin/bash"),
                (make_global_pid(PROGRAM + rank), "/opt/app"),
                (make_global_pid(WORKER + rank), "/opt/app"),
            ),
            "MPI_OTHER_EVENTS": make_rows(columns, *others),
            "MPI_COLLECTIVES_EVENTS": make_rows(columns, *collectives),
            **make_host("node1", 1_780_000_000_000_000_000, 1_000_000),
        }
        if with_helpers:
            tables["OSRT_API"] = [
                make_os_call(0, last, globalTid=shell, nameId=4),
                make_os_call(STEP, 2 * STEP, globalTid=worker, nameId=4),
            ]
            tables["NVTX_EVENTS"] = [
                make_nvtx_range(begin, begin + STEP, "load", globalTid=worker)
                for begin in range(STEP, 40 * STEP, 2 * STEP)
            ]
            # A shell asks for GPUs, too; its calls are numbered as those of any other process.
            tables[RUNTIME] = [make_call(10, 20, 1, globalTid=shell, nameId=5)]
        reports.append(make_export(folder / f"{'ba'[rank]}.sqlite", tables))
    return reports


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wrapped")
    write_mpi_job(folder, with_helpers=True)
    return folder


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bare")
    write_mpi_job(folder, with_helpers=False)
    return folder


def test_helpers_are_rows_of_their_rank(wrapped: Path, tmp_path: Path) -> None:
    trace, summary = convert_and_read(sorted(wrapped.glob("*.sqlite")), tmp_path / "o.prv")
    assert trace.names["TASK"] == ["rank 0 app 110", "rank 1 app 111"]
    assert trace.names["THREAD"] == [
        "THREAD 1.1.1 rank 0 app 110",
        "THREAD 1.1.2 helper bash 100",
        "THREAD 1.1.3 helper app 120",
        "THREAD 1.2.1 rank 1 app 111",
        "THREAD 1.2.2 helper bash 101",
        "THREAD 1.2.3 helper app 121",
    ]
    assert (summary.ranks, summary.processes) == (2, "2 ranks")
    assert json.loads((tmp_path / "o.nsys2prv.json").read_text())["trace"]["tasks"] == 2


def test_helpers_are_in_the_trace_and_in_no_figure(wrapped: Path, bare: Path) -> None:
    with nsys2prv.open(wrapped) as job, nsys2prv.open(bare) as other:
        told = job.describe()
        assert (told["processes"], told["ranks"]) == (2, 2)
        assert job.frame("nvtx_pushpop", "range").height == 40, "20 of each worker"
        for name in ("efficiencies", "time", "collectives"):
            tables, expected = (one.analyse(name)[name].tables for one in (job, other))
            lengths = ("focus", "lanes")
            for title in (one for one in expected if not one.startswith(lengths)):
                assert tables[title].frame.equals(expected[title].frame), title
        (first,), _ = ([one.title for one in each.findings()[:1]] for each in (job, other))
        assert first.startswith("Rank 1 (node1)")
        assert [one.title for one in job.findings()] == [one.title for one in other.findings()]
        assert "bash 100" in next(one.text for one in job.quality if one.kind == "helpers")


def test_a_what_if_changes_the_rank(wrapped: Path, bare: Path) -> None:
    gains = []
    for folder in (wrapped, bare):
        with nsys2prv.open(folder) as job:
            gains.append(job.what_if("rank 1: host as others")["gain_share"][1])
    assert gains[0] == pytest.approx(gains[1], rel=0.05)
    assert gains[0] > 0.3


def test_outputs_agree(wrapped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, facts = tmp_path / "job.html", tmp_path / "job.json"
    assert main(["report", str(wrapped), "--html", str(page), "--json", str(facts)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("2 ranks on 1 node, no GPU work;")
    assert "<span>2 ranks on 1 node</span>" in page.read_text()
    share = re.search(r"Ranks spend ([\d.]+)% of the steady state in MPI", " ".join(text.split()))[
        1
    ]
    assert f"spend {share}% of the steady state in MPI." in page.read_text()
    convert(sorted(wrapped.glob("*.sqlite")), tmp_path / "o.pftrace")
    trace = (tmp_path / "o.pftrace").read_bytes()
    assert b"rank 1 app 111 on node1" in trace
    assert b"helper bash 100" in trace


def test_ranks_of_a_cut_keep_their_helpers(wrapped: Path, tmp_path: Path) -> None:
    assert main(["-q", "--ranks", "1", str(wrapped), str(tmp_path / "o.prv")]) == 0
    rows = (tmp_path / "o.row").read_text().splitlines()
    assert "rank 1 app 111" in rows
    assert "THREAD 1.1.2 helper bash 101" in rows
    assert not any("100" in row for row in rows)


def write_daemon(path: Path) -> Path:
    """Write a report of a daemon without any work of ranks."""
    thread = make_global_tid(90, 90)
    tables: dict[str, list[Row]] = {
        "StringIds": make_strings("poll"),
        "OSRT_API": [
            make_os_call(start, start + 50, globalTid=thread) for start in range(0, 900, 90)
        ],
        "PROCESSES": [{"globalPid": make_global_pid(90), "name": "raylet"}],
        **make_host("node0", 1_780_000_000_000_000_000, 1_000_000),
    }
    return make_export(path, tables)


def test_a_report_that_is_no_rank(tmp_path: Path) -> None:
    """Check that the NCCL ranks of the other reports do not change."""
    reports = [write_daemon(tmp_path / "a.sqlite")]
    for rank, name in enumerate("cb"):
        payload = f'{{"{COMM}":7,"No. of ranks":2,"Rank":{rank}}}'
        one = Rank(pid=200 + rank).add_range(1, 2, "ncclCommInitRank", jsonText=payload)
        for begin in range(100, 800, 100):
            one.add_collective(
                begin, begin + 20, begin + 60, f'{{"{COMM}":7,"Message size [bytes]":4}}'
            )
        reports.append(one.write(tmp_path / f"{name}.sqlite"))
    trace, summary = convert_and_read(reports, tmp_path / "o.prv")
    assert trace.names["TASK"] == ["rank 0 200", "rank 1 201", "helper raylet 90"]
    assert (summary.processes, summary.ranks_by) == ("2 ranks", ["NCCL payloads"])
    assert [note.kind for note in summary.quality if "a.sqlite" in note.text] == ["no_rank"]
    with nsys2prv.open(reports) as job:
        assert job.describe()["ranks"] == 2
        kernels = job.analyse("collectives")["collectives"].tables["nccl"].frame
        assert kernels["communicator"].to_list() == ["world (0,1)"]
    assert main(["report", *map(str, reports), "--json", str(tmp_path / "job.json")]) == 0


@pytest.mark.parametrize("uuid", ["GPU-aaaa", "aaaa"])
@pytest.mark.parametrize("processors", [132, 33])
def test_ranks_that_share_a_gpu(processors: int, uuid: str, tmp_path: Path) -> None:
    """Check that a process under MPS may see only some SMs of the same GPU."""
    reports = []
    for rank in range(2):
        pid = 300 + rank
        tables: dict[str, list[Row]] = {
            "StringIds": make_strings("k", "cudaLaunchKernel"),
            KERNEL: [make_kernel(rank * 50, 100 + rank * 50, globalPid=make_global_pid(pid))],
            "TARGET_INFO_GPU": make_rows(
                "id name uuid smCount", (0, "H100", "GPU-aaaa", 132), (1, "H100", "GPU-bbbb", 132)
            ),
            "TARGET_INFO_CUDA_DEVICE": make_rows(
                "pid cudaId gpuId uuid numMultiprocessors", (pid, 0, 0, uuid, processors)
            ),
            **make_host("node0"),
        }
        reports.append(make_export(tmp_path / f"rank{rank}.sqlite", tables))
    trace, summary = convert_and_read(reports, tmp_path / "o.prv")
    assert summary.devices == 1
    assert len(trace.find_rows("CUDA-D0.S7")) == 2
    note = "processes share GPUs, and each GPU counts once: node0 GPU0 (ranks 0, 1)"
    assert note in summary.notes
    with nsys2prv.open(reports) as job:
        told = job.describe()
        assert (told["devices"], note in told["notes"]) == (1, True)
        shares = job.analyse("efficiencies")["efficiencies"].tables["devices"].frame
        assert shares["active_ns"].to_list() == [150]
