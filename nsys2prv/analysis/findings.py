"""Findings: what holds the job back, by a replay of the job without it (:mod:`nsys2prv.replay`).

A finding's share is what the steady state, or the whole job where nothing repeats, would be shorter
without its cause. What a finding says of hosts is what their reports show (host_time.py). Where the
replay does not explain the time, no gain is stated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl
from msgspec import structs

from nsys2prv._util.text import list_some
from nsys2prv.analysis.cause_texts import CauseWriter, describe_unexplained
from nsys2prv.analysis.host_time import (
    PARTS,
    count_functions,
    describe_parts,
    divide_host_time,
    list_unrecorded,
    sum_ranges,
)
from nsys2prv.analysis.intervals import (
    EMPTY,
    Spans,
    clip_spans,
    intersect_spans,
    merge_spans,
    subtract_spans,
)
from nsys2prv.analysis.iterations import find_phases
from nsys2prv.analysis.result import Analysis, Context, Finding, JobRanks, Result
from nsys2prv.analysis.text import format_nanoseconds
from nsys2prv.analysis.unit import (
    COMPUTE,
    CONVOLUTION,
    GEMM,
    GRAPH,
    TENSOR_NO,
    WORK,
    Unit,
    find_driving_threads,
    find_mpi_span,
)
from nsys2prv.events.catalogue import map_labels
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.replay.causes import KernelFacts, find_causes
from nsys2prv.replay.graph import Kind
from nsys2prv.replay.questions import Names, parse_what_ifs, replay_what_ifs
from nsys2prv.replay.whatif import Replay

#: No gain is stated where more than this share of the critical path waits for nothing that is known.
MOST_UNEXPLAINED = 0.05
#: A cause that gains less than this share of the job is no finding.
LEAST_OF_JOB = 0.01
#: Time before the steady state, or before the first work of a GPU, is a finding from this share of
#: the job on.
LEAST_START = 0.2
#: A time of less than this share of the job tells nothing of it.
LEAST_WINDOW = 0.05
#: What counts after the GPUs' work (ns).
MARGIN = 100_000
GPU_WORK = (Kind.KERNEL, Kind.COPY, Kind.NCCL)
#: Kernels that tensor cores do not help: products of a matrix and a vector, and of double precision.
NO_PRODUCT = re.compile(r"(?i)gemv|double|dgemm|_d\d{3}|f64")
NOT_TOLD = "what holds the job back cannot be told"
NO_CORE = "it needs the compiled part of nsys2prv; install it where there is a C compiler"


def collect(unit: Unit) -> Iterator[tuple[str, pl.DataFrame]]:
    """Collect of each process what its threads do while they are in no call of CUDA or MPI and its
    GPUs are idle: `hosts` (a row each, ns), `before` and `after` (the same before the first and
    after the last work of its GPUs), `ranges`, `functions`; what GPUs do (`devices`); kernels that
    are matrix products without tensor cores (`products`); the time in MPI (`mpi`).
    """
    window = unit.options.covered_steady
    before, after = _find_edges(unit)
    for task in unit.tasks:
        devices = [device for device in unit.devices if task in _list_device_tasks(unit, device)]
        threads = [unit.find_main_thread(task)]
        for device in devices:
            threads += [
                one for one in find_driving_threads(unit, device) if unit.task_of[one] == task
            ]
        busy = (
            merge_spans(
                *(
                    np.concatenate([getattr(unit.find_active_spans(one), side) for one in devices])
                    for side in ("begin", "end")
                )
            )
            if devices
            else merge_spans(np.zeros(0), np.zeros(0))
        )
        one = pl.lit(task, pl.Int64).alias("task")
        main = threads[0]
        if span := find_mpi_span(unit, main):
            yield "mpi", pl.DataFrame([span], schema=["begin", "end"], orient="row")
        for name, time in (("hosts", window), ("before", before), ("after", after)):
            outside = _find_outside_calls(unit, main, time)
            parts = divide_host_time(unit, main, subtract_spans(outside, busy))
            calls = time.length - outside.length
            row = {"length": time.length, "calls": calls, **parts}
            yield name, pl.DataFrame([row], schema=dict.fromkeys(row, pl.Int64)).with_columns(one)
        for thread in dict.fromkeys(threads):
            outside = subtract_spans(_find_outside_calls(unit, thread, window), busy)
            yield "ranges", sum_ranges(unit, thread, outside).with_columns(one)
            yield "functions", count_functions(unit, thread, outside).with_columns(one)
    for device in unit.devices:
        compute = intersect_spans(window, unit.find_device_spans(device, COMPUTE, GRAPH))
        active = intersect_spans(window, unit.find_active_spans(device))
        row = {
            "device": device,
            "task": int(
                np.bincount(unit.list_tasks(unit.work.filter(pl.col("device") == device))).argmax()
            ),
            "compute": compute.length,
            "active": active.length,
            "length": window.length,
        }
        yield "devices", pl.DataFrame([row])
    products = unit.work.filter(
        pl.col("class").is_in([GEMM, CONVOLUTION]) & (pl.col("tensor") == TENSOR_NO)
    )
    yield "products", products.select(pl.col("name").cast(pl.Int64)).unique()
    unrecorded = list_unrecorded(unit)
    yield "unrecorded", pl.DataFrame({"what": unrecorded}, schema={"what": pl.String})


def _find_edges(unit: Unit) -> tuple[Spans, Spans]:
    """Return the covered time before the first work of GPUs, and after the last."""
    if not unit.work.height:
        return EMPTY, EMPTY
    first, last = int(unit.work["begin"].min()), int(unit.work["end"].max())
    return clip_spans(unit.covered, 0, first), clip_spans(unit.covered, last, unit.duration)


def _list_device_tasks(unit: Unit, device: int) -> list[int]:
    rows = unit.work.filter(pl.col("device") == device)
    return np.unique(unit.task_of[rows["thread"].unique().to_numpy()]).tolist()


def _find_outside_calls(unit: Unit, thread: int, time: Spans) -> Spans:
    """Return the part of some time in which a thread is in no call of CUDA or MPI."""
    outside = subtract_spans(time, unit.find_mpi_spans([thread]))
    return subtract_spans(outside, unit.find_thread_spans("cuda_api", [thread]))


def conclude(frames: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    """Add the findings, the most costly first, answers to what-ifs, and the phases of the job."""
    _replay_job(frames, context, result)
    if steady := context.options.steady:
        phases = find_phases(context.reader, context.labels["nvtx"], steady)
        about = "Findings are of the steady state: shares are of its time."
        result.add("phases", "Phases", phases, about)


def _replay_job(frames: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    steady = context.options.steady
    if not context.reader.layouts & {*WORK, *MPI_LAYOUTS}:
        absence = context.explain_absence((*WORK, *MPI_LAYOUTS))
        result.missing.append(f"{NOT_TOLD} without work on GPUs or calls of MPI: {absence}")
        return
    graph = context.get_graph()
    if graph is None:
        result.missing.append(f"{NOT_TOLD}: {NO_CORE}")
        return
    devices = frames["devices"]
    lost = context.options.lost_work
    if devices.height and devices["device"].is_in(context.options.lossy_devices).all():
        result.missing.append(f"{NOT_TOLD}: {lost}")
        return
    covered = context.options.covered_steady
    begin, end = int(covered.begin[0]), int(covered.end[-1])
    if not devices.height and not steady:
        # Of a job of MPI alone what lies between the last MPI_Init and the last MPI_Finalize.
        begin = max(begin, int(frames["mpi"]["begin"].max()))
        end = min(end, int(frames["mpi"]["end"].max()))
    job = JobRanks.from_job(context, devices, frames["hosts"], max(covered.length, 1))
    edges = [
        finding
        for name in ("before", "after")
        if (finding := _find_edge(name, frames, context, job)) is not None
    ]
    if not steady and devices.height:
        # What is before and after the GPUs' work is told of by itself.
        time, edges_ = graph.graph.time, graph.graph.edges
        work = np.isin(edges_.kind, GPU_WORK)
        begin = max(begin, int(time[edges_.source[work]].min()))
        end = min(end, int(time[edges_.target[work]].max()) + MARGIN)
    replay = Replay(graph, begin, end)
    names = _list_names(frames, context)
    if asked := parse_what_ifs(context.options.what_ifs):
        answers = replay_what_ifs(asked, replay, names)
        when = "the steady state" if steady else "the job's work"
        about = f"Durations are of {when}; each row also has the changes of those above."
        result.add("what_if", "What if", answers, about)
    findings = []
    writer = CauseWriter(context, job, replay, frames, names)
    unexplained = replay.measure_unexplained(replay.trace_path())
    if replay.span < LEAST_WINDOW * covered.length and edges:
        unexplained = 0.0
    elif unexplained > MOST_UNEXPLAINED:
        findings.append(describe_unexplained(writer, unexplained))
    else:
        # Of a job without a steady state shares are of all its time, not of what is replayed alone.
        replayed = 1.0 if steady else replay.span / covered.length
        found = (writer.describe(cause) for cause in find_causes(replay, names.facts))
        of_job = (structs.replace(one, share=one.share * replayed) for one in found)
        findings += [one for one in of_job if one.share >= LEAST_OF_JOB]
        findings.sort(key=lambda one: (one.at_most, -one.share))
    # What lies outside of the time that is replayed comes first where it is longer.
    ahead = [edge for edge in edges if edge.share >= 0.5]
    behind = (structs.replace(edge, at_most=True) for edge in edges if edge not in ahead)
    findings = [*ahead, *findings, *behind]
    result.notes.extend(_describe_trust(context, unexplained))
    result.findings.extend(findings)
    if not findings:
        result.missing.append(_describe_nothing(frames, job))


def _list_names(frames: Mapping[str, pl.DataFrame], context: Context) -> Names:
    """Return what words of what-ifs stand for, and what is known of kernels and memory."""
    ranks = context.tasks.select("rank", pl.col("task") - 1).drop_nulls()
    kernels = {
        value: label
        for name in ("kernels", "graphs")
        if name in context.labels
        for value, label in context.labels[name].select("value", "label").rows()
    }
    kinds = map_labels("memory_kind")
    products: list[int] = []
    if frames["products"].height and "kernels" in context.labels:
        names = frames["products"]["name"].to_list()
        labels = context.labels["kernels"].filter(pl.col("value").is_in(names))
        products = [value for value, label in labels.rows() if not NO_PRODUCT.search(label)]
    facts = KernelFacts(frozenset(products), kinds["pageable"], kinds["pinned"])
    return Names(dict(ranks.rows()), kernels, facts)


def _describe_trust(context: Context, unexplained: float) -> Iterator[str]:
    if unmatched := context.options.unmatched:
        yield (
            f"which rank is late may not be told: NCCL kernels of {list_some(unmatched)} have no payloads, and "
            "could not be matched with those of the other ranks"
        )
    if lost := context.options.lost_work:
        yield f"gains may be too small: {lost}"
    yield f"{unexplained:.1%} of the critical path waits for something that the reports do not show"


def _find_edge(
    name: str, frames: Mapping[str, pl.DataFrame], context: Context, job: JobRanks
) -> Finding | None:
    """Say what a long time before the first work of GPUs, or after the last, consists of."""
    # Of processes that use GPUs, not of those that start them.
    rows, devices = frames[name], frames["devices"]
    if rows.height and devices.height:
        rows = rows.filter(pl.col("task").is_in(devices["task"].to_list()))
    if not rows.height:
        return None
    last = rows.sort("length").row(-1, named=True)
    share = last["length"] / max(context.options.covered.length, 1)
    if share < LEAST_START:
        return None
    parts = {part: float(last[part]) for part in PARTS}
    described = describe_parts(parts)
    evidence = [
        f"{job.name_task(last['task'])}: {format_nanoseconds(float(last['calls']))} in calls of CUDA and MPI"
        + (", which set up what is used for the first time" if name == "before" else "")
        + f", {format_nanoseconds(sum(parts.values()))} outside of them"
        + (f": {described}" if described else "")
    ]
    if lacking := frames["unrecorded"]["what"].unique().sort().to_list():
        evidence.append(f"not recorded: {list_some(lacking)}")
    length = format_nanoseconds(float(last["length"]))
    begin = 0 if name == "before" else context.duration - int(last["length"])
    when = "before the first" if name == "before" else "after the last"
    advice = (
        "start-up counts once: judge by the rest, and capture that alone (--capture-range) where start-up is not what you look for"
        if name == "before"
        else "look at what the program does at its end, and whether the capture could end earlier"
    )
    return Finding(
        "startup" if name == "before" else "shutdown",
        f"GPUs do nothing for {share:.0%} of the job: {length} {when} work of a GPU.",
        share,
        evidence=tuple(evidence),
        advice=advice,
        moments=((begin, begin + int(last["length"]), ()),),
    )


def _describe_nothing(frames: Mapping[str, pl.DataFrame], job: JobRanks) -> str:
    """Return what is said where no cause gains enough: how busy GPUs are, and what hosts do."""
    devices, hosts = frames["devices"], frames["hosts"]
    text = "nothing found that would gain 2 %"
    if devices.height:
        busy = devices["active"].sum() / max(devices["length"].sum(), 1)
        text += f": the GPUs work {busy:.1%} of the time"
    parts = {name: float(hosts[name].sum()) for name in PARTS} if hosts.height else {}
    if parts and (described := describe_parts(parts)):
        text += f"; meanwhile, outside of calls of CUDA and MPI, hosts are {described}"
    return text


ANALYSIS = Analysis(
    "findings",
    "What holds the job back",
    "What holds the job back, one cause each, with what the job would gain without it.",
    (),
    collect,
    conclude,
    is_of_covered=True,
)
