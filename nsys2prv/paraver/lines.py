"""Lines of text as sequences of pieces, and batches of them whose numbers stand in columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct

#: Stands behind texts, of which the compiled writer copies as many bytes at once.
_BEHIND = bytes(16)


class Text(Struct, frozen=True):
    """The same text in every line."""

    text: bytes


class Choice(Struct, frozen=True, dict=True):
    """One of several texts by index."""

    texts: tuple[bytes, ...]

    @cached_property
    def joined(self) -> tuple[bytes, np.ndarray]:
        """All texts, one after the other, and where each begins, and the last ends (int32)."""
        return b"".join(self.texts) + _BEHIND, np.cumsum([0, *map(len, self.texts)], dtype=np.int32)


class Number(Struct, frozen=True):
    """A number from 0 up."""


Piece = Text | Choice | Number


class LineShape:
    """A line as a sequence of pieces; the columns to format are those of its choices and numbers,
    in order.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = tuple(pieces)

    @cached_property
    def program(self) -> tuple[tuple, ...]:
        """The pieces for the compiled writer: texts, each with what follows it, see
        `native/lines.c`.
        """
        return tuple(self._steps())

    def _steps(self) -> Iterator[tuple]:
        text = b""
        for piece in self.pieces:
            if isinstance(piece, Text):
                text += piece.text
            else:
                yield (
                    (text + _BEHIND, *piece.joined)
                    if isinstance(piece, Choice)
                    else (text + _BEHIND, None)
                )
                text = b""
        yield (text + _BEHIND,)


class Batch(Struct):
    """Lines of one shape."""

    shape: LineShape
    #: Time of each line, ns.
    times: np.ndarray
    #: Columns of the shape, integers of any size, from 0 up.
    columns: Sequence[np.ndarray]
    #: Order among lines of equal time.
    ties: np.ndarray | None = None
