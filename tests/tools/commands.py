"""The command as people run it, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "sample_reports"
GRAPHS = SAMPLES / "graphs" / "rank0.sqlite"
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
}


def build_arguments(*given: object) -> list[str]:
    return [sys.executable, "-m", "nsys2prv", *map(str, given)]


def run_command(*given: object, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        build_arguments(*given),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
        check=False,
        **more,
    )


def read_error(done: subprocess.CompletedProcess[str], status: int = 1) -> str:
    """The one line that says what is wrong."""
    errors = [
        line for line in done.stderr.splitlines() if not line.startswith("nsys2prv: warning: ")
    ]
    assert done.returncode == status, done.stderr
    assert len(errors) == 1, done.stderr
    assert errors[0].startswith("nsys2prv: error: ")
    return errors[0]


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Until the condition holds; fails with `what` when that takes a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def read_folder(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, hidden ones too."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
    }
