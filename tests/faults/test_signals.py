"""Test signals at unusual moments: before anything is imported, when no exception can be raised,
and when all is done.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools.commands import ENVIRONMENT, GRAPHS, SAMPLES, build_arguments, read_folder

from nsys2prv._util import workers

#: Of which there is nothing to warn.
QUIET = SAMPLES / "training"
INTERRUPTED = "nsys2prv: error: interrupted; nothing was written\n"
#: Interrupts the command as it imports a module, in a place where exceptions get lost.
WHILE_IMPORTING = """
import os, signal, sys

class Interrupting:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            Interrupting()

sys.meta_path.insert(0, Finder())
"""
#: Programs that are ended by exceptions begin so.
PREPARED = """
import signal, threading
from nsys2prv._util import errors
errors.end_on_signal()
errors.raise_on_signal()
"""


def run_and_signal(program: str) -> tuple[int, str, str]:
    process = subprocess.run(
        [sys.executable, "-c", program],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return process.returncode, process.stdout, process.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["argparse", "nsys2prv._util.text", "polars", "nsys2prv.conversion.convert"]
)
def test_an_interruption_while_modules_are_imported(name: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "sitecustomize.py").write_text(WHILE_IMPORTING.format(name=name))
    environment = {
        **ENVIRONMENT,
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}",
    }
    process = subprocess.run(
        build_arguments("-q", GRAPHS, tmp_path / "out" / "out.prv"),
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (process.returncode, process.stderr) == (130, INTERRUPTED)
    assert read_folder(tmp_path / "out") == {}


def test_workers_are_not_interrupted_even_as_they_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with workers.make_pool("processes", 1) as pool:
        assert list(pool.run_in_order(abs, [-1])) == [1]
    assert capfd.readouterr().err == ""


def test_signals_are_delayed_while_a_worker_starts() -> None:
    assert run_and_signal(
        PREPARED
        + """
try:
    with errors.delay_signals():
        signal.raise_signal(signal.SIGTERM)
        print("started")
except errors.EndedBySignal as ended:
    print(ended.exit_code)
"""
    ) == (0, "started\n143\n", "")


def test_what_cannot_be_raised_is_raised_later() -> None:
    assert run_and_signal(
        PREPARED
        + """

class Interrupting:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

Interrupting()
try:
    threading.Event().wait(60)
except errors.EndedBySignal as ended:
    print(ended.exit_code)
"""
    ) == (0, "143\n", "")


def test_who_interrupts_again_lets_it_tidy_up() -> None:
    assert run_and_signal(
        PREPARED
        + """
try:
    signal.raise_signal(signal.SIGINT)
except errors.EndedBySignal:
    signal.raise_signal(signal.SIGINT)
    errors._raised -= errors.GRACE_SECONDS
    try:
        signal.raise_signal(signal.SIGINT)
    except errors.EndedBySignal:
        print("it takes too long")
"""
    ) == (0, "it takes too long\n", "")


@pytest.mark.slow
def test_what_is_done_is_not_interrupted(tmp_path: Path) -> None:
    """Once the trace has its final name it would be wrong that nothing was written."""
    assert run_and_signal(f"""
import shutil, signal, sys
from nsys2prv._util import errors
errors.end_on_signal()
from nsys2prv.cli import main
rmtree = shutil.rmtree
shutil.rmtree = lambda *given, **more: (signal.raise_signal(signal.SIGINT), rmtree(*given, **more))
sys.exit(main(["-q", {str(QUIET)!r}, {str(tmp_path / "out.prv")!r}]))
""") == (0, "", "")
    assert sorted(read_folder(tmp_path)) == [
        "out.clock.yaml",
        "out.nsys2prv.json",
        "out.pcf",
        "out.prv",
        "out.row",
    ]


def test_signals_that_are_ignored_stay_so() -> None:
    """As a shell wants it of commands in the background, and nohup."""
    assert run_and_signal("""
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from nsys2prv._util import errors
errors.end_on_signal()
signal.raise_signal(signal.SIGINT)
errors.raise_on_signal()
signal.raise_signal(signal.SIGINT)
print("goes on")
""") == (0, "goes on\n", "")
