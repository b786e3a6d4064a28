"""Bring together what the critical path of a job depends on, in trace time, and store the path as
records on the rows that it leads over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import polars as pl

from nsys2prv._util.columns import ABSENT
from nsys2prv.conversion.job import Job
from nsys2prv.conversion.path_search import (
    Cause,
    EventCalls,
    HostCalls,
    Operations,
    find_awaited_operations,
    find_critical_path,
    find_latest_before,
)
from nsys2prv.events.cuda import STREAM_WAIT_EVENT, select_synchronising_calls
from nsys2prv.events.extraction import StreamKey
from nsys2prv.events.kind import Rows
from nsys2prv.events.mpi import ALL, FROM_ROOT, MPI_LAYOUTS, TO_ROOT
from nsys2prv.relations import write_result
from nsys2prv.store import windows
from nsys2prv.store.runs import BEGIN, LINE, Run, find_role, read_run
from nsys2prv.store.task_result import TaskResult

#: Layouts of work on devices -> what it is on the path.
WORK = {
    "cuda_kernel": Cause.COMPUTATION,
    "nccl_kernel": Cause.NCCL,
    "memory_operation": Cause.MEMORY,
    "cuda_graph": Cause.GRAPH,
}
#: Layouts of calls on host threads.
CALLS = {"cuda_api": Cause.CALL, **dict.fromkeys(MPI_LAYOUTS, Cause.MPI)}
#: Lines from calls to the work that they launch, and between calls of MPI.
LAUNCHES, MESSAGES = ("launch", "memory"), "mpi_message"


def make_critical_path(job: Job, meetings: pl.DataFrame) -> TaskResult:
    """Return the critical path of a job, as runs in trace time. meetings: facts of blocking
    collectives of MPI, in trace time.
    """
    pieces = find_critical_path(*_read_work_and_calls(job, meetings), job.duration)
    columns = {"cause": pieces.cause, "class": pieces.kernel_class}
    rows = Rows("critical_path", pieces.begin, pieces.end, pieces.thread, columns)
    number = 1 + max(result.task for result in job.results)
    found = [rows] if len(rows.begin) else []
    return write_result("critical_path", number, job.folder, found)


def _read_work_and_calls(job: Job, meetings: pl.DataFrame) -> tuple[Operations, HostCalls]:
    calls, outer = _read_calls(job)
    work = _read_records(job, BEGIN, WORK, ("class",))
    streams, devices, tasks = _find_places(job)
    begin, end, thread, kind, kernel_class = (
        work[name].to_numpy() for name in ("begin", "end", "thread", "kind", "class")
    )
    call_begin, call_end, call_thread, call_kind = (
        calls[name].to_numpy() for name in ("begin", "end", "thread", "kind")
    )
    launched, sender = (
        _look_up(events, _find_started(_read_records(job, LINE, kinds), outer), "call")
        for events, kinds in ((work, LAUNCHES), (calls, (MESSAGES,)))
    )
    if meetings.height:
        sender = np.where(sender >= 0, sender, _find_awaited_calls(meetings, calls, outer, tasks))
    operations = Operations(
        begin,
        end,
        thread,
        streams[thread],
        devices[thread],
        tasks[thread],
        kind,
        kernel_class,
        launched,
        _find_last_members(job, work),
        _find_awaited(job, work, launched, calls, streams, tasks),
    )
    return operations, HostCalls(
        call_begin, call_end, call_thread, tasks[call_thread], call_kind, sender
    )


def _find_places(job: Job) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return of each thread of the trace the number of its stream, of its device, and its task."""
    count = job.model.tree.threads
    streams, devices = np.arange(count), np.arange(count)
    numbers: dict[tuple, int] = {}
    for (report, key), thread in job.model.rows.items():
        if isinstance(key, StreamKey):
            # Rows of work that overlaps other work are of the stream too.
            streams[thread] = numbers.setdefault((report, key.pid, key.device, key.stream), thread)
            devices[thread] = numbers.setdefault((report, key.pid, key.device), thread)
    tasks = [number for number, task in enumerate(job.model.tree.tasks) for _ in task.threads]
    return streams, devices, np.array(tasks, np.int64)


def _find_awaited(
    job: Job,
    work: pl.DataFrame,
    launched: np.ndarray,
    calls: pl.DataFrame,
    streams: np.ndarray,
    tasks: np.ndarray,
) -> np.ndarray:
    """Return for each operation the index of the one that a CUDA event made it wait for, -1 for
    none. launched: index of the call that launched each. streams, tasks: of threads.
    """
    numbers = pl.DataFrame(
        [
            (int(tasks[thread]), key.device, key.stream, int(streams[thread]))
            for (_, key), thread in job.model.rows.items()
            if isinstance(key, StreamKey)
        ],
        {"task": pl.Int64, "device": pl.Int64, "stream": pl.Int64, "number": pl.Int64},
        orient="row",
    ).unique()
    records, waits = (
        frame.with_columns(task=pl.Series(tasks[frame["thread"].to_numpy()], dtype=pl.Int64))
        for frame in (
            _read_records(job, BEGIN, ("cuda_event",), ("event", "device", "stream")),
            _read_records(
                job, BEGIN, ("cuda_synchronization",), ("type", "event", "stream")
            ).filter((pl.col("type") == STREAM_WAIT_EVENT) & (pl.col("event") != ABSENT)),
        )
    )
    records = records.join(numbers, on=["task", "device", "stream"])
    # A wait does not name its device: a stream of this number on one device alone is meant.
    alone = numbers.filter(pl.len().over("task", "stream") == 1)
    waits = waits.join(alone, on=["task", "stream"])
    begin = calls["begin"].to_numpy()
    return find_awaited_operations(
        streams[work["thread"].to_numpy()],
        np.where(launched >= 0, begin[launched], -1) if len(begin) else launched,
        work["end"].to_numpy(),
        *(
            EventCalls(*(frame[name].to_numpy() for name in ("begin", "task", "event", "number")))
            for frame in (records, waits)
        ),
    )


def _read_calls(job: Job) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the calls that lie within no other on their thread, and all calls with the index of
    the outermost one (`call`) that each lies in.
    """
    calls = _read_records(job, BEGIN, CALLS, ("call",)).sort("thread", "begin", -pl.col("end"))
    before = pl.col("end").cum_max().shift(1).over("thread")
    outermost = (before <= pl.col("begin")).fill_null(True)
    calls = calls.with_columns(outermost=outermost)
    calls = calls.with_columns(call=pl.col("outermost").cum_sum().cast(pl.Int64) - 1)
    return calls.filter("outermost"), calls.select("thread", "begin", "call")


def _find_started(lines: pl.DataFrame, outer: pl.DataFrame) -> pl.DataFrame:
    """Return where lines lead to, with the call that each starts from (`call`)."""
    call = _look_up(lines.select(thread="sender", begin="sent"), outer, "call")
    return lines.select("thread", "begin", pl.Series("call", call)).filter(pl.col("call") >= 0)


def _find_awaited_calls(
    meetings: pl.DataFrame, calls: pl.DataFrame, outer: pl.DataFrame, tasks: np.ndarray
) -> np.ndarray:
    """Return for each call that of another task whose begin it waits for in a collective of MPI, -1
    for none.
    """
    waits = _find_last_comers(meetings)
    of_task = outer.with_columns(thread=pl.Series(tasks[outer["thread"].to_numpy()]))
    own_calls, other = (
        _look_up(waits.select(thread=task, begin=begin), of_task, "call")
        for task, begin in (("task", "begin"), ("awaited_task", "awaited"))
    )
    awaited = np.full(calls.height, -1)
    both_found = (own_calls >= 0) & (other >= 0)
    awaited[own_calls[both_found]] = other[both_found]
    return awaited


def _find_last_comers(meetings: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of MPI's collectives that had to wait for another (`task`, `begin`), and
    whom for: the last to come, or the root (`awaited_task`, `awaited`: its begin).

    The n-th calls of a communicator belong together. One of which a task has more calls than
    others, or others of another kind, tells nothing: rows are missing.
    """
    group, number = ("clock_group", "communicator"), pl.int_range(pl.len())
    calls = meetings.filter(pl.col("task") >= 0).sort("time_begin", maintain_order=True)
    calls = calls.with_columns(number=number.over(*group, "task"))
    together = (*group, "number")
    whole = (
        (pl.len().over(together) == pl.col("task").n_unique().over(group))
        & (pl.col("task").n_unique().over(group) > 1)
    ).all()
    alike = (pl.col("signature").n_unique().over(together) == 1).all()
    calls = calls.filter(whole.over(group) & alike.over(group))
    roots = calls.filter("is_root").unique(together, keep="first")
    # Sorted by their begins.
    last = calls.group_by(together, maintain_order=True).last()
    last_comers = []
    for waits, waiting, awaited in (
        (ALL, True, last),
        (FROM_ROOT, ~pl.col("is_root"), roots),
        (TO_ROOT, pl.col("is_root"), last),
    ):
        whom = awaited.select(*together, awaited_task="task", awaited="time_begin")
        group_calls = calls.filter((pl.col("waits") == waits) & waiting)
        last_comers.append(group_calls.join(whom, on=together, how="inner"))
    return pl.concat(last_comers).select("task", "awaited_task", "awaited", begin="time_begin")


def _look_up(events: pl.DataFrame, table: pl.DataFrame, column: str) -> np.ndarray:
    """Return a column of what was found at the threads and begins of events, -1 for nothing."""
    thread, begin, at_thread, at = (
        frame[name].to_numpy() for frame in (table, events) for name in ("thread", "begin")
    )
    place = find_latest_before(thread, begin, at_thread, at)
    if not len(begin):
        return place
    there = (place >= 0) & (begin[place] == at)
    return np.where(there, table[column].to_numpy()[place], -1)


def _find_last_members(job: Job, work: pl.DataFrame) -> np.ndarray:
    """Return for each operation the index of the one that began last in its collective, or its
    own.
    """
    own = np.arange(work.height)
    records = _read_records(job, BEGIN, ("nccl_collective",), ("collective", "late"))
    records = records.filter(pl.col("late") >= 0)
    place = _look_up(records, work.select("thread", "begin", at=pl.int_range(pl.len())), "at")
    records = records.with_columns(at=pl.Series(place)).filter(pl.col("at") >= 0)
    latest = (
        records.sort("begin", maintain_order=True)
        .group_by("collective", maintain_order=True)
        .agg(last=pl.col("at").last())
    )
    records = records.join(latest, on="collective", how="left")
    own[records["at"].to_numpy()] = records["last"].to_numpy()
    return own


def _read_records(
    job: Job, stream: str, names: Iterable[str] | Mapping[str, int], fields: Sequence[str] = ()
) -> pl.DataFrame:
    """Return records or lines of the job in trace time: of records `begin`, `end`, `thread`, `kind`
    (what `names` says of the layout; -1 without) and the fields; of lines `sent`, `sender`,
    `begin`, `thread`.
    """
    columns = (
        ("sent", "sender", "begin", "thread")
        if stream == LINE
        else ("begin", "end", "thread", "kind", *fields)
    )
    pieces: dict[str, list[np.ndarray]] = {name: [np.zeros(0, np.int64)] for name in columns}
    wanted, waits = set(names), _find_synchronising_calls(job)
    for run in job.runs:
        if run.shape.stream != stream or run.shape.name not in wanted:
            continue
        records = read_run(run)
        if stream == LINE:
            read = _read_lines(job, run, records)
        else:
            read = _read_events(job, run, records) | _read_fields(job, run, records, fields)
            kind = names.get(run.shape.name, -1) if isinstance(names, Mapping) else -1
            read["kind"] = np.full(len(records), kind)
            if run.shape.name == "cuda_api" and "call" in read:
                read["kind"][np.isin(read["call"], waits)] = Cause.WAIT
        for name in columns:
            pieces[name].append(read[name].astype(np.int64, copy=False))
    return pl.DataFrame({name: np.concatenate(parts) for name, parts in pieces.items()})


def _read_events(job: Job, run: Run, records: np.ndarray) -> dict[str, np.ndarray]:
    clock = job.clocks[run.report]
    begin = windows.to_begin_times(records["time"], records["end"], clock)
    return {
        "begin": begin,
        "end": np.maximum(windows.to_trace_times(records["end"], clock, job.duration), begin + 1),
        "thread": job.threads[run.task][records["object"]],
    }


def _read_lines(job: Job, run: Run, records: np.ndarray) -> dict[str, np.ndarray]:
    clock, threads = job.clocks[run.report], job.threads[run.task]
    return {
        "sent": clock.to_global(records["time"]),
        "sender": threads[records["sender"]],
        "begin": windows.to_begin_times(records["receive"], records["until"], clock),
        "thread": threads[records["receiver"]],
    }


def _read_fields(
    job: Job, run: Run, records: np.ndarray, names: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return fields of records, ABSENT where they lack one."""
    fields = {}
    for name in names:
        if (constant := run.shape.find_constant(name)) is not None:
            fields[name] = np.full(len(records), constant)
        elif name_set := find_role(BEGIN, run.shape.name, name):
            fields[name] = job.names[name_set][run.task][records[name]]
        else:
            fields[name] = records[name].astype(np.int64)
    return fields


def _find_synchronising_calls(job: Job) -> np.ndarray:
    """Return the values of calls that wait for devices."""
    api_values = job.values.get("cuda_api")
    if api_values is None or not api_values.labels.height:
        return np.zeros(0, np.int64)
    return np.array(select_synchronising_calls(api_values.labels), np.int64)
