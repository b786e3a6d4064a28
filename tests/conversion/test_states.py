"""Test states if ranges do not nest, do not end, last 1 ns or begin together; across chunks of
time; and on clocks that stretch time.
"""

from pathlib import Path

import numpy as np
import pytest
from conversion.test_truth_states import (
    ACCELERATOR,
    BLOCKED,
    GROUP,
    IDLE,
    IO,
    OTHERS,
    RUNNING,
    SYNCHRONIZATION,
    TRANSFER,
    check_states,
    list_written_states,
)
from samples import Options as Job
from samples import generate
from tools.conversions import convert_and_read
from tools.exports import (
    KERNEL,
    MEMCPY,
    RUNTIME,
    make_call,
    make_export,
    make_global_tid,
    make_kernel,
    make_os_call,
    make_strings,
)
from tools.trace_reader import read_trace

from nsys2prv import Nsys2prvError, Options, convert
from nsys2prv.clock.maps import ClockMap
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.table import runs, windows
from nsys2prv.table.slices import to_begin_times, to_trace_times

NAMES = make_strings(
    "kernel",
    "cudaLaunchKernel_v7000",
    "cudaDeviceSynchronize_v3020",
    "read",
    "pthread_mutex_lock",
    "poll",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(int)",
    "cudaMemcpy_v3020",
    "cudaEventRecord_v3020",
)


def test_what_ends_where_a_chunk_does_ends_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waits of 200 ns on many threads, whose ends are begins of calls of another one, whichever of
    them are bounds of chunks.
    """
    calls = [make_call(10 * number, 10 * number + 5, number + 1, nameId=9) for number in range(400)]
    waits = [
        make_os_call(
            1_000 * turn + 10 * thread + 300,
            1_000 * turn + 10 * thread + 500,
            6,
            tid=1_000 + thread,
        )
        for turn in range(3)
        for thread in range(20)
    ]
    report = make_export(
        tmp_path / "r.sqlite", {RUNTIME: calls, "OSRT_API": waits, "StringIds": NAMES}
    )
    for number, records in enumerate((300_000, 9, 7)):
        monkeypatch.setattr(windows, "WINDOW_RECORDS", records)
        monkeypatch.setattr(runs, "BLOCK_ROWS", 1)
        trace, _ = convert_and_read([report], tmp_path / f"{number}.prv", states=True)
        lasting = [
            [end - begin for begin, end, state in states if state == BLOCKED]
            for states in list_written_states(trace).values()
        ]
        assert sorted(filter(None, lasting)) == [[200] * 3] * 20


def list_states(folder: Path, **tables: list) -> dict[str, list[list[tuple[int, int, int]]]]:
    """Return row name -> the states of each of its rows."""
    report = make_export(folder / "r.sqlite", {"StringIds": NAMES, **tables})
    trace, _ = convert_and_read([report], folder / "o.prv", states=True)
    assert not trace.violations, str(trace.violations)
    result: dict[str, list[list[tuple[int, int, int]]]] = {}
    for row, states in sorted(list_written_states(trace).items()):
        result.setdefault(trace.get_row_name(row), []).append(states)
    return result


def test_innermost_call_tells_and_calls_of_the_system_only_by_themselves(tmp_path: Path) -> None:
    result = list_states(
        tmp_path,
        OSRT_API=[
            make_os_call(5, 8, 4),
            make_os_call(22, 28, 6),
            make_os_call(50, 60, 5),
            make_os_call(55, 70, 4),
        ],
        **{
            RUNTIME: [
                make_call(0, 4, 1),
                make_call(20, 40, 2, nameId=3),
                make_call(30, 35, 3, nameId=9),
                make_call(90, 100, 4, nameId=8),
            ],
            KERNEL: [make_kernel(6, 39)],
        },
    )
    (thread,) = (name for name in result if name.endswith(" 4242"))
    assert result[thread] == [
        [
            (0, 4, ACCELERATOR),
            (4, 5, RUNNING),
            (5, 8, IO),
            (8, 20, RUNNING),
            (20, 30, SYNCHRONIZATION),
            (30, 35, OTHERS),
            (35, 40, SYNCHRONIZATION),
            (40, 50, RUNNING),
            (50, 55, SYNCHRONIZATION),
            (55, 70, IO),
            (70, 90, RUNNING),
            (90, 100, TRANSFER),
        ]
    ]
    assert result["CUDA-D0.S7"] == [[(0, 6, IDLE), (6, 39, RUNNING), (39, 100, IDLE)]]


def test_streams(tmp_path: Path) -> None:
    """Kernels, NCCL's, copies, one right behind the other; overlapping work is on a row of its own,
    with states of its own.
    """
    copy = {
        "start": 40,
        "end": 41,
        "deviceId": 0,
        "contextId": 1,
        "streamId": 7,
        "globalPid": make_kernel(0, 1)["globalPid"],
        "bytes": 8,
        "copyKind": 1,
    }
    result = list_states(
        tmp_path,
        **{
            KERNEL: [
                make_kernel(0, 10),
                make_kernel(10, 20),
                make_kernel(20, 30, demangledName=7, shortName=7),
                make_kernel(30, 31),
                make_kernel(50, 90, streamId=8),
                make_kernel(60, 100, streamId=8),
            ],
            MEMCPY: [copy],
        },
    )
    assert result == {
        "CUDA-D0.S7": [
            [
                (0, 20, RUNNING),
                (20, 30, GROUP),
                (30, 31, RUNNING),
                (31, 40, IDLE),
                (40, 41, TRANSFER),
                (41, 100, IDLE),
            ]
        ],
        "CUDA-D0.S8": [
            [(0, 50, IDLE), (50, 90, RUNNING), (90, 100, IDLE)],
            [(0, 60, IDLE), (60, 100, RUNNING)],
        ],
    }


def test_threads_without_work_and_rows_of_devices(tmp_path: Path) -> None:
    result = list_states(
        tmp_path, OSRT_API=[make_os_call(0, 10, 6), make_os_call(0, 100, 6, tid=77)]
    )
    assert sorted(result.values()) == [
        [[(0, 10, BLOCKED), (10, 100, RUNNING)]],
        [[(0, 100, BLOCKED)]],
    ]


def test_a_thread_whose_only_event_lies_outside_of_the_trace_is_not_created(tmp_path: Path) -> None:
    overhead = {"nameId": 4, "overheadType": 3}
    result = list_states(
        tmp_path,
        OSRT_API=[make_os_call(0, 10, 6)],
        PROFILER_OVERHEAD=[{"start": 90, "end": 99, "globalTid": make_global_tid(77), **overhead}],
    )
    assert sorted(result.values()) == [[[(0, 10, 2)]], [[(0, 10, BLOCKED)]]]


def test_states_need_the_compiled_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsys2prv._util.native.core", None)
    with pytest.raises(Nsys2prvError, match="--states needs the compiled core"):
        convert("job.sqlite", "out.prv", Options(states=True))


def test_no_states_unless_asked_for(tmp_path: Path) -> None:
    report = make_export(tmp_path / "r.sqlite", {KERNEL: [make_kernel(0, 10)], "StringIds": NAMES})
    trace, _ = convert_and_read([report], tmp_path / "o.prv", states=False)
    assert (trace.states, trace.labels.states) == ([], None)


@pytest.mark.slow
def test_clocks_that_stretch_leave_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "WINDOW_RECORDS", 300)
    monkeypatch.setattr(runs, "BLOCK_ROWS", 16)
    generate(
        tmp_path,
        Job(
            ranks=4,
            hosts=2,
            steps=4,
            layers=1,
            pace_ms=20,
            seed=32,
            mpi=True,
            osrt=20,
            clock_offset_range_ms=8.0,
            clock_drift_range_ppm=50.0,
        ),
    )
    trace, _ = convert_and_read(
        sorted(tmp_path.glob("rank*.sqlite")), tmp_path / "o.prv", states=True
    )
    check_states(trace)


def test_ranges_of_1_ns_on_a_slowed_clock(tmp_path: Path) -> None:
    """What a slowed clock leaves nothing of begins 1 ns earlier, in events and states alike;
    nothing overlaps.
    """
    random = np.random.default_rng(5)
    begins = np.sort(random.choice(np.arange(0, 4_000_000, 7), 3000, replace=False))
    rows = [make_kernel(int(begin), int(begin) + 1 + int(begin) % 3) for begin in begins]
    report = make_export(tmp_path / "r.sqlite", {KERNEL: rows, "StringIds": NAMES})
    trace, _ = convert_and_read([report], tmp_path / "o.prv", states=True)
    check_states(trace)
    clock = ClockMap(drift=-0.4)
    begin = to_begin_times(begins, begins + 1, clock)
    end = to_trace_times(begins + 1, clock, 3_000_000)
    assert (end[1:] > begin[1:]).all()
    assert (begin[1:] >= end[:-1]).all()


def test_years_in_one_report(tmp_path: Path) -> None:
    """Check times of years, as in damaged reports, which are too long for a number of a thread and
    a nanosecond.
    """
    far, threads = 2**60, range(1, 21)
    calls = [
        make_os_call(begin, begin + 10, 4, tid=tid) for tid in threads for begin in (tid, far + tid)
    ]
    convert(
        [make_export(tmp_path / "r.sqlite", {"StringIds": NAMES, "OSRT_API": calls})],
        tmp_path / "o.prv",
        Options(states=True),
    )
    result = list_written_states(read_trace(tmp_path / "o.prv"))
    end = far + threads[-1] + 10 - 1
    assert sorted(result.values()) == sorted(
        [
            state
            for state in (
                (0, tid - 1, RUNNING),
                (tid - 1, tid + 9, IO),
                (tid + 9, far + tid - 1, RUNNING),
                (far + tid - 1, far + tid + 9, IO),
                (far + tid + 9, end, RUNNING),
            )
            if state[0] < state[1]
        ]
        for tid in threads
    )


def test_all_layouts_with_states_name_known_states() -> None:
    known = {state.value for state in load_catalogue().states}
    for layout in load_catalogue().layouts.values():
        if layout.state is not None:
            names = {
                layout.state.otherwise,
                *(state for state, _ in layout.state.names),
                *(state for _, state in layout.state.values),
            }
            assert names - {None} <= known, layout.name
            assert layout.state.field in ("", *(field.name for field in layout.fields)), layout.name
