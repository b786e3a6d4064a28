"""Kernels that no rule matches surely, matched by when they end."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl
import pytest

from nsys2prv.match.meetings import _find_streams_together


def test_messages_without_payloads_are_matched_also_where_ranks_in_step_come_apart() -> None:
    """Two ranks of each of four stages send to the next at once, but one is late once."""
    number, stage, lane, receives = (
        column.ravel() for column in np.meshgrid(range(100), range(3), range(2), range(2))
    )
    late = (number == 50) & (stage == 0) & (lane == 1)
    task = 2 * (stage + receives) + lane
    # The clock of the last stage's host is a little late.
    end = number * 1_000_000 + stage * 200_000 + 70_000 * late + 20_000 * (task > 5)
    columns = {"name": 0 * end, "thread": task, "task": task, "begin": end - 90_000, "end": end}
    columns |= {"node_begin": np.arange(len(end)), "communicator": 0 * end - 1}
    found = _find_streams_together(pl.DataFrame(columns))
    parts = [part.group_by("meeting").len()["len"] for part in found]
    assert Counter(pl.concat(parts)) == {4: 299, 2: 2}


@pytest.mark.parametrize(("communicators", "found"), [((7, 7), 20), ((7, -1), 20), ((7, 8), 0)])
def test_kernels_of_different_communicators_never_meet(
    communicators: tuple[int, int], found: int
) -> None:
    end = np.repeat(np.arange(10) * 1_000_000, 2)
    task = np.tile([0, 1], 10)
    columns = {"name": 0 * end, "thread": task, "task": task, "begin": end - 90_000, "end": end}
    columns |= {"node_begin": np.arange(20), "communicator": np.tile(communicators, 10)}
    parts = _find_streams_together(pl.DataFrame(columns))
    assert sum(part.height for part in parts) == found
