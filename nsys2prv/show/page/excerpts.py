"""Choose the moments that a page shows, and the events that it contains: all events of a small job;
for a large job, events around the moments of findings, events of whole iterations, and long events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv.figures.result import AT_COLLECTIVES, Finding, Result
from nsys2prv.figures.time_division import NO_DEVICE
from nsys2prv.show.page.events import (
    SHOWN,
    Events,
    Window,
    label_names,
    map_rows,
    read_collectives,
    read_events,
    select_events,
)

if TYPE_CHECKING:
    from nsys2prv.open_job import OpenJob

#: Events on a page, about; some 8 bytes each.
BUDGET = 100_000
#: Lanes of the timeline of a finding.
MOST_LANES = 8
#: Most culprits on one timeline.
MOST_CULPRITS = 4
#: Room on either side of a moment, as a part of it, and the least (ns).
PAD, LEAST_PAD = 0.35, 10_000
#: A timeline shows the moment and the wait for it, unless the wait is longer than this multiple of it.
MOST_TIMES = 100
#: First view of findings of slow kernels: a moment of theirs loses a part of its time, those of others all.
OF_KERNELS = "views/kernel_duration.cfg"
#: From a window with too many events for the page, events that last at least this part of it are shown: with
#: few lanes, and with more than MANY_LANES.
VISIBLE, VISIBLE_OF_MANY = 1 / 500, 1 / 100
MANY_LANES = 16


class Moment(Struct, frozen=True):
    """A moment of a finding, as a page shows it: its time, ranks and place in the reports. Times in
    ns.
    """

    begin: int
    end: int
    #: The initial time span of the timeline.
    view: tuple[int, int]
    #: Numbers of lanes, the culprits first.
    lanes: tuple[int, ...]
    culprits: tuple[int, ...] = ()
    #: The collective of NCCL to point out, 0 for none.
    collective: int = 0
    #: Name of the report of the first culprit, or else lane, and the moment in its own time, as Nsight Systems
    #: shows it.
    report: str = ""
    local: tuple[int, int] = (0, 0)


class Excerpts(Struct, frozen=True):
    """The events and moments of a job that a page contains."""

    #: One for each finding; None if it has no moment.
    moments: Sequence[Moment | None]
    #: The windows with included events.
    windows: Sequence[Window]
    events: Events
    #: Source (name set), name (value) and class of each name -> its label.
    names: pl.DataFrame
    #: The names of the kernels with maps: value -> label.
    kernels: dict[int, str]
    #: Number of the job's events that a page could show, and number that it shows.
    total: int
    carried: int


def choose_excerpts(
    job: OpenJob, results: Mapping[str, Result], budget: int = BUDGET, typical: bool = False
) -> Excerpts | None:
    """Choose the moments that a page shows, and read their events: the moments of findings, or only
    the median iteration (typical). Return None if the results belong to other ranks than the job's.
    budget: number of events.
    """
    if "time" not in results or "lanes" not in results["time"].tables:
        return None
    lanes = _number_lanes(job, results["time"].tables["lanes"].frame)
    collectives = read_collectives(job)
    places = _Places(job, lanes, collectives)
    findings = results["findings"].findings if "findings" in results else []
    moments = [places.place(finding) for finding in findings]
    if typical:
        moments, budget = [places.place_typical(results)], budget // 3
    total = sum(job.layouts.get(layout, 0) for layout in SHOWN)
    wanted = [one for one in moments if one]
    windows = [*_choose_windows(job, results, wanted, len(lanes), total, budget)]
    events = read_events(job, lanes, windows, collectives)
    # The number of events in a window was an estimate.
    while (carried := _count(events)) > 1.3 * budget and len(windows) > 1:
        windows = windows[: max(len(windows) * 3 // 4, 1)]
        events = select_events(events, windows)
    if not windows[0].least:
        total = carried
    key = ("source", "name", "class")
    columns = [frame.select(*key).unique(maintain_order=True) for frame in events.tracks.values()]
    names = pl.DataFrame()
    if columns:
        names = pl.concat(columns).unique(maintain_order=True)
        names = names.with_columns(label=label_names(job, names))
    known = (
        events.kernels.select("source", "name").unique(maintain_order=True)
        if events.kernels.height
        else pl.DataFrame()
    )
    labels = dict(zip(known["name"], label_names(job, known), strict=True)) if known.height else {}
    return Excerpts(moments, windows, events, names, labels, total, carried)


def _count(events: Events) -> int:
    return sum(frame.height for frame in events.tracks.values())


def _number_lanes(job: OpenJob, table: pl.DataFrame) -> dict[tuple[int, int], int]:
    """Return (task, device) -> number of its lane. table: `lanes` from time_division.py."""
    devices = dict(job.devices.select("label", "device").rows())
    rows = job.reader.rows.threads.unique(["process", "device"], keep="first")
    tasks = {
        (process, device): task
        for process, device, task in rows.select("process", "device", "task").rows()
    }
    pairs = table.select("paraver_task", "device").rows()
    places = [(process, devices.get(label)) for process, label in pairs]
    return {
        (tasks[place], NO_DEVICE if place[1] is None else place[1]): number
        for number, place in enumerate(places)
    }


class _Places:
    """Assigns the moments of findings to lanes."""

    def __init__(
        self, job: OpenJob, lanes: Mapping[tuple[int, int], int], collectives: pl.DataFrame
    ) -> None:
        self._job, self._lanes = job, lanes
        rows = job.reader.rows
        tasks = rows.threads.select("task", "process", "rank", "node").unique("task")
        # A process with several GPUs may have several tasks here.
        self._process = dict(tasks.select("task", "process").rows())
        self._rank = dict(tasks.select("task", "rank").rows())
        self._node = dict(tasks.select("task", "node").rows())
        self._labels = dict(rows.devices.select("device", "label").rows())
        lane = pl.Series(map_rows(job, lanes)[collectives["thread"]], dtype=pl.Int64)
        self._collectives = collectives.with_columns(
            lane=lane, last=pl.col("late").max().over("collective")
        ).filter((pl.col("collective") > 0) & (pl.col("of_nccl") == pl.col("of_nccl").max()))

    def place(self, finding: Finding) -> Moment | None:
        """Return the first moment of a finding with the lanes to show; None without a moment."""
        if not finding.moments:
            return None
        begin, end, ranks = finding.moments[0]
        end = max(end, begin + 1)
        wanted = finding.ranks or ranks
        own = [
            lane
            for (task, device), lane in self._lanes.items()
            if self._rank[task] in wanted
            or (not wanted and self._labels.get(device) in finding.devices)
        ]
        culprits = tuple(own[:MOST_CULPRITS])
        collective, members = 0, pl.DataFrame()
        if finding.kind in AT_COLLECTIVES and self._collectives.height and own:
            collective, members = self._find_collective(finding, begin, end, own)
        first, last = begin, end
        if members.height:
            # The wait that the moment causes belongs to it, unless it is far longer.
            came, wait = int(members["begin"].max()), int(members["wait"].max())
            since = min(begin, int(members["begin"].min()))
            until = max(end, min(int(members["end"].max()), came + wait))
            if until - since <= MOST_TIMES * (end - begin):
                first, last = since, until
        pad = max(int(PAD * (last - first)), LEAST_PAD)
        view = max(0, first - pad), min(self._job.duration, last + pad)
        waiting = members.sort("wait", descending=True)["lane"].to_list() if members.height else []
        shown = self._choose_lanes(culprits, waiting)
        if not shown:
            return Moment(begin, end, view, shown, culprits, collective)
        job = self._job.prepared
        task = [*self._lanes][(*culprits, *shown)[0]][0]
        report = job.model.processes[self._process[task] - 1].report
        local = [max(0, job.clocks[report].to_local(time)) for time in (begin, end)]
        name = job.infos[report].alias or job.infos[report].given.name
        return Moment(begin, end, view, shown, culprits, collective, name, (local[0], local[1]))

    def place_typical(self, results: Mapping[str, Result]) -> Moment:
        """Return the median iteration with the lanes for which others wait most. For a job without
        iterations, or analyzed as a whole, return the whole job.
        """
        begin, end, lanes, steady = 0, self._job.duration, [], self._job.steady
        if steady and (by_iteration := results["time"].tables.get("by_iteration")):
            edges = steady.edges
            at = int(np.argsort(np.diff(edges), kind="stable")[(len(edges) - 1) // 2])
            begin, end = int(edges[at]), int(edges[at + 1])
            own = by_iteration.frame.filter(iteration=at + 1)
            if "delays_ns" in own.columns:
                lanes = own.sort("delays_ns", descending=True)["lane"].to_list()
        return Moment(begin, end, (begin, end), self._choose_lanes(lanes[:1], lanes))

    def _find_collective(
        self, finding: Finding, begin: int, end: int, own: Sequence[int]
    ) -> tuple[int, pl.DataFrame]:
        """Return the collective in which others wait for these lanes during the moment, no longer
        than the finding loses, and all its rows.
        """
        of_lanes = self._collectives.filter(pl.col("lane").is_in(list(own)))
        lost, steady = float(end - begin), self._job.steady
        if OF_KERNELS in finding.views[:1]:
            length = np.ptp(steady.edges) / steady.count if steady else self._job.duration
            lost = min(lost, finding.share * length)
        since = pl.col("begin") - pl.col("late")
        near = of_lanes.filter((pl.col("begin") > begin) & (since < end) & (pl.col("late") <= lost))
        if not near.height or finding.kind == "exposed_communication":
            near = of_lanes.filter((pl.col("begin") < end) & (pl.col("end") > begin))
        by = pl.col("late")
        if finding.kind == "exposed_communication":
            by = pl.col("end").clip(upper_bound=end) - pl.col("begin").clip(begin)
        elif finding.ranks:
            # A collective to which others arrive later shows nothing about the ranks at fault.
            near = near.filter(pl.col("late") == pl.col("last"))
        if not near.height:
            return 0, near
        number = int(near.sort(by, descending=True, maintain_order=True)["collective"][0])
        return number, self._collectives.filter(pl.col("collective") == number)

    def _choose_lanes(self, culprits: Sequence[int], waiting: Sequence[int]) -> tuple[int, ...]:
        """Return the lanes to show, few enough to be readable."""
        every = [*range(len(self._lanes))]
        if len(every) <= MOST_LANES:
            return tuple(every)
        nodes = {lane: self._node[task] for (task, _), lane in self._lanes.items()}
        near = [lane for lane in every if culprits and nodes[lane] == nodes[culprits[0]]][:3]
        others = [lane for lane in (*near, *waiting, *every) if lane >= 0 and lane not in culprits]
        rest = list(dict.fromkeys(others))[: MOST_LANES - len(culprits)]
        return (*culprits, *sorted(rest))


def _choose_windows(
    job: OpenJob,
    results: Mapping[str, Result],
    moments: Sequence[Moment],
    lanes: int,
    total: int,
    budget: int,
) -> Iterator[Window]:
    """Yield the windows whose events are included, the most important first."""
    duration, every = job.duration, frozenset(range(lanes))
    if total <= budget:
        yield Window(0, duration, every)
        return
    visible = VISIBLE_OF_MANY if lanes > MANY_LANES else VISIBLE
    yield Window(0, duration, every, int(duration * visible))
    steady = job.steady
    edges = np.linspace(0, duration, 21).astype(np.int64)
    if steady:
        edges = steady.edges
    density = total / lanes / max(int(edges[-1] - edges[0]), 1)
    left = 0.8 * budget

    def estimate(window: Window) -> float:
        return density * (window.end - window.begin) * len(window.lanes)

    wanted = [Window(*one.view, frozenset(one.lanes)) for one in moments]
    for window in wanted:
        if estimate(window) > budget / (2 * len(wanted)):
            yield replace(window, least=int((window.end - window.begin) * VISIBLE))
        else:
            yield window
            left -= estimate(window)
    shown = _list_shown_lanes(results) if steady and lanes > MOST_LANES else {}
    for at in _order_iterations(edges, moments):
        window = Window(int(edges[at]), int(edges[at + 1]), every)
        if estimate(window) > left and at in shown:
            window = replace(window, lanes=shown[at])
        if estimate(window) <= left:
            yield window
            left -= estimate(window)


def _list_shown_lanes(results: Mapping[str, Result]) -> dict[int, frozenset[int]]:
    """Return iteration -> the lanes that a page shows for it (chooseLanes in iterations.js): those
    for which others wait most and least.
    """
    each = results["time"].tables["by_iteration"].frame
    if "delays_ns" not in each.columns:
        return {}
    order = each.sort("iteration", "delays_ns", pl.col("wait_ns").neg(), descending=True)
    lanes = order.group_by("iteration").agg(
        first=pl.col("lane").head(4), last=pl.col("lane").tail(4)
    )
    return {number - 1: frozenset([*first, *last]) for number, first, last in lanes.rows()}


def _order_iterations(edges: np.ndarray, moments: Sequence[Moment]) -> list[int]:
    """Return all iterations in order of importance: those of the moments, the median, the longest
    and the shortest, then their neighbors, then the others.
    """
    order = np.argsort(np.diff(edges), kind="stable").tolist()
    of_moments = [int(np.searchsorted(edges, one.begin, "right")) - 1 for one in moments]
    first = [*of_moments, order[len(order) // 2], order[-1], order[0], 0]
    beside = [near for at in of_moments for near in (at - 1, at + 1)]
    wanted = [at for at in (*first, *beside) if 0 <= at < len(order)]
    return list(dict.fromkeys([*wanted, *range(len(order))]))
