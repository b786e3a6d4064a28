"""Sum OpenACC constructs by source line: count, host time, and moved data."""

from __future__ import annotations

import polars as pl

from nsys2prv._util.columns import COUNT, DURATION
from nsys2prv._util.intervals import find_parents, order_ranges, take_off_inner
from nsys2prv.figures.device_group import Collected, DeviceGroup, Frames, label_values
from nsys2prv.figures.result import Context, Result

LAYOUTS = ("openacc_other", "openacc_data", "openacc_launch")
#: Columns that identify constructs; missing numbers and names are ABSENT.
_KEYS = ("construct", "source", "function", "line")
#: Further names of a construct.
_NAMES = {"openacc_data": "variable", "openacc_launch": "kernel"}


def collect(unit: DeviceGroup) -> Collected:
    """Yield sums of OpenACC constructs (`constructs`) by layout, construct, source, function, line
    and name.
    """
    for layout in filter(unit.has, LAYOUTS):
        name = _NAMES.get(layout)
        fields = [*_KEYS, *filter(None, (name, "bytes" if layout == "openacc_data" else None))]
        rows = unit.read_begins(layout, fields)
        rows = rows[order_ranges(*(rows[one].to_numpy() for one in ("begin", "end", "thread")))]
        thread, begin, end = (rows[one].to_numpy() for one in ("thread", "begin", "end"))
        parent = find_parents(thread, begin, end)[1]
        rows = rows.with_columns(
            unit.list_tasks(rows),
            layout=pl.lit(layout),
            name=pl.col(name) if name else pl.lit(-1, pl.Int64),
            bytes=pl.col("bytes") if "bytes" in fields else pl.lit(-1, pl.Int64),
            exclusive=pl.Series(take_off_inner(end - begin, parent)),
        )
        yield (
            "constructs",
            rows.group_by("layout", *_KEYS, "name", maintain_order=True).agg(
                count=COUNT,
                time_ns=DURATION.sum(),
                exclusive_ns=pl.col("exclusive").sum(),
                bytes=pl.col("bytes").filter(pl.col("bytes") >= 0).sum(),
                sized=(pl.col("bytes") >= 0).sum().cast(pl.Int64),
            ),
        )


def conclude(frames: Frames, context: Context, result: Result) -> None:
    """Add a table of OpenACC constructs by source line, the longest first, to the result."""
    rows = (
        frames["constructs"]
        .group_by("layout", *_KEYS, "name", maintain_order=True)
        .agg(pl.col("count", "time_ns", "exclusive_ns", "bytes", "sized").sum())
    )
    rows = rows.with_columns(
        label_values("construct", "openacc_construct", "unknown"),
        *(_name(context, one, f"openacc_{one}") for one in ("source", "function")),
        name=pl.coalesce(
            *(_name(context, "name", f"openacc_{one}", layout) for layout, one in _NAMES.items())
        ),
        line=pl.when(pl.col("line") > 0).then("line"),
        bytes=pl.when(pl.col("sized") > 0).then("bytes"),
    )
    shown = (
        "construct",
        "source",
        "function",
        "line",
        "name",
        "count",
        "time_ns",
        "exclusive_ns",
        "bytes",
    )
    result.add(
        "constructs", rows.sort("time_ns", descending=True, maintain_order=True).select(shown)
    )


def _name(context: Context, column: str, names: str, layout: str = "") -> pl.Expr:
    """Return an expression for the labels of values in a name set, or null. layout: only for rows
    of this layout.
    """
    labels = context.labels.get(names)
    known = {} if labels is None else dict(labels.select("value", "label").rows())
    label = pl.col(column).replace_strict(known, default=None, return_dtype=pl.String)
    return (pl.when(pl.col("layout") == layout).then(label) if layout else label).alias(column)
