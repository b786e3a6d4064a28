"""Test file systems that are full, read-only or gone: one line is printed, the earlier trace
remains, and nothing is left behind.
"""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tools.commands import GRAPHS, SAMPLES, read_error, read_folder, run_command

from nsys2prv import Options, convert
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import create_temporary_file
from nsys2prv.conversion import read as reading
from nsys2prv.conversion import write
from nsys2prv.table import runs, task_result
from nsys2prv.writers.paraver import prv

REPORTS = sorted((SAMPLES / "training").glob("*.sqlite"))


def mount_disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder],
        capture_output=True,
        check=False,
    ).returncode:
        pytest.skip("this user cannot mount a file system; the injected faults stand for it")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture(params=["16k", "120k", "400k"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    yield from mount_disk(tmp_path / "small", request.param)


@pytest.fixture
def unwritable(tmp_path: Path) -> Iterator[Path]:
    yield from mount_disk(tmp_path / "ro", "64k")


@pytest.mark.slow
def test_an_output_on_a_full_disk(small: Path) -> None:
    (small / "out.pcf").write_text("earlier")
    message = read_error(run_command("-q", *REPORTS, small / "out.prv"))
    assert "no space left" in message
    assert "--tmp" in message
    assert read_folder(small) == {"out.pcf": b"earlier"}


@pytest.mark.slow
def test_an_output_on_a_full_disk_with_temporary_files_elsewhere(
    small: Path, tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    process = run_command("-q", "--tmp", tmp_path / "tmp", "-j", "2", *REPORTS, small / "out.prv")
    if process.returncode:
        assert "no space left" in read_error(process)
        assert read_folder(small) == {}
    else:
        assert sorted(read_folder(small)) == ["out.clock.yaml", "out.pcf", "out.prv", "out.row"]
    assert read_folder(tmp_path / "tmp") == {}


@pytest.mark.slow
def test_temporary_files_on_a_full_disk(small: Path, tmp_path: Path) -> None:
    message = read_error(run_command("-q", "--tmp", small, *REPORTS, tmp_path / "out.prv"))
    assert f"no space left in {small}" in message
    assert read_folder(small) == {}
    assert [path for path in tmp_path.iterdir() if path != small] == []


@pytest.mark.slow
def test_a_read_only_output_folder(unwritable: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", unwritable], check=True)
    assert f"{unwritable}: no permission to write" in read_error(
        run_command("-q", GRAPHS, unwritable / "out.prv")
    )


def fill_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_in_polars(*_: object, **__: object) -> None:
    with open("/dev/full", "wb") as file:
        pl.DataFrame({"a": range(100_000)}).write_ipc(file)


WRITERS = [
    (write, "append_window"),
    (runs.SpillWriter, "append"),
    (runs.SpillWriter, "close"),
    (prv, "write_pcf"),
    (task_result, "spill_rows"),
    (write, "save_object"),
]


@pytest.mark.slow
@pytest.mark.parametrize("how", [fill_disk, read_in_polars])
@pytest.mark.parametrize(
    ("where", "name"), WRITERS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_writer_on_a_full_disk(
    where: object, name: str, how: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how is read_in_polars and not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    for ending in ("prv", "pcf", "row", "clock.yaml"):
        (tmp_path / f"out.{ending}").write_text(f"earlier {ending}")
    before = read_folder(tmp_path)
    monkeypatch.setattr(where, name, how)
    with pytest.raises(Nsys2prvError, match="no space left") as raised:
        convert(REPORTS[:2], tmp_path / "out.prv", Options())
    assert "\n" not in str(raised.value)
    assert read_folder(tmp_path) == before


@pytest.mark.parametrize("write", [np.save, lambda file, array: file.write(array.data)])
def test_a_temporary_file_of_an_analysis_on_a_full_disk(write: Callable) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with (
        pytest.raises(Nsys2prvError, match=r"^/dev/full: no space left on device; .* --tmp DIR$"),
        create_temporary_file(Path("/dev/full")) as file,
    ):
        write(file, np.zeros(100_000))


def test_an_output_folder_that_vanishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    for module, name in ((reading, "read_task"), (prv, "write_pcf")):
        folder.mkdir()
        with monkeypatch.context() as patch:
            original = getattr(module, name)
            patch.setattr(
                module,
                name,
                lambda *given, original=original: (shutil.rmtree(folder), original(*given)),
            )
            with pytest.raises(
                Nsys2prvError, match=f"{folder}: the folder or its file system was removed"
            ):
                convert(REPORTS[:1], folder / "out.prv", Options())
        assert not folder.exists()


def test_temporary_files_go_where_they_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    folders = []
    original = reading.read_task
    monkeypatch.setattr(
        reading, "read_task", lambda task: (folders.append(task.folder), original(task))[1]
    )
    convert(REPORTS[:1], tmp_path / "out.prv", Options(tmp=tmp_path / "tmp"))
    assert folders
    assert all(tmp_path / "tmp" in folder.parents for folder in folders)
    assert read_folder(tmp_path / "tmp") == {}
