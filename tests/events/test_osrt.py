"""Test OS runtime and pthread calls: distinguished by name, and nested as recorded."""

from pathlib import Path

from tools.conversions import convert_and_read, list_labelled_intervals
from tools.exports import Row, make_export, make_os_call, make_strings
from tools.trace_reader import Trace

from nsys2prv import Summary
from nsys2prv.events.kind import Reason

OSRT, PTHREAD = 66400000, 61000000
NAMES = make_strings(
    "read", "pthread_mutex_lock", "a_call_of_mine", "Pthread_of_mine", "pthread_of_mine"
)
READ, LOCK, MINE, CAPITAL, OF_PTHREAD = range(1, 6)


def convert_os_calls(folder: Path, rows: list[Row]) -> tuple[Trace, Summary]:
    """Convert an export with these rows of OSRT_API."""
    return convert_and_read(
        [make_export(folder / "r.sqlite", {"OSRT_API": rows, "StringIds": NAMES})], folder / "o.prv"
    )


def test_names_tell_pthread_calls_from_others(tmp_path: Path) -> None:
    rows = [
        make_os_call(10 * number, 10 * number + 5, name)
        for number, name in enumerate((READ, LOCK, CAPITAL, OF_PTHREAD, None))
    ]
    trace, summary = convert_os_calls(tmp_path, rows)
    assert list_labelled_intervals(trace, OSRT) == [
        ("read", 0, 5),
        ("Pthread_of_mine", 20, 25),
        ("(no name)", 40, 45),
    ]
    assert list_labelled_intervals(trace, PTHREAD) == [
        ("pthread_mutex_lock", 10, 15),
        ("pthread_of_mine", 30, 35),
    ]
    assert (trace.labels.types[OSRT], trace.labels.types[PTHREAD]) == (
        "OS Runtime Calls",
        "Pthreads Calls",
    )
    assert (summary.events["osrt"], summary.events["pthread"]) == (3, 2)


def test_known_names_have_fixed_values_and_others_follow_by_text(tmp_path: Path) -> None:
    trace, _ = convert_os_calls(
        tmp_path,
        [
            make_os_call(10 * name, 10 * name + 5, name)
            for name in (READ, LOCK, MINE, CAPITAL, OF_PTHREAD)
        ],
    )
    assert {label: value for value, label in trace.labels.values[OSRT].items()} == {
        "End": 0,
        "read": 301,
        "Pthread_of_mine": 2000,
        "a_call_of_mine": 2001,
    }
    assert {label: value for value, label in trace.labels.values[PTHREAD].items()} == {
        "End": 0,
        "pthread_mutex_lock": 8,
        "pthread_of_mine": 200,
    }


def test_calls_of_no_length_last_1_ns(tmp_path: Path) -> None:
    trace, _ = convert_os_calls(
        tmp_path, [make_os_call(5, 5), make_os_call(6, 9, MINE), make_os_call(9, 9)]
    )
    assert list_labelled_intervals(trace, OSRT) == [
        ("read", 0, 1),
        ("a_call_of_mine", 1, 4),
        ("read", 4, 5),
    ]


def test_marks_of_the_tracing_are_no_calls(tmp_path: Path) -> None:
    rows = [
        make_os_call(0, 0, MINE, tid=0, level=None, eventClass=31),
        make_os_call(10, 20),
        make_os_call(90, 90, MINE, tid=0, level=None, eventClass=32),
    ]
    trace, summary = convert_os_calls(tmp_path, rows)
    assert list_labelled_intervals(trace, OSRT) == [("read", 0, 10)]
    assert summary.threads == 1
    assert not summary.dropped


def test_damaged_rows_are_counted(tmp_path: Path) -> None:
    trace, summary = convert_os_calls(
        tmp_path,
        [
            make_os_call(0, 10),
            make_os_call(5, None),
            make_os_call(None, 7, LOCK),
            make_os_call(20, 10),
        ],
    )
    assert list_labelled_intervals(trace, OSRT) == [("read", 0, 10), ("read", 20, 21)]
    assert summary.dropped == {("osrt", Reason.NO_TIME): 1, ("pthread", Reason.NO_TIME): 1}
    assert list(summary.repaired.values()) == [1]
