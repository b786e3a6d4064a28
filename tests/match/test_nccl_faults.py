"""Test that NCCL is matched correctly across ranks although reports lack rows, begin late or end
early, and host clocks differ.
"""

import sqlite3
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import pytest
from samples import Options, generate
from tools.conversions import convert_and_read
from tools.exports import query_export
from tools.slow import mark_slow_except
from tools.trace_reader import Trace

COLLECTIVE, NUMBER, KERNEL, TAG = 9540, 9541, 63000007, 55010
#: Before a kernel its call and ranges come, within so much.
MARGIN = 20_000_000
KERNELS, CALLS, RANGES = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
)
#: What NCCL's ranges around the calls of a report are; definitions of domains have other types.
OF_CALLS = f"""eventType = 59 AND domainId = 1 AND EXISTS (SELECT 1 FROM {CALLS} AS call WHERE {{}}
    AND call.globalTid = {RANGES}.globalTid AND call.start BETWEEN {RANGES}.start AND {RANGES}.end)"""
JOBS = ("rows missing", "a report that begins late", "a report that ends early")


def lose_rows(job: str, rank: int, report: Path) -> list[int]:
    """Delete rows of a rank's report; return the begins (local ns) of the kernels of NCCL that
    lack any since.
    """
    with closing(sqlite3.connect(report)) as connection, connection:
        times = connection.execute(f"SELECT min(start), max(start) FROM {KERNELS}").fetchone()
        middle = sum(times) // 2
        if job == "rows missing":
            kernel, call, ranges = (f"correlationId % 211 = {rank + 8 * part}" for part in range(3))
            lost = f"({kernel} OR {call} OR {ranges})"
            deleted = {RANGES: OF_CALLS.format(ranges), KERNELS: kernel, CALLS: call}
        elif rank != 3:
            return []
        else:
            late = job == JOBS[1]
            lost = f"start < {middle + MARGIN}" if late else f"start > {middle - MARGIN}"
            outside = f"start < {middle}" if late else f"end > {middle}"
            ranges = f"eventType IN (34, 59, 60) AND {outside}"
            deleted = {RANGES: ranges, KERNELS: outside, CALLS: outside}
        begins = [
            begin
            for (begin,) in connection.execute(
                f"SELECT start FROM {KERNELS} JOIN StringIds ON id = shortName "
                f"WHERE value LIKE 'ncclDevKernel%' AND {lost}"
            )
        ]
        for table, condition in deleted.items():
            connection.execute(f"DELETE FROM {table} WHERE {condition}")
    assert begins
    return begins


@dataclass
class Job:
    """What the trace shows: collectives by number and sends with receives, as (task, true begin) of
    the kernels; and the truth.
    """

    collectives: list[list[tuple[int, int]]]
    messages: list[tuple[tuple[int, int], tuple[int, int]]]
    truth: dict
    lost: set[tuple[int, int]]


@pytest.fixture(scope="module", params=mark_slow_except(JOBS), ids=list(JOBS))
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("job")
    truth = generate(
        folder,
        Options(
            ranks=8,
            hosts=4,
            steps=40,
            layers=1,
            pace_ms=100,
            waited_us=(0.0, 17.0),
            end_jitter_us=3.0,
            seed=2 + JOBS.index(request.param),
            clock_offset_range_ms=50.0,
            clock_drift_range_ppm=50.0,
        ),
    )
    reports = sorted(folder.glob("rank*.sqlite"))
    lost = {
        (rank, (to_true_time(begin, report, truth) + near) // 10)
        for rank, report in enumerate(reports)
        for begin in lose_rows(request.param, rank, report)
        for near in (-5, 5)
    }
    trace, _ = convert_and_read(reports, folder / "o.prv")
    true = {
        (task, begin): when
        for task, report in enumerate(reports, 1)
        for begin, when in pair_begins(trace, task, report, truth)
    }
    numbered = defaultdict(list)
    for item in trace.list_intervals(COLLECTIVE):
        if NUMBER not in item.others:
            continue  # a kernel that sends and receives
        numbered[item.others[NUMBER]].append((item.row[0] - 1, true[item.row[0], item.begin]))
    ends = {
        (item.row[0], item.end): (item.row[0], item.begin) for item in trace.list_intervals(KERNEL)
    }
    messages = [
        (
            (line.sender[0] - 1, true[line.sender[0], line.send]),
            (line.receiver[0] - 1, true[ends[line.receiver[0], line.receive]]),
        )
        for line in trace.comms
        if line.tag == TAG
    ]
    return Job([sorted(members) for members in numbered.values()], messages, truth, lost)


def to_true_time(local: int, report: Path, truth: dict) -> int:
    """Return the true time of a time of a report."""
    rank = next(item for item in truth["ranks"] if item["report"] == report.name)
    host = next(item for item in truth["hosts"] if item["name"] == rank["host"])
    scale = 1 + Fraction(str(host["drift_ppm"])) / 1_000_000
    start = rank["utcEpochNs"] - truth["epoch_utc_ns"] - host["offset_ns"]
    return round((start + local) / scale)


def pair_begins(trace: Trace, task: int, report: Path, truth: dict) -> list[tuple[int, int]]:
    """Return (trace time, true time) of the begin of every NCCL kernel of a report: both are in the
    order of the report's times.
    """
    local = query_export(
        report,
        f"""SELECT start FROM {KERNELS} JOIN StringIds ON id = shortName
            WHERE value LIKE 'ncclDevKernel%' ORDER BY start""",
    )
    shown = sorted(item.begin for item in trace.list_intervals(KERNEL) if item.row[0] == task)
    return [
        (begin, to_true_time(time, report, truth))
        for begin, (time,) in zip(shown, local, strict=True)
    ]


def list_complete_operations(job: Job) -> list[dict]:
    """Return the true operations of which every rank's report holds every row."""
    return [
        item
        for item in job.truth["collectives"]
        if not any(
            (rank, begin // 10) in job.lost
            for rank, begin in zip(item["ranks"], item["begin"], strict=True)
        )
    ]


def list_operations(truth: dict, ring: bool) -> dict[tuple[int, int], dict]:
    """Return operations by (rank, begin in steps of 10 ns) of each of their kernels: rings of sends
    and receives, or all others.
    """
    return {
        (rank, (begin + near) // 10): item
        for item in truth["collectives"]
        if (item["function"] == "SendRecv") == ring
        for rank, begin in zip(item["ranks"], item["begin"], strict=True)
        for near in (-5, 5)
    }


@pytest.mark.slow
def test_every_collective_found_is_a_true_one(job: Job) -> None:
    known = list_operations(job.truth, ring=False)
    for members in job.collectives:
        item = known[members[0][0], members[0][1] // 10]
        assert [rank for rank, _ in members] == item["ranks"]
        assert all(
            abs(begin - true) <= 5 for (_, begin), true in zip(members, item["begin"], strict=True)
        )


@pytest.mark.slow
def test_nearly_every_collective_with_all_its_rows_is_found(job: Job) -> None:
    result = {(members[0][0], members[0][1] // 10) for members in job.collectives}
    wanted = [item for item in list_complete_operations(job) if item["function"] != "SendRecv"]
    missed = [
        item
        for item in wanted
        if not {(item["ranks"][0], (item["begin"][0] + near) // 10) for near in (-5, 5)} & result
    ]
    assert len(wanted) > 300
    assert len(missed) <= 0.02 * len(wanted)


def test_every_message_found_is_a_true_one(job: Job) -> None:
    known = list_operations(job.truth, ring=True)
    assert len(job.messages) > 0.7 * sum(
        len(item["ranks"])
        for item in list_complete_operations(job)
        if item["function"] == "SendRecv"
    )
    for (sender, sent), (receiver, received) in job.messages:
        item = known[sender, sent // 10]
        at = item["ranks"].index(receiver)
        assert item["ranks"][(at - 1) % len(item["ranks"])] == sender
        assert abs(item["begin"][at] - received) <= 5
