"""NCCL's calls on their host threads with what they say of themselves, and the operations of the advanced NCCL trace.

The ranges are NVTX ranges of the domain NCCL: named by C functions (``ncclAllReduce``), or in the advanced trace by operations
(``AllReduce``) within groups. They also fill the index by which kernels find the calls they do the work of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import polars as pl

from nsys2prv.columns import ABSENT, factorize
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import EventKind, Rows
from nsys2prv.events.nccl_payloads import payloads
from nsys2prv.events.nccl_regions import SAID
from nsys2prv.events.nvtx import PUSHPOP, STARTEND, TABLE, named, of_nccl
from nsys2prv.naming.nccl import FIRST_MAKING, LAST_MAKING, operation_of
from nsys2prv.report.info import PROCESS_MASK
from nsys2prv.report.source import NULL, Part

#: Facts of communicators (0: of one that no payload tells): of which process they are, its rank in them, and whether that was said by
#: the call that made them.
COMMUNICATORS = "nccl_communicators"
#: Field of the layouts -> field of the payload.
RECORDED = {"bytes": "bytes", "reduction": "reduction", "root": "root", "peer": "peer", "ranks": "ranks", "rank": "rank", "group": "group",
            "device": "device", "sequence": "sequence", "data_type": "type", "channel": "channel"}


def reader(layout: str) -> Callable[[Extraction, Part], Iterator[Rows]]:
    """The extraction of the NCCL domain's ranges."""

    def extract(extraction: Extraction, part: Part) -> Iterator[Rows]:
        columns = extraction.read(part, ("start", "end", "globalTid", "domainId", "category", "textId", "jsonTextId", "eventId"),
                                  ("text", "jsonText", "binaryData"), short=True)
        if not columns.rows:
            return
        ranges = named(extraction, columns, "range")
        said = payloads(extraction, columns)
        operation = operations(ranges.texts)[ranges.text_codes]
        if layout == "nccl_call":
            _index(extraction, columns["globalTid"], columns["start"], columns["end"], operation, said)
        fields = {**ranges.fields, **{field: said[name] for field, name in RECORDED.items()}}
        fields["operation"] = np.where(operation == 0, ABSENT, operation)
        fields["communicator"] = communicators(extraction, said["communicator"])
        if layout == "nccl_operation":
            fields["any_domain"] = fields["range"]
        wanted = ranges.wanted
        if extraction.least:
            wanted = wanted & extraction.long_enough(columns["start"], columns["end"])
        yield Rows(layout, columns["start"], columns["end"], extraction.threads(columns["globalTid"]), fields,
                   domain=ranges.domain).where(wanted)

    return extract


def operations(texts: pl.Series) -> np.ndarray:
    """nccl_operation of the catalogue by the names of ranges; 0 for ranges that are none."""
    return np.fromiter(map(operation_of, texts.to_list()), np.int64, len(texts))


def communicators(extraction: Extraction, hashes: np.ndarray) -> np.ndarray:
    """Local name indices of communicators by the bits of their hash; ABSENT where there is none."""
    result = np.full(len(hashes), ABSENT)
    rows = np.flatnonzero(hashes)
    if len(rows):
        distinct, codes = factorize(hashes[rows])
        result[rows] = extraction.name("nccl_communicator", codes, text=[f"{value:#018x}" for value in distinct.view(np.uint64).tolist()])
    return result


def _index(extraction: Extraction, thread: np.ndarray, begin: np.ndarray, end: np.ndarray, operation: np.ndarray,
           said: dict[str, np.ndarray]) -> None:
    usable = (begin != NULL) & (thread != NULL)
    frame = pl.DataFrame({"thread": thread, "begin": begin, "end": np.where(end == NULL, np.iinfo(np.int64).max, end),
                          "operation": operation, **{name: said[name] for name in SAID}}).filter(usable)
    extraction.regions.append(frame)
    made = pl.col("operation").is_between(FIRST_MAKING, LAST_MAKING)
    told = frame.filter(made | ((pl.col("communicator") != 0) & (pl.col("ranks") > 0)))
    told = told.select((pl.col("thread") & PROCESS_MASK).alias("process"), "communicator", "ranks", "rank", made=made).unique(
        maintain_order=True)
    if told.height:
        extraction.fact(COMMUNICATORS, {name: told[name] for name in told.columns})


KINDS = (
    EventKind("nccl", "NCCL calls", "host thread", (TABLE,), ("nccl_call",), reader("nccl_call"),
              groups=("nvtx", "nvtx_pushpop_trace"), where=of_nccl(PUSHPOP), open_ended=True, provides_regions=True),
    EventKind("nccl_operations", "Operations of the advanced NCCL trace", "host thread", (TABLE,), ("nccl_operation",),
              reader("nccl_operation"), groups=("nccl", "nvtx", "nvtx_startend_trace"), where=of_nccl(STARTEND), open_ended=True,
              lanes="startend"),
)
