"""Test that mutated inputs never lead to a traceback, a hang, partial output or a secret: a few
always, many with ``pytest -m fuzz``.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from nsys2prv._util.native import core

from . import against_sqlite, pages, runner
from .bases import ROOT, make_bases

FEW, MANY = 40, 2000
DAMAGED = [ROOT / "sample_reports/graphs/rank1.sqlite"]


def check_handled(count: int, first: int, folder: Path) -> None:
    (folder / "bases").mkdir()
    make_bases(folder / "bases")
    tally = runner.run_all(range(first, first + count), folder)
    assert tally.inputs == count
    assert not tally.faults, tally.faults
    # Inputs that are all refused, or all sound, would show nothing.
    assert set(tally.statuses) >= {"0", "1"}
    assert len(tally.mutations) > 15


@pytest.mark.slow
def test_a_few_mutated_inputs(tmp_path: Path) -> None:
    check_handled(FEW, 0, tmp_path)


@pytest.mark.fuzz
def test_many_mutated_inputs(tmp_path: Path) -> None:
    check_handled(MANY, FEW, tmp_path)


def check_damages(seeds: range, folder: Path, expected: int) -> None:
    results = [told for _, *told in pages.try_damages(seeds, DAMAGED, folder)]
    assert not [told for told in results if told[-1]]
    assert sum(told[2] == "refused, table and page" for told in results) >= expected


@pytest.mark.slow
def test_a_few_damaged_pages(tmp_path: Path) -> None:
    check_damages(range(24), tmp_path, 6)


@pytest.mark.slow
def test_a_few_damaged_pages_without_the_compiled_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsys2prv.export.sqlite.open_pages", lambda path: None)
    check_damages(range(12), tmp_path, 2)


@pytest.mark.fuzz
def test_a_thousand_damaged_pages(tmp_path: Path) -> None:
    check_damages(range(1000), tmp_path, 300)


def check_against_sqlite(seeds: range, folder: Path, reports: Sequence[Path] = ()) -> None:
    bases = against_sqlite.make_bases(folder, reports)
    for base in bases:
        (folder / "sound.sqlite").write_bytes(base.data)
        assert not against_sqlite.compare_reading(folder / "sound.sqlite")
    results, faults = against_sqlite.try_seeds(seeds, bases, folder)
    assert not faults
    # Files that are all refused, or all sound, would show nothing.
    came = Counter(result for _, result in results.elements())
    assert min(came["refused"], came["equal"]) > len(seeds) // 10


@pytest.mark.skipif(core is None, reason="installed without a compiler")
def test_the_core_equals_sqlite_on_a_few_damaged_files(tmp_path: Path) -> None:
    check_against_sqlite(range(80), tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(core is None, reason="installed without a compiler")
def test_the_core_equals_sqlite_on_damaged_files(tmp_path: Path) -> None:
    check_against_sqlite(range(80, 280), tmp_path, DAMAGED)


@pytest.mark.fuzz
@pytest.mark.skipif(core is None, reason="installed without a compiler")
def test_the_core_equals_sqlite_on_thousands_of_damaged_files(tmp_path: Path) -> None:
    check_against_sqlite(range(1000, 11_000), tmp_path, DAMAGED)
