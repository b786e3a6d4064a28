"""Count the CPUs that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def count_available_cpus(
    memberships: Path = Path("/proc/self/cgroup"), root: Path = CGROUPS
) -> int:
    """Return the number of CPUs in the process's affinity (as taskset and Slurm set it), or fewer
    if its control groups limit CPU time.
    """
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min([allowed, *_read_quotas(memberships, root)]))


def _read_quotas(memberships: Path, root: Path) -> Iterator[int]:
    """Yield the whole processors that each control group of this process, and each above it, may
    use (cgroups of version 2, then 1).
    """
    try:
        lines = memberships.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "cpu" if controllers else root
        folder = base / path.lstrip("/")
        for group in (folder, *folder.parents):
            quota, period = _read_limit(group) if group.is_relative_to(base) else (0, 0)
            if quota > 0 and period > 0:
                yield quota // period


def _read_limit(group: Path) -> tuple[int, int]:
    """Return microseconds of processor time in each period, and the period; 0 where there is no
    limit.
    """
    with suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text().split()
        return (0 if quota == "max" else int(quota)), int(period)
    with suppress(OSError, ValueError):
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota), int(period)
    return 0, 0
