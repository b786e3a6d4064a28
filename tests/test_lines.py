"""Formatting in columns says what plain formatting says."""

from __future__ import annotations

import numpy as np
import pytest

from nsys2prv.paraver.lines import BLOCK, Batch, Choice, LineShape, Number, Text, merged, words_of

LIMITS = [0, 1, 9, 10, 99, 9_999, 10_000, 10_001, 99_999_999, 100_000_000, 10**12 - 1, 10**12, 123_456_789_012_345, 2**53, 2**62]


def text_of(batches: list[Batch]) -> str:
    return b"".join(bytes(piece) for piece in merged(batches)).decode()


@pytest.mark.parametrize("largest", LIMITS)
def test_numbers(largest: int) -> None:
    values = np.array(sorted({0, largest, *(limit for limit in LIMITS if limit <= largest)}), np.int64)
    shape = LineShape([Text(b"<"), Number(words_of(largest)), Text(b">\n")])
    assert text_of([Batch(shape, np.arange(len(values)), [values])]) == "".join(f"<{value}>\n" for value in values)


@pytest.mark.parametrize("seed", range(5))
def test_random_lines_in_time_order(seed: int) -> None:
    random = np.random.default_rng(seed)
    names = (b"a", b"longer name", b"xyz")
    batches, expected = [], []
    for place in range(3):
        count = int(random.integers(1, 70_000))
        times = random.integers(0, 50_000, count)
        values = random.integers(0, 10 ** int(random.integers(1, 18)), count)
        kinds = random.integers(0, 3, count)
        words = words_of(times.max()), words_of(values.max())
        shape = LineShape([Choice(names), Number(words[0]), Text(b":%d:" % place), Number(words[1]), Text(b"\n")])
        batches.append(Batch(shape, times, [kinds, times, values]))
        expected += [(time, place, row, f"{names[kind].decode()}{time}:{place}:{value}\n")
                     for row, (time, kind, value) in enumerate(zip(times.tolist(), kinds.tolist(), values.tolist(), strict=True))]
    assert text_of(batches) == "".join(line for *_, line in sorted(expected))


def test_far_apart_times_still_sort() -> None:
    shape = LineShape([Number(5), Text(b"\n")])
    times = np.array([2**61, 0, 5], np.int64)
    assert text_of([Batch(shape, times, [times])]) == f"0\n5\n{2**61}\n"


def test_nothing_gives_nothing() -> None:
    assert text_of([]) == ""
    assert text_of([Batch(LineShape([Number(1), Text(b"\n")]), np.zeros(0, np.int64), [np.zeros(0, np.int64)])]) == ""


def test_a_shape_takes_however_many_lines_at_once() -> None:
    """Its room for lines grows with what is asked of it."""
    names = (b"a:", b"bcdef:")
    shape = LineShape([Choice(names), Number(2), Text(b":end\n")])
    random = np.random.default_rng(5)
    for count in (3, 1, 40, BLOCK - 1, 2 * BLOCK + 7, 5):
        chosen, numbers = random.integers(0, 2, count), random.integers(0, 10**8, count)
        expected = "".join(f"{names[which].decode()}{number}:end\n" for which, number in zip(chosen, numbers, strict=True))
        assert text_of([Batch(shape, np.arange(count), [chosen, numbers])]) == expected
