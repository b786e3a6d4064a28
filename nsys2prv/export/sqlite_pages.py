"""Read rows of an SQLite export from the file's pages, with compiled code, about 20 times as fast
as `sqlite3`.

It reads tables as Nsight Systems writes them. If its result might differ from SQLite's,
:func:`open_pages` and :meth:`SqliteTable.read` return None, and SQLite reads instead. Damage raises
:class:`DamagedPage`; SQLite would not detect all of it.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from nsys2prv._util.budget import REMEMBERED_RESULTS
from nsys2prv._util.columns import ABSENT
from nsys2prv._util.native import core
from nsys2prv.export import outlines
from nsys2prv.export.database import (
    MOST_TYPES,
    ConditionColumns,
    LookedAt,
    Query,
    SourceTable,
    quote_name,
    write_integer,
    write_types,
)
from nsys2prv.export.outlines import (
    NVTX_NOTED,
    NVTX_TABLE,
    Outline,
    has_series,
    list_outlined,
    list_traits,
)
from nsys2prv.export.source import (
    FRAME_COLUMNS,
    NULL,
    Columns,
    DistinctTexts,
    Part,
    SomeRows,
    StackRows,
    Wanted,
    gather_columns,
)

#: Kinds of columns, as in native/records.h.
INTEGERS, REALS, TYPES, TEXTS, VALUES = range(5)
#: The place of the rowid in records, as there.
ROWID = -1
#: What a column of a record cannot be, as there.
NOT_NULL, NO_NUMBER = 1, 2
#: A page is against the file format: its number.
DamagedPage: type[Exception] = core.Damaged if core else type("Damaged", (Exception,), {})


class RecordField(Struct, frozen=True):
    """Place of a column in the stored records of its table, and how its values are read."""

    #: Place of the column in records; :data:`ROWID` if it is the rowid itself, in spite of the
    #: records' contents.
    number: int
    #: As SQLite derives it from the declared type.
    affinity: str
    #: Whether rows that lack it have a default value.
    has_default: bool

    def column(self, kind: int, *arrays: Any) -> tuple:
        """Return an argument for the compiled reader, which describes a column: where it is, its
        kind, and arrays to fill with values, types and texts (None if not wanted).
        """
        place = (self.number, kind, self.affinity == "REAL", self.has_default)
        return (*place, NULL, *arrays)


class Declaration(Struct, frozen=True):
    """SQLite's description of tables with the same declaration: columns, keys and rowids."""

    #: Name -> declared type of the columns that are not computed.
    columns: dict[str, str]
    #: Name of the rowid; "" if it has none, by declaration or because columns have all its names.
    rowid: str
    #: The columns in the table's records; none if these are not clearly its columns.
    fields: dict[str, RecordField]
    #: The indexes that SQLite makes for its keys.
    key_indexes: list[str]
    #: What each column of a record cannot be (NOT_NULL, NO_NUMBER).
    rules: bytes
    #: Whether it contains the frames of call stacks.
    has_frames: bool
    #: Plans of readings, by what is wanted.
    plans: dict[Hashable, ReadingPlan]


class ReadingPlan(Struct, frozen=True):
    """The columns of a table to read: those whose values are wanted, and those whose types are."""

    #: Name and kind of each column that the table has, its place as the compiled reader takes it,
    #: and whether a condition uses it although it may contain texts.
    columns: list[tuple[str, int, tuple, bool]]
    #: Columns whose types are wanted, and their places.
    types: list[str]
    places_of_types: list[tuple]


def _plan_reading(
    fields: Mapping[str, RecordField], wanted: Wanted, looked_at: ConditionColumns
) -> ReadingPlan:
    """Return how these columns are read. fields: of the table."""
    kinds = (
        *((name, INTEGERS) for name in dict.fromkeys([*wanted.integers, *looked_at.values])),
        *((name, TEXTS) for name in wanted.texts),
        *((name, REALS) for name in wanted.reals),
    )
    columns = [
        (
            name,
            kind,
            fields[name].column(kind),
            kind != REALS and fields[name].affinity == "TEXT" and name in looked_at.values,
        )
        for name, kind in kinds
        if name in fields
    ]
    types = [name for name in looked_at.types if name in fields]
    return ReadingPlan(columns, types, [fields[name].column(TYPES) for name in types])


def _describe(name: str, sql: bytes, query: Query) -> Declaration:
    """Return SQLite's description of a table. sql: its declaration."""
    described = query(f"PRAGMA table_xinfo({quote_name(name)})")
    columns = {column: kind for _, column, kind, *_, hidden in described if not hidden}
    taken = {column.lower() for column in columns}
    free = (word for word in ROWIDS if word not in taken)
    rowid = "" if _WITHOUT_ROWID.search(sql) else next(free, "")
    keys = [kind.upper() for _, _, kind, _, _, key, _ in described if key]
    has_indexes = bool(keys) or b"UNIQUE" in sql.upper()
    indexes = query(f"PRAGMA index_list({quote_name(name)})") if has_indexes else []
    # Unless the key has an index of its own, it is the rowid.
    is_rowid = keys == ["INTEGER"] and all(origin != "pk" for _, _, _, origin, *_ in indexes)
    fields = {
        column: RecordField(
            ROWID if key and is_rowid else number, find_affinity(kind), default is not None
        )
        for number, column, kind, _, default, key, _ in described
    }
    # The key may be the rowid, for which records have NULL; computed columns are in none.
    rules = bytes(
        NOT_NULL * bool(not_null and default is None and not key)
        + NO_NUMBER * (find_affinity(kind) == "TEXT")
        for _, _, kind, not_null, default, key, hidden in described
        if hidden != VIRTUAL
    )
    return Declaration(
        columns,
        rowid,
        fields if len(columns) == len(described) else {},
        [index for _, index, _, origin, *_ in indexes if rowid and origin != "c"],
        rules,
        columns.keys() >= set(FRAME_COLUMNS),
        {},
    )


#: Tables with at most this many pages of rows are read completely.
FEW_LEAVES = 64


@cache
def find_affinity(declared: str) -> str:
    """Return how SQLite stores values in a column with this declared type (its affinity), by
    SQLite's rules.
    """
    kind = declared.upper()
    if "INT" in kind:
        return "INTEGER"
    if any(word in kind for word in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if "BLOB" in kind or not kind:
        return "BLOB"
    return "REAL" if any(word in kind for word in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def open_pages(path: Path) -> Any:
    """Open a database file for reading its pages (`core.TableFile`); None if SQLite must read it,
    for example because of a log.
    """
    return ask_core(core.TableFile, path) if core else None


def ask_core(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the compiled core with these arguments, and return its result; None if
    SQLite must be used instead.
    """
    try:
        return function(*arguments)
    except core.StandAside:
        return None


def name_rows(table: str) -> str:
    """Return an SQL expression that reads a table without its indexes, which may be damaged."""
    return f"{quote_name(table)} NOT INDEXED"


#: SQLite's error for declarations that contradict each other.
MALFORMED_SCHEMA = "malformed database schema"
#: The table of the other tables, and its columns, as SQLite says it of others.
SCHEMA = "sqlite_master"
_SCHEMA_COLUMNS = [
    (place, name, "INT" if name == "rootpage" else "TEXT", 0, None, 0, 0)
    for place, name in enumerate(("type", "name", "tbl_name", "rootpage", "sql"))
]
#: Minimum size of a row (bytes). If the rowids of a table span more rows than fit into the file, it
#: has gaps.
LEAST_ROW_BYTES = 4
#: Names of the rowid; a table may use some of them for columns of its own.
ROWIDS = ("rowid", "_rowid_", "oid")
#: Start of a declaration, with the name of a table, as SQLite writes it.
_DECLARATION = re.compile(
    rb"CREATE (?:UNIQUE |VIRTUAL )?(TABLE|INDEX|VIEW|TRIGGER) "
    rb"""("(?:[^"]|"")*"|`(?:[^`]|``)*`|'(?:[^']|'')*'|\[[^]]*]|[^\s("'`[]*)"""
)
_WITHOUT_ROWID = re.compile(rb"\)[^)]*\bWITHOUT\s+ROWID\b[^)]*$", re.IGNORECASE)
_VIRTUAL_TABLE = re.compile(rb"\s*CREATE\s+VIRTUAL", re.IGNORECASE)
#: SQLite's mark of a computed column that is not stored.
VIRTUAL = 2
#: Declarations of tables that were analyzed, and the maximum number that is kept.
_DECLARED: dict[bytes, Declaration] = {}
MOST_DECLARED = 8192
#: Plans of readings that are kept for a declaration.
MOST_PLANS = 64


def open_schema(file: Any, size: int) -> SqliteTable:
    """Return the table in which SQLite describes all tables (the schema). file: the pages of the
    database, or None if SQLite must read it. size: of the file in bytes.
    """
    return SqliteTable(SCHEMA, 1, b"", file, size, lambda _: _SCHEMA_COLUMNS)


def list_tables(schema: SqliteTable, query: Query) -> tuple[dict[str, SqliteTable], list[int]]:
    """List the contents of a database. Return table name -> table, and the first pages of other
    contents.

    Views and virtual tables are never read, because that would run code from the file. Raise
    DatabaseError if a declaration contradicts the schema. query: runs SQL.
    """
    file, size = schema.file, schema.size
    texts = ("type", "name", "sql")
    read = schema.read(schema.everything, Wanted(("rootpage",), texts), ConditionColumns((), ()))
    if read is None:
        in_sql = query(f"SELECT {', '.join(texts)}, rootpage FROM {SCHEMA}")
        rows = [tuple(str(text or "").encode() for text in row[:3]) for row in in_sql]
        roots = [row[3] for row in in_sql]
    else:
        columns = []
        for codes, distinct in read[0].texts.values():
            known = distinct.as_list()
            columns.append([known[code] for code in codes.tolist()])
        rows, roots = list(zip(*columns, strict=True)), read[0]["rootpage"].tolist()
    tables, others = {}, []
    having_pages, indexes = _check_declarations(tuple(rows))
    for place, table in having_pages:
        root = roots[place]
        if not _is_page(root):
            raise sqlite3.DatabaseError(MALFORMED_SCHEMA)
        if table is None:
            others.append(root)
        else:
            tables[table] = SqliteTable(table, root, rows[place][2], file, size, query, indexes)
    return tables, others


@lru_cache(REMEMBERED_RESULTS)
def _check_declarations(
    rows: tuple[tuple[bytes, ...], ...],
) -> tuple[list[tuple[int, str | None]], frozenset[str]]:
    """Return the indices of rows with pages, each with the name of its table (None for an index), and
    the names of all indexes. rows: type, name and declaration. Raise DatabaseError if they contradict
    each other.

    Reports of one version of Nsight Systems have the same rows.
    """
    names = [name.lower() for kind, name, _ in rows if kind == b"table"]
    if len({*names}) < len(names) or not all(_is_declared(*row) for row in rows):
        raise sqlite3.DatabaseError(MALFORMED_SCHEMA)
    having_pages: list[tuple[int, str | None]] = []
    for place, (kind, name, sql) in enumerate(rows):
        if kind in (b"table", b"index") and not _VIRTUAL_TABLE.match(sql):
            is_table = kind == b"table" and not name.startswith(b"sqlite_")
            having_pages.append((place, name.decode("utf-8", "replace") if is_table else None))
    indexes = (name.decode("utf-8", "replace") for kind, name, _ in rows if kind == b"index")
    return having_pages, frozenset(indexes)


def _is_page(number: object) -> bool:
    """Return True if a value may be the number of a page."""
    return isinstance(number, int) and 0 < number < 1 << 32


@lru_cache(MOST_DECLARED)
def _is_declared(kind: bytes, name: bytes, sql: bytes) -> bool:
    """Return True if the declaration of a table agrees with its entry in the schema. SQLite uses
    the declaration.
    """
    declared = _DECLARATION.match(sql)
    if declared is None:
        return kind == b"index" and not sql  # of a key
    declared_kind, declared_name = declared.groups()
    if kind != b"table":
        return kind == declared_kind.lower()
    quote = declared_name[:1]
    if quote in b"\"`'":
        declared_name = declared_name[1:-1].replace(quote * 2, quote)
    elif quote == b"[":
        declared_name = declared_name[1:-1]
    return declared_kind == b"TABLE" and declared_name == name


class SqliteTable(SourceTable):
    """A table of an SQLite file, read from its pages. SQLite describes it on first use."""

    def __init__(
        self,
        name: str,
        root: int,
        sql: bytes,
        file: Any,
        size: int,
        query: Query,
        indexes: frozenset[str] = frozenset(),
    ) -> None:
        #: Its name, and the number of its first page.
        self.name, self.root = name, root
        #: Pages of its database, None if SQLite must read it; and their size (bytes).
        self.file, self.size = file, size
        self._sql, self._query, self._indexes = sql, query, indexes
        if known := _DECLARED.get(sql):
            self.declared = known
        self._rows_checked = False
        #: Bounds of its rows, if :meth:`check` should find them.
        self.outline: Outline | None = None

    @cached_property
    def declared(self) -> Declaration:
        """Return SQLite's description of the table."""
        if self._sql not in _DECLARED:
            if len(_DECLARED) >= MOST_DECLARED:
                _DECLARED.clear()
            _DECLARED[self._sql] = _describe(self.name, self._sql, self._query)
        return _DECLARED[self._sql]

    @property
    def columns(self) -> dict[str, str]:
        """Return column -> declared type, without computed columns."""
        return self.declared.columns

    @property
    def has_frames(self) -> bool:
        """Return True if the table contains the frames of call stacks."""
        return self.declared.has_frames

    @property
    def everything(self) -> Part:
        """The part with all rows of a table with rowids, whatever these are."""
        return Part(self.name, -(1 << 63), (1 << 63) - 1)

    @cached_property
    def whole(self) -> Part:
        """The part with all rows of the table."""
        rows, first, last = name_rows(self.name), 0, self.size
        if self.declared.rowid:
            ends = (
                f"(SELECT {which}({self.declared.rowid}) FROM {rows})" for which in ("min", "max")
            )
            ((first, last),) = self._query(f"SELECT {', '.join(ends)}")
            if not isinstance(first, int) or not isinstance(last, int):
                return Part(self.name)
        whole = self._bound_rows(1, first, last)
        if whole.rowid:
            return whole
        ((count,),) = self._query(f"SELECT count(*) FROM {rows}")
        return self._bound_rows(count, first, last)

    def _bound_rows(self, rows: int, first: int, last: int) -> Part:
        """Return the part with this number of rows, and with these first and last rowids."""
        if not rows:
            return Part(self.name)
        if not self.declared.rowid or (last - first) * LEAST_ROW_BYTES > self.size:
            return Part(self.name, 1, rows, "")
        return Part(self.name, first, last, self.declared.rowid)

    def check(self, met: bytearray, outlined: bool = False) -> bool:
        """Read the whole table to check it, mark its pages in `met`, and set its extent. Return
        False if SQLite must check the table.

        Raise DamagedPage for damage. Raise DatabaseError if a key has no index: the rows were then
        written with another declaration. Frames of call stacks are checked later, when they are
        read; :meth:`check_rows` checks them before SQLite reads them. outlined: whether to find
        bounds of the rows.
        """
        declared = self.declared
        needed = None if declared.has_frames else declared.rules
        if not self._indexes.issuperset(declared.key_indexes):
            raise sqlite3.DatabaseError(MALFORMED_SCHEMA)
        outline = self._describe_outline() if outlined and needed is not None else ()
        if outline and self.name == NVTX_TABLE:
            notes = (NVTX_NOTED.get(column, 0) for column in declared.fields)
            needed = bytes(rule | note for rule, note in zip(needed, notes, strict=True))
        found = ask_core(self.file.check, self.root, needed, met, *outline)
        if found is None:
            return False
        if not declared.has_frames:
            *extent, bounds, noted = found
            self.whole = self._bound_rows(*extent)
            if bounds and self.whole.rowid:
                self.outline = Outline.from_core(self.whole.first, bounds, noted)
        return True

    def _describe_outline(self) -> tuple:
        """Return the arguments of the compiled core for an outline, none if it cannot make one."""
        fields = self.declared.fields
        names = list_outlined(self.name, fields) or ()
        known = [fields[name] for name in names if name]
        if any(field.has_default or field.number == ROWID for field in known):
            return ()
        # Columns after the last one have no values.
        absent = RecordField(len(self.declared.rules), "INTEGER", False)
        columns = [fields.get(name, absent).column(INTEGERS, None, None, None) for name in names]
        most = self.size // (LEAST_ROW_BYTES * outlines.BLOCK_ROWS) + 1
        bits = outlines.BLOCK_ROWS.bit_length() - 1
        more = bits, most, outlines.MOST_NOTED, list_traits(self.name), has_series(fields)
        return (columns, *more) if columns else ()

    def check_rows(self) -> None:
        """Read all rows of a table, once, to check them. Interior pages are already checked. Raise
        DamagedPage.
        """
        if self.file and not self._rows_checked:
            self._rows_checked = True
            met = bytearray(self.file.pages // 8 + 1)
            ask_core(self.file.check, self.root, self.declared.rules, met)

    @cached_property
    def _pages(self) -> Any:
        """The pages of the table (`core.Table`); None if SQLite must read it."""
        return ask_core(self.file.table, self.root) if self.file and self.declared.fields else None

    def read(
        self, part: Part, wanted: Wanted, looked_at: ConditionColumns
    ) -> tuple[Columns, list[LookedAt]] | None:
        """Return (columns, values of the columns in `looked_at`) of the rows of a part.

        Return None if SQLite must read them, for example if an integer column or a condition's
        column has values other than integers and NULL. looked_at: columns that conditions need.
        Raise DamagedPage.
        """
        table = self._pages
        if table is None or len(looked_at.types) > MOST_TYPES:
            return None
        plans, key = self.declared.plans, (wanted.integers, wanted.texts, wanted.reals, looked_at)
        if (plan := plans.get(key)) is None:
            if len(plans) >= MOST_PLANS:
                plans.clear()
            plan = plans[key] = _plan_reading(self.declared.fields, wanted, looked_at)
        leaves = table.between(part.first, part.last)
        chosen = (part.rowids,) if isinstance(part, SomeRows) else ()
        room = len(chosen[0]) if chosen else min(part.rows, table.most_rows(*leaves))
        # Each separately, to release columns that only conditions use.
        described = [
            (
                *place,
                np.empty(room, np.float64 if kind == REALS else np.int64),
                None,
                core.Texts() if kind == TEXTS else None,
            )
            for _, kind, place, _ in plan.columns
        ]
        all_types = np.empty(room if plan.types else 0, np.int64)
        of_types = [(*place, all_types, None, None) for place in plan.places_of_types]
        decoded = ask_core(
            table.decode, *leaves, part.first, part.last, described + of_types, *chosen
        )
        if decoded is None:
            return None
        rows, counts = decoded
        numbers, words = {}, {}
        for (name, kind, _, may_be_text), (*_, values, _, of_texts), (nulls, odd) in zip(
            plan.columns, described, counts, strict=False
        ):
            # Of TEXT affinity, integers would become texts.
            if kind != REALS and (odd or (may_be_text and nulls < rows)):
                return None
            if kind == TEXTS:
                words[name] = values[:rows], DistinctTexts(read=of_texts)
            else:
                numbers[name] = values[:rows]
        seen = [
            (numbers[name], {name: write_integer}) for name in looked_at.values if name in numbers
        ]
        if plan.types:
            seen.append((all_types[:rows], write_types(plan.types)))
        columns = gather_columns(rows, numbers, words, wanted)
        return columns, seen

    def read_rows(self, columns: Sequence[str]) -> list[tuple] | None:
        """Return the values of these columns in all rows, with None for missing columns. Return
        None if SQLite must read them, or if there are many rows. Raise DamagedPage.
        """
        if self._pages is None or self._pages.leaves > FEW_LEAVES:
            return None
        known, texts = self.declared.fields, core.Texts()
        present = [name for name in columns if name in known]
        described = [known[name].column(VALUES, None, None, texts) for name in present]
        rows = ask_core(self._pages.rows, described)
        if rows is None or len(present) == len(columns):
            return rows
        places = [present.index(name) if name in present else ABSENT for name in columns]
        return [tuple((*row, None)[place] for place in places) for row in rows]

    def read_stacks(self, low: int, high: int) -> StackRows | None:
        """Return the call stacks with ids from `low` to `high`; None if SQLite must read them.
        Raise DamagedPage.
        """
        if self._pages is None:
            return None
        columns = [
            self.declared.fields[one].column(INTEGERS, None, None, None) for one in FRAME_COLUMNS
        ]
        read = ask_core(self._pages.stacks, low, high, columns)
        if read is None:
            return None
        *numbers, frames = (np.frombuffer(one, np.int64) for one in read)
        return StackRows(*numbers, frames.reshape(-1, 3))
