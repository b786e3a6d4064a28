"""Find the groups that the ranks of a job are divided into: by communicators of NCCL, by stages of a pipeline,
which pass their results on to the next one, and by what else ranks send each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import ABSENT, join_linked
from nsys2prv.events.catalogue import map_labels
from nsys2prv.match import MPI_RULES
from nsys2prv.match.meetings import (
    MESSAGES,
    list_collectives,
    list_messages,
    list_nccl_kernels,
    match_by_ends,
)
from nsys2prv.table.event_reader import EventReader

#: Operations of NCCL by their names, and those of pairs of ranks.
OPERATIONS = map_labels("nccl_operation")
P2P = [OPERATIONS[name] for name in ("send", "recv", "sendrecv", "several operations in a group")]
#: How ranks of a group communicate: by collectives, or by messages from each to each, along a chain of
#: stages, or in a ring.
COLLECTIVE, EXCHANGE, CHAIN, RING = "collective", "exchange", "chain", "ring"
#: Stages of a pipeline send nothing in an iteration before they receive something, but for this share
#: of the iterations, whose messages may overlap.
PASSED_ON = 0.6
#: Of the kernels of a stream and operation so many meet the same others, if they are of one communicator: some
#: end together with others by chance.
ALIKE = 0.8


#: What sets of ranks are called: a stage of a pipeline, ranks that work on the same data, ranks that communicate.
STAGE, REPLICA, GROUP = "stage", "replica", "group"


class Division(Struct, frozen=True):
    """A way in which the ranks of a job are divided into groups of equal size."""

    #: COLLECTIVE, EXCHANGE, CHAIN, RING.
    by: str
    #: Processes of each group, ascending.
    groups: tuple[tuple[int, ...], ...]
    #: Communicators (values) of the groups; none of messages.
    communicators: tuple[int, ...] = ()
    #: Whether it is what other divisions leave, as partners are not known.
    is_rest: bool = False

    @property
    def size(self) -> int:
        """Number of processes of a group."""
        return len(self.groups[0])


class Pipeline(Struct, frozen=True):
    """Stages of a job."""

    #: Processes of each stage, in the order in which data passes them first.
    stages: tuple[tuple[int, ...], ...]
    #: How many micro-batches an iteration has, None where not known.
    micro_batches: int | None
    #: How often each of them passes a process, which has so many stages then.
    rounds: int = 1

    @property
    def bubble(self) -> float | None:
        """Return the share of an iteration in which a stage has no work, if all take equally long."""
        others = len(self.stages) - 1
        if self.micro_batches is None:
            return None
        return others / (self.micro_batches * self.rounds + others)


def find_divisions(
    reader: EventReader, pipeline: Pipeline | None, begin: int, end: int
) -> list[Division]:
    """Return how NCCL divides all ranks that use it between two times (ns): sets of communicators whose
    groups have equal steps between ranks, such as 0,1 and 2,3, and the groups in which ranks send each
    other messages.
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
    # Two ranks that only exchange what they have are no stages.
    is_chain = pipeline and (len(pipeline.stages) > 2 or kernels["operation"].is_in(one_way).any())
    if pipeline and pairs and is_chain:
        found.append(Division(CHAIN, tuple(sorted(zip(*pipeline.stages, strict=True)))))
    elif pairs:
        found += _divide_by_messages(pairs)
    elif found_by_ends := find_unknown(reader).pairs:
        found += _divide_by_links(found_by_ends)
    found = [one for one in found if one.size > 1 and sorted(sum(one.groups, ())) == every]
    sends = kernels["operation"].is_in(one_way).any()
    if sends and all(one.by == COLLECTIVE for one in found):
        found += _find_rest(found, every, find_unknown(reader).pairs)
    return found


def name_groups(
    divisions: Sequence[Division], pipeline: Pipeline | None
) -> dict[tuple[int, ...], tuple[str, int, int]]:
    """Return sets of processes -> what such a set is (STAGE, REPLICA, GROUP), its number from 1, and how many
    there are. Replicas are what all other divisions link, where the one with the widest steps is left
    out, of several: it holds ranks that do the same with other data.
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
    """Yield the groups in which ranks send to each other, whose partners are not known: those that have the
    same place in all dimensions that are known, if these leave such. pairs: that are known.
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
        yield Division(CHAIN, groups, is_rest=True)


class Unknown(Struct, frozen=True):
    """Who takes part in kernels of NCCL whose communicator no payload names, by whom they meet."""

    #: Row of the trace and operation -> `communicator`: a number for all with the same members, beyond those
    #: of communicators.
    communicators: pl.DataFrame
    #: Processes that exchange messages.
    pairs: frozenset[tuple[int, int]]


def find_unknown(reader: EventReader) -> Unknown:
    """Return who takes part in the kernels of NCCL whose communicator is not known."""
    return reader.remember("unknown members", lambda: _find_unknown(reader))


def name_unknown(reader: EventReader, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return kernels (`thread`, `operation`, `communicator`) with numbers for unknown communicators."""
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
    for part in match_by_ends(reader, left, (met,)) if left.height else ():
        more = part.join(left.select("node_begin", "operation"), on="node_begin")
        last = pl.col("meeting") + int(parts[-1]["meeting"].max() or 0)
        parts.append(more.select("thread", "operation", meeting=last))
    found = pl.concat(part.cast(pl.Int64) for part in parts)
    found = found.with_columns(process=reader.rows.find("task", found["thread"]) - 1)
    members = pl.col("process").unique().sort().cast(pl.String).str.join(",").over("meeting")
    found = found.with_columns(members=members)
    of_pairs = found.filter(pl.col("operation").is_in(P2P))["members"].unique().to_list()
    numbers = [_parse_members(text) for text in of_pairs]
    count = found.group_by("thread", "process", "operation", "members").len()
    whole = pl.col("len").sum().over("thread", "operation")
    # Those of a stream and operation are of one communicator, if nearly all meet the same.
    known = count.filter(pl.col("len") >= ALIKE * whole, ~pl.col("operation").is_in(P2P))
    known = known.with_columns(
        members=pl.col("members").map_elements(_parse_members, pl.List(pl.Int64))
    )
    known = _tell_apart(known.select("thread", "process", "operation", "members"))
    known = known.with_columns(communicator=pl.col("members").rank("dense").cast(pl.Int64) + beyond)
    return Unknown(
        known.select("thread", "operation", "communicator"),
        frozenset(one for one in numbers if len(one) == 2),
    )


def _parse_members(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _tell_apart(known: pl.DataFrame) -> pl.DataFrame:
    """Return members of kernels (`thread`, `process`, `operation`, `members`), where several communicators in
    step are told apart by what a stream does else, and by those that are alone: of equal steps.
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
    # Of each process and operation those with fewest members: if another stream has these, the rest is another
    # communicator.
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
    """Yield the group with a process if groups of these steps divide all members."""
    left, found = {*members}, []
    while left:
        group = {min(left) + step for step in steps}
        if not group <= left:
            return
        found.append(group)
        left -= group
    yield next(tuple(sorted(group)) for group in found if process in group)


def _divide_by_links(links: frozenset[tuple[int, int]]) -> Iterator[Division]:
    """Yield the groups that messages form, whose directions are not known: chains, rings, or each with each.
    Of two alone nothing tells them apart. links: processes, the lower first.
    """
    groups = tuple(sorted(tuple(sorted(one)) for one in join_linked(links)))
    if len({*map(len, groups)}) > 1 or (size := len(groups[0])) < 3:
        return
    most = max(Counter(one for link in links for one in link).values())
    forms = {size - 1: CHAIN, size: RING, size * (size - 1) // 2: EXCHANGE}
    each = len(links) / len(groups)
    if each in forms and (most <= 2 or forms[each] == EXCHANGE):
        yield Division(forms[int(each)], groups)


def _divide_by_messages(pairs: set[tuple[int, int]]) -> Iterator[Division]:
    """Yield the groups in which processes send each other messages. pairs: who sends to whom."""
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
    """Return the pipeline that the messages between these times (ns) show: processes whose partners
    form chains of equal length, or rings where micro-batches pass each process several times, and
    which send nothing before they have received. None where they form anything else, as those do that
    exchange halos. begins: of the iterations in this time, none where unknown.
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
                # Of a ring, to where the first one sends first.
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
    # What the last process sends on to the first passes all of them again.
    again = round(counts.get((chains[0][-1], chains[0][0]), (0, 0))[1] / count)
    if number is None or len(stages) < 3 or again >= number:
        return Pipeline(stages, number)
    return Pipeline(stages, number - again, round(number / (number - again)))


def _list_first_stages(lines: pl.DataFrame, partners: Mapping[int, set[int]]) -> list[int]:
    """Return the processes that begin chains, or rings, of partners: those that send first, and have one
    partner if any has.
    """
    first = dict(lines.group_by("a").agg(pl.col("sent").min()).sort("a").rows())
    found = []
    for group in join_linked([{one, *others} for one, others in partners.items()]):
        ends = [one for one in group if len(partners[one]) == 1] or [*group]
        found.append(min(ends, key=lambda one: (first.get(one, 1 << 62), one)))
    return sorted(found)


def _passes_on(lines: pl.DataFrame, chain: Sequence[int]) -> bool:
    """Return whether each process of a chain but the first sends in most iterations only what it has
    received something for.
    """
    late = 0
    for before, after in pairwise(chain):
        came = lines.filter(a=before, b=after).group_by("iteration").agg(pl.col("received").min())
        sent = lines.filter(a=after).group_by("iteration").agg(pl.col("sent").min())
        both = came.join(sent, on="iteration")
        late += (both["sent"] >= both["received"]).sum() < PASSED_ON * both.height
    return late == 0
