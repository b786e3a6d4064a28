"""NCCL calls on host threads (kinds of events) with their NVTX payloads, and which kernels do the work
of which calls (:func:`attach_payloads`).

Payloads have three forms: a flat JSON object (``jsonText``); bytes (``binaryData``: four
little-endian 64-bit numbers - domain, schema, size, offset - and the payload, laid out by the
schema tables); a table per schema (``DYNAMIC_NVTXPAYLOAD_DATATYPE_...``, joined by event id).
Fields are known by their names, never by schema ids, which changed between versions of NCCL. The
advanced NCCL trace of nsys 2025.6 and later is JSON with names of its own, and counts elements of a
data type instead of bytes. Everything is done on the distinct payloads: loops are over these, their
fields, schemas and shapes.

A kernel's launch lies inside the NCCL range of its call, on the same thread. Between ncclGroupStart
and ncclGroupEnd calls only queue up, and the launch lies inside ncclGroupEnd; in the advanced trace
calls and launch lie inside an "API Group". Either way the ranges of a thread fall into *groups* that
follow each other: an outermost range by itself, or all from a ncclGroupStart to its ncclGroupEnd.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import (
    ABSENT,
    blank_negative,
    factorize,
    factorize_together,
    find_places,
)
from nsys2prv._util.files import load_shipped_file
from nsys2prv._util.stored_columns import read_frame
from nsys2prv.events import nvtx
from nsys2prv.events.catalogue import map_labels
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import Reason, Rows
from nsys2prv.events.launches import Launches
from nsys2prv.export.database import Database
from nsys2prv.export.info import PROCESS_MASK
from nsys2prv.export.source import NULL, Columns, Part, decode_texts

_VALUES = map_labels("nccl_operation")
#: Of several operations: of one kernel, and of calls between GroupStart and GroupEnd.
SEVERAL_OPERATIONS = _VALUES["several operations in a group"]
ALL_REDUCE, SEND, RECEIVE, SEND_RECEIVE, GROUP_START, GROUP_END = (
    _VALUES[name] for name in ("allreduce", "send", "recv", "sendrecv", "groupstart", "groupend")
)
#: Operations that move data up to this one.
LAST_OPERATION = _VALUES["waitsignal"]
#: The first and the last operation that makes communicators.
FIRST_MAKING, LAST_MAKING = _VALUES["comminitrank"], _VALUES["commgrow"]
#: Operations in which all wait for all, all for the root, the root for all.
ALL_WAIT = tuple(_VALUES[name] for name in ("allreduce", "allgather", "reducescatter", "alltoall"))
WAIT_FOR_ROOT = _VALUES["broadcast"], _VALUES["scatter"]
ROOT_WAITS = _VALUES["reduce"], _VALUES["gather"]
#: Operations whose bytes are one rank's share.
SHARE_OPERATIONS = tuple(
    _VALUES[name] for name in ("allgather", "reducescatter", "alltoall", "gather", "scatter")
)
#: Operations and other functions in lower case -> value of nccl_operation in the catalogue.
OPERATIONS = {name: value for name, value in _VALUES.items() if value != SEVERAL_OPERATIONS} | {
    "bcast": _VALUES["broadcast"]
}
_KERNEL = re.compile(
    load_shipped_file("nsys2prv.events.catalogue", "kernel_rules.yaml")["nccl_kernels"], re.VERBOSE
)
_COLLECTIVE = re.compile(
    r"(AllReduce|AllGather|ReduceScatter|SendRecv|AlltoAll|Broadcast|Reduce|Gather|Scatter)"
)
#: Names of fields and values in payloads.
_PAYLOADS = load_shipped_file("nsys2prv.events.catalogue", "nccl_payloads.yaml")
#: Field -> the names it has.
SPELLINGS: Mapping[str, list[str]] = _PAYLOADS["fields"]
#: The value of rows that lack a field: of communicators (bits of their hash) it is 0.
NONE = dict.fromkeys(SPELLINGS, ABSENT) | {"communicator": 0}
#: Fields that groups have where all their operations share them.
COMMON = ("reduction", "root", "peer", "group", "data_type")
#: Columns of the calls that are set aside for the kernels.
CALL_COLUMNS = (
    *("thread", "begin", "end", "operation"),
    *("communicator", "bytes", "ranks", "rank", "sequence", *COMMON),
)
#: Sums that are divided among the kernels of a group.
_SUMS = ("fused", "messages", "bytes", "reduce_bytes", "share_bytes", "message_bytes")
#: Bytes of an element by NCCL's ncclDataType_t plus one.
TYPE_SIZES = np.array([0, *_PAYLOADS["type_sizes"]])
HEADER_BYTES = 32
FIRST_SCHEMA_ID = 1 << 24
DYNAMIC_TABLE = re.compile(r"DYNAMIC_NVTXPAYLOAD_DATATYPE_(-?\d+)_(\d+)_(\d+)")
#: Tables of payloads with fewer rows are read whole from their pages: to have SQLite pick the rows
#: of a part takes longer.
SMALL_TABLE = 100_000
#: Facts of communicators (0: without a recorded one): the process, its rank, and whether the call
#: that created it says so.
COMMUNICATORS = "nccl_communicators"
#: Columns of ranges that are read.
COLUMNS, TEXTS = (*nvtx.NAME_COLUMNS, "jsonTextId", "eventId"), ("text", "jsonText", "binaryData")
#: Facts of kernels; and of sends and receives, a row for each and its kernel, where one kernel does
#: all of its group.
KERNELS, MESSAGES = "nccl_kernels", "nccl_messages"
#: Fields of the layout, and columns of the facts KERNELS, both from the group of calls.
KERNEL_FIELDS, KERNEL_FACTS = (
    _PAYLOADS[name].split() for name in ("kernel_fields", "kernel_facts")
)

#: Conditions for the rows of the kinds, by report.
select_calls, select_operations = map(nvtx.select_nccl_rows, (nvtx.PUSHPOP, nvtx.STARTEND))

# ---- names ---------------------------------------------------------------------------------------


def is_nccl_kernel(name: str) -> bool:
    """True if a name, demangled, mangled or short, is one of NCCL's kernels."""
    return _KERNEL.match(name) is not None


def find_kernel_operation(name: str) -> int:
    """Return the nccl_operation that a kernel's name tells, 0 for none (``ncclDevKernel_Generic``)."""
    match = _COLLECTIVE.search(name)
    return OPERATIONS[match[1].lower()] if match else 0


def find_operation(name: str) -> int:
    """Return the nccl_operation of a range: of a C function (``ncclAllReduce``) or of the advanced
    trace (``AllReduce``); 0 for none.
    """
    return OPERATIONS.get(name.removeprefix("nccl").lower(), 0)


# ---- payloads ------------------------------------------------------------------------------------


def _normalize_field_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_SPELLED = {
    spelling.lower(): field for field, spellings in SPELLINGS.items() for spelling in spellings
}
_FIELD_OF = {_normalize_field_name(spelling): field for spelling, field in _SPELLED.items()}
_BLANKS = r"[ \t\r\n]*"
#: A field of a flat object in JSON, or one type name deeper (``"Root": {"int32": 3}``).
_JSON_FIELD = re.compile(
    rf'"({"|".join(map(re.escape, _SPELLED))})"{_BLANKS}:{_BLANKS}'
    rf'(?:\{{{_BLANKS}"\w+"{_BLANKS}:{_BLANKS})?("[^"]*"|-?[0-9A-Za-z_]+)',
    re.ASCII | re.IGNORECASE,
)


def read_payloads(extraction: Extraction, columns: Columns) -> dict[str, np.ndarray]:
    """Return the payload fields of rows read with eventId, jsonTextId, globalTid and the texts
    jsonText and binaryData.
    """
    payloads = {field: np.full(columns.rows, none) for field, none in NONE.items()}
    damaged = np.zeros(columns.rows, bool)
    forms = _read_json(extraction, columns), _read_binary(extraction, columns)
    for found in (*forms, *_read_dynamic(extraction, columns["eventId"])):
        damaged |= found.pop("damaged", False)
        for field, values in found.items():
            lacking = payloads[field] == NONE[field]
            payloads[field] = np.where(lacking, values, payloads[field])
    count, kind, size = payloads.pop("count"), payloads["data_type"], payloads["bytes"]
    countable = (size == ABSENT) & (count >= 0) & (kind > 0) & (kind < len(TYPE_SIZES))
    if countable.any():
        payloads["bytes"] = np.where(countable, count * TYPE_SIZES[countable * kind], size)
    lost = damaged & np.all([payloads[field] == NONE[field] for field in payloads], axis=0)
    extraction.account.repaired[Reason.DAMAGED_PAYLOAD] += int(lost.sum())
    return payloads


def _read_json(extraction: Extraction, columns: Columns) -> dict[str, np.ndarray]:
    """Return payloads of the form jsonText, inline or by the id of a registered string, and which are
    `damaged`.
    """
    texts, codes = nvtx.find_texts(extraction, columns, "jsonText", "jsonTextId", "")
    if not any(texts):
        # As in most reports.
        return {}
    found = list(map(_find_fields, texts))
    numbers = {
        field: _parse_numbers(field, [(one or {}).get(field, "") for one in found])[codes]
        for field in SPELLINGS
    }
    return numbers | {"damaged": np.array([one is None for one in found])[codes]}


@lru_cache(10_000)
def _find_fields(text: str) -> dict[str, str] | None:
    """Return the fields of a flat object in JSON as texts; None where the text is no whole object."""
    stripped = text.strip(" \t\r\n")
    if text and not (len(stripped) > 1 and stripped[0] + stripped[-1] == "{}"):
        return None
    # Of fields that come twice the first counts.
    found = reversed(_JSON_FIELD.findall(text))
    return {_SPELLED[name.lower()]: value.strip('"') for name, value in found}


def _parse_numbers(field: str, texts: Sequence[str]) -> np.ndarray:
    """Return the numbers of a field that texts tell, as in NONE where there is none."""
    return np.array([_parse_number(field, text) for text in texts], np.int64)


@lru_cache(100_000)
def _parse_number(field: str, text: str) -> int:
    """Return the number that the text of a field tells: a communicator's hash, decimal (signed or
    not) or hexadecimal, is its 64 bits as a signed number; of a value set NCCL's names
    (``ncclFloat32``) or its numbers, which count from 0.
    """
    number = int(text) if re.fullmatch("[+-]?[0-9]+", text) else None
    if field == "communicator":
        if digits := re.fullmatch("0[xX]([0-9a-fA-F]+)", text):
            number = int(digits[1], 16)
        if number is None or not -(1 << 63) <= number < 1 << 64:
            return NONE[field]
        return number - (1 << 64) if number >> 63 == 1 else number
    if field in _PAYLOADS["also_called"]:
        values = map_labels(f"nccl_{field}")
        name = text.lower().removeprefix("nccl").replace("_", "")
        name = _PAYLOADS["also_called"][field].get(name, name)
        known = number is not None and 0 <= number < len(values)
        return values.get(name, number + 1 if known else ABSENT)
    return number if number is not None and 0 <= number < 1 << 63 else ABSENT


class PayloadField(Struct, frozen=True):
    """A field of a schema: where it stands (bytes) and how; names of an enumeration's values."""

    #: Name in this project.
    field: str
    #: Bytes from the begin of the payload.
    offset: int
    #: dtype of its value.
    kind: str
    #: Name of each value of an enumeration, by the value as text.
    names: dict[str, str]


def read_schemas(database: Database) -> dict[tuple[int, int], list[PayloadField]]:
    """Return the known fields of every schema by (domain id, schema id).

    Processes repeat schemas, and the tables do not tell which process a row is of: of a schema
    defined in two ways nothing is kept.
    """
    rows = database.read_small_table("NVTX_PAYLOAD_ENUMS", "domainId", "schemaId", "size")
    sizes = {(domain, number): size for domain, number, size in rows}
    enums: dict[tuple[int, int], dict[str, str]] = defaultdict(dict)
    columns = ("value", "name", "domainId", "schemaId")
    for value, name, *place in database.read_small_table(
        "NVTX_PAYLOAD_ENUM_ENTRIES", *columns, types=(int, str)
    ):
        enums[tuple(place)][str(value)] = name
    schemas: dict[tuple[int, int], dict[int, PayloadField | None]] = defaultdict(dict)
    clashing = set()
    for domain, number, index, kind, name, offset in database.read_small_table(
        "NVTX_PAYLOAD_SCHEMA_ENTRIES", "domainId", "schemaId", "idx", "type", "name", "offset"
    ):
        offset = 0 if offset is None else offset
        if not isinstance(kind, int) or not isinstance(offset, int) or offset < 0:
            continue
        width = _PAYLOADS["integers"].get(kind)
        if kind >= FIRST_SCHEMA_ID:
            width = {1: "i1", 2: "i2", 8: "i8"}.get(sizes.get((domain, kind)) or 4, "i4")
        field = _FIELD_OF.get(_normalize_field_name(name)) if isinstance(name, str) else None
        names = enums.get((domain, kind), {})
        entry = PayloadField(field, offset, f"<{width}", names) if field and width else None
        if schemas[domain, number].setdefault(index, entry) != entry:
            clashing.add((domain, number))
    return {
        key: list(filter(None, entries.values()))
        for key, entries in schemas.items()
        if key not in clashing
    }


def _read_binary(extraction: Extraction, columns: Columns) -> dict[str, np.ndarray]:
    """Return payloads of the form binaryData, and which are `damaged`."""
    codes, texts = columns.texts["binaryData"]
    distinct = texts.series.to_list()
    sizes = np.fromiter(map(len, distinct), np.int64, len(distinct))
    damaged, begins = sizes > 0, np.cumsum(sizes) - sizes
    data = np.frombuffer(b"".join(distinct), np.uint8)

    def take_integers(rows: np.ndarray, first: int, last: int, kind: str) -> np.ndarray:
        return data[begins[rows, None] + np.arange(first, last)].view(kind)

    headed = np.flatnonzero(sizes >= HEADER_BYTES)
    if not len(headed):
        return {"damaged": damaged[codes]}
    schemas = extraction.find_once("NCCL schemas", lambda: read_schemas(extraction.database))
    numbers = {field: np.full(len(distinct), none) for field, none in NONE.items()}
    heads = take_integers(headed, 0, HEADER_BYTES, "<i8")
    values, shape = factorize_together(heads[:, 0], heads[:, 1], heads[:, 3], sizes[headed])
    for index, (domain, number, offset, length) in enumerate(
        zip(*(column.tolist() for column in values), strict=True)
    ):
        entries = schemas.get((domain, number))
        if entries is None or offset < 0:
            continue
        rows, told = headed[shape == index], set()
        for entry in entries:
            first = offset + entry.offset
            last = first + np.dtype(entry.kind).itemsize
            if last <= length:
                column = take_integers(rows, first, last, entry.kind)[:, 0]
                numbers[entry.field][rows] = _translate(entry, column.astype(np.int64))
                told.add(entry.field)
        damaged[rows] = told < {entry.field for entry in entries}
    return {name: column[codes] for name, column in {**numbers, "damaged": damaged}.items()}


def _translate(entry: PayloadField, column: np.ndarray) -> np.ndarray:
    """Return the numbers of a field from its integers."""
    if entry.names or entry.field in _PAYLOADS["also_called"]:
        distinct, codes = factorize(column)
        texts = [entry.names.get(text, text) for text in map(str, distinct.tolist())]
        return _parse_numbers(entry.field, texts)[codes]
    return column if entry.field == "communicator" else blank_negative(column)


def _read_dynamic(extraction: Extraction, events: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    """Yield the payloads of each table made per schema, by event id."""
    tables = list(filter(DYNAMIC_TABLE.fullmatch, extraction.report.parts))
    event_ids = events[events != NULL]
    if not tables or not len(event_ids):
        return
    where = f"{{eventId}} BETWEEN {event_ids.min()} AND {event_ids.max()}"
    for part in map(extraction.report.parts.__getitem__, tables):
        present = extraction.database.tables[part.table].columns
        names = {_FIELD_OF.get(_normalize_field_name(column)): column for column in present}
        names.pop(None, None)
        if not names or "eventId" not in present:
            continue
        small = part.rows <= SMALL_TABLE
        read = extraction.read(part, ("eventId",), tuple(names.values()), "" if small else where)
        order = np.argsort(read["eventId"], kind="stable")
        row = np.append(order, -1)[find_places(read["eventId"][order], events)]
        numbers = {}
        for field, column in names.items():
            codes, texts = read.texts[column]
            values = _parse_numbers(field, decode_texts(texts.series).to_list())[codes]
            numbers[field] = np.append(values, NONE[field])[row]
        yield numbers


def extract_ranges(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield the ranges of NCCL's domain in the layout of the kind."""
    layout = extraction.kind.layouts[0]
    columns = extraction.read(part, COLUMNS, TEXTS, short=True)
    if not columns.rows:
        return
    payloads = read_payloads(extraction, columns)
    texts, text_codes = nvtx.find_texts(extraction, columns)
    operations = list(map(find_operation, texts))
    operation = np.array(operations, np.int64)[text_codes]
    if layout == "nccl_call":
        _index_calls(extraction, columns, operation, payloads)
    rows = nvtx.make_ranges(extraction, layout, columns)
    rows.columns |= payloads
    rows.columns["operation"] = np.where(operation == 0, ABSENT, operation)
    communicator = name_communicators(extraction, payloads["communicator"])
    rows.columns["communicator"] = communicator
    yield rows.where(extraction.mask_long_enough(columns["start"], columns["end"]))


def name_communicators(extraction: Extraction, hashes: np.ndarray) -> np.ndarray:
    """Return local name indices of communicators by the bits of their hash; ABSENT where there is
    none.
    """

    def make_texts(distinct: np.ndarray) -> list[str]:
        return [f"{value:#018x}" for value in distinct.view(np.uint64).tolist()]

    return extraction.name_rows("nccl_communicator", [hashes], make_texts, hashes != 0)


def _index_calls(
    extraction: Extraction, columns: Columns, operation: np.ndarray, payloads: dict[str, np.ndarray]
) -> None:
    """Set the calls aside for the kernels, and store as facts what they say about communicators."""
    begin, end, thread = (columns[name] for name in ("start", "end", "globalTid"))
    end = np.where(end == NULL, np.iinfo(np.int64).max, end)
    told = {"thread": thread, "begin": begin, "end": end, "operation": operation, **payloads}
    usable = (pl.col("begin") != NULL) & (pl.col("thread") != NULL)
    calls = pl.LazyFrame(told).select(CALL_COLUMNS).filter(usable)
    made = pl.col("operation").is_between(FIRST_MAKING, LAST_MAKING)
    process = pl.col("thread") & PROCESS_MASK
    facts = calls.filter(made | (pl.col("communicator") != 0))
    facts = facts.select("communicator", "ranks", "rank", process=process, made=made)
    calls, facts = pl.collect_all([calls, facts.unique(maintain_order=True)])
    extraction.found_nccl_calls.append(calls.to_dict())
    if facts.height:
        extraction.add_fact(COMMUNICATORS, facts.to_dict())


# ---- kernels -------------------------------------------------------------------------------------


def _mark_outer() -> pl.Expr:
    """Return whether a range, in order, begins after all earlier ones of its thread have ended."""
    reached = pl.col("end").cum_max().shift().over("thread")
    return (pl.col("begin") >= reached).fill_null(True)


def group_calls(calls: pl.LazyFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the operations that move data, in order, each with its `call_group` and its `place` in it,
    calls within calls left out; and the groups of these: `thread`, `begin`, `end`, the fields that
    their operations share (or ABSENT), the numbers of fused operations and messages, and bytes in
    all. shared: of how many ranks the process is, 0 unknown. calls: CALL_COLUMNS.
    """
    operation, size = pl.col("operation"), pl.col("bytes")
    descending = [False, False, True]
    calls = calls.sort("thread", "begin", "end", descending=descending, maintain_order=True)
    opened = (operation == GROUP_START).cast(pl.Int64) - (operation == GROUP_END).cast(pl.Int64)
    calls = calls.with_columns(outer=_mark_outer())
    calls = calls.with_columns(level=(pl.col("outer") * opened).cum_sum().over("thread"))
    # A capture may begin inside a group: its end then counts for nothing.
    least = pl.min_horizontal(pl.col("level").cum_min(), 0)
    before = (pl.col("level") - least).shift(fill_value=0).over("thread")
    number = (pl.col("outer") & (before == 0)).cum_sum().cast(pl.Int64) - 1
    calls = calls.with_columns(call_group=number, process=pl.col("thread") & PROCESS_MASK)
    calls = calls.collect().lazy()
    moving = calls.filter(operation.is_between(1, LAST_OPERATION)).filter(_mark_outer())
    # Ranks as stated by the calls that made communicators.
    is_making = operation.is_between(FIRST_MAKING, LAST_MAKING)
    making = calls.filter(is_making & (pl.col("communicator") != 0) & (pl.col("ranks") > 0))
    several = pl.col("rank").n_unique() > 1
    made = making.group_by("process", "communicator").agg(
        made_ranks=pl.col("ranks").max(),
        made_rank=pl.when(several).then(ABSENT).otherwise(pl.col("rank").min()),
        shared=pl.col("rank").n_unique().cast(pl.Int64),
    )
    keys = ["process", "communicator"]
    moving = moving.join(made, on=keys, how="left", maintain_order="left")
    moving = moving.with_columns(row=pl.int_range(pl.len())).with_columns(
        _or_made("ranks", pl.col("ranks") > 0),
        _or_made("rank", pl.col("rank") >= 0),
        pl.col("shared").fill_null(0),
        place=pl.col("row") - pl.col("row").min().over("call_group"),
    )
    operations = moving.collect()
    pairs, several = operation.is_in([SEND, RECEIVE]), ~_is_one("communicator")
    known = (size.min() >= 0) & ~several
    of_one = {name: _find_common(name, ABSENT) for name in ("rank", *COMMON)}
    groups = (
        operations.lazy()
        .group_by("call_group", maintain_order=True)
        .agg(
            pl.col("thread").first(),
            pl.col("shared").max(),
            operation=_find_common("operation", SEVERAL_OPERATIONS),
            communicator=_find_common("communicator", 0),
            fused=pl.len(),
            messages=pairs.sum(),
            bytes=pl.when(known).then(size.sum()).otherwise(ABSENT),
            known=known,
            reduce_bytes=pl.when(operation == ALL_REDUCE).then(size).sum(),
            share_bytes=pl.when(operation.is_in(SHARE_OPERATIONS)).then(size).sum(),
            message_bytes=pl.when(pairs).then(size).sum(),
            ranks=pl.when(several).then(ABSENT).otherwise(pl.col("ranks").max()),
            **{**of_one, "rank": pl.when(several).then(ABSENT).otherwise(of_one["rank"])},
            # Of the collective that comes first.
            first_operation=operation.filter(~pairs).first().fill_null(0),
            sequence=pl.col("sequence").filter(~pairs).first().fill_null(ABSENT),
        )
    )
    spans = calls.group_by("call_group").agg(pl.col("begin").first(), pl.col("end").max())
    groups = groups.join(spans, on="call_group", how="left", maintain_order="left")
    return operations, groups.cast(pl.Int64).collect()


def _or_made(name: str, is_stated: pl.Expr) -> pl.Expr:
    """Return what a call states of its ranks, else what the call that made its communicator does."""
    made = pl.col(f"made_{name}").fill_null(ABSENT)
    return pl.when(is_stated).then(name).otherwise(made).alias(name)


def _is_one(name: str) -> pl.Expr:
    """Return whether all operations of a group have the same value."""
    return pl.col(name).min() == pl.col(name).max()


def _find_common(name: str, otherwise: int) -> pl.Expr:
    """Return the value that all operations of a group have, else another."""
    return pl.when(_is_one(name)).then(pl.col(name).first()).otherwise(otherwise)


def match_kernels(groups: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the group in which each kernel was launched: columns of `groups`, and `parts`, the number of
    kernels among which the group's work is divided. ABSENT, the communicator 0, where there is none.

    A process with several GPUs makes the calls of all of them in one group, of equal shares: each
    device has its part of the sums. Of several communicators in one group nothing tells which
    kernel belongs to which: communicator and bytes stay unknown.

    kernels: `thread` (globalTid) and `time` (local ns) of the launching call, `device`.
    """
    tied = (
        kernels.lazy()
        .with_row_index("row")
        .sort("time")
        .join_asof(
            groups.lazy().sort("begin"),
            left_on="time",
            right_on="begin",
            by="thread",
            coalesce=False,
            check_sortedness=False,
        )
        .sort("row")
    )
    shared, fused, parts = map(pl.col, ("shared", "fused", "parts"))
    devices = pl.col("device").n_unique().over("call_group")
    tied = tied.with_columns(parts=pl.when(shared > 0).then(shared).otherwise(devices))
    divides = (parts > 1) & (fused % parts == 0)
    tied = tied.with_columns(parts=pl.when(divides).then(parts).otherwise(1))
    tied = tied.with_columns(pl.col(_SUMS) // parts)
    is_inside = (pl.col("time") <= pl.col("end")).fill_null(False)
    names = [*groups.columns, "parts"]
    tied = tied.select(
        pl.when(is_inside).then(name).otherwise(0 if name == "communicator" else ABSENT).alias(name)
        for name in names
    )
    return tied.cast(pl.Int64).collect()


def attach_payloads(
    extraction: Extraction,
    columns: Columns,
    launches: Launches,
    objects: np.ndarray,
    names: Sequence[str],
    codes: np.ndarray,
) -> dict[str, np.ndarray]:
    """Return the payload fields of NCCL kernels, rows of the kernel table launched by the calls
    found, named by those at `codes`; sets facts aside.
    """
    in_graph = columns["graphNodeId"] > 0
    call, thread = (np.where(in_graph, NULL, one) for one in (launches.begin, launches.thread))
    by_name = np.array([find_kernel_operation(name) for name in names], np.int64)[codes]
    facts = {
        "process": columns["globalPid"],
        "device": columns["deviceId"],
        "stream": columns["streamId"],
        "object_kernel": objects,
        "time_begin": columns["start"],
        "time_end": columns["end"],
        "time_call": call,
        "in_graph": in_graph.astype(np.int64),
        "by_ends": np.zeros(len(in_graph), np.int8),
        "by_name": by_name,
    }
    moving, groups = extraction.find_once("NCCL calls", lambda: _read_groups(extraction))
    kernels = pl.DataFrame({"thread": thread, "time": call, "device": columns["deviceId"]})
    tied = match_kernels(groups, kernels)
    told = {one.name: one.to_numpy() for one in tied}
    extraction.add_fact(KERNELS, {**facts, **{name: told[name] for name in KERNEL_FACTS}})
    _save_messages(extraction, tied.hstack(pl.DataFrame(facts)), moving)
    if not extraction.settings.nccl_calls:
        return dict.fromkeys((*KERNEL_FIELDS, "communicator"), np.full(len(call), ABSENT))
    payloads = {field: told[field] for field in KERNEL_FIELDS}
    # A kernel of several operations has no number of its own.
    payloads["sequence"] = np.where(told["fused"] == 1, told["sequence"], ABSENT)
    return {**payloads, "communicator": name_communicators(extraction, told["communicator"])}


def _read_groups(extraction: Extraction) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the operations and groups of the report's NCCL calls."""
    none = pl.DataFrame(schema=dict.fromkeys(CALL_COLUMNS, pl.Int64))
    return group_calls(pl.concat([none, *map(read_frame, extraction.nccl_calls)]).lazy())


def _save_messages(extraction: Extraction, kernels: pl.DataFrame, operations: pl.DataFrame) -> None:
    """Set MESSAGES aside. kernels: facts and groups of kernels."""
    alone = kernels.lazy().filter((pl.col("messages") > 0) & (pl.col("parts") == 1))
    of_kernel = ("process", "object_kernel", "time_begin", "time_end", "time_call", "messages")
    pure = (pl.col("fused") == pl.col("messages")).cast(pl.Int64)
    names = ("place", "communicator", "operation", "bytes", "peer", "ranks", "rank")
    pairs = operations.lazy().filter(pl.col("operation").is_in([SEND, RECEIVE]))
    messages = alone.select("call_group", *of_kernel, pure=pure).join(
        pairs.select("call_group", *names), on="call_group", maintain_order="left_right"
    )
    facts = messages.drop("call_group").collect()
    if facts.height:
        extraction.add_fact(MESSAGES, facts.to_dict())
