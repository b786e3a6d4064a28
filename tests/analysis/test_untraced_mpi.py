"""Test MPI missing from the reports: requested and not recorded, not requested but in CPU stacks,
and calls that Nsight Systems never records.
"""

from pathlib import Path

import pytest
from tools.exports import (
    PID,
    Row,
    make_call,
    make_export,
    make_global_pid,
    make_global_tid,
    make_kernel,
    make_os_call,
    make_strings,
)

import nsys2prv
from nsys2prv.cli import main

MS = 1_000_000
#: Stack of a sample -> the functions, the innermost first.
STACKS = {
    "barrier": ("poll", "MPIDI_progress", "PMPI_Barrier", "main"),
    "fortran": ("poll", "mpi_allreduce_", "main"),
    "own": ("mpi_exchange_halo_", "main"),
    "compute": ("solve", "main"),
}
TEXTS = ("kern", "cudaLaunchKernel", *sorted({name for one in STACKS.values() for name in one}))
MPI_CALLS = ("MPI_Init", "MPI_Finalize", "MPI_Barrier", "MPI_Recv")
MPI_ON = {"name": "MPI_TRACE_OPTIONS:COLLECT_MPI_TRACE", "value": "true"}


def write_sampled(path: Path, pid: int, stacks: list[str]) -> Path:
    """Write a report with a kernel at its begin and end, and a CPU sample every ms with these stacks in
    turn.
    """
    samples: list[Row] = []
    frames: list[Row] = []
    for number in range(1, 100):
        sample = {"id": number, "start": number * MS, "globalTid": make_global_tid(pid, pid)}
        samples.append(sample | {"cpuCycles": 1, "threadState": None})
        frames += [
            {"id": number, "symbol": TEXTS.index(name) + 1, "module": 2, "stackDepth": depth}
            for depth, name in enumerate(STACKS[stacks[number % len(stacks)]])
        ]
    thread = {"globalTid": make_global_tid(pid, pid)}
    tables = {
        "COMPOSITE_EVENTS": samples,
        "SAMPLING_CALLCHAINS": frames,
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            make_call(begin * MS, begin * MS + 1000, begin + 1, nameId=2, **thread)
            for begin in (0, 100)
        ],
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            make_kernel(
                begin * MS + 2000,
                begin * MS + 3000,
                correlationId=begin + 1,
                globalPid=make_global_pid(pid),
            )
            for begin in (0, 100)
        ],
        "StringIds": make_strings(*TEXTS),
    }
    return make_export(path, tables)


def test_mpi_in_stacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three ranks are in a barrier for half of their samples, one for a tenth; functions of the program
    whose names begin like MPI's are none of it.
    """
    usual = ["barrier", "fortran", "barrier", "own", "compute", "barrier", "own", "barrier", "barrier", "compute"]  # fmt: skip
    late = ["compute"] * 9 + ["barrier"]
    reports = [
        write_sampled(tmp_path / f"rank{rank}.sqlite", PID + rank, late if rank == 2 else usual)
        for rank in range(4)
    ]
    with nsys2prv.open(reports, quiet=True) as job:
        finding = next(one for one in job.findings() if one.kind == "untraced_mpi")
    assert "10%-60% of the CPU samples" in finding.title
    assert "mostly MPI_Barrier" in finding.evidence[0]
    assert "rank 2" in finding.evidence[1]
    assert "Add mpi to --trace" in finding.advice
    assert finding.is_limit
    main(["report", "--full", "--only", "findings", *map(str, reports)])
    before = capsys.readouterr().out.partition("MPI was not traced")[0]
    assert "in MPI calls, 40% computing" in " ".join(before.split())


def test_little_mpi_in_stacks(tmp_path: Path) -> None:
    report = write_sampled(tmp_path / "r.sqlite", PID, ["compute"] * 40 + ["barrier"])
    with nsys2prv.open(report, quiet=True) as job:
        assert all(one.kind != "untraced_mpi" for one in job.findings())


@pytest.mark.parametrize("with_gpu", [False, True])
def test_mpi_asked_for_and_not_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], with_gpu: bool
) -> None:
    tables: dict[str, list[Row]] = {
        "META_DATA_CAPTURE": [MPI_ON],
        "OSRT_API": [make_os_call(0, 40 * MS, 1), make_os_call(50 * MS, 100 * MS, 1)],
        "StringIds": make_strings("read", "cudaLaunchKernel", "kern"),
    }
    if with_gpu:
        tables["CUPTI_ACTIVITY_KIND_RUNTIME"] = [make_call(41 * MS, 42 * MS, 1, nameId=2)]
        tables["CUPTI_ACTIVITY_KIND_KERNEL"] = [make_kernel(42 * MS, 49 * MS, correlationId=1)]
    report = make_export(tmp_path / "r.sqlite", tables)
    main(["report", "--full", str(report)])
    printed = " ".join(capsys.readouterr().out.split())
    quality = printed.partition("Capture quality")[2]
    assert quality.startswith(" r.sqlite: MPI tracing was on, but no MPI call was recorded")
    assert "--mpi-impl" in quality
    assert "LD_PRELOAD" in quality
    with nsys2prv.open(report, quiet=True) as job:
        first = job.findings()[0].title
    assert first.startswith("No MPI call was recorded, although MPI tracing was on") != with_gpu


def test_torchrun_without_mpi_lacks_nothing(tmp_path: Path) -> None:
    variable = {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": 'RANK="0"'}
    tables = {
        "META_DATA_CAPTURE": [MPI_ON, variable],
        "OSRT_API": [make_os_call(0, 40 * MS, 1)],
        "StringIds": make_strings("read"),
    }
    with nsys2prv.open(make_export(tmp_path / "r.sqlite", tables), quiet=True) as job:
        assert all(note.kind != "mpi_not_recorded" for note in job.quality)


@pytest.mark.parametrize("setting", [{**MPI_ON, "value": "false"}, None])
def test_mpi_not_asked_for(tmp_path: Path, setting: Row | None) -> None:
    tables: dict[str, list[Row]] = {
        "OSRT_API": [make_os_call(0, 40 * MS, 1)],
        "StringIds": make_strings("read"),
    }
    if setting:
        tables["META_DATA_CAPTURE"] = [setting]
    with nsys2prv.open(make_export(tmp_path / "r.sqlite", tables), quiet=True) as job:
        assert not any("MPI" in one for one in (*job.warnings, *map(str, job.quality)))


def test_calls_that_are_never_recorded(tmp_path: Path) -> None:
    """They are named where the reports have their like: receives, and communicators made of others."""

    def list_notes(name: str, table: str, communicators: list[Row]) -> list[str]:
        thread, number = make_global_tid(PID), 4 if "P2P" in table else 3
        calls = (("MPI_Init", 0, 10), ("MPI_Finalize", 90, 100))
        tables = {
            "MPI_RANKS": [{"globalTid": thread, "rank": 0}],
            "MPI_OTHER_EVENTS": [
                {"start": at, "end": end, "globalTid": thread, "textId": MPI_CALLS.index(text) + 1}
                for text, at, end in calls
            ],
            table: [{"start": 20, "end": 30, "globalTid": thread, "textId": number}],
            "StringIds": make_strings(*MPI_CALLS),
        }
        if communicators:
            tables["MPI_COMMUNICATORS"] = communicators
        with nsys2prv.open(make_export(tmp_path / name, tables), quiet=True) as job:
            result = job.analyse("efficiencies")["efficiencies"]
        return [note for note in result.notes if "does not record" in note]

    made = {"rank": 0, "commHandle": 2, "parentHandle": 1, "localRank": 0, "size": 1}
    assert list_notes("barriers.sqlite", "MPI_COLLECTIVES_EVENTS", []) == []
    (note,) = list_notes("split.sqlite", "MPI_COLLECTIVES_EVENTS", [made])
    assert "MPI_Comm_split" in note
    assert "MPI_Probe" not in note
    (note,) = list_notes("receive.sqlite", "MPI_P2P_EVENTS", [])
    assert "MPI_Probe" in note
