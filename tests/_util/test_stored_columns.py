"""Columns and frames in files, and small frames in memory."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from nsys2prv._util.budget import SMALL_FRAME_BYTES
from nsys2prv._util.stored_columns import (
    IN_MEMORY,
    FrameWriter,
    read_columns,
    read_frame,
    read_valid,
    read_values,
)

#: More numbers than a small frame may have.
MANY = SMALL_FRAME_BYTES


@pytest.mark.parametrize(
    ("columns", "is_small"),
    [
        ({}, True),
        ({"number": np.zeros(0, np.int64), "text": []}, True),
        ({"text": ["a", "", "ä\n"]}, True),
        # After 3 bytes, wider numbers are not aligned.
        ({"flag": np.array([True, False, True]), "time": np.array([5, -1, 1 << 62])}, True),
        ({"part": np.arange(9)[::3], "text": ["x", "y", "z"], "real": np.array([0.5, np.nan, 2])}, True),
        ({"text": ["a", None]}, False),
        ({"text": ["a" * SMALL_FRAME_BYTES, "b"]}, False),
        ({"series": pl.Series(["a", None])}, False),
        ({"number": np.arange(MANY)}, False),
    ],
)  # fmt: skip
def test_frames_are_read_as_they_were_stored(
    tmp_path: Path, columns: dict[str, Any], is_small: bool
) -> None:
    with FrameWriter(tmp_path / "frames.bin") as writer:
        frame = writer.append_frame(columns)
    assert (frame.offset == IN_MEMORY) == is_small == (not writer.path.exists())
    frame = pickle.loads(pickle.dumps(frame))
    found = read_columns(frame)
    assert list(found) == list(columns)
    for name, column in columns.items():
        assert type(found[name]) is type(column)
        assert pl.Series(found[name]).equals(pl.Series(column), check_dtypes=True)
        if isinstance(column, np.ndarray):
            assert found[name].flags.aligned
    if columns:
        (name, *_) = columns
        assert list(read_columns(frame, [name])) == [name]
        assert read_frame(frame).equals(pl.DataFrame(columns))


def test_columns_and_frames_share_a_file(tmp_path: Path) -> None:
    """Each is found behind the ones before it, also those of an earlier writer."""
    path, numbers = tmp_path / "frames.bin", np.arange(MANY)
    for first in (0, 1):
        with FrameWriter(path) as writer:
            start = writer.write_column(numbers[first:10])
            frame = writer.append_frame({"number": numbers + first})
            end = writer.write_column(numbers[:5] * 2, numbers[:5] % 2 == 0)
        with path.open("rb", buffering=0) as file:
            assert read_values(file, start, 0, 10 - first).tolist() == list(range(first, 10))
            assert read_values(file, end, 1, 4).tolist() == [2, 4, 6]
            assert read_valid(file, end, 1, 4).tolist() == [False, True, False]
        assert read_columns(frame)["number"].tolist() == list(range(first, MANY + first))
