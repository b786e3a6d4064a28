"""Count the processors that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def available_cpus(memberships: Path = Path("/proc/self/cgroup"), root: Path = CGROUPS) -> int:
    """Return the number of CPUs in the process's affinity (as taskset and Slurm set it), or fewer
    if its control groups limit CPU time.
    """
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min([allowed, *_quotas(memberships, root)]))


def _quotas(memberships: Path, root: Path) -> Iterator[int]:
    """Yield the whole processors that each control group of this process, and each above it, may
    use (cgroups of version 2, then 1).
    """
    try:
        lines = memberships.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        base = root if not controllers else root / "cpu"
        if controllers and "cpu" not in controllers.split(","):
            continue
        folder = base / path.lstrip("/")
        for group in (folder, *folder.parents):
            if not group.is_relative_to(base):
                break
            quota, period = _limit(group)
            if quota > 0 and period > 0:
                yield quota // period


def _limit(group: Path) -> tuple[int, int]:
    """Return microseconds of processor time in each period, and the period; 0 where there is no
    limit.
    """
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return (0 if quota == "max" else int(quota)), int(period)
    except (OSError, ValueError):
        pass
    try:
        return int((group / "cpu.cfs_quota_us").read_text()), int(
            (group / "cpu.cfs_period_us").read_text()
        )
    except (OSError, ValueError):
        return 0, 0
