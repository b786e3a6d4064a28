"""Test plain numbers of NVTX events: of every type, on ranges and marks, with hand-made exports."""

import sqlite3
from pathlib import Path

import pytest
from events.test_nvtx_payloads import DOMAIN, MARK, STARTEND, list_numbers, make_event
from tools.conversions import convert_and_read
from tools.exports import Row, make_export
from tools.trace import Trace

from nsys2prv.conversion.summary import Summary

NONE = dict.fromkeys(
    ("uint64Value", "int64Value", "doubleValue", "uint32Value", "int32Value", "floatValue")
)
LARGEST = (1 << 63) - 2


def convert_events(folder: Path, *rows: Row) -> tuple[Trace, Summary]:
    """Convert an export with these NVTX rows."""
    created = make_event(0, None, kind=DOMAIN, text="lib", **NONE)
    report = make_export(
        folder / "r.sqlite", {"NVTX_EVENTS": [created, make_event(0, 1, domain=0, **NONE), *rows]}
    )
    return convert_and_read([report], folder / "o.prv")


def make_valued_event(
    start: int, end: int | None, kind: int = 59, domain: int = 1, **value: object
) -> Row:
    return make_event(start, end, kind=kind, domain=domain, **{**NONE, **value})


def test_each_type_on_ranges_and_marks(tmp_path: Path) -> None:
    trace, summary = convert_events(
        tmp_path,
        make_valued_event(10, 20, uint64Value=7),
        make_valued_event(30, 40, int64Value=8),
        make_valued_event(50, 60, STARTEND, uint32Value=9),
        make_valued_event(70, None, MARK, int32Value=10),
        make_valued_event(80, 90, doubleValue=0.25),
        make_valued_event(100, 110, floatValue=1.5),
        make_valued_event(120, 130, domain=0, int64Value=3),
        make_valued_event(140, 150),
    )
    assert list_numbers(trace, "lib: payload") == [
        (10, 7),
        (20, 0),
        (30, 8),
        (40, 0),
        (50, 9),
        (60, 0),
        (70, 10),
        (71, 0),
    ]
    assert list_numbers(trace, "lib: payload (fraction)") == [
        (80, 25),
        (90, 0),
        (100, 150),
        (110, 0),
    ]
    assert list_numbers(trace, "default domain: payload") == [(120, 3), (130, 0)]
    assert not summary.dropped
    assert not summary.repaired


def test_what_a_trace_cannot_hold_is_counted(tmp_path: Path) -> None:
    trace, summary = convert_events(
        tmp_path,
        make_valued_event(10, 20, int64Value=-5),
        make_valued_event(30, 40, uint64Value=-1),
        make_valued_event(50, 60, int32Value="x"),
    )
    assert list_numbers(trace, "lib: payload") == [(10, 0), (20, 0), (30, LARGEST), (40, 0)]
    assert sum(count for (kind, _), count in summary.repaired.items() if kind == "nvtx_values") == 2


def test_an_export_without_these_columns(tmp_path: Path) -> None:
    report = make_export(tmp_path / "r.sqlite", {"NVTX_EVENTS": [make_event(0, 10)]})
    trace, _ = convert_and_read([report], tmp_path / "o.prv")
    assert not trace.samples


SAMPLES = sorted((Path(__file__).parents[2] / "sample_reports").glob("*/rank0.sqlite"))


@pytest.mark.parametrize("report", SAMPLES, ids=lambda path: path.parent.name)
def test_numbers_of_the_samples(report: Path, tmp_path: Path) -> None:
    connection = sqlite3.connect(f"file:{report}?mode=ro", uri=True)
    whole, real = connection.execute(
        "SELECT sum(coalesce(uint64Value, int64Value, uint32Value, int32Value)), "
        "sum(coalesce(doubleValue, floatValue)) FROM NVTX_EVENTS"
    ).fetchone()
    connection.close()
    trace, _ = convert_and_read([report], tmp_path / "o.prv", kinds=("nvtx_values",))
    sums = {
        fraction: sum(
            value / 10 ** trace.labels.precision.get(code, 0)
            for code, label in trace.labels.types.items()
            if ("(fraction)" in label) == fraction
            for _, value in list_numbers(trace, label)
        )
        for fraction in (False, True)
    }
    assert sums == {False: whole, True: pytest.approx(real)}
    assert real > 0
