"""Compare figures of views of efficiency, overlap, gaps, calls and memory with SQL on the reports,
or with the trace read by other means.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import chain, pairwise
from operator import itemgetter

import pytest
from tools.trace import Interval
from tools.view_answers import (
    Answers,
    Work,
    answer_views,
    group_by_task,
    merge_stretches,
    read_work,
    sum_innermost_times,
    sum_lengths,
)

KERNEL, NCCL, CLASS, TENSOR = 63000006, 63000007, 63000060, 63000061
COLLECTIVE, NUMBER, LATE, WAIT, TRANSFER = 9540, 9541, 9542, 9543, 9544
BUS_BANDWIDTH, TRANSFERS = 9546, 9547
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


def _is_nccl(one: Work) -> bool:
    return one.name.startswith("nccl")


# ---------------------------------------------------------------------------------------------- efficiencies of POP and TALP
def test_efficiencies_of_devices(answers: Answers, tasks: list[list[Work]]) -> None:
    times = [_sum_busy(item for item in task if item.computes) for task in tasks]
    active = [_sum_busy(task) for task in tasks]
    total, mean = answers.duration * len(tasks), sum(times) / len(times)
    shares = answers.read_totals("model/GPU_LB.cfg")
    assert shares["Average"] == [pytest.approx(100 * sum(times) / total, rel=CLOSE)]
    assert shares["Maximum"] == [pytest.approx(100 * max(times) / answers.duration, rel=CLOSE)]
    assert shares["Avg/Max"] == [pytest.approx(mean / max(times), rel=CLOSE)]
    by_node: Counter[str] = Counter()
    hosts = answers.query("SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'")
    for (_, host), time in zip(sorted(hosts), times, strict=True):
        by_node[host] += 100 * time / answers.duration
    assert answers.sum_columns("model/useful_by_node_2dh.cfg") == pytest.approx(by_node, rel=CLOSE)
    idle = answers.read_totals("model/Device_State.cfg")["Minimum"][0]
    assert 100 - idle == pytest.approx(100 * max(active) / answers.duration, rel=CLOSE)


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
    if "model/host_outside_mpi_2dh.cfg" in answers.tables:
        assert sum(in_mpi)
        outside = answers.read_totals("model/host_outside_mpi_2dh.cfg")
        times = [answers.duration - time for time in in_mpi]
        assert outside["Average"] == [pytest.approx(share * sum(times) / len(times), rel=CLOSE)]
        assert outside["Maximum"] == [pytest.approx(share * max(times), rel=CLOSE)]


# ------------------------------------------------------------------------------------------------------- overlap and gaps
def test_overlap(answers: Answers, tasks: list[list[Work]]) -> None:
    rows = [answers.query(f"SELECT start, end FROM {table}") for table in MPI_TABLES]
    expected = []
    for number, task in enumerate(tasks):
        mpi = [(begin, end) for export, begin, end in chain(*rows) if export == number]
        running = {
            "NCCL": merge_stretches(filter(_is_nccl, task)),
            "MPI": merge_stretches(Work((0, 0), *times, "", False) for times in mpi),
            "copies": merge_stretches(
                item for item in task if not item.computes and not _is_nccl(item)
            ),
        }
        computing = merge_stretches(item for item in task if item.computes)
        times: Counter[str] = Counter()
        edges = sorted(
            {edge for of in (computing, *running.values()) for one in of for edge in one}
        )
        for begin, end in pairwise(edges):
            beside = [name for name, of in running.items() if _covers(of, begin)]
            if _covers(computing, begin):
                times[f"Overlapped {beside[0]}" if beside else "Computes alone"] += end - begin
            elif beside:
                times[f"Exposed {beside[0]}"] += end - begin
        times["Idle"] = answers.duration - times.total()
        expected.append({name: 100 * time / answers.duration for name, time in times.items()})
    rows = answers.read_labelled_rows("analysis/overlap_2dh.cfg")
    assert len(rows) == len(expected)
    for row, shares in zip(rows, expected, strict=True):
        assert row == pytest.approx(shares, rel=1e-6, abs=1e-7)
    exposed = answers.read_rows("analysis/nccl_exposed_2dh.cfg")
    assert [100 * sum(row) / answers.duration for row in exposed] == pytest.approx(
        [row["Exposed NCCL"] for row in rows]
    )
    if "analysis/mpi_exposed_by_call_2dh.cfg" in answers.tables:
        for row, calls in zip(
            rows, answers.read_rows("analysis/mpi_exposed_by_call_2dh.cfg"), strict=True
        ):
            assert 100 * sum(calls) / answers.duration + CLOSE >= row["Exposed MPI"] > 0


def _covers(stretches: list[tuple[int, int]], time: int) -> bool:
    at = bisect_right(stretches, time, key=itemgetter(0)) - 1
    return at >= 0 and time < stretches[at][1]


def test_products_on_tensor_cores(answers: Answers) -> None:
    """Of each task, by the stretches in which each answer holds: the least certain counts."""
    labels = answers.load_trace().labels.values
    expected: dict[int, list[Work]] = defaultdict(list)
    for kernel in answers.load_trace().events[KERNEL]:
        # Of a graph traced as a whole nothing is known.
        known = labels[CLASS].get(kernel.others.get(CLASS), "Graph")
        if known in ("GEMM", "Attention", "Convolution", "Graph"):
            use = labels[TENSOR][kernel.others[TENSOR]] if known != "Graph" else "Unknown"
            work = Work((0, 0), kernel.begin, kernel.end, use, True)
            expected[kernel.row[0]].append(work)
    shares = answers.read_labelled_rows("analysis/tensor_cores_2dh.cfg")
    for row, (_, work) in zip(shares, sorted(expected.items()), strict=True):
        every = _sum_busy(work)
        certain = _sum_busy(one for one in work if one.name != "Yes")
        assert row["With tensor cores"] == pytest.approx(100 * (every - certain) / every, rel=1e-6)
        unknown = _sum_busy(one for one in work if one.name == "Unknown")
        found = row.get("Use of tensor cores unknown", 0)
        assert found == pytest.approx(100 * unknown / every, rel=1e-6)


def test_answers_about_products_have_names_without_products() -> None:
    """Check a job of graphs, and kernels that are no products: no record says whether it uses tensor
    cores, and Paraver takes names from other types.
    """
    answers = answer_views("shared_gpus")
    assert TENSOR not in answers.present
    rows = answers.read_labelled_rows("analysis/tensor_cores_2dh.cfg")
    assert {name for row in rows for name in row} == {"Use of tensor cores unknown"}


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
    drawn = answers.list_bursts("Idle gaps by length")
    bursts = [lasting for lasting, code in drawn if code]
    within = [
        later[0] - before[1] for task in tasks for before, later in pairwise(merge_stretches(task))
    ]
    assert not Counter(within) - Counter(map(int, bursts))
    times: dict[str, float] = defaultdict(float)
    for gap in bursts:
        times[LENGTHS[len(str(int(gap)))]] += gap
    assert all(
        LENGTHS[int(code) - OF_LENGTHS] == LENGTHS[len(str(int(gap)))]
        for gap, code in drawn
        if code
    )
    assert _drop_zeros(answers.sum_columns("analysis/idle_gaps_2dh.cfg")) == times


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


def test_kernels_by_class(answers: Answers) -> None:
    classes = _group_by_label(answers, CLASS)
    kernels = answers.query("SELECT 1 FROM CUPTI_ACTIVITY_KIND_KERNEL")
    assert sum(map(len, classes.values())) == len(kernels)
    assert _drop_zeros(answers.sum_columns("analysis/kernel-class-time_2dh.cfg")) == {
        name: sum(item.end - item.begin for item in each) for name, each in classes.items()
    }


def test_gemms_without_tensor_cores(answers: Answers) -> None:
    labels, expected = answers.load_trace().labels.values, Counter()
    for kernel in answers.load_trace().events[KERNEL]:
        # A graph traced as a whole is a kernel without a class.
        is_product = labels[CLASS].get(kernel.others.get(CLASS)) == "GEMM"
        if is_product and labels[TENSOR][kernel.others[TENSOR]] == "No":
            expected[labels[KERNEL][kernel.value]] += kernel.end - kernel.begin
    assert (
        _drop_zeros(answers.sum_columns("analysis/gemm_without_tensor_cores_2dh.cfg")) == expected
    )


def test_collectives_across_ranks(answers: Answers) -> None:
    result = _group_by_label(answers, COLLECTIVE)
    for view, code in (("nccl_wait_by_task_2dh", WAIT), ("nccl_late_by_task_2dh", LATE)):
        each_task = Counter(dict.fromkeys(range(1, len(answers.exports) + 1), 0))
        for item in answers.load_trace().events[COLLECTIVE]:
            # Late is only who was the last, and of a collective.
            is_counted = code == WAIT or (NUMBER in item.others and not item.others.get(WAIT))
            each_task[item.row[0]] += item.others.get(code, 0) * is_counted
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


# --------------------------------------------------------------------------------------------------------- calls and memory
def test_mpi_profile(answers: Answers) -> None:
    # A call that completes several requests has a row for each.
    calls = [
        ((export, tid), begin, end, name)
        for table in MPI_TABLES
        for export, tid, begin, end, name in answers.query(
            f"SELECT globalTid, start, end, value FROM {table} JOIN StringIds ON id = textId GROUP BY 1, 2, 3, 4"
        )
    ]
    if calls:
        shares = _drop_zeros(answers.sum_columns("analysis/mpi_time_2dh.cfg"))
        expected = sum_innermost_times(calls)
        threads = len({call[0] for call in calls})
        expected["Outside MPI"] = answers.duration * threads - sum(expected.values())
        assert shares == pytest.approx(
            {name: 100 * time / answers.duration for name, time in expected.items()},
            rel=CLOSE,
            abs=CLOSE,
        )
    else:
        assert "analysis/mpi_time_2dh.cfg" not in answers.tables
