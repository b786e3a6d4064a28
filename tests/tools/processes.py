"""Processes of this machine, by /proc."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def _list_processes() -> Iterator[tuple[int, int, int]]:
    """Number, parent and group of all that are not over."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            state, parent, leader = path.read_text().rpartition(")")[2].split()[:3]
            if state != "Z":
                yield int(path.parent.name), int(parent), int(leader)


def list_children(pid: int) -> list[int]:
    return [number for number, parent, _ in _list_processes() if parent == pid]


def list_group(leader: int) -> list[int]:
    """The processes of a group."""
    return [number for number, _, of in _list_processes() if of == leader]
