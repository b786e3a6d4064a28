"""Layers: ranges whose names differ in a number alone are compared with each other, and ranks too."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.exports import make_nvtx_range
from tools.nccl_exports import Rank

import nsys2prv

LAYERS, STEPS, SLOW_LAYER, SLOW_RANK = 3, 4, 1, 1


def test_the_slowest_layer_and_rank_are_named(tmp_path: Path) -> None:
    """Kernels of a layer last 10 us, of the slow one 15, on the slow rank a fifth longer."""
    reports = []
    for number in range(3):
        rank, launch, free = Rank(10 + number), 1_000, 100_000
        for _ in range(STEPS):
            for layer in range(LAYERS):
                begin, lasts = launch, 15_000 if layer == SLOW_LAYER else 10_000
                lasts += lasts // 5 if number == SLOW_RANK else 0
                rank.add_kernel(launch + 100, free, free + lasts)
                launch, free = launch + 1_000, free + 20_000
                main = rank.nvtx[0]["globalTid"]
                rank.nvtx.append(make_nvtx_range(begin, launch, f"layer_{layer}", globalTid=main))
        reports.append(rank.write(tmp_path / f"rank{number}.sqlite"))
    with nsys2prv.open(reports, align="none", jobs=1) as job:
        row = job.analyse("operations")["operations"].tables["layers"].frame.row(0, named=True)
    assert (row["operation"], row["layers"], row["calls"]) == ("layer_*", LAYERS, 36)
    assert (row["slowest"], row["slowest_share"]) == (f"layer_{SLOW_LAYER}", pytest.approx(1.5))
    assert row["slowest_rank"] == f"rank {SLOW_RANK} (by file name)"
    assert row["slowest_rank_share"] == pytest.approx(1.2)
