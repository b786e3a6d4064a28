"""Options of a cut, as users write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal

from msgspec import Struct, field

from nsys2prv._util.errors import UsageError
from nsys2prv._util.text import UNITS

_TIME = re.compile(rf"(\d+(?:\.\d+)?)({'|'.join(UNITS)}|%|)")
_ITERATIONS = re.compile(r"(.+):(\d+)(?:-(\d+))?", re.DOTALL)
#: Ranks, devices and iterations have no more digits.
_NUMBER = re.compile(r"\d{1,9}")


class CutOptions(Struct, frozen=True):
    """Options of a cut. By default nothing is left out."""

    #: FROM:TO of trace time, in seconds, with a unit (ns, us, ms, s) or in % of the trace; either
    #: end may be empty.
    time: str = ""
    #: Glob pattern of NVTX range names: from the first begin to the last end of any. `name:n` or
    #: `name:a-b` takes the n-th on each thread, from 1.
    region: str = ""
    #: Keep the times of the whole trace instead of starting at 0.
    keep_time: bool = False
    #: Ranks to keep, as numbers and ranges; all if empty.
    ranks: tuple[str, ...] = ()
    #: Hosts to keep, as glob patterns; all if empty.
    hosts: tuple[str, ...] = ()
    #: Devices to keep, as numbers in the trace or beginnings of UUIDs; all if empty.
    devices: tuple[str, ...] = ()
    #: Keep the attributes of events.
    arguments: bool = True
    #: Kind of event, by the names that -t takes -> the fields that its events keep.
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Keep communication lines.
    lines: bool = True
    #: Kind of event -> greatest number of samples per second of each metric.
    rates: Mapping[str, int] = field(default_factory=dict)
    #: Greatest size of the .prv in bytes, before compression; cut_size.py reports what is left out
    #: for it.
    max_size: int | None = None


class Moment(Struct, frozen=True):
    """A time of the trace: so many ns, or so much of it (a ratio)."""

    number: Decimal
    ratio: bool = False

    def of(self, duration: int) -> int:
        """Return the time in ns, of a trace of this duration (ns)."""
        return int(self.number * duration) if self.ratio else int(self.number)


class Region(Struct, frozen=True):
    """NVTX ranges by a glob pattern of their names; which of them on each thread, from 1, both
    included; all without.
    """

    pattern: str
    first: int = 1
    last: int | None = None


def parse_span(text: str) -> tuple[Moment | None, Moment | None]:
    """Return the two ends of FROM:TO; None for one that is not given. Raises UsageError."""
    if not text:
        return None, None
    first, colon, last = text.partition(":")
    begin, end = (
        _parse_moment(end.strip(), text) if end.strip() else None for end in (first, last)
    )
    if not colon or (begin is None and end is None):
        raise _span_error(text)
    if begin and end and begin.ratio == end.ratio and end.number < begin.number:
        raise UsageError(f"--time {text}: ends before it begins; give FROM:TO, as in 1s:5s")
    return begin, end


def _parse_moment(text: str, whole: str) -> Moment:
    match = _TIME.fullmatch(text)
    if match is None:
        raise _span_error(whole)
    number = Decimal(match[1])
    if match[2] == "%":
        if number > 100:
            raise UsageError(f"--time {whole}: the trace ends at 100%")
        return Moment(number / 100, ratio=True)
    ns = number * UNITS[match[2] or "s"]
    if ns >= 1 << 61:
        raise UsageError(f"--time {whole}: later than any trace lasts")
    return Moment(ns)


def add_units(text: str) -> str:
    """Return FROM:TO with ns added to the numbers without a unit, which mean seconds; "" where all
    have one.
    """
    ends = [end.strip() for end in text.split(":")]
    told = ":".join(
        f"{end}ns" if (match := _TIME.fullmatch(end)) and not match[2] else end for end in ends
    )
    return told if told != ":".join(ends) else ""


def _span_error(text: str) -> UsageError:
    return UsageError(
        f"--time {text}: give two times of the trace, as in 1.5:2 (seconds), 800ms:1200ms or 10%:20%; "
        "either may be omitted"
    )


def parse_region(text: str) -> Region | None:
    """Return the ranges that are meant; None for an empty text. Raises UsageError."""
    if not text:
        return None
    match = _ITERATIONS.fullmatch(text)
    if match is None:
        return Region(text, 1, None)
    first = int(match[2])
    last = int(match[3]) if match[3] else first
    if not 1 <= first <= last:
        raise UsageError(
            f"--region {text}: iterations are counted from 1, as in {match[1]}:3 or {match[1]}:3-5; "
            "write a colon that belongs to the name as [:]"
        )
    return Region(match[1], first, last)


def parse_numbers(option: str, words: Iterable[str]) -> list[tuple[int, int]]:
    """Return numbers and ranges of them, as (first, last). Raises UsageError."""
    found = []
    for word in words:
        first, dash, last = word.partition("-")
        if not all(_NUMBER.fullmatch(part) for part in ((first, last) if dash else (first,))):
            raise UsageError(f"{option} {word}: give numbers and ranges of them, as in 0-7,64")
        found.append((int(first), int(last or first)))
        if found[-1][0] > found[-1][1]:
            raise UsageError(f"{option} {word}: the range is empty")
    return found
