"""Test groups of NCCL calls, and the kernels assigned to them, against a walk through the ranges of
each thread.
"""

from collections import defaultdict
from typing import Any

import numpy as np
import polars as pl
import pytest

from nsys2prv._util.columns import ABSENT
from nsys2prv.events.nccl import (
    CALL_COLUMNS,
    GROUP_END,
    GROUP_START,
    LAST_OPERATION,
    RECEIVE,
    SEND,
    SEVERAL_OPERATIONS,
    group_calls,
    match_kernels,
)
from nsys2prv.export.info import PROCESS_MASK
from nsys2prv.export.source import NULL

THREADS = (281546145665027, 281546145665028, 281546162442243)
ALL_REDUCE, SHARE_OPERATIONS = 1, (4, 5, 8, 9, 10)
Range = dict[str, Any]


def _draw_ranges(random: np.random.Generator, rows: int) -> pl.DataFrame:
    """Return ranges that nest, cross and follow each other; no two begin at the same time on a
    thread.
    """
    begin = random.permutation(40 * rows)[:rows]
    end = np.where(
        random.random(rows) < 0.02, np.iinfo(np.int64).max, begin + random.integers(0, 90, rows)
    )
    columns = {
        "communicator": (0, 77, -5),
        "bytes": (-1, 0, 8, 12000),
        "ranks": (-1, 0, 2, 8),
        "rank": (-1, 0, 1),
        "sequence": (-1, 0, 4),
        "reduction": (-1, 1),
        "root": (-1, 0, 3),
        "peer": (-1, 2),
        "group": (-1, 4),
        "data_type": (-1, 7),
    }
    operations = (
        0,
        ALL_REDUCE,
        ALL_REDUCE,
        2,
        4,
        5,
        SEND,
        RECEIVE,
        GROUP_START,
        GROUP_END,
        30,
        36,
        37,
    )
    calls = pl.DataFrame(
        {
            "thread": random.choice(THREADS, rows),
            "begin": begin,
            "end": end,
            "operation": random.choice(operations, rows),
            **{name: random.choice(values, rows) for name, values in columns.items()},
        }
    )
    return calls.select(CALL_COLUMNS)


def _find_groups(ranges: list[Range]) -> list[list[Range]]:
    """Return the groups of one thread, whose ranges are in order."""
    groups: list[list[Range]] = []
    reach, level, least = None, 0, 0
    for item in ranges:
        outer = reach is None or item["begin"] >= reach
        if outer and level == least:
            groups.append([])
        groups[-1].append(item)
        if outer:
            level += {GROUP_START: 1, GROUP_END: -1}.get(item["operation"], 0)
            least = min(least, level)
        reach = item["end"] if reach is None else max(reach, item["end"])
    return groups


def _draw_moving(ranges: list[Range]) -> list[Range]:
    result, reach = [], None
    for item in ranges:
        if 1 <= item["operation"] <= LAST_OPERATION:
            if reach is None or item["begin"] >= reach:
                result.append(item)
            reach = item["end"] if reach is None else max(reach, item["end"])
    return result


def _check_same(values: list[int], otherwise: int = ABSENT) -> int:
    return values[0] if len(set(values)) == 1 else otherwise


def _build(ranges: list[Range]) -> dict[tuple[int, int], list[Range]]:
    made = defaultdict(list)
    for item in ranges:
        if item["communicator"] and 30 <= item["operation"] <= 36 and item["ranks"] > 0:
            for owner in {item["thread"], item["thread"] & PROCESS_MASK}:
                made[owner, item["communicator"]].append(item)
    return made


def _tell(
    calls: list[Range], made: dict[tuple[int, int], list[Range]], devices: int
) -> dict[str, int]:
    ranks, rank, shared = [], [], []
    for item in calls:
        # What the thread made itself counts before what its process did.
        owners = item["thread"], item["thread"] & PROCESS_MASK
        makers = next(
            (
                made[one, item["communicator"]]
                for one in owners
                if (one, item["communicator"]) in made
            ),
            [],
        )
        of_process = {maker["rank"] for maker in makers}
        shared.append(len(of_process))
        ranks.append(
            item["ranks"]
            if item["ranks"] > 0
            else max((maker["ranks"] for maker in makers), default=ABSENT)
        )
        rank.append(
            item["rank"]
            if item["rank"] >= 0
            else min(of_process)
            if len(of_process) == 1
            else ABSENT
        )
    parts = max(shared) or devices
    parts = parts if parts > 1 and len(calls) % parts == 0 else 1
    of = [item["operation"] for item in calls]
    size = [item["bytes"] for item in calls]
    several = len({item["communicator"] for item in calls}) > 1
    known = not several and min(size) >= 0
    others = [item for item in calls if item["operation"] not in (SEND, RECEIVE)]

    def moved(*operations: int) -> int:
        return sum(item["bytes"] for item in calls if item["operation"] in operations) // parts

    return {
        "fused": len(calls) // parts,
        "messages": (len(calls) - len(others)) // parts,
        "operation": _check_same(of, SEVERAL_OPERATIONS),
        "parts": parts,
        "first_operation": others[0]["operation"] if others else 0,
        "sequence": others[0]["sequence"] if others else ABSENT,
        "bytes": sum(size) // parts if known else ABSENT,
        "known": int(known),
        "reduce_bytes": moved(ALL_REDUCE),
        "share_bytes": moved(*SHARE_OPERATIONS),
        "message_bytes": moved(SEND, RECEIVE),
        "communicator": 0 if several else calls[0]["communicator"],
        "ranks": ABSENT if several else max(ranks),
        "rank": ABSENT if several else _check_same(rank),
        **{
            name: _check_same([item[name] for item in calls])
            for name in ("reduction", "root", "peer", "group", "data_type")
        },
    }


@pytest.mark.parametrize("seed", range(40))
def test_kernels_are_tied_to_the_group_of_their_call(seed: int) -> None:
    random = np.random.default_rng(seed)
    frame = _draw_ranges(random, 2 + seed * 8)
    threads, times = (
        random.choice([*THREADS, NULL, 5], 200),
        random.integers(-10, 45 * len(frame), 200),
    )
    devices = random.integers(0, 1 + seed % 3, 200)
    groups = group_calls({one.name: one.to_numpy() for one in frame})[1]
    tied = pl.DataFrame(match_kernels(groups, threads, times, devices))

    ranges = sorted(
        frame.to_dicts(), key=lambda item: (item["thread"], item["begin"], -item["end"])
    )
    made = _build(ranges)
    of_thread = {
        thread: [item for item in ranges if item["thread"] == thread] for thread in THREADS
    }
    moving = {
        (thread, item["begin"]) for thread in THREADS for item in _draw_moving(of_thread[thread])
    }
    groups = [
        (group[0], max(item["end"] for item in group), calls)
        for thread in THREADS
        for group in _find_groups(of_thread[thread])
        if (calls := [item for item in group if (item["thread"], item["begin"]) in moving])
    ]
    last = [
        max(
            (
                number
                for number, (first, _, _) in enumerate(groups)
                if first["thread"] == thread and first["begin"] <= time
            ),
            default=None,
        )
        for thread, time in zip(threads.tolist(), times.tolist(), strict=True)
    ]
    for row, number in enumerate(last):
        if number is None or times[row] > groups[number][1]:
            assert tied["call_group"][row] == tied["fused"][row] == tied["bytes"][row] == ABSENT
            assert tied["communicator"][row] == 0
            continue
        met = {int(device) for other, device in zip(last, devices, strict=True) if other == number}
        expected = _tell(groups[number][2], made, len(met))
        assert {name: int(tied[name][row]) for name in expected} == expected
