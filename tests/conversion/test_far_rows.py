"""Test that rows with times far outside their report's capture are removed, counted and named, and
change nothing else.
"""

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tools.conversions import WITH_LAUNCHES, convert_and_read
from tools.exports import (
    KERNEL,
    Row,
    make_export,
    make_global_pid,
    make_kernel,
    make_os_call,
    make_strings,
)
from tools.trace import Trace

from nsys2prv import Options, Summary, convert
from nsys2prv.events.kind import Reason
from nsys2prv.export import outlines, recording
from nsys2prv.export.info import read_report_info
from nsys2prv.export.recording import Capture
from nsys2prv.export.sqlite import open_database

SAMPLES = Path(__file__).parents[2] / "sample_reports"
SECOND = 1_000_000_000
UTC = 1_760_000_000 * SECOND
KERNEL_CODE, OSRT_CODE, PTHREAD_CODE = 63000006, 66400000, 61000000
WILD = (-1_400_000_000_000_000_000, 10**18, -(2**60), 10**15, -(10**13), 2**45)
#: What a sample's first sample of a metric may be, long before the capture; and what tells of the
#: profiler.
OTHERS = {
    *recording.OTHER_TABLES,
    "NET_NIC_METRIC",
    "NET_IB_SWITCH_METRIC",
    "TARGET_INFO_SESSION_START_TIME",
}


def copy_damaged(
    source: Path, target: Path, values: Sequence[int], column: int, tables: Sequence[str] = ()
) -> list[str]:
    """Copy a report and give a row in the middle of each of the tables a wild begin (column 0) or
    end (-1); return the tables.

    If no table is named, all with rows enough are damaged.
    """
    shutil.copyfile(source, target)
    damaged = []
    with closing(sqlite3.connect(target)) as connection:
        tables_with_rows = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        ).fetchall()
        for name in tables or [name for (name,) in tables_with_rows if name not in OTHERS]:
            columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{name}")')]
            times = [column for column in (*outlines.TIMES, *outlines.ENDS) if column in columns]
            rows = (
                connection.execute(f'SELECT rowid FROM "{name}" ORDER BY "{times[0]}"').fetchall()
                if times
                else []
            )
            if len(rows) < 5 or (column == -1 and len(times) < 2):
                continue
            connection.execute(
                f'UPDATE "{name}" SET "{times[column]}" = ? WHERE rowid = ?',
                (values[len(damaged) % len(values)], rows[len(rows) // 2][0]),
            )
            damaged.append(name)
        connection.commit()
    return damaged


def read_figures(summary: Summary) -> tuple[int, int]:
    """Return time and rows left out."""
    return summary.duration, sum(
        count for (_, reason), count in summary.dropped.items() if reason == Reason.FAR_FROM_CAPTURE
    )


@pytest.mark.slow
@pytest.mark.parametrize("column", [0, -1])
@pytest.mark.parametrize(
    "sample", sorted(path.parent.name for path in SAMPLES.glob("*/truth.json"))
)
def test_a_wild_row_in_every_table_moves_nothing(sample: str, column: int, tmp_path: Path) -> None:
    report = SAMPLES / sample / "rank0.sqlite"
    undamaged, before = convert_and_read([report], tmp_path / "whole.prv")
    tables = copy_damaged(report, tmp_path / "rank0.sqlite", WILD, column)
    trace, summary = convert_and_read([tmp_path / "rank0.sqlite"], tmp_path / "out.prv")
    duration, far = read_figures(summary)
    assert len(tables) >= 5
    assert len(tables) / 3 <= far
    assert duration == before.duration
    lost = 0
    for code in (KERNEL_CODE, OSRT_CODE, PTHREAD_CODE):
        one, other = (
            {(item.row, item.begin, item.end) for item in each.list_intervals(code)}
            for each in (trace, undamaged)
        )
        assert one <= other
        lost += len(other) - len(one)
    # A graph that was traced as a whole counts as a kernel.
    assert lost == 2 + (sample == "graphs")
    assert not summary.ledger.missing
    (warning,) = [line for line in summary.warnings if Reason.FAR_FROM_CAPTURE.text in line]
    assert warning.startswith("rank0.sqlite: ")
    assert "1 of osrt" in warning or "1 of pthread" in warning


@pytest.mark.slow
@pytest.mark.parametrize("value", WILD)
def test_without_a_recorded_time_a_row_far_from_all_others_is_left_out(
    value: int, tmp_path: Path
) -> None:
    report = tmp_path / "rank0.sqlite"
    copy_damaged(SAMPLES / "training" / "rank0.sqlite", report, [value], 0, ["OSRT_API", KERNEL])
    with closing(sqlite3.connect(report)) as connection:
        connection.execute("DELETE FROM ANALYSIS_DETAILS")
        connection.commit()
    summary = convert([report], tmp_path / "out.prv")
    assert read_figures(summary) == (
        convert([SAMPLES / "training" / "rank0.sqlite"], tmp_path / "whole.prv").duration,
        2,
    )


def test_wild_calls_launch_and_enclose_nothing(tmp_path: Path) -> None:
    """Lines come from calls that are written, and a wild range encloses no work."""
    report = tmp_path / "rank0.sqlite"
    sample = SAMPLES / "training" / "rank0.sqlite"
    shutil.copyfile(sample, report)
    with closing(sqlite3.connect(report)) as connection:
        connection.execute(
            "UPDATE NVTX_EVENTS SET start = -1000000000000000000 WHERE rowid = "
            "(SELECT min(rowid) FROM NVTX_EVENTS WHERE eventType = 59)"
        )
        connection.execute(
            f"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET start = start - {10**17} WHERE correlationId IN "
            f"(SELECT correlationId FROM {KERNEL} LIMIT 3)"
        )
        connection.commit()
    options = Options(demanded=("nvtx_on_gpu",), cut=WITH_LAUNCHES)
    summary, before = (
        convert([report], tmp_path / "out.prv", options),
        convert([sample], tmp_path / "whole.prv", options),
    )
    assert summary.duration == before.duration
    assert summary.ledger.lines["launch"].written == before.ledger.lines["launch"].written - 3
    assert summary.events["nvtx_on_gpu"] <= before.events["nvtx_on_gpu"]


# ---- what is a capture ------------------------------------------------------------------------------------------------------------------


def export(
    folder: Path, starts: Sequence[int], duration: object = None, **columns: list[Row]
) -> Path:
    details = {"ANALYSIS_DETAILS": [{"duration": duration}]} if duration is not None else {}
    return make_export(
        folder / "r.sqlite",
        {
            "StringIds": make_strings("kern"),
            KERNEL: [make_kernel(start, start + 5) for start in starts],
            **details,
            **columns,
        },
    )


def begins(trace: Trace) -> list[int]:
    return sorted(item.begin for item in trace.list_intervals(KERNEL_CODE))


def test_rows_a_little_outside_the_recorded_time_are_kept(tmp_path: Path) -> None:
    starts = [-9 * SECOND, 0, SECOND, 10 * SECOND]
    trace, summary = convert_and_read([export(tmp_path, starts, SECOND)], tmp_path / "out.prv")
    assert begins(trace) == [start - starts[0] for start in starts]
    assert not summary.dropped


def test_a_kernel_that_ends_after_the_capture_is_damage(tmp_path: Path) -> None:
    """Where the other rows say that the recorded time is right; a host call may reach beyond it."""
    rows = [make_kernel(start, start + 5) for start in range(0, 1000, 10)]
    calls = [make_os_call(0, 3 * SECOND)]
    tables = {
        "StringIds": make_strings("kern"),
        KERNEL: [*rows, make_kernel(2000, 2000 + 2**32)],
        "OSRT_API": calls,
        "ANALYSIS_DETAILS": [{"duration": SECOND // 4}],
    }
    report = make_export(tmp_path / "r.sqlite", tables)
    trace, summary = convert_and_read([report], tmp_path / "out.prv")
    assert read_figures(summary)[1] == 1
    assert len(begins(trace)) == 100
    assert trace.duration == 3 * SECOND


def test_times_in_utc_are_no_damage(tmp_path: Path) -> None:
    starts = [UTC + second * SECOND for second in range(5)]
    clock = [{"utcEpochNs": UTC, "systemClockNs": 5}]
    report = export(tmp_path, [0, *starts], 4 * SECOND, TARGET_INFO_SESSION_START_TIME=clock)
    trace, summary = convert_and_read([report], tmp_path / "out.prv")
    assert begins(trace) == [second * SECOND for second in range(5)]
    assert read_figures(summary)[1] == 1


def test_times_that_do_not_fit_the_recorded_time_are_taken_as_they_are(tmp_path: Path) -> None:
    starts = [10**15 + second * SECOND for second in range(20)]
    trace, summary = convert_and_read([export(tmp_path, starts, SECOND)], tmp_path / "out.prv")
    assert len(begins(trace)) == 20
    assert not summary.dropped


def test_where_rows_lie_in_two_places_none_is_taken_for_damage(tmp_path: Path) -> None:
    starts = [*range(0, 1000, 10), *range(10**15, 10**15 + 1000, 10)]
    trace, summary = convert_and_read([export(tmp_path, starts)], tmp_path / "out.prv")
    assert len(begins(trace)) == 200
    assert not summary.dropped


def test_a_pause_of_an_hour_is_no_damage(tmp_path: Path) -> None:
    starts = [*range(0, SECOND, SECOND // 100), 3_599 * SECOND]
    trace, summary = convert_and_read([export(tmp_path, starts)], tmp_path / "out.prv")
    assert len(begins(trace)) == 101
    assert not summary.dropped


@pytest.mark.parametrize("duration", [0, -5, 2**62, "x", 1.5, None])
def test_a_recorded_time_that_cannot_be_is_none(duration: object, tmp_path: Path) -> None:
    report = export(
        tmp_path, [*range(0, 1000, 10), 10**17], ANALYSIS_DETAILS=[{"duration": duration}]
    )
    trace, summary = convert_and_read([report], tmp_path / "out.prv")
    assert read_figures(summary) == (995, 1)
    assert begins(trace) == [*range(0, 1000, 10)]


def test_begin_and_end_tell_the_time_where_no_duration_does(tmp_path: Path) -> None:
    report = export(
        tmp_path,
        [0, 10, 20, 30, 40],
        ANALYSIS_DETAILS=[{"startTime": 5 * SECOND, "stopTime": 65 * SECOND}],
    )
    with open_database(report) as database:
        assert recording.read_duration(database) == 60 * SECOND
    work = -6 * SECOND, 66 * SECOND
    assert read_report_info(report).capture == Capture(-60 * SECOND, 120 * SECOND, work)


@pytest.mark.parametrize("rows", [1, 3])
def test_of_few_rows_none_is_wrong(rows: int, tmp_path: Path) -> None:
    report = export(tmp_path, [10**17 * number for number in range(rows)])
    assert read_report_info(report).capture.mask_far(np.arange(rows) * 10**17).any() == (rows == 0)


def test_all_rows_of_a_table_may_be_wild(tmp_path: Path) -> None:
    report = make_export(
        tmp_path / "r.sqlite",
        {
            "StringIds": make_strings("kern"),
            KERNEL: [make_kernel(10**17 + at, 10**17 + at + 5) for at in range(3)],
            "OSRT_API": [make_os_call(start, start + 5) for start in range(0, 1000, 10)],
            "CUPTI_ACTIVITY_KIND_MEMCPY": [
                {
                    "start": 10**17,
                    "end": 10**17 + 5,
                    "deviceId": 0,
                    "streamId": 7,
                    "globalPid": make_global_pid(),
                }
            ],
            "ANALYSIS_DETAILS": [{"duration": 1000}],
        },
    )
    trace, summary = convert_and_read([report], tmp_path / "out.prv")
    assert read_figures(summary) == (995, 4)
    assert not begins(trace)
