"""Compute the values of a part of a job from the frames of the whole job, without any analysis of
the package.
"""

from collections.abc import Iterable
from itertools import pairwise

import polars as pl
from polars import selectors

from nsys2prv.figures.iterations import PERIOD
from nsys2prv.open_job import OpenJob

WORK = ("cuda_kernel", "nccl_kernel", "cuda_graph", "memory_operation")
_SCHEMA = {"begin": pl.Int64, "end": pl.Int64, "device": pl.Int64}
_SCHEMA |= dict.fromkeys(("name", "layout", "kind"), pl.String)
#: Columns of tables of devices.
DEVICE_FIGURES = ("compute_ns", "nccl_ns", "memory_ns", "active_ns")
#: Share of a span that iterations must not fall short of to be found, as reports say it.
LEAST_ITERATIONS = 3


class Work:
    """The activity of a job's devices."""

    def __init__(self, job: OpenJob) -> None:
        named = {"cuda_kernel": ("kernel", "class"), "nccl_kernel": ("kernel",)}
        named |= {"cuda_graph": ("execution",), "memory_operation": ("operation",)}
        frames = []
        for layout in WORK:
            if layout in job.layouts:
                frame = job.frame(layout).cast({pl.Categorical: pl.String})
                kind = pl.col("class") if "class" in frame.columns else pl.lit("")
                name = named[layout][0] if named[layout][0] in frame.columns else "row"
                frames.append(
                    frame.select(
                        "begin", "end", "device", name=name, layout=pl.lit(layout), kind=kind
                    )
                )
        self.frame = pl.concat([*frames, pl.DataFrame(schema=_SCHEMA)], how="vertical_relaxed")
        talks = (pl.col("layout") == "nccl_kernel") | (pl.col("kind") == "Communication")
        copies = pl.col("layout") == "memory_operation"
        self.parts = {
            "compute_ns": ~talks & ~copies,
            "nccl_ns": talks,
            "memory_ns": copies,
            "active_ns": pl.lit(True),
            "communication_ns": talks | copies,
        }

    def clip(self, first: int, last: int) -> pl.DataFrame:
        """Return the work in a span (ns), clipped to it."""
        inside = self.frame.filter(pl.col("end") > first, pl.col("begin") < last)
        return inside.with_columns(pl.col("begin").clip(first), pl.col("end").clip(None, last))

    def measure(self, first: int, last: int) -> dict[int, dict[str, int]]:
        """Return for each device how long it does each sort of work in a span, and communicates while
        it computes nothing (ns).
        """
        result = {}
        for device in self.frame["device"].unique().sort().to_list():
            own = self.clip(first, last).filter(device=device)
            spans = {
                name: own.filter(part).select("begin", "end").rows()
                for name, part in self.parts.items()
            }
            sums = {name: add_up(rows) for name, rows in spans.items()}
            both = add_up([*spans["compute_ns"], *spans["communication_ns"]])
            result[device] = {**sums, "exposed_ns": both - sums["compute_ns"]}
        return result


def add_up(spans: Iterable[tuple[int, int]]) -> int:
    """Return the time in any of these spans (ns)."""
    total, reached = 0, 0
    for begin, end in sorted(spans):
        total += max(end - max(begin, reached), 0)
        reached = max(reached, end)
    return total


def check_figures(whole: OpenJob, work: Work, part: OpenJob, first: int, last: int) -> None:
    """Check the figures of a part of a job, whose rows are all of the job's."""
    _check_iterations(whole, part, first, last)
    measured = work.measure(*_find_covered(part, first))
    tables = part.analyse("efficiencies", whole=True)["efficiencies"].tables
    labels = dict(part.devices.select("label", "device").rows())
    for row in tables["devices"].frame.iter_rows(named=True) if "devices" in tables else ():
        wanted = measured[_find_device(whole, part, labels[row["device"]])]
        assert {
            name: row.get(name, wanted[name]) for name in DEVICE_FIGURES
        }.items() <= wanted.items()
    _check_sums(whole, work, part, first, last)


def _find_covered(part: OpenJob, first: int) -> tuple[int, int]:
    """Return from when to when the reports cover a part (ns of the whole job): figures are of that time."""
    begin, end = part.coverage.common.find_longest()
    return first + begin, first + end


def _find_device(whole: OpenJob, part: OpenJob, device: int) -> int:
    label = part.devices.filter(device=device)["label"].item()
    return whole.devices.filter(label=label)["device"].item()


def _check_iterations(whole: OpenJob, part: OpenJob, first: int, last: int) -> None:
    """Check that the part has the iterations of the whole that lie in it, if these are enough."""
    if whole.steady is None:
        return
    edges = [*whole.steady.iteration_begins, whole.steady.end]
    inside = [
        begin - first
        for begin, end in pairwise(edges)
        if first < begin and (end < last or last == whole.duration)
    ]
    if len(inside) <= LEAST_ITERATIONS:
        return
    most = len(inside)
    assert part.steady is not None
    # A sequence of kernels that repeats itself may begin with any of them. Where hosts are far ahead,
    # few ranges have the work of a part.
    if any(one.steady.found_by.startswith(PERIOD) for one in (part, whole)):
        return
    assert part.steady.found_by == whole.steady.found_by
    found = list(part.steady.iteration_begins)
    # What is warm-up of the whole job may be in the part's. Of the last a rank may be behind, and the
    # range of the first may begin where the part does, like one that is clipped.
    after = [one for one in found if one >= whole.steady.begin - first]
    assert after, inside
    inside = inside[inside.index(after[0]) :]
    assert after in (inside, inside[:-1]), (after, inside)
    assert len(after) >= most - 2
    assert part.steady.end + first in edges
    # Each of them is as in the whole job.
    name = "iterations_of_devices"
    tables = [one.analyse("efficiencies")["efficiencies"].tables for one in (part, whole)]
    own, of_whole = (one[name].frame if name in one else None for one in tables)
    if own is not None:
        later = whole.steady.iteration_begins.index(inside[0] + first) - found.index(inside[0])
        own = own.filter(pl.col("iteration") > found.index(inside[0]))
        own = own.with_columns(pl.col("iteration") + later).select(
            "iteration", "device", selectors.ends_with("_ns")
        )
        expected = of_whole.select("iteration", "device", selectors.ends_with("_ns"))
        assert own.height
        assert set(own.rows()) <= set(expected.rows())


def _check_sums(whole: OpenJob, work: Work, part: OpenJob, first: int, last: int) -> None:
    """Check numbers and times of kernels and of calls of MPI, and the overlap of communication."""
    there = work.clip(first, last)
    kernels = there.filter(pl.col("layout") != "memory_operation")
    if kernels.height:
        sums = kernels.group_by("name").agg(pl.len(), (pl.col("end") - pl.col("begin")).sum())
        table = part.analyse("kernels")["kernels"].tables["kernels"].frame
        table = table.group_by("kernel").agg(pl.col("count", "time_ns").sum())
        assert sorted(table.rows()) == sorted(sums.rows())
    measured = work.measure(*_find_covered(part, first))
    tables = part.analyse("overlap", whole=True)["overlap"].tables
    if "devices" in tables:
        total = tables["devices"].frame.filter(device="all").row(0, named=True)
        assert total["communication_ns"] == sum(
            one["communication_ns"] for one in measured.values()
        )
        assert total["exposed_ns"] == sum(one["exposed_ns"] for one in measured.values())
    tables = part.analyse("collectives")["collectives"].tables
    inside = (pl.col("end") > first) & (pl.col("begin") < last)
    time = pl.col("end").clip(None, last) - pl.col("begin").clip(first)
    if "across_ranks" in tables:
        waits = whole.frame("nccl_collective", labels=False).filter(inside, pl.col("late") >= 0)
        across = tables["across_ranks"].frame
        for name, column in (("wait_ns", "wait"), ("transfer_ns", "transfer")):
            assert across[name].sum() == waits[column].sum()
    if "nccl" in tables:
        found = tables["nccl"].frame.select(pl.col("kernels", "time_ns").sum()).row(0)
        own = whole.frame("nccl_kernel", labels=False).filter(inside)
        assert found == own.select(pl.len(), time.sum()).row(0)
    if "mpi" in tables:
        frames = [
            whole.frame(layout, labels=False).filter(inside).select(time.alias("time"))
            for layout in whole.layouts
            if layout.startswith("mpi_") and layout != "mpi_message"
        ]
        own = pl.concat(frames)
        found = tables["mpi"].frame.select(pl.col("count", "time_ns").sum()).row(0)
        assert found == (own.height, own["time"].sum())
