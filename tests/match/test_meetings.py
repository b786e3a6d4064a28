"""Test the tables of collectives and messages, and kernels that no rule matches with certainty."""

from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import nsys2prv
from nsys2prv.match import BY_CALLS, BY_LAUNCH, BY_SET_UP
from nsys2prv.match.meetings import _find_streams_together, list_collectives, list_messages

SAMPLES = Path(__file__).parents[2] / "sample_reports"


def test_messages_without_payloads_are_matched_also_where_ranks_in_step_come_apart() -> None:
    """Two ranks of each of four stages send to the next at once, but one is late once."""
    number, stage, lane, receives = (
        column.ravel() for column in np.meshgrid(range(100), range(3), range(2), range(2))
    )
    late = (number == 50) & (stage == 0) & (lane == 1)
    task = 2 * (stage + receives) + lane
    # The clock of the last stage's host is a little late.
    end = number * 1_000_000 + stage * 200_000 + 70_000 * late + 20_000 * (task > 5)
    columns = {"name": 0 * end, "thread": task, "task": task, "begin": end - 90_000, "end": end}
    columns |= {"node_begin": np.arange(len(end)), "communicator": 0 * end - 1}
    found = _find_streams_together(pl.DataFrame(columns))
    parts = [part.group_by("meeting").len()["len"] for part in found]
    assert Counter(pl.concat(parts)) == {4: 299, 2: 2}


@pytest.mark.parametrize(("communicators", "found"), [((7, 7), 20), ((7, -1), 20), ((7, 8), 0)])
def test_kernels_of_different_communicators_never_meet(
    communicators: tuple[int, int], found: int
) -> None:
    end = np.repeat(np.arange(10) * 1_000_000, 2)
    task = np.tile([0, 1], 10)
    columns = {"name": 0 * end, "thread": task, "task": task, "begin": end - 90_000, "end": end}
    columns |= {"node_begin": np.arange(20), "communicator": np.tile(communicators, 10)}
    parts = _find_streams_together(pl.DataFrame(columns))
    assert sum(part.height for part in parts) == found


@pytest.mark.parametrize(
    ("name", "rules"), [("mpi", {BY_CALLS, BY_SET_UP}), ("training", {BY_LAUNCH})]
)
def test_members_of_collectives_are_of_different_ranks_and_wait_for_the_last(
    name: str, rules: set[int]
) -> None:
    with nsys2prv.open(SAMPLES / name) as job:
        table = list_collectives(job.reader)
        assert table.equals(list_collectives(job.reader))
        task_of = job.reader.rows.get_column("task")
        table = table.with_columns(task=pl.Series(task_of[table["thread"].to_numpy()]))
        assert set(table["rule"]) == rules
        whole = table.group_by("collective").agg(
            pl.col("task").n_unique() == pl.len(),
            rules=pl.col("rule").n_unique(),
            first=pl.col("late").min(),
            come=(pl.col("begin") - pl.col("late")).n_unique(),
        )
        assert whole["task"].all()
        assert whole.select("rules", "first", "come").unique().rows() == [(1, 0, 1)]
        held = table.filter((pl.col("awaits") > 0) & ~pl.col("later"))
        assert (held["wait"] + held["transfer"] <= held["end"] - held["begin"]).all()
        messages = list_messages(job.reader)
        assert (messages["received"] >= messages["sent"]).all()
