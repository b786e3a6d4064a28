"""What costs time beside waiting for ranks: links, exposed communication and copies, idle devices,
matrix products.

Where no payload tells which devices run the NCCL kernels of one communicator together, their ends
do. All members of a communicator leave a collective at nearly the same moment. So do those that do
not belong together now and then, but not each time: from one kernel to the next the difference of
the ends stays the same within a group and varies between groups. The difference itself does not
count, as clocks of hosts may be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv.analysis.critical_path import Culprits, Event, Segments
from nsys2prv.analysis.job_facts import JobRanks
from nsys2prv.analysis.result import Finding
from nsys2prv.analysis.text import format_cell, format_nanoseconds
from nsys2prv.analysis.unit import STATES, list_labels

#: Of communicators of the same size that move the same, one is slow from this factor of the others'
#: median on, ...
SLOW = 1.5
#: ... where this share of the time is lost to it.
LEAST_LINK = 0.01
#: What each cause costs at least to be a finding: as a share of the time of all devices.
LEAST = {"exposed_communication": 0.03, "exposed_copies": 0.02, "no_tensor_cores": 0.02}
LEAST_IDLE = 0.03
#: Part of idle time (device_time) -> kind of finding.
IDLE = {
    "idle_mpi": "host_mpi",
    "idle_nccl": "host_nccl",
    "idle_io": "host_io",
    "idle_synchronisation": "blocked_by_call",
    "idle_launch": "launch_bound",
    "idle_unknown": "host_work",
}
#: Columns of transfers: the task, what is moved, among whom, for how long, and exposed (ns).
TRANSFERS = {
    "task": pl.Int64,
    "what": pl.String,
    "communicator": pl.String,
    "transfer": pl.Int64,
    "exposed_transfer": pl.Int64,
}


class SlowLink(Struct, frozen=True):
    """A communicator that is slower than its peers."""

    # its members, ascending
    tasks: list[int]
    # what it moves: operation and bytes, or the kernel
    what: str
    # median transfer of it and of its peers (ns)
    transfer: float
    #: Transfer time of its peers (ns).
    usual: float
    # ns lost to it on its members, in the mean
    cost: int


def find_slow_links(
    records: pl.DataFrame, others: pl.DataFrame, kernels: Mapping[int, str], length: int
) -> list[SlowLink]:
    """Return communicators that take longer than their peers (same size, operation and bytes), the
    most costly first. records: as device_time collects them. others: of add_waits. kernels: labels
    of NCCL kernels by value.
    """
    transfers = pl.concat(
        [_list_matched_transfers(records), _list_group_transfers(others, kernels)]
    )
    ranks = transfers.group_by("communicator").agg(members=pl.col("task").unique().sort())
    groups = transfers.group_by("communicator", "what").agg(
        transfer=pl.col("transfer").median(), exposed=pl.col("exposed_transfer").sum()
    )
    groups = groups.join(ranks, on="communicator").with_columns(size=pl.col("members").list.len())
    peers = ["what", "size"]
    groups = groups.filter(pl.len().over(peers) >= 2).sort(*peers, "transfer", "communicator")
    # The median of the others: of two, the faster one.
    usual = pl.col("transfer").quantile(0.5, "lower").over(peers)
    groups = groups.with_columns(usual=usual).filter(
        (pl.col("usual") > 0) & (pl.col("transfer") >= SLOW * pl.col("usual"))
    )
    groups = groups.with_columns(
        lost=pl.col("exposed") / pl.col("size") * (1 - pl.col("usual") / pl.col("transfer"))
    )
    slow = []
    # The communicators of one set of ranks are one link.
    for (members,), same_members in groups.group_by("members", maintain_order=True):
        worst = same_members.sort("lost", descending=True).row(0, named=True)
        slow.append(
            SlowLink(
                list(members),
                worst["what"],
                worst["transfer"],
                worst["usual"],
                int(same_members["lost"].sum()),
            )
        )
    return sorted(
        (link for link in slow if link.cost >= LEAST_LINK * length),
        key=lambda link: (-link.cost, link.tasks),
    )


def _list_matched_transfers(records: pl.DataFrame) -> pl.DataFrame:
    """Return transfers of matched collectives: TRANSFERS."""
    if not records.height:
        return pl.DataFrame(schema=TRANSFERS)
    labels = list_labels("nccl_operation")
    with_bytes = records.filter((pl.col("bytes") > 0) & (pl.col("communicator") >= 0))
    kinds = with_bytes.select("operation", "bytes").unique(maintain_order=True)
    texts = [
        f"{labels.get(operation, 'NCCL')} of {format_cell('bytes', size)}"
        for operation, size in kinds.rows()
    ]
    return (
        with_bytes.join(
            kinds.with_columns(what=pl.Series(texts, dtype=pl.String)), on=["operation", "bytes"]
        )
        .with_columns(communicator=pl.format("{}", "communicator"))
        .select(*TRANSFERS)
        .cast(TRANSFERS)
    )


def _list_group_transfers(others: pl.DataFrame, kernels: Mapping[int, str]) -> pl.DataFrame:
    """Return transfers of NCCL kernels whose groups show: TRANSFERS."""
    if not others.height:
        return pl.DataFrame(schema=TRANSFERS)
    length = pl.col("end") - pl.col("begin")
    names = {f"NCCL {value}": label for value, label in kernels.items()}
    return (
        others.filter(pl.col("group").is_not_null())
        .select(
            "task",
            what=pl.col("name").replace(names),
            communicator=pl.format("group {}", "group"),
            transfer=length.min().over("group", "number"),
            exposed_transfer=pl.col("exposed") - pl.col("exposed_wait"),
        )
        .select(*TRANSFERS)
        .cast(TRANSFERS)
    )


def add_waits(others: pl.DataFrame) -> pl.DataFrame:
    """Return NCCL kernels and calls of MPI of which it is not known who waited for whom, with
    `exposed_wait`: how much longer they take than the quickest of the same number on all devices,
    or on those of their group where groups show (`group`, else null), for ranks do the same in the
    same order. Where they do not: longer than the quickest tenth of those that move the same.
    `when` is their end; where all devices do the same, that on the first one: clocks may be wrong.
    """
    if not others.height:
        return others
    length, same = (
        pl.col("end") - pl.col("begin"),
        pl.col("total").min().over("name") == pl.col("total").max().over("name"),
    )
    in_step = same & (pl.col("device").n_unique().over("name") == others["device"].n_unique())
    others = others.with_columns(in_step=in_step)
    kernels = others.filter(pl.col("in_step") & pl.col("name").str.starts_with("NCCL"))
    others = others.join(
        find_device_groups(kernels), on=["name", "device"], how="left", maintain_order="left"
    )
    least = length.min().over("name", "number", "group")
    usual = length.quantile(0.1, "lower").over("operation", "bytes", "communicator")
    # Iterations are those of the first task.
    of_first = pl.col("end").filter(pl.col("device") == others["device"].min())
    base = pl.when("in_step").then(least).when(pl.col("bytes") >= 0).then(usual).otherwise(length)
    return others.with_columns(
        exposed_wait=pl.min_horizontal("exposed", (length - base).clip(0)).cast(pl.Int64),
        when=pl.coalesce(pl.when("in_step").then(of_first.first().over("name", "number")), "end"),
    )


#: Devices belong together if the difference of the ends of their kernels changes by less than this
#: (ns), or by less than this share of a kernel's time, from one kernel to the next in the median.
STEADY, STEADY_SHARE = 20_000, 0.05
#: So many kernels tell it, at least and at most.
LEAST_KERNELS, MOST_KERNELS = 5, 200


def find_device_groups(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the groups in which devices run the NCCL kernels of each name: `name`, `device`,
    `group` (a number for each group of each name). kernels: name, device, number, begin, end (ns),
    the n-th of a name on one device corresponding to the n-th on all others. Names of which all
    devices are one group, and those of which it cannot be told, are left out.
    """
    numbered, first = [], 0
    for (name,), same_name in kernels.group_by("name", maintain_order=True):
        devices = np.sort(same_name["device"].unique().to_numpy())
        whole = same_name.filter(pl.len().over("number") == len(devices)).sort("number", "device")
        ends = whole["end"].to_numpy().reshape(-1, len(devices))[:MOST_KERNELS]
        if len(devices) < 4 or len(ends) < LEAST_KERNELS:
            continue
        length = float((same_name["end"] - same_name["begin"]).median())
        groups = _number_groups(ends, max(STEADY, STEADY_SHARE * length))
        if len(np.unique(groups)) > 1 and np.bincount(groups).min() > 1:
            frame = {"device": devices, "group": groups + first}
            numbered.append(
                pl.DataFrame(frame).select(pl.lit(name).alias("name"), "device", "group")
            )
            first += len(devices)
    schema = {"name": pl.String, "device": pl.Int64, "group": pl.Int64}
    return pl.concat([pl.DataFrame(schema=schema), *(frame.cast(schema) for frame in numbered)])


def _number_groups(ends: np.ndarray, steady: float) -> np.ndarray:
    """Return the number of the group of each device. ends: ns (kernels, devices). steady: by how
    much differences change within a group (ns).
    """
    groups = np.full(ends.shape[1], -1)
    number = 0
    while (groups < 0).any():
        rest = np.flatnonzero(groups < 0)
        change = np.diff(ends[:, rest] - ends[:, rest[:1]], axis=0)
        groups[rest[np.median(np.abs(change), axis=0) <= steady]] = number
        number += 1
    return groups


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
