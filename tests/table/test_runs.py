"""Test slices of runs against the same slices made one row at a time."""

import errno
from pathlib import Path

import numpy as np
import pytest

from nsys2prv.clock.maps import ClockMap
from nsys2prv.table.runs import BLOCK_ROWS, LINE, Run, SpillReader, SpillWriter, get_shape
from nsys2prv.table.slices import GlobalIds, IdTable, read_slice

LINES = get_shape(LINE, "mpi_message")


def _store_times(
    folder: Path, times: np.ndarray, name: str = "runs.bin", report: int = 0, task: int = 0
) -> Run:
    """Store a run of these times behind another one; the size of each line is its place."""
    columns = {"time": times, "sender": np.arange(len(times)) % 50, "receive": times + 1}
    columns |= {"receiver": np.arange(len(times)) % 40, "until": times + 3}
    columns |= {"size": np.arange(len(times)), "tag": np.full(len(times), 1 << 40)}
    with SpillWriter(folder / name, report, task) as writer:
        writer.append(LINES, {name: column[:7] for name, column in columns.items()})
        return writer.append(LINES, columns)


@pytest.mark.parametrize(
    "rows", [1, BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 2 * BLOCK_ROWS, 3 * BLOCK_ROWS + 17]
)
@pytest.mark.parametrize("spread", [2, 50, 10**6])
def test_spans_of_a_run(tmp_path: Path, rows: int, spread: int) -> None:
    """They hold all rows of a span of time, and at most a block beside it on each side."""
    random = np.random.default_rng(rows * spread)
    times = np.sort(random.integers(100, 100 + spread, rows))
    run = _store_times(tmp_path, times)
    near = [*run.samples.tolist(), *random.choice(times, min(rows, 20)).tolist(), run.last_time]
    bounds = sorted({0, *(int(time) + offset for time in near for offset in (-1, 0, 1))})
    for first in bounds:
        for last in (*bounds[:: max(1, len(bounds) // 12)], None):
            expected = np.flatnonzero((times >= first) & (True if last is None else times < last))
            spans = run.find_spans(run.find_blocks(first, last))
            if not len(expected):
                continue
            [(start, stop)] = spans
            assert expected[0] - BLOCK_ROWS <= start <= expected[0]
            assert expected[-1] < stop <= expected[-1] + 1 + BLOCK_ROWS


MAPS = [ClockMap(1000), ClockMap(-5), ClockMap(70, -3e-4, 12_345), ClockMap(90, 2e-5, 4_000)]


@pytest.mark.parametrize("report", range(len(MAPS)))
@pytest.mark.parametrize("window", [None, (0, None), (9_000, 30_000), (20_000, None)])
def test_slices_of_a_run(
    tmp_path: Path, report: int, window: tuple[int, int | None] | None
) -> None:
    """They have the trace's times and numbers; each task numbers its objects anew."""
    random = np.random.default_rng(report)
    numbers = [random.integers(0, 10**4, 50) for _ in range(4)]
    objects, none = IdTable.from_columns(numbers), IdTable.from_columns([])
    ids = GlobalIds(MAPS, 10**6, objects, none, {}, none, np.zeros((0, 0), np.int64))
    local = np.sort(random.integers(0, 40_000, 3_000))
    task = 3 - report
    run, clock = _store_times(tmp_path, local, report=report, task=task), MAPS[report]
    expected = []
    for place, time in enumerate(local.tolist()):
        sent, receive, until = clock.to_global(np.array([time, time + 1, time + 3])).tolist()
        ends = int(numbers[task][place % 50]), int(numbers[task][place % 40])
        if window is None or (sent >= window[0] and (window[1] is None or sent < window[1])):
            expected.append((sent, ends[0], receive, ends[1], until, place, 1 << 40))
    with SpillReader() as reader:
        found = read_slice(run, ids, reader, window=window)
    columns = [found.times, *(found.column(name) for name in [*run.columns][1:])]
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
    assert len(found) == len(expected)


def test_a_system_that_allows_few_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [
        _store_times(tmp_path, np.arange(number, number + 9), f"runs-{number}.bin")
        for number in range(6)
    ]
    reader, opened = SpillReader(), Path.open

    def few(path: Path, *how: object, **more: object) -> object:
        if len(reader._files) >= 3:
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return opened(path, *how, **more)

    monkeypatch.setattr(Path, "open", few)
    assert [reader.read(run)[0]["time"][0] for run in runs * 2] == [*range(6), *range(6)]
    reader.close()


def test_a_run_that_is_cut_short_is_named(tmp_path: Path) -> None:
    run = _store_times(tmp_path, np.arange(1000))
    with run.path.open("r+b") as file:
        file.truncate(run.columns["time"].values + 500)
    with pytest.raises(OSError, match=r"cut short.*runs\.bin"):
        SpillReader().read(run)
