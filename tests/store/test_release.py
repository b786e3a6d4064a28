"""What is given back of spilled runs while a trace is written, and that nothing is that a later
window reads.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from nsys2prv import Options, convert
from nsys2prv._util.columns import OPEN
from nsys2prv.clock.maps import ClockMap, Shifts
from nsys2prv.store import release
from nsys2prv.store.release import Release, remove_others
from nsys2prv.store.runs import END, Run, Shape, SpillReader, SpillWriter
from nsys2prv.store.windows import read_around_window

SAMPLES = Path(__file__).parents[2] / "sample_reports"
SHAPE = Shape(END, "cuda_api")
CLOCKS = [
    ClockMap(),
    ClockMap(5_000, 3e-5, 700),
    ClockMap(-300, -0.2, 90_000),
    ClockMap(40, 1e-6, 0, Shifts(np.array([10_000, 60_000, 61_000]), np.array([0, 900, -20]))),
]


def runs_in(folder: Path, random: np.random.Generator, rows: int, spread: int) -> list[Run]:
    """Runs on all clocks, several in a file; some of their times are equal, in one of the files
    some are open.
    """
    runs = []
    for number in range(2):
        writer = SpillWriter(folder / f"runs-{number}.bin", 0, 0)
        for report in range(len(CLOCKS)):
            times = np.sort(random.integers(100_000, 100_000 + spread, rows))
            if number:
                times[-rows // 5 :] = OPEN
            records = np.zeros(rows, SHAPE.dtype)
            records["time"], records["object"] = times, random.integers(0, 1000, rows)
            writer.report = report
            runs.append(writer.append(SHAPE, records, int(times[-1])))
        writer.close()
    return runs


def on_disk(runs: list[Run]) -> int:
    return sum(os.stat(path).st_blocks * 512 for path in {run.path for run in runs})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "spread"), [(9_000, 10**6), (30_000, 4_000), (700, 10**5), (1, 10), (12_345, 1)]
)
def test_later_windows_find_all_that_they_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, spread: int
) -> None:
    monkeypatch.setattr(release, "CHUNK_BYTES", 1 << 14)
    monkeypatch.setattr(release, "SLOW_SECONDS", 1e9)
    random = np.random.default_rng(rows)
    runs = runs_in(tmp_path, random, rows, spread)
    bounds = [
        0,
        *sorted(random.integers(60_000, 100_000 + 2 * spread, 25).tolist()),
        110_000 + 2 * spread,
    ]
    windows = list(zip(bounds, [*bounds[1:], None], strict=True))
    reader = SpillReader()
    held = [
        [read_around_window(reader, run, CLOCKS[run.report], *window).tolist() for run in runs]
        for window in windows
    ]
    giving, sizes = Release(runs, CLOCKS), [on_disk(runs)]
    for number, (_, last) in enumerate(windows[:-1]):
        giving.release_before(last)
        sizes.append(on_disk(runs))
        for later in (number + 1, len(windows) - 1):
            assert [
                read_around_window(reader, run, CLOCKS[run.report], *windows[later]).tolist()
                for run in runs
            ] == held[later]
    assert sizes == sorted(sizes, reverse=True)
    if rows > 1000 and hasattr(mmap, "MADV_REMOVE"):
        # But for open times, which are the last window's, a sampled block of each run and pages
        # that are of two chunks.
        left = (
            sum(run.rows * 0.2 for run in runs[len(CLOCKS) :]) * SHAPE.dtype.itemsize
            + len(runs) * (4 << 12)
            + sizes[0] // 3
        )
        assert sizes[-1] < left


@pytest.mark.skipif(
    not hasattr(mmap, "MADV_REMOVE"), reason="the system cannot give parts of files back"
)
def test_file_systems_that_cannot_or_are_slow_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "CHUNK_BYTES", 1 << 14)
    runs = runs_in(tmp_path, np.random.default_rng(1), 9_000, 10**6)
    asked: list[object] = []

    def cannot(chunk: object) -> None:
        asked.append(chunk)
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(release, "_remove_file", cannot)
    giving = Release(runs, CLOCKS)
    giving.release_before(10**9)
    giving.release_before(10**9)
    assert len(asked) == 1
    monkeypatch.setattr(release, "_remove_file", asked.append)
    monkeypatch.setattr(release, "SLOW_SECONDS", -1.0)
    asked.clear()
    Release(runs, CLOCKS).release_before(10**9)
    assert len(asked) == release.TRIED


def test_files_without_a_run_that_is_written_go(tmp_path: Path) -> None:
    runs = runs_in(tmp_path, np.random.default_rng(2), 300, 10**6)
    remove_others([run.path for run in runs], runs[:1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs-0.bin"]


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_trace_is_the_same_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    reports = sorted((SAMPLES / "cluster").glob("rank*.sqlite"))
    monkeypatch.setattr("nsys2prv.store.windows.WINDOW_RECORDS", 500)
    monkeypatch.setattr("nsys2prv.store.windows.RECORDS_PER_RUN", 1)
    monkeypatch.setattr(release, "CHUNK_BYTES", 1)
    removed: list[object] = []
    done = release._remove_file
    monkeypatch.setattr(release, "_remove_file", lambda chunk: (removed.append(chunk), done(chunk)))
    convert(reports, tmp_path / "given.prv", Options(jobs=jobs))
    assert removed
    monkeypatch.setattr(release.Release, "release_before", lambda *_: None)
    convert(reports, tmp_path / "kept.prv", Options(jobs=jobs))
    assert (tmp_path / "given.prv").read_bytes() == (tmp_path / "kept.prv").read_bytes()
