"""Which devices run the NCCL kernels of one communicator together, where no payload tells it.

All members of a communicator leave a collective at nearly the same moment. So do those that do not
belong together now and then, but not each time: from one kernel to the next the difference of the
ends stays the same within a group and varies between groups. The difference itself does not count,
as clocks of hosts may be wrong.
"""

from __future__ import annotations

import numpy as np
import polars as pl

#: Devices belong together if the difference of the ends of their kernels changes by less than this
#: (ns), or by less than this share of a kernel's time, from one kernel to the next in the median.
STEADY, STEADY_SHARE = 20_000, 0.05
#: So many kernels tell it, at least and at most.
LEAST_KERNELS, MOST_KERNELS = 5, 200


def groups_of_devices(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the groups in which devices run the NCCL kernels of each name: `name`, `device`,
    `group` (a number for each group of each name). kernels: name, device, number, begin, end (ns),
    the n-th of a name on one device corresponding to the n-th on all others. Names of which all
    devices are one group, and those of which it cannot be told, are left out.
    """
    found, first = [], 0
    for (name,), mine in kernels.group_by("name", maintain_order=True):
        devices = np.sort(mine["device"].unique().to_numpy())
        whole = mine.filter(pl.len().over("number") == len(devices)).sort("number", "device")
        ends = whole["end"].to_numpy().reshape(-1, len(devices))[:MOST_KERNELS]
        if len(devices) < 4 or len(ends) < LEAST_KERNELS:
            continue
        length = float((mine["end"] - mine["begin"]).median())
        groups = _groups(ends, max(STEADY, STEADY_SHARE * length))
        if len(np.unique(groups)) > 1 and np.bincount(groups).min() > 1:
            frame = {"device": devices, "group": groups + first}
            found.append(pl.DataFrame(frame).select(pl.lit(name).alias("name"), "device", "group"))
            first += len(devices)
    schema = {"name": pl.String, "device": pl.Int64, "group": pl.Int64}
    return pl.concat([pl.DataFrame(schema=schema), *(frame.cast(schema) for frame in found)])


def _groups(ends: np.ndarray, steady: float) -> np.ndarray:
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
