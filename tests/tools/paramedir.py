"""What Paraver's command line does with a trace."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

PARAMEDIR = shutil.which("paramedir")
SECONDS, MOST_OUTPUT = 20, 8 << 20
TIMELINE = """\
#ParaverCFG
ConfigFile.Version: 3.4
ConfigFile.NumWindows: 1

window_name w
window_type single
window_units Nanoseconds
window_selected_functions { 2, { {thread, Last Evt Val}, {evt_type, =} } }
window_filter_module evt_type 1 10
"""


def skip_without_paramedir() -> None:
    """Skip the test without paramedir."""
    if PARAMEDIR is None:
        pytest.skip("paramedir is not on the PATH")


def run_paramedir(folder: Path, *arguments: object) -> tuple[str, str]:
    """What became of it (`done`, `refused`, `unrecognised`, `crashed` or `endless`), and all it
    said; it may write so much and no more.
    """

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_OUTPUT, MOST_OUTPUT))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    try:
        run = subprocess.run(
            [str(PARAMEDIR), *map(str, arguments)],
            cwd=folder,
            env={**os.environ, "HOME": str(folder)},
            text=True,
            errors="replace",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            preexec_fn=limit,
        )
    except subprocess.TimeoutExpired:
        return "endless", ""
    if any(path.stat().st_size >= MOST_OUTPUT for path in folder.iterdir() if path.is_file()):
        return "endless", run.stdout
    if run.returncode < 0 or run.returncode > 128:
        return "crashed", run.stdout
    if "unrecognized tracefile format" in run.stdout:
        return "unrecognised", run.stdout
    return "refused" if run.returncode else "done", run.stdout


def classify_trace(folder: Path, prv: Path) -> str:
    """What becomes of a trace: as :func:`run_paramedir` says, or `skips` where a record was not
    read.
    """
    (folder / "view.cfg").write_text(TIMELINE)
    outcome, said = run_paramedir(folder, prv, "view.cfg", "view.out.csv")
    return "skips" if outcome == "done" and re.search("Error reading|Unkwnown", said) else outcome


def list_bursts(folder: Path, prv: Path) -> list[tuple[str, int, int, int]]:
    """Row, begin, length and value of what the last value of type 10 is over time, where it is not
    0 and lasts.
    """
    assert classify_trace(folder, prv) in ("done", "skips")
    lines = (line.split("\t") for line in (folder / "view.out.csv").read_text().splitlines())
    found = [(row, *(int(float(number)) for number in numbers)) for row, *numbers in lines]
    return [burst for burst in found if burst[2] and burst[3]]
