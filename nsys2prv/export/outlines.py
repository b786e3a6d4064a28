"""Make the outline of a table while it is checked: bounds of times and ids in each block of its
rows, with which the rows of a time range or an id are found, and the events of some types.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import find_edges

if TYPE_CHECKING:
    from nsys2prv.export.source import Part

#: Rows of a block (a power of 2), and maximum number of noted rows that are listed.
BLOCK_ROWS, MOST_NOTED = 1024, 1 << 20
#: Columns with a row's time (the first that a table has is used), and columns with other times.
TIMES = ("start", "timestamp", "rawTimestamp", "startedAt")
ENDS = ("end", "endedAt")
#: Columns with the id of the call that launched a row's work, and with its type.
CORRELATION, EVENT_TYPE = "correlationId", "eventType"
#: Columns that identify the series of a sample. The first row of each series is noted.
SERIES = ("typeId", "metricId")
#: Bounds of a block, and traits of its rows, as in native/records.h; the last one is of :data:`_NVTX_TRAITS` alone.
LEAST, GREATEST, LOW, HIGH, TRAITS, BOUNDS = range(6)
IS_RANGE, IS_UNDATED, IS_OPEN, IS_NOTED, IS_NAME = 1, 2, 4, 8, 16
#: The table of NVTX events; types of its rows (documented in Nsight's ENUM_NSYS_EVENT_TYPE): names of categories and
#: domains, and ranges. The second of each type of ranges is the same from an nvtxt file.
NVTX_TABLE = "NVTX_EVENTS"
NVTX_CATEGORY, NVTX_DOMAIN_CREATE = 33, 75
NVTX_PUSHPOP, NVTX_STARTEND = (59, 70), (60, 71)
NVTX_RANGES = (*NVTX_PUSHPOP, *NVTX_STARTEND)
#: Columns of this table with numbers of events, and with the number of the domain. Rows with such a
#: number, or in a domain other than the default (0), are noted: usually few rows, including all
#: rows from NCCL.
NVTX_WHOLE_NUMBERS = ("uint64Value", "int64Value", "uint32Value", "int32Value")
NVTX_REALS = ("doubleValue", "floatValue")
NVTX_JSON = ("jsonText", "jsonTextId")
#: Reasons to note a row, as bits; bits of the reasons and of the domain, of which the last number stands for all others.
REASONS = {"numbers": 1, "json": 2, "domain": 4}
REASON_BITS, DOMAIN_BITS = 4, 8
OTHER_DOMAINS = (1 << DOMAIN_BITS) - 1
#: Which values of these columns are noted, and the reason, as in native/records.h.
NOTED, NOTED_UNLESS_ZERO, FIRST_REASON = 4, 8, 4
NVTX_NOTED = {
    column: rule | REASONS[reason] << FIRST_REASON
    for reason, rule, columns in (
        ("numbers", NOTED, (*NVTX_WHOLE_NUMBERS, *NVTX_REALS)),
        ("json", NOTED, NVTX_JSON),
        ("domain", NOTED_UNLESS_ZERO, ("domainId",)),
    )
    for column in columns
}
_NVTX_TRAITS = dict.fromkeys(NVTX_RANGES, IS_RANGE) | dict.fromkeys(
    (NVTX_CATEGORY, NVTX_DOMAIN_CREATE), IS_NAME
)


class NotedRows(Struct, frozen=True):
    """The noted rows of a table."""

    #: Their rowids, ascending.
    rowids: np.ndarray
    #: The reasons of each, as bits, and its domain.
    reasons: np.ndarray
    domains: np.ndarray

    @classmethod
    def from_core(cls, first: int, noted: bytes) -> NotedRows:
        """Make noted rows from an array of the compiled core. first: the first rowid of the table."""
        rows = np.frombuffer(noted, np.int64)
        domains = (rows >> REASON_BITS & OTHER_DOMAINS).astype(np.uint8)
        reasons = (rows & ((1 << REASON_BITS) - 1)).astype(np.uint8)
        return cls(first + (rows >> REASON_BITS + DOMAIN_BITS), reasons, domains)

    def find(self, reasons: int, domains: Collection[int]) -> np.ndarray:
        """Return the rowids of the rows with one of these reasons (bits), or in one of these domains."""
        numbers = [number if 0 <= number < OTHER_DOMAINS else OTHER_DOMAINS for number in domains]
        is_wanted = (self.reasons & reasons) != 0
        is_wanted |= (self.reasons & REASONS["domain"] != 0) & np.isin(self.domains, numbers)
        return self.rowids[is_wanted]


class Outline(Struct, frozen=True):
    """Least and greatest values in each block of a table's rows, so that reading a time range can
    skip blocks.
    """

    #: The rows of each block.
    block_rows: int
    #: Of each block LEAST to TRAITS (5, blocks). Without rows the least are the greatest int64, and the greatest
    #: the least.
    bounds: np.ndarray
    #: The noted rows; None if these are more than MOST_NOTED.
    noted: NotedRows | None

    @classmethod
    def from_core(cls, first: int, bounds: bytes, noted: bytes | None) -> Outline:
        """Make an outline from the arrays of the compiled core. first: the first rowid. noted: rows
        to note, None if too many.
        """
        columns = np.frombuffer(bounds, np.int64).reshape(-1, BOUNDS).T
        rows = None if noted is None else NotedRows.from_core(first, noted)
        return cls(BLOCK_ROWS, np.ascontiguousarray(columns), rows)


def list_outlined(table: str, columns: Mapping[str, object]) -> tuple[str, ...] | None:
    """Return the columns of a table from which its outline is made, "" for a missing one: start,
    end, id, type and domain. Return None for a table without times, or with several ends.
    """
    begin = next((name for name in TIMES if name in columns), None)
    ends = [name for name in ENDS if name in columns]
    if begin is None or len(ends) > 1:
        return None
    if has_series(columns):
        return begin, *(ends or [""]), *SERIES, ""
    identity = CORRELATION if CORRELATION in columns else ""
    kind = EVENT_TYPE if table == NVTX_TABLE and EVENT_TYPE in columns else ""
    domain = "domainId" if kind and "domainId" in columns else ""
    return begin, *(ends or [""]), identity, kind, domain


def has_series(columns: Mapping[str, object]) -> bool:
    """Return True if a table with these columns has samples of several series."""
    return columns.keys() >= {*SERIES}


def list_traits(table: str) -> bytes:
    """Return the traits (IS_RANGE, IS_NAME) of each type of rows, as a byte for each type; nothing
    for a table with ranges only.
    """
    if table != NVTX_TABLE:
        return b""
    return bytes(_NVTX_TRAITS.get(number, 0) for number in range(1 + max(_NVTX_TRAITS)))


def list_blocks(whole: Part, blocks: np.ndarray, block_rows: int) -> Iterator[Part]:
    """Yield the selected blocks of a table as parts; consecutive blocks form one part. whole: the
    part of the table that all blocks together cover. blocks: mask, one value per block. block_rows:
    rows per block.
    """
    edges = find_edges(blocks)
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if blocks[first]:
            yield replace(
                whole,
                first=whole.first + first * block_rows,
                last=min(whole.last, whole.first + last * block_rows - 1),
            )
