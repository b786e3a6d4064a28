"""Test the command as people use it: messages, exit statuses, files."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from make_package_data import write_commit
from tools.commands import read_error_line, run_main, wait_for
from tools.exports import KERNEL, make_export, make_kernel, make_strings

from nsys2prv import __version__
from nsys2prv._util import COMMIT, format_version
from nsys2prv.show.text import Style

SAMPLES = Path(__file__).parents[2] / "sample_reports"
RANKS = sorted(map(str, (SAMPLES / "graphs").glob("rank*.sqlite")))


@pytest.mark.parametrize(
    ("terminal", "variables", "coloured"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": ""}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_colours_are_for_terminals(
    terminal: bool, variables: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    assert Style.for_output().colours is coloured


def test_conversion_ends_with_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("-m", *RANKS, tmp_path / "out") == 0
    text = capsys.readouterr().out
    assert "2 ranks on 1 node, 2 GPUs" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "out.nsys2prv.json",
        "out.pcf",
        "out.prv",
        "out.row",
    ]
    assert all(path.name in text for path in tmp_path.iterdir())


def test_quiet_says_nothing_but_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main("-q", *RANKS, tmp_path / "out.prv") == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert all(line.startswith("nsys2prv: warning: ") for line in captured.err.splitlines())


def test_options_may_stand_anywhere(tmp_path: Path) -> None:
    first, second, out = RANKS[0], RANKS[1], "out.prv"
    for number, given in enumerate(
        [
            ("-q", "-t", "kernels", first, second, out),
            (first, "-q", second, "-t", "kernels", out),
            (first, second, out, "-t", "kernels", "-q"),
        ]
    ):
        (tmp_path / str(number)).mkdir()
        assert (
            run_main(*(tmp_path / str(number) / part if part == out else part for part in given))
            == 0
        )
    traces = [(tmp_path / str(number) / out).read_bytes() for number in range(3)]
    assert traces[0] == traces[1] == traces[2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "is empty"),
        (b"PK\x03\x04 nothing", "is a compressed file"),
        (b"nothing", "is not an SQLite database"),
        (b"SQLite format 3\x00" + b"\x00" * 200, "cannot be read as an SQLite export"),
    ],
)
def test_what_is_no_export_is_one_line(
    content: bytes | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "bad.sqlite"
    if content is not None:
        report.write_bytes(content)
    assert run_main(RANKS[0], report, tmp_path / "out.prv") == 1
    assert message in (line := read_error_line(capsys))
    assert "bad.sqlite" in line
    assert not list(tmp_path.glob("*out*"))


def test_nothing_to_write_is_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run_main(
            make_export(tmp_path / "r.sqlite", {"StringIds": make_strings("a")}),
            tmp_path / "out.prv",
        )
        == 3
    )
    assert "no supported events to convert" in read_error_line(capsys)
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["one.sqlite"],
        ["a.sqlite", "b.sqlite"],
        ["-t", "nonsense", "a.sqlite", "o.prv"],
        ["-j", "-1", "a.sqlite", "o.prv"],
        ["cfgs", "a", "b"],
        ["--list"],
        ["a.sqlite", "-"],
        ["a.sqlite", "/dev/null"],
        ["--min-duration", "foo=1us", "a.sqlite", "o.prv"],
    ],
)
def test_usage_errors_are_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(*arguments) == 2
    read_error_line(capsys)


def test_kinds_asked_for_and_absent_are_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = make_export(
        tmp_path / "r.sqlite", {KERNEL: [make_kernel(0, 5)], "StringIds": make_strings("k")}
    )
    assert run_main("-t", "kernels,nvtx", report, tmp_path / "out.prv") == 0
    warnings = capsys.readouterr().err
    assert warnings == "nsys2prv: warning: nvtx: the reports contain no events of this kind\n"


@pytest.mark.slow
def test_what_only_comes_along_with_a_name_stays_where_that_is_left_out(tmp_path: Path) -> None:
    """NCCL's kernels belong to its calls, and copies to kernels, but the rows contain more than
    these.
    """
    for words, there, gone in (
        ("-nccl", (63000006, 63000007, 63000001, 9600), (9500,)),
        ("nccl", (63000006, 63000007, 9500), (9600,)),
        # Graphs that were traced as a whole count as kernels (63000006), and are a kind of their own.
        ("-kernels", (63000001, 9500), (63000007,)),
        ("-kernels,-graphs", (63000001, 9500), (63000006, 63000007)),
        ("kernels", (63000006, 63000001), (9500,)),
    ):
        assert run_main("-q", "-t", words, *RANKS, tmp_path / "out.prv") == 0
        trace = (tmp_path / "out.prv").read_text()
        assert all(f":{code}:" in trace for code in there), words
        assert not any(f":{code}:" in trace for code in gone), words


def test_nsys_rep_without_nsys_gives_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("NSYS_HOME", raising=False)
    report = tmp_path / "my rank.nsys-rep"
    report.write_bytes(b"x")
    assert run_main(report, tmp_path / "out.prv") == 1
    assert (
        f"nsys export --type sqlite --force-overwrite true --output '{tmp_path}/my rank.sqlite'"
        in read_error_line(capsys)
    )


def test_nsys_rep_without_nsys_points_at_its_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("NSYS_HOME", raising=False)
    report, export = tmp_path / "rank.0.nsys-rep", tmp_path / "rank.0.sqlite"
    report.write_bytes(b"x")
    export.write_bytes(Path(RANKS[0]).read_bytes())
    assert run_main(report, tmp_path / "out.prv") == 1
    assert f"give {export}, which is in the same folder" in read_error_line(capsys)


#: Stands in for nsys: answers as 2023.4.4 does, which has no --include-json, or as later ones,
#: copies an export to the place that it is told, and writes down its options.
NSYS = """#!/bin/sh
if [ "$2" = --help ]; then echo "usage: nsys export [<args>]
\t--force-overwrite=
{more}"; exit 0; fi
case "{more}:$*" in :*--include-json*) echo "unrecognised option '--include-json'

usage: nsys export [<args>] [nsys-rep-file]
Try 'nsys export --help' for more information."; exit 1;; esac
echo "$*" > "$0.said"
while [ "$1" != --output ]; do shift; done
cp "{export}" "$2"
"""


@pytest.mark.parametrize("more", ["", "\t--include-json="])
def test_nsys_rep_goes_through_nsys(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "nsys home" / "bin"
    home.mkdir(parents=True)
    (home / "nsys").write_text(NSYS.format(more=more, export=RANKS[1]))
    (home / "nsys").chmod(0o755)
    monkeypatch.setenv("NSYS_HOME", str(home.parent))
    (tmp_path / "rank1.nsys-rep").write_bytes(b"x")
    assert run_main("-q", tmp_path / "rank1.nsys-rep", tmp_path / "out.prv") == 0
    assert ("--include-json true" in (home / "nsys.said").read_text()) == bool(more)
    assert run_main("-q", RANKS[1], tmp_path / "direct.prv") == 0
    assert (tmp_path / "out.prv").read_bytes() == (tmp_path / "direct.prv").read_bytes()


def test_an_old_trace_stays_when_the_new_one_fails(tmp_path: Path) -> None:
    (tmp_path / "out.prv").write_text("old")
    assert run_main("-q", tmp_path / "missing.sqlite", tmp_path / "out.prv") == 1
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_cfgs_are_listed_and_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("cfgs") == 0
    listed = capsys.readouterr().out.split()
    assert "views/cuda_activities.cfg" in listed
    assert run_main("cfgs", "--all") == 0
    every = capsys.readouterr().out.split()
    assert every[: len(listed)] == listed
    for folder, more, expected in (("core", (), listed), ("all", ("--all",), every)):
        assert run_main("cfgs", *more, tmp_path / folder) == 0
        written = (tmp_path / folder).rglob("*.cfg")
        assert sorted(str(path.relative_to(tmp_path / folder)) for path in written) == sorted(
            expected
        )


def test_list_tells_what_is_translated(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("--list", RANKS[0]) == 0
    text = capsys.readouterr().out
    for part in ("node01", "0 (RANK)", "kernels", "Not translated", "OSRT_API"):
        assert part in text


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_runs_leave_nothing(number: int, status: int, tmp_path: Path) -> None:
    nsys = tmp_path / "nsys"
    nsys.write_text('#!/bin/sh\ntouch "$0.begun"\nexec sleep 60\n')
    nsys.chmod(0o755)
    (tmp_path / "r.nsys-rep").write_bytes(b"x")
    process = subprocess.Popen(
        [sys.executable, "-m", "nsys2prv", str(tmp_path / "r.nsys-rep"), str(tmp_path / "out.prv")],
        env={**os.environ, "NSYS_HOME": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_for((tmp_path / "nsys.begun").exists, "nsys is not run")
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == status
    assert "Traceback" not in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nsys", "nsys.begun", "r.nsys-rep"]


def test_the_version_has_the_commit_of_a_checkout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert format_version(tmp_path / "site-packages" / "nsys2prv") == f"nsys2prv {__version__}"
    checkout = tmp_path / "checkout"
    (checkout / "nsys2prv").mkdir(parents=True)
    (checkout / "pyproject.toml").write_text("")
    git = ["git", "-C", str(checkout), "-c", "user.name=n", "-c", "user.email=n@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    commit = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout[:12]
    assert (
        format_version(checkout / "nsys2prv")
        == f"nsys2prv {__version__} (commit {commit} in {checkout})"
    )
    # A wheel has it in a file.
    installed = tmp_path / "site-packages" / "nsys2prv"
    (installed / "_util").mkdir(parents=True)
    assert write_commit(checkout, installed / "_util" / COMMIT)
    assert format_version(installed) == f"nsys2prv {__version__} (commit {commit})"
    assert not write_commit(tmp_path, installed / "none")
    with pytest.raises(SystemExit):
        run_main("--version")
    assert capsys.readouterr().out.startswith(f"nsys2prv {__version__}")
