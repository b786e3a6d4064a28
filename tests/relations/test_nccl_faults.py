"""NCCL across ranks where reports lack rows, have rows of their own, or begin late, and host clocks
disagree: found all the same, and nothing that was not.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import pytest
from samples import Options, generate
from tools.conversions import convert_and_read
from tools.slow import mark_slow_except
from tools.trace_reader import Trace

COLLECTIVE, NUMBER, KERNEL, TAG = 9540, 9541, 63000007, 55010
MARGIN = 20_000_000
CLOCKS: dict[str, object] = {"clock_offset_range_ms": 50.0, "clock_drift_range_ppm": 50.0}
FAULTS: dict[str, object] = {"lost_collectives": 0.03, "extra_collectives": 0.03, **CLOCKS}
JOBS = {
    "rows missing and added": {"seed": 2, **FAULTS},
    "a report that begins late": {
        "seed": 3,
        "cut_report": "begin",
        "cut_rank": 3,
        "cut_at": 0.4,
        **FAULTS,
    },
    "a report that ends early": {
        "seed": 4,
        "cut_report": "end",
        "cut_rank": 2,
        "cut_at": 0.5,
        **CLOCKS,
    },
    "a lonely host": {"seed": 5, "lonely_host": True, **FAULTS},
}


@dataclass
class Job:
    """What the trace shows: collectives by number and sends with receives, as (task, true begin) of
    the kernels; and the truth.
    """

    collectives: list[list[tuple[int, int]]]
    messages: list[tuple[tuple[int, int], tuple[int, int]]]
    truth: dict


@pytest.fixture(scope="module", params=mark_slow_except(JOBS), ids=list(JOBS))
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("job")
    generate(
        folder,
        Options(
            ranks=8,
            hosts=4,
            steps=40,
            layers=1,
            pace_ms=100,
            waited_us=(0.0, 17.0),
            end_jitter_us=3.0,
            **JOBS[request.param],
        ),
    )
    reports = sorted(folder.glob("rank*.sqlite"))
    trace, _ = convert_and_read(reports, folder / "o.prv")
    truth = json.loads((folder / "truth.json").read_text())
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
    return Job([sorted(members) for members in numbered.values()], messages, truth)


def pair_begins(trace: Trace, task: int, report: Path, truth: dict) -> list[tuple[int, int]]:
    """Return (trace time, true time) of the begin of every NCCL kernel of a report: both are in the
    order of the report's times.
    """
    rank = next(item for item in truth["ranks"] if item["report"] == report.name)
    host = next(item for item in truth["hosts"] if item["name"] == rank["host"])
    connection = sqlite3.connect(f"file:{report}?mode=ro&immutable=1", uri=True)
    local = [
        row[0]
        for row in connection.execute("""SELECT start FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName
                                                     WHERE value LIKE 'ncclDevKernel%' ORDER BY start""")
    ]
    shown = sorted(item.begin for item in trace.list_intervals(KERNEL) if item.row[0] == task)
    assert len(shown) == len(local)
    scale = 1 + Fraction(str(host["drift_ppm"])) / 1_000_000
    start = rank["utcEpochNs"] - truth["epoch_utc_ns"] - host["offset_ns"]
    return [
        (begin, round((start + time) / scale)) for begin, time in zip(shown, local, strict=True)
    ]


def list_complete_operations(truth: dict) -> list[dict]:
    """Return the true operations of which every rank's report holds every row."""
    lost = {
        (item["communicator"], item["ordinal"]) for item in truth.get("faults", {}).get("lost", ())
    }
    cut = {rank["rank"]: rank["cut"] for rank in truth["ranks"] if "cut" in rank}
    return [
        item
        for item in truth["collectives"]
        if (item["communicator"], item["ordinal"]) not in lost
        and all(
            rank not in cut or is_held(cut[rank], begin)
            for rank, begin in zip(item["ranks"], item["begin"], strict=True)
        )
    ]


def is_held(cut: dict, begin: int) -> bool:
    """Return whether a cut report holds a kernel with its call, which comes some milliseconds
    before.
    """
    return (
        begin > cut["true_ns"] + MARGIN
        if cut["lacks"] == "begin"
        else begin < cut["true_ns"] - MARGIN
    )


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
    wanted = [
        item for item in list_complete_operations(job.truth) if item["function"] != "SendRecv"
    ]
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
        for item in list_complete_operations(job.truth)
        if item["function"] == "SendRecv"
    )
    for (sender, sent), (receiver, received) in job.messages:
        item = known[sender, sent // 10]
        at = item["ranks"].index(receiver)
        assert item["ranks"][(at - 1) % len(item["ranks"])] == sender
        assert abs(item["begin"][at] - received) <= 5
