"""Mutations of what a database says: its tables, columns and rows. Each takes a generator and an
open connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from random import Random

from . import values

Mutation = Callable[[Random, sqlite3.Connection], None]
#: What has the user's environment; moving it elsewhere would make it something else.
PRIVATE = ("TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE")
HOST = "name = 'Hostname'"


def tables(connection: sqlite3.Connection, private: bool = False) -> list[str]:
    found = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
    )
    return [name for (name,) in found if private or name not in PRIVATE]


def columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({quoted(table)})")]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def a_table(random: Random, connection: sqlite3.Connection) -> str:
    found = tables(connection)
    events = [name for name in found if not name.startswith("ENUM_")]
    return random.choice(events or found)


def a_column(random: Random, connection: sqlite3.Connection) -> tuple[str, str]:
    table = a_table(random, connection)
    return table, random.choice(columns(connection, table))


def some_rows(random: Random) -> str:
    return random.choice(
        (
            "1",
            "rowid % 2",
            "rowid % 7 = 3",
            "rowid = (SELECT min(rowid) FROM {0})",
            "rowid = (SELECT max(rowid) FROM {0})",
        )
    )


def update(
    random: Random, connection: sqlite3.Connection, table: str, column: str, value: object
) -> None:
    expression = "CAST(? AS TEXT)" if isinstance(value, bytes) and random.random() < 0.7 else "?"
    connection.execute(
        f"UPDATE OR IGNORE {quoted(table)} SET {quoted(column)} = {expression} WHERE "
        + some_rows(random).format(quoted(table)),
        (value,),
    )


def drop_table(random: Random, connection: sqlite3.Connection) -> None:
    connection.execute(f"DROP TABLE {quoted(random.choice(tables(connection, private=True)))}")


def drop_column(random: Random, connection: sqlite3.Connection) -> None:
    table, column = a_column(random, connection)
    connection.execute(f"ALTER TABLE {quoted(table)} DROP COLUMN {quoted(column)}")


def rename_table(random: Random, connection: sqlite3.Connection) -> None:
    table = a_table(random, connection)
    name = random.choice(
        (table.lower(), table + "_", "sqlitely", "a b\"c'", "é\n[x]", a_table(random, connection))
    )
    connection.execute(f"ALTER TABLE {quoted(table)} RENAME TO {quoted(table + '~')}")
    connection.execute(f"DROP TABLE IF EXISTS {quoted(name)}")
    connection.execute(f"ALTER TABLE {quoted(table + '~')} RENAME TO {quoted(name)}")


def rename_column(random: Random, connection: sqlite3.Connection) -> None:
    table, column = a_column(random, connection)
    name = random.choice(
        (
            "rowid",
            "oid",
            "x\"y'z\n",
            "{start}",
            "start",
            "end",
            "globalTid",
            "text",
            "value",
            "id",
            column.upper(),
        )
    )
    connection.execute(
        f"ALTER TABLE {quoted(table)} RENAME COLUMN {quoted(column)} TO {quoted(name)}"
    )


def swap_columns(random: Random, connection: sqlite3.Connection) -> None:
    table = a_table(random, connection)
    one, other = (
        random.choice(columns(connection, table)),
        random.choice(columns(connection, table)),
    )
    connection.execute(
        f"UPDATE OR IGNORE {quoted(table)} SET {quoted(one)} = {quoted(other)}, {quoted(other)} = {quoted(one)}"
        if one != other
        else "SELECT 1"
    )


def retype(random: Random, connection: sqlite3.Connection) -> None:
    """The same rows in a table with other types, or without rowids."""
    table = a_table(random, connection)
    names = columns(connection, table)
    kind = random.choice(
        ("TEXT", "REAL", "BLOB", "INTEGER", "NUMERIC", "", "BOOLEAN", "JSON", "DATETIME")
    )
    changed = random.choice((*names, None))
    declared = ", ".join(
        f"{quoted(name)} {kind if name == changed or changed is None else 'INTEGER'}"
        for name in names
    )
    cast = ", ".join(
        f"CAST({quoted(name)} AS {kind or 'NUMERIC'})" if name == changed else quoted(name)
        for name in names
    )
    end = random.choice(("", "", " WITHOUT ROWID"))
    key = f", PRIMARY KEY ({', '.join(map(quoted, names))})" if end else ""
    connection.execute(f"CREATE TABLE {quoted(table + '~')} ({declared}{key}){end}")
    connection.execute(
        f"INSERT OR IGNORE INTO {quoted(table + '~')} SELECT {cast} FROM {quoted(table)}"
    )
    connection.execute(f"DROP TABLE {quoted(table)}")
    connection.execute(f"ALTER TABLE {quoted(table + '~')} RENAME TO {quoted(table)}")


def nulls(random: Random, connection: sqlite3.Connection) -> None:
    update(random, connection, *a_column(random, connection), None)


def wrong_values(random: Random, connection: sqlite3.Connection) -> None:
    update(random, connection, *a_column(random, connection), values.anything(random))


def wrong_row(random: Random, connection: sqlite3.Connection) -> None:
    table = a_table(random, connection)
    names = columns(connection, table)
    for _ in range(random.randrange(1, 4)):
        connection.execute(
            f"INSERT OR IGNORE INTO {quoted(table)} VALUES ({', '.join('?' * len(names))})",
            [values.anything(random) for _ in names],
        )


def times(random: Random, connection: sqlite3.Connection) -> None:
    """Negative, huge, scaled, end before begin, all the same."""
    found = [
        (table, column)
        for table in tables(connection)
        for column in columns(connection, table)
        if column.lower()
        in {
            "start",
            "end",
            "timestamp",
            "rawtimestamp",
            "utcepochns",
            "systemclockns",
            "duration",
            "time",
        }
    ]
    table, column = random.choice(found or [a_column(random, connection)])
    change = random.choice(
        (
            "-{0}",
            "{0} * 1000003",
            "{0} - 9000000000000000000",
            "{0} + 9000000000000000000",
            "CAST({0} AS REAL)",
            "0",
            "{0} / 1000000",
            "9223372036854775807",
            "-9223372036854775808",
            "{0} || ''",
            "{0} + 0.5",
            "start - 5",
            "{0} + 86400000000000 * 400",
            "2305843009213693951",
            "-2305843009213693951",
        )
    )
    if "start" in change and "start" not in columns(connection, table):
        change = "1"
    connection.execute(
        f"UPDATE OR IGNORE {quoted(table)} SET {quoted(column)} = {change.format(quoted(column))} WHERE "
        + some_rows(random).format(quoted(table))
    )


def dangling(random: Random, connection: sqlite3.Connection) -> None:
    found = [
        (table, column)
        for table in tables(connection)
        for column in columns(connection, table)
        if column.lower().endswith(("id", "name", "tid", "pid", "index", "type"))
    ]
    table, column = random.choice(found or [a_column(random, connection)])
    update(random, connection, table, column, values.integer(random))


def names(random: Random, connection: sqlite3.Connection) -> None:
    found = [
        (table, column)
        for table in tables(connection)
        for column in columns(connection, table)
        if (table, column) == ("StringIds", "value")
        or column.lower() in {"text", "name", "domainname", "uuid", "filename"}
    ]
    table, column = random.choice(found or [a_column(random, connection)])
    connection.create_function("hostile", 1, lambda _: values.text(random))
    many = random.random() < 0.5
    if many:
        connection.execute(
            f"UPDATE OR IGNORE {quoted(table)} SET {quoted(column)} = hostile({quoted(column)}) "
            f"WHERE {some_rows(random).format(quoted(table))}"
        )
    else:
        update(random, connection, table, column, values.text(random))


def host_name(random: Random, connection: sqlite3.Connection) -> None:
    if "TARGET_INFO_SYSTEM_ENV" in tables(connection, private=True):
        connection.execute(
            f"UPDATE TARGET_INFO_SYSTEM_ENV SET value = ? WHERE {HOST}", (values.anything(random),)
        )


def many_names(random: Random, connection: sqlite3.Connection) -> None:
    """Every range a name of its own."""
    if {"start", "end", "text", "globalTid", "eventType"} <= set(
        columns(connection, "NVTX_EVENTS") or ()
    ):
        count = 100_000 if random.random() < 0.01 else 1000
        connection.execute(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) INSERT OR IGNORE INTO "
            "NVTX_EVENTS (start, end, eventType, globalTid, text) SELECT 10 * i, 10 * i + 5, 59, "
            "(SELECT min(globalTid) FROM NVTX_EVENTS), 'name ' || i FROM n"
        )


def far_rowids(random: Random, connection: sqlite3.Connection) -> None:
    table = a_table(random, connection)
    place = random.choice((-5, 2**40, 2**63 - 1, -(2**63), 0))
    connection.execute(
        f"UPDATE OR IGNORE {quoted(table)} SET rowid = {place} WHERE rowid = (SELECT max(rowid) FROM {quoted(table)})"
    )


def repeated(random: Random, connection: sqlite3.Connection) -> None:
    table = a_table(random, connection)
    connection.execute(f"INSERT OR IGNORE INTO {quoted(table)} SELECT * FROM {quoted(table)}")


def no_rows(random: Random, connection: sqlite3.Connection) -> None:
    connection.execute(f"DELETE FROM {quoted(a_table(random, connection))}")


def view(random: Random, connection: sqlite3.Connection) -> None:
    """A view in the place of a table, which would never end, fill memory or write if it were read."""
    table = a_table(random, connection)
    body = random.choice(
        (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start, i AS end FROM n",
            "SELECT zeroblob(900000000) AS start, hex(zeroblob(400000000)) AS end",
            "SELECT load_extension('/tmp/owned.so') AS start",
            f"SELECT * FROM {quoted(table)}",
            "SELECT * FROM nowhere",
        )
    )
    connection.execute(f"DROP TABLE {quoted(table)}")
    connection.execute(f"CREATE VIEW {quoted(table)} AS {body}")


def trigger(random: Random, connection: sqlite3.Connection) -> None:
    table = a_table(random, connection)
    for event in ("INSERT", "UPDATE", "DELETE"):
        connection.execute(
            f"CREATE TRIGGER IF NOT EXISTS {quoted(f'{table} {event}')} AFTER {event} ON {quoted(table)} "
            "BEGIN SELECT load_extension('/tmp/owned.so'); END"
        )


def computed(random: Random, connection: sqlite3.Connection) -> None:
    """Generated columns and indexes on expressions, which reading could compute."""
    table, column = a_column(random, connection)
    connection.execute(
        f"ALTER TABLE {quoted(table)} RENAME COLUMN {quoted(column)} TO {quoted(column + '~')}"
    )
    connection.execute(
        f"ALTER TABLE {quoted(table)} ADD COLUMN {quoted(column)} AS (hex(zeroblob(300000000)))"
    )


def virtual(random: Random, connection: sqlite3.Connection) -> None:
    table = a_table(random, connection)
    connection.execute(f"DROP TABLE {quoted(table)}")
    connection.execute(f"CREATE VIRTUAL TABLE {quoted(table)} USING fts5(start, end, text)")


def schema_text(random: Random, connection: sqlite3.Connection) -> None:
    """Damage to the catalogue of the database itself."""
    connection.commit()
    connection.execute("PRAGMA writable_schema = ON")
    table = a_table(random, connection)
    change = random.choice(
        (
            "sql = 'nonsense'",
            "sql = NULL",
            "rootpage = 1",
            "rootpage = 99999",
            "rootpage = 0",
            "rootpage = -1",
            "sql = replace(sql, 'INTEGER', 'TEXT')",
            "sql = replace(sql, ',', ', extra INTEGER,')",
            "type = 'index'",
            "rootpage = (SELECT max(rootpage) FROM sqlite_master)",
            "name = 'sqlite_x'",
            "tbl_name = ''",
            "sql = 'CREATE TABLE x(a, a)'",
            "sql = 'CREATE VIRTUAL TABLE ' || name || ' USING nothing'",
        )
    )
    connection.execute(f"UPDATE sqlite_master SET {change} WHERE name = ?", (table,))


#: With how often each is taken.
MUTATIONS: dict[Mutation, int] = {
    drop_table: 4,
    drop_column: 5,
    rename_table: 2,
    rename_column: 3,
    swap_columns: 4,
    retype: 5,
    nulls: 6,
    wrong_values: 12,
    wrong_row: 8,
    times: 10,
    dangling: 10,
    names: 8,
    host_name: 1,
    many_names: 1,
    far_rowids: 3,
    repeated: 3,
    no_rows: 3,
    view: 2,
    trigger: 1,
    computed: 1,
    virtual: 1,
    schema_text: 2,
}
