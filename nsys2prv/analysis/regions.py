"""Group NVTX ranges by folded name, and find the regions of a job: the whole of it, and the
iterations of a range.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from nsys2prv._util.errors import UsageError
from nsys2prv._util.text import suggest_range
from nsys2prv.analysis.event_reader import EventReader

#: What frameworks append to an operation's name (PyTorch's emit_nvtx): from the first of these on
#: it is not its name.
TAIL = r",\s*(?:op_id|seq|sizes|input_op_ids|stashed seq|fwd_op_id)\b.*$"
NUMBER = r"\d+"
#: Names that differ in their numbers alone stay apart up to so many of them: layers do, steps of a
#: long run do not.
MOST_APART = 64


def make_group_table(names: pl.DataFrame) -> np.ndarray:
    """Return the group of each value (int32, -1 for values that are no name's), of what
    :func:`fold_labels` gives.
    """
    values = names["value"].to_numpy()
    table = np.full(int(values.max(initial=-1)) + 1, -1, np.int32)
    table[values] = names["group"].to_numpy()
    return table


def fold_labels(labels: pl.DataFrame) -> pl.DataFrame:
    """Return `value` of every name -> `group`, a number from 0, and `operation`, the group's name.
    labels: value and label.
    """
    names = labels.with_columns(base=pl.col("label").str.replace(TAIL, ""))
    names = names.with_columns(pattern=pl.col("base").str.replace_all(NUMBER, "*"))
    many = names.group_by("pattern", maintain_order=True).agg(
        apart=pl.col("base").n_unique() <= MOST_APART
    )
    names = names.join(many, on="pattern", how="left", maintain_order="left")
    names = names.with_columns(operation=pl.when("apart").then("base").otherwise("pattern"))
    return names.select(
        "value", (pl.col("operation").rank("dense").cast(pl.Int32) - 1).alias("group"), "operation"
    )


LAYOUTS = ("nvtx_pushpop", "nvtx_startend")
SCHEMA = {"region": pl.String, "iteration": pl.Int64, "begin": pl.Int64, "end": pl.Int64}


def find_windows(reader: EventReader, labels: pl.DataFrame, pattern: str) -> pl.DataFrame:
    """Return the whole job (region "", iteration 0), then the iterations of the ranges whose name
    the pattern (with * and ?) matches.

    An iteration is from the first task's begin of a range to the last task's end of it. The n-th
    execution of a name in each task is one iteration; ranges within others that match do not count.
    labels: value and label of NVTX names. Raises UsageError where nothing matches.
    """
    whole = pl.DataFrame([("", 0, 0, reader.duration)], schema=SCHEMA, orient="row")
    if not pattern:
        return whole
    expression = "".join(
        {"*": ".*", "?": "."}.get(character, re.escape(character)) for character in pattern
    )
    matching = labels.filter(pl.col("label").str.contains(f"^(?s:{expression})$"))
    # Unit by unit, for all ranges of a job are many.
    units = np.unique(reader.rows.units).tolist() if matching.height else []
    matched = [
        reader.read_begins(layout, ("range",), unit).join(
            matching, left_on="range", right_on="value", how="semi", maintain_order="left"
        )
        for unit in units
        for layout in LAYOUTS
        if layout in reader.layouts
    ]
    ranges = pl.concat(matched) if matched else pl.DataFrame()
    if not ranges.height:
        raise UsageError(
            f"--iterations {pattern}: no NVTX range has such a name; "
            + suggest_range(pattern, labels["label"].to_list())
        )
    task = reader.rows.column("task")[ranges["thread"].to_numpy()]
    ranges = ranges.with_columns(task=task).sort(
        "task", "begin", pl.col("end"), descending=[False, False, True], maintain_order=True
    )
    ranges = ranges.filter(
        pl.col("begin") >= pl.col("end").cum_max().shift(1).over("task").fill_null(-1)
    )
    ranges = ranges.join(matching, left_on="range", right_on="value").sort("task", "begin")
    ranges = ranges.with_columns(number=pl.int_range(pl.len()).over("task", "label"))
    iterations = ranges.group_by("label", "number").agg(pl.col("begin").min(), pl.col("end").max())
    iterations = iterations.sort("begin", "label", "number").with_columns(
        iteration=pl.int_range(1, pl.len() + 1)
    )
    return pl.concat(
        [
            whole,
            iterations.select(pl.col("label").alias("region"), "iteration", "begin", "end").cast(
                SCHEMA
            ),
        ]
    )
