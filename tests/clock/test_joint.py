"""Test hosts that are placed together by the order of events, if ends of calls show nothing,
against known clocks.
"""

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

from nsys2prv.clock import FindingKind, NoiseKind
from nsys2prv.clock.solve import Alignment

SECOND, HOUR = 1e9, 3_600e9


def simulate_scattered_collectives(
    rng: np.random.Generator, clocks: Clocks, count: int, seconds: float, late: float
) -> pl.DataFrame:
    """Return calls of all hosts that leave collectives late by chance (`late` ns on average), as on
    shared cores.
    """
    members = np.arange(len(clocks.offset))
    ends = draw_end_times(rng, count, seconds)
    calls = simulate_collectives(
        rng, clocks, members, ends, numbered=False, noise_kind=NoiseKind.MPI, jitter=0, late=0
    )
    longest = 0.4 * seconds * SECOND / count
    later = np.minimum(rng.exponential(late, calls.height), longest).astype(np.int64)
    return replace_columns(calls, end=calls["end"] + later, signature=1, began=1)


def damage(rng: np.random.Generator, sent: pl.DataFrame, count: int) -> pl.DataFrame:
    """Return the messages, of which `count` are received 20 s too early or too late."""
    wrong = np.zeros(sent.height, np.int64)
    wrong[rng.choice(sent.height, count, replace=False)] = rng.choice([-1, 1], count) * 20 * SECOND
    return sent.with_columns(pl.col("end") + pl.Series(wrong))


def check_alignment(alignment: Alignment, clocks: Clocks, most: float) -> None:
    """Check that all hosts are within their bounds, these within `most` ns, and nothing is violated."""
    for host, correction in list(enumerate(alignment.corrections))[1:]:
        assert correction.reference == 0, alignment.findings
        assert measure_error(alignment, clocks, host) <= correction.observed_bound_ns < most
    assert not any(times["after"]["violated"] for times in alignment.verdict.values())


@pytest.mark.parametrize("offset", [0.05 * SECOND, 5 * SECOND, 2 * HOUR])
@pytest.mark.parametrize(("hosts", "count"), [(2, 31), (4, 31), (4, 1), (8, 3), (12, 20)])
def test_collectives_place_all_hosts_however_wrong_utc_is(
    hosts: int, count: int, offset: float
) -> None:
    """One host is always the last to come, so that its own begins bind it in one direction only: those
    of the others, which waited for it, bind it in the other.
    """
    for seed in range(2):
        rng = np.random.default_rng(seed)
        clocks = Clocks.random(rng, hosts, offset, 100e-6)
        calls = simulate_scattered_collectives(rng, clocks, count, float(count), 20e6)
        check_alignment(align_hosts(hosts, calls), clocks, 600e6)


@pytest.mark.parametrize("hosts", [3, 16])
@pytest.mark.parametrize("way", ["chain", "circle"])
def test_messages_place_hosts_over_others(hosts: int, way: str) -> None:
    """Check a chain that sends in both directions, and a circle in which everything goes in one
    direction.
    """
    rng = np.random.default_rng(hosts)
    clocks = Clocks.random(rng, hosts, HOUR, 100e-6)
    near = [(host, host + 1) for host in range(hosts - 1)]
    pairs = [*near, (hosts - 1, 0)] if way == "circle" else near + [pair[::-1] for pair in near]
    sent = simulate_messages(rng, clocks, pairs, 60, 60, queue=5e6)
    check_alignment(align_hosts(hosts, messages=sent), clocks, 20e6)


def test_parts_that_ends_place_are_connected_by_messages_of_one_host_each() -> None:
    rng = np.random.default_rng(1)
    clocks = Clocks.random(rng, 8, 5 * SECOND)
    calls = [
        simulate_collectives(rng, clocks, members, draw_end_times(rng, 200, 30), group=group)
        for group, members in enumerate((np.arange(4), np.arange(4, 8)))
    ]
    sent = simulate_messages(rng, clocks, [(1, 6), (6, 1)], 60, 30, queue=1e6)
    alignment = align_hosts(8, pl.concat(calls), sent)
    check_alignment(alignment, clocks, 500e3)
    assert measure_error(alignment, clocks, 3) < 10e3


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("way", ["chain", "circle"])
def test_messages_that_contradict_all_others_are_given_up_and_named(count: int, way: str) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        clocks = Clocks.random(rng, 4, SECOND, 100e-6)
        near = [(0, 1), (1, 2), (2, 3)]
        pairs = [*near, (3, 0)] if way == "circle" else near + [pair[::-1] for pair in near]
        sent = damage(rng, simulate_messages(rng, clocks, pairs, 60, 60, queue=5e6), count)
        alignment = align_hosts(4, messages=sent)
        check_alignment(alignment, clocks, 10e6)
        early = sent.filter(
            pl.Series(
                [
                    clocks.to_true_time(before, begin) > clocks.to_true_time(after, end)
                    for _, before, begin, after, end in sent.iter_rows()
                ]
            )
        )
        named = [
            finding.clock
            for finding in alignment.findings
            if finding.kind == FindingKind.EARLY
            for _ in range(finding.count)
        ]
        assert sorted(named) == sorted(early["before"])


def test_a_host_that_only_receives_is_moved_no_farther_than_that_takes() -> None:
    rng = np.random.default_rng(2)
    clocks = Clocks(np.array([0.0, 0.0, -2 * HOUR]), np.array([0.0, 5e-6, -5e-6]))
    sent = simulate_messages(rng, clocks, [(0, 1), (1, 0), (1, 2)], 200, 60, queue=1e6)
    alignment = align_hosts(3, messages=sent)
    last = alignment.corrections[2]
    assert (last.reference, last.method, last.bound_ns) == (0, "causality, one way", None)
    assert measure_error(alignment, clocks, 2) < 2e6
    assert [finding.clock for finding in alignment.findings] == [2]
    assert not any(times["after"]["violated"] for times in alignment.verdict.values())


def test_bounds_leave_nothing_out_that_is_possible() -> None:
    """What a host's clock may be is what some solution of all conditions has, to within a few
    percent: here of a line of one slope, so that the conditions are differences of offsets.
    """
    rng = np.random.default_rng(3)
    hosts = 5
    clocks = Clocks(np.round(rng.uniform(-SECOND, SECOND, hosts)), np.zeros(hosts))
    # All at nearly one moment, so that no drift matters.
    calls = simulate_scattered_collectives(rng, clocks, 20, 0.4, 2e6)
    alignment = align_hosts(hosts, calls)
    check_alignment(alignment, clocks, 10e6)
    begin, end = (calls[name].to_numpy().reshape(-1, hosts) for name in ("begin", "end"))
    # By how much the first host may be later than each, over any way.
    room = np.array(
        [[(end[:, b] - begin[:, a]).min() for b in range(hosts)] for a in range(hosts)], np.float64
    )
    np.fill_diagonal(room, 0.0)
    for middle in range(hosts):
        room = np.minimum(room, room[:, [middle]] + room[[middle]])
    for host in range(1, hosts):
        least, most = -room[0, host], room[host, 0]
        correction = alignment.corrections[host]
        at = (calls["begin"].min() + calls["end"].max()) / 2
        shift = correction.offset_ns + correction.drift * (at - correction.pivot)
        assert least - 1e3 <= shift <= most + 1e3
        assert correction.observed_bound_ns <= 1.1 * (most - least) + 1e5
