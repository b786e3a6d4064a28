"""Figures of the views of programming models, libraries and memory, as Paraver computes them,
against plain SQL on the sample `machine`.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from tools.view_answers import Answers, answer_views, sum_innermost_times

CONSTRUCTS = ("OTHER", "DATA", "LAUNCH")


@pytest.fixture(scope="module")
def answers() -> Answers:
    return answer_views("machine")


def read_shown(answers: Answers, view: str) -> dict[str, float]:
    return {name: value for name, value in answers.sum_columns(view).items() if value}


def sum_by_label(answers: Answers, query: str) -> dict[str, float]:
    """Return label -> sum of the numbers over the exports, without those that are 0."""
    result: dict[str, float] = defaultdict(float)
    for _, label, number in answers.query(query):
        result[label] += number
    return {label: number for label, number in result.items() if number}


def test_openacc(answers: Answers) -> None:
    rows = []
    for table in CONSTRUCTS:
        rows += answers.query(f"""
            SELECT globalTid, start, end, label, coalesce(name.value || '@' || file.value || ':' || lineNo, name.value)
            FROM CUPTI_ACTIVITY_KIND_OPENACC_{table} JOIN ENUM_OPENACC_EVENT_KIND AS kind ON kind.id = eventKind
            JOIN StringIds AS name ON name.id = nameId LEFT JOIN StringIds AS file ON file.id = srcFile""")
    calls = [((export, tid), begin, end, label) for export, tid, begin, end, label, _ in rows]
    sources = [((export, tid), begin, end, source) for export, tid, begin, end, _, source in rows]
    assert read_shown(answers, "extra/analysis/openacc_time_2dh.cfg") == sum_innermost_times(calls)
    assert read_shown(answers, "extra/analysis/openacc_source_time_2dh.cfg") == sum_innermost_times(
        sources
    )
    counts: dict[str, int] = defaultdict(int)
    for *_, label in calls:
        counts[label] += 1
    assert read_shown(answers, "extra/analysis/openacc_calls_2dh.cfg") == counts
    assert read_shown(answers, "extra/analysis/openacc_bytes_2dh.cfg") == sum_by_label(
        answers,
        (
            "SELECT label, coalesce(bytes, 0) FROM CUPTI_ACTIVITY_KIND_OPENACC_DATA JOIN ENUM_OPENACC_EVENT_KIND ON id = eventKind"
        ),
    )


@pytest.mark.parametrize(
    ("table", "code", "view"),
    [
        ("SYNC_REGION_WAIT", 60000072, "wait"),
        ("MUTEX_WAIT", 60000076, "mutex_wait"),
        ("CRITICAL_SECTION", 60000077, "critical_section"),
        ("WORKSHARE", 60000075, "worksharing"),
    ],
)
def test_openmp(answers: Answers, table: str, code: int, view: str) -> None:
    """By kind; none of these is within another of its type in the sample."""
    trace = answers.load_trace()
    of = f"FROM OPENMP_EVENT_KIND_{table}"
    times, counts = (
        sum_by_label(answers, f"SELECT kind, {figure} {of}") for figure in ("end - start", "1")
    )
    assert read_shown(answers, f"analysis/openmp_{view}_time_2dh.cfg") == {
        trace.get_label(code, kind): time for kind, time in times.items()
    }
    assert read_shown(answers, f"analysis/openmp_{view}_calls_2dh.cfg") == {
        trace.get_label(code, kind): count for kind, count in counts.items()
    }


def test_openmp_threads_at_work(answers: Answers) -> None:
    """Threads times their time are the time in implicit tasks less that in barriers and task waits,
    by the ranges of the trace.
    """
    trace = answers.load_trace()
    inside = sum(item.end - item.begin for item in trace.list_intervals(60000002))
    waiting = sum(
        item.end - item.begin
        for code in (60000003, 60000071)
        for item in trace.list_intervals(code)
    )
    table = answers.sum_columns("extra/analysis/openmp_working_threads_2dh.cfg")
    weighted = sum(float(name.split()[0].strip("[.)")) * time for name, time in table.items())
    assert weighted == pytest.approx(inside - waiting)


@pytest.mark.parametrize(
    ("library", "table", "own"), [("cublas", "CUBLAS_EVENTS", 29), ("cudnn", "CUDNN_EVENTS", 28)]
)
def test_libraries(answers: Answers, library: str, table: str, own: int) -> None:
    rows = answers.query(
        f"SELECT globalTid, start, end, value FROM {table} JOIN StringIds ON id = nameId WHERE eventClass = {own}"
    )
    calls = [((export, tid), begin, end, name) for export, tid, begin, end, name in rows]
    assert read_shown(answers, f"analysis/{library}_time_2dh.cfg") == sum_innermost_times(calls)
    assert sum(answers.sum_columns(f"analysis/{library}_calls_2dh.cfg").values()) == len(calls)


@pytest.mark.parametrize("name", ["UCX", "NVSHMEM", "OpenSHMEM", "Python GIL"])
def test_libraries_that_are_domains(answers: Answers, name: str) -> None:
    rows = answers.query(
        "SELECT globalTid, start, end, value FROM NVTX_EVENTS JOIN StringIds ON id = textId WHERE eventType = 59 "
        "AND domainId = (SELECT d.domainId FROM NVTX_EVENTS AS d JOIN StringIds ON id = d.textId "
        f"WHERE d.eventType = 75 AND value = '{name}')"
    )
    calls = [((export, tid), begin, end, text) for export, tid, begin, end, text in rows]
    assert calls
    assert read_shown(
        answers, f"analysis/{name.lower().replace(' ', '_')}_time_2dh.cfg"
    ) == sum_innermost_times(calls)


def test_allocations(answers: Answers) -> None:
    of = "FROM CUDA_GPU_MEMORY_USAGE_EVENTS JOIN ENUM_CUDA_MEM_KIND ON id = memKind"
    # The catalogue's labels have the second word in lower case.
    for view, figure in (
        ("memory_allocations_by_kind", f"1 {of}"),
        ("memory_allocated_bytes", f"bytes {of} WHERE memoryOperationType = 0"),
        ("memory_freed_bytes", f"bytes {of} WHERE memoryOperationType = 1"),
    ):
        expected = {
            label.capitalize(): number
            for label, number in sum_by_label(answers, f"SELECT label, {figure}").items()
        }
        assert read_shown(answers, f"analysis/{view}_2dh.cfg") == expected, view
    assert read_shown(answers, "extra/analysis/memory_allocations_2dh.cfg") == sum_by_label(
        answers,
        (
            "SELECT label, 1 FROM CUDA_GPU_MEMORY_USAGE_EVENTS JOIN ENUM_CUDA_DEV_MEM_EVENT_OPER ON id = memoryOperationType"
        ),
    )


def test_memory_in_use(answers: Answers) -> None:
    """The peak of each GPU and the area below the curve, which is bytes times ns; by the trace's
    own records.
    """
    trace = answers.load_trace()
    area, most = 0, set()
    for row in {sample.row for sample in trace.samples}:
        records = [
            (sample.time, sample.numbers[66500013])
            for sample in trace.samples
            if sample.row == row and 66500013 in sample.numbers
        ]
        if records:
            most.add(max(value for _, value in records))
            area += sum(value * (after - time) for (time, value), (after, _) in pairwise(records))
    assert most
    assert {
        max(row)
        for row in answers.read_rows("extra/analysis/gpu_memory_peak_2dh.cfg")
        if row and max(row)
    } == most
    assert sum(
        length * value for length, value in answers.list_bursts("views/gpu_memory_usage.cfg")
    ) == pytest.approx(area)


def test_page_faults(answers: Answers) -> None:
    assert read_shown(answers, "extra/analysis/cpu_page_faults_2dh.cfg") == sum_by_label(
        answers,
        (
            "SELECT value, 1 FROM CUDA_UM_CPU_PAGE_FAULT_EVENTS JOIN StringIds ON id = CpuInstruction"
        ),
    )
    of = "FROM CUDA_UM_GPU_PAGE_FAULT_EVENTS JOIN ENUM_CUDA_UNIF_MEM_ACCESS_TYPE ON id = faultAccessType"
    assert read_shown(answers, "extra/analysis/gpu_page_faults_2dh.cfg") == sum_by_label(
        answers, f"SELECT label, 1 {of}"
    )
    assert read_shown(answers, "extra/analysis/gpu_page_fault_sum_2dh.cfg") == sum_by_label(
        answers, f"SELECT label, numberOfPageFaults {of}"
    )
