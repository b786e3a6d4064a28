"""Errors that end a run with one clear line, with the exit status of each, and notes that do not."""

from __future__ import annotations

from pathlib import Path


class Nsys2prvError(Exception):
    """Error for users: what is wrong, with which file, and what to do, in one line."""

    exit_code = 1


class UsageError(Nsys2prvError):
    """The command line asks for something that cannot be."""

    exit_code = 2


class MissingPackage(Nsys2prvError):
    """An optional package is not installed."""


class Unreadable(Nsys2prvError):
    """One report of several cannot be read: `report`, as it was given."""

    def __init__(self, text: str, report: Path) -> None:
        super().__init__(text)
        self.report = report


class NothingToWrite(Nsys2prvError):
    """The reports are readable but hold no event of the kinds asked for."""

    exit_code = 3


class Detail(str):
    """A note that asks nobody to do anything: told with --verbose and in the file beside the trace."""

    __slots__ = ()


class ClockNote(str):
    """A note on clocks that do not agree: told with what is known of the hosts' clocks."""

    __slots__ = ()
