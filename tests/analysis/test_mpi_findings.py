"""Test findings and efficiencies of MPI jobs without GPUs, with times made by hand."""

import re
from pathlib import Path

import numpy as np
import pytest
from tools.exports import (
    make_export,
    make_global_pid,
    make_global_tid,
    make_nvtx_range,
    make_strings,
)

import nsys2prv
from nsys2prv.cli import main

RANKS, STEPS, STEP = 4, 40, 1_000_000
NAMES = (
    "MPI_Init", "MPI_Finalize", "MPI_Allreduce", "python", "write", "solve", "MPI_Iallreduce", "MPI_Wait"
)  # fmt: skip


def write_job(folder: Path, work: np.ndarray, more: str = "") -> list[Path]:
    """Write a report for each rank of a job that computes for `work` (rank, step; ns), then meets the
    others. Each has a clock of its own. more: `nvtx` (a range around the work), `io` (most of the
    work writes a file), `at once` (they meet by a call that returns at once, and a wait).
    """
    arrival = np.zeros(work.shape, np.int64)
    left = 100_000
    for step in range(work.shape[1]):
        arrival[:, step] = left + work[:, step]
        left = arrival[:, step].max() + 5_000
    reports = []
    for rank, own in enumerate(arrival):
        thread, clock = make_global_tid(7 + rank, 7 + rank, 1 + rank), 500 * rank
        leave = arrival.max(axis=0) + 5_000 + clock
        begin = np.append(100_000 + clock, leave[:-1])
        own = own + clock

        tables: dict[str, list] = {
            "StringIds": make_strings(*NAMES),
            "MPI_RANKS": [{"globalTid": thread, "rank": rank}],
            "PROCESSES": [{"globalPid": make_global_pid(7 + rank, 1 + rank), "name": "python"}],
            "MPI_OTHER_EVENTS": [
                # Before MPI_Init each rank starts for another time.
                make_row("MPI_Init", clock + 20_000 * rank, clock + 100_000, thread),
                make_row("MPI_Finalize", leave[-1], leave[-1] + 50_000, thread),
            ],
            "MPI_COLLECTIVES_EVENTS": [
                make_row("MPI_Allreduce", *times, thread) for times in zip(own, leave, strict=True)
            ],
        }
        if more == "at once":
            tables["MPI_COLLECTIVES_EVENTS"] = [
                make_row("MPI_Iallreduce", begin, begin + 1_000, thread) for begin in own
            ]
            tables["MPI_START_WAIT_EVENTS"] = [
                make_row("MPI_Wait", begin + 1_000, end, thread)
                for begin, end in zip(own, leave, strict=True)
            ]
        if more == "nvtx":
            tables["NVTX_EVENTS"] = [
                make_nvtx_range(int(start), int(end), text, globalTid=thread)
                for start, mid, end in zip(begin, own, leave, strict=True)
                for text, end in (("step", end), ("solve", mid))
            ]
        if more == "io":
            tables["OSRT_API"] = [
                {**make_row("write", (3 * start + end) // 4, end, thread), "nameId": 5}
                for start, end in zip(begin, own, strict=True)
            ]
        host = {"name": "Hostname", "nameEnum": 1, "value": f"node{rank}"}
        tables["TARGET_INFO_SYSTEM_ENV"] = [host]
        reports.append(make_export(folder / f"rank{rank}.sqlite", tables))
    return reports


def make_row(name: str, start: int, end: int, thread: int) -> dict[str, object]:
    """Return a row of a call."""
    text = 1 + NAMES.index(name)
    return {"start": int(start), "end": int(end), "globalTid": thread, "textId": text}


def draw_work(late: dict[int, float]) -> np.ndarray:
    """Return the work of each rank and step, with noise, of some ranks so much longer."""
    rng = np.random.default_rng(1)
    work = STEP + rng.exponential(0.03 * STEP, (RANKS, STEPS))
    for rank, more in late.items():
        work[rank] += more * STEP
    return work.astype(np.int64)


@pytest.mark.parametrize("both", [True, False])
def test_calls_of_mpi_that_do_not_return(both: bool, tmp_path: Path) -> None:
    threads = [make_global_tid(7 + rank) for rank in range(2)]
    tables = {
        "StringIds": make_strings(*NAMES),
        "MPI_OTHER_EVENTS": [make_row("MPI_Init", 0, 100_000, thread) for thread in threads],
        "MPI_COLLECTIVES_EVENTS": [make_row("MPI_Allreduce", 200_000, 9 * STEP, threads[0])],
        "MPI_START_WAIT_EVENTS": [make_row("MPI_Wait", 250_000, 9 * STEP, threads[1])][:both],
    }
    with nsys2prv.open(make_export(tmp_path / "r.sqlite", tables)) as job:
        (finding,) = job.findings()
    titles = ("Hosts wait in MPI_Allreduce", "Ranks spend 99% of the time in MPI")
    assert finding.title == titles[both]
    assert "8.80 ms" in finding.evidence[0]


@pytest.mark.parametrize(
    ("more", "because", "where"),
    [
        ("", "100% outside recorded calls", "host activity during this time is not recorded"),
        (
            "nvtx",
            "100% outside recorded calls",
            "in NVTX range solve (39 executions), the host spends 1.",
        ),
        ("io", "in file or network I/O", "75% of this time is in write"),
        (
            "at once",
            "100% outside recorded calls",
            "host activity during this time is not recorded",
        ),
    ],
)
def test_a_late_rank_is_named_with_its_cost_and_place(
    more: str, because: str, where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check this also for hosts with different clocks, because ranks are compared call by call."""
    work = draw_work({2: 0.3})
    reports = write_job(tmp_path, work, more)
    with nsys2prv.open(reports) as job:
        found = {finding.kind: finding for finding in job.findings()}
        late = found["straggler"]
        hosts = job.analyse("efficiencies")["efficiencies"].tables["host"].frame.to_dicts()
        focus, host = hosts[0], hosts[-1]
    assert late.ranks == (2,)
    without = draw_work({})
    gain = 1 - without.max(axis=0).sum() / work.max(axis=0).sum()
    assert late.share == pytest.approx(gain, rel=0.25)
    assert any(because in line for line in late.evidence)
    assert any(line.startswith(where) for line in late.evidence)
    total = work.sum(axis=1)
    elapsed = (work.max(axis=0) + 5_000).sum()
    assert host["mpi_load_balance_efficiency"] == pytest.approx(total.mean() / total.max())
    assert host["mpi_communication_efficiency"] == pytest.approx(total.max() / elapsed)
    assert main(["report", "-q", *map(str, reports)]) == 0
    printed = capsys.readouterr().out
    assert "GPU" not in printed.replace("no GPU work", "")
    assert host["part"] == "MPI_Init to MPI_Finalize"
    share = f"{1 - focus['mpi_parallel_efficiency']:.1%}"
    assert re.search(
        rf"Ranks spend {share} of the .*{focus['part']} in MPI\.", " ".join(printed.split())
    )


@pytest.mark.parametrize("seed", range(3))
def test_no_rank_is_blamed_for_chance(seed: int, tmp_path: Path) -> None:
    work = STEP * (1 + np.random.default_rng(seed).exponential(0.15, (3, 25)))
    with nsys2prv.open(write_job(tmp_path, work.astype(np.int64)), quiet=True) as job:
        assert not [one for one in job.findings() if one.ranks]


def test_clocks_that_differ_by_a_little_hide_no_wait(tmp_path: Path) -> None:
    work = STEP * (1 + np.random.default_rng(1).exponential(0.1, (13, 25)))
    work[11, 9] += 7 * STEP
    with nsys2prv.open(write_job(tmp_path, work.astype(np.int64)), quiet=True) as job:
        assert [one.ranks for one in job.findings() if one.ranks] == [(11,)]


def test_the_page_of_a_job_without_gpus_has_no_headings_about_gpus(tmp_path: Path) -> None:
    reports = write_job(tmp_path, np.full((RANKS, STEPS), STEP))
    assert main(["report", "-q", *map(str, reports), "--html", str(tmp_path / "p.html")]) == 0
    page = (tmp_path / "p.html").read_text()
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", page)
    assert any(one.startswith("Bottlenecks") for one in headings)
    assert not [one for one in headings if re.search("GPU|Kernel|device|communication", one)]


def write_calls(folder: Path, ranks: list[list[tuple[str, int, int]]]) -> list[Path]:
    """Write reports whose ranks make these calls (name, begin, end) between MPI_Init and
    MPI_Finalize. A send or receive names its partner: `MPI_Send 1`.
    """
    names = ["MPI_Init", "MPI_Finalize", "MPI_Allreduce", "MPI_Send", "MPI_Recv", "MPI_File_open"]
    reports = []
    last = max(end for calls in ranks for _, _, end in calls)
    for rank, calls in enumerate(ranks):
        thread = make_global_tid(7 + rank, 7 + rank, 1 + rank)
        rows: dict[str, list] = {"P2P": [], "COLLECTIVES": [], "OTHER": []}
        for name, begin, end in (
            ("MPI_Init", 0, 100),
            *calls,
            ("MPI_Finalize", last + 100, last + 200),
        ):
            text, _, partner = name.partition(" ")
            row = {"start": begin, "end": end, "globalTid": thread, "textId": 1 + names.index(text)}
            if partner:
                rows["P2P"].append(
                    row | {"tag": 1, "remoteRank": int(partner), "size": 8, "commHandle": 1}
                )
            elif text == "MPI_Allreduce":
                rows["COLLECTIVES"].append(row | {"size": 8, "commHandle": 1})
            else:
                rows["OTHER"].append(row)
        tables: dict[str, list] = {f"MPI_{name}_EVENTS": found for name, found in rows.items()}
        tables |= {
            "StringIds": make_strings(*names),
            "MPI_RANKS": [{"globalTid": thread, "rank": rank}],
            "MPI_COMMUNICATORS": [
                {"rank": rank, "timestamp": 0, "commHandle": 1, "localRank": rank, "size": len(ranks),
                 "groupRoot": 0, "groupRootUid": 0, "members": str([*range(len(ranks))])}
            ],
        }  # fmt: skip
        reports.append(make_export(folder / f"rank{rank}.sqlite", tables))
    return reports


def test_ranks_that_take_turns_are_told_as_stages(tmp_path: Path) -> None:
    """Each rank waits for the message of the one before, works, and sends on."""
    calls: list[list[tuple[str, int, int]]] = [[] for _ in range(RANKS)]
    left = 1_000
    for _ in range(STEPS):
        ready = left
        for rank, own in enumerate(calls):
            if rank:
                own.append((f"MPI_Recv {rank - 1}", left + 500, ready + 2_000))
                ready += 2_000
            ready += STEP
            if rank + 1 < RANKS:
                own.append((f"MPI_Send {rank + 1}", ready, ready + 1_000))
            own.append(("MPI_Allreduce", ready + 1_500, 0))
        left = ready + 10_000
        for own in calls:
            own[-1] = (*own[-1][:2], left)
    with nsys2prv.open(write_calls(tmp_path, calls), align="none") as job:
        (finding,) = (one for one in job.findings() if one.kind == "pipeline_bubble")
        assert not any(one.ranks for one in job.findings())
    assert finding.share == pytest.approx(1 - 1 / RANKS, rel=0.05)
    assert any("rank 0 (" in line and "rank 3 (" in line for line in finding.evidence)
    assert any("MPI_Recv" in line for line in finding.evidence)


def test_ranks_meet_where_they_open_a_file(tmp_path: Path) -> None:
    """Check that the late rank is named, not the call in which the others wait; and so is the time
    that all take afterwards.
    """
    late, takes = 30 * STEP, 20 * STEP
    calls: list[list[tuple[str, int, int]]] = []
    for rank in range(RANKS):
        begin = 1_000 + STEP + (late if rank == 1 else 1_000 * rank)
        end = 1_000 + STEP + late + takes
        calls.append([("MPI_File_open", begin, end), ("MPI_Allreduce", end + 1_000, end + 90_000)])
    with nsys2prv.open(write_calls(tmp_path, calls), align="none") as job:
        found = {finding.kind: finding for finding in job.findings()}
    named = found.get("hiccup", found.get("straggler"))
    assert named is not None
    assert named.ranks == (1,)
    transfers = found["exposed_communication"]
    assert "MPI_File_open" in transfers.title
    assert "little data" in transfers.title


def test_what_ends_before_the_span_in_the_replay_takes_no_time_of_it(tmp_path: Path) -> None:
    """Rank 1 leaves its first call when the iterations that count have begun; without transfers it would
    have left before.
    """
    reports = []
    for rank in range(2):
        thread = make_global_tid(7 + rank, 7 + rank)
        tables: dict[str, list] = {
            "StringIds": make_strings(*NAMES),
            "MPI_RANKS": [{"globalTid": thread, "rank": rank}],
            "MPI_OTHER_EVENTS": [make_row("MPI_Init", 0, 1_000, thread)],
            "MPI_COLLECTIVES_EVENTS": [],
            "NVTX_EVENTS": [],
        }
        left = 80_000 * (1 - rank) + 1_000
        for end in range(100_000, 900_000, 200_000):
            arrived, returned = (left + 10_000, end - 6_000)[rank], end
            if rank and end == 100_000:
                arrived, returned = 20_000, end + 60_000
            call = make_row("MPI_Allreduce", arrived, returned, thread)
            tables["MPI_COLLECTIVES_EVENTS"].append({**call, "commHandle": 1})
            step = make_nvtx_range(left, returned, "step", globalTid=thread)
            tables["NVTX_EVENTS"].append(step)
            left = returned
        reports.append(make_export(tmp_path / f"rank{rank}.sqlite", tables))
    with nsys2prv.open(reports, align="none") as job:
        row = job.analyse("efficiencies")["efficiencies"].tables["host"].frame.row(0, named=True)
    assert row["part"] == "steady state"
    assert row["mpi_communication_efficiency"] < row["mpi_serialisation_efficiency"] <= 1
