"""NCCL's calls on their host threads, and NCCL kernels with the calls whose work they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv._util.columns import ABSENT
from nsys2prv.events.attributes import make_rows
from nsys2prv.events.call_indexes import SAID, FoundLaunches
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import Rows, declare_kind
from nsys2prv.events.names.calls import (
    FIRST_MAKING,
    LAST_MAKING,
    RECEIVE,
    SEND,
    find_kernel_operation,
    find_operation,
)
from nsys2prv.events.nccl_payloads import read_payloads
from nsys2prv.events.nvtx import PUSHPOP, STARTEND, find_texts, name_ranges, select_nccl_rows
from nsys2prv.nsight.columns import NULL, Columns
from nsys2prv.nsight.info import PROCESS_MASK
from nsys2prv.nsight.source import Part

#: Facts of communicators (0: of one that no payload tells): of which process they are, its rank in
#: them, and whether that was said by the call that made them.
COMMUNICATORS = "nccl_communicators"
#: Columns of ranges that are read.
COLUMNS = (
    *("start", "end", "globalTid", "domainId", "category", "textId"),
    *("jsonTextId", "eventId"),
)
TEXTS = ("text", "jsonText", "binaryData")
#: Fields of the layouts, and of the payload.
RECORDED = (
    *("bytes", "reduction", "root", "peer", "ranks", "rank"),
    *("group", "device", "sequence", "data_type", "channel"),
)


def make_extract(layout: str) -> Callable[[Extraction, Part], Iterator[Rows]]:
    """Return the function that extracts the ranges of NCCL's domain into a layout."""

    def extract(extraction: Extraction, part: Part) -> Iterator[Rows]:
        columns = extraction.read(part, COLUMNS, TEXTS, short=True)
        if not columns.rows:
            return
        ranges = name_ranges(extraction, columns, "range")
        payloads = read_payloads(extraction, columns)
        texts, text_codes = find_texts(extraction, columns)
        operation = find_operations(texts)[text_codes]
        if layout == "nccl_call":
            _index_calls(extraction, columns, operation, payloads)
        fields = ranges.fields | {field: payloads[field] for field in RECORDED}
        fields["operation"] = np.where(operation == 0, ABSENT, operation)
        fields["communicator"] = name_communicators(extraction, payloads["communicator"])
        if layout == "nccl_operation":
            fields["any_domain"] = fields["range"]
        wanted = ranges.wanted
        if extraction.least:
            wanted = wanted & extraction.mask_long_enough(columns["start"], columns["end"])
        rows = make_rows(extraction, layout, columns, fields)
        yield replace(rows, domain=ranges.domain).where(wanted)

    return extract


def find_operations(texts: pl.Series) -> np.ndarray:
    """Return nccl_operation values of the catalogue by the names of ranges; 0 for other ranges."""
    return np.fromiter(map(find_operation, texts.to_list()), np.int64, len(texts))


def name_communicators(extraction: Extraction, hashes: np.ndarray) -> np.ndarray:
    """Return local name indices of communicators by the bits of their hash; ABSENT where there is
    none.
    """

    def make_texts(distinct: np.ndarray) -> list[str]:
        return [f"{value:#018x}" for value in distinct.view(np.uint64).tolist()]

    return extraction.name_some_rows("nccl_communicator", hashes != 0, [hashes], make_texts)


def _index_calls(
    extraction: Extraction,
    columns: Columns,
    operation: np.ndarray,
    payloads: dict[str, np.ndarray],
) -> None:
    """Set the calls aside for the index of NCCL calls, and as facts what they tell of
    communicators.
    """
    begin, end, thread = (columns[name] for name in ("start", "end", "globalTid"))
    frame = pl.DataFrame(
        {
            "thread": thread,
            "begin": begin,
            "end": np.where(end == NULL, np.iinfo(np.int64).max, end),
            "operation": operation,
            **{name: payloads[name] for name in SAID},
        }
    ).filter((begin != NULL) & (thread != NULL))
    extraction.nccl_calls_out.append(frame)
    makes_communicator = pl.col("operation").is_between(FIRST_MAKING, LAST_MAKING)
    reported = frame.filter(
        makes_communicator | ((pl.col("communicator") != 0) & (pl.col("ranks") > 0))
    )
    reported = reported.select(
        (pl.col("thread") & PROCESS_MASK).alias("process"),
        "communicator",
        "ranks",
        "rank",
        made=makes_communicator,
    ).unique(maintain_order=True)
    if reported.height:
        extraction.add_fact(COMMUNICATORS, {name: reported[name] for name in reported.columns})


#: Facts of kernels; and of sends and receives, a row for each and its kernel, where one kernel does
#: all of its group.
KERNELS, MESSAGES = "nccl_kernels", "nccl_messages"
#: Fields of the layout, and columns of the unit of calls.
FIELDS = (
    *("operation", "bytes", "reduction", "root", "peer", "ranks", "rank", "group", "fused"),
    *("data_type", "sequence"),
)
#: Columns of the facts KERNELS, from the unit of calls: communicator (bits of the hash, 0 unknown),
#: fused: operations in the kernel, messages: sends and receives among them, sums of their bytes by
#: how they count, known: whether all bytes are.
FACTS = (
    *("communicator", "operation", "first_operation", "fused", "messages", "sequence", "ranks"),
    *("rank", "root", "reduction", "bytes", "known", "reduce_bytes", "share_bytes"),
    "message_bytes",
)


def attach_payloads(
    extraction: Extraction,
    columns: Mapping[str, np.ndarray],
    launches: FoundLaunches,
    objects: np.ndarray,
    names: Sequence[str],
    codes: np.ndarray,
) -> dict[str, np.ndarray]:
    """Return the payload fields of NCCL kernels, rows of the kernel table launched by the calls
    found, named by those at `codes`; sets facts aside.
    """
    process, device, begin, end, node, stream = (
        columns[name]
        for name in ("globalPid", "deviceId", "start", "end", "graphNodeId", "streamId")
    )
    in_graph = node > 0
    launched = launches.hit & ~in_graph
    call = np.where(launched, launches.begin, NULL)
    tied = (
        extraction.nccl_index.tie(np.where(launched, launches.thread, NULL), call, device)
        if extraction.nccl_index
        else None
    )
    by_name = np.array([find_kernel_operation(name) for name in names], np.int64)[codes]
    facts = {
        "process": process,
        "device": device,
        "stream": stream,
        "object_kernel": objects,
        "time_begin": begin,
        "time_end": end,
        "time_call": call,
        "in_graph": in_graph.astype(np.int64),
        "by_name": by_name,
    }
    lacking = np.full(len(begin), ABSENT)
    if tied is None:
        extraction.add_fact(
            KERNELS,
            {
                **facts,
                **dict.fromkeys(FACTS, lacking),
                "communicator": np.zeros(len(begin), np.int64),
            },
        )
        return dict.fromkeys((*FIELDS, "communicator"), lacking)
    extraction.add_fact(KERNELS, {**facts, **{name: tied[name] for name in FACTS}})
    _save_messages(extraction, tied, facts)
    payloads = {field: tied[field] for field in FIELDS}
    # A kernel of several operations has no number of its own.
    payloads["sequence"] = np.where(tied["fused"] == 1, payloads["sequence"], ABSENT)
    return {**payloads, "communicator": name_communicators(extraction, tied["communicator"])}


def _save_messages(
    extraction: Extraction, tied: Mapping[str, np.ndarray], facts: dict[str, np.ndarray]
) -> None:
    """Set MESSAGES aside."""
    alone = np.flatnonzero((tied["messages"] > 0) & (tied["parts"] == 1))
    if not len(alone):
        return
    kernels = pl.DataFrame(
        {
            "unit": tied["unit"][alone],
            "messages": tied["messages"][alone],
            "pure": (tied["fused"] == tied["messages"])[alone].astype(np.int64),
            **{
                name: facts[name][alone]
                for name in ("process", "object_kernel", "time_begin", "time_end", "time_call")
            },
        }
    )
    calls = extraction.nccl_index.operations.filter(
        pl.col("operation").is_in((SEND, RECEIVE))
    ).select("unit", "place", "communicator", "operation", "bytes", "peer", "ranks", "rank")
    joined = kernels.join(calls, on="unit", how="inner", maintain_order="left_right")
    extraction.add_fact(MESSAGES, {name: joined[name] for name in joined.columns if name != "unit"})


KINDS = (
    declare_kind("nccl", make_extract("nccl_call"), where=select_nccl_rows(PUSHPOP)),
    declare_kind(
        "nccl_operations", make_extract("nccl_operation"), where=select_nccl_rows(STARTEND)
    ),
)
