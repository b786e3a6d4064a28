"""Ranges as PyTorch makes them: the trace of the samples says what was put in, on the threads and
on the stream that they share.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.trace_reader import Trace, read_trace

from nsys2prv import Options, convert
from nsys2prv.paraver.views import find_views_for_trace

MACHINE = Path(__file__).parents[2] / "sample_reports" / "machine"
RANGES, NUMBER, ON_GPU = 9600, 9602, 9630
TRUTH = [
    rank["additions"]["pytorch_ranges"]
    for rank in json.loads((MACHINE / "truth.json").read_text())["ranks"]
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("machine") / "o.prv"
    convert(sorted(MACHINE.glob("rank*.sqlite")), output, Options(demanded=("nvtx_on_gpu",)))
    return output


@pytest.fixture(scope="module")
def trace(path: Path) -> Trace:
    trace = read_trace(path)
    assert not trace.violations, str(trace.violations)
    return trace


def list_intervals_of_task(
    trace: Trace, code: int, task: int, rows: set[str]
) -> Iterator[tuple[str, int, tuple]]:
    """Return name, length and row of the intervals of a type on rows of these last words."""
    for item in trace.list_intervals(code):
        if item.row[0] == task and trace.get_row_name(item.row).split()[-1].split(".")[-1] in rows:
            yield trace.get_label(code, item.value), item.end - item.begin, item.row


def sum_totals(found: Iterator[tuple[str, int, tuple]]) -> dict[str, list[int]]:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, length, _ in found:
        sums[name][0] += 1
        sums[name][1] += length
    return dict(sums)


@pytest.mark.parametrize("rank", range(len(TRUTH)))
def test_ranges_without_their_tails(trace: Trace, rank: int) -> None:
    threads = {str(tid) for tid in TRUTH[rank]["threads"]}
    assert (
        sum_totals(list_intervals_of_task(trace, RANGES, rank + 1, threads)) == TRUTH[rank]["host"]
    )


@pytest.mark.parametrize("rank", range(len(TRUTH)))
def test_sequence_numbers_stay(trace: Trace, rank: int) -> None:
    threads = {str(tid) for tid in TRUTH[rank]["threads"]}
    numbers = [
        item.others[NUMBER]
        for item in trace.list_intervals(RANGES)
        if item.row[0] == rank + 1
        and NUMBER in item.others
        and trace.get_row_name(item.row).split()[-1] in threads
    ]
    # 0 is the end of a range, so what has it is without a number.
    assert sorted(numbers) == [number for number in TRUTH[rank]["sequence_numbers"] if number]


@pytest.mark.parametrize("rank", range(len(TRUTH)))
def test_ranges_on_the_stream_they_share(trace: Trace, rank: int) -> None:
    stream = {f"S{TRUTH[rank]['stream']}"}
    assert (
        sum_totals(list_intervals_of_task(trace, ON_GPU, rank + 1, stream)) == TRUTH[rank]["on_gpu"]
    )
    rows: dict[tuple, set[str]] = defaultdict(set)
    for name, _, row in list_intervals_of_task(trace, ON_GPU, rank + 1, stream):
        rows[row].add(name)
    backward = {"backward", "AddmmBackward0", "autograd::engine::evaluate_function: AddmmBackward0"}
    assert sorted(rows.values(), key=len) == [backward, set(TRUTH[rank]["on_gpu"]) - backward]


@pytest.mark.parametrize("rank", range(len(TRUTH)))
def test_plain_payloads(trace: Trace, rank: int) -> None:
    labels = {label: code for code, label in trace.labels.types.items()}
    threads = {str(tid) for tid in TRUTH[rank]["threads"]}
    counts = Counter(
        code
        for sample in trace.samples
        if sample.row[0] == rank + 1 and trace.get_row_name(sample.row).split()[-1] in threads
        for code, value in sample.numbers.items()
        if value
    )
    assert counts[labels["default domain: payload"]] == TRUTH[rank]["payloads"]["int64Value"]
    [fractions] = [
        code for label, code in labels.items() if label == "default domain: payload (fraction)"
    ]
    assert counts[fractions] == TRUTH[rank]["payloads"]["floatValue"]


def test_all_names_fit_in_few_values(trace: Trace) -> None:
    assert not [
        label
        for label in trace.labels.values[RANGES].values()
        if "op_id" in label or "seq =" in label
    ]


def test_views_of_it_show_something(path: Path) -> None:
    shown = {fit.path for fit in find_views_for_trace(path) if not fit.lacking}
    assert shown >= {
        "extra/views/nvtx_numbers.cfg",
        "extra/basics/nvtx_on_gpu.cfg",
        "views/nvtx_on_gpu.cfg",
        "extra/analysis/nvtx_on_gpu_work_2dh.cfg",
    }
