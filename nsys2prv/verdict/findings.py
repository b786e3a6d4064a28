"""Find the causes of lost time in a job, with the savings without each.

Savings come from a replay of the job (:mod:`nsys2prv.replay`): the share of a finding is how much
shorter the steady state, or the whole job without iterations, would be without its cause.
Statements about hosts are based on their reports (host_time.py). Time that the replay does not
explain is stated.

A cause becomes a claim, which consists of facts. Only `check_claim` decides whether the facts
support it. Then it is put into words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import polars as pl
from msgspec import structs

from nsys2prv._util.text import capitalize, list_some
from nsys2prv.events.catalogue import map_labels
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.figures import host_time
from nsys2prv.figures.device_group import WORK, Frames
from nsys2prv.figures.efficiency_times import MPI_TIME
from nsys2prv.figures.iteration_times import find_phases
from nsys2prv.figures.kernels import describe_other_work, is_shared
from nsys2prv.figures.products import find_slow_products
from nsys2prv.figures.result import (
    AT_COLLECTIVES,
    MOST_FINDINGS,
    Context,
    Finding,
    Gain,
    Result,
    comes_first,
    group_findings,
)
from nsys2prv.figures.stacks import list_places
from nsys2prv.match.groups import find_divisions, find_pipeline, name_groups
from nsys2prv.match.handoffs import describe_limits
from nsys2prv.replay.causes import Cause, find_causes
from nsys2prv.replay.graph import Kind
from nsys2prv.replay.job_graph import JobGraph
from nsys2prv.replay.questions import Names, describe_cause, parse_what_ifs, replay_what_ifs
from nsys2prv.replay.thresholds import COPY_SPEEDS, LEAST_GAIN, MOST_UNEXPLAINED
from nsys2prv.replay.whatif import KernelFacts, Replay
from nsys2prv.table.event_reader import HELPER
from nsys2prv.verdict import path_parts, time_use
from nsys2prv.verdict.cause_context import CauseContext
from nsys2prv.verdict.cpu_waits import CpuShortage, describe_cpu, find_shortage, skip_cpu_waits
from nsys2prv.verdict.culprits import describe_culprit
from nsys2prv.verdict.gpu_use import describe_unused
from nsys2prv.verdict.host_use import JobFacts
from nsys2prv.verdict.job_causes import describe_job_cause
from nsys2prv.verdict.thresholds import (
    LEAST_LOSS,
    LEAST_OF_JOB,
    LEAST_OUTSIDE,
    LEAST_TOLD,
    MARGIN,
    MOST_SKIPPED,
    MOSTLY,
)
from nsys2prv.verdict.words import ADVICE, TEXTS, Claim, say

#: Maximum number of views of a finding, and the layouts one of which a view must show, by a part of its name;
#: other views must show something of CUDA.
MOST_VIEWS = 2
VIEW_NEEDS = {"nccl": ("nccl_kernel",), "mpi": MPI_LAYOUTS, "nvtx": ("nvtx_pushpop",)}
#: Kinds of findings about host activity while GPUs wait for hosts.
OF_HOSTS = ("blocked_by_call", "host_work", "host_bound")
GPU_WORK = (Kind.KERNEL, Kind.COPY, Kind.NCCL)
NO_VERDICT = "bottlenecks cannot be determined"


def conclude(frames: Frames, context: Context, result: Result) -> None:
    """Add the findings by group, the results of what-ifs, and the phases of the job to the result."""
    _replay_job(frames, context, result)
    if steady := context.options.steady:
        result.add("phases", find_phases(context.options.length, context.options.covered, steady))
    result.add("places", list_places(frames, context))


def _replay_job(frames: Frames, context: Context, result: Result) -> None:
    facts = JobFacts(frames, context)
    devices, options = facts.devices, facts.options
    if failed := time_use.describe_failures(facts):
        result.notes.append(failed)
    if not context.reader.layouts & {*WORK, *MPI_LAYOUTS}:
        result.add("path", path_parts.list_host_path(facts))
        _judge_hosts(facts, result, bool(failed))
        return
    graph = context.get_graph()
    if summary := time_use.describe_devices(facts):
        # The first note is printed above the findings.
        others = describe_other_work(frames, context)
        told = (*result.notes, summary, others, options.cut)
        result.notes[:] = [" ".join(filter(None, told))]
    if devices.height and devices["device"].is_in(options.lossy_devices).all():
        result.missing.append(f"{NO_VERDICT}: {context.explain_loss()}")
        return
    times = ("before", "after") if devices.height else ()
    edges = [edge for when in times if (edge := time_use.describe_edge(facts, when))]
    names = _list_names(context, graph.helpers)
    replay = Replay(graph, *_choose_span(graph, facts), known=_list_known(facts, names))
    begins = options.steady.iteration_begins if options.steady else ()
    span = replay.begin, replay.end
    pipeline = find_pipeline(context.reader, *span, begins)
    replay = replay.add_facts(
        kept=host_time.find_overhead(replay, frames["overhead"]),
        pipeline=pipeline,
        groups=name_groups(find_divisions(context.reader, pipeline, *span), pipeline),
    )
    if shortage := find_shortage(frames, dict(context.tasks.select("task", "node").rows())):
        replay = replay.add_facts(cpu_waits=skip_cpu_waits(replay, shortage.waits))
    if asked := parse_what_ifs(options.what_ifs):
        answers = replay_what_ifs(asked, replay, names)
        span = "the GPU work" if devices.height else f"the time from {MPI_TIME}"
        result.add("what_if", answers, span="the steady state" if facts.is_steady else span)
    facts = CauseContext(frames, context, replay)
    if options.divided:
        result.add("path", path_parts.list_path(facts))
        result.add("work", path_parts.list_work(facts))
    replayed = replay.span / options.covered_steady.length
    outside = replay.measure_outside()
    if summary and outside * replayed >= LEAST_OUTSIDE:
        result.notes[-1] += (
            f" For {outside * replayed:.0%} of the time the job waits for input from outside, such as "
            "requests (long pauses of several ranks that end together)."
        )
    # As all shares, of the steady state or the job.
    unexplained = replayed * replay.measure_unexplained()
    time = "the steady state" if facts.is_steady else "the job"
    trust = (
        f"For {unexplained:.1%} of {time}, the reports do not show what the critical path waits for"
    )
    if summary and unexplained > MOST_UNEXPLAINED:
        result.notes[-1] += f" {trust}."
    findings = _list_causes(facts, names, shortage)
    told = sum(one.share for one in findings)
    reason = trust if unexplained > MOST_UNEXPLAINED else ""
    if loss := time_use.describe_loss(facts, reason, outside, told):
        findings.insert(0, loss)
    if unmatched := options.unmatched:
        result.notes.append(
            f"late ranks may be missed: NCCL kernels on {list_some(unmatched)} have no payloads and could not be "
            "matched with other ranks"
        )
    if lost := context.explain_loss():
        result.notes.append(f"savings may be underestimated: {lost}")
    if MOST_UNEXPLAINED >= unexplained >= LEAST_TOLD:
        result.notes.append(trust)
    result.notes.extend(describe_limits(context.reader))
    limits = (
        describe_unused(facts),
        time_use.describe_migrations(facts),
        time_use.describe_untraced_mpi(facts),
    )
    findings += filter(None, limits)
    if not findings:
        result.missing.append(_describe_nothing(facts, bool(edges)))
    result.findings.extend(_order_groups(findings + edges, facts.options.repeats))


def _judge_hosts(facts: JobFacts, result: Result, has_failed: bool) -> None:
    """Add a finding about the host activity of a job without GPU work or MPI calls. has_failed:
    CUDA calls failed.
    """
    absence = facts.context.explain_absence(tuple(WORK))
    # Nothing of the program itself.
    if facts.context.reader.layouts <= {"diagnostic", "profiler_overhead"}:
        result.missing.append(f"{ADVICE['nothing']}. {capitalize(absence)}")
        return
    why = "CUDA API calls failed, so the work behind them is missing"
    why = why if has_failed else f"GPU work: {absence}"
    if finding := time_use.describe_hosts(facts, why):
        advice = ADVICE["failed"] if has_failed else finding.advice
        result.findings.append(structs.replace(finding, advice=advice))
    else:
        result.missing.append(f"{NO_VERDICT} without GPU work or MPI calls: {absence}")


def _order_groups(findings: list[Finding], repeats: float | None) -> list[Finding]:
    """Return findings by group, the most expensive first in each: causes, limits, one-time costs.

    Much larger limits come before causes, unless causes are between ranks. One-time costs come
    before both if :func:`comes_first` says so. repeats: share of the job in the steady state, or
    None.
    """
    groups = dict(group_findings(sorted(findings, key=lambda one: (one.group, -one.share))))
    causes, limits, once = (groups.get(one, []) for one in ("causes", "limits", "once"))
    is_between = any(one.kind in AT_COLLECTIVES for one in causes)
    first = [causes, limits] if is_between or not comes_first(limits, causes) else [limits, causes]
    is_long = not is_between and comes_first(once, causes + limits, repeats)
    ordered = [once, *first] if is_long else [*first, once]
    most = MOST_FINDINGS - len(once)
    kept = {id(one) for one in [one for group in first for one in group][:most]}
    return [one for group in ordered for one in group if one.happens_once or id(one) in kept]


def _choose_span(graph: JobGraph, facts: JobFacts) -> tuple[int, int]:
    """Return start and end of the replayed time: the steady state; otherwise the GPU work, because
    the time before and after it is reported separately; or from MPI_Init to MPI_Finalize.
    """
    # The longest of several captures: the time between them is unknown.
    begin, end = facts.options.covered_steady.find_longest()
    if facts.is_steady:
        return _skip_unmatched(graph, begin, end), end
    if not facts.devices.height:
        first, last = facts.frames["mpi"]["begin"].max(), facts.frames["mpi"]["end"].max()
        return max(begin, int(first)), min(end, int(last))
    time, edges = graph.graph.time, graph.graph.edges
    work = np.concatenate([*graph.graph.select(GPU_WORK, begin, end).values()])
    first, last = (
        time[edges.source[work]].min(initial=end), time[edges.target[work]].max(initial=begin)
    )  # fmt: skip
    begin = max(begin, int(first))
    return begin, min(end, max(begin, int(last)) + MARGIN)


def _list_causes(facts: CauseContext, names: Names, shortage: CpuShortage | None) -> list[Finding]:
    """Return the findings about causes, the most expensive first, limits last. shortage: of CPUs."""
    replay, devices, options = facts.replay, facts.devices, facts.options
    found = find_causes(replay)
    replay.free_memory()
    # Without a steady state, shares refer to the whole job, not only to the replayed time.
    whole = options.covered_steady.length
    replayed, length = (1.0, whole) if options.steady else (replay.span / whole, replay.span)
    # If the replay runs more concurrently than the GPU did, host causes save at most its idle time.
    idle = 1 - devices["busy"].min() / max(length, 1) if devices.height else 1.0
    findings, told = [], 0.0
    for cause in found:
        suspect = cause.suspect
        if cause.kind == "cpu" and shortage:
            claim = describe_cpu(cause, facts, shortage)
            # Everything else is evaluated without these waits.
            facts = structs.replace(facts, replay=replay.skip_cpu_waits())
        elif suspect:
            claim = describe_culprit(cause, facts, suspect)
        else:
            claim = describe_job_cause(cause, facts)
        kind, _ = TEXTS["kinds"][claim.key]
        gain, is_host = cause.gain if claim.gain is None else claim.gain, kind in OF_HOSTS
        most = idle - told if cause.is_rest else idle
        share = replayed * (min(gain, most) if is_host else gain)
        if share >= LEAST_OF_JOB and facts.is_backed(gain, claim.states):
            told += is_host * share / max(replayed, 1e-9)
            findings.append(_put_into_words(cause, claim, share, facts, names))
    return sorted(findings, key=lambda one: (one.is_limit, -one.share))


def _put_into_words(
    cause: Cause, claim: Claim, share: float, facts: CauseContext, names: Names
) -> Finding:
    """Return the finding for a checked claim. It promises savings only if its cause can be removed
    completely. For all time of a kind, or for hosts of GPUs that work for other programs, some time
    must remain.
    """
    kind, views = TEXTS["kinds"][claim.key]
    evidence = [*claim.evidence]
    if cause.alone is not None:
        evidence.append(say("alone", share=cause.alone, full=share))
    ranks = facts.job.list_ranks([*claim.tasks])
    stays = kind in OF_HOSTS and is_shared(facts.frames)
    is_limit = claim.is_limit or stays or not cause.is_specific
    make = Finding if is_limit else Gain
    moments = (claim.moment,) if claim.moment else facts.find_moment(*claim.worst, ranks)
    return make(
        claim.kind or kind,
        capitalize(str(claim.title or say(claim.key, waiting=facts.waiting))),
        share,
        ranks,
        facts.job.list_devices([*claim.tasks]),
        tuple(map(str, evidence)),
        facts.advise(claim.advice or claim.key),
        tuple(view for view in views if _shows_something(view, facts))[:MOST_VIEWS],
        moments,
        describe_cause(cause, facts.replay, names),
        "" if cause.suspect else facts.find_function(cause.changes[0][0]),
    )


def _shows_something(view: str, facts: CauseContext) -> bool:
    needs = (layouts for part, layouts in VIEW_NEEDS.items() if part in view)
    return bool(facts.context.reader.layouts & {*next(needs, (*WORK, "cuda_api"))})


def _skip_unmatched(graph: JobGraph, begin: int, end: int) -> int:
    """Return the end of the last NCCL kernel without a match, if such kernels occur only near the
    start: they were launched before the capture.
    """
    edges = graph.graph.edges
    unmatched = graph.graph.select((Kind.NCCL,), begin, end)[Kind.NCCL]
    unmatched = unmatched[edges.key[unmatched] == 0]
    last = int(graph.graph.time[edges.target[unmatched]].max(initial=begin))
    return last if last < begin + MOST_SKIPPED * (end - begin) else begin


def _list_names(context: Context, helpers: Mapping[int, int]) -> Names:
    """Return the meaning of words in what-ifs. helpers: row -> process, for processes without a
    GPU.
    """
    ranks: dict[int, tuple[int, ...]] = {}
    rows = context.reader.rows.threads.filter(pl.col("kind") != HELPER)
    # All ranks of a process whose GPUs are NCCL ranks; of the only process, these ranks.
    is_only = rows["process"].n_unique() == 1 and rows["is_gpu"].any()
    number = "nccl_rank" if is_only else "process_rank"
    for rank, task in rows.select(number, "task").drop_nulls().unique().sort("task").rows():
        ranks[rank] = (*ranks.get(rank, ()), task - 1)
    gpus = {}
    devices = rows.filter(pl.col("stream").is_not_null()).unique("device").sort("device")
    for task, who, node, gpu in devices.select("task", "who", "node", "gpu").drop_nulls().rows():
        is_alone = (devices["gpu"] == gpu).sum() == 1
        names = f"{node} GPU{gpu}", who, f"GPU{gpu}"
        gpus |= {name.lower(): task - 1 for name in names[: 3 if is_alone else 2] if "GPU" in name}
    labels = (context.labels[name] for name in ("kernels", "graphs") if name in context.labels)
    kernels = dict(pair for one in labels for pair in one.select("value", "label").rows())
    others = {process: context.name_thread(row) for process, row in helpers.items()}
    return Names(ranks, gpus, kernels, others)


def _list_known(facts: JobFacts, names: Names) -> KernelFacts:
    """Return facts about kernels and memory for the replay."""
    kernels, no_product = names.kernels, host_time.NAMES["no_product"]
    products = facts.frames["products"]
    found = [
        (one, task - 1)
        for one, _, task in (products.rows() if products.height else ())
        if one in kernels and not re.search(no_product, kernels[one])
    ]
    kinds = map_labels("memory_kind")
    values, processes = {one for one, _ in found}, {process for _, process in found}
    models = {model for _, own in facts.options.gpus for model in own}
    slowest = min((_find_generation(model) for model in models), default=0)
    return KernelFacts(
        (values, processes),
        _list_slow_products(facts),
        kinds["pageable"],
        kinds["pinned"],
        COPY_SPEEDS[slowest],
        facts.is_steady,
        facts.options.steady.count if facts.options.steady else 0,
    )


def _list_slow_products(facts: JobFacts) -> list[tuple[int, int, float]]:
    """Return the kernels of products far below the rate that their shapes allow, in the form of
    KernelFacts.
    """
    shapes = facts.frames["shapes"]
    if not shapes.height:
        return []
    slow = find_slow_products(shapes, facts.context)
    saved = (pl.col("time_ns") - pl.col("target_ns")).sum()
    sums = slow.group_by("name", "task").agg(saved=saved, whole=pl.col("name_ns").first())
    share = (1 - pl.col("saved") / pl.col("whole")).clip(0, 1)
    return sums.select("name", pl.col("task") - 1, share).sort("name", "task").rows()


def _find_generation(model: str) -> int:
    """Return the PCI Express generation of a GPU, as an index into COPY_SPEEDS."""
    found = (
        place
        for place, key in ((2, "pcie_5"), (1, "pcie_4"))
        if re.search(host_time.NAMES[key], model)
    )
    return next(found, 0)


def _describe_nothing(facts: JobFacts, is_beside: bool) -> str:
    """Return the text for a job without sufficient savings. is_beside: one-time costs are listed."""
    devices, hosts, edges = facts.devices, "", 0.0
    compute, inner, length = (
        devices[one].sum() if devices.height else 0 for one in ("compute", "inner", "length")
    )
    is_busy = compute > max(MOSTLY * inner, LEAST_LOSS * length)
    if is_busy:
        edges = 1 - inner / length
    elif not is_beside:
        hosts = host_time.describe_parts(host_time.sum_parts(facts.frames["hosts"]))
    edges = edges if edges >= LEAST_GAIN and not is_beside else 0.0
    return str(say("nothing", once=is_beside, busy=is_busy, edges=edges, hosts=hosts))
