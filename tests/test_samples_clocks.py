"""Sample reports for judging clocks: what the options promise, by plain SQL on the reports and by
their truth.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from samples import Options, generate
from tools.exports import query_export

START = "SELECT utcEpochNs, systemClockNs FROM TARGET_INFO_SESSION_START_TIME"
NCCL_KERNELS = (
    "SELECT k.start, k.end FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName "
    "WHERE s.value LIKE 'nccl%' ORDER BY k.start"
)


def list_tables(report: Path) -> set[str]:
    return {
        name
        for (name,) in query_export(report, "SELECT name FROM sqlite_master WHERE type = 'table'")
    }


def list_rank_events(
    folder: Path, truth: dict[str, Any]
) -> Iterable[tuple[dict[str, Any], dict[str, Any], Path]]:
    """Yield rank, its host and its report."""
    hosts = truth["hosts"]
    for rank in truth["ranks"]:
        yield rank, hosts[rank["rank"] * len(hosts) // len(truth["ranks"])], folder / rank["report"]


def to_true_time(host: dict[str, Any], epoch: int, start: tuple[int, int], local: int) -> Fraction:
    """Return the true time of an event from its local time and the truth of the host's clock: UTC
    on this clock is epoch + offset + true * (1 + drift).
    """
    utc, system = start
    shown = system + local + host["utc_minus_system_clock_ns"]
    assert shown == utc + local
    return (shown - epoch - host["offset_ns"]) / (1 + Fraction(str(host["drift_ppm"])) / 10**6)


def test_the_truth_tells_every_clocks_error_at_every_instant(tmp_path: Path) -> None:
    truth = generate(
        tmp_path,
        ranks=6,
        hosts=3,
        steps=6,
        layers=1,
        seed=5,
        clock_offset_range_ms=50.0,
        clock_drift_range_ppm=50.0,
        pace_ms=2_000.0,
    )
    expected: dict[int, list[tuple[int, int]]] = {rank["rank"]: [] for rank in truth["ranks"]}
    assert truth["collectives_of_every_nth_step"] == 1
    for item in truth["collectives"]:
        for rank, begin, end in zip(item["ranks"], item["begin"], item["end"], strict=True):
            expected[rank].append((begin, end))
    for rank, host, report in list_rank_events(tmp_path, truth):
        start = query_export(report, START)[0]
        assert start == (rank["utcEpochNs"], rank["systemClockNs"])
        times = [
            [to_true_time(host, truth["epoch_utc_ns"], start, local) for local in row]
            for row in query_export(report, NCCL_KERNELS)
        ]
        assert len(times) == len(expected[rank["rank"]]) > 0
        for own, expected_error in zip(times, sorted(expected[rank["rank"]]), strict=True):
            assert all(
                abs(item - other) <= 2 for item, other in zip(own, expected_error, strict=True)
            )
        assert (
            abs(to_true_time(host, truth["epoch_utc_ns"], start, 0) - rank["capture_start_true_ns"])
            <= 1
        )


@pytest.mark.slow
def test_clock_ranges_hold_for_every_host(tmp_path: Path) -> None:
    truth = generate(
        tmp_path,
        ranks=24,
        hosts=24,
        steps=1,
        layers=1,
        clock_offset_range_ms=50.0,
        clock_drift_range_ppm=40.0,
    )
    offsets = [host["offset_ns"] for host in truth["hosts"]]
    drifts = [host["drift_ppm"] for host in truth["hosts"]]
    assert max(map(abs, offsets)) <= 50e6
    assert max(map(abs, drifts)) <= 40
    assert min(offsets) < -25e6 < 25e6 < max(offsets)
    assert min(drifts) < -20 < 20 < max(drifts)


def test_pace_stretches_a_job_without_more_events(tmp_path: Path) -> None:
    slow, fast = (
        generate(tmp_path / str(pace), ranks=2, hosts=2, steps=5, layers=1, pace_ms=pace)
        for pace in (4_000.0, 0.0)
    )
    for item, other in zip(slow["ranks"], fast["ranks"], strict=True):
        assert item["event_rows"] == other["event_rows"]
        assert item["capture_end_true_ns"] - other["capture_end_true_ns"] == 5 * 4_000_000_000
    spans = [
        row[0]
        for row in query_export(
            tmp_path / "4000.0" / "rank0.sqlite",
            "SELECT max(end) - min(start) FROM CUPTI_ACTIVITY_KIND_KERNEL",
        )
    ]
    assert spans[0] > 16e9


@pytest.mark.parametrize(("waited", "jitter"), [((0.0,), 0.0), ((5.0,), 1.0), ((4.0, 30.0), 3.0)])
def test_ends_of_nccl_kernels_differ_as_asked(
    tmp_path: Path, waited: tuple[float, ...], jitter: float
) -> None:
    """Two ranks: of a kernel the last to begin is not late, the other is by one of the modes if it
    waited.
    """
    truth = generate(
        tmp_path,
        ranks=2,
        hosts=2,
        steps=60,
        layers=1,
        skew_us=600.0,
        waited_us=waited,
        end_jitter_us=jitter,
    )
    differences = []
    for item in truth["collectives"]:
        begins, ends = item["begin"], item["end"]
        early, late = (0, 1) if begins[0] < begins[1] else (1, 0)
        if begins[late] - begins[early] > 20_100:
            differences.append(ends[early] - ends[late])
    assert len(differences) > 30
    modes = [
        [item for item in differences if abs(item - mode * 1e3) <= jitter * 1e3 + 1]
        for mode in waited
    ]
    assert all(modes)
    assert sum(map(len, modes)) == len(differences)


def test_ends_of_mpi_calls_differ_as_asked(tmp_path: Path) -> None:
    truth = generate(
        tmp_path,
        ranks=2,
        hosts=2,
        steps=40,
        layers=1,
        nccl=False,
        mpi=True,
        skew_us=600.0,
        waited_us=(5.0, 40.0),
        end_jitter_us=2.0,
    )
    differences = []
    for item in truth["mpi"]["collectives"]:
        begins, ends = item["begin"], item["end"]
        if (
            item["function"] in ("MPI_Allreduce", "MPI_Barrier")
            and item["step"] is not None
            and len(begins) == 2
        ):
            early, late = (0, 1) if begins[0] < begins[1] else (1, 0)
            if begins[late] - begins[early] > 20_100:
                differences.append(ends[early] - ends[late])
    low = [item for item in differences if abs(item - 5_000) <= 2_001]
    high = [item for item in differences if abs(item - 40_000) <= 2_001]
    assert low
    assert high
    assert len(low) + len(high) == len(differences)


def test_no_message_arrives_before_it_was_sent_whatever_the_noise(tmp_path: Path) -> None:
    truth = generate(
        tmp_path,
        ranks=4,
        hosts=2,
        steps=5,
        layers=1,
        mpi=True,
        end_jitter_us=20.0,
        waited_us=(0.0, 20.0),
    )
    for message in truth["mpi"]["messages"]:
        assert message["completed"] >= message["arrived"] > message["send"][0]


def test_a_job_without_nccl_meets_in_mpi_only(tmp_path: Path) -> None:
    truth = generate(tmp_path, ranks=4, hosts=2, steps=3, layers=1, nccl=False, mpi=True)
    assert (truth["communicators"], truth["collectives"], truth["collectives_total"]) == ([], [], 0)
    assert truth["mpi"]["collectives"]
    assert truth["mpi"]["messages"]
    for rank in truth["ranks"]:
        report = tmp_path / rank["report"]
        assert query_export(report, NCCL_KERNELS) == []
        assert query_export(
            report, "SELECT count(*) FROM NVTX_EVENTS WHERE domainId = 1 AND eventType = 59"
        ) == [(0,)]
        assert not [name for name in list_tables(report) if "PAYLOAD" in name]
        steps = [item for item in truth["mpi"]["collectives"] if rank["rank"] in item["ranks"]]
        assert query_export(report, "SELECT count(*) FROM MPI_COLLECTIVES_EVENTS") == [
            (len(steps),)
        ]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "hosts"), [(6, 3), (4, 2), (3, 3), (2, 2)])
def test_a_lonely_host_shares_nothing_with_others(tmp_path: Path, ranks: int, hosts: int) -> None:
    truth = generate(
        tmp_path,
        ranks=ranks,
        hosts=hosts,
        steps=2,
        layers=1,
        mpi=True,
        mpi_teams=True,
        lonely_host=True,
    )
    alone = set(range(ranks - ranks // hosts, ranks))

    def apart(members: Iterable[int]) -> bool:
        return not (set(members) & alone) or set(members) <= alone

    assert all(apart(comm["ranks"]) for comm in truth["communicators"])
    assert all(apart(item["ranks"]) for item in truth["collectives"])
    assert all(apart(item["ranks"]) for item in truth["mpi"]["collectives"])
    both = truth["mpi"]["messages"] + truth["mpi"]["unmatched"]
    assert all(apart((message["sender"], message["receiver"])) for message in both)
    if hosts > 2:  # the others do meet across hosts
        per_host = ranks // hosts
        for collectives in (truth["collectives"], truth["mpi"]["collectives"]):
            assert any(
                len({rank // per_host for rank in item["ranks"]}) > 1 for item in collectives
            )
    for rank in truth["ranks"]:
        report = tmp_path / rank["report"]
        known = {
            uid: tuple(map(int, members.split(",")))
            for uid, members in query_export(
                report, "SELECT commUid, members FROM MPI_COMMUNICATORS"
            )
        }
        kinds = sorted({"MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS"} & list_tables(report))
        used = query_export(report, " UNION ".join(f"SELECT commUid FROM {kind}" for kind in kinds))
        assert used
        assert all(rank["rank"] in known[uid] and apart(known[uid]) for (uid,) in used)
        ranks_by_uid = {comm["uid"]: tuple(comm["ranks"]) for comm in truth["mpi"]["communicators"]}
        assert known == {uid: ranks_by_uid[uid] for uid in known}
        handles = query_export(
            report,
            "SELECT commHandle, count(DISTINCT commUid) FROM MPI_COLLECTIVES_EVENTS GROUP BY 1",
        )
        assert all(count <= 2 for _, count in handles)  # that of a freed communicator is used again


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("cut_rank", {"cut_rank": 4}),
        ("cannot be cut", {"cut_report": "end", "gpu_metrics": 10.0}),
        ("lonely", {"hosts": 1, "lonely_host": True}),
        ("never lost", {"lost_collectives": 0.1, "nccl_trace": "advanced"}),
    ],
)
def test_options_that_make_no_sense_are_refused(message: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=message):
        Options(**options)
