"""The controlled logical clock: closed forms by hand, and what holds for whatever was observed."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.clocks import (
    EPOCH,
    Clocks,
    draw_end_times,
    replace_columns,
    restore_order_of_calls,
    select_rows,
    simulate_collectives,
    simulate_messages,
)

from nsys2prv.clock import FindingKind, Role
from nsys2prv.clock.causal import CausalOrder
from nsys2prv.clock.maps import RankMove
from nsys2prv.clock.observations import Calls, Messages

ALL, FROM_ROOT, TO_ROOT = Role.ALL, Role.FROM_ROOT, Role.TO_ROOT
relaxed = settings(max_examples=40, deadline=None, derandomize=True)
seeds = st.integers(0, 10**6)


def make_messages(*them: tuple[int, int, int, int]) -> Messages:
    """Return messages of (sender, begin of the send, receiver, end of the receive)."""
    sender, begin, receiver, end = np.array(them, np.int64).reshape(-1, 4).T
    return Messages(np.ones_like(begin), sender, begin, receiver, end)


def make_collective(
    role: Role, *members: tuple[int, int, int], root: int = -1, number: int = 0
) -> Calls:
    """Return one collective of members (report, begin, end); `root` is a report."""
    report, begin, end = np.array(members, np.int64).T
    same = np.ones_like(begin)
    return Calls(
        0 * same,
        7 * same,
        np.arange(len(members)),
        report,
        number * same,
        same,
        role * same,
        report == root,
        begin,
        end,
    )


def compute_moves(order: CausalOrder, report: int, times: np.ndarray | int) -> np.ndarray:
    """Return how far times of a report are moved, ns."""
    times = np.asarray(times, np.int64)
    return (
        order.shifts[report].to_global(times) - times
        if report in order.shifts
        else np.zeros_like(times)
    )


def compute_tent(times: np.ndarray, peak: int, height: int) -> np.ndarray:
    """Return a shift that grows by a tenth until `peak` and fades by a hundredth, float ns."""
    return np.maximum(0, height - np.where(times < peak, (peak - times) / 10, (times - peak) / 100))


TIMES = np.arange(-500_000, 20_000_000, 997)


def test_a_message_that_comes_too_early() -> None:
    order = restore_order_of_calls(2, messages=make_messages((0, 1_000_000, 1, 900_000)))
    assert list(order.shifts) == [1]
    assert np.abs(compute_moves(order, 1, TIMES) - compute_tent(TIMES, 900_000, 100_000)).max() <= 1
    assert compute_moves(order, 1, 900_000) == 100_000
    assert (
        order.before.checked,
        order.before.number,
        order.before.largest,
        order.after.number,
    ) == (1, 1, 100_000, 0)
    assert order.moves == {1: RankMove(100_000, 100_000, 900_000)}
    assert order.complete


def test_a_chain_of_three_ranks() -> None:
    """The second is late by 100 us when it receives, sends 10 us later and is late by 0.1 us less;
    hence the third.
    """
    order = restore_order_of_calls(
        3, messages=make_messages((0, 1_000_000, 1, 900_000), (1, 910_000, 2, 905_000))
    )
    assert np.abs(compute_moves(order, 1, TIMES) - compute_tent(TIMES, 900_000, 100_000)).max() <= 1
    assert np.abs(compute_moves(order, 2, TIMES) - compute_tent(TIMES, 905_000, 104_900)).max() <= 1
    assert 910_000 + compute_moves(order, 1, 910_000) == 905_000 + compute_moves(order, 2, 905_000)
    assert (order.before.number, order.after.number) == (2, 0)


def test_what_lies_before_is_not_moved_beyond_what_it_must_precede() -> None:
    """A send 20 us before the receive that is moved by 100 us: its own receive leaves it 5 us, and
    there it stays.
    """
    order = restore_order_of_calls(
        2, messages=make_messages((0, 1_000_000, 1, 900_000), (1, 880_000, 0, 885_000))
    )
    assert 0 not in order.shifts
    assert compute_moves(order, 1, np.array([880_000, 900_000])).tolist() == [5_000, 100_000]
    before = np.arange(700_000, 880_000, 997)
    # A shift that grows meets one that may fade by no more than a hundredth.
    assert (compute_moves(order, 1, before) <= 5_000 + (880_000 - before) / 100 + 1).all()
    between = np.arange(880_000, 900_000, 97)
    assert (
        np.abs(compute_moves(order, 1, between) - (5_000 + (between - 880_000) * 95 / 20)).max()
        <= 1
    )


def test_no_member_of_a_collective_ends_before_all_have_begun() -> None:
    order = restore_order_of_calls(
        3,
        make_collective(
            ALL, (0, 1_000_000, 1_100_000), (1, 500_000, 940_000), (2, 400_000, 999_000)
        ),
    )
    for report, end, height in ((1, 940_000, 60_000), (2, 999_000, 1_000)):
        assert (
            np.abs(compute_moves(order, report, TIMES) - compute_tent(TIMES, end, height)).max()
            <= 1
        )
    assert 0 not in order.shifts
    assert (order.before.checked, order.before.number, order.after.number) == (3, 2, 0)


@pytest.mark.parametrize(("role", "heights"), [(FROM_ROOT, {1: 60_000}), (TO_ROOT, {0: 50_000})])
def test_a_root_binds_the_others_or_they_bind_the_root(role: Role, heights: dict[int, int]) -> None:
    """Ends: root 0 at 1,100, others at 940 and 1,200 us; begins: root at 1,000, others at 500 and
    1,150 us.
    """
    members = (0, 1_000_000, 1_100_000), (1, 500_000, 940_000), (2, 1_150_000, 1_200_000)
    order = restore_order_of_calls(3, make_collective(role, *members, root=0))
    ends = {report: end for report, _, end in members}
    assert {
        report: int(compute_moves(order, report, ends[report])) for report in order.shifts
    } == heights
    assert order.after.number == 0


@pytest.mark.parametrize(
    "messages",
    [make_messages(), make_messages((0, 100, 1, 100), (1, 50, 0, 200), (0, 500, 0, 300))],
)
def test_nothing_is_moved_without_need(messages: Messages) -> None:
    """A message of a rank to itself says nothing either."""
    order = restore_order_of_calls(
        2, make_collective(ALL, (0, 1_000, 2_000), (1, 1_500, 1_600)), messages
    )
    assert (order.shifts, order.moves, order.before.number) == ({}, {}, 0)


@pytest.mark.slow
def test_what_contradicts_itself_is_left_and_said() -> None:
    """Each of two ranks receives before it sends what the other has received already; the other two
    ranks are put in order.
    """
    order = restore_order_of_calls(
        4,
        messages=make_messages(
            (0, 200_000, 1, 100_000), (1, 160_000, 0, 150_000), (2, 1_000_000, 3, 900_000)
        ),
    )
    assert not order.complete
    assert [finding.kind for finding in order.findings] == [FindingKind.SET_ASIDE]
    assert compute_moves(order, 3, 900_000) == 100_000
    assert 0 < order.after.number < 3


def test_members_of_one_report_cannot_be_put_in_order() -> None:
    order = restore_order_of_calls(2, make_collective(ALL, (0, 0, 100), (0, 200, 300), (1, 0, 300)))
    assert order.shifts == {}
    assert [finding.kind for finding in order.findings] == [FindingKind.TORN]


def test_many_ranks_of_a_ring_get_in_order_one_after_the_other() -> None:
    """Every clock is 10 us behind that of the rank before."""
    reports = 60
    order = restore_order_of_calls(
        reports,
        messages=make_messages(
            *(
                (rank, 10**9 - 10_000 * rank, rank + 1, 10**9 - 10_000 * (rank + 1))
                for rank in range(reports - 1)
            )
        ),
    )
    assert [int(compute_moves(order, rank, 10**9 - 10_000 * rank)) for rank in range(reports)] == [
        10_000 * rank for rank in range(reports)
    ]
    assert order.complete


def make_job(
    seed: int, reports: int = 4, offset: float = 3e6, drift: float = 0.0
) -> tuple[Calls, Messages, Clocks]:
    """Return a job on clocks that are wrong by milliseconds."""
    rng = np.random.default_rng(seed)
    clocks = Clocks.random(rng, reports, offset, drift)
    calls = simulate_collectives(
        rng, clocks, np.arange(reports), draw_end_times(rng, 30, 1), numbered=bool(seed % 2)
    )
    pairs = [tuple(rng.choice(reports, 2, replace=False).tolist()) for _ in range(5)]
    return calls, simulate_messages(rng, clocks, pairs, 20, 1), clocks


def count_violated_pairs(order: CausalOrder, calls: Calls, them: Messages) -> int:
    """Count the bindings that the moved times violate, one by one."""
    violated = 0
    for sender, begin, receiver, end in zip(
        them.sender, them.send_begin, them.receiver, them.receive_end, strict=True
    ):
        violated += bool(
            begin + compute_moves(order, sender, begin) > end + compute_moves(order, receiver, end)
        )
    by_call = defaultdict(list)
    for row in range(len(calls.begin)):
        report = int(calls.clock[row])
        by_call[row // len(set(calls.member.tolist()))].append(
            tuple(
                int(time + compute_moves(order, report, time))
                for time in (calls.begin[row], calls.end[row])
            )
        )
    return violated + sum(
        min(end for _, end in members) < max(begin for begin, _ in members)
        for members in by_call.values()
    )


@pytest.mark.slow
@relaxed
@given(seeds, st.sampled_from([0.0, 50e-6]))
def test_a_job_on_wrong_clocks_is_in_order_afterwards(seed: int, drift: float) -> None:
    calls, them, _ = make_job(seed, drift=drift)
    order = restore_order_of_calls(4, calls, them)
    assert order.complete
    assert order.before.number > 0
    assert order.after.number == count_violated_pairs(order, calls, them) == 0
    again = [
        np.concatenate([time + 0])
        for time in (calls.begin, calls.end, them.send_begin, them.receive_end)
    ]
    for time, report in zip(
        again, (calls.clock, calls.clock, them.sender, them.receiver), strict=True
    ):
        for rank in range(4):
            time[report == rank] += compute_moves(order, rank, time[report == rank])
    settled = restore_order_of_calls(
        4,
        replace_columns(calls, begin=again[0], end=again[1]),
        Messages(them.noise_kind, them.sender, again[2], them.receiver, again[3]),
    )
    assert settled.shifts == {}


@relaxed
@given(seeds)
def test_no_rank_is_moved_beyond_the_fastest_clock(seed: int) -> None:
    """Clocks that are wrong by constants are in order when all show what the fastest does; nothing
    needs more.
    """
    calls, them, clocks = make_job(seed)
    order = restore_order_of_calls(4, calls, them)
    for report, move in order.moves.items():
        assert move.largest_ns <= clocks.offset.max() - clocks.offset[report] + 1


@pytest.mark.slow
@relaxed
@given(seeds)
def test_shifts_are_never_negative_and_keep_the_order_of_a_rank(seed: int) -> None:
    calls, them, _ = make_job(seed, drift=50e-6)
    order = restore_order_of_calls(4, calls, them)
    every = np.unique(
        np.concatenate(
            [calls.begin, calls.end, np.arange(EPOCH - 10**8, EPOCH + 2 * 10**9, 76_543)]
        )
    )
    for report in range(4):
        shift = compute_moves(order, report, every)
        assert (shift >= 0).all()
        assert (np.diff(every + shift) >= 0).all()
        # It fades by one in a hundred at most, but for whole ns.
        assert (np.diff(shift) >= -np.diff(every) / 100 - 2).all()


@relaxed
@given(seeds)
def test_true_clocks_are_left_alone(seed: int) -> None:
    calls, them, _ = make_job(seed, offset=0.0)
    order = restore_order_of_calls(4, calls, them)
    assert order.shifts == {}
    assert order.before.checked > 0


@pytest.mark.slow
@relaxed
@given(seeds)
def test_the_order_of_rows_does_not_matter(seed: int) -> None:
    calls, them, _ = make_job(seed)
    rng = np.random.default_rng(seed)
    original, reordered = (
        restore_order_of_calls(4, calls, them),
        restore_order_of_calls(
            4,
            select_rows(calls, rng.permutation(len(calls.begin))),
            select_rows(them, rng.permutation(len(them.sender))),
        ),
    )
    assert original.moves == reordered.moves
    for report, curve in original.shifts.items():
        assert (curve.times == reordered.shifts[report].times).all()
        assert (curve.shifts == reordered.shifts[report].shifts).all()


@pytest.mark.slow
@relaxed
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.integers(0, 1_000), st.integers(0, 2), st.integers(0, 1_000)
        ),
        max_size=25,
    )
)
def test_whatever_was_observed_ends_with_maps_that_keep_order(
    them: list[tuple[int, int, int, int]],
) -> None:
    """Messages at random contradict each other more often than not."""
    order = restore_order_of_calls(3, messages=make_messages(*them))
    every = np.arange(-100_000, 2_000_000, 7)
    for curve in order.shifts.values():
        assert (np.diff(curve.to_global(every)) >= 0).all()
    wrong = sum(
        a != b
        and begin + int(compute_moves(order, a, begin)) > end + int(compute_moves(order, b, end))
        for a, begin, b, end in them
    )
    assert order.after.number == wrong
    assert wrong == 0 or not order.complete
