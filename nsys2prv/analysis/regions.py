"""Regions of a job: the whole of it, and the iterations of an NVTX range."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from nsys2prv.analysis.book import Book
from nsys2prv.errors import UsageError

LAYOUTS = ("nvtx_pushpop", "nvtx_startend")
SCHEMA = {"region": pl.String, "iteration": pl.Int64, "begin": pl.Int64, "end": pl.Int64}


def windows(book: Book, labels: pl.DataFrame, pattern: str) -> pl.DataFrame:
    """The whole job (region "", iteration 0), then the iterations of the ranges whose name the pattern (with * and ?) matches.

    An iteration is from the first task's begin of a range to the last task's end of it. The n-th execution of a name in each task is
    one iteration; ranges within others that match do not count. labels: value and label of NVTX names. Raises UsageError where nothing
    matches.
    """
    whole = pl.DataFrame([("", 0, 0, book.duration)], schema=SCHEMA, orient="row")
    if not pattern:
        return whole
    expression = "".join({"*": ".*", "?": "."}.get(character, re.escape(character)) for character in pattern)
    matching = labels.filter(pl.col("label").str.contains(f"^(?s:{expression})$"))
    # Unit by unit, for all ranges of a job are many.
    units = np.unique(book.rows.units).tolist() if matching.height else []
    found = [book.begins(layout, ("range",), unit).join(matching, left_on="range", right_on="value", how="semi", maintain_order="left")
             for unit in units for layout in LAYOUTS if layout in book.layouts]
    ranges = pl.concat(found) if found else pl.DataFrame()
    if not ranges.height:
        raise UsageError(f"--iterations {pattern}: no NVTX range has such a name")
    task = book.rows.column("task")[ranges["thread"].to_numpy()]
    ranges = ranges.with_columns(task=task).sort("task", "begin", pl.col("end"), descending=[False, False, True], maintain_order=True)
    ranges = ranges.filter(pl.col("begin") >= pl.col("end").cum_max().shift(1).over("task").fill_null(-1))
    ranges = ranges.join(matching, left_on="range", right_on="value").sort("task", "begin")
    ranges = ranges.with_columns(number=pl.int_range(pl.len()).over("task", "label"))
    iterations = ranges.group_by("label", "number").agg(pl.col("begin").min(), pl.col("end").max())
    iterations = iterations.sort("begin", "label", "number").with_columns(iteration=pl.int_range(1, pl.len() + 1))
    return pl.concat([whole, iterations.select(pl.col("label").alias("region"), "iteration", "begin", "end").cast(SCHEMA)])
