"""The critical path: exact on jobs made by hand, and equal to a second, slow implementation on jobs
made at random and on a sample.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tools.conversions import convert_and_read
from tools.exports import make_call, make_export, make_global_pid, make_kernel, make_strings
from tools.trace_reader import Trace

from nsys2prv._util.columns import ABSENT
from nsys2prv.conversion import critical_path as conversion
from nsys2prv.conversion.path_search import (
    SLACK,
    Cause,
    EventCalls,
    HostCalls,
    Operations,
    find_awaited_operations,
    find_critical_path,
)
from nsys2prv.events.mpi import ALL, FROM_ROOT, TO_ROOT

CAUSE = 69110000


def make_operations(
    *rows: tuple[int, int, int, int, int, int], last: dict[int, int] | None = None
) -> Operations:
    """Return operations of (begin, end, stream, task, cause, call); a stream has a device of its
    task.
    """
    begin, end, stream, task, cause, launched = np.array(rows, np.int64).reshape(-1, 6).T
    of_last = np.arange(len(rows))
    for late, other in (last or {}).items():
        of_last[late] = other
    nothing = np.full(len(rows), ABSENT)
    awaited = np.full(len(rows), -1)
    return Operations(
        begin, end, stream, stream, task, task, cause, nothing, launched, of_last, awaited
    )


def make_calls(
    *rows: tuple[int, int, int, int, int], sender: dict[int, int] | None = None
) -> HostCalls:
    """Return calls of (begin, end, thread, task, cause)."""
    begin, end, thread, task, cause = np.array(rows, np.int64).reshape(-1, 5).T
    of_sender = np.full(len(rows), -1)
    for receiver, other in (sender or {}).items():
        of_sender[receiver] = other
    return HostCalls(begin, end, thread, task, cause, of_sender)


def list_pieces(
    work: Operations, host: HostCalls, duration: int
) -> list[tuple[int, int, int, int]]:
    """Return (begin, end, thread, cause), in order of begin."""
    path = find_critical_path(work, host, duration)
    columns = (path.begin, path.end, path.thread, path.cause)
    return [tuple(row) for row in np.array(columns).T[::-1].tolist()]


def test_a_collective_leads_to_the_rank_that_came_last() -> None:
    """Two ranks: each launches a kernel and a collective; the second rank's kernel is longer."""
    host = make_calls(
        (100, 110, 0, 0, Cause.CALL),
        (120, 130, 0, 0, Cause.CALL),
        (140, 1_050, 0, 0, Cause.WAIT),
        (105, 115, 1, 1, Cause.CALL),
        (125, 135, 1, 1, Cause.CALL),
        (150, 1_060, 1, 1, Cause.WAIT),
    )
    work = make_operations(
        (150, 300, 10, 0, Cause.COMPUTATION, 0),
        (301, 1_000, 10, 0, Cause.NCCL, 1),
        (160, 800, 11, 1, Cause.COMPUTATION, 3),
        (802, 1_001, 11, 1, Cause.NCCL, 4),
        last={1: 3},
    )
    assert list_pieces(work, host, 1_100) == [
        (0, 105, 1, Cause.OUTSIDE),
        (105, 115, 1, Cause.CALL),
        (115, 160, 11, Cause.LATENCY),
        (160, 800, 11, Cause.COMPUTATION),
        (800, 802, 11, Cause.QUEUED),
        (802, 1_001, 11, Cause.NCCL),
        (1_001, 1_060, 1, Cause.RETURN),
        (1_060, 1_100, 1, Cause.OUTSIDE),
    ]
    # The other rank's end as the job's: its collective leads to the late rank too.
    host.end[2] = 1_070
    assert list_pieces(work, host, 1_100)[4:] == [
        (800, 802, 11, Cause.QUEUED),
        (802, 1_000, 10, Cause.NCCL),
        (1_000, 1_070, 0, Cause.RETURN),
        (1_070, 1_100, 0, Cause.OUTSIDE),
    ]


def walk_path(work: Operations, host: HostCalls, duration: int) -> list[tuple[int, int, int]]:
    """Return (begin, end, cause) of the path, the last first, a step at a time by looking at
    everything.
    """
    pieces: list[tuple[int, int, int]] = []
    ends = [("op", int(end), k) for k, end in enumerate(work.end)]
    ends += [("call", int(end), k) for k, end in enumerate(host.end)]
    if not ends:
        return []
    kind, now, k = max(ends, key=lambda item: (item[1], item[0] == "op", -item[2]))
    pieces.append((now, duration, Cause.OUTSIDE))
    at_end = True

    def latest(pairs: list[tuple[int, int]], until: int) -> tuple[int, int]:
        return max(((end, place) for end, place in pairs if end <= until), default=(-1, -1))

    while True:
        if kind == "op" and at_end:
            last = int(work.last[k])
            target = last if work.begin[k] < work.begin[last] < work.end[k] else k
            pieces.append((int(work.begin[target]), now, int(work.cause[k])))
            now, k, at_end = int(work.begin[target]), target, False
        elif kind == "op":
            same = [(int(e), j) for j, e in enumerate(work.end) if work.stream[j] == work.stream[k]]
            ahead, before = latest(same, now)
            awaited = int(work.awaited[k])
            if awaited >= 0 and ahead < work.end[awaited] <= now:
                ahead, before = int(work.end[awaited]), awaited
            launch, released = int(work.call[k]), -1
            if launch >= 0 and host.begin[launch] <= now:
                ended = int(host.end[launch])
                released = ended if ended <= now else int(host.begin[launch])
            if now - max(ahead, released) > SLACK:
                near = [
                    (int(e), j) for j, e in enumerate(work.end) if work.device[j] == work.device[k]
                ]
                other, place = latest(near, now)
                if other > max(ahead, released):
                    ahead, before, released = other, place, -1
            if ahead > released:
                pieces.append((ahead, now, Cause.QUEUED))
                now, k, at_end = ahead, before, True
            elif released >= 0:
                middle = min(int(host.end[launch]), now)
                pieces += [(middle, now, Cause.LATENCY)]
                pieces += [(int(host.begin[launch]), middle, int(host.cause[launch]))]
                kind, now, k = "call", int(host.begin[launch]), launch
            else:
                pieces.append((0, now, Cause.OUTSIDE))
                break
        elif at_end:
            begin, cause, sender = int(host.begin[k]), int(host.cause[k]), int(host.sender[k])
            task_ends = [
                (int(e), j) for j, e in enumerate(work.end) if work.task[j] == host.task[k]
            ]
            latest_end, place = latest(task_ends, now)
            if sender >= 0 and begin < host.begin[sender] < now:
                pieces.append((int(host.begin[sender]), now, cause))
                now, k, at_end = int(host.begin[sender]), sender, False
            elif cause == Cause.WAIT and latest_end > begin:
                pieces.append((latest_end, now, Cause.RETURN))
                kind, now, k = "op", latest_end, place
            else:
                pieces.append((begin, now, cause))
                now, at_end = begin, False
        else:
            same = [(int(e), j) for j, e in enumerate(host.end) if host.thread[j] == host.thread[k]]
            end, place = latest(same, now)
            if place < 0:
                task = [(int(e), j) for j, e in enumerate(host.end) if host.task[j] == host.task[k]]
                end, place = latest(task, now)
            if place < 0:
                pieces.append((0, now, Cause.OUTSIDE))
                break
            pieces.append((end, now, Cause.HOST))
            now, k, at_end = end, place, True
    return [piece for piece in pieces if piece[1] > piece[0]]


def check_against_slow_walk(work: Operations, host: HostCalls, duration: int) -> None:
    path = find_critical_path(work, host, duration)
    begin, end, cause = (column.tolist() for column in (path.begin, path.end, path.cause))
    assert list(zip(begin, end, cause, strict=True)) == walk_path(work, host, duration)
    assert [end[0], begin[-1]] == [duration, 0]
    assert begin[:-1] == end[1:]


def make_meetings(*rows: tuple[int, int, int, int, int, bool]) -> pl.DataFrame:
    """Return meetings of (communicator, task, begin, signature, who waits, is root)."""
    schema = ["communicator", "task", "time_begin", "signature", "waits", "is_root"]
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(clock_group=pl.lit(0))


def test_who_is_awaited_in_collectives_of_mpi() -> None:
    """A barrier, a broadcast from task 1 and a reduction to task 1; of another communicator a task
    has one call less; of a third the kinds of calls differ.
    """
    result = conversion._find_last_comers(
        make_meetings(
            *((7, task, begin, 1, ALL, False) for task, begin in enumerate((10, 30, 20))),
            *((7, task, begin, 2, FROM_ROOT, task == 1) for task, begin in enumerate((40, 45, 60))),
            *((7, task, begin, 3, TO_ROOT, task == 1) for task, begin in enumerate((90, 70, 80))),
            *((8, task, begin, 1, ALL, False) for task, begin in ((0, 100), (1, 110), (0, 120))),
            (9, 0, 130, 1, ALL, False),
            (9, 1, 140, 2, ALL, False),
        )
    )
    columns = ("task", "begin", "awaited_task", "awaited")
    assert sorted(result.select(columns).rows()) == [
        (0, 10, 1, 30),
        (0, 40, 1, 45),
        (1, 30, 1, 30),
        (1, 70, 0, 90),
        (2, 20, 1, 30),
        (2, 60, 1, 45),
    ]


def test_a_barrier_leads_to_the_last_to_come() -> None:
    """Task 0 waits in a barrier for task 1, whose host computes until 500."""
    result = make_meetings((7, 0, 100, 1, ALL, False), (7, 1, 500, 1, ALL, False))
    known = pl.DataFrame({"thread": [0, 1], "begin": [100, 500], "call": [0, 1]})
    sender = conversion._find_awaited_calls(result, known, known, np.arange(2))
    assert sender.tolist() == [1, 1]
    host = make_calls(
        (100, 530, 0, 0, Cause.MPI), (500, 520, 1, 1, Cause.MPI), sender=dict(enumerate(sender))
    )
    assert list_pieces(make_operations(), host, 530) == [
        (0, 500, 1, Cause.OUTSIDE),
        (500, 530, 0, Cause.MPI),
    ]


@pytest.mark.parametrize("seed", range(30))
def test_random_jobs(seed: int) -> None:
    random = np.random.default_rng(seed)

    def times(count: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        # Distinct ends, so that there is one latest.
        cuts = np.sort(random.choice(length, 2 * count, replace=False)) + 1
        return cuts[::2], cuts[1::2]

    threads, streams, length = 4, 5, 400_000
    host_rows, rows = [], []
    for thread in range(threads):
        begin, end = times(40, length)
        for b, e in zip(begin.tolist(), end.tolist(), strict=True):
            host_rows.append(
                (
                    b * 8 + thread,
                    e * 8 + thread,
                    thread,
                    thread // 2,
                    random.choice((Cause.CALL, Cause.WAIT, Cause.MPI)),
                )
            )
    for stream in range(streams):
        begin, end = times(40, length)
        for b, e in zip(begin.tolist(), end.tolist(), strict=True):
            where = b * 8 + 4 + stream % 4, e * 8 + 4 + stream % 4
            if stream < 4:
                rows.append(
                    (*where, 10 + stream, stream % 2, Cause.COMPUTATION, random.integers(-1, 160))
                )
    host, work = make_calls(*host_rows), make_operations(*rows)
    work.device[:] = work.task
    work.last[:] = np.where(random.random(160) < 0.2, random.integers(0, 160, 160), work.last)
    work.awaited[:] = np.where(random.random(160) < 0.3, random.integers(0, 160, 160), -1)
    host.sender[:] = np.where(
        (host.cause == Cause.MPI) & (random.random(160) < 0.5), random.integers(0, 160, 160), -1
    )
    check_against_slow_walk(work, host, 9 * length)


def test_the_path_of_a_report(tmp_path: Path) -> None:
    """From rows to the trace: a call, the kernel that it launches, the wait for that."""
    names = make_strings("k", "cudaLaunchKernel_v7000", "cudaDeviceSynchronize_v3020")
    report = make_export(
        tmp_path / "r.sqlite",
        {
            "CUPTI_ACTIVITY_KIND_RUNTIME": [
                make_call(1_000, 1_200, 7),
                make_call(1_500, 4_000, 8, nameId=3),
            ],
            "CUPTI_ACTIVITY_KIND_KERNEL": [make_kernel(1_400, 3_900, correlationId=7)],
            "StringIds": names,
        },
    )
    trace, summary = convert_and_read([report], tmp_path / "o.prv", demanded=("critical_path",))
    assert list_causes(trace) == [
        (0, 200, "CUDA call"),
        (200, 400, "Launch latency"),
        (400, 2_900, "Kernel"),
        (2_900, 3_000, "Return from synchronisation"),
    ]
    assert Counter(summary.events)["critical_path"] == 4


def list_causes(trace: Trace) -> list[tuple[int, int, str]]:
    """Return begin, end and label of the pieces of the critical path, by begin."""
    return sorted(
        (item.begin, item.end, trace.get_label(CAUSE, item.value))
        for item in trace.list_intervals(CAUSE)
    )


def make_stream_events(waiting_stream: int | None) -> dict:
    """Return a kernel on stream 7 and an event recorded after it, for which stream 13 waits before
    its own kernel.

    A kernel on stream 21 ends last before that one begins, and nothing waits for it.
    """
    own = {"deviceId": 0, "contextId": 1, "globalPid": make_global_pid(), "eventId": 5}
    wait = {"start": 1_152, "end": 1_158, "streamId": waiting_stream, "syncType": 2, **own}
    return {
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            make_call(1_000, 1_100, 1),
            make_call(1_120, 1_130, 2, nameId=3),
            make_call(1_150, 1_160, 3, nameId=4),
            make_call(1_200, 1_210, 4),
            make_call(1_250, 1_260, 5),
            make_call(1_300, 12_100, 6, nameId=5),
        ],
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            make_kernel(1_400, 9_000, correlationId=1),
            make_kernel(9_100, 12_000, correlationId=4, streamId=13),
            make_kernel(1_500, 9_050, correlationId=5, streamId=21),
        ],
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT": [{"streamId": 7, "correlationId": 2, **own}],
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [{"correlationId": 3, **wait}],
        "StringIds": make_strings(
            "k",
            "cudaLaunchKernel_v7000",
            "cudaEventRecord_v3020",
            "cudaStreamWaitEvent_v3020",
            "cudaDeviceSynchronize_v3020",
        ),
    }


def test_events_lead_from_the_wait_to_the_record(tmp_path: Path) -> None:
    report = make_export(tmp_path / "r.sqlite", make_stream_events(13))
    trace, _ = convert_and_read([report], tmp_path / "o.prv", demanded=("critical_path",))
    assert list_causes(trace) == [
        (0, 100, "CUDA call"),
        (100, 400, "Launch latency"),
        (400, 8_000, "Kernel"),
        (8_000, 8_100, "Queued on the device"),
        (8_100, 11_000, "Kernel"),
        (11_000, 11_100, "Return from synchronisation"),
    ]


def test_a_wait_of_an_unknown_stream_leads_nowhere(tmp_path: Path) -> None:
    """As older exports have it: then the kernel comes from its launch."""
    report = make_export(tmp_path / "r.sqlite", make_stream_events(0xFFFFFFFF))
    trace, _ = convert_and_read([report], tmp_path / "o.prv", demanded=("critical_path",))
    kernels = [
        (item.begin, item.end)
        for item in trace.list_intervals(CAUSE)
        if trace.get_label(CAUSE, item.value) == "Kernel"
    ]
    assert kernels == [(8_100, 11_000)]


def test_a_wait_is_for_the_record_before_it() -> None:
    """Event 1 is recorded on stream 0 after each of three operations; stream 1 waits after the second
    record, and before the first of its operations; another process has an event of that number.
    """
    stream, launched = np.array([0, 0, 0, 1, 1]), np.array([10, 20, 30, 26, 40])
    end = np.array([100, 200, 300, 400, 500])
    records = EventCalls(*np.array([(12, 0, 1, 0), (22, 0, 1, 0), (24, 9, 1, 7), (32, 0, 1, 0)]).T)
    waits = EventCalls(*np.array([(25, 0, 1, 1)]).T)
    awaited = find_awaited_operations(stream, launched, end, records, waits)
    assert awaited.tolist() == [-1, -1, -1, 1, -1]
    # Of several, the one that ends last counts; a launch that is not known tells nothing.
    waits = EventCalls(*np.array([(13, 0, 1, 1), (25, 0, 1, 1)]).T)
    assert (
        find_awaited_operations(stream, launched, end, records, waits).tolist() == awaited.tolist()
    )
    launched[3] = -1
    assert find_awaited_operations(stream, launched, end, records, waits).tolist() == [-1] * 4 + [1]
    nothing = EventCalls(*np.zeros((4, 0), np.int64))
    assert find_awaited_operations(stream, launched, end, nothing, waits).tolist() == [-1] * 5


def test_it_is_written_on_demand_alone(tmp_path: Path) -> None:
    report = make_export(
        tmp_path / "r.sqlite",
        {"CUPTI_ACTIVITY_KIND_KERNEL": [make_kernel(1_400, 3_900)], "StringIds": make_strings("k")},
    )
    trace, _ = convert_and_read([report], tmp_path / "o.prv")
    assert not trace.list_intervals(CAUSE)


def test_a_job_without_anything() -> None:
    assert list_pieces(make_operations(), make_calls(), 100) == []
    assert find_critical_path(
        make_operations(), make_calls((5, 9, 0, 0, Cause.CALL)), 10
    ).begin.tolist() == [
        9,
        5,
        0,
    ]
