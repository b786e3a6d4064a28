"""SQLite's ADBC driver: results of queries in SQL as polars frames, for what is not read from pages
(:mod:`nsys2prv.nsight.sqlite_pages`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import adbc_driver_manager as manager
import adbc_driver_sqlite
import polars as pl

#: Rows of a batch: more than are read at a time, so that they come in one piece, whose first rows
#: settle the types of all.
BATCH_ROWS = str(1 << 18)


class Driver:
    """A connection to a database, which is there until :meth:`close`. unreadable: makes what is
    raised where the database is damaged.

    first: a statement that is executed before all queries.
    """

    def __init__(self, uri: str, first: str, unreadable: Callable[[Exception], Exception]) -> None:
        self._make_unreadable_error = unreadable
        try:
            self._database = adbc_driver_sqlite.connect(uri)
            self._connection = manager.AdbcConnection(self._database)
            with manager.AdbcStatement(self._connection) as statement:
                statement.set_sql_query(first)
                statement.execute_update()
        except (manager.Error, UnicodeError) as error:
            raise self._make_unreadable_error(error) from None

    def close(self) -> None:
        self._connection.close()
        self._database.close()

    def frame(self, sql: str) -> pl.DataFrame | None:
        """Return a query's whole result, or None where a column has values of several types."""
        statement = manager.AdbcStatement(self._connection)
        try:
            statement.set_options(**{"adbc.sqlite.query.batch_rows": BATCH_ROWS})
            statement.set_sql_query(sql)
            stream, _ = statement.execute_query()
            return pl.DataFrame(stream)
        except (manager.Error, pl.exceptions.PolarsError, UnicodeError) as error:
            if "mismatch" in str(error).lower():
                return None
            raise self._make_unreadable_error(error) from None
        finally:
            # Of a damaged database it may raise again what the reading did.
            with suppress(manager.Error):
                statement.close()
