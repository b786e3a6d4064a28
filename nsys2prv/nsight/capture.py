"""When a report's capture was, and what Nsight Systems says of its own work in DIAGNOSTIC_EVENT:
errors, lost events, fallbacks.

Rows far outside the capture are damage: one of them would stretch a trace over years.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from nsys2prv.nsight.columns import NULL, TIME_LIMIT, mask_usable
from nsys2prv.nsight.source import Source

TABLE = "DIAGNOSTIC_EVENT"
#: ENUM_DIAGNOSTIC_SEVERITY_LEVEL, and of ENUM_DIAGNOSTIC_SOURCE_TYPE what runs in the profiled
#: process.
INFO, WARNING, ERROR = 1, 2, 3
INJECTION = 1
#: Process ids of messages that belong to no profiled process: the daemon's, and Nsight's own.
NO_PROCESSES = (0, 0xFFFFFF)
#: Distinct messages of a report that are looked at; there are some tens.
MOST = 10_000
LONGEST_MESSAGE, LONGEST_READ = 160, 2000
#: Nsight tells of missing CUPTI buffers as mere information.
_LOSS = re.compile(
    r"\b(lost|dropped|missing|not all|buffers?|overflow\w*|truncated)\b", re.IGNORECASE
)
_SURE_LOSS = re.compile(r"\b(lost|dropped|missing|not all|overflowed|truncated)\b", re.IGNORECASE)
_FALLBACK = re.compile(
    r"\b(instead|legacy|fall(ing|s)? back|fell back|inaccurate|libraries for driver version)\b",
    re.IGNORECASE,
)
#: What is said of every library that a program does not use.
_UNUSED = re.compile(r"No (.+) events collected\. Does the process use \1\?")
#: A path from the root, without the folders of which there is at least one: of Windows, where
#: folders may have blanks, and of others.
_PATH = re.compile(
    r"""(?<![\w/\\])(?:[A-Za-z]:\\(?:[^\\:*?"<>|]+\\)+([^\s\\,;]+)|(?:/[^\s/]+)+/([^\s/,;]+))"""
)


class Message(Struct, frozen=True):
    """A message, shortened, and how often a report has it."""

    #: As Nsight Systems numbers them.
    severity: int
    #: One line.
    text: str
    #: How often the report has it.
    count: int = 1

    @property
    def loss(self) -> bool:
        """True if the message says that something is missing from the report."""
        return bool((_LOSS if self.severity >= WARNING else _SURE_LOSS).search(self.text))

    @property
    def fallback(self) -> bool:
        """True if the message says that something was recorded in another way than asked for."""
        return bool(_FALLBACK.search(self.text))

    @property
    def unused(self) -> bool:
        """True if the message only says that the program does not use a library."""
        return bool(_UNUSED.fullmatch(self.text))


def shorten_message(text: str) -> str:
    """Return a message as a label: one line, files without their folders (which name users and
    machines), the first sentences.

    Advice on commands to try, which follows a line break, is left out.
    """
    first = text[:LONGEST_READ].strip().split("\n", 1)[0]
    line = " ".join(_PATH.sub(lambda match: match[1] or match[2], first).split())
    if len(line) <= LONGEST_MESSAGE:
        return line
    sentences = line[:LONGEST_MESSAGE].rsplit(". ", 1)
    return (
        f"{sentences[0]}." if len(sentences) > 1 else f"{line[: LONGEST_MESSAGE - 3].rstrip()}..."
    )


def read_messages(database: Source) -> tuple[Message, ...]:
    """Return the distinct messages of a report that are more than information, or tell of a loss."""
    if not database.has(TABLE, "severity", "text"):
        return ()
    rows = database.query(
        f"SELECT severity, text, count(*) FROM {TABLE} WHERE typeof(text) = 'text' "
        f"GROUP BY 1, 2 ORDER BY severity IN ({WARNING}, {ERROR}) DESC, 1, 2 LIMIT {MOST}"
    )
    messages = [
        Message(severity if severity in (WARNING, ERROR) else INFO, shorten_message(text), count)
        for severity, text, count in rows
    ]
    return tuple(
        message
        for message in messages
        if message.severity > INFO or message.loss or message.fallback
    )


def find_main_process(database: Source) -> int | None:
    """Return the globalPid of the report's main process, whose row has the messages that belong to
    no process: the first with a message of its own.
    """
    if not database.has(TABLE, "timestamp", "source", "globalPid"):
        return None
    of_process = (
        f"(globalPid >> 24 & 16777215) NOT IN {NO_PROCESSES} AND typeof(globalPid) = 'integer'"
    )
    rows = database.query(
        f"SELECT globalPid FROM {TABLE} WHERE {of_process} ORDER BY source != {INJECTION}, timestamp, globalPid LIMIT 1"
    )
    return rows[0][0] if rows else None


#: Rows may lie outside of the recorded time by as much again, and at least by this (ns).
MARGIN = 10 * 1_000_000_000
#: A capture that is said to be longer (ns: 30 days) is damage too.
LONGEST_CAPTURE = 30 * 86_400 * 1_000_000_000
#: Without a recorded time, rows lie together as long as gaps are not so many times longer than all
#: before, nor longer than this (ns).
GAP_FACTOR, GAP = 100, 3_600 * 1_000_000_000
#: Of the rows looked at, at least one in so many may lie apart from the others; of more it is not
#: known which are wrong.
FEW = 4
#: Columns with a row's time, of which the first that a table has tells where its rows lie; and
#: those with other times.
TIMES = ("start", "timestamp", "rawTimestamp", "startedAt")
ENDS = ("end", "endedAt")
#: Tables that are not of the program's events.
OTHER_TABLES = ("ANALYSIS_DETAILS", "DIAGNOSTIC_EVENT", "PROFILER_OVERHEAD")
#: So many tables are looked at, the largest.
MOST_TABLES = 8


class Capture(Struct, frozen=True):
    """The times (ns, local) that rows may have, both included."""

    #: Earliest time (local ns).
    first: int = -TIME_LIMIT
    #: Latest time (local ns).
    last: int = TIME_LIMIT

    def has_far_times(self, times: np.ndarray) -> bool:
        """True if any time may be far outside, by one look at all of them."""
        return bool(len(times)) and (int(times.min()) < self.first or int(times.max()) > self.last)

    def mask_far(self, times: np.ndarray) -> np.ndarray:
        """Return a mask of the times far outside, except those that no trace can hold."""
        return ((times < self.first) | (times > self.last)) & mask_usable(times)


def read_capture(database: Source, utc_ns: int | None) -> Capture:
    """Return the capture of a report. utc_ns: when it began in UTC, for reports whose times are in
    UTC.
    """
    times = _sample_times(database)
    if not len(times):
        return Capture()
    duration = read_duration(database)
    for begin in (0, utc_ns) if duration is not None else ():
        if begin is None:
            continue
        margin = max(duration, MARGIN)
        capture = Capture(begin - margin, begin + duration + margin)
        if 2 * np.count_nonzero((times >= capture.first) & (times <= capture.last)) >= len(times):
            return capture
    return _find_main_span(times)


def read_duration(database: Source) -> int | None:
    """Return the length of the capture (ns) that the report states, None if it is implausible."""
    rows = database.read_small_table("ANALYSIS_DETAILS", "duration", "startTime", "stopTime")
    durations = [duration for duration in map(_parse_duration, rows) if duration is not None]
    return max(durations, default=None)


def _parse_duration(row: tuple) -> int | None:
    duration, start, stop = row
    if not isinstance(duration, int) and isinstance(start, int) and isinstance(stop, int):
        duration = stop - start
    return duration if isinstance(duration, int) and 0 < duration <= LONGEST_CAPTURE else None


def _sample_times(database: Source) -> np.ndarray:
    """Return times of a few rows of every table of events, ascending."""
    columns = dict(_list_time_columns(database))
    largest = sorted(columns, key=lambda name: -database.tables[name].extent.rows)[:MOST_TABLES]
    times = np.array(database.sample_integers({name: columns[name] for name in largest}), np.int64)
    return np.sort(times[mask_usable(times) & (times != NULL)])


def _list_time_columns(database: Source) -> Iterator[tuple[str, str]]:
    for name, table in database.tables.items():
        if table.extent.rows and name not in OTHER_TABLES and not name.startswith("TARGET_INFO"):
            column = next((column for column in TIMES if column in table), None)
            if column is not None:
                yield name, column


def _find_main_span(times: np.ndarray) -> Capture:
    """Return the bounds within which most of these ascending times lie; no bounds if too few do."""
    low = high = len(times) // 2
    while True:
        gap = max(GAP, GAP_FACTOR * (int(times[high]) - int(times[low])))
        if low > 0 and int(times[low]) - int(times[low - 1]) <= gap:
            low -= 1
        elif high + 1 < len(times) and int(times[high + 1]) - int(times[high]) <= gap:
            high += 1
        else:
            break
    if (len(times) - (high + 1 - low)) * FEW > len(times):
        return Capture()
    return Capture(int(times[low]) - gap, int(times[high]) + gap)


def find_capture_span(database: Source, capture: Capture) -> tuple[int, int]:
    """Return when the capture started and stopped (local ns), by the messages that say so; without
    one, the times that rows may have.
    """
    if not database.has(TABLE, "timestamp", "text"):
        return capture.first, capture.last
    bounds = database.query(
        f"SELECT min(CASE WHEN text LIKE 'Profiling has started%' THEN timestamp END), "
        f"max(CASE WHEN text LIKE 'Profiling has stopped%' THEN timestamp END) FROM {TABLE}"
    )[0]
    first, last = (bound if isinstance(bound, int) else None for bound in bounds)
    first = capture.first if first is None else max(first, capture.first)
    last = capture.last if last is None else min(last, capture.last)
    return (first, last) if first <= last else (capture.first, capture.last)
