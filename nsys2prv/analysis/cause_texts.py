"""Findings in words: each cause that the replay names becomes one, with who or what it is, what was
measured, the moment to look at, and what helps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv._util.text import format_count, list_some
from nsys2prv.analysis.host_time import (
    PARTS,
    RECORDED_BY,
    compare_with_others,
    describe_parts,
)
from nsys2prv.analysis.places import EXPLAINS, Places
from nsys2prv.analysis.result import Context, Finding, JobRanks
from nsys2prv.analysis.stacks import label_place
from nsys2prv.analysis.text import format_nanoseconds
from nsys2prv.analysis.time_use import describe_copies
from nsys2prv.analysis.unit import WORK
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.replay.causes import Cause
from nsys2prv.replay.graph import Kind, split_size
from nsys2prv.replay.pipelines import Pipeline, find_pipeline
from nsys2prv.replay.questions import Names, describe_cause
from nsys2prv.replay.suspects import LINK_TO_OTHERS, LINK_WITHIN
from nsys2prv.replay.whatif import GPU, HOST, TENSOR_SPEED_UP, Replay

#: Ranks are last by no accident where they are so in this share of the collectives or more.
MOSTLY_LAST = 0.3
#: A call that sets something up the first time has this share of all its time then.
MOST_IN_FIRST = 0.8
#: Of MPI, a transfer of fewer bytes that takes longer (ns) is not held up by the network.
LITTLE_DATA, LONG_TRANSFER = 1 << 16, 500_000
#: What a hiccup consists of lasts at least this part of the longest.
OF_LONGEST = 4
#: A rank has a place to itself that has so much of its time.
NEARLY_ALL = 0.9
#: A range takes longer than on the others if it does so many times as long each time.
LONGER = 1.05
#: What is lost to messages in chains is a pipeline's bubble if it is so many times what the formula
#: says, or more, where that is not known this. So many stages are named.
OF_FORMULA, USUAL_BUBBLE, MOST_STAGES = 0.5, 0.2, 4
#: Synchronising calls and others, by what their names contain -> what helps.
CALLS = {
    "Synchronize": "wait later, or for an event rather than for all work: what follows is launched only after the wait",
    "Malloc": "allocate once, or use a caching allocator",
    "Free": "free outside of the loop, or use a caching allocator",
    "Memcpy": "copy from and to pinned memory without blocking, and fewer times",
    "Launch": "launch less often: CUDA graphs, fused kernels, larger batches",
    "MPI_": "find which rank is late in MPI, or overlap MPI with other work",
}
ADVICE = {
    "gpu": "compare clocks, temperature and power with those of the other GPUs (nvidia-smi -q -d CLOCK,PERFORMANCE), and what else runs there",
    "stage": "give the stages equal work (move layers to others), unless these GPUs are slower",
    "gpu_more": "give the ranks equal work",
    "host": "look at what this rank's host does there that the others' do not",
    "copies": "compare bytes and PCIe with those of the other GPUs",
    "link": "check the link's speed and errors (nvidia-smi nvlink, ibstat), and what else uses it",
    "hiccup": "look at this moment: garbage collection, a checkpoint, another process, or a slow file",
    "imbalance": "balance the work of each iteration among the ranks (sort or bucket by size)",
    "pipeline": "more micro-batches in an iteration, or an interleaved schedule, in which each rank has several stages",
    "messages": "send earlier: first compute what others wait for, or let them do other work meanwhile",
    "transfers": "overlap communication with computation, communicate less or in larger pieces",
    "launching": "launch less often (CUDA graphs, fused kernels, larger batches)",
    "little_data": "see whether all processes run: more of them than cores, other work on the host, or how they are bound",
    "files": "read and write less or in larger pieces, or beside other work",
    "host_time": "launch less often (CUDA graphs, fused kernels, larger batches), and move the host's work out of the loop",
    "place": "shorten what the host does there, do it ahead or in another thread, and launch more work before it",
    "waits": "see what the host waits for there: requests that have not come are no loss, another process is looked at next",
    "off_cpu": "look at what the host waits for there: a device, a lock, or another process",
    "once": "it happens once: do it ahead, or beside other work, if the job is short",
    "startup": "it counts once: judge by the rest, and capture that alone (--capture-range)",
    "pageable": "use pinned memory (pin_memory=True, cudaHostAlloc) and copies that do not block",
    "allocation": "allocate once before the loop, or use a caching allocator",
    "module_loading": "load modules before the loop (CUDA_MODULE_LOADING=EAGER), or warm up",
    "tensor_cores": "use half precision or TF32 (torch.set_float32_matmul_precision), and sizes that are multiples of 8",
}
#: What is said of hosts that wait most of the time, where it is not known for what.
OFF_CPU = re.compile(r"the host is \d+% off the CPU")
#: A pause that is spent in such a call waits for requests, or for another process.
WAITS = re.compile(r" in (poll|ppoll|epoll_\w+|p?select\w*|accept\w*|recv\w*)$")
#: Kind of cause -> kind of finding, and views that show it: the first of them with something to show.
KINDS = {
    "gpu": ("straggler", ("views/kernel_duration.cfg", "views/nccl_wait.cfg")),
    "host": (
        "straggler",
        ("views/nvtx_ranges.cfg", "views/cuda_activities.cfg", "analysis/mpi_time_2dh.cfg"),
    ),
    "copies": ("straggler", ("basics/memory_operations.cfg", "analysis/memory_bytes_2dh.cfg")),
    LINK_WITHIN: ("slow_link", ("analysis/nccl_bw_mbs.cfg", "views/mpi_messages.cfg")),
    LINK_TO_OTHERS: ("slow_link", ("analysis/nccl_bw_mbs.cfg", "views/mpi_messages.cfg")),
    "hiccup": (
        "hiccup",
        ("views/nvtx_ranges.cfg", "views/cuda_activities.cfg", "analysis/mpi_time_2dh.cfg"),
    ),
    "imbalance": (
        "imbalance",
        ("views/nccl_wait.cfg", "views/kernel_duration.cfg", "model/host_outside_mpi_2dh.cfg"),
    ),
    "transfers": (
        "exposed_communication",
        ("analysis/nccl-exposed-2dh.cfg", "views/mpi_messages.cfg", "analysis/mpi_time_2dh.cfg"),
    ),
    "pipeline": ("pipeline_bubble", ("views/nccl_wait.cfg", "views/mpi_messages.cfg")),
    "messages": ("serialisation", ("views/nccl_wait.cfg", "views/mpi_messages.cfg")),
    "host_time": ("host_bound", ("views/idle_gaps.cfg", "views/cuda_activities.cfg")),
    "launching": ("host_bound", ("views/idle_gaps.cfg", "views/cuda_activities.cfg")),
    "call": ("blocked_by_call", ("views/cuda_activities.cfg", "analysis/api_time_2dh.cfg")),
    "mpi_call": ("blocked_by_call", ("analysis/mpi_time_2dh.cfg", "views/mpi_messages.cfg")),
    "gap": (
        "host_work",
        ("views/idle_gaps.cfg", "views/nvtx_ranges.cfg", "analysis/mpi_time_2dh.cfg"),
    ),
    "pageable": (
        "exposed_copies",
        ("basics/memory_operations.cfg", "analysis/memory_bytes_2dh.cfg"),
    ),
    "allocation": ("blocked_by_call", ("views/cuda_activities.cfg", "analysis/api_time_2dh.cfg")),
    "module_loading": (
        "blocked_by_call",
        ("views/cuda_activities.cfg", "analysis/api_time_2dh.cfg"),
    ),
    "tensor_cores": ("no_tensor_cores", ("analysis/gemm_without_tensor_cores_2dh.cfg",)),
}
#: Part of the name of a view -> the layouts of which it must show something; else those of CUDA.
VIEW_NEEDS = {"nccl": ("nccl_kernel",), "mpi": MPI_LAYOUTS, "nvtx": ("nvtx_pushpop",)}
#: Views of a finding.
MOST_VIEWS = 2


class CauseWriter:
    """Puts causes of one job into words."""

    def __init__(
        self,
        context: Context,
        job: JobRanks,
        replay: Replay,
        frames: Mapping[str, pl.DataFrame],
        names: Names,
    ) -> None:
        self._context, self._job, self._replay, self._frames = context, job, replay, frames
        self._names = names
        self._graph, self._edges = replay.job.graph, replay.job.graph.edges
        self._places = Places(context, replay)
        self._waiting = "GPUs" if job.has_gpus else "Ranks"

    def describe(self, cause: Cause) -> Finding:
        """Return the finding of a cause."""
        what_if = describe_cause(cause, self._replay, self._names)
        finding = self._describe(cause)
        views = tuple(filter(self._has_view, finding.views))[:MOST_VIEWS]
        where = "" if cause.suspect else self._places.find_function(cause.changes[0][0])
        at_most = finding.at_most or not cause.is_specific
        return replace(finding, views=views, where=where, what_if=what_if, at_most=at_most)

    def _has_view(self, view: str) -> bool:
        """Return whether the trace has something to show in a view."""
        needs = (layouts for part, layouts in VIEW_NEEDS.items() if part in view)
        return bool(self._context.reader.layouts & {*next(needs, (*WORK, "cuda_api"))})

    def _describe(self, cause: Cause) -> Finding:
        if cause.suspect is not None:
            return self._describe_culprit(cause)
        if cause.kind == "place":
            return self._describe_place(cause)
        if cause.kind in ("messages", "transfers"):
            describe = {"messages": self._describe_messages, "transfers": self._describe_transfers}
            return describe[cause.kind](cause)
        titles = {
            "imbalance": "Ranks have unequal work, and not always the same ones have most.",
            "host_time": f"{self._waiting} wait for their hosts.",
            "launching": f"{self._waiting} wait for their hosts, most of the time for launches.",
            "pageable": "Copies of pageable memory are slow, and block their callers.",
            "allocation": f"Hosts allocate and free memory while {self._waiting} wait.",
            "module_loading": "Hosts load code for GPUs again and again while these wait.",
            "tensor_cores": "Matrix products run without tensor cores.",
        }
        evidence = {
            "imbalance": self._measure_imbalance,
            "host_time": self._measure_host_time,
            "launching": self._measure_host_time,
            "pageable": self._measure_copies,
            "tensor_cores": self._measure_products,
        }.get(cause.kind, self._measure_calls)
        kind, views = KINDS[cause.kind]
        return Finding(
            kind,
            titles[cause.kind],
            cause.gain,
            evidence=tuple(evidence(cause)),
            advice=ADVICE[cause.kind],
            views=views,
            moments=self._places.find_moment(*self._list_named(cause)),
        )

    def _list_named(self, cause: Cause) -> tuple[np.ndarray, np.ndarray]:
        """Return the edges of the name that most of what a cause saves has, and what they save (ns): of
        the time of hosts, those that the evidence names.
        """
        edges, saved = self._places.list_saved(cause.changes)
        key = self._edges.key[edges]
        if cause.kind in ("host_time", "launching") and (named := self._sum_hosts()):
            own = (self._edges.kind[edges] == named[0][0]) & (key == named[0][1])
            return (edges[own], saved[own]) if own.any() else (edges, saved)
        return self._places.keep_name(edges, saved)

    def _sum_hosts(self) -> list[tuple[Kind, int, float]]:
        """Return kind, key and share of the time of hosts on the critical path, the longest first."""
        return self._sum_path(self._replay.path, (Kind.CALL, Kind.GAP, Kind.LAUNCH))

    # Ranks and links.

    def _describe_culprit(self, cause: Cause) -> Finding:
        suspect = cause.suspect
        assert suspect is not None
        tasks = [process + 1 for process in suspect.processes]
        who = self._job.describe_ranks(tasks)
        who = who[0].upper() + who[1:]
        stages = self._pipeline.stages if self._pipeline and suspect.kind == "gpu" else ()
        if suspect.processes in stages:
            who += f", stage {stages.index(suspect.processes) + 1} of {len(stages)}"
        kind, views = KINDS[cause.kind]
        advice = ADVICE["link" if suspect.is_link else cause.kind]
        evidence: list[str] = []
        edges, saved = self._places.list_saved(cause.changes)
        if suspect.is_link:
            title = f"Data moves slowly {'within' if suspect.kind == LINK_WITHIN else 'to and from'} {suspect.host}."
            evidence += self._measure_link(cause)
        elif cause.kind == "hiccup":
            long = saved >= saved.max() / OF_LONGEST
            edges, saved = edges[long], saved[long]
            often = "once" if len(saved) == 1 else f"{len(saved)} times"
            where = self._places.name_work(edges, saved)
            title = f"{who}: held up {often}, for {format_nanoseconds(float(saved.sum()))} in all, {where}."
            evidence += self._measure_hiccup(edges, saved)
        elif suspect.kind == "gpu":
            edges, saved = self._places.keep_name(edges, saved)
            slower, evidence = self._compare_kernels(suspect.processes, edges, saved)
            times = suspect.ratio or slower
            if times > 1.005:
                title = f"{who}: kernels take {times - 1:.1%} longer than the others' do."
                if len(tasks) > 1 and suspect.processes in stages:
                    advice = ADVICE["stage"]
            else:
                title, advice = f"{who}: more GPU work than the others.", ADVICE["gpu_more"]
        elif suspect.kind == "copies":
            title = f"{who}: copies take longer than the others'."
            evidence += self._measure_copies(cause)
        else:
            name, evidence = self._name_host_work(tasks, edges, saved)
            inside = self._places.find_groups(edges)
            if name and (own := inside == self._places.find_range(edges, saved)[0]).any():
                edges, saved = edges[own], saved[own]
            else:
                edges, saved = self._places.keep_name(edges, saved)
            title = f"{who}: {name or 'the host takes longer than on the others'}."
        if len(tasks) > 1 and self._job.find_host(tasks) and suspect.processes not in stages:
            kind = "slow_host" if kind == "straggler" else kind
        evidence += () if suspect.is_link else self._count_last(tasks)
        ranks = self._job.list_ranks(tasks)
        return Finding(
            kind,
            title,
            cause.gain,
            ranks,
            self._job.list_devices(tasks),
            tuple(evidence),
            advice,
            views,
            self._places.find_moment(edges, saved, ranks),
        )

    def _measure_hiccup(self, edges: np.ndarray, saved: np.ndarray) -> Iterator[str]:
        """Say how long it usually takes where a rank was held up, and what its host did then."""
        worst = edges[np.argmax(saved)]
        kind, key = Kind(self._edges.kind[worst]), int(self._edges.key[worst])
        alike = self._places.measure(self._replay.select((kind,), [key]))
        usual, longest = np.median(alike), self._places.measure(edges[[np.argmax(saved)]])[0]
        yield f"{format_nanoseconds(float(longest))} then, {format_nanoseconds(float(usual))} in the median"
        if kind in HOST:
            yield from self._places.describe_pauses(edges)
            yield from self._name_lacking()

    def _compare_kernels(
        self, processes: Sequence[int], edges: np.ndarray, saved: np.ndarray
    ) -> tuple[float, list[str]]:
        """Return how many times as long as the others' the kernels of some processes take, where they
        have as many, else 0; and what shows it. edges: of the kernel that takes longer, by `saved` (ns).
        """
        table = self._replay.tabulate(GPU)
        frame = pl.DataFrame(
            {
                "name": self._edges.key[table.edges],
                "process": self._edges.process[table.edges],
                "lasts": self._graph.weight[table.edges],
            }
        )
        is_own = pl.col("process").is_in(list(processes))
        others = max(len(self._replay.processes) - len(processes), 1)
        own = (pl.col("lasts").filter(is_own), len(processes))
        sums = frame.group_by("name").agg(
            own=own[0].sum() / own[1],
            own_count=own[0].len() / own[1],
            usual=pl.col("lasts").filter(~is_own).sum() / others,
            count=pl.col("lasts").filter(~is_own).len() / others,
        )
        total = sums.select(pl.col("own", "own_count", "usual", "count").sum()).row(0, named=True)
        sums = sums.sort(pl.col("own") - pl.col("usual"), descending=True)
        if len(edges):
            sums = sums.filter(pl.col("name") == int(self._edges.key[edges[0]]))
        row = sums.row(0, named=True)
        as_many = abs(total["own_count"] - total["count"]) <= 0.02 * max(total["count"], 1)
        label = self._places.name_kernel(row["name"])
        group, _ = self._places.find_range(edges, saved)
        label += (
            f" (NVTX range {self._places.groups[group]})" if group in self._places.groups else ""
        )
        evidence = [
            f"kernels: {format_nanoseconds(total['own'])} in {total['own_count']:,.0f}, on average of the others "
            f"{format_nanoseconds(total['usual'])} in {total['count']:,.0f}; most of the difference is in {label}: "
            f"{format_nanoseconds(row['own'])} against {format_nanoseconds(row['usual'])}"
        ]
        return (total["own"] / max(total["usual"], 1) if as_many else 0.0), evidence

    def _name_host_work(
        self, tasks: Sequence[int], edges: np.ndarray, saved: np.ndarray
    ) -> tuple[str, list[str]]:
        """Return what takes hosts longer than the others, as part of a sentence, empty where unknown;
        and in which NVTX range, call, function and part of time it is. edges: what is longer, by `saved`
        (ns).
        """
        name, evidence = "", []
        group, share = self._places.find_range(edges, saved)
        if group in self._places.groups:
            name, described = self._compare_range(tasks, group)
            evidence += [f"{described}; {share:.0%} of the loss is there"] if described else []
        if len(edges):
            place = self._places.name_work(edges, saved)
            whole = format_nanoseconds(float(saved.sum()) / len(tasks))
            evidence.append(f"{whole} more than the others, most of it {place}")
        hosts = self._frames["hosts"]
        is_own = pl.col("task").is_in(list(tasks))
        own, others = hosts.filter(is_own), hosts.filter(~is_own)
        more = {
            part: max(float(own[part].mean() or 0) - float(others[part].median() or 0), 0.0)
            for part in PARTS
        }
        whole_time = sum(more.values())
        sums = self._frames["places"]
        if sums.height and whole_time:
            sums = sums.group_by("task", "place").agg(pl.col("time").sum())
            for place, mine, usual in compare_with_others(sums, "place", tuple(tasks))[:1]:
                label = label_place(place, self._context)
                if mine - usual >= EXPLAINS * whole_time and label:
                    evidence.append(
                        f"in {label}: {format_nanoseconds(mine)}, "
                        f"median of the others {format_nanoseconds(usual)}"
                    )
        if described := describe_parts({part: value for part, value in more.items() if value}):
            evidence.append(f"what is longer than the others': {described}")
        if more["unknown"] > whole_time / 2 or not (name or sums.height):
            evidence.append(self._name_unrecorded("what the host does there is not recorded"))
        return name, evidence

    def _compare_range(self, tasks: Sequence[int], group: int) -> tuple[str, str]:
        """Say by how much an NVTX range takes longer than on the others, as part of a sentence and as
        evidence, which is empty where it does not each time. What counts is the time outside of calls of
        CUDA and MPI; said is how long the range lasts, where that differs as much.
        """
        rows = self._frames["ranges"].filter(pl.col("group") == group)
        sums = rows.group_by("task").agg(pl.col("time", "lasts", "count").sum())
        sums = sums.filter(pl.col("count") > 0)
        is_own = pl.col("task").is_in(list(tasks))
        mean = sums.select(
            *(pl.col(name) / pl.col("count") for name in ("time", "lasts")), "count", own=is_own
        )
        own, others = mean.filter("own"), mean.filter(~pl.col("own"))
        range_ = self._places.groups[group]
        if not own.height or not others.height:
            return f"{range_} takes longer than on the others", ""
        figures = {
            name: (float(own[name].mean()), float(others[name].median()))
            for name in ("time", "lasts")
        }
        texts = {
            name: " against ".join(map(format_nanoseconds, pair)) for name, pair in figures.items()
        }
        more, whole = (mine - usual for mine, usual in figures.values())
        if more <= (LONGER - 1) * figures["time"][1]:
            return f"{range_} takes longer than on the others", ""
        said = "lasts" if whole > more / 2 else "time"
        return (
            f"{range_} takes {texts[said]} on the others",
            f"NVTX range {range_}, {own['count'].mean():,.0f} times: {texts['time']} each time outside of calls of CUDA and MPI",
        )

    def _name_unrecorded(self, what: str) -> str:
        lacking = self._frames["unrecorded"]["what"].unique(maintain_order=True).to_list()
        options = [RECORDED_BY[one] for one in lacking]
        has_ranges = bool(self._frames["ranges"].height)
        more = ([] if has_ranges else ["NVTX ranges"]) + options
        return f"{what}: add {', '.join(more)}" if more else what

    def _count_last(self, tasks: Sequence[int]) -> Iterator[str]:
        """Say how often ranks are last at collectives of NCCL."""
        reader = self._context.reader
        if "nccl_collective" not in reader.layouts:
            return
        records = reader.read_begins("nccl_collective", ("collective", "late"))
        records = records.filter(
            (pl.col("late") >= 0) & pl.col("begin").is_between(self._replay.begin, self._replay.end)
        )
        if not records.height:
            return
        task_of = reader.rows.get_column("task")
        records = records.with_columns(task=pl.Series(task_of[records["thread"].to_numpy()]))
        of_tasks = records.filter(pl.col("task").is_in(list(tasks)).any().over("collective"))
        last = of_tasks.filter(pl.col("late") == pl.col("late").max().over("collective"))
        count, hits = (
            of_tasks["collective"].n_unique(),
            last.filter(pl.col("task").is_in(list(tasks))),
        )
        times = hits["collective"].n_unique()
        if count and times >= MOSTLY_LAST * count:
            yield f"last in {times:,} of {count:,} NCCL collectives"

    def _measure_link(self, cause: Cause) -> Iterator[str]:
        edges, new = cause.changes[0]
        own, usual = float(self._graph.weight[edges].sum()), float(new.sum())
        what = self._places.name_transfers(*self._places.list_saved(cause.changes))
        yield (
            f"{len(edges):,} transfers take {format_nanoseconds(own / len(edges))} on average; "
            f"the same ones elsewhere {format_nanoseconds(usual / len(edges))}; most in {what}"
        )

    # The whole job.

    def _measure_imbalance(self, cause: Cause) -> Iterator[str]:
        table = self._replay.tabulate(GPU if self._job.has_gpus else HOST)
        work = np.bincount(table.column, self._graph.weight[table.edges])
        yield (
            f"work of a rank: {format_nanoseconds(float(work.mean()))} on average, from "
            f"{format_nanoseconds(float(work.min()))} to {format_nanoseconds(float(work.max()))}; "
            "the difference within single iterations is greater"
        )
        edges, saved = self._list_named(cause)
        if len(edges):
            yield f"most of it is {self._places.name_work(edges, saved)}"

    def _describe_transfers(self, cause: Cause) -> Finding:
        """Say what ranks wait in after the last of them has come: for data where there is much."""
        edges = cause.changes[0][0]
        name, of_bytes, _ = split_size(self._edges.size[edges])
        frame = pl.DataFrame(
            {
                "kind": self._edges.kind[edges],
                "name": name,
                "bytes": 2.0 ** (of_bytes / 4),
                "lasts": self._graph.weight[edges],
                "edge": edges,
            }
        )
        sums = frame.group_by("kind", "name").agg(
            pl.col("lasts").sum(), pl.col("bytes").mean(), pl.col("edge"), count=pl.len()
        )
        sums = sums.sort("lasts", "name", descending=True)
        ranks, evidence = max(len(self._replay.processes), 1), []
        for lasts, own, count in sums.head(2).select("lasts", "edge", "count").rows():
            own = np.array(own)
            evidence.append(
                f"{self._places.name_transfers(own, self._graph.weight[own])}: {format_nanoseconds(lasts / ranks)} per rank in "
                f"{format_count(round(count / ranks), 'transfer')}, {format_nanoseconds(lasts / count)} each, from when the last rank has come"
            )
        channels = (self._replay.job.channels[key][1] for key in np.unique(self._edges.key[edges]))
        between = {hosts for hosts in channels if len(hosts) > 1}
        if len(between) == 1:
            hosts = list_some(next(iter(between)))
            evidence.append(
                f"all that leaves a host is between {hosts}: whose link is slow, if one is, cannot be told"
            )
        title, advice = "Ranks wait while data moves between them.", ADVICE["transfers"]
        first = sums.row(0, named=True)
        if first["kind"] == Kind.MPI and (
            first["bytes"] < LITTLE_DATA and first["lasts"] > LONG_TRANSFER * first["count"]
        ):
            label = self._places.name_transfer(Kind.MPI, first["name"])
            title = f"Ranks wait in {label} after the last rank has come, with little data."
            advice = ADVICE["files" if label.startswith("MPI_File") else "little_data"]
        found, views = KINDS["transfers"]
        own = np.array(first["edge"])
        return Finding(
            found,
            title,
            cause.gain,
            evidence=tuple(evidence),
            advice=advice,
            views=views,
            moments=self._places.find_moment(own, self._graph.weight[own]),
        )

    def _describe_messages(self, cause: Cause) -> Finding:
        """Say that ranks wait for messages: of a pipeline, that it has a bubble."""
        own, waits = (edges for edges, _ in cause.changes)
        at = self._graph.time
        ends, begins = self._edges.target[own], at[self._edges.source[own]]
        order = np.argsort(ends)
        place = np.searchsorted(ends[order], self._edges.target[waits])
        begin = np.append(begins[order], 0)[place]
        met = at[self._edges.source[waits]]
        lasts = np.clip(met - begin, 0, None)
        longest = int(np.argmax(lasts))
        process = int(self._edges.process[waits[longest]])
        ranks = self._job.list_ranks([process + 1])
        evidence = [
            f"{self._places.name_transfers(waits, lasts)}: ranks wait {format_nanoseconds(lasts.sum() / len(self._replay.processes))} on average "
            "until the other side has come"
        ]
        pipeline, key = self._pipeline, "messages"
        title = f"{self._waiting} wait for messages that other ranks could not send earlier."
        if pipeline is not None and cause.gain > OF_FORMULA * (pipeline.bubble or USUAL_BUBBLE):
            key, stages = "pipeline", len(pipeline.stages)
            title = f"The pipeline of {stages} stages has a bubble: {self._waiting} wait for other stages."
            members = "; ".join(
                self._job.describe_ranks([process + 1 for process in stage])
                for stage in pipeline.stages[:MOST_STAGES]
            )
            evidence.insert(0, f"stages: {members}{'; ...' if stages > MOST_STAGES else ''}")
            if pipeline.bubble:
                evidence.insert(
                    0,
                    f"(p-1)/(m+p-1) = {pipeline.bubble:.1%} with p = {stages} stages and m = "
                    f"{pipeline.micro_batches} micro-batches in an iteration",
                )
        found, views = KINDS[key]
        return Finding(
            found,
            title,
            cause.gain,
            evidence=tuple(evidence),
            advice=ADVICE[key],
            views=views,
            moments=((int(begin[longest]), int(met[longest]), ranks),),
        )

    @cached_property
    def _pipeline(self) -> Pipeline | None:
        """The stages of the job, if it is a pipeline."""
        steady, replay = self._context.options.steady, self._replay
        count = steady.count if steady else 0
        return find_pipeline(self._context.reader, replay.begin, replay.end, count)

    def _measure_host_time(self, cause: Cause) -> Iterator[str]:
        named = [
            f"{share:.0%} {self._places.name_place(kind, key)}"
            for kind, key, share in self._sum_hosts()[:2]
            if share >= 0.1
        ]
        if named:
            yield f"of the hosts' time on the critical path: {', '.join(named)}"
        hosts = self._frames["hosts"]
        parts = {name: float(hosts[name].sum()) for name in PARTS} if hosts.height else {}
        if described := describe_parts(parts):
            yield f"outside of calls of CUDA and MPI, while GPUs are idle, hosts are {described}"
        if parts and parts["unknown"] > sum(parts.values()) / 2:
            yield self._name_unrecorded("what hosts do there is not recorded")

    def _measure_copies(self, cause: Cause) -> Iterator[str]:
        edges = cause.changes[0][0]
        copies = self._replay.job.copies.filter(pl.col("edge").is_in(edges.tolist()))
        edges = copies["edge"].to_numpy()
        yield from describe_copies(
            copies.with_columns(
                operation=pl.Series(split_size(self._edges.key[edges])[0], dtype=pl.Int64),
                time=pl.Series(self._places.measure(edges), dtype=pl.Int64),
                count=pl.lit(1, pl.Int64),
            )
        )

    def _sum_by_name(self, cause: Cause) -> pl.DataFrame:
        """Return the name (value), total time `lasts` (ns) and `count` of what the cause changes, by
        time.
        """
        edges = cause.changes[0][0]
        sums = pl.DataFrame({"name": self._edges.key[edges], "lasts": self._places.measure(edges)})
        return sums.group_by("name").agg(pl.col("lasts").sum(), count=pl.len()).sort("lasts")

    def _measure_products(self, cause: Cause) -> Iterator[str]:
        name, lasts, count = self._sum_by_name(cause).row(-1)
        yield (
            f"most in {self._places.name_kernel(name)}: {format_nanoseconds(float(lasts))} in {count:,} calls; the gain is "
            f"of kernels {TENSOR_SPEED_UP:.0f} times as fast"
        )

    def _measure_calls(self, cause: Cause) -> Iterator[str]:
        for name, lasts, count in self._sum_by_name(cause).tail(2).reverse().rows():
            yield f"{self._places.name_call(name)}: {format_nanoseconds(float(lasts))} in {count:,} calls"

    def _describe_place(self, cause: Cause) -> Finding:
        kind, key = cause.place
        edges = cause.changes[0][0]
        lasts = self._places.measure(edges)
        most = format_nanoseconds(float(lasts.max()))
        if len(edges) == 1:
            measured = f"once, for {most}"
        else:
            median = format_nanoseconds(float(np.median(lasts)))
            total = format_nanoseconds(float(lasts.sum()))
            measured = (
                f"{len(edges):,} times, {total} in all, {median} in the median, {most} at most"
            )
        if kind == Kind.CALL:
            name = self._places.name_call(key)
            advice = next(
                (text for part, text in CALLS.items() if part in name), "call it less often"
            )
            finding = Finding(
                "blocked_by_call",
                f"Hosts wait in {name}.",
                cause.gain,
                evidence=(measured,),
                advice=ADVICE["once"] if len(edges) == 1 else advice,
                views=KINDS["mpi_call" if name.startswith("MPI_") else "call"][1],
                moments=self._places.find_moment(*self._places.list_saved(cause.changes)),
            )
            if lasts.max() > MOST_IN_FIRST * lasts.sum() and self._is_first(
                edges[np.argmax(lasts)]
            ):
                title = f"Hosts wait in the first {name} of a process."
                return replace(finding, title=title, advice=ADVICE["startup"])
            if "Launch" in name and (first := self._launch_anew(edges)).any():
                loading = float(lasts[first].sum())
                measured += f"; {first.sum():,} that launch a kernel for the first time: {format_nanoseconds(loading)}"
                is_most = loading > lasts.sum() / 2
                advice = ADVICE["module_loading"] if is_most else advice
                return replace(finding, evidence=(measured,), advice=advice)
            return finding
        pauses = [*self._places.describe_pauses(edges)]
        advice = ADVICE["once" if len(edges) == 1 else "place"]
        title = f"{self._waiting} wait for hosts {self._places.name_place(kind, key)}."
        if pauses and OFF_CPU.match(pauses[0]):
            advice = ADVICE["off_cpu"]
        # A place that hardly any other rank has cannot be compared with the others'.
        by_process = np.bincount(np.maximum(self._edges.process[edges], 0), lasts)
        tasks = [int(by_process.argmax()) + 1]
        if len(self._replay.processes) > 2 and by_process.max() >= NEARLY_ALL * lasts.sum():
            who, where = self._job.describe_ranks(tasks), self._places.name_place(kind, key)
            title = f"{who[0].upper()}{who[1:]}: {self._waiting} wait for its host {where}."
        else:
            tasks = []
        waits = WAITS.search(pauses[-1]) if pauses else None
        if waits:
            advice, tasks = ADVICE["waits"], []
            title = f"{self._waiting} wait for hosts that wait in {waits[1]}: for requests, or another process."
        return Finding(
            "host_work",
            title,
            cause.gain,
            self._job.list_ranks(tasks),
            self._job.list_devices(tasks),
            evidence=(", ".join([measured, *pauses]), *self._name_lacking()),
            advice=advice,
            # Where nothing repeats and nothing is recorded, a pause may be one for requests.
            at_most=bool(waits) or not (pauses or self._context.options.steady),
            views=KINDS["gap"][1],
            moments=self._places.find_moment(*self._places.list_saved(cause.changes)),
        )

    def _launch_anew(self, calls: np.ndarray) -> np.ndarray:
        """Return which calls launch a kernel that their process has not launched before."""
        edges = self._edges
        work = np.flatnonzero(edges.kind == Kind.KERNEL)
        work = work[np.argsort(self._graph.time[edges.source[work]], kind="stable")]
        pairs = pl.DataFrame({"name": edges.key[work], "process": edges.process[work]})
        anew = edges.source[work[pairs.to_struct().is_first_distinct().to_numpy()]]
        launches = self._graph.find_edges(anew, (Kind.LAUNCH,))
        sent = edges.source[launches[launches >= 0]]
        return np.isin(edges.source[calls], sent) | np.isin(edges.target[calls], sent)

    def _is_first(self, edge: int) -> bool:
        """Return whether a call is the first of its name in its process."""
        alike = np.flatnonzero(self._edges.kind == Kind.CALL)
        for column in (self._edges.key, self._edges.process):
            alike = alike[column[alike] == column[edge]]
        return bool(edge == alike[np.argmin(self._graph.time[self._edges.target[alike]])])

    def _name_lacking(self) -> Iterator[str]:
        """Say what would tell more of hosts, where it is not recorded."""
        if self._frames["unrecorded"].height:
            yield self._name_unrecorded("what hosts do there is not recorded")

    # Names and moments.

    def _sum_path(self, path: np.ndarray, kinds: tuple[Kind, ...]) -> list[tuple[Kind, int, float]]:
        """Return kind, key and share of all of these, of edges on the path, the longest first."""
        path = path[np.isin(self._edges.kind[path], kinds)]
        frame = pl.DataFrame(
            {
                "kind": self._edges.kind[path],
                "key": self._edges.key[path],
                "lasts": self._graph.weight[path],
            }
        )
        sums = frame.group_by("kind", "key").agg(pl.col("lasts").sum())
        whole = max(int(sums["lasts"].sum()), 1)
        rows = sums.sort("lasts", descending=True).rows()
        return [(Kind(kind), key, lasts / whole) for kind, key, lasts in rows]
