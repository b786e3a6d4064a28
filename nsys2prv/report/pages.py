"""Rows of an SQLite export read from the file's pages, by compiled code: ten times as fast as SQL.

It reads tables as Nsight Systems writes them, and stands aside (:func:`open_pages` and :meth:`Pages.read` return None) wherever it is not
certain of doing what SQLite does: then SQLite reads, and says what is wrong with a file that is damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from nsys2prv.native import core
from nsys2prv.report.conditions import LookedAt
from nsys2prv.report.source import NULL, Columns, Part, quoted

#: Kinds of columns, as in native/records.h.
INTEGERS, REALS, TYPES, TEXTS, VALUES = range(5)
Query = Callable[[str], list[tuple]]


@dataclass(frozen=True)
class Field:
    """Where a column is in the records of its table, and what their values mean. affinity: as SQLite derives it from the declared type."""

    number: int
    affinity: str
    is_rowid: bool
    has_default: bool

    def column(self, kind: int, values: np.ndarray | None, types: np.ndarray | None = None, texts: Any = None) -> tuple:
        """What the compiled reader is told of it. values, types: where they go."""
        return self.number, kind, self.is_rowid, self.affinity == "REAL", self.has_default, NULL, values, types, texts


def affinity(declared: str) -> str:
    """The affinity of a column of this declared type, by SQLite's rules."""
    kind = declared.upper()
    if "INT" in kind:
        return "INTEGER"
    if any(word in kind for word in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if "BLOB" in kind or not kind:
        return "BLOB"
    return "REAL" if any(word in kind for word in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def fields_of(table: str, query: Query) -> dict[str, Field] | None:
    """The columns of a table of rows, None where its records are not plainly its columns."""
    described = query(f"PRAGMA table_xinfo({quoted(table)})")
    if any(hidden for *_, hidden in described):
        return None  # computed columns
    keys = [(name, kind) for _, name, kind, _, _, key, _ in described if key]
    alias = ""
    if len(keys) == 1 and keys[0][1].upper() == "INTEGER":
        # Unless the key has an index of its own, it is the rowid.
        indices = query(f"PRAGMA index_list({quoted(table)})")
        alias = "" if any(origin == "pk" for _, _, _, origin, *_ in indices) else keys[0][0]
    return {name: Field(number, affinity(kind), name == alias, default is not None)
            for number, name, kind, _, default, _, _ in described}


def open_pages(path: Path, query: Query) -> Pages | None:
    """The pages of a database that nothing but the file belongs to. query: answers questions on its schema."""
    try:
        return Pages(core.TableFile(path), query) if core else None
    except core.StandAside:
        return None


class Pages:
    """The tables of a file, each found when it is first asked for."""

    def __init__(self, file: Any, query: Query) -> None:
        self._file, self._query = file, query
        self._known: dict[str, tuple[Any, dict[str, Field]] | None] = {}

    def table(self, name: str, root: int) -> tuple[Any, dict[str, Field]] | None:
        """A table and its columns. root: the number of its first page."""
        if name not in self._known:
            fields = fields_of(name, self._query)
            try:
                self._known[name] = fields and (self._file.table(root), fields)
            except core.StandAside:
                self._known[name] = None
        return self._known[name]

    def read(self, part: Part, root: int, integers: Sequence[str], texts: Sequence[str],
             looked_at: LookedAt) -> tuple[Columns, dict[str, np.ndarray]] | None:
        """Columns of a part that goes by rowids, as of :meth:`nsys2prv.report.source.Source.read`, and those that conditions look at: their
        types, or their values, which are nothing but integers and NULL."""
        opened = self.table(part.table, root)
        if opened is None:
            return None
        table, fields = opened
        numbers = [name for name in dict.fromkeys([*integers, *looked_at.values]) if name in fields]
        types = [name for name in looked_at.types if name in fields]
        words = [name for name in texts if name in fields]
        known = [core.Texts() for _ in words]
        leaves = table.between(part.first, part.last)
        room = min(max(part.last - part.first + 1, 0), table.most_rows(*leaves))
        # Each on its own, so that those go that only conditions look at.
        of_numbers, of_types, of_words = ([np.empty(room, np.int64) for _ in names] for names in (numbers, types, words))
        asked = [*(fields[name].column(INTEGERS, column) for name, column in zip(numbers, of_numbers, strict=True)),
                 *(fields[name].column(TYPES, column) for name, column in zip(types, of_types, strict=True)),
                 *(fields[name].column(TEXTS, column, texts=texts_of)
                   for name, column, texts_of in zip(words, of_words, known, strict=True))]
        try:
            rows, counts = table.decode(*leaves, part.first, part.last, asked)
        except core.StandAside:
            return None
        counted = dict(zip(numbers, counts, strict=False))
        if any(odd for _, odd in counts[len(numbers):]) or any(self._doubtful(fields[name], rows, *counted[name])
                                                               for name in looked_at.values if name in fields):
            return None
        columns = {name: values[:rows] for name, values in zip(numbers, of_numbers, strict=True)}
        lacking = np.full(rows if set(integers) - columns.keys() else 0, NULL)
        of_texts = {name: (np.zeros(rows, np.int64), pl.Series([b""], dtype=pl.Binary)) for name in texts}
        for name, codes, texts_of in zip(words, of_words, known, strict=True):
            of_texts[name] = codes[:rows], pl.Series(texts_of.as_list(), dtype=pl.Binary)
        return (Columns(rows, {name: columns.get(name, lacking) for name in integers}, of_texts,
                        sum(counted[name][1] for name in dict.fromkeys(integers) if name in counted)),
                {name: columns[name] for name in looked_at.values if name in fields}
                | {name: values[:rows] for name, values in zip(types, of_types, strict=True)})

    @staticmethod
    def _doubtful(field: Field, rows: int, nulls: int, odd: int) -> bool:
        """Whether a condition on a column may see other values than integers and NULL. Of TEXT affinity, integers would become texts."""
        return odd > 0 or (field.affinity == "TEXT" and nulls < rows)
