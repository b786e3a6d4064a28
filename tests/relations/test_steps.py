"""Relations and clocks whose work is divided into many small steps, of a member's calls or some
collectives each: found all the same.
"""

from __future__ import annotations

import json
from collections import defaultdict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import yaml
from samples import Options, generate
from tools.clocks import concatenate_calls
from tools.conversions import convert_and_read
from tools.trace_reader import Trace
from tools.view_answers import SAMPLES

import nsys2prv
from nsys2prv._util.columns import read_frame
from nsys2prv.clock import NoiseKind
from nsys2prv.clock.gathering import gather_by_member, gather_calls
from nsys2prv.clock.observations import Calls, make_call_frame
from nsys2prv.clock.sequences import Member
from nsys2prv.events import all_kinds
from nsys2prv.events.extraction import NAME, OBJECT, TIME
from nsys2prv.relations import MODULES, all_relations, blocks, nccl_collectives, nccl_messages
from nsys2prv.relations.blocks import write_blocks
from nsys2prv.relations.nccl_kernels import (
    BY_LAUNCH,
    KERNEL_COLUMNS,
    CollectivePiece,
    divide_kernels,
)
from nsys2prv.store import task_result

COLLECTIVE, NUMBER, LATE, MESSAGE = 9540, 9541, 9542, 55010
NOISE: dict[str, object] = {
    "clock_offset_range_ms": 50.0,
    "clock_drift_range_ppm": 50.0,
    "end_jitter_us": 3.0,
    "waited_us": (0.0, 17.0),
}
EXACT: dict[str, object] = {"clock_offsets_ms": (0.0, 0.0), "clock_drifts_ppm": (0.0, 0.0)}
#: What alignment must reach, ns.
GOOD = 10_000
FAULTS: dict[str, object] = {"lost_collectives": 0.03, "extra_collectives": 0.03}


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every report a step of its own, with few kernels in every other."""
    monkeypatch.setattr(task_result, "BATCH_BYTES", 1)
    monkeypatch.setattr(nccl_collectives, "STEP_ROWS", 50)
    monkeypatch.setattr(blocks, "BUCKET_BYTES", 2_000)
    monkeypatch.setattr(blocks, "LINE_ROWS", 20)
    monkeypatch.setattr(blocks, "PORTION_ROWS", 0)


def load_truth(folder: Path, **options: object) -> dict:
    generate(folder, Options(**options))
    return json.loads((folder / "truth.json").read_text())


def list_collectives(trace: Trace) -> dict[int, list[tuple[int, int, int]]]:
    """Return number -> begin, 0-based task and late arrival of its kernels."""
    result = defaultdict(list)
    for item in trace.list_intervals(COLLECTIVE):
        if NUMBER not in item.others:
            continue  # a kernel that sends and receives
        result[item.others[NUMBER]].append((item.begin, item.row[0] - 1, item.others.get(LATE, 0)))
    return {number: sorted(items) for number, items in result.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [{}, {"nccl_trace": "advanced", "nccl_groups": True, "nccl_rooted": True}],
    ids=["order of launches", "sequence numbers"],
)
def test_collectives_are_those_of_the_truth_and_numbered_by_their_first_begins(
    tmp_path: Path, more: dict[str, object]
) -> None:
    truth = load_truth(tmp_path, ranks=8, hosts=2, steps=4, layers=2, **EXACT, **more)
    trace, _ = convert_and_read(sorted(tmp_path.glob("rank*.sqlite")), tmp_path / "o.prv")
    result = list_collectives(trace)
    wanted = [item for item in truth["collectives"] if item["function"] != "SendRecv"]
    assert sorted(result) == list(range(1, len(wanted) + 1))
    firsts = [result[number][0][0] for number in sorted(result)]
    assert firsts == sorted(firsts)
    late = sorted(
        sorted(
            (rank, begin - min(item["begin"]))
            for rank, begin in zip(item["ranks"], item["begin"], strict=True)
        )
        for item in wanted
    )
    assert (
        sorted(sorted((task, behind) for _, task, behind in items) for items in result.values())
        == late
    )


@pytest.mark.slow
def test_messages_are_those_of_the_truth(tmp_path: Path) -> None:
    truth = load_truth(tmp_path, ranks=8, hosts=2, steps=4, layers=2, **EXACT)
    trace, _ = convert_and_read(sorted(tmp_path.glob("rank*.sqlite")), tmp_path / "o.prv")
    wanted = sorted(
        (item["ranks"][at], item["ranks"][(at + 1) % len(item["ranks"])])
        for item in truth["collectives"]
        if item["function"] == "SendRecv"
        for at in range(len(item["ranks"]))
    )
    assert wanted
    assert (
        sorted(
            (line.sender[0] - 1, line.receiver[0] - 1)
            for line in trace.comms
            if line.tag == MESSAGE
        )
        == wanted
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [{"seed": 2, **FAULTS}, {"seed": 3, "cut_report": "begin", "cut_rank": 3, "cut_at": 0.4}],
    ids=["rows missing and added", "a report that begins late"],
)
def test_what_ends_tell_does_not_depend_on_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, object]
) -> None:
    """That it is right, test_nccl_faults.py tells."""
    load_truth(tmp_path, ranks=8, hosts=4, steps=40, layers=1, pace_ms=100, **NOISE, **more)
    reports = sorted(tmp_path.glob("rank*.sqlite"))
    _, small = convert_and_read(reports, tmp_path / "small.prv")
    monkeypatch.undo()
    _, usual = convert_and_read(reports, tmp_path / "usual.prv")
    assert any("the times at which they ended" in note for note in usual.notes)
    assert small.notes == usual.notes
    # Lines of equal time come in the order in which they were found.
    lines = [
        sorted((tmp_path / name).read_bytes().splitlines()) for name in ("small.prv", "usual.prv")
    ]
    assert lines[0] == lines[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"seed": 11},
        {"seed": 12, "cut_report": "begin", "cut_rank": 3, **FAULTS},
        {"seed": 22, "nccl_trace": "advanced"},
        {"seed": 13, "mpi": True, "nccl": False, **FAULTS},
    ],
    ids=["whole", "faults", "advanced trace", "MPI"],
)
def test_clocks_are_those_of_the_truth(tmp_path: Path, more: dict[str, object]) -> None:
    truth = load_truth(tmp_path, ranks=8, hosts=4, steps=30, layers=1, pace_ms=500, **NOISE, **more)
    convert_and_read(sorted(tmp_path.glob("rank*.sqlite")), tmp_path / "o.prv")
    record = list(yaml.safe_load((tmp_path / "o.clock.yaml").read_text())["hosts"].values())
    span = (
        min(rank["capture_start_true_ns"] for rank in truth["ranks"]),
        max(rank["capture_end_true_ns"] for rank in truth["ranks"]),
    )
    for true in (*span, sum(span) // 2):
        reference, *errors = (
            correct_true_time(known, host, truth, true) - true
            for known, host in zip(record, truth["hosts"], strict=True)
        )
        assert all(
            abs(error - reference) < min(GOOD, known["bound_ns"])
            for error, known in zip(errors, record[1:], strict=True)
        )


def correct_true_time(known: dict, host: dict, truth: dict, true: int) -> float:
    """Return a true time (ns since the job's begin) as the host's clock shows it and the record
    corrects it.
    """
    shown = Fraction(true) * (1 + Fraction(str(host["drift_ppm"])) / 10**6) + host["offset_ns"]
    at = known["at_utc_ns"] - truth["epoch_utc_ns"]
    return float(shown + known["offset_ns"] + Fraction(known["drift_ppm"]) / 10**6 * (shown - at))


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

    def make_calls(member: int) -> Calls:
        zero = np.zeros(len(rows[member]), np.int64)
        return Calls(
            zero + NoiseKind.NCCL,
            zero + 7,
            zero + member,
            zero + member // 2,
            zero - 1,
            sizes[rows[member]],
            zero,
            zero.astype(bool),
            end[member] - 15_000,
            end[member],
        )

    together = gather_calls(concatenate_calls(*map(make_calls, rows)), 0)
    alone = gather_by_member(
        [
            Member(
                member,
                len(kept),
                lambda member=member: make_call_frame(make_calls(member), 0),
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


def test_portions_hold_every_kernel_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    pieces = []
    for group, sizes in enumerate([(5, 7), (300, 250), (20,), (90, 1)]):
        blocks = []
        for number, size in enumerate(sizes):
            rows = np.zeros((size, len(KERNEL_COLUMNS)), np.int64)
            rows[:, 0] = np.sort(rng.integers(0, 120, size))
            rows[:, 1] = group * 1_000_000 + number * 1_000 + np.arange(size)
            blocks += write_blocks(tmp_path / f"{group}-{number}", np.full(size, group), rows)
        pieces.append(CollectivePiece(group, tuple(blocks), BY_LAUNCH, 2))
    result = divide_kernels(pieces, 100)
    read = [piece.read() for portion in result for piece in portion]
    assert len(result) > 6
    assert sum(map(len, read)) == sum(piece.rows for piece in pieces)
    assert len(np.unique(np.concatenate(read)[:, 1])) == sum(piece.rows for piece in pieces)
    for piece in (
        piece
        for portion in result
        for piece in portion
        if piece.low is not None and piece.high is not None
    ):
        assert ((piece.read()[:, 0] >= piece.low) & (piece.read()[:, 0] < piece.high)).all()


def test_every_module_with_relations_is_listed() -> None:
    folder = Path(nccl_messages.__file__).parent
    assert (
        tuple(
            file.stem
            for file in sorted(folder.glob("*.py"))
            if "\nRELATIONS = " in file.read_text(encoding="utf-8")
        )
        == MODULES
    )


@pytest.mark.slow
def test_facts_set_aside_are_those_that_are_read() -> None:
    """By one name on both sides: of every sample, with all kinds; and what says times, objects and
    names by its column's name is whole numbers.
    """
    read = {name for relation in all_relations() for name in relation.facts} | {
        name for kind in all_kinds() if kind.derived for name in kind.derived.collects
    }
    facts = set()
    for reports in SAMPLES.values():
        with nsys2prv.open(reports, demanded=("nvtx_on_gpu",)) as job:
            for result in job._job.results:
                facts |= result.facts.keys()
                for frame in map(read_frame, result.facts.values()):
                    assert all(
                        frame[name].dtype.is_integer()
                        for name in frame.columns
                        if name.startswith((TIME, OBJECT, NAME))
                    )
    assert facts == read
