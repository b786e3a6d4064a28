"""Test thread states, CPU samples and CPU counters: on small exports, and the sample's against its
truth.
"""

from pathlib import Path

import pytest
from tools.conversions import convert_and_read, list_labelled_intervals
from tools.exports import PID, Row, make_export, make_global_pid, make_global_tid, make_strings
from tools.trace import Trace

from nsys2prv import Summary
from nsys2prv.events.kind import Reason

STATE, REASON, CPU, FUNCTION, MODULE, SAMPLED_STATE, CALLER = (
    67000000,
    67000001,
    67000002,
    67000100,
    67000101,
    67000102,
    67000200,
)
OTHER = 777


def make_sched_event(
    start: int | None,
    inside: int | None,
    cpu: int = 3,
    tid: int = PID,
    pid: int = PID,
    **columns: object,
) -> Row:
    """Return a row in which a thread is scheduled in or out."""
    return {
        "start": start,
        "cpu": cpu,
        "isSchedIn": inside,
        "globalTid": make_global_tid(tid, pid),
        **columns,
    }


def convert_sched_events(
    folder: Path, rows: list[Row], **tables: list[Row]
) -> tuple[Trace, Summary]:
    """Convert an export with these rows of SCHED_EVENTS."""
    return convert_and_read(
        [make_export(folder / "r.sqlite", {"SCHED_EVENTS": rows, **tables})], folder / "o.prv"
    )


def list_reasons(trace: Trace) -> list[tuple[str, str, int]]:
    """Return state, reason and begin of the scheduling intervals."""
    return [
        (
            trace.get_label(STATE, item.value),
            trace.get_label(REASON, item.others.get(REASON, 0)),
            item.begin,
        )
        for item in trace.list_intervals(STATE)
    ]


def test_states_and_reasons_where_a_system_records_them(tmp_path: Path) -> None:
    rows = [
        make_sched_event(10, 1, threadState=0, threadBlock=0),
        make_sched_event(20, 0, threadState=7, threadBlock=7),
        make_sched_event(30, 1, threadState=0, threadBlock=0),
        make_sched_event(40, 0, threadState=1, threadBlock=0),
        make_sched_event(45, 1),
        make_sched_event(50, 0, threadState=5, threadBlock=1),
        make_sched_event(60, 0, threadState=88, threadBlock=888),
        make_sched_event(70, 0, threadState=-4, threadBlock=None),
    ]
    trace, _ = convert_sched_events(tmp_path, rows)
    assert list_reasons(trace) == [
        ("Running", "End", 0),
        ("Waiting", "CondVar", 10),
        ("Running", "End", 20),
        ("Ready to run", "NonBlocked", 30),
        ("Running", "End", 35),
        ("Terminated", "Unknown", 40),
        ("Another state", "Another reason", 50),
        ("Another state", "End", 60),
    ]


def test_a_thread_that_has_ended_has_no_state(tmp_path: Path) -> None:
    trace, _ = convert_sched_events(
        tmp_path,
        [
            make_sched_event(10, 1),
            make_sched_event(20, 0, threadState=5),
            make_sched_event(15, 1, tid=PID + 1),
            make_sched_event(90, 0, tid=PID + 1),
        ],
    )
    assert list_labelled_intervals(trace, STATE) == [
        ("Running", 0, 10),
        ("Terminated", 10, 11),
        ("Running", 5, 80),
        ("Off the CPU", 80, 81),
    ]


def test_reasons_far_behind_rows_without_one_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsys2prv.events.host.LOOKED_AT", 2)
    trace, _ = convert_sched_events(
        tmp_path,
        [
            make_sched_event(10, 1, threadBlock=None),
            make_sched_event(20, 0),
            make_sched_event(30, 1),
            make_sched_event(40, 0, threadBlock=4),
        ],
    )
    assert list_reasons(trace)[-1] == ("Off the CPU", "Nanosleep", 30)


def test_threads_of_processes_that_are_not_profiled_are_counted_by_name(tmp_path: Path) -> None:
    rows = [
        make_sched_event(10, 1),
        make_sched_event(12, 1, tid=OTHER, pid=OTHER),
        make_sched_event(14, 0, tid=OTHER, pid=OTHER),
        make_sched_event(20, 0),
        make_sched_event(25, 1, tid=9, pid=9),
    ]
    names = [{"globalTid": make_global_tid(OTHER, OTHER), "nameId": 1, "priority": 1}]
    trace, summary = convert_sched_events(
        tmp_path,
        rows,
        ProcessStreams=[{"globalPid": make_global_pid()}],
        ThreadNames=names,
        StringIds=make_strings("swapper"),
    )
    assert len(trace.list_intervals(STATE)) == 2
    assert summary.threads == 1
    assert summary.dropped == {
        ("sched", Reason.NOT_PROFILED.with_detail("swapper")): 2,
        ("sched", Reason.NOT_PROFILED.with_detail("a process without a name")): 1,
    }


def test_a_report_that_does_not_tell_what_it_profiles_keeps_all(tmp_path: Path) -> None:
    trace, summary = convert_sched_events(
        tmp_path, [make_sched_event(10, 1), make_sched_event(12, 1, tid=OTHER, pid=OTHER)]
    )
    assert (len(trace.list_intervals(STATE)), summary.ranks, summary.dropped) == (2, 2, {})


def test_damaged_rows_of_the_scheduler_are_counted(tmp_path: Path) -> None:
    trace, summary = convert_sched_events(
        tmp_path,
        [
            make_sched_event(10, 1),
            make_sched_event(None, 0),
            make_sched_event(20, None),
            make_sched_event(30, 0, -5),
        ],
    )
    assert list_labelled_intervals(trace, STATE) == [("Running", 0, 20), ("Off the CPU", 20, 21)]
    assert summary.dropped == {
        ("sched", Reason.NO_TIME): 1,
        ("sched", Reason.NO_SCHEDULING_DIRECTION): 1,
    }


def test_rows_without_cycles_are_no_samples_and_states_but_running_are_told(tmp_path: Path) -> None:
    rows = [
        {
            "id": number,
            "start": 10 * number,
            "globalTid": make_global_tid(PID),
            "threadState": state,
            "cpuCycles": cycles,
        }
        for number, (state, cycles) in enumerate([(1, 1), (3, 5), (0, 1), (2, 0), (None, None)], 1)
    ]
    trace, _ = convert_and_read(
        [make_export(tmp_path / "r.sqlite", {"COMPOSITE_EVENTS": rows})], tmp_path / "o.prv"
    )
    assert [begin for _, begin, _ in list_labelled_intervals(trace, FUNCTION)] == [0, 10, 20, 40]
    assert list_labelled_intervals(trace, SAMPLED_STATE) == [("Uninterruptible", 10, 11)]


@pytest.mark.parametrize(
    ("counts", "metrics", "parent"),
    [
        ("PERF_EVENT_SOC_OR_CPU_RAW_EVENT", "PERF_EVENT_SOC_OR_CPU_METRIC_EVENT", "parentId"),
        ("PERF_EVENT_CPU_RAW_EVENT", "PERF_EVENT_CPU_METRIC_EVENT", "parentComponentId"),
    ],
)
def test_counters_stand_over_their_intervals_on_rows_of_components(
    counts: str, metrics: str, parent: str, tmp_path: Path
) -> None:
    tables = {
        counts: [
            {"start": at, "end": at + 10, "componentId": core, "eventId": event, "count": value}
            for at, core, event, value in [
                (20, 7, 1, 500),
                (10, 7, 1, 400),
                (10, 7, 2, 90),
                (10, 8, 1, 3),
                (40, 8, 1, 4),
                (50, 9, 3, None),
                (60, 9, 3, 2**40),
            ]
        ],
        metrics: [{"start": 10, "end": 20, "componentId": 7, "metricId": 5, "value": 1.25}],
        "TARGET_INFO_COMPONENT": [
            {"componentId": 1, "name": "Socket", "instance": 0, parent: 1},
            {"componentId": 7, "name": "Core", "instance": 0, parent: 1},
            {"componentId": 8, "name": "CPU core", "instance": 1, parent: None},
        ],
        "TARGET_INFO_PERF_METRIC": [
            {"id": 1, "name": "CYCLES", "unit": "cycles"},
            {"id": 2, "name": "MISSES", "unit": ""},
            {"id": 5, "name": "IPC", "unit": ""},
        ],
    }
    trace, summary = convert_and_read(
        [make_export(tmp_path / "r.sqlite", tables)],
        tmp_path / "o.prv",
        kinds=("cpu_raw_counters",),
    )
    codes = {text: code for code, text in trace.labels.types.items()}
    assert all(66600000 <= code <= 66609999 for code in codes.values())
    assert trace.labels.precision == {codes["IPC"]: 3}
    shown = [
        (
            trace.get_row_name(sample.row),
            sample.time,
            {trace.labels.types[code]: value for code, value in sample.numbers.items()},
        )
        for sample in sorted(trace.samples, key=lambda sample: (sample.row, sample.time))
    ]
    assert shown == [
        ("CPU Socket 0 Core 0", 0, {"CYCLES [cycles]": 400, "MISSES": 90, "IPC": 1250}),
        ("CPU Socket 0 Core 0", 10, {"CYCLES [cycles]": 500, "MISSES": 0, "IPC": 0}),
        ("CPU Socket 0 Core 0", 20, {"CYCLES [cycles]": 0}),
        ("CPU Socket 0 Core 0", 60, {"CYCLES [cycles]": 0, "MISSES": 0, "IPC": 0}),
        ("CPU component 9", 50, {"CPU event 3": 2**40}),
        *[("CPU component 9", 60, {"CPU event 3": 0})] * 2,
        ("CPU core 1", 0, {"CYCLES [cycles]": 3}),
        ("CPU core 1", 10, {"CYCLES [cycles]": 0}),
        ("CPU core 1", 30, {"CYCLES [cycles]": 4}),
        ("CPU core 1", 40, {"CYCLES [cycles]": 0}),
        ("CPU core 1", 60, {"CYCLES [cycles]": 0}),
    ]
    assert summary.dropped == {("cpu_counters", Reason.SAMPLE_INCOMPLETE): 1}


def test_messages_of_no_process_do_not_tell_which_are_profiled(tmp_path: Path) -> None:
    """Of Nsight's own messages, and the daemon's: with nothing else to tell, all threads are the
    program's.
    """
    messages = [
        {
            "timestamp": 1,
            "timestampType": 2,
            "source": 1,
            "severity": 1,
            "text": "m",
            "globalPid": number,
        }
        for number in (-(2 << 56), 0)
    ]
    trace, summary = convert_sched_events(
        tmp_path, [make_sched_event(10, 1), make_sched_event(20, 0)], DIAGNOSTIC_EVENT=messages
    )
    assert summary.dropped == {}
    assert len(trace.list_intervals(STATE)) == 2
