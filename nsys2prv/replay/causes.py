"""Find the bottlenecks of a job: the changes to its work with the largest savings. Each is replayed
after the changes before it are applied, because savings do not add up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.workers import prepare_next
from nsys2prv.replay.graph import NO_WEIGHT, Kind
from nsys2prv.replay.suspects import (
    Suspect,
    choose_culprit,
    do_as_others,
    is_awaited,
    is_far_beyond,
    list_suspects,
)
from nsys2prv.replay.thresholds import (
    COPY_LATENCY,
    COPY_LAUNCH,
    EACH_WAITS,
    FEWEST_COPIES,
    HICCUP_SHARE,
    HICCUP_TIMES,
    HIDDEN,
    LARGE_COPY,
    LEAST_BEYOND,
    LEAST_CERTAIN,
    LEAST_GAIN,
    LONGEST_LAUNCH,
    MOST_CULPRITS,
    MOST_HICCUPS,
    MOST_PLACES,
    NEARLY_ALL,
    OF_HOST_TIME,
    OF_PAUSES,
    SMALL_COPY,
    TENSOR_SPEED_UP,
    WORSE,
)
from nsys2prv.replay.transfers import overlap_transfers, run_alone, transfer_at_once
from nsys2prv.replay.unit_graph import make_place
from nsys2prv.replay.whatif import GPU, HOST, HOST_TIME, Changes, Replay, sum_lasts

#: Calls that have one cause together.
FAMILIES = {
    "allocation": re.compile(r"(?i)^cu(?:da)?(?:Mem)?(?:Malloc|Free|Alloc|HostAlloc|HostRegister)"),
    "module_loading": re.compile(r"(?i)^cu(?:da)?(?:Module|Library|Link)"),
}
#: Calls that launch GPU work and do not wait for it. Jobs are launch-bound if these calls, and the time
#: between them, take this share of the time that GPUs wait for hosts; longer ones (ns) do something else.
LAUNCHES = re.compile(
    r"(?i)^cu(?:da)?(?:Launch|GraphLaunch|Mem(?:cpy|set).*Async|EventRecord|StreamWaitEvent)"
)
#: Limits: all communication, all time of hosts, all waits for messages.
LIMITS = ("transfers", "host_time", "messages")
#: Causes that have a part of others: equal work has none of a slow rank's, a call may wait for it.
HAS_OTHERS = (*LIMITS, "imbalance", "launching", "place", "pauses")


class Cause(Struct, frozen=True):
    """A cause of lost time: the change to a replay that removes it, and how much time that saves."""

    #: gpu, host, copies, link within, link to others, late hand-off, hand-off (of some processes); hiccup; cpu, imbalance,
    #: messages, transfers, host_time, launching (all of that too, most of it to launch), place, pauses (at
    #: several places), allocation, module_loading, pageable, tensor_cores, slow_products (of the whole job).
    kind: str
    #: Share of the span that it gains: beyond the culprits before it or, if that is more, by itself.
    gain: float
    #: The change.
    changes: Changes
    #: The processes whose work it is, if it concerns only some.
    suspect: Suspect | None = None
    #: For a place: its kind of edge (CALL, GAP) and key.
    place: tuple[Kind, int] | None = None
    #: Share of the span that it gains by itself, where other causes hide a part of its gain.
    alone: float | None = None
    #: Whether its gain is beyond all causes before it: a wait for work that these make late.
    is_rest: bool = False

    @property
    def is_specific(self) -> bool:
        """Return True if the cause is about certain ranks, links or calls, rather than all time of
        a kind.
        """
        return self.kind not in LIMITS


def find_causes(replay: Replay) -> list[Cause]:
    """Find the causes of lost time in this order: processes or links that are slower than others,
    other causes, and limits (such as all communication). Each gives the change that removes it, and
    what that saves.
    """
    # A rank that waits for a CPU is late for that reason, whichever rank it is.
    waiting = Cause("cpu", replay.compute_gain(replay.cpu_waits, LEAST_GAIN), replay.cpu_waits)
    first = [waiting] if waiting.gain >= LEAST_GAIN else []
    replay = replay.skip_cpu_waits() if first else replay
    causes, base = _find_culprits(replay)
    base.tables.clear()
    start = base
    candidates = [cause for cause in _list_candidates(base) if cause.gain >= LEAST_GAIN]
    # Limits come last, because they include specific causes and waits that end with work. Waits for messages
    # are shorter without the transfers and the host work that they consist of.
    calls = replay.job.calls.items()
    order: dict[object, int] = {kind: number for number, kind in enumerate(LIMITS, 2)}
    waits = [name for name, label in calls if "Synchronize" in label]
    # If hosts wait for most launches one by one, each launch is late because of it.
    is_each = len(replay.select((Kind.RETURN,), waits)) > EACH_WAITS * len(replay.select(GPU))
    order |= {(Kind.CALL, name): -1 if is_each else 1 for name in waits}
    for cause in sorted(
        candidates, key=lambda one: (order.get(one.place or one.kind, 0), -one.gain)
    ):
        least = max(LEAST_GAIN, LEAST_BEYOND * cause.gain)
        gain = cause.gain if base is start else base.compute_gain(cause.changes, least)
        if gain >= least:
            # A wait for work hides delays with other reasons, to which it belongs.
            is_late_wait = order.get(cause.place) == 1
            causes.append(replace(cause, gain=gain, is_rest=True) if is_late_wait else cause)
            base = base.change(cause.changes)
    if causes:
        causes[1:] = [_measure_alone(replay, cause) for cause in causes[1:]]
    return [*first, *causes]


def _measure_alone(replay: Replay, cause: Cause) -> Cause:
    """Return a cause with its savings if only this change is made. Other causes may increase or
    hide its savings.
    """
    if cause.kind in HAS_OTHERS:
        return cause
    alone = replay.compute_gain(cause.changes)
    if alone > WORSE * cause.gain:
        return replace(cause, gain=alone)
    return replace(cause, alone=alone) if alone < HIDDEN * cause.gain else cause


def _find_culprits(replay: Replay) -> tuple[list[Cause], Replay]:
    """Return the sets of processes, and the links, that delay others; and the replay without their
    costs.
    """
    causes: list[Cause] = []
    base = replay
    for _ in range(MOST_CULPRITS):
        suspects = [
            one
            for one in list_suspects(base)
            if is_awaited(base, one) and not any(_is_same(one, cause.suspect) for cause in causes)
        ]
        culprit = choose_culprit(base, _leave_pageable(base, suspects))
        if culprit is None:
            break
        changes = do_as_others(base, culprit)
        moments, share = _find_moments(base, changes, culprit)
        kind = "hiccup" if share >= HICCUP_SHARE else culprit.kind
        gain = culprit.gain
        of_moments = base.compute_gain(moments) if share < HICCUP_SHARE else 0.0
        if of_moments >= max(LEAST_GAIN, gain - LEAST_GAIN):
            # Longer work at other times costs nothing.
            kind, gain, changes = "hiccup", of_moments, moments
        elif of_moments >= LEAST_GAIN:
            # A few occurrences are one cause, constantly longer work is another.
            causes.append(Cause("hiccup", of_moments, moments, culprit))
            base = base.change(moments)
            kept = [~np.isin(rows, moments[0][0]) for rows, _ in changes]
            changes = [
                (rows[keep], new if isinstance(new, float) else new[keep])
                for (rows, new), keep in zip(changes, kept, strict=True)
            ]
            gain = base.compute_gain(changes)
        causes.append(Cause(kind, gain, changes, culprit))
        base = base.change(changes)
    return causes, base


def _leave_pageable(replay: Replay, suspects: list[Suspect]) -> list[Suspect]:
    """Return the suspects without those whose copies are slower only because of pageable memory,
    which is a separate cause.
    """
    if not any(one.kind == "copies" and one.gain >= LEAST_CERTAIN for one in suspects):
        return suspects
    pinned = replay.compute_gain(pin_copies(replay))

    def is_only_pageable(one: Suspect) -> bool:
        return one.kind == "copies" and one.gain * (1 if one.is_own else NEARLY_ALL) <= pinned

    return [one for one in suspects if not is_only_pageable(one)]


def _is_same(suspect: Suspect, other: Suspect | None) -> bool:
    return (
        other is not None
        and (suspect.kind, suspect.is_own) == (other.kind, other.is_own)
        and bool({*suspect.processes} & {*other.processes})
    )


def _find_moments(replay: Replay, changes: Changes, culprit: Suspect) -> tuple[Changes, float]:
    """Return the part of the changes that affects the few repetitions of the culprit's work that
    take much longer than others, and its share of the savings.
    """
    edges, saved = replay.list_saved(changes)
    whole = culprit.is_link or culprit.hands_off or culprit.is_own or culprit.ratio
    if whole or not len(edges):
        return [], 0.0
    # Number of repetitions of the work with the largest savings.
    key = replay.sum_work(edges, "key", lasts=saved)["key"][0]
    work = replay.list_work(np.concatenate([rows for rows, _ in changes]))
    repetitions = (work["key"] == key).sum() // work["process"].n_unique()
    few = min(max(1, int(HICCUP_TIMES * repetitions)), MOST_HICCUPS)
    # Equal lengths keep their order.
    least = np.partition(saved, -few)[-few:].min() if few < len(saved) else 0
    longest = np.flatnonzero(saved >= least)
    longest = longest[np.argsort(-saved[longest], kind="stable")][:few]
    share = float(saved[longest].sum() / saved.sum())
    is_often = (saved >= saved.max() / 2).sum() > few
    is_usual = share < HICCUP_SHARE and not is_far_beyond(replay, culprit)
    if is_often or is_usual:
        return [], 0.0
    moments = [(edges[longest], replay.weight[edges[longest]] - saved[longest])]
    return moments, share


def _list_candidates(replay: Replay) -> Iterator[Cause]:
    """Yield changes to the whole job, each with its own savings."""
    pause, found = 0.0, list[Cause]()
    replay.prepare()
    for cause in prepare_next(_list_changes_of_job(replay)):
        same = (one.gain for one in found if _are_equal(one.changes, cause.changes))
        if (gain := next(same, None)) is None:
            gain = replay.compute_gain(cause.changes, LEAST_GAIN)
        cause = replace(cause, gain=gain)
        if gain >= LEAST_GAIN:
            found.append(cause)
        if cause.place and cause.place[0] == Kind.GAP:
            pause = max(pause, gain)
        if cause.kind == "host_time" and gain >= LEAST_GAIN:
            most = OF_HOST_TIME * gain
            is_most = replay.compute_gain(remove_launches(replay), most) >= most
            cause = replace(cause, kind="launching") if is_most else cause
        if cause.kind != "pauses" or (replay.known.is_steady and pause < OF_PAUSES * cause.gain):
            yield cause


def _are_equal(changes: Changes, others: Changes) -> bool:
    """Return whether changes are the same: the only place with long pauses is one of them, for example."""
    pairs = [one for one in zip(changes, others, strict=False) if len(one[0][0]) == len(one[1][0])]
    return len(pairs) == len(changes) == len(others) and all(
        np.array_equal(rows, other) and np.array_equal(new, as_others)
        for (rows, new), (other, as_others) in pairs
    )


def _list_changes_of_job(replay: Replay) -> Iterator[Cause]:
    """Yield changes to the whole job, without savings yet."""
    has_gpus = has_gpu_work(replay)
    # Without GPUs the time between calls is the work of the job.
    for place in _list_places(replay, HOST if has_gpus else (Kind.CALL,)):
        yield Cause("place", 0.0, replay.remove_place(*place), place=place)
    for kind, (_, make) in JOB_CHANGES.items():
        if kind != ASKED and (has_gpus or kind not in OF_GPUS):
            yield Cause(kind, 0.0, make(replay))


def has_gpu_work(replay: Replay) -> bool:
    """Return True if there is GPU work in the job."""
    return bool(len(replay.select(GPU)))


def _is_of(memory: int) -> pl.Expr:
    return pl.any_horizontal(pl.col("source", "destination") == memory)


def find_copy_speed(replay: Replay) -> tuple[float, bool]:
    """Return (speed, has_copies): the speed (B/ns) of large copies between hosts and GPUs that use
    pinned memory, and whether the job contains such copies. If not, the speed is the usual one for
    these GPUs, and at least that of any large copy in the job.
    """
    known = replay.known
    large = replay.job.copies.filter(
        (_is_of(known.pinned) | _is_of(known.pageable)) & (pl.col("bytes") > LARGE_COPY)
    )
    lasts = pl.Series(replay.graph.weight[large["edge"].to_numpy()])
    large = large.with_columns(speed=pl.col("bytes") / lasts).filter(lasts > 0)
    pinned = large.filter(_is_of(known.pinned))["speed"]
    if len(pinned) > FEWEST_COPIES:
        return float(pinned.median()), True
    return max(known.copy_speed, float(large["speed"].max() or 0.0)), False


def pin_copies(replay: Replay) -> Changes:
    """Return changes in which copies of pageable memory are as fast as copies of pinned memory, and
    their calls do not wait for them.
    """
    graph, edges = replay.graph, replay.edges
    slow = replay.job.copies.filter(_is_of(replay.known.pageable) & (pl.col("bytes") > SMALL_COPY))
    at = graph.time[edges.target[slow["edge"].to_numpy()]]
    slow = slow.filter(pl.Series((at > replay.begin) & (at <= replay.end)))
    if not slow.height:
        return []
    rows = slow["edge"].to_numpy().astype(np.int32)
    speed, _ = find_copy_speed(replay)
    new = np.minimum(slow["bytes"].to_numpy() / speed + COPY_LATENCY, graph.weight[rows])
    moments = np.append(edges.source[rows], edges.target[rows])
    returns, launches = (replay.select((kind,)) for kind in (Kind.RETURN, Kind.LAUNCH))
    returns = returns[np.isin(edges.source[returns], moments)]
    launches = launches[np.isin(edges.target[launches], moments)]
    return [
        (rows, new.astype(np.int64)),
        (returns, np.full(len(returns), NO_WEIGHT)),
        (launches, np.minimum(graph.weight[launches], COPY_LAUNCH)),
    ]


def _remove_family(family: str, replay: Replay) -> Changes:
    """Return changes in which the calls of a family take no time, except the first call of each
    name in a process.
    """
    labels = replay.job.calls
    calls = [name for name, label in labels.items() if FAMILIES[family].match(label)]
    return replay.remove_calls(calls, repeated=True)


def remove_launches(replay: Replay) -> Changes:
    """Return changes in which calls that only launch work, and the time between two such calls,
    take no time.
    """
    calls = [name for name, label in replay.job.calls.items() if LAUNCHES.match(label)]
    between = make_place(*np.meshgrid(calls, calls)).ravel() if calls else ()
    made = replay.scale((Kind.CALL,), keys=calls, longest=LONGEST_LAUNCH)
    return made + replay.scale((Kind.GAP,), keys=between, longest=LONGEST_LAUNCH)


def remove_long_pauses(replay: Replay) -> Changes:
    """Return changes in which pauses of hosts between calls last at most as long as a usual launch.
    Pauses between polling calls do not change.
    """
    gaps, edges = replay.select((Kind.GAP,)), replay.edges
    long = gaps[replay.graph.weight[gaps] >= LONGEST_LAUNCH]
    # Moments are the begin and the end of each node.
    ends = (np.isin(end[long] >> 1, replay.job.idle_nodes) for end in (edges.source, edges.target))
    return [(long[~np.logical_and(*ends)], 0.0)]


def use_tensor_cores(replay: Replay) -> Changes:
    """Return changes in which GEMMs (matrix products) without Tensor Cores use them, on GPUs that
    have them.
    """
    names, processes = replay.known.products
    return replay.scale(GPU, 1 / TENSOR_SPEED_UP, keys=names, processes=processes)


def speed_up_products(replay: Replay) -> Changes:
    """Return changes in which products (GEMMs, attention, convolutions) far below the rate that
    their shapes allow reach the rate of the job's other products.
    """
    weight = replay.graph.weight
    chosen = [
        (replay.select(GPU, (name,), (process,)), share)
        for name, process, share in replay.known.slow_products
    ]
    new = [(weight[edges] * share).astype(np.int64) for edges, share in chosen]
    return [(np.concatenate([edges for edges, _ in chosen]), np.concatenate(new))] if new else []


def balance_work(replay: Replay) -> Changes:
    """Return changes in which work is divided equally among ranks: GPU work if there is any,
    otherwise host work.
    """
    return replay.balance(GPU if has_gpu_work(replay) else HOST)


#: Kind of cause of the whole job -> the words for its change ("": of GPUs or hosts), and the change.
JOB_CHANGES: dict[str, tuple[str, Callable[[Replay], Changes]]] = {
    "imbalance": ("", balance_work),
    "cpu": ("no waiting for CPUs", lambda replay: replay.cpu_waits),
    "messages": ("messages in time", Replay.expect_messages),
    "contention": ("no contention", run_alone),
    "transfers": ("no transfers", transfer_at_once),
    "overlap": ("overlap", overlap_transfers),
    "host_time": ("no host time", lambda replay: replay.scale(HOST_TIME)),
    "pauses": ("no long pauses", remove_long_pauses),
    "pageable": ("copies pinned", pin_copies),
    "tensor_cores": ("tensor cores", use_tensor_cores),
    "slow_products": ("products as others", speed_up_products),
    **{
        family: (f"no {family.replace('_', ' ')}", partial(_remove_family, family))
        for family in FAMILIES
    },
}
#: Not a cause, but shows how much of one can be saved.
ASKED = "overlap"
#: Changes only for jobs with GPUs.
OF_GPUS = ("host_time", "pauses")


def _list_places(replay: Replay, kinds: tuple[Kind, ...]) -> list[tuple[Kind, int]]:
    """Return calls, and places between calls, sorted by their time on the critical path."""
    path = replay.sum_work(replay.path, "kind", "key")
    # Work that begins within its launching call.
    is_within = (pl.col("kind") == Kind.LAUNCH) & (pl.col("key") % 2 == 0)
    path = path.with_columns(
        pl.when(is_within)
        .then(Kind.CALL)
        .otherwise(pl.col("kind").replace(Kind.RETURN, Kind.CALL))
        .alias("kind"),
        pl.when(is_within).then(pl.col("key") // 2).otherwise("key").alias("key"),
    )
    places = sum_lasts(path.filter(pl.col("kind").is_in(kinds)), "kind", "key")
    places = places.filter(pl.col("lasts") > LEAST_GAIN * replay.span / 2).head(MOST_PLACES)
    return [(Kind(kind), key) for kind, key in places.select("kind", "key").rows()]
