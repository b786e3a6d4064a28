"""Test distinct rows of columns, and places of numbers, in compiled code and in numpy."""

import numpy as np
import pytest

from nsys2prv._util import columns as column_tools
from nsys2prv._util.columns import factorize, factorize_together, find_places, sum_by


@pytest.fixture(params=["compiled", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with columns in compiled code, and in numpy."""
    if request.param == "numpy":
        monkeypatch.setattr(column_tools, "core", None)
    elif column_tools.core is None:
        pytest.skip("installed without a compiler")
    return request.param


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "keys",
    [
        np.array([], np.int64),
        np.array([7]),
        np.array([3, 3, 3, 1, 3]),
        np.array([np.iinfo(np.int64).max, np.iinfo(np.int64).min, 0, -1, 0]),
        np.arange(5000)[::-1],
        np.arange(5000) << 40,
        np.random.default_rng(1).integers(0, 700, 20_000),
        np.random.default_rng(2).integers(-(1 << 62), 1 << 62, 3000),
        np.array([1, 0, 1], np.uint8),
        np.array([True, False]),
    ],
    ids=lambda keys: f"{len(keys)} {keys.dtype}",
)
def test_distinct_keys_ascend_and_every_row_has_the_index_of_its_own(keys: np.ndarray) -> None:
    distinct, codes = factorize(keys)
    assert distinct.tolist() == sorted(set(keys.tolist()))
    assert distinct[codes].tolist() == keys.tolist()
    assert (distinct.dtype, codes.dtype) == (keys.dtype, np.int64)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("width", [1, 2, 3, 4, 7])
def test_distinct_combinations_of_columns(width: int) -> None:
    random = np.random.default_rng(width)
    given = [random.integers(-2, 3, 4000) for _ in range(width)]
    records = np.zeros(4000, [("a", "<u2"), *((f"c{number}", "<i8") for number in range(width))])
    for number, column in enumerate(given):
        records[f"c{number}"] = column
    for columns in (given, [records[f"c{number}"] for number in range(width)]):
        values, codes = factorize_together(*columns)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        distinct = list(zip(*(value.tolist() for value in values), strict=True))
        assert distinct == sorted(set(rows))
        assert [distinct[code] for code in codes.tolist()] == rows


@pytest.mark.usefixtures("way")
def test_places_among_known_numbers() -> None:
    random = np.random.default_rng(3)
    for known in (np.unique(random.integers(-90, 90, count)) for count in (0, 1, 40, 300)):
        numbers = random.integers(-99, 99, 500)
        places = {number: place for place, number in enumerate(known.tolist())}
        for wanted in (numbers, np.sort(numbers)):
            assert find_places(known, wanted).tolist() == [
                places.get(n, -1) for n in wanted.tolist()
            ]


def test_columns_that_do_not_fit_are_refused() -> None:
    if column_tools.core is None:
        pytest.skip("installed without a compiler")
    number, codes = column_tools.core.number_distinct, np.zeros(3, np.int64)
    for columns in ((), (np.arange(4),), (np.arange(3, dtype=np.int32),), (np.zeros((3, 1)),)):
        with pytest.raises(ValueError, match="columns of int64"):
            number(columns, codes)


@pytest.mark.usefixtures("way")
def test_sums_are_in_the_order_of_first_rows() -> None:
    random = np.random.default_rng(3)
    keys = {"a": random.integers(0, 3, 500), "b": random.integers(-2, 2, 500)}
    values = random.integers(-(1 << 60), 1 << 60, 500) >> 20
    expected: dict[tuple[int, int], int] = {}
    for *key, value in zip(*(key.tolist() for key in keys.values()), values.tolist(), strict=True):
        expected[key[0], key[1]] = expected.get((key[0], key[1]), 0) + value
    found = sum_by(keys, total=values)
    assert list(zip(found["a"].tolist(), found["b"].tolist(), strict=True)) == list(expected)
    assert found["total"].tolist() == list(expected.values())
