"""Test the index of launching calls against a dictionary."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import astuple

from nsys2prv._util.stored_columns import FrameWriter
from nsys2prv.events.launches import Launches, find_launches, save_launches
from nsys2prv.export.info import PROCESS_MASK
from nsys2prv.export.source import NULL

PROCESSES = (281546145665024, 281546162442240)
MOST = np.iinfo(np.int64).max


def _make_calls(random: np.random.Generator, rows: int, ids: np.ndarray) -> dict[str, np.ndarray]:
    begin = random.integers(0, 10**12, rows)
    return {
        "correlation": random.choice(ids, rows),
        "begin": _draw_launches(random, begin, NULL),
        "end": _draw_launches(
            random,
            _draw_launches(
                random, begin + random.integers(-5, 10 ** random.integers(1, 12), rows), NULL
            ),
            MOST,
        ),
        "thread": _draw_launches(
            random,
            random.choice([process + number for process in PROCESSES for number in (3, 4)], rows),
            NULL,
        ),
        "name": random.integers(0, 5, rows),
        "result": _draw_launches(random, random.integers(0, 2, rows), -3),
    }


def _draw_launches(random: np.random.Generator, values: np.ndarray, value: int) -> np.ndarray:
    return np.where(random.random(len(values)) < 0.05, value, values)


@pytest.mark.parametrize(
    "ids",
    [
        np.arange(1, 300),
        np.arange(-50, 250),
        np.array([0, 1, 5, NULL, NULL + 1, MOST, MOST - 1, 1 << 40]),
    ],
    ids=["dense", "negative", "far apart"],
)
@pytest.mark.parametrize("seed", range(6))
def test_the_earliest_call_of_an_id_is_found(tmp_path: Path, ids: np.ndarray, seed: int) -> None:
    random = np.random.default_rng(seed)
    frames, segments = FrameWriter(tmp_path / "launches.bin"), []
    expected: dict[tuple[int, int], tuple[int, ...]] = {}
    for rows in (200, 1, 0, 90, 40):
        calls = _make_calls(random, rows, ids)
        if seed % 2:
            calls["correlation"].sort()
        segments += save_launches(Launches(*calls.values()), frames)
        for id_, begin, end, thread, name, result in zip(
            *(column.tolist() for column in calls.values()), strict=True
        ):
            key = (NULL if thread == NULL else thread & PROCESS_MASK, id_)
            if (
                id_ not in (0, NULL)
                and NULL not in (begin, end)
                and (key not in expected or begin < expected[key][0])
            ):
                expected[key] = (begin, end, thread, name, result)
    frames.__exit__()

    processes = (
        random.choice([*PROCESSES, NULL, 7], 500) if seed % 3 else np.full(500, PROCESSES[0])
    )
    queried = random.choice(np.append(ids, [0, NULL, 12345]), 500)
    found = find_launches(segments, processes, queried)
    for row, key in enumerate(zip(processes.tolist(), queried.tolist(), strict=True)):
        call = tuple(int(column[row]) for column in astuple(found)[1:])
        assert bool(found.hit[row]) == (key in expected)
        # Calls of one id and begin are equally early.
        assert call[0] == expected.get(key, (NULL,))[0]
        assert key in expected or call == (NULL,) * 5
        if key in expected and expected[key][0] == call[0]:
            assert call[2] & PROCESS_MASK == key[0] or call[2] == NULL
