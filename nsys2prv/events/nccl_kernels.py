"""NCCL kernels with the calls whose work they do, and the facts by which collectives are found on all their ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from nsys2prv.columns import ABSENT
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.launches import Found
from nsys2prv.events.nccl import communicators
from nsys2prv.events.nccl_regions import Tied
from nsys2prv.naming.nccl import RECEIVE, SEND, kernel_operation
from nsys2prv.report.source import NULL

#: Facts of kernels; and of sends and receives, a row for each and its kernel, where one kernel does all of its group.
KERNELS, MESSAGES = "nccl_kernels", "nccl_messages"
#: Field of the layout -> column of the unit of calls.
FIELDS = {**{name: name for name in ("operation", "bytes", "reduction", "root", "peer", "ranks", "rank", "group", "fused")},
          "data_type": "type", "sequence": "sequence"}
#: Columns of the facts KERNELS, from the unit of calls: communicator (bits of the hash, 0 unknown), fused: operations in the
#: kernel, messages: sends and receives among them, sums of their bytes by how they count, known: whether all bytes are.
FACTS = ("communicator", "operation", "first_operation", "fused", "messages", "sequence", "ranks", "rank", "root", "reduction", "bytes",
         "known", "reduce_bytes", "share_bytes", "message_bytes")


def tie(extraction: Extraction, columns: Mapping[str, np.ndarray], found: Found, objects: np.ndarray,
        names: Sequence[str], codes: np.ndarray) -> dict[str, np.ndarray]:
    """The payload fields of NCCL kernels, rows of the kernel table launched by the calls found, named by those at `codes`; sets facts
    aside."""
    process, device, begin, end, node, stream = (columns[name] for name in (
        "globalPid", "deviceId", "start", "end", "graphNodeId", "streamId"))
    in_graph = node > 0
    launched = found.hit & ~in_graph
    call = np.where(launched, found.begin, NULL)
    tied = extraction.nccl.tie(np.where(launched, found.thread, NULL), call, device) if extraction.nccl else None
    by_name = np.array([kernel_operation(name) for name in names], np.int64)[codes]
    facts = {"process": process, "device": device, "stream": stream, "object_kernel": objects, "time_begin": begin, "time_end": end,
             "time_call": call, "in_graph": in_graph.astype(np.int64), "by_name": by_name}
    lacking = np.full(len(begin), ABSENT)
    if tied is None:
        extraction.fact(KERNELS, {**facts, **dict.fromkeys(FACTS, lacking), "communicator": np.zeros(len(begin), np.int64)})
        return dict.fromkeys((*FIELDS, "communicator"), lacking)
    extraction.fact(KERNELS, {**facts, **{name: tied[name] for name in FACTS}})
    _messages(extraction, tied, facts)
    said = {field: tied[name] for field, name in FIELDS.items()}
    # A kernel of several operations has no number of its own.
    said["sequence"] = np.where(tied["fused"] == 1, said["sequence"], ABSENT)
    return {**said, "communicator": communicators(extraction, tied["communicator"])}


def _messages(extraction: Extraction, tied: Tied, facts: dict[str, np.ndarray]) -> None:
    """Set MESSAGES aside."""
    alone = np.flatnonzero((tied["messages"] > 0) & (tied["parts"] == 1))
    if not len(alone):
        return
    kernels = pl.DataFrame({"unit": tied["unit"][alone], **{name: facts[name][alone] for name in (
        "process", "object_kernel", "time_begin", "time_end", "time_call")}})
    calls = extraction.nccl.operations.filter(pl.col("operation").is_in((SEND, RECEIVE))).select(
        "unit", "place", "communicator", "operation", "bytes", "peer", "ranks", "rank")
    joined = kernels.join(calls, on="unit", how="inner", maintain_order="left_right")
    extraction.fact(MESSAGES, {name: joined[name] for name in joined.columns if name != "unit"})
