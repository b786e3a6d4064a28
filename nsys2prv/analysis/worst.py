"""Tables with a row for each rank, device or host, where there are many: the minimum, the mean and the
maximum of all, then the worst.
"""

from __future__ import annotations

import polars as pl

#: What tells which rank or device is the worst, and whether the highest value is. Of a table's
#: columns the first of these counts.
WORST = {
    "parallel_efficiency": False,
    "idle_share": True,
    "exposed_share_of_elapsed": True,
    "others_waited_ns": True,
    "total_late_ns": True,
    "median_ns": True,
    "outside_mpi_share": False,
    "mean_in_flight": False,
    "tensor_core_share": False,
}
PLACES = ("rank", "device", "node")
#: A row for all devices together, which is none of them.
ALL = "all"
#: More ranks or devices than these are many, and so many of the worst are shown at least.
MANY, LEAST_SHOWN = 8, 3


def worst_first(frame: pl.DataFrame, rows: int) -> tuple[pl.DataFrame, int]:
    """The rows to print of a table, and how many ranks or devices are left out: three rows of all,
    then the worst, together `rows` or a few more. Where ranks or devices are not many, or do not have
    a row each, the table is given back as it is, and nothing is left out.
    """
    place = next((name for name in PLACES if name in frame.columns), None)
    by = next((name for name in WORST if name in frame.columns), None)
    if (
        place is None
        or by is None
        or frame.height <= max(rows, MANY)
        or frame[place].is_duplicated().any()
    ):
        return frame, 0
    of_each = frame.with_columns(pl.col(place).cast(pl.String)).filter(pl.col(place) != ALL)
    numbers = [name for name, kind in frame.schema.items() if kind.is_numeric()]
    parts = []
    for label, of in (("min", "min"), ("mean", "mean"), ("max", "max")):
        values = of_each.select(
            getattr(pl.col(name), of)().round().cast(kind)
            if kind.is_integer()
            else getattr(pl.col(name), of)()
            for name, kind in ((name, frame.schema[name]) for name in numbers)
        )
        parts.append(values.with_columns(pl.lit(f"{label} of {of_each.height:,}").alias(place)))
    worst = of_each.sort(by, descending=WORST[by], nulls_last=True, maintain_order=True)
    shown = worst.head(max(rows - len(parts), LEAST_SHOWN))
    return (
        pl.concat([*parts, shown], how="diagonal").select(frame.columns),
        of_each.height - shown.height,
    )
