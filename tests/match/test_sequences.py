"""Test the recognition of a collective on all its members, against the collectives that the
simulation knows.
"""

import numpy as np
import polars as pl
import pytest
from tools.clocks import (
    Clocks,
    align_hosts,
    draw_end_times,
    find_pivot,
    measure_error,
    replace_columns,
    simulate_collectives,
)

from nsys2prv.clock import NOISE, UTC_ERROR, ClockFinding, FindingKind, NoiseKind
from nsys2prv.match.gathering import find_shared_calls
from nsys2prv.match.sequences import CallSequence, number_calls, pair_calls

COUNT, MEMBERS = 400, 4


def simulate_unnumbered(
    seed: int, ends: np.ndarray | None = None
) -> tuple[pl.DataFrame, np.ndarray, np.ndarray]:
    """Return unnumbered calls, and which collective and which member each is of."""
    rng = np.random.default_rng(seed)
    calls = simulate_collectives(
        rng,
        Clocks.random(rng, MEMBERS),
        np.arange(MEMBERS),
        draw_end_times(rng, COUNT, 40) if ends is None else ends,
        numbered=False,
    )
    return calls, np.repeat(np.arange(COUNT), MEMBERS), np.tile(np.arange(MEMBERS), COUNT)


def make_strangers(seed: int, member: int, count: int) -> pl.DataFrame:
    rng = np.random.default_rng(seed + 1_000)
    return replace_columns(
        simulate_collectives(
            rng,
            Clocks.random(rng, 1),
            np.zeros(1, np.int64),
            np.sort(rng.uniform(0, 40e9, count)),
            numbered=False,
        ),
        member=member,
        clock=member,
    )


def recognize(
    calls: pl.DataFrame, truth: np.ndarray
) -> tuple[dict[int, set[int]], int, list[ClockFinding]]:
    """Return the true collectives of each ordinal, how many calls have one, and the findings.

    truth: the collective of each call, -1 for none.
    """
    table, findings = find_shared_calls(calls, find_pivot(calls))
    known = {
        (int(m), int(b)): int(t)
        for m, b, t in zip(calls["member"], calls["begin"], truth, strict=True)
    }
    table, found = number_calls(table)
    pivot = find_pivot(calls)
    meant: dict[int, set[int]] = {}
    for ordinal, member, begin in table.select("ordinal", "member", "begin").iter_rows():
        meant.setdefault(ordinal, set()).add(known[member, begin + pivot])
    return meant, table.height, findings + found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "case",
    [
        "all",
        "missing",
        "missing everywhere",
        "front",
        "back",
        "both",
        "window",
        "signatures unknown",
    ],
)
def test_calls_are_recognised(case: str, seed: int) -> None:
    calls, number, member = simulate_unnumbered(seed)
    rng = np.random.default_rng(seed)
    masks = {
        "all": np.ones(len(number), bool),
        "signatures unknown": (member != 1) | (number % 17 != 3),
        "missing": (member != 1) | (rng.random(len(number)) > 0.03),
        "missing everywhere": rng.random(len(number)) > 0.05,
        "front": (member != 2) | (number >= 150),
        "back": (member != 0) | (number < 250),
        "both": ((member != 0) | (number < 300)) & ((member != 3) | (number >= 200)),
        "window": ((member != 2) | (number >= 30)) & ((member == 2) | (number < COUNT - 30)),
    }[case]
    if case == "signatures unknown":
        calls = replace_columns(calls, signature=0)
    meant, count, findings = recognize(calls.filter(masks), number[masks])
    assert all(len(true) == 1 for true in meant.values())
    assert not {finding.kind for finding in findings} - {FindingKind.PARTIAL}
    # All calls that the compared member has as well.
    assert count >= 0.9 * masks.sum()


@pytest.mark.slow
@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("bad", range(MEMBERS))
def test_an_unrelated_member_is_left_out(bad: int, numbered: bool) -> None:
    calls, number, member = simulate_unnumbered(7)
    other = make_strangers(7, bad, COUNT)
    calls = pl.concat([calls.filter(member != bad), other])
    if numbered:
        calls = replace_columns(calls, number=np.append(number[member != bad], np.arange(COUNT)))
    alignment = align_hosts(MEMBERS, calls)
    kind = FindingKind.UNFIT if numbered else FindingKind.UNRELATED
    assert (kind, bad) in {(f.kind, f.clock) for f in alignment.findings}
    good = [at for at in range(MEMBERS) if at != bad]
    assert [alignment.corrections[at].reference for at in good] == [good[0]] * 3
    assert alignment.corrections[bad].method == "UTC"


def test_regular_calls_are_not_guessed() -> None:
    calls, _, _ = simulate_unnumbered(9, np.arange(1, COUNT + 1) * 1e7)
    alignment = align_hosts(MEMBERS, replace_columns(calls, signature=1))
    assert {c.method for c in alignment.corrections} == {"UTC"}
    assert [(f.kind, f.count) for f in alignment.findings if f.member >= 0] == [
        (FindingKind.AMBIGUOUS, COUNT)
    ] * (MEMBERS - 1)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("by", ["signatures", "jitter"])
def test_signatures_or_jitter_decide_between_regular_calls(by: str, cut: bool) -> None:
    rng = np.random.default_rng(10)
    ends = np.arange(1, COUNT + 1) * 1e8 + (
        rng.uniform(-100e3, 100e3, COUNT) if by == "jitter" else 0
    )
    calls, number, member = simulate_unnumbered(10, ends)
    if by == "jitter":
        calls = replace_columns(calls, signature=1)
    is_kept = (member != 2) | (number >= 100) | (not cut)
    meant, count, findings = recognize(calls.filter(is_kept), number[is_kept])
    assert all(len(true) == 1 for true in meant.values())
    assert count == is_kept.sum()
    assert not findings


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_calls_are_placed_by_their_order_and_that_is_certain_from_the_beginning_of_their_communicator_on(
    count: int,
) -> None:
    rng = np.random.default_rng(count)
    clocks = Clocks.random(rng, MEMBERS)
    calls = replace_columns(
        simulate_collectives(
            rng, clocks, np.arange(MEMBERS), draw_end_times(rng, 400, 40)[:count], numbered=False
        ),
        signature=1,
    )
    unsure, sure, numbered = (
        align_hosts(MEMBERS, some)
        for some in (
            calls,
            replace_columns(calls, began=True),
            replace_columns(calls, number=np.repeat(np.arange(count), MEMBERS)),
        )
    )
    reach = np.ptp(calls.filter(member=0)["end"].to_numpy())
    for host in range(1, MEMBERS):
        for item in (unsure, sure, numbered):
            assert item.corrections[host].reference == 0
            assert measure_error(item, clocks, host) < 30e3
        doubtful = unsure.corrections[host]
        assert (doubtful.method, doubtful.sure) == ("order of collectives", False)
        assert doubtful.bound_ns is None if count == 1 else doubtful.bound_ns > 0.9 * reach
        for item in (sure, numbered):
            assert (item.corrections[host].method, item.corrections[host].sure) == (
                "ends of collectives",
                True,
            )
            assert (
                measure_error(item, clocks, host) <= item.corrections[host].observed_bound_ns < 80e3
            )
    assert {f.kind for f in unsure.findings} == {FindingKind.IN_ORDER}
    assert not sure.findings


def test_three_calls_of_each_of_three_communicators_tell_together_what_none_tells() -> None:
    rng = np.random.default_rng(14)
    clocks = Clocks.random(rng, 2)
    ends = np.cumsum(rng.uniform(3e6, 7e6, 9))
    calls = pl.concat(
        replace_columns(
            simulate_collectives(
                rng, clocks, np.arange(2), ends[group::3], group=group, numbered=False, skew=1e6
            ),
            signature=1,
        )
        for group in range(3)
    )
    alone, pooled = (
        align_hosts(2, calls.filter(calls["group"] == 0)).corrections[1],
        align_hosts(2, calls).corrections[1],
    )
    assert (alone.method, pooled.method) == ("order of collectives", "ends of collectives")
    assert measure_error(align_hosts(2, calls), clocks, 1) <= pooled.observed_bound_ns < 50e3


def test_a_communicator_recorded_from_its_beginning_is_no_proof_where_a_member_has_more_calls() -> (
    None
):
    """Of twelve calls 20 ms apart one host lacks the first, another the last: by order they would
    be one call apart.
    """
    rng = np.random.default_rng(15)
    clocks = Clocks.random(rng, 3)
    calls = replace_columns(
        simulate_collectives(rng, clocks, np.arange(3), np.arange(1, 13) * 20e6, numbered=False),
        signature=1,
        began=True,
    )
    number = np.repeat(np.arange(12), 3)
    member = calls["member"].to_numpy()
    is_kept = ((number != 0) | (member != 0)) & ((number != 11) | (member != 1))
    for correction in align_hosts(3, calls.filter(is_kept)).corrections[1:]:
        assert not correction.sure or correction.reference == correction.host


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 10e3, 100e3, 400e3])
def test_regular_calls_some_of_which_are_missing_are_never_off_by_a_period_with_a_small_bound(
    spread: float,
) -> None:
    small = 0
    for seed in range(30):
        rng = np.random.default_rng([seed, int(spread)])
        clocks = Clocks.random(rng, 3)
        count = int(rng.integers(6, 40))
        ends = np.cumsum(18.4e6 + rng.uniform(-spread, spread, count))
        calls = pl.concat(
            replace_columns(
                simulate_collectives(
                    rng, clocks, np.arange(3), ends + group * 6.1e6, group=group, numbered=False
                ),
                signature=1,
            )
            for group in range(2)
        )
        number = np.tile(np.repeat(np.arange(count), 3), 2)
        first, last = (
            rng.integers(0, 3, 3)[calls["member"]],
            count - rng.integers(0, 3, 3)[calls["member"]],
        )
        is_kept = (number >= first) & (number < last) & (rng.random(len(number)) > 0.03)
        alignment = align_hosts(3, calls.filter(is_kept))
        for correction in alignment.corrections[1:]:
            if (
                correction.reference != correction.host
                and correction.observed_bound_ns is not None
                and correction.span
            ):
                assert (
                    measure_error(alignment, clocks, correction.host, correction.reference)
                    <= correction.observed_bound_ns
                )
                small += correction.observed_bound_ns < 1e6
    assert (small > 0) == (spread >= 100e3)


def test_repeated_and_unlike_numbers_are_left_out() -> None:
    calls, number, member = simulate_unnumbered(13)
    calls = replace_columns(
        calls,
        number=np.where((member == 1) & (number == 50), 51, number),
        signature=np.where((member == 2) & (number == 60), 9, 1),
    )
    meant, count, findings = recognize(calls, number)
    assert [(f.kind, f.member, f.count) for f in findings] == [
        (FindingKind.REPEATED, 0, 1),
        (FindingKind.REPEATED, 1, 2),
        (FindingKind.REPEATED, 2, 1),
        (FindingKind.REPEATED, 3, 1),
        (FindingKind.UNLIKE, 2, 1),
    ]
    assert count == len(number) - 6
    assert all(len(true) == 1 for true in meant.values())


@pytest.mark.parametrize(("scatter", "certain"), [(100_000.0, True), (4_000.0, False)])
def test_a_late_report_of_a_job_that_repeats_itself(scatter: float, certain: bool) -> None:
    """Most calls fit another iteration within the noise of their ends; a few do not, which tells
    the right one. Where none stands out, nothing is certain.
    """
    rng = np.random.default_rng(7)
    iterations, lacking = 20, 3
    begins = np.arange(iterations) * 7.6e6 + rng.exponential(scatter / 3, iterations).cumsum()
    ends = np.sort(np.concatenate([begins, begins + 2.1e6]))

    def make_sequence(times: np.ndarray) -> CallSequence:
        times = times + rng.normal(0, 2_000, len(times))
        return CallSequence(times, times, np.ones(len(times), np.int64), np.ones(len(times), bool))

    late = make_sequence(ends[2 * lacking :] * (1 + 2e-5) + 9e6)
    partners, kind = pair_calls(late, make_sequence(ends), NOISE[NoiseKind.NCCL], UTC_ERROR)
    if certain:
        assert partners.tolist() == [*range(2 * lacking, 2 * iterations)]
    else:
        assert (partners, kind) == (None, FindingKind.AMBIGUOUS)


def test_regular_calls_of_two_operations_are_told_apart_by_one_clock() -> None:
    times = np.add.outer(np.arange(10) * 1e7, [0, 1e5]).ravel()
    calls = CallSequence(times, times, np.tile([1, 2], 10), np.ones(20, bool))
    partners, _ = pair_calls(calls[6:], calls, NOISE[NoiseKind.NCCL], 0)
    assert partners.tolist() == [*range(6, 20)]
