"""Compare interval arithmetic with sets of single nanoseconds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsys2prv._util import intervals as intervals_module
from nsys2prv._util.intervals import Spans, find_reaching, merge_spans, unite

LATEST = 60
intervals = st.lists(
    st.tuples(st.integers(0, LATEST), st.integers(0, 12)).map(
        lambda pair: (pair[0], pair[0] + pair[1])
    ),
    max_size=12,
)
relaxed = settings(max_examples=200, derandomize=True)


def split_columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([begin for begin, _ in pairs], np.int64), np.array(
        [end for _, end in pairs], np.int64
    )


def draw_spans(pairs: list[tuple[int, int]]) -> Spans:
    return merge_spans(*split_columns(pairs))


def list_times(pairs: list[tuple[int, int]]) -> set[int]:
    return {time for begin, end in pairs for time in range(begin, end)}


def list_held_times(found: Spans) -> set[int]:
    """Return the times of a set, which must be in normal form."""
    assert (found.end > found.begin).all()
    assert (found.begin[1:] > found.end[:-1]).all()
    return list_times(list(zip(found.begin.tolist(), found.end.tolist(), strict=True)))


@pytest.mark.slow
@relaxed
@given(intervals, intervals)
def test_sets(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    left, right = draw_spans(first), draw_spans(second)
    assert list_held_times(left) == list_times(first)
    assert left.length == len(list_times(first))
    assert list_held_times(left & right) == list_times(first) & list_times(second)
    assert list_held_times(left - right) == list_times(first) - list_times(second)
    assert list_held_times(unite(left, right)) == list_times(first) | list_times(second)


@pytest.mark.slow
@relaxed
@given(intervals, intervals)
def test_how_much_lies_within(pairs: list[tuple[int, int]], windows: list[tuple[int, int]]) -> None:
    begin, end = split_columns(windows)
    assert draw_spans(pairs).within(begin, end).tolist() == [
        len(list_times(pairs) & set(range(*item))) for item in windows
    ]
    every = np.arange(-3, LATEST + 20)
    assert draw_spans(pairs).contains(every).tolist() == [
        time in list_times(pairs) for time in every.tolist()
    ]


@relaxed
@given(intervals, intervals)
def test_only_ranges_outside_a_time_are_left_out(
    pairs: list[tuple[int, int]], ranges: list[tuple[int, int]]
) -> None:
    begin, end = split_columns(sorted(ranges))
    spans = draw_spans(pairs)
    rows = find_reaching(begin, end, *spans.find_hull())
    lasts = np.zeros(len(begin), np.int64)
    lasts[rows] = spans.within(begin[rows], end[rows])
    assert lasts.tolist() == [len(list_times(pairs) & set(range(*item))) for item in sorted(ranges)]


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled"])
def test_spans_of_many_times(order: str) -> None:
    """Check that sets equal those of single times, wherever the times are and however they are
    ordered.
    """
    random = np.random.default_rng(1)
    for count in (1, 2, 3, 50, 1000):
        edges = np.cumsum(random.integers(1, 9, 2 * count))
        result = Spans(edges[::2], edges[1::2])
        instants = np.sort(random.integers(-5, int(edges[-1]) + 5, 3000))
        instants = {
            "ascending": instants,
            "descending": instants[::-1],
            "shuffled": random.permutation(instants),
        }[order]
        pairs = [*zip(instants, instants + random.integers(0, 9, 3000), strict=True)]
        others, ours, theirs = draw_spans(pairs), list_held_times(result), list_times(pairs)
        assert (result.until(instants) == np.searchsorted(sorted(ours), instants)).all()
        assert list_held_times(result & others) == ours & theirs
        assert list_held_times(unite(result, others)) == ours | theirs
        assert list_held_times(result - others) == ours - theirs
    # Where an end is missing it is refused.
    with pytest.raises(ValueError, match="other lengths"):
        intervals_module.core.time_before((edges, edges[1:]), edges, edges.copy())
