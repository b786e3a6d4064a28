"""Distributions of kernels' durations and their times in iterations, against plain SQL and
counting.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections import defaultdict

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from tools.sql_truth import make_label
from tools.view_answers import SAMPLES

import nsys2prv
from nsys2prv.analysis.intervals import (
    sum_within,
)

QUERY = """SELECT d.value, k.end - k.start FROM CUPTI_ACTIVITY_KIND_KERNEL AS k JOIN StringIds AS d ON d.id = k.demangledName"""


def test_counts_are_those_of_sql() -> None:
    with nsys2prv.open(
        SAMPLES["training"], full_kernel_names=True, align="utc", quiet=True, jobs=1
    ) as job:
        tables = job.analyse("kernels")["kernels"].tables
    durations = defaultdict(list)
    for path in SAMPLES["training"]:
        with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as export:
            for name, duration in export.execute(QUERY):
                durations[make_label(name)].append(duration)
    result, kernels = tables["durations"].frame, tables["kernels"].frame
    assert result["row"].unique().sort().to_list() == list(range(20))
    for row in range(20):
        row_histogram = result.filter(pl.col("row") == row)
        name = row_histogram["kernel"][0]
        assert kernels["kernel"][row] == name
        known = sorted(durations[name])
        assert (
            row_histogram["low_ns"][0],
            row_histogram["high_ns"][-1],
            row_histogram["count"].sum(),
        ) == (
            known[0],
            known[-1],
            len(known),
        )
        edges = [*row_histogram["low_ns"], row_histogram["high_ns"][-1]]
        counted = [0] * row_histogram.height
        for duration in known:
            counted[min(bisect_right(edges, duration) - 1, row_histogram.height - 1)] += 1
        assert row_histogram["count"].to_list() == counted
        steps = [high / low for low, high in row_histogram.select("low_ns", "high_ns").rows()]
        assert max(steps) - min(steps) < 1e-9


def test_no_iterations_no_table() -> None:
    with nsys2prv.open(SAMPLES["training"], quiet=True, jobs=1) as job:
        assert "classes_by_iteration" not in job.analyse("kernels")["kernels"].tables


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
