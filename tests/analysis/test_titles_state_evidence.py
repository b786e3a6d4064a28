"""Titles of findings claim only what the reports show: what a late host does, whether the last
rank's arrival is known, and by how much work differs.
"""

import re
from pathlib import Path

import pytest
from tools.exports import (
    KERNEL,
    PID,
    RUNTIME,
    make_export,
    make_global_tid,
    make_kernel,
    make_strings,
)
from tools.exports import make_call as make_nsys_call

import nsys2prv
from nsys2prv.verdict.culprits import _say_longer
from nsys2prv.verdict.host_use import NamedTime
from nsys2prv.verdict.words import ADVICE

SAMPLES = Path(__file__).parents[2] / "sample_reports"
MS = 1_000_000


def make_call(name: str, share: float) -> NamedTime:
    return NamedTime("os", "osrt", name, 100 * MS, 10 * MS, share)


@pytest.mark.parametrize(
    ("longer", "call", "title", "advice"),
    [
        (
            {"os": 97.0, "computing": 3.0},
            make_call("clock_nanosleep", 0.99),
            "the host sleeps longer than on other ranks (clock_nanosleep)",
            "sleep",
        ),
        (
            {"os": 97.0},
            make_call("poll", 0.9),
            "the host is in poll longer than on other ranks",
            "",
        ),
        (
            {"off_cpu": 90.0, "computing": 10.0},
            make_call("usleep", 0.9),
            "the host is off the CPU longer than on other ranks",
            "",
        ),
        ({"computing": 80.0}, None, "the host is computing longer than on other ranks", ""),
        # Nothing is known of most of the time, or no part dominates.
        ({"unknown": 90.0, "os": 10.0}, None, "None", ""),
        ({"os": 34.0, "computing": 33.0, "off_cpu": 33.0}, None, "None", ""),
        ({}, None, "None", ""),
    ],
)
def test_late_hosts_are_said_to_do_what_is_recorded(
    longer: dict[str, float], call: NamedTime | None, title: str, advice: str
) -> None:
    said, key = _say_longer(longer, call)
    assert (str(said), key) == (title, advice)


@pytest.mark.parametrize("report", ["graphs/rank1.sqlite", "training/rank0.sqlite", "training"])
def test_arrival_of_the_last_rank_is_stated_only_if_known(report: str) -> None:
    """Reports of one rank do not show when others arrive."""
    with nsys2prv.open(SAMPLES / report, quiet=True) as job:
        found = [one for one in job.findings() if one.kind == "exposed_communication"]
    text = " ".join(" ".join((one.title, *one.evidence, one.advice)) for one in found)
    is_known = report == "training"
    assert found
    assert ("all partners had arrived" in text) == is_known
    assert ("wait for data transfers" in text) == is_known
    assert ("reports of all ranks" in text) != is_known
    # What other kernels could do meanwhile is only known of transfers.
    assert re.search("overlapping all transfers|available for overlap", text) is None or is_known


def test_advice_for_unequal_work_does_not_contradict_its_evidence() -> None:
    """The evidence lists different work of ranks over the run."""
    assert "equal work" not in ADVICE["coupling"]
    assert "in single iterations" in ADVICE["coupling"]


def test_idle_time_states_what_its_share_excludes(tmp_path: Path) -> None:
    """Ten kernels of unknown launches, with gaps of 8 ms; the profiler works in several of them."""
    kernels = [
        make_kernel(begin, begin + 2 * MS, correlationId=900 + begin // MS)
        for begin in range(0, 100 * MS, 10 * MS)
    ]
    tables = {
        "StringIds": make_strings("kern", "cudaLaunchKernel", "CUPTI: Resource Management"),
        RUNTIME: [make_nsys_call(0, MS // 100, 1, nameId=2)],
        KERNEL: [*kernels, make_kernel(100 * MS, 101 * MS, correlationId=1)],
        "PROFILER_OVERHEAD": [
            {"start": 22 * MS, "end": 60 * MS, "globalTid": make_global_tid(PID), "nameId": 3}
        ],
    }
    with nsys2prv.open(make_export(tmp_path / "r.sqlite", tables), quiet=True) as job:
        (idle,) = (one for one in job.findings() if one.kind == "idle")
    # Idle for 80 of 101 ms; the profiler takes 32 of these.
    assert idle.title.startswith("GPUs are idle for 80.0 ms")
    assert "(not counted as savings: 32.0 ms in the profiler)" in idle.title
    assert idle.share == pytest.approx(48 / 101, abs=0.01)
