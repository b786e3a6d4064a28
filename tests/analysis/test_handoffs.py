"""Test jobs in which processes of a host wait for one in OS runtime calls. The awaited process is
named if its work is longer than usual or fills most of the time; none is named without evidence.
"""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tools.exports import make_call, make_global_tid, make_os_call
from tools.nccl_exports import COMM, Rank, format_payload

import nsys2prv
from nsys2prv._util.errors import UsageError
from nsys2prv.match.handoffs import list_handoffs

STEPS, WORK, SYNCHRONIZE, WAIT, POST, READ, WRITE = 40, 500_000, 6, 7, 8, 9, 10
NAMES = (
    *(*Rank().names, "add_one", "cudaStreamSynchronize_v3020"),
    *("sem_clockwait", "sem_post", "read", "write"),
)
#: Processes that have no GPU, and their threads.
SCHEDULER, TOKENIZER = 77, 88


def write_steps(
    folder: Path,
    works: np.ndarray,
    waits: np.ndarray | None = None,
    known: bool = True,
    helper: bool = False,
    requests: np.ndarray | None = None,
    asks: bool = False,
    hosts: tuple[str, ...] = ("node0",) * 3,
) -> list[Path]:
    """Write three ranks whose first does some work in each step (ns) before all launch a kernel; the
    others wait for that, or for so long (a column each). known: its calls of the system are recorded.
    helper: a process without a GPU does the work, and all wait for it. requests: before its work the
    first waits so long itself. asks: the helper waits for another one, which does nearly all of the work. hosts:
    of the ranks.
    """
    random = np.random.default_rng(2)
    ranks = [Rank(10 + number, host, NAMES) for number, host in enumerate(hosts)]
    for number, rank in enumerate(ranks):
        payload = f'{{"{COMM}":7,"No. of ranks":3,"Rank":{number}}}'
        rank.add_range(1, 2, "ncclCommInitRank", jsonText=payload)
        # A further thread that waits all the time says that such calls are recorded.
        of_other = {"globalTid": rank.nvtx[0]["globalTid"] + 5}
        if number or known:
            rank.more["OSRT_API"] = [make_os_call(1, 1_000, WAIT, rank.pid + 5, **of_other)]
    begin, last = 100_000, 50_000
    for step, work in enumerate(works.tolist()):
        others = [work] * 2 if waits is None else waits[:, step].tolist()
        ends = [begin + one for one in (work, *others)]
        ats = [end + 100_000 + int(random.integers(8_000)) for end in ends]
        arrival = max(ats) + 10_000
        end = arrival + WORK + 100_000
        for number, (rank, at) in enumerate(zip(ranks, ats, strict=True)):
            thread = {"globalTid": rank.nvtx[0]["globalTid"]}
            if requests is not None and not number:
                arrives = begin + int(requests[step])
                call = make_os_call(begin + 2_000, arrives, WAIT, rank.pid, **thread)
                rank.more["OSRT_API"].append(call)
            if number or helper:
                woken = ends[number] + int(random.integers(8_000))
                call = make_os_call(begin + 2_000, woken, WAIT, rank.pid, **thread)
                rank.more["OSRT_API"].append(call)
            rank.add_kernel(at, at + 6_000, at + 6_000 + WORK, 5)
            rank.add_collective(at + 2_000, at + 7_000 + WORK, end, format_payload(7, 4096))
            rank.calls.append(make_call(at + 4_000, end + 3_000, 0, nameId=SYNCHRONIZE, **thread))
            rank.add_range(begin, end + 4_000, "execute_model", domainId=0)
        if helper:
            thread = {"globalTid": make_global_tid(SCHEDULER, SCHEDULER)}
            back = end + int(random.integers(8_000)) + 10_000
            posts = [make_os_call(at - 1_500, at - 1_000, POST, **thread) for at in ends]
            waiting = make_os_call(max(ends) + 5_000, back, READ, **thread)
            told = make_os_call(
                end + 6_000, end + 7_000, WRITE, globalTid=ranks[0].nvtx[0]["globalTid"]
            )
            ranks[0].more["OSRT_API"] += [*posts, waiting, told]
        if asks:
            asked, done = begin + 40_000 + int(random.integers(8_000)), begin + work - 80_000
            other = {"globalTid": make_global_tid(TOKENIZER, TOKENIZER)}
            woken = done + 5_000 + int(random.integers(8_000))
            ranks[0].more["OSRT_API"] += [
                make_os_call(asked, asked + 1_000, WRITE, **thread),
                make_os_call(asked + 3_000, woken, READ, **thread),
                make_os_call(last, asked + 5_000 + int(random.integers(8_000)), READ, **other),
                make_os_call(done, done + 1_000, WRITE, **other),
            ]
            last = done + 2_000
        begin = end + 10_000
    return [rank.write(folder / f"rank{number}.sqlite") for number, rank in enumerate(ranks)]


def list_findings(reports: list[Path]) -> tuple[list[nsys2prv.Finding], pl.DataFrame]:
    with nsys2prv.open(reports, align="none", jobs=1) as job:
        return job.findings(), list_handoffs(job.reader)


def make_works(mean: int, every: int = 0, extra: int = 0) -> np.ndarray:
    works = np.random.default_rng(1).normal(mean, mean / 10, STEPS).astype(np.int64)
    works[:: every or STEPS] += extra
    return works


def test_who_sometimes_lets_others_wait_longer_is_named(tmp_path: Path) -> None:
    works = make_works(300_000, 5, 3_000_000)
    findings, handoffs = list_findings(write_steps(tmp_path, works))
    assert handoffs["since"].n_unique() >= STEPS - 1
    assert handoffs.height == 2 * handoffs["since"].n_unique()
    assert handoffs["certain"].min() == 1
    first = findings[0]
    assert first.ranks == (0,)
    assert not first.is_limit
    assert "wait until its host gives them work" in first.title
    assert any("sem_clockwait" in one for one in first.evidence)
    assert first.what_if == "rank 0: hand-offs as usual"
    gain = np.maximum(works[1:] - np.quantile(works[1:], 0.3), 0).sum()
    length = (works + 100_000 + WORK + 120_000)[1:].sum()
    assert first.share == pytest.approx(gain / length, rel=0.1)


def test_who_does_most_of_the_time_what_others_wait_for_is_named_as_a_limit(tmp_path: Path) -> None:
    works = make_works(2_000_000)
    first = list_findings(write_steps(tmp_path, works))[0][0]
    assert first.ranks == (0,)
    assert first.is_limit
    assert first.share == pytest.approx(works[1:].sum() / (works + 820_000)[1:].sum(), rel=0.1)


def test_what_has_to_be_done_for_all_is_nobodys_fault(tmp_path: Path) -> None:
    findings, handoffs = list_findings(write_steps(tmp_path, make_works(300_000)))
    assert handoffs.height
    assert not [one for one in findings if one.ranks]


def test_waiting_for_requests_is_not_who_waits_for_them(tmp_path: Path) -> None:
    requests = np.random.default_rng(4).exponential(2e6, STEPS).astype(np.int64) + 60_000
    works = make_works(300_000) + requests
    findings, handoffs = list_findings(write_steps(tmp_path, works, requests=requests))
    assert handoffs["waited"].mean() > 0.9
    assert not [one for one in findings if one.ranks]
    assert findings[0].is_limit
    assert "requests" in findings[0].title


def test_waits_for_something_else_are_no_handoffs(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    own = random.normal(1_000_000, 100_000, (2, STEPS)).astype(np.int64)
    alike = np.full((2, STEPS), 1_000_000)
    works = make_works(1_100_000)
    for name, waits in (("own", own), ("periods", alike)):
        (tmp_path / name).mkdir()
        findings, handoffs = list_findings(write_steps(tmp_path / name, works, waits))
        assert not handoffs.height
        assert not any("hand-off" in one.title for one in findings)


def test_who_may_wait_too_hands_nothing_off(tmp_path: Path) -> None:
    works = make_works(300_000, 5, 3_000_000)
    assert not list_findings(write_steps(tmp_path, works, known=False))[1].height


@pytest.mark.parametrize(
    ("most", "waiting", "told"),
    [
        (3, 2, []),
        (2, 1, ["only within each of the 2 nodes"]),
        (1, 0, ["only within each of the 2 nodes", "within node0"]),
    ],
)
def test_too_many_threads_are_compared_within_each_node_or_said_not_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, waiting: int, told: list[str]
) -> None:
    """Two of three ranks, one of them on another node, wait for the first."""
    monkeypatch.setattr("nsys2prv.match.handoffs.MOST_THREADS", most)
    works = make_works(300_000, 5, 3_000_000)
    reports = write_steps(tmp_path, works, hosts=("node0", "node0", "node1"))
    with nsys2prv.open(reports, align="none", jobs=1) as job:
        notes = [
            one for one in job.analyse("findings")["findings"].notes if one.startswith("hand-offs")
        ]
        assert list_handoffs(job.reader)["thread"].n_unique() == waiting
    assert len(notes) == len(told)
    assert all(one in note for one, note in zip(told, notes, strict=True))


def test_one_waits_for_another_that_waits_for_a_third(tmp_path: Path) -> None:
    """The second waits for the first and the third in turn, in the same call."""
    works = make_works(600_000, 5, 3_000_000)
    findings, handoffs = list_findings(write_steps(tmp_path, works, helper=True, asks=True))
    pairs = handoffs.group_by("thread", "releaser").len()
    assert (pairs.height, pairs["len"].min() >= STEPS - 2) == (6, True)
    first = findings[0]
    assert first.what_if == f"process {TOKENIZER} (node0): hand-offs as usual"
    gain = np.maximum(works[1:] - np.quantile(works[1:], 0.3), 0).sum()
    assert first.share == pytest.approx(gain / (works + 820_000)[1:].sum(), rel=0.1)


def test_a_process_without_a_gpu_is_named(tmp_path: Path) -> None:
    works = make_works(2_000_000)
    reports = write_steps(tmp_path, works, helper=True)
    findings, handoffs = list_findings(reports)
    assert handoffs["releaser"].n_unique() == 2
    first = findings[0]
    name = first.what_if.removesuffix(": hand-offs at once")
    with nsys2prv.open(reports, align="none", jobs=1) as job:
        asked = [job.what_if(one)["gain_share"][-1] for one in (first.what_if, f"{name}: host x0")]
        with pytest.raises(UsageError, match="no process without a GPU of this name"):
            job.what_if("process nobody: hand-offs at once")
    assert asked == pytest.approx([first.share] * 2, rel=0.01)
    assert not first.ranks
    assert "process" in first.title.lower()
    assert str(SCHEDULER) in first.title
    assert first.share == pytest.approx(works[1:].sum() / (works + 820_000)[1:].sum(), rel=0.1)


def test_who_waits_for_a_thread_of_its_own_names_it(tmp_path: Path) -> None:
    rank = Rank(10, names=NAMES)
    thread, loader = rank.nvtx[0]["globalTid"], rank.nvtx[0]["globalTid"] + 5
    calls, begin = rank.more.setdefault("OSRT_API", []), 100_000
    for lasts in make_works(2_000_000).tolist():
        until = begin + lasts
        calls.append(make_os_call(begin + 2_000, until + 8_000, WAIT, globalTid=thread))
        calls.append(make_os_call(begin - 300_000, begin + 1_000, READ, globalTid=loader))
        calls.append(make_os_call(until, until + 1_000, POST, globalTid=loader))
        rank.add_range(begin + 1_500, until - 1_000, "decode", globalTid=loader, domainId=0)
        rank.add_kernel(until + 30_000, until + 40_000, until + 40_000 + WORK, 5)
        end = until + 45_000 + WORK
        rank.calls.append(make_call(until + 31_000, end, 0, nameId=SYNCHRONIZE, globalTid=thread))
        begin = end + 5_000
    findings, _ = list_findings([rank.write(tmp_path / "rank0.sqlite")])
    told = " ".join(findings[0].evidence)
    assert "the host waits for thread" in told
    assert "decode" in told
