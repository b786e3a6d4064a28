"""The line of CPU seconds that -v prints, against what the system says of the processes."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from tools.commands import ENVIRONMENT, SAMPLES, build_arguments, run_command

#: Ranks of one job on several hosts, so that no stage is without work.
CLUSTER = sorted((SAMPLES / "cluster").glob("rank*.sqlite"))
LINE = re.compile(r"^  CPU seconds: (\d+\.\d\d [a-z ]+(?:, \d+\.\d\d [a-z ]+)*)$", re.MULTILINE)


def measure_seconds(folder: Path, *arguments: object) -> tuple[dict[str, float], float]:
    """Return the CPU seconds by stage as the command prints them, and those that it and the workers
    it waited for used in all.
    """
    with (folder / "told").open("w+") as output_file:
        child = subprocess.Popen(
            build_arguments(*arguments),
            cwd=folder,
            env=ENVIRONMENT,
            stdout=output_file,
            stderr=subprocess.PIPE,
            text=True,
        )
        with child.stderr:
            problems = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0, problems
        output_file.seek(0)
        lines = LINE.findall(output_file.read())
    assert len(lines) == 1
    parts = [part.split(" ", 1) for part in lines[0].split(", ")]
    seconds = {stage: float(number) for number, stage in parts}
    assert len(seconds) == len(parts)
    return seconds, usage.ru_utime + usage.ru_stime


def check_seconds(seconds: dict[str, float], used: float) -> None:
    """Check the printed seconds against those used: they are rounded to hundredths, and the system
    counts what comes after they were printed, too.
    """
    assert seconds["reading"] > 0
    assert seconds["beside"] > 0
    assert sum(seconds.values()) <= used + 0.005 * len(seconds)


@pytest.mark.slow
def test_stages_are_no_more_than_the_process_used(tmp_path: Path) -> None:
    seconds, used = measure_seconds(tmp_path, "-v", "-j", "1", "--states", *CLUSTER, "out.prv")
    check_seconds(seconds, used)
    assert {"reading", "names", "clocks", "relations", "states", "writing", "beside"} <= set(
        seconds
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "processes"),
    [(("-j", "2", "--engine", "processes"), True), (("-j", "2", "--engine", "threads"), False)],
)
def test_stages_of_workers_are_no_more_than_all_processes_used(
    how: tuple[str, ...], processes: bool, large_report: Path, tmp_path: Path
) -> None:
    seconds, used = measure_seconds(tmp_path, "-v", *how, large_report, "out.prv")
    check_seconds(seconds, used)
    assert (seconds.get("starting workers", 0) > 0) == processes


@pytest.mark.slow
@pytest.mark.parametrize("how", [(), ("-q",), ("-q", "-v")])
def test_nothing_of_it_is_told_unless_asked_for(how: tuple[str, ...], tmp_path: Path) -> None:
    process = run_command(*how, "-j", "1", CLUSTER[0], tmp_path / "out.prv")
    assert process.returncode == 0, process.stderr
    assert "CPU seconds" not in process.stdout + process.stderr
