"""Test the command with unusual paths, folders and streams: it prints one line, returns a
documented status, and leaves nothing behind.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tools.exports import KERNEL, make_export, make_kernel, make_strings

SAMPLE = Path(__file__).parents[2] / "sample_reports" / "graphs" / "rank0.sqlite"


def run_command(
    folder: Path, *arguments: object, **options: object
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nsys2prv", *map(os.fspath, map(str, arguments))],
        cwd=folder,
        text=True,
        errors="replace",
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
        **{"stdout": subprocess.PIPE, **options},
    )


def read_one_line(process: subprocess.CompletedProcess[str], status: int) -> None:
    assert "Traceback" not in process.stderr, process.stderr[-500:]
    assert process.returncode == status
    assert len(process.stderr.splitlines()) == 1, process.stderr


@pytest.mark.slow
@pytest.mark.parametrize("output", [".", "..", "./", "", "sub/"])
def test_an_output_without_a_name_is_a_usage_error(output: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    read_one_line(run_command(tmp_path, "-q", "-t", "kernels", SAMPLE, output), 2)
    assert [path.name for path in tmp_path.iterdir()] == ["sub"]


def test_a_folder_in_the_place_of_the_trace_leaves_the_earlier_files_alone(tmp_path: Path) -> None:
    (tmp_path / "out.prv").mkdir()
    for ending in ("pcf", "row"):
        (tmp_path / f"out.{ending}").write_text("earlier")
    process = run_command(tmp_path, "-q", "-t", "kernels", SAMPLE, "out.prv")
    read_one_line(process, 1)
    assert "out.prv" in process.stderr
    assert ".tmp" not in process.stderr
    assert (tmp_path / "out.pcf").read_text() == (tmp_path / "out.row").read_text() == "earlier"


def test_a_loop_of_links_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.sqlite").symlink_to("b.sqlite")
    (tmp_path / "b.sqlite").symlink_to("a.sqlite")
    read_one_line(run_command(tmp_path, "a.sqlite", "out"), 1)


@pytest.mark.slow
def test_file_names_that_are_not_text(tmp_path: Path) -> None:
    report = os.fsdecode(b"r\xff.sqlite")
    try:
        shutil.copyfile(SAMPLE, tmp_path / report)
    except OSError:
        pytest.skip("the file system takes no such names")
    assert run_command(tmp_path, "-t", "kernels", report, "out").returncode == 0
    assert run_command(tmp_path, "--list", report).returncode == 0
    assert run_command(tmp_path, "-t", "kernels", SAMPLE, os.fsdecode(b"o\xff")).returncode == 0


def test_an_output_name_that_the_terminal_cannot_show(tmp_path: Path) -> None:
    process = run_command(
        tmp_path,
        "-t",
        "kernels",
        SAMPLE,
        "o\u00fct",
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert process.returncode == 0, process.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("arguments", [["--list", SAMPLE], ["-t", "kernels", SAMPLE, "out"]])
def test_a_full_standard_output_is_no_traceback(arguments: list[object], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        assert "Traceback" not in run_command(tmp_path, *arguments, stdout=full).stderr


def test_a_list_of_an_export_whose_ranges_have_no_kind(tmp_path: Path) -> None:
    make_export(
        tmp_path / "r.sqlite",
        {
            "StringIds": make_strings("kern"),
            KERNEL: [make_kernel(1, 5)],
            "NVTX_EVENTS": [{"start": 1, "end": 5}],
        },
    )
    process = run_command(tmp_path, "--list", "r.sqlite")
    assert process.returncode == 0, process.stderr


def test_a_folder_for_temporary_files_that_is_not_there_is_named(tmp_path: Path) -> None:
    process = run_command(tmp_path, "--tmp", "nowhere", "-t", "kernels", SAMPLE, "out")
    read_one_line(process, 1)
    assert "error: nowhere:" in process.stderr


def test_a_script_without_a_main_guard(tmp_path: Path) -> None:
    """As in README, on a job large enough for worker processes."""
    make_export(
        tmp_path / "r.sqlite", {"StringIds": make_strings("kern"), KERNEL: [make_kernel(1, 5)]}
    )
    (tmp_path / "script.py").write_text(
        "import nsys2prv.conversion.convert as opening\nopening.SMALL_JOB_ROWS = 0\n"
        "from nsys2prv import Options, convert\nconvert(['r.sqlite'], 'out.prv', Options())\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SAMPLE.parents[2]), os.environ.get("PYTHONPATH", "")]),
    }
    process = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-400:]
    assert (tmp_path / "out.prv").exists()
