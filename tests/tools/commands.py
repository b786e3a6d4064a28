"""Run the command, in a process of its own as people do or in this one."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nsys2prv.cli import main

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "sample_reports"
GRAPHS = SAMPLES / "graphs" / "rank0.sqlite"
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
}


def build_arguments(*arguments: object) -> list[str]:
    """Return the command line of nsys2prv with these arguments."""
    return [sys.executable, "-m", "nsys2prv", *map(str, arguments)]


def run_command(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run nsys2prv with these arguments and return its status and output."""
    return subprocess.run(
        build_arguments(*arguments),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
        check=False,
        **options,
    )


def measure_command(*arguments: object) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run nsys2prv; return its status and output, and its memory (KiB)."""
    program = (
        "import resource, subprocess, sys\nstatus = subprocess.run(sys.argv[1:]).returncode\n"
        "print(status, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    measured = subprocess.run(
        [sys.executable, "-c", program, *build_arguments(*arguments)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    status, kilobytes = map(int, measured.stdout.splitlines()[-1].split())
    done = subprocess.CompletedProcess(arguments, status, measured.stdout, measured.stderr)
    return done, kilobytes // (1024 if sys.platform == "darwin" else 1)


def read_error(process: subprocess.CompletedProcess[str], status: int = 1) -> str:
    """Check that the command failed with one line of error, and return that line."""
    errors = [
        line for line in process.stderr.splitlines() if not line.startswith("nsys2prv: warning: ")
    ]
    assert process.returncode == status, process.stderr
    assert len(errors) == 1, process.stderr
    assert errors[0].startswith("nsys2prv: error: ")
    return errors[0]


def run_main(*arguments: object) -> int:
    """Run nsys2prv in this process and return its status."""
    return main([str(argument) for argument in arguments])


def read_error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """Check that standard error has one line, and return it."""
    text = capsys.readouterr().err
    assert text.count("\n") == 1, text
    return text


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until the condition holds; fail with `what` after a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def read_folder(folder: Path) -> dict[str, bytes]:
    """Return the content of every file of a folder, hidden ones too."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
    }
