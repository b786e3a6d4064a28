"""Test closed streams, full disks, odd folders, links and limits, as on real machines."""

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tools.commands import ENVIRONMENT, GRAPHS, SAMPLES, build_arguments, read_error, run_command

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import describe_write_error
from nsys2prv.cli import arguments
from nsys2prv.clock.maps import read_record
from nsys2prv.export import report_files
from nsys2prv.writers.names import clean_label


def run_in_shell(
    script: str, *arguments: object, **environment: str
) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", script, "bash", *build_arguments(*arguments)],
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["| head -0", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(closed: str, tmp_path: Path) -> None:
    trace = tmp_path / "out.prv"
    process = run_in_shell(f'"$@" {closed}', GRAPHS, trace)
    assert process.returncode == 0
    assert "Traceback" not in process.stderr
    assert trace.read_bytes().startswith(b"#Paraver (")


def test_only_output_that_cannot_be_written_is_blamed_for_it(tmp_path: Path) -> None:
    process = run_in_shell('"$@" > /dev/full', "--kinds")
    assert (process.returncode, process.stderr) == (
        1,
        "nsys2prv: error: standard output: No space left on device\n",
    )
    process = run_command("check", tmp_path / ("x" * 300 + ".prv"))
    assert "standard output" not in process.stderr


def test_folders_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As lost+found is, for all but root."""
    shutil.copy(GRAPHS, tmp_path / "r.sqlite")
    (tmp_path / "lost+found").mkdir()
    iterdir = Path.iterdir

    def refuse(path: Path) -> object:
        if path.name == "lost+found":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert report_files.find_reports([tmp_path]) == [tmp_path / "r.sqlite"]


def test_links_that_lead_to_themselves_are_left_out(tmp_path: Path) -> None:
    shutil.copy(GRAPHS, tmp_path / "r.sqlite")
    (tmp_path / "loop.sqlite").symlink_to("loop.sqlite")
    process = run_command("-q", "--keep-going", tmp_path, tmp_path / "out.prv")
    assert "skipped" in process.stderr
    assert "loop.sqlite: this is a broken link" in process.stderr
    assert (tmp_path / "out.prv").exists()


def test_a_full_folder_for_temporary_files_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    free = {tmp_path: 1 << 40, folder: 1 << 30}
    monkeypatch.setattr("nsys2prv._util.files._find_free_space", free.get)
    error = OSError(errno.ENOSPC, "No space left on device")
    told = str(describe_write_error(error, tmp_path / "out.prv", [tmp_path, folder]))
    assert f"no space left in {folder}; free some, or give another folder with --tmp" in told


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("9" * 5000, "a number of 5000 digits"),
        ("0x" + "f" * 5000, "a number of 5002 digits"),
        ("0x" + "f" * 30, "Expected `int` <= "),
        ("2026-99-01", "month must be in 1..12"),
    ],
)
def test_numbers_of_clock_files_that_are_none(value: str, problem: str) -> None:
    with pytest.raises(Nsys2prvError, match=f"^c.yaml: .*{problem}"):
        read_record(f"hosts: {{a: {{offset_ns: {value}}}}}", "c.yaml")


def test_labels_cannot_reorder_text() -> None:
    assert clean_label("a\u202egnp.exe\u2066b") == "a gnp.exe b"


@pytest.mark.slow
def test_few_open_files(tmp_path: Path) -> None:
    script = 'ulimit -n 40; "$@"'
    reports = sorted((SAMPLES / "training").glob("*.sqlite"))
    assert run_in_shell(script, "-q", *reports, tmp_path / "out.prv").returncode == 0


@pytest.mark.parametrize(
    ("output", "problem"),
    [("job3.gz", r"; use job3.prv.gz$"), (r"C:\out\job.prv", "this is a Windows path")],
)
def test_outputs_whose_names_are_slips(output: str, problem: str) -> None:
    with pytest.raises(Nsys2prvError, match=problem):
        arguments.check_output(output)


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--gpu", "`nsys2prv help convert` lists the options"),
        ("--iterations", "`nsys2prv report REPORT..."),
    ],
)
def test_options_of_other_commands_are_not_guessed(option: str, hint: str, tmp_path: Path) -> None:
    process = run_command(option, "0", GRAPHS, tmp_path / "out.prv")
    assert f"{option} is not an option of nsys2prv: {hint}" in read_error(process, 2)


def test_check_of_a_folder_names_its_traces(tmp_path: Path) -> None:
    assert read_error(run_command("check", tmp_path), 2).endswith("is a folder; it has no traces")
    (tmp_path / "run.prv").touch()
    told = read_error(run_command("check", tmp_path), 2)
    assert told.endswith(f"this is a folder; give a trace in it, such as {tmp_path / 'run.prv'}")
