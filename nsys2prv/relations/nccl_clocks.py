"""NCCL collectives on all their ranks: what their kernels tell of the clocks of hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from nsys2prv.clock.gathering import Gathered, MemberCalls, Participant, gathered, gathered_by_member
from nsys2prv.clock.observations import NCCL as SOURCE
from nsys2prv.clock.observations import Calls, Messages, Role
from nsys2prv.facts import FactFile, batches, read_fact
from nsys2prv.naming.nccl import GROUP
from nsys2prv.relations.blocks import Block, write_blocks
from nsys2prv.relations.kind import DEVICES, Division, Observed
from nsys2prv.relations.nccl_by_ends import KIND, ROOT_WAITS, WAIT_FOR_ROOT, Kinds, roles
from nsys2prv.relations.nccl_kernels import FACTS, MEMBER, sane
from nsys2prv.relations.nccl_matching import SEND_RECEIVE
from nsys2prv.report.source import NULL

#: AllReduce, AllGather, ReduceScatter, AlltoAll.
ALL_WAIT = (1, 4, 5, 8)


#: Columns of the facts that are read for blocks, and those of blocks. member: task and device.
READ = ("process", "device", "time_begin", "time_end", "communicator", "operation", "first_operation", "fused", "messages", "sequence",
        "root", "rank", "ranks", "bytes")
KEPT = ("task", "device", "host", "sequence", "first_operation", "operation", "fused", "bytes", "root", "rank", "ranks", "time_begin",
        "time_end")
#: Numbers of groups that a communicator has, one for each function.
GROUPS = 64
#: Facts (bytes) that one step sorts, unless one report has more; and kernels that one gathers, unless one communicator has more.
BATCH_BYTES, PORTION_ROWS = 10_000_000, 50_000


def observe(facts: Mapping[str, pl.DataFrame]) -> Observed:
    """The kernels of collectives: by communicator and, where the trace numbers them, function; without communicators by their order."""
    everything = _timed(facts[FACTS])
    kernels = _of_communicators(everything)
    if not kernels.height:
        return Observed(_calls(_observed_by_order(everything, facts["nccl_communicators"]), "host"))
    return Observed(_calls(_grouped(_telling(kernels)), "host"))


def portions(division: Division) -> list[ClockPortion] | None:
    """The same by communicators; None without."""
    steps = [ClockStep(files, division.tasks, division.folder / f"clocks-{number}.blocks")
             for number, files in enumerate(batches(division.files[FACTS], BATCH_BYTES))]
    found = list(division.run(steps))
    if not any(part.known for part in found):
        return None
    communicators: dict[int, list[MemberBlock]] = {}
    for block in (block for part in found for block in part.blocks):
        communicators.setdefault(block.block.group, []).append(block)
    first = min((part.first for part in found if part.blocks), default=None)
    last = max((part.last for part in found if part.blocks), default=None)
    made: list[ClockPortion] = []
    room = 0
    for number, group in enumerate(sorted(communicators)):
        rows = sum(block.block.rows for block in communicators[group])
        if rows > room:
            made.append(ClockPortion((), number, first, last))
            room = PORTION_ROWS
        made[-1] = replace(made[-1], blocks=(*made[-1].blocks, *communicators[group]))
        room -= rows
    return made


@dataclass(frozen=True)
class MemberBlock:
    """A member's kernels on a communicator, by their begins. host: whose clock they are of. numbered: whether the trace numbers all."""

    block: Block
    member: int
    host: int
    numbered: bool


@dataclass(frozen=True)
class ClockPortion:
    """Kernels of some communicators. number: of the first of them among all."""

    blocks: tuple[MemberBlock, ...]
    number: int
    first: int | None
    last: int | None

    def gathered(self, pivot: int) -> tuple[Gathered, Messages]:
        one = len({block.block.group for block in self.blocks}) == 1
        if one and not all(block.numbered for block in self.blocks) and sum(block.block.rows for block in self.blocks) > PORTION_ROWS:
            return self._by_member(pivot), Messages.none()
        rows = np.concatenate([block.block.read() for block in self.blocks])
        kernels = pl.DataFrame(rows, schema=dict.fromkeys(KEPT, pl.Int64), orient="row")
        group = np.repeat([block.block.group for block in self.blocks], [block.block.rows for block in self.blocks])
        calls = _calls(_grouped(kernels.with_columns(communicator=pl.Series(group))), "host")
        return gathered(replace(calls, group=calls.group + self.number * GROUPS), pivot), Messages.none()

    def _by_member(self, pivot: int) -> Gathered:
        """Of one large communicator without numbers."""
        members: dict[int, list[MemberBlock]] = {}
        for block in self.blocks:
            members.setdefault(block.member, []).append(block)
        kinds = Kinds.of([rows[:, KEPT.index(name)] for name in KIND] for rows in (block.block.read() for block in self.blocks))
        return gathered_by_member(
            [Participant(member, found[0].host, sum(block.block.rows for block in found), partial(_member_calls, found, kinds, pivot))
             for member, found in sorted(members.items())], SOURCE, 1 + self.number * GROUPS)


def _member_calls(blocks: Sequence[MemberBlock], kinds: Kinds, pivot: int) -> MemberCalls:
    rows = np.concatenate([block.block.read() for block in blocks])
    column = dict(zip(KEPT, rows[np.argsort(rows[:, KEPT.index("time_begin")], kind="stable")].T, strict=True))
    return MemberCalls(
        column["time_begin"] - pivot, column["time_end"] - pivot, kinds.numbers([column[name] for name in KIND]),
        roles(column["first_operation"]), (column["root"] == column["rank"]) & (column["root"] >= 0))


@dataclass(frozen=True)
class ClockBlocks:
    """Blocks by communicator. first, last: between which times (ns). known: whether any communicator is."""

    blocks: tuple[MemberBlock, ...]
    first: int | None
    last: int | None
    known: bool


@dataclass(frozen=True)
class ClockStep:
    """Sorts the kernels of some reports by communicator, member and begin."""

    files: tuple[FactFile, ...]
    tasks: Mapping[tuple[int, int], int]
    path: Path

    def run(self) -> ClockBlocks:
        kernels = _of_communicators(_timed(read_fact(self.files, self.tasks, READ)))
        known = kernels.height > 0
        kernels = _telling(kernels)
        if not kernels.height:
            return ClockBlocks((), None, None, known)
        communicator, task, device, begin = (kernels[name].to_numpy() for name in ("communicator", "task", "device", "time_begin"))
        member = task * DEVICES + device
        order = np.lexsort((begin, member, communicator))
        number = np.cumsum(np.append(False, (np.diff(communicator[order]) != 0) | (np.diff(member[order]) != 0)))
        blocks = write_blocks(self.path, number, kernels.select(KEPT).to_numpy()[order])
        firsts = order[[block.first for block in blocks]]
        numbered = np.minimum.reduceat(kernels["sequence"].to_numpy()[order], [block.first for block in blocks]) >= 0
        told = zip(blocks, communicator[firsts].tolist(), member[firsts].tolist(), kernels["host"].to_numpy()[firsts].tolist(),
                   numbered.tolist(), strict=True)
        return ClockBlocks(tuple(MemberBlock(replace(block, group=group), *rest) for block, group, *rest in told),
                           int(begin.min()), kernels["time_end"].max(), known)


def _timed(kernels: pl.DataFrame) -> pl.DataFrame:
    return sane(kernels.filter((pl.col("time_begin") != NULL) & (pl.col("time_end") != NULL) & (pl.col("task") >= 0)))


def _of_communicators(kernels: pl.DataFrame) -> pl.DataFrame:
    """The kernels of collectives whose communicators are known."""
    return kernels.filter((pl.col("communicator") != 0) & (pl.col("fused") > pl.col("messages")))


def _telling(kernels: pl.DataFrame) -> pl.DataFrame:
    """Without those of several operations, some with a root: they bind in a way that their sum does not tell."""
    plain = (pl.col("operation") != GROUP) | (_waits() == Role.ALL)
    return kernels.filter(plain & ((_waits() == Role.ALL) | (pl.col("rank") >= 0)))


def _grouped(kernels: pl.DataFrame) -> pl.DataFrame:
    """With `number`, where a communicator's kernels all have one, `group` and `member`."""
    numbered = (pl.col("sequence") >= 0).all().over("communicator")
    kernels = kernels.with_columns(number=pl.when(numbered).then("sequence").otherwise(-1),
                                   function=pl.when(numbered).then("first_operation").otherwise(0),
                                   member=pl.col("task") * DEVICES + pl.col("device"))
    return kernels.with_columns(group=pl.struct("communicator", "function").rank("dense").cast(pl.Int64))


def _observed_by_order(everything: pl.DataFrame, communicators: pl.DataFrame) -> pl.DataFrame:
    """Kernels in which all wait for all by their name alone. Whether their order is right shows in when they ended."""
    rest = everything.filter((pl.col("communicator") == 0) & (pl.col("in_graph") == 0))
    kernels = _ordered(rest, everything, communicators)[0].filter(pl.col("by_name").is_in(ALL_WAIT))
    return kernels.with_columns(
        number=pl.lit(-1, pl.Int64), group="row", first_operation="by_name", operation="by_name",
        member=pl.col("task") * DEVICES + pl.col("device"))


def _ordered(kernels: pl.DataFrame, everything: pl.DataFrame, communicators: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Kernels of no known communicator with what they would be by order on each stream, streams of a GPU in the order of their ids;
    none, and why, where that cannot be right."""
    members = everything.select(MEMBER).n_unique()
    kernels = kernels.sort(*MEMBER, "stream", "time_begin").with_columns(row=pl.col("stream").rank("dense").over(MEMBER).cast(pl.Int64))
    kernels = kernels.with_columns(ordinal=pl.int_range(pl.len()).over(*MEMBER, "row"), size=pl.lit(members))
    kernels = _completed(kernels, ["row", "ordinal"], ["by_name"])
    if communicators.height:
        made = communicators.group_by("task").agg(pl.col("communicator").n_unique(), pl.col("ranks").max())
        if not ((made["communicator"] == 1) & (made["ranks"] == members)).all() or communicators["communicator"].n_unique() > 1:
            return kernels.clear(), "there are several, or one with ranks that have no report"
    if not kernels["complete"].all():
        return kernels.clear(), "the ranks execute different sequences of kernels"
    return kernels.filter(pl.col("by_name") != SEND_RECEIVE), ""


def _completed(kernels: pl.DataFrame, key: list[str], same: list[str]) -> pl.DataFrame:
    """With `key` as a number, and whether the collective is complete: one kernel per rank, the columns `same` equal."""
    kernels = kernels.with_columns(key=pl.struct(key).rank("dense").cast(pl.Int64))
    whole = (pl.len() == pl.col("size").first()) & (pl.struct(MEMBER).n_unique() == pl.len()) & (pl.struct(same).n_unique() == 1)
    return kernels.join(kernels.group_by("key").agg(complete=whole & (pl.len() > 1)), on="key", how="left", maintain_order="left")


def _waits() -> pl.Expr:
    """Who waits for whom (clock.observations.Role)."""
    first = pl.col("first_operation")
    return pl.when(first.is_in(WAIT_FOR_ROOT)).then(Role.FROM_ROOT).when(first.is_in(ROOT_WAITS)).then(Role.TO_ROOT).otherwise(Role.ALL)


def _calls(kernels: pl.DataFrame, clock: str) -> Calls:
    """The kernels as calls; they have columns group, member, number, and `clock` is the one of their clocks."""
    kernels = kernels.with_columns(waits=_waits().cast(pl.Int64),
                                   signature=pl.struct("operation", "fused", "bytes").rank("dense").cast(pl.Int64))
    column = {name: kernels[name].to_numpy() for name in (
        "group", "member", clock, "number", "signature", "waits", "root", "rank", "ranks", "time_begin", "time_end")}
    return Calls(
        np.full(kernels.height, SOURCE), column["group"], column["member"], column[clock], column["number"], column["signature"],
        column["waits"], (column["root"] == column["rank"]) & (column["root"] >= 0), np.maximum(column["ranks"], 0),
        column["time_begin"], column["time_end"])
