"""Name the parallel groups of a job (tensor, data, pipeline, expert) by what they do, and sum communication
by them.

A *dimension* is a division of all ranks into groups (:mod:`~nsys2prv.match.groups`). What it is for
follows from its operations; the sentence that says so has its evidence, as several layouts may fit.
Names and sizes that are given win (`--mesh tp=2,pp=4,dp=2`): ranks are numbered along the first
dimension fastest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.errors import UsageError
from nsys2prv.figures.device_group import COMPUTE, GRAPH, DeviceGroup
from nsys2prv.figures.result import Context, Result, format_numbers
from nsys2prv.match import groups
from nsys2prv.match.groups import OPERATIONS, P2P, Division, find_divisions, find_pipeline
from nsys2prv.match.meetings import list_compared_kernels

#: Names of dimensions.
TENSOR, DATA, SHARDED = "tensor", "data", "data (sharded)"
PIPELINE, EXPERT, RING, WORLD = "pipeline", "expert", "ring", "world"
#: What divisions by messages look like, and why.
_BY_MESSAGES = {
    groups.CHAIN: (PIPELINE, "ranks send along a chain of {size}"),
    groups.EXCHANGE: (EXPERT, "each rank sends to all {others} others of its group"),
    groups.RING: (RING, "each rank sends to the next of a ring"),
}
#: Operations by what they are for: those that gather, and those that reduce.
GATHERING, REDUCING = (
    [OPERATIONS[name] for name in names]
    for names in (("allgather",), ("allreduce", "reducescatter", "reduce"))
)
#: Groups that are listed.
MOST_GROUPS = 4
#: Collectives of fewer bytes carry figures such as a norm or a loss, whatever the groups are for.
SMALL = 1024
#: Tensor parallelism reduces within each layer: often in an iteration, always the same size, and the
#: next kernel waits for it. Data parallelism reduces each gradient once, in buckets or beside the
#: backward pass.
OFTEN, SAME_SIZE, EXPOSED = 8, 0.8, 0.8
#: Sharded data parallelism gathers the parameters for the forward and the backward pass, and reduces
#: them once.
GATHERS = 1.5


class Dimension(Struct, frozen=True):
    """A way in which a job's work is divided among ranks."""

    #: What it is for, or "every 2nd rank" where that is not known.
    name: str
    #: Ranks of each group, ascending.
    groups: tuple[tuple[int, ...], ...]
    #: Why it has its name.
    evidence: str
    #: Communicators (values) of its groups.
    communicators: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Number of ranks of a group."""
        return len(self.groups[0])

    def find_place(self, rank: int) -> int:
        """Return the place of a rank in its group, from 0."""
        return next(group.index(rank) for group in self.groups if rank in group)


def parse_mesh(text: str, ranks: int) -> tuple[tuple[str, int], ...]:
    """Return names and sizes of dimensions, as in `tp=2,pp=4`. Raises UsageError where it is none of so
    many ranks.
    """
    parts = []
    for part in text.split(","):
        name, _, size = (one.strip() for one in part.partition("="))
        if not name or not size.isdecimal() or int(size) < 1:
            raise UsageError(f"--mesh {text}: {part!r} is not NAME=SIZE, as in tp=2,pp=4")
        parts.append((name, int(size)))
    if len({name for name, _ in parts}) < len(parts):
        raise UsageError(f"--mesh {text}: names a dimension twice")
    if (whole := prod(size for _, size in parts)) != ranks:
        raise UsageError(f"--mesh {text}: this is {whole} ranks, and the job has {ranks}")
    return tuple(parts)


def collect(unit: DeviceGroup) -> Iterator[tuple[str, pl.DataFrame]]:
    """Collect sums of the NCCL kernels of the steady state (`kernels`) by task, communicator,
    operation and bytes.
    """
    begin, end = unit.options.get_steady_span(unit.duration)
    kernels = unit.read_begins("nccl_kernel", ("operation", "bytes", "communicator"))
    kernels = kernels.filter((pl.col("begin") >= begin) & (pl.col("end") <= end))
    device = unit.device_of[kernels["thread"].to_numpy()]
    overlapped = np.zeros(kernels.height, np.int64)
    for one in np.unique(device[device >= 0]).tolist():
        own = np.flatnonzero(device == one)
        computing = unit.find_device_spans(one, COMPUTE, GRAPH)
        overlapped[own] = unit.measure_within(computing, kernels[own]).to_numpy()
    time = (pl.col("end") - pl.col("begin")).sum()
    by = kernels.with_columns(unit.list_tasks(kernels), overlapped=overlapped).group_by(
        "task", "communicator", "operation", "bytes", maintain_order=True
    )
    yield (
        "kernels",
        by.agg(
            count=pl.len().cast(pl.Int64),
            time_ns=time,
            overlapped_ns=pl.col("overlapped").sum(),
        ),
    )


def conclude(frames: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    """Add the dimensions of a job, what communication each takes, and where each rank is in them."""
    kernels = frames["kernels"]
    ranks = dict(context.tasks.select("task", "rank").drop_nulls().rows())
    if not kernels.height or len({*ranks.values()}) < context.tasks.height:
        result.missing.append(f"parallel groups: {context.explain_absence(('nccl_kernel',))}")
        return
    of_rank = pl.col("task").replace_strict(ranks, return_dtype=pl.Int64)
    kernels = kernels.with_columns(rank=of_rank)
    dimensions = find_dimensions(kernels, context)
    every, mesh = sorted(ranks.values()), context.options.mesh
    places = _find_coordinates(dimensions, every)
    if mesh:
        places = _place_in_mesh(parse_mesh(mesh, len(every)), every)
        dimensions = [_name_by_mesh(one, places) for one in dimensions]
    if not dimensions:
        result.missing.append(
            "parallel groups: no communicator of NCCL is known that divides the ranks"
        )
        return
    result.add("dimensions", _sum_by_dimension(kernels, dimensions, context))
    if places is not None:
        result.add("coordinates", places)


def find_dimensions(kernels: pl.DataFrame, context: Context) -> list[Dimension]:
    """Return the dimensions of a job, those between neighbouring ranks first. kernels: as
    :func:`collect` yields them, with `rank`.
    """
    steady = context.options.steady
    begin, end = context.options.get_steady_span(context.duration)
    begins = steady.iteration_begins if steady else ()
    pipeline = find_pipeline(context.reader, begin, end, begins)
    ranks = dict(context.tasks.select("task", "rank").rows())
    found = []
    for one in find_divisions(context.reader, pipeline, begin, end):
        own = (tuple(sorted(ranks[process + 1] for process in group)) for group in one.groups)
        of_ranks = tuple(sorted(own))
        name, evidence = _name_division(one, of_ranks, kernels, context)
        found.append(Dimension(name, of_ranks, evidence, one.communicators))
    return sorted(found, key=lambda one: (one.name == WORLD, one.groups[0][1], one.size))


def _name_division(
    division: Division, of_ranks: Sequence[tuple[int, ...]], kernels: pl.DataFrame, context: Context
) -> tuple[str, str]:
    """Return what groups of ranks look like, and why."""
    if division.communicators:
        is_own = pl.col("communicator").is_in(division.communicators)
        is_own &= ~pl.col("operation").is_in(P2P)
        return _name_family(kernels.filter(is_own), of_ranks, context)
    name, evidence = _BY_MESSAGES[division.by]
    return name, evidence.format(size=division.size, others=division.size - 1)


def _name_family(
    kernels: pl.DataFrame, groups: Sequence[tuple[int, ...]], context: Context
) -> tuple[str, str]:
    """Return what collectives of some groups look like, and why."""
    steady = context.options.steady
    kernels = kernels.filter(pl.col("bytes") >= SMALL)
    if not kernels.height:
        name = WORLD if len(groups) == 1 else _name_steps(groups)
        return name, f"no collective of {SMALL:,} bytes or more"
    if (kernels["operation"] == OPERATIONS["alltoall"]).any():
        return EXPERT, "all-to-all"
    if steady is None:
        return _name_steps(groups), "no iterations are known"
    each = kernels["rank"].n_unique() * steady.count
    reducing = kernels.filter(pl.col("operation").is_in(REDUCING))
    gathering = kernels.filter(pl.col("operation").is_in(GATHERING))
    often, gathers = (one["count"].sum() / each for one in (reducing, gathering))
    if not often:
        return _name_steps(groups), f"AllGather per iteration: {gathers:.3g}, no reduction"
    by_size = reducing.group_by("bytes").agg(pl.col("count").sum())["count"]
    alike = by_size.max() / by_size.sum()
    exposed = 1 - kernels["overlapped_ns"].sum() / max(kernels["time_ns"].sum(), 1)
    said = f"reductions per iteration: {often:.3g}, {alike:.0%} of one size; {exposed:.0%} of the time exposed"
    if gathers >= GATHERS * often:
        return SHARDED, f"per iteration: {gathers:.3g} AllGather, {often:.3g} reductions"
    if often >= OFTEN and alike >= SAME_SIZE and exposed >= EXPOSED:
        return TENSOR, said
    return SHARDED if gathers else DATA, said


def _name_steps(groups: Sequence[tuple[int, ...]]) -> str:
    """Return a name for groups of ranks by the steps between them alone."""
    steps = {second - first for group in groups for first, second in pairwise(group)}
    return f"every {steps.pop()} ranks" if len(steps) == 1 else "groups"


def _sum_by_dimension(
    kernels: pl.DataFrame, dimensions: Sequence[Dimension], context: Context
) -> pl.DataFrame:
    """Return how much each dimension communicates and waits in the steady state."""
    matched = list_compared_kernels(context.reader)
    begin, end = context.options.get_steady_span(context.duration)
    matched = matched.filter((pl.col("begin") >= begin) & (pl.col("end") <= end))
    rows = []
    for one in dimensions:
        is_own = pl.col("communicator").is_in(one.communicators)
        of_pairs = pl.col("operation").is_in(P2P)
        own = kernels.filter(is_own & ~of_pairs if one.communicators else of_pairs)
        waits = matched.filter(is_own)["wait"] if one.communicators else pl.Series([None])
        sums = own.select(pl.col("count", "time_ns", "overlapped_ns").sum()).row(0)
        count, time, overlapped = sums
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
                "wait_ns": waits.sum() if waits.null_count() == 0 else None,
                "evidence": one.evidence,
            }
        )
    return pl.DataFrame(rows)


def _find_coordinates(dimensions: Sequence[Dimension], ranks: Sequence[int]) -> pl.DataFrame | None:
    """Return the place of each rank in each dimension, None where these do not tell all ranks apart,
    or one has them all.
    """
    divides = [one for one in dimensions if one.name != WORLD and one.size < len(ranks)]
    places = {one.name: [one.find_place(rank) for rank in ranks] for one in divides}
    whole = prod(one.size for one in divides)
    if len(places) < len(divides) or whole != len(ranks):
        return None
    if len({*zip(*places.values(), strict=True)}) < len(ranks):
        return None
    return pl.DataFrame({"rank": ranks, **places})


def _place_in_mesh(mesh: Sequence[tuple[str, int]], ranks: Sequence[int]) -> pl.DataFrame:
    """Return the place of each rank along each dimension of a mesh, the first of which is fastest."""
    places, step = {}, 1
    for name, size in mesh:
        places[name] = [number // step % size for number in range(len(ranks))]
        step *= size
    return pl.DataFrame({"rank": ranks, **places})


def _name_by_mesh(dimension: Dimension, places: pl.DataFrame) -> Dimension:
    """Return a dimension with the names of those of a mesh along which its groups lie."""
    varying = set()
    for group in dimension.groups:
        own = places.filter(pl.col("rank").is_in(group)).drop("rank")
        varying.add(tuple(name for name in own.columns if own[name].n_unique() > 1))
    names = varying.pop()
    size = prod(places[name].n_unique() for name in names)
    if varying or size != dimension.size:
        return dimension
    return replace(dimension, name="-".join(names), evidence="by --mesh")
