"""Sample reports with faults: rows that are lost, rows that only one report has, reports cut short.
By plain SQL and truth.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from samples import generate

JOB: dict[str, Any] = {
    "ranks": 4,
    "hosts": 2,
    "steps": 30,
    "layers": 1,
    "seed": 3,
    "clock_drifts_ppm": (0.0, 0.0),
}
"""Clocks that do not drift: local times are true ones since the capture's start, to the ns."""
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


def ask(report: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(report)) as database:
        return database.execute(sql).fetchall()


def count(report: Path, table: str) -> int:
    if not ask(report, f"SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '{table}'"):
        return 0
    return ask(report, f"SELECT count(*) FROM {table}")[0][0]


def totals_are_told(folder: Path, truth: dict[str, Any]) -> None:
    """The truth sums the rows as they are in the reports."""
    for rank in truth["ranks"]:
        for table in (*EVENTS, "NVTX_EVENTS"):
            told = rank["tables"].get(table, {"rows": 0, "ns": 0})
            assert told["rows"] == count(folder / rank["report"], table), table
            if told["rows"]:
                total = ask(
                    folder / rank["report"],
                    f"SELECT sum(coalesce(end, start) - start) FROM {table}",
                )[0][0]
                assert told["ns"] == total, table


def function_of(range_text: str) -> str:
    return range_text.removeprefix("nccl")


def test_without_faults_the_truth_tells_of_none(tmp_path: Path) -> None:
    truth = generate(tmp_path, ranks=2, hosts=1, steps=2, layers=1)
    assert "faults" not in truth
    totals_are_told(tmp_path, truth)


@pytest.mark.slow
def test_lost_rows_are_exactly_those_told(tmp_path: Path) -> None:
    """Against the same job without losses: the reports differ by the lost rows, found by their
    times, and by nothing else.
    """
    whole = generate(tmp_path / "whole", **JOB, mpi=True)
    truth = generate(tmp_path / "lossy", **JOB, mpi=True, lost_collectives=0.1)
    assert whole["collectives"] == truth["collectives"]
    lost = truth["faults"]["lost"]
    total = truth["collectives_total"] + sum(
        found["step"] is not None for found in truth["mpi"]["collectives"]
    )
    assert 0.06 * total < len(lost) < 0.14 * total
    assert {row for one in lost for row in one["rows"]} == {"range", "call", "kernel", "mpi"}
    totals_are_told(tmp_path / "lossy", truth)
    for rank in truth["ranks"]:
        both = [tmp_path / name / rank["report"] for name in ("whole", "lossy")]
        mine = [one for one in lost if one["rank"] == rank["rank"]]

        def gone(sql: str, both: list[Path] = both) -> Counter[tuple[Any, ...]]:
            before, after = (Counter(ask(report, sql)) for report in both)
            assert not after - before
            return before - after

        kernels = gone(f"SELECT k.start, k.end {NCCL_KERNELS}")
        told = [one for one in mine if "kernel" in one["rows"]]
        assert told
        shift = rank["capture_start_true_ns"]
        assert sorted(kernels.elements()) == sorted(
            (one["begin"] - shift, one["end"] - shift) for one in told
        )
        calls = gone("SELECT start, end, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME")
        assert len(list(calls.elements())) == sum("call" in one["rows"] for one in mine)
        ranges = Counter(
            function_of(text)
            for (text, _, _) in gone(f"SELECT s.value, n.start, n.end {NCCL_RANGES}").elements()
        )
        expected: Counter[str] = Counter()
        for one in mine:
            if "range" in one["rows"]:
                ring = one["function"] == "SendRecv"
                expected.update(
                    ("GroupStart", "Send", "Recv", "GroupEnd") if ring else (one["function"],)
                )
        assert ranges == expected
        messages = gone(
            "SELECT s.value, start, end FROM MPI_COLLECTIVES_EVENTS JOIN StringIds s ON s.id = textId"
        )
        missed = Counter(one["function"] for one in mine if one["library"] == "MPI")
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
    listed = {("NCCL", one["communicator"], one["ordinal"]): one for one in truth["collectives"]}
    listed |= {
        ("MPI", one["communicator"], one["ordinal"]): one for one in truth["mpi"]["collectives"]
    }
    for one in truth["faults"]["lost"]:
        found = listed[one["library"], one["communicator"], one["ordinal"]]
        assert (found["step"], found["function"]) == (one["step"], one["function"])
        place = found["ranks"].index(one["rank"])
        assert found["begin"][place] == one["begin"]
        if one["function"] != "MPI_Iallreduce":  # the list says when it was complete
            assert found["end"][place] == one["end"]


@pytest.mark.slow
@pytest.mark.parametrize("trace", ["legacy", "advanced"])
def test_extra_collectives_are_in_one_report_only(tmp_path: Path, trace: str) -> None:
    truth = generate(tmp_path, **JOB, mpi=True, extra_collectives=0.3, nccl_trace=trace)
    totals_are_told(tmp_path, truth)
    extra = truth["faults"]["extra"]
    kinds = {(one["library"], one["function"]) for one in extra}
    assert {
        ("NCCL", "AllGather"),
        ("NCCL", "AllReduce"),
        ("NCCL", "SendRecv"),
        ("MPI", "MPI_Barrier"),
    } <= kinds
    assert (
        0.2
        < len({(one["step"], one["function"]) for one in extra}) / (len(kinds) * JOB["steps"])
        < 0.4
    )
    listed = Counter(rank for one in truth["collectives"] for rank in one["ranks"])
    messages = Counter(rank for one in truth["mpi"]["collectives"] for rank in one["ranks"])
    for rank in truth["ranks"]:
        report = tmp_path / rank["report"]
        mine = Counter(one["library"] for one in extra if one["rank"] == rank["rank"])
        assert mine["NCCL"]
        assert ask(report, f"SELECT count(*) {NCCL_KERNELS}") == [
            (listed[rank["rank"]] + mine["NCCL"],)
        ]
        assert count(report, "MPI_COLLECTIVES_EVENTS") == messages[rank["rank"]] + mine["MPI"]
        shift = rank["capture_start_true_ns"]
        kernels = set(ask(report, f"SELECT k.start, k.end {NCCL_KERNELS}"))
        calls = set(ask(report, "SELECT start, end FROM MPI_COLLECTIVES_EVENTS"))
        for one in extra:
            if one["rank"] == rank["rank"]:
                assert (one["begin"] - shift, one["end"] - shift) in (
                    kernels if one["library"] == "NCCL" else calls
                )
        ids = ask(
            report,
            "SELECT count(*), count(DISTINCT correlationId) FROM CUPTI_ACTIVITY_KIND_RUNTIME",
        )[0]
        assert ids[0] == ids[1]
        unlaunched = (
            "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE correlationId NOT IN "
            "(SELECT correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME)"
        )
        assert ask(report, unlaunched) == [(0,)]


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
            rows = ask(tmp_path / rank["report"], sql)
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
    whole = generate(tmp_path / "whole", **JOB, mpi=True, osrt=20, pace_ms=5.0)
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
    totals_are_told(tmp_path / "cut", truth)
    for rank, uncut in zip(truth["ranks"], whole["ranks"], strict=True):
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
            left = ask(
                before, f"SELECT start, end FROM {table} WHERE {own} AND NOT {beyond} ORDER BY 1, 2"
            )
            found = (
                ask(after, f"SELECT start, end FROM {table} WHERE {own} ORDER BY 1, 2")
                if count(after, table)
                else []
            )
            assert found == left, table
            if found:
                assert ask(after, f"SELECT count(*) FROM {table} WHERE {beyond}") == [(0,)]
        share_left = count(after, "CUPTI_ACTIVITY_KIND_KERNEL") / count(
            before, "CUPTI_ACTIVITY_KIND_KERNEL"
        )
        assert abs(share_left - (share if kind == "end" else 1 - share)) < 0.05
        assert count(after, "MPI_RANKS") == 1
        assert count(after, "MPI_COMMUNICATORS") == count(before, "MPI_COMMUNICATORS")
        definitions = "SELECT count(*) FROM NVTX_EVENTS WHERE eventType IN (33, 39, 75)"
        assert ask(after, definitions) == ask(before, definitions)
        start = "SELECT utcEpochNs, systemClockNs FROM TARGET_INFO_SESSION_START_TIME"
        assert ask(after, start) == ask(before, start)
        ranges = "SELECT start, end FROM NVTX_EVENTS WHERE eventType NOT IN (33, 39, 75)"
        duration, first, last = ask(
            after, "SELECT duration, startTime, stopTime FROM ANALYSIS_DETAILS"
        )[0]
        assert last - first == duration
        if kind == "end":
            assert duration == at
            assert rank["capture_end_true_ns"] == rank["cut"]["true_ns"]
            still = {
                begin
                for begin, end in ask(before, ranges)
                if begin <= at and (end is None or end > at)
            }
            assert {begin for begin, end in ask(after, ranges) if end is None} == still
            assert all(
                begin <= at and (end is None or end <= at) for begin, end in ask(after, ranges)
            )
        else:
            assert rank["capture_end_true_ns"] == uncut["capture_end_true_ns"]
            assert sorted(ask(after, ranges), key=str) == sorted(
                (row for row in ask(before, ranges) if row[0] >= at), key=str
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
