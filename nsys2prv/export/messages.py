"""Read Nsight Systems' own messages (DIAGNOSTIC_EVENT): errors, lost events, fallbacks, and when the
capture started and stopped.
"""

from __future__ import annotations

import re

from msgspec import Struct

from nsys2prv.export.source import name_rows
from nsys2prv.export.sqlite import Database

DIAGNOSTICS = "DIAGNOSTIC_EVENT"
#: Its rows in SQL.
MESSAGES = name_rows(DIAGNOSTICS)
#: Values of ENUM_DIAGNOSTIC_SEVERITY_LEVEL, and the value of ENUM_DIAGNOSTIC_SOURCE_TYPE for the
#: profiled process.
INFO, WARNING, ERROR = 1, 2, 3
INJECTION = 1
#: Process ids of messages that belong to no profiled process: the daemon's, and Nsight's own.
NO_PROCESSES = (0, 0xFFFFFF)
#: Distinct messages of a report that are looked at; there are some tens.
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
#: What is said of every library that a program does not use.
_UNUSED = re.compile(r"No (.+) events collected\. Does the process use \1\?")
#: An absolute path with at least one folder: of Windows, whose folders may contain blanks, or of
#: other systems. The groups are the file's name.
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
    sentences, end, _ = line[:LONGEST_MESSAGE].rpartition(". ")
    return f"{sentences}." if end else f"{line[: LONGEST_MESSAGE - 3].rstrip()}..."


def read_messages(database: Database) -> tuple[Message, ...]:
    """Return the distinct messages of a report that are warnings or errors, or that report a loss
    or a fallback.
    """
    if not database.has(DIAGNOSTICS, "severity", "text"):
        return ()
    rows = database.query(
        f"SELECT severity, text, count(*) FROM {MESSAGES} WHERE typeof(text) = 'text' "
        f"GROUP BY 1, 2 ORDER BY severity IN ({WARNING}, {ERROR}) DESC, 1, 2 LIMIT {MOST_MESSAGES}"
    )
    messages = (
        Message(severity if severity in (WARNING, ERROR) else INFO, shorten_message(text), count)
        for severity, text, count in rows
    )
    return tuple(one for one in messages if one.severity > INFO or one.loss or one.fallback)


def find_main_process(database: Database) -> int | None:
    """Return the globalPid of the report's main process, the first with a message of its own; its
    row gets the messages of no process.
    """
    if not database.has(DIAGNOSTICS, "timestamp", "source", "globalPid"):
        return None
    of_process = (
        f"(globalPid >> 24 & 16777215) NOT IN {NO_PROCESSES} AND typeof(globalPid) = 'integer'"
    )
    rows = database.query(
        f"SELECT globalPid FROM {MESSAGES} WHERE {of_process} ORDER BY source != {INJECTION}, timestamp, globalPid LIMIT 1"
    )
    return rows[0][0] if rows else None


def find_capture_span(database: Database, first: int, last: int) -> tuple[int, int]:
    """Return when the capture started and stopped (local ns), by the messages that say so; without
    one, and where they lie outside, `first` and `last`.
    """
    if not database.has(DIAGNOSTICS, "timestamp", "text"):
        return first, last
    started, stopped = database.query(
        f"SELECT min(CASE WHEN text LIKE 'Profiling has started%' THEN timestamp END), "
        f"max(CASE WHEN text LIKE 'Profiling has stopped%' THEN timestamp END) FROM {MESSAGES}"
    )[0]
    started = max(started, first) if isinstance(started, int) else first
    stopped = min(stopped, last) if isinstance(stopped, int) else last
    return (started, stopped) if started <= stopped else (first, last)


def was_launched(database: Database, span: tuple[int, int] | None) -> bool:
    """Return whether the processes were launched within the capture (local ns)."""
    if span is None or not database.has(DIAGNOSTICS, "timestamp", "text"):
        return False
    ((first,),) = database.query(
        f"SELECT min(timestamp) FROM {MESSAGES} WHERE text LIKE 'Process % launched by the profiler%'"
    )
    return isinstance(first, int) and span[0] <= first <= span[1]
