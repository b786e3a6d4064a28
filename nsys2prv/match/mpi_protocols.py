"""Determine how MPI messages wait: the protocol of each send, and which process each side waits
for.

MPI moves no data of a process outside its calls, except small messages that are buffered. A send
therefore ends at once (LOCAL), or not before its receiver is inside any MPI call (NEEDS_CALL), or
not before the receiver has posted the receive (RENDEZVOUS). The size limits are learned from sends
with a clearly late receiver, separately for messages within a host and between hosts, and for
blocking calls and requests. Otherwise usual limits apply.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import ABSENT, OPEN
from nsys2prv._util.intervals import Outermost
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.match import BY_CALLS
from nsys2prv.table.event_reader import EventReader

#: Protocols of sends.
LOCAL, NEEDS_CALL, RENDEZVOUS = 1, 2, 3
#: Default size (bytes) up to which messages are local, and up to which they need no posted receive: most
#: libraries have limits from 4 to 64 KiB.
USUAL_LIMIT = 8192
#: Relative error of times of two processes (ns): on one host, and on two.
ON_HOST, BETWEEN_HOSTS = 2_000, 50_000
#: A process is clearly late if its delay is at least so many times the transfer time of that size, and at
#: least so long (ns); each side of a limit needs this many messages.
TIMES_USUAL, LEAST_LATE, FEWEST = 10, 20_000, 3
#: Larger than any message (bytes).
NO_LIMIT = 1 << 62
#: Share of the messages of a size whose transfer is quick.
QUICK = 0.3
#: A loop of tests ends this soon after a message arrives, as a share of its duration.
SOON = 0.05
#: Columns of messages other than those of lines, see :func:`nsys2prv.match.meetings.list_messages`.
WAITING = {
    "rule": pl.Int64,
    "waits": pl.Int64,
    "takes": pl.Int64,
    "protocol": pl.UInt8,
    "learnt": pl.Boolean,
    "lets": pl.Int64,
    "drives": pl.Int64,
    "polls": pl.Boolean,
    "late_sender": pl.Int64,
    "late_receiver": pl.Int64,
    "sender_held": pl.Int64,
    "receiver_held": pl.Int64,
}
#: Calls by their names: sends that always wait for the receive, that never do, and that return at once; tests.
_NAMES = {
    "synchronous": re.compile(r"MPI_I?ssend$"),
    "buffered": re.compile(r"MPI_I?bsend$"),
    "request": re.compile(r"MPI_(I\w*send\w*|Start(all)?)$"),
    "test": re.compile(r"MPI_Test(all|any|some)?$"),
}


def describe_waiting(reader: EventReader, lines: pl.DataFrame) -> pl.DataFrame:
    """Add to MPI messages the columns WAITING: the protocol of the send, and how long each side
    waits for the other. lines: `sender`, `sent`, `thread`, `received`, `bytes`, `posted`,
    `released`.
    """
    names = ("thread", "begin", "end", "call")
    *sides, call = reader.read_outermost_calls(MPI_LAYOUTS).select(names).get_columns()
    calls, call = Outermost(*(side.to_numpy() for side in sides)), call.to_numpy()
    begins = np.append(calls.begin, 0)
    nodes = reader.rows.threads["node"].rank("dense").to_numpy()
    sender, sent, thread, received, posted, released = (
        lines[name].to_numpy()
        for name in ("sender", "sent", "thread", "received", "posted", "released")
    )
    send = calls.find_next(sender, sent)
    completing, taking = calls.find(sender, released, True), calls.find(thread, received, True)
    # The begins of omitted calls, such as short ones, are unknown.
    since = np.maximum(sent, np.where(completing >= 0, begins[completing], released))
    both = np.maximum(sent, posted)
    entered, ready = calls.find_next(thread, sent), calls.find_next(thread, both)
    there = _find_moment(begins, ready, both)
    driving = calls.find_next(sender, there)
    apart = nodes[sender] != nodes[thread]
    frame = lines.select("bytes").with_columns(
        apart=apart,
        **_sort_calls(call[np.maximum(send, 0)]),
        since=since,
        inside=_find_moment(begins, entered, sent),
        there=there,
        drives=_find_moment(begins, driving, there),
        takes=np.maximum(both, np.where(taking >= 0, begins[taking], received)),
        received=received,
        released=released,
        came=_find_arrivals(lines),
        error=np.where(apart, BETWEEN_HOSTS, ON_HOST),
    )
    is_test = _sort_calls(call[taking])["test"]
    calls_before = calls.end[taking - 1]
    is_test &= (taking > 0) & (calls.thread[taking - 1] == thread)
    del calls
    frame = _learn_protocols(frame)
    protocol, is_driven = frame["protocol"].to_numpy(), frame["driven"].to_numpy()
    lets = np.select([protocol == RENDEZVOUS, protocol == NEEDS_CALL], [ready, entered], -1)
    bound = np.select([protocol == RENDEZVOUS, protocol == NEEDS_CALL], [there, frame["inside"]], 0)
    ended = np.minimum(released, bound)
    drives = np.where(is_driven, frame["drives"], 0)
    polls = _find_polls(calls_before, both, taking, begins, is_test)
    takes_from = np.where(taking >= 0, begins[taking], received)
    takes_from = np.where(polls, calls_before, takes_from)
    waited = {
        "late_sender": np.minimum(received, sent) - takes_from,
        "late_receiver": np.minimum(ended, posted) - since,
        "sender_held": ended - np.maximum(since, posted),
        "receiver_held": np.minimum(received, drives) - frame["takes"].to_numpy(),
    }
    known = (send >= 0) & (completing >= 0) & (taking >= 0)
    times = {
        "waits": np.where(completing >= 0, begins[completing], ABSENT),
        "takes": np.where(taking >= 0, begins[taking], ABSENT),
        "lets": np.where(lets >= 0, begins[lets], ABSENT),
        "drives": np.where(is_driven & (driving >= 0), begins[driving], ABSENT),
    }
    columns = {
        "rule": np.full(len(sent), BY_CALLS),
        "protocol": protocol,
        "learnt": frame["learnt"],
        "polls": polls,
        **times,
        **{name: np.where(known, np.clip(time, 0, None), ABSENT) for name, time in waited.items()},
    }
    made = pl.DataFrame(columns).cast(WAITING)
    return lines.with_columns(made.with_columns(_blank(name) for name in [*times, *waited]))


def _find_polls(
    before: np.ndarray,
    come: np.ndarray,
    taking: np.ndarray,
    begins: np.ndarray,
    is_test: np.ndarray,
) -> np.ndarray:
    """Return a mask of the receives that a loop of tests waits for.

    Such a receive completes as soon as the message arrives (`come`, ns), and nothing was done since
    the call before. Unsuccessful tests are not recorded.
    """
    delay = begins[taking] - come
    soon = np.maximum(LEAST_LATE, SOON * (begins[taking] - before))
    found = is_test & (come > before) & (delay >= 0) & (delay <= soon)
    candidates = is_test & (come > before)
    return found & (found.sum() >= max(FEWEST, candidates.sum() / 2))


def _find_arrivals(lines: pl.DataFrame) -> pl.Series:
    """Return the send time of the last message received by the call that completes each send, or 0."""
    key = ["sender", "released"]
    last = lines.group_by(sender="thread", released="received").agg(came=pl.col("sent").max())
    found = lines.select(key).join(last, on=key, how="left", maintain_order="left")
    return found["came"].fill_null(0)


def _blank(name: str) -> pl.Expr:
    return pl.when(pl.col(name) != ABSENT).then(name).alias(name)


def _find_moment(begins: np.ndarray, calls: np.ndarray, since: np.ndarray) -> np.ndarray:
    """Return the first time, from a given time on, at which a process is inside one of these calls,
    or OPEN.
    """
    return np.where(calls >= 0, np.maximum(begins[calls], since), OPEN)


def _sort_calls(calls: np.ndarray) -> dict[str, np.ndarray]:
    """Return name (a key of _NAMES) -> mask of the calls of this sort."""
    find_values = load_catalogue().name_sets["mpi_point_to_point"].find_values
    return {name: np.isin(calls, find_values(names)) for name, names in _NAMES.items()}


def _learn_protocols(frame: pl.DataFrame) -> pl.DataFrame:
    """Return messages with their `protocol`, whether it was `learnt`, and whether a later call of
    the sender drives the transfer (`driven`).
    """
    since, inside, there, released = map(pl.col, ("since", "inside", "there", "released"))
    quick = pl.min_horizontal(released - since, (released - inside).abs(), (released - there).abs())
    size = (pl.col("bytes").clip(1).log(2) * 4).round().cast(pl.Int32)
    usual = quick.quantile(QUICK, "lower").over("apart", "request", size)
    frame = frame.with_columns(late=(TIMES_USUAL * usual).clip(LEAST_LATE))

    def ends_at(end: str, bound: pl.Expr) -> pl.Expr:
        end = pl.col(end)
        return (end >= bound - pl.col("error")) & (end <= bound + pl.col("late"))

    tells = ~(pl.col("synchronous") | pl.col("buffered"))
    # Calls that end when a message arrives, too, are no evidence.
    alone = pl.col("came") < inside - pl.col("late")
    drives, takes = pl.col("drives"), pl.max_horizontal("takes", "there")
    early = released < inside - pl.col("error")
    evidence = frame.select(
        "apart", "request", "bytes",
        # True for waiting sides, False for others, null without evidence.
        inside=pl.when(tells & (inside - since > pl.col("late"))).then(
            pl.when(early).then(False)
            .when(alone & (ends_at("released", inside) | ends_at("released", there))).then(True)
        ),
        there=pl.when(tells & (there - pl.max_horizontal(since, inside) > pl.col("late"))).then(
            pl.when(released < there - pl.col("error")).then(False)
            .when(alone & ends_at("released", there)).then(True)
        ),
        driven=pl.when(drives - takes > pl.col("late")).then(
            pl.when(pl.col("received") < drives - pl.col("error")).then(False)
            .when(ends_at("received", drives)).then(True)
        ),
    )  # fmt: skip
    protocol, learnt = np.full(frame.height, LOCAL, np.uint8), np.zeros(frame.height, bool)
    driven = np.zeros(frame.height, bool)
    sizes = frame["bytes"].to_numpy()
    for apart in (False, True):
        usual_limit = Limit(USUAL_LIMIT)
        for request in (False, True):
            of = (frame["apart"] == apart) & (frame["request"] == request)
            own = evidence.filter(of)
            limit = usual_limit = find_limit(own, "inside", usual_limit.size)
            posted = find_limit(own, "there", max(limit.size, USUAL_LIMIT))
            pushed = find_limit(own, "driven", NO_LIMIT)
            rows = np.flatnonzero(of.to_numpy())
            size = sizes[rows]
            protocol[rows[size > limit.size]] = NEEDS_CALL
            protocol[rows[size > max(limit.size, posted.size)]] = RENDEZVOUS
            learnt[rows] = limit.is_known(size)
            driven[rows] = size > pushed.size
    protocol[frame["synchronous"].to_numpy()] = RENDEZVOUS
    protocol[frame["buffered"].to_numpy()] = LOCAL
    return frame.with_columns(protocol=protocol, learnt=learnt, driven=driven & (protocol != LOCAL))


class Limit(Struct, frozen=True):
    """A size (bytes) up to which messages do not wait for the receiver, for example, and above
    which they do.
    """

    size: int
    #: Sizes up to which, and from which on, messages have shown so.
    below: int = -1
    above: int = NO_LIMIT

    def is_known(self, sizes: np.ndarray) -> np.ndarray:
        """Return a mask: True for sizes (bytes) at which messages have shown whether they wait."""
        return (sizes <= self.below) | (sizes >= self.above)


def find_limit(evidence: pl.DataFrame, name: str, usual: int) -> Limit:
    """Find the size above which messages wait: the limit with the fewest contradictions; of
    several, the nearest to `usual` (bytes). evidence: `bytes`, and in the column `name` whether a
    message waited (null if unknown).
    """
    counts = evidence.drop_nulls(name).group_by("bytes").agg(
        waits=pl.col(name).sum().cast(pl.Int64), goes=(~pl.col(name)).sum().cast(pl.Int64)
    ).sort("bytes")  # fmt: skip
    counts = counts.with_columns(
        pl.when(pl.col(side).sum() >= FEWEST).then(side).otherwise(0).alias(side)
        for side in ("waits", "goes")
    ).filter(pl.col("waits") + pl.col("goes") > 0)
    if not counts.height:
        return Limit(usual)
    sizes, waits, goes = (counts[side].to_numpy() for side in ("bytes", "waits", "goes"))
    # Contradictions of limits below each size, and above all sizes.
    wrong = np.append(0, np.cumsum(waits)) + goes.sum() - np.append(0, np.cumsum(goes))
    lows, highs = np.append(0, sizes), np.append(sizes - 1, NO_LIMIT)
    limits = np.clip(usual, lows, highs)
    best = np.flatnonzero(wrong == wrong.min())
    place = best[np.argmin(np.abs(limits[best] - usual))]
    below, above = sizes[:place][goes[:place] > 0], sizes[place:][waits[place:] > 0]
    return Limit(int(limits[place]), int(below.max(initial=-1)), int(above.min(initial=NO_LIMIT)))
