"""The example of a declaration runs."""

from __future__ import annotations

import doctest

from nsys2prv.events import kind


def test_the_example_runs() -> None:
    result = doctest.testmod(kind)
    assert result.attempted
    assert not result.failed
