"""Name the parallel groups of a job (tensor, data, pipeline, expert) by what they do, and sum communication
by them.

A *dimension* is a division of all ranks into groups (:mod:`~nsys2prv.match.groups`). What it is for
follows from its operations; the sentence that says so has its evidence, as several layouts may fit.
Names and sizes that are given win (`--mesh tp=2,pp=4,dp=2`): ranks are numbered along the first
dimension fastest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.errors import UsageError
from nsys2prv.figures.device_group import COMPUTE, GRAPH, DeviceGroup
from nsys2prv.figures.result import Context, Result, format_numbers, format_ordinal
from nsys2prv.figures.time_division import WAITS
from nsys2prv.match import groups
from nsys2prv.match.groups import (
    OPERATIONS,
    P2P,
    Division,
    find_divisions,
    find_pipeline,
    name_unknown,
)

#: Names of dimensions.
TENSOR, DATA, SHARDED = "tensor", "data", "data (sharded)"
PIPELINE, EXPERT, RING, WORLD = "pipeline", "expert", "ring", "world"
#: What places in dimensions are called.
SHORT = {TENSOR: "tp", DATA: "dp", SHARDED: "dp", PIPELINE: "pp", EXPERT: "ep"}
#: What divisions by messages look like, and why.
_BY_MESSAGES = {
    groups.CHAIN: (PIPELINE, "ranks send along a chain of {size}"),
    groups.EXCHANGE: (EXPERT, "each rank sends to all {others} others of its group"),
    groups.RING: (RING, "each rank sends to the next of a ring"),
}
BY_REST = "ranks send and receive, to partners that are not known: what other dimensions leave"
#: Operations by what they are for: those that gather, and those that reduce.
GATHERING, REDUCING = (
    [OPERATIONS[name] for name in names]
    for names in (("allgather",), ("allreduce", "reducescatter", "reduce"))
)
#: Waits of a dimension are known if those of so many of its kernels are: captures cut some.
MATCHED = 0.9
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
    """Collect sums of the NCCL kernels of the steady state (`kernels`) by task, communicator (where it is
    not known, by thread), operation and bytes: how many, their time, how much of it is beside computation,
    and of how many (`matched`) waits are known, how long these are, and how long without computation beside.
    """
    begin, end = unit.options.get_steady_span(unit.duration)
    kernels = unit.read_begins("nccl_kernel", ("operation", "bytes", "communicator"))
    kernels = kernels.filter((pl.col("begin") >= begin) & (pl.col("end") <= end))
    met = kernels.select("thread", "begin", wait="bytes").clear()
    waits = (unit.read_begins(layout, ("wait",)).drop("end") for layout in filter(unit.has, WAITS))
    met = pl.concat([met, *waits], how="diagonal").filter(pl.col("wait") >= 0)
    met = met.unique(("thread", "begin"), keep="first")
    kernels = kernels.join(met, ["thread", "begin"], how="left", maintain_order="left")
    device = unit.device_of[kernels["thread"].to_numpy()]
    lasts = pl.col("end") - pl.col("begin")
    kernels = kernels.with_columns(pl.col("wait").clip(None, lasts))
    waits = kernels.with_columns(end=pl.col("begin") + pl.col("wait").fill_null(0))
    overlapped, beside = np.zeros((2, kernels.height), np.int64)
    for one in np.unique(device[device >= 0]).tolist():
        own = np.flatnonzero(device == one)
        computing = unit.find_device_spans(one, COMPUTE, GRAPH)
        overlapped[own] = unit.measure_within(computing, kernels[own]).to_numpy()
        beside[own] = unit.measure_within(computing, waits[own]).to_numpy()
    unknown = pl.when(pl.col("communicator") < 0).then("thread").otherwise(-1)
    kernels = kernels.with_columns(
        unit.list_tasks(kernels), unknown.alias("thread"), overlapped=overlapped, beside=beside
    )
    by = kernels.group_by(
        "task", "communicator", "thread", "operation", "bytes", maintain_order=True
    )
    yield (
        "kernels",
        by.agg(
            count=pl.len().cast(pl.Int64),
            time_ns=lasts.sum(),
            overlapped_ns=pl.col("overlapped").sum(),
            matched=pl.col("wait").count().cast(pl.Int64),
            wait_ns=pl.col("wait").sum(),
            exposed_wait_ns=pl.col("wait").sum() - pl.col("beside").sum(),
        ),
    )


def conclude(_: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    """Add the dimensions of a job, what communication each takes, and where each rank is in them."""
    mesh = context.get_mesh()
    if mesh is None:
        result.missing.append(f"parallel groups: {context.explain_absence(('nccl_kernel',))}")
        return
    if not mesh.dimensions:
        result.missing.append(
            "parallel groups: no communicator of NCCL is known that divides the ranks"
        )
        return
    result.add("dimensions", _sum_by_dimension(mesh, context))
    if mesh.places is not None:
        result.add("coordinates", mesh.places)
    result.add("by_rank", _sum_by_rank(mesh, context))


class Mesh(Struct, frozen=True):
    """The parallel groups of a job."""

    #: Sums that :func:`collect` yields, with `rank`, and numbers for unknown communicators.
    kernels: pl.DataFrame
    #: Those between neighbouring ranks first.
    dimensions: Sequence[Dimension]
    #: `rank`, and its place in each dimension; None where these do not tell all ranks apart.
    places: pl.DataFrame | None
    #: Number of each task that uses NCCL: its rank.
    ranks: Mapping[int, int]

    def name_places(self) -> dict[int, str]:
        """Return where each task is: `tp 0 pp 3`; nothing where that is not known."""
        if self.places is None:
            return {}
        names = self.places.drop("rank").columns
        texts = {
            rank: " ".join(
                f"{SHORT.get(name, name)} {at}" for name, at in zip(names, row, strict=True)
            )
            for rank, *row in self.places.rows()
        }
        return {task: texts[rank] for task, rank in self.ranks.items()}

    def add_places(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return a frame with `place` beside `task`, where it is known."""
        places = self.name_places()
        if not places:
            return frame
        place = (
            pl.col("task")
            .cast(pl.Int64)
            .replace_strict(places, default=None, return_dtype=pl.String)
        )
        return frame.select("task", place.alias("place"), pl.exclude("task"))

    def add_dimensions(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return a frame with `dimension` beside `communicator` and `operation`, where any is known."""
        names = {value: one.name for one in self.dimensions for value in one.communicators}
        number = pl.col("communicator").cast(pl.Int64)
        of_all = number.replace_strict(names, default=None, return_dtype=pl.String)
        by_messages = (one.name for one in self.dimensions if not one.communicators)
        of_pairs = pl.lit(next(by_messages, None), pl.String)
        named = pl.when(pl.col("operation").is_in(P2P)).then(of_pairs).otherwise(of_all)
        named = named.alias("dimension")
        frame = frame.select("communicator", named, pl.exclude("communicator"))
        return frame if frame["dimension"].count() else frame.drop("dimension")


def find_mesh(kernels: pl.DataFrame, context: Context) -> Mesh | None:
    """Return the parallel groups of a job, None where its ranks are not known. kernels: as :func:`collect`
    yields them.
    """
    ranks = _number_ranks(kernels, context)
    if not ranks:
        return None
    of_rank = pl.col("task").replace_strict(ranks, return_dtype=pl.Int64)
    kernels = name_unknown(context.reader, kernels.with_columns(rank=of_rank))
    dimensions = _find_dimensions(kernels, ranks, context)
    every, mesh = sorted(ranks.values()), context.options.mesh
    places = _find_coordinates(dimensions, every)
    if mesh:
        places = _place_in_mesh(parse_mesh(mesh, len(every)), every)
        dimensions = [_name_by_mesh(one, places) for one in dimensions]
    return Mesh(kernels, dimensions, places, ranks)


def _number_ranks(kernels: pl.DataFrame, context: Context) -> dict[int, int]:
    """Return the rank of each task that uses NCCL: of GPUs of a process that in NCCL, or their order where it
    is not known; none where ranks are not known.
    """
    if not kernels.height:
        return {}
    tasks = context.tasks.filter(pl.col("task").is_in(kernels["task"].unique().to_list()))
    if tasks["is_gpu"].any():
        is_told = (
            tasks["nccl_rank"].n_unique() == tasks.height and not tasks["nccl_rank"].null_count()
        )
        numbers = tasks["nccl_rank"].to_list() if is_told else range(tasks.height)
        return dict(zip(tasks["task"], numbers, strict=True))
    ranks = dict(tasks.select("task", "rank").drop_nulls().rows())
    return ranks if len({*ranks.values()}) == context.tasks.height else {}


def _find_dimensions(
    kernels: pl.DataFrame, ranks: Mapping[int, int], context: Context
) -> list[Dimension]:
    """Return the dimensions of a job, those between neighbouring ranks first. kernels: of `Mesh`."""
    steady = context.options.steady
    begin, end = context.options.get_steady_span(context.duration)
    begins = steady.iteration_begins if steady else ()
    pipeline = find_pipeline(context.reader, begin, end, begins)
    found = []
    divisions = find_divisions(context.reader, pipeline, begin, end)
    others = prod(one.size for one in divisions if one.size < len(ranks))
    for one in divisions:
        own = (tuple(sorted(ranks[process + 1] for process in group)) for group in one.groups)
        of_ranks = tuple(sorted(own))
        is_rest = one.size == others == len(ranks)
        name, evidence = _name_division(one, of_ranks, kernels, context)
        if is_rest and not (kernels["bytes"] >= 0).any():
            name, evidence = WORLD, "all ranks, which other dimensions divide"
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
    evidence = BY_REST if division.is_rest else evidence
    return name, evidence.format(size=division.size, others=division.size - 1)


def _name_family(
    kernels: pl.DataFrame, groups: Sequence[tuple[int, ...]], context: Context
) -> tuple[str, str]:
    """Return what collectives of some groups look like, and why."""
    steady = context.options.steady
    kernels = kernels.filter((pl.col("bytes") >= SMALL) | (pl.col("bytes") < 0))
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
    size = "size" if (reducing["bytes"] >= 0).all() else "unknown size"
    exposed = 1 - kernels["overlapped_ns"].sum() / max(kernels["time_ns"].sum(), 1)
    said = f"reductions per iteration: {often:.3g}, {alike:.0%} of one {size}; {exposed:.0%} of the time exposed"
    if gathers >= GATHERS * often:
        return SHARDED, f"per iteration: {gathers:.3g} AllGather, {often:.3g} reductions"
    if often >= OFTEN and alike >= SAME_SIZE and exposed >= EXPOSED:
        return TENSOR, said
    return SHARDED if gathers else DATA, said


def _name_steps(groups: Sequence[tuple[int, ...]]) -> str:
    """Return a name for groups of ranks by the steps between them alone."""
    steps = {second - first for group in groups for first, second in pairwise(group)}
    return f"every {format_ordinal(*steps)} rank" if len(steps) == 1 else "groups"


def _select_kernels(mesh: Mesh, dimension: Dimension) -> pl.DataFrame:
    """Return the sums of kernels of a dimension."""
    of_pairs = pl.col("operation").is_in(P2P)
    is_own = pl.col("communicator").is_in(dimension.communicators) & ~of_pairs
    return mesh.kernels.filter(is_own if dimension.communicators else of_pairs)


def _sum_waits(name: str) -> pl.Expr:
    """Return the sum of waits, null where those of too many kernels are not known."""
    is_known = pl.col("matched").sum() >= MATCHED * pl.col("count").sum()
    return pl.when(is_known).then(pl.col(name).sum())


def _sum_by_rank(mesh: Mesh, context: Context) -> pl.DataFrame:
    """Return how long each rank only communicates (nothing computes beside it) in each dimension, and how
    much of that it waits.
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
    """Return how much each dimension communicates and waits in the steady state."""
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
