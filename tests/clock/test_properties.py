"""What holds for whatever was observed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.clocks import (
    Clocks,
    align_hosts,
    draw_end_times,
    replace_columns,
    select_rows,
    simulate_collectives,
)

from nsys2prv.clock.observations import Calls
from nsys2prv.clock.solve import Alignment

#: Rounding of times to whole ns, and of sums in another order.
ROUNDING = 10.0
seeds = st.integers(0, 10**6)
relaxed = settings(max_examples=25, derandomize=True)


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
