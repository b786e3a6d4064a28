"""Findings of causes that are of no rank, in words: all of one sort of work or waiting (unequal work,
transfers, messages, the time of hosts, copies, calls of a family, matrix products), single calls,
and places between calls.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv._util.text import capitalize, format_count, format_nanoseconds, list_some
from nsys2prv.events.catalogue import map_labels
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.figures.host_time import describe_parts, select_gpus, sum_parts
from nsys2prv.figures.result import Finding
from nsys2prv.replay.causes import USUAL_COPY_SPEED, Cause, measure_pinned_speed
from nsys2prv.replay.graph import Kind, split_size
from nsys2prv.replay.job_graph import TOGETHER
from nsys2prv.replay.whatif import GPU, HOST, TENSOR_SPEED_UP, Replay, sum_lasts
from nsys2prv.verdict.cause_context import CauseContext
from nsys2prv.verdict.host_use import ADVICE, TEXTS
from nsys2prv.verdict.time_use import advise_call, describe_copies

#: Of MPI, a transfer of fewer bytes that takes longer (ns) is not held up by the network.
LITTLE_DATA, LONG_TRANSFER = 1 << 16, 500_000
#: What is lost to messages in chains is a pipeline's bubble if it is so many times what the formula
#: says, or more, where that is not known this. So many stages are named.
OF_FORMULA, USUAL_BUBBLE, MOST_STAGES = 0.5, 0.2, 4
#: More is gained than a rank has of it on average if it is so many times as much.
MORE = 1.1
#: Part of the time of hosts from which on a place is named.
LEAST_NAMED = 0.1
#: Kinds of causes of all that hosts do; so much of it between launches and the begins of work is none of theirs.
OF_TIME, OF_LATENCY = ("host_time", "launching"), 0.5
#: A call that sets something up the first time has this share of all its time then.
MOST_IN_FIRST = 0.8
#: So much of the time of hosts is all of it, as people are told.
NEARLY_UNKNOWN = 0.995
#: A rank has a place to itself that has so much of its time.
NEARLY_ALL = 0.9
#: Fewer pauses of a process tell nothing of requests, which come at random: the longest wait is so many
#: times as long as the median, or more.
FEWEST_PAUSES, REGULAR = 10, 4


def describe_job_cause(cause: Cause, facts: CauseContext) -> Finding:
    """Return the finding of a cause that is of no rank."""
    if describe := _DESCRIBE.get(cause.kind):
        return describe(cause, facts)
    measure = _MEASURE.get(cause.kind, _measure_calls)
    titles, places = TEXTS["titles"], facts.host_places[:1]
    is_latency = any(kind == Kind.LAUNCH and share > OF_LATENCY for kind, _, share in places)
    title = titles["latency" if is_latency and cause.kind in OF_TIME else cause.kind]
    title = title.format(waiting=facts.waiting)
    worst = _list_named(cause, facts)
    advice = _ADVISE[cause.kind](facts) if cause.kind in _ADVISE else ""
    return facts.make_finding(cause, cause.kind, title, measure(cause, facts), worst, advice=advice)


def _advise_hosts(facts: CauseContext) -> str:
    """Say what helps against what hosts do most of the time on the critical path."""
    kind, key, _ = next(iter(facts.host_places), (Kind.LAUNCH, 0, 0.0))
    edges, lasts = _find_on_path(facts, kind, key)
    if len(edges) and (once := _advise_once(lasts)):
        is_first = edges[np.argmax(lasts)] in facts.replay.find_first_calls([key])
        return ADVICE["startup"] if kind == Kind.CALL and is_first else once
    if kind == Kind.CALL:
        name = facts.name_call(key)
        return advise_call(name, facts.frames["copies"])
    return facts.advise("gap" if kind == Kind.GAP else "latency")


def _find_on_path(facts: CauseContext, kind: int, key: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the edges of a kind and key on the critical path, and how long each lasts (ns)."""
    path, edges = facts.replay.path, facts.replay.job.graph.edges
    own = path[(edges.kind[path] == kind) & (edges.key[path] == key)]
    return own, facts.measure(own)


def _list_named(cause: Cause, facts: CauseContext) -> tuple[np.ndarray, np.ndarray]:
    """Return the edges of the name that most of what a cause saves has, and what they save (ns): of
    the time of hosts, those that the evidence names.
    """
    if cause.kind in OF_TIME and facts.host_places:
        kind, key, _ = facts.host_places[0]
        edges, saved = facts.replay.list_saved(cause.changes, kind=kind, key=key)
        return (edges, saved) if len(edges) else facts.replay.list_saved(cause.changes)
    return facts.keep_name(*facts.replay.list_saved(cause.changes))


def _measure_imbalance(cause: Cause, facts: CauseContext) -> Iterator[str]:
    work = facts.replay.tabulate(GPU if facts.job.has_gpus else HOST).by_key[1].sum(axis=0)
    mean, least, most = (
        format_nanoseconds(float(one)) for one in (work.mean(), work.min(), work.max())
    )
    yield (
        f"work of a rank: {mean} on average, from {least} to {most}; the difference within single iterations "
        "is greater"
    )
    edges, saved = _list_named(cause, facts)
    if len(edges):
        yield f"most of it is {facts.name_work(edges, saved)}"


def _measure_host_time(cause: Cause, facts: CauseContext) -> Iterator[str]:
    named = [
        f"{share:.0%} {facts.name_place(Kind(kind), key)}"
        for kind, key, share in facts.host_places[:2]
        if share >= LEAST_NAMED
    ]
    if named:
        _, lasts = _find_on_path(facts, *facts.host_places[0][:2])
        longest = format_nanoseconds(float(lasts.max(initial=0)))
        once = f", {longest} of it at once" if len(lasts) and _advise_once(lasts) else ""
        yield f"of the hosts' time on the critical path: {', '.join(named)}{once}"
    if not any(kind == Kind.GAP for kind, _, share in facts.host_places if share >= LEAST_NAMED):
        return
    parts = sum_parts(facts.frames["hosts"])
    whole, unknown = sum(parts.values()), parts.get("unknown", 0)
    if described := describe_parts(parts):
        yield f"outside of calls of CUDA and MPI, while GPUs are idle, hosts are {described}"
    if unknown > whole / 2:
        yield facts.describe_unrecorded("what hosts do there", unknown < NEARLY_UNKNOWN * whole)


def describe_copies_of(cause: Cause, facts: CauseContext) -> tuple[str, ...]:
    """Return what is copied most, of the copies that a cause changes."""
    copies = facts.replay.job.copies
    copies = copies.filter(pl.col("edge").is_in(cause.changes[0][0].tolist()))
    edges = copies["edge"].to_numpy()
    operation, _, _ = split_size(facts.replay.job.graph.edges.key[edges])
    described = describe_copies(
        copies.with_columns(
            operation=pl.Series(operation, dtype=pl.Int64),
            time=pl.Series(facts.measure(edges), dtype=pl.Int64),
            count=pl.lit(1, pl.Int64),
        )
    )
    speed = measure_pinned_speed(facts.replay, map_labels("memory_kind")["pinned"])
    as_what = "as large copies of pinned memory have here"
    if speed is None:
        speed, as_what = USUAL_COPY_SPEED, "a usual one of pinned memory, which has few copies here"
    return (*described, f"the gain is with a speed of {speed:.1f} GB/s, {as_what}")


def _sum_by_name(cause: Cause, facts: CauseContext) -> Iterator[tuple[int, str]]:
    """Yield the names of what a cause changes, and how long these last, the longest first."""
    edges = cause.changes[0][0]
    sums = facts.replay.sum_work(edges, "key", lasts=facts.measure(edges))
    for name, lasts, count in sums.rows():
        yield name, f"{format_nanoseconds(float(lasts))} in {format_count(count, 'call')}"


def _measure_products(cause: Cause, facts: CauseContext) -> Iterator[str]:
    name, measured = next(_sum_by_name(cause, facts))
    yield (
        f"most in {facts.name_kernel(name)}: {measured}; the gain is of kernels {TENSOR_SPEED_UP:.0f} "
        "times as fast"
    )


def _advise_products(facts: CauseContext) -> str:
    """Say what makes matrix products use the tensor cores that the GPUs have."""
    devices, gpus = {*facts.frames["products"]["device"]}, dict(facts.context.options.gpus)
    models = {model for device in devices for model in gpus.get(device) or [""]}
    modern = select_gpus(models, "no_tensor_cores", "no_tf32")
    is_sure = modern == models and "" not in models
    return ADVICE["tf32" if is_sure else "some_tf32" if modern else "tensor_cores"]


def _measure_calls(cause: Cause, facts: CauseContext) -> Iterator[str]:
    for (name, measured), _ in zip(_sum_by_name(cause, facts), range(2), strict=False):
        yield f"{facts.name_call(name)}: {measured}"


_ADVISE = {"host_time": _advise_hosts, "tensor_cores": _advise_products}
_MEASURE = {
    "imbalance": _measure_imbalance,
    "host_time": _measure_host_time,
    "launching": _measure_host_time,
    "pageable": describe_copies_of,
    "tensor_cores": _measure_products,
}


def _explain_gain(cause: Cause, facts: CauseContext, mean: float) -> str:
    """Return why more is gained than a rank has of it on average (ns); "" where that is not so."""
    gained = cause.gain * facts.replay.span
    if gained < MORE * mean:
        return ""
    return f"; {format_nanoseconds(gained)} are gained, as delays pass from rank to rank"


def _describe_transfers(cause: Cause, facts: CauseContext) -> Finding:
    """Describe what ranks wait in after the last of them has come: for data, where there is much."""
    columns = facts.replay.job.graph.edges
    work = facts.replay.list_work(cause.changes[0][0])
    edges = work["edge"].to_numpy()
    name, of_bytes, _ = split_size(columns.size[edges])
    work = work.with_columns(name=pl.Series(name), bytes=pl.Series(2.0 ** (of_bytes / 4)))
    sums = sum_lasts(work.with_columns(count=1), "kind", "name")
    ranks, evidence, of_names = max(len(facts.replay.processes), 1), [], []
    whole = float(sums["lasts"].sum())
    for kind, value, lasts, count in sums.head(2).rows():
        own = work.filter((pl.col("kind") == kind) & (pl.col("name") == value))
        is_part = sums.height > 1 and not evidence
        of_all = f" (of {format_nanoseconds(whole / ranks)} in all)" if is_part else ""
        of_names.append((own["edge"].to_numpy(), own["lasts"].to_numpy()))
        evidence.append(
            f"{facts.name_transfers(*of_names[-1])}: {format_nanoseconds(lasts / ranks)} per rank{of_all} in "
            f"{format_count(round(count / ranks), 'transfer')}, {format_nanoseconds(lasts / count)} each, from when the last rank has come"
        )
    evidence[0] += _explain_gain(cause, facts, whole / ranks)
    channels = (facts.replay.job.channels[key][1] for key in work["key"].unique())
    between = {hosts for hosts in channels if len(hosts) > 1}
    if len(between) == 1:
        hosts = list_some(next(iter(between)))
        evidence.append(
            f"all that leaves a host is between {hosts}: whose link is slow, if one is, cannot be told without network metrics (--nic-metrics)"
        )
    title, advice = TEXTS["titles"]["transfers"], "transfers"
    kind, value, lasts, count = sums.row(0)
    moved = work.filter((pl.col("kind") == kind) & (pl.col("name") == value))["bytes"].mean()
    if kind == Kind.MPI and moved < LITTLE_DATA and lasts > LONG_TRANSFER * count:
        label = facts.name_transfer(Kind.MPI, value)
        is_most = 2 * lasts > whole
        part = "most" if is_most else "longest"
        calls = f"MPI calls, {part} in {label}," if sums.height > 1 else label
        title = f"Ranks wait in {calls} after the last rank has come, with little data."
        advice = "files" if is_most and label.startswith("MPI_File") else "little_data"
    return facts.make_finding(
        cause, "transfers", title, evidence, of_names[0], advice=ADVICE[advice]
    )


def _describe_messages(cause: Cause, facts: CauseContext) -> Finding:
    """Say that ranks wait for messages: of a pipeline, that it has a bubble."""
    own, waits = (edges for edges, _ in cause.changes)
    columns = facts.replay.job.graph.edges
    begins, ends = facts.find_times(own)[0], columns.target[own]
    order = np.argsort(ends)
    begin = np.append(begins[order], 0)[np.searchsorted(ends[order], columns.target[waits])]
    met, _ = facts.find_times(waits)
    lasts = np.clip(met - begin, 0, None)
    longest = int(np.argmax(lasts))
    mean = lasts.sum() / len(facts.replay.processes)
    evidence = [
        f"{facts.name_transfers(waits, lasts)}: ranks wait {format_nanoseconds(mean)} on average until the "
        f"other side has come{_explain_gain(cause, facts, mean)}"
    ]
    pipeline, key, title = facts.pipeline, "messages", TEXTS["titles"]["messages"]
    if pipeline and cause.gain > OF_FORMULA * (pipeline.bubble or USUAL_BUBBLE):
        key, count = "pipeline", len(pipeline.stages)
        title = f"The pipeline of {count} stages has a bubble: {{waiting}} wait for other stages."
        stages = [
            facts.job.describe_ranks([process + 1 for process in stage])
            for stage in pipeline.stages[:MOST_STAGES]
        ]
        evidence.insert(0, f"stages: {'; '.join([*stages, *['...'][: count - MOST_STAGES]])}")
        if pipeline.bubble:
            evidence.insert(
                0,
                f"(p-1)/(m+p-1) = {pipeline.bubble:.1%} with p = {count} stages and m = "
                f"{pipeline.micro_batches} micro-batches in an iteration",
            )
    ranks = facts.job.list_ranks([int(columns.process[waits[longest]]) + 1])
    moment = (int(begin[longest]), int(met[longest]), ranks)
    title = title.format(waiting=facts.waiting)
    return facts.make_finding(cause, key, title, evidence, moments=(moment,))


def _describe_place(cause: Cause, facts: CauseContext) -> Finding:
    """Return the finding of a call, or of the time between two calls, or several."""
    edges = cause.changes[0][0]
    lasts = facts.measure(edges)
    most, _ = facts.keep_name(edges, lasts)
    kind, key = cause.place or (Kind.GAP, int(facts.replay.job.graph.edges.key[most[0]]))
    longest, median = float(lasts.max()), float(np.median(lasts))
    measured = f"once, for {format_nanoseconds(longest)}"
    if len(edges) > 1:
        gained, whole = cause.gain * facts.replay.span, float(lasts.sum())
        is_less = len(facts.replay.processes) == 1 and gained < MOST_IN_FIRST * whole
        less = f" ({format_nanoseconds(gained)} of it hold the job back)" if is_less else ""
        measured = (
            f"{len(edges):,} times, {format_nanoseconds(whole)} in all{less}, "
            f"{format_nanoseconds(median)} in the median, {format_nanoseconds(longest)} at most"
        )
    describe = _describe_call if kind == Kind.CALL else _describe_pause
    return describe(cause, facts, key, lasts, measured)


def _describe_call(
    cause: Cause, facts: CauseContext, key: int, lasts: np.ndarray, measured: str
) -> Finding:
    edges, name = cause.changes[0][0], facts.name_call(key)
    title = f"Hosts wait in {name}."
    longest = np.argmax(lasts)
    is_most = lasts[longest] > MOST_IN_FIRST * lasts.sum()
    # Calls of MPI wait for ranks, and set nothing up.
    waits = name.startswith("MPI_") and "Init" not in name
    advice = "" if waits else _advise_once(lasts)
    advice = advice or advise_call(name, facts.frames["copies"])
    if is_most and not waits and edges[longest] in facts.replay.find_first_calls([key]):
        title = f"Hosts wait in the first {name} of a process."
        advice = ADVICE["startup"]
    elif "Launch" in name and (first := _launch_anew(facts.replay, edges)).any():
        loading = float(lasts[first].sum())
        measured += f"; {first.sum():,} that launch a kernel for the first time: {format_nanoseconds(loading)}"
        if loading > lasts.sum() / 2:
            advice = ADVICE["module_loading"]
    kind = "mpi_call" if name.startswith("MPI_") else "call"
    # What is sent must be ready: some of these waits are needed.
    is_needed = "Synchronize" in name and bool(facts.context.reader.layouts & {*MPI_LAYOUTS})
    worst = facts.replay.list_saved(cause.changes)
    return facts.make_finding(
        cause, kind, title, [measured], worst, advice=advice, at_most=is_needed
    )


def _advise_once(lasts: np.ndarray) -> str:
    """Return what helps where a single one lasts most of the time (ns); empty where none does."""
    is_most = lasts.max() > MOST_IN_FIRST * lasts.sum()
    return f"{'most of ' if len(lasts) > 1 else ''}{ADVICE['once']}" if is_most else ""


def _describe_pause(
    cause: Cause, facts: CauseContext, place: int, lasts: np.ndarray, measured: str
) -> Finding:
    edges, where = cause.changes[0][0], facts.name_place(Kind.GAP, place)
    where += "" if cause.place else " and at other places"
    pauses = facts.find_pauses(edges)
    described, key = [*pauses.describe()], pauses.advice
    advice = ADVICE[key] if key else _advise_once(lasts) or ADVICE["gap"]
    title = f"{facts.waiting} wait for hosts {where}."
    # A place that hardly any other rank has cannot be compared with the others'.
    process = np.maximum(facts.replay.job.graph.edges.process[edges], 0)
    by_process = np.bincount(process, lasts)
    tasks: list[int] = []
    waits = pauses.call if key == "waits" else None
    if waits:
        title = f"{facts.waiting} wait for hosts that wait in {waits.name}: for requests, or another process."
    elif len(facts.replay.processes) > 2 and by_process.max() >= NEARLY_ALL * lasts.sum():
        tasks = [int(by_process.argmax()) + 1]
        who = capitalize(facts.job.describe_ranks(tasks))
        title = f"{who}: {facts.waiting} wait for its host {where}."
    # Where nothing repeats and nothing is recorded, a pause may be one for requests.
    may_wait = bool(waits) or not (described or facts.context.options.steady)
    is_regular = len(lasts) >= FEWEST_PAUSES and lasts.max() <= REGULAR * np.median(lasts)
    evidence = [", ".join([measured, *described])]
    if may_wait:
        cause = replace(cause, gain=cause.gain * _leave_common(facts, edges, lasts))
    if may_wait and (bound := _replay_requests(facts, place)) and bound < cause.gain:
        evidence.append(
            "when requests come is not recorded: the gain is for requests that come shortly before the host "
            f"begins work unlike the usual there, and {cause.gain:.1%} if no work waits for one"
        )
        cause = replace(cause, gain=bound)
    return facts.make_finding(
        cause,
        "gap",
        title,
        [*evidence, *facts.list_unrecorded(described)],
        facts.replay.list_saved(cause.changes),
        tasks=tasks,
        advice=advice,
        at_most=may_wait and not is_regular,
    )


def _leave_common(facts: CauseContext, pauses: np.ndarray, lasts: np.ndarray) -> float:
    """Return the share of pauses (ns) without the longest one of each process, where these are most of
    the time and end together: what they wait for comes from outside of the job. Else 1.
    """
    process = facts.replay.job.graph.edges.process[pauses]
    frame = pl.DataFrame({"process": process, "lasts": lasts, "end": facts.find_times(pauses)[1]})
    longest = frame.sort("lasts").group_by("process").last()
    near = np.diff(np.sort(longest["end"].to_numpy())) < TOGETHER
    left = 1 - longest["lasts"].sum() / max(lasts.sum(), 1)
    is_common = len(near) and (np.append(near, False) | np.append(False, near)).all()
    return left if is_common and left <= 1 - MOST_IN_FIRST else 1.0


def _replay_requests(facts: CauseContext, place: int) -> float:
    """Return the share of the job that is gained without pauses of hosts at a place if work behind one
    whose calls differ from the usual is for a request that has come since the pause before; 0 where
    it never differs or mostly does, or a process serves alone.
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
        # Work follows at once unless its request has not come: at the begin, or the one before.
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
    """Return which calls launch a kernel that their process has not launched before."""
    graph, edges = replay.job.graph, replay.job.graph.edges
    work = np.flatnonzero(edges.kind == Kind.KERNEL)
    work = work[np.argsort(graph.time[edges.source[work]], kind="stable")]
    pairs = replay.list_work(work).select("key", "process")
    anew = edges.source[work[pairs.to_struct().is_first_distinct().to_numpy()]]
    launches = graph.find_edges(anew, (Kind.LAUNCH,))
    sent = edges.source[launches[launches >= 0]]
    return np.isin(edges.source[calls], sent) | np.isin(edges.target[calls], sent)


#: Kind of cause -> what makes its finding; all others by what they change.
_DESCRIBE = {
    "place": _describe_place,
    "pauses": _describe_place,
    "messages": _describe_messages,
    "transfers": _describe_transfers,
}
