"""Notes on a job, for its summary: text, and who needs it."""

from __future__ import annotations

from msgspec import Struct


class Note(Struct, frozen=True):
    """A note on what was found or left out."""

    text: str
    #: True for one that needs no action: shown with --verbose and in the file beside the trace.
    is_routine: bool = False
    #: True for one on clocks that do not agree, shown with the hosts' clocks.
    is_on_clocks: bool = False
