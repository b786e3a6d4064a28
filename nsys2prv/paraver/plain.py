"""Text of lines by polars, for installations without the compiled writer: the same bytes, much
slower.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from nsys2prv.paraver.lines import Batch, Choice, Text

#: Lines made at a time.
WINDOW = 131_072


def texts(batches: Sequence[Batch], owner: np.ndarray, order: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the text of the lines of all batches in this order, in pieces (uint8). owner: the batch
    of each line, in the batches' order.
    """
    starts = np.cumsum([0] + [len(batch.times) for batch in batches])
    for first in range(0, len(order), WINDOW):
        lines = order[first : first + WINDOW]
        owners = owner[lines]
        places = [np.flatnonzero(owners == number) for number in range(len(batches))]
        made = [
            _format(batch, lines[mine] - start)
            for batch, mine, start in zip(batches, places, starts, strict=False)
            if len(mine)
        ]
        text = pl.concat(made).gather(np.argsort(np.concatenate(places)))
        yield np.frombuffer("".join(text).encode("latin-1"), np.uint8)


def _format(batch: Batch, rows: np.ndarray) -> pl.Series:
    """The lines of these rows of a batch. Bytes are taken as Latin-1, so that any come back as they
    were.
    """
    columns = iter(batch.columns)
    pieces: list[pl.Expr | pl.Series] = [pl.repeat("", len(rows))]
    for piece in batch.shape.pieces:
        if isinstance(piece, Text):
            pieces.append(pl.lit(piece.text.decode("latin-1")))
            continue
        values = next(columns)[rows].astype(np.uint64)
        if isinstance(piece, Choice):
            pieces.append(
                pl.Series([text.decode("latin-1") for text in piece.texts]).gather(values)
            )
        else:
            pieces.append(pl.Series(values).cast(pl.String))
    return pl.select(pl.concat_str(pieces)).to_series()
