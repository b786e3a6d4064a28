"""Test that small units are joined for analyses, without changing any value."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tools.commands import SAMPLES

import nsys2prv
from nsys2prv.show.finished_job import FinishedJob
from nsys2prv.show.page import make_job_page
from nsys2prv.table import event_reader


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cluster", "graphs", "machine", "training"])
def test_joined_units_have_the_figures_of_each(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def analyse(reports: list[Path]) -> tuple[int, str, str]:
        with nsys2prv.open(reports, jobs=1) as job:
            answer = FinishedJob(job.describe(), job.analyse()).to_json()
            return len(job.units), answer, make_job_page(job)

    reports = sorted((SAMPLES / name).glob("*.sqlite"))
    joined, *of_joined = analyse(reports)
    monkeypatch.setattr(event_reader, "JOINED_UNITS", 1)
    apart, *of_apart = analyse(reports)
    assert joined < apart
    assert of_joined == of_apart


def test_units_are_joined_up_to_a_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    with nsys2prv.open(sorted((SAMPLES / "cluster").glob("*.sqlite")), jobs=1) as job:
        apart = job.reader.rows.units_apart
        assert job.units == [0]
        assert sorted({*apart.tolist()}) == [0, 1, 2, 3]
        monkeypatch.setattr(event_reader, "JOINED_ROWS", 1)
        whole = replace(job.reader, rows=replace(job.reader.rows, units=apart))
        assert whole.join_small_units() is whole
