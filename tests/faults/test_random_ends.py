"""Runs that end at random instants of their work: hundreds of them, for some minutes; only with
``-m fuzz``.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tools.commands import ENVIRONMENT, SAMPLES, wait_for
from tools.processes import list_children, list_group

from nsys2prv._util import files

pytestmark = [
    pytest.mark.fuzz,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc"),
]

REPORTS = sorted((SAMPLES / "training").glob("*.sqlite"))
#: The command, to which every job is worth workers.
PROGRAM = """
import sys
from nsys2prv._util import errors
errors.end_on_signal()
from nsys2prv._util import workers
workers.is_worth_parallelizing = lambda jobs, *_: jobs > 1
from nsys2prv.cli import main
sys.exit(main())
"""
COUNT = 100
#: CPU seconds of the main process until a run is ended: from the first import to the last line.
FIRST, LAST = 0.05, 1.5
WORKERS = {
    "processes": ["--engine", "processes", "-j", "2"],
    "threads": ["-j", "2"],
    "alone": ["-j", "1"],
}


def interrupt(child: subprocess.Popen[str]) -> None:
    """Interrupt a command as a terminal does."""
    os.killpg(child.pid, signal.SIGINT)


def kill(child: subprocess.Popen[str]) -> None:
    child.kill()


def kill_a_worker(child: subprocess.Popen[str]) -> None:
    if workers := list_children(child.pid):
        os.kill(random.choice(workers), signal.SIGKILL)


#: How a run is ended -> the exit statuses that it may have then, but for 0.
ENDS: dict[Callable, int] = {interrupt: 130, kill: -signal.SIGKILL, kill_a_worker: 0}


@pytest.mark.parametrize("how", WORKERS)
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_runs_that_end_at_any_time(end: Callable, how: str, tmp_path: Path) -> None:
    instants = random.Random(how)
    for number in range(COUNT):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "out.prv").write_text("earlier")
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "-q", *WORKERS[how], *REPORTS, "out.prv"],
            cwd=folder,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        wait_until_spent(child, at := instants.uniform(FIRST, LAST))
        with suppress(ProcessLookupError):
            end(child)
        _, stderr = child.communicate(timeout=120)
        output = [
            line for line in stderr.splitlines() if not line.startswith("nsys2prv: warning: ")
        ]
        assert child.returncode in (0, ENDS[end]), (at, stderr)
        if child.returncode:
            assert output == (
                ["nsys2prv: error: interrupted; nothing was written"] if end is interrupt else []
            ), at
            assert (
                not (folder / "out.prv").exists() or (folder / "out.prv").read_text() == "earlier"
            ), at
        wait_for(lambda leader=child.pid: not list_group(leader), "processes that stay")
        if end is kill:
            files.remove_leftovers(folder)
        assert not list(folder.glob(f"{files.PREFIX}*")), at


def wait_until_spent(child: subprocess.Popen[str], seconds: float) -> None:
    """Wait until a process has used so much CPU time, or has ended."""
    ticks = seconds * os.sysconf("SC_CLK_TCK")
    while child.poll() is None:
        if (
            sum(
                map(
                    int,
                    Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[11:13],
                )
            )
            >= ticks
        ):
            break
        time.sleep(0.001)
