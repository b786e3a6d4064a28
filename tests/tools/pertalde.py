"""Run `ptd` of BSC's pertalde, a reader of Paraver traces that shares nothing with this project."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PTD = shutil.which("ptd", path=str(Path(sys.executable).parent)) or shutil.which("ptd")
needs_pertalde = pytest.mark.skipif(PTD is None, reason="pertalde is not installed")


def run_ptd(folder: Path, *arguments: object) -> str:
    """Run ptd in a folder and return its output; fail the test if it fails."""
    process = subprocess.run(
        [str(PTD), *map(str, arguments)],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
    )
    assert process.returncode == 0, process.stdout[-2000:]
    return process.stdout


def check_with_pertalde(trace: Path) -> str:
    """Return pertalde's complaints about any record of a trace, or ""."""
    return run_ptd(trace.parent, "comprovar", "--exhaustive", trace.name).strip()


def count_events(trace: Path) -> dict[str, int]:
    """Return how many events of the most frequent types pertalde counts, by the labels of the .pcf."""
    rows = re.findall(
        r"^\| Event +\| +(\S.*?) +\| +(\d+) +\|",
        run_ptd(trace.parent, "comptar", trace.name),
        re.MULTILINE,
    )
    return {label: int(count) for label, count in rows}
