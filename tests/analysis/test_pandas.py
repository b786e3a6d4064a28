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
