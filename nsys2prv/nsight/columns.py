"""Columns of numbers and texts, as they are read of an export's rows."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from msgspec import Struct

#: Stands for NULL in columns of integers.
NULL = np.iinfo(np.int64).min
#: Times (ns) beyond it, in either direction, are damage, and would overflow sums of times.
TIME_LIMIT = 1 << 61
#: So many of a column's texts tell whether it is worth looking for those that come again.
SAMPLE_TEXTS = 1000


def mask_usable(times: np.ndarray) -> np.ndarray:
    """Return a mask (bool) of the times that a trace can hold: neither NULL nor beyond TIME_LIMIT."""
    # Not by the absolute value, which overflows for NULL.
    return (times > -TIME_LIMIT) & (times < TIME_LIMIT)


def are_all_usable(times: np.ndarray) -> bool:
    """True if there are times and a trace can hold all of them, without looking at each one."""
    return bool(len(times)) and int(times.min()) > -TIME_LIMIT and int(times.max()) < TIME_LIMIT


#: More templates than this are of no use unless there are so many texts of each.
FEW_TEMPLATES, TEXTS_PER_TEMPLATE = 1000, 4


class Templates(Struct, frozen=True):
    """What texts have in common that differ by nothing but numbers."""

    #: Template of each text (int64).
    codes: np.ndarray
    #: The first text of each template (bytes).
    firsts: pl.Series


class DistinctTexts:
    """Texts of a column, hardly any of them twice.

    Those that the compiled core has read stay with it until they are asked for, as Python's bytes
    cost more than reading them.
    """

    def __init__(
        self,
        series: pl.Series | None = None,
        read: Any = None,
        kept: np.ndarray | None = None,
    ) -> None:
        """Take a series of bytes, or what the core has read (`_core.Texts`), of which some are kept
        (their numbers; None for all).
        """
        self._read, self._kept = read, kept
        if series is not None:
            self.__dict__["series"] = series

    def __len__(self) -> int:
        if self._read is None:
            return len(self.series)
        return len(self._read) if self._kept is None else len(self._kept)

    @cached_property
    def series(self) -> pl.Series:
        """All texts (bytes)."""
        return self.take(None)

    def take(self, numbers: np.ndarray | None) -> pl.Series:
        """Return some texts by their numbers (int64), all where these are None, as bytes."""
        if self._read is None:
            return self.series if numbers is None else self.series.gather(numbers)
        if self._kept is not None:
            numbers = self._kept if numbers is None else self._kept[numbers]
        texts = self._read.as_list() if numbers is None else self._read.as_list(numbers)
        return pl.Series(texts, dtype=pl.Binary)

    def select(self, used: np.ndarray) -> DistinctTexts:
        """Return some of the texts. used: a mask (bool)."""
        if self._read is None:
            return DistinctTexts(self.series.filter(pl.Series(used)))
        kept = np.flatnonzero(used)
        kept = kept if self._kept is None else self._kept[kept]
        return DistinctTexts(read=self._read, kept=kept)

    def find_templates(self) -> Templates | None:
        """Return the templates of the texts; None where they are so many that they are of no use,
        or where the texts are not with the core.
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
        """The argument of the core that names these texts, none for all."""
        return () if self._kept is None else (self._kept,)

    def numbers(self, places: np.ndarray) -> np.ndarray:
        """Return the number (int64) at a place of each text, -1 where there is none. places: 0 is
        the first number of a text, -1 no number. For texts that have templates.
        """
        values = places.copy()
        self._read.numbers(values, *self._chosen)
        return values


#: Texts of a column that is not there.
NO_TEXTS = DistinctTexts(pl.Series([b""], dtype=pl.Binary))


class Columns(Struct):
    """Rows of one read, as columns."""

    #: Number of rows.
    rows: int
    #: Name -> int64, :data:`NULL` for NULL.
    integers: dict[str, np.ndarray]
    #: Name -> each row's index into the texts.
    texts: dict[str, tuple[np.ndarray, DistinctTexts]]
    #: Number of values that are not integers where integers belong; they read as NULL.
    damaged: int = 0

    def __getitem__(self, name: str) -> np.ndarray:
        return self.integers[name]

    def where(self, keep: np.ndarray) -> Columns:
        """Return the rows for which `keep` is true, with the texts that they have."""
        rows = np.flatnonzero(keep)
        texts = {
            name: _keep_used(codes[rows], distinct)
            for name, (codes, distinct) in self.texts.items()
        }
        return Columns(
            len(rows),
            {name: column[rows] for name, column in self.integers.items()},
            texts,
            self.damaged,
        )

    def select(self, integers: Iterable[str], texts: Iterable[str]) -> Columns:
        """Return some of the columns."""
        return Columns(
            self.rows,
            {name: self.integers[name] for name in integers},
            {name: self.texts[name] for name in texts},
            self.damaged,
        )


def _keep_used(codes: np.ndarray, distinct: DistinctTexts) -> tuple[np.ndarray, DistinctTexts]:
    """Return codes and what they mean, without what none of them means."""
    used = np.zeros(len(distinct), bool)
    used[codes] = True
    return (
        (codes, distinct) if used.all() else ((np.cumsum(used) - 1)[codes], distinct.select(used))
    )


def encode_distinct(series: pl.Series) -> tuple[np.ndarray, DistinctTexts]:
    """Return a column of bytes as codes into its values, distinct ones unless most come once."""
    if series.dtype != pl.Binary:
        return np.zeros(len(series), np.int64), NO_TEXTS
    sample = series.head(SAMPLE_TEXTS)
    if sample.n_unique() > len(sample) // 2:
        return np.arange(len(series)), DistinctTexts(series)  # hardly any comes twice
    distinct, codes = number_distinct(series)
    return codes, DistinctTexts(distinct)


def number_distinct(series: pl.Series) -> tuple[pl.Series, np.ndarray]:
    """Return the distinct values in the order in which they come first, and each row's index among
    them (int64).
    """
    distinct = series.unique(maintain_order=True)
    if len(distinct) == len(series):
        return series, np.arange(len(series))
    numbered = distinct.to_frame("value").with_row_index("code")
    codes = series.to_frame("value").join(numbered, on="value", how="left", maintain_order="left")
    return distinct, codes["code"].to_numpy().astype(np.int64)


def make_columns(rows: pl.DataFrame, integers: tuple[str, ...], texts: tuple[str, ...]) -> Columns:
    """Return the form of columns that the event kinds know."""
    damaged = 0
    numbers: dict[str, np.ndarray] = {}
    types = rows.schema
    whole = _replace_nulls(rows, [name for name in integers if types.get(name) == pl.Int64])
    for name in integers:
        if name in whole:
            numbers[name] = whole[name]
        else:
            numbers[name] = np.full(rows.height, NULL)
            damaged += rows.height - rows[name].null_count() if name in types else 0
    words = {
        name: encode_distinct(cast_to_bytes(rows[name]))
        if name in types
        else (np.zeros(rows.height, np.int64), NO_TEXTS)
        for name in texts
    }
    return Columns(rows.height, numbers, words, damaged)


def _replace_nulls(rows: pl.DataFrame, names: list[str]) -> dict[str, np.ndarray]:
    """Return these columns of integers, NULL for what is null; all at once, as each question to
    polars has its price.
    """
    counts = {name: rows[name].null_count() for name in names}
    with_nulls = [name for name, nulls in counts.items() if 0 < nulls < rows.height]
    filled = rows.select(pl.col(with_nulls).fill_null(NULL)) if with_nulls else rows
    return {
        name: np.full(nulls, NULL)
        if nulls and nulls == rows.height
        else (filled if nulls else rows)[name].to_numpy()
        for name, nulls in counts.items()
    }


def cast_to_bytes(column: pl.Series) -> pl.Series:
    """Return any column as bytes; NULL as an empty string."""
    if column.dtype != pl.Binary:
        column = column.cast(pl.String).cast(pl.Binary)
    return column.fill_null(b"") if column.null_count() else column


def decode_texts(series: pl.Series) -> pl.Series:
    """Return bytes as text; what is no UTF-8 gets replacement characters."""
    try:
        return series.cast(pl.String)
    except pl.exceptions.PolarsError:
        texts = [None if raw is None else raw.decode("utf-8", "replace") for raw in series]
        return pl.Series(series.name, texts, dtype=pl.String)
