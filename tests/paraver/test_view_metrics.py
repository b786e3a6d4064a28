"""Figures of the views of metrics, of the sample that has them: those of its trace, read and
averaged by other means than Paraver's.

That the trace holds the samples of the reports is tested in ``test_truth_cluster_metrics.py``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from tools.view_answers import SAMPLES, Answers, answer_views

MEMORY, KERNEL, NCCL, GRAPH, CLASS, GEMM = (
    63000001,
    63000006,
    63000007,
    63000008,
    63000060,
    63000062,
)
COMMUNICATION = 10
GPC, SM_ACTIVE, SM_ISSUE, TENSOR, WARPS, UNALLOCATED, DRAM_READ, DRAM_WRITE, PCIE_IN, PCIE_OUT = (
    9400,
    9403,
    9404,
    9405,
    9412,
    9415,
    9418,
    9419,
    9428,
    9429,
)
NVLINK = (*range(9420, 9428), 9439, 9440)
RECEIVED, SENT = (91000, 91004), (91002, 91006)
#: Timelines are printed with two decimals, tables with ten.
ROUGHLY, CLOSE = 0.0051, 1e-7
#: View by kernel, by class, and while computing -> types added up, and what a shown unit is in the
#: trace's.
METRICS = {
    ("sm_active_per_kernel-2dh", "sm_active_per_class-2dh", "sm-active-avg-2dh"): ((SM_ACTIVE,), 1),
    ("sm_issue_per_kernel-2dh", "sm_issue_rate_per_class-2dh", "issue-rate-avg-2dh"): (
        (SM_ISSUE,),
        1,
    ),
    ("tensor_util_per_kernel-2dh", "tensor_active_per_class-2dh", "tensor-active-avg-2dh"): (
        (TENSOR,),
        1,
    ),
    ("warps_per_kernel-2dh", "warps_in_flight_per_class-2dh", "warps-inflight-avg-2dh"): (
        (WARPS,),
        1,
    ),
    (
        "unallocated_warps_per_kernel-2dh",
        "unallocated_warps_per_class-2dh",
        "unallocated-warps-avg-2dh",
    ): ((UNALLOCATED,), 1),
    ("gpc_clock_per_kernel-2dh", "gpc_clock_per_class-2dh", "gpc-clock_useful_avg_2dh"): (
        (GPC,),
        1_000_000,
    ),
    ("aggregated_bw_perkernel-2dh", "dram_per_class-2dh", None): ((DRAM_READ, DRAM_WRITE), 1),
    ("pcie_per_kernel-2dh", "pcie_per_class-2dh", None): ((PCIE_IN, PCIE_OUT), 1),
    ("nvlink_per_kernel-2dh", "nvlink_per_class-2dh", None): (NVLINK, 1),
}
NODES = {
    "sm_active_node": ((SM_ACTIVE,), 1),
    "gpc_clock_node": ((GPC,), 1_000_000),
    "dram_node": ((DRAM_READ, DRAM_WRITE), 1),
    "nvlink_node": (NVLINK, 1),
    "tensor_active_node": ((TENSOR,), 1),
}


@pytest.fixture(scope="module")
def answers() -> Answers:
    assert SAMPLES["cluster"]
    return answer_views("cluster")


class Timeline:
    """All moments at which anything of interest changes, and values between them."""

    def __init__(self, answers: Answers) -> None:
        self.trace = answers.load_trace()
        self.samples: dict[tuple[tuple[int, int], int], list[tuple[int, int]]] = defaultdict(list)
        for record in self.trace.samples:
            for code, value in record.numbers.items():
                self.samples[record.row, code].append((record.time, value))
        times = {0, answers.duration, *(record.time for record in self.trace.samples)}
        for code in (MEMORY, KERNEL, NCCL, GRAPH, CLASS, GEMM):
            times |= {time for item in self.trace.events[code] for time in (item.begin, item.end)}
        self.times = np.array(sorted(times))
        self.lengths = np.diff(self.times)

    def sum_samples(
        self, code: int, belongs: Callable[[int], bool], late: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the sum of a metric over rows of tasks, each sample standing for the time before
        it, and how many rows have another one coming.

        late: rows count from their first sample on, as Paraver has it above the level of CPUs.
        """
        total, coming = np.zeros((2, len(self.lengths)))
        for ((task, _), item), each in self.samples.items():
            if item == code and belongs(task):
                moments, values = np.array(each).T
                place = np.searchsorted(moments, self.times[:-1], side="right")
                there = place >= late
                total += np.append(values, 0)[place] * there
                coming += (place < len(moments)) & there
        return total, coming

    def add_metrics(self, codes: tuple[int, ...], task: int) -> np.ndarray:
        return sum(self.sum_samples(code, lambda number: number == task)[0] for code in codes)

    def find_greatest(self, codes: tuple[int, ...], task: int, without: int = 0) -> np.ndarray:
        """Return the greatest value of ranges of a task."""
        result = np.zeros(len(self.lengths), dtype=np.int64)
        for code in codes:
            for item in self.trace.events[code]:
                if item.row[0] == task and item.value != without:
                    place = slice(*np.searchsorted(self.times, (item.begin, item.end)))
                    result[place] = np.maximum(result[place], item.value)
        return result

    def get_label(self, codes: tuple[int, ...], value: int) -> str:
        return next(
            self.trace.labels.values[code][value]
            for code in codes
            if value in self.trace.labels.values.get(code, {})
        )

    def sum_by_label(
        self, codes: tuple[int, ...], task: int, data: np.ndarray, without: int = 0
    ) -> dict[str, tuple[float, int]]:
        """Return label -> integral of the data, and time, while the greatest value of a task has
        it.
        """
        values = self.find_greatest(codes, task, without)
        return {
            self.get_label(codes, value): (
                float((data * self.lengths)[values == value].sum()),
                int(self.lengths[values == value].sum()),
            )
            for value in np.unique(values[values > 0])
        }


@pytest.fixture(scope="module")
def times(answers: Answers) -> Timeline:
    return Timeline(answers)


def _list_means(found: dict[str, tuple[float, int]], unit: float = 1) -> dict[str, float]:
    return {name: integral / time / unit for name, (integral, time) in found.items() if integral}


@pytest.mark.parametrize("views", METRICS, ids=lambda views: views[0])
def test_means_of_tasks(
    answers: Answers, times: Timeline, views: tuple[str, str, str | None]
) -> None:
    codes, unit = METRICS[views]
    for task in range(1, len(answers.exports) + 1):
        data = times.add_metrics(codes, task)
        shown = {
            view: answers.read_labelled_rows(f"hwcounters/{view}.cfg")[task - 1]
            for view in views
            if view
        }
        assert shown[views[0]] == pytest.approx(
            _list_means(times.sum_by_label((KERNEL, NCCL, GRAPH), task, data), unit), rel=CLOSE
        )
        assert shown[views[1]] == pytest.approx(
            _list_means(times.sum_by_label((CLASS,), task, data, COMMUNICATION), unit), rel=CLOSE
        )
        if views[2]:
            computing = times.find_greatest((KERNEL, GRAPH), task) > 0
            mean = (data * times.lengths)[computing].sum() / times.lengths[computing].sum() / unit
            assert shown[views[2]] == {"While computing": pytest.approx(mean, rel=CLOSE)}


def test_tensor_cores_by_gemm(answers: Answers, times: Timeline) -> None:
    rows = answers.read_labelled_rows("hwcounters/tensor_per_gemm-2dh.cfg")
    assert any(rows)
    for task, row in enumerate(rows, 1):
        assert row == pytest.approx(
            _list_means(times.sum_by_label((GEMM,), task, times.add_metrics((TENSOR,), task))),
            rel=CLOSE,
        )


def test_instructions(answers: Answers, times: Timeline) -> None:
    for task in range(1, len(answers.exports) + 1):
        per_ns = (
            times.add_metrics((GPC,), task) * times.add_metrics((SM_ISSUE,), task) * 4 / 100 / 1e9
        )
        by_kernel = times.sum_by_label((KERNEL, NCCL, GRAPH), task, per_ns)
        rows = {
            view: answers.read_labelled_rows(f"hwcounters/{view}.cfg")[task - 1]
            for view in (
                "inst_kernel_2dh",
                "full-gpu-instructions-kernel-2dh",
                "mips_kernel_2dh",
                "total-useful-instructions",
            )
        }
        totals = {name: integral for name, (integral, _) in by_kernel.items() if integral}
        assert rows["inst_kernel_2dh"] == pytest.approx(totals, rel=CLOSE)
        assert rows["full-gpu-instructions-kernel-2dh"] == pytest.approx(
            {name: 132 * total for name, total in totals.items()}, rel=CLOSE
        )
        assert rows["mips_kernel_2dh"] == pytest.approx(
            {name: 1000 * mean for name, mean in _list_means(by_kernel).items()}, rel=CLOSE
        )
        by_class = _list_means(times.sum_by_label((CLASS,), task, per_ns, COMMUNICATION))
        assert answers.read_labelled_rows("extra/hwcounters/mips_per_class-2dh.cfg")[
            task - 1
        ] == pytest.approx({name: 1000 * mean for name, mean in by_class.items()}, rel=CLOSE)
        useful = (per_ns * times.lengths)[times.find_greatest((KERNEL, GRAPH), task) > 0].sum()
        assert rows["total-useful-instructions"] == {
            "While computing": pytest.approx(useful, rel=CLOSE)
        }


def _sum_integrals(answers: Answers, view: str) -> dict[str, float]:
    """Return object -> sum of length times value of a timeline."""
    result: dict[str, float] = defaultdict(float)
    for line in answers.tables[view].splitlines():
        row, _, lasting, value = line.split("\t")
        result[row] += float(lasting) * float(value)
    return result


@pytest.mark.parametrize("view", NODES)
def test_means_of_nodes(answers: Answers, times: Timeline, view: str) -> None:
    codes, unit = NODES[view]
    result = list(_sum_integrals(answers, f"hwcounters/{view}.cfg").values())
    expected = []
    for node in range(1, len(times.trace.nodes) + 1):

        def belongs(task: int, node: int = node) -> bool:
            return times.trace.tasks[task - 1][1] == node

        total = sum(times.sum_samples(code, belongs, True)[0] for code in codes)
        count = sum(
            times.sum_samples(code, belongs, True)[1]
            for code in ((9425, 9440) if codes == NVLINK else codes[:1])
        )
        expected.append(
            float(
                (
                    np.divide(total, count, where=count > 0, out=np.zeros_like(total))
                    * times.lengths
                ).sum()
            )
            / unit
        )
    assert result == pytest.approx(expected, abs=ROUGHLY * answers.duration)
    assert any(result)


def test_traffic_of_ports(answers: Answers, times: Timeline) -> None:
    for view, codes in (("received", RECEIVED), ("sent", SENT)):
        expected: dict[tuple[int, int], float] = defaultdict(float)
        for (row, code), each in times.samples.items():
            if code in codes:
                expected[row] += (
                    sum(value * (later - time) for (time, value), (later, _) in pairwise(each))
                    / 1e6
                )
        cells = [
            cell
            for row in answers.read_labelled_rows(f"hwcounters/nic_bytes_{view}_2dh.cfg")
            for cell in row.values()
        ]
        assert cells == pytest.approx(
            [total for _, total in sorted(expected.items()) if total], rel=CLOSE
        )
        by_node: dict[int, float] = defaultdict(float)
        for (task, _), total in expected.items():
            by_node[times.trace.tasks[task - 1][1]] += total * 1e6
        result = _sum_integrals(answers, f"hwcounters/nic_bytes_{view}_node.cfg")
        assert list(result.values()) == pytest.approx(
            [total for _, total in sorted(by_node.items())], rel=1e-3
        )
