"""Purposes of the tables that no kind of event reads: the data of ``tables.yaml``."""

from __future__ import annotations

from functools import cache

from nsys2prv._util.data import data_text, shipped

#: Of tables that ``tables.yaml`` does not know.
UNKNOWN = "unknown to this version"


@cache
def _reasons() -> tuple[dict[str, str], dict[str, str]]:
    """Return name -> reason, and the beginning of a name -> reason, the longest first."""
    names: dict[str, str] = {}
    beginnings: dict[str, str] = {}
    for reason, tables in shipped(data_text(__package__, "tables.yaml")).items():
        for table in tables:
            known = beginnings if table.endswith("*") else names
            if table.rstrip("*") in known:
                raise ValueError(f"tables.yaml: {table} stands there twice")
            known[table.rstrip("*")] = reason
    return names, dict(sorted(beginnings.items(), key=lambda item: -len(item[0])))


def reason(table: str) -> str:
    """Return why a table that no kind of event reads is not translated."""
    names, beginnings = _reasons()
    return names.get(table) or next(
        (text for start, text in beginnings.items() if table.startswith(start)), UNKNOWN
    )


def order(text: str) -> int:
    """Return the place of a reason: unknown tables first, then as ``tables.yaml`` has them from its
    end, where those with events are.
    """
    known = list(shipped(data_text(__package__, "tables.yaml")))
    return -known.index(text) if text in known else -len(known)
