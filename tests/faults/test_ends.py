"""Test runs that end early, by any signal, and how the next run handles their leftovers."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

import pytest
from tools.commands import ENVIRONMENT, GRAPHS, build_arguments, read_folder, run_command, wait_for
from tools.processes import list_group

from nsys2prv._util import files

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")


def start_command(folder: Path, *arguments: object, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        build_arguments("-q", *arguments),
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def list_leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.startswith(files.PREFIX)]


def list_working_folders(folder: Path) -> list[Path]:
    return [working for own in list_leftovers(folder) for working in list_leftovers(own)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "says"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "SIGTERM"),
        (signal.SIGHUP, 129, "SIGHUP"),
    ],
)
def test_signals_that_ask_to_end(
    number: int, status: int, says: str, large_report: Path, tmp_path: Path
) -> None:
    (tmp_path / "out.prv").write_text("earlier")
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    child = start_command(tmp_path, "-j", "1", large_report, "out.prv")
    wait_for(lambda: list_working_folders(tmp_path), "no temporary folder")
    child.send_signal(number)
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == status
    assert stderr.splitlines() == [stderr.strip()]
    assert says in stderr
    assert read_folder(tmp_path) == {"out.prv": b"earlier"}


@pytest.mark.slow
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("engine", ["processes", "threads", "dask"])
def test_a_terminal_interrupts_all_processes_and_one_line_comes(
    engine: str, early: bool, large_report: Path, tmp_path: Path
) -> None:
    child = start_command(
        tmp_path, "--engine", engine, "-j", "2", large_report, "out.prv", start_new_session=True
    )
    if not early:
        wait_for(
            lambda: any(list(one.glob("*/runs-*")) for one in list_working_folders(tmp_path)),
            "no worker",
        )
    elif engine == "dask":
        wait_for(lambda: len(list_group(child.pid)) > 2, "no workers")
    else:
        wait_for(lambda: list_working_folders(tmp_path), "no temporary folder")
    os.killpg(child.pid, signal.SIGINT)
    _, stderr = child.communicate(timeout=60)
    assert (child.returncode, stderr) == (
        130,
        "nsys2prv: error: interrupted; nothing was written\n",
    )
    assert not read_folder(tmp_path)
    wait_for(lambda: not list_group(child.pid), "processes that stay")


@pytest.mark.slow
def test_what_a_killed_run_leaves_goes_at_the_next_run(large_report: Path, tmp_path: Path) -> None:
    child = start_command(tmp_path, "-j", "1", large_report, "out.prv")
    wait_for(lambda: list_working_folders(tmp_path), "no temporary folder")
    child.kill()
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert not (tmp_path / "out.prv").exists()
    assert len(list_leftovers(tmp_path)) == 1
    assert run_command("-q", GRAPHS, tmp_path / "other.prv").returncode == 0
    assert list_leftovers(tmp_path) == []


def make_folder(folder: Path) -> Path:
    """Make a temporary folder without a lock."""
    path = folder / files.make_temporary_name()
    path.mkdir()
    return path


@pytest.mark.slow
def test_files_of_the_living_stay(tmp_path: Path) -> None:
    with files.make_temporary_folder(tmp_path) as own_folder:
        (own_folder / "file").write_text("of a run")
        foreign, other = tmp_path / ".nsys2prv-00000000-1.tmp", tmp_path / ".nsys2prv-mine"
        foreign.mkdir()
        other.mkdir()
        link = tmp_path / files.make_temporary_name()
        link.symlink_to(other)
        assert run_command("-q", GRAPHS, tmp_path / "out.prv").returncode == 0
        assert (own_folder / "file").exists()
    assert sorted(list_leftovers(tmp_path)) == sorted([foreign, other, link])


def test_a_lock_or_its_age_tells_whether_a_folder_is_left(tmp_path: Path) -> None:
    held, left, new = (make_folder(tmp_path) for _ in range(3))
    (left / files.LOCK).touch()
    with (held / files.LOCK).open("w") as lock:
        assert files._try_lock(lock)
        files.remove_leftovers(tmp_path)
        assert sorted(list_leftovers(tmp_path)) == sorted([held, new])
        os.utime(new, (0, 0))
        files.remove_leftovers(tmp_path)
        assert list_leftovers(tmp_path) == [held]


def test_a_folder_of_another_machine_is_left_after_a_week(tmp_path: Path) -> None:
    folder = tmp_path / ".nsys2prv-00000000-1.tmp"
    (folder / "within").mkdir(parents=True)
    (folder / "within" / "file").touch()
    week = time.time() - files.ABANDONED_SECONDS
    for path in (folder / "within", folder):
        os.utime(path, (week - 9, week - 9))
    files.remove_leftovers(tmp_path)
    assert list_leftovers(tmp_path) == [folder]
    os.utime(folder / "within" / "file", (week - 9, week - 9))
    os.utime(folder / "within", (week - 9, week - 9))
    files.remove_leftovers(tmp_path)
    assert list_leftovers(tmp_path) == []


def test_a_folder_is_never_left_while_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run begins at the worst moment: before the folder's file is locked."""
    lock = files._try_lock

    def begin_another(file: BinaryIO) -> bool | None:
        monkeypatch.setattr(files, "_try_lock", lock)
        files.remove_leftovers(tmp_path)
        return lock(file)

    monkeypatch.setattr(files, "_try_lock", begin_another)
    with files.make_temporary_folder(tmp_path) as folder:
        files.remove_leftovers(tmp_path)
        assert list_leftovers(tmp_path) == [folder]


def test_a_crash_that_nobody_has_noticed_yet(tmp_path: Path) -> None:
    """Its process is there until its parent asks how it ended."""
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom nsys2prv._util import files as temporary\n"
        "with temporary.make_temporary_folder(Path(sys.argv[1])):\n    os.abort()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], env=ENVIRONMENT, stderr=subprocess.DEVNULL
    )
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert len(list_leftovers(tmp_path)) == 1
    files.remove_leftovers(tmp_path)
    assert list_leftovers(tmp_path) == []
    assert child.wait() == -signal.SIGABRT
