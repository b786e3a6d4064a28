"""Find what holds a job back: changes of its work, the one that gains most first. Each is replayed
with those before it done, because their gains do not add up. Changes have words, such as
`rank 3: gpu as others; no cudaFree`, in which people ask for them too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.errors import UsageError
from nsys2prv._util.text import list_some
from nsys2prv._util.workers import prepare_next
from nsys2prv.replay.graph import NO_WEIGHT, Kind
from nsys2prv.replay.suspects import (
    KINDS,
    LINK_TO_OTHERS,
    LINK_WITHIN,
    Suspect,
    choose_culprit,
    is_awaited,
    is_far_beyond,
    link_as_others,
    list_suspects,
    work_as_others,
)
from nsys2prv.replay.thresholds import (
    COPY_LATENCY,
    COPY_LAUNCH,
    EACH_WAITS,
    HICCUP_SHARE,
    HICCUP_TIMES,
    HIDDEN,
    LARGE_COPY,
    LEAST_BEYOND,
    LEAST_GAIN,
    LONGEST_LAUNCH,
    MOST_CULPRITS,
    MOST_HICCUPS,
    MOST_PLACES,
    OF_HOST_TIME,
    OF_PAUSES,
    SMALL_COPY,
    USUAL_COPY_SPEED,
    WORSE,
)
from nsys2prv.replay.unit_graph import (
    make_place,
    split_place,
)
from nsys2prv.replay.whatif import (
    GPU,
    HOST,
    HOST_TIME,
    Changes,
    Replay,
    sum_lasts,
)

#: Calls that have one cause together.
FAMILIES = {
    "allocation": re.compile(r"(?i)^cu(?:da)?(?:Mem)?(?:Malloc|Free|Alloc|HostAlloc|HostRegister)"),
    "module_loading": re.compile(r"(?i)^cu(?:da)?(?:Module|Library|Link)"),
}
#: Calls that give work to GPUs and do not wait for it. Jobs are bound by them if they, and the time
#: between them, are this share of what GPUs wait for hosts; longer ones (ns) do something else.
LAUNCHES = re.compile(
    r"(?i)^cu(?:da)?(?:Launch|GraphLaunch|Mem(?:cpy|set).*Async|EventRecord|StreamWaitEvent)"
)
#: Limits: all communication, all time of hosts, all waits for messages.
LIMITS = ("transfers", "host_time", "messages")
#: Causes that have a part of others: equal work has none of a slow rank's, a call may wait for it.
HAS_OTHERS = (*LIMITS, "imbalance", "launching", "place", "pauses")


class Cause(Struct, frozen=True):
    """A change that gains time."""

    #: gpu, host, copies, link within, link to others (of some processes); hiccup; imbalance,
    #: messages, transfers, host_time, launching (all of that too, most of it to launch), place, pauses (at
    #: several places), allocation, module_loading, pageable, tensor_cores (of the whole job).
    kind: str
    #: Share of the span that it gains: beyond the culprits before it or, if that is more, by itself.
    gain: float
    #: The change.
    changes: Changes
    #: Whose work it is, if it is some processes'.
    suspect: Suspect | None = None
    #: Of a place: its kind of edge (CALL, GAP) and key.
    place: tuple[Kind, int] | None = None
    #: Share of the span that it gains by itself, where other causes hide a part of its gain.
    alone: float | None = None

    @property
    def is_specific(self) -> bool:
        """True if it names who or what, rather than all of a kind of time."""
        return self.kind not in LIMITS


class KernelFacts(Struct, frozen=True):
    """Facts of kernels and memory, by their event values."""

    #: Kernels that are matrix products without tensor cores, and processes whose GPUs have some.
    without_tensor_cores: Collection[tuple[int, int]] = ()
    #: Kinds of memory: pageable and pinned memory of the host.
    pageable: int = -2
    pinned: int = -2
    #: Whether the job repeats the same work: other jobs may pause because there is none.
    is_steady: bool = True


def find_causes(replay: Replay, facts: KernelFacts) -> list[Cause]:
    """Return what gains time: culprits, other causes, limits."""
    causes, base = _find_culprits(replay)
    base.tables.clear()
    candidates = [cause for cause in _list_candidates(base, facts) if cause.gain >= LEAST_GAIN]
    # Limits come last: what is specific is part of them, and so are waits that end with work. Waits for
    # messages are shorter without the transfers and the work of hosts that they consist of.
    calls = replay.job.calls
    order: dict[object, int] = {kind: number for number, kind in enumerate(LIMITS, 2)}
    waits = [name for name, label in calls.items() if "Synchronize" in label]
    # Where hosts wait for most of what they launch one by one, each launch comes late because of it.
    is_each = len(replay.select((Kind.RETURN,), waits)) > EACH_WAITS * len(replay.select(GPU))
    order |= {(Kind.CALL, name): -1 if is_each else 1 for name in waits}
    for cause in sorted(
        candidates, key=lambda one: (order.get(one.place or one.kind, 0), -one.gain)
    ):
        gain = base.compute_gain(cause.changes)
        if gain >= max(LEAST_GAIN, LEAST_BEYOND * cause.gain):
            causes.append(cause)
            base = base.change(cause.changes)
    return [causes[0], *(_measure_alone(replay, cause) for cause in causes[1:])] if causes else []


def _measure_alone(replay: Replay, cause: Cause) -> Cause:
    """Return a cause with what it gains by itself: other causes may make it worse, or hide it."""
    if cause.kind in HAS_OTHERS:
        return cause
    alone = replay.compute_gain(cause.changes)
    if alone > WORSE * cause.gain:
        return replace(cause, gain=alone)
    return replace(cause, alone=alone) if alone < HIDDEN * cause.gain else cause


def _find_culprits(replay: Replay) -> tuple[list[Cause], Replay]:
    """Return the sets of processes, and links, that hold the others up, and the replay without what
    they cost.
    """
    causes: list[Cause] = []
    base = replay
    for _ in range(MOST_CULPRITS):
        suspects = [
            one
            for one in list_suspects(base)
            if is_awaited(base, one) and not any(_is_same(one, cause.suspect) for cause in causes)
        ]
        culprit = choose_culprit(base, suspects)
        if culprit is None:
            break
        changes = _list_changes(base, culprit)
        moments, share = _find_moments(base, changes, culprit)
        kind = "hiccup" if share >= HICCUP_SHARE else culprit.kind
        gain = culprit.gain
        of_moments = base.compute_gain(moments) if share < HICCUP_SHARE else 0.0
        if of_moments >= max(LEAST_GAIN, gain - LEAST_GAIN):
            # What is longer at other times costs nothing.
            kind, gain, changes = "hiccup", of_moments, moments
        elif of_moments >= LEAST_GAIN:
            # What happens a few times is one cause, and what is always longer another one.
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


def _is_same(suspect: Suspect, other: Suspect | None) -> bool:
    return (
        other is not None
        and suspect.kind == other.kind
        and bool({*suspect.processes} & {*other.processes})
    )


def _list_changes(replay: Replay, suspect: Suspect) -> Changes:
    if suspect.is_link:
        return link_as_others(replay, suspect.kind, suspect.host)
    return work_as_others(replay, suspect.kind, suspect.processes, suspect.ratio)


def _find_moments(replay: Replay, changes: Changes, culprit: Suspect) -> tuple[Changes, float]:
    """Return the part of changes that concerns a few repetitions of what the culprit does, in which it
    takes much longer than in others, and its share of the time that changes save.
    """
    edges, saved = replay.list_saved(changes)
    if culprit.is_link or culprit.ratio or not len(edges):
        return [], 0.0
    # How often a process does the work that saves most.
    key = replay.sum_work(edges, "key", lasts=saved)["key"][0]
    work = replay.list_work(np.concatenate([rows for rows, _ in changes]))
    repetitions = (work["key"] == key).sum() // work["process"].n_unique()
    few = min(max(1, int(HICCUP_TIMES * repetitions)), MOST_HICCUPS)
    # Those of equal length in their order.
    least = np.partition(saved, -few)[-few:].min() if few < len(saved) else 0
    longest = np.flatnonzero(saved >= least)
    longest = longest[np.argsort(-saved[longest], kind="stable")][:few]
    share = float(saved[longest].sum() / saved.sum())
    is_often = (saved >= saved.max() / 2).sum() > few
    is_usual = share < HICCUP_SHARE and not is_far_beyond(replay, culprit)
    if is_often or is_usual:
        return [], 0.0
    moments = [(edges[longest], replay.job.graph.weight[edges[longest]] - saved[longest])]
    return moments, share


def _list_candidates(replay: Replay, facts: KernelFacts) -> Iterator[Cause]:
    """Yield changes that concern the whole job, with what they gain by themselves."""

    has_gpus = has_gpu_work(replay)
    # Without GPUs the time between calls is the work of the job.
    kinds = (Kind.GAP, Kind.CALL) if has_gpus else (Kind.CALL,)
    pause = 0.0
    replay.prepare()
    for cause in prepare_next(_list_changes_of_job(replay, facts, kinds, has_gpus)):
        cause = replace(cause, gain=replay.compute_gain(cause.changes, LEAST_GAIN))
        if cause.place and cause.place[0] == Kind.GAP:
            pause = max(pause, cause.gain)
        if cause.kind == "host_time":
            launching = replay.compute_gain(remove_launches(replay))
            is_most = launching >= OF_HOST_TIME * cause.gain
            cause = replace(cause, kind="launching") if is_most else cause
        if cause.kind != "pauses" or (facts.is_steady and pause < OF_PAUSES * cause.gain):
            yield cause


def _list_changes_of_job(
    replay: Replay, facts: KernelFacts, kinds: tuple[Kind, ...], has_gpus: bool
) -> Iterator[Cause]:
    """Yield changes that concern the whole job, whose gain is not known. kinds: of places."""
    for place in _list_places(replay, kinds):
        yield Cause("place", 0.0, replay.remove_place(*place), place=place)
    for kind, (_, make) in JOB_CHANGES.items():
        if kind in (OF_GPUS if not has_gpus else ()) or (
            kind in OF_SEVERAL and len(replay.processes) < 2
        ):
            continue
        yield Cause(kind, 0.0, make(replay, facts))


def has_gpu_work(replay: Replay) -> bool:
    """Return whether GPUs do something in the job."""
    return bool(len(replay.select(GPU)))


def measure_pinned_speed(replay: Replay, pinned: int) -> float | None:
    """Return how fast large copies of pinned memory are (B/ns); None where there are few."""
    of_pinned = (pl.col("source") == pinned) | (pl.col("destination") == pinned)
    large = replay.job.copies.filter(of_pinned & (pl.col("bytes") > LARGE_COPY))
    lasts = replay.job.graph.weight[large["edge"].to_numpy()]
    speeds = large["bytes"].to_numpy()[lasts > 0] / lasts[lasts > 0]
    return float(np.median(speeds)) if len(speeds) > 5 else None


def pin_copies(replay: Replay, facts: KernelFacts) -> Changes:
    """Let copies of pageable memory be as fast as those of pinned memory, and their calls not wait
    for them.
    """
    copies, graph, edges = replay.job.copies, replay.job.graph, replay.job.graph.edges
    rows = copies["edge"].to_numpy()
    columns = {"lasts": graph.weight[rows], "at": graph.time[edges.target[rows]]}
    copies = copies.with_columns(pl.Series(*column) for column in columns.items())
    speed = measure_pinned_speed(replay, facts.pinned) or USUAL_COPY_SPEED
    of_pageable = (pl.col("source") == facts.pageable) | (pl.col("destination") == facts.pageable)
    slow = copies.filter(
        of_pageable
        & (pl.col("bytes") > SMALL_COPY)
        & pl.col("at").is_between(replay.begin, replay.end, closed="right")
    )
    if not slow.height:
        return []
    new = slow.select(
        pl.min_horizontal(pl.col("bytes") / speed + COPY_LATENCY, "lasts").cast(pl.Int64)
    )
    rows = slow["edge"].to_numpy().astype(np.int32)
    moments = np.zeros(len(graph.time), bool)
    moments[edges.source[rows]] = moments[edges.target[rows]] = True
    returns, launches = (replay.select((kind,)) for kind in (Kind.RETURN, Kind.LAUNCH))
    returns = returns[moments[edges.source[returns]]]
    launches = launches[moments[edges.target[launches]]]
    return [
        (rows, new.to_series().to_numpy()),
        (returns, np.full(len(returns), NO_WEIGHT)),
        (launches, np.minimum(graph.weight[launches], COPY_LAUNCH)),
    ]


def _remove_family(family: str, replay: Replay, _: KernelFacts) -> Changes:
    """Let the calls of a family take no time, but for the first of each name in a process."""
    labels = replay.job.calls
    calls = [name for name, label in labels.items() if FAMILIES[family].match(label)]
    return replay.remove_calls(calls, repeated=True)


#: Kind of cause of the whole job -> the words for its change ("": of GPUs or hosts), and the change.
JOB_CHANGES: dict[str, tuple[str, Callable[[Replay, KernelFacts], Changes]]] = {
    "imbalance": (
        "",
        lambda replay, _: replay.balance(GPU if has_gpu_work(replay) else HOST),
    ),
    "messages": ("messages in time", lambda replay, _: replay.expect_messages()),
    "transfers": ("no transfers", lambda replay, _: replay.transfer_at_once()),
    "host_time": ("no host time", lambda replay, _: replay.scale_all(HOST_TIME)),
    "pauses": ("no long pauses", lambda replay, _: remove_long_pauses(replay)),
    "pageable": ("copies pinned", pin_copies),
    "tensor_cores": (
        "tensor cores",
        lambda replay, facts: replay.use_tensor_cores(facts.without_tensor_cores),
    ),
    **{
        family: (f"no {family.replace('_', ' ')}", partial(_remove_family, family))
        for family in FAMILIES
    },
}
#: Those of jobs of several processes, and of jobs with GPUs.
OF_SEVERAL, OF_GPUS = ("imbalance", "messages"), ("host_time", "pauses")


def remove_launches(replay: Replay) -> Changes:
    """Let calls that only launch work, and the time between two of them, take no time."""
    calls = [name for name, label in replay.job.calls.items() if LAUNCHES.match(label)]
    between = make_place(*np.meshgrid(calls, calls)).ravel() if calls else ()
    changes: Changes = []
    for kind, keys in ((Kind.CALL, calls), (Kind.GAP, between)):
        changes += replay.scale_rows(replay.select((kind,), keys, longest=LONGEST_LAUNCH), 0.0)
    return changes


def remove_long_pauses(replay: Replay) -> Changes:
    """Let hosts pause between calls for no longer than it takes to launch something, but for pauses
    between calls that only look.
    """
    gaps, edges = replay.select((Kind.GAP,)), replay.job.graph.edges
    long = gaps[replay.job.graph.weight[gaps] >= LONGEST_LAUNCH]
    # Of each node the begin and the end are moments.
    ends = (np.isin(end[long] >> 1, replay.job.idle_nodes) for end in (edges.source, edges.target))
    return replay.scale_rows(long[~np.logical_and(*ends)], 0.0)


def _list_places(replay: Replay, kinds: tuple[Kind, ...]) -> list[tuple[Kind, int]]:
    """Return calls, and places between calls, by their time on the critical path."""
    path = replay.sum_work(replay.path, "kind", "key").with_columns(
        pl.col("kind").replace(int(Kind.RETURN), int(Kind.CALL))
    )
    places = sum_lasts(path.filter(pl.col("kind").is_in(kinds)), "kind", "key")
    places = places.filter(pl.col("lasts") > LEAST_GAIN * replay.span / 2).head(MOST_PLACES)
    return [(Kind(kind), key) for kind, key in places.select("kind", "key").rows()]


_WORDS = [words for words, _ in JOB_CHANGES.values() if words]
#: How changes are read, and examples of all of them.
_WHO, _FACTOR = r"(?P<who>ranks?|host) (?P<names>[^:]+): ?", r" x ?(?P<factor>[\d.]+)"
_FORMS = (
    _WHO + r"(?P<work>gpu|host|copies)(?: work)? as (?:the )?others",
    _WHO + r"(?P<link>network(?: within| outside)?) as (?:the )?others",
    rf"(?:{_WHO})?(?P<scaled>gpu|host|copies|network)(?: work)?{_FACTOR}",
    rf"kernels? (?P<kernel>.+){_FACTOR}",
    r"(?P<balanced>gpu|host)(?: work)? balanced",
    rf"(?P<whole>{'|'.join(_WORDS)})",
    r"no time between (?P<before>.+) and (?P<after>.+)",
    r"no (?P<call>\S+)",
)
EXAMPLES = (
    "rank 3,5-7: gpu as others", "rank 3: host as others", "rank 3: copies as others",
    "host NAME: gpu as others", "host NAME: network as others",
    "host NAME: network within as others", "host NAME: network outside as others",
    "gpu x0.5", "rank 3: host x0.5", "kernel NAME x0.5", "gpu balanced", "host balanced",
    *_WORDS, "no time between CALL and CALL", "no CALL",
)  # fmt: skip
_SCALED = {**KINDS, "network": (Kind.NCCL, Kind.MPI)}
_LINKS = {"network within": (LINK_WITHIN,), "network outside": (LINK_TO_OTHERS,)}


class Names(Struct, frozen=True):
    """Meaning of the words of a what-if in a job."""

    #: Rank -> its processes.
    ranks: Mapping[int, tuple[int, ...]]
    #: Label of each kernel, by event value.
    kernels: Mapping[int, str]
    #: What is known of kernels and memory.
    facts: KernelFacts


def parse_what_ifs(texts: Sequence[str]) -> list[re.Match[str]]:
    """Return the changes that texts ask for. Raises UsageError for what cannot be said."""
    parts = [" ".join(part.split()) for text in texts for part in text.split(";")]
    return [_parse_change(part) for part in parts if part]


def _parse_change(text: str) -> re.Match[str]:
    for form in _FORMS:
        if match := re.fullmatch(form, text):
            return match
    near = get_close_matches(text, EXAMPLES, 1)
    meant = f"did you mean {near[0]}?" if near else "no such change;"
    raise UsageError(f"--what-if {text}: {meant} there are {'; '.join(EXAMPLES)}")


def replay_what_ifs(asked: Sequence[re.Match[str]], replay: Replay, names: Names) -> pl.DataFrame:
    """Return a row for each change, each with those before it: `what_if`, `gain_share` (beyond those
    before, of the recorded time), `duration_ns` (predicted). Raises UsageError for unknown names.
    """
    rows, left = [("as recorded", 0.0, replay.span)], 1.0
    for one in asked:
        changes = make_changes(one, replay, names)
        gain = replay.compute_gain(changes)
        replay, left = replay.change(changes), left - gain
        rows.append((one.string, gain, round(left * replay.span)))
    return pl.DataFrame(rows, schema=["what_if", "gain_share", "duration_ns"], orient="row")


def make_changes(asked: re.Match[str], replay: Replay, names: Names) -> Changes:
    """Return the changes of the replay that are asked for. Raises UsageError for unknown names."""
    said = {name: value for name, value in asked.groupdict().items() if value}
    processes = _find_processes(said, replay, names) if "who" in said else ()
    if "work" in said:
        return work_as_others(replay, said["work"], processes)
    if "link" in said:
        kinds = _LINKS.get(said["link"], (LINK_WITHIN, LINK_TO_OTHERS))
        return [change for kind in kinds for change in link_as_others(replay, kind, said["names"])]
    if "factor" in said:
        return _scale(said, processes, replay, names)
    if "balanced" in said:
        return replay.balance(KINDS[said["balanced"]])
    if "whole" in said:
        make = next(make for words, make in JOB_CHANGES.values() if words == said["whole"])
        return make(replay, names.facts)
    calls = replay.job.calls
    if "before" in said:
        before, after = (_find_named(said[side], calls, "call") for side in ("before", "after"))
        places = make_place(*np.meshgrid(before, after))
        return replay.remove_pauses(places.ravel())
    return replay.remove_calls(_find_named(said["call"], calls, "call of CUDA or MPI"))


def _scale(
    said: Mapping[str, str], processes: Sequence[int], replay: Replay, names: Names
) -> Changes:
    try:
        factor = float(said["factor"])
    except ValueError:
        raise UsageError(f"--what-if x{said['factor']}: give a factor, as in x0.5") from None
    if "kernel" in said:
        kernels = _find_named(f"*{said['kernel']}*", names.kernels, "kernel")
        rows = replay.select(GPU, kernels)
        return replay.scale_rows(rows, factor)
    kinds = _SCALED[said["scaled"]]
    return (
        replay.scale_work(kinds, processes, factor)
        if processes
        else replay.scale_all(kinds, factor)
    )


def _find_processes(said: Mapping[str, str], replay: Replay, names: Names) -> tuple[int, ...]:
    hosts = replay.job.hosts
    if said["who"] == "host":
        found = [one for one in replay.processes.tolist() if hosts[one] == said["names"]]
        if not found:
            there = list_some(sorted({*hosts}))
            raise UsageError(f"--what-if host {said['names']}: no such host; there are {there}")
        return tuple(found)
    try:
        ranges = [part.partition("-")[::2] for part in said["names"].split(",")]
        ranks = [
            rank for first, last in ranges for rank in range(int(first), int(last or first) + 1)
        ]
    except ValueError:
        raise UsageError(f"--what-if rank {said['names']}: give ranks as in 3,5-7") from None
    if unknown := [rank for rank in ranks if rank not in names.ranks]:
        there = list_some([str(rank) for rank in sorted(names.ranks)], 8)
        raise UsageError(f"--what-if rank {unknown[0]}: no such rank; there are {there or 'none'}")
    return tuple(sorted({process for rank in ranks for process in names.ranks[rank]}))


def _find_named(wanted: str, labels: Mapping[int, str], what: str) -> list[int]:
    """Return the event values of the names that are wanted: exactly, or by a pattern."""
    for fits in (wanted.__eq__, lambda label: fnmatchcase(label.lower(), wanted.lower())):
        if found := [value for value, label in labels.items() if fits(label)]:
            return found
    near = get_close_matches(wanted, list(labels.values()), 3, 0.4) or [*labels.values()]
    there = f"; there are {list_some(near)}" if near else ""
    raise UsageError(f"--what-if {wanted.strip('*')}: no {what} of this name in the job{there}")


def describe_cause(cause: Cause, replay: Replay, names: Names) -> str:
    """Return the words for what a cause changes; nothing where there are none."""
    if suspect := cause.suspect:
        if suspect.is_link:
            link = next(name for name, kinds in _LINKS.items() if kinds == (suspect.kind,))
            return f"host {suspect.host}: {link} as others"
        by_process = {process: rank for rank, own in names.ranks.items() for process in own}
        ranks = [by_process.get(process) for process in suspect.processes]
        if None in ranks:
            return ""
        who = f"rank{'s' if len(ranks) > 1 else ''} {','.join(map(str, ranks))}"
        how = f"x{1 / suspect.ratio:.4f}" if suspect.ratio else "as others"
        return f"{who}: {suspect.kind} {how}"
    if cause.place is not None:
        calls = replay.job.calls
        kind, key = cause.place
        if kind == Kind.CALL:
            return f"no {calls[key]}" if key in calls else ""
        before, after = (calls.get(name, "") for name in split_place(key))
        return f"no time between {before} and {after}" if before and after else ""
    if cause.kind == "imbalance":
        return f"{'gpu' if has_gpu_work(replay) else 'host'} balanced"
    return JOB_CHANGES["host_time" if cause.kind == "launching" else cause.kind][0]
