"""Process columns of integers: absent and open values, distinct values, slices, and bimodal
durations.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, TypeVar

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import astuple

from nsys2prv._util.budget import LEAST_NAME
from nsys2prv._util.native import core

AnyTable = TypeVar("AnyTable", bound="Table")
T = TypeVar("T", bound=Hashable)
#: Stands for "this row lacks the attribute" in columns of the normal form; Paraver values are never
#: negative.
ABSENT = -1
#: The end of a range that its report does not close; the writer closes it at the end of the trace.
OPEN = np.iinfo(np.int64).max
#: Up to this many numbers, the compiled core is faster than numpy.
FEW_NUMBERS = 2048
_INT64 = np.dtype(np.int64)
#: Minimum and maximum of a column.
Bounds = tuple[int, int]
#: How long rows of frames last (from `begin` to `end`), and their number (int64).
DURATION = pl.col("end") - pl.col("begin")
COUNT = pl.len().cast(pl.Int64)


def find_bounds(values: np.ndarray) -> Bounds:
    """Return the minimum and maximum of numbers (int64). Without numbers, return the largest and
    the smallest int64.
    """
    # Of many numbers, numpy compares several at a time.
    if core is not None and len(values) <= FEW_NUMBERS:
        return core.find_bounds(values)
    if not len(values):
        return OPEN, -OPEN - 1
    return int(values.min()), int(values.max())


def find_all_bounds(columns: Mapping[str, np.ndarray]) -> dict[str, Bounds]:
    """Return :func:`find_bounds` of each column of equal length, by name."""
    is_few = core is not None and len(next(iter(columns.values()))) <= FEW_NUMBERS
    found = map(core.find_bounds if is_few else find_bounds, columns.values())
    return dict(zip(columns, found, strict=True))


def blank_negative(column: np.ndarray) -> np.ndarray:
    """Return the column with ABSENT for NULL and negative values."""
    return column if find_bounds(column)[0] >= 0 else np.where(column < 0, ABSENT, column)


def blank_nonpositive(column: np.ndarray) -> np.ndarray:
    """Return the column with ABSENT for NULL, negative values and 0."""
    return column if find_bounds(column)[0] > 0 else np.where(column <= 0, ABSENT, column)


def fill_with_zero(column: np.ndarray) -> np.ndarray:
    """Return the column with 0 for NULL and negative values. In most records, the number 0 is not
    written.
    """
    return column if find_bounds(column)[0] >= 0 else np.maximum(column, 0)


def fill_nulls(column: pl.Series, value: float | bytes) -> pl.Series:
    """Replace nulls in a column by a value. Most columns have no nulls, so this is checked first."""
    return column.fill_null(value) if column.null_count() else column


def factorize(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted distinct keys, and for each row the index of its key."""
    (distinct,), codes = factorize_together(keys)
    return distinct, codes


def factorize_together(*columns: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the sorted distinct combinations of several integer columns (as columns), and for each
    row the index of its combination.
    """
    first, codes = _number_rows(columns, True)
    return [column[first] for column in columns], codes


def number_rows(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number the distinct combinations of several integer columns, sorted by combination. Return
    the first row of each, and for each row the number of its combination.
    """
    return _number_rows(columns, True)


def number_as_met(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number the distinct combinations of several integer columns, as :func:`number_rows` does, but
    in the order of their first rows.
    """
    return _number_rows(columns, False)


def _number_rows(columns: Sequence[np.ndarray], ascend: bool) -> tuple[np.ndarray, np.ndarray]:
    """Number combinations. ascend: sort by value; otherwise by first row."""
    # Most are such, and need not be asked of numpy.
    wide = tuple([one if one.dtype is _INT64 else np.asarray(one, np.int64) for one in columns])
    if core is not None:
        codes = np.empty(len(wide[0]), np.int64)
        return np.frombuffer(core.number_distinct(wide, codes, ascend), np.int64), codes
    first, codes = _number_by_numpy(wide)
    if ascend:
        return first, codes
    order = np.argsort(first)
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    return first[order], ranks[codes]


def sum_by(keys: Mapping[str, np.ndarray], **values: np.ndarray) -> dict[str, np.ndarray]:
    """Sum value columns over rows with the same combination of keys. Return the key columns (one
    row for each combination, in the order of their first rows) and the sums (int64). For few rows,
    this is much faster than a polars query.
    """
    first, codes = number_as_met(*keys.values())
    sums = {name: np.zeros(len(first), np.int64) for name in values}
    for name, column in values.items():
        np.add.at(sums[name], codes, column)
    return {name: column[first].astype(np.int64) for name, column in keys.items()} | sums


def _number_by_numpy(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Number combinations with numpy, for installations without the compiled core."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        distinct, further = np.unique(column, return_inverse=True)
        codes = codes * len(distinct) + further.reshape(-1)
        _, codes = np.unique(codes, return_inverse=True)
    _, first = np.unique(codes, return_index=True)
    return first, codes.reshape(-1)


def join_columns(parts: Sequence[Mapping[str, np.ndarray | list[Any]]]) -> pl.DataFrame:
    """Return the rows of all parts as one frame, which is much faster than making a frame for each
    part.

    parts: columns of equal length. A list contains texts, or no values at all. A column that a part
    lacks becomes null.
    """
    names = dict.fromkeys(chain.from_iterable(parts))
    made: dict[str, pl.Series] = {}
    heights = [len(next(iter(part.values()))) for part in parts]
    for name in names:
        pieces = [part.get(name) for part in parts]
        if all(isinstance(piece, np.ndarray) for piece in pieces):
            made[name] = pl.Series(name, np.concatenate(pieces))
            continue
        filled = zip(pieces, heights, strict=True)
        values = [
            *chain.from_iterable([None] * size if one is None else one for one, size in filled)
        ]
        is_told = any(value is not None for value in values)
        made[name] = pl.Series(name, values, None if is_told else pl.String)
    return pl.DataFrame(made)


def take_rows(columns: Mapping[str, np.ndarray], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
    """Return some rows of columns. rows: a mask, indices, or a slice."""
    return {name: column[rows] for name, column in columns.items()}


def find_places(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the index of each wanted number in `known` (sorted), or ABSENT."""
    if not len(known):
        return np.full(len(wanted), ABSENT)
    places = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[places] == wanted, places, ABSENT)


def count_occurrences(codes: np.ndarray) -> np.ndarray:
    """Return for each row how many earlier rows have the same code. codes: indices, as from
    :func:`factorize`.
    """
    counts = np.bincount(codes)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    place = np.empty(len(codes), np.int64)
    place[np.argsort(codes, kind="stable")] = np.arange(len(codes)) - first
    return place


def reduce_slices(
    values: np.ndarray, first: np.ndarray, last: np.ndarray, ufunc: np.ufunc
) -> np.ndarray:
    """Apply ``ufunc`` (minimum or maximum) to each ``values[first:last]``; no slice may be empty.

    This takes O(values * log + slices), however the slices overlap: each slice is covered by two
    blocks with a power of two as length, and blocks of each length are made from blocks of half the
    length.
    """
    # The exponent is exact for lengths below 2**53.
    size = np.frexp((last - first).astype(np.float64))[1] - 1
    result = np.empty(len(first), values.dtype)
    blocks = values
    for power in range(int(size.max(initial=-1)) + 1):
        chosen = np.flatnonzero(size == power)
        result[chosen] = ufunc(blocks[first[chosen]], blocks[last[chosen] - (1 << power)])
        blocks = ufunc(blocks[: -(1 << power)], blocks[1 << power :])
    return result


def mask_changes(*columns: np.ndarray) -> np.ndarray:
    """Return a mask of the first row, and of rows that differ from the row before in any column."""
    changes = np.zeros(len(columns[0]), bool)
    changes[:1] = True
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return changes


def find_edges(column: np.ndarray) -> np.ndarray:
    """Return the index of the start of each run of equal values, followed by the end of the last
    run.
    """
    return np.append(np.flatnonzero(mask_changes(column)), len(column))


def sum_changes(time: np.ndarray, change: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Add up changes over time. Return two arrays: the sorted distinct times, and the sum of all
    changes up to each of them.
    """
    order = np.argsort(time, kind="stable")
    time, total = time[order], np.cumsum(change[order])
    last = np.append(time[1:] != time[:-1], True)[: len(time)]
    return time[last], total[last]


def number_linked(sets: Iterable[Iterable[Hashable]]) -> list[int]:
    """Number sets so that sets with a common member, directly or through other sets, get the same
    number. Return the number of each set, from 0, in order of the sets.
    """
    leaders: dict[Hashable, Hashable] = {}

    def find_leader(member: Hashable) -> Hashable:
        leaders.setdefault(member, member)
        while leaders[member] != member:
            leaders[member] = leaders[leaders[member]]
            member = leaders[member]
        return member

    firsts = []
    for first, *others in sets:
        firsts.append(first)
        for other in others:
            leaders[find_leader(other)] = find_leader(first)
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(find_leader(first), len(numbers)) for first in firsts]


def join_linked(sets: Sequence[Collection[T]]) -> list[set[T]]:
    """Merge the sets that have a common member, directly or through other sets."""
    joined: dict[int, set[T]] = {}
    for number, members in zip(number_linked(sets), sets, strict=True):
        joined.setdefault(number, set()).update(members)
    return [*joined.values()]


def is_sorted(values: np.ndarray, strictly: bool = False) -> bool:
    """Return True if the values (int64) never decrease; with `strictly`, if they always increase."""
    before, after = values[:-1], values[1:]
    return bool((after > before).all() if strictly else (after >= before).all())


class Table(Struct, frozen=True):
    """Base class for several arrays of equal length, as columns."""

    def __len__(self) -> int:
        return len(getattr(self, self.__struct_fields__[0]))

    def __getitem__(self: AnyTable, rows: slice | np.ndarray) -> AnyTable:
        return type(self)(*(column[rows] for column in astuple(self)))

    @classmethod
    def concat(cls: type[AnyTable], parts: Sequence[AnyTable]) -> AnyTable:
        """Return the rows of all parts, one after the other."""
        return cls(*map(np.concatenate, zip(*map(astuple, parts), strict=True)))

    @classmethod
    def make_empty(cls: type[AnyTable]) -> AnyTable:
        """Return a table without rows. All columns are int64."""
        return cls(*(np.empty(0, np.int64) for _ in cls.__struct_fields__))


def join_pieces(pieces: Sequence[Sequence[str] | pl.Series | np.ndarray]) -> Any:
    """Concatenate pieces of a column: arrays, series or lists of texts."""
    if len(pieces) == 1:
        return pieces[0]
    if all(isinstance(piece, np.ndarray) for piece in pieces):
        return np.concatenate(pieces)
    if all(isinstance(piece, list) for piece in pieces):
        return list(chain.from_iterable(pieces))
    series = (
        pl.Series(piece, dtype=pl.String if isinstance(piece, list) else None) for piece in pieces
    )
    return pl.concat(series)


def group_rows(keys: np.ndarray) -> list[tuple[int, np.ndarray | slice]]:
    """Return (key, its rows) for each distinct key."""
    distinct, codes = factorize(keys)
    if len(distinct) == 1:
        return [(int(distinct[0]), slice(None))]
    order = np.argsort(codes, kind="stable")
    return list(zip(distinct.tolist(), split_rows(order, np.bincount(codes).tolist()), strict=True))


def split_rows(column: np.ndarray, counts: Sequence[int]) -> list[np.ndarray]:
    """Divide a column into consecutive pieces of these lengths, faster than numpy does."""
    ends = [*accumulate(counts)]
    return [column[end - size : end] for end, size in zip(ends, counts, strict=True)]


#: Two modes are reported if a division in two (Otsu's method on the logarithms) leaves at least
#: this share of all executions on each side, ...
LEAST_SHARE = 0.05
#: ... this number of them, ...
LEAST_COUNT = 10
#: ... the means of the durations differ by this factor at least, ...
LEAST_FACTOR = 1.2
#: ... and Ashman's D, sqrt(2) |m1 - m2| / sqrt(s1^2 + s2^2) of the logarithms, is at least this
#: (one uniform mode has 3.5, a normal 2.7).
LEAST_D = 4.0
RULE = (
    f"bimodal: logarithms of durations, split in two (Otsu), have at least {LEAST_SHARE:.0%} and {LEAST_COUNT} executions on "
    f"either side, means that differ by a factor of {LEAST_FACTOR} or more, and an Ashman's D of at least {LEAST_D:g}"
)

#: Result of :func:`find_modes` for durations without two modes.
NO_MODES = False, None, None, None


def find_modes(durations: np.ndarray) -> tuple[bool, float | None, float | None, float | None]:
    """Find out whether durations are bimodal by RULE. Return (True, mean of the lower group, mean
    of the higher group, share of executions in the higher group), or (False, None, None, None).
    """
    count = len(durations)
    least = max(LEAST_COUNT, int(np.ceil(LEAST_SHARE * count)))
    if count < 2 * least or durations.min() == durations.max():
        return NO_MODES
    ordered = np.sort(durations)
    logs = np.log(ordered)
    sums = np.cumsum(logs)
    lower = np.arange(1, count)
    means = sums[:-1] / lower, (sums[-1] - sums[:-1]) / (count - lower)
    between = lower * (count - lower) * (means[1] - means[0]) ** 2
    # Equal durations stay on one side.
    between[ordered[1:] == ordered[:-1]] = -1
    cut = int(np.argmax(between)) + 1
    low, high = logs[:cut], logs[cut:]
    spread = np.sqrt(low.var() + high.var())
    apart = spread == 0 or np.sqrt(2) * (high.mean() - low.mean()) / spread >= LEAST_D
    means_ns = float(ordered[:cut].mean()), float(ordered[cut:].mean())
    if min(cut, count - cut) < least or not apart or means_ns[1] < LEAST_FACTOR * means_ns[0]:
        return NO_MODES
    return True, *means_ns, (count - cut) / count


def measure_texts(texts: Sequence[str] | pl.Series) -> int:
    """Return the number of characters in texts; for a column, the number of bytes."""
    if isinstance(texts, pl.Series):
        return texts.cast(pl.Binary).bin.size().sum()
    return sum(map(len, texts))


def cut_texts(texts: Sequence[str] | pl.Series, allowed: int) -> Sequence[str] | pl.Series:
    """Limit the total size of texts: if it exceeds `allowed` bytes, each text is cut to an equal
    share.
    """
    if measure_texts(texts) <= max(allowed, 0):
        return texts
    longest = max(LEAST_NAME, allowed // len(texts))
    if not isinstance(texts, pl.Series):
        return [text if len(text) <= longest else f"{text[:longest]}..." for text in texts]
    is_long = texts.str.len_chars() > longest
    return texts.str.slice(0, longest) + is_long.replace_strict(
        {True: "...", False: ""}, return_dtype=pl.String
    )


def join_first(
    rows: pl.DataFrame,
    others: pl.DataFrame,
    left_on: Sequence[str],
    right_on: Sequence[str] = (),
    suffix: str = "_right",
) -> pl.DataFrame:
    """Add to rows the columns of the first row in `others` with the same key. Rows without a match
    are dropped, as in an inner join, but no rows are added. left_on, right_on: key columns of both.
    suffix: for other columns that both have.

    Events of a thread normally have different starts. With damaged data, an ordinary join could
    return the product of all rows.
    """
    right_on = right_on or left_on
    first = others.unique(right_on, keep="first", maintain_order=True)
    return rows.join(first, left_on=left_on, right_on=right_on, suffix=suffix)
