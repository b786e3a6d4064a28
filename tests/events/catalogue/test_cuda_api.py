"""Test the fixed values of CUDA API calls."""

import hashlib
import re
from pathlib import Path

FILE = Path(__file__).parents[3] / "nsys2prv" / "events" / "catalogue" / "cuda_api.txt"
FIRST, LAST = 100, 2499

# The first edition. Changing or removing a line of it renumbers calls in traces that people keep.
FIRST_EDITION_LINES = 1415
FIRST_EDITION_DIGEST = "2fb1ec8080c3de66e32ba7f977acea4a05744f010c4e44c5c97375e38123ac03"


def list_entries() -> list[tuple[int, str]]:
    lines = [
        line for line in FILE.read_text(encoding="ascii").splitlines() if not line.startswith("#")
    ]
    return [(int(value), name) for value, name in (line.split(" ") for line in lines)]


def test_values_are_dense_and_leave_room_for_memory_operations() -> None:
    values = [value for value, _ in list_entries()]
    assert values == list(range(FIRST, FIRST + len(values)))
    assert values[-1] <= LAST


def test_no_name_has_two_values() -> None:
    names = [name for _, name in list_entries()]
    assert len(names) == len(set(names))


def test_published_values_never_change() -> None:
    published = "".join(f"{value} {name}\n" for value, name in list_entries()[:FIRST_EDITION_LINES])
    assert hashlib.sha256(published.encode()).hexdigest() == FIRST_EDITION_DIGEST


def test_names_are_those_of_functions_without_version() -> None:
    for _, name in list_entries():
        assert re.fullmatch(r"(__)?cu(da)?\w+", name), name
        assert not re.search(r"_v\d{4,}$", name), name
        assert not re.fullmatch(r"cuda\d+", name), (
            f"{name} is a placeholder of CUPTI's list, not a function"
        )
        assert name.upper() not in ("INVALID", "SIZE", "FORCE_INT")
