"""Test how the call that launched an operation is found by correlation ids."""

import numpy as np
import pytest

from nsys2prv.replay.events import Launches, find_launches


@pytest.mark.parametrize("apart", [1, 1 << 40], ids=["dense", "far apart"])
def test_the_first_call_of_an_id_launched_it(apart: int) -> None:
    """Ids are those of a task. Calls are in the order of their begins."""
    random = np.random.default_rng(2)
    ids = random.integers(1, 40, 120) * apart
    tasks = random.integers(0, 2, 120).astype(np.int32)
    launches = Launches(tasks, ids, np.arange(120, dtype=np.int32))
    asked = np.tile(np.arange(0, 45) * apart, 2)
    of_task = np.repeat([0, 1], 45)
    first: dict[tuple[int, int], int] = {}
    for place, key in enumerate(zip(tasks.tolist(), ids.tolist(), strict=True)):
        first.setdefault(key, place)
    assert len(first) < 80
    wanted = [first.get(key, -1) for key in zip(of_task.tolist(), asked.tolist(), strict=True)]
    assert find_launches(launches, of_task, asked).tolist() == wanted
