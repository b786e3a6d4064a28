"""Define errors and signals, the two ways in which a run ends early, each with one line and an exit
status.

As long as there is nothing to clean up, a signal ends the process immediately, because an exception
raised during imports may get lost or be printed. Later, it raises :class:`EndedBySignal`. Only the
command handles signals; programs that import nsys2prv keep their own handlers.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# For type checkers: the command is to start soon.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from sys import UnraisableHookArgs
    from types import FrameType


class Nsys2prvError(Exception):
    """Error for users: the problem, the file, and the remedy, in one line."""

    exit_code = 1


class UsageError(Nsys2prvError):
    """Raised if the command line, or an argument in Python, asks for something impossible."""

    exit_code = 2


class Unreadable(Nsys2prvError):
    """Raised if one of several reports cannot be read. `report`: its path as given."""

    def __init__(self, text: str, report: Path) -> None:
        super().__init__(text)
        self.report = report


class NothingToWrite(Nsys2prvError):
    """Raised if the reports can be read, but contain no events of the requested kinds."""

    exit_code = 3


@contextmanager
def name_damaged_file(path: Path | str) -> Iterator[None]:
    """In a `with` block, convert an OSError into a Nsys2prvError that names the file."""
    try:
        yield
    except OSError as error:
        raise Nsys2prvError(f"{path}: {error.strerror or error}") from error


SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
#: A second Ctrl-C within this time (seconds) means the same as the first; later, it means that
#: cleanup takes too long.
GRACE_SECONDS = 3.0
#: After an exception that could not be raised, how soon another one is (seconds).
AGAIN_SECONDS = 0.01

#: Those that are handled here; others were ignored or handled already when the command began.
_handled: list[int] = []
#: Time of the last exception raised; whether it was lost; whether it is being reported now, when
#: another one would be lost too.
_raised = -GRACE_SECONDS
_lost = _in_hook = False
#: Blocks that delay signals, one within another, and the signal that came meanwhile.
_delays = _delayed = 0


#: Files that are in place, complete.
_written: list[str] = []


def note_written(*paths: object) -> None:
    """Record that these files are complete, so that the message of an interrupted run names them."""
    _written.extend(map(str, paths))


class EndedBySignal(BaseException):
    """Raised when a signal asks this run to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def __str__(self) -> str:
        return _describe_ending(self.number)

    @property
    def exit_code(self) -> int:
        """Return the exit status that shells give to a process ended by this signal."""
        return 128 + self.number


def end_on_signal() -> None:
    """From now on, signals end the process immediately with one line. There is nothing to clean up
    yet.
    """
    usual = (signal.SIG_DFL, signal.default_int_handler)
    _handled[:] = [
        number
        for name in SIGNALS
        if (number := getattr(signal, name, 0)) and signal.getsignal(number) in usual
    ]
    _set_handler(_end)


def raise_on_signal() -> None:
    """From now on, signals raise :class:`EndedBySignal`, also during polars calls; the handler of
    polars would ignore them while the program waits.
    """
    _set_handler(_raise)
    if _handled:
        sys.unraisablehook = _raise_unraisable_later


def ignore_signals() -> None:
    """From now on, ignore signals, because the work is done or has failed."""
    _set_handler(signal.SIG_IGN)


def _set_handler(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    for number in _handled:
        signal.signal(number, handler)


def _end(number: int, _: object) -> None:
    os.write(2, f"nsys2prv: error: {_describe_ending(number)}\n".encode())
    os._exit(128 + number)


@contextmanager
def delay_signals() -> Iterator[None]:
    """In a `with` block, delay the exceptions that signals raise (:func:`raise_on_signal`) until
    its end.
    """
    global _delays, _delayed
    _delays += 1
    try:
        yield
    finally:
        _delays -= 1
        if _delayed and not _delays:
            number, _delayed = _delayed, 0
            _raise(number, None)


def _raise(number: int, _: object) -> None:
    global _raised, _lost, _delayed
    if _delays:
        _delayed = number
    elif not _in_hook and (_lost or time.monotonic() - _raised > GRACE_SECONDS):
        _raised, _lost = time.monotonic(), False
        raise EndedBySignal(number)


def _raise_unraisable_later(lost: UnraisableHookArgs) -> None:
    """Raise an exception again later if it was raised in a destructor, where Python ignores
    exceptions.
    """
    global _lost, _in_hook
    ending = lost.exc_value
    if not isinstance(ending, EndedBySignal):
        sys.__unraisablehook__(lost)
        return
    import threading

    _lost = _in_hook = True
    threading.Thread(target=_repeat_signal, args=(ending.number,), daemon=True).start()
    _in_hook = False


def _repeat_signal(number: int) -> None:
    while _lost:
        time.sleep(AGAIN_SECONDS)
        # Send it to the process, because its main thread may be waiting.
        os.kill(os.getpid(), number)


def _describe_ending(number: int) -> str:
    how = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
    return f"{how}; {describe_written()}"


def describe_written() -> str:
    """Return a text that names the files that this run has written."""
    if not _written:
        return "nothing was written"
    more = f" and {len(_written) - 1:,} more" if len(_written) > 1 else ""
    return f"{_written[0]}{more} had been written"
