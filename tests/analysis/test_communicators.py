"""Test that communicators are named after their members."""

from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

import nsys2prv
from nsys2prv.figures.collectives import _label_operations
from nsys2prv.figures.result import name_communicators

SAMPLES = Path(__file__).parents[2] / "sample_reports"


def test_communicators_by_their_members() -> None:
    """16 ranks on four hosts."""
    tasks = pl.DataFrame(
        {
            "task": range(1, 17),
            "rank": range(16),
            "who": [f"rank {rank}" for rank in range(16)],
            "is_gpu": False,
            "node": [f"node0{1 + rank // 4}" for rank in range(16)],
        }
    )
    groups = {
        10: range(16),
        11: range(16),
        20: range(4, 8),
        21: (0, 2),
        30: (0, 4, 8, 12),
        31: (1, 3, 5, 7),
        40: (0, 1, 7),
        50: (3,),
        -1: (0, 1),
    }
    kernels = pl.DataFrame(
        [(group, rank + 1) for group, ranks in groups.items() for rank in ranks],
        schema=["communicator", "task"],
        orient="row",
    )
    names = name_communicators(kernels.sample(fraction=1, shuffle=True, seed=1), tasks)
    assert names == {
        10: "world (0-15)",
        11: "world (0-15) #2",
        20: "node02 (4-7)",
        21: "node01 (0,2)",
        30: "every 4th (0,4,8,12)",
        31: "every 2nd (1,3,5,7)",
        40: "ranks 0,1,7, across nodes",
        50: "rank 3 alone",
    }


def test_processes_without_a_rank_are_named() -> None:
    tasks = pl.DataFrame(
        {
            "task": [1, 2],
            "rank": [None, 3],
            "who": ["app 41", "rank 3"],
            "node": ["a", "b"],
            "is_gpu": False,
        }
    )
    kernels = pl.DataFrame({"communicator": [5, 5], "task": [1, 2]})
    assert name_communicators(kernels, tasks) == {5: "app 41, rank 3"}


def test_gpus_are_named_by_their_processes() -> None:
    who = [f"rank {number // 4} GPU{number % 4}" for number in range(8)]
    nodes = ["a"] * 4 + ["b"] * 4
    tasks = pl.DataFrame(
        {"task": range(8), "rank": None, "who": who, "node": nodes, "is_gpu": True}
    )
    kernels = pl.DataFrame({"communicator": [1] * 8 + [2] * 2, "task": [*range(8), 1, 5]})
    assert name_communicators(kernels, tasks) == {
        1: "world (rank 0 GPU0-3, rank 1 GPU0-3)",
        2: "rank 0 GPU1, rank 1 GPU1",
    }


@pytest.mark.parametrize("sample", ["training", "machine", "cluster"])
def test_one_name_and_one_base_in_all_tables(sample: str) -> None:
    """A communicator has the same name in every table, even in tables without some communicators of
    the same ranks; kernels without a matched collective are counted.
    """
    with nsys2prv.open(SAMPLES / sample, quiet=True) as job:
        result = job.analyse("collectives")["collectives"]
    names: dict[str, set[str]] = {}
    for table in result.tables.values():
        if "communicator_hash" in table.frame.columns:
            for name, number in table.frame.select("communicator", "communicator_hash").rows():
                names.setdefault(number, set()).add(name)
    assert names
    assert all(len(own) == 1 for own in names.values())
    kernels = result.tables["nccl"].frame["kernels"].sum()
    counted = result.tables["stragglers"].frame["collectives"].sum()
    stated = f"are known for {counted:,} of {kernels:,} NCCL kernels"
    assert any(stated in note for note in result.notes) == (counted < kernels)


def test_tables_without_a_communicator_do_not_renumber() -> None:
    """Two communicators have the same ranks; only collectives of the second are matched."""
    context = SimpleNamespace(
        labels={}, get_mesh=lambda: None, label_names=lambda rows, *_, **__: rows
    )
    rows = pl.DataFrame({"communicator": [9], "operation": [0]})
    labelled = _label_operations(rows, {5: "world (0,1)", 9: "world (0,1) #2"}, context)
    assert labelled["communicator"].to_list() == ["world (0,1) #2"]


@pytest.mark.parametrize("sample", ["training", "machine", "cluster", "graphs"])
def test_titles_promise_only_what_tables_contain(sample: str) -> None:
    with nsys2prv.open(SAMPLES / sample, quiet=True) as job:
        results = job.analyse(divided=False)
        is_steady = "phases" in results["findings"].tables
    for result in results.values():
        for name, table in result.tables.items():
            assert is_steady or "steady state" not in table.title, (name, table.title)
            for word, column in (("bound by", "bound"), ("NVLink", "link_gb_s")):
                assert word not in table.title or column in table.frame.columns
