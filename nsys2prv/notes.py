"""What a conversion has to say beside its warnings."""

from __future__ import annotations


class Detail(str):
    """A note that asks nobody to do anything: told with --verbose and in the file beside the trace."""

    __slots__ = ()
