"""Damaged times in the reports of one of two hosts: no trace back, and what is whole still aligns
the clocks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from tools.exports import make_export, make_global_tid, make_strings
from tools.trace_reader import read_trace

from nsys2prv import Options, convert

WORLD, EPOCH, COUNT = 0x44000000, 1_780_000_000_000_000_000, 60
OFFSET = 40_000_000
BAD = {
    "before the limit": (-(1 << 61), -(1 << 61) + 7),
    "beyond the limit": (1 << 61, (1 << 62) + 5),
    "largest": (5, (1 << 63) - 1),
    "smallest": (-(1 << 63), -(1 << 63) + 1),
    "nothing": (None, None),
    "text": ("soon", "later"),
}


def make_report(path: Path, rank: int, bad: tuple[object, object] | None) -> Path:
    """Write a report with messages both ways and barriers on two hosts, the second's clock 40 ms
    ahead; every seventh row has the bad times.
    """
    rng = np.random.default_rng(1)
    starts = np.cumsum(rng.integers(5_000_000, 30_000_000, COUNT))
    shift = OFFSET * rank
    sent, received, met = [], [], []
    for number, true in enumerate(starts.tolist()):
        times = {
            "send": (true + 1_000, true + 3_000),
            "receive": (true, true + 20_000 + number * 10),
            "meet": (true + 2_000_000, true + 2_100_000),
        }
        local = {name: (start + shift, end + shift) for name, (start, end) in times.items()}
        if bad and number % 7 == 3:
            local = dict.fromkeys(local, bad)
        common = {"globalTid": make_global_tid(rank + 1, rank + 1), "commHandle": WORLD}
        for rows, name, text in ((sent, "send", 1), (received, "receive", 2)):
            rows.append(
                {
                    "start": local[name][0],
                    "end": local[name][1],
                    "textId": text,
                    "tag": 1,
                    "remoteRank": 1 - rank,
                    "size": 8,
                    **common,
                }
            )
        met.append(
            {
                "start": local["meet"][0],
                "end": local["meet"][1],
                "textId": 3,
                "rootRank": 0,
                "size": 8,
                **common,
            }
        )
    thread = make_global_tid(rank + 1, rank + 1)
    return make_export(
        path,
        {
            "StringIds": make_strings("MPI_Send", "MPI_Recv", "MPI_Barrier", "MPI_Init"),
            "MPI_P2P_EVENTS": sent + received,
            "MPI_COLLECTIVES_EVENTS": met,
            "MPI_RANKS": [{"globalTid": thread, "rank": rank}],
            "MPI_OTHER_EVENTS": [
                {"start": shift, "end": shift + 1_000, "textId": 4, "globalTid": thread}
            ],
            "TARGET_INFO_SYSTEM_ENV": [{"name": "Hostname", "value": f"n{rank}"}],
            "TARGET_INFO_SESSION_START_TIME": [
                {"utcEpochNs": EPOCH, "systemClockNs": 1_000_000 + rank * 10**13}
            ],
        },
    )


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("bad", BAD)
def test_damaged_times_are_left_out(bad: str, victim: int, tmp_path: Path) -> None:
    reports = [
        make_report(tmp_path / f"r{rank}.sqlite", rank, BAD[bad] if rank == victim else None)
        for rank in (0, 1)
    ]
    convert(reports, tmp_path / "o.prv", Options(jobs=1))
    read_trace(tmp_path / "o.prv")
    known = yaml.safe_load((tmp_path / "o.clock.yaml").read_text())["hosts"]["n1"]
    assert abs(known["offset_ns"] + OFFSET) < 10_000
    assert known["bound_ns"] < 100_000
