"""Check that no two layouts give one event type different meanings."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """Event types that a layout uses."""

    #: Layout and field, for messages.
    owner: str
    #: Event types.
    numbers: range
    #: Key that must be equal for claims of one type.
    meaning: Hashable


class Claims:
    """All claims so far. Claims of one event type must have the same meaning."""

    def __init__(self) -> None:
        self._single: dict[int, Claim] = {}
        self._series: list[Claim] = []

    def add(self, owner: str, numbers: range, meaning: Hashable) -> None:
        """Note a claim. Raises ValueError naming both owners where another claim gives one of the
        event types another meaning.
        """
        claim = Claim(owner, numbers, meaning)
        if len(numbers) == 1:
            code = numbers[0]
            others = [
                self._single.setdefault(code, claim),
                *[series for series in self._series if code in series.numbers],
            ]
        else:
            others = [
                *[single for code, single in self._single.items() if code in numbers],
                *self._series,
            ]
            self._series.append(claim)
        for other in others:
            if (
                other.meaning != meaning
                and (code := _first_common(numbers, other.numbers)) is not None
            ):
                raise ValueError(
                    f"event type {code}: {other.owner} and {owner} both use it, with different meanings"
                )


def _first_common(one: range, other: range) -> int | None:
    """Return the least number of two ascending ranges, or None."""
    apart = one[-1] < other[0] or other[-1] < one[0]
    if apart or (one.step == other.step and (one.start - other.start) % one.step):
        return None
    few, many = sorted((one, other), key=len)
    return next((number for number in few if number in many), None)
