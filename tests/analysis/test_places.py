"""Test that findings name the place in the program: the innermost range with its values, the calls,
the kernel, and a moment that contains it.
"""

import re
import sqlite3
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tools.exports import make_call, make_nvtx_range
from tools.nccl_exports import COMM, Rank, format_payload

import nsys2prv
from nsys2prv.figures.result import Finding

RANKS, STEPS = 4, 20
ALL_REDUCE, ADD, SYNCHRONIZE = 1, 5, 6
NAMES = (*Rank().names, "add_one", "cudaStreamSynchronize_v3020")
SLOW, AT = 2, 11


def write_job(folder: Path, load: np.ndarray, work: np.ndarray) -> list[Path]:
    """Write a job whose ranks load a batch (range `load_batch`), then launch a kernel (range
    `forward`), and meet. load, work: (rank, step), ns.
    """
    ranks = [Rank(10 + number, names=NAMES) for number in range(RANKS)]
    for number, rank in enumerate(ranks):
        payload = f'{{"{COMM}":7,"No. of ranks":{RANKS},"Rank":{number}}}'
        rank.add_range(1, 2, "ncclCommInitRank", jsonText=payload)
    begin = 100_000
    for step in range(STEPS):
        launched = begin + 20_000 + load[:, step]
        computed = launched + 10_000 + work[:, step]
        end = int(computed.max()) + 100_000
        for number, rank in enumerate(ranks):
            thread = {"globalTid": rank.nvtx[0]["globalTid"]}
            at = int(launched[number])
            rank.add_kernel(at, at + 10_000, int(computed[number]), ADD)
            payload = format_payload(7, 4096)
            rank.add_collective(at + 1_000, int(computed[number]) + 1_000, end, payload)
            rank.calls.append(make_call(at + 2_000, end + 5_000, 0, nameId=SYNCHRONIZE, **thread))
            rank.nvtx += [
                make_nvtx_range(begin, end + 8_000, f"step {step}", **thread),
                make_nvtx_range(begin + 10_000, at - 5_000, "load_batch", **thread),
                make_nvtx_range(at - 4_000, at + 1_900, "forward", **thread),
            ]
        begin = end + 10_000
    return [rank.write(folder / f"rank{number}.sqlite") for number, rank in enumerate(ranks)]


def find_first(reports: list[Path]) -> tuple[Finding, pl.DataFrame]:
    """Return the first finding about a rank, and the ranges and kernels within its moment."""
    with nsys2prv.open(reports, align="none", jobs=1) as job:
        finding = next(finding for finding in job.findings() if finding.ranks)
        frames = [
            job.frame("nvtx_pushpop").select(
                "begin", "end", "rank", name=pl.col("range").cast(str)
            ),
            job.frame("cuda_kernel").select(
                "begin", "end", "rank", name=pl.col("kernel").cast(str)
            ),
        ]
    ((begin, end, ranks),) = finding.moments
    rows = pl.concat(frames).filter(pl.col("rank").is_in(ranks))
    overlap = pl.min_horizontal("end", end) - pl.max_horizontal("begin", begin)
    return finding, rows.filter(overlap > 0.9 * (end - begin))


@pytest.mark.parametrize("fault", ["loader", "hiccup", "kernels", "long kernel"])
def test_the_place_and_the_moment(fault: str, tmp_path: Path) -> None:
    load, work = np.full((RANKS, STEPS), 24_000), np.full((RANKS, STEPS), 900_000)
    if fault == "loader":
        load[SLOW] += 900_000
    if fault == "hiccup":
        load[SLOW, AT] += 9_000_000
    if fault == "kernels":
        work[SLOW] += 200_000
    if fault == "long kernel":
        work[SLOW, AT] += 9_000_000
    finding, there = find_first(write_job(tmp_path, load, work))
    text = " ".join((finding.title, *finding.evidence))
    assert finding.ranks == (SLOW,)
    assert finding.kind == ("hiccup" if fault in ("hiccup", "long kernel") else "straggler")
    names = there["name"].to_list()
    if fault in ("loader", "hiccup"):
        assert "load_batch" in names
        assert "load_batch" in text
    else:
        assert "add_one" in names
        assert "add_one" in text
        assert "forward" in text
    if fault == "loader":
        assert re.search(r"load_batch takes 9\d\d us, but \d\d\.\d us", finding.title)
    assert len(finding.look_at) <= 80 - len("         look at: ")


def test_a_place_that_one_rank_has_to_itself_is_its(tmp_path: Path) -> None:
    """The others do not make the call after which one rank pauses."""
    load, work = np.full((RANKS, STEPS), 24_000), np.full((RANKS, STEPS), 900_000)
    load[SLOW] += 900_000
    reports = write_job(tmp_path, load, work)
    with sqlite3.connect(reports[SLOW]) as report:
        report.execute(f"INSERT INTO StringIds VALUES ({len(NAMES) + 1}, 'cudaGetDevice_v3020')")
        report.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid, correlationId, nameId, returnValue) "
            f"SELECT start + 10000, start + 10500, 0, globalTid, 0, {len(NAMES) + 1}, 0 FROM NVTX_EVENTS WHERE text LIKE 'step %'"
        )
    with nsys2prv.open(reports, align="none", jobs=1) as job:
        finding = next(finding for finding in job.findings() if "cudaGetDevice" in finding.title)
    assert (finding.kind, finding.ranks) == ("straggler", (SLOW,))


def test_a_range_that_does_not_amount_to_the_loss_is_not_named(tmp_path: Path) -> None:
    """The range is in the middle of the time that the slow rank takes, and a small part of it."""
    load, work = np.full((RANKS, STEPS), 20_000), np.full((RANKS, STEPS), 200_000)
    load[SLOW] = 400_000
    reports = write_job(tmp_path, load, work)
    assert "load_batch takes" in find_first(reports)[0].title
    for path in reports:
        with sqlite3.connect(path) as report:
            report.execute(
                "UPDATE NVTX_EVENTS SET start = start + (end - start) * 35 / 100,"
                " end = start + (end - start) * 65 / 100 WHERE text = 'load_batch'"
            )
    finding, _ = find_first(reports)
    assert finding.ranks == (SLOW,)
    assert "load_batch" not in finding.title


@pytest.mark.parametrize("kind", [59, 60])
def test_ranges_that_differ_in_numbers_are_one_place(kind: int, tmp_path: Path) -> None:
    """Each of four layers has a quarter of what the slow rank takes longer; also of start/end ranges."""
    load, work = np.full((RANKS, STEPS), 20_000), np.full((RANKS, STEPS), 200_000)
    load[SLOW] = 400_000
    reports = write_job(tmp_path, load, work)
    for path in reports:
        with sqlite3.connect(path) as report:
            report.execute(f"UPDATE NVTX_EVENTS SET eventType = {kind}")
            begins = report.execute("SELECT start FROM NVTX_EVENTS WHERE text = 'load_batch'")
            for number, (begin,) in enumerate(begins.fetchall()):
                where = f"text = 'load_batch' AND start = {begin}"
                report.execute(f"UPDATE NVTX_EVENTS SET text = 'layer_{number % 4}' WHERE {where}")
    finding, _ = find_first(reports)
    assert finding.ranks == (SLOW,)
    assert "layer_*" in " ".join([finding.title, *finding.evidence])


def test_a_range_that_is_longer_more_often_is_not_longer_each_time(tmp_path: Path) -> None:
    """Check that small excesses count: each is 7% and no tenth of the loss, 12 times a step."""
    load, work = np.full((RANKS, STEPS), 20_000), np.full((RANKS, STEPS), 200_000)
    load[SLOW] = 400_000
    reports = write_job(tmp_path, load, work)
    parts = 12
    with sqlite3.connect(reports[SLOW]) as report:
        rows = report.execute(
            "SELECT start, end, globalTid FROM NVTX_EVENTS WHERE text = 'load_batch'"
        ).fetchall()
        report.execute("DELETE FROM NVTX_EVENTS WHERE text = 'load_batch'")
        for begin, end, tid in rows:
            for part in range(parts):
                span = (end - begin) // parts
                at = begin + part * span
                report.execute(
                    "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId)"
                    " VALUES (?, ?, 59, 'load_batch', ?, 0)",
                    (at, at + span - 10, tid),
                )
    finding, _ = find_first(reports)
    assert finding.ranks == (SLOW,)
    assert " against " not in finding.title


def test_what_the_host_did_when_it_was_held_up(tmp_path: Path) -> None:
    """A rank reads for 40 ms, in a range that the title names."""
    load, work = np.full((RANKS, STEPS), 20_000), np.full((RANKS, STEPS), 200_000)
    load[SLOW, AT] = 40_000_000
    reports = write_job(tmp_path, load, work)
    with sqlite3.connect(reports[SLOW]) as report:
        report.execute(
            "CREATE TABLE OSRT_API (start INT, end INT, globalTid INT, nameId INT, returnValue INT,"
            " nestingLevel INT, callchainId INT)"
        )
        report.execute(f"INSERT INTO StringIds VALUES ({len(NAMES) + 1}, 'read')")
        report.execute(
            f"INSERT INTO OSRT_API SELECT start, end, globalTid, {len(NAMES) + 1}, 0, 0, NULL FROM"
            " NVTX_EVENTS WHERE text = 'load_batch' ORDER BY end - start DESC LIMIT 1"
        )
    finding, _ = find_first(reports)
    assert finding.title.endswith("in load_batch")
    assert "host: 100% in file or network I/O" in finding.evidence
    assert "100% of this time is in read" in finding.evidence
    assert not any("NVTX range load_batch" in one for one in finding.evidence)
