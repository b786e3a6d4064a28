"""Reading small files that users give: rules, clocks, labels of earlier traces."""

from __future__ import annotations

import stat
from pathlib import Path

from nsys2prv.errors import Nsys2prvError
from nsys2prv.sizes import size_text

#: Bytes of the largest file that is read as rules or clocks, and of the largest .pcf.
LARGEST_TEXT, LARGEST_PCF = 32_000_000, 1_000_000_000


def read_given(path: Path, largest: int = LARGEST_TEXT) -> bytes:
    """The content of a regular file of at most `largest` bytes.

    Raises OSError where it cannot be read, and Nsys2prvError for a pipe or device, which may never end, and for a larger file.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise Nsys2prvError(f"{path}: is not a regular file; give the name of a file")
    with path.open("rb") as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise Nsys2prvError(f"{path}: is larger than {size_text(largest)}, the most that is read of such a file")
    return content
