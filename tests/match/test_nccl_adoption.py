"""Test ranks without recorded NCCL payloads: some, or all."""

import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

import nsys2prv

SAMPLES = Path(__file__).parents[2] / "sample_reports" / "training"
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
OF_NCCL = "shortName IN (SELECT id FROM StringIds WHERE value LIKE 'nccl%')"


def make_job(folder: Path, *changes: str, ranks: Sequence[int] = (2,)) -> list[Path]:
    """Write the sample job without the payloads of these ranks, and with these changes of them."""
    reports = [Path(shutil.copy(path, folder)) for path in sorted(SAMPLES.glob("*.sqlite"))]
    for rank in ranks:
        reports[rank].chmod(0o644)
        with sqlite3.connect(reports[rank]) as connection:
            columns = [row[1] for row in connection.execute("PRAGMA table_info(NVTX_EVENTS)")]
            sets = [name for name in ("binaryData", "jsonText", "jsonTextId") if name in columns]
            values = ", ".join(f"{name} = NULL" for name in sets)
            connection.execute(f"UPDATE NVTX_EVENTS SET {values}")
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
        assert not any("and none of rank" in line for line in job.warnings)
        (note,) = (note for note in job.quality if note.kind == "nccl_payloads_missing")
        assert note.text.startswith("rank2.sqlite: no payloads identify the communicators")


def test_nobody_is_accused_where_a_rank_cannot_be_matched(tmp_path: Path) -> None:
    reports = make_job(tmp_path, f"DELETE FROM {KERNEL} WHERE {OF_NCCL} AND rowid % 3 = 0")
    with nsys2prv.open(reports) as job:
        kinds = {finding.kind for finding in job.findings()}
        assert not kinds & {"straggler", "slow_host", "hiccup", "imbalance", "slow_link"}
        assert not any("and none of rank" in line for line in job.warnings)


@pytest.mark.parametrize("in_graphs", [False, True])
def test_without_any_payloads_hosts_are_aligned_and_nothing_is_matched_wrongly(
    tmp_path: Path, in_graphs: bool
) -> None:
    """Kernels that CUDA graphs launch have no payloads either."""
    change = f"UPDATE {KERNEL} SET graphNodeId = rowid WHERE {OF_NCCL}"
    reports = make_job(tmp_path, *([change] if in_graphs else []), ranks=range(4))
    with nsys2prv.open(reports) as job, nsys2prv.open(SAMPLES) as whole:
        found, right = (
            one.frame("nccl_collective", "collective")
            .select("begin", "collective", pl.col("row").cast(pl.String))
            .sort("begin")
            for one in (job, whole)
        )
        found_some = any("matched by their order and end times" in one.text for one in job.quality)
        # Nothing but another version of NCCL could be advised.
        assert found_some != in_graphs
        rules = job.frame("nccl_collective", "rule")["rule"].cast(pl.String).unique().to_list()
        assert rules == ["streams whose kernels end together"]
    # The hosts' clocks are 3.7 ms apart.
    both = found.join_asof(
        right, on="begin", by="row", strategy="nearest", tolerance=25_000, check_sortedness=False
    )
    assert found.height == 480
    assert both["collective_right"].null_count() == 0
    pairs = both.group_by("collective").agg(pl.col("collective_right").n_unique(), pl.len())
    assert (pairs["collective_right"] == 1).all()
    sizes = right.group_by("collective").len().rename({"collective": "collective_right"})
    whole_sizes = both.join(sizes, on="collective_right").join(pairs, on="collective")
    assert (whole_sizes["len"] == whole_sizes["len_right"]).all()
