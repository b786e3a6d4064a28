"""Inputs of the benchmark: generated jobs of a number of rows and ranks, and the same tables as
Parquet.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: The largest tables, whose rows are counted.
TABLES = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "NVTX_EVENTS",
    "GPU_METRICS",
    "OSRT_API",
)
#: Rows that the generator writes for each that it is asked for: GPU metrics come on top.
ROWS_PER_ASKED = 1.5
#: About so much of a SQLite file, and of everything made from it at one time, is a row (bytes).
DISK_PER_ROW = 60, 250


@dataclass(frozen=True)
class Job:
    """Reports of a generated job. counts: rows of the tables above."""

    reports: list[Path]
    counts: Counter[str]

    @property
    def rows(self) -> int:
        """Of all tables."""
        return self.counts.total()

    @property
    def kernels(self) -> int:
        """Of the GPU."""
        return self.counts["CUPTI_ACTIVITY_KIND_KERNEL"]

    @property
    def calls(self) -> int:
        """Of CUDA's API."""
        return self.counts["CUPTI_ACTIVITY_KIND_RUNTIME"]

    @property
    def size(self) -> int:
        """Bytes of the reports."""
        return sum(report.stat().st_size for report in self.reports)


def generate(folder: Path, rows: int, ranks: int) -> Job:
    """About so many rows in all, in one report for each rank; a folder that has them is used again."""
    if not (folder / "truth.json").exists():
        subprocess.run(
            [
                sys.executable,
                "-m",
                "tools.samples",
                str(folder),
                "--ranks",
                str(ranks),
                "--hosts",
                str(_hosts(ranks)),
                "--events-per-rank",
                str(max(1, int(rows / ranks / ROWS_PER_ASKED))),
                "--gpu-metrics",
            ],
            check=True,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
        )
    reports = sorted(
        folder.glob("rank*.sqlite"), key=lambda path: int(path.stem.removeprefix("rank"))
    )
    return Job(reports, sum(map(_counts, reports), Counter()))


def _hosts(ranks: int) -> int:
    """About one for eight ranks, so that all have as many."""
    return next(hosts for hosts in range(max(1, ranks // 8), ranks + 1) if ranks % hosts == 0)


def _counts(report: Path) -> Counter[str]:
    with closing(sqlite3.connect(f"file:{report}?mode=ro&immutable=1", uri=True)) as connection:
        present = {
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        return Counter(
            {
                table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in present.intersection(TABLES)
            }
        )


def parquet(reports: list[Path], folder: Path) -> list[Path]:
    """The same tables as folders of Parquet files, as `nsys export -t parquetdir` writes them."""
    sys.path.append(str(ROOT / "tests" / "tools"))
    from folders import convert_export_folder

    made = []
    for report in reports:
        target = folder / f"{report.stem}.parquetdir"
        made.append(target if target.exists() else convert_export_folder(report, target))
    return made
