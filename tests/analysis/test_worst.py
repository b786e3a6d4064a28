"""Test that minimum, mean, maximum and the worst rows are printed for many ranks."""

import polars as pl

from nsys2prv.show.text import choose_worst_rows


def make_devices(count: int) -> pl.DataFrame:
    """Return devices of which number 41 is idle most, and a row for all of them."""
    idle = [0.9 if number == 41 else number / 1000 for number in range(count)]
    names = [f"n1 GPU{number}" for number in range(count)]
    return pl.DataFrame(
        {
            "device": ["all", *names],
            "idle_share": [99.0, *idle],
            "useful_ns": [10**9, *(1000 + number for number in range(count))],
        }
    )


def test_the_worst_come_first() -> None:
    shown, left = choose_worst_rows(make_devices(64), 5)
    assert shown["device"].to_list() == [
        *("min of 64", "mean of 64", "max of 64"),
        *("n1 GPU41", "n1 GPU63", "n1 GPU62"),
    ]
    assert left == 61
    # Of the devices alone, without the row for all.
    assert shown["useful_ns"].to_list()[:3] == [1000, 1032, 1063]
    assert shown["idle_share"][2] == 0.9


def test_few_ranks_and_other_tables_stay_as_they_are() -> None:
    for frame in (
        make_devices(7),
        pl.DataFrame({"kernel": [str(number) for number in range(20)], "median_ns": range(20)}),
        # Several rows of a rank.
        pl.DataFrame({"rank": ["rank 0"] * 20, "median_ns": range(20)}),
    ):
        shown, left = choose_worst_rows(frame, 5)
        assert shown.equals(frame)
        assert left == 0
