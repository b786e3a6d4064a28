"""Test nesting, distributions, grouped names and sampled numbers against brute force and closed
formulas.
"""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from nsys2prv._util.intervals import find_parents, make_statistics, spill_durations
from nsys2prv.figures.device_group import find_ordered_rows
from nsys2prv.figures.kernels import _sum_metrics, make_steps
from nsys2prv.figures.modules import _find_overlaps
from nsys2prv.figures.nvtx_operations import MOST_APART, fold_labels
from nsys2prv.table.event_reader import Samples


def draw_nested_ranges(
    rng: np.random.Generator, threads: int, count: int
) -> list[tuple[int, int, int]]:
    """Return properly nested ranges (thread, begin, end), some of which touch or coincide."""
    result = []
    for thread in range(threads):

        def fill(begin: int, end: int, depth: int, thread: int = thread) -> None:
            result.append((thread, begin, end))
            at = begin
            while depth < 5 and at < end and len(result) < count * (thread + 1):
                first = at + int(rng.integers(0, 4))
                last = first + int(rng.integers(1, max(2, (end - begin) // 2)))
                if last > end:
                    break
                fill(first, last, depth + 1)
                at = last

        fill(0, 400, 0)
        fill(400, 700, 0)
    return sorted(result, key=lambda one: (one[0], one[1], -one[2]))


@pytest.mark.parametrize("seed", range(8))
def test_parents_of_ranges(seed: int) -> None:
    ranges = draw_nested_ranges(np.random.default_rng(seed), 3, 60)
    columns = [np.array(column) for column in zip(*ranges, strict=True)]
    depth, parent = find_parents(*columns)
    for number, (thread, begin, end) in enumerate(ranges):
        around = [
            other
            for other, (where, first, last) in enumerate(ranges)
            if where == thread
            and other < number
            and first <= begin
            and last >= end
            and last > begin
        ]
        assert depth[number] == len(around)
        assert parent[number] == (max(around, default=-1))


@pytest.mark.parametrize(
    ("durations", "modes"),
    [
        ([100] * 50 + [200] * 50, (100, 200, 0.5)),
        (
            [100 + step % 5 for step in range(95)] + [300 + step for step in range(10)],
            (102, 304.5, 10 / 105),
        ),
        (list(range(1000, 2000)), None),
        ([100] * 100, None),
        ([100] * 96 + [1000] * 4, None),
        ([100] * 50 + [110] * 50, None),
        ([100] * 5 + [200] * 5, None),
    ],
    ids=[
        "two values",
        "one in ten",
        "uniform",
        "one value",
        "few outliers",
        "nearly the same",
        "too few",
    ],
)
def test_two_modes(
    tmp_path: Path, durations: list[int], modes: tuple[float, float, float] | None
) -> None:
    frame = pl.DataFrame(
        {"name": [0] * len(durations), "begin": [0] * len(durations), "end": durations}
    )
    (row,) = make_statistics(
        spill_durations(frame, ["name"], tmp_path / "durations"), ["name"], modes=True
    ).rows(named=True)
    assert row["two_modes"] == (modes is not None)
    assert (row["low_ns"], row["high_ns"], row["high_share"]) == (
        (None,) * 3 if modes is None else pytest.approx(modes)
    )


def test_names_brought_together() -> None:
    texts = [
        "aten::mm, op_id = 12",
        "aten::mm, op_id = 13, seq = 4",
        "forward",
        *(f"layer {number}" for number in range(MOST_APART)),
        *(f"step {number}" for number in range(MOST_APART + 1)),
    ]
    result = fold_labels(pl.DataFrame({"value": range(len(texts)), "label": texts}))
    names = result["operation"].to_list()
    assert names[:3] == ["aten::mm", "aten::mm", "forward"]
    assert names[3 : 3 + MOST_APART] == texts[3 : 3 + MOST_APART]
    assert set(names[3 + MOST_APART :]) == {"step *"}
    assert result.group_by("group").agg(pl.col("operation").n_unique())["operation"].to_list() == [
        1
    ] * (2 + MOST_APART + 1)


def test_samples_that_tell_of_the_time_before_and_after() -> None:
    values = np.array([[1.0], [np.nan], [3.0], [5.0]])
    time = np.array([10, 15, 20, 40])
    before = make_steps(Samples(0, "gpu_metric", ("m",), time, values), 0)
    after = make_steps(Samples(0, "network_metric", ("m",), time, values), 0)
    begin, end = np.array([0, 10, 15, 30]), np.array([100, 20, 25, 35])
    assert before.integrate(begin, end)[0].tolist() == [10 * 3 + 20 * 5, 30, 15 + 25, 25]
    assert after.integrate(begin, end)[0].tolist() == [10 * 1 + 20 * 3, 10, 5 + 15, 15]
    assert before.integrate(begin, end)[1].tolist() == [30, 10, 10, 5]


def test_first_row_of_a_thread_at_a_time() -> None:
    choose = np.random.default_rng(5)
    time = np.sort(choose.integers(0, 30, 400))
    thread = choose.integers(0, 40, 400)
    at_thread, at = choose.integers(0, 42, 300), choose.integers(-2, 33, 300)
    rows = {pair: row for row, pair in reversed([*enumerate(zip(thread, time, strict=True))])}
    expected = [rows.get(pair, -1) for pair in zip(at_thread, at, strict=True)]
    assert find_ordered_rows(thread, time, at_thread, at).tolist() == expected


def test_times_in_which_several_operations_run() -> None:
    choose = np.random.default_rng(6)
    begin = np.sort(choose.integers(0, 500, 60))
    end = begin + choose.integers(0, 30, 60)
    counts = np.zeros(600, int)
    for since, until in zip(begin, end, strict=True):
        counts[since:until] += 1
    found = _find_overlaps(begin, end)
    assert found.within(np.arange(600), np.arange(600) + 1).tolist() == (counts > 1).tolist()


def test_kernels_shorter_than_samples_have_no_metric() -> None:
    samples = Samples(0, "gpu_metric", ("m",), np.arange(11) * 100, np.full((11, 1), 50.0))
    short = {"name": [1, 1, 2], "begin": [10, 120, 200], "end": [20, 125, 260]}
    long = {"name": [2, 3], "begin": [300, 350], "end": [700, 360]}
    frame = _sum_metrics(pl.DataFrame(short), samples, ["name"], {"m": "m"})
    assert frame.height
    assert not frame["m_known"].sum()
    both = pl.concat([pl.DataFrame(short), pl.DataFrame(long)])
    frame = _sum_metrics(both, samples, ["name"], {"m": "m"}).filter(pl.col("m_known") > 0)
    assert frame.rows() == [(2, 50.0 * 400, 400)]
