"""Describe time that no what-if explains: before the first and after the last GPU work, and while
GPUs are idle or only copy; in jobs without recorded GPU work, all host time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from nsys2prv._util.text import capitalize, format_count, format_size, list_some, shorten_name
from nsys2prv.events.catalogue import map_labels
from nsys2prv.events.cuda import MEMSET
from nsys2prv.events.stacks import strip_arguments
from nsys2prv.figures.device_group import list_labels
from nsys2prv.figures.efficiency_times import MPI_TIME
from nsys2prv.figures.host_time import NAMES, PARTS
from nsys2prv.figures.kernels import is_shared, select_other_work
from nsys2prv.figures.result import Finding
from nsys2prv.figures.thresholds import MUCH_MORE
from nsys2prv.replay.events import MIGRATIONS
from nsys2prv.replay.graph import Kind
from nsys2prv.replay.suspects import list_slow_processes
from nsys2prv.replay.thresholds import SMALL_COPY
from nsys2prv.table.event_reader import EventReader
from nsys2prv.verdict.cause_context import CauseContext
from nsys2prv.verdict.host_use import NO_CAUSE, OVER, JobFacts
from nsys2prv.verdict.thresholds import (
    FEW,
    FEWEST_RANKS,
    HARDLY,
    LATE,
    LEAST_EDGE,
    LEAST_IN_MPI,
    LEAST_LOSS,
    LEAST_PROFILER,
    MOST,
)
from nsys2prv.verdict.words import ADVICE, TEXTS, Said, choose_advice, say

#: Graphics on GPUs, which is not counted as their work.
GRAPHICS = {"opengl_gpu", "vulkan_gpu", "dx11_gpu", "dx12_gpu"}
#: CUDA errors that are not failures: not ready, and errors at the end of a process.
NO_FAILURES = (600, 4, 201, 709)
#: What memory operations of GPUs are -> what GPUs do then, and what that is called where nothing else runs.
COPYING = {
    "copies": ("copy", "exposed copies"),
    "fills": ("fill memory", "exposed fills"),
    "both": ("copy or fill memory", "exposed memory operations"),
}


def describe_edge(facts: JobFacts, when: str) -> Finding | None:
    """Return a finding about a long time before the first GPU work or after the last (`when`:
    before, after), or None. With a steady state, it includes exposed copies in that time.
    """
    # If work is lost its begin and end are unknown.
    use = None if facts.options.lossy_devices else facts.find_use(when)
    if use is None:
        return None
    covered = max(facts.options.covered.length, 1)
    copies = float(facts.devices[f"copies_{when}"].mean() or 0.0)
    own = use.length - sum(use.parts[part] for part in NO_CAUSE)
    share = (own + copies) / covered
    if share < LEAST_EDGE:
        return None
    is_copied = copies > own
    most = "" if is_copied else use.describe_most(NO_CAUSE)
    advice = use.advice
    if is_copied:
        advice = ADVICE["edge_copies"]
        advice += f". {ADVICE['capture']}" if when == "before" else ""
    steady, whole = facts.options.steady, 0
    if steady:
        ends = (0, steady.begin) if when == "before" else (steady.end, facts.context.duration)
        whole = facts.options.covered.clip(*ends).length
    # The share excludes these; the title says so if they matter.
    uncounted = {part: use.parts[part] for part in NO_CAUSE}
    told = {part: time for part, time in uncounted.items() if time >= LEAST_PROFILER * covered}
    title = say(
        when,
        length=use.length + copies,
        whole=whole,
        copies=copies if copies >= LEAST_PROFILER * covered else None,
        idle=facts.is_steady and not copies,
        copied=facts.is_steady and copies > 0,
        work=not facts.is_steady,
        uncounted=say("not counted", **dict.fromkeys(NO_CAUSE) | told) if told else None,
        most="" if told else most,
        other=most if told else "",
    )
    return make_finding(
        "startup" if when == "before" else "shutdown",
        title,
        share,
        use.list_evidence(),
        advice=advice,
        views=("views/cuda_activities.cfg",),
        moments=((*use.moment, ()),),
        where=use.where,
    )


def make_finding(
    kind: str, title: Said, share: float, evidence: Sequence[Said | str], **more: Any
) -> Finding:
    """Make a finding from sentences. Its share is the duration of its subject, not savings."""
    lines = tuple(map(str, evidence))
    return Finding(kind, capitalize(str(title)), share, evidence=lines, **more)


def describe_hosts(facts: JobFacts, why: str) -> Finding | None:
    """Return a finding about what the hosts do in a job without GPU work or MPI calls; None if
    unknown. why: reason why there is no such work.
    """
    use = facts.find_use("all")
    if use is None:
        return None
    part, options, layouts = use.own, facts.options, facts.context.reader.layouts
    away, exits = use.parts["away"], sum(use.parts[one] for one in OVER)
    least = LEAST_EDGE * use.length
    is_known = part != "unknown" or options.lacks_mpi
    title = say(
        "no mpi" if options.lacks_mpi else "no gpu work" if is_known else "nothing known",
        lost=options.lost_work,
        who=use.who or "the host",
        part=PARTS[part],
        time=use.parts[part],
        whole=use.length - away - exits,
        calls=use.name_most(part),
        exits=exits if exits >= least else None,
        away=away if away >= least else None,
    )
    lacks = (
        "no_mpi" if options.lacks_mpi else "lost" if options.lost_work and part == "cuda" else ""
    )
    return make_finding(
        "no_gpu_work",
        title,
        0.0,
        [*use.list_evidence(), options.lost_work or why],
        advice=ADVICE[lacks] if lacks else use.advice,
        views=tuple(view for layout, view in TEXTS["host_views"].items() if layout in layouts),
        moments=((0, facts.context.duration, ()),),
        where=use.where,
    )


def describe_failures(facts: JobFacts) -> str:
    """Return a sentence about failed CUDA API calls that launch, copy, allocate or wait, or ""."""
    failed = facts.frames["failed"]
    if not failed.height:
        return ""
    named = facts.context.label_names(failed, "call", "cuda_api")
    works = pl.col("call").str.contains(NAMES["works"])
    named = named.filter(works & ~pl.col("error").is_in(NO_FAILURES))
    sums = named.group_by("call", "error").agg(pl.col("count").sum()).sort("count", "call")
    errors = list_labels("cuda_error")
    lines = [
        f"{call} {format_count(count, 'time')} ({errors.get(error, f'error {error}')})"
        for call, error, count in sums.reverse().rows()
    ]
    return f"CUDA API calls failed: {list_some(lines)}. Fix them first." if lines else ""


def describe_devices(facts: JobFacts) -> str:
    """Return a text about the steady state (or the whole job) and its GPU time; for a job without
    GPUs, about the time that ranks spend in MPI; "" if unknown.
    """
    frames, options, devices = facts.frames, facts.options, facts.devices
    steady = options.steady
    repeats = say("repeats", count=steady.count, share=options.repeats) if steady else ""
    time = "job" if options.covered.length == facts.context.duration else "captured part of the job"
    time = "steady state" if facts.is_steady else time
    if not devices.height:
        time = f"the {time}" if facts.is_steady else f"the time from {MPI_TIME}"
        return f"{repeats}Ranks spend {_measure_mpi(facts):.1%} of {time} in MPI."
    devices = devices.filter(~pl.col("device").is_in(list(options.lossy_devices)))
    length = devices["length"].sum()
    if not length:
        return ""
    compute, active, copies = (devices[name].sum() for name in ("compute", "active", "copies"))
    most = _describe_longest_kernel(facts) if frames["kernels"].height else ""
    idle = (
        "idle or in graphics work (the reports do not distinguish these)"
        if facts.context.reader.layouts & GRAPHICS
        else "idle"
    )
    idle = "no work of this job" if select_other_work(frames).height else idle
    shares = (
        (compute, "compute"),
        (active - compute - copies, "exposed communication"),
        (copies, COPYING[_judge_copies(frames["copies"])[0]][1]),
        (length - active, idle),
    )
    parts: list[str] = []
    for lasts, does in shares:
        share = "more than 99.9%" if lasts >= 0.9995 * length else f"{lasts / length:.1%}"
        if lasts >= 0.0005 * length:
            parts.append(f"{share} {does}")
    profiler = _measure_profiler(facts)
    own = f" Profiler overhead takes {profiler:.0%} of the {time}; the savings do not include it."
    said = f"{repeats}GPU time in the {time}: {', '.join(parts)}.{most}"
    return said + own * (profiler >= LEAST_LOSS)


def _measure_profiler(facts: JobFacts) -> float:
    """Return the profiler's share of the steady state, or of the whole job, on hosts with idle
    GPUs.
    """
    uses, devices = facts.frames["uses"], facts.devices
    if not uses.height:
        return 0.0
    when = ["idle"] if facts.is_steady else ["before", "idle", "after"]
    own = uses.filter(pl.col("when").is_in(when) & pl.col("task").is_in(devices["host"].to_list()))
    of_task = own.group_by("task").agg(pl.col("profiler").sum())["profiler"]
    return float(of_task.mean() or 0.0) / max(float(devices["length"].mean() or 0.0), 1.0)


def _measure_mpi(facts: JobFacts) -> float:
    """Return the share of time in which the ranks of a job without GPUs are in MPI."""
    uses = facts.frames["uses"].filter((pl.col("when") == "all") & (pl.col("mpi") > 0))
    # As MPI parallel efficiency, of the longest time of a rank.
    outside = (uses["length"] - uses["mpi"]).mean() or 0.0
    return 1 - outside / max(uses["length"].max() or 1, 1)


def _describe_mpi(facts: JobFacts, explained: float) -> Finding | None:
    """Return the finding that ranks spend most of the time in MPI, if causes explain hardly any of
    it. explained: share that causes save.
    """
    in_mpi = {**facts.frames, "uses": facts.frames["uses"].filter(pl.col("mpi") > 0)}
    share, use = _measure_mpi(facts), JobFacts(in_mpi, facts.context).find_use("all")
    if use is None or share < MOST or share <= HARDLY * explained:
        return None
    return make_limit("in_mpi", share, use.list_evidence(), where=use.where)


def _describe_longest_kernel(facts: JobFacts) -> str:
    """Return a sentence about the function with the most kernel time, counting all instances of a
    template together; "" if its name is unknown.
    """
    kernels, labels = (
        facts.frames["kernels"],
        facts.context.labels["kernels"].select(pl.col("value").alias("name"), "label"),
    )
    sums = kernels.group_by("name").agg(pl.col("time").sum()).join(labels, on="name", how="left")
    functions = pl.Series(map(_strip_template, sums["label"].fill_null("")), dtype=pl.String)
    sums = sums.group_by(function=functions).agg(pl.col("time").sum(), count=pl.len())
    function, lasts, count = sums.sort("time", "function").row(-1)
    share = lasts / max(sums["time"].sum(), 1)
    instances = f", {count:,} template instances" if count > 1 else ""
    named = (
        f" Top kernel: {shorten_name(function)} ({share:.0%} of compute kernel time{instances})."
    )
    return named if function else ""


def _strip_template(label: str) -> str:
    """Return the function of a kernel: `fill` for `fill<float#2>` and for `void
    fill<float>(float*)`.
    """
    return strip_arguments(label).partition("<")[0].partition("#")[0] or label


def describe_migrations(facts: JobFacts) -> Finding | None:
    """Return a finding about managed memory that migrates between hosts and GPUs, if this takes
    long; otherwise None.
    """
    moved, devices = facts.frames["copies"], facts.devices
    moved = moved.filter(pl.col("operation").is_in(MIGRATIONS))
    share = moved["time"].sum() / max(devices["length"].sum(), 1) if devices.height else 0.0
    if share < LEAST_LOSS:
        return None
    return make_limit("migrations", share, describe_copies(moved))


def make_limit(
    kind: str,
    share: float,
    evidence: Sequence[Said],
    title: Said | None = None,
    advice: str = "",
    **more: Any,
) -> Finding:
    """Make a finding that states the largest possible savings. kind: of `limits` in findings.yaml.
    advice: key of ADVICE, "" for the advice of the kind.
    """
    usual, view = TEXTS["limits"][kind]
    title, advice = title or say(kind, share=share), ADVICE[advice] if advice else usual
    return make_finding(kind, title, share, evidence, advice=advice, views=(view,), **more)


def _choose_remedy(reader: EventReader) -> str:
    """Return the key of the advice about how NCCL kernels can be matched."""
    kernels = reader.read_begins("nccl_kernel", ("communicator", "graph_node"))
    unnamed = kernels.filter(pl.col("communicator") < 0)
    if 2 * unnamed.height <= kernels.height:
        return "reports"
    replayed = unnamed.filter(pl.col("graph_node") > 0)
    return "captures" if 2 * replayed.height > unnamed.height else "payloads"


def describe_loss(
    facts: CauseContext, reason: str, outside: float, explained: float
) -> Finding | None:
    """Return a finding about the largest loss of GPU time, if causes explain little of it; its
    savings are unknown.

    reason: why they are unknown, "" if no cause saves enough. outside: share of the time in which
    the job waits for requests. explained: share that causes save.
    """
    frames, devices, job, graph = facts.frames, facts.devices, facts.job, facts.graph
    if not devices.height:
        return _describe_mpi(facts, explained)
    if facts.options.lossy_devices:
        return None
    length = max(int(devices["inner"].sum()), 1)
    compute, active, copies = (devices[one].sum() for one in ("compute", "active", "copies"))
    losses = {
        "idle": max(length * (1 - outside) - active, 0.0),
        "copies": copies,
        "communication": active - compute - copies,
    }
    if is_shared(frames):
        del losses["idle"]
    name, lost = max(losses.items(), key=lambda one: one[1])
    share = lost / max(devices["length"].sum(), 1)
    uses, profiler = frames["uses"], 0.0
    if name == "idle" and uses.height:
        uses = uses.filter(pl.col("when") == "idle")
        profiler = uses["profiler"].sum() / max(uses["length"].sum(), 1)
        share *= 1 - profiler
    transfers = facts.replay.select((Kind.NCCL,))
    unmatched = transfers[graph.edges.key[transfers] == 0]
    is_unmatched = len(facts.replay.processes) > 1 and (
        2 * graph.weight[unmatched].sum() > losses["communication"]
    )
    is_clear = name == "communication" and not is_unmatched
    if share < LEAST_LOSS or share <= MUCH_MORE * explained or (is_clear and explained):
        return None
    tasks: list[int] = []
    does, most, where, evidence = "", "", "", list[Said | str]()
    if name == "idle":
        advice, use = ADVICE["ahead"], facts.find_use("idle")
        # The host of the GPUs that idle longest may be unknown.
        if use is not None and 2 * use.length >= lost / devices.height:
            most, evidence, where = use.describe_most(), [*use.list_evidence()], use.where
            advice, calls = use.advice, use.list_calls("cuda")
            if use.largest == "cuda" and not any(one.is_single for one in calls):
                call = calls[0].name if calls else ""
                key = "unexplained" if reason else choose_advice("calls", call=call) or "ahead"
                advice = facts.advise(key)
    elif name == "copies":
        sort, advice = _judge_copies(frames["copies"])
        does = COPYING[sort][0]
        evidence = [*describe_copies(frames["copies"])]
    else:
        does = "communicate"
        advice = ADVICE[_choose_remedy(facts.context.reader) if is_unmatched else "alone"]
        if is_unmatched:
            reason = str(say("unmatched", count=len(unmatched), of=len(transfers)))
            for one in list_slow_processes(facts.replay, "gpu"):
                own = [process + 1 for process in one.processes]
                tasks += own
                evidence.append(say("slow", who=job.describe_ranks(own), more=one.ratio - 1))
    is_told = profiler * lost >= LEAST_PROFILER * devices["length"].sum()
    title = say(
        "loss idle" if name == "idle" else "loss",
        does=does,
        profiler=profiler * lost / devices.height if is_told else None,
        outside=outside,
        mean=lost / devices.height,
        each=devices.height > 1,
        steady=facts.is_steady,
        between=not facts.is_steady,
        most=most,
    )
    longest = devices.sort(pl.col(f"{name}_end") - pl.col(f"{name}_begin")).row(-1, named=True)
    ranks = job.list_ranks([longest["task"]])
    return make_finding(
        "idle",
        title,
        share,
        [*evidence, *filter(None, [reason])],
        ranks=job.list_ranks(tasks),
        devices=job.list_devices(tasks),
        where=where,
        advice=advice,
        views=tuple(TEXTS["kinds"]["pageable" if name == "copies" else "host_time"][1]),
        moments=((longest[f"{name}_begin"], longest[f"{name}_end"], ranks),),
    )


def _judge_copies(copies: pl.DataFrame) -> tuple[str, str]:
    """Return the kinds of the GPUs' memory operations (of COPYING), and advice for the longest
    ones.
    """
    advice = ADVICE["copies_alone"]
    if not copies.height:
        return "copies", advice
    most = sum_copies(copies).row(0, named=True)
    size = most["bytes"] / most["count"]
    fills = copies.filter(operation=MEMSET)["time"].sum() / max(copies["time"].sum(), 1)
    sort = "copies" if fills < FEW else "fills" if fills > 1 - FEW else "both"
    if most["operation"] == MEMSET:
        advice = ADVICE["fills"]
    elif size < SMALL_COPY:
        advice = ADVICE["small_copies"].format(size=format_size(size))
    elif map_labels("memory_kind")["pageable"] in (most["source"], most["destination"]):
        advice = f"{ADVICE['pageable']}. Or: {advice}"
    return sort, advice


def sum_copies(copies: pl.DataFrame) -> pl.DataFrame:
    """Sum copies by direction and kinds of memory: a row for each with `count`, `bytes` and `time`
    (ns), the longest first. copies: operation, source, destination, count, bytes, time (ns).
    """
    keys = ("operation", "source", "destination")
    sums = copies.group_by(keys).agg(pl.col("count", "bytes", "time").sum())
    return sums.sort("time", descending=True).select(*keys, "count", "bytes", "time")


def describe_copies(copies: pl.DataFrame) -> list[Said]:
    """Return sentences about the copies with the most time, by direction and kind of memory.
    copies: as for :func:`sum_copies`.
    """
    operations, labels = list_labels("memory_operation"), list_labels("memory_kind")
    known = set(labels) - {map_labels("memory_kind")["unknown"]}
    kinds = {kind: labels[kind].lower() for kind in known}
    return [
        say(
            "copied",
            operation=operations.get(operation, "copies").removeprefix("CUDA "),
            count=count,
            source=kinds.get(source),
            filled=kinds.get(destination) if operation == MEMSET else None,
            destination=kinds.get(destination) if operation != MEMSET else None,
            memory=kinds.get(source) or kinds.get(destination),
            bytes=moved,
            time=time,
            speed=moved / max(time, 1),
        )
        for operation, source, destination, count, moved, time in sum_copies(copies).head(2).rows()
    ]


def describe_untraced_mpi(facts: JobFacts) -> Finding | None:
    """Return a finding that main threads spend time in MPI, which was not traced; None if they
    hardly do.
    """
    samples = facts.frames["mpi_samples"]
    in_mpi = samples.drop_nulls("call") if samples.height else samples
    if not in_mpi.height:
        return None
    of_task = _list_shares(samples, pl.col("call").is_not_null())
    share = float(of_task["share"].mean() or 0)
    if share < LEAST_IN_MPI:
        return None
    sums = in_mpi.group_by("call").agg(pl.col("count").sum())
    most = sums.sort("count", "call")["call"][-1]
    of_call = _list_shares(samples, pl.col("call") == most)
    evidence = [say("mostly", call=most, shares=_format_range(of_call["share"]))]
    few = of_call.filter(pl.col("share") < LATE * pl.col("share").median())
    if of_call.height >= FEWEST_RANKS and 0 < few.height <= of_call.height // 2:
        evidence.append(say("least on", who=facts.job.describe_ranks(few["task"].to_list())))
    shares = _format_range(of_task["share"])
    return make_finding(
        "untraced_mpi",
        say("untraced_mpi", shares=shares, steady=facts.is_steady),
        share,
        evidence,
        advice=ADVICE["untraced_mpi"],
        views=("analysis/cpu_samples_2dh.cfg",),
    )


def _list_shares(samples: pl.DataFrame, which: pl.Expr) -> pl.DataFrame:
    """Return the share of each task's samples that meet a condition: task, share."""
    selected = pl.col("count").filter(which).sum() / pl.col("count").sum()
    return samples.group_by("task").agg(share=selected).sort("share", "task")


def _format_range(shares: pl.Series) -> str:
    least, most = float(shares.min() or 0), float(shares.max() or 0)
    return f"{most:.0%}" if round(least, 2) == round(most, 2) else f"{least:.0%}-{most:.0%}"
