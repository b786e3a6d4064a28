"""Read NCCL calls on host threads with their NVTX payloads, and assign kernels to calls
(:func:`attach_payloads`).

Payloads have three forms: a flat JSON object (``jsonText``); bytes (``binaryData``: four
little-endian 64-bit numbers - domain, schema, size, offset - and the payload, laid out as in the
schema tables); or a table per schema (``DYNAMIC_NVTXPAYLOAD_DATATYPE_...``, joined by event id).
Fields are identified by name, because schema ids differ between versions of NCCL. The advanced NCCL
trace of nsys 2025.6 and later is JSON with other names, and counts elements of a data type instead
of bytes. All steps process distinct payloads only.

The launch of a kernel is inside the NCCL range of its call, on the same thread. For a replayed
kernel, this is the captured launch. Between ncclGroupStart and ncclGroupEnd, calls are only queued,
and the launch is inside ncclGroupEnd. In the advanced trace, calls and launch are inside an "API
Group". In both cases, the ranges of a thread form consecutive *groups*: a single outermost range,
or all ranges from a ncclGroupStart to its ncclGroupEnd.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct

from nsys2prv._util.budget import REMEMBERED_RESULTS
from nsys2prv._util.columns import (
    ABSENT,
    blank_negative,
    count_occurrences,
    factorize,
    factorize_together,
    find_edges,
    find_places,
    group_rows,
    mask_changes,
    number_rows,
    take_rows,
)
from nsys2prv._util.files import load_shipped_file
from nsys2prv._util.intervals import order_ranges
from nsys2prv._util.stored_columns import read_columns
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
#: Operations with one rank's share as their bytes.
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
#: Fields that groups have if all their operations have the same value.
COMMON = ("reduction", "root", "peer", "group", "data_type")
#: Columns of calls or kernels by name.
Arrays = Mapping[str, np.ndarray]
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
#: Facts of communicators (0: without a recorded one): the process, its rank, on which of its GPUs, and
#: whether the call that created it says so.
COMMUNICATORS = "nccl_communicators"
#: Columns of ranges that are read.
COLUMNS, TEXTS = (*nvtx.NAME_COLUMNS, "jsonTextId", "eventId"), ("text", "jsonText", "binaryData")
#: Facts of kernels; and of sends and receives: a row for each, with its kernel, if one kernel
#: performs its whole group.
KERNELS, MESSAGES = "nccl_kernels", "nccl_messages"
#: Fields of the layout, and columns of the facts KERNELS, both from the group of calls.
KERNEL_FIELDS, KERNEL_FACTS = (
    _PAYLOADS[name].split() for name in ("kernel_fields", "kernel_facts")
)

#: Conditions for the rows of the kinds, by report.
select_calls, select_operations = map(nvtx.select_nccl_rows, (nvtx.PUSHPOP, nvtx.STARTEND))

# ---- names ---------------------------------------------------------------------------------------


def is_nccl_kernel(name: str) -> bool:
    """Return True if a name (demangled, mangled or short) belongs to an NCCL kernel."""
    return _KERNEL.match(name) is not None


def find_kernel_operation(name: str) -> int:
    """Return the operation of an NCCL kernel by its name, as a value of the set `nccl_operation`; 0
    if unknown (``ncclDevKernel_Generic``).
    """
    match = _COLLECTIVE.search(name)
    return OPERATIONS[match[1].lower()] if match else 0


def find_operation(name: str) -> int:
    """Return the operation of an NCCL range by its name, as a value of the set `nccl_operation`, or
    0: a C function (``ncclAllReduce``), or a name in the advanced trace (``AllReduce``).
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
    """Read the payloads (operation, bytes, communicator, ...) that NCCL adds to its NVTX ranges.
    Return field -> value of each row. columns: eventId, jsonTextId, globalTid, and the texts
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
    """Return payloads in jsonText form, inline or by the id of a registered string, and the mask
    `damaged`.
    """
    texts, codes = nvtx.find_texts(extraction, columns, "jsonText", "jsonTextId", "")
    if not any(texts):
        # This is so in most reports.
        return {}
    found = list(map(_find_fields, texts))
    numbers = {
        field: _parse_numbers(field, [(one or {}).get(field, "") for one in found])[codes]
        for field in SPELLINGS
    }
    return numbers | {"damaged": np.array([one is None for one in found])[codes]}


@lru_cache(10_000)
def _find_fields(text: str) -> dict[str, str] | None:
    """Return field -> text of a flat JSON object; None for an incomplete object."""
    stripped = text.strip(" \t\r\n")
    if text and not (len(stripped) > 1 and stripped[0] + stripped[-1] == "{}"):
        return None
    # If a field occurs twice, the first value is used.
    found = reversed(_JSON_FIELD.findall(text))
    return {_SPELLED[name.lower()]: value.strip('"') for name, value in found}


def _parse_numbers(field: str, texts: Sequence[str]) -> np.ndarray:
    """Return the numbers of a field from texts; missing texts get the value in NONE."""
    return np.array([_parse_number(field, text) for text in texts], np.int64)


@lru_cache(100_000)
def _parse_number(field: str, text: str) -> int:
    """Return the number in the text of a field.

    A communicator's hash, decimal (signed or not) or hexadecimal, becomes a signed 64-bit number.
    Fields of value sets contain NCCL's names (``ncclFloat32``) or its numbers, which count from 0.
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
    """A field of the binary payload of NVTX events: position in bytes, encoding, and the names of
    an enumeration's values.
    """

    #: Name in this project.
    field: str
    #: Bytes from the begin of the payload.
    offset: int
    #: dtype of its value.
    kind: str
    #: Name of each value of an enumeration, by the value as text.
    names: dict[str, str]


#: Fields of each schema by (domain id, schema id).
Schemas = dict[tuple[int, int], list[PayloadField]]


def read_schemas(database: Database) -> Schemas:
    """Return the known fields of every payload schema by (domain id, schema id)."""
    read = database.read_small_table
    value = "value", "name", "domainId", "schemaId"
    entry = "domainId", "schemaId", "idx", "type", "name", "offset"
    return _gather_schemas(
        tuple(read("NVTX_PAYLOAD_ENUMS", "domainId", "schemaId", "size")),
        tuple(read("NVTX_PAYLOAD_ENUM_ENTRIES", *value, types=(int, str))),
        tuple(read("NVTX_PAYLOAD_SCHEMA_ENTRIES", *entry)),
    )


@lru_cache(REMEMBERED_RESULTS)
def _gather_schemas(
    sizes_of_enums: tuple[tuple, ...], values: tuple[tuple, ...], listed: tuple[tuple, ...]
) -> Schemas:
    """Return the fields of schemas by the rows of their tables, which most ranks of a job share.

    Processes repeat schemas, and the tables do not identify the process of a row. Schemas with
    contradictory definitions are ignored.
    """
    sizes = {(domain, number): size for domain, number, size in sizes_of_enums}
    enums: dict[tuple[int, int], dict[str, str]] = defaultdict(dict)
    for value, name, *place in values:
        enums[tuple(place)][str(value)] = name
    schemas: dict[tuple[int, int], dict[int, PayloadField | None]] = defaultdict(dict)
    clashing = set()
    for domain, number, index, kind, name, offset in listed:
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
    """Return payloads in binaryData form, and the mask `damaged`."""
    codes, texts = columns.texts["binaryData"]
    distinct = texts.as_list()
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
    return take_rows({**numbers, "damaged": damaged}, codes)


def _translate(entry: PayloadField, column: np.ndarray) -> np.ndarray:
    """Return the values of a field from the integers in a payload."""
    if entry.names or entry.field in _PAYLOADS["also_called"]:
        distinct, codes = factorize(column)
        texts = [entry.names.get(text, text) for text in map(str, distinct.tolist())]
        return _parse_numbers(entry.field, texts)[codes]
    return column if entry.field == "communicator" else blank_negative(column)


def _read_dynamic(extraction: Extraction, events: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    """Yield the payloads of each table that was made for a schema, by event id."""
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
    """Yield the ranges of NCCL's NVTX domain."""
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
    """Name communicators by their hashes (64 bits). Return the local index of each name; ABSENT
    without a communicator.
    """

    def make_texts(distinct: np.ndarray) -> list[str]:
        return [f"{value:#018x}" for value in distinct.view(np.uint64).tolist()]

    return extraction.name_rows("nccl_communicator", [hashes], make_texts, hashes != 0)


def _index_calls(
    extraction: Extraction, columns: Columns, operation: np.ndarray, payloads: dict[str, np.ndarray]
) -> None:
    """Keep the calls to assign kernels to them, and store facts about communicators."""
    begin, end, thread = (columns[name] for name in ("start", "end", "globalTid"))
    end = np.where(end == NULL, np.iinfo(np.int64).max, end)
    told = {"thread": thread, "begin": begin, "end": end, "operation": operation, **payloads}
    usable = (begin != NULL) & (thread != NULL)
    calls = take_rows({name: told[name] for name in CALL_COLUMNS}, usable)
    extraction.found_nccl_calls.append(calls)
    made, communicator = _mask_making(calls["operation"]), calls["communicator"]
    facts = {name: calls[name] for name in ("communicator", "ranks", "rank")}
    facts["device"] = told["device"][usable]
    facts = take_rows(
        {**facts, "process": calls["thread"] & PROCESS_MASK, "made": made},
        np.flatnonzero(made | (communicator != 0)),
    )
    if len(facts["made"]):
        first, _ = number_rows(*(column.astype(np.int64) for column in facts.values()))
        extraction.add_fact(COMMUNICATORS, take_rows(facts, np.sort(first)))


# ---- kernels -------------------------------------------------------------------------------------


def group_calls(calls: Arrays) -> tuple[Arrays, Arrays]:
    """Find the operations that move data among NCCL calls, and the groups in which they are
    launched together. Return a table of operations and a table of groups.

    Operations are in order, with `call_group` and `place` in the group; calls within calls are
    excluded. Groups have `thread`, `begin`, `end`, the fields that all their operations share (or
    ABSENT), the numbers of fused operations and messages, and the total bytes. `shared` is the
    number of ranks in the process, 0 if unknown. calls: CALL_COLUMNS.
    """
    calls = take_rows(calls, order_ranges(calls["begin"], calls["end"], calls["thread"]))
    outer, operation = _mask_outer(calls), calls["operation"]
    step = outer * ((operation == GROUP_START).astype(np.int64) - (operation == GROUP_END))
    before = np.zeros(len(step), np.int64)
    for own in _slice_threads(calls["thread"]):
        level = np.cumsum(step[own])
        # A capture may start inside a group. The end of that group is ignored.
        level -= np.minimum(np.minimum.accumulate(level), 0)
        before[own][1:] = level[:-1]
    calls["call_group"] = np.cumsum(outer & (before == 0)) - 1
    operations = _list_operations(calls)
    groups = _sum_groups(operations)
    if len(operation):
        begins = np.flatnonzero(mask_changes(calls["call_group"]))
        groups["begin"] = calls["begin"][begins][groups["call_group"]]
        groups["end"] = np.maximum.reduceat(calls["end"], begins)[groups["call_group"]]
    return operations, groups


def _list_operations(calls: Arrays) -> Arrays:
    """Return the operations for :func:`group_calls`. calls: in order, with their groups."""
    operation = calls["operation"]
    moving = take_rows(calls, (operation >= 1) & (operation <= LAST_OPERATION))
    moving = take_rows(moving, _mask_outer(moving))
    row, begins = np.arange(len(moving["thread"])), mask_changes(moving["call_group"])
    moving["place"] = row - np.maximum.accumulate(np.where(begins, row, 0))
    # Ranks as stated by the calls that made communicators.
    is_making = _mask_making(operation) & (calls["communicator"] != 0) & (calls["ranks"] > 0)
    making = take_rows(calls, is_making)
    # If a thread created its own rank, it has only this rank, whatever other threads of the process
    # created.
    of_process, of_thread = (_find_made(making, moving, mask) for mask in (PROCESS_MASK, -1))
    made = {
        name: np.where(of_thread["shared"] > 0, own, of_process[name])
        for name, own in of_thread.items()
    }
    ranks, rank = moving["ranks"], moving["rank"]
    moving["ranks"] = np.where(ranks > 0, ranks, made["ranks"])
    moving["rank"] = np.where(rank >= 0, rank, made["rank"])
    return moving | {"shared": made["shared"]}


def _find_made(making: Arrays, moving: Arrays, mask: int) -> Arrays:
    """Return `ranks` and `rank` of operations, and `shared` (ranks of the communicator in this
    process, 0 if unknown), from the calls that created their communicators. mask: bits of globalTid
    that identify the process or thread.
    """
    both = [np.append(making[name], moving[name]) for name in ("thread", "communicator")]
    _, code = number_rows(both[0] & mask, both[1])
    made, code = np.split(code, [len(making["thread"])])
    count = int(max(made.max(initial=-1), code.max(initial=-1))) + 1
    made_ranks, made_rank = np.full(count, ABSENT), np.full(count, np.iinfo(np.int64).max)
    np.maximum.at(made_ranks, made, making["ranks"])
    np.minimum.at(made_rank, made, making["rank"])
    (distinct, _), _ = factorize_together(made, making["rank"])
    shared = np.bincount(distinct, minlength=count)
    made_rank = np.where(shared == 1, made_rank, ABSENT)
    return {"ranks": made_ranks[code], "rank": made_rank[code], "shared": shared[code]}


def _sum_groups(operations: Arrays) -> Arrays:
    """Return the groups for :func:`group_calls`, without times."""
    operation, size, rows = operations["operation"], operations["bytes"], len(operations["bytes"])
    first = np.flatnonzero(mask_changes(operations["call_group"]))
    pairs = (operation == SEND) | (operation == RECEIVE)
    summed = {
        "fused": np.ones(rows, np.int64),
        "messages": pairs.astype(np.int64),
        "bytes": size,
        "reduce_bytes": np.where(operation == ALL_REDUCE, size, 0),
        "share_bytes": np.where(np.isin(operation, SHARE_OPERATIONS), size, 0),
        "message_bytes": np.where(pairs, size, 0),
    }

    def reduce(ufunc: np.ufunc, column: np.ndarray) -> np.ndarray:
        return ufunc.reduceat(column, first) if rows else column

    def find_common(name: str, otherwise: int) -> np.ndarray:
        column = operations[name]
        is_one = reduce(np.minimum, column) == reduce(np.maximum, column)
        return np.where(is_one, column[first], otherwise)

    groups = {name: operations[name][first] for name in ("call_group", "thread")}
    groups |= {name: reduce(np.maximum, operations[name]) for name in ("shared", "ranks")}
    groups |= {name: reduce(np.add, column) for name, column in summed.items()}
    groups["operation"] = find_common("operation", SEVERAL_OPERATIONS)
    groups |= {name: find_common(name, ABSENT) for name in ("rank", *COMMON)}
    lowest, highest = (reduce(one, operations["communicator"]) for one in (np.minimum, np.maximum))
    several = lowest != highest
    groups["communicator"] = np.where(several, 0, lowest)
    for name in ("ranks", "rank"):
        groups[name] = np.where(several, ABSENT, groups[name])
    is_known = (reduce(np.minimum, size) >= 0) & ~several
    groups["bytes"] = np.where(is_known, groups["bytes"], ABSENT)
    groups["known"] = is_known.astype(np.int64)
    # The first matching collective; the row after all others means none.
    collective = reduce(np.minimum, np.where(pairs, rows, np.arange(rows)))
    groups["first_operation"] = np.append(operation, 0)[collective]
    groups["sequence"] = np.append(operations["sequence"], ABSENT)[collective]
    return groups | {"begin": size[:0], "end": size[:0]}


def _mask_making(operation: np.ndarray) -> np.ndarray:
    """Return a mask of the calls that create communicators."""
    return (operation >= FIRST_MAKING) & (operation <= LAST_MAKING)


def _slice_threads(threads: np.ndarray) -> Iterator[slice]:
    """Yield a slice per thread. threads: sorted."""
    edges = find_edges(threads).tolist()
    return map(slice, edges, edges[1:])


def _mask_outer(calls: Arrays) -> np.ndarray:
    """Return a mask of outermost ranges: they begin after all earlier ranges of their thread have
    ended. calls: in order.
    """
    outer = np.ones(len(calls["thread"]), bool)
    for own in _slice_threads(calls["thread"]):
        latest = np.maximum.accumulate(calls["end"][own])
        outer[own][1:] = calls["begin"][own][1:] >= latest[:-1]
    return outer


def match_kernels(
    groups: Arrays, threads: np.ndarray, times: np.ndarray, devices: np.ndarray
) -> dict[str, np.ndarray]:
    """Find the group of NCCL calls that launched each kernel. Return the columns of this group, and
    `parts`, the number of kernels that share the work of the group.

    Kernels without a group get ABSENT, and communicator 0. threads, times: thread (globalTid) and
    start (local ns) of the launching calls. A process with several GPUs makes all their calls in
    one group, in equal shares, so each device gets its part of the sums. If a group has several
    communicators, its kernels cannot be assigned to them: communicator and bytes remain unknown.
    """
    groups = dict(groups)
    place = _find_last_begun(groups["thread"], groups["begin"], threads, times)
    fused, shared = groups["fused"], groups["shared"]
    begun = place >= 0
    (group, _), _ = factorize_together(place[begun], devices[begun])
    parts = np.where(shared > 0, shared, np.bincount(group, minlength=len(fused)))
    parts = np.where((parts > 1) & (fused % np.maximum(parts, 1) == 0), parts, 1)
    # An additional group means none.
    place[begun & (times > np.append(groups["end"], 0)[place])] = -1
    groups |= {name: groups[name] // parts for name in _SUMS} | {"parts": parts}
    table = np.full((len(groups), len(fused) + 1), ABSENT)
    for row, (name, column) in zip(table, groups.items(), strict=True):
        row[:-1] = column
        row[-1] = 0 if name == "communicator" else ABSENT
    return dict(zip(groups, table.take(place, axis=1), strict=True))


def _find_last_begun(
    group_threads: np.ndarray, begins: np.ndarray, threads: np.ndarray, times: np.ndarray
) -> np.ndarray:
    """Return the last group that had started on a thread at each time, or -1."""
    place = np.full(len(threads), -1)
    for thread, rows in group_rows(threads):
        first, last = (np.searchsorted(group_threads, thread, side) for side in ("left", "right"))
        if first < last:
            positions = np.searchsorted(begins[first:last], times[rows], "right") - 1
            place[rows] = np.where(positions >= 0, first + positions, -1)
    return place


def attach_payloads(
    extraction: Extraction,
    columns: Columns,
    launches: Launches,
    captures: np.ndarray,
    objects: np.ndarray,
    names: Sequence[str],
    codes: np.ndarray,
) -> dict[str, np.ndarray]:
    """Find the operation, bytes and communicator of NCCL kernels. Return field -> value of each
    kernel, and store facts about them.

    columns, launches, objects, codes: rows of the kernel table, their launches, streams (objects),
    and the indices of their names in `names`. captures: of graph nodes, from
    :func:`nsys2prv.events.captures.find_captures`.
    """
    in_graph = columns["graphNodeId"] > 0
    thread, call = np.where(in_graph, captures, [launches.thread, launches.begin])
    by_name = np.array([find_kernel_operation(name) for name in names], np.int64)[codes]
    facts = {
        "process": columns["globalPid"],
        "device": columns["deviceId"],
        "stream": columns["streamId"],
        "object_kernel": objects,
        "time_begin": columns["start"],
        "time_end": columns["end"],
        "time_call": launches.begin,
        "node": np.where(in_graph, columns["graphNodeId"], 0),
        "by_ends": np.zeros(len(in_graph), np.int8),
        "by_name": by_name,
    }
    moving, groups = extraction.find_once("NCCL calls", lambda: _read_groups(extraction))
    told = match_kernels(groups, thread, call, columns["deviceId"])
    # Each replay is a separate operation.
    told["sequence"] = np.where(in_graph, ABSENT, told["sequence"])
    extraction.add_fact(KERNELS, {**facts, **{name: told[name] for name in KERNEL_FACTS}})
    _save_messages(extraction, {**told, **facts}, moving)
    if not extraction.settings.nccl_calls:
        return dict.fromkeys((*KERNEL_FIELDS, "communicator"), np.full(len(call), ABSENT))
    payloads = {field: told[field] for field in KERNEL_FIELDS}
    # A kernel of several operations has no number.
    payloads["sequence"] = np.where(told["fused"] == 1, told["sequence"], ABSENT)
    return {**payloads, "communicator": name_communicators(extraction, told["communicator"])}


def _read_groups(extraction: Extraction) -> tuple[Arrays, Arrays]:
    """Return the operations and groups of the report's NCCL calls."""
    if extraction.nccl_groups:
        operations, groups = map(read_columns, extraction.nccl_groups)
        return operations, groups
    pieces, none = list(map(read_columns, extraction.nccl_calls)), np.zeros(0, np.int64)
    calls = {
        name: np.concatenate([none, *(piece[name] for piece in pieces)]) for name in CALL_COLUMNS
    }
    extraction.found_nccl_groups = group_calls(calls)
    return extraction.found_nccl_groups


def _save_messages(extraction: Extraction, kernels: Arrays, operations: Arrays) -> None:
    """Store MESSAGES as facts. kernels: facts and groups of kernels."""
    kernels = take_rows(
        kernels, np.flatnonzero((kernels["messages"] > 0) & (kernels["parts"] == 1))
    )
    names = ("place", "communicator", "operation", "bytes", "peer", "ranks", "rank")
    operation = operations["operation"]
    is_pair = (operation == SEND) | (operation == RECEIVE)
    group = operations["call_group"][is_pair]
    # The sends and receives of each kernel's group, which follow each other.
    low, high = (np.searchsorted(group, kernels["call_group"], side) for side in ("left", "right"))
    row = np.repeat(np.arange(len(low)), high - low)
    if not len(row):
        return
    of_kernel = ("process", "object_kernel", "time_begin", "time_end", "time_call", "messages")
    facts = {name: kernels[name][row] for name in of_kernel}
    facts["pure"] = (kernels["fused"] == kernels["messages"]).astype(np.int64)[row]
    place = low[row] + count_occurrences(row)
    facts |= {name: operations[name][is_pair][place] for name in names}
    extraction.add_fact(MESSAGES, facts)
