"""Ranks of processes, by what the reports tell of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl
import pytest

from nsys2prv.export.info import ReportInfo
from nsys2prv.export.ranks import FILE_NAMES, LAUNCHER, MPI_RANKS, NCCL_RANKS, Rank, find_ranks

A, B = 1 << 24, 2 << 24


def make_info(name: str, ranks: Mapping[int, int] | None = None, **launcher: int) -> ReportInfo:
    sizes = {"WORLD_SIZE": launcher.pop("size")} if "size" in launcher else {}
    launched = {name.upper(): rank for name, rank in launcher.items()}
    return ReportInfo(
        Path(name), ranks=dict(ranks or {}), launcher_ranks=launched, launcher_sizes=sizes
    )


def tell_nccl(*rows: tuple[int, int, int, int, int]) -> pl.DataFrame:
    columns = ["report", "process", "communicator", "ranks", "rank"]
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.Int64), orient="row")


TWO = {(0, A): True, (1, A): True}


@pytest.mark.parametrize(
    ("infos", "processes", "nccl", "found"),
    [
        # Two processes of one report, whose process ids are not in the order of ranks.
        (
            [make_info("a")],
            {(0, A): True, (0, B): True},
            tell_nccl((0, A, 7, 2, 1), (0, B, 7, 2, 0)),
            {(0, A): (1, NCCL_RANKS), (0, B): (0, NCCL_RANKS)},
        ),
        # A communicator of two of four ranks is not that of the job.
        (
            [make_info("a", rank=2, size=4), make_info("b", rank=3, size=4)],
            TWO,
            tell_nccl((0, A, 7, 2, 0), (1, A, 7, 2, 1)),
            {(0, A): (2, LAUNCHER), (1, A): (3, LAUNCHER)},
        ),
        (
            [make_info("a", {A: 1}, rank=0), make_info("b", {A: 0}, rank=1)],
            TWO,
            None,
            {(0, A): (1, MPI_RANKS), (1, A): (0, MPI_RANKS)},
        ),
        # One report without payloads: the rank that is left.
        (
            [make_info("a"), make_info("b")],
            TWO,
            tell_nccl((0, A, 7, 2, 1)),
            {(0, A): (1, NCCL_RANKS), (1, A): (0, FILE_NAMES)},
        ),
        (
            [make_info("rank3.sqlite"), make_info("rank7.sqlite")],
            TWO,
            None,
            {(0, A): (3, FILE_NAMES), (1, A): (7, FILE_NAMES)},
        ),
        (
            [make_info("x"), make_info("y")],
            TWO,
            None,
            {(0, A): (0, FILE_NAMES), (1, A): (1, FILE_NAMES)},
        ),
        # A process beside the report's only rank is of that rank; a job of one process needs none.
        ([make_info("x")], {(0, A): True, (0, B): False}, None, {(0, A): (0, ""), (0, B): (0, "")}),
    ],
    ids=["one report", "part of a job", "MPI", "one without", "names", "order", "helper"],
)
def test_ranks(
    infos: list[ReportInfo],
    processes: dict[tuple[int, int], bool],
    nccl: pl.DataFrame | None,
    found: dict[tuple[int, int], tuple[int, str]],
) -> None:
    assert find_ranks(infos, processes, nccl) == {key: Rank(*rank) for key, rank in found.items()}
