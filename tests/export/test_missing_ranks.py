"""Test that missing reports, or two reports of one rank, cause one clear warning each."""

from pathlib import Path

import polars as pl
import pytest
from samples import generate

from nsys2prv.cli import main
from nsys2prv.export.info import ReportInfo
from nsys2prv.export.ranks import check_claims, check_job, check_missing_ranks
from nsys2prv.match.nccl_collectives import _describe_missing_ranks


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Write the reports of a job of 4 ranks."""
    folder = tmp_path_factory.mktemp("job")
    generate(folder, ranks=4, hosts=2, steps=1, layers=1)
    return [str(folder / f"rank{rank}.sqlite") for rank in range(4)]


def _list_warnings(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [
        line.removeprefix("nsys2prv: warning: ")
        for line in capsys.readouterr().err.splitlines()
        if "rank" in line
    ]


@pytest.mark.slow
def test_a_rank_without_a_report(
    reports: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*reports, str(tmp_path / "x.prv"), "-q"]) == 0
    assert _list_warnings(capsys) == []
    assert main([*reports[:2], reports[3], str(tmp_path / "x.prv"), "-q"]) == 0
    expected = [
        "the job has 4 ranks (WORLD_SIZE), but there is no report of rank 2, so collectives and messages with other ranks are incomplete, and late ranks may not be named"
    ]
    assert _list_warnings(capsys) == expected
    assert main(["--list", *reports[:2], reports[3]]) == 0
    assert _list_warnings(capsys) == expected
    # Ranks that are not wanted are not missing.
    assert main([*reports, str(tmp_path / "x.prv"), "-q", "--ranks", "0-1"]) == 0
    assert _list_warnings(capsys) == []


def test_two_reports_of_one_rank(
    reports: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generate(tmp_path / "other", ranks=2, hosts=1, steps=1, layers=1, seed=9)
    other = str(tmp_path / "other" / "rank0.sqlite")
    assert main([reports[0], other, str(tmp_path / "x.prv"), "-q"]) == 0
    expected = f"rank 0 (RANK) is in {reports[0]} and in {other}; do they belong to one job?"
    assert expected in _list_warnings(capsys), (
        "reports of the same name are told apart by their paths"
    )


def _read_info(
    name: str, launched: dict[str, int], sizes: dict[str, int], ranks: dict[int, int] | None = None
) -> ReportInfo:
    return ReportInfo(Path(name), launcher_ranks=launched, launcher_sizes=sizes, ranks=ranks or {})


def test_what_does_not_prove_that_ranks_are_missing() -> None:
    for infos in (
        [_read_info("a", {"RANK": 0}, {}), _read_info("b", {"RANK": 1}, {})],
        [
            _read_info("a", {"RANK": 0}, {"WORLD_SIZE": 4}),
            _read_info("b", {"RANK": 1}, {"WORLD_SIZE": 8}),
        ],
        # A batch script whose program is not parallel.
        [_read_info("a", {"SLURM_PROCID": 0}, {"SLURM_NTASKS": 8})],
        # One report of all processes of a node, which the launcher started once.
        [_read_info("a", {"RANK": 0}, {"WORLD_SIZE": 2}, {1: 0, 2: 1})],
        # The size of another launcher: ranks go beyond it.
        [_read_info("a", {"RANK": 7}, {"WORLD_SIZE": 4})],
    ):
        assert check_missing_ranks(infos, communicates=False) == []
    assert check_missing_ranks([_read_info("a", {"RANK": 5}, {"WORLD_SIZE": 8})]) == [
        "the job has 8 ranks (WORLD_SIZE), but there is no report of ranks 0, 1, 2 and 4 more, so collectives and messages with other ranks are incomplete, and late ranks may not be named"
    ]


def test_variables_that_count_pods() -> None:
    """Two pods of two processes each: the rank belongs to the pod, the size counts all
    processes."""
    pods = [_read_info(f"{at}", {"RANK": at // 2}, {"WORLD_SIZE": 4}) for at in range(4)]
    assert check_missing_ranks(pods) == []
    assert check_missing_ranks(pods, [0, 1, 2, 3]) == []
    assert check_missing_ranks(pods[:3]) == [
        "the job has 4 ranks (WORLD_SIZE), but there are reports of only 3, so collectives and messages with other ranks are incomplete, and late ranks may not be named"
    ]
    assert check_missing_ranks(pods[:3], [0, 1, 3]) == [
        "the job has 4 ranks (WORLD_SIZE), but there is no report of rank 2, so collectives and messages with other ranks are incomplete, and late ranks may not be named"
    ]
    whole = [_read_info(f"{at}", {"RANK": at}, {"WORLD_SIZE": 4}) for at in range(2)]
    assert check_missing_ranks(whole, [None] * 4) == [], "a report of all processes of each pod"


def test_jobs_of_several_sizes() -> None:
    infos = [
        _read_info(name, {"RANK": rank}, {"WORLD_SIZE": size})
        for name, rank, size in (("a", 0, 2), ("b", 1, 2), ("c", 0, 1))
    ]
    assert check_job(infos) == [
        "the reports come from 2 jobs according to their WORLD_SIZE (a, c); do they belong together?"
    ]
    assert check_claims(infos) == ["rank 0 (RANK) is in a and in c; do they belong to one job?"]


def test_members_of_communicators() -> None:
    def told(*rows: tuple[int, int, int, int]) -> list[str]:
        return _describe_missing_ranks(
            pl.DataFrame(rows, schema=["communicator", "task", "ranks", "rank"], orient="row")
        )

    assert told((7, 0, 2, 0), (7, 1, 2, 1)) == []
    assert told((7, 0, 2, 0), (7, 0, 2, 1)) == [], "one process with two GPUs"
    assert told((0, 0, 4, 0)) == []
    assert told((7, 0, 4, 3), (7, 1, 4, 0), (8, 0, 2, 0)) == [
        "an NCCL communicator has 4 ranks, but there are reports of only 2 of them, and none of ranks 1, 2, so late ranks may not be named"
    ]
    assert told((7, 0, 2, 0), (7, 0, 0, -1), (7, 1, 0, -1)) == [], "rank 1 begins late"
    assert told((7, 0, 4, -1), (7, 1, 4, -1)) == [
        "an NCCL communicator has 4 ranks, but there are reports of only 2 of them, so late ranks may not be named"
    ]
