"""Test that overlapping work of one stream does not hide any of it."""

from pathlib import Path

import numpy as np
import pytest
from tools.conversions import convert_and_read
from tools.exports import KERNEL, make_export, make_kernel, make_strings

from nsys2prv.table import overlaps

KERNELS = 63000006


def list_intervals(trace, code: int = KERNELS) -> list[tuple[int, int, int, str]]:
    """Return (thread, begin, end, label) of every interval of a type, in order."""
    return sorted(
        (item.row[1], item.begin, item.end, trace.get_label(code, item.value))
        for item in trace.list_intervals(code)
    )


def test_overlapping_kernels_get_rows_of_their_own(tmp_path: Path) -> None:
    rows = [
        make_kernel(100, 200, demangledName=1),
        make_kernel(150, 180, demangledName=3),
        make_kernel(160, 250, demangledName=4),
        make_kernel(200, 220, demangledName=1),
        make_kernel(250, 260, demangledName=3),
    ]
    report = make_export(
        tmp_path / "r.sqlite",
        {KERNEL: rows, "StringIds": make_strings("a", "cudaLaunchKernel", "b", "c")},
    )
    trace, _ = convert_and_read([report], tmp_path / "o.prv")
    assert list_intervals(trace) == [
        (1, 0, 100, "a"),
        (1, 100, 120, "a"),
        (1, 150, 160, "b"),
        (2, 50, 80, "b"),
        (3, 60, 150, "c"),
    ]
    assert trace.names["THREAD"] == ["CUDA-D0.S7"] * 3


def assign_lanes_naively(begin: np.ndarray, end: np.ndarray) -> list[int]:
    """Assign one row after another to the first lane that is free."""
    free: list[int] = []
    result = []
    for start, stop in zip(begin.tolist(), end.tolist(), strict=True):
        lane = next((number for number, time in enumerate(free) if time <= start), len(free))
        free[lane : lane + 1] = [stop]
        result.append(lane)
    return result


@pytest.mark.parametrize("seed", range(20))
def test_first_fit_over_chunks_is_first_fit(seed: int) -> None:
    random = np.random.default_rng(seed)
    begin = np.sort(random.integers(0, 500, 120))
    end = begin + random.integers(1, 40, 120)
    order = np.lexsort((-end, begin))
    begin, end = begin[order], end[order]
    result, ends = [], {}
    for piece in np.array_split(np.arange(120), random.integers(1, 5)):
        lane, crowded = overlaps.assign_first_free_lanes(
            np.zeros(len(piece), np.int64), begin[piece], end[piece], ends
        )
        assert not crowded
        result += lane.tolist()
    assert result == assign_lanes_naively(begin, end)
