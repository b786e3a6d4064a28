"""Test the recorded job sample_reports/mpi against its program, stencil.c: every message, every
collective with its bytes, and every recorded communicator.
"""

import sqlite3
from collections import Counter
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from tools.trace_reader import Trace, read_trace

from nsys2prv import Options, convert
from nsys2prv.conversion.summary import Summary

SAMPLE = Path(__file__).parents[2] / "sample_reports" / "mpi"
RANKS, STEPS, DOUBLE = range(4), 6, 8
POINT_TO_POINT, COLLECTIVE = 50000001, 50000002
SENT, RECEIVED, ROOT, COMMUNICATOR = 50100001, 50100002, 50100013, 50100015
WORLD, LINE = "MPI_COMM_WORLD", "ranks 0-3 #1 of MPI_COMM_WORLD"
PAIR_NAMES = {0: "ranks 1,0 #1.0", 1: "ranks 3,2 #3.0"}


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Summary]:
    out = tmp_path_factory.mktemp("recorded") / "mpi.prv"
    summary = convert(sorted(SAMPLE.glob("*.sqlite")), out, Options())
    return read_trace(out), summary


def test_every_message_of_the_program_is_a_line(converted: tuple[Trace, Summary]) -> None:
    """Check this except for messages through the intercommunicator, which nsys does not record."""
    expected: Counter[tuple[int, int, int, int]] = Counter()
    for rank in RANKS:
        after = (rank + 1) % 4
        expected[rank, after, 4096 * DOUBLE, 3] += STEPS
        expected[rank, after, 64 * DOUBLE, 2] += STEPS
        expected[rank, rank ^ 1, 10 * DOUBLE, 5] += STEPS
        if rank < 3:
            expected[rank, after, 30 * DOUBLE, 4] += STEPS
        if rank:
            expected[rank, 0, rank * DOUBLE, 6] += STEPS
    trace, summary = converted
    found = Counter(
        (sender[0] - 1, receiver[0] - 1, size, tag)
        for sender, _, receiver, _, size, tag in trace.comms
    )
    assert found == expected
    assert all(send <= receive for _, send, _, receive, _, _ in trace.comms)
    others = "whose communicator is not in the reports, such as an intercommunicator"
    assert summary.notes == [
        "MPI messages: 108 lines for 132 sends and 132 receives",
        *(f"MPI messages: 24 {ends} {others}" for ends in ("sends", "receives")),
    ]


def test_collectives_of_the_program_in_order(converted: tuple[Trace, Summary]) -> None:
    """Name, communicator, root + 1 and bytes sent and received; those that are not told are 0. The
    root of MPI_Reduce has its part in place.
    """
    trace, _ = converted
    names = trace.labels.values[COMMUNICATOR]
    found: dict[int, list[tuple]] = {rank: [] for rank in RANKS}
    for item in trace.list_intervals(COLLECTIVE):
        attributes = (item.others.get(code, 0) for code in (ROOT, SENT, RECEIVED))
        communicator = names.get(item.others.get(COMMUNICATOR, 0))
        found[item.row[0] - 1].append(
            (trace.get_label(COLLECTIVE, item.value), communicator, *attributes)
        )
    for rank in RANKS:
        expected: list[tuple] = []
        for step in range(STEPS):
            root = step % 4
            own = 100 * DOUBLE if rank == root else 0
            expected += [
                ("MPI_Allreduce", PAIR_NAMES[rank // 2], 0, 3 * DOUBLE, 3 * DOUBLE),
                ("MPI_Bcast", WORLD, root + 1, own, 100 * DOUBLE),
                ("MPI_Iallreduce", LINE, 0, 5 * DOUBLE, 5 * DOUBLE),
            ]
            if step % 2 == 0:
                expected += [
                    ("MPI_Gather", LINE, 2, 7 * DOUBLE, 7 * DOUBLE * (rank == 1)),
                    ("MPI_Alltoall", WORLD, 0, 9 * DOUBLE, 9 * DOUBLE),
                    ("MPI_Reduce", WORLD, 1, 88 * (rank > 0), 88 * (rank == 0)),
                    ("MPI_Barrier", WORLD, 0, 0, 0),
                ]
        assert found[rank] == expected


def test_every_call_is_one_range(converted: tuple[Trace, Summary]) -> None:
    """As many as there are begins: MPI_Waitall and MPI_Startall have a row for each request,
    MPI_Sendrecv one for each message; and no two of a rank overlap.
    """
    trace, _ = converted
    for rank in RANKS:
        with closing(sqlite3.connect(SAMPLE / f"stencil{rank}.sqlite")) as export:
            (calls,) = export.execute(
                "SELECT count(*) FROM (SELECT start FROM MPI_P2P_EVENTS UNION SELECT start FROM MPI_START_WAIT_EVENTS)"
            ).fetchone()
        ranges = sorted(
            (item.begin, item.end)
            for item in trace.list_intervals(POINT_TO_POINT)
            if item.row[0] == rank + 1
        )
        assert len(ranges) == calls
        assert all(end <= begin for (_, end), (begin, _) in pairwise(ranges))
