"""Show progress on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tqdm import tqdm

#: How much of a command's time each of its phases takes, against the others.
WEIGHTS = {"opening": 5, "reading": 45, "clocks": 15, "writing": 30, "analysing": 30, "page": 10}
#: Phases before a job can be written or analysed.
PREPARING = ("opening", "reading", "clocks")
#: Seconds for which nothing is shown.
SILENT = 1.0
BAR_FORMAT = "{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"


class Progress:
    """One bar for all phases of a command, where people watch: on terminals and in notebooks. A
    phase that is none of those ahead has a bar of its own, if no other is shown.
    """

    def __init__(self, quiet: bool, phases: Iterable[str] = ()) -> None:
        self._off = quiet or not ("ipykernel" in sys.modules or sys.stderr.isatty())
        self._ahead = list(phases)
        self._bar: tqdm | None = None

    @contextmanager
    def show_phase(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """Yield what is told how many more of the `total` pieces of a phase are done."""
        if self._off or (self._bar is not None and name not in self._ahead):
            yield lambda _: None
            return
        if name not in self._ahead:
            self._ahead = [name]
        if self._bar is None:
            from tqdm import tqdm

            whole = sum(WEIGHTS[phase] for phase in self._ahead)
            self._bar = tqdm(
                total=whole, bar_format=BAR_FORMAT, delay=SILENT, file=sys.stderr, leave=False
            )
        bar, left = self._bar, float(WEIGHTS[name])
        bar.set_description_str(name, refresh=False)

        def advance(pieces: int) -> None:
            nonlocal left
            done = min(left, WEIGHTS[name] * pieces / max(1, total))
            left -= done
            bar.update(done)

        try:
            yield advance
            bar.update(left)
            self._ahead.remove(name)
        except BaseException:
            self._ahead.clear()
            raise
        finally:
            if not self._ahead:
                bar.close()
                self._bar = None
