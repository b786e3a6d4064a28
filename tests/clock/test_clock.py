"""Test the placement of reports on one timeline."""

import numpy as np
import pytest

from nsys2prv.clock.maps import (
    UNPLACED,
    ClockMap,
    ReportClock,
    find_coarse_shifts,
    place_reports,
)

SECOND = 1_000_000_000
UTC = 1_780_000_000 * SECOND


def list_offsets(*reports: ReportClock) -> list[int]:
    return [placement.map.offset for placement in place_reports(list(reports))]


def test_one_host_is_placed_by_its_own_clock() -> None:
    # UTC was stepped by 3 ms between the two captures; the monotonic clock was not.
    first, second = (
        ReportClock("a", UTC, 100 * SECOND),
        ReportClock("a", UTC + 5 * SECOND + 3_000_000, 105 * SECOND),
    )
    assert list_offsets(first, second) == [UTC, UTC + 5 * SECOND]


def test_hosts_are_placed_by_utc() -> None:
    assert list_offsets(ReportClock("a", UTC, 100), ReportClock("b", UTC + 7, 900 * SECOND)) == [
        UTC,
        UTC + 7,
    ]


@pytest.mark.parametrize(("apart", "machines"), [(0.9, [0, 0]), (1.1, [0, 1]), (30, [0, 1])])
def test_clocks_of_one_machine_agree_within_a_second(apart: float, machines: list[int]) -> None:
    """UTC may be stepped between two captures, but two machines of one name are not one."""
    reports = [ReportClock("box", UTC + round(step * SECOND), 100 * SECOND) for step in (0, apart)]
    assert [placement.machine for placement in place_reports(reports)] == machines


def test_containers_of_one_name_on_two_machines_stay_apart() -> None:
    reports = [ReportClock("box", UTC, 100 * SECOND), ReportClock("box", UTC + 50, 9_000 * SECOND)]
    assert [placement.machine for placement in place_reports(reports)] == [0, 1]
    assert list_offsets(*reports) == [UTC, UTC + 50]


@pytest.mark.parametrize(("later", "machines"), [(0.5, [0, 0]), (2.0, [0, 1])])
def test_machines_of_one_name_are_told_apart_though_they_started_seconds_apart(
    later: float, machines: list[int]
) -> None:
    """What UTC is less the monotonic clock stays the same on a machine, but for steps of UTC."""
    reports = [
        ReportClock("box", UTC, 100 * SECOND),
        ReportClock("box", UTC + round(later * SECOND), 100 * SECOND),
    ]
    assert [placement.machine for placement in place_reports(reports)] == machines


def test_reports_without_a_name_are_of_one_machine_if_they_have_a_gpu_in_common() -> None:
    gpus = [frozenset({"a", "b"}), frozenset({"b"}), frozenset({"c"}), frozenset[str]()]
    reports = [ReportClock("", UTC, None, own) for own in (*gpus, gpus[3])]
    assert [placement.machine for placement in place_reports(reports)] == [0, 0, 1, 2, 3]


def test_a_report_without_a_clock_is_left_to_the_caller() -> None:
    assert [
        placement.method
        for placement in place_reports([ReportClock("", None, None), ReportClock("b", UTC, None)])
    ] == [UNPLACED, "UTC"]


@pytest.mark.parametrize("drift", [0.0, 5e-5, -5e-5, 1e-9])
def test_maps_are_monotone_and_invert(drift: float) -> None:
    clock = ClockMap(-12_345, drift, 1_000)
    local = np.arange(0, 10**13, 99_999_999_977, dtype=np.int64)
    moved = clock.to_global(local)
    assert (np.diff(moved) > 0).all()
    assert all(
        abs(clock.to_local(int(time)) - int(before)) <= 2
        for time, before in zip(moved, local, strict=True)
    )
    exact = local - 12_345 + (local - 1_000) * drift
    assert np.abs(moved - exact).max() <= 2


def test_clocks_that_are_far_off_are_shifted_by_whole_hours() -> None:
    hour, days = 3_600 * SECOND, 190 * 86_400 * SECOND
    spans = np.array(
        [
            (np.nan, np.nan),
            (UTC, UTC + 60 * SECOND),
            (UTC + 59 * SECOND, UTC + 5 * hour),
            (UTC + days + 7 * SECOND, UTC + days + 60 * SECOND),
            (UTC - 50 * days, UTC - 49 * days),
            (UTC + 61 * SECOND, UTC + hour),
        ]
    )
    assert find_coarse_shifts(spans).tolist() == [0, 0, 0, -days, 50 * days, 0]
    assert find_coarse_shifts(spans[:1]).tolist() == [0]
