"""What the summary says of opening a trace in Paraver, against the trace's own lines and against
paramedir.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tools.commands import SAMPLES
from tools.exports import make_large
from tools.paramedir import PARAMEDIR, TIMELINE, need_paramedir

from nsys2prv import Options, Summary, convert
from nsys2prv.conversion.cut.asked import CutOptions
from nsys2prv.paraver import memory
from nsys2prv.paraver.memory import MemoryEstimate

SETS = sorted(path.name for path in SAMPLES.iterdir() if path.is_dir())


def converted(name: str, prv: Path, **options: object) -> Summary:
    return convert(sorted((SAMPLES / name).glob("rank*.sqlite")), prv, Options(jobs=1, **options))


def counted(prv: Path) -> tuple[int, int, int]:
    """Pairs, states and lines as they stand in a trace."""
    pairs = states = lines = 0
    for line in prv.read_text().splitlines()[1:]:
        pairs += (line.count(":") - 5) // 2 if line.startswith("2:") else 0
        states += line.startswith("1:")
        lines += line.startswith("3:")
    return pairs, states, lines


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("states", [False, True])
def test_what_is_counted_is_what_is_written(name: str, states: bool, tmp_path: Path) -> None:
    load = converted(name, tmp_path / "all.prv", states=states).load
    assert (load.pairs, load.states, load.lines) == counted(tmp_path / "all.prv")
    assert bool(load.states) == states
    bare = converted(
        name, tmp_path / "bare.prv", states=states, cut=CutOptions(arguments=False)
    ).load
    assert (load.bare, load.states, load.lines) == counted(tmp_path / "bare.prv")
    assert bare.pairs == bare.bare == load.bare < load.pairs


def test_small_traces_open_at_once(tmp_path: Path) -> None:
    assert "Paraver needs" not in converted("training", tmp_path / "out.prv").text()


def test_what_is_said_of_large_traces() -> None:
    many = MemoryEstimate(pairs=20_000_000, bare=4_000_000, states=1_000_000, lines=1_000_000)
    # 1.8 * (20 * 32 + 64 + 312) and 1.8 * (4 * 32 + 64 + 312) MB; 20 * 0.4 + 0.6 + 2.5 s.
    assert (
        many.text()
        == "to open it Paraver needs about 1.8 GB of memory and 11 s; 0.9 GB with --no-args"
    )
    assert "--no-args" not in MemoryEstimate(pairs=20_000_000, bare=19_000_000).text()
    assert MemoryEstimate(pairs=100_000, bare=100_000).text() == ""


def test_the_memory_that_paraver_takes(tmp_path: Path) -> None:
    """Within half and twice of what is said: how its arrays grow depends on how the records lie on
    the rows.
    """
    need_paramedir()
    load = convert(
        [make_large(tmp_path / "r.sqlite", 300_000)], tmp_path / "out.prv", Options(jobs=1)
    ).load
    (tmp_path / "view.cfg").write_text(TIMELINE)
    # The greatest memory of a child counts what its parent had when it was started: a small parent
    # stands between.
    between = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", between, str(PARAMEDIR), "out.prv", "view.cfg", "view.csv"],
        cwd=tmp_path,
        text=True,
        env={**os.environ, "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert load.memory / 2 < int(done.stdout) * 1024 < load.memory * 2
    assert load.memory > 100_000_000


@pytest.mark.slow
def test_what_would_make_a_large_trace_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "WORTH_TELLING", 0)
    reports = sorted((SAMPLES / "training").glob("*.sqlite"))
    told = convert(reports, tmp_path / "all.prv", Options(quiet=True)).smaller
    for option, cut in {
        "--no-args": CutOptions(arguments=False),
        "--no-lines": CutOptions(lines=False),
    }.items():
        convert(reports, tmp_path / "less.prv", Options(quiet=True, cut=cut))
        found = re.search(rf"([0-9.]+) MB with {option}", told)
        assert found, told
        size = (tmp_path / "less.prv").stat().st_size / 1e6
        assert float(found[1]) == pytest.approx(size, rel=0.05)
    assert told.endswith("with -z")
