"""Mutate the contents of a database: tables, columns and rows. Each mutation takes a generator and
an open connection.
"""

import sqlite3
from collections.abc import Callable
from random import Random

from . import values

Mutation = Callable[[Random, sqlite3.Connection], None]
#: What has the user's environment; moving it elsewhere would make it something else.
PRIVATE = ("TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE")
HOST = "name = 'Hostname'"


def list_tables(connection: sqlite3.Connection, private: bool = False) -> list[str]:
    names = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
    )
    return [name for (name,) in names if private or name not in PRIVATE]


def list_columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({quote(table)})")]


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def choose_table(random: Random, connection: sqlite3.Connection) -> str:
    names = list_tables(connection)
    events = [name for name in names if not name.startswith("ENUM_")]
    return random.choice(events or names)


def choose_column(random: Random, connection: sqlite3.Connection) -> tuple[str, str]:
    table = choose_table(random, connection)
    return table, random.choice(list_columns(connection, table))


def choose_rows(random: Random) -> str:
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
        f"UPDATE OR IGNORE {quote(table)} SET {quote(column)} = {expression} WHERE "
        + choose_rows(random).format(quote(table)),
        (value,),
    )


def drop_table(random: Random, connection: sqlite3.Connection) -> None:
    connection.execute(f"DROP TABLE {quote(random.choice(list_tables(connection, private=True)))}")


def drop_column(random: Random, connection: sqlite3.Connection) -> None:
    table, column = choose_column(random, connection)
    connection.execute(f"ALTER TABLE {quote(table)} DROP COLUMN {quote(column)}")


def rename_table(random: Random, connection: sqlite3.Connection) -> None:
    table = choose_table(random, connection)
    name = random.choice(
        (
            table.lower(),
            table + "_",
            "sqlitely",
            "a b\"c'",
            "é\n[x]",
            choose_table(random, connection),
        )
    )
    connection.execute(f"ALTER TABLE {quote(table)} RENAME TO {quote(table + '~')}")
    connection.execute(f"DROP TABLE IF EXISTS {quote(name)}")
    connection.execute(f"ALTER TABLE {quote(table + '~')} RENAME TO {quote(name)}")


def rename_column(random: Random, connection: sqlite3.Connection) -> None:
    table, column = choose_column(random, connection)
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
    connection.execute(f"ALTER TABLE {quote(table)} RENAME COLUMN {quote(column)} TO {quote(name)}")


def swap_columns(random: Random, connection: sqlite3.Connection) -> None:
    table = choose_table(random, connection)
    first, second = (
        random.choice(list_columns(connection, table)),
        random.choice(list_columns(connection, table)),
    )
    connection.execute(
        f"UPDATE OR IGNORE {quote(table)} SET {quote(first)} = {quote(second)}, {quote(second)} = {quote(first)}"
        if first != second
        else "SELECT 1"
    )


def retype(random: Random, connection: sqlite3.Connection) -> None:
    """Put the same rows into a table with other types, or without rowids."""
    table = choose_table(random, connection)
    names = list_columns(connection, table)
    kind = random.choice(
        ("TEXT", "REAL", "BLOB", "INTEGER", "NUMERIC", "", "BOOLEAN", "JSON", "DATETIME")
    )
    changed = random.choice((*names, None))
    declared = ", ".join(
        f"{quote(name)} {kind if name == changed or changed is None else 'INTEGER'}"
        for name in names
    )
    cast = ", ".join(
        f"CAST({quote(name)} AS {kind or 'NUMERIC'})" if name == changed else quote(name)
        for name in names
    )
    end = random.choice(("", "", " WITHOUT ROWID"))
    key = f", PRIMARY KEY ({', '.join(map(quote, names))})" if end else ""
    connection.execute(f"CREATE TABLE {quote(table + '~')} ({declared}{key}){end}")
    connection.execute(
        f"INSERT OR IGNORE INTO {quote(table + '~')} SELECT {cast} FROM {quote(table)}"
    )
    connection.execute(f"DROP TABLE {quote(table)}")
    connection.execute(f"ALTER TABLE {quote(table + '~')} RENAME TO {quote(table)}")


def set_nulls(random: Random, connection: sqlite3.Connection) -> None:
    update(random, connection, *choose_column(random, connection), None)


def set_wrong_values(random: Random, connection: sqlite3.Connection) -> None:
    update(random, connection, *choose_column(random, connection), values.draw_anything(random))


def add_wrong_row(random: Random, connection: sqlite3.Connection) -> None:
    table = choose_table(random, connection)
    names = list_columns(connection, table)
    for _ in range(random.randrange(1, 4)):
        connection.execute(
            f"INSERT OR IGNORE INTO {quote(table)} VALUES ({', '.join('?' * len(names))})",
            [values.draw_anything(random) for _ in names],
        )


def change_times(random: Random, connection: sqlite3.Connection) -> None:
    """Make times negative, huge, scaled, all the same, or the end before the begin."""
    columns = [
        (table, column)
        for table in list_tables(connection)
        for column in list_columns(connection, table)
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
    table, column = random.choice(columns or [choose_column(random, connection)])
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
    if "start" in change and "start" not in list_columns(connection, table):
        change = "1"
    connection.execute(
        f"UPDATE OR IGNORE {quote(table)} SET {quote(column)} = {change.format(quote(column))} WHERE "
        + choose_rows(random).format(quote(table))
    )


def set_dangling_ids(random: Random, connection: sqlite3.Connection) -> None:
    columns = [
        (table, column)
        for table in list_tables(connection)
        for column in list_columns(connection, table)
        if column.lower().endswith(("id", "name", "tid", "pid", "index", "type"))
    ]
    table, column = random.choice(columns or [choose_column(random, connection)])
    update(random, connection, table, column, values.draw_integer(random))


def change_names(random: Random, connection: sqlite3.Connection) -> None:
    columns = [
        (table, column)
        for table in list_tables(connection)
        for column in list_columns(connection, table)
        if (table, column) == ("StringIds", "value")
        or column.lower() in {"text", "name", "domainname", "uuid", "filename"}
    ]
    table, column = random.choice(columns or [choose_column(random, connection)])
    connection.create_function("hostile", 1, lambda _: values.draw_text(random))
    many = random.random() < 0.5
    if many:
        connection.execute(
            f"UPDATE OR IGNORE {quote(table)} SET {quote(column)} = hostile({quote(column)}) "
            f"WHERE {choose_rows(random).format(quote(table))}"
        )
    else:
        update(random, connection, table, column, values.draw_text(random))


def change_host_name(random: Random, connection: sqlite3.Connection) -> None:
    if "TARGET_INFO_SYSTEM_ENV" in list_tables(connection, private=True):
        connection.execute(
            f"UPDATE TARGET_INFO_SYSTEM_ENV SET value = ? WHERE {HOST}",
            (values.draw_anything(random),),
        )


def name_every_range(random: Random, connection: sqlite3.Connection) -> None:
    """Give every range a name of its own."""
    if {"start", "end", "text", "globalTid", "eventType"} <= set(
        list_columns(connection, "NVTX_EVENTS") or ()
    ):
        count = 100_000 if random.random() < 0.01 else 1000
        connection.execute(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) INSERT OR IGNORE INTO "
            "NVTX_EVENTS (start, end, eventType, globalTid, text) SELECT 10 * i, 10 * i + 5, 59, "
            "(SELECT min(globalTid) FROM NVTX_EVENTS), 'name ' || i FROM n"
        )


def set_far_rowids(random: Random, connection: sqlite3.Connection) -> None:
    table = choose_table(random, connection)
    place = random.choice((-5, 2**40, 2**63 - 1, -(2**63), 0))
    connection.execute(
        f"UPDATE OR IGNORE {quote(table)} SET rowid = {place} WHERE rowid = (SELECT max(rowid) FROM {quote(table)})"
    )


def repeat_rows(random: Random, connection: sqlite3.Connection) -> None:
    table = choose_table(random, connection)
    connection.execute(f"INSERT OR IGNORE INTO {quote(table)} SELECT * FROM {quote(table)}")


def delete_rows(random: Random, connection: sqlite3.Connection) -> None:
    connection.execute(f"DELETE FROM {quote(choose_table(random, connection))}")


def replace_by_view(random: Random, connection: sqlite3.Connection) -> None:
    """Put a view in the place of a table, which would never end, fill memory or write if it were
    read.
    """
    table = choose_table(random, connection)
    body = random.choice(
        (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start, i AS end FROM n",
            "SELECT zeroblob(900000000) AS start, hex(zeroblob(400000000)) AS end",
            "SELECT load_extension('/tmp/owned.so') AS start",
            f"SELECT * FROM {quote(table)}",
            "SELECT * FROM nowhere",
        )
    )
    connection.execute(f"DROP TABLE {quote(table)}")
    connection.execute(f"CREATE VIEW {quote(table)} AS {body}")


def add_trigger(random: Random, connection: sqlite3.Connection) -> None:
    table = choose_table(random, connection)
    for event in ("INSERT", "UPDATE", "DELETE"):
        connection.execute(
            f"CREATE TRIGGER IF NOT EXISTS {quote(f'{table} {event}')} AFTER {event} ON {quote(table)} "
            "BEGIN SELECT load_extension('/tmp/owned.so'); END"
        )


def add_computed_columns(random: Random, connection: sqlite3.Connection) -> None:
    """Add generated columns and indexes on expressions, which reading could compute."""
    table, column = choose_column(random, connection)
    connection.execute(
        f"ALTER TABLE {quote(table)} RENAME COLUMN {quote(column)} TO {quote(column + '~')}"
    )
    connection.execute(
        f"ALTER TABLE {quote(table)} ADD COLUMN {quote(column)} AS (hex(zeroblob(300000000)))"
    )


def add_virtual_table(random: Random, connection: sqlite3.Connection) -> None:
    table = choose_table(random, connection)
    connection.execute(f"DROP TABLE {quote(table)}")
    connection.execute(f"CREATE VIRTUAL TABLE {quote(table)} USING fts5(start, end, text)")


def damage_schema(random: Random, connection: sqlite3.Connection) -> None:
    """Damage the catalogue of the database itself."""
    connection.commit()
    connection.execute("PRAGMA writable_schema = ON")
    table = choose_table(random, connection)
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
    set_nulls: 6,
    set_wrong_values: 12,
    add_wrong_row: 8,
    change_times: 10,
    set_dangling_ids: 10,
    change_names: 8,
    change_host_name: 1,
    name_every_range: 1,
    set_far_rowids: 3,
    repeat_rows: 3,
    delete_rows: 3,
    replace_by_view: 2,
    add_trigger: 1,
    add_computed_columns: 1,
    add_virtual_table: 1,
    damage_schema: 2,
}
