"""Test OpenMP events: ranges that a capture cut off, unknown kinds, identities of regions."""

from pathlib import Path

import pytest
from tools.conversions import convert_and_read, list_labelled_intervals
from tools.exports import PID, Row, make_export, make_global_tid, make_os_call, make_strings
from tools.trace_reader import Trace

from nsys2prv import Summary
from nsys2prv.events.kind import Reason

IMPLICIT, BARRIER, TASK, SYNC = 60000002, 60000003, 60000070, 60000071
WORK, THREAD, CREATE, FLUSH = 60000075, 60000078, 60000080, 60000087
LENGTH = 10_000
#: An end on the machine's own clock, which has run for days.
ELSEWHERE = 3 * 86_400 * 10**9


def make_event(
    start: int | None, end: int | None, tid: int = PID, pid: int = PID, **columns: object
) -> Row:
    return {
        "start": start,
        "end": end,
        "eventClass": 78,
        "globalTid": make_global_tid(tid, pid),
        "nameId": 1,
        **columns,
    }


def make_region(start: int, end: int | None, number: int = 1, pid: int = PID) -> Row:
    return make_event(start, end, pid, pid, parallelId=number)


def make_task(
    start: int,
    end: int | None,
    number: int | None = 1,
    kind: int | None = 2,
    tid: int = PID,
    pid: int = PID,
) -> Row:
    return make_event(start, end, tid, pid, parallelId=number, taskId=7, kind=kind)


def convert_regions(
    folder: Path, tables: dict[str, list[Row]], duration: int | None = LENGTH, **options: object
) -> tuple[Trace, Summary]:
    """Convert an export with these tables, and with a call from 0 to its end."""
    every = {f"OPENMP_EVENT_KIND_{name}": rows for name, rows in tables.items()}
    every |= {"OSRT_API": [make_os_call(0, LENGTH)], "StringIds": make_strings("x")}
    if duration is not None:
        every["ANALYSIS_DETAILS"] = [{"duration": duration}]
    return convert_and_read([make_export(folder / "r.sqlite", every)], folder / "o.prv", **options)


# Where the report does not say how long it lasts, nothing tells an end on another clock from that
# of a long range.
@pytest.mark.parametrize(
    ("end", "duration"),
    [
        (None, LENGTH),
        (0, LENGTH),
        (ELSEWHERE, LENGTH),
        (1 << 62, LENGTH),
        (None, None),
        (0, None),
        (1 << 62, None),
    ],
)
def test_a_range_without_an_end_ends_with_its_region(
    end: int | None, duration: int | None, tmp_path: Path
) -> None:
    trace, summary = convert_regions(
        tmp_path,
        {
            "PARALLEL": [make_region(100, 500)],
            "TASK": [make_task(110, end), make_task(120, 480, tid=PID + 1)],
            "SYNC_REGION": [{**make_task(400, end), "kind": 2}],
        },
        duration,
    )
    assert list_labelled_intervals(trace, IMPLICIT) == [
        ("Implicit", 110, 500),
        ("Implicit", 120, 480),
    ]
    assert list_labelled_intervals(trace, BARRIER) == [("Implicit barrier", 400, 500)]
    assert summary.repaired == {("openmp", Reason.NO_END_IN_REGION): 2}


def test_regions_are_numbered_by_process(tmp_path: Path) -> None:
    trace, _ = convert_regions(
        tmp_path,
        {
            "PARALLEL": [make_region(100, 500), make_region(100, 700, pid=77)],
            "TASK": [make_task(110, 0), make_task(110, 0, tid=77, pid=77)],
        },
    )
    assert list_labelled_intervals(trace, IMPLICIT) == [
        ("Implicit", 110, 700),
        ("Implicit", 110, 500),
    ]


def test_tables_without_columns_or_regions(tmp_path: Path) -> None:
    trace, _ = convert_regions(
        tmp_path,
        {
            "TASK": [make_task(110, 0)],
            "REDUCTION": [{"start": 5, "end": 9}],
            "WORKSHARE": [make_event(10, 20)],
        },
    )
    assert list_labelled_intervals(trace, IMPLICIT) == [("Implicit", 110, LENGTH)]
    assert list_labelled_intervals(trace, 60000074) == [("Reduction", 5, 9)]
    assert list_labelled_intervals(trace, WORK) == [("Worksharing of unknown kind", 10, 20)]


def test_what_a_task_is_and_how_it_runs_are_bits(tmp_path: Path) -> None:
    kinds = [1, 2, 4, 4 | 1 << 27, 2 | 1 << 28, 8 | 1 << 31, 16, 0, None, 1 << 29]
    trace, _ = convert_regions(
        tmp_path,
        {
            "TASK": [
                make_task(100 * number, 100 * number + 50, kind=kind)
                for number, kind in enumerate(kinds, 1)
            ]
        },
    )
    assert [begin for _, begin, _ in list_labelled_intervals(trace, IMPLICIT)] == [200, 500]
    assert [name for name, _, _ in list_labelled_intervals(trace, TASK)] == [
        "Initial",
        "Explicit",
        "Explicit",
        "Target",
        "Task wait",
        *["Task of unknown kind"] * 3,
    ]


def test_synchronization_is_barriers_and_others(tmp_path: Path) -> None:
    rows = [{**make_task(100 * kind, 100 * kind + 50), "kind": kind} for kind in range(1, 12)]
    trace, _ = convert_regions(tmp_path, {"SYNC_REGION": rows})
    assert [begin // 100 for _, begin, _ in list_labelled_intervals(trace, BARRIER)] == [
        1,
        2,
        3,
        4,
        8,
        9,
        10,
    ]
    assert [name for name, _, _ in list_labelled_intervals(trace, SYNC)] == [
        "Task wait",
        "Task group",
        "Reduction",
        "Synchronization of unknown kind",
    ]


def test_points_last_1_ns_whatever_their_end(tmp_path: Path) -> None:
    trace, summary = convert_regions(
        tmp_path,
        {
            "TASK_CREATE": [
                make_event(10, 10, newTaskId=5),
                make_event(20, 0),
                make_event(30, 90),
                make_event(40, ELSEWHERE),
            ],
            "FLUSH": [make_event(50, None), make_event(None, 5)],
        },
        kinds=("openmp", "osrt"),
    )
    assert [(begin, end - begin) for _, begin, end in list_labelled_intervals(trace, CREATE)] == [
        (10, 1),
        (20, 1),
        (30, 1),
        (40, 1),
    ]
    assert list_labelled_intervals(trace, FLUSH) == [("Flush", 50, 51)]
    assert summary.dropped == {("openmp_points", Reason.NO_TIME): 1}


def test_events_that_are_not_asked_for_count_in_the_span_of_the_trace(tmp_path: Path) -> None:
    tables = {"SYNC_REGION": [make_task(LENGTH, 3 * LENGTH)]}
    trace, _ = convert_regions(tmp_path, tables, None, kinds=("osrt",))
    assert trace.duration == 3 * LENGTH
