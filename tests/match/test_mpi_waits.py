"""Test spans of waiting in MPI, in the trace, in tables and in Paraver, against plain SQL on the
reports.
"""

import sqlite3
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from tools.conversions import convert_and_read
from tools.installed_views import VIEWS
from tools.mpi_jobs import MS, Job, Protocols, Rank, Steps
from tools.view_answers import Answers, needs_paraver

import nsys2prv
from nsys2prv.match import BY_CALLS
from nsys2prv.match.meetings import (
    AT_COLLECTIVE,
    HELD,
    LATE_RECEIVER,
    LATE_SENDER,
    list_collectives,
    list_mpi_waits,
)

SAMPLES = Path(__file__).parents[2] / "sample_reports"
#: Views that are tables, and the place of what their columns are in the keys of sums.
TABLES = {"analysis/mpi_waiting_2dh.cfg": 1, "analysis/mpi_waiting_for_2dh.cfg": 2}
KIND, TIME, TASK = 50100016, 50100017, 50100018
LARGE, STEPS = 100_000, 3


def run_waits(rank: Rank) -> Steps:
    """Wait once a step for a late sender, for a late receiver, for one that is outside of MPI, and twice for the
    last one of a collective.
    """
    for step in range(STEPS):
        if rank.number == 0:
            yield from rank.work((3 + step) * MS)
            yield from rank.send(1, 8)
            yield from rank.send(1, LARGE, "MPI_Ssend")
            yield from rank.send(2, LARGE)
        elif rank.number == 1:
            yield from rank.recv(0, 8)
            yield from rank.work(2 * MS)
            yield from rank.recv(0, LARGE)
        else:
            request = yield from rank.start("MPI_Irecv", 0, LARGE)
            yield from rank.work(9 * MS)
            yield from rank.wait(request, name="MPI_Wait")
            yield from rank.work(MS)
        yield from rank.barrier()


@pytest.fixture
def reports(tmp_path: Path) -> list[Path]:
    return Job(3, Protocols(local=8192, inside=8192), run_waits).write(tmp_path)


def sum_by_sql(reports: list[Path]) -> dict[tuple[int, int, int], int]:
    """Return ns by rank, kind and rank waited for."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE calls (rank, name, start, end, size, step)")
    for rank, report in enumerate(reports):
        database.execute("ATTACH ? AS report", (str(report),))
        rows = " UNION ALL ".join(
            f"SELECT textId, start, end, {size} AS size FROM report.MPI_{table}_EVENTS"
            for table, size in (
                ("P2P", "size"), ("COLLECTIVES", 0), ("START_WAIT", 0), ("OTHER", 0),
            )
            if database.execute(
                "SELECT 1 FROM report.sqlite_master WHERE name = ?", (f"MPI_{table}_EVENTS",)
            ).fetchone()
        )  # fmt: skip
        database.execute(
            f"INSERT INTO calls SELECT {rank}, value, start, end, size, row_number() OVER (PARTITION BY value, size "
            f"ORDER BY start) FROM ({rows}) JOIN report.StringIds ON id = textId"
        )
        database.commit()
        database.execute("DETACH report")

    def pair(name: str, rank: int, size: int, other_name: str, other: int) -> int:
        """Return how long calls of a rank are there before those of another, together."""
        return database.execute(
            "SELECT sum(b.start - a.start) FROM calls a JOIN calls b USING (step) WHERE a.name = ? AND a.rank = ? AND "
            "a.size = ? AND b.name = ? AND b.rank = ? AND b.size IN (0, a.size) AND b.start > a.start",
            (name, rank, size, other_name, other),
        ).fetchone()[0]

    found = {
        (1, LATE_SENDER, 0): pair("MPI_Recv", 1, 8, "MPI_Send", 0),
        (0, LATE_RECEIVER, 1): pair("MPI_Ssend", 0, LARGE, "MPI_Recv", 1),
        (0, HELD, 2): pair("MPI_Send", 0, LARGE, "MPI_Wait", 2),
    }
    at_collectives = database.execute(
        "SELECT a.rank, b.rank, sum(b.start - a.start) FROM calls a JOIN calls b USING (name, step) WHERE name IN "
        "('MPI_Barrier', 'MPI_Init', 'MPI_Finalize') AND b.start > a.start AND b.start = (SELECT max(start) FROM calls c "
        "WHERE c.name = name AND c.name = b.name AND c.step = step AND c.step = b.step) GROUP BY 1, 2"
    ).fetchall()
    return found | {(rank, AT_COLLECTIVE, other): ns for rank, other, ns in at_collectives}


def test_waits_are_those_of_sql_in_trace_and_tables(reports: list[Path], tmp_path: Path) -> None:
    expected = sum_by_sql(reports)
    assert {kind for _, kind, _ in expected} == {*range(1, 5)}
    with nsys2prv.open(reports, quiet=True, jobs=1) as job:
        waits = list_mpi_waits(job.reader)
        tables = job.analyse("collectives")["collectives"].tables
    assert waits.select((pl.col("begin") >= pl.col("end").shift(1).over("thread")).all()).item()
    trace, summary = convert_and_read(reports, tmp_path / "o.prv", demanded=("mpi_waiting",))
    found = trace.list_intervals(KIND)
    assert len(found) == summary.events["mpi_waiting"] == waits.height
    sums: Counter[tuple[int, int, int]] = Counter()
    for one in found:
        assert one.others[TIME] == one.end - one.begin
        sums[one.row[0] - 1, one.value, one.others[TASK] - 1] += one.others[TIME]
    assert sums == expected
    by_kind, by_pair = (Counter[tuple[int, object]]() for _ in range(2))
    for (rank, kind, other), ns in expected.items():
        by_kind[f"rank {rank}", trace.get_label(KIND, kind)] += ns
        by_pair[f"rank {rank}", f"rank {other}"] += ns
    for name, key, of in (
        ("mpi_waiting", "kind", by_kind),
        ("mpi_waiting_for", "waits_for", by_pair),
    ):
        rows = tables[name].frame.select("waiting_rank", key, "wait_ns").rows()
        assert {(rank, what): ns for rank, what, ns in rows} == of


@needs_paraver
def test_paraver_shows_the_waits_of_sql(reports: list[Path], tmp_path: Path) -> None:
    trace, _ = convert_and_read(reports, tmp_path / "o.prv", demanded=("mpi_waiting",))
    columns = {label: value for value, label in trace.labels.values[KIND].items()}
    columns |= {f"rank {rank}": rank for rank in range(3)}
    views = tuple(view for view in VIEWS if view.path in TABLES)
    answers = Answers(tmp_path / "o.prv", reports, trace.duration, {KIND, TASK}, views)
    for view, place in TABLES.items():
        sums: Counter[tuple[int, int]] = Counter()
        for key, ns in sum_by_sql(reports).items():
            sums[key[0], key[place]] += ns
        rows = enumerate(answers.read_labelled_rows(view))
        assert {
            (rank, columns[name]): cell for rank, row in rows for name, cell in row.items()
        } == sums


def test_nothing_is_found_unless_it_is_asked_for(reports: list[Path], tmp_path: Path) -> None:
    trace, _ = convert_and_read(reports, tmp_path / "o.prv")
    assert not trace.list_intervals(KIND)


def _list_partners(folder: Path) -> set[frozenset[tuple[int, int]]]:
    """Return the pairs of calls (thread, begin) that belong together in collectives of MPI."""
    with nsys2prv.open(folder) as job:
        table = list_collectives(job.reader).filter(pl.col("rule") == BY_CALLS)
    table = table.select("collective", call=pl.struct("thread", "begin"))
    pairs = table.join(table, on="collective").filter(pl.col("call") != pl.col("call_right"))
    return {
        frozenset((tuple(one.values()), tuple(other.values())))
        for _, one, other in pairs.iter_rows()
    }


def test_captures_that_begin_and_end_at_different_collectives_match_no_others(
    tmp_path: Path,
) -> None:
    """One rank lacks the first three, another the last three: counted from either side, calls would be
    matched with earlier or later ones.
    """
    whole = _list_partners(SAMPLES / "mpi")
    assert len(whole) == 156
    lost = {0: "ASC", 1: "DESC"}
    for rank in range(4):
        path = tmp_path / f"stencil{rank}.sqlite"
        path.write_bytes((SAMPLES / "mpi" / path.name).read_bytes())
        with sqlite3.connect(path) as database:
            database.execute(
                "DELETE FROM MPI_COLLECTIVES_EVENTS WHERE start IN (SELECT start FROM"
                f" MPI_COLLECTIVES_EVENTS ORDER BY start {lost.get(rank, 'ASC')} LIMIT ?)",
                (3 if rank in lost else 0,),
            )
    found = _list_partners(tmp_path)
    assert found <= whole
    assert len(found) > len(whole) / 2
