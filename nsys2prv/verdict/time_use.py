"""Say what no what-if explains: the time before the first and after the last work of GPUs, and while
GPUs are idle or only copy, and in jobs without recorded work of GPUs all the time of their hosts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from nsys2prv._util.text import capitalize, format_count, format_size, list_some, shorten_name
from nsys2prv.events.catalogue import map_labels
from nsys2prv.events.cuda import MEMSET
from nsys2prv.events.stacks import strip_arguments
from nsys2prv.figures.device_group import list_labels
from nsys2prv.figures.efficiency_times import MPI_TIME
from nsys2prv.figures.host_time import NAMES, PARTS, describe_unrecorded
from nsys2prv.figures.kernels import is_shared, select_other_work
from nsys2prv.figures.result import Context, Finding, JobRanks
from nsys2prv.figures.stacks import find_place
from nsys2prv.replay.events import MIGRATIONS
from nsys2prv.replay.graph import Kind
from nsys2prv.replay.suspects import list_slow_processes
from nsys2prv.replay.thresholds import SMALL_COPY
from nsys2prv.verdict.cause_context import CauseContext
from nsys2prv.verdict.host_use import NO_CAUSE, OVER, HostUse, NamedTime
from nsys2prv.verdict.thresholds import (
    ALONE,
    EXPLAINS,
    FEW,
    FEW_BLOCKS,
    FEWEST_RANKS,
    HARDLY,
    LATE,
    LEAST_BESIDE_CAUSES,
    LEAST_EDGE,
    LEAST_IN_MPI,
    LEAST_LOSS,
    LEAST_PROFILER,
    MOST,
)
from nsys2prv.verdict.words import ADVICE, TEXTS, Said, choose_advice, say

GRID = r"grid (?P<x>\d+)x(?P<y>\d+)x(?P<z>\d+)"
#: Graphics on GPUs, which is not counted as their work.
GRAPHICS = {"opengl_gpu", "vulkan_gpu", "dx11_gpu", "dx12_gpu"}
#: Errors of CUDA that are no failure: not ready, and those at the end of a process.
NO_FAILURES = (600, 4, 201, 709)


def find_use(
    when: str, frames: Mapping[str, pl.DataFrame], context: Context, job: JobRanks
) -> HostUse | None:
    """Return how hosts use a time (before, after, idle, all); None where nothing is known of it."""
    rows, devices, activities = frames["uses"], frames["devices"], frames["activities"]
    if not rows.height:
        return None
    rows = rows.filter((pl.col("when") == when) & (pl.col("length") > 0))
    if devices.height:
        # Processes that use GPUs, without those that only start them.
        rows = rows.filter(pl.col("task").is_in(devices["task"].to_list()))
    if when in ("before", "after"):
        # All GPUs do nothing until the first one works.
        rows = rows.filter(pl.col("length") == pl.col("length").min())
    if not rows.height:
        return None
    if activities.height:
        activities = activities.filter(pl.col("when") == when)
    starts = pl.col("who").str.contains(NAMES["launchers"])
    rows = rows.join(job.tasks.select("task", starts=starts.fill_null(False)), on="task")
    row = _sort_processes(rows, activities).row(-1, named=True)
    parts = {part: int(row[part]) for part in PARTS}
    named: list[NamedTime] = []
    place = None
    if activities.height:
        activities = activities.filter(task=row["task"])
        places = activities.filter(part="where").select("time", place="name")
        place = find_place(places, row["length"], context)
        activities = activities.filter(pl.col("part") != "where")
        # The two activities of each part that take most time.
        activities = activities.sort("time", descending=True, maintain_order=True)
        activities = activities.filter(pl.int_range(pl.len()).over("part") < 2)
    for one in activities.rows(named=True):
        part, names, time = one["part"], one["names"], one["time"]
        name = shorten_name(context.find_label(one["name"], names))
        share = time / max(row["length"] if part == "range" else parts[part], 1)
        if name and share >= EXPLAINS:
            named.append(NamedTime(part, names, name, time, one["longest"], share, one["first"]))
    inside = next((one for one in named if one.part == "range"), None)
    who = job.name_task(row["task"]) if job.tasks.height > 1 else ""
    lacking = describe_unrecorded(frames, context)
    moment = int(row["begin"]), int(row["end"])
    length, calls = int(row["length"]), tuple(one for one in named if one is not inside)
    return HostUse(when, length, moment, parts, calls, inside, place, who, lacking)


def _sort_processes(rows: pl.DataFrame, activities: pl.DataFrame) -> pl.DataFrame:
    """Sort the processes (columns of `uses`, `starts`): last the one that works longest, in calls,
    samples and ranges rather than waiting for the system, and neither only starts others nor lives for
    a short part of the time of those that do not; of equal ones a process with NVTX ranges comes later.
    """
    sums = rows.select("task", in_ranges=pl.lit(None, pl.Int64))
    if activities.height:
        in_ranges = pl.col("time").filter(pl.col("part") == "range").sum()
        sums = activities.group_by("task").agg(in_ranges=in_ranges)
    rows = rows.join(sums, on="task", how="left")
    rows = rows.with_columns(waiting=pl.sum_horizontal("os", "io", "off_cpu"))
    in_ranges = (pl.col("in_ranges").fill_null(0) - pl.col("waiting")).clip(0)
    works = pl.sum_horizontal("mpi", "nccl", "cuda", "computing", "compiling") + in_ranges
    has_ranges, waits = pl.col("in_ranges").is_not_null(), pl.col("waiting")
    lives = (pl.col("length") - pl.sum_horizontal("away", *OVER)).clip(1) * ~pl.col("starts")
    matters = (lives > 0) & (lives >= EXPLAINS * lives.max())
    return rows.sort("length", matters, works, has_ranges, -waits, "task")


def _name_time(context: Context, devices: int) -> str:
    is_whole = context.options.covered.length == context.duration
    if not devices:
        return f"the time from {MPI_TIME}"
    return "the job" if is_whole else "the captured time"


def describe_edge(
    when: str, frames: Mapping[str, pl.DataFrame], context: Context, job: JobRanks
) -> Finding | None:
    """Return the finding of a long time before the first work of GPUs, or after the last."""
    # Where work is lost it is not known when it began and ended.
    use = None if context.options.lossy_devices else find_use(when, frames, context, job)
    if use is None:
        return None
    covered, profiler = max(context.options.covered.length, 1), use.parts["profiler"]
    share = (use.length - sum(use.parts[part] for part in NO_CAUSE)) / covered
    if share < LEAST_EDGE:
        return None
    title = say(
        when,
        length=use.length,
        steady=context.options.steady is not None,
        work=context.options.steady is None,
        profiler=profiler if profiler >= LEAST_PROFILER * covered else None,
        most=use.describe_most(),
    )
    is_before = when == "before"
    return make_finding(
        "startup" if is_before else "shutdown",
        title,
        share,
        use.list_evidence(),
        advice=f"{use.advice}; {ADVICE['capture']}" if is_before else use.advice,
        views=("views/cuda_activities.cfg",),
        moments=((*use.moment, ()),),
        where=use.where,
    )


def make_finding(
    kind: str, title: Said, share: float, evidence: Sequence[Said | str], **more: Any
) -> Finding:
    """Return a finding in words, whose share is how long what it is about lasts: no gain."""
    lines = tuple(map(str, evidence))
    return Finding(kind, capitalize(str(title)), share, evidence=lines, **more)


def describe_hosts(
    frames: Mapping[str, pl.DataFrame], context: Context, job: JobRanks, why: str
) -> Finding | None:
    """Return the finding about the hosts of a job without work of GPUs or calls of MPI. why: the
    reason why there is no such work.
    """
    use = find_use("all", frames, context, job)
    if use is None:
        return None
    part, options, layouts = use.own, context.options, context.reader.layouts
    is_known = part != "unknown" or options.lacks_mpi
    title = say(
        "no mpi" if options.lacks_mpi else "no gpu work" if is_known else "nothing known",
        lost=options.lost_work,
        who=use.who or "the host",
        part=PARTS[part],
        time=use.parts[part],
        calls=use.name_most(part),
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
        moments=((0, context.duration, ()),),
        where=use.where,
    )


def describe_failures(failed: pl.DataFrame, context: Context) -> str:
    """Return a sentence on the calls of CUDA that failed, of those that launch, copy, allocate or
    wait; empty where none did. failed: call, error, count.
    """
    if not failed.height:
        return ""
    named = context.label_names(failed, "call", "cuda_api")
    works = pl.col("call").str.contains(NAMES["works"])
    named = named.filter(works & ~pl.col("error").is_in(NO_FAILURES))
    sums = named.group_by("call", "error").agg(pl.col("count").sum()).sort("count", "call")
    errors = list_labels("cuda_error")
    lines = [
        f"{call} {format_count(count, 'time')} ({errors.get(error, f'error {error}')})"
        for call, error, count in sums.reverse().rows()
    ]
    return str(say("failed", calls=list_some(lines))) if lines else ""


def describe_devices(frames: Mapping[str, pl.DataFrame], context: Context) -> str:
    """Return a sentence on how GPUs spend the steady state, or the whole job; for a job without
    GPUs, on how long ranks are in MPI. Empty where that is not known.
    """
    devices, kernels = frames["devices"], frames["kernels"]
    time = "the steady state" if context.options.steady else _name_time(context, devices.height)
    if not devices.height:
        return str(say("ranks in mpi", share=_measure_mpi(frames), time=time))
    devices = devices.filter(~pl.col("device").is_in(list(context.options.lossy_devices)))
    length = devices["length"].sum()
    if not length:
        return ""
    compute, active, copies = (devices[name].sum() for name in ("compute", "active", "copies"))
    most = _describe_longest_kernel(kernels, context) if kernels.height else ""
    idle = "draw, or are idle," if context.reader.layouts & GRAPHICS else "are idle"
    idle = "have no work of this job" if select_other_work(frames).height else idle
    shares = (
        (compute, "compute", most),
        (active - compute - copies, "only communicate", ""),
        (copies, f"only {_judge_copies(frames['copies'])[0]}", ""),
        (length - active, idle, ""),
    )
    parts: list[str] = []
    for lasts, does, more in shares:
        if lasts >= 0.0005 * length:
            share = "more than 99.9%" if lasts >= 0.9995 * length else f"{lasts / length:.1%}"
            of = "" if parts else time
            parts.append(str(say("gpus do", does=does, share=share, of=of, more=more)))
    return f"GPUs {' and '.join(filter(None, (', '.join(parts[:-1]), parts[-1])))}."


def _measure_mpi(frames: Mapping[str, pl.DataFrame]) -> float:
    """Return the share of the time in which ranks of a job without GPUs are in MPI."""
    uses = frames["uses"].filter(pl.col("when") == "all").filter(pl.col("mpi") > 0)
    # As MPI parallel efficiency, of the longest time of a rank.
    outside = (uses["length"] - uses["mpi"]).mean() or 0.0
    return 1 - outside / max(uses["length"].max() or 1, 1)


def _describe_mpi(
    frames: Mapping[str, pl.DataFrame], context: Context, job: JobRanks, explained: float
) -> Finding | None:
    """Return the finding of MPI in which ranks are most of the time, if causes explain hardly any of it.
    explained: the share that causes gain.
    """
    in_mpi = {**frames, "uses": frames["uses"].filter(pl.col("mpi") > 0)}
    share, use = _measure_mpi(frames), find_use("all", in_mpi, context, job)
    if use is None or share < MOST or share <= HARDLY * explained:
        return None
    return _make_limit("in_mpi", share, use.list_evidence(), where=use.where)


def _describe_longest_kernel(kernels: pl.DataFrame, context: Context) -> str:
    """Return the function that takes most of the time of kernels, all instances of a template
    together, as ` (...)`; empty where its name is not known. kernels: name, time (ns).
    """
    labels = context.labels["kernels"].select(pl.col("value").alias("name"), "label")
    sums = kernels.group_by("name").agg(pl.col("time").sum()).join(labels, on="name", how="left")
    functions = pl.Series(map(_strip_template, sums["label"].fill_null("")), dtype=pl.String)
    sums = sums.group_by(function=functions).agg(pl.col("time").sum(), count=pl.len())
    function, lasts, count = sums.sort("time", "function").row(-1)
    share = lasts / max(sums["time"].sum(), 1)
    instances = count if count > 1 else None
    named = say("longest kernel", share=share, name=shorten_name(function), instances=instances)
    return str(named) if function else ""


def _strip_template(label: str) -> str:
    """Return the function of a kernel: `fill` of `fill<float#2>` and of `void fill<float>(float*)`."""
    return strip_arguments(label).partition("<")[0].partition("#")[0] or label


def describe_small_grids(frames: Mapping[str, pl.DataFrame], context: Context) -> Finding | None:
    """Return the finding about kernels of too few blocks to fill a GPU, if they take long and
    mostly run alone.
    """
    kernels, devices = frames["kernels"], frames["devices"]
    labels = context.labels.get("launch_configuration")
    if labels is None or not kernels.height or not devices.height:
        return None
    blocks = pl.col("configuration").str.extract_groups(GRID).struct.unnest()
    configurations = labels.select(pl.col("value").alias("launch"), configuration="label")
    sizes = configurations.select(blocks).cast(pl.Int64, strict=False)
    few = configurations.filter(sizes["x"] * sizes["y"] * sizes["z"] < FEW_BLOCKS)
    kernels = kernels.join(few, on="launch")
    lasts = kernels["time"].sum()
    share = lasts / max(devices["length"].sum(), 1)
    if share < LEAST_LOSS or lasts > ALONE * devices["compute"].sum():
        return None
    most = kernels.sort("time", "begin").row(-1, named=True)
    label = shorten_name(context.find_label(most["name"], "kernels")) or "a kernel"
    grid, block, *_ = most["configuration"].split(", ")
    evidence = say("small grid", kernel=label, time=most["time"], grid=grid, block=block)
    return _make_limit(
        "small_grids", share, [evidence], moments=((most["begin"], most["end"], ()),)
    )


def describe_migrations(frames: Mapping[str, pl.DataFrame]) -> Finding | None:
    """Return the finding of managed memory that moves between hosts and GPUs, if that takes long."""
    moved, devices = frames["copies"], frames["devices"]
    moved = moved.filter(pl.col("operation").is_in(MIGRATIONS))
    share = moved["time"].sum() / max(devices["length"].sum(), 1) if devices.height else 0.0
    if share < LEAST_LOSS:
        return None
    return _make_limit("migrations", share, describe_copies(moved))


def _make_limit(kind: str, share: float, evidence: Sequence[Said], **more: Any) -> Finding:
    """Return a finding of what is gained at most. kind: of `limits` in findings.yaml."""
    advice, view = TEXTS["limits"][kind]
    title = say(kind, share=share)
    return make_finding(kind, title, share, evidence, advice=advice, views=(view,), **more)


def describe_loss(
    frames: Mapping[str, pl.DataFrame],
    context: Context,
    facts: CauseContext,
    reason: str,
    outside: float,
    explained: float,
) -> Finding | None:
    """Return the finding about the largest loss of time of GPUs, if causes explain little of it;
    its gain is not known. reason: why it is not, empty where no cause gains enough. outside: the
    share of the time in which the job waits for requests. explained: the share that causes gain.
    """
    devices, job, graph = frames["devices"], facts.job, facts.replay.job.graph
    if not devices.height:
        return _describe_mpi(frames, context, job, explained)
    if context.options.lossy_devices:
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
    uses = frames["uses"]
    if name == "idle" and uses.height:
        uses = uses.filter(pl.col("when") == "idle")
        share *= 1 - uses["profiler"].sum() / max(uses["length"].sum(), 1)
    transfers = facts.replay.select((Kind.NCCL,))
    unmatched = transfers[graph.edges.key[transfers] == 0]
    is_unmatched = len(facts.replay.processes) > 1 and (
        2 * graph.weight[unmatched].sum() > losses["communication"]
    )
    is_clear = name == "communication" and not is_unmatched
    if share < LEAST_LOSS or share <= LEAST_BESIDE_CAUSES * explained or (is_clear and explained):
        return None
    tasks: list[int] = []
    does, most, where, evidence = "", "", "", list[Said | str]()
    if name == "idle":
        advice, use = ADVICE["ahead"], find_use("idle", frames, context, job)
        # The host of the GPUs that idle longest may be unknown.
        if use is not None and 2 * use.length >= lost / devices.height:
            most, evidence, where = use.describe_most(), [*use.list_evidence()], use.where
            advice, calls = use.advice, use.list_calls("cuda")
            if use.largest == "cuda" and not any(one.is_single for one in calls):
                call = calls[0].name if calls else ""
                advice = facts.advise(choose_advice("calls", call=call) or "ahead")
    elif name == "copies":
        does, advice = _judge_copies(frames["copies"])
        evidence = [*describe_copies(frames["copies"])]
    else:
        advice = ADVICE["payloads" if is_unmatched else "alone"]
        if is_unmatched:
            reason = str(say("unmatched", count=len(unmatched), of=len(transfers)))
            for one in list_slow_processes(facts.replay, "gpu"):
                own = [process + 1 for process in one.processes]
                tasks += own
                evidence.append(say("slow", who=job.describe_ranks(own), more=one.ratio - 1))
    title = say(
        f"loss {name}",
        does=does,
        outside=outside,
        mean=lost / devices.height,
        each=devices.height > 1,
        steady=context.options.steady is not None,
        between=context.options.steady is None,
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
    """Return what GPUs do in operations of memory, and what helps against those that take most time."""
    advice = ADVICE["copies_alone"]
    if not copies.height:
        return "copy", advice
    most = sum_copies(copies).row(0, named=True)
    size = most["bytes"] / most["count"]
    fills = copies.filter(operation=MEMSET)["time"].sum() / max(copies["time"].sum(), 1)
    does = "copy" if fills < FEW else "fill memory" if fills > 1 - FEW else "copy or fill memory"
    if most["operation"] == MEMSET:
        advice = ADVICE["fills"]
    elif size < SMALL_COPY:
        advice = ADVICE["small_copies"].format(size=format_size(size))
    elif map_labels("memory_kind")["pageable"] in (most["source"], most["destination"]):
        advice = f"{ADVICE['pageable']}; or {advice}"
    return does, advice


def sum_copies(copies: pl.DataFrame) -> pl.DataFrame:
    """Return the sums of copies by direction and kinds of memory, the longest first. copies:
    operation, source, destination, count, bytes, time (ns).
    """
    keys = ("operation", "source", "destination")
    sums = copies.group_by(keys).agg(pl.col("count", "bytes", "time").sum())
    return sums.sort("time", descending=True).select(*keys, "count", "bytes", "time")


def describe_copies(copies: pl.DataFrame) -> list[Said]:
    """Say what is copied most, by direction and kinds of memory. copies: as for sum_copies."""
    operations, labels = list_labels("memory_operation"), list_labels("memory_kind")
    kinds = {kind: one.lower() for kind, one in labels.items() if one != "Unknown"}
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


def describe_untraced_mpi(samples: pl.DataFrame, context: Context, job: JobRanks) -> Finding | None:
    """Return the finding that main threads are in MPI, which was not traced; None where they hardly
    are. samples: task, call, count.
    """
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
        evidence.append(say("least on", who=job.describe_ranks(few["task"].to_list())))
    shares, steady = _format_range(of_task["share"]), context.options.steady is not None
    return make_finding(
        "untraced_mpi",
        say("untraced_mpi", shares=shares, steady=steady),
        share,
        evidence,
        advice=ADVICE["untraced_mpi"],
        views=("analysis/cpu_samples_2dh.cfg",),
    )


def _list_shares(samples: pl.DataFrame, which: pl.Expr) -> pl.DataFrame:
    """Return the share of the samples of each task that a condition selects: task, share."""
    selected = pl.col("count").filter(which).sum() / pl.col("count").sum()
    return samples.group_by("task").agg(share=selected).sort("share", "task")


def _format_range(shares: pl.Series) -> str:
    least, most = float(shares.min() or 0), float(shares.max() or 0)
    return f"{most:.0%}" if round(least, 2) == round(most, 2) else f"{least:.0%} to {most:.0%}"
