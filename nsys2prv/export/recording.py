"""Read how a report was recorded: messages of Nsight Systems (DIAGNOSTIC_EVENT) about errors, lost
events and fallbacks, and the time of the capture.

Rows far outside the capture are damaged: a single one would stretch a trace over years.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeGuard

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import find_bounds
from nsys2prv.export.database import Database
from nsys2prv.export.outlines import TIMES
from nsys2prv.export.source import NULL, TIME_LIMIT, mask_usable

DIAGNOSTICS = "DIAGNOSTIC_EVENT"
#: Values of ENUM_DIAGNOSTIC_SEVERITY_LEVEL, and the value of ENUM_DIAGNOSTIC_SOURCE_TYPE for the
#: profiled process.
INFO, WARNING, ERROR = 1, 2, 3
INJECTION = 1
#: Process ids of messages that belong to no profiled process: the daemon's, and Nsight's own.
NO_PROCESSES = (0, 0xFFFFFF)
#: Maximum number of distinct messages that are read per report; usually there are a few tens.
#: Maximum number of characters in a message's label, and in its text.
MOST_MESSAGES = 10_000
LONGEST_MESSAGE, LONGEST_READ = 160, 2000
#: Nsight reports missing CUPTI buffers as mere information.
_LOSS = re.compile(
    r"\b(lost|dropped|missing|not all|buffers?|overflow\w*|truncated)\b", re.IGNORECASE
)
_SURE_LOSS = re.compile(r"\b(lost|dropped|missing|not all|overflowed|truncated)\b", re.IGNORECASE)
_FALLBACK = re.compile(
    r"\b(instead|legacy|fall(ing|s)? back|fell back|inaccurate|libraries for driver version)\b",
    re.IGNORECASE,
)
#: Starts of the messages that state when the capture started and stopped.
_STARTED, _STOPPED = "profiling has started", "profiling has stopped"
_LAUNCHED = re.compile(r"Process .* launched by the profiler", re.IGNORECASE | re.DOTALL)
#: The message about each library that a program does not use.
_UNUSED = re.compile(r"No (.+) events collected\. Does the process use \1\?")
#: An absolute path with at least one folder, on Windows (where folder names may contain blanks) or
#: on other systems. The groups are the file's name.
_PATH = re.compile(
    r"""(?<![\w/\\])(?:[A-Za-z]:\\(?:[^\\:*?"<>|]+\\)+([^\s\\,;]+)|(?:/[^\s/]+)+/([^\s/,;]+))"""
)
#: Rows may be outside the recorded time by as much as its length, and at least by this (ns).
MARGIN = 10 * 1_000_000_000
#: GPU work is recorded completely, so it is within the recorded time, except for the error of the
#: GPU's clock: less than this (ns), or this share of the recorded time.
GPU_MARGIN, GPU_MARGIN_SHARE = 10_000_000, 0.1
#: A longer duration of a capture (ns: 30 days) is damage too.
LONGEST_CAPTURE = 30 * 86_400 * 1_000_000_000
#: Without a recorded duration, rows belong together if gaps are shorter than this multiple of the
#: span so far, or than this time (ns).
GAP_FACTOR, GAP = 100, 3_600 * 1_000_000_000
#: At most one in this many sampled rows may be separate; with more, it is unknown which ones are
#: wrong.
APART_SHARE = 4
#: Tables with rows that are not events of the program.
OTHER_TABLES = ("ANALYSIS_DETAILS", "DIAGNOSTIC_EVENT", "PROFILER_OVERHEAD")
#: Number of tables (the largest) from which times are sampled.
MOST_TABLES = 8


class Message(Struct, frozen=True):
    """A message of Nsight Systems, shortened to a label, and how often it occurs in a report."""

    #: As Nsight Systems numbers them.
    severity: int
    #: One line.
    text: str
    #: How often the report has it.
    count: int = 1

    @property
    def loss(self) -> bool:
        """True if the message reports data missing from the report."""
        return bool((_LOSS if self.severity >= WARNING else _SURE_LOSS).search(self.text))

    @property
    def fallback(self) -> bool:
        """True if the message reports a fallback collection method."""
        return bool(_FALLBACK.search(self.text))

    @property
    def unused(self) -> bool:
        """True if the message only reports that the program does not use a library."""
        return bool(_UNUSED.fullmatch(self.text))


@lru_cache(1000)
def shorten_message(text: str) -> str:
    """Return a message as a label: one line with the first sentences, and file names without
    folders (which reveal users and machines). Advice on commands after a line break is removed.
    """
    first = text[:LONGEST_READ].strip().split("\n", 1)[0]
    line = " ".join(_PATH.sub(lambda match: match[1] or match[2], first).split())
    if len(line) <= LONGEST_MESSAGE:
        return line
    sentences, end, _ = line[:LONGEST_MESSAGE].rpartition(". ")
    return f"{sentences}." if end else f"{line[: LONGEST_MESSAGE - 3].rstrip()}..."


class Diagnostic(NamedTuple):
    """A distinct text among Nsight Systems' messages, with its number and times."""

    severity: int
    text: str
    #: Number of times that a report contains it, and the first and last time (local ns; None if no
    #: time is known).
    count: int
    first: int | None
    last: int | None


def read_diagnostics(database: Database) -> list[Diagnostic]:
    """Return the distinct messages of a report, warnings and errors first."""
    if not database.has(DIAGNOSTICS, "severity", "text"):
        return []
    times: dict[tuple[int, str], list[object]] = defaultdict(list)
    rows = database.read_small_table(DIAGNOSTICS, "text", "severity", "timestamp", types=(str,))
    for text, severity, time in rows:
        times[severity if _is_integer(severity) else 0, text].append(time)
    found = sorted(times, key=lambda one: (one[0] not in (WARNING, ERROR), *one))[:MOST_MESSAGES]
    known = {one: list(filter(_is_integer, times[one])) for one in found}
    return [
        Diagnostic(
            *one, len(times[one]), min(known[one], default=None), max(known[one], default=None)
        )
        for one in found
    ]


def list_messages(diagnostics: Iterable[Diagnostic]) -> tuple[Message, ...]:
    """Return the messages that are warnings or errors, or report a loss or a fallback."""
    messages = (
        Message(
            one.severity if one.severity in (WARNING, ERROR) else INFO,
            shorten_message(one.text),
            one.count,
        )
        for one in diagnostics
    )
    return tuple(one for one in messages if one.severity > INFO or one.loss or one.fallback)


def find_main_process(database: Database) -> int | None:
    """Return the globalPid of the report's main process (the first with a message), or None.
    Messages without a process are written on its row.
    """
    if not database.has(DIAGNOSTICS, "timestamp", "source", "globalPid"):
        return None
    found = (
        (source != INJECTION, time if _is_integer(time) else NULL, pid)
        for pid, source, time in database.read_small_table(
            DIAGNOSTICS, "globalPid", "source", "timestamp", types=(int,)
        )
        if pid >> 24 & 0xFFFFFF not in NO_PROCESSES
    )
    return min(found, default=(None,))[-1]


def find_capture_span(diagnostics: Sequence[Diagnostic], first: int, last: int) -> tuple[int, int]:
    """Return (start, stop) of the capture (local ns), from messages that state them. Return `first`
    and `last` if there are none, or if they are inconsistent with these.
    """
    starts, stops = (
        [getattr(one, which) for one in diagnostics if one.text.lower().startswith(text)]
        for which, text in (("first", _STARTED), ("last", _STOPPED))
    )
    started = max(first, min((time for time in starts if time is not None), default=first))
    stopped = min(last, max((time for time in stops if time is not None), default=last))
    return (started, stopped) if started <= stopped else (first, last)


def was_launched(diagnostics: Iterable[Diagnostic], span: tuple[int, int] | None) -> bool:
    """Return True if the profiled processes were launched during the capture. span: of the capture
    (local ns), None if unknown.
    """
    launches = (one.first for one in diagnostics if _LAUNCHED.match(one.text))
    first = min((time for time in launches if time is not None), default=None)
    return span is not None and first is not None and span[0] <= first <= span[1]


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int)


def is_setting_on(database: Database, setting: str) -> bool:
    """Return True if a setting of the capture, such as COLLECT_MPI_TRACE, is on for any process."""
    rows = database.read_small_table("META_DATA_CAPTURE", "name", "value", types=(str, str))
    return any(value == "true" and name.upper().endswith(setting) for name, value in rows)


def was_cuda_traced(database: Database, tables: Collection[str]) -> bool:
    """Return True if CUDA was traced, as shown by event tables, settings or tracing overhead."""
    if any(table.startswith("CUPTI_") for table in tables):
        return True
    if is_setting_on(database, "COLLECT_CUDA_TRACE"):
        return True
    cost = "{value} LIKE 'CUDA profiling init%'"
    ids = database.read_small_table("StringIds", "id", where=cost)
    return bool(ids) and "PROFILER_OVERHEAD" in tables


class Capture(Struct, frozen=True):
    """The range of times that rows of a report may have (local ns, both ends included); times
    outside are damaged.
    """

    #: Earliest time (local ns).
    first: int = -TIME_LIMIT
    #: Latest time (local ns).
    last: int = TIME_LIMIT
    #: Earliest and latest time of GPU work (local ns).
    gpu: tuple[int, int] = (-TIME_LIMIT, TIME_LIMIT)

    def holds(self, times: np.ndarray, span: tuple[int, int] | None = None) -> bool:
        """Return True if all times are inside a span, which is the usual case. span: (first, last);
        None for the range of this capture.
        """
        (first, last), (least, greatest) = span or (self.first, self.last), find_bounds(times)
        return least >= first and greatest <= last

    def mask_far(self, times: np.ndarray) -> np.ndarray:
        """Return a mask of the times far outside the capture, which are damaged. Times that do not
        fit a trace are not included.
        """
        return ((times < self.first) | (times > self.last)) & mask_usable(times)

    def mask_far_work(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return a mask of GPU work (local ns) that is partly outside the capture. Times that do
        not fit a trace are not included.
        """
        early, late = begin < self.gpu[0], end > self.gpu[1]
        return (early & mask_usable(begin)) | (late & mask_usable(end))


def read_capture(database: Database, begins: Sequence[int], duration: int | None) -> Capture:
    """Return the range of times that rows of the report may have. begins: candidates for the start
    of the capture (local ns), the most likely first. duration: its length (ns), or None.
    """
    times = _sample_times(database)
    if not len(times):
        return Capture()
    for begin in begins if duration is not None else ():
        margin = max(duration, MARGIN)
        near = max(int(duration * GPU_MARGIN_SHARE), GPU_MARGIN)
        capture = Capture(begin - margin, begin + duration + margin)
        work = begin - near, begin + duration + near
        outside, apart = (
            np.count_nonzero((times < first) | (times > last))
            for first, last in ((capture.first, capture.last), work)
        )
        if apart * APART_SHARE < len(times):
            return replace(capture, gpu=work)
        if 2 * outside <= len(times):
            return capture
    return _find_main_span(times)


def read_duration(database: Database) -> int | None:
    """Return the length of the capture (ns) stated in the report, or None if it is implausible."""
    durations = []
    rows = database.read_small_table("ANALYSIS_DETAILS", "duration", "startTime", "stopTime")
    for duration, start, stop in rows:
        if not isinstance(duration, int) and isinstance(start, int) and isinstance(stop, int):
            duration = stop - start
        if isinstance(duration, int) and 0 < duration <= LONGEST_CAPTURE:
            durations.append(duration)
    return max(durations, default=None)


def _sample_times(database: Database) -> np.ndarray:
    """Return sorted times of a few rows from each of the largest event tables."""
    columns = {
        name: time
        for name, table in database.tables.items()
        if table.whole.rows
        and name not in OTHER_TABLES
        and not name.startswith("TARGET_INFO")
        and (time := next(filter(table.columns.__contains__, TIMES), None))
    }
    largest = sorted(columns, key=lambda name: -database.tables[name].whole.rows)[:MOST_TABLES]
    times = np.array(database.sample_integers({name: columns[name] for name in largest}), np.int64)
    return np.sort(times[mask_usable(times)])


def _find_main_span(times: np.ndarray) -> Capture:
    """Return the bounds that contain most of these sorted times; without bounds if too few are
    close together.
    """
    low = high = len(times) // 2
    while True:
        gap = max(GAP, GAP_FACTOR * (int(times[high]) - int(times[low])))
        if low > 0 and int(times[low]) - int(times[low - 1]) <= gap:
            low -= 1
        elif high + 1 < len(times) and int(times[high + 1]) - int(times[high]) <= gap:
            high += 1
        else:
            break
    if (len(times) - (high + 1 - low)) * APART_SHARE > len(times):
        return Capture()
    return Capture(int(times[low]) - gap, int(times[high]) + gap)
