"""Test that other files given by users must be regular files of a plausible size."""

import os
from pathlib import Path

import pytest

from nsys2prv._util import files
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import read_given
from nsys2prv.cli import main

OPTIONS = ("--kernel-rules", "--nvtx-rules", "--align")


@pytest.mark.parametrize("option", OPTIONS)
def test_a_pipe_is_refused_and_not_waited_for(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert main([option, str(tmp_path / "pipe"), "r.sqlite", "out.prv"]) == 1
    assert (
        capsys.readouterr().err
        == f"nsys2prv: error: {tmp_path}/pipe: is not a regular file; give the name of a file\n"
    )


@pytest.mark.parametrize("option", OPTIONS)
def test_a_huge_file_is_refused(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(files.LARGEST_TEXT + 1)
    assert main([option, str(tmp_path / "huge"), "r.sqlite", "out.prv"]) == 1
    assert "is larger than 32.0 MB" in capsys.readouterr().err


def test_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_given(tmp_path / "file", 5) == b"12345"
    with pytest.raises(Nsys2prvError, match="is larger than 4 B"):
        read_given(tmp_path / "file", 4)
    (tmp_path / "link").symlink_to("file")
    assert read_given(tmp_path / "link") == b"12345"
    with pytest.raises(IsADirectoryError):
        read_given(tmp_path)
