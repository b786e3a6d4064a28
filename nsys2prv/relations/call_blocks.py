"""Collective calls as blocks on disk, by communicator and member: what clocks are observed by. Some
communicators at a time are gathered per host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import factorize_together
from nsys2prv.clock import Role

if TYPE_CHECKING:
    from nsys2prv.clock.gathering import GatheredCalls, MemberCalls
    from nsys2prv.clock.observations import Calls
from nsys2prv.relations.blocks import Block, group_blocks, split_column_names, write_blocks

#: A call: task * DEVICES + device; whose clock its times are of; the report's number of it or -1,
#: and the function that it numbers; clock.observations.Role; whether of the root;
#: times (ns); whether the report has the communicator's beginning; and its signature.
COLUMNS = split_column_names("member host number function role is_root begin end began signature")
#: Groups that a communicator may be, one for each function.
GROUPS = 64
#: Calls that are gathered at once, unless they are one communicator's that the report numbers.
PORTION_ROWS = 50_000


class MemberBlock(Struct, frozen=True):
    """Calls of a member on a communicator, by their begins."""

    #: The calls.
    block: Block
    #: Number of the process.
    member: int
    #: Host whose clock their times are of.
    host: int
    #: True if the report numbers all of them.
    numbered: bool
    #: True if none ends before it begins.
    sane: bool
    #: True if the report has the communicator's beginning.
    began: bool
    #: First and last of their times, ns.
    first: int
    #: Last time (ns).
    last: int

    @property
    def group(self) -> int:
        return self.block.group


def sort_calls(calls: pl.DataFrame, path: Path) -> tuple[MemberBlock, ...]:
    """Return the calls of some reports (`communicator` and COLUMNS) in a file of blocks."""
    calls = calls.sort("communicator", "member", "begin", maintain_order=True)
    owner = calls.select(pl.struct("communicator", "member").rle_id().cast(pl.Int64))
    blocks = write_blocks(
        path, owner.to_series().to_numpy(), calls.select(pl.col(COLUMNS).cast(pl.Int64)).to_numpy()
    )
    members = calls.group_by("communicator", "member", maintain_order=True).agg(
        pl.col("host").first(),
        numbered=(pl.col("number") >= 0).all(),
        sane=(pl.col("end") >= pl.col("begin")).all(),
        began=pl.col("began").first() == 1,
        first=pl.min_horizontal(pl.col("begin", "end").min()),
        last=pl.max_horizontal(pl.col("begin", "end").max()),
    )
    return tuple(
        MemberBlock(replace(block, group=communicator), *rest)
        for block, (communicator, *rest) in zip(blocks, members.iter_rows(), strict=True)
    )


def divide_calls(members: Iterable[MemberBlock], source: int) -> list[CallPortion]:
    """Return the calls of all reports in portions of whole communicators."""
    portions: list[CallPortion] = []
    room = 0
    for number, blocks in enumerate(group_blocks(members)):
        rows = sum(block.block.rows for block in blocks)
        if rows > room:
            portions.append(CallPortion((), source, number))
            room = PORTION_ROWS
        portions[-1] = replace(portions[-1], blocks=(*portions[-1].blocks, *blocks))
        room -= rows
    return portions


class CallPortion(Struct, frozen=True):
    """Calls of some communicators."""

    #: Of whole communicators.
    blocks: tuple[MemberBlock, ...]
    #: Key of clock.observations.NOISE.
    source: int
    #: Of the first of them among all.
    number: int

    @property
    def times(self) -> list[int]:
        """Return times (ns) between which all of its times are."""
        return [time for block in self.blocks for time in (block.first, block.last)]

    def calls(self) -> Calls:
        """Return all calls. Where the report numbers those of a communicator, it does by function."""
        from nsys2prv.clock.observations import Calls

        rows = np.concatenate([block.block.read() for block in self.blocks])
        column = dict(zip(COLUMNS, rows.T, strict=True))
        sizes = [block.block.rows for block in self.blocks]
        communicator = np.repeat([block.group for block in self.blocks], sizes)
        others = {block.group for block in self.blocks if not block.numbered}
        numbered = np.repeat([block.group not in others for block in self.blocks], sizes)
        group = factorize_together(communicator, np.where(numbered, column["function"], 0))[1]
        return Calls(
            source=np.full(len(rows), self.source),
            group=1 + self.number * GROUPS + group,
            number=np.where(numbered, column["number"], -1),
            is_root=column["is_root"] == 1,
            began=column["began"] == 1,
            clock=column["host"],
            **{name: column[name] for name in ("member", "signature", "role", "begin", "end")},
        )

    def gather(self, pivot: int) -> GatheredCalls:
        """Return the calls by host. pivot: an instant amid all times."""
        from nsys2prv.clock.gathering import gather_calls

        one = len({block.group for block in self.blocks}) == 1
        usual = all(block.sane for block in self.blocks) and not all(
            block.numbered for block in self.blocks
        )
        large = sum(block.block.rows for block in self.blocks) > PORTION_ROWS
        if one and usual and large:
            return self._gather_by_member(pivot)
        return gather_calls(self.calls(), pivot)

    def _gather_by_member(self, pivot: int) -> GatheredCalls:
        """Return the calls of one large communicator that the report does not number, a member at a
        time.
        """
        from nsys2prv.clock.gathering import gather_by_member
        from nsys2prv.clock.sequences import Member

        members: dict[int, list[MemberBlock]] = {}
        for block in self.blocks:
            members.setdefault(block.member, []).append(block)
        return gather_by_member(
            [
                Member(
                    member,
                    sum(block.block.rows for block in member_blocks),
                    partial(_read_member_calls, member_blocks, pivot),
                    all(block.began for block in member_blocks),
                    member_blocks[0].host,
                )
                for member, member_blocks in sorted(members.items())
            ],
            self.source,
            1 + self.number * GROUPS,
        )


def _read_member_calls(blocks: Sequence[MemberBlock], pivot: int) -> MemberCalls:
    from nsys2prv.clock.gathering import MemberCalls

    rows = np.concatenate([block.block.read() for block in blocks])
    rows = rows[np.argsort(rows[:, COLUMNS.index("begin")], kind="stable")]
    column = dict(zip(COLUMNS, rows.T, strict=True))
    return MemberCalls(
        (column["end"] - pivot).astype(np.float64),
        column["signature"],
        column["role"] == Role.ALL,
        column["begin"] - pivot,
        column["role"],
        column["is_root"] == 1,
    )
