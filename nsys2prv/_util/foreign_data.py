"""Data that others made: whatever comes of reading it is one line, and what libraries print about
it is not shown.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

import polars as pl

from nsys2prv._util.native import core

#: What data that is not as it should be comes to, somewhere.
WRONG = (
    *(LookupError, ValueError, TypeError, AttributeError, ArithmeticError, AssertionError),
    *(EOFError, RuntimeError, pl.exceptions.PolarsError, pl.exceptions.PanicException),
)
#: What polars prints where it gives up, before it raises.
_PANIC = re.compile(
    rb"\n?thread '[^\n]*' (?:\(\d+\) )?panicked at .*?(?:\nnote: [^\n]*\n?|\Z)", re.DOTALL
)


@contextmanager
def blame_data(error_of: Callable[[BaseException], Exception]) -> Iterator[None]:
    """Turn exceptions that wrong data causes into what `error_of` makes of them."""
    try:
        yield
    except WRONG as error:
        raise error_of(error) from error


class _Panics:
    """Takes what is written to standard error while any thread is within, and gives it back without
    what polars prints of a panic.
    """

    def __init__(self) -> None:
        self._lock, self._standard, self._taken = Lock(), -1, -1
        #: What each thread that is within reads.
        self._files: list[str] = []

    @contextmanager
    def unseen(self, file: str = "") -> Iterator[None]:
        """Hide what is written to standard error meanwhile. file: the one that is read, to be named
        as damaged where reading it aborts the program.
        """
        with self._lock:
            if not self._files:
                self._take()
            self._files.append(file)
            self._prepare_for_abort()
        try:
            yield
        finally:
            with self._lock:
                self._files.remove(file)
                self._prepare_for_abort()
                if not self._files:
                    self._give_back()

    def _prepare_for_abort(self) -> None:
        if core is None or self._standard < 0:
            return
        named = " or ".join(dict.fromkeys(filter(None, self._files)))
        text = (
            f"nsys2prv: error: {named}: is so damaged that reading it ended the program; export the report again\n"
            if named
            else ""
        )
        core.say_on_abort(self._standard, text.encode(errors="surrogateescape"))

    def _take(self) -> None:
        try:
            self._standard = os.dup(2)
        except OSError:  # there is none
            self._standard = -1
            return
        _flush()
        self._taken = _make_unnamed_file()
        os.dup2(self._taken, 2)

    def _give_back(self) -> None:
        if self._standard < 0:
            return
        _flush()
        os.dup2(self._standard, 2)
        if size := os.lseek(self._taken, 0, os.SEEK_END):
            os.lseek(self._taken, 0, os.SEEK_SET)
            rest = _PANIC.sub(b"", os.read(self._taken, size))
            if rest:
                os.write(2, rest)
        os.close(self._taken)
        os.close(self._standard)


def _make_unnamed_file() -> int:
    """Return a new file without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("stderr")
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())


def _flush() -> None:
    if sys.stderr is not None and not sys.stderr.closed:
        sys.stderr.flush()


#: Within it a panic of polars prints nothing.
panics_unseen = _Panics().unseen
