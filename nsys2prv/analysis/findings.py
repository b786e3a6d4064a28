"""Findings: what holds the job back, from the time of each device in the steady state.

That time is divided so that each moment counts once, in this order: computing (kernels that do not communicate, graphs), transfer (NCCL after the last rank has
begun), wait (NCCL before that, and the part of the transfer that is exposed because computation
that would have hidden it has run during the wait), other communication (kernels of which that is not known),
memory operations, idle; idle time by what the host does, and by the call that it is in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv._util.columns import ABSENT
from nsys2prv._util.text import list_some
from nsys2prv.analysis import mpi_findings
from nsys2prv.analysis.collectives import add_waits, find_slow_links, list_matched_collectives
from nsys2prv.analysis.idle import sum_idle_by_call
from nsys2prv.analysis.intervals import (
    EMPTY,
    Spans,
    intersect_spans,
    merge_spans,
    subtract_spans,
    unite_span_sets,
)
from nsys2prv.analysis.iterations import find_phases
from nsys2prv.analysis.result import Analysis, Context, Finding, JobRanks, Result, format_numbers
from nsys2prv.analysis.stragglers import (
    find_culprits,
    find_segments,
    make_culprit_finding,
    make_hiccup_finding,
    make_imbalance_findings,
    make_link_finding,
)
from nsys2prv.analysis.text import format_cell, format_nanoseconds
from nsys2prv.analysis.unit import (
    COMMUNICATING,
    COMPUTE,
    CONVOLUTION,
    GEMM,
    GRAPH,
    MEMORY,
    OTHER_COMMUNICATION,
    STATES,
    TENSOR_NO,
    WORK,
    Unit,
    find_driving_threads,
    find_host_states,
    list_labels,
    to_arrays,
)
from nsys2prv.events.cuda import COPYING
from nsys2prv.events.mpi import MPI_LAYOUTS

#: More findings are not told.
MOST_FINDINGS = 10
NOT_TOLD = "what holds the job back cannot be told"
#: What each cause costs at least to be a finding: as a share of the time of all devices.
LEAST = {"exposed_communication": 0.03, "exposed_copies": 0.02, "no_tensor_cores": 0.02}
LEAST_IDLE = 0.03
#: Part of idle time -> kind of finding, what hosts do meanwhile, for people, and what helps.
IDLE = {
    "idle_mpi": (
        "host_mpi",
        "in MPI",
        "find which rank is late in MPI, or overlap MPI with GPU work",
    ),
    "idle_nccl": (
        "host_nccl",
        "in NCCL calls",
        "create communicators before the loop, and use non-blocking NCCL calls",
    ),
    "idle_io": (
        "host_io",
        "in file or network I/O",
        "load data ahead, in other threads or processes",
    ),
    "idle_synchronisation": (
        "blocked_by_call",
        "waiting in {call}",
        "synchronise later or not at all: what follows is launched only after the wait",
    ),
    "idle_launch": (
        "launch_bound",
        "in CUDA calls, most of it in {call}",
        "launch less often: CUDA graphs, fused kernels, larger batches",
    ),
    "idle_unknown": (
        "host_work",
        "in no recorded call, so {they} must be computing",
        "profile the host's CPU (nsys --sample), and move its work out of the loop or ahead of it",
    ),
}
#: Calls, by what their names contain -> what helps.
CALLS = {
    "Malloc": "allocate once, or use a caching allocator",
    "Free": "free outside of the loop, or use a caching allocator",
    "Module": "load modules before the loop (CUDA_MODULE_LOADING=EAGER), or warm up",
    "HostAlloc": "allocate pinned memory once",
    "HostRegister": "register memory once",
    "DeviceSynchronize": "wait for events or streams rather than for the whole device",
    "StreamSynchronize": "read results of the GPU (.item(), .cpu()) less often, or a step later",
    "EventSynchronize": "wait for the event later, once it is needed",
}


def collect(unit: Unit) -> Iterator[tuple[str, pl.DataFrame]]:
    """Collect how devices spent their time. devices: a row each, its parts (ns). records: a row for
    each kernel of a matched collective, with its exposed parts. others: a row for each other
    kernel that communicates, and each call of MPI with which a device is idle. calls: idle time by device and call.
    """
    if not unit.has(*WORK):
        yield from mpi_findings.collect(unit)
        return
    covered = unit.options.covered_steady
    in_steady = pl.lit(False)
    for span in zip(covered.begin.tolist(), covered.end.tolist(), strict=True):
        in_steady |= pl.col("begin").is_between(*span, closed="left")
    fields = ("operation", "bytes", "communicator", "kernel")
    kernels = _add_devices(unit, unit.read_begins("nccl_kernel", fields))
    kernels = pl.concat([kernels, _list_other_communication(unit, kernels)], how="vertical_relaxed")
    kernels = kernels.with_columns(_number_occurrences("device", "kernel"))
    matched = None
    if unit.has("nccl_collective"):
        matched = _add_devices(unit, list_matched_collectives(unit, kernels))
    for device in unit.devices:
        of_device = in_steady & (pl.col("device") == device)
        compute, nccl, memory = (
            intersect_spans(covered, unit.find_device_spans(device, *what))
            for what in ((COMPUTE, GRAPH), COMMUNICATING, (MEMORY,))
        )
        own_kernels = kernels.filter(of_device)
        delayed, transfer, wait = 0, EMPTY, EMPTY
        if matched is not None:
            records, transfer, wait, delayed = _expose_matched(
                matched.filter(of_device), compute, covered
            )
            place = ["thread", "begin"]
            own_kernels = own_kernels.join(records, on=place, how="anti", maintain_order="left")
            yield "records", records
        other = subtract_spans(nccl, unite_span_sets([compute, transfer, wait]))
        name = pl.format("NCCL {}", "kernel")
        yield "others", _make_other_rows(unit, own_kernels, other, device, name)
        memory = subtract_spans(memory, unite_span_sets([compute, nccl]))
        idle = subtract_spans(covered, unit.find_active_spans(device))
        for calls in _list_mpi_calls(unit, device, idle, in_steady):
            yield "others", calls
        states = find_host_states(unit, device)
        work = unit.work.filter(pl.col("device") == device)
        products = work.filter(
            in_steady & pl.col("class").is_in([GEMM, CONVOLUTION]) & (pl.col("tensor") == TENSOR_NO)
        )
        parts = {
            "device": device,
            # That works most on it.
            "task": int(np.bincount(unit.list_tasks(work)).argmax()),
            "compute": compute.length,
            "transfer": transfer.length - delayed,
            "wait": wait.length + delayed,
            "other_nccl": other.length,
            "memory": memory.length,
            "idle": idle.length,
            **{
                f"idle_{name}": int(states[name].within(idle.begin, idle.end).sum())
                for name in STATES
            },
            "without_tensor_cores": int((products["end"] - products["begin"]).sum()),
        }
        yield "devices", pl.DataFrame([parts])
        if unit.has("cuda_api"):
            yield "calls", sum_idle_by_call(unit, device, idle)


def _list_other_communication(unit: Unit, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels that communicate and are not NCCL's, with the columns of these."""
    others = unit.work.filter(pl.col("what") == OTHER_COMMUNICATION).rename({"name": "kernel"})
    unknown = (
        pl.lit(ABSENT, pl.Int64).alias(name) for name in ("operation", "bytes", "communicator")
    )
    return others.with_columns(unknown).select(kernels.columns)


def _expose_matched(
    records: pl.DataFrame, compute: Spans, covered: Spans
) -> tuple[pl.DataFrame, Spans, Spans, int]:
    """Return kernels of matched collectives on one device with their exposed waits and transfers;
    when the device does nothing but transfer, and nothing but wait; and how much of the transfer
    (ns) is due to the waits.
    """
    records = records.with_columns(ready=pl.col("begin") + pl.col("wait"))
    records = records.with_columns(until=pl.col("ready") + pl.col("transfer"))
    transfer = merge_spans(*to_arrays(records, "ready", "until"))
    transfer = subtract_spans(intersect_spans(covered, transfer), compute)
    wait = merge_spans(*to_arrays(records, "begin", "ready"))
    wait = subtract_spans(intersect_spans(covered, wait), unite_span_sets([compute, transfer]))
    records = records.with_columns(
        exposed_wait=_find_own_parts(records, "begin", "ready", wait),
        exposed_transfer=_find_own_parts(records, "ready", "until", transfer),
    )
    avoidable = _find_avoidable_exposure(records, compute)
    records = records.with_columns(exposed_transfer=pl.col("exposed_transfer") - avoidable)
    return records, transfer, wait, int(avoidable.sum())


def _list_mpi_calls(
    unit: Unit, device: int, idle: Spans, in_steady: pl.Expr
) -> Iterator[pl.DataFrame]:
    """Yield rows of `others` of the calls of MPI of the threads that drive a device."""
    threads = find_driving_threads(unit, device)
    for layout in MPI_LAYOUTS:
        calls = unit.read_begins(layout, ("call",)).filter(pl.col("thread").is_in(threads))
        calls = calls.with_columns(_number_occurrences("call")).filter(in_steady)
        yield _make_other_rows(unit, calls, idle, device, pl.format(f"{layout} {{}}", "call"))


def _add_devices(unit: Unit, events: pl.DataFrame) -> pl.DataFrame:
    return events.with_columns(device=unit.device_of[events["thread"].to_numpy()])


def _number_occurrences(*names: str) -> list[pl.Expr]:
    """Return the `number` of each row, from 0, among those that have the same in these columns, and
    how many there are, `total`.
    """
    return [
        pl.int_range(pl.len()).over(names).alias("number"),
        pl.len().over(names).alias("total"),
    ]


def _make_other_rows(
    unit: Unit, frame: pl.DataFrame, exposed: Spans, device: int, name: pl.Expr
) -> pl.DataFrame:
    """Return rows of `others`: task, device, name, begin, end, operation, bytes, communicator
    (ABSENT for what is not known), number and total (in the whole job, of this name on its row's
    device), exposed (ns).
    """
    optional_columns = [
        name if name in frame.columns else pl.lit(ABSENT, pl.Int64).alias(name)
        for name in ("operation", "bytes", "communicator")
    ]
    return frame.select(
        unit.list_tasks(frame),
        pl.lit(device, pl.Int64).alias("device"),
        name.alias("name"),
        "begin",
        "end",
        "number",
        "total",
        *optional_columns,
        _find_own_parts(frame, "begin", "end", exposed).alias("exposed"),
    )


def _find_own_parts(frame: pl.DataFrame, since: str, until: str, exposed: Spans) -> pl.Series:
    """Return how much of a set of times each row accounts for; what several rows cover counts for
    the first.
    """
    begin, end = to_arrays(frame, since, until)
    order = np.argsort(begin, kind="stable")
    reached = np.concatenate([[0], np.maximum.accumulate(end[order])[:-1]]) if len(end) else end
    own = np.zeros(len(begin), np.int64)
    own[order] = exposed.within(
        np.minimum(np.maximum(begin[order], reached), end[order]), end[order]
    )
    return pl.Series(own, dtype=pl.Int64)


def _find_avoidable_exposure(records: pl.DataFrame, compute: Spans) -> pl.Series:
    """Return how much of each kernel's exposed transfer computation would have hidden if the last
    rank had come at once (ns): that computation has run while the others waited.
    """
    begin, transfer, exposed = to_arrays(records, "begin", "transfer", "exposed_transfer")
    at_once = transfer - compute.within(begin, begin + transfer)
    return pl.Series(np.clip(exposed - at_once, 0, None), dtype=pl.Int64)


def conclude(frames: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    """Add the findings, the most costly first, and the phases of the job."""
    steady, devices = context.options.steady, frames["devices"]
    if steady:
        phases = find_phases(context.reader, context.labels["nvtx"], steady)
        about = "Findings are of the steady state: shares are of its time."
        result.add("phases", "Phases", phases, about)
    if frames["hosts"].height:
        mpi_findings.conclude(frames, context, result)
        return
    if not devices.height:
        absence = context.explain_absence((*WORK, *MPI_LAYOUTS))
        result.missing.append(f"{NOT_TOLD} without work on GPUs or calls of MPI: {absence}")
        return
    devices = devices.filter(~pl.col("device").is_in(context.options.lossy_devices))
    if not devices.height:
        result.missing.append(f"{NOT_TOLD}: {context.options.lost_work}")
        return
    if lost := context.options.lost_work:
        result.notes.append(f"not counted in findings: {lost}")
    span = context.options.get_steady_span(context.duration)
    length = context.options.covered_steady.length
    others = add_waits(frames["others"])
    job = JobRanks.from_job(
        context, _list_parts(devices, others), frames["records"], others, length
    )
    sets = [context.labels[one] for one in ("kernels", "nccl_kernels") if one in context.labels]
    kernels = {value: label for labels in sets for value, label in labels.rows()}
    findings: list[Finding] = []
    if unmatched := context.options.unmatched:
        result.notes.append(
            f"which rank is late cannot be told: NCCL kernels of {list_some(unmatched)} have no payloads, and "
            "could not be matched with those of the other ranks"
        )
    else:
        findings = _find_waits(job, kernels, steady, span)
    # One cause, one finding: what is a culprit's is not the whole job's too.
    culprits = {rank for finding in findings for rank in finding.ranks}
    findings += find_job_wide(job.level_ranks(culprits), frames["calls"], context)
    result.findings.extend(sorted(findings, key=lambda finding: -finding.share)[:MOST_FINDINGS])


def _list_parts(devices: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """Return the parts of devices' time: of NCCL kernels that are not matched and of MPI the waits
    for other ranks told from the rest.
    """
    idle = [name for name in devices.columns if name.startswith("idle_")]
    devices = devices.with_columns(idle_unknown=(pl.col("idle") - pl.sum_horizontal(idle)).clip(0))
    if not others.height:
        schema = {"device": pl.Int64, "name": pl.String, "exposed_wait": pl.Int64}
        others = pl.DataFrame(schema=schema)
    of_nccl = pl.col("name").str.starts_with("NCCL")
    waits = others.group_by("device").agg(
        nccl=pl.col("exposed_wait").filter(of_nccl).sum(),
        mpi=pl.col("exposed_wait").filter(~of_nccl).sum(),
    )
    devices = devices.join(waits, on="device", how="left", maintain_order="left")
    nccl, mpi = (
        pl.min_horizontal(pl.col(name).fill_null(0), part)
        for name, part in (("nccl", "other_nccl"), ("mpi", "idle_mpi"))
    )
    return devices.with_columns(
        wait=pl.col("wait") + nccl + mpi,
        transfer=pl.col("transfer") + pl.col("other_nccl") - nccl,
        idle_mpi=pl.col("idle_mpi") - mpi,
    )


def _find_waits(
    job: JobRanks, kernels: Mapping[int, str], steady: object, span: tuple[int, int]
) -> list[Finding]:
    """Find who makes others wait, and which links are slow. kernels: labels of NCCL kernels."""
    links = find_slow_links(job.records, job.others, kernels, job.length)
    findings = [make_link_finding(job, link) for link in links]
    if not job.records.height and not job.others.height:
        return findings
    segments = find_segments(job.records, job.others, steady, span)
    culprits, hiccups = find_culprits(segments, job.length)
    reported = 0
    if culprits:
        reported += culprits.cost
        one = make_culprit_finding(job, segments, culprits)
        same = [
            finding
            for finding, link in zip(findings, links, strict=True)
            if set(culprits.tasks) & set(link.tasks)
        ]
        if same and one.kind == "slow_link":
            one = replace(
                same[0],
                share=max(same[0].share, one.share),
                evidence=(*same[0].evidence, *one.evidence),
            )
        elif same:
            # A slow GPU moves data slowly too.
            one = replace(one, evidence=(*one.evidence, *same[0].evidence))
        findings = [one, *(finding for finding in findings if finding not in same)]
    reported += sum(hiccup.cost for hiccup in hiccups)
    findings += [make_hiccup_finding(job, hiccup) for hiccup in hiccups]
    return [*findings, *make_imbalance_findings(job, segments, reported)]


def find_job_wide(job: JobRanks, calls: pl.DataFrame, context: Context) -> Iterator[Finding]:
    """Yield the findings about the whole job that cost enough."""
    for finding in (*_find_exposed(job), *_find_copies(job), *_find_idle(job, calls, context)):
        yield replace(finding, evidence=(*finding.evidence, *_explain_not_counted(job)))
    yield from _find_tensor_cores(job)


def _explain_not_counted(job: JobRanks) -> Iterator[str]:
    """Say whose time other findings report."""
    if job.levelled:
        many = len(job.levelled) > 1
        yield (
            f"not counted: the extra time of rank{'s' if many else ''} {format_numbers(list(job.levelled))} "
            "that other findings report"
        )


def _describe_per_gpu(job: JobRanks, part: str) -> str:
    """Return how much time a part takes: per GPU on average, and on the GPU with most of it."""
    values = job.devices.sort(part, descending=True)
    most = f"{format_nanoseconds(float(values[part][0]))} on {values['label'][0]}"
    if values.height == 1:
        return most
    return f"{format_nanoseconds(float(values[part].mean()))} per GPU on average, at most {most}"


def _find_exposed(job: JobRanks) -> Iterator[Finding]:
    share = job.compute_share("transfer")
    if share < LEAST["exposed_communication"]:
        return
    evidence = [
        f"{_describe_per_gpu(job, 'transfer')}; not counted: waiting for late ranks, and transfers that are exposed only because of it"
    ]
    if job.records.height:
        labels = list_labels("nccl_operation")
        groups = (
            job.records.group_by("operation", "bytes")
            .agg(
                pl.col("exposed_transfer").sum(),
                pl.col("transfer").median(),
                count=pl.col("collective").n_unique(),
                speed=pl.col("bus_bandwidth").median(),
            )
            .sort(["exposed_transfer", "operation", "bytes"], descending=[True, False, False])
        )
        total = max(float(job.devices["transfer"].sum()), 1.0)
        for row in groups.head(2).iter_rows(named=True):
            size = f" of {format_cell('bytes', row['bytes'])}" if row["bytes"] >= 0 else ""
            speed = f", {row['speed'] / 1e9:.1f} GB/s bus bandwidth" if row["speed"] else ""
            evidence.append(
                f"{row['exposed_transfer'] / total:.0%} of it in {labels.get(row['operation'], 'NCCL')}{size}, {row['count']:,} "
                f"times, median transfer {format_nanoseconds(row['transfer'])}{speed}"
            )
    yield Finding(
        "exposed_communication",
        f"GPUs communicate without computing for {share:.1%} of the time.",
        share,
        evidence=tuple(evidence),
        advice="start collectives earlier so that computation hides them, make fewer and larger ones, or move less",
        views=("nccl-exposed-2dh",),
    )


def _find_copies(job: JobRanks) -> Iterator[Finding]:
    share = job.compute_share("memory")
    if share >= LEAST["exposed_copies"]:
        yield Finding(
            "exposed_copies",
            f"GPUs only copy or set memory for {share:.1%} of the time.",
            share,
            evidence=(_describe_per_gpu(job, "memory"),),
            advice="copy asynchronously from pinned memory on a separate stream, at the same time as kernels",
            views=("memory_bytes_2dh",),
        )


def _find_idle(job: JobRanks, calls: pl.DataFrame, context: Context) -> Iterator[Finding]:
    if job.devices.height == 1:
        who, whose, they = "The GPU is", "its host is", "it"
    else:
        who, whose, they = "GPUs are", "their hosts are", "they"
    for part, (kind, what, advice) in IDLE.items():
        share = job.compute_share(part)
        if share < LEAST_IDLE:
            continue
        call = "CUDA calls"
        if "{call}" in what and calls.height:
            waiting = calls.filter(pl.col("synchronises") == (kind == "blocked_by_call"))
            named = context.label_names(waiting, "call", "cuda_api")
            sums = named.group_by("call").agg(pl.col("time_ns").sum())
            if sums.height:
                call = sums.sort(["time_ns", "call"], descending=[True, False])["call"][0]
                advice = _advise_on_call(call) or advice
        yield Finding(
            kind,
            f"{who} idle for {share:.1%} of the time while {whose} {what.format(call=call, they=they)}.",
            share,
            evidence=(_describe_per_gpu(job, part),),
            advice=advice,
            views=("gpu-gaps", "gpu-gaps-time_2dh"),
        )


def _advise_on_call(call: str) -> str:
    """Return what helps against a call, empty where nothing is known."""
    for name, advice in CALLS.items():
        if name in call:
            return advice
    is_copy = pl.select(pl.lit(call).str.contains(COPYING)).item()
    return "copy asynchronously, from pinned memory" if is_copy else ""


def _find_tensor_cores(job: JobRanks) -> Iterator[Finding]:
    share = job.compute_share("without_tensor_cores")
    if share >= LEAST["no_tensor_cores"]:
        yield Finding(
            "no_tensor_cores",
            f"Matrix products without tensor cores take {share:.1%} of the time.",
            share,
            evidence=(_describe_per_gpu(job, "without_tensor_cores"),),
            advice="use half precision or TF32 (torch.set_float32_matmul_precision), and sizes that are multiples of 8",
            views=("gemm_without_tensor_cores_2dh",),
        )


ANALYSIS = Analysis(
    "findings",
    "Findings",
    "what holds the job back ([below](#findings))",
    (),
    collect,
    conclude,
    is_of_covered=True,
)
