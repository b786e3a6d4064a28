"""Find communicators of NCCL kernels without recorded payloads, from the names and ends of the
other ranks' kernels (:mod:`nsys2prv.clock.lines`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv._util.columns import ABSENT, FrameWriter, number_rows, read_columns, read_frame
from nsys2prv.clock.lines import Queue, group_queues
from nsys2prv.clock.maps import Placement
from nsys2prv.events.call_indexes import ALL_WAIT, SEND_RECEIVE
from nsys2prv.events.nccl import COMMUNICATORS, KERNEL_FACTS, KERNELS
from nsys2prv.export.source import NULL
from nsys2prv.store.work_result import WorkResult

#: `ranks` of kernels that end together but may be of several communicators: usable for clocks only.
IN_STEP = 0
#: Columns that a kernel without payload takes from the matching kernel of a rank with payloads.
TAKEN = tuple(name for name in KERNEL_FACTS if name not in ("rank", "root"))
#: Columns that identify a queue: kernels that may belong to one communicator.
QUEUE = ("report", "process", "device", "communicator", "stream", "by_name")


class Adoption(Struct):
    """Communicators found for processes without payloads."""

    #: The results with their facts.
    results: list[WorkResult]
    #: (report, process) without payloads -> kernels of it, and those that were matched.
    processes: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)


def adopt_kernels(
    results: Sequence[WorkResult],
    captures: Sequence[int],
    placements: Sequence[Placement],
    clocks: Sequence[int],
    folder: Path,
) -> Adoption:
    """Return the results with the communicators of kernels whose payloads are not recorded.
    captures, placements, clocks: of each report, clocks by number.
    """
    adoption = Adoption(list(results))
    holders = [at for at, result in enumerate(results) if KERNELS in result.facts]
    counts: dict[tuple[int, int], np.ndarray] = defaultdict(lambda: np.zeros(2, np.int64))
    devices: set[tuple[int, int, int]] = set()
    for at in holders:
        report, columns = results[at].report, ("process", "device", "communicator", "in_graph")
        frame = pl.DataFrame(read_columns(results[at].facts[KERNELS], columns))
        frame = frame.filter(pl.col("in_graph") == 0)
        frame = frame.group_by("process", "device").agg(
            pl.len(), (pl.col("communicator") != 0).sum()
        )
        for process, device, *more in frame.iter_rows():
            devices.add((report, process, device))
            counts[report, process] += more
    silent = {key for key, (_, told) in counts.items() if not told}
    if not silent or len(devices) < 2:
        return adoption
    captured: dict[int, list[int]] = defaultdict(list)
    for at in holders:
        captured[captures[results[at].report] if captures else 0].append(at)
    found: list[pl.DataFrame] = []
    for places in captured.values():
        queues, rows = _make_queues(results, places, placements, clocks)
        for group in group_queues(queues):
            own = [
                rows[place].with_columns(ordinal=pl.Series(ordinals))
                for place, ordinals in zip(group.queues, group.ordinals, strict=True)
            ]
            found += _adopt_group(pl.concat(own), group.is_one, 1 + len(found))
    matched: dict[tuple[int, int], int] = {}
    if found:
        table = pl.concat(found, how="diagonal_relaxed")
        with FrameWriter(folder / "adopted.arrows") as writer:
            _store(adoption.results, table, writer)
        sure = table.filter(pl.col("ranks") != IN_STEP).group_by("report", "process").len()
        matched = {(report, process): count for report, process, count in sure.iter_rows()}
    if found or len(silent) < len(counts):
        adoption.processes = {
            key: (int(counts[key][0]), matched.get(key, 0)) for key in sorted(silent)
        }
    return adoption


def _make_queues(
    results: Sequence[WorkResult],
    places: Sequence[int],
    placements: Sequence[Placement],
    clocks: Sequence[int],
) -> tuple[list[Queue], list[pl.DataFrame]]:
    """Return the queues of these results, and the rows of each: KERNEL_FACTS, QUEUE, and where it
    is stored (place, row); `placed_begin` and `placed_end` as the reports' clocks place them.
    """
    frames = []
    for at in places:
        frame = read_frame(results[at].facts[KERNELS]).with_row_index("row")
        begin, end = frame["time_begin"].to_numpy(), frame["time_end"].to_numpy()
        clock = placements[results[at].report].map
        sound = (begin != NULL) & (end != NULL) & (frame["in_graph"].to_numpy() == 0)
        frame = frame.with_columns(
            placed_begin=pl.Series(clock.to_global(np.where(sound, begin, 0))),
            placed_end=pl.Series(clock.to_global(np.where(sound, end, 0))),
            place=pl.lit(at),
            report=pl.lit(results[at].report, pl.Int64),
        )
        waiting = pl.col("by_name").is_in((*ALL_WAIT, SEND_RECEIVE))
        frames.append(frame.filter(pl.Series(sound) & waiting))
    table = pl.concat(frames, how="diagonal_relaxed")
    told = pl.col("communicator") != 0
    # The calls of a communicator are one queue, on all streams.
    table = table.with_columns(stream=pl.when(told).then(-1).otherwise("stream"))
    table = table.filter(told | (pl.col("fused") <= 1))
    _, member = number_rows(*(table[name].to_numpy() for name in QUEUE[:3]))
    pivot = table["placed_end"].min() or 0
    queues, rows = [], []
    table = table.with_columns(member=pl.Series(member)).sort(*QUEUE, "placed_end")
    for own in table.partition_by(QUEUE, maintain_order=True):
        times = (own[f"placed_{side}"] - pivot for side in ("begin", "end"))
        begin, end = (column.to_numpy().astype(np.float64) for column in times)
        report, member, kind, told = (
            own[name][0] for name in ("report", "member", "by_name", "communicator")
        )
        queues.append(Queue(clocks[report], member, kind, begin, end, told))
        rows.append(own)
    return queues, rows


def _adopt_group(rows: pl.DataFrame, is_one: bool, number: int) -> list[pl.DataFrame]:
    """Return the rows of a group of queues with the communicator that the recorded ones among them
    name, else with this number.
    """
    told = rows.filter(pl.col("communicator") != 0)
    silent = rows.filter((pl.col("communicator") == 0) & (pl.col("ordinal") >= 0))
    if not silent.height:
        return []
    members = rows["member"].n_unique()
    if not told.height:
        is_sure = is_one and silent["by_name"][0] != SEND_RECEIVE
        return [
            silent.with_columns(
                communicator=pl.lit(number, pl.Int64),
                operation="by_name",
                first_operation="by_name",
                fused=pl.lit(1, pl.Int64),
                messages=pl.lit(0, pl.Int64),
                sequence=pl.col("ordinal") - pl.col("ordinal").min(),
                ranks=pl.lit(members if is_sure else IN_STEP, pl.Int64),
                told=pl.lit(False),
            )
        ]
    ranks = told["ranks"].max()
    if told["communicator"].n_unique() > 1 or members > ranks or not (is_one or members == ranks):
        return []
    one = told.filter((pl.col("ordinal") >= 0) & (pl.col("fused") > pl.col("messages")))
    one = one.unique("ordinal", keep="first", maintain_order=True)
    adopted = silent.drop(TAKEN).join(one.select("ordinal", *TAKEN), on="ordinal")
    return [adopted.with_columns(told=pl.lit(True))]


def _store(results: list[WorkResult], found: pl.DataFrame, writer: FrameWriter) -> None:
    """Store the communicators found in the facts of the results."""
    for (place,), rows in found.partition_by("place", as_dict=True).items():
        result = results[place]
        facts = read_frame(result.facts[KERNELS]).with_row_index("row")
        facts = facts.update(rows.select("row", *TAKEN), on="row").drop("row")
        stored = {KERNELS: writer.append(facts.to_dict())}
        told = rows.filter("told").select("process", "communicator", "ranks")
        told = told.unique(maintain_order=True)
        if told.height:
            told = told.with_columns(rank=pl.lit(ABSENT, pl.Int64), made=pl.lit(False))
            if COMMUNICATORS in result.facts:
                others = read_frame(result.facts[COMMUNICATORS])
                told = pl.concat([others, told], how="diagonal_relaxed")
            stored[COMMUNICATORS] = writer.append(told.to_dict())
        results[place] = replace(result, facts={**result.facts, **stored})
