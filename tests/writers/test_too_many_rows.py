"""Test jobs with more rows than Paraver can show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.trace_reader import read_trace

from nsys2prv import Options, convert
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.conversion.options import CutOptions
from nsys2prv.writers.paraver import prv

REPORTS = sorted((Path(__file__).parents[2] / "sample_reports" / "training").glob("*.sqlite"))


def test_the_ranks_that_are_named_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(REPORTS, tmp_path / "all.prv")
    rows = [threads for threads, _ in read_trace(tmp_path / "all.prv").tasks]
    monkeypatch.setattr(prv, "MOST_OBJECTS", sum(rows[:3]) + 1)
    monkeypatch.setattr(prv, "SPARE_ROWS", 1)
    with pytest.raises(Nsys2prvError, match=f"{sum(rows)} rows, but Paraver can show") as raised:
        convert(REPORTS, tmp_path / "more.prv")
    ranks = re.search(r"--ranks (\S+),", str(raised.value))
    assert ranks
    convert(REPORTS, tmp_path / "part.prv", Options(cut=CutOptions(ranks=(ranks[1],))))
    assert len(read_trace(tmp_path / "part.prv").tasks) == 3
    convert(REPORTS, tmp_path / "more.pftrace")


def test_the_rows_that_are_offered_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(REPORTS, tmp_path / "all.prv")
    trace = read_trace(tmp_path / "all.prv")
    rows = sum(threads for threads, _ in trace.tasks)
    gpus = [name for name in trace.names["THREAD"] if not name.startswith("THREAD ")]
    for most, words, kept in (
        (rows - 1, "main,gpu", len(gpus) + len(REPORTS)),
        (len(gpus) + 1, "gpu", len(gpus)),
        (len(gpus) - 1, "main", len(REPORTS)),
    ):
        monkeypatch.setattr(prv, "MOST_OBJECTS", most)
        with pytest.raises(Nsys2prvError, match=rf"try --keep-rows {words} \({kept} rows\), "):
            convert(REPORTS, tmp_path / "more.prv")
        cut = CutOptions(keep_rows=tuple(words.split(",")))
        convert(REPORTS, tmp_path / "part.prv", Options(cut=cut))
        assert sum(threads for threads, _ in read_trace(tmp_path / "part.prv").tasks) == kept
