"""Match MPI collectives by their order in each process, and find who waits for whom.

Who waits in a rooted collective depends on its size and on the library: a broadcast of much data
may hold its root until all arrive, and a reduction its leaves. This is learned from calls with a
clearly late member: a member that left before did not wait. The same applies to scans, one-sided
epochs, and nonblocking collectives, whose completion times show whether they progress while the
other processes are outside MPI.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from nsys2prv.clock import UTC_ERROR, NoiseKind
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.mpi import (
    ALL,
    FROM_LOWER,
    FROM_ROOT,
    MPI_LAYOUTS,
    TO_ROOT,
    list_meeting_values,
)
from nsys2prv.match import BY_CALLS, BY_EPOCHS, BY_SET_UP
from nsys2prv.match.mpi_protocols import (
    BETWEEN_HOSTS,
    FEWEST,
    LEAST_LATE,
    ON_HOST,
    QUICK,
    TIMES_USUAL,
)
from nsys2prv.match.sequences import number_by_order
from nsys2prv.table.event_reader import EventReader

#: Whom a member waits for.
ROOT, OTHERS = 1, 2
#: Share of calls that a member left early, among calls without early members, that excludes waiting: clocks
#: may be wrong once.
SOME_EARLY = 0.1
#: Without evidence, rooted collectives from this size let all wait for all, as in every library tested (Open
#: MPI, UCX and MPICH, from 400 kB).
ALL_WAIT = 1 << 18
#: Pairs of calls that are compared, each with some 30 numbers: all are in memory at once.
MOST_PAIRS = 1 << 21
#: MPI calls by name: calls that end when others are complete, and calls without a communicator in which every
#: process waits for all others.
_INIT = re.compile(r"MPI_Init(_thread)?$")
_WAITS = re.compile(r"MPI_Wait(all|any|some)?$")
_SET_UP = re.compile(
    r"MPI_(Init(_thread)?|Finalize|Comm_(split(_type)?|dup|create|free)|Win_(create|allocate\w*|fence|free)"
    r"|File_(open|close|set_\w+|sync|(read|write)(_at)?_all|(read|write)_ordered))$"
)
_EPOCHS = re.compile(r"MPI_Win_(post|start|complete|wait)$")
#: Of these, calls that may wait, and the kind of calls they wait for, by number.
_WAIT_FOR = {"start": "post", "complete": "post", "wait": "complete"}


def find_last(over: str) -> pl.Expr:
    """Return an expression: when the last of the members for which each member waits arrives. over:
    column that identifies collectives.
    """
    last = (
        pl.when(pl.col("awaits") & bit != 0).then(
            pl.when("inside").then(pl.col("since").filter(of).max().over(over))
            .otherwise(pl.col("begin").filter(of).max().over(over))
        )
        for bit, of in ((ROOT, pl.col("is_root")), (OTHERS, ~pl.col("is_root")))
    )  # fmt: skip
    return pl.max_horizontal("since", *last)


def match_mpi_calls(reader: EventReader) -> pl.DataFrame:
    """Find the MPI calls of different ranks that form a collective. Return these calls with the
    number of their collective.

    The n-th calls of the processes of a communicator belong together, counted from the first call
    that all have recorded, if none ends before another begins. Otherwise, calls that end together
    belong together.
    """
    blocking, at_once = list_meeting_values()
    found = reader.read_begins("mpi_collective", ("call", "communicator", "root", "sent"))
    found = found.filter(pl.col("call").is_in([*blocking, *at_once]))
    # Calls without a recorded communicator that match in order count as one communicator.
    if not (found["communicator"] < 0).all():
        found = found.filter(pl.col("communicator") >= 0)
    rank, task = (reader.rows.find(name, found["thread"]) for name in ("process_rank", "process"))
    found = found.with_columns(
        task=task,
        rank=rank,
        waits=pl.col("call").replace_strict(blocking | at_once, return_dtype=pl.Int64),
        is_root=(pl.col("root") == rank) & (rank >= 0),
        later=pl.col("call").is_in(list(at_once)),
    )
    found = found.unique(("thread", "begin"), keep="first", maintain_order=True)
    began = reader.rows.find("process", reader.read_named_calls(MPI_LAYOUTS, _INIT)["thread"])
    found = found.with_columns(
        reader.rows.find("clocks", found["thread"]).alias("clock"),
        noise_kind=pl.lit(int(NoiseKind.MPI)),
        group="communicator",
        member="task",
        signature="call",
        # The ends of calls that return at once contain no information.
        role=pl.when("later").then(FROM_LOWER).otherwise("waits"),
        began=pl.col("task").is_in(began.implode()),
        tasks=pl.col("task").n_unique().over("communicator"),
    )
    error = BETWEEN_HOSTS if reader.rows.threads["node"].n_unique() > 1 else ON_HOST
    found, _ = number_by_order(found, UTC_ERROR, error)
    found = found.sort("begin", maintain_order=True)
    together = ("communicator", "ordinal")
    has_root = pl.col("waits").is_in([ALL, FROM_LOWER]) | (
        pl.col("is_root").sum().over(together) == 1
    )
    is_whole = (pl.len() == pl.col("tasks").first()) & (pl.col("call").n_unique() == 1)
    found = found.filter(is_whole.over(together) & has_root)
    leaf = ~pl.col("is_root")
    found = found.with_columns(
        rule=pl.lit(BY_CALLS),
        collective=pl.struct(*together).rank("dense"),
        awaits=pl.when(pl.col("waits") == ALL).then(ROOT | OTHERS)
        .when((pl.col("waits") == FROM_ROOT) & leaf).then(ROOT)
        .when((pl.col("waits") == TO_ROOT) & ~leaf).then(OTHERS)
        .otherwise(0),
        bytes="sent",
        # A class of sizes that differ little.
        size=(pl.col("sent").max().over(together).clip(1).log(2) * 4).round(),
    )  # fmt: skip
    found = _learn_roots(reader, _find_ends(reader, found))
    is_scan = pl.col("waits") == FROM_LOWER
    scans = _list_pairs(found.filter(is_scan), found.filter(is_scan), "collective")
    scans = _learn_pairs(reader, scans.with_columns(usual=pl.col("rank_there") < pl.col("rank")))
    scans = scans.with_columns(
        pl.col("collective") + (found["collective"].max() or 0), rule=pl.lit(BY_CALLS)
    )
    return pl.concat([found.filter(~is_scan), scans], how="diagonal_relaxed")


def _find_ends(reader: EventReader, found: pl.DataFrame) -> pl.DataFrame:
    """Return members with `since`, `until` and `inside`, the span in which they may wait.

    Nonblocking calls get these from the first wait that ends after all have arrived. Without one,
    they continue without waiting. Depending on the algorithm, some members need only the others'
    calls, and some need the others to be inside MPI.
    """
    found = found.with_columns(since="begin", until="end", inside=pl.lit(False))
    if not found["later"].any():
        return found
    waits = reader.read_named_calls(MPI_LAYOUTS, _WAITS).select(
        "thread", since="begin", until="end"
    )
    come = pl.max_horizontal("begin", pl.col("begin").max().over("collective"))
    waited = found.drop("since", "until").with_columns(come=come).sort("come").join_asof(
        waits.sort("until"), left_on="come", right_on="until", by="thread", strategy="forward",
        coalesce=False, check_sortedness=False,
    )  # fmt: skip
    is_waited = pl.col("later") & pl.col("until").is_not_null()
    waited = waited.with_columns(
        since=pl.when(is_waited).then(pl.max_horizontal("begin", "since")).otherwise("begin"),
        until=pl.when(is_waited).then("until").otherwise("end"),
        awaits=pl.when(is_waited | ~pl.col("later")).then("awaits").otherwise(0),
    )
    # Whether the others' data arrived while this one was outside MPI.
    waited = waited.with_columns(entered=pl.col("since").max().over("collective"))
    entered = pl.col("entered")
    late, error = _find_lateness(entered), _find_error(reader, waited)
    waited = waited.with_columns(late=late, error=error)
    is_late = pl.col("later") & (entered - pl.col("since") > pl.col("late"))
    early = is_late & (pl.col("until") < entered - pl.col("error"))
    needs = _outnumbers(is_late & ~early, early)
    return waited.with_columns(
        inside=pl.col("later") & needs.over("call", "communicator", "thread")
    ).drop("late", "error", "come", "entered")


def _find_error(reader: EventReader, found: pl.DataFrame) -> pl.Series:
    """Return the largest error of a member's times relative to the other members (ns)."""
    node = reader.rows.threads["node"].rank("dense")[found["thread"].to_numpy()]
    apart = found.select("communicator", node=node).select(
        pl.col("node").n_unique().over("communicator") > 1
    )
    return pl.Series(np.where(apart.to_series(), BETWEEN_HOSTS, ON_HOST))


def _find_lateness(last: pl.Expr) -> pl.Expr:
    """Return the delay (ns) from which a member is clearly late, for calls of equal sizes. last:
    arrival time of the last member.
    """
    until = pl.col("until")
    quick = pl.min_horizontal(until - pl.col("since"), (until - last).abs())
    usual = quick.quantile(QUICK, "lower").over("call", "communicator", "size")
    return (TIMES_USUAL * usual).clip(LEAST_LATE)


def _outnumbers(waits: pl.Expr, early: pl.Expr) -> pl.Expr:
    """Return whether members wait for others: more members waited while the others were late than
    left early.
    """
    return (waits.sum() >= FEWEST) & (early.sum() <= SOME_EARLY * waits.sum())


def _learn_roots(reader: EventReader, found: pl.DataFrame) -> pl.DataFrame:
    """Return the members of rooted collectives, with the additional members for which they wait,
    learned from calls with late members.
    """
    if (found["waits"] == ALL).all():
        return found
    begin, until = pl.col("begin"), pl.col("until")
    of = {ROOT: pl.col("is_root"), OTHERS: ~pl.col("is_root")}
    come = {bit: begin.filter(who).max().over("collective") for bit, who in of.items()}
    found = found.with_columns(
        come_root=come[ROOT],
        come_others=come[OTHERS],
        late=_find_lateness(begin.max().over("collective")),
        error=_find_error(reader, found),
    )
    alike = ("call", "communicator", "size", "is_root")
    more = pl.lit(0)
    for bit, last, other in (
        (ROOT, "come_root", "come_others"),
        (OTHERS, "come_others", "come_root"),
    ):
        last, other = pl.col(last), pl.col(other)
        is_late = last - pl.col("since") > pl.col("late")
        early = is_late & (until < last - pl.col("error"))
        # Who waits for somebody that comes later still says nothing.
        waits = is_late & ~early & (last - other > pl.col("late"))
        learnt, told = _outnumbers(waits, early), (waits | early).sum()
        # Within a tree some ranks pass on the data of others, and wait for it.
        does_wait = (
            pl.when((told >= FEWEST).over(*alike, "thread")).then(learnt.over(*alike, "thread"))
            .when((told >= FEWEST).over(alike)).then(learnt.over(alike))
            .otherwise(pl.col("size") >= 4 * np.log2(ALL_WAIT))
        )  # fmt: skip
        more = more | pl.when(does_wait).then(bit).otherwise(0)
    is_rooted = pl.col("waits").is_in([FROM_ROOT, TO_ROOT])
    return found.with_columns(
        awaits=pl.when(is_rooted).then(pl.col("awaits") | more).otherwise("awaits")
    ).drop("come_root", "come_others", "late", "error")


def match_epochs(reader: EventReader) -> pl.DataFrame:
    """Find the calls of one-sided MPI communication (epochs) that wait for the n-th calls of other
    processes. Reports do not record which processes share an epoch, so processes that were seen to
    wait are paired.
    """
    calls = reader.read_named_calls(MPI_LAYOUTS, _EPOCHS).sort("begin", maintain_order=True)
    calls = calls.with_columns(
        number=pl.int_range(pl.len()).over("call", "thread"), since="begin", until="end"
    )
    values = load_catalogue().name_sets["mpi_one_sided"].list_known_values()
    parts = []
    for waiting, awaited in _WAIT_FOR.items():
        own, others = (
            calls.filter(pl.col("call") == values[f"MPI_Win_{name}"]) for name in (waiting, awaited)
        )
        parts.append(_list_pairs(own, others, "number"))
    pairs = pl.concat(parts).with_columns(usual=pl.lit(False))
    return _learn_pairs(reader, pairs).with_columns(rule=pl.lit(BY_EPOCHS))


def _list_pairs(own: pl.DataFrame, others: pl.DataFrame, on: str) -> pl.DataFrame:
    """Pair calls with each call of another thread that has the same number (`on`). Columns of the
    other call end in `_there`. Return no pairs if there are too many.
    """
    counts = own.join(others.group_by(on).len(), on=on)
    if counts["len"].sum() > MOST_PAIRS:
        own = own.clear()
    pairs = own.join(others, on=on, suffix="_there", maintain_order="left")
    return pairs.filter(pl.col("thread") != pl.col("thread_there"))


def _learn_pairs(reader: EventReader, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the members of meetings: waiting calls, and the calls for which they wait.

    This is learned from calls in which the others were late. pairs: from :func:`_list_pairs`, with
    the default (`usual`) for when no call decides.
    """
    since, until, come = map(pl.col, ("since", "until", "begin_there"))
    node = reader.rows.threads["node"].rank("dense").to_numpy()
    sides = (node[pairs[name].to_numpy()] for name in ("thread", "thread_there"))
    call, pair = ("call", "thread", "begin"), ("call", "thread", "thread_there")
    quick = pl.min_horizontal(until - since, (until - come).abs().min().over(call))
    pairs = pairs.with_columns(
        late=(TIMES_USUAL * quick.quantile(QUICK, "lower").over("call")).clip(LEAST_LATE),
        error=np.where(np.equal(*sides), ON_HOST, BETWEEN_HOSTS),
    )
    is_late = come - since > pl.col("late")
    early = is_late & (until < come - pl.col("error"))
    last = pl.when(come <= until + pl.col("error")).then(come).max().over(call)
    # Who waits for somebody that comes later still says nothing.
    waits = is_late & ~early & (last - come <= pl.col("late"))
    told = (waits | early).sum().over(pair) >= FEWEST
    does_wait = pl.when(told).then(_outnumbers(waits, early).over(pair)).otherwise("usual")
    pairs = pairs.filter(does_wait).with_columns(collective=pl.struct(call).rank("dense"))
    columns = ("thread", "begin", "end", "since", "until", "call", *(
        name for name in ("bytes", "communicator", "later") if name in pairs.columns
    ))  # fmt: skip
    waiting = pairs.select("collective", *columns, is_root=True, awaits=OTHERS).unique(
        "collective", maintain_order=True
    )
    there = {name: f"{name}_there" for name in columns}
    awaited = pairs.select("collective", **there, is_root=False, awaits=0)
    return pl.concat([waiting, awaited], how="vertical_relaxed").with_columns(inside=pl.lit(False))


def match_set_up(reader: EventReader) -> pl.DataFrame:
    """Match MPI calls without a communicator, such as MPI_Init: the n-th calls with one name on all
    processes belong together. Return them with the number of their `collective`.
    """
    found = reader.read_named_calls(MPI_LAYOUTS, _SET_UP).sort("begin", maintain_order=True)
    found = found.with_columns(reader.rows.find("process", found["thread"]).alias("task"))
    found = found.with_columns(number=pl.int_range(pl.len()).over("layout", "call", "task"))
    name = ("layout", "call")
    whole = pl.len().over(*name, "number") == pl.col("task").n_unique().over(name)
    return found.filter(whole.all().over(name)).with_columns(
        rule=pl.lit(BY_SET_UP),
        collective=pl.struct(*name, "number").rank("dense"),
    )
