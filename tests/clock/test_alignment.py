"""Test corrections of host clocks against known clocks."""

import numpy as np
import polars as pl
import pytest
from tools.clocks import (
    Clocks,
    align_hosts,
    draw_end_times,
    measure_error,
    replace_columns,
    simulate_collectives,
    simulate_messages,
)

from nsys2prv.clock import FindingKind, NoiseKind, Role
from nsys2prv.clock.solve import Alignment

CLOSE = 10_000.0


def list_kinds(alignment: Alignment) -> set[str]:
    return {finding.kind for finding in alignment.findings}


def check_alignment(
    alignment: Alignment, clocks: Clocks, hosts: list[int], reference: int = 0
) -> None:
    """Check that the hosts are within 10 us of the reference, and within their bounds."""
    for host in hosts:
        correction = alignment.corrections[host]
        assert correction.reference == reference, alignment.findings
        assert measure_error(alignment, clocks, host, reference) <= min(
            CLOSE, correction.bound_ns or 0
        )


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize(
    ("hosts", "members", "count", "seconds"),
    [(2, 1, 60, 10), (2, 1, 1_000, 120), (3, 2, 200, 30), (8, 4, 300, 60), (64, 1, 60, 60)],
)
def test_offsets_and_drifts_are_found(
    hosts: int, members: int, count: int, seconds: float, numbered: bool
) -> None:
    rng = np.random.default_rng(hosts + count)
    clocks = Clocks.random(rng, hosts)
    calls = simulate_collectives(
        rng,
        clocks,
        np.repeat(np.arange(hosts), members),
        draw_end_times(rng, count, seconds),
        numbered=numbered,
    )
    alignment = align_hosts(hosts, calls)
    check_alignment(alignment, clocks, list(range(1, hosts)))
    reference = alignment.corrections[0]
    assert (reference.offset_ns, reference.drift, reference.bound_ns) == (0.0, 0.0, 0.0)
    assert not alignment.findings
    assert alignment.verdict["held back"]["before"]["violated"] > 0
    assert not any(times["after"]["violated"] for times in alignment.verdict.values())
    for host in range(1, hosts):
        relative = (1 + clocks.drift[0]) / (1 + clocks.drift[host]) - 1
        sigma = 20e3 / (seconds * 1e9 * count**0.5)
        assert abs(alignment.corrections[host].drift - relative) < 5 * sigma + 1e-8


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "count", "seconds"), [(2, 60, 10), (3, 100, 30), (6, 50, 60)])
def test_bounds_hold_over_many_seeds(hosts: int, count: int, seconds: float) -> None:
    inside = close = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        clocks = Clocks.random(rng, hosts)
        alignment = align_hosts(
            hosts,
            simulate_collectives(
                rng,
                clocks,
                np.arange(hosts),
                draw_end_times(rng, count, seconds),
                numbered=bool(seed % 2),
            ),
        )
        errors = [measure_error(alignment, clocks, host) for host in range(1, hosts)]
        inside += all(
            e <= c.bound_ns for e, c in zip(errors, alignment.corrections[1:], strict=True)
        )
        close += max(errors) < CLOSE
    assert inside >= 95
    assert close >= 99


def test_a_host_without_shared_collectives_stays_with_utc() -> None:
    rng = np.random.default_rng(9)
    clocks = Clocks.random(rng, 4)
    calls = simulate_collectives(rng, clocks, np.arange(4), draw_end_times(rng, 200, 30))
    alone = replace_columns(calls.filter(calls["clock"] == 3), group=99)
    alignment = align_hosts(4, pl.concat([calls.filter(calls["clock"] != 3), alone]))
    check_alignment(alignment, clocks, [1, 2])
    last = alignment.corrections[3]
    assert (last.offset_ns, last.drift, last.bound_ns, last.method, last.reference) == (
        0.0,
        0.0,
        None,
        "UTC",
        3,
    )
    assert [(f.kind, f.clock) for f in alignment.findings] == [(FindingKind.APART, 3)]


@pytest.mark.slow
def test_messages_alone_give_bounds() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        clocks = Clocks.random(rng, 3)
        alignment = align_hosts(
            3, messages=simulate_messages(rng, clocks, [(0, 1), (1, 0), (1, 2), (2, 1)], 400, 60)
        )
        check_alignment(alignment, clocks, [1, 2])
        assert alignment.verdict["held back"]["after"]["violated"] <= 2


def test_rooted_collectives_give_bounds_to_and_from_the_root() -> None:
    rng = np.random.default_rng(11)
    clocks = Clocks.random(rng, 3)
    calls = simulate_collectives(rng, clocks, np.arange(3), draw_end_times(rng, 300, 60))
    role = np.where(calls["number"] % 2 == 0, int(Role.FROM_ROOT), int(Role.TO_ROOT))
    alignment = align_hosts(3, replace_columns(calls, role=role, is_root=calls["member"] == 0))
    for host in (1, 2):
        assert (
            measure_error(alignment, clocks, host) <= alignment.corrections[host].bound_ns < 150_000
        )


@pytest.mark.parametrize("late", [-40e6, 40e6])
def test_what_is_bound_in_one_direction_is_moved_as_far_as_that_takes(late: float) -> None:
    """A broadcast binds the others' ends to the root's begin: a clock that is slow has to go
    forward, one that is fast may stay.
    """
    rng = np.random.default_rng(12)
    clocks = Clocks(np.array([0.0, late]), np.zeros(2))
    calls = simulate_collectives(rng, clocks, np.arange(2), draw_end_times(rng, 300, 60))
    alignment = align_hosts(
        2, replace_columns(calls, role=int(Role.FROM_ROOT), is_root=calls["member"] == 0)
    )
    moved = alignment.corrections[1]
    if late < 0:
        assert (moved.method, moved.bound_ns) == ("causality, one way", None)
        assert abs(moved.drift) < 1e-6
        assert moved.offset_ns == pytest.approx(-late, abs=1e6)
        assert [finding.kind for finding in alignment.findings] == [FindingKind.ONE_WAY]
        used = alignment.verdict["used"]
        assert used["before"]["violated"] > 0 == used["after"]["violated"]
    else:
        assert (moved.method, moved.offset_ns) == ("UTC", 0.0)


def test_violations_are_counted() -> None:
    # Host 1 is 3 ms behind: of every collective, its end lies 3 ms - 0.1 ms before the begin on
    # host 0 where that comes last.
    clocks = Clocks(np.array([0.0, -3e6]), np.zeros(2))
    rng = np.random.default_rng(12)
    slowest = np.arange(100) % 2
    calls = simulate_collectives(
        rng,
        clocks,
        np.arange(2),
        draw_end_times(rng, 100, 10),
        slowest=slowest,
        jitter=0,
        late=0,
        skew=200e3,
    )
    verdict = align_hosts(2, calls).verdict
    end, begin = (calls[one].to_numpy().reshape(100, 2) for one in ("end", "begin"))
    missed = np.maximum(begin[:, ::-1] - end, 0)
    is_held = np.arange(100) % 10 == 9
    for use, which in (("used", ~is_held), ("held back", is_held)):
        assert verdict[use]["before"] == {
            "checked": 2 * which.sum(),
            "violated": (missed[which] > 0).sum(),
            "largest_ns": missed[which].max(),
            "sum_ns": missed[which].sum(),
        }
        assert verdict[use]["after"]["violated"] == 0


def test_ends_that_messages_contradict_are_not_used() -> None:
    # Numbers off by one on host 1, of collectives 100 ms apart to the microsecond: nothing but the
    # messages tells.
    rng = np.random.default_rng(13)
    clocks = Clocks(np.zeros(2), np.zeros(2))
    calls = simulate_collectives(rng, clocks, np.arange(2), np.arange(1, 301) * 1e8)
    calls = replace_columns(calls, number=calls["number"] + (calls["member"] == 1), signature=0)
    assert measure_error(align_hosts(2, calls), clocks, 1) > 9e7
    sent = simulate_messages(rng, clocks, [(0, 1), (1, 0)], 500, 30)
    alignment = align_hosts(2, calls, sent)
    assert FindingKind.UNFIT in list_kinds(alignment)
    assert measure_error(alignment, clocks, 1) < 50_000


def test_ends_that_scatter_by_milliseconds_are_not_taken_for_one_moment() -> None:
    """For example if ranks share cores, and leave a collective when they get one again: no member
    ends before the last has begun, and nothing else is known.
    """
    for seed in range(5):
        rng = np.random.default_rng(seed)
        clocks = Clocks.random(rng, 3)
        ends = draw_end_times(rng, 120, 5)
        calls = simulate_collectives(
            rng, clocks, np.arange(3), ends, numbered=False, noise_kind=NoiseKind.MPI
        )
        scattered = calls["end"] + rng.exponential(3e6, len(calls["end"])).astype(np.int64)
        calls = replace_columns(calls, end=scattered, signature=1, began=1)
        alignment = align_hosts(3, calls)
        for host, found in enumerate(alignment.corrections[1:], 1):
            assert found.reference == 0
            assert measure_error(alignment, clocks, host) <= found.observed_bound_ns


def test_wild_ends_are_outvoted() -> None:
    rng = np.random.default_rng(14)
    clocks = Clocks.random(rng, 4)
    calls = simulate_collectives(rng, clocks, np.arange(4), draw_end_times(rng, 500, 60))
    wild = rng.random(len(calls["end"])) < 0.05
    calls = replace_columns(calls, end=calls["end"] + wild * rng.integers(0, 10_000_000, len(wild)))
    check_alignment(align_hosts(4, calls), clocks, [1, 2, 3])


def test_ends_beyond_the_noise_model_widen_the_bound_and_are_told() -> None:
    rng = np.random.default_rng(15)
    clocks = Clocks.random(rng, 2)
    ends = draw_end_times(rng, 500, 60)
    usual, noisy = (
        align_hosts(2, simulate_collectives(rng, clocks, np.arange(2), ends, jitter=jitter))
        for jitter in (20e3, 300e3)
    )
    assert list_kinds(noisy) == {FindingKind.NOISY}
    assert not usual.findings
    assert noisy.corrections[1].bound_ns > 2 * usual.corrections[1].bound_ns
    assert measure_error(noisy, clocks, 1) <= noisy.corrections[1].bound_ns


@pytest.mark.parametrize("drift", [8e-4, 5e-3])
def test_a_drift_beyond_all_clocks_is_left_out(drift: float) -> None:
    rng = np.random.default_rng(16)
    clocks = Clocks(np.array([0.0, 1e6, 2e6]), np.array([0.0, 1e-5, drift]))
    alignment = align_hosts(
        3, simulate_collectives(rng, clocks, np.arange(3), draw_end_times(rng, 300, 60))
    )
    check_alignment(alignment, clocks, [1])
    assert alignment.corrections[2].method == "UTC"
    assert list_kinds(alignment) & {FindingKind.STEEP, FindingKind.UNFIT, FindingKind.UNRELATED}
    assert any(f.kind == FindingKind.APART and f.clock == 2 for f in alignment.findings)


def test_calls_that_end_before_they_begin_are_left_out() -> None:
    rng = np.random.default_rng(17)
    clocks = Clocks.random(rng, 2)
    calls = simulate_collectives(rng, clocks, np.arange(2), draw_end_times(rng, 200, 60))
    backwards = np.arange(len(calls["end"])) % 50 == 0
    alignment = align_hosts(
        2, replace_columns(calls, end=np.where(backwards, calls["begin"] - 5, calls["end"]))
    )
    check_alignment(alignment, clocks, [1])
    assert [(f.kind, f.count) for f in alignment.findings] == [
        (FindingKind.BACKWARDS, backwards.sum())
    ]


def test_a_host_that_is_too_far_off_to_be_computed_with_is_left_out() -> None:
    rng = np.random.default_rng(3)
    clocks = Clocks.random(rng, 3, 0.01e9, 20e-6)
    clocks.offset[2] += 190 * 86_400 * 10**9
    calls = simulate_collectives(rng, clocks, np.arange(3), draw_end_times(rng, 100, 1.0))
    alignment = align_hosts(3, calls)
    assert 2 in {
        finding.clock for finding in alignment.findings if finding.kind == FindingKind.UNFIT
    }
    correction = alignment.corrections[1]
    assert correction.reference == 0
    assert measure_error(alignment, clocks, 1) <= correction.observed_bound_ns
