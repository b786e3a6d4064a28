"""Find what is missing from the reports of a job: time that is not covered, for each process and
for all together; lost work; events that were not recorded.

The activity of a process is unknown while no report covers it; this is not idle time. A report
covers its capture, from start to stop as recorded; if neither is recorded, the whole trace. If the
profiler launched the processes, it also covers the time before the capture, because they did
nothing then. A process may have several reports with gaps between their captures. Helpers do not
count: events that only helpers have, before the first event of a rank or after the last, are
outside the job's time. Other ranks may show that a report covers less: it has no events at the
start or end, while they make calls on a communicator that includes its processes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from operator import and_

import numpy as np
from msgspec import Struct

from nsys2prv._util.columns import ABSENT
from nsys2prv._util.intervals import EMPTY, Spans, merge_spans
from nsys2prv._util.text import format_moment, format_nanoseconds, format_span, list_some
from nsys2prv.conversion.job import Job
from nsys2prv.conversion.quality import find_refusal, lacks_mpi
from nsys2prv.events import all_kinds
from nsys2prv.events.extraction import GPU, DeviceKey, StreamKey, find_stream_device, identify_gpu
from nsys2prv.export.info import Gpu
from nsys2prv.figures.reach import COLLECTIVE, Reach
from nsys2prv.figures.result import KERNEL_NAMES, TEXTS
from nsys2prv.figures.thresholds import (
    LONG_UNSEEN,
    NEGLIGIBLE,
    UNSEEN_SHARE,
)
from nsys2prv.match import all_relations
from nsys2prv.table.event_reader import HELPER, SAMPLED, EventReader

#: Layouts of collective calls, which every member of a communicator makes.
COLLECTIVE_LAYOUTS = ("nccl_kernel", "mpi_collective")
#: Processes named in one line, and tables.
MOST_NAMED, MOST_TABLES = 4, 2


class Coverage(Struct, frozen=True):
    """The times that reports cover (ns of the trace), for each process and for all together."""

    #: Task (from 1) -> when its reports cover it.
    by_task: Mapping[int, Spans]
    #: Times covered by the reports of all tasks.
    common: Spans
    #: Length of the trace.
    duration: int
    #: From the first event of a rank to the last; all of the trace where helpers add little to it.
    job: Spans
    #: Task -> its name.
    names: Mapping[int, str]
    #: Time from the start of captures to the beginning of the trace, with the first event of a process of the
    #: job (ns).
    unseen: int = 0
    #: Task -> end of its recorded CUDA API or MPI calls, or kernels (ns), if that is before the end of its
    #: report; those of MPI.
    cut: Mapping[int, int] = {}
    cut_in_mpi: frozenset[int] = frozenset()

    def describe_cut(self) -> str:
        """Return a sentence about processes for which the recording of GPU work or MPI calls ends
        before their report does, or "".
        """
        ends = [
            f"until {format_moment(until, self.duration)}{f' for {self.names[task]}' * (len(self.names) > 1)}"
            for task, until in sorted(self.cut.items(), key=lambda item: item[1])
        ]
        what = "MPI calls are" if self.cut.keys() <= self.cut_in_mpi else "GPU work is"
        until = format_moment(self.duration, self.duration)
        told = f"{what} recorded only {list_some(ends, MOST_NAMED)}; the trace ends at {until}. The rest is not analyzed."
        return told if ends else ""

    def describe_unseen(self) -> str:
        """Return a sentence about the start of captures without events; "" if it is short."""
        if self.unseen <= min(LONG_UNSEEN, UNSEEN_SHARE * (self.unseen + self.duration)):
            return ""
        return (
            f"nsys started {format_nanoseconds(self.unseen)} before the first program event; "
            "the trace and all figures exclude this time"
        )

    def describe(self) -> str:
        """Return a sentence about time that is not covered, or ""."""
        if self.common.length == self.duration:
            return ""
        if self.common.length == self.job.length:
            return (
                "efficiencies, overlap and idle times cover the time in which ranks have events "
                f"({_format_spans(self.job)}); outside it, only helper processes have events"
            )
        least = (1 - NEGLIGIBLE) * self.duration
        partly = [
            f"{self.names[task]} ({_format_spans(spans)})"
            for task, spans in sorted(self.by_task.items(), key=lambda item: item[1].length)
            if spans.length < least
        ]
        reports = ""
        if partly and len(self.by_task) > 1:
            reports = f". Only partly covered: {list_some(partly, MOST_NAMED)}"
        if not len(self.common):
            return (
                "efficiencies, overlap and idle times are unknown, because the reports of the processes "
                f"have no common time{reports}"
            )
        share = self.common.length / self.duration
        covered = "the time that all reports cover"
        if len(self.by_task) == 1:
            covered = f"the recorded time of {self.names[next(iter(self.by_task))]}"
        return (
            f"efficiencies, overlap and idle times are for {covered} ({_format_spans(self.common)}), "
            f"{share:.0%} of the trace{reports}"
        )


def _format_spans(spans: Spans) -> str:
    """Return the start of the first span and the end of the last one as text."""
    if not len(spans):
        return "nowhere"
    pieces = f", in {len(spans)} pieces" if len(spans) > 1 else ""
    return f"{format_span(int(spans.begin[0]), int(spans.end[-1]))}{pieces}"


def find_coverage(job: Job, reader: EventReader, reaches: Sequence[Reach] = ()) -> Coverage:
    """Find the times of the trace that the reports of a job cover. reaches: early ends of recorded
    calls, sorted by time.
    """
    rows = reader.rows.threads
    tasks_of: dict[int, set[int]] = defaultdict(set)
    for (report, _), thread in job.model.rows.items():
        if rows["kind"][thread] not in (SAMPLED, HELPER):
            tasks_of[report].add(int(rows["process"][thread]))
    spans = _find_report_spans(job, reader, tasks_of)
    by_task: dict[int, Spans] = {}
    # The first end of each counts.
    ends = {one.task: one.until for one in reversed(reaches)}
    cut = dict(ends)
    lost_since = _find_lost_ends(job)
    for report, (begin, end) in spans.items():
        for task in tasks_of[report]:
            before, until = by_task.get(task, EMPTY), min(end, ends.get(task, end))
            if (since := lost_since.get((report, task), until)) < until:
                until = cut[task] = max(since, begin)
            by_task[task] = merge_spans(
                np.append(before.begin, begin), np.append(before.end, until)
            )
    whole = _find_job(job, reader)
    common = reduce(and_, by_task.values(), whole)
    if common.length >= (1 - NEGLIGIBLE) * whole.length:
        common = whole
    names = dict(rows.unique("process").select("process", "who").rows())
    # A cut trace begins after the first event.
    first, stated = [0], [0]
    for report in spans:
        info, clock = job.infos[report], job.clocks[report]
        first.append(int(clock.to_global(np.array(job.spans[report]))[0]))
        if info.stated_span is not None and not info.is_part:
            stated.append(int(clock.to_global(np.array(info.stated_span))[0]))
    unseen = -min(stated) if min(first) >= 0 else 0
    in_mpi = frozenset(one.task for one in reaches if one.layout == COLLECTIVE)
    return Coverage(by_task, common, reader.duration, whole, names, unseen, cut, in_mpi)


def _find_job(job: Job, reader: EventReader) -> Spans:
    """Return the span in which ranks have events if helpers have longer spans; otherwise, the whole
    trace.
    """
    begin, end = reader.begin, reader.duration
    if job.model.roles.helpers:
        first, last = reader.find_hull()
        if last - first < (1 - NEGLIGIBLE) * (end - begin):
            begin, end = first, last
    return merge_spans(np.array([begin]), np.array([end]))


def _find_lost_ends(job: Job) -> dict[tuple[int, int], int]:
    """Return (report, task) -> time from which the work of launches is lost (ns of the trace)."""
    return {
        (one.report, job.model.tasks[one.report, one.process] + 1): int(
            job.clocks[one.report].to_global(np.array([one.since]))[0]
        )
        for one in job.lost
        if one.matters and one.since is not None and (one.report, one.process) in job.model.tasks
    }


def _find_report_spans(
    job: Job, reader: EventReader, tasks_of: Mapping[int, set[int]]
) -> dict[int, tuple[int, int]]:
    """Return report -> the span in which it covers its processes (ns of the trace), for each report
    with events.
    """
    spans, silent = {}, []
    for report, local in job.spans.items():
        if report not in tasks_of:
            continue
        info, clock = job.infos[report], job.clocks[report]
        first, last = clock.to_global(np.array(local)).tolist()
        begin, end = reader.begin, reader.duration
        if info.is_part:
            begin, end = first, last
        elif info.stated_span is not None:
            begin, end = clock.to_global(np.array(info.stated_span)).tolist()
        begin, end = max(begin, reader.begin), min(end, reader.duration)
        was_launched = info.launched and not info.is_part
        spans[report] = reader.begin if was_launched else begin, max(begin, end)
        for edge in ((reader.begin, begin), (begin, first), (last, end)):
            if edge[1] - edge[0] > NEGLIGIBLE * reader.duration:
                silent.append((report, edge))
    missing = _count_calls_of_others(reader, [(tasks_of[report], edge) for report, edge in silent])
    for (report, edge), calls in zip(silent, missing, strict=True):
        begin, end = spans[report]
        if calls:
            is_end = edge[1] == end
            spans[report] = (begin, edge[0]) if is_end else (max(begin, edge[1]), end)
    return spans


def _count_calls_of_others(
    reader: EventReader, edges: list[tuple[set[int], tuple[int, int]]]
) -> list[int]:
    """Return for each pair (tasks, time span in ns) the number of collective calls of other tasks
    within the span, on communicators that include the tasks, or on unknown ones.
    """
    begins, ends = (np.array([edge[side] for _, edge in edges]) for side in (0, 1))
    members: dict[int, set[tuple[str, int]]] = defaultdict(set)
    calls: dict[tuple[str, int], np.ndarray] = {}
    units = reader.rows.unit_numbers if edges else []
    for layout in (layout for layout in COLLECTIVE_LAYOUTS if layout in reader.layouts):
        for unit in units:
            frame = reader.read_begins(layout, ("communicator",), unit)
            frame = frame.with_columns(reader.rows.find("process", frame["thread"]).alias("task"))
            for (task, communicator), of_task in frame.group_by("task", "communicator"):
                members[task].add((layout, communicator))
                first, last = (np.sort(of_task[one].to_numpy()) for one in ("begin", "end"))
                inside = np.searchsorted(last, ends, "right") - np.searchsorted(first, begins)
                own = [task in tasks for tasks, _ in edges]
                inside = np.where(own, 0, np.maximum(inside, 0))
                calls[layout, communicator] = calls.get((layout, communicator), 0) + inside
    return [
        sum(
            int(counts[number])
            for (layout, communicator), counts in calls.items()
            if any(members[task] & {(layout, communicator), (layout, ABSENT)} for task in tasks)
            or communicator == ABSENT
        )
        for number, (tasks, _) in enumerate(edges)
    ]


def explain_absence(job: Job, layouts: Collection[str]) -> str:
    """Return a text that explains why a job has no events of these layouts, or no kernel names."""
    if KERNEL_NAMES in layouts:
        return (
            "the reports lack kernel names, so communication cannot be separated from computation"
        )
    kinds = [kind for kind in all_kinds() if set(kind.layouts) & set(layouts)]
    # First those whose main layout is asked for.
    kinds.sort(key=lambda kind: kind.layouts[0] not in layouts)
    tables = [table for kind in kinds for table in kind.tables]
    if not tables:
        relations = [one for one in all_relations() if set(one.layouts) & set(layouts)]
        titles = ", ".join(one.title for one in (*kinds, *relations))
        return f"none was found by comparing events ({titles})"
    if not any(kind in job.selection.kinds for kind in kinds):
        return f"not read, because {', '.join(kind.name for kind in kinds)} is excluded"
    present = {table for info in job.infos for table in info.parts}
    there = [table for table in tables if table in present]
    named = list(dict.fromkeys(there or tables))
    tables = "any of the tables" if len(named) > 1 else "the table"
    many = f"{tables} {list_some(named, MOST_TABLES)}"
    if there:
        return f"none in {many}"
    recorded_by = TEXTS["recorded_by"]
    begin = next((begin for begin in recorded_by if named[0].startswith(begin)), "")
    if begin == "CUPTI_" and (refusal := find_refusal(job.infos)):
        return f'no report has {many}: "{refusal}"'
    if begin == "MPI_" and any(map(lacks_mpi, job.infos)):
        return TEXTS["reasons"]["mpi_traced"].format(tables=many)
    if begin == "CUPTI_" and any(info.traces_cuda for info in job.infos):
        return TEXTS["reasons"]["traced"].format(tables=many)
    by = f" (nsys profile {recorded_by[begin]})" if begin else ""
    return f"not recorded, as no report has {many}{by}"


def list_unrecorded_mpi(job: Job, layouts: Collection[str]) -> tuple[str, ...]:
    """Return MPI calls that the program may make and that Nsight Systems does not record, if the
    reports contain similar calls. layouts: layouts with events.
    """
    calls = []
    if "mpi_point_to_point" in layouts:
        calls += ["MPI_Probe", "MPI_Test calls that return false"]
    made = (one for info in job.infos for one in info.communicators)
    if any(one.parent is not None for one in made):
        calls.append("MPI_Comm_split and others that create communicators")
    return tuple(calls)


def name_lossy_processes(job: Job) -> str:
    """Return a sentence that names the processes in which GPU work was not recorded, or ""."""
    keys = ((one.report, one.process) for one in job.lost if one.hides_idle_time)
    lossy = sorted({job.model.tasks[key] for key in keys if key in job.model.tasks})
    # The only process needs no name.
    names = f" of {list_some([job.model.labels[task] for task in lossy])}"
    names = names if len(job.model.tasks) > 1 else ""
    return f"some GPU work{names} is missing (see the capture quality section)" if lossy else ""


def list_gpus(job: Job, reader: EventReader) -> dict[int, list[Gpu]]:
    """Return device -> the GPU that it is, for devices with work. If this is unclear, return all
    GPUs visible to its process.
    """
    gpus: dict[int, list[Gpu]] = defaultdict(list)
    for report, key, device in _list_streams(job, reader):
        info = job.infos[report]
        number = info.find_gpu(key.pid, key.device)
        seen = info.list_gpus(key.pid) if number is None else [number]
        gpus[device] += [info.gpus[one] for one in seen if one in info.gpus]
    return gpus


def _list_streams(job: Job, reader: EventReader) -> Iterator[tuple[int, StreamKey, int]]:
    """Yield the report, the key, and the device of each stream."""
    device_of = reader.rows.get_column("device")
    for (report, key), thread in job.model.rows.items():
        if isinstance(key, StreamKey):
            yield report, key, int(device_of[thread])


def find_lossy_devices(job: Job, reader: EventReader) -> tuple[int, ...]:
    """Return the devices of processes in which GPU work was not recorded: devices with other work
    of the process, or the only device that it sees.
    """
    infos, machines = job.infos, job.machines
    devices: dict[tuple[object, ...], int] = {}
    users: dict[tuple[int, int], set[int]] = defaultdict(set)
    for report, key, device in _list_streams(job, reader):
        gpu = identify_gpu(infos, machines, report, find_stream_device(infos[report], key))
        devices[gpu] = device
        users[report, key.pid].add(device)
    lossy: set[int] = set()
    for one in job.lost:
        if one.hides_idle_time:
            lossy |= users[one.report, one.process]
            seen = infos[one.report].list_gpus(one.process)
            if len(seen) == 1:
                gpu = identify_gpu(infos, machines, one.report, DeviceKey(GPU, number=seen[0]))
                lossy |= {devices[gpu]} if gpu in devices else set()
    return tuple(sorted(lossy))
