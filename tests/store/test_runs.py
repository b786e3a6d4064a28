"""Slices of runs, and what records of several runs mean together, against the same one record at a
time.
"""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from nsys2prv._util.columns import OPEN
from nsys2prv.clock.maps import ClockMap
from nsys2prv.store.global_ids import GlobalIds, IdTable
from nsys2prv.store.runs import (
    LINE,
    RESOLVED,
    SAMPLE_EVERY,
    STATE,
    TRACE,
    RecordFormat,
    Run,
    SpillReader,
    SpillWriter,
)
from nsys2prv.store.windows import WindowRecords

SHAPE = RecordFormat(STATE, STATE)
LINES = RecordFormat(LINE, "mpi_message")


def _store_times(folder: Path, times: np.ndarray, name: str = "runs.bin") -> Run:
    """Store a run of these times behind another one; the object of each record is its place in the
    run.
    """
    records = np.zeros(len(times), SHAPE.dtype)
    records["time"], records["object"] = times, np.arange(len(times))
    writer = SpillWriter(folder / name, 0, 0)
    writer.append(SHAPE, records[:7], 0)
    run = writer.append(SHAPE, records, 0)
    writer.close()
    return run


@pytest.mark.parametrize(
    "rows",
    [1, SAMPLE_EVERY - 1, SAMPLE_EVERY, SAMPLE_EVERY + 1, 2 * SAMPLE_EVERY, 3 * SAMPLE_EVERY + 17],
)
@pytest.mark.parametrize("spread", [2, 50, 10**6])
def test_slices_of_a_run(tmp_path: Path, rows: int, spread: int) -> None:
    random = np.random.default_rng(rows * spread)
    times = np.sort(random.integers(100, 100 + spread, rows))
    if spread == 50:
        times[-rows // 3 :] = OPEN
    run, reader = _store_times(tmp_path, times), SpillReader()
    near = [
        run.first_time,
        run.last_time,
        *run.samples.tolist(),
        *random.choice(times, min(rows, 20)).tolist(),
    ]
    bounds = sorted(
        {0, *(int(time) + offset for time in near for offset in (-1, 0, 1) if time != OPEN)}
    )
    for first in bounds:
        for last in (*bounds[:: max(1, len(bounds) // 12)], None):
            expected = np.flatnonzero((times >= first) & (True if last is None else times < last))
            start, records = reader.find_places(run, first, last)
            assert records["object"].tolist() == expected.tolist()
            assert (reader.read_between(run, first, last) == records).all()
            if len(expected):
                assert start == expected[0]
    reader.close()


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
    assert [reader.read_between(run, 0, None)["time"][0] for run in runs * 2] == [
        *range(6),
        *range(6),
    ]
    reader.close()


def test_a_run_that_is_cut_short_is_named(tmp_path: Path) -> None:
    run = _store_times(tmp_path, np.arange(1000))
    with run.path.open("r+b") as file:
        file.truncate(run.offset + 500)
    with pytest.raises(OSError, match=r"cut short.*runs\.bin"):
        SpillReader().read_between(run, 0, None)


MAPS = [
    ClockMap(1000),
    ClockMap(-5),
    ClockMap(70, -3e-4, 12_345),
    ClockMap(90, 2e-5, 4_000),
    ClockMap(3),
]


@pytest.mark.parametrize("chosen", [[0, 1], [0, 2, 0], [3, 1, 4, 2], [4, 4, 3]])
def test_rows_of_several_clocks(chosen: list[int]) -> None:
    random = np.random.default_rng(3)
    maps = [MAPS[number] for number in chosen]
    which, local = random.integers(0, len(maps), 4000), random.integers(0, 60_000, 4000)
    clocks = ClockMap.for_rows(maps, which)
    assert clocks.to_global(local).tolist() == [
        int(maps[k].to_global(np.array([time]))[0]) for k, time in zip(which, local, strict=True)
    ]
    assert clocks.slack == max(clock.slack for clock in maps)


@pytest.mark.parametrize(
    "chosen", [[0], [0, 1], [2], [2, 2, 0], [3, 4, 1, 2, 0], [TRACE], [TRACE, 3, TRACE, 0]]
)
@pytest.mark.parametrize("window", [None, (0, None), (9_000, 30_000), (20_000, None)])
def test_records_of_several_runs(chosen: list[int], window: tuple[int, int | None] | None) -> None:
    """Of each report, sources of their own number objects anew."""
    random = np.random.default_rng(len(chosen))
    sources, duration = 4, 10**6
    numbers = [random.integers(0, 10**4, 50) for _ in range(sources)]
    none = IdTable.from_columns([])
    objects, clocks = IdTable.from_columns(numbers), [*MAPS, ClockMap()]
    global_ids = GlobalIds(clocks, duration, objects, none, {}, none, np.zeros((0, 0), np.int64))
    pieces, expected = [], []
    for number, report in enumerate(chosen):
        records = np.zeros(300, LINES.dtype)
        records["time"] = np.sort(random.integers(0, 40_000, 300))
        for name in ("receive", "until"):
            records[name] = records["time"] + random.integers(1, 40, 300)
        for name in ("sender", "receiver", "size", "tag"):
            records[name] = random.integers(0, 50, 300)
        source = RESOLVED if report == TRACE else number % sources
        run = Run(LINES, Path("none"), 0, 300, report, source, 0, 0, 0, np.zeros(1, np.int64))
        pieces.append((run, records))
        clock = clocks[report]
        table = np.arange(50) if report == TRACE else numbers[source]
        for row in records.tolist():
            time, sender, receive, receiver, until, *others = row
            time, receive, until = clock.to_global(np.array([time, receive, until])).tolist()
            is_inside = window is None or (
                time >= window[0] and (window[1] is None or time < window[1])
            )
            if is_inside or not any(clocks[one].slack for one in chosen):
                ends = (int(table[sender]), receive, int(table[receiver]))
                expected.append((time, *ends, until, *others))
    result = WindowRecords(LINES, global_ids, pieces, window)
    assert LINES.dtype.names == (
        "time",
        "sender",
        "receive",
        "receiver",
        "until",
        "size",
        "tag",
    )
    columns = [result.times, *(result.column(name) for name in LINES.dtype.names[1:])]
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
    assert len(result) == len(expected)
