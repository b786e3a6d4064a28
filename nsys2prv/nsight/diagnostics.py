"""What Nsight Systems itself said while it recorded a report: errors, lost events, fallbacks."""

from __future__ import annotations

import re

from msgspec import Struct

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
