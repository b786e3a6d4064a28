"""Test NCCL transfers by size: latency and bandwidth by a fit, and the capability of links."""

from pathlib import Path

import pytest
from tools.nccl_exports import Rank, format_payload

import nsys2prv

#: An AllReduce of two ranks takes LATENCY, and 1 ns for each RATE bytes (its bus bandwidth, too).
LATENCY, RATE = 20_000, 100
SIZES = [1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 26]


@pytest.mark.parametrize("sizes", [SIZES, SIZES[:2]])
def test_small_messages_are_bound_by_latency(tmp_path: Path, sizes: list[int]) -> None:
    reports = []
    for number in range(2):
        rank, time = Rank(10 + number), 1_000_000
        rank.names += ("",)
        for at, size in enumerate(sizes * 3):
            lasts = LATENCY + size // RATE
            payload = format_payload(7, size, Rank=number, **{"No. of ranks": 2})
            rank.add_collective(1_000 * (at + 1), time, time + lasts, payload)
            time += lasts + 10_000
        reports.append(rank.write(tmp_path / f"rank{number}.sqlite"))
    with nsys2prv.open(reports, align="none", jobs=1) as job:
        result = job.analyse("collectives")["collectives"]
    rows = {row["up_to_bytes"]: row for row in result.tables["sizes"].frame.iter_rows(named=True)}
    assert {size: row["collectives"] for size, row in rows.items()} == dict.fromkeys(sizes, 3)
    assert rows[sizes[0]]["median_transfer_ns"] == pytest.approx(LATENCY, rel=0.01)
    assert rows[sizes[0]].get("link_gb_s") is None
    assert any("link speeds" in note for note in result.notes)
    # Of two sizes a line says nothing.
    bounds = ["latency"] * 3 + ["bandwidth"] * 2 if sizes == SIZES else [None] * 2
    assert [row.get("bound") for row in rows.values()] == bounds
    if sizes == SIZES:
        assert rows[SIZES[-1]]["latency_ns"] == pytest.approx(LATENCY, rel=0.01)
        share = LATENCY / (LATENCY + SIZES[3] / RATE)
        assert rows[SIZES[3]]["latency_share"] == pytest.approx(share, rel=0.02)
