"""Numbers for names that no list knows: the name alone decides, so that it has the same number in
every trace.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Set


def hashed_numbers(
    names: Iterable[str], first: int, last: int, forbidden: Set[int] = frozenset()
) -> dict[str, int]:
    """Return a number from `first` to `last` for each name.

    It is the one that the name's text hashes to; where two names meet on it, the later in
    alphabetical order moves to the next free one. More names than numbers go on beyond `last`.
    """
    slots = last - first + 1
    taken = set(forbidden)
    numbers = {}
    for name in sorted(set(names)):
        number = first + zlib.crc32(name.encode("utf-8", "surrogatepass")) % slots
        while number in taken:
            number = number + 1 if len(taken) >= slots or number < last else first
        taken.add(number)
        numbers[name] = number
    return numbers
