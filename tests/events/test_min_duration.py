"""Test that ranges shorter than a minimum duration are dropped and counted, and that their other
facts are not lost.
"""

from pathlib import Path

import pytest
from tools.conversions import convert_and_read, list_labelled_intervals
from tools.exports import (
    KERNEL,
    PID,
    RUNTIME,
    Row,
    make_call,
    make_export,
    make_global_pid,
    make_kernel,
    make_nvtx_range,
    make_os_call,
    make_strings,
)
from tools.trace_reader import Trace

from nsys2prv import Summary
from nsys2prv._util.errors import UsageError
from nsys2prv.cli import main
from nsys2prv.events import all_kinds, parse_least_durations
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.kind import Reason

OSRT, PTHREAD, API, KERNELS, EVENTS, PUSHPOP, MARKS = (
    66400000,
    61000000,
    63000000,
    63000006,
    63000050,
    9600,
    9620,
)
NAMES = make_strings("read", "pthread_mutex_lock", "open", "poll", "k", "cudaLaunchKernel_v7000")
READ, LOCK, OPEN, POLL, K, LAUNCH = range(1, 7)


def convert_os_calls(
    folder: Path, rows: list[Row], more: dict[str, list[Row]] | None = None, **options: object
) -> tuple[Trace, Summary]:
    """Convert an export with these rows of OSRT_API."""
    report = make_export(
        folder / "r.sqlite", {"OSRT_API": rows, "StringIds": NAMES, **(more or {})}
    )
    return convert_and_read([report], folder / "o.prv", **options)


def test_short_calls_are_dropped_and_counted(tmp_path: Path) -> None:
    rows = [
        make_os_call(0, 2_000, OPEN),
        make_os_call(100, 1_099, READ, level=1),
        make_os_call(1_100, 1_101, LOCK, level=1),
        make_os_call(3_000, 3_000),
        make_os_call(5_000, 6_000, POLL, tid=PID + 1),
        make_os_call(5_000, 5_100, tid=PID + 2),
        make_os_call(9_000, None, OPEN),
        make_os_call(None, 7, OPEN),
    ]
    trace, summary = convert_os_calls(tmp_path, rows, min_duration={"osrt": 1_000})
    assert list_labelled_intervals(trace, OSRT) == [("open", 0, 2_000), ("poll", 5_000, 6_000)]
    assert list_labelled_intervals(trace, PTHREAD) == [("pthread_mutex_lock", 1_100, 1_101)]
    assert summary.dropped == {
        ("osrt", Reason.TOO_SHORT.with_detail("1 us")): 3,
        ("osrt", Reason.NO_TIME): 2,
    }
    assert "3 rows of osrt discarded: shorter than 1 us" in summary.text()
    assert "read" not in trace.labels.values[OSRT].values()
    assert summary.threads == 2


def test_samples_take_no_least_duration() -> None:
    """Their intervals are those of the sampling, which a least duration would thin out, or drop
    altogether.
    """
    layouts = load_catalogue().layouts
    sampling = {
        kind.name: kind.has_duration
        for kind in all_kinds()
        if any(not layouts[layout].fields for layout in kind.layouts)
    }
    # Those of NVTX are numbers of ranges, which last.
    assert {name for name, lasting in sampling.items() if lasting} == {
        "nvtx_payloads",
        "nvtx_values",
    }
    assert {"gpu_metrics", "nic_metrics", "generic_events", "cpu_counters"} <= set(sampling)


def test_short_api_calls_still_launch(tmp_path: Path) -> None:
    more = {
        RUNTIME: [make_call(0, 10, 1, nameId=LAUNCH), make_call(20, 900, 2, nameId=LAUNCH)],
        KERNEL: [
            make_kernel(100, 200, correlationId=1, demangledName=K),
            make_kernel(1_000, 1_500, correlationId=2, demangledName=K),
        ],
    }
    trace, summary = convert_os_calls(
        tmp_path, [make_os_call(0, 5)], more, min_duration={"cuda_api_trace": 500}
    )
    assert list_labelled_intervals(trace, API) == [("cudaLaunchKernel", 20, 900)]
    assert len(list_labelled_intervals(trace, KERNELS)) == 2
    assert sorted((line.send, line.receive) for line in trace.comms) == [(0, 100), (20, 1_000)]
    assert summary.dropped == {("cuda_api_trace", Reason.TOO_SHORT.with_detail("500 ns")): 1}

    trace, summary = convert_os_calls(
        tmp_path, [make_os_call(0, 5)], more, min_duration={"kernels": 300}
    )
    assert len(list_labelled_intervals(trace, KERNELS)) == len(trace.comms) == 1
    assert len(list_labelled_intervals(trace, API)) == 2
    assert not any("no work on any GPU" in note.text for note in summary.quality)


def test_events_last_as_long_as_the_calls_that_record_them(tmp_path: Path) -> None:
    event = {
        "deviceId": 0,
        "contextId": 1,
        "streamId": 7,
        "globalPid": make_global_pid(),
        "eventId": 3,
    }
    more = {
        RUNTIME: [make_call(0, 10, 1, nameId=LAUNCH), make_call(20, 900, 2, nameId=LAUNCH)],
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT": [
            {**event, "correlationId": number, "timestamp": 500 * number} for number in (1, 2)
        ],
    }
    trace, summary = convert_os_calls(
        tmp_path, [make_os_call(0, 5)], more, min_duration={"cuda_events": 500}
    )
    assert [(item.begin, item.end) for item in trace.list_intervals(EVENTS)] == [(20, 900)]
    assert summary.events["cuda_event_completion"] == 2
    assert summary.dropped == {("cuda_events", Reason.TOO_SHORT.with_detail("500 ns")): 1}


def test_open_ranges_and_marks_are_never_short(tmp_path: Path) -> None:
    rows = [
        make_nvtx_range(start, end, text, kind)
        for start, end, kind, text in (
            (0, None, 59, "open"),
            (10, 20, 59, "short"),
            (30, 60, 59, "long"),
            (40, None, 34, "mark"),
        )
    ]
    trace, summary = convert_os_calls(
        tmp_path,
        [make_os_call(0, 100)],
        {"NVTX_EVENTS": rows},
        min_duration={"nvtx": 30, "all": 50},
    )
    assert [label for label, _, _ in list_labelled_intervals(trace, PUSHPOP)] == ["open", "long"]
    assert [label for label, _, _ in list_labelled_intervals(trace, MARKS)] == ["mark"]
    assert summary.dropped == {("nvtx_pushpop_trace", Reason.TOO_SHORT.with_detail("30 ns")): 1}
    assert list_labelled_intervals(trace, OSRT) == [("read", 0, 100)]


def test_a_kinds_own_name_goes_before_groups_and_these_before_all() -> None:
    least = parse_least_durations({"nvtx_pushpop_trace": 1, "nvtx": 7, "nccl": 9, "all": 5})
    assert least["nvtx_pushpop_trace"] == 1
    assert least["nvtx_startend_trace"] == 7
    assert least["osrt"] == 5
    assert "nvtx_marks" not in least
    assert parse_least_durations({}) == {}


@pytest.mark.parametrize(
    ("durations", "message"),
    [
        ({"nonsense": 5}, "no such kind"),
        ({"nvtx_marks": 5}, "have no duration"),
        ({"osrt": -1}, "no duration"),
        ({"osrt": 1 << 63}, "no duration"),
    ],
)
def test_least_durations_that_cannot_be(durations: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_least_durations(durations)


@pytest.mark.parametrize(
    "text", ["osrt", "osrt=", "osrt=10m", "osrt=-5", "=5", "osrt=1e3", "nonsense=5"]
)
def test_what_is_no_duration_is_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--min-duration", text, str(tmp_path / "r.sqlite"), str(tmp_path / "o.prv")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("nsys2prv: error: ")
    assert error.count("\n") == 1
