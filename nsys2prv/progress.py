"""Progress: bars on a terminal's standard error and in notebooks, nothing elsewhere or when quiet."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from tqdm import tqdm

T = TypeVar("T")


class Progress:
    def __init__(self, quiet: bool) -> None:
        self._notebook = "ipykernel" in sys.modules
        self._off = quiet or not (self._notebook or sys.stderr.isatty())

    def bar(self, what: str, total: int, unit: str) -> tqdm | _NoBar:
        """A bar to update by hand."""
        if self._off:
            return _NoBar()
        return self._tqdm()(total=total, desc=what, unit=f" {unit}", unit_scale=True, file=sys.stderr, leave=False)

    def over(self, items: Iterable[T], what: str, total: int) -> Iterable[T]:
        if self._off or total < 2:
            return items
        return self._tqdm()(items, desc=what, total=total, file=sys.stderr, leave=False)

    def _tqdm(self) -> type[tqdm]:
        """The bar that fits: tqdm.auto finds that of notebooks, and takes longer to import."""
        if self._notebook:
            from tqdm.auto import tqdm
        else:
            from tqdm import tqdm
        return tqdm


class _NoBar:
    """What takes the place of a bar that nobody sees, and of importing what draws it."""

    def __enter__(self) -> _NoBar:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, count: int) -> None:
        pass
