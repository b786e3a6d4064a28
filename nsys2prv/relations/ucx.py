"""Messages of UCX between processes: the n-th send of a worker to another with a tag meets the n-th
receive of that worker from the first with that tag. Lines are drawn only where MPI was not traced, for
its messages travel by UCX.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import polars as pl

from nsys2prv._util.errors import Detail
from nsys2prv.events.kind import CommunicationLines
from nsys2prv.events.mpi import MESSAGES
from nsys2prv.events.ucx import TRANSFERS
from nsys2prv.relations import RelationContext, write_result
from nsys2prv.store.work_result import FactFile, WorkResult, read_fact

NAME, LINE_KIND = "ucx_messages", "ucx_message"
CHANNEL = ("sender_worker", "receiver_worker", "tag")


def relate_messages(context: RelationContext) -> list[WorkResult]:
    """Return lines for the messages, by one step."""
    if context.files[MESSAGES]:
        return []
    step = partial(
        match_messages,
        context.files[TRANSFERS],
        context.tasks,
        context.first_task,
        context.folder,
    )
    return context.run_steps([step])


def match_messages(
    files: tuple[FactFile, ...], tasks: Mapping[tuple[int, int], int], number: int, folder: Path
) -> WorkResult:
    """Match sends with receives, and store a line for each pair."""
    rows = read_fact(files, tasks).with_columns(
        sender_worker=pl.when("is_send").then("worker").otherwise("peer"),
        receiver_worker=pl.when("is_send").then("peer").otherwise("worker"),
    )
    rows = rows.sort("time_begin", maintain_order=True).with_columns(
        turn=pl.int_range(pl.len()).over(*CHANNEL, "is_send")
    )
    sends, receives = rows.filter("is_send"), rows.filter(~pl.col("is_send"))
    pairs = sends.join(receives, on=(*CHANNEL, "turn"), maintain_order="left")
    send, sender, receive, receiver, size, tag = (
        pairs[name].to_numpy()
        for name in (
            *("time_begin", "object_thread", "time_end_right", "object_thread_right"),
            *("bytes", "tag"),
        )
    )
    lines = CommunicationLines(LINE_KIND, send, sender, receive, receiver, receive, size, tag)
    result = write_result(NAME, number, folder, lines=[lines] if pairs.height else [])
    if alone := rows.height - 2 * pairs.height:
        note = f"UCX: {alone:,} sends and receives without their other side in the reports: no line"
        result.notes.append(Detail(note))
    return result
