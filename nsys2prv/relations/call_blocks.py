"""Collective calls of a job in blocks by communicator and member, and what is gathered of them per
host, some communicators at a time.
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

from nsys2prv._util.columns import factorize_together
from nsys2prv.relations import Observations
from nsys2prv.relations.blocks import Block, write_blocks

if TYPE_CHECKING:
    from nsys2prv.clock.gathering import GatheredCalls, MemberCalls
    from nsys2prv.clock.observations import Calls, Messages

#: A call: task * DEVICES + device; whose clock its times are of; the report's number of it or -1,
#: and the function that it numbers; clock.observations.Role; whether of the root; members expected;
#: times (ns); whether the report has the communicator's beginning; and what is equal on all members
#: (all 0: unknown).
COLUMNS = (
    "member",
    "host",
    "number",
    "function",
    "role",
    "is_root",
    "members",
    "begin",
    "end",
    "began",
    "operation",
    "count",
    "size",
)
KIND = COLUMNS[-3:]
#: Groups that a communicator may be, one for each function.
GROUPS = 64
#: Calls that are gathered at once, unless they are one communicator's that the report numbers.
PORTION_ROWS = 50_000


class Kinds(Struct, frozen=True):
    """Numbers from 1 for distinct combinations of what is equal on all members, 0 of nothing but
    zeros.
    """

    known: Mapping[tuple[int, ...], int]

    @classmethod
    def of(cls, parts: Iterable[Sequence[np.ndarray]]) -> Kinds:
        """Join the parts, each of several columns."""
        found: set[tuple[int, ...]] = set()
        for part in parts:
            found.update(
                zip(*(column.tolist() for column in factorize_together(*part)[0]), strict=True)
            )
        return cls(
            {kind: number if any(kind) else 0 for number, kind in enumerate(sorted(found), 1)}
        )

    def numbers(self, columns: Sequence[np.ndarray]) -> np.ndarray:
        distinct, codes = factorize_together(*columns)
        return np.array(
            [
                self.known[kind]
                for kind in zip(*(column.tolist() for column in distinct), strict=True)
            ],
            np.int64,
        )[codes]


class MemberBlock(Struct, frozen=True):
    """Calls of a member on a communicator, by their begins."""

    block: Block
    member: int
    #: Host whose clock their times are of.
    host: int
    #: True if the report numbers all of them.
    numbered: bool
    #: True if none ends before it begins.
    sane: bool
    #: True if the report has the communicator's beginning.
    began: bool


class CallBlocks(Struct, frozen=True):
    """Blocks of some reports. first, last: between which times (ns), None of nothing."""

    blocks: tuple[MemberBlock, ...] = ()
    first: int | None = None
    last: int | None = None


def sort_calls(calls: pl.DataFrame, path: Path) -> CallBlocks:
    """Return the calls of some reports (`communicator` and COLUMNS) in a file of blocks."""
    if not calls.height:
        return CallBlocks()
    communicator, member, begin, end = (
        calls[name].to_numpy() for name in ("communicator", "member", "begin", "end")
    )
    order = np.lexsort((begin, member, communicator))
    number = np.cumsum(
        np.append(False, (np.diff(communicator[order]) != 0) | (np.diff(member[order]) != 0))
    )
    blocks = write_blocks(
        path, number, calls.select(pl.col(COLUMNS).cast(pl.Int64)).to_numpy()[order]
    )
    starts = np.array([block.first for block in blocks])
    firsts = order[starts]
    numbered = np.minimum.reduceat(calls["number"].to_numpy()[order], starts) >= 0
    sane = np.minimum.reduceat((end - begin)[order], starts) >= 0
    told = zip(
        blocks,
        communicator[firsts].tolist(),
        member[firsts].tolist(),
        calls["host"].to_numpy()[firsts].tolist(),
        numbered.tolist(),
        sane.tolist(),
        (calls["began"].to_numpy()[firsts] == 1).tolist(),
        strict=True,
    )
    return CallBlocks(
        tuple(MemberBlock(replace(block, group=group), *rest) for block, group, *rest in told),
        int(min(begin.min(), end.min())),
        int(max(begin.max(), end.max())),
    )


def divide_calls(found: Sequence[CallBlocks], source: int) -> list[CallPortion]:
    """Return the calls of all reports in portions of whole communicators."""
    communicators: dict[int, list[MemberBlock]] = {}
    for block in (block for part in found for block in part.blocks):
        communicators.setdefault(block.block.group, []).append(block)
    first = min((part.first for part in found if part.blocks), default=None)
    last = max((part.last for part in found if part.blocks), default=None)
    made: list[CallPortion] = []
    room = 0
    for number, group in enumerate(sorted(communicators)):
        rows = sum(block.block.rows for block in communicators[group])
        if rows > room:
            made.append(CallPortion((), source, number, first, last))
            room = PORTION_ROWS
        made[-1] = replace(made[-1], blocks=(*made[-1].blocks, *communicators[group]))
        room -= rows
    return made


class CallPortion(Struct, frozen=True):
    """Calls of some communicators. source: key of clock.observations.NOISE. number: of the first of
    them among all.
    """

    blocks: tuple[MemberBlock, ...]
    source: int
    number: int
    first: int | None
    last: int | None

    def observed(self) -> Observations:
        return Observations(self._calls())

    def gathered(self, pivot: int) -> tuple[GatheredCalls, Messages]:
        from nsys2prv.clock.gathering import gather_calls
        from nsys2prv.clock.observations import Messages

        one = len({block.block.group for block in self.blocks}) == 1
        usual = all(block.sane for block in self.blocks) and not all(
            block.numbered for block in self.blocks
        )
        large = sum(block.block.rows for block in self.blocks) > PORTION_ROWS
        return self._by_member(pivot) if one and usual and large else gather_calls(
            self._calls(), pivot
        ), Messages.none()

    def _calls(self) -> Calls:
        """Return all calls. Where the report numbers those of a communicator, it does by function."""
        from nsys2prv.clock.observations import Calls

        rows = np.concatenate([block.block.read() for block in self.blocks])
        column = dict(zip(COLUMNS, rows.T, strict=True))
        sizes = [block.block.rows for block in self.blocks]
        communicator = np.repeat([block.block.group for block in self.blocks], sizes)
        others = {block.block.group for block in self.blocks if not block.numbered}
        numbered = np.repeat([block.block.group not in others for block in self.blocks], sizes)
        group = factorize_together(communicator, np.where(numbered, column["function"], 0))[1]
        kind = [column[name] for name in KIND]
        return Calls(
            np.full(len(rows), self.source),
            1 + self.number * GROUPS + group,
            column["member"],
            column["host"],
            np.where(numbered, column["number"], -1),
            Kinds.of([kind]).numbers(kind),
            column["role"],
            column["is_root"] == 1,
            column["members"],
            column["begin"],
            column["end"],
            column["began"] == 1,
        )

    def _by_member(self, pivot: int) -> GatheredCalls:
        """Return the calls of one large communicator that the report does not number, a member at a
        time.
        """
        from nsys2prv.clock.gathering import Participant, gather_by_member

        members: dict[int, list[MemberBlock]] = {}
        for block in self.blocks:
            members.setdefault(block.member, []).append(block)
        kinds = Kinds.of(list(block.block.read()[:, -len(KIND) :].T) for block in self.blocks)
        return gather_by_member(
            [
                Participant(
                    member,
                    found[0].host,
                    sum(block.block.rows for block in found),
                    partial(_member_calls, found, kinds, pivot),
                    all(block.began for block in found),
                )
                for member, found in sorted(members.items())
            ],
            self.source,
            1 + self.number * GROUPS,
        )


def _member_calls(blocks: Sequence[MemberBlock], kinds: Kinds, pivot: int) -> MemberCalls:
    from nsys2prv.clock.gathering import MemberCalls

    rows = np.concatenate([block.block.read() for block in blocks])
    column = dict(
        zip(
            COLUMNS, rows[np.argsort(rows[:, COLUMNS.index("begin")], kind="stable")].T, strict=True
        )
    )
    return MemberCalls(
        column["begin"] - pivot,
        column["end"] - pivot,
        kinds.numbers([column[name] for name in KIND]),
        column["role"],
        column["is_root"] == 1,
    )
