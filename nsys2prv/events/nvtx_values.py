"""The plain number that an NVTX range or mark may carry (the payload of its attributes), as a counter on its host thread.

It stands as those of extended payloads do (:mod:`nsys2prv.events.nvtx_payloads`), of NCCL's domain, too. NVTX_EVENTS has a column for
each type that it may have, all of them NULL where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from nsys2prv.catalogue.counters import FRACTION
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import Counters, EventKind
from nsys2prv.events.nvtx import MARK, PUSHPOP, STARTEND, TABLE
from nsys2prv.events.nvtx_payloads import LAYOUT, PLACE, counters, domain_names, lasting
from nsys2prv.report.source import Part

#: SQLite's integers are signed: of these the greater half reads as negative.
LARGE = "uint64Value"
WHOLE, REAL = (LARGE, "int64Value", "uint32Value", "int32Value"), ("doubleValue", "floatValue")
NAME = "payload"


def _carried(columns: tuple[str, ...], kinds: str) -> str:
    """SQL for the first of these columns that has a number."""
    return "coalesce(" + ", ".join(f"CASE WHEN typeof({{{name}}}) IN ({kinds}) THEN {{{name}}} END" for name in columns) + ")"


_INTEGER, _FLOAT = _carried(WHOLE, "'integer'"), _carried(REAL, "'integer', 'real'")
#: It looks at the types of the numbers, of which there are fewer than numbers.
_ANY = " OR ".join(f"typeof({{{name}}}) IN ({kinds})" for names, kinds in ((WHOLE, "'integer'"), (REAL, "'integer', 'real'"))
                   for name in names)
CONDITION = f"({_ANY}) AND ({MARK} OR {PUSHPOP} OR {STARTEND})"


def extract(extraction: Extraction, part: Part) -> Iterator[Counters]:
    database = extraction.database
    if not any(extraction.has(TABLE, name) for name in (*WHOLE, *REAL)):
        return
    columns = (f"{PLACE}, {MARK} AS mark, typeof({{{LARGE}}}) = 'integer' AS large, coalesce({_INTEGER}, 0) AS whole, "
               f"CAST(coalesce({_FLOAT}, 0) AS REAL) AS fraction, {_INTEGER} IS NULL AS real")
    frame = database.select(f"SELECT {database.condition(TABLE, columns)} FROM {database.rows_of(part)} "
                            f"WHERE {database.condition(TABLE, extraction.condition)}")
    extraction.account.rows += frame.height
    if not frame.height:
        return
    frame = lasting(extraction, frame.with_columns(pl.col("mark", "large", "real").cast(pl.Boolean)))
    beyond = pl.col("large") & (pl.col("whole") < 0)
    fraction = pl.when("real").then(pl.lit(FRACTION)).otherwise(pl.lit(""))
    label = pl.concat_str(domain_names(extraction, frame), pl.lit(f": {NAME}"), fraction)
    yield from counters(extraction, frame.with_columns(label=label,
                                                       whole=pl.when(beyond).then(np.iinfo(np.int64).max).otherwise("whole")))


KINDS = (
    EventKind("nvtx_values", "Plain numbers of NVTX ranges and marks", "host thread", (TABLE,), (LAYOUT,), extract, groups=("nvtx",),
              where=CONDITION, reads_again=True),
)
