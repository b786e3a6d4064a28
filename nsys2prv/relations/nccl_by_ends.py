"""Collectives of a communicator whose ranks' orders of launches differ: kernels of one end nearly together on all ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nsys2prv.clock.observations import NCCL as SOURCE
from nsys2prv.clock.observations import Calls, Role
from nsys2prv.clock.sequences import recognised
from nsys2prv.columns import factorize_together
from nsys2prv.relations.blocks import write_blocks
from nsys2prv.relations.kind import DEVICES
from nsys2prv.relations.nccl_kernels import BY_ENDS, BY_LAUNCH, KEPT, Piece

#: Operations in which all wait for the root, and the root for all.
WAIT_FOR_ROOT, ROOT_WAITS = (2, 10), (3, 9)
#: Findings that say that ends tell nothing, rather than that they speak against a match.
UNCLEAR = ("few", "ambiguous")


@dataclass(frozen=True)
class EndsStep:
    """Numbers a communicator's kernels by when they ended. Where ends cannot tell, the order stands if all members have equally many
    operations (even). pivot: time amid all times of communicators that are numbered so. path: of the new block."""

    piece: Piece
    even: bool
    pivot: int
    path: Path

    def run(self) -> tuple[Piece, int]:
        """The piece with other ordinals, and how many kernels are of no collective."""
        rows = self.piece.read()
        column = dict(zip(KEPT, rows.T, strict=True))
        rows = rows[np.lexsort((column["before"], column["device"], column["task"]))]
        column = dict(zip(KEPT, rows.T, strict=True))
        member = column["task"] * DEVICES + column["device"]
        first = column["first_operation"]
        waits = np.where(np.isin(first, WAIT_FOR_ROOT), Role.FROM_ROOT, np.where(np.isin(first, ROOT_WAITS), Role.TO_ROOT, Role.ALL))
        signature = 1 + factorize_together(column["operation"], column["fused"], column["bytes"])[1]
        same = np.zeros(len(rows), np.int64)
        ordinals, findings = recognised(Calls(
            same + SOURCE, same, member, same, same - 1, signature, waits.astype(np.int64), same.astype(bool), same, column["time_begin"],
            column["time_end"]), self.pivot)
        way = BY_ENDS
        if self.even and any(finding.kind in UNCLEAR for finding in findings):
            ordinals, way = column["before"], BY_LAUNCH
        rows[:, 0] = ordinals
        known = np.flatnonzero(ordinals >= 0)
        known = known[np.argsort(ordinals[known], kind="stable")]
        blocks = write_blocks(self.path, np.full(len(known), self.piece.group), rows[known])
        return replace(self.piece, blocks=blocks, way=way, settled=True), len(rows) - len(known)
