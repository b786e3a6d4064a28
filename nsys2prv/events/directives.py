"""OpenMP events and OpenACC constructs on the host threads that execute them.

OpenMP is as its tools interface (OMPT) reports it to Nsight Systems. Tables and columns: NVIDIA's
"SQLite Schema Reference", OPENMP_EVENT_KIND_*. Kinds: Nsight's ENUM_OPENMP_* tables, which are
OMPT's. A capture that stops early leaves ranges without an end, or with one on another clock; they
end with their parallel region.

Types, labels and values of OpenACC are those of BSC's nsys2prv 0.6: a construct's value is Nsight's
event kind plus one, and its source, where it stands in the code, is `name@file:line`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import ABSENT, blank_negative, factorize_together
from nsys2prv.events.attributes import list_columns, make_rows
from nsys2prv.events.catalogue import ValueSet, load_catalogue
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import Reason, Rows, declare_kind
from nsys2prv.nsight.info import PROCESS_MASK
from nsys2prv.nsight.source import NULL, Columns, Part

#: What the names of OpenMP's tables begin with.
OPENMP_PREFIX = "OPENMP_EVENT_KIND_"
#: Value of the catalogue's sets for what they do not know.
UNKNOWN_VALUE = 99
#: ompt_task_flag_t: what a task is, below the bits that say how it runs.
TASK_TYPE, IMPLICIT = 0x1F, 2
#: ompt_sync_region_t.
BARRIERS = (1, 2, 3, 4, 8, 9, 10)
#: A range longer than this (ns) has no end on the report's clock, where the report does not say how
#: long it lasts.
LONGEST_RANGE = 1 << 53
#: Parallel regions asked for in one statement, at most.
MOST_REGIONS = 10_000
#: Table -> layout of OpenACC.
OPENACC_LAYOUTS = {
    f"CUPTI_ACTIVITY_KIND_OPENACC_{kind.upper()}": f"openacc_{kind}"
    for kind in ("other", "data", "launch")
}
#: ENUM_OPENACC_DEVICE of devices that have a CUDA ordinal.
NVIDIA_DEVICE = 4


class Construct(Struct, frozen=True):
    """Rows of a table that become records of a layout."""

    #: Table, without OPENMP_PREFIX.
    table: str
    #: Layout in the catalogue.
    layout: str
    #: The column that says of what kind each row is, or the value of all.
    value: str | int
    #: The kinds that are meant; () for all.
    select: tuple[int, ...] = ()
    #: The kinds that are not meant.
    but: tuple[int, ...] = ()
    #: The bits of the column that count.
    mask: int = -1


RANGES = (
    Construct("PARALLEL", "openmp_parallel", 28),
    Construct("TASK", "openmp_implicit_task", "kind", select=(IMPLICIT,), mask=TASK_TYPE),
    Construct("TASK", "openmp_task", "kind", but=(IMPLICIT,), mask=TASK_TYPE),
    Construct("SYNC_REGION", "openmp_barrier", "kind", select=BARRIERS),
    Construct("SYNC_REGION", "openmp_sync_region", "kind", but=BARRIERS),
    Construct("SYNC_REGION_WAIT", "openmp_sync_wait", "kind"),
    Construct("MASTER", "openmp_master", 32),
    Construct("REDUCTION", "openmp_reduction", 33),
    Construct("WORKSHARE", "openmp_workshare", "kind"),
    Construct("MUTEX_WAIT", "openmp_mutex_wait", "kind"),
    Construct("CRITICAL_SECTION", "openmp_critical_section", "kind"),
    Construct("THREAD", "openmp_thread", "threadType"),
)
POINTS = (
    Construct("TASK_CREATE", "openmp_task_create", 15),
    Construct("TASK_SCHEDULE", "openmp_task_schedule", "priorTaskStatus"),
    Construct("CANCEL", "openmp_cancel", 17),
    Construct("MUTEX_RELEASED", "openmp_mutex_released", "kind"),
    Construct("LOCK_INIT", "openmp_lock_init", "kind"),
    Construct("LOCK_DESTROY", "openmp_lock_destroy", "kind"),
    Construct("DISPATCH", "openmp_dispatch", "kind"),
    Construct("FLUSH", "openmp_flush", 26),
)


def extract_constructs(
    declared: tuple[Construct, ...], lasting: bool, extraction: Extraction, part: Part
) -> Iterator[Rows]:
    """Yield the rows of these constructs; those that do not last have their begin alone."""
    constructs = [
        construct for construct in declared if OPENMP_PREFIX + construct.table == part.table
    ]
    wanted = {
        *list_columns(*(construct.layout for construct in constructs)),
        *(construct.value for construct in constructs if isinstance(construct.value, str)),
    }
    columns = extraction.read(
        part, ("start", "end", "globalTid", *sorted(wanted)), short=True, times=("start",)
    )
    if lasting:
        columns.integers["end"] = _find_ends(extraction, part, columns)
        columns = extraction.drop_short(columns)
    else:
        columns.integers["end"] = np.where(columns["start"] == NULL, NULL, columns["start"] + 1)
    for construct in constructs:
        yield _make_records(extraction, construct, columns)


def _make_records(extraction: Extraction, construct: Construct, columns: Columns) -> Rows:
    if isinstance(construct.value, int):
        kind = np.full(columns.rows, construct.value)
    else:
        value = columns[construct.value]
        kind = np.where(value == NULL, UNKNOWN_VALUE, value & construct.mask)
    if construct.select or construct.but:
        chosen = np.isin(kind, construct.select or construct.but, invert=not construct.select)
        columns, kind = columns.where(chosen), kind[chosen]
    value_set = load_catalogue().layouts[construct.layout].fields[0].values
    assert isinstance(value_set, ValueSet)
    event = np.where(np.isin(kind, [value for value, _ in value_set.labels]), kind, UNKNOWN_VALUE)
    return make_rows(extraction, construct.layout, columns, {"event": event})


def _find_ends(extraction: Extraction, part: Part, columns: Columns) -> np.ndarray:
    """Return the ends of ranges; of one that has none, or one on another clock, its parallel
    region's, else NULL.
    """
    begin, end = columns["start"], columns["end"]
    longest = max(extraction.report.duration_ns or 0, 0) or LONGEST_RANGE
    # As unsigned numbers, differences are right whatever the times.
    too_long = (end > begin) & ((end - begin).view(np.uint64) > np.uint64(longest))
    lost = np.flatnonzero((begin != NULL) & ((end == NULL) | too_long | ((end == 0) & (begin > 0))))
    if not len(lost):
        return end
    closed = end.copy()
    closed[lost] = NULL
    if "parallelId" in columns.integers and part.table != OPENMP_PREFIX + "PARALLEL":
        region_ends = _find_region_ends(
            extraction, columns["globalTid"][lost], columns["parallelId"][lost], longest
        )
        closed[lost] = np.where(region_ends > begin[lost], region_ends, NULL)
        extraction.account.repaired[Reason.NO_END_IN_REGION] += int((closed[lost] != NULL).sum())
    return closed


def _find_region_ends(
    extraction: Extraction, thread: np.ndarray, region: np.ndarray, longest: int
) -> np.ndarray:
    """Return the end of each (process of a globalTid, parallelId), NULL where the report has no
    plausible one.
    """
    table = OPENMP_PREFIX + "PARALLEL"
    part = extraction.report.parts.get(table)
    ids = np.unique(region[region != NULL]).tolist()
    if part is None or not ids:
        return np.full(len(region), NULL)
    pieces = []
    for first in range(0, len(ids), MOST_REGIONS):
        where = f"{{parallelId}} IN ({', '.join(map(str, ids[first : first + MOST_REGIONS]))}) AND {{end}} - {{start}} BETWEEN 0 AND {longest}"
        rows = extraction.database.read(part, ("end", "parallelId", "globalTid"), (), where)
        process = rows["globalTid"] & PROCESS_MASK
        piece = {"process": process, "region": rows["parallelId"], "until": rows["end"]}
        pieces.append(pl.DataFrame(piece))
    by_region = pl.concat(pieces).group_by("process", "region").agg(pl.col("until").max())
    regions = pl.DataFrame({"process": thread & PROCESS_MASK, "region": region})
    found = regions.join(by_region, on=["process", "region"], how="left", maintain_order="left")
    return found["until"].fill_null(NULL).to_numpy()


def extract_openacc(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield OpenACC constructs, with their place in the code."""
    layout = OPENACC_LAYOUTS[part.table]
    wanted = ("start", "end", "globalTid", "nameId", "srcFile", "cuDeviceId", *list_columns(layout))
    columns = extraction.read(part, wanted)
    device = columns["DeviceType"]
    has_ordinal = (device == NVIDIA_DEVICE) | (device == NULL)
    fields = {
        "source": _name_sources(extraction, columns),
        "device": np.where(has_ordinal, blank_negative(columns["cuDeviceId"]), ABSENT),
    }
    yield make_rows(extraction, layout, columns, fields)


def _name_sources(extraction: Extraction, columns: Columns) -> np.ndarray:
    """Return name indices of `name@file:line`, or of the name alone where no file is known."""
    (names, files, lines), codes = factorize_together(
        columns["nameId"], columns["srcFile"], columns["lineNo"]
    )
    read = extraction.read_strings
    texts = [
        f"{name}@{file}" + (f":{line}" if line != NULL else "") if file else name
        for name, file, line in zip(read(names), read(files), lines.tolist(), strict=True)
    ]
    return extraction.number_names("openacc_source", codes, text=texts)


KINDS = (
    declare_kind("openacc", extract_openacc),
    *(
        declare_kind(
            name,
            partial(extract_constructs, constructs, lasting),
            tables=dict.fromkeys(OPENMP_PREFIX + construct.table for construct in constructs),
            layouts=[construct.layout for construct in constructs],
        )
        for name, constructs, lasting in (
            ("openmp", RANGES, True),
            ("openmp_points", POINTS, False),
        )
    ),
)
