"""Findings of single calls, and of places between calls, that others wait for, in words."""

from __future__ import annotations

import re

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv._util.text import capitalize
from nsys2prv.analysis.cause_context import CauseContext
from nsys2prv.analysis.finding_texts import ADVICE, CALLS
from nsys2prv.analysis.result import Finding
from nsys2prv.analysis.text import format_nanoseconds
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.replay.causes import Cause
from nsys2prv.replay.graph import Kind
from nsys2prv.replay.whatif import Replay

#: A call that sets something up the first time has this share of all its time then.
MOST_IN_FIRST = 0.8
#: A rank has a place to itself that has so much of its time.
NEARLY_ALL = 0.9
#: Fewer pauses of a process tell nothing of requests.
FEWEST_PAUSES = 10
#: What is said of hosts that wait most of the time, where it is not known for what.
OFF_CPU = re.compile(r"the host is \d+% off the CPU")
#: A pause that is spent in such a call waits for requests, or for another process.
WAITS = re.compile(r" in (poll|ppoll|epoll_\w+|p?select\w*|accept\w*|recv\w*)$")


def describe_place(cause: Cause, facts: CauseContext) -> Finding:
    """Return the finding of a call, or of the time between two calls."""
    assert cause.place is not None
    kind, key = cause.place
    edges = cause.changes[0][0]
    lasts = facts.places.measure(edges)
    longest, median = float(lasts.max()), float(np.median(lasts))
    measured = f"once, for {format_nanoseconds(longest)}"
    if len(edges) > 1:
        measured = (
            f"{len(edges):,} times, {format_nanoseconds(float(lasts.sum()))} in all, "
            f"{format_nanoseconds(median)} in the median, {format_nanoseconds(longest)} at most"
        )
    describe = _describe_call if kind == Kind.CALL else _describe_pause
    return describe(cause, facts, key, lasts, measured)


def _describe_call(
    cause: Cause, facts: CauseContext, key: int, lasts: np.ndarray, measured: str
) -> Finding:
    edges, name = cause.changes[0][0], facts.places.name_call(key)
    title = f"Hosts wait in {name}."
    advice = next(text for part, text in CALLS.items() if part in name)
    if len(edges) == 1:
        advice = ADVICE["once"]
    longest = np.argmax(lasts)
    is_most = lasts[longest] > MOST_IN_FIRST * lasts.sum()
    if is_most and edges[longest] in facts.replay.find_first_calls([key]):
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


def _describe_pause(
    cause: Cause, facts: CauseContext, key: int, lasts: np.ndarray, measured: str
) -> Finding:
    edges, where = cause.changes[0][0], facts.places.name_place(Kind.GAP, key)
    pauses = [*facts.places.describe_pauses(edges)]
    advice = "once" if len(edges) == 1 else "gap"
    title = f"{facts.waiting} wait for hosts {where}."
    if pauses and OFF_CPU.match(pauses[0]):
        advice = "off_cpu"
    # A place that hardly any other rank has cannot be compared with the others'.
    process = np.maximum(facts.replay.job.graph.edges.process[edges], 0)
    by_process = np.bincount(process, lasts)
    tasks: list[int] = []
    if waits := WAITS.search(pauses[-1]) if pauses else None:
        advice = "waits"
        title = f"{facts.waiting} wait for hosts that wait in {waits[1]}: for requests, or another process."
    elif len(facts.replay.processes) > 2 and by_process.max() >= NEARLY_ALL * lasts.sum():
        tasks = [int(by_process.argmax()) + 1]
        who = capitalize(facts.job.describe_ranks(tasks))
        title = f"{who}: {facts.waiting} wait for its host {where}."
    # Where nothing repeats and nothing is recorded, a pause may be one for requests.
    may_wait = bool(waits) or not (pauses or facts.context.options.steady)
    evidence = [", ".join([measured, *pauses])]
    if may_wait and (bound := _replay_requests(facts, key)) and bound < cause.gain:
        evidence.append(
            "when requests come is not recorded: the gain is that if they come shortly before the host begins "
            f"other work than it usually does there; {cause.gain:.1%} if none is waited for"
        )
        cause = replace(cause, gain=bound)
    return facts.make_finding(
        cause,
        "gap",
        title,
        [*evidence, *facts.list_unrecorded(pauses)],
        facts.replay.list_saved(cause.changes),
        tasks=tasks,
        advice=ADVICE[advice],
        at_most=may_wait,
    )


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
        paused, begin = facts.places.find_times(pauses[edges.process[pauses] == process])
        paused, begin = np.sort(paused), np.sort(begin)
        calls = whole.select((Kind.CALL,), processes=[process])
        at, until = facts.places.find_times(calls)
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
