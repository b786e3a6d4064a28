"""Show figures of very many rows by their mean and the rows that differ most from it."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from nsys2prv.analysis.page.parts import Block, HeatMap, Stacked

#: Rows that are shown one by one; of more, so many that differ most.
MOST_SHOWN, MOST_WORST = 40, 24


def condensed(block: Block) -> Block:
    """Return a figure of few rows: the figure itself, or the mean of its rows (of a heat map the
    maximum and the minimum too) and the rows that are farthest from it, farthest first.
    """
    if not isinstance(block, HeatMap | Stacked) or len(block.labels) <= MOST_SHOWN:
        return block
    count = len(block.labels)
    said = (
        f"The mean of {count:,} rows, then the {MOST_WORST} rows that differ most from it; "
        "the table has all."
    )
    note = f"{block.note} {said}".strip()
    if isinstance(block, Stacked):
        values = np.stack([part for _, part in block.parts.values()])
        order = _farthest(values.T)
        parts = {
            name: (colour, np.append(part.mean(), part[order]))
            for name, (colour, part) in block.parts.items()
        }
        labels = [f"mean of {count:,}", *(block.labels[at] for at in order)]
        return replace(block, labels=labels, parts=parts, note=note)
    order = _farthest(block.values)
    known = ~np.isnan(block.values)
    counts = known.sum(axis=0)
    sums = np.where(known, block.values, 0).sum(axis=0)
    first = [
        np.where(counts, np.where(known, block.values, -np.inf).max(axis=0), np.nan),
        np.where(counts, sums / np.maximum(counts, 1), np.nan),
        np.where(counts, np.where(known, block.values, np.inf).min(axis=0), np.nan),
    ]
    labels = [f"{what} of {count:,}" for what in ("max", "mean", "min")]
    return replace(
        block,
        labels=[*labels, *(block.labels[at] for at in order)],
        values=np.concatenate([first, block.values[order]]),
        note=note.replace("The mean", "The maximum, the mean and the minimum"),
    )


def _farthest(values: np.ndarray) -> list[int]:
    """Return the rows that are farthest from the mean row, the farthest first. values: (rows,
    columns), NaN for unknown.
    """
    known = ~np.isnan(values)
    filled = np.where(known, values, 0)
    middle = filled.sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    distance = np.where(known, np.abs(filled - middle), 0).sum(axis=1)
    return np.argsort(-distance, kind="stable")[:MOST_WORST].tolist()
