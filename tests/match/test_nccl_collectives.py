"""Test collectives on all their ranks: against the truth of generated jobs, the reports' own times,
and special cases made by hand.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
from samples import Options as SampleOptions
from samples import generate
from tools import nccl_exports
from tools.nccl_exports import COMM, Rank, format_payload, make_group_on_two_gpus
from tools.trace_reader import Trace, read_trace

from nsys2prv import convert

COLLECTIVE, NUMBER, LATE, WAIT, TRANSFER, ALGORITHM, BUS, TRANSFERS = range(9540, 9548)
MESSAGE = 55010
#: Task, late arrival, wait, transfer (ns).
Record = tuple[int, int, int, int]


def read_records(trace: Trace) -> dict[int, list[Record]]:
    """Return collective number -> the records of its ranks."""
    result = defaultdict(list)
    for item in trace.list_intervals(COLLECTIVE):
        if NUMBER not in item.others:
            continue  # a kernel that sends and receives
        result[item.others[NUMBER]].append(
            (item.row[0], *(item.others.get(code, 0) for code in (LATE, WAIT, TRANSFER)))
        )
    return {number: sorted(items) for number, items in result.items()}


def read_bandwidths(trace: Trace) -> dict[tuple[tuple[int, int], int, int], tuple[int, int]]:
    """Return row, begin and end of each transfer -> algorithm and bus bandwidth (B/s)."""
    return {
        (item.row, item.begin, item.end): (item.others[ALGORITHM], item.others[BUS])
        for item in trace.list_intervals(TRANSFERS)
    }


def compute_records(begins: list[int], ends: list[int], tasks: list[int]) -> list[Record]:
    """Compute the records from begins and ends on one clock."""
    begin, end = np.array(begins), np.array(ends)
    last = begin.max()
    wait, transfer = np.minimum(last - begin, end - begin), np.maximum(end - last, 0)
    return sorted(
        zip(tasks, (begin - begin.min()).tolist(), wait.tolist(), transfer.tolist(), strict=True)
    )


def query_collectives(report: Path) -> list[tuple[int, int, int, int, str, int]]:
    """Return communicator, ordinal, begin, end (UTC ns), function and bytes of the collectives of
    one report, by plain SQL.
    """
    connection = sqlite3.connect(f"file:{report}?mode=ro&immutable=1", uri=True)
    return connection.execute("""
        SELECT json_extract(r.jsonText, '$."NCCL communicator ID"') AS comm,
               row_number() OVER (PARTITION BY json_extract(r.jsonText, '$."NCCL communicator ID"') ORDER BY a.start) AS ordinal,
               k.start + (SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME), k.end + (SELECT utcEpochNs FROM
               TARGET_INFO_SESSION_START_TIME), t.value, json_extract(r.jsonText, '$."Message size [bytes]"')
        FROM CUPTI_ACTIVITY_KIND_KERNEL AS k
        JOIN StringIds AS s ON s.id = k.shortName AND s.value LIKE 'ncclDevKernel%' AND s.value NOT LIKE '%SendRecv%'
        JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS a ON a.correlationId = k.correlationId AND a.globalTid & ~0xFFFFFF = k.globalPid
        JOIN NVTX_EVENTS AS r ON r.globalTid = a.globalTid AND r.start <= a.start AND r.end >= a.start AND r.jsonText IS NOT NULL
        LEFT JOIN StringIds AS t ON t.id = r.textId""").fetchall()


def test_figures_agree_with_sql_on_the_reports_own_times(tmp_path: Path) -> None:
    """One host, so that the reports' UTC is one clock; late, wait, transfer and both bandwidths."""
    generate(
        tmp_path,
        SampleOptions(
            ranks=4, hosts=1, steps=3, layers=2, clock_offsets_ms=(5.0,), clock_drifts_ppm=(20.0,)
        ),
    )
    reports = sorted(tmp_path.glob("rank*.sqlite"))
    convert(reports, tmp_path / "o.prv")
    by_key = defaultdict(list)
    for task, report in enumerate(reports, 1):
        for communicator, ordinal, begin, end, function, size in query_collectives(report):
            by_key[communicator, ordinal].append((task, begin, end, function, size))
    wanted = []
    for group in by_key.values():
        tasks, begins, ends, functions, sizes = (
            list(column) for column in zip(*group, strict=True)
        )
        ranks = len(tasks)
        total_size = sizes[0] * (1 if functions[0] == "ncclAllReduce" else ranks)
        factor = 2 * (ranks - 1) / ranks if functions[0] == "ncclAllReduce" else (ranks - 1) / ranks
        wanted.append(
            [
                (*record, total_size * 1e9 / record[3], total_size * 1e9 * factor / record[3])
                for record in compute_records(begins, ends, tasks)
            ]
        )
    trace = read_trace(tmp_path / "o.prv")
    result = defaultdict(list)
    speeds = read_bandwidths(trace)
    for item in trace.list_intervals(COLLECTIVE):
        if NUMBER not in item.others:
            continue  # a kernel that sends and receives
        begin = item.begin + item.others.get(WAIT, 0)
        result[item.others[NUMBER]].append(
            (
                item.row[0],
                *(item.others.get(code, 0) for code in (LATE, WAIT, TRANSFER)),
                *speeds[item.row, begin, item.end],
            )
        )
    assert len(result) == len(wanted) > 20
    for ours, theirs in zip(
        sorted(sorted(items) for items in result.values()), sorted(wanted), strict=True
    ):
        assert np.allclose(ours, theirs, rtol=2e-4, atol=1)


def convert_and_summarize(folder: Path, *ranks: Rank) -> tuple[Trace, str]:
    trace, summary = nccl_exports.convert_ranks(folder, *ranks)
    return trace, summary.text(verbose=True)


def make_pair(first: Callable[[Rank], Rank], second: Callable[[Rank], Rank]) -> tuple[Rank, Rank]:
    return first(Rank(pid=10)), second(Rank(pid=11))


def test_clocks_that_do_not_agree_are_said(tmp_path: Path) -> None:
    ranks = make_pair(
        lambda rank: rank.add_collective(100, 1_000, 3_000, format_payload(7, 8000)),
        lambda rank: rank.add_collective(100, 7_000, 9_000, format_payload(7, 8000)),
    )
    trace, text = convert_and_summarize(tmp_path, *ranks)
    assert "in 1 collective, a rank ends before the last one starts, by up to 4.00 us" in text
    assert read_records(trace) == {1: [(1, 0, 2000, 0), (2, 6000, 0, 2000)]}


def test_incomplete_and_differing_collectives_are_left_out(tmp_path: Path) -> None:
    ranks = make_pair(
        lambda rank: (
            rank.add_collective(100, 1000, 1100, format_payload(7, 1))
            .add_collective(200, 1200, 1300, format_payload(7, 5))
            .add_collective(300, 1400, 1500, format_payload(7, 1))
        ),
        lambda rank: (
            rank.add_collective(100, 1000, 1100, format_payload(7, 1))
            .add_collective(200, 1200, 1300, format_payload(7, 6))
            .add_collective(300, 1400, 1500, format_payload(7, 1))
        ),
    )
    trace, text = convert_and_summarize(tmp_path, *ranks)
    assert (
        "NCCL: 1 collective not compared across ranks (incomplete or different between ranks"
        in text
    )
    assert len(read_records(trace)) == 2


def test_a_capture_that_begins_later_matches_nothing_by_order(tmp_path: Path) -> None:
    """Two or three kernels are too few to tell by their ends either."""
    ranks = make_pair(
        lambda rank: (
            rank.add_collective(100, 1000, 1100, format_payload(7, 1))
            .add_collective(200, 1200, 1300, format_payload(7, 1))
            .add_collective(300, 1400, 1500, format_payload(7, 1))
        ),
        lambda rank: rank.add_collective(200, 1200, 1300, format_payload(7, 1)).add_collective(
            300, 1400, 1500, format_payload(7, 1)
        ),
    )
    trace, text = convert_and_summarize(tmp_path, *ranks)
    assert "NCCL kernels not compared across ranks: " in text
    assert not read_records(trace)


def test_a_rank_without_a_report_makes_nothing_complete(tmp_path: Path) -> None:
    payload = f'{{"{COMM}":7,"No. of ranks":3,"Rank":0}}'
    ranks = make_pair(
        lambda rank: rank.add_range(1, 2, "ncclCommInitRank", jsonText=payload).add_collective(
            100, 1000, 1100, format_payload(7, 1)
        ),
        lambda rank: rank.add_collective(100, 1000, 1100, format_payload(7, 1)),
    )
    trace, text = convert_and_summarize(tmp_path, *ranks)
    assert "NCCL: 1 collective not compared across ranks (incomplete" in text
    assert not read_records(trace)


def test_sequence_numbers_outweigh_the_order(tmp_path: Path) -> None:
    """Captures that begin at different calls."""

    def at(number: int) -> str:
        return f'{{"commHash":7,"count":4,"dataType":"float","seqNumber":{number}}}'

    ranks = make_pair(
        lambda rank: rank.add_collective(100, 1000, 1100, at(4), "AllReduce").add_collective(
            200, 1200, 1300, at(5), "AllReduce"
        ),
        lambda rank: rank.add_collective(100, 1210, 1300, at(5), "AllReduce").add_collective(
            200, 1400, 1500, at(6), "AllReduce"
        ),
    )
    trace, text = convert_and_summarize(tmp_path, *ranks)
    assert "sequence number: 1\n" in text
    assert "NCCL: 2 collectives not compared across ranks (incomplete" in text
    assert read_records(trace) == {1: [(1, 0, 10, 90), (2, 10, 0, 90)]}


def test_same_pid_on_two_hosts(tmp_path: Path) -> None:
    ranks = [
        Rank(host=host).add_collective(100, 1000 + late, 1300, format_payload(7, 1))
        for host, late in (("a", 0), ("b", 50))
    ]
    assert read_records(nccl_exports.convert_ranks(tmp_path, *ranks, align="utc")[0]) == {
        1: [(1, 0, 50, 250), (2, 50, 0, 250)]
    }


def test_few_kernels_without_payloads_are_not_matched(tmp_path: Path) -> None:
    ranks = make_pair(*[lambda rank: rank.add_collective(100, 1000, 1300)] * 2)
    trace, text = convert_and_summarize(tmp_path, *ranks)
    assert "2 without a call that identifies their communicator" in text
    assert not read_records(trace)


def make_exchange(
    rank: Rank, start: int, begin: int, end: int, peer: int, size: int = 64, ranks: int | None = 2
) -> Rank:
    payload = f'{{"{COMM}":7,"No. of ranks":{ranks},"Rank":{rank.pid - 10}}}'
    rank.add_range(1, 2, "ncclCommInitRank", jsonText=payload)
    rank.add_range(start, start + 2, "ncclGroupStart").add_range(
        start + 3, start + 4, "ncclSend", jsonText=format_payload(7, size, **{"Peer rank": peer})
    )
    rank.add_range(
        start + 5, start + 6, "ncclRecv", jsonText=format_payload(7, size, **{"Peer rank": peer})
    )
    return rank.add_range(start + 7, start + 20, "ncclGroupEnd").add_kernel(
        start + 8, begin, end, 3
    )


def test_sends_lead_to_their_receives(tmp_path: Path) -> None:
    trace, text = convert_and_summarize(
        tmp_path,
        *make_pair(
            lambda rank: make_exchange(rank, 100, 1000, 1400, 1),
            lambda rank: make_exchange(rank, 100, 1100, 1410, 0),
        ),
    )
    assert "sends matched with their receives: 2" in text
    start = min(item.begin for item in trace.list_intervals(9500))
    lines = sorted(
        (
            comm.sender[0],
            comm.send + 1 - start,
            comm.receiver[0],
            comm.receive + 1 - start,
            comm.size,
        )
        for comm in trace.comms
        if comm.tag == MESSAGE
    )
    assert lines == [(1, 1000, 2, 1410, 64), (2, 1100, 1, 1400, 64)]
    assert not read_records(trace)
    # The kernels wait for each other: the first one for 100 ns, until the second begins.
    assert [
        (
            item.row[0],
            item.end - item.begin,
            *(item.others.get(code, 0) for code in (LATE, WAIT, TRANSFER)),
        )
        for item in sorted(trace.list_intervals(COLLECTIVE), key=lambda item: item.row)
    ] == [(1, 400, 0, 100, 300), (2, 310, 100, 0, 310)]
    assert {
        trace.get_label(COLLECTIVE, item.value) for item in trace.list_intervals(COLLECTIVE)
    } == {"SendRecv"}
    assert [
        (item.end - item.begin, item.others[ALGORITHM], item.others[BUS])
        for item in sorted(trace.list_intervals(TRANSFERS), key=lambda item: item.row)
    ] == [(length, round(64e9 / length), round(64e9 / length)) for length in (300, 310)]


def test_sends_of_other_size_are_left_out(tmp_path: Path) -> None:
    trace, text = convert_and_summarize(
        tmp_path,
        *make_pair(
            lambda rank: make_exchange(rank, 100, 1000, 1400, 1),
            lambda rank: make_exchange(rank, 100, 1100, 1410, 0, 65),
        ),
    )
    assert "NCCL: 4 sends and receives have no communication line" in text
    assert not [comm for comm in trace.comms if comm.tag == MESSAGE]


def test_one_process_with_two_gpus(tmp_path: Path) -> None:
    trace, _ = convert_and_summarize(tmp_path, make_group_on_two_gpus())
    assert read_records(trace) == {1: [(1, 0, 10, 140), (1, 10, 0, 140)]}


def test_kernels_that_end_before_they_begin(tmp_path: Path) -> None:
    """As in damaged exports: their records are 1 ns long, and no figure of theirs is negative."""
    ranks = make_pair(
        lambda rank: rank.add_collective(100, 1000, -1, format_payload(7, 1)),
        lambda rank: rank.add_collective(100, 1000, 1100, format_payload(7, 1)),
    )
    trace, _ = convert_and_summarize(tmp_path, *ranks)
    assert not trace.violations, trace.violations
