"""Check that the files of a report stay unchanged while they are read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nsys2prv._util.errors import Unreadable

Signature = tuple[tuple[str, int, int, int, int], ...]


def signature(path: Path) -> Signature:
    """Return name, device, inode, size and time of change of a file, or of all files of a folder;
    nothing where there is none.
    """
    try:
        files = sorted(entry.path for entry in os.scandir(path)) if path.is_dir() else [str(path)]
        found = [(file, os.stat(file)) for file in files]
    except OSError:
        return ()
    return tuple(
        (file, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        for file, status in found
    )


@contextmanager
def unchanged(paths: Sequence[Path]) -> Iterator[None]:
    """Check that a report was not replaced, changed or cut during the block. Raises one clear line
    otherwise, whatever error that led to.
    """
    before = {path: signature(path) for path in paths}
    try:
        yield
    except Exception:
        # Whatever it is, of what is no longer there.
        _check(before)
        raise
    _check(before)


def _check(before: dict[Path, Signature]) -> None:
    for path, seen in before.items():
        now = signature(path)
        if seen and now != seen:
            what = "was replaced or changed" if now else "was removed"
            raise Unreadable(
                f"{path}: {what} while it was read; convert it again once it is complete", path
            ) from None
