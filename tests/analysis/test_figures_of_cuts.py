"""A part of a job has the events and the figures that the whole job has in that time."""

from __future__ import annotations

import polars as pl
import pytest
from tools.commands import SAMPLES

import nsys2prv
from nsys2prv.analysis.job import OpenJob
from nsys2prv.conversion.options import CutOptions
from nsys2prv.events.catalogue import load_catalogue

COLUMNS = ("begin", "end", "rank", "device", "row")


def list_events(job: OpenJob, layout: str, first: int, last: int) -> pl.DataFrame:
    """Return the events of a layout from `first` to `last` (ns), clipped to that time."""
    if layout not in job.layouts:
        return pl.DataFrame(schema=dict.fromkeys(COLUMNS, pl.Int64))
    inside = (pl.col("end") > first) & (pl.col("begin") < last)
    return (
        job.frame(layout, labels=False)
        .filter(inside)
        .select(COLUMNS)
        .with_columns(pl.col("begin").clip(first) - first, pl.col("end").clip(None, last) - first)
        .sort(pl.all())
    )


def add_up(spans: list[tuple[int, int]]) -> int:
    """Return the time in any of these spans (ns)."""
    total, reached = 0, 0
    for begin, end in sorted(spans):
        total += max(end - max(begin, reached), 0)
        reached = max(reached, end)
    return total


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [("cluster", 854_000_000, 859_000_000), ("machine", 567_500_000, 571_000_000)],
)
def test_a_part_has_what_the_whole_has_there(name: str, first: int, last: int) -> None:
    cut = CutOptions(time=f"{first}ns:{last}ns")
    catalogue = load_catalogue()
    with (
        nsys2prv.open(SAMPLES / name) as whole,
        nsys2prv.open(SAMPLES / name, cut=cut) as part,
    ):
        ranges = {
            layout: list_events(whole, layout, first, last)
            for layout in whole.layouts
            if layout in catalogue.layouts
            and catalogue.layouts[layout].fields
            and not catalogue.layouts[layout].is_state
        }
        for layout, expected in ranges.items():
            there = list_events(part, layout, 0, last - first)
            assert there.rows() == expected.rows(), layout
        hosts = part.analyse("efficiencies")["efficiencies"].tables["hosts"].frame
        main = whole.rows.filter(pl.col("kind") == "host").unique("rank", keep="first")
        for rank, row in main.sort("rank").select("rank", "row").rows():
            in_mpi, in_api = (
                [
                    (begin, end)
                    for layout, frame in ranges.items()
                    if layout.startswith(begins)
                    for begin, end in frame.filter(rank=rank)
                    .filter(pl.col("row").cast(pl.String) == row)
                    .select("begin", "end")
                    .rows()
                ]
                for begins in ("mpi_", "cuda_api")
            )
            figures = hosts.row(rank, named=True)
            outside = figures.get("outside_mpi_ns", last - first)
            assert outside == last - first - add_up(in_mpi)
            assert figures["useful_ns"] == last - first - add_up(in_mpi + in_api)
