"""Test inputs that are in use, replaced, missing, of the wrong kind, copies, or of other jobs."""

import ctypes
import os
import shutil
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tools.commands import GRAPHS, SAMPLES, read_error, read_folder, run_command
from tools.exports import (
    KERNEL,
    Row,
    make_export,
    make_global_pid,
    make_global_tid,
    make_kernel,
    make_strings,
)
from tools.folders import convert_export_folder

from nsys2prv import Options, convert
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.conversion import read as reading

UTC, SECOND = 1_760_000_000_000_000_000, 1_000_000_000
DOUBTS = ("same report", " jobs ", "do they belong to one run", "apart", "MPI rank")
CLUSTER = sorted((SAMPLES / "cluster").glob("*.sqlite"))


@pytest.mark.slow
def test_an_export_that_another_program_has_locked(tmp_path: Path) -> None:
    """As on a file system without locks: none is taken."""
    report = shutil.copy(GRAPHS, tmp_path / "r.sqlite")
    with closing(sqlite3.connect(report)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        assert run_command("-q", report, tmp_path / "out.prv").returncode == 0
    assert run_command("-q", GRAPHS, tmp_path / "whole.prv").returncode == 0
    assert (tmp_path / "out.prv").read_bytes() == (tmp_path / "whole.prv").read_bytes()


def test_an_export_that_is_in_use_is_read_as_it_was_committed(tmp_path: Path) -> None:
    rows = [make_kernel(10 * place, 10 * place + 5) for place in range(10)]
    report = make_export(tmp_path / "r.sqlite", {"StringIds": make_strings("k"), KERNEL: rows})
    with closing(sqlite3.connect(report, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        writer.execute(f"INSERT INTO {KERNEL} SELECT * FROM {KERNEL} WHERE start < 30")
        writer.execute("BEGIN")
        writer.execute(f"DELETE FROM {KERNEL}")
        before = read_folder(tmp_path)
        summary = convert([report], tmp_path / "out.prv", Options())
        after = read_folder(tmp_path)
        writer.execute("ROLLBACK")
    assert summary.events == {"cuda_kernel": 13}
    assert {name: text for name, text in after.items() if not name.startswith("out.")} == before


@pytest.mark.slow
def test_an_export_that_is_half_written(tmp_path: Path) -> None:
    """Its rollback journal could name any file, which SQLite would delete."""
    report = shutil.copy(GRAPHS, tmp_path / "r.sqlite")
    (tmp_path / "r.sqlite-journal").write_bytes(bytes.fromhex("d9d505f920a163d7") + b"\0" * 600)
    assert "r.sqlite-journal" in read_error(run_command("-q", report, tmp_path / "out.prv"))
    (tmp_path / "r.sqlite-journal").write_bytes(b"\0" * 600)
    assert run_command("-q", report, tmp_path / "out.prv").returncode == 0


def replace_file(path: Path) -> None:
    shutil.copy(CLUSTER[0], path.with_name("new"))
    path.with_name("new").replace(path)


def truncate_file(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def touch_file(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(5000)
        file.write(b"x")


@pytest.mark.parametrize("change", [replace_file, truncate_file, touch_file, Path.unlink])
def test_an_export_that_changes_while_it_is_read(
    change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Path(shutil.copy(GRAPHS, tmp_path / "r.sqlite"))
    original = reading.read_task
    monkeypatch.setattr(
        reading,
        "read_task",
        lambda task: (
            change(report) if report.exists() and not task.number else None,
            original(task),
        )[1],
    )
    with pytest.raises(Nsys2prvError, match=r"r\.sqlite: was .* while it was read") as raised:
        convert([report], tmp_path / "out.prv", Options())
    assert "\n" not in str(raised.value)
    assert set(read_folder(tmp_path)) <= {"r.sqlite"}


def test_a_folder_of_tables_that_changes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import polars as pl

    report = tmp_path / "r"
    report.mkdir()
    pl.DataFrame([make_kernel(1, 5, correlationId=1)]).write_parquet(report / f"{KERNEL}.parquet")
    original = reading.read_task
    monkeypatch.setattr(
        reading,
        "read_task",
        lambda task: (
            original(task),
            pl.DataFrame({"id": [1]}).write_parquet(report / "X.parquet"),
        )[0],
    )
    with pytest.raises(Nsys2prvError, match="while it was read"):
        convert([report], tmp_path / "out.prv", Options())


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("--list",)])
def test_what_is_no_file(arguments: tuple[str, ...], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    os.mkfifo(tmp_path / "fifo.nsys-rep")
    (tmp_path / "folder").mkdir()
    (tmp_path / "tables").mkdir()
    os.mkfifo(tmp_path / "tables" / f"{KERNEL}.parquet")
    (tmp_path / "empty").touch()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for name in ("fifo", "fifo.nsys-rep", "folder", "tables", "empty", "socket", "nowhere"):
            command_line = [*arguments, tmp_path / name] + (
                [] if arguments else [tmp_path / "out.prv"]
            )
            assert f"{tmp_path / name}: " in read_error(
                run_command("-q", *command_line) if not arguments else run_command(*command_line)
            )
    assert not [name for name in read_folder(tmp_path) if name.startswith((".", "out"))]


def drop_privileges() -> None:
    """Drop, by PR_CAPBSET_DROP, capabilities 1 and 2 (to override permissions), so that root can be
    refused something.
    """
    libc = ctypes.CDLL(None)
    for capability in (1, 2):
        assert libc.prctl(24, capability, 0, 0, 0) == 0


def test_no_permission(tmp_path: Path) -> None:
    report = Path(shutil.copy(GRAPHS, tmp_path / "r.sqlite"))
    report.chmod(0)
    (tmp_path / "out").mkdir(mode=0o777)
    os.chmod(tmp_path / "out", 0o777)
    as_user: dict[str, object] = {"preexec_fn": drop_privileges} if os.geteuid() == 0 else {}
    process = run_command("-q", report, tmp_path / "out" / "out.prv", **as_user)
    assert "r.sqlite: cannot be read (Permission denied)" in read_error(process)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    assert f"{closed}: no permission to write" in read_error(
        run_command("-q", GRAPHS, closed / "out.prv", **as_user)
    )


def make_case(
    path: Path,
    start: int = UTC,
    pid: int = 4242,
    seconds: int = 10,
    more: dict[str, list[Row]] | None = None,
) -> Path:
    return make_export(
        path,
        {
            "StringIds": make_strings("k"),
            KERNEL: [make_kernel(1, 5, globalPid=make_global_pid(pid))],
            "PROCESSES": [{"globalPid": make_global_pid(pid), "name": "p"}],
            "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": start}],
            "ANALYSIS_DETAILS": [{"duration": seconds * SECOND}],
            **(more or {}),
        },
    )


def make_job(number: int) -> dict[str, list[Row]]:
    return {
        "META_DATA_CAPTURE": [
            {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": f'SLURM_JOB_ID="{number}"'}
        ]
    }


def make_rank(number: int, pid: int) -> dict[str, list[Row]]:
    return {"MPI_RANKS": [{"globalTid": make_global_tid(pid, pid), "rank": number}]}


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        ({}, {}, "this is the same report as"),
        ({}, {"pid": 5}, ""),
        ({"more": make_job(1)}, {"pid": 5, "more": make_job(1)}, ""),
        (
            {"more": make_job(9_871_017)},
            {"pid": 5, "more": make_job(9_871_018)},
            "2 jobs according to the launcher's job ID",
        ),
        ({}, {"pid": 5, "start": UTC + 20 * SECOND}, ""),
        (
            {},
            {"pid": 5, "start": UTC + 110 * SECOND},
            "b.sqlite starts 100 s after the end of a.sqlite",
        ),
        ({}, {"pid": 5, "start": UTC + 3 * 86_400 * SECOND}, "days apart"),
        ({"more": make_rank(0, 4242)}, {"pid": 5, "more": make_rank(1, 5)}, ""),
        (
            {"more": make_rank(0, 4242)},
            {"pid": 5, "more": make_rank(0, 5)},
            "MPI rank 0 is in a.sqlite and in b.sqlite",
        ),
    ],
)
def test_reports_that_do_not_belong_together(
    one: dict, other: dict, says: str, tmp_path: Path
) -> None:
    reports = [make_case(tmp_path / "a.sqlite", **one), make_case(tmp_path / "b.sqlite", **other)]
    warnings = convert(reports, tmp_path / "out.prv", Options()).warnings
    doubts = [warning for warning in warnings if any(word in warning for word in DOUBTS)]
    assert bool(doubts) == bool(says), warnings
    assert any(says in warning for warning in doubts) or not says
    assert not any("98710" in warning for warning in warnings)


@pytest.mark.slow
def test_the_samples_belong_together(tmp_path: Path) -> None:
    for name in ("training", "cluster", "graphs"):
        warnings = convert(
            sorted((SAMPLES / name).glob("*.sqlite")), tmp_path / "out.prv", Options()
        ).warnings
        assert not [warning for warning in warnings if any(word in warning for word in DOUBTS)]


@pytest.mark.slow
def test_a_report_given_twice(tmp_path: Path) -> None:
    process = run_command(
        "-q", GRAPHS, GRAPHS.parent / ".." / "graphs" / "rank0.sqlite", tmp_path / "out.prv"
    )
    assert process.returncode == 0
    assert "given twice, read once" in process.stderr


@pytest.mark.slow
def test_a_report_in_two_forms(tmp_path: Path) -> None:
    folder = convert_export_folder(GRAPHS, tmp_path / "rank0.parquetdir")
    process = run_command("-q", GRAPHS, folder, tmp_path / "out.prv")
    assert process.returncode == 0
    assert "this is the same report as" in process.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("-q", "{}", "x.prv"), ("--list", "{}"), ("report", "{}")])
@pytest.mark.parametrize("name", [".", "/"])
def test_a_folder_by_a_name_that_has_no_last_part(
    arguments: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    process = run_command(*(argument.format(name) for argument in arguments), cwd=tmp_path)
    assert (process.returncode, process.stderr.count("\n")) == (1, 1), process.stderr
    assert "no reports in this folder" in process.stderr
    assert not list(tmp_path.iterdir())


def make_unreadable_export(path: Path) -> Path:
    """Write an export that can be opened, but not read: a page in the middle of its rows is damaged."""
    rows = [make_kernel(10 * place, 10 * place + 5) for place in range(2000)]
    make_export(path, {"StringIds": make_strings("k"), KERNEL: rows})
    data = bytearray(path.read_bytes())
    middle = len(data) // 8192 * 4096
    data[middle : middle + 4096] = b"\xee" * 4096
    path.write_bytes(data)
    return path


@pytest.mark.slow
def test_keep_going_leaves_out_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "text.sqlite").write_text("no database")
    bad = [
        tmp_path / "text.sqlite",
        make_unreadable_export(tmp_path / "damaged.sqlite"),
        tmp_path / "nowhere.sqlite",
    ]
    read_error(run_command("-q", *bad[1:2], *CLUSTER[1:], tmp_path / "out.prv"))
    assert not (tmp_path / "out.prv").exists()
    process = run_command("-q", "--keep-going", *bad, *CLUSTER[1:], tmp_path / "out.prv")
    errors = [
        line
        for line in process.stderr.splitlines()
        if line.startswith("nsys2prv: error: skipped: ")
    ]
    assert process.returncode == 1
    assert len(errors) == 3
    assert all(any(str(path) in line for line in errors) for path in bad)
    assert run_command("-q", *CLUSTER[1:], tmp_path / "whole.prv").returncode == 0
    assert (tmp_path / "out.prv").read_bytes() == (tmp_path / "whole.prv").read_bytes()


def test_keep_going_with_nothing_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "text.sqlite").write_text("no database")
    process = run_command(
        "-q", "--keep-going", tmp_path / "text.sqlite", tmp_path / "no", tmp_path / "out"
    )
    assert "no report can be read" in read_error(process)
    assert read_folder(tmp_path) == {"text.sqlite": b"no database"}
