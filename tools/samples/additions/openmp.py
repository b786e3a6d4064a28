"""OpenMP: a parallel region of four threads in every step, with every kind of event; the last region stays unfinished.

Of the last step's region, which is finished, two workers' events are not: their ends are of another clock, or 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from . import Scene

PREFIX = "OPENMP_EVENT_KIND_"
EVENT_CLASS = 78
WORKERS = (40, 41, 42)
"""Distances of thread ids from the pid; the main thread is the fourth of a team."""
TEAM = (0, *WORKERS)
IMPLICIT, EXPLICIT_UNDEFERRED, EXPLICIT = 2, 4 | 1 << 27, 4
IMPLICIT_BARRIER, EXPLICIT_BARRIER, TASK_WAIT = 2, 3, 5
CRITICAL, LOCK = 5, 1
LOOP, SINGLE = 1, 3
REGION = (0.10, 0.80)


class _Team:
    """Writes one report's events. truth: record layout -> value -> rows and ns."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.truth = scene, {}
        self.begin = scene.steps[:, 0]
        self.length = scene.steps[:, 1] - self.begin
        self.regions = np.arange(1, len(scene.steps) + 1)

    def at(self, share: float) -> np.ndarray:
        return self.begin + (self.length * share).astype(np.int64)

    def write(self, layout: str, value: int, table: str, low: float, high: float | None, thread: int, lost: int | None = None,
              **columns: Any) -> None:
        """One event of every step on a thread, from and to a share of the step; `high` None: a point in time.

        lost: what stands for the end of the last step's, which then ends with its region.
        """
        begin = self.at(low)
        end = begin if high is None else self.at(high)
        length = np.ones(len(begin), np.int64) if high is None else end - begin
        if lost is not None:
            end = end.copy()
            end[-1] = lost
            length[-1] = self.at(REGION[1])[-1] - begin[-1]
        export = self.scene.report.export
        export.insert(PREFIX + table, {"start": begin, "end": end, "eventClass": EVENT_CLASS,
                                       "globalTid": self.scene.report.rank.global_tid(thread),
                                       "nameId": export.string(f"OpenMP {table.replace('_', ' ').lower()}"), **columns})
        entry = self.truth.setdefault(layout, {}).setdefault(str(value), {"rows": 0, "ns": 0})
        entry["rows"] += len(begin)
        entry["ns"] += int(length.sum())


def add(scene: Scene) -> dict[str, Any]:
    """Truth: record layout -> value -> rows and ns, unfinished events closed with their region; and the region that stays open."""
    team = _Team(scene)
    region = {"parallelId": team.regions}
    team.write("openmp_parallel", 28, "PARALLEL", *REGION, 0, **region, parentTaskId=1)
    _threads(team, TEAM, region)
    _work(team, region)
    _mutexes(team)
    begin = int(scene.steps[-1, 1])
    export, rank = scene.report.export, scene.report.rank
    common = {"end": np.array([0]), "eventClass": EVENT_CLASS, "nameId": export.string("OpenMP parallel")}
    last = int(team.regions[-1]) + 1
    export.insert(PREFIX + "PARALLEL", {"start": np.array([begin]), "globalTid": rank.global_tid(0), "parallelId": last, **common})
    export.insert(PREFIX + "TASK", {"start": np.array([begin + 1000]), "globalTid": rank.global_tid(WORKERS[0]), "parallelId": last,
                                    "taskId": 10_000, "kind": IMPLICIT, **common})
    export.insert(PREFIX + "THREAD", {"start": np.array([begin // 2]), "end": np.array([begin]), "eventClass": EVENT_CLASS,
                                      "globalTid": rank.global_tid(WORKERS[0]), "nameId": export.string("OpenMP thread"), "threadId": 2,
                                      "threadType": 2})
    team.truth["openmp_thread"] = {"2": {"rows": 1, "ns": begin - begin // 2}}
    return {"closed": team.truth, "open": {"openmp_parallel": begin, "openmp_implicit_task": begin + 1000}}


def _threads(team: _Team, threads: Iterable[int], region: dict[str, Any]) -> None:
    """What every thread of the team does."""
    other_clock = team.scene.report.rank.start_clock + int(team.scene.steps[-1, 1])
    for number, thread in enumerate(threads):
        own = {**region, "taskId": 4 * team.regions + number}
        lost = {3: other_clock, 2: 0}.get(number)
        team.write("openmp_implicit_task", IMPLICIT, "TASK", 0.11 + number / 200, 0.79, thread, lost, **own, kind=IMPLICIT)
        team.write("openmp_workshare", LOOP, "WORKSHARE", 0.14, 0.40, thread, **own, kind=LOOP, count=1 << 12)
        team.write("openmp_dispatch", 1, "DISPATCH", 0.15 + number / 200, None, thread, **own, kind=1)
        team.write("openmp_barrier", EXPLICIT_BARRIER, "SYNC_REGION", 0.41 + number / 200, 0.45, thread, **own, kind=EXPLICIT_BARRIER)
        team.write("openmp_sync_wait", EXPLICIT_BARRIER, "SYNC_REGION_WAIT", 0.42 + number / 200, 0.45, thread, **own,
                   kind=EXPLICIT_BARRIER)
        team.write("openmp_barrier", IMPLICIT_BARRIER, "SYNC_REGION", 0.75, 0.785, thread, lost, **own, kind=IMPLICIT_BARRIER)


def _work(team: _Team, region: dict[str, Any]) -> None:
    """A master region, a reduction, a single region, and tasks."""
    own = {**region, "taskId": 4 * team.regions}
    team.write("openmp_master", 32, "MASTER", 0.46, 0.48, 0, **own)
    team.write("openmp_reduction", 33, "REDUCTION", 0.49, 0.50, 0, **own)
    team.write("openmp_workshare", SINGLE, "WORKSHARE", 0.51, 0.60, 0, **own, kind=SINGLE, count=1)
    team.write("openmp_task_create", 15, "TASK_CREATE", 0.52, None, 0, parentTaskId=4 * team.regions, newTaskId=1000 + team.regions)
    team.write("openmp_sync_region", TASK_WAIT, "SYNC_REGION", 0.53, 0.59, 0, **own, kind=TASK_WAIT)
    team.write("openmp_task_schedule", 7, "TASK_SCHEDULE", 0.53, None, WORKERS[0], **region, priorTaskStatus=7,
               priorTaskId=4 * team.regions + 1, nextTaskId=1000 + team.regions)
    team.write("openmp_task", 4, "TASK", 0.531, 0.58, WORKERS[0], **region, taskId=1000 + team.regions, kind=EXPLICIT)
    team.write("openmp_task", 4, "TASK", 0.54, 0.55, WORKERS[1], **region, taskId=2000 + team.regions, kind=EXPLICIT_UNDEFERRED)
    team.write("openmp_cancel", 17, "CANCEL", 0.56, None, WORKERS[1], taskId=2000 + team.regions)
    team.write("openmp_flush", 26, "FLUSH", 0.57, None, WORKERS[2], threadId=4)


def _mutexes(team: _Team) -> None:
    lock = 0x7F00_0000_1000
    team.write("openmp_lock_init", LOCK, "LOCK_INIT", 0.02, None, 0, kind=LOCK, waitId=lock)
    team.write("openmp_mutex_wait", LOCK, "MUTEX_WAIT", 0.61, 0.62, 0, kind=LOCK, waitId=lock, taskId=4)
    team.write("openmp_mutex_released", LOCK, "MUTEX_RELEASED", 0.64, None, 0, kind=LOCK, waitId=lock, taskId=4)
    team.write("openmp_lock_destroy", LOCK, "LOCK_DESTROY", 0.90, None, 0, kind=LOCK, waitId=lock)
    for number, thread in enumerate(TEAM):
        share = 0.65 + number / 50
        team.write("openmp_mutex_wait", CRITICAL, "MUTEX_WAIT", 0.645, share, thread, kind=CRITICAL, waitId=lock + 64, taskId=4)
        team.write("openmp_critical_section", CRITICAL, "CRITICAL_SECTION", share, share + 0.019, thread, kind=CRITICAL, waitId=lock + 64)
