"""The tables of what ranks did together: members of collectives, and messages, by whatever rule they were
matched. All who ask which calls belong together read these.

The relations matched kernels of NCCL and messages while the job was aligned. Calls of MPI are
matched here, by the order in which the processes make them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.budget import MOST_COMPARED
from nsys2prv._util.columns import ABSENT, number_linked
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.mpi import ALL, FROM_ROOT, MPI_LAYOUTS, TO_ROOT, list_meeting_values
from nsys2prv.match import BY_CALLS, BY_SET_UP, MPI_RULES
from nsys2prv.table.event_reader import EventReader

#: Columns of collectives, a row for each member: its number (from 1), the `rule`, a value of the value
#: set `matching_rule`; row of the trace, begin and end (ns), the operation of NCCL or the call of MPI,
#: bytes sent, communicator; by how much it came `late`, its `wait` for the last one and the `transfer`
#: after that (ns; ABSENT where clocks cannot tell).
_NUMBERS = (
    *("collective", "rule", "thread", "begin", "end", "call", "bytes", "communicator"),
    *("late", "wait", "transfer"),
)
#: Whether it goes on without waiting for others (`eager`), others wait for it (`holds`), and it returns
#: before it is complete (`later`): `until` is then the end of the wait that completes it, else its own.
_FLAGS = ("eager", "holds", "later")
COLLECTIVES = {
    **dict.fromkeys((*_NUMBERS, "until"), pl.Int64),
    **dict.fromkeys(_FLAGS, pl.Boolean),
}
#: Kinds of lines that are messages of ranks to each other.
MESSAGES = ("nccl_message", "mpi_message")
#: Messages below this (bytes) are sent before they are received: their sender does not wait.
EAGER = 8192
#: Calls of MPI by their names: sends that return at once, calls that end when these are complete, and
#: calls without a communicator in which every process waits for all others.
_NAMES = {
    "start": re.compile(r"MPI_(I(|b|r|s)send|Start(all)?)$"),
    "wait": re.compile(r"MPI_Wait(all|any|some)?$"),
    "set_up": re.compile(
        r"MPI_(Init(_thread)?|Finalize|Comm_(split(_type)?|dup|create|free)|Win_(create|allocate\w*|fence|free)"
        r"|File_(open|close|set_\w+|sync|(read|write)(_at)?_all|(read|write)_ordered))$"
    ),
}


class Rule(Struct, frozen=True):
    """A rule by which calls of several ranks are found to belong together."""

    #: Layouts of which one must be there.
    layouts: tuple[str, ...]
    #: Returns the members: columns of COLLECTIVES; those that are lacking say that all wait for all.
    find: Callable[[EventReader], pl.DataFrame]


def list_collectives(reader: EventReader) -> pl.DataFrame:
    """Return the members of all collectives of a job: COLLECTIVES, numbered through."""
    return reader.remember("collectives", lambda: _match_collectives(reader))


def list_compared_kernels(reader: EventReader) -> pl.DataFrame:
    """Return the members of collectives of NCCL on hosts whose clocks tell who came late."""
    table = list_collectives(reader)
    return table.filter((pl.col("late") >= 0) & ~pl.col("rule").is_in(MPI_RULES))


def _match_collectives(reader: EventReader) -> pl.DataFrame:
    table, before = pl.DataFrame(schema=COLLECTIVES), 0
    for rule in RULES:
        if reader.layouts.isdisjoint(rule.layouts):
            continue
        found = _complete(rule.find(reader)).with_columns(pl.col("collective") + before)
        table.extend(found.select(pl.col(name).cast(kind) for name, kind in COLLECTIVES.items()))
        before = max(before, int(found["collective"].max() or 0))
    return table


def _complete(found: pl.DataFrame) -> pl.DataFrame:
    """Return members with all columns."""
    blocking = {"eager": False, "holds": True, "later": False, "until": pl.col("end")}
    numbers = dict.fromkeys(("bytes", "communicator"), ABSENT)
    found = found.with_columns(
        (value if isinstance(value, pl.Expr) else pl.lit(value)).alias(name)
        for name, value in (blocking | numbers).items()
        if name not in found.columns
    )
    if "late" in found.columns:
        return found
    begin, end = pl.col("begin"), pl.col("end")
    last = begin.filter("holds").max().over("collective")
    waited = (pl.min_horizontal(end, last) - begin).clip(0)
    return found.with_columns(
        late=begin - begin.min().over("collective"),
        wait=pl.when("eager").then(0).otherwise(waited),
        transfer=(end - pl.max_horizontal(last, begin)).clip(0),
    )


def _read_nccl(reader: EventReader) -> pl.DataFrame:
    """Return the kernels of NCCL that the relation matched."""
    fields = ("operation", "collective", "late", "wait", "transfer", "rule")
    records = reader.read_begins("nccl_collective", fields).rename({"operation": "call"})
    return _describe_kernels(reader, records)


def _read_kernels(reader: EventReader) -> pl.DataFrame:
    kernels = reader.read_begins("nccl_kernel", ("bytes", "communicator")).drop("end")
    return kernels.unique(("thread", "begin"), keep="first")


def _describe_kernels(reader: EventReader, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return kernels with the bytes and communicators of those of NCCL, ABSENT where unknown."""
    known = reader.remember("nccl_kernels", lambda: _read_kernels(reader))
    kernels = kernels.join(known, on=("thread", "begin"), how="left", maintain_order="left")
    return kernels.with_columns(pl.col("bytes", "communicator").fill_null(ABSENT))


def _match_mpi_calls(reader: EventReader) -> pl.DataFrame:
    """Return the collectives of MPI: the n-th calls of the processes of a communicator belong together,
    counted from the end where a report lacks the first ones; a communicator whose n-th calls differ
    is left out.
    """
    blocking, at_once = list_meeting_values()
    found = reader.read_begins("mpi_collective", ("call", "communicator", "root", "sent"))
    found = found.filter(pl.col("call").is_in([*blocking, *at_once]))
    # Where no communicator is recorded, calls that match in order are taken for those of one.
    if not (found["communicator"] < 0).all():
        found = found.filter(pl.col("communicator") >= 0)
    rank, task = (_take_of_rows(reader, name, found) for name in ("rank", "task"))
    found = found.with_columns(
        task=task,
        waits=pl.col("call").replace_strict(blocking | at_once, return_dtype=pl.Int64),
        is_root=(pl.col("root") == rank) & (rank >= 0),
        later=pl.col("call").is_in(list(at_once)),
    )
    found = found.unique(("thread", "begin"), keep="first", maintain_order=True)
    number, count = (
        expr.over("communicator", "task").cast(pl.Int64)
        for expr in (pl.int_range(pl.len()), pl.len())
    )
    found = found.sort("begin", maintain_order=True).with_columns(number=number, count=count)
    is_even = (pl.col("count").min() == pl.col("count").max()).over("communicator")
    found = found.with_columns(
        number=pl.col("number") - pl.when(is_even).then(0).otherwise("count"),
        tasks=pl.col("task").n_unique().over("communicator"),
    )
    together = ("communicator", "number")
    has_root = (pl.col("waits") == ALL) | (pl.col("is_root").sum().over(together) == 1)
    found = found.filter((pl.len().over(together) == pl.col("tasks")) & has_root).filter(
        (pl.col("call").n_unique().over(together) == 1).all().over("communicator")
    )
    found = found.with_columns(
        rule=pl.lit(BY_CALLS),
        collective=pl.struct(*together).rank("dense"),
        eager=((pl.col("waits") == FROM_ROOT) & pl.col("is_root"))
        | ((pl.col("waits") == TO_ROOT) & ~pl.col("is_root")),
        holds=(pl.col("waits") != FROM_ROOT) | pl.col("is_root"),
        bytes="sent",
    )
    return _find_ends(reader, found)


def _find_ends(reader: EventReader, found: pl.DataFrame) -> pl.DataFrame:
    """Return members with `until`: of calls that return at once the end of the first wait that ends when
    all have come; they go on without waiting where there is none.
    """
    if not found["later"].any():
        return found
    waits = _select_mpi_calls(reader, "wait").select("thread", until="end").sort("until")
    come = pl.max_horizontal("begin", pl.col("begin").filter("holds").max().over("collective"))
    found = found.with_columns(come=come).sort("come").join_asof(
        waits, left_on="come", right_on="until", by="thread", strategy="forward", coalesce=False,
        check_sortedness=False,
    )  # fmt: skip
    until = pl.when("later").then("until")
    return found.with_columns(
        until=pl.coalesce(until, "end"), eager=pl.col("eager") | (pl.col("later") & until.is_null())
    )


def _match_set_up(reader: EventReader) -> pl.DataFrame:
    """Return calls of MPI without a communicator: the n-th of a name of all processes."""
    found = _select_mpi_calls(reader, "set_up").sort("begin", maintain_order=True)
    found = found.with_columns(task=_take_of_rows(reader, "task", found))
    found = found.with_columns(number=pl.int_range(pl.len()).over("layout", "call", "task"))
    name = ("layout", "call")
    whole = pl.len().over(*name, "number") == pl.col("task").n_unique().over(name)
    return found.filter(whole.all().over(name)).with_columns(
        rule=pl.lit(BY_SET_UP),
        collective=pl.struct(*name, "number").rank("dense"),
    )


def _select_mpi_calls(reader: EventReader, does: str) -> pl.DataFrame:
    """Return the calls of MPI with names of a sort (a key of _NAMES): thread, begin, end, layout, call."""
    calls = reader.remember("mpi_calls", lambda: _read_mpi_calls(reader))
    return calls.filter(pl.col("does") == does)


def _read_mpi_calls(reader: EventReader) -> pl.DataFrame:
    """Return the calls of MPI whose names are of any sort, with what each `does`."""
    schema = dict.fromkeys(("begin", "end", "thread", "call"), pl.Int64)
    frames = [pl.DataFrame(schema=schema | {"layout": pl.String, "does": pl.String})]
    for layout in MPI_LAYOUTS:
        values = {
            value: does
            for name, value in load_catalogue().name_sets[layout].list_known_values().items()
            for does, names in _NAMES.items()
            if names.match(name)
        }
        if values and layout in reader.layouts:
            wanted = np.array([*values])
            calls = reader.read_begins(
                layout, ("call",), keep=lambda columns, of=wanted: np.isin(columns["call"], of)
            )
            does = pl.col("call").replace_strict(values, return_dtype=pl.String)
            frames.append(calls.with_columns(layout=pl.lit(layout), does=does))
    return pl.concat(frames)


def _take_of_rows(reader: EventReader, name: str, found: pl.DataFrame) -> pl.Series:
    """Return what the rows of some events have in a column, -1 for null."""
    return pl.Series(reader.rows.get_column(name)[found["thread"].to_numpy()], dtype=pl.Int64)


#: In the order in which they are tried.
RULES = (
    Rule(("nccl_collective",), _read_nccl),
    Rule(("mpi_collective",), _match_mpi_calls),
    Rule(MPI_LAYOUTS, _match_set_up),
)


def list_messages(reader: EventReader) -> pl.DataFrame:
    """Return the messages of a job, a row for each: `kind` (of lines), `message` (its number), `sender`
    and `sent`, `thread` and `received` (rows of the trace, ns), `bytes`; of MPI whether the sender goes
    on without waiting (`eager`), and when the call begins in which it waits for the receiver (`waits`,
    null where it does not).
    """
    return reader.remember("messages", lambda: _read_messages(reader))


def _read_messages(reader: EventReader) -> pl.DataFrame:
    frames = [
        reader.read_lines([kind]).select(
            "sender", "sent", "thread", "bytes", received="begin", kind=pl.lit(kind)
        )
        for kind in MESSAGES
    ]
    lines = pl.concat(frames).with_row_index("message")
    of_mpi = (lines["kind"] == MESSAGES[1]).any()
    starts = _select_mpi_calls(reader, "start") if of_mpi else pl.DataFrame()
    if not starts.height:
        return lines.with_columns(eager=pl.col("bytes") < EAGER, waits=pl.lit(None, pl.Int64))
    starts = starts.select(sender="thread", sent="begin", starts=pl.lit(True)).unique()
    lines = lines.join(starts, on=("sender", "sent"), how="left", maintain_order="left")
    waits = _select_mpi_calls(reader, "wait").select(sender="thread", waits="begin").sort("waits")
    is_large, starts = pl.col("bytes") >= EAGER, pl.col("starts").is_not_null()
    waiting = lines.filter(is_large & starts).sort("sent").join_asof(
        waits, left_on="sent", right_on="waits", by="sender", strategy="forward", coalesce=False,
        check_sortedness=False,
    )  # fmt: skip
    lines = lines.join(
        waiting.select("message", "waits"), on="message", how="left", maintain_order="left"
    )
    return lines.with_columns(eager=~is_large | starts)


#: Kernels that no rule matches surely meet if they end within one of these of each other (ns); on
#: streams whose kernels do so in this share of all cases, and whose transfers last so many times as
#: long as others at most. So many times streams are looked at.
ENDS_TOGETHER, ALWAYS, MOST_TIMES, MOST_STEPS = (30_000, 15_000, 5_000), 0.98, 4.0, 8
#: Without a meeting inside, ends of graphs are as far apart as their begins; with one, so many times
#: closer.
MUCH_CLOSER = 3.0


def match_by_ends(
    reader: EventReader, kernels: pl.DataFrame, met: Sequence[pl.DataFrame]
) -> list[pl.DataFrame]:
    """Return the members of meetings (`meeting`) of kernels that are in no collective or message: those
    of one name that end together, on streams where all kernels of one do so with the others'. They
    are not sure: ranks in step may be of several communicators. Those of streams that meet several
    others, as in a pipeline, are found once the rest is.

    kernels: `thread`, `begin`, `end`, `name`, `node_begin` (a number of its own). met: `meeting` and
    `thread` of members known already.
    """
    of_threads = reader.rows.threads.select("thread", "task", "node")
    kernels = _describe_kernels(reader, kernels.drop("bytes").join(of_threads, on="thread"))
    found = _find_streams_together(kernels)
    if of_threads["node"].n_unique() == 1:
        return found
    # Hosts that share no meeting may have clocks that do not agree.
    known = [part.join(of_threads, on="thread").select("meeting", "node") for part in met]
    known += [part.select("meeting", "node") for part in found]
    shared = (part.filter((pl.col("node").n_unique() > 1).over("meeting")) for part in known)
    hosts = {host for part in shared for host in part["node"]}
    return [part.filter(pl.col("node").is_in(hosts)) for part in found]


def match_graphs(
    reader: EventReader, graphs: pl.DataFrame, met: Sequence[pl.DataFrame]
) -> pl.DataFrame:
    """Return the members of meetings (`meeting`) of graphs that were traced as a whole, with kernels of
    NCCL inside: they end together however far their begins are apart. Arguments as of
    :func:`match_by_ends`.
    """
    schema = {name: graphs.schema[name] for name in ("thread", "begin", "end", "node_begin")}
    parts = [pl.DataFrame(schema=schema | dict.fromkeys(("meeting", "step"), pl.Int64))]
    for step, part in enumerate(match_by_ends(reader, graphs, met)):
        begins, ends = (
            (pl.col(name) - pl.col(name).min().over("meeting")).sum().over("group")
            for name in ("begin", "end")
        )
        part = part.filter(begins >= MUCH_CLOSER * ends)
        parts.append(part.select(*schema, "meeting", step=pl.lit(step, pl.Int64)))
    found = pl.concat(parts)
    return found.with_columns(meeting=pl.struct("step", "meeting").rank("dense")).drop("step")


def _find_streams_together(kernels: pl.DataFrame) -> list[pl.DataFrame]:
    """Return the members of meetings, in the order in which they are found."""
    kernels = kernels.with_columns(stream=pl.struct("name", "thread").rank("dense"))
    spans = kernels.group_by("task").agg(first=pl.col("end").min(), last=pl.col("end").max())
    near, first, last = ENDS_TOGETHER[0], spans["first"].max() or 0, spans["last"].min() or 0
    is_inside = pl.col("end").is_between(first - near, last + near)
    steps: list[pl.DataFrame] = []
    for _ in range(MOST_STEPS):
        kernels = kernels.with_columns(count=is_inside.sum().over("stream"))
        pairs = [*_link_streams(kernels.filter(is_inside))]
        groups = pl.DataFrame(pairs, ["stream", "other"], orient="row").cast(pl.UInt32)
        groups = groups.with_columns(group=pl.Series(number_linked(pairs), dtype=pl.Int64))
        groups = groups.unique("stream").with_columns(members=pl.len().over("group"))
        found = _gather_ends(kernels.join(groups, on="stream"), "group")
        found = found.with_columns(whole=(pl.len() == pl.col("members")).over("meeting"))
        # A stream that meets no others does so with some of the group, too, when these come apart.
        met = (pl.col("whole") & is_inside).sum().over("stream")
        found = found.with_columns(done=met >= ALWAYS * pl.col("count"))
        found = found.filter(pl.col("whole") | pl.col("done").any().over("meeting"))
        # Transfers that differ much contain waits for ranks that are not known.
        moved = (pl.col("end").min() - pl.col("begin").max()).over("meeting")
        most, least = (moved.quantile(share).over("group") for share in (0.9, 0.1))
        found = found.filter(most <= MOST_TIMES * least)
        if not found.height:
            break
        steps.append(found)
        kernels = kernels.join(found, on="node_begin", how="anti")
        kernels = kernels.join(found.filter("done"), on="stream", how="anti")
    return steps


def _link_streams(kernels: pl.DataFrame) -> Iterator[tuple[int, int]]:
    """Yield pairs of streams, the kernels of one of which end with those of the other, all of them."""
    together = _gather_ends(kernels, "name")
    counts = dict(kernels.group_by("stream").len().rows())
    for own in together.partition_by("name", maintain_order=True):
        (streams, column), (meetings, row) = (
            np.unique(own[name], return_inverse=True) for name in ("stream", "meeting")
        )
        if len(streams) * len(meetings) <= MOST_COMPARED:
            is_there = np.zeros((len(meetings), len(streams)), np.float32)
            is_there[row, column] = 1
            count = np.array([counts[stream] for stream in streams.tolist()])
            often = is_there.T @ is_there >= ALWAYS * np.minimum(count, count[:, None])
            yield from streams[np.argwhere(often)].tolist()


def _gather_ends(kernels: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return the kernels that end together with those of other ranks, and all begin before, with the
    number of the `meeting`. Where a rank has several among them, only closer ones do.
    """
    parts, left = [], kernels
    for together in ENDS_TOGETHER:
        apart = (pl.col("end").diff() >= together) | (pl.col(by).diff() != 0)
        near = left.sort(by, "end").with_columns(meeting=apart.fill_null(True).cum_sum())
        is_one = (pl.len() > 1) & (pl.col("task").n_unique() == pl.len())
        # Those of different communicators never meet.
        is_one &= pl.col("communicator").filter(pl.col("communicator") >= 0).n_unique() <= 1
        begun = pl.col("begin").max() < pl.col("end").min()
        parts.append(near.filter((is_one & begun).over("meeting")))
        left = left.join(parts[-1], on="node_begin", how="anti")
    key = pl.struct("part", "meeting").rank("dense")
    found = pl.concat([part.with_columns(part=pl.lit(n)) for n, part in enumerate(parts)])
    return found.with_columns(meeting=key.cast(pl.Int64)).drop("part")
