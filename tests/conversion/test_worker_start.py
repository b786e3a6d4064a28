"""Test that a small job imports and starts nothing unnecessary."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tools.commands import ENVIRONMENT, GRAPHS

PROGRAM = """
import gc, json, sys
started = []
sys.addaudithook(lambda event, values: started.append(event) if event in ("os.fork", "os.posix_spawn", "subprocess.Popen") else None)
import _posixsubprocess
fork_exec = _posixsubprocess.fork_exec
_posixsubprocess.fork_exec = lambda *values: started.append("fork_exec") or fork_exec(*values)
from nsys2prv.cli import main
status = main(["-j", "4", *sys.argv[1:]])
print(json.dumps([status, started, sorted(sys.modules), gc.isenabled(), gc.get_freeze_count()]))
"""
#: For bars on terminals, pictures, tables for people, and other engines.
HEAVY = {
    "tqdm",
    "matplotlib",
    "jinja2",
    "pandas",
    "pyarrow",
    "dask",
    "distributed",
    "mpi4py",
    "nsys2prv.show.page",
    "nsys2prv.writers.paraver.check",
    "nsys2prv.figures",
    "nsys2prv.verdict",
    "nsys2prv.show",
}
#: For jobs of several hosts, for more workers than threads do, for --states, for cuts, and for all views that there are.
NOT_ASKED_FOR = {
    "nsys2prv.clock.solve",
    "nsys2prv.match.gathering",
    "nsys2prv.conversion.states",
    "multiprocessing",
    "nsys2prv.conversion.cut",
    "nsys2prv.writers.paraver.cfg.catalogue",
}


def test_a_small_job_starts_nothing(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(GRAPHS), str(tmp_path / "out.prv")],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    status, started, modules, collecting, kept_open = json.loads(process.stdout.splitlines()[-1])
    assert (status, started) == (0, [])
    assert (HEAVY | NOT_ASKED_FOR).isdisjoint(modules), sorted(
        (HEAVY | NOT_ASKED_FOR) & set(modules)
    )
    assert collecting, "garbage is collected while reports are read"
    assert kept_open > 10_000, "modules are not looked through for it"


@pytest.mark.parametrize(
    ("words", "absent"),
    [(words, {"numpy", "polars"}) for words in ("cfgs", "--help", "report --help", "study --help")]
    + [(words, {"polars"}) for words in ("cfgs --view nccl_wait", "check no.prv")],
)
def test_what_needs_no_libraries_of_columns_imports_none(
    words: str, absent: set[str], tmp_path: Path
) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "nsys2prv", *words.split()]
    environment = {**ENVIRONMENT, "HOME": str(tmp_path)}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    modules = {line.rpartition("|")[2].strip() for line in process.stderr.splitlines()}
    assert "nsys2prv.cli" in modules
    assert absent.isdisjoint(modules)
