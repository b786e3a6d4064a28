"""BSC's pertalde, a reader of Paraver traces that shares nothing with this project: `ptd`, of the
package index.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PTD = shutil.which("ptd", path=str(Path(sys.executable).parent)) or shutil.which("ptd")
needs_pertalde = pytest.mark.skipif(PTD is None, reason="pertalde is not installed")


def run_ptd(folder: Path, *arguments: object) -> str:
    """What it says, run in a folder, where it writes; fails the test where it does not end well."""
    run = subprocess.run(
        [str(PTD), *map(str, arguments)],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
    )
    assert run.returncode == 0, run.stdout[-2000:]
    return run.stdout


def check_with_pertalde(trace: Path) -> str:
    """What it finds wrong with a trace, looking at every record; "" for nothing."""
    return run_ptd(trace.parent, "comprovar", "--exhaustive", trace.name).strip()


def count_events(trace: Path) -> dict[str, int]:
    """How many events it finds of the types with the most of them, by the labels of the .pcf."""
    rows = re.findall(
        r"^\| Event +\| +(\S.*?) +\| +(\d+) +\|",
        run_ptd(trace.parent, "comptar", trace.name),
        re.MULTILINE,
    )
    return {label: int(count) for label, count in rows}
