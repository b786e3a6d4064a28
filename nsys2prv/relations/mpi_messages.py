"""MPI messages: sends matched with the receives that took them, as lines between the ranks.

MPI keeps messages of one sender, receiver, communicator and tag in order, so the n-th send of such a *stream* belongs to the n-th
receive. That is certain where both ranks were recorded from MPI_Init on, or where a stream has as many sends as receives and none
is received before it was sent. A receive from MPI_ANY_SOURCE or with MPI_ANY_TAG, of which the report does not tell what it took,
makes the order of the streams that it might have taken from uncertain from then on, unless their numbers agree all the same; so does
an MPI_Sendrecv of which it is not known which message it sent, whatever the numbers. What is not certain stays without a line and is
counted in the notes.

A line begins with the call that sends, or that starts a persistent request, and ends with the call that received or, for a receive
through a request, that completed it: the first Wait of its handle, else the last Test before the handle is used again, else the
receive call itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from nsys2prv.clock.observations import MPI as SOURCE
from nsys2prv.clock.observations import Messages
from nsys2prv.columns import OPEN
from nsys2prv.events.kind import Lines
from nsys2prv.events.mpi import (
    ASKED,
    COMPLETED,
    EITHER,
    MESSAGES,
    PROCESSES,
    RECEIVE,
    RECEIVE_INIT,
    REQUESTS,
    SEND,
    SEND_INIT,
    STARTED,
    USED,
)
from nsys2prv.relations.kind import MPI, Observed, Related, Relation
from nsys2prv.report.source import NULL

#: Tags of other lines (see the catalogue); an MPI tag among them is written so much higher.
OUR_TAGS, TAG_OFFSET = (55_000, 55_999), 1_000_000_000
_STREAM = ["communicator", "source", "destination", "tag"]
_HANDLE = ["task", "request"]


def relate(facts: Mapping[str, pl.DataFrame]) -> Related:
    """Lines for the messages that are matched, and notes on those that are not."""
    pairs, sends, receives, either = _pairs(facts, in_time=True)
    taken = pairs.filter((pl.col("completed") != NULL) & (pl.col("completed") != OPEN))
    tag = taken["tag"].to_numpy()
    completed = taken["completed"].to_numpy()
    lines = Lines("mpi_message", taken["time_begin"].to_numpy(), taken["object_thread"].to_numpy(), completed,
                  taken["receiver"].to_numpy(), completed, np.maximum(taken["size"].to_numpy(), 0), _line_tags(tag))
    early = taken.filter(pl.col("completed") < pl.col("time_begin")).height
    return Related(lines=[lines], notes=_notes(sends, receives, either.height, taken.height, pairs.height - taken.height, early))


def observe(facts: Mapping[str, pl.DataFrame]) -> Observed:
    """Messages between hosts: none is received before it is sent."""
    pairs = _pairs(facts, in_time=False)[0].filter(
        (pl.col("completed") != NULL) & (pl.col("completed") != OPEN) & (pl.col("host") != pl.col("receiving_host")))
    sender, sent, receiver, received = (pairs[name].to_numpy() for name in ("host", "time_begin", "receiving_host", "completed"))
    return Observed(messages=Messages(np.full(len(sent), SOURCE), sender, sent, receiver, received))


def _pairs(facts: Mapping[str, pl.DataFrame], in_time: bool) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """The pairs that are certain, the sends and the receives with `why` of those of no pair, and calls that may be either.

    in_time: whether the clocks agree, so that a receive before its send speaks against a pair.
    """
    processes = facts[PROCESSES].group_by("task").agg(pl.col("rank").max(), pl.col("began").any())
    requests = facts[REQUESTS] if facts[REQUESTS].width else _no_requests()
    messages = _transferred(facts[MESSAGES].filter(pl.col("time_begin") != NULL), requests)
    messages = messages.sort("time_begin", maintain_order=True)
    sends = messages.filter(pl.col("role") == SEND).with_columns(why=_why_unmatched(processes, "source", "destination"))
    receives = messages.filter(pl.col("role") == RECEIVE).with_columns(why=_why_unmatched(processes, "destination", "source"))
    receives = _completed(receives, messages, requests)
    either = messages.filter(pl.col("role") == EITHER)
    return *_matched(sends, receives, either, processes, in_time), either


def _line_tags(tag: np.ndarray) -> np.ndarray:
    first, last = OUR_TAGS
    return np.where((tag >= first) & (tag <= last), tag + TAG_OFFSET, tag)


def _no_requests() -> pl.DataFrame:
    integers = ("task", "object_thread", "time_begin", "time_end", "request")
    return pl.DataFrame(schema={**dict.fromkeys(integers, pl.Int64), "role": pl.Int8})


def _transferred(messages: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    """The messages, with one more for every start of a persistent request, by what its handle was prepared for last."""
    prepared = messages.filter(pl.col("role").is_in([SEND_INIT, RECEIVE_INIT])).sort("time_begin")
    plain = messages.filter(pl.col("role").is_in([SEND, RECEIVE, EITHER]))
    if not prepared.height:
        return plain
    starts = requests.filter((pl.col("role") == STARTED) & (pl.col("time_begin") != NULL)).sort("time_begin")
    what = prepared.drop("object_thread", "time_end").with_columns(
        role=pl.when(pl.col("role") == SEND_INIT).then(SEND).otherwise(RECEIVE).cast(pl.Int8))
    started = starts.select(*_HANDLE, "object_thread", "time_begin", "time_end").join_asof(
        what, on="time_begin", by=_HANDLE, check_sortedness=False).filter(pl.col("role").is_not_null())
    return pl.concat([plain, started.select(plain.columns)])


def _why_unmatched(processes: pl.DataFrame, own: str, other: str) -> pl.Expr:
    """Why a message cannot be looked for, null if it can."""
    ranks = processes.filter(pl.col("rank") >= 0)
    twice = ranks.filter(pl.col("rank").is_duplicated())["rank"].unique().to_list()
    known = ranks["rank"].unique().to_list()
    return (pl.when(pl.col(own) < 0).then(pl.lit("of a process whose rank is not in its report"))
            .when(pl.col(own).is_in(twice) | pl.col(other).is_in(twice)).then(pl.lit("of a rank that several processes claim"))
            .when(pl.col("communicator") == 0).then(pl.lit("in a communicator that the report does not describe"))
            .when(~pl.col("named") | (pl.col("tag") < 0)).then(pl.lit("any"))
            .when(pl.col(other) < 0).then(pl.lit("with a partner that the communicator does not have"))
            .when(~pl.col(other).is_in(known)).then(pl.lit("with a rank that has no report")))


def _completed(receives: pl.DataFrame, messages: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    """The receives with the time `completed`, in trace time; NULL or OPEN where the completing call did not end."""
    receives = receives.with_row_index("receive")
    through = receives.filter(pl.col("request") != NULL).select("receive", *_HANDLE, "time_begin")
    if not through.height or not requests.height:
        return receives.with_columns(completed="time_end")
    uses = pl.concat([messages.filter(pl.col("request") != NULL).select(*_HANDLE, "time_begin"),
                      requests.filter(pl.col("role") == USED).select(*_HANDLE, "time_begin")]).sort("time_begin")
    through = through.sort("time_begin").join_asof(uses.with_columns(next="time_begin"), on="time_begin", by=_HANDLE, strategy="forward",
                                                   allow_exact_matches=False, check_sortedness=False)
    through = through.with_columns(pl.col("next").fill_null(OPEN))
    ends = requests.filter(pl.col("time_begin") != NULL).sort("time_begin").with_columns(at="time_begin")
    waits, tests = (ends.filter(pl.col("role") == role).select(*_HANDLE, "time_begin", "at", "time_end") for role in (COMPLETED, ASKED))
    through = through.join_asof(waits, on="time_begin", by=_HANDLE, strategy="forward", check_sortedness=False)
    waited = through.select("receive", completed=pl.when(pl.col("at") < pl.col("next")).then("time_end"))
    through = through.select("receive", *_HANDLE, "time_begin", "next").sort("next").join_asof(
        tests, left_on="next", right_on="time_begin", by=_HANDLE, strategy="backward", allow_exact_matches=False,
        check_sortedness=False)
    tested = through.select("receive", tested=pl.when(pl.col("at") >= pl.col("time_begin")).then("time_end"))
    for found in (waited, tested):
        receives = receives.join(found, on="receive", how="left", maintain_order="left")
    return receives.with_columns(completed=pl.coalesce("completed", "tested", "time_end"))


def _matched(sends: pl.DataFrame, receives: pl.DataFrame, either: pl.DataFrame, processes: pl.DataFrame,
             in_time: bool) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """The pairs that are certain, and the sends and the receives with `why` filled in for those of no pair."""
    sends, receives = (frame.with_columns(number=pl.when(pl.col("why").is_null()).then(pl.lit(1)).cum_sum().over([*_STREAM, "why"]))
                       .with_row_index("row") for frame in (sends, receives))
    streams = _streams(sends, receives, either, processes)
    key = [*_STREAM, "number"]
    pairs = sends.filter(pl.col("why").is_null()).join(
        receives.filter(pl.col("why").is_null()).select(
            *key, "completed", taken="row", receiver="object_thread", posted="time_begin", receiving_host="host"),
        on=key, how="inner").join(streams, on=_STREAM, how="left")
    causal = (pl.col("completed") == NULL) | (pl.col("completed") >= pl.col("time_begin")) | (not in_time)
    equal = pl.col("sent") == pl.col("received")
    whole = pl.col("began") & (equal | pl.col("wildcard").is_null() | (pl.col("posted") < pl.col("wildcard")))
    part = ~pl.col("began") & equal & pl.min_horizontal("wildcard", "either").is_null() & causal.all().over(_STREAM)
    before = pl.col("either").is_null() | (pl.max_horizontal("posted", "time_begin") < pl.col("either"))
    judged = pairs.with_columns(certain=(whole | part) & before)

    def told(frame: pl.DataFrame, column: str) -> pl.DataFrame:
        fate = judged.select(pl.col(column).alias("row"), "certain")
        why = (pl.when(pl.col("certain")).then(None).when(pl.col("certain").is_not_null()).then(pl.lit("whose order is not certain"))
               .otherwise(pl.coalesce("why", pl.lit("without a partner"))))
        return frame.join(fate, on="row", how="left").with_columns(why=why)

    return judged.filter("certain").sort("row"), told(sends, "row"), told(receives, "taken")


def _streams(sends: pl.DataFrame, receives: pl.DataFrame, either: pl.DataFrame, processes: pl.DataFrame) -> pl.DataFrame:
    """Streams with both sends and receives: how many of each, whether both ranks were recorded from the beginning, when the first
    receive was posted that might take from it though it does not say so, and when the first call was made that either sends or
    receives in it (null: none)."""
    count = {"sent": sends, "received": receives}
    counted = [frame.filter(pl.col("why").is_null()).group_by(_STREAM).agg(pl.len().alias(name)) for name, frame in count.items()]
    streams = counted[0].join(counted[1], on=_STREAM, how="inner")
    for side in ("source", "destination"):
        streams = streams.join(processes.select(pl.col("rank").alias(side), pl.col("began").alias(f"began_{side}")), on=side, how="left")
    streams = streams.with_columns(began=pl.col("began_source") & pl.col("began_destination")).drop("began_source", "began_destination")
    wild = receives.filter(pl.col("why") == "any")
    ranks = ["communicator", "destination"]
    for name, rows, keys in (
            ("first", wild.filter(~pl.col("named") & (pl.col("tag") < 0)), ranks),
            ("second", wild.filter(~pl.col("named") & (pl.col("tag") >= 0)), [*ranks, "tag"]),
            ("third", wild.filter(pl.col("named") & (pl.col("tag") < 0)), [*ranks, "source"])):
        streams = streams.join(rows.group_by(keys).agg(pl.col("time_begin").min().alias(name)), on=keys, how="left")
    backward = either.rename({"source": "destination", "destination": "source"})
    touched = pl.concat([either.select(*_STREAM, "time_begin"), backward.select(*_STREAM, "time_begin")])
    streams = streams.join(touched.group_by(_STREAM).agg(either=pl.col("time_begin").min()), on=_STREAM, how="left")
    return streams.with_columns(wildcard=pl.min_horizontal("first", "second", "third")).drop("first", "second", "third")


def _notes(sends: pl.DataFrame, receives: pl.DataFrame, either: int, lines: int, unfinished: int, early: int) -> list[str]:
    to_somebody = sends.filter(pl.col("why").is_null() | (pl.col("why") != "any"))
    notes = [f"MPI messages: {lines:,} lines for {to_somebody.height:,} sends and {receives.height:,} receives"]
    told = {"sends": to_somebody, "receives": receives.with_columns(pl.col("why").replace(
        {"any": "from any source or of any tag, of which the report does not tell what they took"}))}
    for name, frame in told.items():
        reasons = frame.filter(pl.col("why").is_not_null())["why"].value_counts().sort("why")
        notes += [f"MPI messages: {count:,} {name} {why}" for why, count in reasons.iter_rows()]
    if either:
        notes.append(f"MPI messages: {either:,} messages of MPI_Sendrecv that may be sent or received, for the rows are in no order")
    if unfinished:
        notes.append(f"MPI messages: {unfinished:,} receives not complete when the report ends")
    if early:
        notes.append(f"MPI messages: {early:,} received before they were sent, so the clocks of some hosts do not agree")
    return notes


RELATIONS = (Relation("mpi_messages", "MPI messages", MPI, (MESSAGES, REQUESTS, PROCESSES), relate=relate, observe=observe),)
