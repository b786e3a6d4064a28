"""Run paramedir, Paraver's command line, on a trace."""

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
    """Run paramedir with limited time and output.

    Return the outcome (`done`, `refused`, `unrecognised`, `crashed` or `endless`) and the output.
    """

    def limit_resources() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_OUTPUT, MOST_OUTPUT))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    try:
        process = subprocess.run(
            [str(PARAMEDIR), *map(str, arguments)],
            cwd=folder,
            env={**os.environ, "HOME": str(folder)},
            text=True,
            errors="replace",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            preexec_fn=limit_resources,
        )
    except subprocess.TimeoutExpired:
        return "endless", ""
    if any(path.stat().st_size >= MOST_OUTPUT for path in folder.iterdir() if path.is_file()):
        return "endless", process.stdout
    if process.returncode < 0 or process.returncode > 128:
        return "crashed", process.stdout
    if "unrecognized tracefile format" in process.stdout:
        return "unrecognised", process.stdout
    return "refused" if process.returncode else "done", process.stdout


def classify_trace(folder: Path, prv: Path) -> str:
    """Return the outcome of reading a trace as :func:`run_paramedir` does, or `skips` if a record
    was not read.
    """
    (folder / "view.cfg").write_text(TIMELINE)
    outcome, output = run_paramedir(folder, prv, "view.cfg", "view.out.csv")
    return "skips" if outcome == "done" and re.search("Error reading|Unkwnown", output) else outcome
