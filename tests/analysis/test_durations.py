"""Times of kernels in iterations, against counting."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nsys2prv.analysis.intervals import (
    sum_within,
)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=12),
    st.integers(0, 60),
    st.integers(0, 30),
)
def test_time_within(intervals: list[tuple[int, int]], since: int, length: int) -> None:
    begin = np.array([item for item, _ in intervals], np.int64)
    end = begin + np.array([lasts for _, lasts in intervals], np.int64)
    known = sum(
        item <= time < item + lasts
        for item, lasts in intervals
        for time in range(since, since + length)
    )
    assert sum_within(begin, end, np.array([since]), np.array([since + length])).tolist() == [known]
