"""The first screen of a report: 24 lines of 80 columns, in plain English. After an intended change
``python tests/analysis/test_first_screen.py`` rewrites the golden screens; read the difference.
"""

import contextlib
import io
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tools.exports import RUNTIME, make_call, make_export, make_os_call, make_strings
from tools.habits import find_habits

from nsys2prv.cli import main

TESTS = Path(__file__).parent.parent
GOLDEN = TESTS / "golden" / "screens"
SAMPLES = TESTS.parent / "sample_reports"
#: Kind of job -> its reports; None for a capture of a program that launches nothing.
JOBS = {
    "training": [SAMPLES / "training"],
    "mpi": [SAMPLES / "mpi"],
    "one-gpu": [SAMPLES / "graphs" / "rank1.sqlite"],
    "no-gpu-work": None,
}
MS = 1_000_000


def make_capture_without_gpu_work(folder: Path) -> Path:
    """Write a report of a process that allocates memory and reads a file for 100 ms."""
    names = make_strings("cudaMalloc", "read")
    tables = {
        "StringIds": names,
        RUNTIME: [make_call(0, 60 * MS, 0, nameId=1)],
        "OSRT_API": [make_os_call(60 * MS, 100 * MS, 2)],
    }
    return make_export(folder / "report.sqlite", tables)


def print_report(name: str, folder: Path, *options: str) -> str:
    reports = JOBS[name] or [make_capture_without_gpu_work(folder)]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["report", *map(str, reports), "-q", "-j", "1", *options]) == 0
    return out.getvalue()


@pytest.mark.parametrize("name", JOBS)
def test_first_screen(name: str, tmp_path: Path) -> None:
    screen = print_report(name, tmp_path)
    lines = screen.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert screen == (GOLDEN / f"{name}.txt").read_text()
    # Nothing is saved on GPUs that did nothing.
    assert ("saves" in screen) == (name != "no-gpu-work")
    assert ("parallel efficiency" in screen) == (name in ("training", "mpi"))


@pytest.mark.parametrize("name", JOBS)
def test_reports_are_in_plain_english(name: str, tmp_path: Path) -> None:
    text = " ".join(print_report(name, tmp_path, "--full").split())
    assert not [*find_habits(text)]


@pytest.mark.parametrize("name", ["README.md", "docs/tutorial.md"])
def test_documents_quote_the_first_screen(name: str) -> None:
    screen = (GOLDEN / "training.txt").read_text()
    assert f"```text\n{screen}```\n" in (TESTS.parent / name).read_text(encoding="utf-8")


def test_help_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert main(["help", "convert"]) == 0
    assert "--engine" in capsys.readouterr().out


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))
    GOLDEN.mkdir(exist_ok=True)
    for job in JOBS:
        with TemporaryDirectory() as made:
            (GOLDEN / f"{job}.txt").write_text(print_report(job, Path(made)))
