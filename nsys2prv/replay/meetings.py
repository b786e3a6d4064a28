"""Find meetings of several ranks: collectives and messages of NCCL and MPI. No member goes on
before all have come; the time after that is the transfer.

Those of messages show pipelines: ranks that pass their results on to the next stage.

The relations have found which calls belong together (:mod:`nsys2prv.match`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import join_first, number_linked
from nsys2prv.events.mpi import ALL, FROM_ROOT, TO_ROOT, list_meeting_values
from nsys2prv.replay.unit_graph import classify_size
from nsys2prv.table.event_reader import EventReader

#: Sends that return at once, and calls that end when these are complete.
_STARTS = re.compile(r"MPI_(I(|b|r|s)send|Start(all)?)$")
_WAITS = re.compile(r"MPI_Wait(all|any|some)?$")
#: Calls of MPI without a communicator in which every process waits for all others.
_SET_UP = re.compile(
    r"MPI_(Init(_thread)?|Finalize|Comm_(split(_type)?|dup|create|free)|Win_(create|allocate\w*|fence|free)"
    r"|File_(open|close|set_\w+|sync|(read|write)(_at)?_all|(read|write)_ordered))$"
)
#: Kinds of lines that are messages of ranks to each other.
MESSAGES = ("nccl_message", "mpi_message")
#: Messages below this (bytes) are sent before they are received: their sender does not wait.
EAGER = 8192
#: What a call that meets others lasts by itself (ns).
MEETING_CALL = 1_000
#: Kernels without payloads meet if they end within one of these of each other (ns); on streams
#: whose kernels do so in this share of all cases, and whose transfers last so many times as long as
#: others at most. So many times streams are looked at, and so many pairs of a meeting and a stream.
ENDS_TOGETHER, ALWAYS, MOST_TIMES, MOST_STEPS = (30_000, 15_000, 5_000), 0.98, 4.0, 8
MOST_COMPARED = 1 << 25
#: Columns of members.
_OF_MESSAGE = ("meeting", "bytes", "name", "node_begin", "node_end")
_MEMBERS = ("meeting", "node_begin", "node_end", "row", "size", "eager", "holds", "later")
#: What holds of members that wait for all others, and others for them.
_BLOCKING = {"eager": pl.lit(False), "holds": pl.lit(True), "later": pl.lit(False)}


class Meetings(Struct, frozen=True):
    """Members of meetings, ordered by meeting."""

    #: Number of the meeting of each member, ascending from 0.
    meeting: np.ndarray
    #: Nodes of its begin and end: of a message, end of the call that completes it.
    begin: np.ndarray
    end: np.ndarray
    #: Row of the trace of each member.
    row: np.ndarray
    #: Class of what is transferred: equal ones may be compared.
    size: np.ndarray
    #: Whether a member goes on without waiting for the others.
    eager: np.ndarray
    #: Whether the others wait for a member.
    holds: np.ndarray
    #: Whether a member may end later than the transfer, because it does something else meanwhile.
    later: np.ndarray


def find_nccl_meetings(reader: EventReader, kernels: pl.DataFrame) -> Meetings:
    """Return the meetings of NCCL kernels. kernels: `thread`, `begin`, `end`, `node_begin`,
    `node_end`, `name`, `bytes` of each.
    """
    frames = []
    size = pl.col("name") * 1000 + pl.Series("size", classify_size(kernels["bytes"].to_numpy()))
    kernels = kernels.with_columns(size=size, within=ENDS_TOGETHER[0], **_BLOCKING)
    if "nccl_collective" in reader.layouts:
        # Of hosts whose clocks cannot be compared nothing tells when all had come.
        records = reader.read_begins("nccl_collective", ("collective", "late"))
        is_known = (pl.col("late") >= 0).all().over("collective")
        joined = join_first(records.filter(is_known), kernels, ("thread", "begin"))
        joined = joined.drop("late")
        # Nor do ends tell it so well there.
        unknown = records.filter(~is_known).select("thread", "begin", within=ENDS_TOGETHER[1])
        kernels = kernels.update(unknown.unique(("thread", "begin")), on=("thread", "begin"))
        frames.append(
            joined.select(pl.col("collective").alias("meeting"), pl.exclude("collective"))
        )
    if "nccl_message" in reader.layouts:
        messages = _join_nccl_messages(reader, kernels)
        frames.append(messages.with_columns(size=-1 - pl.col("size")))
    of_threads = reader.rows.threads.select("thread", "task", "node")
    for met in [*frames]:
        kernels = kernels.join(met, on="node_begin", how="anti")
    found = _match_by_ends(kernels.join(of_threads, on="thread"))
    # Hosts that share no meeting may have clocks that do not agree.
    met = [part.join(of_threads, on="thread").select("meeting", "node") for part in frames]
    met += [part.select("meeting", "node") for part in found]
    shared = [part.filter((pl.col("node").n_unique() > 1).over("meeting")) for part in met]
    hosts = {host for part in shared for host in part["node"]}
    if of_threads["node"].n_unique() > 1:
        found = [part.filter(pl.col("node").is_in(hosts)) for part in found]
    return _group_members([*frames, *found])


def _match_by_ends(kernels: pl.DataFrame) -> list[pl.DataFrame]:
    """Return the members of meetings of kernels that no payload matches: those of one name that end
    together, as members of a meeting do, on streams where all kernels of one do so with the others'.
    Those of streams that meet several others, as in a pipeline, are found once the rest is. kernels:
    `within` is the longest time (ns) between ends that are together.
    """
    kernels = kernels.with_columns(stream=pl.struct("name", "thread").rank("dense"))
    spans = kernels.group_by("task").agg(pl.col("begin").min(), pl.col("end").max())
    first, last = spans["begin"].max() or 0, spans["end"].min() or 0
    is_inside = (pl.col("begin") >= first) & (pl.col("end") <= last)
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
        near = left.filter(pl.col("within") >= together).sort(by, "end")
        near = near.with_columns(meeting=apart.fill_null(True).cum_sum())
        is_one = (pl.len() > 1) & (pl.col("task").n_unique() == pl.len())
        begun = pl.col("begin").max() < pl.col("end").min()
        parts.append(near.filter((is_one & begun).over("meeting")))
        left = left.join(parts[-1], on="node_begin", how="anti")
    key = pl.struct("part", "meeting").rank("dense")
    found = pl.concat([part.with_columns(part=pl.lit(n)) for n, part in enumerate(parts)])
    return found.with_columns(meeting=key.cast(pl.Int64)).drop("part")


def _join_nccl_messages(reader: EventReader, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the members of messages; kernels that exchange several meet once."""
    lines = reader.read_lines(["nccl_message"]).select("sent", "sender", "thread", until="begin")
    places = kernels.with_row_index("place").select("place", "thread", "begin", "end")
    senders = places.select("begin", "thread", first="place")
    receivers = places.select("end", "thread", second="place")
    sides = join_first(lines, senders, ("sender", "sent"), ("thread", "begin"))
    sides = join_first(sides, receivers, ("thread", "until"), ("thread", "end"))
    pairs = sides.select(
        a=pl.min_horizontal("first", "second"), b=pl.max_horizontal("first", "second")
    ).unique(maintain_order=True)
    members = pairs.with_row_index("meeting").unpivot(
        ["a", "b"], index="meeting", value_name="place"
    )
    return members.join(kernels.with_row_index("place"), on="place").with_columns(
        pl.col("meeting").cast(pl.Int64)
    )


def find_mpi_meetings(
    reader: EventReader, calls: pl.DataFrame, labels: Mapping[int, str]
) -> Meetings:
    """Return the meetings of calls of MPI. calls: `thread`, `begin`, `end`, `node_begin`, `node_end`,
    `name`, `task` of each outermost one.
    """
    frames = [*_find_collectives(reader, calls, labels), _match_set_up(calls, labels)]
    if "mpi_message" in reader.layouts:
        lines = reader.read_lines(["mpi_message"]).with_row_index("meeting")
        is_start = pl.col("name").is_in(_list_names(labels, _STARTS))
        # A line leads to when its message was received.
        sides = {("sender", "sent"): ("thread", "begin"), ("thread", "begin"): ("thread", "end")}
        members = [
            join_first(lines, calls, of_line, of_call, "_call").select(
                *_OF_MESSAGE,
                thread=of_line[0],
                eager=((pl.col("bytes") < EAGER) | is_start) & (of_line[0] == "sender"),
                holds=pl.lit(True),
            )
            for of_line, of_call in sides.items()
        ]
        waits = _find_waits(lines, calls, labels)
        both = pl.concat([*members, waits], how="vertical_relaxed")
        size = pl.Series("size", -1 - classify_size(both["bytes"].to_numpy()))
        size -= both["name"] * 1000
        frames.append(both.with_columns(size, pl.col("meeting").cast(pl.Int64), later=True))
    return _group_members(frames)


def _find_waits(
    lines: pl.DataFrame, calls: pl.DataFrame, labels: Mapping[int, str]
) -> pl.DataFrame:
    """Return the calls in which senders of large messages wait for their receivers: the first wait
    after a send that returns at once.
    """
    starts, waits = (_select_calls(calls, labels, names) for names in (_STARTS, _WAITS))
    senders = starts.select("begin", sender="thread")
    large = lines.filter(pl.col("bytes") >= EAGER)
    sent = join_first(large, senders, ("sender", "sent"), ("sender", "begin"))
    return (
        sent.select("meeting", "bytes", "sent", thread="sender")
        .sort("sent")
        .join_asof(
            waits.sort("begin"), left_on="sent", right_on="begin", by="thread", strategy="forward",
            check_sortedness=False,
        )
        .drop_nulls("node_begin")
        .select(*_OF_MESSAGE, "thread", eager=pl.lit(False), holds=pl.lit(False))
    )  # fmt: skip


def match_mpi_collectives(reader: EventReader, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the members of collectives of MPI: the columns of calls, `call`, `sent` (bytes), `meeting`,
    whether others wait for it (`holds`), whether it goes on without waiting for others (`eager`), and
    whether it returns at once (`later`). calls: `thread`, `begin`, `task` and others of each.

    The n-th calls of the processes of a communicator belong together, counted from the end where a
    report lacks the first ones; a communicator whose n-th calls differ is left out.
    """
    blocking, at_once = list_meeting_values()
    found = reader.read_begins("mpi_collective", ("call", "communicator", "root", "sent"))
    found = found.filter(pl.col("call").is_in([*blocking, *at_once]))
    # Where no communicator is recorded, calls that match in order are taken for those of one.
    if not (found["communicator"] < 0).all():
        found = found.filter(pl.col("communicator") >= 0)
    rank = pl.Series(reader.rows.get_column("rank")[found["thread"].to_numpy()], dtype=pl.Int64)
    found = found.with_columns(
        waits=pl.col("call").replace_strict(blocking | at_once, return_dtype=pl.Int64),
        is_root=(pl.col("root") == rank) & (rank >= 0),
        later=pl.col("call").is_in(list(at_once)),
    )
    found = found.unique(("thread", "begin"), keep="first", maintain_order=True)
    found = join_first(found, calls, ("thread", "begin")).sort("begin", maintain_order=True)
    number, count = (
        expr.over("communicator", "task") for expr in (pl.int_range(pl.len()), pl.len())
    )
    found = found.with_columns(number=number.cast(pl.Int64), count=count.cast(pl.Int64))
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
    return found.with_columns(
        meeting=pl.struct(*together).rank("dense").cast(pl.Int64),
        eager=((pl.col("waits") == FROM_ROOT) & pl.col("is_root"))
        | ((pl.col("waits") == TO_ROOT) & ~pl.col("is_root")),
        holds=(pl.col("waits") != FROM_ROOT) | pl.col("is_root"),
    )


def _find_collectives(
    reader: EventReader, calls: pl.DataFrame, labels: Mapping[int, str]
) -> Iterator[pl.DataFrame]:
    """Yield the members of collectives. A call that returns at once ends with the first wait that ends
    when all have come.
    """
    if "mpi_collective" not in reader.layouts:
        return
    found = match_mpi_collectives(reader, calls)
    size = pl.Series("size", classify_size(found["sent"].to_numpy()))
    found = found.with_columns(size + pl.col("name") * 1000)
    yield found.filter(~pl.col("later"))
    found = found.drop("end_right")
    waits = _select_calls(calls, labels, _WAITS).select("thread", "end", until="node_end")
    come = pl.col("begin").filter("holds").max().over("meeting")
    begun = found.filter("later").with_columns(come=pl.max_horizontal("begin", come)).sort("come")
    begun = begun.join_asof(
        waits.sort("end"), left_on="come", right_on="end", by="thread", strategy="forward",
        suffix="_wait", check_sortedness=False,
    )  # fmt: skip
    yield begun.with_columns(
        node_end=pl.coalesce("until", "node_end"), eager=pl.col("eager") | pl.col("until").is_null()
    )


def _match_set_up(calls: pl.DataFrame, labels: Mapping[int, str]) -> pl.DataFrame:
    """Return the members of calls without a communicator: the n-th of a name of all processes."""
    found = _select_calls(calls, labels, _SET_UP).sort("begin", maintain_order=True)
    found = found.with_columns(number=pl.int_range(pl.len()).over("name", "task"))
    whole = pl.len().over("name", "number") == pl.col("task").n_unique().over("name")
    return found.filter(whole.all().over("name")).with_columns(
        size=pl.col("name") * 1000,
        meeting=pl.struct("name", "number").rank("dense").cast(pl.Int64),
        **_BLOCKING,
    )


def _select_calls(
    calls: pl.DataFrame, labels: Mapping[int, str], names: re.Pattern[str]
) -> pl.DataFrame:
    return calls.filter(pl.col("name").is_in(_list_names(labels, names)))


def _list_names(labels: Mapping[int, str], names: re.Pattern[str]) -> list[int]:
    return [name for name, label in labels.items() if names.match(label)]


def _group_members(frames: Sequence[pl.DataFrame]) -> Meetings:
    """Return members of meetings of at least two, numbered through."""
    parts, before = [], 0
    for frame in frames:
        frame = frame.filter(pl.len().over("meeting") > 1)
        number = pl.col("meeting").rank("dense").cast(pl.Int64) - 1 + before
        frame = frame.rename({"thread": "row"}).select(number, *_MEMBERS[1:])
        before += frame["meeting"].n_unique()
        parts.append(frame)
    if not parts:
        none = np.zeros(0, np.int64)
        return Meetings(*[none] * 5, *[none.astype(bool)] * 3)
    members = pl.concat(parts).sort("meeting", maintain_order=True)
    return Meetings(*(members[name].to_numpy() for name in _MEMBERS))


class Pipeline(Struct, frozen=True):
    """Stages of a job."""

    #: Processes of each stage, in the order in which data passes them first.
    stages: tuple[tuple[int, ...], ...]
    #: How many messages a stage sends on to the next in an iteration, None where not known.
    micro_batches: int | None

    @property
    def bubble(self) -> float | None:
        """Return the share of an iteration in which a stage has no work, if all take equally long."""
        others = len(self.stages) - 1
        return None if self.micro_batches is None else others / (self.micro_batches + others)


def find_pipeline(reader: EventReader, begin: int, end: int, iterations: int) -> Pipeline | None:
    """Return the pipeline that the messages between these times (ns) show: processes whose partners
    form chains of equal length. None where they form anything else. iterations: how many
    there are in this time, 0 where unknown.
    """
    task_of = reader.rows.get_column("task") - 1
    lines = pl.concat(
        [reader.read_lines([kind]).select("sent", "sender", "thread") for kind in MESSAGES]
    )
    lines = lines.filter(pl.col("sent").is_between(begin, end))
    pairs = lines.select(
        "sent",
        a=pl.Series(task_of[lines["sender"].to_numpy()]),
        b=pl.Series(task_of[lines["thread"].to_numpy()]),
    )
    pairs = pairs.group_by("a", "b").agg(count=pl.len(), first=pl.col("sent").min())
    counts = {(a, b): (first, count) for a, b, count, first in pairs.rows() if a != b}
    partners: dict[int, set[int]] = {}
    for a, b in counts:
        partners.setdefault(a, set()).add(b)
        partners.setdefault(b, set()).add(a)
    chains = []
    for start in sorted(one for one, others in partners.items() if len(others) == 1):
        chain = [start]
        while following := partners[chain[-1]] - {*chain}:
            if len(following) > 1:
                return None
            chain += following
        # The first message is the first stage's.
        none = (end, 0)
        if counts.get((chain[0], chain[1]), none) < counts.get((chain[-1], chain[-2]), none):
            chains.append(chain)
    if not chains or len({len(chain) for chain in chains}) > 1:
        return None
    if sum(map(len, chains)) < len(partners):
        return None
    sent = {
        round(counts[pair][1] / max(iterations, 1)) if pair in counts else 0
        for chain in chains
        for pair in pairwise(chain)
    }
    stages = tuple(tuple(sorted(stage)) for stage in zip(*chains, strict=True))
    return Pipeline(stages, max(sent) if iterations and len(sent) == 1 and min(sent) else None)
