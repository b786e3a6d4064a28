"""Findings that name ranks: stragglers, slow hosts and links, hiccups; and waits that are nobody's
fault.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from nsys2prv.analysis.causes import SlowLink
from nsys2prv.analysis.ranks import JobRanks
from nsys2prv.analysis.result import Finding
from nsys2prv.analysis.text import format_nanoseconds
from nsys2prv.analysis.unit import STATES
from nsys2prv.analysis.waiting import Culprits, Event, Segments

#: Waits that are nobody's fault cost this share of the time at least.
LEAST_IMBALANCE = 0.03
VIEWS = ("nccl_late_by_task_2dh", "nccl_wait", "nccl_wait_by_task_2dh")
#: Parts of a device's time that may make its rank late -> what is said of a rank that has more of
#: it.
PARTS = {
    "compute": "its GPU computes longer",
    "transfer": "it moves data longer",
    "memory": "it copies memory longer",
    "idle_unknown": "its GPU is idle while its host computes",
    "idle_launch": "its GPU is idle while its host is in CUDA calls",
    "idle_synchronisation": "its GPU is idle while its host waits in a synchronising call",
    "idle_io": "its GPU is idle while its host is in I/O",
    "idle_mpi": "its GPU is idle while its host is in MPI",
    "idle_nccl": "its GPU is idle while its host is in NCCL calls",
}
#: States of hosts, for people.
IN_STATE = {
    "mpi": "in MPI",
    "nccl": "in NCCL calls",
    "io": "in I/O",
    "synchronisation": "waiting for the GPU",
    "launch": "in CUDA calls",
}
ADVICE = {
    "compute": "compare clocks, temperature and power of this GPU with the others', and the amount of work it is given",
    "transfer": "check the links of these ranks (NVLink, PCIe, network), and the NCCL transport that they use",
    "memory": "compare what is copied, from where, and whether that memory is pinned",
    "idle_unknown": "profile this host's CPU: other processes, affinity, clocks, data loading",
    "idle_launch": "look at its CUDA calls: allocation, module loading, many small launches",
    "idle_synchronisation": "find the call that synchronises, and wait later or not at all",
    "idle_io": "look at its file system and network, and load data ahead",
    "idle_mpi": "find which rank it waits for in MPI",
    "idle_nccl": "find out why its NCCL calls take long",
}


def make_culprit_finding(job: JobRanks, segments: Segments, culprits: Culprits) -> Finding:
    """Return the finding of who is persistently the last, and why."""
    tasks = culprits.tasks
    who, host = job.name(tasks), job.find_host(tasks) if len(tasks) > 1 else ""
    differences = [item for item in job.find_differences(tasks, tuple(PARTS)) if item[1] > 0]
    part = differences[0][0] if differences else "idle_unknown"
    kind = (
        "slow_link"
        if part == "transfer" and len(tasks) > 1
        else "slow_host"
        if host
        else "straggler"
    )
    at = segments.tasks.tolist().index(tasks[0])
    chance = f"{culprits.chance:.0e}" if culprits.chance >= 1e-9 else "less than 1e-9"
    evidence = [
        f"{'last to come' if len(tasks) == 1 else 'one of them comes last'} in {culprits.last:,} of {culprits.segments:,} intervals "
        f"between collectives (probability by chance: {chance}); the others wait {format_nanoseconds(culprits.lateness)} longer in the median one",
        *(
            [f"last at {segments.last[at]:,} of its {segments.collectives[at]:,} collectives"]
            if len(tasks) == 1
            else []
        ),
    ]
    if differences:
        own_time, usual = job.compare_part(tasks, part)
        evidence.append(
            f"{PARTS[part]}: {format_nanoseconds(own_time)}; median of the others: {format_nanoseconds(usual)}"
        )
    if host:
        title = f"All ranks of host {host} are late: {who}; the others wait for them"
    else:
        title = f"{who[:1].upper()}{who[1:]} {'is' if len(tasks) == 1 else 'are'} usually last at collectives; the others wait"
    if differences:
        title += (
            f", because {PARTS[part]}"
            if len(tasks) == 1
            else f"; {PARTS[part]}".replace("its ", "their ").replace("it ", "they ")
        )
    return Finding(
        kind,
        f"{title}.",
        culprits.cost / job.length,
        job.ranks(tasks),
        job.labels(tasks),
        tuple(evidence),
        ADVICE[part],
        VIEWS,
    )


def make_link_finding(job: JobRanks, link: SlowLink) -> Finding:
    """Return a communicator that is slower than its peers."""
    evidence = (
        f"{link.what}: median transfer {format_nanoseconds(link.transfer)}, "
        f"{format_nanoseconds(link.usual)} in the same communicators of other ranks ({link.transfer / link.usual:.1f} x)",
    )
    host = job.find_host(link.tasks)
    where = f"within host {host}" if host else "across hosts"
    return Finding(
        "slow_link",
        f"NCCL among {job.name(link.tasks)}, {where}, is {link.transfer / link.usual:.1f} x slower than among "
        "its peers.",
        link.cost / job.length,
        job.ranks(link.tasks),
        job.labels(link.tasks),
        evidence,
        ADVICE["transfer"],
        ("nccl_bw_mbs",),
    )


def make_hiccup_finding(job: JobRanks, event: Event) -> Finding:
    """Return ranks that were held up now and then."""
    times = [
        f"at {format_nanoseconds(time)} for {format_nanoseconds(length)}"
        for time, length in zip(event.times[:3], event.lengths[:3], strict=True)
    ]
    count = len(event.times)
    often = "once" if count == 1 else "twice" if count == 2 else f"{count} times"
    who = job.name(event.tasks)
    # Of a single one the title has the time.
    when = (
        ""
        if count == 1
        else f"{', '.join(times)}{f' and {count - 3} times more' if count > 3 else ''}; "
    )
    doing = "".join(f"; {text}" for text in _describe_meanwhile(job, event))
    evidence = (f"{when}the others waited in NCCL meanwhile{doing}",)
    return Finding(
        "hiccup",
        f"{who[:1].upper()}{who[1:]} {'was' if len(event.tasks) == 1 else 'were'} held up {often}, "
        f"{times[0]}.",
        event.cost / job.length,
        job.ranks(event.tasks),
        job.labels(event.tasks),
        evidence,
        f"look at what {'its host and its GPU' if len(event.tasks) == 1 else 'their hosts and GPUs'} did then: garbage collection, checkpoints, page faults, other processes",
        VIEWS,
    )


def _describe_meanwhile(job: JobRanks, event: Event) -> Iterator[str]:
    """Describe what the device and the host of the first rank did during the longest event."""
    if not job.records.height:
        return
    begin, length = event.times[0], event.lengths[0]
    near = job.records.filter(
        (pl.col("task") == event.tasks[0])
        & (pl.col("begin") >= begin)
        & (pl.col("begin") <= begin + 2 * length)
        & (pl.col("late") > 0)
    ).sort("late", descending=True)
    if near.height:
        row = near.row(0, named=True)
        doing = {
            "computing": row["computing"],
            "in other NCCL kernels": row["other_nccl"],
            "copying memory": row["memory"],
            "idle": row["late"] - row["busy"],
        }
        most = max(doing, key=doing.__getitem__)
        activity = "in no call that was recorded"
        if sum(row[name] for name in STATES) > row["late"] / 2:
            activity = IN_STATE[max(STATES, key=row.__getitem__)]
        many = len(event.tasks) > 1
        whose = f"the GPU of rank {job.ranks(event.tasks[:1])[0]}" if many else "its GPU"
        yield (
            f"{whose} was {most} for {format_nanoseconds(doing[most])} of {format_nanoseconds(row['late'])}, "
            f"its host mostly {activity}"
        )


#: Share of the intervals between collectives from which on a rank is named though it is not always
#: the last one.
OFTEN = 1 / 3


def make_imbalance_findings(job: JobRanks, segments: Segments, reported: int) -> list[Finding]:
    """Return waits that no other finding reports. reported: ns."""
    rest = float(segments.waits.sum(axis=0).mean()) - reported if len(segments.tasks) else 0.0
    share = rest / job.length
    if share < LEAST_IMBALANCE:
        return []
    waits = segments.waits.sum(axis=0)
    evidence = [
        f"a rank waits {format_nanoseconds(float(waits.mean()))} on average, between {format_nanoseconds(float(waits.min()))} and "
        f"{format_nanoseconds(float(waits.max()))}"
        + "".join(f"; {text}" for text in _name_least_waiting(job, segments))
    ]
    if reported:
        evidence.append(f"{format_nanoseconds(reported)} of this are counted in other findings")
    return [
        Finding(
            "imbalance",
            "Ranks wait for each other at collectives, and not always for the same one.",
            share,
            evidence=tuple(evidence),
            advice="even out what ranks do between collectives: sizes of batches, data loading, operating-system noise",
            views=VIEWS,
        )
    ]


def _name_least_waiting(job: JobRanks, segments: Segments) -> Iterator[str]:
    """Name the rank that the others wait for most often, if that is far more often than by chance."""
    of_each = np.bincount(segments.waits.argmin(axis=1), minlength=len(segments.tasks))
    often, intervals = int(of_each.max()), len(segments.waits)
    if len(segments.tasks) > 2 and often >= max(3, OFTEN * intervals):
        who = job.name([int(segments.tasks[of_each.argmax()])])
        yield f"the others wait most often for {who}: in {often} of {intervals} intervals between collectives"
