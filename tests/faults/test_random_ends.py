"""Test runs that end at random times: hundreds of them, for some minutes; only with ``-m fuzz``."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from tools.commands import ENVIRONMENT, SAMPLES, run_command, wait_for
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
COUNT = 42
#: CPU seconds of the main process until a run is ended: from the first import to the last line.
FIRST, LAST = 0.05, 1.2
WORKERS = {
    "processes": ["--engine", "processes", "-j", "2"],
    "threads": ["-j", "2"],
    "alone": ["-j", "1"],
}
#: How a run is ended -> the exit statuses that it may have then, but for 0, and the line that it
#: prints. None: nothing of its own, but workers that were starting may print that it is gone.
ENDS = {
    "interrupt": (130, ["nsys2prv: error: interrupted; nothing was written"]),
    "terminate": (143, ["nsys2prv: error: ended by SIGTERM; nothing was written"]),
    "kill": (-signal.SIGKILL, None),
    "kill a worker": (0, []),
}


def end_run(child: subprocess.Popen[str], how: str) -> None:
    """End a command as a terminal, a batch system, or a lack of memory does."""
    with suppress(ProcessLookupError):
        if how == "interrupt":
            os.killpg(child.pid, signal.SIGINT)
        elif how == "terminate":
            child.terminate()
        elif how == "kill":
            child.kill()
        elif workers := list_children(child.pid):
            os.kill(random.choice(workers), signal.SIGKILL)


@pytest.mark.parametrize("engine", WORKERS)
@pytest.mark.parametrize("how", ENDS)
def test_runs_that_end_at_any_time(how: str, engine: str, tmp_path: Path) -> None:
    assert run_command("-q", *REPORTS, tmp_path / "whole.prv").returncode == 0
    # Whoever kills a run may come when its trace has just been put in place.
    whole = (tmp_path / "whole.prv").read_text() if how == "kill" else "earlier"
    instants = random.Random(engine + how)
    counts: Counter[int] = Counter()
    for number in range(COUNT):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "out.prv").write_text("earlier")
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "-q", *WORKERS[engine], *REPORTS, "out.prv"],
            cwd=folder,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        at = instants.uniform(FIRST, LAST)
        while child.poll() is None and read_cpu_seconds(child.pid) < at:
            time.sleep(0.001)
        end_run(child, how)
        _, stderr = child.communicate(timeout=120)
        status, says = ENDS[how]
        counts[child.returncode] += 1
        assert child.returncode in (0, status), (at, stderr)
        if child.returncode:
            assert says is None or stderr.splitlines() == says, at
            trace = folder / "out.prv"
            assert not trace.exists() or trace.read_text() in ("earlier", whole), at
        wait_for(lambda leader=child.pid: not list_group(leader), "processes that stay")
        if how == "kill":
            files.remove_leftovers(folder)
        assert not list(folder.glob(f"{files.PREFIX}*")), at
    print(f"{how}, {engine}: {COUNT} runs, by exit status {dict(counts)}")


def read_cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
