"""Test waits of threads that control the GPUs of their process."""

from types import SimpleNamespace

import polars as pl

from nsys2prv.replay.events import HANDOFF, WAITED
from nsys2prv.replay.job_graph import _find_returned


def test_waits_that_end_once_gpus_have_come_are_not_for_the_outside() -> None:
    threads = pl.DataFrame(
        {
            "thread": range(4),
            "process": [1, 1, 1, 2],
            "task": [1, 2, 3, 4],
            "is_gpu": [False, True, True, False],
        }
    )
    calls = pl.DataFrame(
        [
            (1, 100_000, HANDOFF, 10),
            (2, 120_000, HANDOFF, 12),
            (0, 125_000, WAITED, 20),
            (0, 900_000, WAITED, 22),
            (3, 126_000, WAITED, 24),
        ],
        ("thread", "begin", "name", "node_begin"),
        orient="row",
    )
    reader = SimpleNamespace(rows=SimpleNamespace(threads=threads))
    found = _find_returned(reader, calls, calls.filter(name=WAITED))
    # Nobody comes shortly before the second, and the third is of another process.
    assert {*found.rows()} == {(20, 10), (20, 12)}
