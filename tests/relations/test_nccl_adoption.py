"""Ranks whose NCCL payloads are not recorded, among others whose payloads are."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import nsys2prv

SAMPLES = Path(__file__).parents[2] / "sample_reports" / "training"
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"


def make_job(folder: Path, *changes: str) -> list[Path]:
    """Write the sample job with these changes of rank 2."""
    reports = [Path(shutil.copy(path, folder)) for path in sorted(SAMPLES.glob("*.sqlite"))]
    reports[2].chmod(0o644)
    with sqlite3.connect(reports[2]) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(NVTX_EVENTS)")]
        sets = [name for name in ("binaryData", "jsonText", "jsonTextId") if name in columns]
        connection.execute(f"UPDATE NVTX_EVENTS SET {', '.join(f'{name} = NULL' for name in sets)}")
        for change in changes:
            connection.execute(change)
    connection.close()
    return reports


def test_kernels_without_payloads_are_matched_by_order_and_ends(tmp_path: Path) -> None:
    with nsys2prv.open(make_job(tmp_path)) as job, nsys2prv.open(SAMPLES) as whole:
        waits = [
            sorted(
                one.frame("nccl_collective", "late", "wait").select("rank", "late", "wait").rows()
            )
            for one in (job, whole)
        ]
        assert waits[0] == waits[1]
        assert [one.ranks for one in job.findings()] == [one.ranks for one in whole.findings()]
        assert not any("there is none of its rank" in line for line in job.warnings)
        (note,) = (note for note in job.quality if note.kind == "nccl_payloads_missing")
        assert note.text.startswith("rank2.sqlite: no payload names the communicators")


def test_nobody_is_accused_where_a_rank_cannot_be_matched(tmp_path: Path) -> None:
    nccl = "shortName IN (SELECT id FROM StringIds WHERE value LIKE 'nccl%')"
    reports = make_job(tmp_path, f"DELETE FROM {KERNEL} WHERE {nccl} AND rowid % 3 = 0")
    with nsys2prv.open(reports) as job:
        kinds = {finding.kind for finding in job.findings()}
        assert not kinds & {"straggler", "slow_host", "hiccup", "imbalance", "slow_link"}
        assert not any("there is none of its rank" in line for line in job.warnings)
        notes = job.analyse("findings")["findings"].notes
        assert any("which rank is late cannot be told" in note for note in notes)
