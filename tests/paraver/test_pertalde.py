"""Test that a second reader, BSC's pertalde, reads the traces and finds their contents. It refuses
traces that only Paraver accepts.
"""

from collections import Counter
from pathlib import Path

import pytest
from tools.conversions import convert_and_read
from tools.exports import KERNEL, Row, make_export, make_kernel, make_nvtx_range, make_strings
from tools.pertalde import check_with_pertalde, count_events, needs_pertalde
from tools.trace_reader import unescape_label

from nsys2prv import Options, convert
from nsys2prv.writers.paraver.check import CheckFindings, check_pcf
from nsys2prv.writers.paraver.pcf import to_ascii

SAMPLES = Path(__file__).parents[2] / "sample_reports"
NAMES = [
    "é€😀",
    "japi1_⊑_4870",
    "\\u00e9",
    "\\U0001f600 of it",
    "back\\slash",
    "tab\there",
    "PRECISION 3",
    "VALUES",
    "\u2028",
    "x" * 5000,
    "é" * 900,
    "{1,2,3}",
    "100 %",
    "…",
    "~`|^$#@;:,.<>()&*'\"",
]


def count_true_events(trace: Path) -> Counter[str]:
    """Return how many events of each type there are, by the labels of the .pcf as they stand there."""
    labels = check_pcf(trace.with_suffix(".pcf"), CheckFindings()).types
    result: Counter[str] = Counter()
    for line in trace.read_text().splitlines():
        if line.startswith("2:"):
            result.update(labels[int(code)] for code in line.split(":")[6::2])
    return result


@pytest.mark.slow
@needs_pertalde
@pytest.mark.parametrize(
    ("sample", "states"),
    [
        *((path.parent.name, False) for path in sorted(SAMPLES.glob("*/truth.json"))),
        ("graphs", True),
    ],
)
def test_samples(sample: str, states: bool, tmp_path: Path) -> None:
    trace = tmp_path / "out.prv"
    convert(sorted((SAMPLES / sample).glob("rank*.sqlite")), trace, Options(states=states, jobs=1))
    assert check_with_pertalde(trace) == ""
    counted, expected = count_events(trace), count_true_events(trace)
    assert len(counted) > 10
    assert counted == {label: expected[label] for label in counted}


@needs_pertalde
def test_names_of_all_kinds(tmp_path: Path) -> None:
    rows = [
        make_kernel(10 * number, 10 * number + 5, demangledName=number, shortName=number)
        for number in range(1, len(NAMES) + 1)
    ]
    ranges: list[Row] = [
        make_nvtx_range(10 * place, 10 * place + 5, text, tid=1) for place, text in enumerate(NAMES)
    ]
    report = make_export(
        tmp_path / "é.sqlite",
        {KERNEL: rows, "StringIds": make_strings(*NAMES), "NVTX_EVENTS": ranges},
    )
    convert_and_read([report], tmp_path / "o.prv")
    assert check_with_pertalde(tmp_path / "o.prv") == ""


@pytest.mark.parametrize(
    "text", [*NAMES, *(a + b for a in NAMES for b in NAMES[:4]), "\\" * 3 + "u00e9", "\\ud800"]
)
def test_escapes_are_one_to_one(text: str) -> None:
    assert to_ascii(text).isascii()
    assert unescape_label(to_ascii(text)) == text
    assert to_ascii("plain text") == "plain text"
