"""What costs time beside waiting for ranks: links, exposed communication and copies, idle devices,
matrix products.

Where no payload tells which devices run the NCCL kernels of one communicator together, their ends
do. All members of a communicator leave a collective at nearly the same moment. So do those that do
not belong together now and then, but not each time: from one kernel to the next the difference of
the ends stays the same within a group and varies between groups. The difference itself does not
count, as clocks of hosts may be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv.analysis.text import format_cell
from nsys2prv.analysis.unit import list_labels

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
