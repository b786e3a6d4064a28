"""Read an SQLite export (:class:`Database`), from its pages (:mod:`nsys2prv.export.sqlite_pages`) or by SQLite.

Damage is an error, once for the whole file (:meth:`Database.check`). Only tables count: indexes may be
damaged, so nothing is read from them.

Databases are opened read-only, and immutable unless a write-ahead log beside them holds data, so
that a read-only folder or a file system without locks works and nothing is ever written beside the
input.
"""

from __future__ import annotations

import re
import sqlite3
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import compress
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import astuple

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import Closable
from nsys2prv.export.report_files import (
    DAMAGE,
    check_file,
    has_journal,
    has_log,
    make_database_uri,
    remove_quoted_content,
)
from nsys2prv.export.source import (
    FRAME_COLUMNS,
    NULL,
    Columns,
    DistinctTexts,
    Part,
    Shared,
    SomeRows,
    StackRows,
    name_rows,
    number_distinct,
    quote_name,
)
from nsys2prv.export.sqlite_pages import (
    SCHEMA,
    DamagedPage,
    SourceTable,
    ask_core,
    evaluate_conditions,
    find_condition_columns,
    list_tables,
    open_pages,
    open_schema,
    select_condition_bits,
)

#: Rows that SQLite hands over at a time.
BLOCK_ROWS = 50_000
#: Columns of the conditions that a row meets, and of its values that are no integers.
MET, DAMAGED_VALUES = "conditions met", "damaged values"
#: A column of integers in SQL, and one of reals, NULL for values of other types; and one of texts and
#: bytes.
_AS_INTEGER = "CASE typeof({0}) WHEN 'integer' THEN {0} END AS {0}"
_AS_REAL = "CASE WHEN typeof({0}) IN ('integer', 'real') THEN CAST({0} AS REAL) END AS {0}"
_AS_TEXT = "CASE typeof({0}) WHEN 'blob' THEN {0} ELSE CAST(COALESCE({0}, '') AS TEXT) END AS {0}"
#: Registered strings asked for in one statement.
STRINGS = 500
#: What SQLite's check says where a page is damaged, and not a value.
PAGE_IN_CHECK = re.compile(r"(?i)\bpage (\d+)")
#: What it says of values that SQLite never writes so.
MALFORMED = "NULL value", "NUMERIC value", "row not in PRIMARY KEY order"
#: What it says of a page that nothing refers to.
LOST_PAGE = re.compile(r"(?i)page (\d+)(?: is|:) never used")
#: What comes with a database is data: nothing in it is run.
DISTRUST = "PRAGMA trusted_schema = OFF"
#: So many rows of a table, spread all over it, tell where its times lie.
SAMPLED_ROWS = 16
#: Of files up to this size (bytes) all registered strings are read at once.
SMALL_FILE = 1 << 20
#: What queries without tables said, and of how many at most this is remembered.
_EVALUATED: dict[str, list[tuple]] = {}
MOST_EVALUATED = 64


class Database(Closable):
    """One export opened for reading. Raises :class:`Nsys2prvError` when it is not one, and whatever
    reads where it is damaged.

    Conditions are in SQL, with the table's columns in braces (:meth:`make_condition`).
    Rows of large tables are read from the file's pages. SQLite answers questions in SQL, and reads
    what the page reader does not know (:mod:`nsys2prv.export.sqlite_pages`).
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.size = check_file(self.path)
        self.tables: dict[str, SourceTable] = {}
        with self._explain_damage(SCHEMA):
            alone = not (has_log(self.path) or has_journal(self.path))
            self._schema = open_schema(open_pages(self.path) if alone else None, self.size)
            self.tables, self._others = list_tables(self._schema, self.query)

    @cached_property
    def connection(self) -> sqlite3.Connection:
        """The file as SQLite reads it. Most tasks need none: before its first answer SQLite parses
        the declarations of all tables.
        """
        connection = sqlite3.connect(make_database_uri(self.path), uri=True, isolation_level=None)
        connection.text_factory = _decode
        connection.execute(DISTRUST)
        if hasattr(connection, "setconfig"):
            connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        return connection

    @cached_property
    def _evaluator(self) -> sqlite3.Connection:
        """A database without tables, which tells for given values whether conditions are met."""
        return sqlite3.connect(":memory:")

    def _evaluate(self, sql: str) -> list[tuple]:
        """Return what a query without tables says, which is the same for all reports."""
        answer = _EVALUATED.get(sql)
        if answer is None:
            if len(_EVALUATED) >= MOST_EVALUATED:
                _EVALUATED.clear()
            answer = _EVALUATED[sql] = self._evaluator.execute(sql).fetchall()
        return answer

    def make_unreadable_error(self, error: Exception, table: str = "") -> Nsys2prvError:
        """Return the error for a damaged file, for users."""
        # In a damaged file the name of a table may be anything.
        is_plain = re.fullmatch(r"[A-Za-z_]\w{,60}", table, re.ASCII)
        named = f"table {table}" if is_plain else "a table"
        if isinstance(error, DamagedPage):
            of_table = f"{named}, page {error}" if table else f"page {error} is in no table"
            reason = f"malformed: {of_table}"
        elif isinstance(error, UnicodeError):
            reason = "names that are no text"
        else:
            reason = remove_quoted_content(error) + (f" in {named}" if table else "")
        return Nsys2prvError(
            f"{self.path}: cannot be read as an SQLite export ({reason}); export the report again with: "
            f"nsys export --type sqlite --force-overwrite true {self.path.with_suffix('.nsys-rep').name}"
        )

    @contextmanager
    def _explain_damage(self, table: str = "") -> Iterator[None]:
        """Raise one clear line, which names the table, where the file is damaged."""
        try:
            yield
        except (DamagedPage, *DAMAGE, pl.exceptions.PolarsError) as error:
            raise self.make_unreadable_error(error, table) from None

    def check(self, notes: Mapping[str, tuple[str, Sequence[int]]]) -> None:
        """Read all tables. Raises one clear line where the pages of one are damaged, or where pages
        are lost: nothing of the file refers to them.

        notes: of tables a column, and integers; :meth:`read_small_table` finds at once the rows that
        have one of these there.
        """
        file = self._schema.file
        with suppress(*DAMAGE):
            if not file and self._ask_quick_check() == ["ok"]:
                return
        met = bytearray(file.pages // 8 + 1 if file else 0)
        not_all_read = self._others.copy()
        for table in (self._schema, *self.tables.values()):
            with self._explain_damage(table.name):
                checked = file and table.check(met, *notes.get(table.name, ()))
                if not checked:
                    self._check_by_sql(table.name)
                if not checked or table.has_frames:
                    not_all_read.append(table.root)
        with self._explain_damage():
            if lost := self._find_lost_page(met, not_all_read):
                raise DamagedPage(lost)

    def _find_lost_page(self, met: bytearray, roots: Sequence[int]) -> int:
        """Return a page that belongs to nothing, 0 where there is none. met: the pages of tables that
        were read; roots: the first pages of other trees.
        """
        if file := self._schema.file:
            return ask_core(file.lost_page, met, np.array(roots, np.uint32)) or 0
        # Where SQLite finds damage elsewhere, lost pages may have been of an index, or free.
        pages = [line for line in self._ask_quick_check() if PAGE_IN_CHECK.search(line)]
        lost = [match for match in map(LOST_PAGE.match, pages) if match]
        return int(lost[0][1]) if lost and len(lost) == len(pages) else 0

    def _ask_quick_check(self) -> list[str]:
        """Return the lines that SQLite's check says of the file, "ok" alone where it finds nothing."""
        said = self.connection.execute("PRAGMA quick_check").fetchall()
        return [line for (text,) in said for line in text.splitlines()]

    def _check_by_sql(self, name: str) -> None:
        """Check the pages of a table by SQLite, which checks those of its indexes, too."""
        for (text,) in self.connection.execute(f"PRAGMA quick_check({quote_name(name)})"):
            if page := PAGE_IN_CHECK.search(text):
                raise DamagedPage(page[1])
            if text.startswith(MALFORMED):
                raise sqlite3.DatabaseError("malformed")

    def has(self, table: str, *columns: str) -> bool:
        """True if the table exists with all these columns."""
        return table in self.tables and all(column in self.tables[table] for column in columns)

    def make_condition(self, table: str, where: str) -> str:
        """Return a condition in SQL from one with the table's columns in braces: those that the
        export lacks are NULL, {strings:TEXT} the ids of registered strings that begin so. "" is true.
        """
        names = self.tables[table].sql_names
        return where.format_map(ChainMap({"strings": _StringIds(self)}, names)) if where else "1"

    def close(self) -> None:
        """Let go of the files."""
        for name in ("connection", "_evaluator"):
            if name in self.__dict__:
                self.__dict__.pop(name).close()
        self.tables, self._schema = {}, open_schema(None, self.size)

    def count_rows(self, part: Part, where: str = "") -> int:
        """Return the number of rows of a part, or of those that meet a condition (as in
        :meth:`make_condition`).
        """
        if not where and (from_pages := self._read_pages(part, (), (), ())):
            return from_pages[0].rows
        return self.query(f"SELECT count(*) FROM {self.select_rows(part, where)}")[0][0]

    def query(self, sql: str) -> list[tuple]:
        """Return all rows of a small query."""
        with self._explain_damage():
            return self.connection.execute(sql).fetchall()

    def read_small_table(
        self, table: str, *columns: str, where: str = "", types: tuple[type, ...] = ()
    ) -> list[tuple]:
        """Return these columns of the rows of a small table that meet a condition, in the order of
        the rows. types: those that the values of the first columns must have; damage may have
        others.

        A column that the export lacks reads as None, a table that it lacks as no rows.
        """
        if table not in self.tables:
            return []
        found = self._read_few_rows(table, columns, where)
        if found is None:
            named, condition = self.tables[table].sql_names, self.make_condition(table, where)
            expressions = ", ".join(named[column] for column in columns)
            noted = self.tables[table].noted.get(where)
            rows = name_rows(table) if noted is None else self.select_rows(noted)
            found = self.query(f"SELECT {expressions} FROM {rows} WHERE {condition}")
        return [row for row in found if all(map(isinstance, row, types))] if types else found

    def _read_few_rows(self, table: str, columns: Sequence[str], where: str) -> list[tuple] | None:
        """Return columns of the rows of a table that meet a condition, None where SQLite has to read
        them, or look at them.
        """
        source = self.tables[table]
        with self._explain_damage(table):
            rows = source.read_rows(columns)
        if not where or not rows:
            return rows
        pages = self._read_pages(source.everything, (), (), [where])
        return None if pages is None else list(compress(rows, pages[1].tolist()))

    def read_strings(self, ids: np.ndarray | list[int]) -> dict[int, str]:
        """Return the text of these ids of StringIds; an id without a row is absent."""
        if not self.has("StringIds", "id", "value"):
            return {}
        if self.size <= SMALL_FILE:
            known = self.strings
            return {number: known[number] for number in map(int, ids) if number in known}
        return {
            number: _decode(value) if isinstance(value, bytes) else str(value)
            for start in range(0, len(ids), STRINGS)
            for number, value in self.query(
                f"SELECT id, coalesce(value, '') FROM {name_rows('StringIds')} WHERE id IN "
                f"({', '.join(str(int(number)) for number in ids[start : start + STRINGS])})"
            )
        }

    @cached_property
    def strings(self) -> dict[int, str]:
        """The text of all ids of StringIds."""
        rows = self.read(self.tables["StringIds"].everything, ("id",), ("value",))
        codes, distinct = rows.texts["value"]
        texts = list(map(_decode, distinct.as_list()))
        known = zip(rows["id"].tolist(), (texts[code] for code in codes.tolist()), strict=True)
        return {number: text for number, text in known if number != NULL}

    def sample_integers(self, columns: Mapping[str, str]) -> list[int]:
        """Return the integers that a few rows all over some tables have in one column each.
        columns: by table.
        """
        sampled: list[int] = []
        for table, column in columns.items():
            whole = self.tables[table].whole
            if whole.rowid:
                steps, length = SAMPLED_ROWS - 1, whole.last - whole.first
                spread = {whole.first + length * step // steps for step in range(SAMPLED_ROWS)}
                rows = SomeRows(*astuple(whole), tuple(sorted(spread)))
                sampled += self.read(rows, (column,))[column].tolist()
        return [value for value in sampled if value != NULL]

    def read(
        self,
        part: Part,
        integers: tuple[str, ...],
        texts: tuple[str, ...] = (),
        where: str = "",
        reals: tuple[str, ...] = (),
    ) -> Columns:
        """Return columns of some rows, in their order: of those that meet `where`, a condition as
        in :meth:`make_condition`. reals: read as float64, NaN for what is no number.

        A column that the export lacks reads as NULL throughout.
        """
        from_pages = self._read_pages(part, integers, texts, [where] if where else [], reals)
        # Of damaged values it is not known here which rows they are in.
        if from_pages is None or (where and from_pages[0].damaged):
            return self._read_by_sql(part, integers, texts, where, reals=reals)[0]
        columns, condition_bits = from_pages
        return columns.where(condition_bits != 0) if where else columns

    def _read_pages(
        self,
        part: Part,
        integers: tuple[str, ...],
        texts: tuple[str, ...],
        conditions: Sequence[str],
        reals: tuple[str, ...] = (),
    ) -> tuple[Columns, np.ndarray] | None:
        """Return columns of all rows of a part, and which conditions each row meets, as bits; None
        where SQLite has to read them.
        """
        if not part.rowid:
            return None
        with self._explain_damage(part.table):
            looked_at = find_condition_columns(tuple(conditions))
            read = self.tables[part.table].read(part, integers, texts, looked_at, reals)
            if read is None or not conditions:
                return read and (read[0], np.zeros(0, np.int64))
            columns, values, types = read
            in_sql = [self.make_condition(part.table, where) for where in conditions]
            # Some look other tables up.
            alone = not any("SELECT" in where for where in in_sql)
            asked = self._evaluate if alone else self.query
            met = evaluate_conditions(asked, values, types, columns.rows, in_sql)
        return None if met is None else (columns, met)

    def _read_by_sql(
        self,
        part: Part,
        integers: tuple[str, ...],
        texts: tuple[str, ...],
        where: str = "",
        conditions: Sequence[str] = (),
        reals: tuple[str, ...] = (),
    ) -> tuple[Columns, np.ndarray]:
        """Return columns of the rows of a part that meet a condition, and which of others each of
        them meets, as bits.
        """
        have = self.tables[part.table].columns
        present = [name for name in integers if name in have]
        damaged = [f"(typeof({quote_name(name)}) NOT IN ('integer', 'null'))" for name in present]
        met = [self.make_condition(part.table, condition) for condition in conditions]
        expressions = [
            f"{' + '.join(damaged) or 0} AS {quote_name(DAMAGED_VALUES)}",
            f"{select_condition_bits(met) or 0} AS {quote_name(MET)}",
            *map(_AS_INTEGER.format, map(quote_name, present)),
            *map(_AS_REAL.format, (quote_name(name) for name in reals if name in have)),
            *(_AS_TEXT.format(quote_name(name)) for name in texts if name in have),
        ]
        frame = self.select(
            f"SELECT {', '.join(expressions)} FROM {self.select_rows(part)} WHERE {self.make_condition(part.table, where)}"
        )
        numbers = {name: frame[name].fill_null(NULL).to_numpy() for name in present}
        numbers |= {
            name: frame[name].cast(pl.Float64).fill_null(np.nan).to_numpy()
            for name in reals
            if name in have
        }
        lacking, no_reals = np.full(frame.height, NULL), np.full(frame.height, np.nan)
        words = {}
        for name in texts:
            column = frame[name] if name in have else pl.Series([b""] * frame.height)
            distinct, codes = number_distinct(column.cast(pl.Binary))
            words[name] = codes, DistinctTexts(distinct)
        rows = Columns(
            frame.height,
            {name: numbers.get(name, lacking) for name in integers}
            | {name: numbers.get(name, no_reals) for name in reals},
            words,
            int(frame[DAMAGED_VALUES].sum()),
        )
        return rows, frame[MET].to_numpy()

    def read_once(
        self,
        part: Part,
        integers: tuple[str, ...],
        texts: tuple[str, ...],
        conditions: Sequence[str],
    ) -> Shared | None:
        """Return columns of all rows of a part, and which of some conditions (as in
        :meth:`make_condition`) each row meets; None where damage forbids it: :meth:`read` tells what is
        damaged.
        """
        columns, met = self._read_pages(part, integers, texts, conditions) or self._read_by_sql(
            part, integers, texts, conditions=conditions
        )
        return None if columns.damaged else Shared(part, columns, met)

    def read_stacks(self, table: str, low: int, high: int, of_all: bool = False) -> StackRows:
        """Return the call stacks with ids from `low` to `high` of a table that has :data:`FRAME_COLUMNS`.
        Unless `of_all`, the rows are taken to be in the order of the ids, and no others are looked at.
        """
        source = self.tables[table]
        with self._explain_damage(table):
            stacks = None if of_all or not source.rowid else source.read_stacks(low, high)
            if stacks is None:
                source.check_rows()
        if stacks is None:
            where = f"{{id}} BETWEEN {low} AND {high}"
            rows = self._read_by_sql(source.whole, FRAME_COLUMNS, (), where)[0]
            stacks = StackRows.from_frames(rows)
        return stacks

    def select_rows(self, part: Part, where: str = "") -> str:
        """Return the rows of a part that meet a condition as a table expression in SQL, for one
        :meth:`select`.
        """
        if not part.rowid:
            rows = f"LIMIT {part.rows} OFFSET {part.first - 1}"
        elif isinstance(part, SomeRows):
            rows = f"WHERE {part.rowid} IN ({', '.join(map(str, part.rowids))})"
        else:
            rows = f"WHERE {part.rowid} BETWEEN {part.first} AND {part.last}"
        selected = f"(SELECT * FROM {name_rows(part.table)} {rows})"
        if not where:
            return selected
        return f"(SELECT * FROM {selected} WHERE {self.make_condition(part.table, where)})"

    def select(self, sql: str) -> pl.DataFrame:
        """Return the result of a larger query whose columns each have one type."""
        self.connection.text_factory = bytes
        try:
            with self._explain_damage():
                return read_cursor(self.connection.execute(sql))
        finally:
            self.connection.text_factory = _decode


def read_cursor(cursor: sqlite3.Cursor) -> pl.DataFrame:
    """Return the result of a query whose columns each have one type, and whose texts are bytes."""
    names = [name for name, *_ in cursor.description]
    frames = []
    while rows := cursor.fetchmany(BLOCK_ROWS):
        columns = zip(names, zip(*rows, strict=True), strict=True)
        frames.append(pl.DataFrame([_make_series(*column) for column in columns]))
    if not frames:
        return pl.DataFrame(schema=dict.fromkeys(names, pl.Int64))
    return pl.concat(frames, how="vertical_relaxed").with_columns(pl.col(pl.Null).cast(pl.Int64))


class _StringIds(Struct):
    """Makes lists of ids of registered strings in SQL."""

    #: The report.
    database: Database

    def __format__(self, begin: str) -> str:
        if self.database.size > SMALL_FILE:
            return f"SELECT id FROM {name_rows('StringIds')} WHERE value GLOB '{begin}*'"
        texts = self.database.strings.items()
        return ", ".join(str(number) for number, text in texts if text.startswith(begin))


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _make_series(name: str, values: Sequence[object]) -> pl.Series:
    """Return a column of integers, of numbers among which are reals, or of bytes. Raises ValueError
    where it has values of several types.
    """
    types = {*map(type, values)} - {type(None)}
    for kind, of_kind in ((pl.Null, set()), (pl.Int64, {int}), (pl.Binary, {bytes})):
        if types == of_kind:
            return pl.Series(name, values, kind)
    if types <= {int, float}:
        return pl.Series(name, values, pl.Float64, strict=False)
    raise ValueError("columns of mixed types")
