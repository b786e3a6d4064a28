"""Findings of single calls, and of places between calls, that others wait for, in words."""

from __future__ import annotations

import re

import numpy as np

from nsys2prv._util.text import capitalize
from nsys2prv.analysis.cause_context import CauseContext
from nsys2prv.analysis.finding_texts import ADVICE, CALLS
from nsys2prv.analysis.result import Finding
from nsys2prv.analysis.text import format_nanoseconds
from nsys2prv.replay.causes import Cause
from nsys2prv.replay.graph import Kind
from nsys2prv.replay.whatif import Replay

#: A call that sets something up the first time has this share of all its time then.
MOST_IN_FIRST = 0.8
#: A rank has a place to itself that has so much of its time.
NEARLY_ALL = 0.9
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
    worst = facts.replay.list_saved(cause.changes)
    return facts.make_finding(cause, kind, title, [measured], worst, advice=advice)


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
    return facts.make_finding(
        cause,
        "gap",
        title,
        [", ".join([measured, *pauses]), *facts.list_unrecorded(pauses)],
        facts.replay.list_saved(cause.changes),
        tasks=tasks,
        advice=ADVICE[advice],
        # Where nothing repeats and nothing is recorded, a pause may be one for requests.
        at_most=bool(waits) or not (pauses or facts.context.options.steady),
    )


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
