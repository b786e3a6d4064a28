"""Test MPI in generated jobs: every generated message has its line, and every call its range."""

import json
import sqlite3
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
from samples import Options as SampleOptions
from samples import generate
from tools.slow import mark_slow_except
from tools.trace_reader import Trace, read_trace

from nsys2prv import Options, convert, match
from nsys2prv.conversion.summary import Summary

pytestmark = pytest.mark.skipif(
    "mpi" not in {field.name for field in fields(SampleOptions)}, reason="the samples have no MPI"
)

TABLES = ("MPI_P2P_EVENTS", "MPI_COLLECTIVES_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS")
CODES = range(50000001, 50000006)
COMMUNICATOR = 50100015
JOBS = {
    "four": {"ranks": 4, "hosts": 2},
    "handles only": {"ranks": 6, "hosts": 3, "seed": 5, "mpi_teams": True},
    "any order": {"ranks": 4, "hosts": 1, "row_order": "shuffled", "visible": "all", "seed": 7},
    "two": {"ranks": 2, "hosts": 2, "steps": 9},
    "in small steps": {"ranks": 6, "hosts": 2, "seed": 11, "mpi_teams": True},
}
#: Every call once: Wait calls have a row for each request, MPI_Sendrecv may have two.
CALLS = " UNION ALL ".join(
    f"SELECT start, max(end) AS end, globalTid, textId FROM {table} GROUP BY start, globalTid, textId"
    for table in TABLES
)


@dataclass
class Job:
    """A generated job, its trace of MPI alone, and for every rank its export and the trace time of
    its local time 0.
    """

    truth: dict
    trace: Trace
    summary: Summary
    exports: list[sqlite3.Connection]
    zeros: list[int]
    prv: Path


def remove_uids(paths: list[Path]) -> None:
    """Let MPI's rows name their communicator by its handle alone, as in older exports."""
    for path in paths:
        with sqlite3.connect(path) as connection:
            for table in ("MPI_P2P_EVENTS", "MPI_COLLECTIVES_EVENTS", "MPI_COMMUNICATORS"):
                connection.execute(f"UPDATE {table} SET commUid = NULL")
        connection.close()


@pytest.fixture(scope="module", params=mark_slow_except(JOBS, "four", "any order"))
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("job")
    truth = generate(
        folder, SampleOptions(**{"steps": 3, "layers": 1, "mpi": True, **JOBS[request.param]})
    )
    paths = [folder / rank["report"] for rank in truth["ranks"]]
    if request.param == "handles only":
        remove_uids(paths)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "in small steps":
            patch.setattr(match, "FACT_BYTES", 1)
            patch.setattr(match, "BUCKET_BYTES", 500)
            patch.setattr(match, "LINE_ROWS", 5)
        summary = convert(paths, folder / "mpi.prv", Options(kinds=("mpi",), align="utc"))
    trace = read_trace(folder / "mpi.prv")
    exports = [sqlite3.connect(path) for path in paths]
    firsts = [
        min(
            item.begin
            for code in CODES
            for item in trace.list_intervals(code)
            if item.row[0] == rank + 1
        )
        for rank in range(len(paths))
    ]
    local = [
        export.execute(f"SELECT min(start) FROM ({CALLS})").fetchone()[0] for export in exports
    ]
    zeros = [first - begin for first, begin in zip(firsts, local, strict=True)]
    mpi = json.loads((folder / "truth.json").read_text())["mpi"] | {"ranks_told": truth["ranks"]}
    return Job(mpi, trace, summary, exports, zeros, folder / "mpi.prv")


@pytest.mark.slow
def test_the_trace_is_sound(job: Job) -> None:
    assert not job.trace.violations, str(job.trace.violations)


def test_counts_and_durations_by_function(job: Job) -> None:
    """As in the exports by plain SQL, and as generated."""
    for rank, export in enumerate(job.exports):
        count, total = Counter(), Counter()
        for code in CODES:
            for item in job.trace.list_intervals(code):
                if item.row[0] == rank + 1:
                    count[job.trace.get_label(code, item.value)] += 1
                    total[job.trace.get_label(code, item.value)] += item.end - item.begin
        sql = f"SELECT value, count(*), sum(end - start) FROM ({CALLS}) JOIN StringIds ON id = textId GROUP BY value"
        assert {name: (count[name], total[name]) for name in count} == {
            name: (calls, ns) for name, calls, ns in export.execute(sql)
        }
        put_in = job.truth["ranks_told"][rank]["mpi_calls"]
        assert dict(count) == {name: truth["calls"] for name, truth in put_in.items()}
        assert dict(total) == {name: truth["ns"] for name, truth in put_in.items()}


def test_every_message_has_its_line(job: Job) -> None:
    """With the rank, size, tag and times that its rows have, found by SQL; and there are no other
    lines.
    """
    expected = Counter()
    for message in job.truth["messages"]:
        begin, _ = _find_call(
            job, message, "sender", "receiver", message["functions"][0], message["bytes"]
        )
        start, end = _find_call(
            job, message, "receiver", "sender", message["functions"][1], message["capacity"]
        )
        if message["functions"][1] == "MPI_Irecv":
            end = _find_wait_end(job, message, start)
        sender, receiver = message["sender"], message["receiver"]
        send, receive = job.zeros[sender] + begin, job.zeros[receiver] + end
        expected[
            (sender + 1, 1), send, (receiver + 1, 1), receive, message["bytes"], message["tag"]
        ] += 1
    assert len(job.truth["messages"]) == job.truth["messages_total"]
    assert Counter(job.trace.comms) == expected


def _find_call(
    job: Job, message: dict, own: str, other: str, function: str, size: int
) -> tuple[int, int]:
    """Return begin and end, in local time, of the call of one end of a message."""
    (team,) = [
        team
        for team in job.truth["communicators"]
        if team["uid"] == message["communicator"] and message[own] in team["ranks"]
    ]
    handle = team["handles"][team["ranks"].index(message[own])]
    sql = """SELECT start, end FROM MPI_P2P_EVENTS JOIN StringIds ON id = textId WHERE commHandle = ? AND remoteRank = ? AND tag = ?
             AND value = ? AND size = ? ORDER BY start LIMIT 1 OFFSET ?"""
    partner = team["ranks"].index(message[other])
    return (
        job.exports[message[own]]
        .execute(sql, (handle, partner, message["tag"], function, size, message["ordinal"]))
        .fetchone()
    )


def _find_wait_end(job: Job, message: dict, start: int) -> int:
    """Return the end of the first MPI_Waitall for the request of the receive that begins at
    `start`.
    """
    sql = """SELECT min(wait.end) FROM MPI_START_WAIT_EVENTS AS wait JOIN StringIds ON id = wait.textId
             JOIN MPI_P2P_EVENTS AS call USING (requestHandle)
             WHERE call.start = ? AND wait.start > call.start AND value LIKE 'MPI_Wait%'"""
    return job.exports[message["receiver"]].execute(sql, (start,)).fetchone()[0]


def test_messages_that_nobody_received_are_counted(job: Job) -> None:
    lost, sent = job.truth["unmatched_total"], len(job.truth["messages"])
    assert job.summary.notes[:2] == [
        f"MPI messages: {sent:,} lines for {sent + lost:,} sends and {sent:,} receives",
        f"MPI messages: {lost:,} sends without a partner",
    ]


def test_a_communicator_has_one_number_on_all_its_ranks(job: Job) -> None:
    """As many collectives under each number as the communicators had: none is mixed up with
    another, whatever its handle.
    """
    result: dict[int, Counter] = {}
    for item in job.trace.list_intervals(50000002):
        result.setdefault(item.others[COMMUNICATOR], Counter())[item.row[0] - 1] += 1
    expected: dict[int, Counter] = {}
    for collective in job.truth["collectives"]:
        expected.setdefault(collective["communicator"], Counter()).update(collective["ranks"])
    assert sorted(sorted(counter.items()) for counter in result.values()) == sorted(
        sorted(counter.items()) for counter in expected.values()
    )
