"""Test several reports of one process, and of consecutive runs."""

import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest
from tools.conversions import convert_and_read
from tools.exports import (
    RUNTIME,
    make_call,
    make_export,
    make_global_pid,
    make_host,
    make_nvtx_range,
    make_strings,
)

import nsys2prv
from nsys2prv._util.errors import Nsys2prvError

SAMPLES = Path(__file__).parents[2] / "sample_reports" / "training"
MS = 1_000_000
COLLECTIVE, LATE, WAIT = 9540, 9542, 9543


def cut_report(source: Path, target: Path, first: int, last: int) -> Path:
    """Write what a capture from `first` to `last` (local ns) would have recorded."""
    shutil.copy(source, target)
    target.chmod(0o644)
    with sqlite3.connect(target) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
        for table in tables:
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            if "start" in columns and "end" in columns:
                # Names of NVTX domains are told in every capture.
                kept = "eventType = 75" if table == "NVTX_EVENTS" else "0"
                connection.execute(
                    f"DELETE FROM {table} WHERE NOT ({kept}) AND (start < {first} OR coalesce(end, start) > {last})"
                )
                connection.execute(
                    f"UPDATE {table} SET start = start - {first}, end = end - {first}"
                )
            elif "timestamp" in columns and table != "DIAGNOSTIC_EVENT":
                connection.execute(
                    f"DELETE FROM {table} WHERE timestamp NOT BETWEEN {first} AND {last}"
                )
                connection.execute(f"UPDATE {table} SET timestamp = timestamp - {first}")
        connection.execute(
            "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + ?, systemClockNs = systemClockNs + ?",
            (first, first),
        )
        connection.execute(f"UPDATE ANALYSIS_DETAILS SET duration = {last - first}")
    connection.close()
    return target


def list_waits(
    reports: Sequence[Path], output: Path
) -> tuple[list[tuple[int, ...]], nsys2prv.Summary]:
    """Return row, late arrival and wait (ns) of the kernels of matched collectives."""
    trace, summary = convert_and_read(reports, output)
    waits = [
        (*item.row, item.others.get(LATE, 0), item.others.get(WAIT, 0))
        for item in trace.list_intervals(COLLECTIVE)
    ]
    return sorted(waits), summary


def test_captures_of_one_process_are_one_task_and_compared_within_a_capture(tmp_path: Path) -> None:
    """Ranks do not begin at the same moment, so that captures of different order meet in time."""
    whole = [SAMPLES / f"rank{rank}.sqlite" for rank in (0, 1)]
    parts = [
        cut_report(path, tmp_path / f"{path.stem}.{number}.sqlite", *span)
        for path, skew in zip(whole, (0, 3 * MS), strict=True)
        for number, span in enumerate(
            [(60 * MS + skew, 128 * MS + skew), (130 * MS + skew, 200 * MS + skew)]
        )
    ]
    waits, summary = list_waits(parts, tmp_path / "both.prv")
    first, _ = list_waits(parts[::2], tmp_path / "first.prv")
    second, _ = list_waits(parts[1::2], tmp_path / "second.prv")
    assert summary.ranks == 2
    assert first
    assert second
    assert waits == sorted(first + second)
    assert any("captured several times (up to 2 captures each)" in note for note in summary.notes)
    assert not any("do they belong to one job" in line for line in summary.warnings)


def make_capture(path: Path, begin_utc: int, first_call: int, pid: int = 4242) -> Path:
    """Write a report with calls in the first ms, and a range that does not end."""
    tid = make_global_pid(pid) | pid
    calls = [
        make_call(100 * at, 100 * at + 50, first_call + at, globalTid=tid) for at in range(10_000)
    ]
    return make_export(
        path,
        {
            "StringIds": make_strings("kern", "cudaLaunchKernel"),
            RUNTIME: calls,
            "NVTX_EVENTS": [make_nvtx_range(500, None, "open") | {"globalTid": tid}],
            "PROCESSES": [{"globalPid": make_global_pid(pid), "pid": pid, "name": "app"}],
            "PROFILER_OVERHEAD": [{"start": 0, "end": 1, "globalTid": tid, "nameId": 1}],
            **make_host("node", begin_utc),
            "ANALYSIS_DETAILS": [{"duration": MS}],
        },
    )


def test_nothing_is_between_two_captures(tmp_path: Path) -> None:
    begin = 1_700_000_000 * 10**9
    reports = [
        make_capture(tmp_path / "a.1.sqlite", begin, 1),
        make_capture(tmp_path / "a.2.sqlite", begin + 5 * MS, 60_000),
    ]
    trace, summary = convert_and_read(reports, tmp_path / "o.prv", states=True)
    assert summary.ranks == 1
    gap = (MS + 50, 5 * MS)
    ranges = [
        (item.begin, item.end)
        for item in trace.list_intervals(9200)
        if item.begin < gap[1] and item.end > gap[0]
    ]
    assert not ranges
    states = [state for state in trace.states if state.begin < gap[1] and state.end > gap[0]]
    assert not states


@pytest.mark.parametrize(
    ("pid", "first_call"),
    [(4243, 60_000), (4242, 1)],
    ids=["other process", "same id, new process"],
)
def test_runs_after_each_other_are_not_compared_as_ranks(
    tmp_path: Path, pid: int, first_call: int
) -> None:
    begin = 1_700_000_000 * 10**9
    reports = [
        make_capture(tmp_path / "first.sqlite", begin, 1),
        make_capture(tmp_path / "second.sqlite", begin + 1_000 * MS, first_call, pid),
    ]
    _, summary = convert_and_read(reports, tmp_path / "o.prv")
    said = "first.sqlite; second.sqlite: 2 consecutive runs"
    assert any(line.startswith(said) for line in summary.warnings)
    with pytest.raises(Nsys2prvError, match=said):
        nsys2prv.open(reports)
