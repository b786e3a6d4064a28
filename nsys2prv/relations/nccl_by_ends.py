"""Collectives of a communicator whose ranks' orders of launches differ: kernels of one end nearly together on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from nsys2prv.clock.observations import NCCL as SOURCE
from nsys2prv.clock.observations import Role
from nsys2prv.clock.sequences import ALIGNED_ERROR, UTC_ERROR, CallSequence, Member, number_group
from nsys2prv.relations.blocks import Block, write_blocks
from nsys2prv.relations.call_blocks import Kinds
from nsys2prv.relations.kind import DEVICES
from nsys2prv.relations.nccl_kernels import BY_ENDS, KEPT, Piece, roles

#: Findings that say that ends tell nothing, rather than that they speak against a match.
UNCLEAR = ("few", "ambiguous")
#: What is equal on all ranks of a collective.
KIND = ("operation", "fused", "bytes")


@dataclass(frozen=True)
class _Part:
    """Kernels of a member in a block."""

    block: Block
    member: int
    rows: int

    def read(self) -> dict[str, np.ndarray]:
        """Its columns KEPT, and `place` in the block, by begins."""
        rows = self.block.read()
        columns = dict(zip(KEPT, rows.T, strict=True))
        place = np.flatnonzero(_member(columns) == self.member)
        place = place[np.lexsort((columns["before"][place], columns["time_begin"][place]))]
        return {name: column[place] for name, column in columns.items()} | {"place": place}


def _member(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    return columns["task"] * DEVICES + columns["device"]


@dataclass(frozen=True)
class EndsStep:
    """Numbers a communicator's kernels by when they ended. Where ends cannot tell, the order stands if all members have equally many
    operations (even). pivot: time amid all times of communicators that are numbered so. path: of new blocks."""

    piece: Piece
    even: bool
    pivot: int
    path: Path

    def run(self) -> tuple[Piece, int]:
        """The piece with other ordinals, and how many kernels are of no collective."""
        parts = sorted((part for block in self.piece.blocks for part in _parts(block)), key=lambda part: part.member)
        kinds = Kinds.of([rows[:, KEPT.index(name)] for name in KIND] for rows in map(Block.read, self.piece.blocks))
        fits, findings = number_group([Member(part.member, part.rows, partial(self._calls, part, kinds)) for part in parts], SOURCE, 0,
                                      self._error())
        if self.even and any(finding.kind in UNCLEAR for finding in findings):
            return replace(self.piece, settled=True), 0
        blocks = [made for number, block in enumerate(self.piece.blocks)
                  for made in self._numbered(block, number, [(part, fits.get(at)) for at, part in enumerate(parts) if part.block == block])]
        return replace(self.piece, blocks=tuple(blocks), way=BY_ENDS, settled=True), self.piece.rows - sum(block.rows for block in blocks)

    def _error(self) -> float:
        """Of the times, ns: those of one part are aligned."""
        parts = [np.unique(block.read()[:, KEPT.index("part")]) for block in self.piece.blocks]
        return ALIGNED_ERROR if len(np.unique(np.concatenate(parts))) == 1 else UTC_ERROR

    def _calls(self, part: _Part, kinds: Kinds) -> CallSequence:
        columns = part.read()
        return CallSequence((columns["time_end"] - self.pivot).astype(np.float64), kinds.numbers([columns[name] for name in KIND]),
                            roles(columns["first_operation"]) == Role.ALL)

    def _numbered(self, block: Block, number: int, found: Iterable[tuple[_Part, np.ndarray | None]]) -> tuple[Block, ...]:
        """The block with these ordinals, without kernels that have none."""
        rows = block.read()
        rows[:, 0] = -1
        for part, ordinals in found:
            if ordinals is not None:
                rows[part.read()["place"], 0] = ordinals
        rows = rows[rows[:, 0] >= 0]
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        return write_blocks(self.path.with_suffix(f".{number}"), np.full(len(rows), block.group), rows)


def _parts(block: Block) -> list[_Part]:
    members, counts = np.unique(_member(dict(zip(KEPT, block.read().T, strict=True))), return_counts=True)
    return [_Part(block, member, count) for member, count in zip(members.tolist(), counts.tolist(), strict=True)]
