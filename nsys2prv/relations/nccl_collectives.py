"""NCCL collectives on all their ranks: who came late, who waited, and how fast the transfer was.

How the kernels of one collective are found, the first way that the reports allow:

1. by the communicator's hash and the sequence number of the advanced NCCL trace, counted per function;
2. by the communicator's hash (in payloads since NCCL 2.25.1) and the order in which a rank launched its operations; where that
   contradicts itself (captures that begin or end at different calls, missing rows), by when they ended;
3. where no payload tells a communicator: by the names and ends of kernels (nccl_adoption.py).

A collective is numbered only if it is complete: a kernel of each rank, of the same operations and
size. Times in ns. Bandwidths in B/s are those of the transfer, which begins with the last rank's
kernel, and stand in records that last as long as it; bus bandwidth as nccl-tests defines it.

The work is divided: the kernels of a few reports are brought into order, in blocks on disk by
communicator, so that a part of a communicator's collectives is a slice of each of its blocks. Then
such parts are matched (nccl_matching.py), and their collectives numbered through. The same kernels
are observations of the hosts' clocks. What the communicators tell of ranks without a report is a
warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import polars as pl
from msgspec import Struct

from nsys2prv._util.errors import ClockNote, Detail
from nsys2prv._util.text import format_count, list_some
from nsys2prv.clock import NoiseKind
from nsys2prv.events.call_indexes import ROOT_WAITS, SEND_RECEIVE, SEVERAL_OPERATIONS, WAIT_FOR_ROOT
from nsys2prv.events.nccl import COMMUNICATORS, KERNELS
from nsys2prv.relations import DEVICES, Observed, RelationContext
from nsys2prv.relations.blocks import (
    Block,
    MemberBlock,
    divide_calls,
    group_blocks,
    hash_signatures,
    sort_calls,
    split_column_names,
    write_blocks,
)
from nsys2prv.relations.nccl_adoption import IN_STEP
from nsys2prv.relations.nccl_matching import (
    BY_LAUNCH,
    BY_NUMBER,
    EQUAL_COLUMNS,
    KERNEL_COLUMNS,
    MATCHING_METHODS,
    STEP_ROWS,
    CollectivePiece,
    MatchedCollectives,
    divide_kernels,
    keep_sound_kernels,
    list_operation_roles,
    match_kernels,
    settle_order,
    store_collectives,
)
from nsys2prv.store.work_result import FactBook, FactFile, WorkResult, read_fact

#: Ranks that are named.
MOST_NAMED = 8
#: Columns of the facts that are read.
FACT_COLUMNS = split_column_names(
    "process device stream object_kernel time_begin time_end time_call in_graph by_name communicator"
    " operation first_operation fused messages sequence ranks bytes known reduce_bytes share_bytes"
    " message_bytes"
)
#: Columns of the facts that observations of clocks need.
OBSERVED_COLUMNS = split_column_names(
    "process device time_begin time_end communicator operation first_operation fused messages"
    " sequence root rank bytes"
)
#: Why kernels are compared with none of other ranks, as notes say it, in their order.
REASONS = NO_COLLECTIVE, IN_GRAPH, NO_COMMUNICATOR, DOUBTFUL = (
    "of no collective of the other ranks",
    "launched by CUDA graphs, without a call that names their communicator",
    "without a call that names their communicator",
    "that end together with others, perhaps of several communicators in step",
)


class OrderedKernels(Struct, frozen=True):
    """Kernels of a step, in order."""

    #: Rows of KERNEL_COLUMNS, by communicator.
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
    """Bring the kernels of some reports into order: those of collectives with known communicators
    by the recorded numbers of these, if all have one, else by launches.
    """
    kernels = keep_sound_kernels(read_fact(files, tasks, FACT_COLUMNS))
    in_step, free = pl.col("ranks") == IN_STEP, pl.col("in_graph") == 0
    doubtful = kernels.filter(in_step & (pl.col("by_name") != SEND_RECEIVE)).height
    kernels = kernels.filter(~in_step)
    left = {
        IN_GRAPH: kernels.filter(~free).height,
        NO_COMMUNICATOR: kernels.filter(free & (pl.col("communicator") == 0)).height,
        DOUBTFUL: doubtful,
    }
    of_all = frozenset(kernels.select("task", "device").unique().iter_rows())
    owner = ("task", "device", "communicator")
    operations = pl.col("fused") - pl.col("messages")
    kernels = (
        kernels.filter((pl.col("communicator") != 0) & (operations > 0))
        .sort(*owner, "time_call", "time_begin", maintain_order=True)
        .with_columns(before=operations.cum_sum().over(owner) - operations)
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
    # Those of equal ordinals keep their order.
    kernels = kernels.sort("communicator", "ordinal", maintain_order=True)
    rows = kernels.select(pl.col(KERNEL_COLUMNS).cast(pl.Int64)).to_numpy()
    blocks = write_blocks(path, kernels["communicator"].to_numpy(), rows)
    return OrderedKernels(blocks, of_all, members.drop("task", "device"), Counter(left))


def relate_collectives(context: RelationContext) -> list[WorkResult]:
    """Return who came late to each collective, who waited, and its transfer, stored by time."""
    surveys = context.run_each("kernels", order_kernels, *context.batch_facts(KERNELS))
    if len(frozenset().union(*(survey.members for survey in surveys))) < 2:
        return []
    matched, lone = _match_by_communicator(context, surveys)
    results = store_collectives(context, matched)
    left = sum((survey.left for survey in surveys), Counter({NO_COLLECTIVE: lone}))
    results[0].notes = [
        *(_describe_collectives(pl.concat(part.summary for part in matched)) if matched else ()),
        *(
            f"NCCL: {format_count(left[why], 'kernel')} {why}: not compared across ranks"
            for why in REASONS
            if left[why]
        ),
    ]
    return results


def _match_by_communicator(
    context: RelationContext, surveys: Sequence[OrderedKernels]
) -> tuple[list[MatchedCollectives], int]:
    """Group kernels by the communicator, and the sequence number where all of its kernels have one,
    else by order or by when they ended. Return also how many are of no collective.
    """
    communicators = _summarize_communicators(surveys)
    by_group = {
        blocks[0].group: blocks
        for blocks in group_blocks(block for part in surveys for block in part.blocks)
    }
    numbered, unnumbered, lone = [], [], 0
    for group, size, is_numbered in communicators.select(
        "communicator", "size", "numbered"
    ).iter_rows():
        way, pieces = (BY_NUMBER, numbered) if is_numbered else (BY_LAUNCH, unnumbered)
        pieces.append(CollectivePiece(group, by_group[group], way, size, is_numbered))
    if unnumbered:
        rest = communicators.filter(~pl.col("numbered"))
        pivot = (rest["first"].min() + rest["last"].max()) // 2
        more = pivot, context.clock_error
        # Of those that only some ranks number the order is that of launches.
        settled = context.run_each(
            "settled", settle_order, unnumbered, rest["even"], rest["some"], more=more
        )
        unnumbered = [piece for piece, _ in settled if piece.blocks]
        lone = sum(left for _, left in settled)
    pieces = divide_kernels([*numbered, *unnumbered], STEP_ROWS)
    return context.run_each("matched", match_kernels, pieces), lone


def _summarize_communicators(surveys: Sequence[OrderedKernels]) -> pl.DataFrame:
    """Return a row for each communicator: whether all of its kernels have sequence numbers, or
    those of some ranks, ranks
    of a collective, whether all members have equally many operations, first and last time (ns).
    """
    members = pl.concat([survey.members_seen for survey in surveys])
    return (
        members.group_by("communicator")
        .agg(
            numbered=pl.col("numbered").all(),
            some=pl.col("numbered").any(),
            size=pl.max_horizontal(pl.col("ranks").max(), pl.len().cast(pl.Int64)),
            even=pl.col("operations").min() == pl.col("operations").max(),
            first=pl.col("first").min(),
            last=pl.col("last").max(),
        )
        .sort("communicator")
    )


def _describe_collectives(found: pl.DataFrame) -> list[str]:
    """Describe how many collectives were found by each method, and how many were not; and those on
    hosts that could not be placed, or in which a rank is done before another begins, which clocks
    that agree would not show. found: summaries of :class:`MatchedCollectives`.
    """
    whole, comparable = found.filter("whole"), pl.col("comparable")
    notes: list[str] = [
        Detail(
            f"NCCL collectives matched across ranks by communicator and {name}: "
            f"{whole.filter(pl.col('way') == way)['count'].sum():,}"
        )
        for way, name in enumerate(MATCHING_METHODS)
        if way in found["way"]
    ]
    if different := found["count"].sum() - whole["count"].sum():
        notes.append(
            f"NCCL: {format_count(different, 'collective')} incomplete or different between ranks: not compared across ranks"
        )
    if unplaced := whole.filter(~comparable)["count"].sum():
        notes.append(
            ClockNote(
                f"NCCL: {format_count(unplaced, 'collective')} on hosts whose clocks could not be aligned: the trace has no late "
                "arrivals, waits, transfers and bandwidths for them"
            )
        )
    apart = whole.filter(comparable & (pl.col("apart") > 0))
    if apart.height:
        count, gap = format_count(apart["apart"].sum(), "collective"), apart["gap"].max() / 1000
        notes.append(
            ClockNote(
                f"NCCL: in {count} a rank ends before the last one begins, by up to {gap:,.1f} us: the clocks of the "
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
    # A process may have several GPUs, each with a rank of its own; where the report begins after
    # the communicator was made, no rank is recorded.
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


def observe_collectives(context: RelationContext) -> Observed:
    """Return the kernels of collectives: by communicator and, where the trace numbers them,
    function.
    """
    batches = context.batch_facts(KERNELS, COMMUNICATORS)
    blocks = context.run_each("nccl-calls", _sort_by_communicator, *batches)
    return Observed(divide_calls(chain.from_iterable(blocks), NoiseKind.NCCL))


def _sort_by_communicator(
    files: tuple[FactFile, ...],
    communicators: tuple[FactFile, ...],
    tasks: Mapping[tuple[int, int], int],
    path: Path,
) -> tuple[MemberBlock, ...]:
    """Sort the kernels of some reports by communicator, member and begin."""
    kernels = keep_sound_kernels(read_fact(files, tasks, OBSERVED_COLUMNS)).filter(
        (pl.col("task") >= 0)
        & (pl.col("communicator") != 0)
        & (pl.col("fused") > pl.col("messages"))
    )
    kernels = _mark_begun(kernels, read_fact(communicators, tasks))
    # Kernels of several operations, some with a root, bind in a way that their sum does not tell.
    rooted = pl.col("first_operation").is_in([*WAIT_FOR_ROOT, *ROOT_WAITS])
    usable = ~rooted | ((pl.col("operation") != SEVERAL_OPERATIONS) & (pl.col("rank") >= 0))
    kernels = kernels.filter(usable)
    calls = kernels.select(
        "communicator",
        "host",
        member=pl.col("task") * DEVICES + pl.col("device"),
        number="sequence",
        function="first_operation",
        role=pl.Series(list_operation_roles(kernels["first_operation"].to_numpy())),
        is_root=(pl.col("root") == pl.col("rank")) & (pl.col("root") >= 0),
        begin="time_begin",
        end="time_end",
        signature=pl.Series(hash_signatures(*(kernels[name].to_numpy() for name in EQUAL_COLUMNS))),
        began="began",
    )
    return sort_calls(calls, path)


def _mark_begun(kernels: pl.DataFrame, communicators: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with `began`: true if the call is known that made the communicator on this
    rank.
    """
    if not communicators.height:
        return kernels.with_columns(began=pl.lit(False))
    made_here = communicators.filter("made").select("task", "communicator").unique()
    return kernels.join(
        made_here.with_columns(began=pl.lit(True)),
        on=["task", "communicator"],
        how="left",
        maintain_order="left",
    ).with_columns(pl.col("began").fill_null(False))
