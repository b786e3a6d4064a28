"""Test that wrong command lines are answered with the probably intended ones, and that folders and
patterns are reports.
"""

import contextlib
import json
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.cli import COMMANDS, main
from nsys2prv.cli.arguments import NO_TRACES, TRACES
from nsys2prv.cli.listing import MOST_LINES, _format_counts
from nsys2prv.conversion.write import WRITERS
from nsys2prv.export.report_files import find_reports

GRAPHS = Path(__file__).parents[2] / "sample_reports" / "graphs"
REPORT = str(GRAPHS / "rank1.sqlite")


def test_every_ending_that_is_written_is_that_of_a_trace() -> None:
    assert {*TRACES} == {f"{ending}{packed}" for ending in WRITERS for packed in ("", ".gz")}
    assert not WRITERS.keys() & NO_TRACES.keys()


#: Command lines that are refused, and such as cannot be carried out, with words of the answers.
MISTAKES = [
    (["-t", REPORT, "out.prv"], ["-t takes event kinds", "nsys2prv -t kernels,nvtx", "omit -t"]),
    (["-t", "kernels", "nvtx", REPORT, "out.prv"], ["separate kinds by commas: -t kernels,nvtx"]),
    (
        [REPORT, "a.prv", "b.prv"],
        ["a.prv: this is a trace, not a report", "output trace last: nsys2prv REPORT... b.prv"],
    ),
    ([REPORT], ["REPORT... OUTPUT", f"as in `nsys2prv {REPORT} out.prv`"]),
    ([REPORT, REPORT], ["add a name such as out.prv"]),
    (["report", "out.prv"], ["is a trace", "takes the reports that it was converted from"]),
    (["reprot", REPORT], ["did you mean `nsys2prv report`?"]),
    (["help", "zzzz"], ["the commands are report, study, cfgs, diff"]),
    (["diff", "--html"], ["--html takes a value; write --html FILE; `nsys2prv help diff`"]),
    (["--time", "", REPORT, "o"], ["--time has an empty value", "write --time FROM:TO"]),
    (["report", REPORT, "--only="], ["--only has an empty value", "write --only NAMES"]),
    (["--time"], ["--time takes a value; write --time FROM:TO"]),
    (["report", REPORT, "--json", "-"], ["--json -: give the name of a file"]),
    (["-j", "0", REPORT, "o"], ["-j 0: give an integer, 1 or greater"]),
    (["out.prv", REPORT], ["give the output trace last: nsys2prv REPORT... out.prv"]),
    (["--kernel-name", "full", REPORT, "o"], ["did you mean --kernel-names?"]),
    (["--html", "page.html", REPORT, "o"], ["nsys2prv report REPORT... --html FILE"]),
    (
        ["--min-duration", "kernel=10us", REPORT, "o"],
        ["--min-duration kernel=10 us: no such kind", "did you mean kernels?"],
    ),
    (["cfgs", __file__], ["this is a file name; give a folder for the views"]),
    (["list", REPORT], ["write `nsys2prv --list REPORT...`"]),
    (["convert", REPORT, "out.prv"], ["write `nsys2prv REPORT... OUTPUT`"]),
    (
        ["-o", "out.prv", REPORT],
        ["-o is not an option of nsys2prv: give the output trace as the last argument"],
    ),
    (["check", REPORT], ["is a report; nsys2prv check takes the trace"]),
    (["check", str(GRAPHS)], ["is a folder; it has no traces"]),
    ([REPORT, str(GRAPHS)], ["is a folder; give the name of the output trace"]),
    ([REPORT, "out.html"], ["such as out.prv", "nsys2prv report REPORT... --html FILE"]),
    ([REPORT, ""], ["an argument is empty", "the output trace"]),
    (["-x", REPORT, "o"], ["-x is not an option of nsys2prv"]),
    (["--kernel-names", "long", REPORT, "o"], ["--kernel-names long: give short or full"]),
    (["--engine", "fast", REPORT, "o"], ["unknown engine; give one of local"]),
    (["diff", REPORT, "--fail-above", "kernel=5%"], ["--fail-above kernel=5%", "kernel:NAME=5%"]),
    (["diff", REPORT, REPORT, "--html", str(GRAPHS)], ["--html", "is a folder", "job.html"]),
    (["open", "job.prv"], ["write `wxparaver out.prv`"]),
    (["cfgs", "nccl_wiat"], ["the view views/nccl_wait.cfg", "`nsys2prv cfgs views`"]),
    (["-q", "report", REPORT], ["give the command before its options", "nsys2prv report"]),
    (["report", REPORT, "page.html"], ["to write it, use --html page.html"]),
    (["--args", "kernles=class", REPORT, "o"], ["no such kind of event; did you mean kernels?"]),
    (["--list"], ["write `nsys2prv --list REPORT...`"]),
    (
        ["report", REPORT, "--iterations", "stpe"],
        ["--iterations stpe: no NVTX range has this name; "],
    ),
]
FAILURES = [
    (["check", __file__], ["not a Paraver trace", "give a .prv"]),
    (["--region", "iteratoin", REPORT, "o"], ["did you mean iteration?"]),
    (["--region", "zzzz", REPORT, "o"], ["--only operations` lists all names"]),
    (["--region", "iteration:99", REPORT, "o"], ["give a number from 1 to 2"]),
    (["--align", "sun", REPORT, "o"], ["give auto, utc, mpi, nccl, none or a clock file"]),
    (["--tmp", __file__, REPORT, "o"], ["is not a folder"]),
    (["", "o"], ["an argument is empty"]),
    ([str(GRAPHS.parent / "grpahs"), "o"], [f"no such file; did you mean {GRAPHS}?"]),
    ([str(GRAPHS / "rank11.sqlite"), "o"], ["no such file; did you mean ", "rank1.sqlite?"]),
    ([str(GRAPHS.parent / "x" / "rank1.sqlite"), "o"], ["rank1.sqlite: no such file"]),
    (["report", REPORT, "--html", "nowhere/x.html"], ["nowhere: no such folder"]),
]


@pytest.mark.parametrize(
    ("status", "arguments", "answers"),
    [*((2, *one) for one in MISTAKES), *((1, *one) for one in FAILURES)],
)
def test_mistakes_are_answered_in_one_line(
    status: int,
    arguments: list[str],
    answers: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == status
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert all(answer in line for answer in answers), line
    assert not printed.out
    assert not list(tmp_path.iterdir())


def test_a_trace_given_for_reports_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-q", REPORT, str(tmp_path / "out.prv.gz")]) == 0
    capsys.readouterr()
    assert main(["report", str(tmp_path / "out.prv.gz")]) == 2
    assert capsys.readouterr().err.endswith(f"that it was converted from: {REPORT}\n")
    assert main(["cfgs", str(tmp_path / "out.prv.gz")]) == 2
    assert f"nsys2prv cfgs --for {tmp_path / 'out.prv.gz'}" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        assert main(["help", *filter(None, [command])]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: nsys2prv")
    if command in ("", "help"):
        assert next(line for line in text.splitlines() if line.endswith(":")) == "Examples:"
        assert all(f"  {name} " in text for name in COMMANDS if name != "help")


@pytest.mark.parametrize(
    ("words", "among"),
    [
        (["rep"], {"report"}),
        (["help", "di"], {"diff"}),
        (["--kernel-n"], {"--kernel-names"}),
        (["cfgs", "--fo"], {"--for"}),
        (["x.sqlite", ""], set()),
    ],
)
def test_completion(words: list[str], among: set[str]) -> None:
    """Check completion in the shell itself, with this command on its path."""
    script = GRAPHS.parents[1] / "completions" / "nsys2prv"
    line = " ".join(f"'{word}'" for word in ["nsys2prv", *words])
    process = subprocess.run(
        [
            "bash",
            "-c",
            f"nsys2prv() {{ '{sys.executable}' -m nsys2prv \"$@\"; }}; . '{script}'; COMP_WORDS=({line}); "
            f"COMP_CWORD={len(words)}; _nsys2prv; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        ],
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert {word for word in process.stdout.split("\n") if word} == among


def test_folders_and_patterns_are_the_reports_in_them(tmp_path: Path) -> None:
    for name in ("rank0.sqlite", "rank1.sqlite"):
        shutil.copy(GRAPHS / name, tmp_path / name)
    (tmp_path / "rank1.nsys-rep").write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("x")
    both = [tmp_path / "rank0.sqlite", tmp_path / "rank1.sqlite"]
    assert find_reports([tmp_path]) == find_reports([f"{tmp_path}/rank*.sqlite"]) == both
    assert find_reports(["missing.sqlite"]) == [Path("missing.sqlite")]
    (tmp_path / "empty").mkdir()
    for given, problem in (
        (tmp_path / "empty", "no reports in this folder"),
        (f"{tmp_path}/x*.sqlite", "no file matches"),
    ):
        with pytest.raises(Nsys2prvError, match=problem):
            find_reports([given])


@pytest.mark.slow
def test_every_command_takes_folders_and_patterns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pattern = f"{GRAPHS}/rank*.sqlite"
    assert (
        main(["-q", str(GRAPHS), str(tmp_path / "a.prv")])
        == main(["-q", pattern, str(tmp_path / "b.prv")])
        == 0
    )
    assert (tmp_path / "a.prv").read_bytes() == (tmp_path / "b.prv").read_bytes()
    assert len(json.loads((tmp_path / "a.nsys2prv.json").read_text())["inputs"]) == 2
    capsys.readouterr()
    assert main(["report", "-q", pattern, "--only", "efficiencies"]) == 0
    assert capsys.readouterr().out.startswith("2 ranks on 1 node")
    assert main(["--list", str(GRAPHS)]) == 0
    assert "2 reports; * marks differences" in capsys.readouterr().out


def test_the_list_marks_differences(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", str(GRAPHS)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.split()}
    assert "* none in rank1.sqlite; 8 elsewhere" in lines["graphs"]
    assert "*" not in lines["cuda_events"]
    assert lines["rank1.sqlite"].count(" *") == 2


def test_the_list_of_equal_reports_explains_no_mark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--list", REPORT]) == 0
    assert capsys.readouterr().out.startswith("1 report:\n")
    shutil.copy(REPORT, tmp_path / "a.sqlite")
    shutil.copy(REPORT, tmp_path / "b.sqlite")
    assert main(["--list", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("2 reports:\n")
    assert " *" not in text


@pytest.mark.slow
def test_the_list_of_many_reports_has_nothing_but_differences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alike = GRAPHS.parent / "training" / "rank0.sqlite"
    for number in range(MOST_LINES):
        shutil.copy(alike, tmp_path / f"rank{number}.sqlite")
    odd = tmp_path / f"rank{MOST_LINES}.sqlite"
    shutil.copy(alike, odd)
    assert main(["--list", str(tmp_path)]) == 0
    assert (
        "; all reports agree in GPUs, recorded by, exported by, schema" in capsys.readouterr().out
    )
    with contextlib.closing(sqlite3.connect(odd)) as database, database:
        database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
        database.execute("UPDATE TARGET_INFO_GPU SET name = 'Other'")
    assert main(["--list", str(tmp_path)]) == 0
    first, differing, titles, only, after, *kinds = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{MOST_LINES + 1} reports; * marks")
    assert differing.endswith("; 1 differ from most in GPUs, recorded by, exported by, schema:")
    assert (titles.split()[0], only.split()[0], after) == ("report", odd.name, "")
    assert any(re.search(rf" kernels .*\* none in {odd.name}", line) for line in kinds)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((3, 3, 3), "3"),
        ((100, 95, 100), "95 (b) to 100 (a)"),
        ((100, 50, 100), "* 50 (b) to 100 (a)"),
        ((4, 0, 8), "* none in b; 4 to 8 elsewhere"),
        ((0, 0, 8), "* 8, only in c"),
    ],
)
def test_rows_in_each_report(rows: tuple[int, ...], message: str) -> None:
    assert _format_counts(rows, ("a", "b", "c")) == message


@pytest.mark.slow
def test_reports_of_two_jobs_are_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = GRAPHS.parent / "training"
    assert main(["-q", str(GRAPHS), str(training), str(tmp_path / "out.prv")]) == 0
    assert "do they belong to one job?" in capsys.readouterr().err
    assert main(["-q", str(training), str(tmp_path / "out.prv")]) == 0
    assert "do they belong to one job?" not in capsys.readouterr().err


def test_files_whose_names_begin_like_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(REPORT, "-rf.sqlite")
    for arguments in (["-q", "--", "-rf.sqlite", "-o.prv"], ["--list", "--", "-rf.sqlite"]):
        assert main(arguments) == 0
    assert Path("-o.prv").exists()
    for command in ("report", "check"):
        assert main([command, "--", "-rf.sqlite" if command == "report" else "-o.prv"]) == 0
