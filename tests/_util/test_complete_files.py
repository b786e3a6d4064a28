"""Test that files written together appear together, or not at all."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nsys2prv._util import errors
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import overwrite, write_complete_files
from nsys2prv.writers.paraver.views import copy_views


def list_all(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else ""
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("failing", range(1, 6))
def test_all_or_none(failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "s.json").write_text("earlier")
    before, plain, count = list_all(tmp_path), Path.replace, 0

    def replace(path: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == failing:
            raise OSError(28, "No space left on device")
        return plain(path, target)

    names = ["a/s.json", "a/s.html", "b/c/s.md", "s.csv"]
    texts = {tmp_path / name: name for name in names}
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(Nsys2prvError, match="No space left"):
            write_complete_files(texts)
    assert list_all(tmp_path) == before
    write_complete_files(texts)
    assert {name for name, text in list_all(tmp_path).items() if text} == {*names}


def test_views_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, count = Path.write_text, 0

    def write_text(path: Path, *args: object, **more: object) -> int:
        nonlocal count
        count += 1
        if count == 9:
            raise OSError(28, "No space left on device")
        return plain(path, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", write_text)
        with pytest.raises(Nsys2prvError, match="No space left"):
            copy_views(tmp_path / "views")
    assert list_all(tmp_path) == {}


def test_who_interrupts_is_told_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "_written", [])
    assert str(errors.EndedBySignal(2)) == "interrupted; nothing was written"
    write_complete_files({tmp_path / "a.json": "{}", tmp_path / "a.html": ""})
    assert str(errors.EndedBySignal(2)) == (
        f"interrupted; {tmp_path / 'a.json'} and 1 more had been written"
    )


def test_parts_are_overwritten_at_once(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    path.write_bytes(bytes(4000))
    parts = [bytes([number]) * 100 for number in range(1, 41)]

    def write(number: int) -> None:
        overwrite(path, 100 * number, memoryview(parts[number]))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(40)))
    assert path.read_bytes() == b"".join(parts)
