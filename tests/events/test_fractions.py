"""Test fractions in NVTX payloads: each name has one scale in the whole job, so that different
values stay different.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tools.conversions import convert_and_read
from tools.exports import Row, make_export, make_global_tid
from tools.trace import Trace

from nsys2prv import Options, convert
from nsys2prv.conversion.summary import Summary
from nsys2prv.events.attributes import GREATEST
from nsys2prv.events.kind import Reason
from nsys2prv.writers.paraver.check import CheckFindings, check_pcf

DOMAIN, RANGE = 75, 59


def make_report(
    path: Path,
    texts: Sequence[str | float],
    pid: int = 10,
    column: str = "jsonText",
    name: str = "lr",
) -> Path:
    """Write a report with a range of 5 ns every 10 ns, each with a number."""
    rows: list[Row] = [
        {
            "start": 0,
            "end": None,
            "eventType": DOMAIN,
            "text": "lib",
            "globalTid": make_global_tid(pid),
            "domainId": 1,
        }
    ]
    for number, text in enumerate(texts):
        content = (
            json.dumps({name: text}) if column == "jsonText" and isinstance(text, float) else text
        )
        rows.append(
            {
                "start": 10 * number,
                "end": 10 * number + 5,
                "eventType": RANGE,
                "text": "r",
                "globalTid": make_global_tid(pid),
                "domainId": 1,
                column: content,
            }
        )
    return make_export(path, {"NVTX_EVENTS": rows})


def list_values(trace: Trace, label: str) -> list[int]:
    """Return the numbers of a type that are not 0, by time."""
    codes = [code for code, known in trace.labels.types.items() if known == label]
    return [
        sample.numbers[code]
        for code in codes
        for sample in trace.samples
        if sample.numbers.get(code)
    ]


def convert_numbers(folder: Path, *texts: float | str) -> tuple[Trace, Summary]:
    """Convert a report with ranges that have these numbers."""
    return convert_and_read([make_report(folder / "r.sqlite", texts)], folder / "o.prv")


@pytest.mark.parametrize(
    ("numbers", "decimals", "expected"),
    [
        ((0.0003, 1e-5), 5, [30, 1]),
        ((0.1234567, 0.1234568), 7, [1234567, 1234568]),
        ((2.0, 3.0), 0, [2, 3]),
        ((0.30000000000000004, 0.3), 17, [30000000000000004, 30000000000000000]),
        ((1e6, 1e-12), 12, [10**18, 1]),
        ((1e-30, 3e-30), 30, [1, 3]),
    ],
)
def test_different_fractions_stay_different(
    tmp_path: Path, numbers: tuple[float, ...], decimals: int, expected: list[int]
) -> None:
    trace, summary = convert_numbers(tmp_path, *numbers)
    label = "lib: lr (fraction)"
    assert list_values(trace, label) == expected
    assert {
        trace.labels.precision.get(code, 0)
        for code, known in trace.labels.types.items()
        if known == label
    } == {decimals}
    assert not summary.repaired
    assert not [warning for warning in summary.warnings if "lib: lr" in warning]


def test_random_fractions_can_be_read_back(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    numbers = (10.0 ** random.uniform(-9, 3, 3000)).tolist()
    trace, _ = convert_numbers(tmp_path, *numbers)
    [(code, label)] = [
        (code, label) for code, label in trace.labels.types.items() if label.startswith("lib: lr")
    ]
    decimals = trace.labels.precision[code]
    assert list_values(trace, label) == pytest.approx(
        [number * 10**decimals for number in numbers], abs=0.51, rel=1e-15
    )
    assert len(set(list_values(trace, label))) == len(set(numbers))


def test_numbers_of_32_bits_have_their_own_short_form(tmp_path: Path) -> None:
    report = make_report(
        tmp_path / "r.sqlite",
        [float(np.float32(0.0003)), float(np.float32(1 / 3))],
        column="floatValue",
    )
    trace, _ = convert_and_read([report], tmp_path / "o.prv")
    assert list_values(trace, "lib: payload (fraction)") == [30000, 33333334]


def test_what_is_lost_is_counted_and_warned_of(tmp_path: Path) -> None:
    trace, summary = convert_numbers(tmp_path, 1e15, 1e-9, 1e-40, 0.25)
    assert list_values(trace, "lib: lr (fraction)") == [10**18, 250]
    assert summary.repaired == {("nvtx_payloads", Reason.FRACTION_TOO_SMALL): 2}
    assert [
        warning
        for warning in summary.warnings
        if "lib: lr" in warning and "2 small numbers are written as 0" in warning
    ]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("number", [1e-300, 5e-324])
def test_numbers_that_are_hardly_more_than_0_are_counted(tmp_path: Path, number: float) -> None:
    _, summary = convert_numbers(tmp_path, number)
    assert summary.repaired == {("nvtx_payloads", Reason.FRACTION_TOO_SMALL): 1}


def test_extremes_are_what_a_trace_can_hold(tmp_path: Path) -> None:
    trace, summary = convert_numbers(
        tmp_path, '{"lr": 1e300}', '{"lr": 9e999}', '{"lr": -0.0}', '{"lr": -2.5}', '{"lr": 0.5}'
    )
    assert list_values(trace, "lib: lr (fraction)") == [pytest.approx(GREATEST)] * 2
    assert summary.repaired["nvtx_payloads", Reason.SAMPLE_TOO_GREAT] == 2
    assert ("nvtx_payloads", Reason.FRACTION_TOO_SMALL) in summary.repaired
    assert sum(summary.repaired.values()) == 4


def test_one_scale_for_all_ranks_and_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = [
        make_report(tmp_path / "a.sqlite", [0.5, 0.25, 7.0], 10),
        make_report(tmp_path / "b.sqlite", [1e-5, 2.0], 11),
    ]

    def written(name: str, sources: Sequence[Path], **more: object) -> list[bytes]:
        convert(
            sources,
            tmp_path / f"{name}.prv",
            Options(**{"align": "utc", "metadata": False, **more}),
        )
        return [(tmp_path / f"{name}{ending}").read_bytes() for ending in (".prv", ".pcf", ".row")]

    expected = written("whole", reports)
    types = check_pcf(tmp_path / "whole.pcf", CheckFindings()).types
    assert [one for one in types.values() if "lr" in one] == ["lib: lr (fraction) (x 100000)"]
    assert written("workers", reports, jobs=2) == expected
    monkeypatch.setattr("nsys2prv.conversion.read.PART_ROWS", 2)
    assert written("parts", reports) == expected


def test_integers_stay_integers_and_types_do_not_depend_on_the_scale(tmp_path: Path) -> None:
    first, _ = convert_numbers(tmp_path, 0.5, '{"lr": 3}', '{"lr": 9007199254740993}')
    assert list_values(first, "lib: lr") == [3, 9007199254740993]
    second, _ = convert_numbers(tmp_path, 1e-5)
    codes = [
        {code for code, label in trace.labels.types.items() if "(fraction" in label}
        for trace in (first, second)
    ]
    assert codes[0] == codes[1]
    assert len(codes[0]) == 1
