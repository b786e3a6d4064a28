"""Find pipelines: ranks that pass their results on to the next stage, and messages back."""

from __future__ import annotations

from itertools import pairwise

import polars as pl
from msgspec import Struct

from nsys2prv.store.event_reader import EventReader

#: Kinds of lines that are messages of ranks to each other.
MESSAGES = ("nccl_message", "mpi_message")


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
        [reader.read_lines(kind).select("sent", "sender", "thread") for kind in MESSAGES]
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
