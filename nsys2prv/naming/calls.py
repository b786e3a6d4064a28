"""What calls of the CUDA API and of the operating system's libraries do to the thread that makes them, told from their names."""

from __future__ import annotations

import polars as pl

#: Calls that wait until the device has done something.
SYNCHRONISING = r"(?i)^cu(?:da)?(?:Device|Stream|Event|Ctx|Thread|Context)_?Synchronize|^cu(?:da)?Ctx.*Synchronize"
#: Calls that copy or set memory, and those of them that return at once.
COPYING, SETTING, ASYNCHRONOUS = r"(?i)^cu(?:da)?Memcpy", r"(?i)^cu(?:da)?Memset", r"(?i)Async"
#: Calls that may wait for files or the network; locks and timers are no I/O.
IO = (r"^(?:p?readv?2?(?:64)?|p?writev?2?(?:64)?|f?read|f?write|fgets?|fputs?|getc|getline|open(?:at)?(?:64)?|f?open(?:64)?|f?close|"
      r"f(?:data)?sync|sendfile(?:64)?|splice|send(?:m?msg|to)?|recv(?:m?msg|from)?|connect|accept4?|poll|ppoll|select|pselect|"
      r"epoll_p?wait|io_(?:submit|getevents)|fflush|fscanf|fprintf|ioctl)$")


def matching(labels: pl.DataFrame, pattern: str) -> tuple[int, ...]:
    """The values of labels that match. labels: value and label."""
    return tuple(labels.filter(pl.col("label").str.contains(pattern))["value"].to_list())


def synchronising_calls(labels: pl.DataFrame) -> tuple[int, ...]:
    return matching(labels, SYNCHRONISING)


def io_calls(labels: pl.DataFrame) -> tuple[int, ...]:
    return matching(labels, IO)
