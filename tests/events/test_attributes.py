"""What numbers of exports become: NULL and 0, and those of enumerations."""

from __future__ import annotations

import numpy as np
import pytest

from nsys2prv._util.columns import ABSENT, blank_negative, blank_nonpositive, fill_with_zero
from nsys2prv.events.attributes import list_columns, read_fields
from nsys2prv.events.extraction import Extraction
from nsys2prv.nsight.source import NULL, Columns

COLUMN = np.array([NULL, -5, 0, 1, 7])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (blank_negative, [ABSENT, ABSENT, 0, 1, 7]),
        (blank_nonpositive, [ABSENT, ABSENT, ABSENT, 1, 7]),
        (fill_with_zero, [0, 0, 0, 1, 7]),
    ],
)
def test_null_and_0_by_their_meaning(function, expected) -> None:
    for rows in (slice(None), slice(3, None), slice(0)):
        actual = function(COLUMN[rows])
        assert actual.tolist() == expected[rows]
        assert actual.dtype == np.int64


@pytest.mark.parametrize(
    ("layout", "field", "expected"),
    [
        ("openacc_other", "construct", [99, 99, 1, 2, 8, 99]),
        ("openacc_other", "device_type", [ABSENT, ABSENT, 1, 2, 8, ABSENT]),
        ("profiler_overhead", "type", [ABSENT, ABSENT, ABSENT, 1, 7, 99]),
        ("diagnostic", "severity", [99, 99, 99, 1, 99, 99]),
        ("gpu_page_fault", "access", [1, 1, 1, 2, 1, 1]),
    ],
)
def test_numbers_of_enumerations_become_values_of_the_catalogue(layout, field, expected) -> None:
    numbers = np.append(COLUMN, np.iinfo(np.int64).max)
    extraction = Extraction(None, None)  # type: ignore[arg-type]
    extraction.read_strings = lambda ids: [""] * len(ids)  # type: ignore[method-assign]
    columns = Columns(len(numbers), dict.fromkeys(list_columns(layout), numbers), {})
    assert read_fields(extraction, layout, columns)[field].tolist() == expected
