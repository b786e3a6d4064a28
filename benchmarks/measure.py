"""One job converted in several ways, beside the floors, round after round."""

from __future__ import annotations

import re
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path

from inputs import ROOT, Job
from processes import Taken, take

#: Ways of converting: options, by the name that the table shows.
WAYS = {
    "-j 2": ("-j", "2"),
    "-j 1": ("-j", "1"),
    "-z -j 2": ("-z", "-j", "2"),
    "threads": ("--engine", "threads", "-j", "2"),
}
PARQUET = "Parquet -j 2"


@dataclass
class Way:
    """Runs of one way. bytes, lines: of its trace."""

    runs: list[Taken] = field(default_factory=list)
    bytes: int = 0
    lines: int = 0

    def median(self, name: str) -> float:
        return statistics.median(getattr(run, name) or 0.0 for run in self.runs)

    @property
    def peak(self) -> int:
        return max(run.peak for run in self.runs)


@dataclass
class Cell:
    """What was measured of a job. read, write: CPU and wall seconds of the floors, of each run."""

    job: Job
    ways: dict[str, Way] = field(default_factory=dict)
    read: list[tuple[float, float]] = field(default_factory=list)
    write: list[tuple[float, float]] = field(default_factory=list)

    def floors(self, which: int) -> float:
        """Median of both floors together: CPU seconds (0) or wall (1)."""
        return sum(
            statistics.median(run[which] for run in runs) for runs in (self.read, self.write)
        )


def measure(job: Job, tables: list[Path], folder: Path, runs: int, chosen: list[str]) -> Cell:
    """tables: of the same job as Parquet, which may be none. folder: for traces. chosen: of WAYS
    and PARQUET.
    """
    cell = Cell(job, {name: Way() for name in chosen if name != PARQUET or tables})
    for _ in range(runs):
        for name, way in cell.ways.items():
            _round(name, way, tables if name == PARQUET else job.reports, folder)
        cell.read.append(floor("read", *job.reports))
        plain = max(way.bytes for name, way in cell.ways.items() if not name.startswith("-z"))
        cell.write.append(floor("write", plain, folder / "floor"))
        (folder / "floor").unlink()
    return cell


def _round(name: str, way: Way, inputs: list[Path], folder: Path) -> None:
    output = folder / ("out.prv.gz" if name.startswith("-z") else "out.prv")
    way.runs.append(_command("-v", *WAYS.get(name, ("-j", "2")), *inputs, output, folder=folder))
    out = way.runs[-1].out
    way.bytes = output.stat().st_size
    way.lines = int(re.findall(r"\.prv(?:\.gz)?  .*, ([\d,]+) lines", out)[-1].replace(",", ""))
    output.unlink()


def _command(*words: str | Path, folder: Path) -> Taken:
    """Of a run of nsys2prv, from this folder's package."""

    def begun() -> bool:
        # The trace grows in a folder of its own until it is complete; then that goes.
        try:
            return any(trace.stat().st_size for trace in folder.glob(".nsys2prv-*/out.prv*"))
        except FileNotFoundError:
            return False

    return take(
        [sys.executable, "-m", "nsys2prv", *words],
        environment={"PYTHONPATH": str(ROOT)},
        begun=begun,
    )


def floor(*words: str | Path) -> tuple[float, float]:
    """CPU and wall seconds of reading reports, or of writing a file; see `floors.py`."""
    _, cpu, wall = take([sys.executable, Path(__file__).with_name("floors.py"), *words]).out.split()
    return float(cpu), float(wall)
