"""List the processes of this machine, by /proc."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def _list_processes() -> Iterator[tuple[int, int, int]]:
    """Yield number, parent and group of all processes that have not ended."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            state, parent, leader = path.read_text().rpartition(")")[2].split()[:3]
            if state != "Z":
                yield int(path.parent.name), int(parent), int(leader)


def list_children(pid: int) -> list[int]:
    """Return the children of a process."""
    return [number for number, parent, _ in _list_processes() if parent == pid]


def list_group(leader: int) -> list[int]:
    """Return the processes of a group."""
    return [number for number, _, of in _list_processes() if of == leader]
