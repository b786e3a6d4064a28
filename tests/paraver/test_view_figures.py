"""Figures of views of efficiency, overlap, gaps, calls and memory: those of SQL on the reports, or
of the trace read by other means.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import chain, pairwise

import pytest
from tools.trace import Interval
from tools.view_answers import (
    Answers,
    Work,
    group_by_task,
    merge_stretches,
    read_work,
    sum_innermost_times,
    sum_lengths,
)

KERNEL, NCCL, GRAPH, CLASS, TENSOR, GEMM = (
    63000006,
    63000007,
    63000008,
    63000060,
    63000061,
    63000062,
)
NCCL_BYTES, NCCL_OPERATION, COLLECTIVE, LATE, WAIT, TRANSFER = 9501, 9508, 9540, 9542, 9543, 9544
BUS_BANDWIDTH, TRANSFERS = 9546, 9547
NCCL_MESSAGE, MPI_MESSAGES, MESSAGE_BYTES = 55010, 50000001, 50100014
MPI_TABLES = (
    "MPI_P2P_EVENTS",
    "MPI_COLLECTIVES_EVENTS",
    "MPI_START_WAIT_EVENTS",
    "MPI_OTHER_EVENTS",
)
#: paramedir rounds to 10 decimals.
CLOSE = 1e-9


@pytest.fixture(scope="module")
def tasks(answers: Answers) -> list[list[Work]]:
    """Return the work of each task: a sample's exports hold one process each, in the order of the
    ranks.
    """
    return [item for _, item in sorted(group_by_task(read_work(answers)).items())]


def _sum_busy(work: Iterable[Work]) -> int:
    return sum_lengths(merge_stretches(work))


def _is_kernel(one: Work) -> bool:
    return not one.name.startswith("memory")


def _is_nccl(one: Work) -> bool:
    return one.name.startswith("nccl")


# ---------------------------------------------------------------------------------------------- efficiencies of POP and TALP
@pytest.mark.parametrize(
    ("before", "useful"),
    [("", lambda one: one.computes), ("talp_", _is_kernel)],
    ids=["BSC", "TALP"],
)
def test_efficiencies_of_devices(
    answers: Answers, tasks: list[list[Work]], before: str, useful
) -> None:
    times = [_sum_busy(filter(useful, task)) for task in tasks]
    active = [_sum_busy(task) for task in tasks]
    total, mean = answers.duration * len(tasks), sum(times) / len(times)
    for name, expected in {
        "parallel_efficiency": sum(times) / total,
        "load_balance": mean / max(times),
        "communication_efficiency": max(times) / max(active),
        "orchestration_efficiency": max(active) / answers.duration,
    }.items():
        prefix = "" if name.startswith("orchestration") else before
        ((cell,),) = answers.read_rows(f"model/{prefix}device_{name}.cfg")
        assert cell == pytest.approx(100 * expected, rel=CLOSE), name
    shares = answers.read_totals(
        "model/GPU_LB.cfg" if not before else f"model/{before}device_useful_2dh.cfg"
    )
    assert shares["Average"] == [pytest.approx(100 * sum(times) / total, rel=CLOSE)]
    assert shares["Maximum"] == [pytest.approx(100 * max(times) / answers.duration, rel=CLOSE)]
    assert shares["Avg/Max"] == [pytest.approx(mean / max(times), rel=CLOSE)]
    assert answers.read_totals("model/device_active_2dh.cfg")["Maximum"] == [
        pytest.approx(100 * max(active) / answers.duration, rel=CLOSE)
    ]
    assert answers.read_totals("model/relevant_tot_time_2dh.cfg")["Total"] == [total]


def _list_main_thread_calls(answers: Answers, table: str) -> list[list[Work]]:
    """Return the calls of the main thread of each task, by a table of calls."""
    rows = answers.query(
        f"SELECT globalTid, start, end FROM {table} WHERE globalTid % 16777216 = globalTid / 16777216 % 16777216"
    )
    return [
        [
            Work((export, tid), begin, end, "call", False)
            for export, tid, begin, end in rows
            if export == number
        ]
        for number in range(len(answers.exports))
    ]


def test_states_of_main_threads(answers: Answers) -> None:
    cuda = _list_main_thread_calls(answers, "CUPTI_ACTIVITY_KIND_RUNTIME")
    mpi = [
        list(chain(*task))
        for task in zip(
            *(_list_main_thread_calls(answers, table) for table in MPI_TABLES), strict=True
        )
    ]
    in_mpi = [_sum_busy(task) for task in mpi]
    in_either = [_sum_busy(first + second) for first, second in zip(mpi, cuda, strict=True)]
    share = 100 / answers.duration
    useful = [row[0] for row in answers.read_rows("model/host_useful_2dh.cfg")]
    assert useful == pytest.approx([100 - share * time for time in in_either], rel=CLOSE)
    states = answers.sum_columns("extra/model/Host_State.cfg")
    assert {state: time for state, time in states.items() if time} == {
        state: time
        for state, time in {
            "Neither MPI nor CUDA": answers.duration * len(cuda) - sum(in_either),
            "CUDA API": sum(in_either) - sum(in_mpi),
            "MPI": sum(in_mpi),
        }.items()
        if time
    }
    if "model/host_outside_mpi_2dh.cfg" in answers.tables:
        assert sum(in_mpi)
        outside = answers.read_totals("model/host_outside_mpi_2dh.cfg")
        times = [answers.duration - time for time in in_mpi]
        assert outside["Average"] == [pytest.approx(share * sum(times) / len(times), rel=CLOSE)]
        assert outside["Maximum"] == [pytest.approx(share * max(times), rel=CLOSE)]


# ------------------------------------------------------------------------------------------------------- overlap and gaps
def test_overlap(answers: Answers, tasks: list[list[Work]]) -> None:
    for view, kind in (
        ("nccl-exposed-2dh", _is_nccl),
        ("memory-overlap-2dh", lambda item: not _is_kernel(item)),
    ):
        alone, both = [], []
        for task in tasks:
            times = _sum_busy(filter(kind, task))
            alone.append(
                _sum_busy(item for item in task if kind(item) or item.computes)
                - _sum_busy(item for item in task if item.computes)
            )
            both.append(times - alone[-1])
        shown = [
            (row.get("Exposed", 0), row.get("Overlapped", 0))
            for row in answers.read_labelled_rows(f"analysis/{view}.cfg")
        ]
        assert shown == list(zip(alone, both, strict=True))
        if view.startswith("nccl"):
            shares = [
                row.get("Overlapped", 0)
                for row in answers.read_labelled_rows("extra/analysis/nccl-overlap-2dh.cfg")
            ]
            assert shares == pytest.approx(
                [
                    100 * second / (first + second)
                    for first, second in zip(alone, both, strict=True)
                ],
                rel=CLOSE,
            )


def test_overlap_as_a_share_of_communication(answers: Answers, tasks: list[list[Work]]) -> None:
    expected = []
    for task in tasks:
        communicating, computing = (
            _sum_busy(item for item in task if item.computes == computes)
            for computes in (False, True)
        )
        expected.append(100 * (communicating + computing - _sum_busy(task)) / communicating)
    assert [
        row.get("Overlapped", 0)
        for row in answers.read_labelled_rows("analysis/overlap-of-communication-2dh.cfg")
    ] == pytest.approx(expected, rel=CLOSE)


#: Digits of a gap's length in ns -> how a view calls it, and what is added to them for it.
LENGTHS = {
    1: "Below 10 ns",
    2: "10 to 100 ns",
    3: "100 ns to 1 us",
    4: "1 to 10 us",
    5: "10 to 100 us",
    6: "100 us to 1 ms",
    7: "1 to 10 ms",
    8: "10 to 100 ms",
    9: "100 ms to 1 s",
}
OF_LENGTHS = 1_000_100


def test_gaps_by_length(answers: Answers, tasks: list[list[Work]]) -> None:
    bursts = [lasting for lasting, value in answers.list_bursts("analysis/gpu-gaps.cfg") if value]
    within = [
        later[0] - before[1] for task in tasks for before, later in pairwise(merge_stretches(task))
    ]
    assert not Counter(within) - Counter(map(int, bursts))
    times: dict[str, float] = defaultdict(float)
    for gap in bursts:
        times[LENGTHS[len(str(int(gap)))]] += gap
    drawn: dict[float, float] = defaultdict(float)
    for lasting, code in answers.list_bursts("views/idle_gaps.cfg"):
        drawn[code] += lasting
    assert {LENGTHS[int(code) - OF_LENGTHS]: time for code, time in drawn.items() if code} == times
    assert _drop_zeros(answers.sum_columns("analysis/gpu-gaps-time_2dh.cfg")) == times
    assert _drop_zeros(answers.sum_columns("extra/analysis/gpu-gaps-count_2dh.cfg")) == Counter(
        LENGTHS[len(str(int(gap)))] for gap in bursts
    )


# ------------------------------------------------------------------------------------------------------- kernels and NCCL
def _group_by_label(answers: Answers, code: int) -> dict[str, list[Interval]]:
    """Return label -> ranges of a type."""
    trace = answers.load_trace()
    result = defaultdict(list)
    for interval in trace.events[code]:
        result[trace.labels.values[code][interval.value]].append(interval)
    return result


def _drop_zeros(columns: dict[str, float]) -> dict[str, float]:
    return {name: figure for name, figure in columns.items() if figure}


@pytest.mark.parametrize(
    ("code", "time", "calls"),
    [
        (CLASS, "analysis/kernel-class-time_2dh", None),
        (TENSOR, "extra/analysis/tensor_cores_time_2dh", None),
        (GEMM, "extra/analysis/gemm_time_2dh", "extra/analysis/gemm_calls_2dh"),
        (NCCL, "extra/analysis/nccl_time_2dh", "analysis/nccl_calls_2dh"),
    ],
)
def test_kernels_by_what_is_told_of_them(
    answers: Answers, code: int, time: str, calls: str | None
) -> None:
    result = _group_by_label(answers, code)
    ((count,),) = {(len(answers.query("SELECT 1 FROM CUPTI_ACTIVITY_KIND_KERNEL")),)}
    assert code not in (CLASS, TENSOR) or sum(map(len, result.values())) == count
    assert _drop_zeros(answers.sum_columns(f"{time}.cfg")) == {
        name: sum(item.end - item.begin for item in each) for name, each in result.items()
    }
    if calls:
        assert _drop_zeros(answers.sum_columns(f"{calls}.cfg")) == {
            name: len(each) for name, each in result.items()
        }


def test_gemms_without_tensor_cores(answers: Answers) -> None:
    labels, expected = answers.load_trace().labels.values, Counter()
    for kernel in answers.load_trace().events[KERNEL]:
        if (labels[CLASS][kernel.others[CLASS]], labels[TENSOR][kernel.others[TENSOR]]) == (
            "GEMM",
            "No",
        ):
            expected[labels[KERNEL][kernel.value]] += kernel.end - kernel.begin
    assert (
        _drop_zeros(answers.sum_columns("analysis/gemm_without_tensor_cores_2dh.cfg")) == expected
    )


def test_times_of_classes(answers: Answers) -> None:
    times = answers.read_labelled_rows("analysis/kernel-class-time_2dh.cfg")
    assert sum(sum(row.values()) for row in times) == sum(
        end - begin
        for _, begin, end in answers.query("SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL")
    )


def test_occupancy_and_threads(answers: Answers) -> None:
    rows = answers.query(
        "SELECT end - start, gridX * gridY * gridZ, blockX * blockY * blockZ, registersPerThread, staticSharedMemory, "
        "dynamicSharedMemory, (SELECT value FROM StringIds WHERE id = demangledName) FROM CUPTI_ACTIVITY_KIND_KERNEL"
    )
    occupancies: Counter[float] = Counter()
    threads: Counter[float] = Counter()
    for _, lasting, grid, block, registers, static, dynamic, name in rows:
        warps = -(-block // 32)
        of_a_warp = -(-registers * 32 // 256) * 256
        of_a_block = -(-(static + dynamic + 1024) // 128) * 128
        blocks = min(32, 64 // warps, 16384 // of_a_warp * 4 // warps, 233472 // of_a_block)
        occupancies[round(100 * blocks * warps / 64, 2)] += lasting
        threads[grid * block] += 0 if name.startswith("nccl") else lasting
    for view, expected in (
        ("theoretical_occupancy_sm90", occupancies),
        ("evolution_of_nb_threads_per_kernel", threads),
    ):
        result: Counter[float] = Counter()
        for lasting, value in answers.list_bursts(f"analysis/{view}.cfg"):
            result[value] += lasting
        assert +Counter({value: time for value, time in result.items() if value}) == +expected


def test_collectives_across_ranks(answers: Answers) -> None:
    result = _group_by_label(answers, COLLECTIVE)
    for view, code in (
        ("nccl_wait_2dh", WAIT),
        ("nccl_late_2dh", LATE),
        ("nccl_transfer_2dh", TRANSFER),
    ):
        assert _drop_zeros(answers.sum_columns(f"analysis/{view}.cfg")) == _drop_zeros(
            {name: sum(item.others.get(code, 0) for item in each) for name, each in result.items()}
        )
    for view, code in (("nccl_wait_by_task_2dh", WAIT), ("nccl_late_by_task_2dh", LATE)):
        each_task = Counter(dict.fromkeys(range(1, len(answers.exports) + 1), 0))
        for item in answers.load_trace().events[COLLECTIVE]:
            each_task[item.row[0]] += item.others.get(code, 0)
        cells = [sum(row) for row in answers.read_rows(f"analysis/{view}.cfg")]
        assert cells == pytest.approx([total for _, total in sorted(each_task.items())], rel=CLOSE)
    times: Counter[tuple] = Counter()
    transferred: Counter[tuple] = Counter()
    for name, each in _group_by_label(answers, TRANSFERS).items():
        for item in each:
            times[item.row, name] += item.end - item.begin
            transferred[item.row, name] += (
                item.others[BUS_BANDWIDTH] * (item.end - item.begin) / 10**6
            )
    assert {
        name: time
        for (_, name), time in times.items()
        if time > sum(item.others.get(TRANSFER, 0) for item in result[name])
    } == {}
    cells = sorted(
        cell
        for row in answers.read_labelled_rows("analysis/nccl_bw_mbs.cfg")
        for cell in row.values()
    )
    assert cells == pytest.approx(
        sorted(total / times[key] for key, total in transferred.items()), rel=CLOSE
    )


def _sum_planes(text: str) -> dict[str, dict[str, float]]:
    """Return plane -> column -> sum over the rows of a 3D table."""
    result: dict[str, dict[str, float]] = {}
    for block in re.split(r"^(?=[^\t\n]+\n\t)", text, flags=re.M)[1:]:
        name, head, *rows = block.split("\n\n")[0].split("\n")
        sums: dict[str, float] = defaultdict(float)
        for row in rows:
            for column, cell in zip(head.split("\t")[1:], row.split("\t")[1:], strict=True):
                if column:
                    sums[column] += float(cell)
        result[name] = _drop_zeros(sums)
    return result


def test_nccl_kernels_by_size(answers: Answers) -> None:
    trace = answers.load_trace()
    calls: dict[str, Counter[str]] = defaultdict(Counter)
    times: dict[str, Counter[str]] = defaultdict(Counter)
    bytes_: Counter[str] = Counter()
    for item in trace.events[NCCL]:
        if NCCL_BYTES in item.others:
            name = trace.labels.values[NCCL_OPERATION][item.others[NCCL_OPERATION]]
            size = str(int(math.log2(item.others[NCCL_BYTES])))
            calls[name][size] += 1
            times[name][size] += item.end - item.begin
            bytes_[name] += item.others[NCCL_BYTES]
    assert _sum_planes(answers.tables["extra/analysis/nccl_calls_by_size_2dh.cfg"]) == calls
    assert _sum_planes(answers.tables["extra/analysis/nccl_time_by_size_2dh.cfg"]) == times
    assert _drop_zeros(answers.sum_columns("extra/analysis/nccl_bytes_2dh.cfg")) == bytes_


def test_messages_between_tasks(answers: Answers) -> None:
    trace = answers.load_trace()
    for view, belongs, is_size in (
        ("mpi_messages_2dh", lambda tag: not 55000 <= tag < 56000, False),
        ("mpi_traffic_2dh", lambda tag: not 55000 <= tag < 56000, True),
        ("nccl_traffic_2dh", lambda tag: tag == NCCL_MESSAGE, True),
    ):
        if f"analysis/{view}.cfg" not in answers.tables:
            continue
        expected: dict[int, Counter[str]] = defaultdict(Counter)
        for comm in trace.comms:
            if belongs(comm.tag):
                expected[comm.sender[0] - 1][trace.names["TASK"][comm.receiver[0] - 1]] += (
                    comm.size if is_size else 1
                )
        assert {
            number: row
            for number, row in enumerate(answers.read_labelled_rows(f"analysis/{view}.cfg"))
            if row
        } == expected


# --------------------------------------------------------------------------------------------------------- calls and memory
def test_bandwidth_of_memory_operations(answers: Answers) -> None:
    moved: dict[tuple, list[int]] = defaultdict(lambda: [0, 0, 0])
    rows = answers.query(
        "SELECT streamId, copyKind, bytes, end - start FROM CUPTI_ACTIVITY_KIND_MEMCPY"
    )
    rows += answers.query(
        "SELECT streamId, 'set', bytes, end - start FROM CUPTI_ACTIVITY_KIND_MEMSET"
    )
    for export, stream, kind, size, lasting in rows:
        for place, figure in enumerate((size, lasting, 1)):
            moved[export, stream, kind][place] += figure
    for view, expected in (
        ("memory_bandwidth_2dh", [size / lasting for size, lasting, _ in moved.values()]),
        ("memory_size_2dh", [size / count for size, _, count in moved.values()]),
    ):
        cells = sorted(
            cell
            for row in answers.read_labelled_rows(f"analysis/{view}.cfg")
            for cell in row.values()
        )
        assert cells == pytest.approx(sorted(expected), rel=1e-6)


def test_synchronizations(answers: Answers) -> None:
    rows = answers.query("SELECT syncType, end - start FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION")
    counts, times = Counter(kind for _, kind, _ in rows), Counter()
    for _, kind, lasting in rows:
        times[kind] += lasting
    assert sorted(
        _drop_zeros(answers.sum_columns("extra/analysis/sync_calls_2dh.cfg")).values()
    ) == sorted(counts.values())
    assert sorted(
        _drop_zeros(answers.sum_columns("extra/analysis/sync_time_2dh.cfg")).values()
    ) == sorted(times.values())
    assert sum(answers.sum_columns("extra/analysis/api_errors_2dh.cfg").values()) == sum(
        value != 0
        for _, value in answers.query("SELECT returnValue FROM CUPTI_ACTIVITY_KIND_RUNTIME")
    )


def test_calls_of_the_system(answers: Answers) -> None:
    rows = answers.query(
        "SELECT globalTid, start, end, value FROM OSRT_API JOIN StringIds ON id = nameId WHERE value != '[Unknown]'"
    )
    calls = {
        is_pthread: [
            ((export, tid), begin, end, name)
            for export, tid, begin, end, name in rows
            if name.startswith("pthread_") == is_pthread
        ]
        for is_pthread in (False, True)
    }
    assert _drop_zeros(answers.sum_columns("extra/analysis/osrt_calls_2dh.cfg")) == Counter(
        name for *_, name in calls[False]
    )
    assert _drop_zeros(
        answers.sum_columns("extra/analysis/osrt_time_2dh.cfg")
    ) == sum_innermost_times(calls[False])
    assert _drop_zeros(
        answers.sum_columns("extra/analysis/pthread_time_2dh.cfg")
    ) == sum_innermost_times(calls[True])
    depths: Counter[str] = Counter()
    for export in range(len(answers.exports)):
        edges = sorted(
            (time, step)
            for (number, _), begin, end, name in calls[True]
            if number == export and name in ("pthread_mutex_lock", "pthread_mutex_timedlock")
            for time, step in ((begin, 1), (end, -1))
        )
        depth = 0
        for (time, step), (later, _) in pairwise(edges):
            depth += step
            depths[str(depth)] += later - time if depth else 0
    result = answers.sum_columns("extra/analysis/mutex_contention_2dh.cfg")
    assert {depth: time for depth, time in result.items() if time and depth != "0"} == _drop_zeros(
        depths
    )


def test_mpi_profile(answers: Answers) -> None:
    # A call that completes several requests has a row for each; MPI_Sendrecv may have two, of which
    # the trace has one size.
    sizes = dict.fromkeys(MPI_TABLES, "NULL") | {
        "MPI_P2P_EVENTS": "max(size)",
        "MPI_COLLECTIVES_EVENTS": "size",
    }
    calls = [
        ((export, tid), begin, end, name, table, size)
        for table, size_of in sizes.items()
        for export, tid, begin, end, name, size in answers.query(
            f"SELECT globalTid, start, end, value, {size_of} FROM {table} JOIN StringIds ON id = textId GROUP BY 1, 2, 3, 4"
        )
    ]
    if not calls:
        assert "analysis/mpi_time_2dh.cfg" not in answers.tables
        return
    assert _drop_zeros(answers.sum_columns("extra/analysis/mpi_calls_2dh.cfg")) == Counter(
        call[3] for call in calls
    )
    assert _drop_zeros(answers.sum_columns("analysis/mpi_time_2dh.cfg")) == sum_innermost_times(
        call[:4] for call in calls
    )
    messages: Counter[str] = Counter()
    for *_, name, table, size in calls:
        messages[name] += size or 0 if table == "MPI_P2P_EVENTS" and name != "MPI_Sendrecv" else 0
    messages["MPI_Sendrecv"] = sum(
        item.others[MESSAGE_BYTES]
        for item in _group_by_label(answers, MPI_MESSAGES)["MPI_Sendrecv"]
    )
    assert _drop_zeros(
        answers.sum_columns("extra/analysis/mpi_message_bytes_2dh.cfg")
    ) == _drop_zeros(messages)
    by_row: dict[tuple, list[int]] = defaultdict(list)
    for item in answers.load_trace().events[MPI_MESSAGES]:
        by_row[item.row, item.value].append(item.others.get(MESSAGE_BYTES, 0))
    cells = sorted(
        cell
        for row in answers.read_labelled_rows("extra/analysis/mpi_message_size_2dh.cfg")
        for cell in row.values()
    )
    assert cells == pytest.approx(
        sorted(mean for mean in (sum(sizes) / len(sizes) for sizes in by_row.values()) if mean),
        rel=CLOSE,
    )
    expected_calls: dict[tuple, list[int]] = defaultdict(list)
    for thread, *_, name, table, size in calls:
        if table == "MPI_COLLECTIVES_EVENTS":
            expected_calls[thread, name].append(size or 0)
    cells = sorted(
        cell
        for row in answers.read_labelled_rows("extra/analysis/mpi_collective_sent_2dh.cfg")
        for cell in row.values()
    )
    assert cells == pytest.approx(
        sorted(
            mean for mean in (sum(sizes) / len(sizes) for sizes in expected_calls.values()) if mean
        ),
        rel=CLOSE,
    )
