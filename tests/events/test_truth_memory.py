"""Memory usage, memory pools and page faults on the sample set `machine`: against the truth, and
against SQL at every instant.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from tools.conversions import convert_and_read, find_time_zero
from tools.exports import query_export
from tools.trace import Trace

from nsys2prv import Summary

SET = Path(__file__).parents[2] / "sample_reports" / "machine"
TRUTH = json.loads((SET / "truth.json").read_text(encoding="utf-8"))["ranks"]
REPORTS = [SET / rank["report"] for rank in TRUTH]
ALLOCATED, FREED, EVENT, KIND, HOST_ALLOCATED, HOST_FREED, VARIABLE = range(66500001, 66500008)
IN_USE = 66500010
POOL, CPU, GPU, FAULTS = 66500024, 66500031, 66500035, 66500036
KINDS = {
    "Pageable": 1,
    "Pinned": 2,
    "Device": 3,
    "Array": 4,
    "Managed": 5,
    "Device static": 6,
    "Managed static": 7,
    "Unknown": 8,
}

#: What is in use after each change, by memKind: rows of (time from the first, kind, bytes).
TOTALS = """
WITH event AS (
    SELECT start, memKind, bytes, memoryOperationType AS operation,
           lag(memoryOperationType) OVER address AS before, lag(memKind) OVER address AS kindBefore, lag(bytes) OVER address AS bytesBefore
    FROM CUDA_GPU_MEMORY_USAGE_EVENTS WINDOW address AS (PARTITION BY globalPid, address ORDER BY start)
), change AS (
    SELECT start, memKind, bytes AS delta FROM event WHERE operation = 0
    UNION ALL SELECT start, kindBefore, -bytesBefore FROM event WHERE before = 0
), together AS (SELECT start, memKind, sum(delta) AS delta FROM change GROUP BY 1, 2)
SELECT start - :zero, memKind + 1,
       sum(delta) OVER (PARTITION BY memKind ORDER BY start ROWS UNBOUNDED PRECEDING)
FROM together ORDER BY 1, 2
"""


@pytest.fixture(scope="module", params=range(len(REPORTS)))
def rank(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module")
def usage(rank: int, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Summary, int]:
    """Convert one report's memory usage alone; return trace, summary, and the time of the report
    that is 0 there.
    """
    output = tmp_path_factory.mktemp("usage") / "o.prv"
    trace_and_summary = convert_and_read(
        [REPORTS[rank]], output, kinds=("memory_usage", "-memory_pools")
    )
    return *trace_and_summary, find_time_zero(output, REPORTS[rank])


def test_bytes_are_what_was_put_in(usage: tuple[Trace, Summary, int], rank: int) -> None:
    trace, truth = usage[0], TRUTH[rank]["additions"]["memory"]
    for name, codes in (("allocated", (ALLOCATED, HOST_ALLOCATED)), ("freed", (FREED, HOST_FREED))):
        result = Counter[str]()
        for item in trace.list_intervals(EVENT):
            result[trace.get_label(KIND, item.others[KIND])] += sum(
                item.others.get(code, 0) for code in codes
            )
        assert {kind: size for kind, size in result.items() if size} == truth[name]


def test_events_by_thread(usage: tuple[Trace, Summary, int], rank: int) -> None:
    trace, _, zero = usage
    query = """
        SELECT coalesce(globalTid & 0xFFFFFF, globalPid >> 24 & 0xFFFFFF), memoryOperationType + 1, memKind + 1, bytes, name,
               e.start - :zero
        FROM CUDA_GPU_MEMORY_USAGE_EVENTS AS e LEFT JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r
             ON e.correlationId > 0 AND r.correlationId = e.correlationId AND r.globalTid & ~0xFFFFFF = globalPid"""
    result = Counter(
        (
            int(trace.get_row_name(item.row).split()[-1]),
            item.value,
            item.others[KIND],
            max(
                item.others.get(code, 0) for code in (ALLOCATED, FREED, HOST_ALLOCATED, HOST_FREED)
            ),
            trace.get_label(VARIABLE, item.others[VARIABLE]) if VARIABLE in item.others else None,
            item.begin,
        )
        for item in trace.list_intervals(EVENT)
    )
    assert result == Counter(query_export(REPORTS[rank], query, zero=zero))
    assert len({thread for thread, *_ in result}) == 2, (
        "the sample has calls on another thread than the main one"
    )


def test_memory_in_use_at_every_instant(usage: tuple[Trace, Summary, int], rank: int) -> None:
    trace, _, zero = usage
    result = sorted(
        (sample.time, code - IN_USE, value)
        for sample in trace.samples
        if sample.time < trace.duration
        for code, value in sample.numbers.items()
    )
    assert result == query_export(REPORTS[rank], TOTALS, zero=zero)
    assert {trace.get_row_name(sample.row) for sample in trace.samples} == {f"Metrics GPU{rank}"}


def test_most_in_use_and_what_is_not_known(usage: tuple[Trace, Summary, int], rank: int) -> None:
    (trace, summary, _), truth = usage, TRUTH[rank]["additions"]["memory"]
    most: dict[int, int] = defaultdict(int)
    for sample in trace.samples:
        for code, value in sample.numbers.items():
            most[code] = max(most[code], value)
    assert most == {IN_USE + KINDS[name]: size for name, size in truth["most_in_use"].items()}
    assert [note.split()[3] for note in summary.notes if note.startswith("memory in use")] == [
        str(truth["unknown_releases"]),
        str(truth["missing_releases"]),
    ]


def test_pools_and_page_faults_are_what_was_put_in(rank: int, tmp_path: Path) -> None:
    trace, summary = convert_and_read(
        REPORTS, tmp_path / "o.prv", kinds=("memory_pools", "page_faults", "kernels"), align="utc"
    )
    truth = TRUTH[rank]["additions"]["memory"]

    def counted(code: int) -> Counter[str]:
        return Counter(
            trace.get_label(code, item.value)
            for item in trace.list_intervals(code)
            if item.row[0] == rank + 1
        )

    assert counted(POOL) == truth["pool"]
    assert counted(CPU) == truth["cpu_faults"]
    result: dict[str, dict[str, int]] = defaultdict(lambda: {"rows": 0, "ns": 0, "faults": 0})
    for item in trace.list_intervals(GPU):
        if item.row[0] == rank + 1:
            assert trace.get_row_name(item.row) == f"Metrics GPU{rank}"
            entry = result[trace.get_label(GPU, item.value)]
            for name, value in (
                ("rows", 1),
                ("ns", item.end - item.begin),
                ("faults", item.others[FAULTS]),
            ):
                entry[name] += value
    assert result == truth["gpu_faults"]
    assert not summary.dropped
