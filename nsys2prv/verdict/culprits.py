"""Measure how ranks and links delay others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv._util.text import choose_decimals
from nsys2prv.events.catalogue import map_labels
from nsys2prv.figures.host_time import PARTS, compare_with_others, describe_parts
from nsys2prv.figures.stacks import label_place
from nsys2prv.match.meetings import list_compared_kernels
from nsys2prv.replay.causes import Cause
from nsys2prv.replay.graph import Kind
from nsys2prv.replay.suspects import (
    HANDOFF,
    KINDS,
    LATE_HANDOFF,
    LINK_OF,
    LINK_TO_OTHERS,
    LINK_WITHIN,
    Suspect,
)
from nsys2prv.replay.unequal_work import find_work_of, leave_out
from nsys2prv.replay.whatif import HOST
from nsys2prv.verdict.cause_context import CauseContext
from nsys2prv.verdict.host_use import OVER, NamedTime
from nsys2prv.verdict.job_causes import describe_copies_of
from nsys2prv.verdict.loss_shape import find_loss
from nsys2prv.verdict.thresholds import (
    EXPLAINS,
    FEW_MORE,
    LONGER,
    MOST,
    MOSTLY_LAST,
    OF_LONGEST,
    SLOWER,
)
from nsys2prv.verdict.words import ADVICE, Claim, Said, choose_advice, say

#: Keys of titles with the ranks as their subject.
WITH_SUBJECT = ("hiccup", "hiccups", "more work", "does alone")
#: Parts of host time between the first and the last event.
GOING_ON = [part for part in PARTS if part not in (*OVER, "away")]


def describe_culprit(cause: Cause, facts: CauseContext, suspect: Suspect) -> Claim:
    """Describe processes or links that make others wait, and the reason."""
    helpers = facts.replay.job.helpers
    tasks = tuple(process + 1 for process in suspect.processes if process not in helpers)
    describe = _describe_own if suspect.is_own else _DESCRIBE[cause.kind]
    claim = replace(describe(cause, facts, suspect), tasks=tasks)
    if suspect.is_link:
        return claim
    group, number, count = facts.replay.groups.get(suspect.processes, ("", 0, 0))
    who, does = facts.name_processes(suspect.processes), claim.title or say(claim.key)
    key = "culprit does" if does.key in WITH_SUBJECT else "culprit"
    title = say(key, who=who, group=group, number=number, count=count, does=does)
    of_host = (
        len(tasks) > 1 and facts.job.find_host([*tasks]) and not _find_stage(facts, suspect)[0]
    )
    kind = "slow_host" if of_host and claim.key != "hiccup" else ""
    evidence = [*claim.evidence, *_say_onset(cause, facts, suspect), *_count_last(facts, tasks)]
    return replace(claim, title=title, evidence=evidence, kind=kind)


def _say_onset(cause: Cause, facts: CauseContext, suspect: Suspect) -> Iterator[Said]:
    """Yield a sentence about how many iterations have the loss, and when it starts."""
    steady = facts.options.steady
    if steady and suspect.kind in KINDS:
        chosen = find_loss(facts, suspect, *facts.replay.list_saved(cause.changes)).shape.chosen
        for first in np.flatnonzero(chosen)[:1].tolist():
            begin, end = steady.edges[first : first + 2].tolist()
            at = f"{begin / 1e9:.{choose_decimals(end - begin)}f}"
            key = "onset all" if chosen.all() else "onset" if chosen.sum() > 1 else "onset once"
            yield say(key, count=int(chosen.sum()), of=len(chosen), first=first + 1, at=at)


def _find_stage(facts: CauseContext, suspect: Suspect) -> tuple[int, int]:
    """Return the pipeline stage (from 1, or 0) of processes with slow GPUs, and the number of
    stages.
    """
    stages = facts.replay.pipeline.stages if suspect.kind == "gpu" and facts.replay.pipeline else ()
    is_stage = suspect.processes in stages
    return stages.index(suspect.processes) + 1 if is_stage else 0, len(stages)


def _describe_link(cause: Cause, facts: CauseContext, suspect: Suspect) -> Claim:
    edges, worst = cause.changes[0][0], facts.replay.list_saved(cause.changes)
    own = facts.graph.weight[edges].sum()
    saved = facts.replay.list_saved(cause.changes[:1])[1].sum()
    evidence = say(
        "elsewhere",
        count=len(edges),
        own=own / len(edges),
        usual=(own - saved) / len(edges),
        name=facts.name_transfers(*worst),
    )
    who = facts.name_processes(suspect.processes)
    several = len(suspect.processes) > 1
    title = say(cause.kind, host=suspect.host, who=who, pair=several, one=not several)
    return Claim(cause.kind, [evidence], worst, worst[1].sum(), title)


def _describe_hiccup(cause: Cause, facts: CauseContext, suspect: Suspect) -> Claim:
    """Return a claim about a stall: its usual duration, and the activity of the host."""
    columns = facts.edges
    edges, saved = facts.replay.list_saved(cause.changes)
    long = saved >= saved.max() / OF_LONGEST
    edges, saved = edges[long], saved[long]
    where = facts.name_work(edges, saved)
    key = "hiccups" if len(saved) > 1 else "hiccup"
    range_ = where.facts["range"]
    known = {"range": range_, "where": "" if range_ else where.facts["what"]}
    title = say(key, times=len(saved), total=saved.sum(), **known)
    shape = find_loss(facts, suspect, edges, saved).shape
    if shape.kind == "every":
        title = say("longer when", what="the host", each=shape.each, when=shape.when)
    longest = edges[[np.argmax(saved)]]
    kind = Kind(columns.kind[longest[0]])
    usual = np.median(facts.measure(facts.replay.select((kind,), [columns.key[longest[0]]])))
    evidence: list[Said | str] = [
        say(
            "then",
            where=where.facts["what"],
            longest=facts.measure(longest)[0],
            usual=float(usual),
        )
    ]
    if kind in HOST:
        evidence += facts.describe_pauses(edges, where.facts["range"])
    return Claim(
        "hiccup",
        evidence,
        (edges, saved),
        saved.sum(),
        title,
        "host_every" if shape.kind == "every" else "",
    )


def _describe_gpu(cause: Cause, facts: CauseContext, suspect: Suspect) -> Claim:
    """Return a claim about how much longer some processes' kernels take than elsewhere, or how many
    more they run.
    """
    saved = _list_longer(cause, facts, suspect)
    worst = facts.keep_name(*saved)
    (own, usual), (own_count, count), keys = _compare(facts, suspect)
    is_same = round(count.sum()) == round(own_count.sum())
    # The others' time for equally many kernels of each name.
    alike = np.divide(usual * own_count, count, out=own.copy(), where=count > 0)
    place = int(np.argmax(own - usual))
    if len(worst[0]):
        key = facts.edges.key[worst[0][0]]
        place = int(np.searchsorted(keys, key))
    is_count = abs(own_count.sum() - count.sum()) > FEW_MORE * count.sum()
    kernel = facts.name_kernel(int(keys[place]))
    evidence = say(
        "kernels",
        own=own.sum(),
        own_count=own_count.sum(),
        usual=usual.sum(),
        count=None if is_same else count.sum(),
        same=is_same,
        kernel=kernel,
        range=facts.name_range(facts.find_range(*worst)[0]),
        longest=own[place],
        others=usual[place],
        alike=alike.sum() if is_count else None,
    )
    claim = Claim("gpu", [evidence], worst, own.sum() - usual.sum())
    loss = find_loss(facts, suspect, *saved)
    more = (suspect.ratio or loss.times) - 1
    is_stage = _find_stage(facts, suspect)[0] > 0
    if suspect.is_shared:
        title = say("some kernels", kernel=kernel, more=more, when=loss.shape.when)
        advice = "stage" if is_stage else "kernel_more"
        return replace(claim, evidence=[evidence, say("shared")], title=title, advice=advice)
    if more < SLOWER - 1:
        return replace(claim, title=say("more work", **_inflect(suspect)), advice="gpu_more")
    is_stage &= len(suspect.processes) > 1
    advice = "stage" if is_stage else "gpu" if loss.shape.when is None else "gpu_while"
    if loss.shape.when is None and own.sum() >= SLOWER * alike.sum():
        # Like the figures next to it; they show less if others are slow too.
        more = own.sum() / alike.sum() - 1
    title = say("slower", more=more, when=loss.shape.when)
    return replace(claim, title=title, advice=advice)


def _list_longer(
    cause: Cause, facts: CauseContext, suspect: Suspect
) -> tuple[np.ndarray, np.ndarray]:
    """Return the kernels in which processes take longer than the others, and the difference (ns)."""
    if not suspect.is_shared:
        return facts.replay.list_saved(cause.changes)
    changes = facts.replay.compare_kernels(suspect.processes)
    edges, saved = facts.replay.list_saved(changes)
    is_shared = np.isin(edges, cause.changes[0][0])
    return edges[is_shared], saved[is_shared]


def _describe_own(cause: Cause, facts: CauseContext, suspect: Suspect) -> Claim:
    """Return a claim about work that only some processes do."""
    replay, kinds = facts.replay, KINDS[suspect.kind]
    own = find_work_of(replay, kinds, suspect.processes)
    table, columns = replay.tabulate(kinds), own.columns
    counts = own.more[:, columns].mean(axis=1)
    share, number = own.share[:, columns].mean(axis=1), len(suspect.processes)
    # Host calls also wait in work that only these processes do.
    lines = [table.list_edges(key, columns) for key in own.keys]
    totals = np.array([facts.measure(line).sum() / number for line in lines])
    lasts, named = totals * share, list[Said]()
    order = np.argsort(-lasts)
    is_alone = bool(share[order[0]] == 1)
    for one in order[:2].tolist():
        kind = Kind(facts.edges.kind[lines[one].max()])
        name = facts.name_place(kind, int(table.keys[own.keys[one]]))
        if not named or lasts[one] > EXPLAINS * lasts.sum():
            named.append(say("so often", where=name, time=lasts[one], count=round(counts[one])))
    worst, time = replay.list_saved(cause.changes), float(own.lasts[columns].mean())
    if kinds == HOST:
        time = max(time, float(lasts.sum()))
    when = find_loss(facts, suspect, *worst).shape.when
    said = [say("own work", time=time, first=named[0], second=named[1] if named[1:] else None)]
    stage, stages = _find_stage(facts, suspect)
    if stage:
        gone = leave_out(replay, kinds, suspect.processes, is_needed=False)
        said.append(say("spread", stages=stages, gain=replay.compute_gain(gone)))
    where = named[0].facts["where"]
    does = {"alone": is_alone, "often": not is_alone, **_inflect(suspect)}
    title = say("does alone", where=where, when=when, **does)
    advice = "stage" if stage else f"own_{suspect.kind}"
    if suspect.kind == "copies" and _are_pageable_there(facts, suspect):
        title, advice = say("pageable there"), "pageable"
    return Claim(cause.kind, said, worst, time, title, advice)


def _inflect(suspect: Suspect) -> dict[str, bool]:
    """Return the facts that select the singular or plural of a verb."""
    return {"one": len(suspect.processes) == 1, "several": len(suspect.processes) > 1}


def _compare(
    facts: CauseContext, suspect: Suspect
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...], np.ndarray]:
    """Return the time of some processes in each kind of their work, and the others' mean (ns); both
    counts; and the keys of the work.
    """
    table = facts.replay.tabulate(KINDS[suspect.kind])
    is_own = table.mask_processes(suspect.processes)
    _, totals, counts = table.by_key
    lasts, often = (
        tuple(figures[:, side].mean(axis=1) for side in (is_own, ~is_own))
        for figures in (totals, counts)
    )
    return lasts, often, table.keys


def _describe_copies(cause: Cause, facts: CauseContext, suspect: Suspect) -> Claim:
    worst, (own, usual) = facts.replay.list_saved(cause.changes), _compare(facts, suspect)[0]
    evidence = describe_copies_of(cause, facts)
    claim = Claim("copies", evidence, worst, own.sum() - usual.sum())
    if not _are_pageable_there(facts, suspect):
        return claim
    return replace(claim, title=say("pageable there"), advice="pageable")


def _are_pageable_there(facts: CauseContext, suspect: Suspect) -> bool:
    """Return True if some processes copy mostly pageable memory and the others do not."""
    copies, kinds = facts.replay.job.copies, map_labels("memory_kind")
    begins, ends = facts.find_times(copies["edge"].to_numpy())
    inside = (ends > facts.replay.begin) & (begins < facts.replay.end)
    is_own = np.isin(facts.edges.process[copies["edge"].to_numpy()], suspect.processes)
    pageable = pl.any_horizontal(pl.col("source", "destination") == kinds["pageable"])
    shares = [
        copies.filter(pl.Series(inside & side)).select(
            pl.col("bytes").filter(pageable).sum() / pl.col("bytes").sum()
        )
        for side in (is_own, ~is_own)
    ]
    own, others = (share.item() or 0.0 for share in shares)
    return bool(own >= MOST > others)


def _describe_host(cause: Cause, facts: CauseContext, suspect: Suspect) -> Claim:
    """Return a claim about the NVTX range, call, function and activity in which hosts take longer
    than elsewhere.
    """
    frames = facts.frames
    tasks = [process + 1 for process in suspect.processes]
    edges, saved = facts.replay.list_saved(cause.changes)
    evidence, more = list[Said | str](), saved.sum() / len(tasks)
    group, share = facts.find_range(edges, saved)
    range_ = facts.name_range(group)
    title = _compare_range(cause, facts, tasks, group, range_) if range_ else None
    if title and title.facts.get("times"):
        of_one = more if len(tasks) == 1 else None
        evidence.append(say("range each time", of_loss=share, more=of_one, **title.facts))
    if len(edges):
        evidence.append(say("host more", more=more, where=facts.name_work(edges, saved)))
    hosts = frames["hosts"].unpivot(GOING_ON, index="task", variable_name="part", value_name="time")
    longer = {
        part: own - usual for part, own, usual, _ in compare_with_others(hosts, "part", tasks)
    }
    whole, sums = sum(longer.values()), frames["places"]
    if sums.height and whole:
        sums = sums.group_by("task", "place").agg(pl.col("time").sum())
        for place, own, usual, most in compare_with_others(sums, "place", tasks)[:1]:
            label = label_place(place, facts.context)
            # Another rank that is there as long is not delayed by it.
            if own - max(usual, most) >= EXPLAINS * whole and label:
                evidence.append(say("host place", place=label, own=own, usual=usual))
    if parts := describe_parts(longer):
        evidence.append(say("longer parts", parts=parts))
    pauses = facts.find_pauses(facts.keep_name(edges, saved)[0])
    evidence += [pauses.call.of_whole] if pauses.call else []
    evidence += [pauses.until] if pauses.until else []
    is_range = title is not None
    if longer.get("unknown", 0) > whole / 2 or not (is_range or parts):
        evidence.append(facts.describe_unrecorded(what="host activity during this time"))
    shape, advice = find_loss(facts, suspect, edges, saved).shape, ""
    if title is None:
        title, advice = _say_longer(longer, pauses.call)
    if shape.when:
        what = range_ if is_range else "the host"
        title = say("longer when", what=what, each=shape.each, when=shape.when)
        advice = f"host_{shape.kind}" if f"host_{shape.kind}" in ADVICE else advice
    inside = np.isin(facts.find_groups(edges), facts.list_groups(group))
    is_inside = is_range and inside.any()
    worst = (edges[inside], saved[inside]) if is_inside else facts.keep_name(edges, saved)
    return Claim("host", evidence, worst, more, title, advice)


def _say_longer(longer: dict[str, float], call: NamedTime | None) -> tuple[Said | None, str]:
    """Return the title for hosts, named for the part with most of their extra time (ns by part), and
    advice (key of ADVICE, "" for the usual one). The title is None if no known part dominates.
    call: OS runtime call with the longest pauses.
    """
    part = max(longer, key=lambda one: longer[one], default="unknown")
    if part == "unknown" or longer[part] < MOST * sum(longer.values()):
        return None, ""
    if call is None or part not in ("io", "os") or call.share < MOST:
        return say("host does", does=PARTS[part]), ""
    if choose_advice("pauses", part=part, call=call.name, share=call.share) == "sleep":
        return say("host sleeps", call=call.name), "sleep"
    return say("host does", does=f"in {call.name}"), ""


def _describe_handoff(cause: Cause, facts: CauseContext, suspect: Suspect) -> Claim:
    """Return a claim about a host for which others wait: who waits, in which call, and the host's
    activity meanwhile.
    """
    edges, saved = facts.replay.list_saved(cause.changes)
    range_ = facts.name_range(facts.find_range(edges, saved)[0])
    is_late = cause.kind == LATE_HANDOFF
    evidence = [*facts.describe_waiters(suspect.processes, saved.sum() if is_late else None)]
    evidence += facts.describe_pauses(edges, range_)
    more = saved.sum() / len(suspect.processes)
    is_helper = suspect.processes[0] in facts.replay.job.helpers
    title = say(cause.kind, range=range_, whose="it" if is_helper else "its host")
    return Claim(cause.kind, evidence, (edges, saved), more, title, is_limit=not is_late)


def _compare_range(
    cause: Cause, facts: CauseContext, tasks: list[int], group: int, name: str
) -> Said | None:
    """Return a sentence about how much longer an NVTX range takes than on other ranks, if it does
    so each time. Return None if that does not explain the loss.

    Only time outside CUDA and MPI calls counts. The text gives the duration of the range if it
    differs as much.
    """
    rows = facts.frames["ranges"].filter(pl.col("group").is_in(facts.list_groups(group)))
    compared = compare_with_others(rows, "group", tasks)
    if not facts.is_backed(cause.gain, sum(own - usual for _, own, usual, _ in compared)):
        return None
    sums = rows.group_by("task").agg(pl.col("time", "lasts", "count").sum())
    sums = sums.filter(pl.col("count") > 0).with_columns(pl.col("time", "lasts") / pl.col("count"))
    is_own = pl.col("task").is_in(tasks)
    own, others = sums.filter(is_own).mean(), sums.filter(~is_own).median()
    (time, lasts), (usual, usually) = (one.select("time", "lasts").row(0) for one in (own, others))
    if None in (time, usual) or time <= LONGER * usual:
        return say("range longer", range=name)
    if not facts.is_backed(cause.gain, own["count"][0] * (time - usual)):
        return say("range longer", range=name)
    is_whole = lasts - usually > (time - usual) / 2
    said = {"lasts": lasts, "usually": usually} if is_whole else {"lasts": time, "usually": usual}
    times = round(own["count"][0])
    return say("range takes", range=name, times=times, time=time, usual=usual, **said)


def _count_last(facts: CauseContext, tasks: tuple[int, ...]) -> Iterator[Said]:
    """Yield a sentence about how often ranks arrive last at NCCL collectives."""
    reader = facts.context.reader
    inside = pl.col("begin").is_between(facts.replay.begin, facts.replay.end)
    records = list_compared_kernels(reader).filter(inside)
    records = records.with_columns(reader.rows.find("task", records["thread"]))
    is_own = pl.col("task").is_in(tasks)
    records = records.filter(is_own.any().over("collective"))
    last = records.filter(pl.col("late") == pl.col("late").max().over("collective"))
    count, times = (rows["collective"].n_unique() for rows in (records, last.filter(is_own)))
    if count and times >= MOSTLY_LAST * count:
        of = {"steady": facts.options.steady, "one": len(tasks) == 1, "several": len(tasks) > 1}
        yield say("last", times=times, count=count, **of)


_DESCRIBE = {
    LINK_WITHIN: _describe_link,
    LINK_TO_OTHERS: _describe_link,
    LINK_OF: _describe_link,
    "hiccup": _describe_hiccup,
    "gpu": _describe_gpu,
    "copies": _describe_copies,
    "host": _describe_host,
    HANDOFF: _describe_handoff,
    LATE_HANDOFF: _describe_handoff,
}
