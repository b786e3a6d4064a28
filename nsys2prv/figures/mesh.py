"""Sum the communication and waits of a job by its parallel groups (tensor, data, pipeline, expert),
which :mod:`~nsys2prv.match.groups` finds and names.
"""

from __future__ import annotations

from collections import Counter

import polars as pl

from nsys2prv._util.intervals import Spans
from nsys2prv.figures.device_group import COMPUTE, GRAPH, Collected, DeviceGroup, Frames
from nsys2prv.figures.result import Context, Result, format_numbers
from nsys2prv.figures.thresholds import MATCHED
from nsys2prv.match.groups import P2P, Dimension, Mesh, find_mesh, number_ranks, sum_kernels

#: Groups that are listed.
MOST_GROUPS = 4


def collect(unit: DeviceGroup) -> Collected:
    """Yield sums of the NCCL kernels in the steady state (`kernels`, as `sum_kernels` in groups.py
    returns them).
    """
    span = unit.options.get_steady_span(unit.duration)

    def find_computing(device: int) -> Spans:
        return unit.find_device_spans(device, COMPUTE, GRAPH)

    yield "kernels", sum_kernels(unit.reader, unit.number, span, find_computing)


def find_mesh_of_job(kernels: pl.DataFrame, context: Context) -> Mesh | None:
    """Return the parallel groups of a job, or None if its ranks are unknown. kernels: from
    :func:`collect`.
    """
    ranks, steady = number_ranks(kernels, context.tasks), context.options.steady
    if not ranks:
        return None
    span = context.options.get_steady_span(context.duration)
    begins = steady.iteration_begins if steady else ()
    return find_mesh(context.reader, kernels, ranks, span, begins, context.options.mesh)


def conclude(_: Frames, context: Context, result: Result) -> None:
    """Add tables of a job's parallel groups (dimensions), the communication in each, and each
    rank's place in them, to the result.
    """
    mesh = context.get_mesh()
    if mesh is None:
        result.missing.append(f"parallel groups: {context.explain_absence(('nccl_kernel',))}")
        return
    if not mesh.dimensions:
        result.missing.append("parallel groups: no known NCCL communicator divides the ranks")
        return
    result.add("dimensions", _sum_by_dimension(mesh, context), span=context.options.span_name)
    if mesh.places is not None:
        result.add("coordinates", mesh.places)


def _select_kernels(mesh: Mesh, dimension: Dimension) -> pl.DataFrame:
    """Return the sums of kernels of a dimension."""
    of_pairs = pl.col("operation").is_in(P2P)
    is_own = pl.col("communicator").is_in(dimension.communicators) & ~of_pairs
    return mesh.kernels.filter(is_own if dimension.communicators else of_pairs)


def _sum_waits(name: str) -> pl.Expr:
    """Return an expression for the sum of waits; null if too many kernels have unknown waits."""
    is_known = pl.col("matched").sum() >= MATCHED * pl.col("count").sum()
    return pl.when(is_known).then(pl.col(name).sum())


def sum_by_rank(mesh: Mesh, context: Context) -> pl.DataFrame:
    """Return the exposed communication and wait time of each rank in each dimension (kind of
    parallel group).
    """
    rows = context.tasks.filter(pl.col("task").is_in(list(mesh.ranks))).select("task")
    rows = mesh.add_places(rows)
    taken: Counter[str] = Counter()
    for one in mesh.dimensions:
        exposed = pl.col("time_ns").sum() - pl.col("overlapped_ns").sum()
        sums = (
            _select_kernels(mesh, one).group_by("task").agg(exposed, _sum_waits("exposed_wait_ns"))
        )
        taken[one.name] += 1
        name = f"{one.name} {taken[one.name]}" if taken[one.name] > 1 else one.name
        sums = sums.select(
            pl.col("task").cast(rows["task"].dtype),
            pl.col("time_ns").alias(f"{name}_ns"),
            pl.col("exposed_wait_ns").alias(f"{name}_waiting_ns"),
        )
        rows = rows.join(sums, "task", how="left", maintain_order="left")
    return context.label_tasks(rows)


def _sum_by_dimension(mesh: Mesh, context: Context) -> pl.DataFrame:
    """Return the communication and wait time of each dimension in the steady state."""
    rows = []
    for one in mesh.dimensions:
        own = _select_kernels(mesh, one)
        sums = own.select(pl.col("count", "time_ns", "overlapped_ns").sum()).row(0)
        count, time, overlapped = sums
        waits, exposed_waits = own.select(*map(_sum_waits, ("wait_ns", "exposed_wait_ns"))).row(0)
        sized = own.filter(pl.col("bytes") >= 0)
        rows.append(
            {
                "dimension": one.name,
                "size": one.size,
                "groups": "; ".join(
                    format_numbers(group, ",") for group in one.groups[:MOST_GROUPS]
                )
                + "; ..." * (len(one.groups) > MOST_GROUPS),
                "kernels": count,
                "bytes": (sized["bytes"] * sized["count"]).sum() if sized.height else None,
                "time_ns": time,
                "exposed_ns": time - overlapped,
                "wait_ns": waits,
                "exposed_wait_ns": exposed_waits,
                "evidence": one.evidence,
            }
        )
    return pl.DataFrame(rows)
