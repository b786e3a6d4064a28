"""Test outputs that already exist: they are replaced together, only by complete files, and never
through a link.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tools.commands import GRAPHS, SAMPLES, read_folder, run_command
from tools.folders import convert_export_folder

from nsys2prv import convert
from nsys2prv._util import files
from nsys2prv._util.errors import UsageError
from nsys2prv.cli import main

NAMES = (
    "out.prv",
    "out.pcf",
    "out.row",
    "out.clock.yaml",
    "out.report.json",
    "out.report.html",
    "out.nsys2prv.json",
)
OLD = {name: f"old {name}".encode() for name in NAMES[:4]}
NEW = {name: f"new {name}".encode() for name in (*NAMES[:3], NAMES[4])}


def list_staged(folder: Path) -> Path:
    staging = folder / files.make_temporary_name()
    staging.mkdir(parents=True)
    for name, text in NEW.items():
        (staging / name).write_bytes(text)
    for name, text in OLD.items():
        (folder / name).write_bytes(text)
    return staging


def list_final_names(folder: Path) -> list[Path]:
    return [folder / name for name in NAMES]


def read_found_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_all_files_are_replaced(tmp_path: Path) -> None:
    files.put_in_place(list_staged(tmp_path), list_final_names(tmp_path))
    assert read_found_files(tmp_path) == NEW


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("at", range(8))
def test_an_interruption_between_any_two_files_leaves_all_old_or_all_new(
    at: int, late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = list_staged(tmp_path)
    calls = iter(range(1000))
    replace = Path.replace

    def interrupted(self: Path, target: Path) -> None:
        number = next(calls)
        if number == at and not late:
            raise KeyboardInterrupt
        replace(self, target)
        if number == at:
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.put_in_place(staging, list_final_names(tmp_path))
    assert read_found_files(tmp_path) == (NEW if at == 7 and late else OLD)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("at", range(9))
def test_a_kill_between_any_two_files_is_undone_by_the_next_run(at: int, tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        replace = Path.replace
        calls = iter(range(1000))

        def killed(self: Path, target: Path) -> None:
            if next(calls) == at:
                os._exit(0)
            replace(self, target)

        try:
            with files.make_temporary_folder(tmp_path) as folder:
                for name, text in NEW.items():
                    (folder / name).write_bytes(text)
                for name, text in OLD.items():
                    (tmp_path / name).write_bytes(text)
                Path.replace = killed  # type: ignore[method-assign]
                files.put_in_place(folder, list_final_names(tmp_path))
                os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert len([path for path in tmp_path.iterdir() if path.name.startswith(files.PREFIX)]) == 1
    if at < 8:
        assert not (tmp_path / "out.prv").exists() or at == 0
    files.remove_leftovers(tmp_path)
    assert read_found_files(tmp_path) == (NEW if at == 8 else OLD)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(files.PREFIX)]


@pytest.mark.slow
def test_links_are_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    for name in NAMES:
        (tmp_path / "theirs" / name).write_text("not mine")
        (tmp_path / name).symlink_to(tmp_path / "theirs" / name)
    before = read_folder(tmp_path / "theirs")
    process = run_command("-q", "--report", GRAPHS, tmp_path / "out.prv")
    assert process.returncode == 0, process.stderr
    assert read_folder(tmp_path / "theirs") == before
    assert not any((tmp_path / name).is_symlink() for name in NAMES)
    (tmp_path / "report.json").symlink_to(tmp_path / "theirs" / "out.prv")
    assert run_command("report", "-q", GRAPHS, "--json", tmp_path / "report.json").returncode == 0
    assert read_folder(tmp_path / "theirs") == before


@pytest.mark.slow
def test_a_trace_over_an_earlier_one(tmp_path: Path) -> None:
    """Files that the new one has none of go: they would tell of the earlier one."""
    cluster = sorted((SAMPLES / "cluster").glob("*.sqlite"))
    assert run_command("-q", "--report", *cluster, tmp_path / "out.prv").returncode == 0
    assert sorted(read_folder(tmp_path)) == sorted(NAMES)
    assert run_command("-q", GRAPHS, tmp_path / "out.prv").returncode == 0
    assert run_command("-q", GRAPHS, tmp_path / "other.prv").returncode == 0
    ours, others = (
        {
            name.removeprefix(start): text.replace(b"other.", b"out.")
            for name, text in read_folder(tmp_path).items()
            if name.startswith(start)
        }
        for start in ("out.", "other.")
    )
    assert ours == others


@pytest.mark.slow
def test_no_earlier_trace_of_the_other_form_stays_beside_new_labels(tmp_path: Path) -> None:
    for output, form in (("out.prv", "out.prv"), ("out.prv.gz", "out.prv.gz"), ("out", "out.prv")):
        assert run_command("-q", GRAPHS, tmp_path / output).returncode == 0
        assert sorted(path.name for path in tmp_path.glob("out.prv*")) == [form]


@pytest.mark.slow
def test_a_clock_file_that_is_given_stays(tmp_path: Path) -> None:
    cluster = sorted((SAMPLES / "cluster").glob("*.sqlite"))
    clock = tmp_path / "out.clock.yaml"
    assert run_command("-q", *cluster, tmp_path / "out.prv").returncode == 0
    clock.write_text(f"# by hand\n{clock.read_text()}")
    before = clock.read_bytes()
    for reports in (cluster, cluster[:2]):
        process = run_command("--align", clock, *reports, tmp_path / "out.prv")
        assert process.returncode == 0, process.stderr
        assert clock.read_bytes() == before
        assert str(clock) not in process.stdout


# ---- outputs that are inputs ------------------------------------------------------------------------------------------------------------


def make_hard_link(target: Path, link: Path) -> None:
    os.link(target, link)


def make_soft_link(target: Path, link: Path) -> None:
    link.symlink_to(target)


def move_file(target: Path, link: Path) -> None:
    target.replace(link)


@pytest.mark.parametrize("name", [*NAMES, "out.prv.gz"])
@pytest.mark.parametrize("make_link", [move_file, make_hard_link, make_soft_link])
def test_no_report_is_written_over(
    name: str, make_link: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    report, further = tmp_path / "r.sqlite", tmp_path / "s.sqlite"
    for path in (report, further):
        shutil.copyfile(GRAPHS, path)
    make_link(report, tmp_path / name)
    before = read_folder(tmp_path)
    output = report if report.exists() else tmp_path / name
    with pytest.raises(UsageError, match=f"{name}: would overwrite .*, which is an input"):
        convert([further, output], tmp_path / "out.prv")
    assert main(["-q", str(output), str(further), str(tmp_path / "out")]) == 2
    assert read_folder(tmp_path) == before


def test_rules_are_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "other.row").write_text("rules: []\n")
    before = read_folder(tmp_path)
    for option in ("--kernel-rules", "--nvtx-rules"):
        rules = [option, str(tmp_path / "other.row")]
        assert main(["-q", *rules, str(GRAPHS), str(tmp_path / "other")]) == 2
    assert read_folder(tmp_path) == before


def test_nothing_that_is_read_is_written_over_by_an_analysis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, rules, clocks, table = (
        tmp_path / name
        for name in ("job.json", "rules.yaml", "clocks.yaml", "r/NVTX_EVENTS.parquet")
    )
    assert main(["report", "-q", str(GRAPHS), "--json", str(job)]) == 0
    rules.write_text("rules: []\n")
    clocks.write_text("hosts: {}\n")
    convert_export_folder(GRAPHS, table.parent)
    make_soft_link(GRAPHS, tmp_path / "link.json")
    before = read_folder(tmp_path)
    for arguments in (
        ["report", job, "--html", job],
        ["report", GRAPHS, "--kernel-rules", rules, "--json", rules],
        ["report", GRAPHS, "--align", clocks, "--html", clocks],
        ["report", table.parent, "--json", table],
        ["report", GRAPHS, "--json", tmp_path / "link.json"],
        ["diff", job, GRAPHS, "--json", job],
        ["report", GRAPHS, "--json", tmp_path / "new", "--html", tmp_path / "new"],
    ):
        assert main(list(map(str, arguments))) == 2, arguments
        assert capsys.readouterr().err.count("nsys2prv: error:") == 1
    assert read_folder(tmp_path) == before
