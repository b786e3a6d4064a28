"""Show progress on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from tqdm import tqdm

T = TypeVar("T")
R = TypeVar("R")


class Progress:
    """Shows bars where people watch: on terminals and in notebooks."""

    def __init__(self, quiet: bool) -> None:
        self._off = quiet or not ("ipykernel" in sys.modules or sys.stderr.isatty())

    def show_bar(self, what: str, total: int, unit: str) -> tqdm | _NoBar:
        """Return a bar to update by hand."""
        if self._off:
            return _NoBar()
        from tqdm import tqdm

        return tqdm(
            total=total, desc=what, unit=f" {unit}", unit_scale=True, file=sys.stderr, leave=False
        )

    def follow(self, items: Iterable[T], what: str, total: int, unit: str) -> Iterator[T]:
        """Yield the items, with a bar that moves on as they are taken."""
        with self.show_bar(what, total, unit) as bar:
            for item in items:
                bar.update(1)
                yield item


class _NoBar:
    """Placeholder for a progress bar that is not shown; avoids importing the real one."""

    def __enter__(self) -> _NoBar:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, count: int) -> None:
        pass
