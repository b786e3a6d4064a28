"""What NULL and 0 of exports become."""

from __future__ import annotations

import numpy as np
import pytest

from nsys2prv._util.columns import ABSENT
from nsys2prv.events.attributes import enum_value, number_or_zero, optional, positive
from nsys2prv.nsight.source import NULL

COLUMN = np.array([NULL, -5, 0, 1, 7])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (optional, [ABSENT, ABSENT, 0, 1, 7]),
        (positive, [ABSENT, ABSENT, ABSENT, 1, 7]),
        (number_or_zero, [0, 0, 0, 1, 7]),
        (lambda column: enum_value(column, 7, 99), [99, 99, 1, 2, 99]),
    ],
)
def test_null_and_0_by_their_meaning(function, expected) -> None:
    for rows in (slice(None), slice(3, None), slice(0)):
        found = function(COLUMN[rows])
        assert found.tolist() == expected[rows]
        assert found.dtype == np.int64
