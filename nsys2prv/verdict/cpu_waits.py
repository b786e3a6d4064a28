"""Find the ranks that wait for CPUs, and what occupies these CPUs: other ranks, their own threads,
or something that was not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import DURATION
from nsys2prv._util.text import inflect
from nsys2prv.figures.cpu_time import CpuUse, find_cpu_use
from nsys2prv.figures.host_time import measure_edges
from nsys2prv.figures.result import format_numbers
from nsys2prv.replay.causes import Cause
from nsys2prv.replay.graph import Changes, Kind
from nsys2prv.replay.whatif import Replay
from nsys2prv.verdict.cause_context import CauseContext
from nsys2prv.verdict.thresholds import ALIKE, LEAST_HELD, LEAST_OF_WORK, LEAST_SHARED
from nsys2prv.verdict.words import Claim, Said, say


def skip_cpu_waits(replay: Replay, waits: pl.DataFrame) -> Changes:
    """Return the changes in which no thread waits for a CPU: host work takes only its running time,
    and an MPI transfer is shortened by the longest CPU wait among its members. waits: from
    :class:`CpuUse`.
    """
    work, lost = measure_edges(replay, replay.select((Kind.GAP, Kind.CALL)), waits)
    weight = replay.graph.weight
    changes: Changes = [(work, weight[work] - lost)]
    transfers = np.sort(replay.select((Kind.MPI,)))
    some, lost = measure_edges(replay, transfers, waits)
    meetings = replay.edges.source
    found = pl.DataFrame({"meeting": meetings[some], "lost": lost})
    most = found.group_by("meeting").agg(pl.col("lost").max())
    members = pl.DataFrame({"edge": transfers, "meeting": meetings[transfers]}).join(
        most, on="meeting"
    )
    edges = members["edge"].to_numpy()
    left = weight[edges] - members["lost"].to_numpy()
    return [*changes, (edges, np.maximum(left, 0))]


class CpuShortage(Struct, frozen=True):
    """Ranks that wait for CPUs, the thread that waits longest, and what occupies its CPU."""

    #: Waits of threads: rows of CpuUse.
    waits: pl.DataFrame
    #: Key of `says` and `advice`: cpu shared (by more ranks than CPUs), cpu own (by more threads), cpu (something else).
    key: str
    #: Tasks that share CPUs, or else wait for one.
    tasks: tuple[int, ...]
    #: Task of the thread, how many threads of these tasks work, and which CPUs they share.
    task: int
    threads: int
    cpus: tuple[int, ...]
    #: Its time outside calls (ns), its running share of that, its CPU wait time there and in MPI (ns), and
    #: its number of moves to another CPU.
    outside: int
    runs: float
    lasts: int
    in_mpi: int
    moves: int
    #: Share of its waits in which other ranks, and its own threads, have the CPU that it was on.
    of_others: float
    of_own: float


def find_shortage(
    frames: Mapping[str, pl.DataFrame], hosts: Mapping[int, str]
) -> CpuShortage | None:
    """Return the shortage of CPUs in a job, or None without evidence of one. hosts: task -> host."""
    use = find_cpu_use(frames, hosts)
    if use is None:
        return None
    length = DURATION.alias("time")
    is_in_mpi = pl.col("in_mpi")
    sums = (
        use.waits.filter("sure")
        .group_by("task", "thread")
        .agg(lasts=length.filter(~is_in_mpi).sum(), in_mpi=length.filter(is_in_mpi).sum())
    )
    row = (
        sums.join(frames["cpu_shares"], on=("task", "thread"))
        .sort("lasts", "thread")
        .row(-1, named=True)
    )
    if row["lasts"] < LEAST_OF_WORK * row["outside"]:
        # In MPI a rank leaves its CPU to others also while it waits for a partner.
        return None
    task, thread, waits = row["task"], row["thread"], max(row["lasts"] + row["in_mpi"], 1)
    holders = use.find_holders(thread)
    of_own, of_others = (
        int(holders.filter(one)["time"].sum())
        for one in (pl.col("task") == task, pl.col("task") != task)
    )
    tasks = sums.filter(pl.col("lasts") >= LEAST_SHARED * row["lasts"])["task"].unique().to_list()
    off = 1 - row["runs"] / max(row["outside"], 1)
    off_in_mpi = 1 - row["runs_in_mpi"] / row["mpi"] if row["mpi"] else 0.0
    is_held = of_own + of_others >= LEAST_HELD * waits
    key, short = _find_short(use, task, tasks) if is_held else ("cpu", [])
    if not short and off_in_mpi < ALIKE * off:
        # Only in MPI, where a thread polls, it is clear that it does not sleep.
        return None
    sharing = {one for group, _ in short for one in group} or {*tasks}
    cpus = {one for _, group in short for one in group}
    return CpuShortage(
        # If CPUs are short, threads wait for one even while others of their process run.
        use.waits.filter(pl.col("sure") | (pl.col("told") & pl.col("task").is_in(tasks))),
        key,
        tuple(sorted(sharing)),
        task,
        use.count_threads([*sharing]),
        tuple(sorted(cpus)),
        row["outside"],
        row["runs"] / max(row["outside"], 1),
        row["lasts"],
        row["in_mpi"],
        int((use.runs.filter(thread=thread)["cpu"].diff() != 0).sum()),
        of_others / waits,
        of_own / waits,
    )


def _find_short(
    use: CpuUse, task: int, tasks: Sequence[int]
) -> tuple[str, list[tuple[list[int], list[int]]]]:
    """Return the kind of shortage (key of CpuShortage), if more ranks, or otherwise more threads,
    than CPUs share CPUs with a task; and the affected tasks with their CPUs.
    """
    groups = [use.find_sharing(one) for one in sorted(tasks)]
    for key, count in (("cpu shared", len), ("cpu own", use.count_threads)):
        short = [(sharing, cpus) for sharing, cpus in groups if count(sharing) > len(cpus)]
        if any(task in sharing for sharing, _ in short):
            return key, short
    return "cpu", []


def describe_cpu(cause: Cause, facts: CauseContext, found: CpuShortage) -> Claim:
    """Describe ranks that wait for CPUs: these CPUs, and what occupies them meanwhile."""
    job, worst = facts.job, facts.replay.list_saved(cause.changes)
    cpus = f"{inflect('CPU', len(found.cpus))} {format_numbers([*found.cpus])}"
    title = say(found.key, who=job.describe_ranks([*found.tasks]), cpus=cpus, threads=found.threads)
    evidence: list[Said | str] = [
        say(
            "cpu waits",
            who=job.describe_ranks([found.task]),
            share=found.runs,
            time=found.outside,
            waits=found.lasts,
            in_mpi=found.in_mpi,
        ),
        say(
            "cpu holders",
            others=found.of_others if found.of_others >= LEAST_HELD else None,
            own=found.of_own if found.of_own >= LEAST_HELD else None,
            unknown=max(1 - found.of_own - found.of_others, 0),
        ),
    ]
    if found.moves:
        evidence.append(say("cpu moves", moves=found.moves, cpus=cpus))
    return Claim(
        "cpu",
        evidence,
        worst,
        worst[1].sum(),
        title,
        found.key,
        tasks=found.tasks,
        is_limit=found.key == "cpu",
    )
