"""Leave parameters of tests to ``-m slow``."""

from collections.abc import Iterable

import pytest

#: Samples with some ten thousand events; tests that take each sample take these with -m slow alone.
LARGE_SAMPLES = ("training", "cluster")


def mark_slow_except(cases: Iterable[str], *fast: str) -> list:
    """Return the parameters of a fixture, of which all but the fast ones are marked as slow."""
    return [case if case in fast else pytest.param(case, marks=pytest.mark.slow) for case in cases]
