"""Find the communicators of NCCL kernels whose payloads have none, such as kernels launched by CUDA
graphs, from names and ends of kernels on other ranks.

A queue contains the kernels of one stream, or the repeated kernels of one graph node. Nodes on
different ranks are the same if the graphs run the same NCCL operations in the same node order.

All members leave a collective at nearly the same time. The differences between n-th ends of two
queues of one communicator therefore form a line, given by offset and drift between the two clocks,
whatever these are. A line counts only if no other pairing of the calls fits nearly as well, and no
other two queues of the hosts give a different line.

Ranks in step end their collectives together even if they are in different communicators. A common
communicator is proven if one member clearly arrives last and alone: every member that ends with it
waited for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.budget import MOST_IN_GRAPHS
from nsys2prv._util.columns import (
    ABSENT,
    find_places,
    number_linked,
    number_rows,
    take_rows,
)
from nsys2prv._util.stored_columns import FrameWriter, read_columns, read_frame
from nsys2prv.clock import (
    NOISE,
    PLAUSIBLE_DRIFT,
    TO_SIGMA,
    UTC_ERROR,
    NoiseKind,
    choose_evenly,
    fit_line,
    take_median,
)
from nsys2prv.clock.maps import Placement
from nsys2prv.events.nccl import (
    ALL_WAIT,
    COMMUNICATORS,
    KERNEL_FACTS,
    KERNELS,
    SEND_RECEIVE,
    SEVERAL_OPERATIONS,
)
from nsys2prv.export.source import NULL
from nsys2prv.match import ends as matching
from nsys2prv.match.sequences import CallSequence, pair_calls
from nsys2prv.table.task_result import TaskResult

#: `ranks` of kernels that end together but may be of several communicators: usable for clocks only.
IN_STEP = 0
#: Columns that a kernel without payload takes from the matching kernel of a rank with payloads.
TAKEN = ("by_ends", *(name for name in KERNEL_FACTS if name not in ("rank", "root")))
#: Columns that identify a queue: kernels that may belong to one communicator.
QUEUE = ("report", "process", "device", "communicator", "stream", "by_name")


#: Fewer calls than this prove nothing.
FEWEST = 8
#: The median difference of ends of one collective is less than CLOSE (ns); a share of MOST of them
#: differs by less than NEAR (ns).
CLOSE, NEAR, MOST = 15_000.0, 40_000.0, 0.9
#: Ends this close count as ends of one communicator.
LINE_NOISE = replace(NOISE[NoiseKind.NCCL], misfit=20_000.0)
#: Lines of two pairs of queues contradict each other if they are farther apart than this (ns),
#: unless one fits better by this factor.
CONTRADICTION, BETTER = 200_000.0, 3.0
#: Largest number of hosts that one host is compared with, and of pairs of queues of a kind and length.
MOST_TRIES, MOST_PAIRS = 8, 4
#: A member clearly arrives last if it begins later than all others by CLEARLY times the scatter of the ends,
#: and by LEAST_MARGIN (ns). The others must wait for it at least OFTEN times, with at most one exception in
#: SELDOM cases.
CLEARLY, LEAST_MARGIN, OFTEN, SELDOM = 8.0, 8_000.0, 3, 10
#: Ends within a communicator differ less than ends of others in step with it, by this factor (more with few
#: ends); they follow the arrival of the communicator's own last member with this rank correlation.
LEAST_RATIO, RATIO_OF_FEW, CORRELATED = 1.5, 6.0, 0.8
#: From ENOUGH_ALIKE collectives on, ends of several communicators in step would differ more than ends within
#: one, by a factor of ALIKE.
ENOUGH_ALIKE, ALIKE = 200, 1.3
#: A communicator of fewer members cannot be several.
INDIVISIBLE = 4
#: Kinds of queues of nodes are greater, others are operations.
FIRST_OF_NODES = SEVERAL_OPERATIONS
#: First ordinal of a queue; leaves room for earlier collectives of other queues.
MIDDLE = 1 << 40
#: Largest number of collectives by which a group is divided into communicators.
MOST_COLLECTIVES = 2_048


def adopt_kernels(
    results: Sequence[TaskResult],
    captures: Sequence[int],
    placements: Sequence[Placement],
    clocks: Sequence[int],
    folder: Path,
) -> tuple[list[TaskResult], dict[tuple[int, int], tuple[int, int]]]:
    """Find the communicators of NCCL kernels that have no recorded payloads, from kernels that end
    together. Return the results with them, and (report, process) -> (number of its kernels without
    payloads, number of those matched).

    captures, placements: of each report. clocks: number of the clock of each report.
    """
    results, named = list(results), _list_named(results)
    captured: dict[int, list[int]] = defaultdict(list)
    told, alone = pl.col("communicator") != 0, pl.col("node") == 0
    for at, result in enumerate(results):
        if KERNELS in result.facts:
            captured[captures[result.report] if captures else 0].append(at)
    if not captured:
        return results, {}
    counts = _read_of_all(results, KERNELS, ("node", "communicator", *QUEUE[1:3]))
    counts = counts.group_by(QUEUE[:3]).agg(
        alone=alone.sum(),
        told=(alone & told).sum(),
        in_graphs=(~alone & ~told).sum(),
        told_in_graphs=(~alone & told).sum(),
    )
    devices = counts.select(QUEUE[:3]).n_unique()
    counts = counts.group_by(QUEUE[:2]).agg(pl.exclude("device").sum())
    silent = counts.filter(pl.col("alone") > 0, told=0)
    in_graphs, told_in_graphs = (counts[name].sum() for name in ("in_graphs", "told_in_graphs"))
    if devices < 2 or not (silent.height or 0 < in_graphs < MOST_IN_GRAPHS):
        return results, {}
    found: list[pl.DataFrame] = []
    number = 0
    for places in captured.values():
        of_capture: list[pl.DataFrame] = []
        wanted = None if silent.height else bool(told_in_graphs)
        queues, rows = _make_queues(results, places, placements, clocks, wanted)
        for group in group_queues(queues):
            own = [
                rows[place].with_columns(ordinal=pl.Series(ordinals))
                for place, ordinals in zip(group.queues, group.ordinals, strict=True)
            ]
            number += 1
            of_capture += _adopt_group(pl.concat(own), named, group.is_one, number)
        if of_capture:
            found.append(_join_nodes(pl.concat(of_capture, how="diagonal_relaxed")))
    matched: dict[tuple[int, int], int] = {}
    if found:
        table = pl.concat(found, how="diagonal_relaxed")
        with FrameWriter(folder / "adopted.arrows") as writer:
            _store(results, table, writer)
        sure = table.filter((pl.col("ranks") != IN_STEP) & (pl.col("node") == 0))
        sure = sure.group_by("report", "process").len()
        matched = {(report, process): count for report, process, count in sure.iter_rows()}
    elif silent.height == (counts["alone"] > 0).sum():
        return results, {}
    rows = silent.select(*QUEUE[:2], "alone").sort(QUEUE[:2]).rows()
    return results, {(*key,): (count, matched.get((*key,), 0)) for *key, count in rows}


def _make_queues(
    results: Sequence[TaskResult],
    places: Sequence[int],
    placements: Sequence[Placement],
    clocks: Sequence[int],
    told_in_graphs: bool | None,
) -> tuple[list[Queue], list[pl.DataFrame]]:
    """Return the queues of these results, and the rows of each queue.

    Rows have the columns KERNEL_FACTS, QUEUE, their storage place (place, row), and `placed_begin`
    and `placed_end` by the reports' clocks. told_in_graphs: include graph-launched kernels with
    payloads; None includes all kernels with payloads.
    """
    pieces = []
    for at in places:
        facts, report = read_columns(results[at].facts[KERNELS]), results[at].report
        sound = (facts["time_begin"] != NULL) & (facts["time_end"] != NULL)
        sound &= np.isin(facts["by_name"], (*ALL_WAIT, SEND_RECEIVE))
        if told_in_graphs is not None:
            sound &= (facts["communicator"] == 0) | ((facts["node"] > 0) & told_in_graphs)
        row = np.flatnonzero(sound)
        piece = take_rows(facts, row)
        for side in ("begin", "end"):
            piece[f"placed_{side}"] = placements[report].map.to_global(piece[f"time_{side}"])
        of_all = {"place": np.full(len(row), at), "report": np.full(len(row), report)}
        pieces.append({**piece, **of_all, "row": row})
    names = pieces[0]
    table = pl.DataFrame({one: np.concatenate([piece[one] for piece in pieces]) for one in names})
    told, place = pl.col("communicator") != 0, pl.col("node_place")
    table = _number_nodes(table)
    # The calls of a communicator form one queue, on all streams; for graph nodes, the calls of a place do.
    stream = pl.when(place > 0).then(-1 - place).when(told).then(-1).otherwise("stream")
    kind = pl.when(place > 0).then(place + FIRST_OF_NODES).otherwise("by_name")
    table = table.with_columns(stream=stream, kind=kind).filter(told | (pl.col("fused") <= 1))
    _, member = number_rows(*(table[name].to_numpy() for name in QUEUE[:3]))
    pivot = table["placed_end"].min() or 0
    queues, rows = [], []
    table = table.with_columns(member=pl.Series(member)).sort(*QUEUE, "placed_end")
    for own in table.partition_by(QUEUE, maintain_order=True):
        times = (own[f"placed_{side}"] - pivot for side in ("begin", "end"))
        begin, end = (column.to_numpy().astype(np.float64) for column in times)
        report, member, kind, told = (
            own[name][0] for name in ("report", "member", "kind", "communicator")
        )
        queues.append(Queue(clocks[report], member, kind, begin, end, told))
        rows.append(own)
    return queues, rows


def _number_nodes(kernels: pl.DataFrame) -> pl.DataFrame:
    """Add `node_place` to kernels.

    For graph-launched kernels, it numbers the graph's NCCL operations and the node's place among
    them. It is equal in all graphs of one capture, and on other ranks. For other kernels, and for
    too few to compare, it is 0.
    """
    owner = ["report", "process", "device"]
    nodes = kernels.filter(pl.col("node") > 0).group_by(*owner, "node")
    nodes = nodes.agg(pl.col("by_name").first(), calls=pl.len()).sort(*owner, "node")
    # CUDA numbers nodes within their graph in the low half.
    graph = [*owner, "graph"]
    nodes = nodes.with_columns(graph=pl.col("node") // (1 << 32))
    graphs = nodes.group_by(graph).agg(does=pl.col("by_name").cast(pl.String).str.join(" "))
    graphs = graphs.with_columns(pl.col("does").rank("dense"))
    nodes = nodes.with_columns(at=pl.int_range(pl.len()).over(graph)).join(graphs, on=graph)
    place = pl.struct("does", "at").rank("dense").cast(pl.Int64)
    nodes = nodes.with_columns(node_place=place)
    enough = pl.col("calls").sum().over(*owner, "node_place") >= FEWEST
    nodes = nodes.filter(enough).select(*owner, "node", "node_place")
    kernels = kernels.join(nodes, on=[*owner, "node"], how="left", maintain_order="left")
    return kernels.with_columns(pl.col("node_place").fill_null(0))


def _list_named(results: Sequence[TaskResult]) -> pl.DataFrame:
    """Return `report`, `process` and `communicator` for all communicators in the calls of
    processes.
    """
    rows = _read_of_all(results, COMMUNICATORS, ("process", "communicator"))
    return rows.filter(pl.col("communicator") != 0).unique()


def _read_of_all(results: Sequence[TaskResult], fact: str, columns: Sequence[str]) -> pl.DataFrame:
    """Return `report` and columns of a fact (int64) of all results: one frame takes less time than many."""
    having = [result for result in results if fact in result.facts]
    pieces = [read_columns(result.facts[fact], columns) for result in having]
    table = {
        name: np.concatenate([np.zeros(0, np.int64), *(piece[name] for piece in pieces)])
        for name in columns
    }
    lengths = [len(piece[columns[0]]) for piece in pieces]
    reports = np.repeat([result.report for result in having], lengths).astype(np.int64)
    return pl.DataFrame({"report": reports, **table})


def _adopt_group(
    rows: pl.DataFrame, named: pl.DataFrame, is_one: bool, number: int
) -> list[pl.DataFrame]:
    """Assign to a group of queues the communicator recorded in some of its rows, otherwise this
    number; return the rows. named: communicators of processes. A process that names another
    communicator is not a member.
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
                by_ends=pl.lit(1, pl.Int8),
            )
        ]
    ranks, is_own = told["ranks"].max(), pl.col("communicator") == told["communicator"][0]
    strangers = named.filter(~is_own.any().over("report", "process"))
    silent = silent.join(strangers, on=("report", "process"), how="anti")
    if (
        told["communicator"].n_unique() > 1
        or 0 < ranks < members
        or not (is_one or members == ranks)
    ):
        return []
    one = told.filter((pl.col("ordinal") >= 0) & (pl.col("fused") > pl.col("messages")))
    one = one.unique("ordinal", keep="first", maintain_order=True)
    adopted = silent.drop(TAKEN).join(one.select("ordinal", *TAKEN), on="ordinal")
    return [adopted.with_columns(told=pl.lit(True), by_ends=pl.lit(1, pl.Int8))]


def _join_nodes(found: pl.DataFrame) -> pl.DataFrame:
    """Merge nodes with the same members and function into one communicator, and number its
    collectives by their ends.
    """
    is_alone = ~pl.col("told") & (pl.col("ranks") != IN_STEP) & (pl.col("node_place") > 0)
    alone = found.filter(is_alone)
    if not alone.height:
        return found
    members = pl.col("member").unique().sort().cast(pl.String).str.join(" ")
    one = alone.group_by("communicator").agg(pl.col("by_name").first(), members=members)
    one = one.with_columns(joined=pl.col("communicator").min().over("by_name", "members"))
    alone = alone.join(one.select("communicator", "joined"), on="communicator")
    alone = alone.with_columns(last=pl.col("placed_end").max().over("communicator", "sequence"))
    order = pl.struct("last", "communicator", "sequence").rank("dense").over("joined")
    alone = alone.with_columns(sequence=order.cast(pl.Int64), communicator="joined")
    return pl.concat([found.filter(~is_alone), alone.select(found.columns)])


def _store(results: list[TaskResult], found: pl.DataFrame, writer: FrameWriter) -> None:
    """Store the communicators that were found in the facts of the results."""
    for (place,), rows in found.partition_by("place", as_dict=True).items():
        result = results[place]
        facts = {name: np.array(one) for name, one in read_columns(result.facts[KERNELS]).items()}
        for name in TAKEN:
            facts[name][rows["row"].to_numpy()] = rows[name].to_numpy()
        stored = {KERNELS: writer.append_frame(facts)}
        lacking = {
            **dict.fromkeys(("rank", "device"), pl.lit(ABSENT, pl.Int64)),
            "made": pl.lit(False),
        }
        told = rows.filter("told").with_columns(**lacking)
        told = told.select("communicator", "ranks", "rank", "device", "process", "made")
        told = told.unique(maintain_order=True)
        if told.height:
            if COMMUNICATORS in result.facts:
                others = read_frame(result.facts[COMMUNICATORS])
                told = pl.concat([others, told], how="diagonal_relaxed")
            stored[COMMUNICATORS] = writer.append_frame(told.to_dict())
        results[place] = replace(result, facts={**result.facts, **stored})


class Queue(Struct, frozen=True, dict=True):
    """Start and end times of the NCCL kernels of one stream of a rank, or of one recorded
    communicator.
    """

    #: Number of the clock that its times are of.
    clock: int
    #: Rank. It has at most one queue in a communicator.
    member: int
    #: Queues of a communicator are of one kind.
    kind: int
    #: Begins and ends, float ns, ascending by end.
    begin: np.ndarray
    end: np.ndarray
    #: The recorded communicator, 0 for none.
    recorded: int = 0

    @cached_property
    def calls(self) -> CallSequence:
        """Return the kernels as a sequence of calls, all of which wait for each other."""
        count = len(self.end)
        zeros, ones = np.zeros(count, np.int64), np.ones(count, bool)
        return CallSequence(self.begin, self.end, zeros, ones)

    def move(self, offset: float, slope: float) -> Queue:
        """Return the queue with its times converted to another clock: time * (1 + slope) + offset
        (ns).
        """
        begin, end = (times * (1 + slope) + offset for times in (self.begin, self.end))
        return replace(self, begin=begin, end=end)


class QueueGroup(Struct, frozen=True):
    """Queues whose kernels end together and therefore belong to one communicator, with the number
    of each kernel's collective.
    """

    #: Their places among all.
    queues: tuple[int, ...]
    #: The ordinal of each call, equal within a collective, or -1.
    ordinals: tuple[np.ndarray, ...]
    #: Whether they are surely one communicator, rather than several in step.
    is_one: bool


def group_queues(queues: Sequence[Queue]) -> list[QueueGroup]:
    """Group the queues whose kernels end together, on any clocks: each group is one communicator."""
    by_host: dict[int, list[int]] = {}
    for place, queue in enumerate(queues):
        by_host.setdefault(queue.clock, []).append(place)
    heads = {
        host: [queues[group.queues[0]] for group in _gather(queues, places)]
        for host, places in by_host.items()
    }
    found: list[_LinedUp] = []
    for lines in _tie_hosts(heads):
        placed = {
            place: queues[place].move(*line)
            for host, line in lines.items()
            for place in by_host[host]
        }
        elsewhere = {queue.kind for queue in queues if queue.clock not in lines}
        of_kind = _list_by_kind(placed, placed)
        for group in _gather(placed, sorted(placed)):
            if len(group.queues) > 1:
                members = [placed[place] for place in group.queues]
                kind = members[0].kind
                strangers = [placed[place] for place in of_kind[kind] if place not in group.queues]
                is_sure = (
                    group.is_one
                    and kind not in elsewhere
                    and not any(_may_follow(queue, members[0]) for queue in strangers)
                )
                order = sorted(range(len(members)), key=lambda at: members[at].member)
                chosen = [members[at] for at in order]
                ordinals = [group.ordinals[at] for at in order]
                places = tuple(group.queues[at] for at in order)
                sides = _line_up(chosen, ordinals)
                found.append(_LinedUp(places, tuple(ordinals), is_sure, chosen, *sides))
    return _divide_all(found)


class _LinedUp(Struct, frozen=True):
    """Queues of a `QueueGroup` by member, with their calls aligned."""

    places: tuple[int, ...]
    ordinals: tuple[np.ndarray, ...]
    is_sure: bool
    queues: list[Queue]
    begin: np.ndarray
    end: np.ndarray

    def divide(self, alike: Sequence[_LinedUp]) -> list[tuple[list[int], bool]]:
        """Divide the queues into communicators, as :func:`_divide` does. alike: groups with the
        same members, whose collectives are also used.
        """
        begin, end = (
            np.concatenate([getattr(one, side) for one in alike]) for side in ("begin", "end")
        )
        rows = choose_evenly(len(begin), MOST_COLLECTIVES)
        return _divide(begin[rows], end[rows], [queue.recorded for queue in self.queues])


def _divide_all(found: Sequence[_LinedUp]) -> list[QueueGroup]:
    """Divide queues into communicators. Nodes with equal divisions are judged together."""
    divided = [one.divide([one]) for one in found]
    alike: dict[tuple, list[int]] = defaultdict(list)
    for number, (one, parts) in enumerate(zip(found, divided, strict=True)):
        members = tuple((queue.member, queue.recorded) for queue in one.queues)
        is_node = one.queues[0].kind > FIRST_OF_NODES
        alike[members, _list_parts(parts), -1 if is_node else number].append(number)
    for (_, parts, _), numbers in alike.items():
        together = found[numbers[0]].divide([found[number] for number in numbers])
        for number in numbers if _list_parts(together) == parts else ():
            divided[number] = together
    return [
        QueueGroup(
            tuple(one.places[at] for at in part),
            tuple(one.ordinals[at] for at in part),
            one.is_sure and is_one,
        )
        for one, parts in zip(found, divided, strict=True)
        for part, is_one in parts
    ]


def _list_parts(divided: Sequence[tuple[list[int], bool]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(part) for part, _ in divided)


def _may_follow(own: Queue, other: Queue) -> bool:
    """Return True if the queues share a few calls that end together: too few to decide whether they
    match.
    """
    low, high = max(own.end[0], other.end[0]) - NEAR, min(own.end[-1], other.end[-1]) + NEAR
    inside = own.calls.ends[(own.end >= low) & (own.end <= high)]
    if not 0 < len(inside) < FEWEST:
        return False
    _, late = matching.find_nearest_partners(inside, other.calls.ends)
    return bool(np.median(np.abs(late)) < NEAR)


def _gather(queues: Sequence[Queue] | dict[int, Queue], places: Sequence[int]) -> list[QueueGroup]:
    """Group the queues at these indices, which are on one clock, by matching ends. The queue with
    the most calls is the first of its group and numbers the collectives.
    """
    groups = []
    for of_kind in _list_by_kind(queues, places).values():
        left = sorted(of_kind, key=lambda place: -len(queues[place].end))
        while left:
            first, *others = left
            head = queues[first]
            chosen, ordinals, left = [first], [np.arange(len(head.end)) + MIDDLE], []
            for place in others:
                found = None
                if queues[place].member != head.member:
                    found = _follow(queues[place].calls.ends, head.calls.ends)
                if found is None:
                    left.append(place)
                else:
                    chosen.append(place)
                    ordinals.append(found)
            members = {queues[place].member for place in chosen}
            groups.append(QueueGroup(tuple(chosen), tuple(ordinals), len(members) == len(chosen)))
    return groups


def _list_by_kind(
    queues: Sequence[Queue] | dict[int, Queue], places: Iterable[int]
) -> dict[int, list[int]]:
    """Return kind -> indices of its queues."""
    of_kind: dict[int, list[int]] = defaultdict(list)
    for place in places:
        of_kind[queues[place].kind].append(place)
    return of_kind


def _follow(own: matching.Ends, other: matching.Ends) -> np.ndarray | None:
    """Return the ordinal of each call: the index (+ MIDDLE) of the call of `other` that ends with
    it, continued where nothing is missing in between; otherwise -1. Return None if the ends do not
    match although both have calls.
    """
    low, high = max(own.time[0], other.time[0]) - NEAR, min(own.time[-1], other.time[-1]) + NEAR
    inside, common = ((ends.time >= low) & (ends.time <= high) for ends in (own, other))
    shared = max(int(inside.sum()), int(common.sum()))
    if shared < FEWEST:
        return None
    index, late = matching.find_nearest_partners(own, other)
    index = matching.keep_nearest_partners(
        np.where(inside & (np.abs(late) < NEAR), index, -1), np.abs(late)
    )
    found = index >= 0
    if found.sum() < MOST * shared:
        return None
    apart = np.abs(late[found] - np.median(late[found]))
    if np.median(apart) > CLOSE or not matching.is_tighter_than_chance(
        apart, other.time, index[found]
    ):
        return None
    places = np.flatnonzero(found)
    shifts = np.unique(index[found] - places)
    if len(shifts) == 1:
        return np.arange(len(index)) + int(shifts[0]) + MIDDLE
    return np.where(found, index + MIDDLE, -1)


def _tie_hosts(heads: dict[int, list[Queue]]) -> list[dict[int, tuple[float, float]]]:
    """Return groups of hosts that lines connect, each as host -> line (offset, slope) to the clock
    of the first host. heads: host -> one queue of each of its groups.
    """
    left = dict.fromkeys(sorted(heads), 0)
    parts = []
    while left:
        first = next(iter(left))
        del left[first]
        part, todo = {first: (0.0, 0.0)}, [first]
        while todo:
            one = todo.pop(0)
            for other in [host for host, tries in left.items() if tries < MOST_TRIES]:
                left[other] += 1
                line = _find_line(heads[other], heads[one])
                if line is not None:
                    offset, slope = part[one]
                    slope_of_both = (1 + line[1]) * (1 + slope) - 1
                    part[other] = line[0] * (1 + slope) + offset, slope_of_both
                    todo.append(other)
                    del left[other]
        parts.append(part)
    return parts


def _find_line(own: Sequence[Queue], others: Sequence[Queue]) -> tuple[float, float] | None:
    """Return the line (offset, slope) from one host's clock to another's that fits the ends of
    their queues; None if there is no line, or several.
    """
    pairs = [(queue, other) for queue in own for other in others if queue.kind == other.kind]
    # Queues with equally many calls first, as they are most similar.
    pairs.sort(key=lambda pair: abs(len(pair[0].end) - len(pair[1].end)))
    tries: Counter[tuple[int, int]] = Counter()
    chosen = []
    for queue, other in pairs:
        # Graph nodes are many, and equivalent.
        alike = min(queue.kind, FIRST_OF_NODES), len(queue.end)
        tries[alike] += 1
        chosen += [(queue, other)] if tries[alike] <= MOST_PAIRS else []
    for in_order in (False, True):
        found = {
            (pair[0].kind, *line) for pair in chosen if (line := _compare_queues(*pair, in_order))
        }
        if found:
            break
    else:
        return None
    _, spread, offset, slope, _ = min(found, key=lambda line: line[1:])
    rivals = {
        (kind, rival)
        for kind, rival, other, tilt, at in found
        if abs(offset - other + (slope - tilt) * at) > CONTRADICTION
    }
    # Agreeing queues of several kinds win against queues of one kind.
    agreeing = {kind for kind, *_ in found} - {kind for kind, _ in rivals}
    is_clear = len(agreeing) > 1 and len({kind for kind, _ in rivals}) == 1
    if not is_clear and any(rival < BETTER * spread for _, rival in rivals):
        return None
    return offset, slope


def _compare_queues(
    own: Queue, other: Queue, in_order: bool
) -> tuple[float, float, float, float] | None:
    """Return spread, offset and slope of the line that certainly fits the ends of two queues, and
    the middle of their time; None without such a line. in_order: only compare equally many ends in
    order.
    """
    if in_order:
        partners = _pair_in_order(own.end, other.end)
    else:
        partners, _ = pair_calls(own.calls, other.calls, LINE_NOISE, UTC_ERROR)
    if partners is None:
        return None
    found = partners >= 0
    times = own.end[found]
    offset, slope, spread = fit_line(times, other.end[partners[found]] - times)
    if (
        abs(slope) > PLAUSIBLE_DRIFT
        or _follow(own.move(offset, slope).calls.ends, other.calls.ends) is None
    ):
        return None
    return spread, offset, slope, float(np.median(times))


def _pair_in_order(own: np.ndarray, other: np.ndarray) -> np.ndarray | None:
    """Pair equally many ends in order. They must fit a line so much better than in any other order
    that chance is excluded, however regular they are. Otherwise return None.
    """
    count = len(own)
    if count != len(other) or count < FEWEST:
        return None
    spreads = {}
    for shift in range(-(count // 3), count // 3 + 1):
        times = own[max(-shift, 0) : count - max(shift, 0)]
        later = other[max(shift, 0) : count - max(-shift, 0)]
        offset, slope, _ = fit_line(times, later - times)
        # All ends count, as half of a few may be close by chance.
        spread = float(np.sqrt(np.mean((later - times * (1 + slope) - offset) ** 2)))
        spreads[shift] = spread if abs(slope) <= PLAUSIBLE_DRIFT else np.inf
    spread = spreads.pop(0)
    return np.arange(count) if spread < CLOSE and BETTER * spread < min(spreads.values()) else None


def _divide(
    begin: np.ndarray, end: np.ndarray, recorded: Sequence[int]
) -> list[tuple[list[int], bool]]:
    """Divide queues (columns) with matching ends into communicators. Return for each its queues,
    and whether it is certainly a single communicator. begin, end: from :func:`_line_up`. recorded:
    communicator of each queue, 0 if unknown.
    """
    spread = _compare_ends(end)
    nearest = float(np.median(spread.min(axis=0)))
    cut = nearest * (LEAST_RATIO + RATIO_OF_FEW / np.sqrt(len(end)))
    linked = [[at, *np.flatnonzero(near).tolist()] for at, near in enumerate(spread <= cut)]
    number = np.array(number_linked(linked))
    parts = [np.flatnonzero(number == part).tolist() for part in range(number.max() + 1)]
    if len(parts) == 1:
        known = spread[np.isfinite(spread)]
        is_alike = len(end) >= ENOUGH_ALIKE and known.max() <= ALIKE * known.min()
        return [(parts[0], is_alike or _do_wait_for_each_other(begin, end))]
    names = [{recorded[column] for column in part} - {0} for part in parts]
    ends = np.stack([take_median(end[:, part], 1) for part in parts])
    last = np.stack([np.fmax.reduce(begin[:, part], axis=1) for part in parts])
    for one in range(len(parts)):
        for other in range(one):
            is_recorded = names[one] and names[other] and names[one].isdisjoint(names[other])
            if not is_recorded and not _do_correlate(
                last[one] - last[other], ends[one] - ends[other]
            ):
                return [(list(range(end.shape[1])), False)]
    return [(part, _do_wait_for_each_other(begin[:, part], end[:, part])) for part in parts]


def _compare_ends(end: np.ndarray) -> np.ndarray:
    """Return the spread of the differences between the ends of each pair of columns; inf on the
    diagonal and for too few values.
    """
    count = end.shape[1]
    spread = np.full((count, count), np.inf)
    for one in range(count):
        apart = end[:, :one] - end[:, one : one + 1]
        middle = take_median(apart, 0)
        found = take_median(np.abs(apart - middle), 0)
        found[np.isfinite(apart).sum(axis=0) < FEWEST] = np.inf
        spread[one, :one] = spread[:one, one] = found
    return spread


def _do_correlate(one: np.ndarray, other: np.ndarray) -> bool:
    both = np.isfinite(one) & np.isfinite(other)
    if both.sum() < FEWEST:
        return False
    one, other = (np.argsort(np.argsort(times[both])) for times in (one, other))
    return bool(np.corrcoef(one, other)[0, 1] >= CORRELATED)


def _do_wait_for_each_other(begin: np.ndarray, end: np.ndarray) -> bool:
    """Return True if all columns end with the last member to arrive, and therefore belong to one
    communicator.
    """
    count = begin.shape[1]
    if count < 2:
        return False
    off = end - take_median(end, 1)[:, None]
    margin = max(CLEARLY * TO_SIGMA * float(np.nanmedian(np.abs(off))), LEAST_MARGIN)
    arrival = np.where(np.isnan(begin), -np.inf, begin)
    last = arrival.argmax(axis=1)
    second, latest = np.partition(arrival, -2, axis=1)[:, -2:].T
    behind = end - end[np.arange(len(end)), last][:, None]
    behind = behind - take_median(behind, 0)
    seen = behind[latest - second >= margin]
    together = (np.abs(seen) <= margin / 2).sum(axis=0)
    left = (seen < -margin / 2).sum(axis=0)
    if count < INDIVISIBLE:
        return not ((left >= OFTEN) & (left > together)).any()
    return bool(((together >= OFTEN) & (left * SELDOM <= together)).all())


def _line_up(
    queues: Sequence[Queue], ordinals: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and ends as arrays with a row per collective of several queues and a column per
    queue; NaN where missing.
    """
    numbers, counts = np.unique(
        np.concatenate([own[own >= 0] for own in ordinals]), return_counts=True
    )
    numbers = numbers[counts > 1]
    numbers = numbers[choose_evenly(len(numbers), MOST_COLLECTIVES)]
    begin, end = np.full((2, len(numbers), len(queues)), np.nan)
    for column, (queue, own) in enumerate(zip(queues, ordinals, strict=True)):
        row = find_places(numbers, own)
        fits = row >= 0
        begin[row[fits], column], end[row[fits], column] = queue.begin[fits], queue.end[fits]
    return begin, end
