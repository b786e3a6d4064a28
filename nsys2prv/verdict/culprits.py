"""Describe ranks and links that hold the others up, as findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv._util.text import capitalize, format_nanoseconds
from nsys2prv.figures.host_time import PARTS, compare_with_others, describe_parts
from nsys2prv.figures.result import Finding
from nsys2prv.figures.stacks import label_place
from nsys2prv.replay.causes import Cause
from nsys2prv.replay.graph import Kind
from nsys2prv.replay.suspects import LINK_TO_OTHERS, LINK_WITHIN, Suspect
from nsys2prv.replay.whatif import GPU, HOST
from nsys2prv.verdict.cause_context import CauseContext
from nsys2prv.verdict.host_use import ADVICE, EXPLAINS
from nsys2prv.verdict.job_causes import describe_copies_of

#: Ranks are last by no accident where they are so in this share of the collectives or more.
MOSTLY_LAST = 0.3
#: What a hiccup consists of lasts at least this part of the longest.
OF_LONGEST = 4
#: A range takes longer than on the others if it does so many times as long each time.
LONGER = 1.05
#: So many more kernels than the others have are worth a word.
FEW_MORE = 0.02


class CulpritTexts(NamedTuple):
    """Texts of the finding of a culprit."""

    #: The title, behind the name of the ranks.
    title: str
    evidence: list[str]
    #: The edges that it is about, and what each costs (ns).
    worst: tuple[np.ndarray, np.ndarray]
    #: Key of ADVICE, where it is not that of the cause.
    advice: str = ""
    #: What is stated: by how much a culprit exceeds the others (ns).
    difference: float | None = None


def describe_culprit(cause: Cause, facts: CauseContext, suspect: Suspect) -> Finding:
    """Return the finding of processes, or links, that hold the others up."""
    tasks = [process + 1 for process in suspect.processes]
    texts = _DESCRIBE[cause.kind](cause, facts, suspect)
    title, evidence = texts.title, texts.evidence
    stage = _find_stage(facts, suspect)
    if not suspect.is_link:
        place = f", stage {stage} of {len(facts.pipeline.stages)}" if stage else ""
        title = f"{capitalize(facts.job.describe_ranks(tasks))}{place}: {title}"
        evidence = [*evidence, *_count_last(facts, tasks)]
    advice = ADVICE[texts.advice or cause.kind]
    finding = facts.make_finding(
        cause,
        cause.kind,
        title,
        evidence,
        texts.worst,
        tasks=tasks,
        advice=advice,
        difference=texts.difference,
    )
    is_host = len(tasks) > 1 and facts.job.find_host(tasks) and not stage
    return (
        replace(finding, kind="slow_host") if is_host and finding.kind == "straggler" else finding
    )


def _find_stage(facts: CauseContext, suspect: Suspect) -> int:
    """Return which stage of a pipeline processes with slow GPUs are, from 1; 0 for none."""
    stages = facts.pipeline.stages if suspect.kind == "gpu" and facts.pipeline else ()
    return stages.index(suspect.processes) + 1 if suspect.processes in stages else 0


def _describe_link(cause: Cause, facts: CauseContext, suspect: Suspect) -> CulpritTexts:
    edges, worst = cause.changes[0][0], facts.replay.list_saved(cause.changes)
    own = float(facts.replay.job.graph.weight[edges].sum())
    usual = own - float(worst[1].sum())
    title = f"Data moves slowly {'within' if suspect.kind == LINK_WITHIN else 'to and from'} {suspect.host}."
    evidence = (
        f"{len(edges):,} transfers take {format_nanoseconds(own / len(edges))} on average; the same ones "
        f"elsewhere {format_nanoseconds(usual / len(edges))}; most in {facts.name_transfers(*worst)}"
    )
    return CulpritTexts(title, [evidence], worst, difference=own - usual)


def _describe_hiccup(cause: Cause, facts: CauseContext, suspect: Suspect) -> CulpritTexts:
    """Say how long it usually takes where a rank was held up, and what its host did then."""
    kinds = facts.replay.job.graph.edges
    edges, saved = facts.replay.list_saved(cause.changes)
    long = saved >= saved.max() / OF_LONGEST
    edges, saved = edges[long], saved[long]
    total, several = format_nanoseconds(float(saved.sum())), len(saved) > 1
    often = f"{len(saved)} times, for {total} in all" if several else f"once, for {total}"
    title = f"held up {often}, {facts.name_work(edges, saved)}."
    worst = edges[[np.argmax(saved)]]
    kind, key = Kind(kinds.kind[worst[0]]), int(kinds.key[worst[0]])
    usual = np.median(facts.measure(facts.replay.select((kind,), [key])))
    longest = float(facts.measure(worst)[0])
    evidence = [
        f"{format_nanoseconds(longest)} then, {format_nanoseconds(float(usual))} in the median"
    ]
    if kind in HOST:
        pauses = facts.find_pauses(edges)
        named = facts.name_range(facts.find_range(edges, saved)[0])
        if pauses.range and pauses.range.name == named:
            pauses = replace(pauses, range=None)
        described = [*pauses.describe()]
        evidence += [*described, *facts.list_unrecorded(described)]
    return CulpritTexts(title, evidence, (edges, saved), difference=float(saved.sum()))


def _describe_gpu(cause: Cause, facts: CauseContext, suspect: Suspect) -> CulpritTexts:
    worst = facts.keep_name(*facts.replay.list_saved(cause.changes))
    slower, difference, evidence = _compare_kernels(facts, suspect.processes, *worst)
    times = suspect.ratio or slower
    if times <= 1.005:
        title = "more GPU work than the others."
        return CulpritTexts(title, [evidence], worst, "gpu_more", difference)
    is_stage = len(suspect.processes) > 1 and _find_stage(facts, suspect)
    title = f"kernels take {times - 1:.1%} longer than the others' do."
    return CulpritTexts(title, [evidence], worst, "stage" if is_stage else "", difference)


def _compare_kernels(
    facts: CauseContext, processes: Sequence[int], edges: np.ndarray, saved: np.ndarray
) -> tuple[float, float, str]:
    """Return how many times as long as the others' the kernels of some processes take, 0 where most
    of the difference is that they have more; the difference in all (ns), and what shows it. edges: of the kernel that takes
    longer, by `saved` (ns).
    """
    table = facts.replay.tabulate(GPU)
    is_own = table.mask_columns(np.searchsorted(facts.replay.processes, processes))
    _, totals, counts = table.by_key
    own, usual, own_count, count = (
        figures[:, side].mean(axis=1) for figures in (totals, counts) for side in (is_own, ~is_own)
    )
    # What the others would take for as many kernels of each name.
    alike = np.divide(usual * own_count, count, out=own.copy(), where=count > 0)
    place = int(np.argmax(own - usual))
    if len(edges):
        key = int(facts.replay.job.graph.edges.key[edges[0]])
        place = int(np.searchsorted(table.keys, key))
    range_ = facts.name_range(facts.find_range(edges, saved)[0])
    inside = f" (NVTX range {range_})" if range_ else ""
    evidence = (
        f"kernels: {format_nanoseconds(own.sum())} in {own_count.sum():,.0f}, on average of the others "
        f"{format_nanoseconds(usual.sum())} in {count.sum():,.0f}; most of the difference is in "
        f"{facts.name_kernel(int(table.keys[place]))}{inside}: {format_nanoseconds(own[place])} against "
        f"{format_nanoseconds(usual[place])}"
    )
    if abs(own_count.sum() - count.sum()) > FEW_MORE * count.sum():
        evidence += f"; as many of each name would take {format_nanoseconds(alike.sum())} there"
    slower, more = own.sum() - alike.sum(), alike.sum() - usual.sum()
    times = own.sum() / max(alike.sum(), 1) if slower > more else 0.0
    return times, float(own.sum() - usual.sum()), evidence


def _describe_copies(cause: Cause, facts: CauseContext, suspect: Suspect) -> CulpritTexts:
    worst = facts.replay.list_saved(cause.changes)
    evidence = describe_copies_of(cause, facts)
    return CulpritTexts("copies take longer than the others'.", [*evidence], worst)


def _describe_host(cause: Cause, facts: CauseContext, suspect: Suspect) -> CulpritTexts:
    """Say in which NVTX range, call, function and part of time hosts take longer than the others."""
    frames = facts.frames
    tasks = [process + 1 for process in suspect.processes]
    edges, saved = facts.replay.list_saved(cause.changes)
    name, evidence = "", []
    group, share = facts.find_range(edges, saved)
    if range_ := facts.name_range(group):
        name, described = _compare_range(cause, facts, tasks, group, range_)
        evidence += [f"{described}; {share:.0%} of the loss is there"] if described else []
    if len(edges):
        more = format_nanoseconds(float(saved.sum()) / len(tasks))
        evidence.append(f"{more} more than the others, most of it {facts.name_work(edges, saved)}")
    hosts = frames["hosts"].unpivot(PARTS, index="task", variable_name="part", value_name="time")
    compared = compare_with_others(hosts, "part", tasks)
    longer = {part: own - usual for part, own, usual in compared}
    whole, sums = sum(longer.values()), frames["places"]
    if sums.height and whole:
        sums = sums.group_by("task", "place").agg(pl.col("time").sum())
        for place, own, usual in compare_with_others(sums, "place", tasks)[:1]:
            label = label_place(place, facts.context)
            if own - usual >= EXPLAINS * whole and label:
                evidence.append(
                    f"in {label}: {format_nanoseconds(own)}, median of the others {format_nanoseconds(usual)}"
                )
    if described := describe_parts(longer):
        evidence.append(f"what is longer than the others': {described}")
    if call := facts.find_pauses(facts.keep_name(edges, saved)[0]).call:
        evidence.append(call.of_whole)
    if longer.get("unknown", 0) > whole / 2 or not (name or described):
        evidence.append(facts.describe_unrecorded("what the host does there"))
    inside = facts.find_groups(edges) == group
    is_inside = bool(name) and inside.any()
    worst = (edges[inside], saved[inside]) if is_inside else facts.keep_name(edges, saved)
    return CulpritTexts(f"{name or 'the host takes longer than on the others'}.", evidence, worst)


def _compare_range(
    cause: Cause, facts: CauseContext, tasks: list[int], group: int, name: str
) -> tuple[str, str]:
    """Say by how much an NVTX range takes longer than on the others, as part of a sentence and as
    evidence, which are empty where that does not amount to the loss, and where it does not each time. What counts is the time outside of calls of
    CUDA and MPI; said is how long the range lasts, where that differs as much.
    """
    rows = facts.frames["ranges"].filter(pl.col("group") == group)
    compared = compare_with_others(rows, "group", tasks)
    if not facts.is_backed(cause, max((own - usual for _, own, usual in compared), default=0.0)):
        return "", ""
    sums = rows.group_by("task").agg(pl.col("time", "lasts", "count").sum())
    sums = sums.filter(pl.col("count") > 0).with_columns(pl.col("time", "lasts") / pl.col("count"))
    is_own = pl.col("task").is_in(tasks)
    own, others = sums.filter(is_own), sums.filter(~is_own)
    longer = f"{name} takes longer than on the others"
    if not own.height or not others.height:
        return longer, ""
    (time, usual), (lasts, usually) = (
        (float(own[one].mean()), float(others[one].median())) for one in ("time", "lasts")
    )
    if time - usual <= (LONGER - 1) * usual:
        return longer, ""
    outside = f"{format_nanoseconds(time)} against {format_nanoseconds(usual)}"
    is_whole = lasts - usually > (time - usual) / 2
    said = f"{format_nanoseconds(lasts)} against {format_nanoseconds(usually)}"
    return (
        f"{name} takes {said if is_whole else outside} on the others",
        f"NVTX range {name}, {own['count'].mean():,.0f} times: {outside} each time outside of calls of CUDA and MPI",
    )


def _count_last(facts: CauseContext, tasks: list[int]) -> Iterator[str]:
    """Say how often ranks are last at collectives of NCCL."""
    reader = facts.context.reader
    if "nccl_collective" not in reader.layouts:
        return
    records = reader.read_begins("nccl_collective", ("collective", "late"))
    inside = pl.col("begin").is_between(facts.replay.begin, facts.replay.end)
    records = records.filter((pl.col("late") >= 0) & inside)
    task_of = reader.rows.get_column("task")
    records = records.with_columns(task=pl.Series(task_of[records["thread"].to_numpy()]))
    is_own = pl.col("task").is_in(tasks)
    records = records.filter(is_own.any().over("collective"))
    last = records.filter(pl.col("late") == pl.col("late").max().over("collective"))
    count, times = (rows["collective"].n_unique() for rows in (records, last.filter(is_own)))
    if count and times >= MOSTLY_LAST * count:
        yield f"last in {times:,} of {count:,} NCCL collectives"


_DESCRIBE = {
    LINK_WITHIN: _describe_link,
    LINK_TO_OTHERS: _describe_link,
    "hiccup": _describe_hiccup,
    "gpu": _describe_gpu,
    "copies": _describe_copies,
    "host": _describe_host,
}
