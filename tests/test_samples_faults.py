"""Sample reports with faults: rows that are lost, rows that only one report has, reports cut short.
By plain SQL and truth.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from samples import generate
from tools.exports import query_export

#: Clocks that do not drift: local times are true ones since the capture's start, to the ns.
JOB: dict[str, Any] = {
    "ranks": 4,
    "hosts": 2,
    "steps": 30,
    "layers": 1,
    "seed": 3,
    "clock_drifts_ppm": (0.0, 0.0),
}
EVENTS = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "OSRT_API",
    "MPI_COLLECTIVES_EVENTS",
    "MPI_P2P_EVENTS",
    "MPI_OTHER_EVENTS",
    "MPI_START_WAIT_EVENTS",
)
NCCL_KERNELS = "FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName WHERE s.value LIKE 'nccl%'"
NCCL_RANGES = "FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId WHERE n.domainId = 1 AND n.eventType = 59"


def count_rows(report: Path, table: str) -> int:
    if not query_export(
        report, f"SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '{table}'"
    ):
        return 0
    return query_export(report, f"SELECT count(*) FROM {table}")[0][0]


def check_totals(folder: Path, truth: dict[str, Any]) -> None:
    """Check that the truth sums the rows as they are in the reports."""
    for rank in truth["ranks"]:
        for table in (*EVENTS, "NVTX_EVENTS"):
            expected = rank["tables"].get(table, {"rows": 0, "ns": 0})
            assert expected["rows"] == count_rows(folder / rank["report"], table), table
            if expected["rows"]:
                total = query_export(
                    folder / rank["report"],
                    f"SELECT sum(coalesce(end, start) - start) FROM {table}",
                )[0][0]
                assert expected["ns"] == total, table


def find_function(range_text: str) -> str:
    return range_text.removeprefix("nccl")


def test_without_faults_the_truth_tells_of_none(tmp_path: Path) -> None:
    truth = generate(tmp_path, ranks=2, hosts=1, steps=2, layers=1)
    assert "faults" not in truth
    check_totals(tmp_path, truth)


@pytest.mark.slow
def test_lost_rows_are_exactly_those_told(tmp_path: Path) -> None:
    """Against the same job without losses: the reports differ by the lost rows, found by their
    times, and by nothing else.
    """
    full_truth = generate(tmp_path / "whole", **JOB, mpi=True)
    truth = generate(tmp_path / "lossy", **JOB, mpi=True, lost_collectives=0.1)
    assert full_truth["collectives"] == truth["collectives"]
    lost = truth["faults"]["lost"]
    total = truth["collectives_total"] + sum(
        item["step"] is not None for item in truth["mpi"]["collectives"]
    )
    assert 0.06 * total < len(lost) < 0.14 * total
    assert {row for item in lost for row in item["rows"]} == {"range", "call", "kernel", "mpi"}
    check_totals(tmp_path / "lossy", truth)
    for rank in truth["ranks"]:
        both = [tmp_path / name / rank["report"] for name in ("whole", "lossy")]
        rank_losses = [item for item in lost if item["rank"] == rank["rank"]]

        def gone(sql: str, both: list[Path] = both) -> Counter[tuple[Any, ...]]:
            before, after = (Counter(query_export(report, sql)) for report in both)
            assert not after - before
            return before - after

        kernels = gone(f"SELECT k.start, k.end {NCCL_KERNELS}")
        kernel_losses = [item for item in rank_losses if "kernel" in item["rows"]]
        assert kernel_losses
        shift = rank["capture_start_true_ns"]
        assert sorted(kernels.elements()) == sorted(
            (item["begin"] - shift, item["end"] - shift) for item in kernel_losses
        )
        calls = gone("SELECT start, end, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME")
        assert len(list(calls.elements())) == sum("call" in item["rows"] for item in rank_losses)
        ranges = Counter(
            find_function(text)
            for (text, _, _) in gone(f"SELECT s.value, n.start, n.end {NCCL_RANGES}").elements()
        )
        expected: Counter[str] = Counter()
        for item in rank_losses:
            if "range" in item["rows"]:
                ring = item["function"] == "SendRecv"
                expected.update(
                    ("GroupStart", "Send", "Recv", "GroupEnd") if ring else (item["function"],)
                )
        assert ranges == expected
        messages = gone(
            "SELECT s.value, start, end FROM MPI_COLLECTIVES_EVENTS JOIN StringIds s ON s.id = textId"
        )
        missed = Counter(item["function"] for item in rank_losses if item["library"] == "MPI")
        assert Counter(function for (function, _, _) in messages.elements()) == missed
        for table in (
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            "OSRT_API",
            "MPI_P2P_EVENTS",
        ):
            assert not gone(f"SELECT start, end FROM {table}")


def test_lost_collectives_are_named_as_in_the_lists(tmp_path: Path) -> None:
    """Function, communicator, ordinal and times of what was lost are those of a collective the
    truth lists.
    """
    truth = generate(tmp_path, **JOB, mpi=True, lost_collectives=0.2)
    assert truth["collectives_of_every_nth_step"] == 1
    listed = {
        ("NCCL", item["communicator"], item["ordinal"]): item for item in truth["collectives"]
    }
    listed |= {
        ("MPI", item["communicator"], item["ordinal"]): item for item in truth["mpi"]["collectives"]
    }
    for item in truth["faults"]["lost"]:
        result = listed[item["library"], item["communicator"], item["ordinal"]]
        assert (result["step"], result["function"]) == (item["step"], item["function"])
        place = result["ranks"].index(item["rank"])
        assert result["begin"][place] == item["begin"]
        if item["function"] != "MPI_Iallreduce":  # the list says when it was complete
            assert result["end"][place] == item["end"]


@pytest.mark.slow
@pytest.mark.parametrize("trace", ["legacy", "advanced"])
def test_extra_collectives_are_in_one_report_only(tmp_path: Path, trace: str) -> None:
    truth = generate(tmp_path, **JOB, mpi=True, extra_collectives=0.3, nccl_trace=trace)
    check_totals(tmp_path, truth)
    extra = truth["faults"]["extra"]
    kinds = {(item["library"], item["function"]) for item in extra}
    assert {
        ("NCCL", "AllGather"),
        ("NCCL", "AllReduce"),
        ("NCCL", "SendRecv"),
        ("MPI", "MPI_Barrier"),
    } <= kinds
    assert (
        0.2
        < len({(item["step"], item["function"]) for item in extra}) / (len(kinds) * JOB["steps"])
        < 0.4
    )
    listed = Counter(rank for item in truth["collectives"] for rank in item["ranks"])
    messages = Counter(rank for item in truth["mpi"]["collectives"] for rank in item["ranks"])
    for rank in truth["ranks"]:
        report = tmp_path / rank["report"]
        count_by_library = Counter(
            item["library"] for item in extra if item["rank"] == rank["rank"]
        )
        assert count_by_library["NCCL"]
        assert query_export(report, f"SELECT count(*) {NCCL_KERNELS}") == [
            (listed[rank["rank"]] + count_by_library["NCCL"],)
        ]
        assert (
            count_rows(report, "MPI_COLLECTIVES_EVENTS")
            == messages[rank["rank"]] + count_by_library["MPI"]
        )
        shift = rank["capture_start_true_ns"]
        kernels = set(query_export(report, f"SELECT k.start, k.end {NCCL_KERNELS}"))
        calls = set(query_export(report, "SELECT start, end FROM MPI_COLLECTIVES_EVENTS"))
        for item in extra:
            if item["rank"] == rank["rank"]:
                assert (item["begin"] - shift, item["end"] - shift) in (
                    kernels if item["library"] == "NCCL" else calls
                )
        ids = query_export(
            report,
            "SELECT count(*), count(DISTINCT correlationId) FROM CUPTI_ACTIVITY_KIND_RUNTIME",
        )[0]
        assert ids[0] == ids[1]
        unlaunched = (
            "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE correlationId NOT IN "
            "(SELECT correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME)"
        )
        assert query_export(report, unlaunched) == [(0,)]


@pytest.mark.slow
def test_extra_collectives_lie_between_steps(tmp_path: Path) -> None:
    """No NCCL kernel of a report overlaps another of the same stream, no MPI call another of the
    same thread.
    """
    truth = generate(tmp_path, **JOB, mpi=True, extra_collectives=0.5)
    for rank in truth["ranks"]:
        for sql in (
            f"SELECT k.streamId, k.start, k.end {NCCL_KERNELS} ORDER BY 1, 2",
            "SELECT globalTid, start, end FROM MPI_COLLECTIVES_EVENTS ORDER BY 1, 2",
        ):
            rows = query_export(tmp_path / rank["report"], sql)
            assert rows
            for (place, _, end), (other, begin, _) in pairwise(rows):
                assert place != other or end <= begin


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "share"), [("end", 0.5), ("end", 0.61), ("begin", 0.5), ("begin", 0.27)]
)
def test_a_cut_report_lacks_all_rows_beyond_the_cut(
    tmp_path: Path, kind: str, share: float
) -> None:
    full_truth = generate(tmp_path / "whole", **JOB, mpi=True, osrt=20, pace_ms=5.0)
    truth = generate(
        tmp_path / "cut",
        **JOB,
        mpi=True,
        osrt=20,
        pace_ms=5.0,
        cut_report=kind,
        cut_rank=2,
        cut_at=share,
    )
    check_totals(tmp_path / "cut", truth)
    for rank, uncut in zip(truth["ranks"], full_truth["ranks"], strict=True):
        before, after = (tmp_path / name / rank["report"] for name in ("whole", "cut"))
        if rank["rank"] != 2:
            assert rank == uncut
            continue
        at = rank["cut"]["local_ns"]
        assert rank["cut"]["true_ns"] - rank["capture_start_true_ns"] == at
        others = ", ".join(
            map(str, (0, *(rank["pid"] + thread for thread in (5, 6, 12))))
        )  # their calls depend on the capture's end
        beyond = f"end > {at}" if kind == "end" else f"start < {at}"
        for table in EVENTS:
            own = f"(globalTid & 0xffffff) NOT IN ({others})" if table == "OSRT_API" else "1"
            left = query_export(
                before, f"SELECT start, end FROM {table} WHERE {own} AND NOT {beyond} ORDER BY 1, 2"
            )
            result = (
                query_export(after, f"SELECT start, end FROM {table} WHERE {own} ORDER BY 1, 2")
                if count_rows(after, table)
                else []
            )
            assert result == left, table
            if result:
                assert query_export(after, f"SELECT count(*) FROM {table} WHERE {beyond}") == [(0,)]
        share_left = count_rows(after, "CUPTI_ACTIVITY_KIND_KERNEL") / count_rows(
            before, "CUPTI_ACTIVITY_KIND_KERNEL"
        )
        assert abs(share_left - (share if kind == "end" else 1 - share)) < 0.05
        assert count_rows(after, "MPI_RANKS") == 1
        assert count_rows(after, "MPI_COMMUNICATORS") == count_rows(before, "MPI_COMMUNICATORS")
        definitions = "SELECT count(*) FROM NVTX_EVENTS WHERE eventType IN (33, 39, 75)"
        assert query_export(after, definitions) == query_export(before, definitions)
        start = "SELECT utcEpochNs, systemClockNs FROM TARGET_INFO_SESSION_START_TIME"
        assert query_export(after, start) == query_export(before, start)
        ranges = "SELECT start, end FROM NVTX_EVENTS WHERE eventType NOT IN (33, 39, 75)"
        duration, first, last = query_export(
            after, "SELECT duration, startTime, stopTime FROM ANALYSIS_DETAILS"
        )[0]
        assert last - first == duration
        if kind == "end":
            assert duration == at
            assert rank["capture_end_true_ns"] == rank["cut"]["true_ns"]
            still = {
                begin
                for begin, end in query_export(before, ranges)
                if begin <= at and (end is None or end > at)
            }
            assert {begin for begin, end in query_export(after, ranges) if end is None} == still
            assert all(
                begin <= at and (end is None or end <= at)
                for begin, end in query_export(after, ranges)
            )
        else:
            assert rank["capture_end_true_ns"] == uncut["capture_end_true_ns"]
            assert sorted(query_export(after, ranges), key=str) == sorted(
                (row for row in query_export(before, ranges) if row[0] >= at), key=str
            )


def test_faults_repeat_themselves(tmp_path: Path) -> None:
    options = {
        **JOB,
        "steps": 4,
        "mpi": True,
        "lost_collectives": 0.2,
        "extra_collectives": 0.3,
        "cut_report": "begin",
        "cut_rank": 3,
        "lonely_host": True,
        "waited_us": (4.0, 20.0),
    }
    for folder in ("one", "two"):
        generate(tmp_path / folder, **options)
    for path in sorted((tmp_path / "one").iterdir()):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
