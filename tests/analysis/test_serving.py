"""Test jobs that wait for requests: this is not a cause, and no rank is blamed for fewer requests."""

from pathlib import Path

import numpy as np
import pytest
from tools.exports import make_call, make_os_call
from tools.nccl_exports import COMM, Rank, format_payload

import nsys2prv

REQUESTS, WORK = 30, 2_000_000
ALL_REDUCE, ADD, SYNCHRONIZE, POLL = 1, 5, 6, 7
NAMES = (*Rank().names, "add_one", "cudaStreamSynchronize_v3020", "poll")


def write_replica(folder: Path, replica: int, waits: np.ndarray, polls: bool) -> list[Path]:
    """Write two ranks that serve a request after each of these waits (ns)."""
    ranks = [Rank(10 + 2 * replica + number, names=NAMES) for number in range(2)]
    for number, rank in enumerate(ranks):
        payload = f'{{"{COMM}":{7 + replica},"No. of ranks":2,"Rank":{number}}}'
        rank.add_range(1, 2, "ncclCommInitRank", jsonText=payload)
    begin = 100_000
    for wait in waits.tolist():
        arrival = begin + wait
        for number, rank in enumerate(ranks):
            thread = {"globalTid": rank.nvtx[0]["globalTid"]}
            at = arrival + 3_000 * number
            if polls:
                tid = rank.pid
                call = make_os_call(begin + 1_000, at - 1_000, POLL, tid, **thread)
                rank.more.setdefault("OSRT_API", []).append(call)
            rank.add_kernel(at, arrival + 20_000, arrival + 20_000 + WORK, ADD)
            end = arrival + 120_000 + WORK
            payload = format_payload(7 + replica, 4096)
            rank.add_collective(at + 1_000, end - 95_000, end, payload)
            rank.calls.append(make_call(at + 2_000, end + 5_000, 0, nameId=SYNCHRONIZE, **thread))
            rank.add_range(at - 500, end + 6_000, "execute_model", domainId=0)
        begin = arrival + WORK + 125_000
    return [
        rank.write(folder / f"rank{2 * replica + number}.sqlite")
        for number, rank in enumerate(ranks)
    ]


@pytest.mark.parametrize("polls", [True, False])
def test_waiting_for_requests_is_no_cause(polls: bool, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    waits = [random.exponential(mean, REQUESTS).astype(np.int64) + 50_000 for mean in (2e6, 6e6)]
    reports = [
        report
        for replica, own in enumerate(waits)
        for report in write_replica(tmp_path, replica, own, polls)
    ]
    with nsys2prv.open(reports, align="none", jobs=1) as job:
        result = job.analyse("findings")["findings"]
    causes = [finding for finding in result.findings if not finding.is_limit]
    assert not [finding for finding in result.findings if finding.ranks]
    assert all(finding.kind in ("idle", "shutdown") for finding in causes)
    told = " ".join([*result.notes, *(finding.title for finding in result.findings)])
    assert "requests" in told
    # Replicas repeat themselves, but not together.
    assert "phases" not in result.tables


def test_waiting_for_the_first_request_is_no_cause(tmp_path: Path) -> None:
    waits = np.array([50_000, 50_000_000, 60_000])
    with nsys2prv.open(write_replica(tmp_path, 0, waits, True), align="none", jobs=1) as job:
        assert not [one for one in job.findings() if one.kind == "host_work"]
