"""Pack what a page's script reads into one compressed block: a JSON object, then numbers."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping

import numpy as np

#: Bytes of the longest number as a varint: 8 x 7 bits hold more than a year in ns.
MOST_BYTES = 8
#: Greatest number of a grid: the greatest of its values.
GRID_TOP = 65535


class Pack:
    """A block of bytes that grows."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> int:
        """Append bytes, and return their place."""
        self._parts.append(data)
        self._size += len(data)
        return self._size - len(data)

    def add_columns(self, columns: Iterable[np.ndarray]) -> int:
        """Append columns of numbers, negative ones as 0, and return their place."""
        return self.add(b"".join(encode_varints(column) for column in columns))

    def add_grid(self, values: np.ndarray) -> dict[str, object]:
        """Append numbers (rows, columns), rounded to 1/65535 of the greatest; return where they are."""
        top = float(values.max(initial=0)) or 1.0
        scaled = np.round(np.maximum(values, 0) / top * GRID_TOP).astype("<u2")
        return {"at": self.add(scaled.tobytes()), "columns": values.shape[1], "top": top}

    def finish(self, facts: Mapping[str, object]) -> str:
        """Return the block with these facts in front, in base64."""
        text = json.dumps(facts, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        head = text.encode("utf-8", "replace")
        block = b"".join([len(head).to_bytes(4, "little"), head, *self._parts])
        return base64.b64encode(zlib.compress(block, 9)).decode()


def encode_varints(numbers: np.ndarray) -> bytes:
    """Return numbers as LEB128: seven bits a byte, the lowest first; negative ones as 0."""
    values = np.maximum(np.asarray(numbers, np.int64), 0).astype(np.uint64)
    places = np.arange(MOST_BYTES, dtype=np.uint64)
    groups = (values[:, None] >> (7 * places) & np.uint64(127)).astype(np.uint8)
    sizes = np.maximum(((groups != 0) * np.arange(1, MOST_BYTES + 1)).max(axis=1, initial=0), 1)
    column = np.arange(MOST_BYTES)
    groups[column < sizes[:, None] - 1] |= 128
    return groups[column < sizes[:, None]].tobytes()
