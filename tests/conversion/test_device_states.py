"""Test states of physical GPUs, and the values of views that show them, against counted nanoseconds
or SQL.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from tools.conversions import convert_and_read
from tools.exports import KERNEL, make_export, make_global_pid, make_kernel, make_strings
from tools.shared_gpus import COMPUTE, MEMORY, NCCL, SharedGpus, make_shared_gpus
from tools.trace import Row, Trace
from tools.view_answers import SAMPLES

from nsys2prv.conversion.states import GpuStates
from nsys2prv.table import windows

STATE = 63000070
#: Event type of operations -> their bit.
TYPES = {63000001: MEMORY, 63000006: COMPUTE, 63000007: NCCL, 63000008: COMPUTE}
ASKED = ("all", "device_state")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> SharedGpus:
    return make_shared_gpus(tmp_path_factory.mktemp("shared"))


def _read_states(trace: Trace) -> dict[Row, np.ndarray]:
    """Return the state of each GPU's row at every ns."""
    result: dict[Row, np.ndarray] = defaultdict(lambda: np.zeros(trace.duration, np.int64))
    for item in trace.list_intervals(STATE):
        assert not result[item.row][item.begin : item.end].any()
        result[item.row][item.begin : item.end] = item.value
    return dict(result)


# --------------------------------------------------------------------------------------------------------------- the sweep
@pytest.mark.parametrize("seed", range(20))
def test_states_are_those_of_every_moment_however_time_is_cut(seed: int) -> None:
    random = np.random.default_rng(seed)
    length, states = 400, GpuStates()
    operations = [
        (int(bit), int(begin), int(min(begin + lasting, length)))
        for bit, begin, lasting in zip(
            random.choice([1, 2, 4], 60),
            random.integers(0, length - 1, 60),
            random.choice([0, 1, 3, 10, 90], 60),
            strict=True,
        )
    ]
    expected, actual = np.zeros((2, length), np.int64)
    for bit, begin, end in operations:
        expected[begin:end] |= bit
    cuts = [0, *sorted(set(random.integers(1, length, seed).tolist()))]
    ranges = []
    for first, last in zip(cuts, [*cuts[1:], None], strict=True):
        inside = [
            item for item in operations if first <= item[1] and (last is None or item[1] < last)
        ]
        columns = [(1, *item) for item in inside]
        found = states.advance(np.array(columns, np.int64).reshape(-1, 4).T, first, last)
        ranges += list(zip(*(column.tolist() for column in found[1:]), strict=True))
    for begin, end, state in ranges:
        assert begin < end
        actual[begin:end] = state
    assert (actual == expected).all()
    assert ranges == sorted(ranges)
    # As few as can be: a range ends where the state is another one.
    assert len(ranges) == sum(
        1
        for before, now in zip([0, *expected.tolist()], expected.tolist(), strict=False)
        if now and now != before
    )


# ------------------------------------------------------------------------------------------------------------------ traces
@pytest.mark.parametrize("window", [None, 7])
def test_shared_gpus_are_one_row_each(
    job: SharedGpus, window: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if window:
        monkeypatch.setattr(windows, "WINDOW_RECORDS", window)
        monkeypatch.setattr(windows, "RECORDS_PER_RUN", 0)
    trace, summary = convert_and_read(job.exports, tmp_path / "t.prv", align="utc")
    states = _read_states(trace)
    assert trace.duration == job.duration
    rows = {
        ("node1", "11111111-aaaa"): (1, "Metrics GPU1"),
        ("node1", "22222222-bbbb"): (2, "Metrics GPU0"),
        ("node2", "11111111-cccc"): (3, "Metrics GPU1"),
    }
    result = {(row[0], trace.get_row_name(row)): bits for row, bits in states.items()}
    assert set(result) == set(rows.values())
    for gpu, row in rows.items():
        assert (result[row] == job.doing[gpu][job.first : job.first + job.duration]).all(), gpu
    assert summary.events["device_state"] == len(trace.list_intervals(STATE))
    assert trace.labels.values[STATE][5] == "Computation and NCCL kernels"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "written"),
    [
        ((), True),
        (("all",), True),
        (("cuda",), True),
        (("kernels",), True),
        (ASKED, True),
        (("memory",), False),
        (("-device_state",), False),
    ],
)
def test_states_are_written_where_gpus_are_shared(
    job: SharedGpus, kinds: tuple[str, ...], written: bool, tmp_path: Path
) -> None:
    trace, summary = convert_and_read(job.exports, tmp_path / "t.prv", align="utc", kinds=kinds)
    assert bool(trace.list_intervals(STATE)) == written
    assert any(name.startswith("Metrics GPU") for name in trace.names["THREAD"]) == written
    assert not any("device_state" in warning for warning in summary.warnings)


@pytest.mark.slow
@pytest.mark.parametrize("sample", sorted(SAMPLES))
@pytest.mark.parametrize("options", [{"align": "utc"}, {"align": "auto"}], ids=str)
def test_states_follow_from_the_operations_on_the_rows(
    sample: str, options: dict, tmp_path: Path
) -> None:
    """Whatever is done to the clocks. Each task of a sample has one GPU of its own, so states are
    written only if asked for.
    """
    plain, _ = convert_and_read(SAMPLES[sample], tmp_path / "t.prv", **options)
    assert not plain.list_intervals(STATE)
    trace, _ = convert_and_read(SAMPLES[sample], tmp_path / "t.prv", kinds=ASKED, **options)
    tasks: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for code, bit in TYPES.items():
        for item in trace.list_intervals(code):
            tasks[item.row[0]].append((bit, item.begin, item.end))
    shown = defaultdict(Counter)
    rows = {item.row for item in trace.list_intervals(STATE)}
    for item in trace.list_intervals(STATE):
        shown[item.row[0]][item.value] += item.end - item.begin
    assert len(rows) == len(shown) == len(SAMPLES[sample])
    assert shown == {task: _sum_times(operations) for task, operations in tasks.items()}
    metrics = {name for name in plain.names["THREAD"] if name.startswith("Metrics GPU")}
    assert len(trace.names["THREAD"]) - len(plain.names["THREAD"]) == (0 if metrics else len(rows))
    assert {trace.get_row_name(row)[:11] for row in rows} == {"Metrics GPU"}


def _sum_times(operations: Iterable[tuple[int, int, int]]) -> Counter[int]:
    """Return state -> time, stepping from edge to edge."""
    edges: dict[int, Counter[int]] = defaultdict(Counter)
    for bit, begin, end in operations:
        edges[begin][bit] += 1
        edges[end][bit] -= 1
    times: Counter[int] = Counter()
    depth: Counter[int] = Counter()
    before = 0
    for time in sorted(edges):
        times[sum(bit for bit, count in depth.items() if count)] += time - before
        depth.update(edges[time])
        before = time
    del times[0]
    return +times


@pytest.mark.parametrize(
    ("listed", "rows", "busy"), [(0, 3, 10 + 15 + 10), (1, 2, 20 + 10), (2, 3, 10 + 15 + 10)]
)
def test_gpus_known_by_ordinals_alone_are_their_processes_own(
    listed: int, rows: int, busy: int, tmp_path: Path
) -> None:
    """Unless the report lists but one, which is the first of each process."""
    kernels = [
        make_kernel(10, 20, globalPid=make_global_pid(1)),
        make_kernel(15, 30, globalPid=make_global_pid(2)),
        make_kernel(40, 50, globalPid=make_global_pid(2), deviceId=1),
    ]
    gpus = [
        {"id": number, "name": "H200", "uuid": f"{number}-1", "busLocation": ""}
        for number in range(listed)
    ]
    export = make_export(
        tmp_path / "r.sqlite",
        {"StringIds": make_strings("k"), KERNEL: kernels, "TARGET_INFO_GPU": gpus},
    )
    trace, _ = convert_and_read([export], tmp_path / "t.prv")
    assert len(_read_states(trace)) == rows
    assert sum(item.end - item.begin for item in trace.list_intervals(STATE)) == busy
