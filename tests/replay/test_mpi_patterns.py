"""Test recordings of MPI patterns (tests/mpi_patterns/waits.c: three or four ranks, one of which
works 60 ms per step and the others 20, or all 20). The late rank is named first, with the savings
that the recording itself shows; no rank is named if none is late.
"""

import tarfile
from pathlib import Path

import numpy as np
import pytest
from tools.exports import query_export

import nsys2prv
from nsys2prv.figures.result import Finding

RECORDINGS = Path(__file__).parent.parent / "mpi_patterns" / "recordings.tar.xz"
#: Steps, and the least time (ns) between calls that is work.
STEPS, WORK = 20, 15_000_000
#: Who is late: rank 1, of four ranks the last.
LATE, OF_FOUR = 1, 3
PATTERNS = (
    "alltoall", "any_gather", "barrier", "bcast", "fence", "iallreduce", "irecv_send_wait", "isend_wait",
    "pipeline", "recv_barrier", "reduce", "reduce_tree", "sendrecv_large", "sendrecv_small", "ssend", "waitall",
)  # fmt: skip
TABLES = ("COLLECTIVES_EVENTS", "P2P_EVENTS", "START_WAIT_EVENTS", "OTHER_EVENTS")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    with tarfile.open(RECORDINGS) as archive:
        archive.extractall(folder, filter="data")
    return folder


def read_work(report: Path) -> np.ndarray:
    """Return how long a rank works in each step: between its calls (ns)."""
    tables = {name for (name,) in query_export(report, "SELECT name FROM sqlite_master")}
    parts = [f"SELECT start, end FROM MPI_{one}" for one in TABLES if f"MPI_{one}" in tables]
    begin, end = np.array(query_export(report, f"{' UNION '.join(parts)} ORDER BY start")).T
    work = begin[1:] - np.maximum.accumulate(end)[:-1]
    return work[work > WORK][-STEPS:]


def judge(folder: Path) -> tuple[list[Finding], np.ndarray, int]:
    """Return the findings of a recording, the work of its ranks in each step, and what shares are of (ns)."""
    reports = sorted(folder.glob("rank*.sqlite"))
    with nsys2prv.open(reports, quiet=True) as job:
        focus = job.analyse("efficiencies")["efficiencies"].tables["focus"].frame
        whole = focus["elapsed_ns"][0] if focus["iterations"][0] else job.coverage.common.length
        return job.findings(), np.stack([read_work(report) for report in reports]), whole


def measure_gain(work: np.ndarray, late: int) -> list[int]:
    """Return what is saved (ns) if a rank works no longer than the others' median in each step: of ranks
    that meet in each, and of ranks that run ahead of each other.
    """
    usual = work.copy()
    usual[late] = np.minimum(work[late], np.median(np.delete(work, late, 0), axis=0))
    meet = work.max(axis=0).sum() - usual.max(axis=0).sum()
    return sorted([meet, work.sum(axis=1).max() - usual.sum(axis=1).max()])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_late_rank_is_named(pattern: str, recordings: Path) -> None:
    (first, *others), work, whole = judge(recordings / pattern)
    late = LATE if len(work) < 4 else OF_FOUR
    assert first.ranks == (late,)
    assert not [one for one in others if one.ranks]
    least, most = measure_gain(work, late)
    assert 0.85 * least <= first.share * whole <= 1.1 * most


@pytest.mark.parametrize("pattern", PATTERNS)
def test_nobody_is_accused_where_nobody_is_late(pattern: str, recordings: Path) -> None:
    """But for a rank that the machine did hold up in the recording."""
    findings, work, whole = judge(recordings / f"{pattern}-none")
    for one in findings:
        if one.ranks:
            assert one.share * whole <= 1.25 * measure_gain(work, one.ranks[0])[1], one.title
