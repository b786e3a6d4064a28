"""Putting the text of a trace into files: parts written apart, then joined under a temporary name and moved into place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import numpy as np

#: Larger writes cost more per byte on common kernels.
WRITE_BYTES = 1 << 20
GZIP_LEVEL = 1


class PartWriter:
    """A file of text, or of one gzip member (Paraver reads a file of many members)."""

    def __init__(self, path: Path, compress: bool) -> None:
        self._file = path.open("wb", buffering=0)
        self._gzip = None
        if compress:
            from isal import isal_zlib

            self._gzip = isal_zlib.compressobj(GZIP_LEVEL, isal_zlib.DEFLATED, 31)

    def write(self, text: np.ndarray | bytes) -> None:
        data = memoryview(text).cast("B")
        for start in range(0, len(data), WRITE_BYTES):
            piece = data[start:start + WRITE_BYTES]
            self._put(self._gzip.compress(piece) if self._gzip else piece)

    def _put(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while len(view):
            view = view[self._file.write(view):]

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if self._gzip and kind is None:
                self._put(self._gzip.flush())
        finally:
            self._file.close()


def join(parts: Iterable[Path], target: Path) -> None:
    """Append the parts to `target` in order, removing each once it is copied."""
    with target.open("ab", buffering=0) as out:
        for part in parts:
            with part.open("rb", buffering=0) as source:
                _copy(source, out, part.stat().st_size)
            part.unlink()


def _copy(source, out, size: int) -> None:
    """Copy inside the kernel where it can."""
    done = 0
    if hasattr(os, "sendfile"):
        try:
            while done < size:
                sent = os.sendfile(out.fileno(), source.fileno(), done, min(WRITE_BYTES, size - done))
                if not sent:
                    break
                done += sent
            return
        except OSError:
            if done:
                raise
    shutil.copyfileobj(source, out, WRITE_BYTES)


def trace_paths(output: str | Path, compress: bool) -> tuple[Path, Path, Path]:
    """The .prv (or .prv.gz), .pcf and .row of an output given as `out`, `out.prv` or `out.prv.gz`."""
    path = Path(output)
    name = path.name
    for ending in (".prv.gz", ".prv"):
        if name.endswith(ending):
            name = name[: -len(ending)]
            compress = compress or ending == ".prv.gz"
            break
    folder = path.parent
    return folder / (name + (".prv.gz" if compress else ".prv")), folder / f"{name}.pcf", folder / f"{name}.row"
