"""Test ranks and helpers, by the evidence in reports about processes."""

from collections.abc import Mapping
from pathlib import Path

import polars as pl
import pytest

from nsys2prv.export.info import ReportInfo
from nsys2prv.export.roles import (
    FILE_NAMES,
    LAUNCHER,
    MPI_RANKS,
    NCCL_RANKS,
    Evidence,
    Rank,
    Roles,
    find_program,
    find_roles,
)

A, B = 1 << 24, 2 << 24


def make_info(name: str, ranks: Mapping[int, int] | None = None, **launcher: int) -> ReportInfo:
    sizes = {"WORLD_SIZE": launcher.pop("size")} if "size" in launcher else {}
    launched = {name.upper(): rank for name, rank in launcher.items()}
    return ReportInfo(
        Path(name), ranks=dict(ranks or {}), launcher_ranks=launched, launcher_sizes=sizes
    )


def tell_nccl(*rows: tuple[int, int, int, int, int]) -> pl.DataFrame:
    columns = ["report", "process", "communicator", "ranks", "rank"]
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.Int64), orient="row")


TWO = {(0, A): True, (1, A): True}


@pytest.mark.parametrize(
    ("infos", "processes", "nccl", "found"),
    [
        # Two processes of one report, whose process ids are not in the order of ranks.
        (
            [make_info("a")],
            {(0, A): True, (0, B): True},
            tell_nccl((0, A, 7, 2, 1), (0, B, 7, 2, 0)),
            {(0, A): (1, NCCL_RANKS), (0, B): (0, NCCL_RANKS)},
        ),
        # A communicator of two of four ranks is not that of the job.
        (
            [make_info("a", rank=2, size=4), make_info("b", rank=3, size=4)],
            TWO,
            tell_nccl((0, A, 7, 2, 0), (1, A, 7, 2, 1)),
            {(0, A): (2, LAUNCHER), (1, A): (3, LAUNCHER)},
        ),
        (
            [make_info("a", {A: 1}, rank=0), make_info("b", {A: 0}, rank=1)],
            TWO,
            None,
            {(0, A): (1, MPI_RANKS), (1, A): (0, MPI_RANKS)},
        ),
        # One report without payloads: the rank that is left.
        (
            [make_info("a"), make_info("b")],
            TWO,
            tell_nccl((0, A, 7, 2, 1)),
            {(0, A): (1, NCCL_RANKS), (1, A): (0, FILE_NAMES)},
        ),
        (
            [make_info("rank3.sqlite"), make_info("rank7.sqlite")],
            TWO,
            None,
            {(0, A): (3, FILE_NAMES), (1, A): (7, FILE_NAMES)},
        ),
        (
            [make_info("x"), make_info("y")],
            TWO,
            None,
            {(0, A): (0, FILE_NAMES), (1, A): (1, FILE_NAMES)},
        ),
        # The same processes, which MPI numbers otherwise.
        (
            [make_info("a", {A: 0}), make_info("b", {A: 1})],
            TWO,
            tell_nccl((0, A, 7, 2, 1), (1, A, 7, 2, 0)),
            {(0, A): (1, NCCL_RANKS), (1, A): (0, NCCL_RANKS)},
        ),
        # One report without the launcher's variable keeps no other from its own.
        (
            [make_info("a", rank=1), make_info("b", rank=0), make_info("c")],
            {**TWO, (2, A): True},
            None,
            {(0, A): (1, LAUNCHER), (1, A): (0, LAUNCHER), (2, A): (2, FILE_NAMES)},
        ),
        # A further process with a GPU, which is none of the job's two ranks.
        (
            [make_info("a"), make_info("b"), make_info("c")],
            {**TWO, (2, A): True},
            tell_nccl((0, A, 7, 2, 1), (1, A, 7, 2, 0)),
            {(0, A): (1, NCCL_RANKS), (1, A): (0, NCCL_RANKS)},
        ),
        # A rank whose work is not recorded, by the launcher and by its name.
        (
            [
                make_info("a", rank=1, size=3),
                make_info("b", rank=0, size=3),
                make_info("c", rank=2),
            ],
            {**TWO, (2, A): False},
            None,
            {(0, A): (1, LAUNCHER), (1, A): (0, LAUNCHER), (2, A): (2, LAUNCHER)},
        ),
        (
            [make_info("rank0"), make_info("rank2"), make_info("rank1")],
            {**TWO, (2, A): False},
            None,
            {(0, A): (0, FILE_NAMES), (1, A): (2, FILE_NAMES), (2, A): (1, FILE_NAMES)},
        ),
        # A process of MPI started by one that uses the GPU.
        (
            [make_info("a", {B: 0})],
            {(0, A): True, (0, B): False},
            None,
            {(0, A): (0, MPI_RANKS), (0, B): (0, MPI_RANKS)},
        ),
        ([make_info("x")], {(0, A): True}, None, {(0, A): (0, "")}),
    ],
    ids=[
        *("one report", "part of a job", "MPI", "one without", "names", "order", "NCCL and MPI"),
        *("one unlaunched", "beyond the job", "silent", "silent by name", "parent", "alone"),
    ],
)
def test_ranks(
    infos: list[ReportInfo],
    processes: dict[tuple[int, int], bool],
    nccl: pl.DataFrame | None,
    found: dict[tuple[int, int], tuple[int, str]],
) -> None:
    roles = find_roles(infos, Evidence(processes, nccl=nccl))
    assert roles.ranks == {key: Rank(*rank) for key, rank in found.items()}
    assert roles.helpers == {}


def find(infos: list[ReportInfo], processes: dict[tuple[int, int], bool], **more: object) -> Roles:
    return find_roles(infos, Evidence(processes, **more))


def test_helpers() -> None:
    beside = {(0, A): True, (0, B): False}
    assert find([make_info("x")], beside).helpers == {(0, B): (0, A)}, "of the report's only rank"
    assert find([make_info("x", {B: 0})], dict.fromkeys(beside, False)).helpers == {(0, A): (0, B)}
    two = {(0, A): True, (0, B): True, (0, 3 << 24): False}
    assert find([make_info("x")], two).helpers == {(0, 3 << 24): None}, "of one of two ranks"
    assert find([make_info("x"), make_info("y")], {**TWO, (1, A): False}).helpers == {(1, A): None}
    assert find([make_info("x")], dict.fromkeys(beside, False)).helpers == {}, "nothing works"


def test_who_launches_work_that_is_lost_is_no_helper() -> None:
    infos, processes = [make_info("x"), make_info("y")], {**TWO, (1, A): False}
    assert find(infos, processes, launching={(1, A)}).helpers == {}
    assert find(infos, processes, silent={(1, A)}).helpers == {}


def test_daemons_inherit_the_launchers_variables() -> None:
    """A daemon and two workers of each of two nodes: the variables count nodes."""
    infos = [make_info(name, slurm_procid=int(name[1])) for name in ("w0", "w1", "d0", "d1")]
    processes = {(at, A): at < 2 for at in range(4)}
    nccl = tell_nccl((0, A, 7, 2, 1), (1, A, 7, 2, 0))
    roles = find(infos, processes, nccl=nccl)
    assert roles.helpers == {(2, A): None, (3, A): None}
    assert {rank.number for rank in roles.ranks.values()} == {0, 1}


def test_the_program_of_a_launched_report_without_work() -> None:
    names = {A: "bash", B: "solver"}
    infos = [
        ReportInfo(
            Path(name),
            launcher_ranks={"RANK": rank},
            launcher_sizes={"WORLD_SIZE": 2},
            processes=names,
        )
        for rank, name in enumerate("ab")
    ]
    processes = {(report, pid): False for report in range(2) for pid in (A, B)}
    threads = {key: 3 if key[1] == A else 1 for key in processes}
    roles = find(infos, processes, threads=threads)
    assert roles.ranks == {(at, B): Rank(at, LAUNCHER) for at in range(2)}
    assert roles.helpers == {(at, A): (at, B) for at in range(2)}


def test_names_tell_the_reports_of_ranks_without_work() -> None:
    processes = {(report, pid): False for report in range(2) for pid in (A, B)}
    threads = {key: 3 if key[1] == A else 1 for key in processes}
    roles = find([make_info("rank1"), make_info("rank0")], processes, threads=threads)
    assert roles.ranks == {(0, A): Rank(1, FILE_NAMES), (1, A): Rank(0, FILE_NAMES)}
    assert roles.helpers == {(at, B): (at, A) for at in range(2)}
    assert find([make_info("x"), make_info("y")], processes, threads=threads).helpers == {}


@pytest.mark.parametrize(
    ("process", "thread", "program"),
    [
        ("nsys-launcher", "solver", "solver"),
        ("bash", "MPI Rank 3", "bash"),
        ("python3", "worker", "python3"),
        ("mpirun.openmpi", "", "mpirun.openmpi"),
    ],
)
def test_the_name_of_a_process_is_that_of_its_program(
    process: str, thread: str, program: str
) -> None:
    info = ReportInfo(Path("r"), processes={A: process}, threads={A | 1: thread})
    assert find_program(info, A) == program


def test_what_sources_say_otherwise_is_said() -> None:
    infos = [make_info("a", {A: 0}), make_info("b", {A: 1})]
    nccl = tell_nccl((0, A, 7, 2, 1), (1, A, 7, 2, 0))
    assert find(infos, TWO, nccl=nccl).conflicts == (
        "MPI numbers 2 ranks otherwise: rank 1 is its 0, rank 0 is its 1",
    )
    twice = find([make_info("a", {A: 0}), make_info("b", {A: 0})], TWO)
    assert twice.ranks == {(0, A): Rank(0, MPI_RANKS), (1, A): Rank(1, FILE_NAMES)}
    assert twice.conflicts == ("MPI numbers 1 rank otherwise: rank 1 is its 0",)
