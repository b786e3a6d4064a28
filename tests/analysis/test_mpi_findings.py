"""Findings and efficiencies of MPI jobs without GPUs, of times that are made by hand."""

from __future__ import annotations

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
NAMES = ("MPI_Init", "MPI_Finalize", "MPI_Allreduce", "python", "write", "solve")


def write_job(folder: Path, work: np.ndarray, more: str = "") -> list[Path]:
    """Write a report for each rank of a job that computes for `work` (rank, step; ns), then meets the
    others. Each has a clock of its own. more: `nvtx` (a range around the work), `io` (most of the
    work writes a file).
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


@pytest.mark.parametrize(
    ("more", "because", "where"),
    [
        (
            "",
            "100% in no recorded call",
            "what the host does there is not recorded",
        ),
        ("nvtx", "100% in no recorded call", "NVTX range solve, 40 times: 1."),
        ("io", "in file or network I/O", "what the host does there is not recorded"),
    ],
)
def test_a_late_rank_is_named_with_its_cost_and_place(
    more: str, because: str, where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of hosts whose clocks do not agree, as rank is compared with rank call by call."""
    work = draw_work({2: 0.3})
    reports = write_job(tmp_path, work, more)
    with nsys2prv.open(reports) as job:
        found = {finding.kind: finding for finding in job.findings()}
        late = found["straggler"]
        (host,) = job.analyse("efficiencies")["efficiencies"].tables["host"].frame.to_dicts()
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
    assert "GPU" not in capsys.readouterr().out


def test_nobody_is_blamed_for_noise(tmp_path: Path) -> None:
    with nsys2prv.open(write_job(tmp_path, draw_work({}))) as job:
        assert not any(finding.ranks for finding in job.findings())


def test_the_page_of_a_job_without_gpus_has_no_headings_about_gpus(tmp_path: Path) -> None:
    reports = write_job(tmp_path, np.full((RANKS, STEPS), STEP))
    assert main(["report", "-q", *map(str, reports), "--html", str(tmp_path / "p.html")]) == 0
    page = (tmp_path / "p.html").read_text()
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", page)
    assert "Summary" in headings
    assert not [one for one in headings if re.search("GPU|Kernel|device|communication", one)]
