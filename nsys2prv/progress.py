"""Progress on standard error: bars on a terminal, nothing elsewhere or when quiet."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")


class Progress:
    def __init__(self, quiet: bool) -> None:
        self._off = quiet or not sys.stderr.isatty()

    def bar(self, what: str, total: int, unit: str) -> tqdm:
        """A bar to update by hand."""
        return tqdm(total=total, desc=what, unit=f" {unit}", unit_scale=True, disable=self._off, file=sys.stderr, leave=False)

    def over(self, items: Iterable[T], what: str, total: int) -> Iterable[T]:
        return tqdm(items, desc=what, total=total, disable=self._off or total < 2, file=sys.stderr, leave=False)
