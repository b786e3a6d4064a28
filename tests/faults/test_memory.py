"""Test limits on address space: one line if too little, and success with little."""

from functools import partial
from pathlib import Path

import pytest
from tools.commands import SAMPLES, read_error, read_folder, run_command

from nsys2prv._util.budget import NEEDED_BYTES

resource = pytest.importorskip("resource")


def limit_memory(size: int) -> dict[str, object]:
    """Return options of a command whose processes have so many bytes of address space."""
    return {"preexec_fn": partial(resource.setrlimit, resource.RLIMIT_AS, (size, size))}


@pytest.mark.slow
@pytest.mark.parametrize("size", [200 << 20, NEEDED_BYTES - (1 << 20)])
@pytest.mark.parametrize("words", [["-j", "2"], ["report"]])
def test_too_little_address_space(words: list[str], size: int, tmp_path: Path) -> None:
    target = [tmp_path / "out.prv"]
    message = read_error(
        run_command(*words, SAMPLES / "training" / "rank0.sqlite", *target, **limit_memory(size))
    )
    assert f"may have {size >> 20} MB of address space (ulimit -v)" in message
    assert read_folder(tmp_path) == {}


@pytest.mark.slow
def test_little_address_space_is_enough(tmp_path: Path) -> None:
    """As little as is accepted."""
    reports = sorted((SAMPLES / "cluster").glob("*.sqlite"))
    outcomes = []
    for name, more in {"limited": limit_memory(NEEDED_BYTES), "usual": {}}.items():
        (tmp_path / name).mkdir()
        process = run_command("-q", *reports, tmp_path / name / "out.prv", **more)
        outcomes.append((process.returncode, process.stderr, read_folder(tmp_path / name)))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == 0


def test_help_needs_no_memory() -> None:
    assert run_command("--version", **limit_memory(NEEDED_BYTES // 2)).returncode == 0
