"""NCCL collectives as observations of the hosts' clocks, also where the ranks' orders of launches
differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv.clock import ALIGNED_ERROR, UTC_ERROR, Role
from nsys2prv.clock import NCCL as SOURCE
from nsys2prv.events.names.calls import ALL_WAIT, GROUP, ROOT_WAITS, SEND_RECEIVE, WAIT_FOR_ROOT
from nsys2prv.events.nccl import COMMUNICATORS, KERNELS
from nsys2prv.nsight.source import NULL
from nsys2prv.relations import (
    DEVICES,
    ObservationChunk,
    ObservationFile,
    Observations,
    RelationContext,
    save_observations,
)
from nsys2prv.relations.blocks import Block, write_blocks
from nsys2prv.relations.call_blocks import CallBlocks, Kinds, divide_calls, sort_calls
from nsys2prv.relations.nccl_kernels import (
    BY_ENDS,
    KEPT,
    MEMBER,
    Piece,
    keep_sound_kernels,
    operation_roles,
)
from nsys2prv.store.facts import FactFile, batches, read_fact, read_facts

if TYPE_CHECKING:
    from nsys2prv.clock.observations import Calls
    from nsys2prv.clock.sequences import CallSequence

#: Findings that say that ends tell nothing, rather than that they speak against a match.
UNCLEAR = ("few", "ambiguous")
#: What is equal on all ranks of a collective.
KIND = ("operation", "fused", "bytes")


class _Part(Struct, frozen=True):
    """Kernels of a member in a block."""

    block: Block
    member: int
    rows: int

    def read(self) -> dict[str, np.ndarray]:
        """Return its columns KEPT, and `place` in the block, by begins."""
        rows = self.block.read()
        columns = dict(zip(KEPT, rows.T, strict=True))
        place = np.flatnonzero(_member(columns) == self.member)
        place = place[np.lexsort((columns["before"][place], columns["time_begin"][place]))]
        return {name: column[place] for name, column in columns.items()} | {"place": place}


def _member(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    return columns["task"] * DEVICES + columns["device"]


class EndsStep(Struct, frozen=True):
    """Numbers a communicator's kernels by when they ended. Where ends cannot tell, the order stands
    if all members have equally many operations (even). pivot: time amid all times of communicators
    that are numbered so. path: of new blocks.
    """

    piece: Piece
    even: bool
    pivot: int
    path: Path

    def run(self) -> tuple[Piece, int]:
        """Return the piece with other ordinals, and how many kernels are of no collective."""
        from nsys2prv.clock.sequences import Member, number_group

        parts = sorted(
            (part for block in self.piece.blocks for part in _parts(block)),
            key=lambda part: part.member,
        )
        kinds = Kinds.of(
            [rows[:, KEPT.index(name)] for name in KIND]
            for rows in map(Block.read, self.piece.blocks)
        )
        fits, findings = number_group(
            [Member(part.member, part.rows, partial(self._calls, part, kinds)) for part in parts],
            SOURCE,
            0,
            self._error(),
        )
        if self.even and any(finding.kind in UNCLEAR for finding in findings):
            return replace(self.piece, settled=True), 0
        blocks = [
            made
            for number, block in enumerate(self.piece.blocks)
            for made in self._numbered(
                block,
                number,
                [(part, fits.get(at)) for at, part in enumerate(parts) if part.block == block],
            )
        ]
        return replace(
            self.piece, blocks=tuple(blocks), way=BY_ENDS, settled=True
        ), self.piece.rows - sum(block.rows for block in blocks)

    def _error(self) -> float:
        """Return the error of the times, ns: those of one part are aligned."""
        parts = [np.unique(block.read()[:, KEPT.index("part")]) for block in self.piece.blocks]
        return ALIGNED_ERROR if len(np.unique(np.concatenate(parts))) == 1 else UTC_ERROR

    def _calls(self, part: _Part, kinds: Kinds) -> CallSequence:
        from nsys2prv.clock.sequences import CallSequence

        columns = part.read()
        return CallSequence(
            (columns["time_end"] - self.pivot).astype(np.float64),
            kinds.numbers([columns[name] for name in KIND]),
            operation_roles(columns["first_operation"]) == Role.ALL,
        )

    def _numbered(
        self, block: Block, number: int, found: Iterable[tuple[_Part, np.ndarray | None]]
    ) -> tuple[Block, ...]:
        """Return the block with these ordinals, without kernels that have none."""
        rows = block.read()
        rows[:, 0] = -1
        for part, ordinals in found:
            if ordinals is not None:
                rows[part.read()["place"], 0] = ordinals
        rows = rows[rows[:, 0] >= 0]
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        return write_blocks(
            self.path.with_suffix(f".{number}"), np.full(len(rows), block.group), rows
        )


def _parts(block: Block) -> list[_Part]:
    members, counts = np.unique(
        _member(dict(zip(KEPT, block.read().T, strict=True))), return_counts=True
    )
    return [
        _Part(block, member, count)
        for member, count in zip(members.tolist(), counts.tolist(), strict=True)
    ]


#: Columns of the facts that are read.
READ = (
    "process",
    "device",
    "time_begin",
    "time_end",
    "communicator",
    "operation",
    "first_operation",
    "fused",
    "messages",
    "sequence",
    "root",
    "rank",
    "ranks",
    "bytes",
)


def observe(context: RelationContext) -> Sequence[ObservationChunk]:
    """Return the kernels of collectives: by communicator and, where the trace numbers them,
    function.
    """
    steps = []
    for number, files in enumerate(batches(context.files[KERNELS])):
        reports = {file.report for file in files}
        made = tuple(file for file in context.files[COMMUNICATORS] if file.report in reports)
        steps.append(
            ClockStep(files, made, context.tasks, context.folder / f"nccl-calls-{number}.blocks")
        )
    found = list(context.run(steps))
    if any(known for _, known in found):
        return divide_calls([blocks for blocks, _ in found], SOURCE)
    path = context.folder / "nccl-observed.pickle"
    return list(context.run([AtOnceStep(context.files, context.tasks, path)]))


class AtOnceStep(Struct, frozen=True):
    """Observes the clocks from all facts at once."""

    facts: Mapping[str, tuple[FactFile, ...]]
    tasks: Mapping[tuple[int, int], int]
    path: Path

    def run(self) -> ObservationFile:
        return save_observations(observe_at_once(read_facts(self.facts, self.tasks)), self.path)


def observe_at_once(facts: Mapping[str, pl.DataFrame]) -> Observations:
    """Return the same from all facts at once, which needs no communicators: without them kernels
    are numbered by their order.
    """
    everything = _timed(facts[KERNELS])
    kernels = _of_communicators(everything)
    if not kernels.height:
        return Observations(_calls(_observed_by_order(everything, facts[COMMUNICATORS]), "host"))
    return Observations(
        _calls(_grouped(_usable_for_clocks(_begun(kernels, facts[COMMUNICATORS]))), "host")
    )


class ClockStep(Struct, frozen=True):
    """Sorts the kernels of some reports by communicator, member and begin."""

    files: tuple[FactFile, ...]
    communicators: tuple[FactFile, ...]
    tasks: Mapping[tuple[int, int], int]
    path: Path

    def run(self) -> tuple[CallBlocks, bool]:
        """Return their blocks, and whether any communicator is known."""
        kernels = _begun(
            _of_communicators(_timed(read_fact(self.files, self.tasks, READ))),
            read_fact(self.communicators, self.tasks),
        )
        calls = _usable_for_clocks(kernels).select(
            "communicator",
            "host",
            "operation",
            member=pl.col("task") * DEVICES + pl.col("device"),
            number="sequence",
            function="first_operation",
            role=_waits().cast(pl.Int64),
            members=pl.max_horizontal("ranks", 0),
            is_root=((pl.col("root") == pl.col("rank")) & (pl.col("root") >= 0)).cast(pl.Int64),
            begin="time_begin",
            end="time_end",
            count="fused",
            size="bytes",
            began=pl.col("began").cast(pl.Int64),
        )
        return sort_calls(calls, self.path), kernels.height > 0


def _timed(kernels: pl.DataFrame) -> pl.DataFrame:
    return keep_sound_kernels(
        kernels.filter(
            (pl.col("time_begin") != NULL) & (pl.col("time_end") != NULL) & (pl.col("task") >= 0)
        )
    )


def _begun(kernels: pl.DataFrame, communicators: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with `began`: true if the call is known that made the communicator on this
    rank.
    """
    if not communicators.height:
        return kernels.with_columns(began=pl.lit(False))
    made = (
        communicators.filter("made")
        .select("task", "communicator")
        .unique()
        .with_columns(began=pl.lit(True))
    )
    return kernels.join(
        made, on=["task", "communicator"], how="left", maintain_order="left"
    ).with_columns(pl.col("began").fill_null(False))


def _of_communicators(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels of collectives whose communicators are known."""
    return kernels.filter((pl.col("communicator") != 0) & (pl.col("fused") > pl.col("messages")))


def _usable_for_clocks(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels without those of several operations, some with a root: they bind in a way
    that their sum does not tell.
    """
    plain = (pl.col("operation") != GROUP) | (_waits() == Role.ALL)
    return kernels.filter(plain & ((_waits() == Role.ALL) | (pl.col("rank") >= 0)))


def _grouped(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with `number`, where a communicator's kernels all have one, `group` and
    `member`.
    """
    numbered = (pl.col("sequence") >= 0).all().over("communicator")
    kernels = kernels.with_columns(
        number=pl.when(numbered).then("sequence").otherwise(-1),
        function=pl.when(numbered).then("first_operation").otherwise(0),
        member=pl.col("task") * DEVICES + pl.col("device"),
    )
    return kernels.with_columns(
        group=pl.struct("communicator", "function").rank("dense").cast(pl.Int64)
    )


def _observed_by_order(everything: pl.DataFrame, communicators: pl.DataFrame) -> pl.DataFrame:
    """Return kernels in which all wait for all by their name alone. Whether their order is right
    shows in when they ended.
    """
    rest = _begun(
        everything.filter((pl.col("communicator") == 0) & (pl.col("in_graph") == 0)), communicators
    )
    kernels = _ordered(rest, everything, communicators).filter(pl.col("by_name").is_in(ALL_WAIT))
    return kernels.with_columns(
        number=pl.lit(-1, pl.Int64),
        group="row",
        first_operation="by_name",
        operation="by_name",
        member=pl.col("task") * DEVICES + pl.col("device"),
    )


def _ordered(
    kernels: pl.DataFrame, everything: pl.DataFrame, communicators: pl.DataFrame
) -> pl.DataFrame:
    """Return kernels of no known communicator with what they would be by order on each stream,
    streams of a GPU in the order of their ids; none where that cannot be right.
    """
    members = everything.select(MEMBER).n_unique()
    kernels = kernels.sort(*MEMBER, "stream", "time_begin").with_columns(
        row=pl.col("stream").rank("dense").over(MEMBER).cast(pl.Int64)
    )
    kernels = kernels.with_columns(
        ordinal=pl.int_range(pl.len()).over(*MEMBER, "row"), size=pl.lit(members)
    )
    kernels = _completed(kernels, ["row", "ordinal"], ["by_name"])
    communicators = (
        communicators.filter(pl.col("communicator") != 0) if communicators.height else communicators
    )
    if communicators.height:
        made = communicators.group_by("task").agg(
            pl.col("communicator").n_unique(), pl.col("ranks").max()
        )
        if (
            not ((made["communicator"] == 1) & (made["ranks"] == members)).all()
            or communicators["communicator"].n_unique() > 1
        ):
            return kernels.clear()
    return (
        kernels.filter(pl.col("by_name") != SEND_RECEIVE)
        if kernels["complete"].all()
        else kernels.clear()
    )


def _completed(kernels: pl.DataFrame, key: list[str], same: list[str]) -> pl.DataFrame:
    """Return the frame with `key` as a number, and whether the collective is complete: one kernel
    per rank, the columns `same` equal.
    """
    kernels = kernels.with_columns(key=pl.struct(key).rank("dense").cast(pl.Int64))
    whole = (
        (pl.len() == pl.col("size").first())
        & (pl.struct(MEMBER).n_unique() == pl.len())
        & (pl.struct(same).n_unique() == 1)
    )
    return kernels.join(
        kernels.group_by("key").agg(complete=whole & (pl.len() > 1)),
        on="key",
        how="left",
        maintain_order="left",
    )


def _waits() -> pl.Expr:
    """Return the role of each call (clock.observations.Role)."""
    first = pl.col("first_operation")
    return (
        pl.when(first.is_in(WAIT_FOR_ROOT))
        .then(Role.FROM_ROOT)
        .when(first.is_in(ROOT_WAITS))
        .then(Role.TO_ROOT)
        .otherwise(Role.ALL)
    )


def _calls(kernels: pl.DataFrame, clock: str) -> Calls:
    """Return the kernels as calls; they have columns group, member, number, and `clock` is the one
    of their clocks.
    """
    from nsys2prv.clock.observations import Calls

    kernels = kernels.with_columns(
        waits=_waits().cast(pl.Int64),
        signature=pl.struct("operation", "fused", "bytes").rank("dense").cast(pl.Int64),
    )
    column = {
        name: kernels[name].to_numpy()
        for name in (
            "group",
            "member",
            clock,
            "number",
            "signature",
            "waits",
            "root",
            "rank",
            "ranks",
            "time_begin",
            "time_end",
            "began",
        )
    }
    return Calls(
        np.full(kernels.height, SOURCE),
        column["group"],
        column["member"],
        column[clock],
        column["number"],
        column["signature"],
        column["waits"],
        (column["root"] == column["rank"]) & (column["root"] >= 0),
        np.maximum(column["ranks"], 0),
        column["time_begin"],
        column["time_end"],
        column["began"],
    )
