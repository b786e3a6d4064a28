"""What holds for whatever was observed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.clocks import (
    Clocks,
    align_hosts,
    correct_times,
    draw_end_times,
    replace_columns,
    select_rows,
    simulate_collectives,
    simulate_messages,
)

from nsys2prv.clock.observations import Calls
from nsys2prv.clock.solve import Alignment

#: Rounding of times to whole ns, and of sums in another order.
ROUNDING = 10.0
seeds = st.integers(0, 10**6)
relaxed = settings(max_examples=25, deadline=None, derandomize=True)


def draw_job(seed: int, hosts: int = 3, numbered: bool = True, count: int = 80) -> Calls:
    rng = np.random.default_rng(seed)
    return simulate_collectives(
        rng,
        Clocks.random(rng, hosts),
        np.repeat(np.arange(hosts), 2),
        draw_end_times(rng, count, 20),
        numbered=numbered,
    )


def compute_corrected(alignment: Alignment, host: int, placed: np.ndarray) -> np.ndarray:
    """Return corrected times relative to the first host's pivot, float ns."""
    correction = alignment.corrections[host]
    since = (placed - correction.pivot).astype(np.float64)
    return (
        since
        + correction.offset_ns
        + correction.drift * since
        + (correction.pivot - alignment.corrections[0].pivot)
    )


def compute_shown(alignment: Alignment, host: int, other: int, placed: np.ndarray) -> np.ndarray:
    """Return what the other host's clock shows when the host's shows `placed`, relative to the
    pivot, ns.
    """
    correction = alignment.corrections[other]
    return (compute_corrected(alignment, host, placed) - correction.offset_ns) / (
        1 + correction.drift
    )


@pytest.mark.slow
@relaxed
@given(seeds, st.integers(-(10**9), 10**9), st.booleans(), st.integers(1, 2))
def test_shifting_a_host_shifts_its_correction(
    seed: int, shift: int, numbered: bool, host: int
) -> None:
    calls = draw_job(seed, numbered=numbered)
    moved = shift * (calls.clock == host)
    before, after = (
        align_hosts(3, calls),
        align_hosts(3, replace_columns(calls, begin=calls.begin + moved, end=calls.end + moved)),
    )
    for other in range(3):
        at = calls.begin[calls.clock == other]
        expected = compute_corrected(before, other, at) + (
            before.corrections[0].pivot - after.corrections[0].pivot
        )
        assert (
            np.abs(
                compute_corrected(after, other, at + (shift if other == host else 0)) - expected
            ).max()
            < ROUNDING
        )
        # The bound grows away from the observations, to the ends of a span that has moved too.
        assert abs(
            after.corrections[other].bound_ns - before.corrections[other].bound_ns
        ) < ROUNDING + 1e-6 * abs(shift)


@pytest.mark.slow
@relaxed
@given(seeds, st.booleans())
def test_the_order_of_rows_and_the_names_of_members_do_not_matter(
    seed: int, numbered: bool
) -> None:
    calls = draw_job(seed, numbered=numbered)
    rng = np.random.default_rng(seed)
    names = rng.permutation(6) + 100
    mixed = replace_columns(select_rows(calls, rng.permutation(len(calls.begin))), group=-5)
    mixed = replace_columns(mixed, member=names[mixed.member])
    before, after = align_hosts(3, calls), align_hosts(3, mixed)
    for item, other in zip(before.corrections, after.corrections, strict=True):
        assert abs(item.offset_ns - other.offset_ns) < ROUNDING
        assert abs(item.drift - other.drift) < 1e-9
        assert abs(item.bound_ns - other.bound_ns) < ROUNDING


@pytest.mark.slow
@relaxed
@given(seeds)
def test_the_numbers_of_hosts_do_not_matter(seed: int) -> None:
    calls = draw_job(seed)
    names = np.random.default_rng(seed).permutation(3)
    before, after = (
        align_hosts(3, calls),
        align_hosts(3, replace_columns(calls, clock=names[calls.clock])),
    )
    # Which host is the reference does not matter to what one host's clock shows when another's
    # shows something.
    for a, b in ((0, 1), (0, 2), (1, 2)):
        at = calls.begin[::50]
        one, other = (
            compute_shown(before, a, b, at),
            compute_shown(after, int(names[a]), int(names[b]), at),
        )
        assert np.abs(one - other).max() < 50


@pytest.mark.slow
@relaxed
@given(seeds, st.floats(0.2, 0.95))
def test_more_collectives_never_widen_a_bound(seed: int, share: float) -> None:
    calls = draw_job(seed, count=200)
    is_kept = np.random.default_rng(seed).random(200) < share
    # The same span: bounds are for its worst instant.
    is_kept[:2] = is_kept[-2:] = True
    some, more = align_hosts(3, select_rows(calls, is_kept[calls.number])), align_hosts(3, calls)
    for less, full in zip(some.corrections[1:], more.corrections[1:], strict=True):
        # One collective in ten is held back, sometimes the last one.
        assert full.bound_ns <= less.bound_ns * 1.01


@pytest.mark.slow
@relaxed
@given(seeds, st.floats(0.2, 0.95))
def test_more_messages_never_widen_a_bound(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    sent = simulate_messages(rng, Clocks.random(rng, 2), [(0, 1), (1, 0)], 300, 20)
    is_kept = rng.random(600) < share
    some, more = align_hosts(2, messages=select_rows(sent, is_kept)), align_hosts(2, messages=sent)
    less, full = some.corrections[1].bound_ns, more.corrections[1].bound_ns
    # One message in ten is held back, now and then one of the tightest, on which the bound rests.
    assert less is None or full <= less * 1.5


@pytest.mark.slow
@relaxed
@given(seeds)
def test_bounds_are_positive_and_maps_monotone(seed: int) -> None:
    calls = draw_job(seed, numbered=False)
    for host, correction in enumerate(align_hosts(3, calls).corrections):
        placed = np.sort(calls.end[calls.clock == host])
        assert (np.diff(correct_times(correction, placed)) >= 0).all()
        assert (correction.bound_ns > 0) == (host > 0)
