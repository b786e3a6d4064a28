"""Frames as pandas ones: what stays as it is, and what pandas makes of absent numbers and of empty
frames.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import polars as pl
import pytest
from tools.view_answers import SAMPLES

import nsys2prv
from nsys2prv.analysis.job import OpenJob

pandas = pytest.importorskip("pandas", reason="needs pandas: pip install 'nsys2prv[pandas]'")
pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'nsys2prv[pandas]'")


@pytest.fixture(scope="module")
def job() -> Iterator[OpenJob]:
    with nsys2prv.open(SAMPLES["training"], quiet=True, jobs=1) as opened:
        yield opened


def check_same_cells(frame: pl.DataFrame, extension: bool = False) -> object:
    """Check that the cells of the pandas frame are equal to the polars ones, and return it."""
    result = frame.to_pandas(use_pyarrow_extension_array=extension)
    assert list(result.columns) == frame.columns
    assert len(result) == frame.height
    for name in frame.columns:
        for item, known in zip(result[name].tolist(), frame[name].to_list(), strict=True):
            absent = (
                item is None or item is pandas.NA or (isinstance(item, float) and math.isnan(item))
            )
            assert absent if known is None else item == known, name
    return result


@pytest.mark.slow
def test_every_kind_of_record(job: OpenJob) -> None:
    for layout in job.layouts:
        frame = job.frame(layout)
        result = check_same_cells(frame)
        assert str(result["begin"].dtype) == str(result["end"].dtype) == "int64"
        assert {
            str(result[name].dtype)
            for name in frame.columns
            if frame.schema[name] == pl.Categorical and frame[name].null_count() < frame.height
        } <= {"category"}


def test_every_table(job: OpenJob) -> None:
    for result in job.analyse(iterations="iteration*").values():
        for table in result.tables.values():
            check_same_cells(table.frame)


def test_absent_numbers(job: OpenJob) -> None:
    """An integer column with absent values is one of floats in pandas, unless asked for Arrow's
    types, which lose nothing.
    """
    frame = job.frame("nccl_kernel", "bytes")
    assert frame["bytes"].null_count() or frame["bytes"].min() is not None
    big = pl.DataFrame({"bytes": [2**53 + 1, None]})
    assert str(big.to_pandas()["bytes"].dtype) == "float64"
    exact = check_same_cells(big, extension=True)
    assert exact["bytes"][0] == 2**53 + 1
    check_same_cells(frame, extension=True)


def test_kinds_that_the_job_lacks(job: OpenJob) -> None:
    result = check_same_cells(job.frame("mpi_collective"))
    assert len(result) == 0
    assert {"begin", "end", "rank"} <= set(result.columns)


def test_grouping_by_category(job: OpenJob) -> None:
    kernels = job.frame("cuda_kernel", "class")
    result = kernels.to_pandas()
    sums = (result["end"] - result["begin"]).groupby(result["class"], observed=True).sum()
    known = dict(kernels.group_by("class").agg((pl.col("end") - pl.col("begin")).sum()).rows())
    assert {str(name): int(value) for name, value in sums.items()} == {
        str(name): value for name, value in known.items()
    }
