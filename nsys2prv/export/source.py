"""Represent parts of tables in an export, and rows as columns of numbers and texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import fill_nulls, find_bounds, mask_changes, take_rows
from nsys2prv._util.native import core

#: Stands for NULL in columns of integers.
NULL = np.iinfo(np.int64).min
#: Times (ns) beyond this, in either direction, are damaged, and would overflow sums.
TIME_LIMIT = 1 << 61
#: Maximum number of texts that count as few.
FEW_TEXTS = 1000
#: Maximum number of templates that are useful; more only with this many texts per template.
FEW_TEMPLATES, TEXTS_PER_TEMPLATE = 1000, 4
#: If fewer than one in this many rows of a part is wanted, rows are read individually.
FEW_ROWS = 20


def mask_usable(times: np.ndarray) -> np.ndarray:
    """Return a mask (bool) of the times that fit a trace: neither NULL nor beyond TIME_LIMIT."""
    # Do not use the absolute value, which overflows for NULL.
    return (times > -TIME_LIMIT) & (times < TIME_LIMIT)


def are_all_usable(times: np.ndarray) -> bool:
    """Return True if there are times and all of them fit a trace. Only the minimum and maximum are
    checked.
    """
    least, greatest = find_bounds(times)
    return -TIME_LIMIT < least <= greatest < TIME_LIMIT


def zero_nulls(column: np.ndarray) -> np.ndarray:
    """Return the column with 0 for NULL."""
    return column if find_bounds(column)[0] > NULL else np.where(column == NULL, 0, column)


#: Texts; a list if there are few, because this is faster then.
Texts = list[str] | pl.Series


def mask_empty(texts: Texts) -> np.ndarray:
    """Return a mask (bool) of the empty texts."""
    if isinstance(texts, list):
        return np.array([not text for text in texts], bool)
    return (texts == "").to_numpy()


def gather_texts(texts: Texts, places: np.ndarray, instead: str) -> Texts:
    """Return the texts with these indices, with `instead` for empty ones."""
    if isinstance(texts, list):
        return [texts[place] or instead for place in places.tolist()]
    texts = texts.gather(places)
    is_empty = texts == ""
    return texts.set(is_empty, instead) if is_empty.any() else texts


class Templates(Struct, frozen=True):
    """Groups of texts that differ only in numbers (templates): the group of each text, and the
    first text of each group.
    """

    #: Template of each text (int64).
    codes: np.ndarray
    #: The first text of each template (bytes).
    firsts: pl.Series


#: Bytes of a column's texts that are joined to number them. Rows can share a text, so a column can have far more.
LARGEST_TEXTS = 1 << 26


class DistinctTexts:
    """The distinct texts of a column.

    Texts read by the compiled core remain there until requested, because converting them to Python
    is slower than reading them.
    """

    def __init__(
        self, series: pl.Series | None = None, read: Any = None, kept: np.ndarray | None = None
    ) -> None:
        """Take a series of bytes, or texts read by the core (`_core.Texts`). kept: indices of the
        texts to use, None for all.
        """
        self._read, self._kept = read, kept
        if series is not None:
            self.__dict__["series"] = series

    @classmethod
    def number(cls, column: pl.Series) -> tuple[np.ndarray, DistinctTexts]:
        """Find the distinct texts of a column. Return the index of each row's text (int64), and
        these texts, which the core has if it is available. A NULL is an empty text.
        """
        if column.null_count() == len(column):
            return np.zeros(len(column), np.int64), NO_TEXTS
        column = column if column.dtype == pl.Binary else column.cast(pl.String)
        column = fill_nulls(column, b"" if column.dtype == pl.Binary else "")
        lengths = column.bin.size() if column.dtype == pl.Binary else column.str.len_bytes()
        if not core or lengths.sum() > LARGEST_TEXTS:
            distinct, codes = number_distinct(column.cast(pl.Binary))
            return codes, cls(distinct)
        is_text = column.dtype == pl.String
        joined = column.str.join().item().encode() if is_text else b"".join(column)
        numbers, texts = np.array(lengths, np.int64), core.Texts()
        texts.add(joined, numbers)
        return numbers, cls(read=texts)

    def __len__(self) -> int:
        if self._read is None:
            return len(self.series)
        return len(self._read) if self._kept is None else len(self._kept)

    @cached_property
    def series(self) -> pl.Series:
        """All texts (bytes)."""
        return self.take(None)

    def take(self, numbers: np.ndarray | None) -> pl.Series:
        """Return the texts with these indices (int64; None for all) as bytes."""
        if self._read is None:
            return self.series if numbers is None else self.series.gather(numbers)
        if self._kept is not None:
            numbers = self._kept if numbers is None else self._kept[numbers]
        texts = self._read.as_list() if numbers is None else self._read.as_list(numbers)
        return pl.Series(texts, dtype=pl.Binary)

    def as_list(self) -> list[bytes]:
        """Return all texts as a list of bytes."""
        if self._read is None:
            return self.series.to_list()
        return self._read.as_list(*self._chosen)

    def decode(self) -> Texts:
        """Return all texts decoded from UTF-8, with replacement characters for invalid bytes."""
        if len(self) > FEW_TEXTS:
            return decode_texts(self.series)
        return [raw.decode("utf-8", "replace") for raw in self.as_list()]

    def select(self, kept: np.ndarray) -> DistinctTexts:
        """Return the texts with these indices."""
        if self._read is None:
            return DistinctTexts(self.series.gather(kept))
        kept = kept if self._kept is None else self._kept[kept]
        return DistinctTexts(read=self._read, kept=kept)

    @cached_property
    def templates(self) -> Templates | None:
        """Templates of the texts; None if there are too many to save time, or if the texts are not
        in the core.
        """
        if self._read is None:
            return None
        count = len(self)
        codes = np.empty(count, np.int64)
        firsts = np.empty(max(FEW_TEMPLATES, count // TEXTS_PER_TEMPLATE), np.int64)
        template_count = self._read.templates(codes, firsts, *self._chosen)
        if template_count < 0:
            return None
        return Templates(
            codes, pl.Series(self._read.as_list(firsts[:template_count]), dtype=pl.Binary)
        )

    @property
    def _chosen(self) -> tuple[np.ndarray, ...]:
        """Arguments of the core that select these texts; empty for all."""
        return () if self._kept is None else (self._kept,)

    def read_numbers(self, places: np.ndarray) -> np.ndarray:
        """Read one number from each text, as int64; -1 if it is missing. The texts must have
        templates (:attr:`templates`).

        places: for each text, the index of the number (0 is the first number), or -1 for none.
        """
        values = places.copy()
        self._read.numbers(values, *self._chosen)
        return values


#: Texts of a column that is not there.
NO_TEXTS = DistinctTexts(pl.Series([b""], dtype=pl.Binary))


class Columns(Struct):
    """Rows of a table, as columns of integers and texts."""

    #: Number of rows.
    rows: int
    #: Name -> int64, :data:`NULL` for NULL.
    integers: dict[str, np.ndarray]
    #: Name -> each row's index into the texts.
    texts: dict[str, tuple[np.ndarray, DistinctTexts]]
    #: For each row, the number of values in integer columns that are not integers; they read as
    #: NULL. None if there are none.
    odd: np.ndarray | None = None

    @property
    def damaged(self) -> int:
        """Number of values in integer columns that are not integers."""
        return 0 if self.odd is None else int(self.odd.sum())

    def __getitem__(self, name: str) -> np.ndarray:
        return self.integers[name]

    def where(self, keep: np.ndarray) -> Columns:
        """Return the rows where the mask `keep` is True, with their texts."""
        if np.count_nonzero(keep) == len(keep):
            return self
        (rows,) = keep.nonzero()
        integers = take_rows(self.integers, rows)
        texts = {
            name: _keep_used(codes[rows], distinct)
            for name, (codes, distinct) in self.texts.items()
        }
        return Columns(len(rows), integers, texts, None if self.odd is None else self.odd[rows])

    def select(self, integers: Iterable[str], texts: Iterable[str]) -> Columns:
        """Return some of the columns."""
        integers = {name: self.integers[name] for name in integers}
        texts = {name: self.texts[name] for name in texts}
        return replace(self, integers=integers, texts=texts)


def _keep_used(codes: np.ndarray, distinct: DistinctTexts) -> tuple[np.ndarray, DistinctTexts]:
    """Return codes and distinct texts without unused texts; codes are renumbered."""
    used = np.zeros(len(distinct), bool)
    used[codes] = True
    if np.count_nonzero(used) == len(used):
        return codes, distinct
    kept, places = np.flatnonzero(used), np.empty(len(used), np.int64)
    places[kept] = np.arange(len(kept))
    return places[codes], distinct.select(kept)


def number_few(values: Sequence[Any]) -> tuple[list[Any], np.ndarray]:
    """Return the distinct values of a short list in order of first occurrence, and the index of
    each value among them (int64).
    """
    numbers: dict[Any, int] = {}
    codes = [numbers.setdefault(value, len(numbers)) for value in values]
    return list(numbers), np.array(codes, np.int64)


def number_distinct(series: pl.Series) -> tuple[pl.Series, np.ndarray]:
    """Find the distinct values of a column, in order of first occurrence. Return them, and the
    index of each row's value (int64).
    """
    if len(series) <= FEW_TEXTS:
        values, codes = number_few(series.to_list())
        return pl.Series(values, dtype=series.dtype), codes
    rows = series.to_frame("value").with_row_index("row")
    first = rows.select(pl.first("row").over("value")).to_series().to_numpy()
    is_first = first == np.arange(len(series))
    return series.filter(pl.Series(is_first)), (np.cumsum(is_first) - 1)[first]


def decode_texts(series: pl.Series) -> pl.Series:
    """Decode bytes as UTF-8, with replacement characters for invalid ones."""
    try:
        return series.cast(pl.String)
    except pl.exceptions.PolarsError:
        texts = [None if raw is None else raw.decode("utf-8", "replace") for raw in series]
        return pl.Series(series.name, texts, dtype=pl.String)


def to_bytes(column: pl.Series) -> pl.Series:
    """Return the values of a column as bytes, with empty texts for NULL."""
    texts = column if column.dtype == pl.Binary else column.cast(pl.String).cast(pl.Binary)
    return fill_nulls(texts, b"")


class Wanted(Struct, frozen=True):
    """The columns to read from a part, and conditions to check for each row."""

    #: Columns by their wanted types; reals: float64, NaN for values that are not numbers.
    integers: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    reals: tuple[str, ...] = ()
    #: Which of these conditions each row meets, as in :meth:`Database.make_condition`.
    conditions: Sequence[str] = ()


def make_columns(rows: int, read: Mapping[str, pl.Series], wanted: Wanted) -> Columns:
    """Convert the columns of `rows` rows, read by polars, to the wanted types. Values in integer
    columns that are not integers may be reals or texts.
    """
    numbers: dict[str, np.ndarray] = {}
    odd = np.zeros(rows, np.int64)
    for name in wanted.integers:
        column = read.get(name)
        if column is not None and column.dtype == pl.Int64:
            numbers[name] = fill_nulls(column, NULL).to_numpy()
        else:
            numbers[name] = np.full(rows, NULL)
            odd += 0 if column is None else column.is_not_null().to_numpy()
    for name in wanted.reals:
        column = read.get(name)
        if column is not None and column.dtype.is_numeric():
            numbers[name] = fill_nulls(column.cast(pl.Float64), np.nan).to_numpy()
        else:
            numbers[name] = np.full(rows, np.nan)
    words = {name: DistinctTexts.number(read[name]) for name in wanted.texts if name in read}
    columns = gather_columns(rows, numbers, words, wanted)
    return columns if not odd.any() else replace(columns, odd=odd)


def gather_columns(
    rows: int,
    numbers: Mapping[str, np.ndarray],
    words: Mapping[str, tuple[np.ndarray, DistinctTexts]],
    wanted: Wanted,
) -> Columns:
    """Return the wanted columns of `rows` rows, without values where they are missing. numbers: integers
    and reals.
    """

    def fill(names: Iterable[str], value: float) -> dict[str, np.ndarray]:
        # Most tables have all columns.
        return {name: numbers[name] if name in numbers else np.full(rows, value) for name in names}

    texts = {
        name: words[name] if name in words else (np.zeros(rows, np.int64), NO_TEXTS)
        for name in wanted.texts
    }
    return Columns(rows, fill(wanted.integers, NULL) | fill(wanted.reals, np.nan), texts)


#: Columns of tables of call stacks, which have a row for each frame.
FRAME_COLUMNS = ("id", "stackDepth", "symbol", "module")
#: Odd numbers by which frames are mixed, as in native/stacks.c.
MIX = (0x14D049BB133111EB, 0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9, 0x2545F4914F6CDD1D)


class StackRows(Struct, frozen=True):
    """Call stacks of a table: for each id, the number of its distinct stack, and the frames of the
    distinct stacks.
    """

    #: Id of each stack, ascending.
    ids: np.ndarray
    #: Number of the distinct stack that it is.
    codes: np.ndarray
    #: For each distinct stack, 64 bits that identify it, as good as random.
    sums: np.ndarray
    #: Of each distinct stack the number of its frames.
    lengths: np.ndarray
    #: Depth, symbol and module of the frames of the distinct stacks, in any order within a stack.
    frames: np.ndarray

    @classmethod
    def from_frames(cls, rows: Columns) -> StackRows:
        """Find the distinct stacks in rows with :data:`FRAME_COLUMNS`, one row per frame. The
        compiled core does the same, faster.
        """
        order = np.argsort(rows["id"], kind="stable")
        ids = rows["id"][order]
        frames = np.stack([rows[name][order] for name in FRAME_COLUMNS[1:]], axis=1)
        first = np.flatnonzero(mask_changes(ids))
        mixed = (frames * np.array(MIX[:3])).sum(axis=1).view(np.uint64)
        mixed ^= mixed >> np.uint64(31)
        sums = np.add.reduceat(mixed.view(np.int64) * MIX[3], first)
        distinct, place, codes = np.unique(sums, return_index=True, return_inverse=True)
        lengths = np.diff(first, append=len(ids))[place]
        begin = np.repeat(first[place] - np.cumsum(lengths) + lengths, lengths)
        chosen = frames[begin + np.arange(len(begin))]
        return cls(ids[first], codes, distinct, lengths, chosen)


class Part(Struct, frozen=True):
    """Consecutive rows of a table, by rowid, including both ends.

    If SQLite has no name for the rowids, or if the rowids are too sparse, rows are numbered from 1
    in the order in which SQLite reads the table.
    """

    #: Name of the table.
    table: str
    #: First rowid.
    first: int = 1
    #: Last rowid (inclusive); less than `first` if there are no rows.
    last: int = 0
    #: Name of the rowid in SQLite; "" if rows are numbered instead.
    rowid: str = "rowid"

    @property
    def rows(self) -> int:
        """Return an upper bound of the number of rows; exact if no row was deleted."""
        return max(0, self.last - self.first + 1)

    @property
    def count(self) -> int:
        """Return the number of rows to read, an upper bound like `rows`."""
        return self.rows

    def split(self, rows: int) -> Iterator[Part]:
        """Divide the part: yield consecutive parts of at most `rows` rows."""
        for first in range(self.first, self.last + 1, rows):
            yield Part(self.table, first, min(first + rows - 1, self.last), self.rowid)


class SomeRows(Part, frozen=True):
    """A part of a table reduced to some of its rows."""

    #: Their rowids, ascending, as bytes of int64.
    chosen: bytes = b""

    @classmethod
    def choose(cls, part: Part, rowids: Sequence[int] | np.ndarray) -> SomeRows:
        """Return the rows of a part with these rowids, which ascend."""
        chosen = np.asarray(rowids, np.int64).tobytes()
        return cls(part.table, part.first, part.last, part.rowid, chosen)

    @property
    def rowids(self) -> np.ndarray:
        """Return the rowids, ascending."""
        return np.frombuffer(self.chosen, np.int64)

    @property
    def count(self) -> int:
        """Return the number of rows."""
        return len(self.rowids)

    def split(self, rows: int) -> Iterator[Part]:
        """Yield this part unchanged, because it is small."""
        yield self

    def find_between(self, first: int, last: int) -> SomeRows | None:
        """Return the rows with rowids from `first` to `last`; None if there are none."""
        rowids = self.rowids
        rowids = rowids[rowids.searchsorted(first) : rowids.searchsorted(last, "right")]
        if not len(rowids):
            return None
        return SomeRows.choose(replace(self, first=int(rowids[0]), last=int(rowids[-1])), rowids)


class Shared(Struct, frozen=True):
    """Rows of a part that were read once for several conditions, without damaged values."""

    #: Where the rows are from.
    part: Part
    #: Columns of all rows.
    rows: Columns
    #: Conditions that each row meets, as bits: 1 is the first.
    met: np.ndarray

    def mask_meeting(self, number: int) -> np.ndarray:
        """Return a mask of the rows that meet the condition with this index."""
        return (self.met & (1 << number)) != 0

    def narrow(self, number: int) -> Part:
        """Return a part for further reading of the rows that meet the condition with this index:
        only these rows if they are few and have known rowids, otherwise the whole part.
        """
        rows = np.flatnonzero(self.mask_meeting(number))
        if len(self.met) != self.part.count:
            return self.part
        if isinstance(self.part, SomeRows):
            return SomeRows.choose(self.part, self.part.rowids[rows])
        if len(rows) * FEW_ROWS > len(self.met):
            return self.part
        return SomeRows.choose(self.part, rows + self.part.first)

    def holds(self, part: Part, integers: tuple[str, ...], texts: tuple[str, ...]) -> bool:
        """Return True if this part was read with all of these columns."""
        return (
            self.part == part
            and self.rows.integers.keys() >= set(integers)
            and self.rows.texts.keys() >= set(texts)
        )

    def select_meeting(
        self, number: int, integers: tuple[str, ...], texts: tuple[str, ...]
    ) -> Columns:
        """Return the rows that meet a condition, with some columns, as
        :meth:`nsys2prv.export.database.Database.read` does. number: index of the condition.
        integers, texts: names of the columns, by type.
        """
        return self.rows.select(integers, texts).where(self.mask_meeting(number))
