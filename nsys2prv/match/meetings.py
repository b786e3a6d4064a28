"""List calls that ranks made together: members of collectives, and messages, whatever rule matched
them. All analyses of matched calls read these tables.

NCCL kernels and messages were matched by relations when the job was aligned. MPI calls are matched
here by their order in each process (:mod:`mpi_collectives`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.budget import MOST_COMPARED
from nsys2prv._util.columns import ABSENT, number_linked
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.match import MPI_RULES
from nsys2prv.match.mpi_collectives import (
    OTHERS,
    ROOT,
    find_last,
    match_epochs,
    match_mpi_calls,
    match_set_up,
)
from nsys2prv.match.mpi_protocols import WAITING, describe_waiting
from nsys2prv.match.nccl_collectives import measure_waits
from nsys2prv.table.event_reader import LINE_COLUMNS, SIDES_OF_MESSAGES, EventReader

#: Columns of collectives, a row for each member: its number (from 1), the `rule`, a value of the value set
#: `matching_rule`; row of the trace, begin and end (ns), the NCCL operation or MPI call, bytes sent,
#: communicator; its lateness (`late`), its `wait` for the last member and the `transfer` after that (ns;
#: ABSENT if clocks are too inaccurate).
_NUMBERS = (
    *("collective", "rule", "thread", "begin", "end", "call", "bytes", "communicator"),
    *("late", "wait", "transfer"),
)
#: Whether it is the root's; whether it returns before completion (`later`): then the completing call lasts
#: from `since` to `until`, otherwise these are its own. The members it waits for (`awaits`: none, ROOT,
#: OTHERS or both), and whether it also waits until these are `inside` MPI, so that their data moves.
COLLECTIVES = {
    **dict.fromkeys((*_NUMBERS, "since", "until", "awaits"), pl.Int64),
    **dict.fromkeys(("is_root", "later", "inside"), pl.Boolean),
}
#: Members of collectives on nodes with clocks accurate enough to tell when all had arrived.
ON_KNOWN_CLOCKS = (pl.col("late") >= 0).all().over("collective")
#: Kinds of waiting in MPI, values of the value set `mpi_waiting`: for the sender, for the receiver, for the
#: last member of a collective or the opener of an epoch, and for a message's partner to be inside MPI.
LATE_SENDER, LATE_RECEIVER, AT_COLLECTIVE, HELD = range(1, 5)
#: Kinds of lines that are messages of ranks to each other.
MESSAGES = ("nccl_message", "mpi_message")


class Rule(Struct, frozen=True):
    """A rule that finds calls of several ranks that belong together. `find` returns them; the rule
    applies if the job has one of `layouts`.
    """

    #: Layouts, at least one of which is required.
    layouts: tuple[str, ...]
    #: Returns the members: columns of COLLECTIVES; missing columns mean that all wait for all.
    find: Callable[[EventReader], pl.DataFrame]


def list_collectives(reader: EventReader) -> pl.DataFrame:
    """Return all calls and kernels that take part in collectives (members), with the columns
    COLLECTIVES; `collective` is a consecutive number.
    """
    return reader.remember("collectives", lambda: _match_collectives(reader))


def list_compared_kernels(reader: EventReader) -> pl.DataFrame:
    """Return the kernels of NCCL collectives (columns COLLECTIVES) on hosts whose clocks are
    accurate enough to identify the late rank.
    """
    table = list_collectives(reader)
    return table.filter((pl.col("late") >= 0) & ~pl.col("rule").is_in(MPI_RULES))


def _match_collectives(reader: EventReader) -> pl.DataFrame:
    table, before = pl.DataFrame(schema=COLLECTIVES), 0
    for rule in RULES:
        if reader.layouts.isdisjoint(rule.layouts):
            continue
        found = _complete(reader, rule.find(reader)).with_columns(pl.col("collective") + before)
        table.extend(found.select(pl.col(name).cast(kind) for name, kind in COLLECTIVES.items()))
        before = max(before, int(found["collective"].max() or 0))
    return table


def _complete(reader: EventReader, found: pl.DataFrame) -> pl.DataFrame:
    """Return members with all columns of COLLECTIVES, computing the missing ones."""
    blocking = {"since": pl.col("begin"), "until": pl.col("end")}
    alike = {"awaits": ROOT | OTHERS, "is_root": False, "later": False, "inside": False}
    numbers = dict.fromkeys(("bytes", "communicator"), ABSENT)
    found = found.with_columns(
        (value if isinstance(value, pl.Expr) else pl.lit(value)).alias(name)
        for name, value in (blocking | alike | numbers).items()
        if name not in found.columns
    )
    if "late" in found.columns:
        return found
    clocks = reader.rows.find("clocks", found["thread"])
    found = found.with_columns(clocks).with_columns(
        first=pl.col("begin").min().over("collective"),
        last=find_last("collective"),
        comparable=(pl.col("clocks").n_unique() == 1).over("collective"),
    )
    return measure_waits(found, "since", "until")


def _read_nccl(reader: EventReader) -> pl.DataFrame:
    """Return the NCCL kernels that the relation matched."""
    fields = ("operation", "collective", "late", "wait", "transfer", "rule")
    records = reader.read_begins("nccl_collective", fields).rename({"operation": "call"})
    # Members without a recorded capture share the values of the others.
    shared = pl.col("bytes", "communicator").max().over("collective")
    return _describe_kernels(reader, records).with_columns(shared)


def list_nccl_kernels(reader: EventReader) -> pl.DataFrame:
    """Return the NCCL kernels: `thread`, `begin` (ns), `operation`, `bytes`, `communicator`."""
    return reader.remember("nccl_kernels", lambda: _read_kernels(reader))


def _read_kernels(reader: EventReader) -> pl.DataFrame:
    fields = ("operation", "bytes", "communicator")
    kernels = reader.read_begins("nccl_kernel", fields).drop("end")
    return kernels.unique(("thread", "begin"), keep="first")


def _describe_kernels(reader: EventReader, kernels: pl.DataFrame) -> pl.DataFrame:
    """Add the bytes and communicators of NCCL kernels to a frame of kernels, ABSENT if unknown."""
    known = list_nccl_kernels(reader).drop("operation")
    kernels = kernels.join(known, on=("thread", "begin"), how="left", maintain_order="left")
    return kernels.with_columns(pl.col("bytes", "communicator").fill_null(ABSENT))


#: In the order in which they are tried.
RULES = (
    Rule(("nccl_collective",), _read_nccl),
    Rule(("mpi_collective",), match_mpi_calls),
    Rule(MPI_LAYOUTS, match_set_up),
    Rule(("mpi_one_sided",), match_epochs),
)


def list_messages(reader: EventReader) -> pl.DataFrame:
    """Return the messages of a job, one row each.

    Columns: `kind` (of lines), `message` (number), `sender` and `sent`, `thread` and `received`
    (rows of the trace, ns), `bytes`.

    MPI messages have further columns: the matching `rule`; the starts of the calls that complete
    the send (`waits`) and the receive (`takes`); the `protocol` of the send, and whether it was
    `learnt` from the job's messages; the start of the receiver's call that releases the sender
    (`lets`), and of the sender's call that the receiver needs (`drives`), or null; whether a loop
    of tests waits for the message (`polls`); and wait times (ns, null if unknown): of the receiver
    for the sender (`late_sender`), of the sender for the receiver (`late_receiver`), and of each
    for the other to be inside MPI (`sender_held`, `receiver_held`).
    """
    return reader.remember("messages", lambda: _read_messages(reader))


def _read_messages(reader: EventReader) -> pl.DataFrame:
    frames = []
    for kind in MESSAGES:
        of_mpi = kind == MESSAGES[1]
        names = [*LINE_COLUMNS, *SIDES_OF_MESSAGES] if of_mpi else [*LINE_COLUMNS]
        lines = reader.read_lines([kind], names=names)
        lines = lines.drop("end").rename({"begin": "received"}).with_columns(kind=pl.lit(kind))
        if of_mpi and lines.height:
            lines = describe_waiting(reader, lines)
        frames.append(lines)
    lines = pl.concat(frames, how="diagonal").with_row_index("message")
    lacking = {name: pl.lit(None, of) for name, of in WAITING.items() if name not in lines.columns}
    return lines.with_columns(**lacking)


def list_mpi_waits(reader: EventReader) -> pl.DataFrame:
    """Return the spans in which threads wait in MPI, one row each.

    Columns: `thread`, `begin`, `end` (ns), `kind` (a value of the value set `mpi_waiting`), and
    `other`, the thread waited for. Spans of a thread do not overlap: a call that waits for several
    threads at once waits for the last one.
    """
    return reader.remember("mpi_waits", lambda: _find_mpi_waits(reader))


def _find_mpi_waits(reader: EventReader) -> pl.DataFrame:
    messages = list_messages(reader).filter(pl.col("kind") == MESSAGES[1])
    sent, received, posted = map(pl.col, ("sent", "received", "posted"))
    got = pl.min_horizontal(received, sent)
    waits = [_find_waits_at_collectives(reader)]
    for kind, thread, other, length, begin in (
        (LATE_SENDER, "thread", "sender", "late_sender", got - pl.col("late_sender")),
        (LATE_RECEIVER, "sender", "thread", "late_receiver", pl.max_horizontal(sent, "waits")),
        (HELD, "sender", "thread", "sender_held", pl.max_horizontal(sent, "waits", posted)),
        (HELD, "thread", "sender", "receiver_held", pl.max_horizontal(sent, "takes", posted)),
    ):
        own = messages.filter(pl.col(length) > 0)
        own = own.select(thread=thread, begin=begin, length=length, other=other)
        waits.append(own.with_columns(kind=pl.lit(kind)))
    table = pl.concat(waits, how="diagonal").cast(pl.Int64)
    end = pl.col("begin") + pl.col("length")
    table = table.with_columns(end=end).sort(
        "thread", "end", "begin", descending=[False, True, False]
    )
    later = pl.col("begin").cum_min().shift(1).over("thread")
    table = table.with_columns(end=pl.min_horizontal("end", later))
    table = table.filter(pl.col("end") > pl.col("begin")).sort("thread", "begin")
    return table.select("thread", "begin", "end", "kind", "other")


def _find_waits_at_collectives(reader: EventReader) -> pl.DataFrame:
    """Return the waits of members of MPI collectives: `thread`, `begin`, `length` (ns), `kind`,
    `other`.
    """
    members = list_collectives(reader).filter(pl.col("rule").is_in(MPI_RULES))
    come = [members.select("collective", last=time, other="thread") for time in ("begin", "since")]
    come = pl.concat(come).unique(("collective", "last"), keep="first", maintain_order=True)
    waits = members.with_columns(last=find_last("collective")).filter(pl.col("wait") > 0)
    waits = waits.join(come, on=("collective", "last"), how="left", maintain_order="left")
    return waits.select(
        "thread", begin="since", length="wait", kind=pl.lit(AT_COLLECTIVE), other="other"
    )


#: Kernels that no rule matches certainly meet if they end within one of these of each other (ns), on streams
#: with this share of such kernels, and with transfers at most so many times as long as the others'. Streams
#: are examined this many times.
ENDS_TOGETHER, ALWAYS, MOST_TIMES, MOST_STEPS = (30_000, 15_000, 5_000), 0.98, 4.0, 8
#: Without a meeting inside, ends of graphs are as far apart as their begins; with one, so many times
#: closer.
MUCH_CLOSER = 3.0


def match_by_ends(reader: EventReader, kernels: pl.DataFrame) -> list[pl.DataFrame]:
    """Find kernels of different ranks that end together, among kernels outside collectives and
    messages. Return frames of `kernels` with the number of their `meeting`.

    A meeting consists of kernels with one name that end together, on streams on which all kernels
    of that name do so. The match is not certain, because ranks in step may belong to several
    communicators. Streams that meet several others, as in a pipeline, are matched last. kernels:
    `thread`, `begin`, `end`, `name`, `node_begin` (a unique number).
    """
    of_threads = reader.rows.threads.select("thread", "task", "node", "clocks")
    kernels = _describe_kernels(reader, kernels.drop("bytes").join(of_threads, on="thread"))
    found = _find_streams_together(kernels)
    if of_threads["node"].n_unique() == 1:
        return found
    # Calls that end together on a host with an unknown clock may also have members elsewhere.
    alone = of_threads.filter((pl.col("node").n_unique() == 1).over("clocks"))
    is_sure = (pl.col("clocks").n_unique() == 1).over("meeting")
    is_sure &= ~pl.col("clocks").is_in(alone["clocks"].implode())
    return [part.filter(is_sure) for part in found]


def match_graphs(reader: EventReader, graphs: pl.DataFrame) -> pl.DataFrame:
    """Find CUDA graphs of different ranks that end together, among graphs that were traced as a
    whole and contain NCCL kernels. Return them with the number of their `meeting`. They may begin
    far apart. graphs: columns as in :func:`match_by_ends`.
    """
    schema = {name: graphs.schema[name] for name in ("thread", "begin", "end", "node_begin")}
    parts = [pl.DataFrame(schema=schema | dict.fromkeys(("meeting", "step"), pl.Int64))]
    for step, part in enumerate(match_by_ends(reader, graphs)):
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
        # Streams that meet no others meet some of the group, too, when it separates.
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
    """Yield pairs of streams on which all kernels end together."""
    gathered = _gather_ends(kernels, "name")
    counts = dict(kernels.group_by("stream").len().rows())
    for own in gathered.partition_by("name", maintain_order=True):
        (streams, column), (meetings, row) = (
            np.unique(own[name], return_inverse=True) for name in ("stream", "meeting")
        )
        if len(streams) * len(meetings) <= MOST_COMPARED:
            is_there = np.zeros((len(meetings), len(streams)), np.float32)
            is_there[row, column] = 1
            count = np.array([counts[stream] for stream in streams.tolist()])
            together = is_there.T @ is_there
            alike = together >= ALWAYS * np.maximum(count, count[:, None])
            often = together >= ALWAYS * np.minimum(count, count[:, None])
            # One that meets several others in turn does so with the first of them now.
            part = often & ~alike & (count[:, None] < count)
            part &= alike[:, part.argmax(axis=0)]
            yield from streams[np.argwhere(alike | part | part.T)].tolist()


def _gather_ends(kernels: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return the kernels that end together with kernels of other ranks after all have begun, with
    the number of the `meeting`. If a rank has several of them, only closer ones are kept.
    """
    parts, left = [], kernels
    for together in ENDS_TOGETHER:
        apart = (pl.col("end").diff() >= together) | (pl.col(by).diff() != 0)
        near = left.sort(by, "end").with_columns(meeting=apart.fill_null(True).cum_sum())
        is_one = (pl.len() > 1) & (pl.col("task").n_unique() == pl.len())
        # Kernels of different communicators never meet.
        is_one &= pl.col("communicator").filter(pl.col("communicator") >= 0).n_unique() <= 1
        begun = pl.col("begin").max() < pl.col("end").min()
        parts.append(near.filter((is_one & begun).over("meeting")))
        left = left.join(parts[-1], on="node_begin", how="anti")
    key = pl.struct("part", "meeting").rank("dense")
    found = pl.concat([part.with_columns(part=pl.lit(n)) for n, part in enumerate(parts)])
    return found.with_columns(meeting=key.cast(pl.Int64)).drop("part")
