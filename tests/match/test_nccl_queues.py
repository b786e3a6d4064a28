"""Test groups of queues formed by lines between their ends, on known clocks."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from nsys2prv.match.nccl_adoption import Queue, QueueGroup, _pair_in_order, group_queues

#: Offset (ns) and drift of the clock of each of two hosts.
CLOCKS = ((0.0, 0.0), (7_300_000.0, 20e-6))
GROUPS_OF_HOSTS = ((0, 1, 2, 3), (4, 5, 6, 7))


def make_queues(
    groups: Sequence[Sequence[int]],
    begins: Callable[[np.random.Generator], np.ndarray],
    late: dict[int, int] | None = None,
    seed: int = 1,
) -> list[Queue]:
    """Return queues of ranks, four to a host, that call one collective after another. begins:
    of a group, when its calls are due. late: by rank, calls that its report lacks at the begin.
    """
    rng = np.random.default_rng(seed)
    queues = []
    for members in groups:
        due = begins(rng)
        arrivals = due + np.abs(rng.normal(0, 60_000, (len(members), len(due))))
        ended = arrivals.max(axis=0) + 30_000
        for member, arrival in zip(members, arrivals, strict=True):
            offset, drift = CLOCKS[member // 4]
            times = [arrival, ended + np.abs(rng.normal(0, 3_000, len(due)))]
            begin, end = (time * (1 + drift) + offset for time in times)
            first = (late or {}).get(member, 0)
            queues.append(Queue(member // 4, member, 1, begin[first:], end[first:]))
    return queues


def draw_calls(rng: np.random.Generator) -> np.ndarray:
    return np.cumsum(rng.uniform(500_000, 3_000_000, 60))


def list_sure_members(queues: list[Queue], groups: list[QueueGroup]) -> list[list[int]]:
    return sorted(
        sorted(queues[place].member for place in group.queues) for group in groups if group.is_one
    )


def test_members_and_ordinals_are_found_whatever_the_clocks_and_the_begins() -> None:
    across = [(0, 4), (1, 5), (2, 6), (3, 7)]
    queues = make_queues([range(8), *GROUPS_OF_HOSTS, *across], draw_calls, late={2: 13, 5: 30})
    groups = group_queues(queues)
    assert list_sure_members(queues, groups) == sorted(
        map(list, [range(8), *GROUPS_OF_HOSTS, *across])
    )
    for group in groups:
        # All have the last call.
        assert len({int(ordinals[-1]) for ordinals in group.ordinals}) == 1


def test_calls_at_exact_intervals_do_not_tie_hosts() -> None:
    queues = make_queues([range(8)], lambda rng: np.arange(60) * 2_000_000.0)
    for queue in queues:
        # Whoever comes last always comes then.
        queue.begin[:] = queue.begin[0] + np.arange(60) * 2_000_000.0
        queue.end[:] = queue.end[0] + np.arange(60) * 2_000_000.0
    groups = group_queues(queues)
    assert not list_sure_members(queues, groups)
    assert all(len({queues[place].clock for place in group.queues}) == 1 for group in groups)


@pytest.mark.parametrize("apart", [0.0, 3_000.0])
def test_communicators_in_step_are_not_taken_for_one(apart: float) -> None:
    """Of ranks that come at the same time, but for some us."""
    rng = np.random.default_rng(3)
    due = draw_calls(rng)
    queues = make_queues([(0, 4), (1, 5)], lambda rng: due + rng.normal(0, apart, len(due)))
    for queue in queues:
        queue.begin[:] = queue.end - 35_000
    assert [0, 1, 4, 5] not in list_sure_members(queues, group_queues(queues))


@pytest.mark.parametrize(("differ", "is_found"), [(20_000, True), (0, False), (2_000, False)])
def test_equally_many_ends_belong_together_in_order(differ: float, is_found: bool) -> None:
    rng = np.random.default_rng(3)
    ends = np.cumsum(10_000_000 + rng.normal(0, differ, 10))
    own, other = ends + rng.normal(0, 1_500, (2, 10))
    assert (_pair_in_order(own, other + 3e6) is not None) == is_found
    assert _pair_in_order(own[1:], other[:-1]) is None
