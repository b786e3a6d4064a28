"""Find the groups into which the ranks of a job are divided: NCCL communicators, pipeline stages,
and other groups that exchange messages.

A *dimension* is a named division of all ranks (tensor, data, pipeline, expert). The name is
inferred from its operations. The reason states the evidence, because several layouts may fit. Given
names and sizes take precedence (`--mesh tp=2,pp=4,dp=2`): rank numbers vary fastest along the first
dimension.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import prod

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import ABSENT, COUNT, DURATION, join_linked
from nsys2prv._util.errors import UsageError
from nsys2prv._util.intervals import Spans, merge_spans
from nsys2prv._util.text import format_ordinal
from nsys2prv.events.catalogue import map_labels
from nsys2prv.match import MPI_RULES
from nsys2prv.match.meetings import (
    MESSAGES,
    list_collectives,
    list_messages,
    list_nccl_kernels,
    match_by_ends,
)
from nsys2prv.table.event_reader import HELPER, EventReader

#: NCCL operations by name, and operations between pairs of ranks.
OPERATIONS = map_labels("nccl_operation")
P2P = [OPERATIONS[name] for name in ("send", "recv", "sendrecv", "several operations in a group")]
#: Communication within a group: collectives, messages between all ranks, a chain of stages, or a ring.
COLLECTIVE, EXCHANGE, CHAIN, RING = "collective", "exchange", "chain", "ring"
#: Stages of a pipeline send nothing in an iteration before they receive, except in this share of the
#: iterations, whose messages may overlap.
PASSED_ON = 0.6
#: This share of the kernels of a stream and operation meets the same others if they belong to one
#: communicator: some end together with others by chance.
ALIKE = 0.8


#: Names for sets of ranks: a stage of a pipeline, ranks that work on the same data, ranks that communicate.
STAGE, REPLICA, GROUP = "stage", "replica", "group"


#: Names of dimensions.
TENSOR, DATA, SHARDED = "tensor", "data", "data (sharded)"
PIPELINE, EXPERT, EXPERT_DATA = "pipeline", "expert", "expert data"
RINGS, WORLD = "ring", "world"
#: Names for places in dimensions: fields of the layout `parallel_place`, and of each dimension.
PLACES = ("tp", "dp", "pp", "ep")
SHORT = {TENSOR: "tp", DATA: "dp", SHARDED: "dp", PIPELINE: "pp", EXPERT: "ep", EXPERT_DATA: "edp"}
#: Descriptions of divisions by messages, and their evidence.
_BY_MESSAGES = {
    CHAIN: (PIPELINE, "ranks send along a chain of {size}"),
    EXCHANGE: (EXPERT, "each rank sends to all {others} others of its group"),
    RING: (RINGS, "each rank sends to the next of a ring"),
}
#: The same for two ranks, whose messages are ambiguous.
_OF_TWO = "both ranks send to each other; a ring of two ranks would look the same"
_GUESSED = {
    CHAIN: "sends and receives with unknown partners, outside other dimensions",
    EXCHANGE: "sends and receives of these ranks end together",
}
#: Gathering and reducing operations.
GATHERING, REDUCING = (
    [OPERATIONS[name] for name in names]
    for names in (("allgather",), ("allreduce", "reducescatter", "reduce"))
)
#: Collectives of fewer bytes carry figures such as a norm or a loss, whatever the groups are for.
SMALL = 1024
#: Tensor parallelism reduces within each layer: often per iteration, always the same size, and the next
#: kernel waits for it. Data parallelism reduces each gradient once, in buckets or concurrently with the
#: backward pass.
OFTEN, SAME_SIZE, EXPOSED = 8, 0.8, 0.8
#: Sharded data parallelism gathers the parameters for the forward and the backward pass, and reduces
#: them once; tensor parallelism that divides sequences gathers one and a half times as often at most.
GATHERS = 1.75
#: Work done at least this often counts as repeated.
FEWEST = 3
#: Layouts with wait times of kernels.
WAITS = ("nccl_collective", "nccl_point_to_point")


class Division(Struct, frozen=True):
    """One way in which NCCL divides the ranks of a job into groups of equal size."""

    #: COLLECTIVE, EXCHANGE, CHAIN, RING.
    by: str
    #: Processes of each group, ascending.
    groups: tuple[tuple[int, ...], ...]
    #: Communicators (values) of the groups; empty for messages.
    communicators: tuple[int, ...] = ()
    #: Whether partners of messages are unknown: a chain remains after all other divisions, and partners end
    #: together.
    is_guessed: bool = False

    @property
    def size(self) -> int:
        """Return the number of processes in a group."""
        return len(self.groups[0])


class Pipeline(Struct, frozen=True):
    """A pipeline: stages (sets of processes) that pass micro-batches to each other."""

    #: Processes of each stage, in the order in which data passes them first.
    stages: tuple[tuple[int, ...], ...]
    #: Number of micro-batches per iteration, or None.
    micro_batches: int | None
    #: How often each of them passes a process, which is then its number of stages.
    rounds: int = 1

    @property
    def bubble(self) -> float | None:
        """Return the share of an iteration in which a stage has to be idle, if all stages take
        equally long; None if unknown.
        """
        others = len(self.stages) - 1
        if self.micro_batches is None:
            return None
        return others / (self.micro_batches * self.rounds + others)


def find_divisions(
    reader: EventReader, pipeline: Pipeline | None, begin: int, end: int
) -> list[Division]:
    """Find how NCCL divides the ranks that use it between two times (ns).

    A division is a set of communicators whose groups have equal steps between ranks, such as 0,1
    and 2,3, or the groups in which ranks exchange messages.
    """
    task_of = reader.rows.get_column("task") - 1
    kernels = name_unknown(reader, list_nccl_kernels(reader))
    kernels = kernels.filter(pl.col("begin").is_between(begin, end))
    kernels = kernels.with_columns(process=pl.Series(task_of[kernels["thread"].to_numpy()]))
    every = kernels["process"].unique().sort().to_list()
    known = kernels.filter((pl.col("communicator") >= 0) & ~pl.col("operation").is_in(P2P))
    # Groups of experts and of data parallelism may have the same members.
    exchanges = (pl.col("operation") == OPERATIONS["alltoall"]).any()
    members = known.group_by("communicator").agg(pl.col("process").unique().sort(), exchanges)
    families: dict[object, list[tuple[int, tuple[int, ...]]]] = {}
    for communicator, group, exchange in members.sort("communicator").rows():
        steps = tuple(one - group[0] for one in group)
        families.setdefault((steps, exchange), []).append((communicator, tuple(group)))
    found = []
    for one in families.values():
        groups = tuple(sorted({group for _, group in one}))
        communicators = tuple(communicator for communicator, _ in one)
        found.append(Division(COLLECTIVE, groups, communicators))
    lines = list_messages(reader)
    lines = lines.filter((pl.col("kind") == MESSAGES[0]) & pl.col("sent").is_between(begin, end))
    sides = (task_of[lines[name].to_numpy()].tolist() for name in ("sender", "thread"))
    pairs = {(a, b) for a, b in zip(*sides, strict=True) if a != b}
    one_way = [OPERATIONS[name] for name in ("send", "recv")]
    # Two ranks that only exchange their data are not stages.
    is_chain = pipeline and (len(pipeline.stages) > 2 or kernels["operation"].is_in(one_way).any())
    if pipeline and pairs and is_chain:
        found.append(Division(CHAIN, tuple(sorted(zip(*pipeline.stages, strict=True)))))
    elif pairs:
        found += _divide_by_messages(pairs)
    elif kernels["operation"].is_in(P2P).any():
        unknown = find_unknown(reader)
        found += _divide_by_links(unknown.pairs)
        known = [{*group} for one in found for group in one.groups if len(group) < len(every)]
        sets = [{*one} for one in unknown.exchanges if not unknown.pairs]
        # Ranks in step because of other shared work may exchange nothing with each other.
        if sets and all(len(one & group) < 2 for one in sets for group in known):
            found.append(Division(EXCHANGE, unknown.exchanges, is_guessed=True))
    found = [one for one in found if one.size > 1 and sorted(sum(one.groups, ())) == every]
    sends = kernels["operation"].is_in(one_way).any()
    if sends and all(one.by == COLLECTIVE for one in found):
        found += _find_rest(found, every, find_unknown(reader).pairs)
    return found


def name_groups(
    divisions: Sequence[Division], pipeline: Pipeline | None
) -> dict[tuple[int, ...], tuple[str, int, int]]:
    """Find sets of processes that form a unit of parallelism. Return set of processes -> (type:
    STAGE, REPLICA or GROUP; number from 1; number of such groups).

    Ranks that do the same work on other data are replicas. They are the sets that all divisions
    connect, except the division with the widest steps if there are several.
    """
    divisions = [one for one in divisions if len(one.groups) > 1]
    sets = [(STAGE, pipeline.stages)] if pipeline else []
    collective = [one for one in divisions if one.by == COLLECTIVE]
    if len(divisions) > 1 and collective:
        widest = max(collective, key=lambda one: one.groups[0][1] - one.groups[0][0])
        linked = join_linked(sum((one.groups for one in divisions if one is not widest), ()))
        sets.append((REPLICA, tuple(sorted(tuple(sorted(one)) for one in linked))))
    sets += [(GROUP, one.groups) for one in divisions]
    named: dict[tuple[int, ...], tuple[str, int, int]] = {}
    for kind, groups in sets:
        for number, group in enumerate(groups if len(groups) > 1 else (), 1):
            named.setdefault(group, (kind, number, len(groups)))
    return named


def _find_rest(
    found: Sequence[Division], every: Sequence[int], pairs: frozenset[tuple[int, int]]
) -> Iterator[Division]:
    """Yield the groups in which ranks exchange messages with unknown partners: ranks with the same
    place in all known dimensions, if there are any. pairs: known pairs.
    """
    divides = [one for one in found if 1 < one.size < len(every)]
    places = [
        {rank: at for group in one.groups for at, rank in enumerate(group)} for one in divides
    ]
    alike: dict[tuple[int, ...], list[int]] = {}
    for rank in every:
        alike.setdefault(tuple(place[rank] for place in places), []).append(rank)
    groups = tuple(sorted(map(tuple, alike.values())))
    is_whole = divides and len(groups) == prod(one.size for one in divides)
    if (
        is_whole
        and len({*map(len, groups)}) == 1
        and all(any({*pair} <= {*group} for group in groups) for pair in pairs)
    ):
        yield Division(CHAIN, groups, is_guessed=True)


class Unknown(Struct, frozen=True):
    """Groups of ranks whose NCCL kernels have no recorded communicator; ranks are grouped by the
    kernels that they share.
    """

    #: Row of the trace and operation -> `communicator`: a number, above all recorded ones, for all rows with
    #: the same members.
    communicators: pl.DataFrame
    #: Processes that exchange messages.
    pairs: frozenset[tuple[int, int]]
    #: Sets of more than two ranks that exchange messages at once.
    exchanges: tuple[tuple[int, ...], ...]


def find_unknown(reader: EventReader) -> Unknown:
    """Find the groups of ranks whose NCCL kernels have no recorded communicator."""
    return reader.remember("unknown members", lambda: _find_unknown(reader))


def name_unknown(reader: EventReader, kernels: pl.DataFrame) -> pl.DataFrame:
    """Fill in a number for each communicator that is not recorded, where its members are known.
    kernels: frame with `thread`, `operation`, `communicator`.
    """
    if (kernels["communicator"] >= 0).all():
        return kernels
    named = find_unknown(reader).communicators.rename({"communicator": "found"})
    kernels = kernels.join(named, ["thread", "operation"], how="left", maintain_order="left")
    number = pl.when(pl.col("communicator") < 0).then("found").otherwise("communicator")
    return kernels.with_columns(communicator=number.fill_null(ABSENT)).drop("found")


def _find_unknown(reader: EventReader) -> Unknown:
    key = ["thread", "begin"]
    kernels = list_nccl_kernels(reader)
    beyond = int(kernels["communicator"].max() or 0) + 1
    names = reader.read_begins("nccl_kernel", ("kernel",)).rename({"kernel": "name"})
    kernels = kernels.filter(pl.col("communicator") < 0).join(names.unique(key, keep="first"), key)
    kernels = kernels.with_row_index("node_begin").with_columns(pl.col("node_begin").cast(pl.Int64))
    met = list_collectives(reader).filter(~pl.col("rule").is_in(MPI_RULES))
    met = met.select(*key, meeting="collective").unique(key).join(kernels, key)
    left = kernels.join(met, on="node_begin", how="anti")
    columns = ["thread", "operation", "meeting"]
    parts = [met.select(columns)]
    for part in match_by_ends(reader, left) if left.height else ():
        more = part.join(left.select("node_begin", "operation"), on="node_begin")
        last = pl.col("meeting") + int(parts[-1]["meeting"].max() or 0)
        parts.append(more.select("thread", "operation", meeting=last))
    found = pl.concat(part.cast(pl.Int64) for part in parts)
    found = found.with_columns(process=reader.rows.find("task", found["thread"]) - 1)
    members = pl.col("process").unique().sort().cast(pl.String).str.join(",").over("meeting")
    found = found.with_columns(members=members)
    count = found.group_by("thread", "process", "operation", "members").len()
    whole = pl.col("len").sum().over("thread", "operation")
    # Kernels of a stream and operation belong to one communicator if nearly all meet the same others.
    is_pair = pl.col("operation").is_in(P2P)
    sets = map(_parse_members, found.filter(is_pair)["members"].unique().to_list())
    alike = count.filter(pl.col("len") >= ALIKE * whole)
    exchanges = map(_parse_members, alike.filter(is_pair)["members"].unique().to_list())
    known = alike.filter(~is_pair)
    known = known.with_columns(
        members=pl.col("members").map_elements(_parse_members, pl.List(pl.Int64))
    )
    known = _tell_apart(known.select("thread", "process", "operation", "members"))
    known = known.with_columns(communicator=pl.col("members").rank("dense").cast(pl.Int64) + beyond)
    return Unknown(
        # Without any rows types are unknown.
        known.select("thread", "operation", "communicator").cast(pl.Int64),
        frozenset(one for one in sets if len(one) == 2),
        tuple(sorted(one for one in exchanges if len(one) > 2)),
    )


def _parse_members(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _tell_apart(known: pl.DataFrame) -> pl.DataFrame:
    """Return members of kernels: `thread`, `process`, `operation`, `members`.

    Communicators that run in step are separated by the other work on their streams, and by groups
    that run alone, if all have equal steps.
    """
    rows = [(*row[:3], tuple(row[3])) for row in known.rows()]
    least: dict[int, tuple[int, ...]] = {}
    for thread, _, _, members in rows:
        if len(members) < len(least.get(thread, range(len(members) + 1))):
            least[thread] = members
    rows = [
        (thread, process, operation, least[thread] if {*least[thread]} < {*members} else members)
        for thread, process, operation, members in rows
    ]
    # For each process and operation, take the streams with the fewest members: if another stream has these
    # members, the rest forms another communicator.
    fewest: dict[int, int] = {}
    own_least: dict[tuple[int, int], int] = {}
    for _, process, operation, members in rows:
        size, key = len(members), (process, operation)
        fewest[operation] = min(fewest.get(operation, size), size)
        own_least[key] = min(own_least.get(key, size), size)
    steps: dict[int, set[tuple[int, ...]]] = {}
    for _, _, operation, members in rows:
        if len(members) == fewest[operation]:
            steps.setdefault(operation, set()).add(tuple(one - members[0] for one in members))
    made = []
    for thread, process, operation, members in rows:
        own, count = members, len(members)
        is_joined = fewest[operation] < count == own_least[process, operation]
        if is_joined and len(steps[operation]) == 1:
            own = next(_tile(members, *steps[operation], process), members)
        made.append((thread, process, operation, ",".join(f"{one:08}" for one in own)))
    return pl.DataFrame(made, known.columns, orient="row")


def _tile(
    members: tuple[int, ...], steps: tuple[int, ...], process: int
) -> Iterator[tuple[int, ...]]:
    """Yield the group that contains a process, if groups with these steps divide all members."""
    left, found = {*members}, []
    while left:
        group = {min(left) + step for step in steps}
        if not group <= left:
            return
        found.append(group)
        left -= group
    yield next(tuple(sorted(group)) for group in found if process in group)


def _divide_by_links(links: frozenset[tuple[int, int]]) -> Iterator[Division]:
    """Yield the groups that messages of unknown direction form: chains, rings, or complete groups.
    Two ranks fit all of these. links: pairs of processes, the lower one first.
    """
    groups = tuple(sorted(tuple(sorted(one)) for one in join_linked(links)))
    if len({*map(len, groups)}) != 1 or (size := len(groups[0])) < 3:
        return
    most = max(Counter(one for link in links for one in link).values())
    forms = {size - 1: CHAIN, size: RING, size * (size - 1) // 2: EXCHANGE}
    each = len(links) / len(groups)
    if each in forms and (most <= 2 or forms[each] == EXCHANGE):
        yield Division(forms[int(each)], groups)


def _divide_by_messages(pairs: set[tuple[int, int]]) -> Iterator[Division]:
    """Yield the groups in which processes send each other messages. pairs: (sender, receiver)."""
    groups = tuple(sorted(tuple(sorted(one)) for one in join_linked(pairs)))
    if len({*map(len, groups)}) > 1:
        return
    count, others = sum(map(len, groups)), len(groups[0]) - 1
    if len(pairs) == count * others:
        yield Division(EXCHANGE, groups)
    elif len(pairs) in (count, 2 * count):
        yield Division(RING, groups)


def find_pipeline(
    reader: EventReader, begin: int, end: int, begins: Sequence[int]
) -> Pipeline | None:
    """Return the pipeline that messages between two times (ns) form, or None.

    In a pipeline, partners form chains of equal length, or rings if micro-batches pass each process
    several times, and no process sends before it has received. Halo exchanges are not pipelines.
    begins: starts of the iterations in this time, empty if unknown.
    """
    task_of = reader.rows.get_column("task") - 1
    lines = list_messages(reader)
    lines = lines.filter(pl.col("sent").is_between(begin, end))
    lines = lines.select(
        "sent",
        "received",
        a=pl.Series(task_of[lines["sender"].to_numpy()]),
        b=pl.Series(task_of[lines["thread"].to_numpy()]),
        iteration=pl.Series(np.searchsorted(np.array(begins), lines["sent"].to_numpy(), "right")),
    ).filter(pl.col("a") != pl.col("b"))
    pairs = lines.group_by("a", "b").agg(count=pl.len(), first=pl.col("sent").min())
    counts = {(a, b): (first, count) for a, b, count, first in pairs.rows()}
    partners: dict[int, set[int]] = {}
    for a, b in counts:
        partners.setdefault(a, set()).add(b)
        partners.setdefault(b, set()).add(a)
    chains = []
    for start in _list_first_stages(lines, partners):
        chain = [start]
        while following := partners[chain[-1]] - {*chain}:
            if len(chain) == 1 and len(following) == 2:
                # In a ring, follow the first send of the first process.
                following = {min(following, key=lambda one: counts.get((start, one), (end, 0)))}
            elif len(following) > 1:
                return None
            chain += following
        chains.append(chain)
    if not chains or len({len(chain) for chain in chains}) > 1:
        return None
    if sum(map(len, chains)) < len(partners):
        return None
    if not all(_passes_on(lines, chain) for chain in chains):
        return None
    count = max(len(begins), 1)
    sent = {
        round(counts[pair][1] / count) if pair in counts else 0
        for chain in chains
        for pair in pairwise(chain)
    }
    stages = tuple(tuple(sorted(stage)) for stage in zip(*chains, strict=True))
    number = max(sent) if len(begins) and len(sent) == 1 and min(sent) else None
    # Messages from the last process to the first pass all processes again.
    again = round(counts.get((chains[0][-1], chains[0][0]), (0, 0))[1] / count)
    if number is None or len(stages) < 3 or again >= number:
        return Pipeline(stages, number)
    return Pipeline(stages, number - again, round(number / (number - again)))


def _list_first_stages(lines: pl.DataFrame, partners: Mapping[int, set[int]]) -> list[int]:
    """Return the processes at the start of chains or rings of partners: those that send first; if
    some have only one partner, only these.
    """
    first = dict(lines.group_by("a").agg(pl.col("sent").min()).sort("a").rows())
    found = []
    for group in join_linked([{one, *others} for one, others in partners.items()]):
        ends = [one for one in group if len(partners[one]) == 1] or [*group]
        found.append(min(ends, key=lambda one: (first.get(one, 1 << 62), one)))
    return sorted(found)


def _passes_on(lines: pl.DataFrame, chain: Sequence[int]) -> bool:
    """Return True if, in most iterations, each process of a chain except the first sends only after
    it has received.
    """
    for before, after in pairwise(chain):
        own = lines.lazy().filter(a=before, b=after).group_by("iteration")
        sent = lines.lazy().filter(a=after).group_by("iteration").agg(pl.col("sent").min())
        both = own.agg(pl.col("received").min()).join(sent, on="iteration")
        counts = both.select((pl.col("sent") >= pl.col("received")).sum(), every=pl.len())
        passed, every = counts.collect().row(0)
        if passed < PASSED_ON * every:
            return False
    return True


def sum_kernels(
    reader: EventReader, unit: int, span: tuple[int, int], find_computing: Callable[[int], Spans]
) -> pl.DataFrame:
    """Sum the NCCL kernels of a unit in a time span (ns) by task, communicator (thread if unknown),
    operation and bytes.

    Columns: `count`, `time_ns`, `overlapped_ns` (overlapped by computation); `matched`, the number
    of kernels with known waits, and their wait time in total and without overlap. find_computing:
    returns the times in which a device computes.
    """
    begin, end = span
    kernels = reader.read_begins("nccl_kernel", ("operation", "bytes", "communicator"), unit)
    kernels = kernels.filter((pl.col("begin") >= begin) & (pl.col("end") <= end))
    waits = _read_waits(reader, unit)
    kernels = kernels.join(waits, ["thread", "begin"], how="left", maintain_order="left")
    device = reader.rows.find("device", kernels["thread"]).to_numpy()
    kernels = kernels.with_columns(pl.col("wait").clip(None, DURATION))
    start, last = kernels["begin"].to_numpy(), kernels["end"].to_numpy()
    ready = start + kernels["wait"].fill_null(0).to_numpy()
    overlapped, beside = np.zeros((2, kernels.height), np.int64)
    for one in np.unique(device[device >= 0]).tolist():
        own, computing = np.flatnonzero(device == one), find_computing(one)
        overlapped[own] = computing.within(start[own], last[own])
        beside[own] = computing.within(start[own], ready[own])
    unknown = pl.when(pl.col("communicator") < 0).then("thread").otherwise(-1)
    kernels = kernels.with_columns(
        reader.rows.find("task", kernels["thread"]),
        unknown.alias("thread"),
        overlapped=overlapped,
        beside=beside,
    )
    by = ("task", "communicator", "thread", "operation", "bytes")
    return kernels.group_by(by, maintain_order=True).agg(
        count=COUNT,
        time_ns=DURATION.sum(),
        overlapped_ns=pl.col("overlapped").sum(),
        matched=pl.col("wait").count().cast(pl.Int64),
        wait_ns=pl.col("wait").sum(),
        exposed_wait_ns=pl.col("wait").sum() - pl.col("beside").sum(),
    )


def _read_waits(reader: EventReader, unit: int | None = None) -> pl.DataFrame:
    """Return the known wait times of NCCL kernels: `thread`, `begin`, `wait` (ns)."""
    waits = (reader.read_begins(layout, ("wait",), unit).drop("end") for layout in WAITS)
    return pl.concat(waits).filter(pl.col("wait") >= 0).unique(("thread", "begin"), keep="first")


class Dimension(Struct, frozen=True):
    """One way in which the work of a job is divided among ranks."""

    #: Its purpose, or "every 2nd rank" if unknown.
    name: str
    #: Ranks of each group, ascending.
    groups: tuple[tuple[int, ...], ...]
    #: Why it has its name.
    evidence: str
    #: Communicators (values) of its groups.
    communicators: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Return the number of ranks in a group."""
        return len(self.groups[0])

    def find_place(self, rank: int) -> int:
        """Return the place of a rank in its group (from 0)."""
        return next(group.index(rank) for group in self.groups if rank in group)


def parse_mesh(text: str, ranks: int) -> tuple[tuple[str, int], ...]:
    """Return names and sizes of dimensions from a text such as `tp=2,pp=4`. Raise UsageError unless
    they describe a mesh with this many ranks.
    """
    parts = []
    for part in text.split(","):
        name, _, size = (one.strip() for one in part.partition("="))
        if not name or not size.isdecimal() or int(size) < 1:
            raise UsageError(f"--mesh {text}: {part!r} is not NAME=SIZE, as in tp=2,pp=4")
        parts.append((name, int(size)))
    if len({name for name, _ in parts}) < len(parts):
        raise UsageError(f"--mesh {text}: a dimension is named twice")
    if (whole := prod(size for _, size in parts)) != ranks:
        raise UsageError(f"--mesh {text}: these are {whole} ranks, but the job has {ranks}")
    return tuple(parts)


class Mesh(Struct, frozen=True):
    """The parallel groups of a job (its dimensions, such as tensor or data parallel) and each
    rank's place in them.
    """

    #: Sums that :func:`collect` yields, with `rank`, and numbers for unknown communicators.
    kernels: pl.DataFrame
    #: Dimensions between neighboring ranks first.
    dimensions: Sequence[Dimension]
    #: `rank`, and its place in each dimension; None if these do not distinguish all ranks.
    places: pl.DataFrame | None
    #: Number of each task that uses NCCL: its rank.
    ranks: Mapping[int, int]

    def list_places(self) -> dict[int, dict[str, int]]:
        """Return task -> (dimension -> the rank's place in it, from 0) for the dimensions in
        PLACES.
        """
        return {
            task: {
                short: at
                for name, at in places.items()
                if (short := SHORT.get(name, name)) in PLACES
            }
            for task, places in self._find_places().items()
        }

    def _find_places(self) -> dict[int, dict[str, int]]:
        """Return task -> its place in each dimension."""
        if self.places is None:
            return {}
        rows = {row.pop("rank"): row for row in self.places.rows(named=True)}
        return {task: rows[rank] for task, rank in self.ranks.items()}

    def name_places(self) -> dict[int, str]:
        """Return task -> its place as text, such as `tp 0 pp 3`; empty if unknown."""
        tasks = self._find_places()
        shorts = {name: SHORT.get(name, name) for places in tasks.values() for name in places}
        if len({*shorts.values()}) < len(shorts):
            # Groups that divide weights, in addition to groups with copies of them.
            shorts[SHARDED] = "sharded"
        return {
            task: " ".join(f"{shorts[name]} {at}" for name, at in places.items())
            for task, places in tasks.items()
        }

    def add_places(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Add to a frame with `task` the column `place`: the rank's place in the parallel groups as
        text, null if unknown.
        """
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
        """Add the column `dimension` (the kind of parallel group, if known) to a frame that has
        `communicator` and `operation`.
        """
        names = {value: one.name for one in self.dimensions for value in one.communicators}
        number = pl.col("communicator").cast(pl.Int64)
        of_all = number.replace_strict(names, default=None, return_dtype=pl.String)
        by_messages = (one.name for one in self.dimensions if not one.communicators)
        of_pairs = pl.lit(next(by_messages, None), pl.String)
        named = pl.when(pl.col("operation").is_in(P2P)).then(of_pairs).otherwise(of_all)
        named = named.alias("dimension")
        frame = frame.select("communicator", named, pl.exclude("communicator"))
        return frame if frame["dimension"].count() else frame.drop("dimension")


def find_mesh(
    reader: EventReader,
    kernels: pl.DataFrame,
    ranks: Mapping[int, int],
    span: tuple[int, int],
    begins: Sequence[int] = (),
    mesh: str = "",
) -> Mesh:
    """Find the parallel groups of a job and their meaning (tensor, pipeline, data parallel).

    kernels: from :func:`sum_kernels`, for a time span (ns). ranks: task -> rank, for tasks that use
    NCCL. begins: starts of the iterations in the span, empty if unknown. mesh: names and sizes that
    the user gave (`tp=2,pp=4`), or "".
    """
    of_rank = pl.col("task").replace_strict(ranks, return_dtype=pl.Int64)
    kernels = name_unknown(reader, kernels.with_columns(rank=of_rank))
    dimensions = _find_dimensions(reader, kernels, ranks, span, begins)
    every = sorted(ranks.values())
    places = _find_coordinates(dimensions, every)
    if mesh:
        places = _place_in_mesh(parse_mesh(mesh, len(every)), every)
        dimensions = [_name_by_mesh(one, places) for one in dimensions]
    return Mesh(kernels, dimensions, places, ranks)


def _find_dimensions(
    reader: EventReader,
    kernels: pl.DataFrame,
    ranks: Mapping[int, int],
    span: tuple[int, int],
    begins: Sequence[int],
) -> list[Dimension]:
    """Return the dimensions of a job; dimensions between neighboring ranks come first. Arguments
    are as in :func:`find_mesh`.
    """
    pipeline = find_pipeline(reader, *span, begins)
    found = []
    divisions = find_divisions(reader, pipeline, *span)
    iterations = len(begins) or _estimate_iterations(kernels)
    others = prod(one.size for one in divisions if one.size < len(ranks))
    for one in divisions:
        own = (tuple(sorted(ranks[process + 1] for process in group)) for group in one.groups)
        of_ranks = tuple(sorted(own))
        is_rest = one.size == others == len(ranks)
        name, evidence = _name_division(one, of_ranks, kernels, iterations)
        if is_rest and not (kernels["bytes"] >= 0).any():
            name, evidence = WORLD, "all ranks, which other dimensions divide"
        found.append(Dimension(name, of_ranks, evidence, one.communicators))
    if any(one.name == EXPERT for one in found):
        found = [_name_expert_data(one, found) for one in found]
    return sorted(found, key=lambda one: (one.name == WORLD, one.groups[0][1], one.size))


def _name_expert_data(dimension: Dimension, found: Sequence[Dimension]) -> Dimension:
    """Rename a dimension of data parallelism if it belongs to experts: each of its groups has one
    rank of each expert group, while other groups have all ranks.
    """
    experts = next(one for one in found if one.name == EXPERT)
    is_data = dimension.name in (DATA, SHARDED) and len(dimension.groups) == experts.size > 1
    if not is_data or not all(
        len({*own} & {*group}) == 1 for own in dimension.groups for group in experts.groups
    ):
        return dimension
    evidence = f"{dimension.evidence}; each group has a rank of each group of experts"
    return replace(dimension, name=EXPERT_DATA, evidence=evidence)


def _estimate_iterations(kernels: pl.DataFrame) -> int:
    """Return the number of repetitions of the rarest repeated work of ranks, or 0 without any.
    Every iteration does something exactly once, such as a norm.
    """
    by = ("rank", "communicator", "operation", "bytes")
    counts = kernels.group_by(by).agg(pl.col("count").sum())["count"]
    return int(counts.filter(counts >= FEWEST).min() or 0)


def _name_division(
    division: Division, of_ranks: Sequence[tuple[int, ...]], kernels: pl.DataFrame, iterations: int
) -> tuple[str, str]:
    """Return the likely purpose of groups of ranks, and the reason."""
    if division.communicators:
        is_own = pl.col("communicator").is_in(division.communicators)
        is_own &= ~pl.col("operation").is_in(P2P)
        return _name_family(kernels.filter(is_own), of_ranks, iterations)
    name, evidence = _BY_MESSAGES[division.by]
    if division.by == EXCHANGE and division.size == 2:
        evidence = _OF_TWO
    evidence = _GUESSED[division.by] if division.is_guessed else evidence
    return name, evidence.format(size=division.size, others=division.size - 1)


def _name_family(
    kernels: pl.DataFrame, groups: Sequence[tuple[int, ...]], iterations: int
) -> tuple[str, str]:
    """Return the likely purpose of the collectives of some groups, and the reason."""
    kernels = kernels.filter((pl.col("bytes") >= SMALL) | (pl.col("bytes") < 0))
    if not kernels.height:
        name = WORLD if len(groups) == 1 else _name_steps(groups)
        return name, f"no collective of {SMALL:,} bytes or more"
    if (kernels["operation"] == OPERATIONS["alltoall"]).any():
        return EXPERT, "all-to-all"
    if not iterations:
        return _name_steps(groups), "no iterations are known"
    each = kernels["rank"].n_unique() * iterations
    reducing = kernels.filter(pl.col("operation").is_in(REDUCING))
    gathering = kernels.filter(pl.col("operation").is_in(GATHERING))
    often, gathers = (one["count"].sum() / each for one in (reducing, gathering))
    if not often:
        return _name_steps(groups), f"per iteration: {gathers:.3g} AllGather, no reduction"
    by_size = reducing.group_by("bytes").agg(pl.col("count").sum())["count"]
    alike = by_size.max() / by_size.sum()
    size = "size" if (reducing["bytes"] >= 0).all() else "unknown size"
    exposed = 1 - kernels["overlapped_ns"].sum() / max(kernels["time_ns"].sum(), 1)
    said = f"per iteration: {often:.3g} reductions ({alike:.0%} of them with the same {size}), {exposed:.0%} of their time exposed"
    if gathers >= GATHERS * often:
        return SHARDED, f"per iteration: {gathers:.3g} AllGather, {often:.3g} reductions"
    if often >= OFTEN and alike >= SAME_SIZE and exposed >= EXPOSED:
        return TENSOR, said
    return SHARDED if gathers else DATA, said


def _name_steps(groups: Sequence[tuple[int, ...]]) -> str:
    """Return a name for groups of ranks that depends only on the steps between ranks."""
    steps = {second - first for group in groups for first, second in pairwise(group)}
    return f"every {format_ordinal(*steps)} rank" if len(steps) == 1 else "groups"


def _find_coordinates(dimensions: Sequence[Dimension], ranks: Sequence[int]) -> pl.DataFrame | None:
    """Return the place of each rank in each dimension. Return None if dimensions do not separate
    all ranks, or if one dimension contains all ranks.
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
    """Return the place of each rank along each dimension of a mesh. The first dimension varies
    fastest.
    """
    places, step = {}, 1
    for name, size in mesh:
        places[name] = [number // step % size for number in range(len(ranks))]
        step *= size
    return pl.DataFrame({"rank": ranks, **places})


def _name_by_mesh(dimension: Dimension, places: pl.DataFrame) -> Dimension:
    """Return a dimension with the name of the mesh dimensions along which its groups extend."""
    varying = set()
    for group in dimension.groups:
        own = places.filter(pl.col("rank").is_in(group)).drop("rank")
        varying.add(tuple(name for name in own.columns if own[name].n_unique() > 1))
    names = varying.pop()
    size = prod(places[name].n_unique() for name in names)
    if varying or size != dimension.size:
        return dimension
    return replace(dimension, name="-".join(names), evidence="by --mesh")


def number_ranks(kernels: pl.DataFrame, tasks: pl.DataFrame) -> dict[int, int]:
    """Return task -> rank for the tasks that use NCCL; empty if ranks are unknown.

    GPUs of one process have their NCCL rank or, if it is unknown, their order. kernels: with
    `task`. tasks: `task`, `rank`, `is_gpu` and `nccl_rank` of all tasks except helpers, by task.
    """
    if not kernels.height:
        return {}
    using = tasks.filter(pl.col("task").is_in(kernels["task"].unique().to_list()))
    if using["is_gpu"].any():
        told = using["nccl_rank"].drop_nulls()
        is_told = told.n_unique() == using.height
        numbers = told.to_list() if is_told else range(using.height)
        return dict(zip(using["task"], numbers, strict=True))
    ranks = dict(using.select("task", "rank").drop_nulls().rows())
    return ranks if len({*ranks.values()}) == tasks.height else {}


def find_named_mesh(reader: EventReader, mesh: str = "") -> Mesh | None:
    """Return the parallel groups of the whole job, or None if its ranks are unknown. mesh: as in
    :func:`find_mesh`.
    """

    def find_computing(unit: int, device: int) -> Spans:
        kernels = reader.read_begins("cuda_kernel", (), unit)
        own = kernels.filter(reader.rows.find("device", kernels["thread"]) == device)
        return merge_spans(own["begin"].to_numpy(), own["end"].to_numpy())

    span = reader.begin, reader.duration
    sums = [
        sum_kernels(reader, unit, span, partial(find_computing, unit))
        for unit in (reader.rows.unit_numbers if "nccl_kernel" in reader.layouts else ())
    ]
    rows = reader.rows.threads.filter(pl.col("kind") != HELPER)
    tasks = rows.select("task", "rank", "is_gpu", "nccl_rank").unique("task").sort("task")
    kernels = pl.concat(sums) if sums else pl.DataFrame()
    ranks = number_ranks(kernels, tasks)
    return find_mesh(reader, kernels, ranks, span, mesh=mesh) if ranks else None


def list_by_dimension(reader: EventReader, mesh: Mesh) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return two frames: the NCCL kernels of known dimensions (`thread`, `begin`, `end` in ns,
    `dimension` as a value of the value set), and their wait times.
    """
    fields = ("operation", "communicator")
    kernels = name_unknown(reader, reader.read_begins("nccl_kernel", fields))
    values = map_labels("dimension")
    # Dimensions of `--mesh` by their usual names.
    values |= {short: values[name] for name, short in reversed(SHORT.items())}
    named = {one.name: values.get(one.name, values["other groups"]) for one in mesh.dimensions}
    kernels = mesh.add_dimensions(kernels)
    if "dimension" not in kernels.columns:
        kernels = kernels.with_columns(dimension=pl.lit(None, pl.String))
    number = pl.col("dimension").replace_strict(named, default=None, return_dtype=pl.Int64)
    kernels = kernels.with_columns(dimension=number).drop_nulls("dimension")
    kernels = kernels.select("thread", "begin", "end", "dimension").unique(
        ("thread", "begin"), keep="first", maintain_order=True
    )
    waits = _read_waits(reader).filter(pl.col("wait") > 0)
    waiting = kernels.join(waits, ["thread", "begin"], maintain_order="left")
    end = pl.min_horizontal("end", pl.col("begin") + pl.col("wait"))
    return kernels, waiting.with_columns(end=end).drop("wait")
