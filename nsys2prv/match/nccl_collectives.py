"""Match NCCL collectives across all their ranks, and measure late arrivals, waits and transfer
speed.

Kernels of one collective are found by the first rule that the reports allow:

1. The communicator's hash and the sequence number in the advanced NCCL trace, counted per function.
2. The communicator's hash (in payloads since NCCL 2.25.1) and the launch order on each rank. If
   this is contradictory (captures that begin or end at different calls, missing rows), the end
   times.
3. Without a communicator in any payload, names and ends of kernels (nccl_adoption.py).

A collective is numbered only if it is complete: one kernel of each rank, with the same operation
and size. Times are in ns. Bandwidths in B/s cover the transfer, which begins with the last rank's
kernel, and are stored in records of its duration. Bus bandwidth is defined as in nccl-tests.

The work is divided. Kernels of a few reports are ordered in blocks on disk by communicator, so that
some collectives of a communicator are a slice of each of its blocks. Then such parts are matched
and their collectives numbered. Ranks of a communicator without a report cause a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.budget import MATCHED_ROWS
from nsys2prv._util.columns import ABSENT, COUNT
from nsys2prv._util.files import load_shipped_file
from nsys2prv._util.text import Note, format_count, format_nanoseconds, inflect, list_some
from nsys2prv.clock import UNCLEAR_KINDS, UTC_ERROR, NoiseKind, Role
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.kind import Rows
from nsys2prv.events.nccl import (
    COMMUNICATORS,
    KERNELS,
    ROOT_WAITS,
    SEND_RECEIVE,
    SEVERAL_OPERATIONS,
    WAIT_FOR_ROOT,
)
from nsys2prv.export.source import NULL
from nsys2prv.match import (
    BY_ENDS,
    BY_LAUNCH,
    BY_NUMBER,
    BY_STREAMS,
    COLUMNS,
    DEVICES,
    Block,
    FactFile,
    RelationContext,
    divide_ordinals,
    group_blocks,
    hash_signatures,
    read_blocks,
    read_fact,
    store_by_time,
    write_block,
    write_blocks,
    write_result,
)
from nsys2prv.match.nccl_adoption import IN_STEP
from nsys2prv.table.runs import Span
from nsys2prv.table.task_result import TaskResult

#: Ranks that are named.
MOST_NAMED = 8
_NOTES = load_shipped_file(__package__, "notes.yaml")["nccl"]
#: The words of rules.
RULES = load_catalogue().value_sets["matching_rule"]
#: Columns that are equal on all ranks of a collective.
EQUAL_COLUMNS = ("operation", "fused", "bytes")
NAME, LAYOUT, TRANSFER = "nccl_collectives", "nccl_collective", "nccl_transfer"
#: Fields of the layouts, and columns of records: with times (ns), their place, and the key that
#: orders records of equal time.
FIELDS = ("operation", "collective", "late", "wait", "transfer", "rule")
TRANSFER_FIELDS = ("operation", "algorithm_bandwidth", "bus_bandwidth")
ORDER = ("settled", "task", "device", "group", "before")
RECORD_COLUMNS = ("begin", "end", "object", *FIELDS, *ORDER)
TRANSFER_RECORD_COLUMNS = ("ready", "end", "object", *TRANSFER_FIELDS, *ORDER)
#: Columns that identify a collective; function: 0 if all functions are numbered together.
COLLECTIVE_KEY = ("group", "function", "ordinal")


class OrderedKernels(Struct, frozen=True):
    """NCCL kernels that one task put in order, stored by communicator."""

    #: Rows of COLUMNS["nccl_kernels"], by communicator.
    blocks: tuple[Block, ...]
    #: (task, device) of all kernels.
    members: frozenset[tuple[int, int]]
    #: A row for each communicator and member: number of operations, whether the trace numbers them
    #: all, ranks as in the payloads, first and last time (ns).
    members_seen: pl.DataFrame
    #: Kernels that are of no block, by reason.
    left: Counter[str]


def order_kernels(
    files: tuple[FactFile, ...], tasks: Mapping[tuple[int, int], int], path: Path
) -> OrderedKernels:
    """Number the kernels of some reports within their communicators: by their recorded numbers if
    all have one, otherwise by launch. path: of the new file.
    """
    kernels = keep_sound_kernels(read_fact(files, tasks, COLUMNS["nccl_kernel_facts"]))
    in_step, unknown = pl.col("ranks") == IN_STEP, pl.col("communicator") == 0
    in_graph = pl.col("node") != 0
    doubtful = kernels.filter(in_step & (pl.col("by_name") != SEND_RECEIVE)).height
    kernels = kernels.filter(~in_step)
    left = {
        "in_graph": kernels.filter(unknown & in_graph).height,
        "undescribed": kernels.filter(unknown & ~in_graph).height,
        "doubtful": doubtful,
    }
    of_all = frozenset(kernels.select("task", "device").unique().iter_rows())
    owner = ("task", "device", "communicator")
    operations = pl.col("fused") - pl.col("messages")
    kernels = (
        kernels.filter(~unknown & (operations > 0))
        .sort(*owner, "time_call", "time_begin", maintain_order=True)
        .with_columns(
            before=operations.cum_sum().over(owner) - operations,
            member=pl.col("task") * DEVICES + pl.col("device"),
        )
    )
    members = kernels.group_by(owner, maintain_order=True).agg(
        operations=operations.sum(),
        numbered=(pl.col("sequence") >= 0).all(),
        ranks=pl.col("ranks").max(),
        first=pl.col("time_begin").min(),
        last=pl.col("time_end").max(),
    )
    lacking = members.filter(~pl.col("numbered"))["communicator"].unique()
    by_number = ~pl.col("communicator").is_in(lacking.implode())
    kernels = kernels.with_columns(ordinal=pl.when(by_number).then("sequence").otherwise("before"))
    # Kernels with equal ordinals keep their order.
    kernels = kernels.sort("communicator", "ordinal", maintain_order=True)
    owners = kernels["communicator"].to_numpy()
    blocks = write_blocks(path, owners, kernels.select(COLUMNS["nccl_kernels"]))
    return OrderedKernels(blocks, of_all, members.drop("task", "device"), Counter(left))


def relate_collectives(context: RelationContext) -> list[TaskResult]:
    """Find the late rank, the wait times and the transfer time of each NCCL collective. Return
    results with these records, stored by time.
    """
    surveys = context.run_each("kernels", order_kernels, *context.divide_facts(KERNELS))
    if len(frozenset().union(*(survey.members for survey in surveys))) < 2:
        return []
    matched, lone = _match_by_communicator(context, surveys)
    results = store_collectives(context, matched)
    left = sum((survey.left for survey in surveys), Counter({"alone": lone}))
    results[0].notes = [
        *(_describe_collectives(pl.concat(part.summary for part in matched)) if matched else ()),
        *(
            Note(f"NCCL kernels not compared across ranks: {left[why]:,} {text}")
            for why, text in _NOTES["kernels"].items()
            if left[why]
        ),
    ]
    return results


def _match_by_communicator(
    context: RelationContext, surveys: Sequence[OrderedKernels]
) -> tuple[list[MatchedCollectives], int]:
    """Group kernels by communicator; within it by sequence number if all have one, otherwise by
    order or end time. Return also the number of kernels in no collective.
    """
    operations = pl.col("operations")
    communicators = (
        pl.concat([survey.members_seen for survey in surveys])
        .group_by("communicator")
        .agg(
            numbered=pl.col("numbered").all(),
            some=pl.col("numbered").any(),
            size=pl.max_horizontal(pl.col("ranks").max(), COUNT),
            even=operations.min() == operations.max(),
            first=pl.col("first").min(),
            last=pl.col("last").max(),
        )
        .sort("communicator")
    )
    by_group = {
        blocks[0].group: blocks
        for blocks in group_blocks(block for part in surveys for block in part.blocks)
    }
    numbered, unnumbered, lone = [], [], 0
    for group, size, is_numbered in communicators.select(
        "communicator", "size", "numbered"
    ).iter_rows():
        rule, pieces = (BY_NUMBER, numbered) if is_numbered else (BY_LAUNCH, unnumbered)
        pieces.append(CollectivePiece(group, by_group[group], rule, size, is_numbered))
    if unnumbered:
        rest = communicators.filter(~pl.col("numbered"))
        pivot = (rest["first"].min() + rest["last"].max()) // 2
        more = pivot, context.clock_error
        # Collectives numbered by only some ranks are ordered by launch.
        settled = context.run_each(
            "settled", settle_order, unnumbered, rest["even"], rest["some"], more=more
        )
        unnumbered = [piece for piece, _ in settled if piece.blocks]
        lone = sum(left for _, left in settled)
    pieces = divide_kernels([*numbered, *unnumbered], MATCHED_ROWS)
    return context.run_each("matched", match_kernels, pieces, more=(context.span,)), lone


def _describe_collectives(found: pl.DataFrame) -> list[Note]:
    """Return notes on collectives.

    They state how many collectives each rule found and how many were not found, which hosts could
    not be placed, and in how many collectives one rank ends before another begins, which agreeing
    clocks would not show. found: summaries of :class:`MatchedCollectives`.
    """
    whole, comparable = found.filter("whole"), pl.col("comparable")
    texts = _NOTES["collectives"]
    notes: list[Note] = []
    for rule, name in RULES.labels:
        if rule in found["rule"]:
            count = whole.filter(pl.col("rule") == rule)["count"].sum()
            notes.append(Note(texts["matched"].format(name, count), is_routine=True))
    if different := found["count"].sum() - whole["count"].sum():
        text = texts["different"].format(format_count(different, "collective"))
        notes.append(Note(text))
    if unplaced := whole.filter(~comparable)["count"].sum():
        text = texts["unplaced"].format(format_count(unplaced, "collective"))
        notes.append(Note(text, is_on_clocks=True))
    apart = whole.filter(comparable & (pl.col("apart") > 0))
    if apart.height:
        count, gap = format_count(apart["apart"].sum(), "collective"), apart["gap"].max()
        notes.append(Note(texts["apart"].format(count, format_nanoseconds(gap)), is_on_clocks=True))
    return notes


def warn_of_absent_members(context: RelationContext, silent: int) -> list[str]:
    """Return a warning if the largest incomplete communicator has more ranks than there are
    reports. silent: number of processes without recorded communicators.
    """
    files = context.files.get(COMMUNICATORS)
    return _describe_missing_ranks(read_fact(files, context.tasks), silent) if files else []


def _describe_missing_ranks(communicators: pl.DataFrame, silent: int = 0) -> list[str]:
    """Return the warning for :func:`warn_of_absent_members`. communicators: one row for each time
    that a process names one: communicator, task, ranks (their number), rank.
    """
    # A process may have several GPUs, each with its own rank. If the report starts after the
    # communicator was made, no rank is recorded.
    has_rank, task = pl.col("rank") >= 0, pl.col("task")
    ranked = pl.struct("task", "rank").filter(has_rank).n_unique()
    groups = (
        communicators.filter((pl.col("communicator") != 0) & (task >= 0))
        .group_by("communicator")
        .agg(
            size=pl.col("ranks").max(),
            sizes=pl.col("ranks").filter(pl.col("ranks") > 1).n_unique(),
            reported=ranked + task.n_unique() - task.filter(has_rank).n_unique(),
            present=pl.col("rank").filter(has_rank).unique(),
        )
    )
    lacking = (pl.col("reported") + silent < pl.col("size")) & (pl.col("sizes") == 1)
    lacking = groups.filter(lacking).sort("size", "communicator", descending=True)
    for size, reported, present in (
        lacking.select("size", "reported", "present").head(1).iter_rows()
    ):
        which, missing = "", sorted({*range(size)} - {*present})
        if missing and len(present) == reported and not silent:
            named = list_some([*map(str, missing)], MOST_NAMED)
            which = f", and none of {inflect('rank', len(missing))} {named}"
        return [
            f"an NCCL communicator has {size} ranks, but there are reports of only {reported} of them{which}, so late "
            "ranks may not be named"
        ]
    return []


class CollectivePiece(Struct, frozen=True):
    """The kernels of some collectives of one group (communicator): low <= ordinal < high (None: no
    limit), in all its blocks.
    """

    #: Number of the communicator or stream.
    group: int
    #: One for each report.
    blocks: tuple[Block, ...]
    #: How they are distinguished.
    rule: int
    #: Number of kernels of a collective.
    ranks: int
    #: True if each function has numbers of its own.
    by_function: bool = False
    #: True if the order of launches was found inconclusive and another method decided.
    settled: bool = False
    #: First ordinal, None for all.
    low: int | None = None
    #: Ordinal after the last one, None for all.
    high: int | None = None

    @property
    def rows(self) -> int:
        """Return the number of kernels in the blocks."""
        return sum(block.rows for block in self.blocks)

    def read(self) -> pl.DataFrame:
        """Read the kernels of this piece: COLUMNS["nccl_kernels"], COLLECTIVE_KEY, and the columns
        `ranks`, `rule` (by which they were ordered) and `settled`.
        """
        # Numbers below 2^31 would be narrower than in other groups.
        known = {name: pl.lit(getattr(self, name), pl.Int64) for name in ("group", "ranks")}
        known["rule"] = pl.when(pl.col("by_ends") > 0).then(BY_STREAMS).otherwise(self.rule)
        known["settled"] = pl.lit(self.settled)
        function = "first_operation" if self.by_function else pl.lit(0, pl.Int64)
        kernels = read_blocks(self.blocks, self.low, self.high)
        return kernels.with_columns(function=function, **known)


def divide_kernels(
    pieces: Sequence[CollectivePiece], most: int
) -> list[tuple[CollectivePiece, ...]]:
    """Divide pieces into tasks of about `most` kernels: several pieces in order, or a part of one
    piece.
    """
    divided: list[tuple[CollectivePiece, ...]] = []
    few: list[CollectivePiece] = []
    room = most
    for piece in pieces:
        if piece.rows > most:
            spans = divide_ordinals(piece.blocks, most)
            divided += [(replace(piece, low=low, high=high),) for low, high in spans]
            continue
        if few and piece.rows > room:
            divided.append(tuple(few))
            few, room = [], most
        few.append(piece)
        room -= piece.rows
    return [*divided, tuple(few)] if few else divided


def find_role() -> pl.Expr:
    """Return an expression for who waits for whom in a collective (clock.Role), from the column
    `first_operation`.
    """
    waits, awaited = (pl.col("first_operation").is_in(one) for one in (WAIT_FOR_ROOT, ROOT_WAITS))
    role = pl.when(waits).then(int(Role.FROM_ROOT)).when(awaited).then(int(Role.TO_ROOT))
    return role.otherwise(int(Role.ALL))


def keep_sound_kernels(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels with valid times, and with ends after their starts, as in their trace
    records.
    """
    begin, end = pl.col("time_begin"), pl.col("time_end")
    has_times = (begin != NULL) & (end != NULL)
    return kernels.filter(has_times).with_columns(time_end=pl.max_horizontal(end, begin + 1))


def measure_waits(members: pl.DataFrame, since: str = "begin", until: str = "end") -> pl.DataFrame:
    """Add to kernels (members of collectives) how long they arrived after the first (`late`),
    waited, and transferred data: `late`, `wait` and `transfer` (ns); ABSENT unless `comparable`.

    members: `begin`; the span in which they may wait (columns named by `since` and `until`); the
    `first` start among the members they meet; and the arrival of the `last` one.
    """
    last = pl.col("last")
    times = {
        "late": pl.col("begin") - pl.col("first"),
        "wait": (pl.min_horizontal(last, until) - pl.col(since)).clip(0),
        "transfer": (pl.col(until) - pl.max_horizontal(last, since)).clip(0),
    }
    return members.with_columns(
        pl.when("comparable").then(time).otherwise(ABSENT).alias(name)
        for name, time in times.items()
    )


def find_bandwidth(moved: pl.Expr) -> pl.Expr:
    """Return an expression for the bandwidth (B/s) of moving these bytes in the time `transfer`
    (ns). 0 means that nothing was moved, not a slow transfer.
    """
    # In floating point, for the product may be beyond 64 bits.
    exact = moved * 1e9 / pl.max_horizontal("transfer", 1)
    return pl.max_horizontal(exact.round(), exact.sign())


def make_rows(layout: str, frame: pl.DataFrame, begin: str, fields: tuple[str, ...]) -> Rows:
    """Make records of a layout with these fields from the columns of a frame. begin: name of the
    column with the start times.
    """
    column = {
        name: frame[name].to_numpy().astype(np.int64) for name in (begin, "end", "object", *fields)
    }
    return Rows(layout, *map(column.pop, (begin, "end", "object")), column)


class MatchedCollectives(Struct, frozen=True):
    """Collectives whose kernels one task matched: their records, and a summary."""

    #: A row for each complete one: first begin, group, function, ordinal.
    firsts: np.ndarray
    #: RECORD_COLUMNS rows of their kernels, numbered from 1 within the task.
    records: tuple[Block, ...]
    #: TRANSFER_RECORD_COLUMNS rows: the part of them after the last member's begin, if the bytes
    #: are known.
    transfers: tuple[Block, ...]
    #: By rule, whole and comparable: `count` of collectives, of how many a kernel ends before the last
    #: one begins (`apart`), and the greatest `gap` (ns) between these.
    summary: pl.DataFrame


def match_kernels(
    pieces: tuple[CollectivePiece, ...], path: Path, span: Span | None
) -> MatchedCollectives:
    """Find the late rank and the waits in the collectives of some pieces, and store records of
    them. path: of new files, without their endings. span: as in the context.
    """
    kernels = pl.concat([piece.read() for piece in pieces])
    collectives = _group_kernels(kernels)
    chosen = collectives.filter("whole")
    if span:
        chosen = chosen.filter((pl.col("first") <= span[1]) & (pl.col("until") >= span[0]))
    chosen = chosen.sort("first", *COLLECTIVE_KEY)
    chosen = chosen.with_columns(collective=pl.int_range(1, pl.len() + 1))
    known = chosen.select(*COLLECTIVE_KEY, "collective", "first", "last", "comparable")
    records, transfers = _make_records(kernels.join(known, on=COLLECTIVE_KEY))
    return MatchedCollectives(
        chosen.select("first", *COLLECTIVE_KEY).to_numpy(),
        write_block(path.with_suffix(".records"), records),
        write_block(path.with_suffix(".transfers"), transfers),
        collectives.group_by("rule", "whole", "comparable").agg(
            count=pl.len(), apart=(pl.col("gap") > 0).sum(), gap=pl.col("gap").max()
        ),
    )


def _group_kernels(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives of these kernels by COLLECTIVE_KEY.

    Columns: rule; whole (it is complete); first, last (starts of kernels); until (the last end);
    gap (how much earlier than the last start the first end is, ns); comparable (all times can be
    compared).
    """
    alike = pl.all_horizontal(pl.col(name).min() == pl.col(name).max() for name in EQUAL_COLUMNS)
    begin, clock_group = pl.col("time_begin"), pl.col("clock_group")
    members = pl.col("member").n_unique()
    whole = (pl.len() > 1) & (pl.len() == pl.col("ranks").first()) & (pl.len() == members) & alike
    return kernels.group_by(COLLECTIVE_KEY).agg(
        pl.col("rule").max(),
        whole=whole,
        first=begin.min(),
        last=begin.max(),
        until=pl.col("time_end").max(),
        gap=begin.max() - pl.col("time_end").min(),
        comparable=clock_group.min() == clock_group.max(),
    )


def _make_records(kernels: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return two frames sorted by start: the kernels with RECORD_COLUMNS, and the kernels with
    known bytes with TRANSFER_RECORD_COLUMNS. kernels: with the columns of their collectives.
    """
    ranks, shared, reduced = (pl.col(name) for name in ("ranks", "share_bytes", "reduce_bytes"))
    plain = pl.col("bytes") - shared - reduced - pl.col("message_bytes")
    bus = plain + reduced * 2 * (ranks - 1) / ranks + shared * (ranks - 1)
    names = (pl.when(pl.col(name) > 0).then(name) for name in ("operation", "by_name"))
    kernels = kernels.rename({"time_begin": "begin", "time_end": "end", "object_kernel": "object"})
    described = measure_waits(kernels).with_columns(
        ready="last", operation=pl.coalesce(*names, SEVERAL_OPERATIONS)
    )
    sized = (pl.col("known") == 1) & (pl.col("bytes") >= 0)
    measured = described.filter(sized & (pl.col("transfer") > 0)).with_columns(
        algorithm_bandwidth=find_bandwidth(plain + reduced + shared * ranks),
        bus_bandwidth=find_bandwidth(bus),
    )
    return (
        described.sort("begin").select(RECORD_COLUMNS),
        measured.sort("ready").select(TRANSFER_RECORD_COLUMNS),
    )


def store_collectives(
    context: RelationContext, matched: Sequence[MatchedCollectives]
) -> list[TaskResult]:
    """Store the records of all collectives by time. Collectives are numbered as if one task had
    found them all: from 1 by first start, then by group, function and ordinal.
    """
    firsts = np.concatenate([np.empty((0, 4), np.int64), *(part.firsts for part in matched)])
    numbers = np.empty(len(firsts), np.int64)
    numbers[np.lexsort(firsts.T[::-1])] = np.arange(1, len(firsts) + 1)
    path = context.folder / f"numbers-{context.first_task}"
    path.write_bytes(numbers.data)
    before = np.cumsum([1, *(len(part.firsts) for part in matched)]).tolist()
    records = [
        (block, first)
        for part, first in zip(matched, before, strict=False)
        for block in part.records
    ]
    transfers = [block for part in matched for block in part.transfers]
    store = partial(_store_span, records, path, transfers)
    return store_by_time(context, [block for block, _ in records], MATCHED_ROWS, store)


def _store_span(
    records: Sequence[tuple[Block, int]],
    numbers: Path,
    transfers: Sequence[Block],
    folder: Path,
    number: int,
    *span: int | None,
) -> TaskResult:
    """Store the records that begin within a time span (ns; None: no limit). records: blocks, each
    with the index of its first collective in the file `numbers`.
    """
    of_all = np.fromfile(numbers, np.int64)
    stored = [
        rows.with_columns(collective=pl.Series(of_all[rows["collective"].to_numpy() + first - 2]))
        for rows, first in ((block.read(*span), first) for block, first in records)
    ]
    moved = [block.read(*span) for block in transfers]
    made = [
        make_rows(layout, pl.concat(parts).sort(ORDER, maintain_order=True), begin, fields)
        for layout, begin, fields, parts in (
            (LAYOUT, "begin", FIELDS, stored),
            (TRANSFER, "ready", TRANSFER_FIELDS, moved),
        )
        if any(map(len, parts))
    ]
    return write_result(NAME, number, folder, made)


def settle_order(
    piece: CollectivePiece, even: bool, mixed: bool, path: Path, pivot: int, clock_error: int
) -> tuple[CollectivePiece, int]:
    """Decide whether the kernels of a communicator are ordered by launch or by end time. Return the
    piece in this order, and the number of kernels in no collective.

    End times are used if the members do not have equally many operations (not `even`), or if launch
    order lets a kernel end before another one of its collective begins. If ends do not decide,
    launch order is kept for even members. mixed: some blocks are ordered by recorded numbers. path:
    of new blocks, without endings. pivot: time in the middle of all times (ns). clock_error:
    largest error within one clock group (ns).
    """
    if mixed:
        blocks = []
        for number, block in enumerate(piece.blocks):
            rows = block.read().with_columns(ordinal="before")
            blocks += _write_in_order(path.with_suffix(f".order{number}"), block.group, rows)
        piece = replace(piece, blocks=tuple(blocks))
    apart = pl.col("comparable") & (pl.col("gap") > 0)
    parts = (part.read() for (part,) in divide_kernels([piece], MATCHED_ROWS))
    if even and not any(_group_kernels(part).select(apart.any()).item() for part in parts):
        return piece, 0
    # Not before it is needed: most communicators are in order.
    from nsys2prv.match.sequences import Member, number_group

    owned = []
    for block in piece.blocks:
        counts = block.read().group_by("member").agg(pl.len(), pl.col("clock_group").first())
        for member, count, clock in counts.sort("member").iter_rows():
            load = partial(_load_calls, block, member, pivot)
            owned.append((Member(member, count, load, clock=clock), block))
    owned.sort(key=lambda item: item[0].member)
    members = [member for member, _ in owned]
    fits, findings = number_group(members, NoiseKind.NCCL, 0, UTC_ERROR, clock_error)
    if even and any(finding.kind in UNCLEAR_KINDS for finding in findings):
        return replace(piece, settled=True), 0
    blocks = []
    for number, block in enumerate(piece.blocks):
        rows = block.read()
        ordinals = np.full(len(rows), -1)
        for at, fit in fits.items():
            if owned[at][1] is block:
                ordinals[_find_member(rows, owned[at][0].member)] = fit
        rows = rows.with_columns(ordinal=pl.Series(ordinals)).filter(pl.col("ordinal") >= 0)
        blocks += _write_in_order(path.with_suffix(f".ends{number}"), block.group, rows)
    kept = sum(block.rows for block in blocks)
    return replace(piece, blocks=tuple(blocks), rule=BY_ENDS, settled=True), piece.rows - kept


def _write_in_order(path: Path, group: int, rows: pl.DataFrame) -> tuple[Block, ...]:
    """Write the rows of one group as a block sorted by ordinal."""
    return write_blocks(path, np.full(len(rows), group), rows.sort("ordinal", maintain_order=True))


def _load_calls(block: Block, member: int, pivot: int) -> pl.DataFrame:
    """Return start, end, signature and role of a member's calls in a block, sorted by start."""
    rows = block.read()
    calls = rows[_find_member(rows, member)]
    signature = hash_signatures(*(calls[name].to_numpy() for name in EQUAL_COLUMNS))
    begin, end = (pl.col(name) - pivot for name in ("time_begin", "time_end"))
    return calls.select(begin=begin, end=end, signature=pl.Series(signature), role=find_role())


def _find_member(rows: pl.DataFrame, member: int) -> np.ndarray:
    """Return the indices of a member's kernels among the rows of a block, sorted by start."""
    own = rows.with_row_index("row").filter(pl.col("member") == member)
    return own.sort("time_begin", "before")["row"].to_numpy()
