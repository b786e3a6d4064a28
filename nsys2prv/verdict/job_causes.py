"""Measure causes that belong to no single rank: all work or waiting of one sort (unequal work,
transfers, messages, host time, copies, a family of calls, GEMMs), single calls, and places between
calls.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv._util.text import list_some
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.figures.host_time import describe_parts, select_gpus, sum_parts
from nsys2prv.figures.products import find_slow_products
from nsys2prv.replay.causes import Cause, find_copy_speed
from nsys2prv.replay.events import HANDOFF, WAITED
from nsys2prv.replay.graph import Kind, split_size
from nsys2prv.replay.thresholds import TENSOR_SPEED_UP, TOGETHER
from nsys2prv.replay.transfers import find_beside, overlap_transfers
from nsys2prv.replay.unit_graph import split_place
from nsys2prv.replay.whatif import GPU, HOST, Replay
from nsys2prv.verdict.cause_context import CauseContext
from nsys2prv.verdict.thresholds import (
    EVEN,
    FEWEST_PAUSES,
    LEAST_NAMED,
    LONG_TRANSFER,
    MORE,
    MOST_IN_FIRST,
    MOST_STAGES,
    NEARLY_ALL,
    NEARLY_UNKNOWN,
    OF_FORMULA,
    OF_LATENCY,
    REGULAR,
    SLOW_LINK,
    USUAL_BUBBLE,
)
from nsys2prv.verdict.time_use import describe_copies
from nsys2prv.verdict.words import Claim, Said, choose_advice, say

#: Causes of the whole job that may be of one process; calls that wait for others.
OF_PROCESSES = ("allocation", "module_loading", "pageable", "tensor_cores", "slow_products")
WAITING = re.compile(r"Synchronize|^MPI_")


def describe_job_cause(cause: Cause, facts: CauseContext) -> Claim:
    """Describe a cause of lost time that does not result from comparing ranks. If only one process
    has it, name this process.
    """
    claim = _DESCRIBE.get(cause.kind, _describe_calls)(cause, facts)
    only = None if claim.tasks else _find_only_process(cause, facts)
    if only is None:
        return claim
    does = claim.title or say(claim.key, waiting=facts.waiting)
    title = say("only there", who=facts.name_processes([only]), does=does)
    return replace(claim, title=title, tasks=(only + 1,))


def _find_only_process(cause: Cause, facts: CauseContext) -> int | None:
    """Return the process that makes nearly all calls, copies or kernels of a cause; None if there
    is none, or if calls wait for others.
    """
    kind, key = cause.place or (None, 0)
    is_call = kind == Kind.CALL and not WAITING.search(facts.name_call(key))
    if len(facts.replay.list_compared(HOST)) < 2 or not (is_call or cause.kind in OF_PROCESSES):
        return None
    edges = cause.changes[0][0]
    processes = np.maximum(facts.edges.process[edges], 0)
    for weights in (None, facts.measure(edges)):
        sums = np.bincount(processes, weights)
        if sums.max(initial=0) < NEARLY_ALL * sums.sum():
            return None
    return int(sums.argmax())


def _list_saved(cause: Cause, facts: CauseContext) -> tuple[tuple[np.ndarray, np.ndarray], float]:
    """Return the edges of the name with most of a cause's savings, and their savings; and the
    savings of all ranks together (ns).
    """
    edges, saved = facts.replay.list_saved(cause.changes)
    return facts.keep_name(edges, saved), float(saved.sum())


def _describe_imbalance(cause: Cause, facts: CauseContext) -> Claim:
    work = facts.replay.tabulate(GPU if facts.job.has_gpus else HOST).by_key[1].sum(axis=0)
    evidence = [say("work of a rank", mean=work.mean(), least=work.min(), most=work.max())]
    worst, saved = _list_saved(cause, facts)
    if len(worst[0]):
        evidence.append(say("most of it", where=facts.name_work(*worst)))
    # Hosts that have as much work as each other in the end need not wait in each iteration.
    is_even = work.max() - work.mean() < EVEN * cause.gain * facts.replay.span
    advice = "coupling" if is_even and not facts.job.has_gpus else ""
    return Claim("imbalance", evidence, worst, saved, advice=advice)


def _describe_host_time(cause: Cause, facts: CauseContext) -> Claim:
    """Return a claim about the calls, and the places between calls, in which hosts are on the
    critical path.
    """
    evidence, advice = list[Said | str](), "latency"
    edges, saved = worst = facts.replay.list_saved(cause.changes)
    named = [one for one in facts.host_places[:2] if one[2] >= LEAST_NAMED]
    for kind, key, _ in facts.host_places[:1]:
        advice, once = _advise_hosts(facts, Kind(kind), key)
        own = (facts.edges.kind[edges] == kind) & (facts.edges.key[edges] == key)
        worst = (edges[own], saved[own]) if own.any() else worst
        if named:
            places = [f"{share:.0%} {facts.name_place(Kind(one), of)}" for one, of, share in named]
            evidence.append(say("on the path", places=", ".join(places), once=once))
    if any(kind == Kind.GAP and share >= LEAST_NAMED for kind, _, share in facts.host_places):
        parts = sum_parts(facts.frames["hosts"])
        whole, unknown = sum(parts.values()), parts.get("unknown", 0)
        if described := describe_parts(parts):
            evidence.append(say("outside of calls", parts=described))
        if unknown > whole / 2:
            evidence.append(facts.describe_unrecorded(unknown < NEARLY_UNKNOWN * whole))
    advice = advice if cause.kind == "host_time" else cause.kind
    longest = facts.host_places[:1]
    is_latency = any(kind == Kind.LAUNCH and share > OF_LATENCY for kind, _, share in longest)
    title = say("latency" if is_latency else cause.kind, waiting=facts.waiting)
    return Claim(cause.kind, evidence, worst, saved.sum(), title, advice)


def _advise_hosts(facts: CauseContext, kind: Kind, key: int) -> tuple[str, float]:
    """Return advice (key of ADVICE) for the dominant host activity on the critical path. Return
    also the duration of a single occurrence that takes most of it (ns), or 0.
    """
    path, edges = facts.replay.path, facts.edges
    path = path[(edges.kind[path] == kind) & (edges.key[path] == key)]
    lasts = facts.measure(path)
    if once := _advise_once(lasts):
        longest = np.argmax(lasts)
        is_first = kind == Kind.CALL and path[longest] in facts.replay.find_first_calls([key])
        return "startup" if is_first else once, float(lasts[longest])
    if kind == Kind.CALL:
        return choose_advice("calls", call=facts.name_call(key)) or "rarely", 0.0
    return "gap" if kind == Kind.GAP else "latency", 0.0


def _describe_pageable(cause: Cause, facts: CauseContext) -> Claim:
    """Return a claim about pageable copies, and about the wait time of callers if it exceeds the
    copies.
    """
    copies, returns, _ = (edges for edges, _ in cause.changes)
    (worst, _), states = _list_saved(cause, facts), float(facts.measure(copies).sum())
    evidence = describe_copies_of(cause, facts)
    if not facts.is_backed(cause.gain, states):
        calls = facts.graph.find_edges(facts.edges.target[returns], (Kind.CALL,))
        states = float(facts.measure(calls[calls >= 0]).sum())
        evidence.append(say("blocked", count=len(returns), time=states))
    return Claim("pageable", evidence, worst, states)


def describe_copies_of(cause: Cause, facts: CauseContext) -> list[Said]:
    """Return sentences about the copies that a cause concerns, and the speed that they could have."""
    copies = facts.replay.job.copies
    copies = copies.filter(pl.col("edge").is_in(cause.changes[0][0].tolist()))
    edges = copies["edge"].to_numpy()
    operation, _, _ = split_size(facts.edges.key[edges])
    lasts = facts.measure(edges)
    copies = copies.with_columns(operation=operation, time=lasts, count=pl.lit(1, pl.Int64))
    speed, is_here = find_copy_speed(facts.replay)
    here = say("pinned speed", speed=speed, here=is_here, usual=not is_here)
    return [*describe_copies(copies), here]


def _describe_calls(cause: Cause, facts: CauseContext) -> Claim:
    """Return a claim about the most frequent calls, or the kernel with the most GEMMs."""
    edges = cause.changes[0][0]
    lasts, advice, is_product = facts.measure(edges), "", cause.kind == "tensor_cores"
    sums = facts.replay.sum_work(edges, "key", lasts=lasts).head(1 if is_product else 2)
    name_one = facts.name_kernel if is_product else facts.name_call
    key, speed_up = "product" if is_product else "calls", TENSOR_SPEED_UP
    evidence = [
        say(key, name=name_one(name), time=time, count=count, speed_up=speed_up)
        for name, time, count in sums.rows()
    ]
    if is_product:
        advice = _advise_products(facts)
    else:
        evidence += _list_busy(facts, edges)
    worst, _ = _list_saved(cause, facts)
    return Claim(cause.kind, evidence, worst, lasts.sum(), advice=advice)


def _describe_slow_products(cause: Cause, facts: CauseContext) -> Claim:
    """Return a claim about products far below the rate that their shapes allow, and the rate of
    other products.
    """
    slow = find_slow_products(facts.frames["shapes"], facts.context)
    by = ("range", "name", "operations", "allowed_tflop_s", "mask", "usual")
    sums = slow.group_by(by).agg(pl.col("count", "time_ns", "target_ns", "all").sum())
    sums = sums.sort(pl.col("time_ns") - pl.col("target_ns"), "operations", descending=True)
    most = sums.row(0, named=True)
    measured = say(
        "slow product",
        range=facts.context.find_label(most["range"], "nvtx"),
        kernel=facts.name_kernel(most["name"]),
        operations=most["operations"] / 1e9,
        count=most["count"],
        time=most["time_ns"],
        speed=most["all"] / most["time_ns"] / 1e3,
        allowed=most["allowed_tflop_s"],
        reached=most["usual"],
        unmasked=most["mask"] == "not known",
    )
    worst, _ = _list_saved(cause, facts)
    saved = float((sums["time_ns"] - sums["target_ns"]).sum())
    return Claim("slow_products", [measured], worst, saved)


def _advise_products(facts: CauseContext) -> str:
    """Return advice (key of ADVICE) for using the GPUs' Tensor Cores in GEMMs."""
    devices, gpus = {*facts.frames["products"]["device"]}, dict(facts.options.gpus)
    models = {model for device in devices for model in gpus.get(device) or [""]}
    modern = select_gpus(models, "no_tensor_cores", "no_tf32")
    is_sure = modern == models and "" not in models
    return "tf32" if is_sure else "some_tf32" if modern else "tensor_cores"


def _find_gained(cause: Cause, facts: CauseContext, mean: float) -> float | None:
    """Return the savings (ns) if they exceed the average per rank (ns); otherwise None."""
    gained = cause.gain * facts.replay.span
    return gained if gained >= MORE * mean else None


def _describe_transfers(cause: Cause, facts: CauseContext) -> Claim:
    """Return a claim about the waits of ranks after the last rank arrived. If much data is
    transferred, they wait for data.
    """
    columns = facts.edges
    edges = cause.changes[0][0]
    work = facts.replay.list_work(np.setdiff1d(edges, facts.replay.find_shared_links()))
    name, of_bytes, _ = split_size(columns.size[work["edge"].to_numpy()])
    work = work.with_columns(name=pl.Series(name), bytes=pl.Series(2.0 ** (of_bytes / 4)))
    sums = work.group_by("kind", "name").agg(
        pl.col("lasts").sum(), count=pl.len(), bytes=pl.col("bytes").mean()
    )
    sums = sums.sort(-pl.col("lasts"), "kind", "name")
    ranks, evidence, of_names = max(len(facts.replay.list_compared(GPU)), 1), list[Said | str](), []
    whole = float(sums["lasts"].sum())
    # Without a match, the last rank's arrival is unknown.
    matched = bool((columns.key[edges] > 0).all())
    for kind, value, lasts, count, _ in sums.head(2).rows():
        own = work.filter(kind=kind, name=value)
        is_first = not of_names
        of_names.append((own["edge"].to_numpy(), own["lasts"].to_numpy()))
        evidence.append(
            say(
                "transfer",
                name=facts.name_transfers(*of_names[-1]),
                time=lasts / ranks,
                whole=whole / ranks if is_first and sums.height > 1 else None,
                count=round(count / ranks),
                matched=matched,
                unmatched=not matched,
                each=lasts / count,
                gained=_find_gained(cause, facts, whole / ranks) if is_first else None,
            )
        )
    advice = "transfers"
    if not matched:
        advice = "reports"
    elif sums["kind"][0] == Kind.NCCL:
        gain = facts.replay.compute_gain(overlap_transfers(facts.replay))
        longer = find_beside(facts.replay).ratio - 1
        evidence.insert(1, say("overlap", gain=max(gain, 0.0), longer=longer or None))
        advice = advice if gain >= cause.gain / 2 else "no_overlap"
    channels = (facts.replay.job.channels[key][1] for key in work["key"].unique())
    between = {hosts for hosts in channels if len(hosts) > 1}
    if len(between) == 1:
        evidence.append(say("one link", hosts=list_some(next(iter(between)))))
    title = None if matched else say("unmatched transfers")
    kind, value, lasts, count, moved = sums.row(0)
    if (
        kind == Kind.MPI
        and max(moved * count, LONG_TRANSFER * SLOW_LINK * count) < SLOW_LINK * lasts
    ):
        label, is_most = facts.name_transfer(Kind.MPI, value), 2 * lasts > whole
        several = sums.height > 1
        part = ("most" if is_most else "longest") if several else "only"
        title = say("little data", several=several, **{part: label})
        advice = "files" if is_most and label.startswith("MPI_File") else "little_data"
    return Claim("transfers", evidence, of_names[0], whole, title, advice)


def _describe_contention(cause: Cause, facts: CauseContext) -> Claim:
    """Return a claim about how much longer kernels run while they overlap NCCL kernels, and about
    the kernel with the largest loss.
    """
    edges, saved = facts.replay.list_saved(cause.changes)
    ranks = max(len(facts.replay.list_compared(GPU)), 1)
    time = facts.measure(edges).sum() / ranks
    each = {"count": len(edges) / ranks, "saved": saved.sum() / ranks, "time": time}
    evidence: list[Said | str] = [say("slowed", **each)]
    worst = facts.keep_name(edges, saved)
    places = find_beside(facts.replay).places
    least = pl.min_horizontal("times_alone", "times_beside")
    places = places.filter(pl.col("name") == int(facts.edges.key[worst[0][0]]), least > 0)
    if places.height:
        place = places.sort(least, "beside").row(-1, named=True)
        of = ("alone", "beside", "times_alone", "times_beside")
        kernel = facts.name_kernel(place["name"])
        evidence.append(say("slowed kernel", kernel=kernel, **{name: place[name] for name in of}))
    return Claim("contention", evidence, worst, saved.sum(), is_limit=True)


def _describe_messages(cause: Cause, facts: CauseContext) -> Claim:
    """Return a claim about how ranks wait for messages; in a pipeline, about its bubble."""
    own, waits = (edges for edges, _ in cause.changes)
    columns = facts.edges
    begins, ends = facts.find_times(own)[0], columns.target[own]
    order = np.argsort(ends)
    begin = np.append(begins[order], 0)[np.searchsorted(ends[order], columns.target[waits])]
    met, _ = facts.find_times(waits)
    lasts = np.clip(met - begin, 0, None)
    longest = int(np.argmax(lasts))
    mean = lasts.sum() / len(facts.replay.list_compared(GPU))
    gained = _find_gained(cause, facts, mean)
    name = facts.name_transfers(waits, lasts)
    evidence = [say("late messages", name=name, mean=mean, gained=gained)]
    pipeline, key = facts.replay.pipeline, "messages"
    title = None
    if pipeline and cause.gain > OF_FORMULA * (pipeline.bubble or USUAL_BUBBLE):
        key, count = "pipeline", len(pipeline.stages)
        title = say(key, count=count, waiting=facts.waiting)
        stages = [
            facts.job.describe_ranks([process + 1 for process in stage])
            for stage in pipeline.stages[:MOST_STAGES]
        ]
        stages += ["..."] * (count > MOST_STAGES)
        evidence.insert(0, say("stages", stages="; ".join(stages)))
        if pipeline.bubble:
            rounds = pipeline.rounds if pipeline.rounds > 1 else None
            of = {"count": count, "micro_batches": pipeline.micro_batches, "rounds": rounds}
            evidence.insert(0, say("formula", bubble=pipeline.bubble, **of))
    ranks = facts.job.list_ranks([int(columns.process[waits[longest]]) + 1])
    moment = (int(begin[longest]), int(met[longest]), ranks)
    return Claim(key, evidence, (waits, lasts), lasts.sum(), title, moment=moment)


def _describe_place(cause: Cause, facts: CauseContext) -> Claim:
    """Return a claim about the duration and number of a call, of the time between two calls, or of
    several of these.
    """
    edges = cause.changes[0][0]
    lasts = facts.measure(edges)
    most, _ = facts.keep_name(edges, lasts)
    kind, key = cause.place or (Kind.GAP, int(facts.edges.key[most[0]]))
    gained, whole = cause.gain * facts.replay.span, lasts.sum()
    several = len(edges) > 1
    is_less = len(facts.replay.list_compared(HOST)) == 1 and gained < MOST_IN_FIRST * whole
    measured = say(
        "times" if several else "once for",
        count=len(edges),
        whole=whole,
        gained=gained if is_less else None,
        median=float(np.median(lasts)),
        longest=lasts.max(),
    )
    describe = _describe_call if kind == Kind.CALL else _describe_pause
    claim = describe(cause, facts, key, lasts, measured)
    return replace(claim, states=whole, worst=facts.replay.list_saved(cause.changes))


def _describe_call(
    cause: Cause, facts: CauseContext, key: int, lasts: np.ndarray, measured: Said
) -> Claim:
    edges, name = cause.changes[0][0], facts.name_call(key)
    longest = np.argmax(lasts)
    is_most = lasts[longest] > MOST_IN_FIRST * lasts.sum()
    is_mpi, is_first = name.startswith("MPI_"), False
    # Calls of MPI wait for ranks, and set nothing up.
    waits = is_mpi and "Init" not in name
    advice = "" if waits else _advise_once(lasts)
    advice = advice or choose_advice("calls", call=name) or "rarely"
    if is_most and not waits and edges[longest] in facts.replay.find_first_calls([key]):
        advice, is_first = "startup", True
    elif "Launch" in name and (first := _launch_anew(facts.replay, edges)).any():
        loading = lasts[first].sum()
        measured = say(
            "loading", measured=measured, count=int(first.sum()), time=loading, whole=lasts.sum()
        )
        if loading > lasts.sum() / 2:
            advice = "module_loading"
    # Sent data must be ready, so some of these waits are needed.
    is_needed = "Synchronize" in name and bool(facts.context.reader.layouts & {*MPI_LAYOUTS})
    title = say("wait in call", call=name, first=is_first)
    kind = "mpi_call" if is_mpi else "call"
    evidence = [measured, *_list_busy(facts, edges)]
    return Claim(kind, evidence, (edges, lasts), 0, title, advice, is_limit=is_needed)


def _list_busy(facts: CauseContext, edges: np.ndarray) -> list[Said]:
    """Return sentences about how much of some calls GPUs work, if this matters."""
    busy = facts.measure_busy(edges)
    return [say("while busy", share=busy)] if busy >= LEAST_NAMED else []


def _advise_once(lasts: np.ndarray) -> str:
    """Return advice (key of ADVICE) if a single occurrence takes most of the time (ns), otherwise
    "".
    """
    is_most = lasts.max(initial=0) > MOST_IN_FIRST * lasts.sum()
    return ("mostly_once" if len(lasts) > 1 else "once") if is_most else ""


def _describe_pause(
    cause: Cause, facts: CauseContext, place: int, lasts: np.ndarray, measured: Said
) -> Claim:
    edges, where = cause.changes[0][0], facts.name_place(Kind.GAP, place)
    pauses = facts.find_pauses(edges)
    described, advice = [*pauses.describe()], pauses.advice
    _, after = split_place(place)
    waits = pauses.call if advice == "waits" or after == WAITED else None
    # A place that hardly any other rank has cannot be compared with the others'.
    by_process = np.bincount(np.maximum(facts.edges.process[edges], 0), lasts)
    is_own = (
        len(facts.replay.list_compared(HOST)) > 2 and by_process.max() >= NEARLY_ALL * lasts.sum()
    )
    longest = int(by_process.argmax())
    # A process that hands work to others has places that the others do not have, and is not at fault for
    # that.
    waiters = [*facts.describe_waiters([longest])] if after == HANDOFF else []
    is_own = is_own and not waits and after not in (HANDOFF, WAITED)
    tasks = (longest + 1,) if is_own else ()
    who = facts.name_processes([longest]) if tasks or waiters else ""
    key = "requests" if waits else "own pause" if tasks else "handed" if waiters else "pause"
    title = say(
        key,
        who=who,
        waiting=facts.waiting,
        where=where,
        others=not cause.place,
        call=waits.name if waits else "",
    )
    # If nothing repeats and nothing is recorded, a pause may be a wait for requests.
    may_wait = bool(waits) or not (described or facts.options.steady)
    is_regular = len(lasts) >= FEWEST_PAUSES and lasts.max() <= REGULAR * np.median(lasts)
    evidence: list[Said | str] = [measured, *described, *waiters]
    gain = cause.gain
    if may_wait:
        gain *= _leave_common(facts, edges, lasts)
        if (bound := _replay_requests(facts, place)) and bound < gain:
            evidence.append(say("unknown requests", gain=gain))
            gain = bound
    return Claim(
        "gap",
        [*evidence, *facts.list_unrecorded(described)],
        (edges, lasts),
        0,
        title,
        "hand-off" if waiters else advice or _advise_once(lasts),
        tasks=tasks,
        gain=gain,
        is_limit=(may_wait and not is_regular) or after == WAITED,
    )


def _leave_common(facts: CauseContext, pauses: np.ndarray, lasts: np.ndarray) -> float:
    """Return the share of pauses (ns) without the longest one of each process, if these take most
    of the time and end together: their cause is then outside the job. Otherwise return 1.
    """
    process = facts.edges.process[pauses]
    frame = pl.DataFrame({"process": process, "lasts": lasts, "end": facts.find_times(pauses)[1]})
    longest = frame.sort("lasts").group_by("process").last()
    near = np.diff(np.sort(longest["end"].to_numpy())) < TOGETHER
    left = 1 - longest["lasts"].sum() / max(lasts.sum(), 1)
    is_common = len(near) and (np.append(near, False) | np.append(False, near)).all()
    return left if is_common and left <= 1 - MOST_IN_FIRST else 1.0


def _replay_requests(facts: CauseContext, place: int) -> float:
    """Return the share of the job that is saved without host pauses at a place, assuming that work
    after a pause with unusual calls serves a request that arrived since the previous pause.

    Return 0 if calls never differ or mostly do, or if a process serves alone.
    """
    job, edges = facts.replay.job, facts.replay.job.graph.edges
    # Replicas serve longer or shorter, so all of the job counts.
    whole = Replay(job, 0, facts.context.duration)
    pauses, ends, shortened = whole.select((Kind.GAP,), [place]), [], []
    for process in np.unique(edges.process[pauses]).tolist():
        paused, begin = facts.find_times(pauses[edges.process[pauses] == process])
        paused, begin = np.sort(paused), np.sort(begin)
        calls = whole.select((Kind.CALL,), processes=[process])
        at, until = facts.find_times(calls)
        step = np.searchsorted(begin, at, "right") - 1
        names = pl.DataFrame({"step": step, "name": edges.key[calls]}).filter(pl.col("step") >= 0)
        kinds = names.unique().sort("step", "name").group_by("step", maintain_order=True)
        kinds = kinds.agg(pl.col("name").cast(pl.String).str.join(" "))
        usual = kinds["name"].value_counts(sort=True)["name"][0]
        is_other = np.ones(len(begin), bool)
        is_other[kinds["step"].to_numpy()] = (kinds["name"] != usual).to_numpy()
        # The end of the job follows the last one.
        is_other[[0, -1]] = False
        if not 0 < is_other.sum() < len(begin) / 2 or len(begin) < FEWEST_PAUSES:
            return 0.0
        # Work follows at once unless its request has not arrived: at the begin, or at the previous pause.
        work = np.append(0, np.cumsum(paused[1:] - begin[:-1]))
        is_other[0] = True
        late, early = (
            np.max((came - work)[is_other]) + work[-1]
            for came in (begin, np.append(begin[0], begin[:-1]))
        )
        ends.append(until.max())
        shortened.append(until.max() - begin[-1] + (late + early) / 2)
    if len(ends) < 2:
        return 0.0
    return float(max(ends) - max(shortened)) / facts.context.duration


def _launch_anew(replay: Replay, calls: np.ndarray) -> np.ndarray:
    """Return a mask of the calls that launch a kernel for the first time in their process."""
    graph, edges = replay.graph, replay.edges
    work = np.flatnonzero(edges.kind == Kind.KERNEL)
    work = work[np.argsort(graph.time[edges.source[work]], kind="stable")]
    pairs = replay.list_work(work).select("key", "process")
    anew = edges.source[work[pairs.to_struct().is_first_distinct().to_numpy()]]
    launches = graph.find_edges(anew, (Kind.LAUNCH,))
    sent = edges.source[launches[launches >= 0]]
    return np.isin(edges.source[calls], sent) | np.isin(edges.target[calls], sent)


#: Kind of cause -> function that measures it; all others concern calls of a family, or GEMMs.
_DESCRIBE = {
    "imbalance": _describe_imbalance,
    "host_time": _describe_host_time,
    "launching": _describe_host_time,
    "pageable": _describe_pageable,
    "place": _describe_place,
    "pauses": _describe_place,
    "messages": _describe_messages,
    "transfers": _describe_transfers,
    "contention": _describe_contention,
    "slow_products": _describe_slow_products,
}
