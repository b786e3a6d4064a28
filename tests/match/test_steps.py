"""Test that relations and clocks give the same results if their work is divided into many small
steps, each for a member's calls or some collectives.
"""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tools.clocks import make_calls

from nsys2prv import match
from nsys2prv.clock import NoiseKind
from nsys2prv.match import COLUMNS, calls, nccl_collectives, write_blocks
from nsys2prv.match.gathering import gather_by_member, gather_calls
from nsys2prv.match.nccl_collectives import BY_LAUNCH, CollectivePiece, divide_kernels
from nsys2prv.match.sequences import Member


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every report a step of its own, with few kernels in every other."""
    monkeypatch.setattr(match, "FACT_BYTES", 1)
    monkeypatch.setattr(nccl_collectives, "MATCHED_ROWS", 50)
    monkeypatch.setattr(match, "BUCKET_BYTES", 2_000)
    monkeypatch.setattr(match, "LINE_ROWS", 20)
    monkeypatch.setattr(calls, "PIECE_ROWS", 0)


def test_a_member_at_a_time_gathers_what_all_at_once_do() -> None:
    rng = np.random.default_rng(3)
    ends = np.cumsum(rng.integers(20_000, 900_000, 300))
    sizes = rng.integers(1, 4, 300)
    lacking = {2: np.delete(np.arange(300), [40, 41, 200]), 5: np.arange(7, 300)}
    rows = {member: lacking.get(member, np.arange(300)) for member in range(8)}
    end = {
        member: ends[kept] + member // 2 * 50_000 + rng.integers(0, 3_000, len(kept))
        for member, kept in rows.items()
    }

    def make_member_calls(member: int) -> pl.DataFrame:
        zero = np.zeros(len(rows[member]), np.int64)
        return make_calls(
            noise_kind=zero + NoiseKind.NCCL,
            group=zero + 7,
            member=zero + member,
            clock=zero + member // 2,
            number=zero - 1,
            signature=sizes[rows[member]],
            role=zero,
            is_root=zero == 1,
            begin=end[member] - 15_000,
            end=end[member],
            began=zero == 1,
        )

    together = gather_calls(pl.concat(map(make_member_calls, rows)), 0)
    alone = gather_by_member(
        [
            Member(
                member,
                len(kept),
                lambda member=member: make_member_calls(member),
                clock=member // 2,
            )
            for member, kept in rows.items()
        ],
        NoiseKind.NCCL,
        7,
    )
    assert together.rows.height > 1_000
    assert alone.rows.equals(together.rows)
    assert alone.findings == together.findings


def test_pieces_hold_every_kernel_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    pieces = []
    for group, sizes in enumerate([(5, 7), (300, 250), (20,), (90, 1)]):
        blocks = []
        for number, size in enumerate(sizes):
            rows = np.zeros((size, len(COLUMNS["nccl_kernels"])), np.int64)
            rows[:, 0] = np.sort(rng.integers(0, 120, size))
            rows[:, 1] = group * 1_000_000 + number * 1_000 + np.arange(size)
            frame = pl.DataFrame(rows, COLUMNS["nccl_kernels"], orient="row")
            blocks += write_blocks(tmp_path / f"{group}-{number}", np.full(size, group), frame)
        pieces.append(CollectivePiece(group, tuple(blocks), BY_LAUNCH, 2))
    result = divide_kernels(pieces, 100)
    read = [piece.read() for portion in result for piece in portion]
    assert len(result) > 6
    assert sum(map(len, read)) == sum(piece.rows for piece in pieces)
    assert len(pl.concat(read)["before"].unique()) == sum(piece.rows for piece in pieces)
    for piece in (
        piece
        for portion in result
        for piece in portion
        if piece.low is not None and piece.high is not None
    ):
        assert piece.read()["ordinal"].is_between(piece.low, piece.high, closed="left").all()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_blocks_on_a_full_disk() -> None:
    rows = pl.DataFrame({"value": np.arange(100_000)})
    with pytest.raises(OSError, match="No space left"):
        write_blocks(Path("/dev/full"), np.zeros(len(rows), np.int64), rows)
