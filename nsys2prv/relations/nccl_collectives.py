"""NCCL collectives on all their ranks: who came late, who waited, and how fast the transfer was.

How the kernels of one collective are found, the first way that the reports allow:

1. by the communicator's hash and the sequence number of the advanced NCCL trace, counted per function;
2. by the communicator's hash (in payloads since NCCL 2.25.1) and the order in which a rank launched its operations; where that
   contradicts itself (captures that begin or end at different calls, missing rows), by when they ended;
3. where no payload tells a communicator: by the names and ends of kernels (nccl_adoption.py).

A collective is numbered only if it is complete: a kernel of each rank, of the same operations and
size. Times in ns. Bandwidths in B/s are those of the transfer, which begins with the last rank's
kernel, and stand in records that last as long as it; bus bandwidth as nccl-tests defines it.

The work is divided: the kernels of a few reports are brought into order (nccl_kernels.py), then
parts of communicators are matched (nccl_matching.py), whose collectives are numbered through at the
end. What the communicators tell of ranks without a report is a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

import polars as pl

from nsys2prv._util.errors import ClockNote, Detail
from nsys2prv._util.text import format_count, list_some
from nsys2prv.events.nccl import COMMUNICATORS, KERNELS
from nsys2prv.relations import RelationContext
from nsys2prv.relations.blocks import Block, divide_ordinals, group_blocks
from nsys2prv.relations.nccl_kernels import (
    BY_LAUNCH,
    BY_NUMBER,
    MATCHING_METHODS,
    CollectivePiece,
    OrderedKernels,
    divide_kernels,
    order_by_launch,
    order_kernels,
)
from nsys2prv.relations.nccl_matching import (
    MatchedCollectives,
    match_kernels,
    number_by_ends,
    number_collectives,
    store_records,
)
from nsys2prv.store.runs import TRACE
from nsys2prv.store.work_result import FactBook, WorkResult, read_fact

#: Kernels that one step compares with each other: some 60 MB.
STEP_ROWS = 100_000
#: Ranks that are named.
MOST_NAMED = 8


def relate_collectives(context: RelationContext) -> list[WorkResult]:
    """Return who came late to each collective, who waited, and its transfer, stored by time."""
    surveys = context.run_each("kernels", order_kernels, *context.batch_facts(KERNELS))
    if len(frozenset().union(*(survey.members for survey in surveys))) < 2:
        return []
    matched, notes = _match_by_communicator(context, surveys)
    results = _store_records(context, [part for part in matched if part.records])
    results[0].notes = [
        *notes,
        *_describe_lone(
            sum(survey.graphs for survey in surveys),
            "launched by CUDA graphs, without a call that names their communicator",
        ),
        *_describe_lone(
            sum(survey.lone for survey in surveys), "without a call that names their communicator"
        ),
        *_describe_lone(
            sum(survey.doubtful for survey in surveys),
            "that end together with others, perhaps of several communicators in step",
        ),
        *_describe_unplaced(matched),
    ]
    return results


def _store_records(
    context: RelationContext, matched: Sequence[MatchedCollectives]
) -> list[WorkResult]:
    """Return the records, of all collectives numbered through, stored by time as if one step had
    found them.
    """
    if not matched:
        return [WorkResult(context.first_task, TRACE, 0)]
    context.run_steps([partial(number_collectives, [part.firsts for part in matched])])
    parts = [
        (block, part.firsts.with_suffix(".numbers")) for part in matched for block in part.records
    ]
    transfers = [block for part in matched for block in part.transfers]
    windows = divide_ordinals([block for block, _ in parts], STEP_ROWS)
    return context.run_steps(
        [
            partial(store_records, number, parts, transfers, *window, context.folder)
            for number, window in enumerate(windows, context.first_task)
        ]
    )


def _match_by_communicator(
    context: RelationContext, surveys: Sequence[OrderedKernels]
) -> tuple[list[MatchedCollectives], list[str]]:
    """Group kernels by the communicator, and the sequence number where all of its kernels have one,
    else by order or by when they ended.
    """
    communicators = _summarize_communicators(surveys)
    blocks = _group_blocks(
        context, surveys, frozenset(communicators.filter("numbered")["communicator"])
    )
    sizes = communicators.select("communicator", "numbered", "size")
    pieces = {
        group: CollectivePiece(
            group, blocks[group], BY_NUMBER if numbered else BY_LAUNCH, size, numbered
        )
        for group, numbered, size in sizes.iter_rows()
    }
    doubtful = set(communicators.filter(~pl.col("numbered") & ~pl.col("even"))["communicator"])
    certain = [piece for group, piece in pieces.items() if group not in doubtful]
    first = context.run_each("matched", match_kernels, divide_kernels(certain, STEP_ROWS))
    wrong = frozenset().union(*(part.unsteady for part in first))
    # What a step found stands or falls together: other communicators that shared one are matched
    # once more.
    matched = [part for part in first if wrong.isdisjoint(piece.group for piece in part.pieces)]
    again = (
        {piece.group for part in first for piece in part.pieces}
        - {piece.group for part in matched for piece in part.pieces}
        - wrong
    )
    by_ends = communicators.filter(pl.col("communicator").is_in(sorted(doubtful | wrong)))
    settled, lone = _number_by_ends(context, pieces, by_ends)
    rest = [*(pieces[group] for group in sorted(again)), *settled]
    matched += context.run_each("matched-again", match_kernels, divide_kernels(rest, STEP_ROWS))
    return matched, [
        *_describe_methods(matched),
        *_describe_lone(lone, "of no collective of the other ranks"),
    ]


def _summarize_communicators(surveys: Sequence[OrderedKernels]) -> pl.DataFrame:
    """Return a row for each communicator: whether all of its kernels have sequence numbers, ranks
    of a collective, whether all members have equally many operations, first and last time (ns).
    """
    members = pl.concat([survey.members_seen for survey in surveys])
    return (
        members.group_by("communicator")
        .agg(
            numbered=pl.col("numbered").all(),
            size=pl.max_horizontal(pl.col("ranks").max(), pl.len().cast(pl.Int64)),
            even=pl.col("operations").min() == pl.col("operations").max(),
            first=pl.col("first").min(),
            last=pl.col("last").max(),
        )
        .sort("communicator")
    )


def _group_blocks(
    context: RelationContext, surveys: Sequence[OrderedKernels], numbered: frozenset[int]
) -> dict[int, tuple[Block, ...]]:
    """Return the blocks of each communicator, by order of launches unless it is `numbered`."""
    kept, others = [], []
    for part in surveys:
        for block in part.blocks:
            other = block.group in part.by_number and block.group not in numbered
            (others if other else kept).append(block)
    reordered = context.run_each("launches", order_by_launch, others)
    return {blocks[0].group: blocks for blocks in group_blocks([*kept, *reordered])}


def _number_by_ends(
    context: RelationContext, pieces: dict[int, CollectivePiece], communicators: pl.DataFrame
) -> tuple[list[CollectivePiece], int]:
    """Return the pieces of these communicators, numbered by when they ended; and how many kernels
    are of no collective.
    """
    if not communicators.height:
        return [], 0
    pivot = (communicators["first"].min() + communicators["last"].max()) // 2
    chosen = [pieces[communicator] for communicator in communicators["communicator"]]
    more = pivot, context.clock_error
    results = context.run_each("ends", number_by_ends, chosen, communicators["even"], more=more)
    return [piece for piece, _ in results if piece.blocks], sum(lone for _, lone in results)


def _describe_methods(matched: Sequence[MatchedCollectives]) -> list[str]:
    """Describe how many collectives were found by each method, and how many were not."""
    matched_by_way: Counter[int] = sum((part.matched_by_way for part in matched), Counter())
    whole: Counter[int] = sum((part.whole for part in matched), Counter())
    notes: list[str] = [
        Detail(f"NCCL collectives matched across ranks by communicator and {name}: {whole[way]:,}")
        for way, name in enumerate(MATCHING_METHODS)
        if matched_by_way[way]
    ]
    if left := matched_by_way.total() - whole.total():
        notes.append(
            f"NCCL: {format_count(left, 'collective')} incomplete or different between ranks: not compared across ranks"
        )
    return notes


def _describe_lone(count: int, why: str) -> list[str]:
    return (
        [f"NCCL: {format_count(count, 'kernel')} {why}: not compared across ranks"] if count else []
    )


def _describe_unplaced(matched: Sequence[MatchedCollectives]) -> list[str]:
    """Describe collectives on hosts that could not be placed; warn where a rank is done before
    another begins, which clocks that agree would not show.
    """
    notes: list[str] = []
    if unplaced := sum(part.unplaced for part in matched):
        notes.append(
            ClockNote(
                f"NCCL: {format_count(unplaced, 'collective')} on hosts whose clocks could not be aligned: the trace has no late "
                "arrivals, waits, transfers and bandwidths for them"
            )
        )
    if apart := sum(part.apart for part in matched):
        far = f"{max(part.gap for part in matched) / 1000:,.1f} us"
        notes.append(
            ClockNote(
                f"NCCL: in {format_count(apart, 'collective')} a rank ends before the last one begins, by up to {far}: the clocks of the "
                "reports do not agree, and late arrivals and waits are wrong by as much"
            )
        )
    return notes


def warn_of_absent_members(book: FactBook, silent: int) -> list[str]:
    """Return a warning where the largest communicator that lacks ranks says that there are more
    ranks than reports of them. silent: number of processes whose communicators are not told.
    """
    files = book.list_files([COMMUNICATORS])[COMMUNICATORS]
    return _describe_missing_ranks(read_fact(files, book.tasks), silent) if files else []


def _describe_missing_ranks(communicators: pl.DataFrame, silent: int = 0) -> list[str]:
    """Return what :func:`warn_of_absent_members` does. communicators: a row for each time that a
    process told of one: communicator, task, ranks (their number), rank.
    """
    named = communicators.filter((pl.col("communicator") != 0) & (pl.col("task") >= 0))
    # A process may have several GPUs, each with a rank of its own; one whose report begins later
    # than the communicator tells none.
    has_rank = pl.col("rank") >= 0
    groups = named.group_by("communicator").agg(
        size=pl.col("ranks").max(),
        sizes=pl.col("ranks").filter(pl.col("ranks") > 1).n_unique(),
        told=pl.struct("task", "rank").filter(has_rank).n_unique()
        + pl.col("task").n_unique()
        - pl.col("task").filter(has_rank).n_unique(),
        present=pl.col("rank").filter(has_rank).unique(),
    )
    lacking = groups.filter(
        (pl.col("told") + silent < pl.col("size")) & (pl.col("sizes") == 1)
    ).sort("size", "communicator", descending=True)
    if not lacking.height:
        return []
    row = lacking.row(0, named=True)
    missing = (
        sorted(set(range(row["size"])) - set(row["present"]))
        if len(row["present"]) == row["told"] and not silent
        else []
    )
    named = list_some([*map(str, missing)], MOST_NAMED)
    which = (
        f"; there is none of its rank{'s' if len(missing) > 1 else ''} {named}" if missing else ""
    )
    return [
        f"an NCCL communicator has {row['size']} ranks, and there are reports of {row['told']} of them{which}"
    ]
