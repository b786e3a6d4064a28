"""What costs time beside waiting for ranks: links, exposed communication and copies, idle devices,
matrix products.
"""

from __future__ import annotations

import polars as pl
from msgspec import Struct

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


class Link(Struct, frozen=True):
    """A communicator that is slower than its peers."""

    # its members, ascending
    tasks: list[int]
    # NCCL operation (value), and bytes of each rank
    operation: int
    bytes: int
    # median transfer of it and of its peers (ns)
    transfer: float
    usual: float
    # ns lost to it on its members, in the mean
    cost: int


def slow_links(records: pl.DataFrame, length: int) -> list[Link]:
    """Communicators that take longer than their peers (same size, operation and bytes), the most
    costly first.
    """
    if not records.height:
        return []
    ranks = records.group_by("communicator").agg(members=pl.col("task").unique().sort())
    known = records.filter((pl.col("bytes") > 0) & (pl.col("communicator") >= 0))
    groups = known.group_by("communicator", "operation", "bytes").agg(
        transfer=pl.col("transfer").median(), exposed=pl.col("exposed_transfer").sum()
    )
    groups = groups.join(ranks, on="communicator").with_columns(size=pl.col("members").list.len())
    peers = ["operation", "bytes", "size"]
    groups = groups.filter(pl.len().over(peers) >= 2).sort(*peers, "transfer", "communicator")
    # The median of the others: of two, the faster one.
    usual = pl.col("transfer").quantile(0.5, "lower").over(peers)
    groups = groups.with_columns(usual=usual).filter(
        (pl.col("usual") > 0) & (pl.col("transfer") >= SLOW * pl.col("usual"))
    )
    groups = groups.with_columns(
        lost=pl.col("exposed") / pl.col("size") * (1 - pl.col("usual") / pl.col("transfer"))
    )
    found = []
    for _, mine in groups.group_by("communicator", maintain_order=True):
        worst = mine.sort("lost", descending=True).row(0, named=True)
        found.append(
            Link(
                worst["members"],
                worst["operation"],
                worst["bytes"],
                worst["transfer"],
                worst["usual"],
                int(mine["lost"].sum()),
            )
        )
    return sorted(
        (link for link in found if link.cost >= LEAST_LINK * length),
        key=lambda link: (-link.cost, link.tasks),
    )


def with_waits(others: pl.DataFrame) -> pl.DataFrame:
    """NCCL kernels and calls of MPI of which it is not known who waited for whom, with
    `exposed_wait`: how much longer they take than the quickest of the same number on all devices,
    for ranks do the same in the same order. Where they do not: longer than the quickest tenth of
    those that move the same.
    """
    if not others.height:
        return others
    length, same = (
        pl.col("end") - pl.col("begin"),
        pl.col("total").min().over("name") == pl.col("total").max().over("name"),
    )
    in_step = same & (pl.col("device").n_unique().over("name") == others["device"].n_unique())
    least = length.min().over("name", "number")
    usual = length.quantile(0.1, "lower").over("operation", "bytes", "communicator")
    base = pl.when(in_step).then(least).when(pl.col("bytes") >= 0).then(usual).otherwise(length)
    return others.with_columns(
        exposed_wait=pl.min_horizontal("exposed", (length - base).clip(0)).cast(pl.Int64)
    )
