"""Frames in files: those of one task, which mostly are small, in one file, as making a file takes
longer than filling it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import polars as pl


@dataclass(frozen=True)
class StoredFrame:
    """A frame in a file: `size` bytes from `offset` on (Arrow IPC, as a stream: of small frames
    polars reads it some twenty times faster than the file format).
    """

    path: Path
    offset: int
    size: int


class FrameWriter:
    """Appends frames to one file, which is made with the first of them if it is not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None

    def append(self, frame: pl.DataFrame) -> StoredFrame:
        """Store a frame."""
        if self._file is None:
            # Opened here: a path of the system need not be text, as polars wants it.
            self._file = self.path.open("ab")
        offset = self._file.tell()
        frame.write_ipc_stream(self._file)
        return StoredFrame(self.path, offset, self._file.tell() - offset)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> FrameWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_frame(stored: StoredFrame, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """Return the frame, or some columns of it."""
    with stored.path.open("rb") as file:
        file.seek(stored.offset)
        return pl.read_ipc_stream(
            file.read(stored.size), columns=None if columns is None else list(columns)
        )
