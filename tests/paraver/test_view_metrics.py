"""Compare figures of the views of metrics with the trace of the sample that has them, read and
averaged by other means than Paraver's.

``test_truth_cluster_metrics.py`` tests that the trace contains the samples of the reports.
"""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tools.exports import KERNEL as KERNELS
from tools.exports import make_export, make_kernel, make_strings
from tools.view_answers import SAMPLES, Answers, answer_exports, answer_views

MEMORY, KERNEL, NCCL, GRAPH, GEMM = 63000001, 63000006, 63000007, 63000008, 63000062
GPC, SM_ACTIVE, SM_ISSUE, TENSOR, WARPS, DRAM_READ, DRAM_WRITE = (
    9400,
    9403,
    9404,
    9405,
    9412,
    9418,
    9419,
)
#: Tables are printed with ten decimals.
CLOSE = 1e-7
#: View -> event type, and what a shown unit is in the trace's.
WHILE_COMPUTING = {"sm-active-avg-2dh": (SM_ACTIVE, 1)}
#: View -> event types added up.
BY_KERNEL = {
    "tensor_util_per_kernel-2dh": (TENSOR,),
    "aggregated_bw_perkernel-2dh": (DRAM_READ, DRAM_WRITE),
}


#: Of the job made here: time between two samples, ns; a GEMM, and kernels too short for a sample.
PERIOD = 100_000
LONG, SHORT = "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NTT", "vectorized_elementwise_kernel"
METRICS = (
    "GPC Clock Frequency [MHz]",
    "SM Issue [Throughput %]",
    "Tensor Active [Throughput %]",
    "DRAM Read Bandwidth [Throughput %]",
    "DRAM Write Bandwidth [Throughput %]",
)


@pytest.fixture(scope="module")
def answers() -> Answers:
    assert SAMPLES["cluster"]
    return answer_views("cluster")


def make_sampled_job(path: Path) -> Path:
    """Write a report of kernels of 30 to 400 us on two streams, and of samples every 100 us."""
    random = np.random.default_rng(18)
    kernels, names = [], make_strings(LONG, SHORT, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL")
    for stream in (7, 13):
        ends = np.cumsum(random.integers(30_000, 400_000, 60))
        for begin, end in pairwise(ends.tolist()):
            name = 2 if end - begin < PERIOD else int(random.choice([1, 1, 3]))
            columns = {"streamId": stream, "demangledName": name, "shortName": name}
            kernels.append(make_kernel(begin, end - 500, **columns))
    type_id = 1 << 56 | 1 << 48 | 2 << 32 | 7 << 8
    samples = [
        {"timestamp": time, "typeId": type_id, "metricId": number, "value": value}
        for time in range(PERIOD, 16_000_000, PERIOD)
        for number, value in enumerate(random.integers(0, 100, len(METRICS)).tolist())
    ]
    named = [
        {"typeId": type_id, "sourceId": 1, "metricId": number, "metricName": name}
        for number, name in enumerate(METRICS)
    ]
    tables = {"GPU_METRICS": samples, "TARGET_INFO_GPU_METRICS": named, "StringIds": names}
    return make_export(path, {**tables, KERNELS: kernels})


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp("sampled")
    return answer_exports([make_sampled_job(folder / "r.sqlite")], folder)


class Timeline:
    """All moments at which anything of interest changes, and values between them."""

    def __init__(self, answers: Answers) -> None:
        self.trace = answers.load_trace()
        self.samples: dict[tuple[tuple[int, int], int], list[tuple[int, int]]] = defaultdict(list)
        for record in self.trace.samples:
            for code, value in record.numbers.items():
                self.samples[record.row, code].append((record.time, value))
        times = {0, answers.duration, *(record.time for record in self.trace.samples)}
        for code in (MEMORY, KERNEL, NCCL, GRAPH, GEMM):
            times |= {time for item in self.trace.events[code] for time in (item.begin, item.end)}
        self.times = np.array(sorted(times))
        self.lengths = np.diff(self.times)

    def add_metrics(self, codes: tuple[int, ...], task: int) -> np.ndarray:
        """Return the sum of metrics over rows of a task; each sample stands for the time before it."""
        total = np.zeros(len(self.lengths))
        for ((number, _), code), each in self.samples.items():
            if code in codes and number == task:
                moments, values = np.array(each).T
                total += np.append(values, 0)[
                    np.searchsorted(moments, self.times[:-1], side="right")
                ]
        return total

    def find_greatest(self, codes: tuple[int, ...], task: int, least: int = 0) -> np.ndarray:
        """Return the greatest value of ranges of a task that last at least so long (ns)."""
        result = np.zeros(len(self.lengths), dtype=np.int64)
        for code in codes:
            for item in self.trace.events[code]:
                if item.row[0] == task and item.end - item.begin >= least:
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
        self, codes: tuple[int, ...], task: int, data: np.ndarray
    ) -> dict[str, tuple[float, int]]:
        """Return label -> integral of the data, and time, while the greatest value of a task's ranges
        that last for a sample has it.
        """
        values = self.find_greatest(codes, task, PERIOD)
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


@pytest.mark.parametrize("view", WHILE_COMPUTING)
def test_means_while_computing(answers: Answers, times: Timeline, view: str) -> None:
    code, unit = WHILE_COMPUTING[view]
    for task, row in enumerate(answers.read_labelled_rows(f"hwcounters/{view}.cfg"), 1):
        computing = times.find_greatest((KERNEL, GRAPH), task) > 0
        integral = (times.add_metrics((code,), task) * times.lengths)[computing].sum()
        mean = integral / times.lengths[computing].sum() / unit
        assert row == {"While computing": pytest.approx(mean, rel=CLOSE)}


@pytest.mark.parametrize("view", BY_KERNEL)
def test_means_by_kernel(sampled: Answers, view: str) -> None:
    times, (row,) = Timeline(sampled), sampled.read_labelled_rows(f"hwcounters/{view}.cfg")
    data = times.add_metrics(BY_KERNEL[view], 1)
    means = _list_means(times.sum_by_label((KERNEL, NCCL, GRAPH), 1, data))
    assert LONG in row
    assert SHORT not in row
    assert row == pytest.approx(means, rel=CLOSE)


def test_tensor_cores_by_gemm(sampled: Answers) -> None:
    times, (row,) = (
        Timeline(sampled),
        sampled.read_labelled_rows("hwcounters/tensor_per_gemm-2dh.cfg"),
    )
    means = _list_means(times.sum_by_label((GEMM,), 1, times.add_metrics((TENSOR,), 1)))
    assert row
    assert row == pytest.approx(means, rel=CLOSE)
