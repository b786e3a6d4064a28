"""Progress on standard error: bars on a terminal, nothing elsewhere or when quiet."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from tqdm import tqdm

T = TypeVar("T")


class Progress:
    def __init__(self, quiet: bool) -> None:
        self._off = quiet or not sys.stderr.isatty()

    def bar(self, what: str, total: int, unit: str) -> tqdm | _NoBar:
        """A bar to update by hand."""
        if self._off:
            return _NoBar()
        from tqdm import tqdm

        return tqdm(total=total, desc=what, unit=f" {unit}", unit_scale=True, file=sys.stderr, leave=False)

    def over(self, items: Iterable[T], what: str, total: int) -> Iterable[T]:
        if self._off or total < 2:
            return items
        from tqdm import tqdm

        return tqdm(items, desc=what, total=total, file=sys.stderr, leave=False)


class _NoBar:
    """What takes the place of a bar that nobody sees, and of importing what draws it."""

    def __enter__(self) -> _NoBar:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, count: int) -> None:
        pass
