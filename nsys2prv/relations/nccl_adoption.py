"""NCCL kernels of processes whose payloads are not recorded, by the order and the ends of the other
ranks' kernels.

All ranks leave a collective at nearly the same moment. So the kernels of a stream are those of a
communicator that lacks a member where names are equal in order and the ends follow each other as on
a member that tells its communicator, but for an offset and a drift of the clocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv._util.columns import ABSENT, FrameWriter, read_frame
from nsys2prv.events.call_indexes import SEND_RECEIVE
from nsys2prv.events.nccl import COMMUNICATORS, KERNEL_FACTS, KERNELS
from nsys2prv.store.task_result import TaskResult

#: Ends of kernels of one collective lie this close (ns), or within this share of the time between
#: two collectives; of so many of them.
NEAR, NEAR_SHARE, MOST = 20_000, 0.05, 0.9
#: Fewer kernels prove nothing, and captures may begin or end so many collectives apart.
FEWEST, MOST_SHIFT = 8, 64
#: What a kernel takes from the one of the other rank.
TAKEN = tuple(name for name in KERNEL_FACTS if name not in ("rank", "root"))
MEMBER = ("report", "process", "device")


class Adoption(Struct):
    """What was found of processes without payloads."""

    #: The results with their facts.
    results: list[TaskResult]
    #: (report, process) without payloads -> kernels of it, and those that were matched.
    processes: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)


def adopt_kernels(results: Sequence[TaskResult], captures: Sequence[int], folder: Path) -> Adoption:
    """Return the results with the communicators of kernels whose payloads are not recorded.
    captures: of each report.
    """
    adoption = Adoption(list(results))
    holders = [at for at, result in enumerate(results) if KERNELS in result.facts]
    told: dict[tuple[int, int], int] = defaultdict(int)
    for at in holders:
        known = pl.col("communicator") != 0
        frame = read_frame(results[at].facts[KERNELS], ("process", "communicator", "in_graph"))
        frame = frame.filter(pl.col("in_graph") == 0).group_by("process").agg(known.sum())
        for process, count in frame.iter_rows():
            told[results[at].report, process] += count
    silent = {key for key, count in told.items() if not count}
    if not silent or len(silent) == len(told):
        return adoption
    reports = {report for report, _ in silent}
    kernels = _read_kernels(results, [at for at in holders if results[at].report in reports])
    members = _read_members(results, holders, captures)
    with FrameWriter(folder / "adopted.arrows") as writer:
        for key in sorted(silent):
            own = kernels.filter((pl.col("report") == key[0]) & (pl.col("process") == key[1]))
            found = list(_match_streams(own, members.get(captures[key[0]] if captures else 0, {})))
            adoption.processes[key] = own.height, sum(one.height for one in found)
            if found:
                _store(adoption.results, key, pl.concat(found), writer)
    return adoption


def _read_kernels(results: Sequence[TaskResult], places: Sequence[int]) -> pl.DataFrame:
    """Return the kernels outside of graphs, with their report, the place of their result and their
    row in it.
    """
    frames = [
        read_frame(results[at].facts[KERNELS])
        .with_row_index("row")
        .with_columns(place=pl.lit(at), report=pl.lit(results[at].report))
        for at in places
    ]
    return pl.concat(frames, how="diagonal").filter(pl.col("in_graph") == 0)


def _read_members(
    results: Sequence[TaskResult], places: Sequence[int], captures: Sequence[int]
) -> dict[int, dict[int, pl.DataFrame]]:
    """Return for each capture the communicators that lack members, with the collectives of one
    member in the order of their launches.
    """
    seen: dict[tuple[int, int], set] = defaultdict(set)
    sizes: dict[tuple[int, int], int] = {}
    first: dict[tuple[int, int], list[pl.DataFrame]] = defaultdict(list)
    for at in places:
        report = results[at].report
        capture = captures[report] if captures else 0
        frame = read_frame(results[at].facts[KERNELS]).filter(pl.col("communicator") != 0)
        frame = frame.with_columns(report=pl.lit(report, pl.Int64))
        for (communicator,), own in frame.partition_by("communicator", as_dict=True).items():
            group = capture, communicator
            sizes[group] = max(sizes.get(group, 0), int(own["ranks"].max()))
            seen[group] |= set(own.select(MEMBER).unique().iter_rows())
            one = min(seen[group])
            kept = own.filter(
                pl.col(name) == value for name, value in zip(MEMBER, one, strict=True)
            )
            if kept.height:
                first[group] = [
                    *(part for part in first[group] if part.select(MEMBER).row(0) == one),
                    kept,
                ]
    members: dict[int, dict[int, pl.DataFrame]] = defaultdict(dict)
    for group, parts in first.items():
        if len(seen[group]) < sizes[group]:
            whole = pl.concat(parts).filter(pl.col("fused") > pl.col("messages"))
            members[group[0]][group[1]] = whole.sort("time_call", "time_begin")
    return members


def _match_streams(
    kernels: pl.DataFrame, members: dict[int, pl.DataFrame]
) -> Iterator[pl.DataFrame]:
    """Yield the kernels of each stream that is of one of the communicators, with TAKEN of its
    member's.
    """
    collectives = kernels.filter(pl.col("by_name") != SEND_RECEIVE)
    fits = []
    for key, stream in collectives.partition_by("device", "stream", as_dict=True).items():
        own = stream.sort("time_begin")
        for communicator, other in members.items():
            fit = _compare_ends(own, other)
            if fit is not None:
                fits.append((*fit, key, communicator, own, other))
    used = set()
    for _, shift, key, communicator, own, other in sorted(fits, key=lambda fit: fit[0]):
        if {key, communicator} & used:
            continue
        used |= {key, communicator}
        begin, length = max(shift, 0), min(own.height + min(shift, 0), other.height - max(shift, 0))
        mine = own.slice(max(-shift, 0), length)
        taken = other.slice(begin, length).select(TAKEN)
        yield mine.with_columns(taken.get_columns())


def _compare_ends(own: pl.DataFrame, other: pl.DataFrame) -> tuple[float, int] | None:
    """Return how closely (ns) the ends of kernels follow each other, and by how many kernels the
    first of `own` is behind the first of `other`; None where they are not of one communicator.
    """
    if min(own.height, other.height) < FEWEST or abs(own.height - other.height) > MOST_SHIFT:
        return None
    names, other_names = own["by_name"].to_numpy(), other["by_name"].to_numpy()
    ends, other_ends = own["time_end"].to_numpy(), other["time_end"].to_numpy()
    near = max(NEAR, NEAR_SHARE * float(np.median(np.diff(np.sort(other_ends)))))
    best = None
    most = max(abs(own.height - other.height), 4)
    for shift in range(-most, most + 1):
        mine, theirs = slice(max(-shift, 0), None), slice(max(shift, 0), None)
        length = min(len(names[mine]), len(other_names[theirs]))
        if length < FEWEST or (names[mine][:length] != other_names[theirs][:length]).any():
            continue
        apart = (ends[mine][:length] - other_ends[theirs][:length]).astype(float)
        time = (other_ends[theirs][:length] - other_ends[theirs][0]).astype(float)
        rest = np.abs(apart - np.polyval(np.polyfit(time, apart, 1), time))
        spread = float(np.quantile(rest, MOST))
        if spread <= near and (best is None or spread < best[0]):
            best = spread, shift
    return best


def _store(
    results: list[TaskResult], key: tuple[int, int], found: pl.DataFrame, writer: FrameWriter
) -> None:
    """Put what was found into the facts of the results."""
    for (place,), rows in found.partition_by("place", as_dict=True).items():
        result = results[place]
        facts = read_frame(result.facts[KERNELS]).with_row_index("row")
        facts = facts.update(rows.select("row", *TAKEN), on="row").drop("row")
        told = rows.select("communicator", "ranks").unique().sort("communicator")
        told = told.select(
            pl.lit(key[1], pl.Int64).alias("process"),
            "communicator",
            "ranks",
            pl.lit(ABSENT, pl.Int64).alias("rank"),
            pl.lit(False).alias("made"),
        )
        others = [read_frame(result.facts[COMMUNICATORS])] if COMMUNICATORS in result.facts else []
        told = pl.concat([*others, told], how="diagonal_relaxed")
        stored = {KERNELS: writer.append(facts), COMMUNICATORS: writer.append(told)}
        results[place] = replace(result, facts={**result.facts, **stored})
