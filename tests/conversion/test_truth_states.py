"""Test states against a plain sweep over the events in the trace, against SQL on the exports, and
against Paraver.
"""

import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from tools.tables import read_table
from tools.trace import Row, Trace
from tools.trace_reader import read_trace

from nsys2prv import Options, convert

IDLE, RUNNING, NOT_CREATED, SYNCHRONIZATION, SCHEDULING, BLOCKED, IO = 0, 1, 2, 5, 7, 9, 12
GROUP, OTHERS, TRANSFER, PROFILING, MEMORY, ACCELERATOR = 13, 15, 17, 18, 30, 32
SAMPLES = Path(__file__).parents[2] / "sample_reports"
API, POINT_TO_POINT, ONE_SIDED, OS_CALL, PTHREAD, SYSTEM_CALL, FILE = (
    63000000,
    50000001,
    50000004,
    66400000,
    61000000,
    68004000,
    68007000,
)
OVERHEAD, OPENACC, THREAD_STATE = (
    69201100,
    (66000000, 66000001, 66000002),
    67000000,
)
#: Overhead that is not the profiler's.
NO_PROFILER = (
    r"(?i)unknown|command buffer|loading|compil|^dl(open|close)\((?!.*(nsys|nsight|cupti|Tools))"
)
#: Types whose ranges tell only where no other does.
YIELDING = {OS_CALL, PTHREAD, SYSTEM_CALL, FILE}
#: What is told of -> name or number -> the state that it implies.
IMPLIED: dict[str, dict[str, int]] = defaultdict(dict)
for what, state_, names in read_table(Path(__file__).with_name("states.tsv")):
    IMPLIED[what].update(dict.fromkeys(names.split(), int(state_)))


def find_api_state(name: str) -> int:
    if "Synchronize" in name or "StreamWaitEvent" in name:
        return SYNCHRONIZATION
    if "Launch" in name:
        return ACCELERATOR
    if "Memcpy" in name or "Memset" in name or "Prefetch" in name:
        return TRANSFER
    is_allocation = "Malloc" in name or "cuMemAlloc" in name or name in IMPLIED["allocating"]
    return MEMORY if is_allocation else OTHERS


def find_pthread_state(name: str) -> int | None:
    if name in ("pthread_create", "pthread_exit", "pthread_cancel", "pthread_detach"):
        return SCHEDULING
    if name == "pthread_yield":
        return BLOCKED
    return SYNCHRONIZATION if re.search("mutex|rwlock|cond|spin|barrier|join", name) else None


def find_implied_state(trace: Trace, code: int, value: int, others: dict[int, int]) -> int | None:
    """Return the state that a range implies, by the labels of the .pcf."""
    label = trace.get_label(code, value)
    if str(code) in IMPLIED["type"]:
        is_init = code == 50000002 and label.endswith("_init")
        return OTHERS if is_init else IMPLIED["type"][str(code)]
    if code == API:
        return find_api_state(label)
    if code in (POINT_TO_POINT, ONE_SIDED):
        return IMPLIED["mpi"].get(label, OTHERS)
    if code in (OS_CALL, SYSTEM_CALL):
        return IMPLIED["os"].get(label, OTHERS)
    if code == PTHREAD:
        return find_pthread_state(label)
    if code == FILE:
        return IO
    if code == OVERHEAD:
        return None if re.search(NO_PROFILER, label) else PROFILING
    return IMPLIED["openacc"].get(str(value)) if code in OPENACC else None


def list_rows_with_states(trace: Trace) -> dict[Row, int]:
    """Return row -> its state outside of all ranges: threads and streams have one, devices and rows
    beside a thread do not.
    """
    result: dict[Row, int] = {}
    threads = set()
    with_events = {item.row for intervals in trace.events.values() for item in intervals}
    for task, (count, _) in enumerate(trace.tasks, 1):
        for thread in range(1, count + 1):
            name = trace.get_row_name((task, thread))
            if name.startswith("THREAD "):
                number = name.rsplit(" ", 1)[1]
                # A further row of a thread has its number.
                if (task, number) not in threads:
                    threads.add((task, number))
                    has_events = (task, thread) in with_events
                    result[task, thread] = RUNNING if has_events else NOT_CREATED
            elif name.startswith("CUDA-D") or re.match(
                r"(OpenGL|Vulkan|Direct3D 1[12]|Video) GPU", name
            ):
                result[task, thread] = IDLE
    return result


def sweep_states(trace: Trace) -> dict[Row, list[tuple[int, int, int]]]:
    """Return begin, end and state on every row, one moment after the other, from the events of the
    trace.
    """
    ranges: dict[Row, list[tuple[int, int, int, int]]] = defaultdict(list)
    for code, intervals in trace.events.items():
        for item in intervals:
            state = find_implied_state(trace, code, item.value, item.others)
            if state is not None:
                ranges[item.row].append((item.begin, -item.end, state, code not in YIELDING))
    scheduled: dict[Row, dict[int, int]] = defaultdict(dict)
    known = {2: RUNNING, 20: IDLE, 6: NOT_CREATED}
    for item in trace.events.get(THREAD_STATE, ()):
        scheduled[item.row][item.begin] = known.get(item.value, BLOCKED)
        if item.value == 6:
            scheduled[item.row].setdefault(item.end, NOT_CREATED)
    result = {}
    for row, outside in list_rows_with_states(trace).items():
        moments = sorted(
            {
                0,
                trace.duration,
                *(item[0] for item in ranges[row]),
                *(-item[1] for item in ranges[row]),
                *scheduled[row],
            }
        )
        waiting, open_ = sorted(ranges[row], reverse=True), list[tuple[int, int, int, int]]()
        states: list[tuple[int, int, int]] = []
        for begin, end in pairwise(moments):
            outside = scheduled[row].get(begin, outside)
            while waiting and waiting[-1][0] <= begin:
                open_.append(waiting.pop())
            open_ = [item for item in open_ if -item[1] > begin]
            firm = [item for item in open_ if item[3]]
            state = max(firm or open_, default=(0, 0, outside, 0))[2]
            if states and states[-1][2] == state:
                begin = states.pop()[0]
            states.append((begin, end, state))
        result[row] = states
    return result


def list_written_states(trace: Trace) -> dict[Row, list[tuple[int, int, int]]]:
    result: dict[Row, list[tuple[int, int, int]]] = defaultdict(list)
    for state in trace.states:
        result[state.row].append((state.begin, state.end, state.value))
    return {row: sorted(states) for row, states in result.items()}


def check_states(trace: Trace) -> None:
    """Check that every row with states has one at every time, without gap or overlap, as the plain
    sweep finds.
    """
    actual, expected = list_written_states(trace), sweep_states(trace)
    assert set(actual) == set(expected)
    for row, states in actual.items():
        assert (states[0][0], states[-1][1]) == (0, trace.duration), trace.get_row_name(row)
        assert all(before[1] == after[0] for before, after in pairwise(states)), trace.get_row_name(
            row
        )
        assert states == expected[row], trace.get_row_name(row)
    assert not trace.violations, str(trace.violations)


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["training", "graphs", "cluster", "machine"])
def test_states_of_samples(sample: str, tmp_path: Path) -> None:
    convert(sorted((SAMPLES / sample).glob("*.sqlite")), tmp_path / "out.prv", Options(states=True))
    trace = read_trace(tmp_path / "out.prv")
    check_states(trace)
    assert {state.value for state in trace.states} >= {
        IDLE,
        RUNNING,
        SYNCHRONIZATION,
        TRANSFER,
        ACCELERATOR,
    }
