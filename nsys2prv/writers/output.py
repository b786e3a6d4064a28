"""Files that several processes write part by part, one part a window; compressed if wanted."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from io import FileIO
from pathlib import Path

import numpy as np
from msgspec import Struct

#: Larger writes cost more per byte on common kernels.
WRITE_BYTES = 1 << 20
GZIP_LEVEL = 1
#: How often a part looks whether those before it are written, in seconds.
LOOK_SECONDS = 0.0005
_FAILED = -1


class Output(Struct, frozen=True):
    """A file that several processes write, part by part."""

    #: The file that is written.
    path: Path
    #: Folder for temporary files, seen by all processes.
    folder: Path
    #: Each part is a gzip member of its own; Paraver and Perfetto read files of many.
    compress: bool

    def begin(self, head: bytes, parts: int) -> None:
        """Make the file with its first bytes, to be followed by `parts` parts."""
        self.path.write_bytes(b"".join(_compress([head], self.compress)))

    def write_part(self, number: int, pieces: Iterable[np.ndarray | bytes]) -> None:
        """Write part `number`, from 0 on."""
        raise NotImplementedError

    def collect(self, number: int) -> None:
        """Collect a written part. Called once for every part, in order, by the process that began
        the file.
        """

    def abandon(self) -> None:
        """Give the file up: let no part wait for another."""


class SharedFileOutput(Output):
    """Processes of one machine write each part where it belongs, one after the other: a file system
    lets but one write to a file at a time, and who waits for that would keep a processor busy.
    """

    @property
    def _places(self) -> Path:
        """A file with the place of each part (int64; 0 until all before it are written)."""
        return self.folder / "places"

    def _map_places(self) -> np.ndarray:
        return np.memmap(self._places, np.int64, "r+")

    def begin(self, head: bytes, parts: int) -> None:
        super().begin(head, parts)
        self._places.write_bytes(
            np.append(self.path.stat().st_size, np.zeros(parts, np.int64)).tobytes()
        )

    def write_part(self, number: int, pieces: Iterable[np.ndarray | bytes]) -> None:
        """Write a part. Waits until all parts before it are written, so those must be under way."""
        places = self._map_places()
        try:
            data = _compress(pieces, self.compress)
            while not places[number]:
                time.sleep(LOOK_SECONDS)
            place = int(places[number])
            if place == _FAILED:
                raise OSError(f"{self.path}: a part before this one was not written")
            with self.path.open("r+b", buffering=0) as out:
                out.seek(place)
                _write_all(out, data)
            places[number + 1] = place + sum(map(len, data))
        except BaseException:
            places[number + 1] = _FAILED
            raise

    def abandon(self) -> None:
        places = self._map_places()
        np.copyto(places, _FAILED, where=places == 0)


class PartFilesOutput(Output):
    """Each part is a file of its own until it is appended: for processes of several machines that
    share a file system.
    """

    def _make_part_path(self, number: int) -> Path:
        return self.folder / f"part-{number}"

    def write_part(self, number: int, pieces: Iterable[np.ndarray | bytes]) -> None:
        with self._make_part_path(number).open("wb", buffering=0) as out:
            _write_all(out, _compress(pieces, self.compress))

    def collect(self, number: int) -> None:
        part = self._make_part_path(number)
        with self.path.open("ab", buffering=0) as out, part.open("rb", buffering=0) as source:
            shutil.copyfileobj(source, out, WRITE_BYTES)
        part.unlink()


def _compress(pieces: Iterable[np.ndarray | bytes], compress: bool) -> list[memoryview]:
    """Return the bytes to write."""
    views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
    if not compress:
        return views
    from isal import isal_zlib

    gzip = isal_zlib.compressobj(GZIP_LEVEL, isal_zlib.DEFLATED, 31)
    return [memoryview(data) for data in (*map(gzip.compress, views), gzip.flush()) if data]


def _write_all(out: FileIO, data: Iterable[memoryview]) -> None:
    for piece in data:
        for start in range(0, len(piece), WRITE_BYTES):
            left = piece[start : start + WRITE_BYTES]
            while len(left):
                left = left[out.write(left) :]
