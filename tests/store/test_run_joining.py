"""Small runs are joined before a trace is written, which must not show in it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tools.conversions import convert_and_read, convert_to_bytes

from nsys2prv.store import windows
from nsys2prv.store.runs import BEGIN, END, Run, Shape

SAMPLES = Path(__file__).parents[2] / "sample_reports"


def make_run(shape: Shape, rows: int) -> Run:
    return Run(shape, Path("none"), 0, rows, 0, 0, 0, 0, 0, np.zeros(1, np.int64))


def test_small_runs_of_a_shape_share_a_group_until_it_is_full(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(windows, "SMALL_RUN", 10)
    monkeypatch.setattr(windows, "JOINED_RECORDS", 20)
    begin, end = Shape(BEGIN, "osrt", 1), Shape(END, "osrt", 1)
    runs = [
        make_run(begin, 8),
        make_run(end, 8),
        make_run(begin, 11),
        make_run(begin, 9),
        make_run(begin, 4),
        make_run(end, 10),
    ]
    groups = windows.group_small_runs(runs)
    assert [[runs.index(run) for run in group] for group in groups] == [[0, 3], [1, 5], [2], [4]]
    input_runs = [make_run(begin, 17), make_run(end, 18)]
    joined = windows.join_small_runs(
        runs,
        SimpleNamespace(save=lambda path: None),
        tmp_path,
        lambda function, tasks: [input_runs],
    )
    assert joined == [*input_runs, runs[2], runs[4]]


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["cluster", "graphs", "machine", "training"])
def test_the_trace_has_the_same_lines(
    sample: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster's hosts have clocks of their own, which drift."""
    reports = sorted((SAMPLES / sample).glob("rank*.sqlite"))
    convert_and_read(reports, tmp_path / "usual.prv")
    usual = convert_to_bytes(reports, tmp_path / "joined")
    monkeypatch.setattr(windows, "JOINED_RECORDS", 50)
    little = convert_to_bytes(reports, tmp_path / "little")
    monkeypatch.setattr(windows, "SMALL_RUN", 0)
    alone = convert_to_bytes(reports, tmp_path / "alone")
    assert isinstance(usual, dict)
    for other in (little, alone):
        assert isinstance(other, dict)
        assert {name: sorted(text.splitlines()) for name, text in other.items()} == {
            name: sorted(text.splitlines()) for name, text in usual.items()
        }
