"""What holds the job back, one cause each, with what the job would gain without it.

The gain comes from a replay of the job (:mod:`nsys2prv.replay`): a finding's share is by how much
the steady state, or the whole job where nothing repeats, would be shorter without its cause. What a
finding says of hosts is what their reports show (host_time.py). Where the replay does not explain
the time, no gain is stated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl
from msgspec import structs

from nsys2prv._util.text import capitalize, list_some
from nsys2prv.events.catalogue import map_labels
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.figures import host_time
from nsys2prv.figures.device_group import (
    COMMUNICATING,
    COMMUNICATION,
    COMPUTE,
    CONVOLUTION,
    GEMM,
    GRAPH,
    MEMORY,
    TENSOR_NO,
    WORK,
    DeviceGroup,
    find_driving_threads,
    find_mpi_span,
)
from nsys2prv.figures.efficiency_times import MPI_TIME
from nsys2prv.figures.intervals import EMPTY, SIDES, Spans, unite
from nsys2prv.figures.iterations import find_phases
from nsys2prv.figures.kernels import (
    describe_other_work,
    is_shared,
    measure_other_work,
)
from nsys2prv.figures.result import (
    MOST_FINDINGS,
    Context,
    Finding,
    JobRanks,
    Result,
    join_findings,
)
from nsys2prv.figures.stacks import (
    count_mpi_samples,
    list_places,
    measure_places,
)
from nsys2prv.replay.causes import (
    LEAST_GAIN,
    Cause,
    KernelFacts,
    Names,
    describe_cause,
    find_causes,
    parse_what_ifs,
    replay_what_ifs,
)
from nsys2prv.replay.graph import Kind
from nsys2prv.replay.job_graph import JobGraph
from nsys2prv.replay.whatif import Replay
from nsys2prv.verdict import time_use
from nsys2prv.verdict.cause_context import CauseContext
from nsys2prv.verdict.culprits import describe_culprit
from nsys2prv.verdict.host_use import ADVICE, TEXTS
from nsys2prv.verdict.job_causes import describe_job_cause

#: Where more than this share of the critical path waits for nothing that is known, no gain is stated
#: that is smaller than it.
MOST_UNEXPLAINED = 0.05
#: A cause that gains less than this share of the job is no finding.
LEAST_OF_JOB = 0.01
#: At most this share of the steady state is left out as its collectives are not known.
MOST_SKIPPED = 0.3
#: What counts after the GPUs' work (ns).
MARGIN = 100_000
#: GPUs that compute for more than this share of the time are what the job waits for.
MOSTLY = 0.8
#: Most views of a finding, and the layouts of which a view must show something, by a part of its name;
#: other views must show something of CUDA.
MOST_VIEWS = 2
VIEW_NEEDS = {"nccl": ("nccl_kernel",), "mpi": MPI_LAYOUTS, "nvtx": ("nvtx_pushpop",)}
#: Kinds of findings of what hosts do while GPUs wait for them.
OF_HOSTS = ("blocked_by_call", "host_work", "host_bound")
#: Waiting for what comes from outside of the job is told of from this share of the time on.
LEAST_OUTSIDE = 0.02
GPU_WORK = (Kind.KERNEL, Kind.COPY, Kind.NCCL)
NO_VERDICT = "what holds the job back cannot be told"


def collect(unit: DeviceGroup) -> Iterator[tuple[str, pl.DataFrame]]:
    """Collect what threads and GPUs do, in frames of these names.

    `hosts` (ns), `ranges`, `places`: what the threads of each process do while they are in no call
    of CUDA or MPI and its GPUs are idle. `uses`, `activities` (by name): what the thread that drives
    the GPUs does before their first work, after their last, and while they are idle; without such
    work, all the time, of MPI from MPI_Init to MPI_Finalize. `devices`, `kernels`, `copies`: what
    GPUs do, in all, by kernel and launch configuration, and by kind of copy. `products`: kernels that are matrix products
    without tensor cores, on devices that have some. `mpi_samples`: CPU samples of main
    threads by MPI call, where MPI was not traced. `mpi`: the time in MPI. `failed`: calls of CUDA that failed. `unrecorded`: what
    the reports do not record.
    """
    window = unit.options.covered_steady
    before, after = _find_edges(unit, window)
    inner = window if unit.options.steady else window - before - after
    times = {"before": before, "after": after, "idle": inner}
    for device in unit.devices:
        yield "devices", _measure_device(unit, device, window, inner)
        for row in measure_other_work(unit, device, times):
            yield "other_work", row
    yield "copies", _sum_copies(unit, window)
    if unit.has("cuda_kernel"):
        yield "kernels", _sum_kernels(unit, window)
    is_product = pl.col("class").is_in([GEMM, CONVOLUTION])
    gpus, lack = unit.options.gpus, "no_tensor_cores"
    lacking = [one for one, known in gpus if known and not host_time.select_gpus(known, lack)]
    is_product &= (pl.col("tensor") == TENSOR_NO) & ~pl.col("device").is_in(lacking)
    products = unit.work.lazy().filter(is_product).select("name", "device", "thread")
    products = products.unique().collect()
    task = pl.Series(unit.task_of[products["thread"].to_numpy()], dtype=pl.Int64)
    yield "products", products.select("name", "device", task=task).cast(pl.Int64).unique()
    # What follows needs no more of the work than when devices are active.
    unit.forget_work()
    for task in unit.tasks:
        yield from _collect_hosts(unit, task, window, times)
    for overhead in host_time.collect_overhead(unit):
        yield "overhead", overhead
    failed = unit.api.filter(pl.col("error") > 0).group_by("call", "error")
    yield "failed", failed.agg(count=pl.len()).cast(pl.Int64)
    yield "unrecorded", pl.Series("what", host_time.list_unrecorded(unit), pl.String).to_frame()


def _collect_hosts(
    unit: DeviceGroup, task: int, window: Spans, times: Mapping[str, Spans]
) -> Iterator[tuple[str, pl.DataFrame]]:
    """Collect what the threads of a task do. window: the time that counts; times: before, between and
    after the work of GPUs.
    """
    devices = [one for one in unit.devices if task in unit.list_device_tasks(one)]
    drivers = [one for device in devices for one in find_driving_threads(unit, device)]
    main = host_time.choose_thread(unit, task)
    threads = [main, *(one for one in drivers if unit.task_of[one] == task)]
    busy = unite(*(unit.find_active_spans(one) for one in devices))
    one = pl.lit(task, pl.Int64).alias("task")
    of_host = unit.covered
    if span := find_mpi_span(unit, main):
        of_host = window if unit.options.steady else unit.covered.clip(*span)
        yield "mpi", pl.DataFrame([span], schema=["begin", "end"], orient="row")
    yield "mpi_samples", count_mpi_samples(unit, main, window).with_columns(one)
    outside = {thread: host_time.find_outside_calls(unit, thread, window) for thread in threads}
    parts = host_time.divide_host_time(unit, main, outside[main] - busy)
    yield "hosts", pl.DataFrame([parts]).cast(pl.Int64).with_columns(one)
    asked = {"all": of_host} if unit.first_work is None else times
    moments = {when: time.find_longest() for when, time in asked.items()}
    asked = {when: time - busy for when, time in asked.items()}
    *of_asked, of_main = host_time.sum_ranges(unit, main, *asked.values(), outside[main])
    yield "ranges", of_main.with_columns(one)
    for (when, time), ranges in zip(asked.items(), of_asked, strict=True):
        row = dict(zip(SIDES, moments[when], strict=True)) | {"length": time.length}
        row |= host_time.divide_host_time(unit, main, time, others=True)
        labelled = (one, pl.lit(when).alias("when"))
        yield "uses", pl.DataFrame([row]).cast(pl.Int64).with_columns(labelled)
        activities = host_time.list_activities(unit, main, time, ranges, others=True)
        activities = host_time.mark_set_up(unit, task, activities)
        yield "activities", activities.with_columns(labelled)
    for thread, time in outside.items():
        yield "places", measure_places(unit, thread, time - busy).with_columns(one)
        if thread != main:
            yield "ranges", host_time.sum_ranges(unit, thread, time)[0].with_columns(one)


def _measure_device(unit: DeviceGroup, device: int, window: Spans, inner: Spans) -> pl.DataFrame:
    """Return what a device does in the time that counts. inner: of it, between the first and the last
    work of GPUs.
    """
    row = {"device": device, "length": window.length, "inner": inner.length}
    row["busy"] = unit.merge_device_work(device, COMPUTE, GRAPH, MEMORY).overlap(window)
    compute = unit.merge_device_work(device, COMPUTE, GRAPH)
    row["compute"] = compute.overlap(window)
    working = unit.merge_device_work(device, COMPUTE, GRAPH, *COMMUNICATING)
    row["working"] = working.overlap(window)
    alone = window & (working - compute)
    row["communication_begin"], row["communication_end"] = alone.find_longest()
    del compute
    active = unit.find_active_spans(device)
    row["active"] = active.overlap(window)
    row["copies_begin"], row["copies_end"] = (window & (active - working)).find_longest()
    row["idle_begin"], row["idle_end"] = (inner - active).find_longest()
    row |= {"task": unit.find_main_task(device), "copies": row["active"] - row["working"]}
    return pl.DataFrame([row])


def _sum_kernels(unit: DeviceGroup, time: Spans) -> pl.DataFrame:
    """Return how long kernels that do not communicate run in some time (ns) by `name` and `launch`, and
    `begin` and `end` of the longest.
    """
    fields, parts = ("kernel", "class", "launch"), []
    for _, kernels in unit.reader.read_windows("cuda_kernel", fields, unit.number, np.int32):
        kernels = kernels.filter(pl.col("class") != COMMUNICATION)
        lasts = unit.measure_within(time, kernels)
        sums = kernels.select("begin", "end", "launch", name="kernel", time=lasts, longest=lasts)
        parts.append(host_time.sum_times(sums, "name", "launch"))
    sums = host_time.sum_times(pl.concat(parts), "name", "launch")
    return sums.drop("longest").cast(pl.Int64)


def _sum_copies(unit: DeviceGroup, time: Spans) -> pl.DataFrame:
    """Return count, bytes and time (ns) of operations of memory by `operation`, `source`,
    `destination`.
    """
    keys = ("operation", "source", "destination")
    copies = unit.read_begins("memory_operation", (*keys, "bytes"))
    copies = copies.with_columns(time=unit.measure_within(time, copies)).filter(pl.col("time") > 0)
    sums = copies.group_by(keys).agg(pl.len().alias("count"), pl.col("bytes", "time").sum())
    return sums.cast(pl.Int64)


def _find_edges(unit: DeviceGroup, window: Spans) -> tuple[Spans, Spans]:
    """Return the covered time before the first work of GPUs, and after the last; before the steady state
    and after it, where there is one (window).
    """
    if (first := unit.first_work) is None:
        return EMPTY, EMPTY
    last = int(unit.work["end"].max())
    if unit.options.steady and len(window):
        first, last = max(first, int(window.begin[0])), min(last, int(window.end[-1]))
    return unit.covered.clip(0, first), unit.covered.clip(last, unit.duration)


def conclude(frames: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    """Add the findings, the most costly first, answers to what-ifs, and the phases of the job."""
    _replay_job(frames, context, result)
    if steady := context.options.steady:
        result.add("phases", find_phases(context.options.length, context.options.covered, steady))
    result.add("places", list_places(frames, context))


def _replay_job(frames: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    steady = context.options.steady
    devices = frames["devices"]
    if failed := time_use.describe_failures(frames["failed"], context):
        result.notes.append(failed)
    covered = context.options.covered_steady
    job = JobRanks.from_job(context, devices)
    if not context.reader.layouts & {*WORK, *MPI_LAYOUTS}:
        absence = context.explain_absence(tuple(WORK))
        # Nothing of the program itself.
        if context.reader.layouts <= {"diagnostic", "profiler_overhead"}:
            result.missing.append(f"{ADVICE['nothing']}. {capitalize(absence)}")
        elif finding := time_use.describe_hosts(
            frames, context, job, TEXTS["reasons"]["failed"] if failed else absence
        ):
            advice = ADVICE["failed"] if failed else finding.advice
            result.findings.append(structs.replace(finding, advice=advice))
        else:
            result.missing.append(f"{NO_VERDICT} without work on GPUs or calls of MPI: {absence}")
        return
    graph = context.get_graph()
    if summary := time_use.describe_devices(frames, context):
        # The first note is printed above the findings.
        others = describe_other_work(frames, context)
        told = (*result.notes, summary, others, context.options.cut)
        result.notes[:] = [" ".join(filter(None, told))]
    if devices.height and devices["device"].is_in(context.options.lossy_devices).all():
        result.missing.append(f"{NO_VERDICT}: {context.explain_loss()}")
        return
    times = ("before", "after") if devices.height else ()
    edges = [edge for when in times if (edge := time_use.describe_edge(when, frames, context, job))]
    replay = Replay(graph, *_choose_span(graph, frames, context))
    replay = structs.replace(replay, kept=host_time.find_overhead(replay, frames["overhead"]))
    names = _list_names(frames, context)
    if asked := parse_what_ifs(context.options.what_ifs):
        answers = replay_what_ifs(asked, replay, names)
        span = "the work of GPUs" if devices.height else f"the time from {MPI_TIME}"
        result.add("what_if", answers, span="the steady state" if steady else span)
    facts = CauseContext(context, job, replay, frames)
    unexplained = replay.measure_unexplained()
    outside = replay.measure_outside()
    of_all = outside * replay.span / covered.length
    if summary and of_all >= LEAST_OUTSIDE:
        result.notes[-1] += (
            f" For {of_all:.0%} of the time the job waits for what comes from "
            "outside of it, such as requests: long pauses of several ranks that end together."
        )
    reason, findings = "", _list_causes(facts, names)
    if unexplained > MOST_UNEXPLAINED:
        findings = [one for one in findings if one.share > unexplained]
        reason = f"no gain is stated: {_describe_unexplained(unexplained)}" if not findings else ""
    told = sum(one.share for one in findings)
    if loss := time_use.describe_loss(frames, context, facts, reason, outside, told):
        findings.insert(0, loss)
    result.notes.extend(_describe_trust(context, unexplained))
    limits = (
        time_use.describe_small_grids(frames, context),
        time_use.describe_migrations(frames),
        time_use.describe_untraced_mpi(frames["mpi_samples"], context, job),
    )
    findings = join_findings([findings, [*filter(None, limits)]])
    if not findings:
        result.missing.append(_describe_nothing(frames, bool(edges)))
    edges.sort(key=lambda one: -one.share)
    result.findings.extend((*_order_limits(findings)[: MOST_FINDINGS - len(edges)], *edges))


def _order_limits(findings: list[Finding]) -> list[Finding]:
    """Return findings, first limits that are much larger than all causes, unless these are some rank's."""
    causes = [one for one in findings if not one.is_limit]
    most = max((one.share for one in causes or findings[:1]), default=1.0)
    if any(one.ranks for one in causes):
        return findings

    def comes_first(one: Finding) -> bool:
        return one.is_limit and one.share > time_use.LEAST_BESIDE_CAUSES * most

    return sorted(findings, key=comes_first, reverse=True)


def _choose_span(
    graph: JobGraph, frames: Mapping[str, pl.DataFrame], context: Context
) -> tuple[int, int]:
    """Return the begin and end of what is replayed: of the steady state, else of the GPUs' work, because
    what is before and after it is told of by itself, or of what lies between MPI_Init and
    MPI_Finalize.
    """
    # Of several captures the longest: what is between them is not known.
    begin, end = context.options.covered_steady.find_longest()
    if context.options.steady:
        return _skip_unmatched(graph, begin, end), end
    if not frames["devices"].height:
        first, last = frames["mpi"]["begin"].max(), frames["mpi"]["end"].max()
        return max(begin, int(first)), min(end, int(last))
    time, edges = graph.graph.time, graph.graph.edges
    work = np.concatenate([*graph.graph.select(GPU_WORK, begin, end).values()])
    first, last = (
        time[edges.source[work]].min(initial=end), time[edges.target[work]].max(initial=begin)
    )  # fmt: skip
    begin = max(begin, int(first))
    return begin, min(end, max(begin, int(last)) + MARGIN)


def _list_causes(facts: CauseContext, names: Names) -> list[Finding]:
    """Return the findings of causes, the most costly first, limits last."""
    replay, devices, steady = facts.replay, facts.frames["devices"], facts.context.options.steady
    whole = facts.context.options.covered_steady.length
    found = find_causes(replay, names.facts)
    replay.free_memory()
    # Of a job without a steady state shares are of all its time, not of what is replayed alone.
    replayed, length = (1.0, whole) if steady else (replay.span / whole, replay.span)
    # Where the replay runs more at a time than the GPU did, hosts gain no more than it was idle.
    idle = 1 - devices["busy"].min() / max(length, 1) if devices.height else 1.0
    findings, with_others = [], is_shared(facts.frames)
    for cause in found:
        one = _write_finding(cause, facts, names)
        if with_others and one.kind in OF_HOSTS:
            one = structs.replace(one, at_most=True)
        share = replayed * (min(one.share, idle) if one.kind in OF_HOSTS else one.share)
        if share >= LEAST_OF_JOB and facts.is_backed(cause, one.difference_ns):
            findings.append(structs.replace(one, share=share))
    return sorted(findings, key=lambda one: (one.is_limit, -one.share))


def _write_finding(cause: Cause, facts: CauseContext, names: Names) -> Finding:
    """Return the finding of a cause: who or what it is, what was measured, when, and what helps."""
    if cause.suspect:
        finding, where = describe_culprit(cause, facts, cause.suspect), ""
    else:
        finding = describe_job_cause(cause, facts)
        where = facts.find_function(cause.changes[0][0])
    views = tuple(view for view in finding.views if _shows_something(view, facts))[:MOST_VIEWS]
    what_if = describe_cause(cause, facts.replay, names)
    return structs.replace(finding, views=views, where=where, what_if=what_if)


def _shows_something(view: str, facts: CauseContext) -> bool:
    needs = (layouts for part, layouts in VIEW_NEEDS.items() if part in view)
    return bool(facts.context.reader.layouts & {*next(needs, (*WORK, "cuda_api"))})


def _skip_unmatched(graph: JobGraph, begin: int, end: int) -> int:
    """Return when the last NCCL kernel ends that meets no other, where such are only near the begin:
    they were launched before the capture.
    """
    edges = graph.graph.edges
    unmatched = graph.graph.select((Kind.NCCL,), begin, end)[Kind.NCCL]
    unmatched = unmatched[edges.key[unmatched] == 0]
    last = int(graph.graph.time[edges.target[unmatched]].max(initial=begin))
    return last if last < begin + MOST_SKIPPED * (end - begin) else begin


def _list_names(frames: Mapping[str, pl.DataFrame], context: Context) -> Names:
    """Return what words of what-ifs stand for, and what is known of kernels and memory."""
    ranks: dict[int, tuple[int, ...]] = {}
    for rank, task in context.tasks.select("rank", "task").drop_nulls().rows():
        ranks[rank] = (*ranks.get(rank, ()), task - 1)
    labels = (context.labels[name] for name in ("kernels", "graphs") if name in context.labels)
    kernels = {
        value: label for one in labels for value, label in one.select("value", "label").rows()
    }
    kinds = map_labels("memory_kind")
    rows = frames["products"].rows() if frames["products"].height else []
    no_product, is_steady = host_time.NAMES["no_product"], context.options.steady is not None
    found = ((one, task - 1) for one, _, task in rows if one in kernels)
    pairs = {pair for pair in found if not re.search(no_product, kernels[pair[0]])}
    facts = KernelFacts(pairs, kinds["pageable"], kinds["pinned"], is_steady)
    return Names(ranks, kernels, facts)


def _describe_trust(context: Context, unexplained: float) -> Iterator[str]:
    if unmatched := context.options.unmatched:
        yield (
            f"which rank is late may not be told: NCCL kernels of {list_some(unmatched)} have no payloads, and "
            "could not be matched with those of the other ranks"
        )
    if lost := context.explain_loss():
        yield f"gains may be too small: {lost}"
    if unexplained >= 0.0005:
        yield _describe_unexplained(unexplained)


def _describe_unexplained(share: float) -> str:
    return f"{share:.1%} of the critical path waits for something that the reports do not show"


def _describe_nothing(frames: Mapping[str, pl.DataFrame], is_beside: bool) -> str:
    """Return what is said where no cause gains enough. is_beside: beside what happens once."""
    text, devices = "nothing found that would gain 2 %", frames["devices"]
    text += " beside start-up and shut-down" if is_beside else ""
    if devices.height and devices["compute"].sum() > MOSTLY * devices["length"].sum():
        text += " but faster kernels: Nsight Compute (ncu) says what holds these back"
        edges = 1 - devices["inner"].sum() / devices["length"].sum()
        if edges >= LEAST_GAIN:
            text += f"; GPUs have not begun or have ended for {edges:.1%}"
    elif is_beside:
        return text
    elif described := host_time.describe_parts(host_time.sum_parts(frames["hosts"])):
        text += f"; outside of calls of CUDA and MPI, hosts are {described}"
    return text
