"""What can be asked for as a method of aligning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nsys2prv.clock.record import ClockRecord, read_record
from nsys2prv.errors import Nsys2prvError
from nsys2prv.given_files import read_given
from nsys2prv.relations.kind import MPI, NCCL

#: What --align takes beside the name of a clock file: everything observed, one model's observations, UTC alone, local times as they are.
AUTO, UTC, NONE = "auto", "utc", "none"
METHODS = (AUTO, UTC, MPI, NCCL, NONE)


def asked(method: str) -> str | ClockRecord:
    """What --align means. Raises Nsys2prvError for what is neither a method nor a clock file."""
    if method in METHODS:
        return method
    path = Path(method)
    try:
        # How ranks were moved beyond the corrections belongs to the trace that the file was written with.
        return replace(read_record(read_given(path).decode("utf-8"), method), causal=None)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise Nsys2prvError(f"--align {method}: none of {', '.join(METHODS)}, and no clock file ({why})") from None
