"""Outputs that are there already: replaced together, by complete files only, and never through a link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tools.commands import GRAPHS, SAMPLES, command, content

from nsys2prv import temporary

NAMES = ("out.prv", "out.pcf", "out.row", "out.clock.yaml", "out.report.json", "out.report.html", "out.nsys2prv.json")
OLD = {name: f"old {name}".encode() for name in NAMES[:4]}
NEW = {name: f"new {name}".encode() for name in (*NAMES[:3], NAMES[4])}


def staged(folder: Path) -> Path:
    staging = folder / temporary.Owner.current().new_name()
    staging.mkdir(parents=True)
    for name, text in NEW.items():
        (staging / name).write_bytes(text)
    for name, text in OLD.items():
        (folder / name).write_bytes(text)
    return staging


def finals(folder: Path) -> list[Path]:
    return [folder / name for name in NAMES]


def found(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_all_files_are_replaced(tmp_path: Path) -> None:
    temporary.put_in_place(staged(tmp_path), finals(tmp_path))
    assert found(tmp_path) == NEW


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("at", range(8))
def test_an_interruption_between_any_two_files_leaves_all_old_or_all_new(at: int, late: bool, tmp_path: Path,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    staging = staged(tmp_path)
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
        temporary.put_in_place(staging, finals(tmp_path))
    assert found(tmp_path) == (NEW if at == 7 and late else OLD)


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
            with temporary.temporary_folder(tmp_path) as folder:
                for name, text in NEW.items():
                    (folder / name).write_bytes(text)
                for name, text in OLD.items():
                    (tmp_path / name).write_bytes(text)
                Path.replace = killed  # type: ignore[method-assign]
                temporary.put_in_place(folder, finals(tmp_path))
                os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert len([path for path in tmp_path.iterdir() if path.name.startswith(temporary.PREFIX)]) == 1
    if at < 8:
        assert not (tmp_path / "out.prv").exists() or at == 0
    temporary.remove_leftovers(tmp_path)
    assert found(tmp_path) == (NEW if at == 8 else OLD)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(temporary.PREFIX)]


@pytest.mark.slow
def test_links_are_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    for name in NAMES:
        (tmp_path / "theirs" / name).write_text("not mine")
        (tmp_path / name).symlink_to(tmp_path / "theirs" / name)
    before = content(tmp_path / "theirs")
    done = command("-q", "--report", GRAPHS, tmp_path / "out.prv")
    assert done.returncode == 0, done.stderr
    assert content(tmp_path / "theirs") == before
    assert not any((tmp_path / name).is_symlink() for name in NAMES)
    (tmp_path / "report.json").symlink_to(tmp_path / "theirs" / "out.prv")
    assert command("report", "-q", GRAPHS, "--json", tmp_path / "report.json").returncode == 0
    assert content(tmp_path / "theirs") == before


@pytest.mark.slow
def test_a_trace_over_an_earlier_one(tmp_path: Path) -> None:
    """Files that the new one has none of go: they would tell of the earlier one."""
    cluster = sorted((SAMPLES / "cluster").glob("*.sqlite"))
    assert command("-q", "--report", *cluster, tmp_path / "out.prv").returncode == 0
    assert sorted(content(tmp_path)) == sorted(NAMES)
    assert command("-q", GRAPHS, tmp_path / "out.prv").returncode == 0
    assert command("-q", GRAPHS, tmp_path / "other.prv").returncode == 0
    ours, others = ({name.removeprefix(start): text.replace(b"other.", b"out.") for name, text in content(tmp_path).items()
                     if name.startswith(start)} for start in ("out.", "other."))
    assert ours == others


@pytest.mark.slow
def test_no_earlier_trace_of_the_other_form_stays_beside_new_labels(tmp_path: Path) -> None:
    for given, form in (("out.prv", "out.prv"), ("out.prv.gz", "out.prv.gz"), ("out", "out.prv")):
        assert command("-q", GRAPHS, tmp_path / given).returncode == 0
        assert sorted(path.name for path in tmp_path.glob("out.prv*")) == [form]


@pytest.mark.slow
def test_a_clock_file_that_is_given_stays(tmp_path: Path) -> None:
    cluster = sorted((SAMPLES / "cluster").glob("*.sqlite"))
    clock = tmp_path / "out.clock.yaml"
    assert command("-q", *cluster, tmp_path / "out.prv").returncode == 0
    clock.write_text(f"# by hand\n{clock.read_text()}")
    before = clock.read_bytes()
    for reports in (cluster, cluster[:2]):
        done = command("--align", clock, *reports, tmp_path / "out.prv")
        assert done.returncode == 0, done.stderr
        assert clock.read_bytes() == before
        assert str(clock) not in done.stdout
