"""Test the fixed values of OS runtime and pthread calls."""

import hashlib
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "nsys2prv" / "events" / "catalogue"
FILES = ("osrt.txt", "pthread.txt")
RANGES = {"osrt.txt": (300, 1999), "pthread.txt": (1, 199)}
# The first editions: lines and digest. Changing or removing a line renumbers calls in traces that
# people keep.
FIRST_EDITIONS = {
    "osrt.txt": (511, "d7cfa999ed3a9d1e64dab2a9b45a1932f435e96f1a8372eac47b67d8e374b7b2"),
    "pthread.txt": (72, "12b2928c8d577462235f22ad24e0e017ed45e77c305904de578c959fda6a12fe"),
}


def list_entries(file: str) -> list[tuple[int, str]]:
    lines = [
        line
        for line in (FOLDER / file).read_text(encoding="ascii").splitlines()
        if not line.startswith("#")
    ]
    return [(int(value), name) for value, name in (line.split(" ") for line in lines)]


@pytest.mark.parametrize("file", FILES)
def test_values_are_dense_and_within_their_range(file: str) -> None:
    values = [value for value, _ in list_entries(file)]
    first, last = RANGES[file]
    assert values == list(range(first, first + len(values)))
    assert values[-1] <= last


@pytest.mark.parametrize("file", FILES)
def test_published_values_never_change(file: str) -> None:
    lines, digest = FIRST_EDITIONS[file]
    published = "".join(f"{value} {name}\n" for value, name in list_entries(file)[:lines])
    assert hashlib.sha256(published.encode()).hexdigest() == digest


def test_every_name_stands_once_and_in_the_file_of_its_kind() -> None:
    names = [(name, file) for file in FILES for _, name in list_entries(file)]
    assert len(names) == len({name for name, _ in names})
    for name, file in names:
        assert re.fullmatch(r"[A-Za-z_]\w*", name), name
        assert name.startswith("pthread") == (file == "pthread.txt"), name
