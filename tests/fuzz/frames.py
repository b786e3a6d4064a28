"""Mutations of a frame's columns."""

from __future__ import annotations

from random import Random

import polars as pl

from . import values

TYPES = (
    pl.Int8,
    pl.Int16,
    pl.Int32,
    pl.UInt8,
    pl.UInt32,
    pl.UInt64,
    pl.Float32,
    pl.Float64,
    pl.String,
    pl.Binary,
    pl.Boolean,
    pl.Date,
    pl.Datetime,
    pl.Duration,
    pl.Categorical,
    pl.Decimal,
    pl.Null,
    pl.List(pl.Int64),
    pl.Array(pl.Int64, 2),
    pl.Struct({"a": pl.Int64}),
)
OF_PLACE = ("start", "end", "timestamp", "time", "value", "id", "bytes", "object", "size")


def change_frame(random: Random, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with something else in one of its columns, or with other columns or rows;
    raises what polars does.
    """
    if not frame.width:
        return pl.DataFrame({"x": [1]})
    likely = [name for name in frame.columns if any(word in name.lower() for word in OF_PLACE)]
    name = random.choice(likely if likely and random.random() < 0.6 else frame.columns)
    column, rows = frame[name], frame.height
    choice = random.randrange(9)
    if choice == 0:
        return frame.drop(name)
    if choice == 1:
        return frame.rename({name: random.choice(("x", "START", f" {name}", name + "\0"))})
    if choice == 2:
        return frame.with_columns(_cast(random, column))
    if choice == 3:
        return frame.slice(0, random.randrange(rows + 1))
    if choice == 4:
        return pl.concat([frame, frame.head(random.randrange(5))])
    if choice == 5:
        return (
            frame.reverse()
            if random.random() < 0.5
            else frame.with_columns(column.shuffle(random.randrange(99)))
        )
    if choice == 6:
        return frame.select(random.sample(frame.columns, len(frame.columns)))
    some = [random.random() < random.choice((0.05, 1.0)) for _ in range(rows)]
    if column.dtype.is_integer():
        low, high = (0, 2**64 - 1) if column.dtype.is_unsigned_integer() else (-(2**63), 2**63 - 1)
        value = min(max(values.draw_integer(random), low), high)
        return frame.with_columns(
            pl.Series(
                name,
                [value if hit else old for hit, old in zip(some, column, strict=True)],
                column.dtype,
                strict=False,
            )
        )
    return frame.with_columns(
        pl.Series(
            name,
            [None if hit else old for hit, old in zip(some, column, strict=True)],
            column.dtype,
        )
    )


def _cast(random: Random, column: pl.Series) -> pl.Series:
    kind = random.choice(TYPES)
    try:
        return column.cast(kind, strict=False)
    except Exception:
        return pl.Series(column.name, [None] * len(column), kind)
