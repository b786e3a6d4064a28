"""Notes of a conversion besides its warnings: plain notes ask for attention, details do not."""

from __future__ import annotations


class Detail(str):
    """A note that asks nobody to do anything: told with --verbose and in the file beside the trace."""

    __slots__ = ()


class ClockNote(str):
    """A note on clocks that do not agree: told with what is known of the hosts' clocks."""

    __slots__ = ()
