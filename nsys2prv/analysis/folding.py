"""Names of NVTX ranges brought together, so that one operation is one line of a table."""

from __future__ import annotations

import numpy as np
import polars as pl

#: What frameworks append to an operation's name (PyTorch's emit_nvtx): from the first of these on it is not its name.
TAIL = r",\s*(?:op_id|seq|sizes|input_op_ids|stashed seq|fwd_op_id)\b.*$"
NUMBER = r"\d+"
#: Names that differ in their numbers alone stay apart up to so many of them: layers do, steps of a long run do not.
MOST_APART = 64


def group_table(names: pl.DataFrame) -> np.ndarray:
    """The group of each value (int32, -1 for values that are no name's), of what :func:`folded` gives."""
    values = names["value"].to_numpy()
    table = np.full(int(values.max(initial=-1)) + 1, -1, np.int32)
    table[values] = names["group"].to_numpy()
    return table


def folded(labels: pl.DataFrame) -> pl.DataFrame:
    """`value` of every name -> `group`, a number from 0, and `operation`, the group's name. labels: value and label."""
    names = labels.with_columns(base=pl.col("label").str.replace(TAIL, ""))
    names = names.with_columns(pattern=pl.col("base").str.replace_all(NUMBER, "*"))
    many = names.group_by("pattern", maintain_order=True).agg(apart=pl.col("base").n_unique() <= MOST_APART)
    names = names.join(many, on="pattern", how="left", maintain_order="left")
    names = names.with_columns(operation=pl.when("apart").then("base").otherwise("pattern"))
    return names.select("value", (pl.col("operation").rank("dense").cast(pl.Int32) - 1).alias("group"), "operation")
