"""Mutated inputs, of which none may lead to a traceback, a hang, half an output or a secret: a few
always, many with ``pytest -m fuzz``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from . import runner
from .bases import make_bases

FEW, MANY = 40, 2000


def check_handled(count: int, first: int, folder: Path) -> None:
    (folder / "bases").mkdir()
    make_bases(folder / "bases")
    tally = runner.run_all(range(first, first + count), folder)
    assert tally.inputs == count
    assert not tally.faults, tally.faults
    # Inputs that are all refused, or all sound, would show nothing.
    assert set(tally.statuses) >= {"0", "1"}
    assert len(tally.mutations) > 15


@pytest.mark.slow
def test_a_few_mutated_inputs(tmp_path: Path) -> None:
    check_handled(FEW, 0, tmp_path)


@pytest.mark.fuzz
def test_many_mutated_inputs(tmp_path: Path) -> None:
    check_handled(MANY, FEW, tmp_path)
