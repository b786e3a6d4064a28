"""Store the ranges of a layout as columns in a file, sorted by start, longer ranges first. Keep an
index in memory to find the ranges that end in a time window with little reading.

The columns are `begin`, `end` (local ns; OPEN if the report does not close a range), `row` (index
of an object), and, if a layout or its ranges have them: `domain`; CALLERS; `order` (of ranges with
the same start, the one with the larger value is the outer one); `origin` (for merged ranges, the
original piece); and the fields of the layout. A field is null if a range does not have it, or if it
is unknown; it is then stored as 0.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nsys2prv._util.columns import ABSENT, OPEN, Bounds, find_all_bounds
from nsys2prv._util.stored_columns import FrameWriter, Packed, StoredColumn
from nsys2prv.events.catalogue import CALLERS, Field, Layout

#: The greatest number that is stored in 32 bits.
GREATEST_NARROW = (1 << 32) - 1
#: An end is late if this many rows start before it.
LATE_ROWS = 1024
#: Columns of times, and of indices that every range has if one has them.
TIME_COLUMNS = ("begin", "end", "order")
INDEX_COLUMNS = ("row", "domain", CALLERS, "origin")


class RangeIndex(Packed, frozen=True):
    """Index of the stored ranges of one layout by their ends, so that a window finds the ranges
    that end in it.
    """

    #: Bits of the fields that are written of all ranges, and of the fields that are written of some.
    always: int
    some: int
    #: For each block: first and last end that is neither OPEN nor late (local ns; 2, blocks).
    ends: np.ndarray
    #: Which blocks have ends that are OPEN.
    opened: np.ndarray
    #: Late ends, ascending, and the block of each (2, late ends).
    late: np.ndarray
    #: Of states: when objects cease to have one (OPEN: with the trace), and these objects (2, objects).
    closings: np.ndarray

    @property
    def is_open(self) -> bool:
        """Return True if a range lasts to the end of the trace."""
        return bool(self.opened.any() or (self.closings[0] == OPEN).any())


def skips_zero(layout: Layout, bit: int, field: Field) -> bool:
    """Return True if 0 is not written in a field, because numbers are 0 between consecutive ranges
    anyway.
    """
    follows = not (layout.nests or layout.is_state)
    return bool(bit) and follows and field.values is None and not field.optional


def mask_fitting(field: Field, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return in which ranges another field has a value with which the field is written
    (:attr:`Field.only_with`).
    """
    other, values = field.only_with or ("", ())
    return np.isin(columns[other], values)


def write_ranges(
    writer: FrameWriter,
    layout: Layout,
    columns: Mapping[str, np.ndarray],
    mask: int,
    block_rows: int,
    closings: np.ndarray | None = None,
) -> tuple[dict[str, StoredColumn], RangeIndex, dict[str, Bounds]]:
    """Append ranges to a file. Return the stored columns by name, the index of the ranges, and the
    bounds of each column.

    columns: int64, sorted by (begin, -end), ABSENT for missing or unknown fields. mask: bits of the
    fields to keep. block_rows: rows per block. closings: for states, when objects cease to have one
    (OPEN: with the trace), and these objects, shape (2, objects); None if unknown.
    """
    write, stored, always, some = writer.write_column, {}, 0, 0
    bounds = find_all_bounds(columns)
    kept = [field for bit, field in enumerate(layout.fields) if mask >> bit & 1]
    deciding = {field.only_with[0] for field in kept if field.only_with}
    for name in TIME_COLUMNS:
        if name in columns:
            stored[name] = write(columns[name])
    for name in INDEX_COLUMNS:
        if name in columns:
            stored[name] = write(columns[name].astype(np.uint32))
    if CALLERS in columns:
        always |= mask & layout.callers_mask
    for bit, field in enumerate(layout.fields):
        if not mask >> bit & 1 and field.name not in deciding:
            continue
        if field.level or field.name not in columns:
            continue
        column = columns[field.name]
        least, greatest = bounds[field.name]
        if field.optional and greatest == ABSENT:
            continue
        values, valid = column, None
        if least < 0:
            # Paraver's tools do not know negative numbers.
            values = np.maximum(column, 0)
            if field.optional or field.values is None:
                valid = column != ABSENT if field.optional else column >= 0
        if greatest <= GREATEST_NARROW:
            values = values.astype(np.uint32)
        stored[field.name] = write(values, valid)
        least_written = 1 if skips_zero(layout, bit, field) else 0 if field.optional else least
        if field.only_with:
            fits = mask_fitting(field, columns)
            least, greatest, least_written = int(fits.min()), int(fits.max()), 1
        always |= (least >= least_written) << bit
        some |= (least < least_written <= greatest) << bit
    if closings is None:
        objects = np.unique(columns["row"]) if layout.is_state else ()
        closings = np.full((2, len(objects)), OPEN)
        closings[1] = objects
    ends = index_ends(columns["begin"], columns["end"], block_rows, bounds["end"])
    return stored, RangeIndex(always, some, *ends, closings), bounds


def index_ends(
    begin: np.ndarray, end: np.ndarray, block_rows: int, of_ends: Bounds
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return three parts of a :class:`RangeIndex`: `ends`, `opened` and `late`. begin, end: of the
    ranges (ns). of_ends: bounds of the ends.
    """
    if len(begin) <= min(block_rows, LATE_ROWS) and of_ends[1] != OPEN:
        # As of most runs of small reports.
        return np.array(of_ends)[:, None], np.zeros(1, bool), np.zeros((2, 0), np.int64)
    starts = np.arange(0, len(begin), block_rows)
    is_open = end == OPEN
    has_open = bool(is_open.any())
    opened = np.logical_or.reduceat(is_open, starts) if has_open else np.zeros(len(starts), bool)
    known = np.where(is_open, begin, end) if has_open else end
    late = np.zeros(0, np.int64)
    if len(begin) > LATE_ROWS:
        late = np.flatnonzero(end[:-LATE_ROWS] > begin[LATE_ROWS:])
    if len(late):
        known = known.copy()
        known[late] = begin[late] + 1
        late = late[~is_open[late]]
        late = late[np.argsort(end[late], kind="stable")]
    bounds = np.stack([ufunc.reduceat(known, starts) for ufunc in (np.minimum, np.maximum)])
    return bounds, opened, np.stack([end[late], late // block_rows])


def find_blocks_of_ends(index: RangeIndex, first: int, last: int | None) -> np.ndarray:
    """Return a mask of the blocks that contain all ranges with first <= end < last (local ns; None:
    no limit). Other blocks may be included.
    """
    found = index.ends[1] >= first
    if last is None:
        found |= index.opened
    else:
        found &= index.ends[0] < last
    low, high = index.late[0].searchsorted([first, OPEN if last is None else last])
    found[index.late[1][low:high]] = True
    return found
