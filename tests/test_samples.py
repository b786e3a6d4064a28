"""Test that the sample reports contain what was put in, and nothing private."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from samples import Options as SampleOptions
from samples import generate
from samples.__main__ import main as write_sample

SAMPLES = Path(__file__).parent.parent / "sample_reports"
SECRET = b"planted-secret"


def list_reports(name: str) -> list[Path]:
    return sorted((SAMPLES / name).glob("rank*.sqlite"))


@pytest.mark.parametrize("name", ["training", "graphs"])
def test_no_secret_of_the_environment_leaks(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from nsys2prv.cli import main

    assert any(SECRET in path.read_bytes() for path in list_reports(name)), (
        "the sample must hold the secret"
    )
    assert main(["-v", *map(str, list_reports(name)), str(tmp_path / "out.prv")]) == 0
    assert main(["--list", *map(str, list_reports(name))]) == 0
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert SECRET not in written
    captured = capsys.readouterr()
    assert SECRET.decode() not in captured.out + captured.err


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.parent.name for path in SAMPLES.glob("*/truth.json")))
def test_committed_samples_come_out_of_the_generator(name: str, tmp_path: Path) -> None:
    """By the commands of their README; the header of a SQLite file has the version of the library
    that wrote it.
    """
    command = re.search(
        rf"`python -m tools\.samples sample_reports/{name} (.*?)`",
        (SAMPLES / "README.md").read_text(encoding="utf-8"),
    )
    assert command
    write_sample([str(tmp_path), *command[1].split()])
    assert (tmp_path / "truth.json").read_bytes() == (SAMPLES / name / "truth.json").read_bytes()
    for report in list_reports(name):
        with (
            closing(sqlite3.connect(tmp_path / report.name)) as generated,
            closing(sqlite3.connect(report)) as committed,
        ):
            assert list(generated.iterdump()) == list(committed.iterdump())


def test_generator_repeats_itself(tmp_path: Path) -> None:
    options = SampleOptions(ranks=2, hosts=1, events_per_rank=100)
    for folder in ("a", "b"):
        generate(tmp_path / folder, options)
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
