"""NCCL calls on host threads (kinds of events) with their NVTX payloads, and their properties for
the NCCL kernels that they launched (:func:`attach_payloads`).

Payloads have three forms: a flat JSON object (``jsonText``); bytes (``binaryData``: four
little-endian 64-bit numbers - domain, schema, size, offset - and the payload, laid out by the
schema tables); a table per schema (``DYNAMIC_NVTXPAYLOAD_DATATYPE_...``, joined by event id).
Fields are known by their names, never by schema ids, which changed between versions of NCCL. The
advanced NCCL trace of nsys 2025.6 and later is JSON with names of its own, and counts elements of a
data type instead of bytes. Everything is done on the distinct payloads: loops are over these, their
fields, schemas and shapes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import (
    ABSENT,
    blank_negative,
    count_occurrences,
    factorize,
    factorize_together,
    number_rows,
)
from nsys2prv._util.files import load_shipped_file
from nsys2prv.events import call_indexes, nvtx
from nsys2prv.events.attributes import make_rows
from nsys2prv.events.catalogue import map_labels
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import Reason, Rows
from nsys2prv.events.name_rules import find_nccl_operation, may_drop
from nsys2prv.export.info import PROCESS_MASK
from nsys2prv.export.source import NULL, Columns, Part, decode_texts
from nsys2prv.export.sqlite import Database

#: Names of fields and values in payloads.
_PAYLOADS = load_shipped_file("nsys2prv.events.catalogue", "nccl_payloads.yaml")
#: Field -> the names it has.
SPELLINGS: Mapping[str, list[str]] = _PAYLOADS["fields"]
#: Columns of :func:`read_payloads`, with the value of rows that lack one: 0 for communicators (bits
#: of their hash).
NONE = dict.fromkeys(SPELLINGS, ABSENT) | {"communicator": 0}
del NONE["count"]
#: Bytes of an element by NCCL's ncclDataType_t (index).
TYPE_SIZES = _PAYLOADS["type_sizes"]
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
    damaged, rows = np.zeros(columns.rows, bool), np.arange(columns.rows)
    for read in (_read_json, _read_binary):
        numbers, of_texts, codes = read(extraction, columns)
        damaged |= of_texts[codes]
        _fill_in(payloads, rows, numbers, codes)
    _read_dynamic(extraction, columns["eventId"], payloads)
    lost = damaged & np.all([payloads[field] == none for field, none in NONE.items()], axis=0)
    extraction.account.repaired[Reason.DAMAGED_PAYLOAD] += int(lost.sum())
    return payloads


#: Fields of distinct payloads as numbers, as in NONE where one lacks it; which of them are damaged;
#: and each row's index into them.
Payloads: TypeAlias = "tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]"


def _fill_in(
    payloads: dict[str, np.ndarray],
    rows: np.ndarray,
    numbers: Mapping[str, np.ndarray],
    codes: np.ndarray,
) -> None:
    """Fill what rows lack with the fields of distinct payloads. codes: each row's index into these."""
    for field in numbers.keys() & NONE.keys():
        values = numbers[field]
        lacking = payloads[field][rows] == NONE[field]
        payloads[field][rows[lacking]] = values[codes[lacking]]


def _read_json(extraction: Extraction, columns: Columns) -> Payloads:
    """Return payloads of the form jsonText, inline or by the id of a registered string."""
    codes, distinct_texts = columns.texts["jsonText"]
    inline = decode_texts(distinct_texts.series).to_list()
    ids, id_codes = factorize(columns["jsonTextId"])
    registered = extraction.read_strings(ids)
    if not any(registered) and not any(inline):
        # As in most reports.
        return {}, np.zeros(1, bool), np.zeros(columns.rows, np.int64)
    is_empty = np.array([not text for text in inline])[codes]
    row_codes = np.where(is_empty, len(inline) + id_codes, codes)
    found = [_find_fields(text) for text in (*inline, *registered)]
    fields = {field for one in found for field in one or ()}
    numbers = {
        field: _parse_numbers(field, ((one or {}).get(field, "") for one in found))
        for field in fields
    }
    _count_bytes(numbers)
    return numbers, np.array([one is None for one in found]), row_codes


@lru_cache(10_000)
def _find_fields(text: str) -> dict[str, str] | None:
    """Return the fields of a flat object in JSON as texts; None where the text is no whole object."""
    stripped = text.strip(" \t\r\n")
    if text and not (len(stripped) > 1 and stripped[0] + stripped[-1] == "{}"):
        return None
    # Of fields that come twice the first counts.
    found = reversed(_JSON_FIELD.findall(text))
    return {_SPELLED[name.lower()]: value.strip('"') for name, value in found}


def _parse_numbers(field: str, texts: Iterable[str]) -> np.ndarray:
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


def _count_bytes(numbers: dict[str, np.ndarray]) -> None:
    """Fill in the bytes that payloads lack, from the number and the type of their elements."""
    if {"count", "data_type"} <= numbers.keys():
        count, kind = numbers["count"], numbers["data_type"]
        stated = numbers.get("bytes", np.full(len(count), ABSENT))
        known = (stated == ABSENT) & (count >= 0) & (kind > 0) & (kind <= len(TYPE_SIZES))
        size = np.array(TYPE_SIZES)[np.where(known, kind, 1) - 1]
        numbers["bytes"] = np.where(known, count * size, stated)


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


def _read_binary(extraction: Extraction, columns: Columns) -> Payloads:
    """Return payloads of the form binaryData."""
    codes, texts = columns.texts["binaryData"]
    distinct = texts.series.to_list()
    sizes = np.fromiter(map(len, distinct), np.int64, len(distinct))
    damaged, begins = sizes > 0, np.cumsum(sizes) - sizes
    data = np.frombuffer(b"".join(distinct), np.uint8)

    def take_bytes(rows: np.ndarray, first: int, last: int) -> np.ndarray:
        return data[begins[rows, None] + np.arange(first, last)]

    numbers: dict[str, np.ndarray] = {}
    headed = np.flatnonzero(sizes >= HEADER_BYTES)
    if not len(headed):
        return numbers, damaged, codes
    schemas = extraction.find_once("NCCL schemas", lambda: read_schemas(extraction.database))
    heads = take_bytes(headed, 0, HEADER_BYTES).view("<i8")
    values, shape = factorize_together(heads[:, 0], heads[:, 1], heads[:, 3], sizes[headed])
    for index, (domain, number, offset, length) in enumerate(
        zip(*(column.tolist() for column in values), strict=True)
    ):
        entries = schemas.get((domain, number))
        if entries is None or offset < 0:
            continue
        rows, found = headed[shape == index], {}
        for entry in entries:
            first = offset + entry.offset
            last = first + np.dtype(entry.kind).itemsize
            if last <= length:
                column = take_bytes(rows, first, last).view(entry.kind)[:, 0].astype(np.int64)
                found[entry.field] = _translate(entry, column)
        damaged[rows] = len(found) < len({entry.field for entry in entries})
        _count_bytes(found)
        for field in found.keys() & NONE.keys():
            numbers.setdefault(field, np.full(len(distinct), NONE[field]))[rows] = found[field]
    return numbers, damaged, codes


def _translate(entry: PayloadField, column: np.ndarray) -> np.ndarray:
    """Return the numbers of a field from its integers."""
    if entry.names or entry.field in _PAYLOADS["also_called"]:
        distinct, codes = factorize(column)
        texts = [entry.names.get(text, text) for text in map(str, distinct.tolist())]
        return _parse_numbers(entry.field, texts)[codes]
    return column if entry.field == "communicator" else blank_negative(column)


def _read_dynamic(
    extraction: Extraction, events: np.ndarray, payloads: dict[str, np.ndarray]
) -> None:
    """Fill in the rows of tables made per schema, by event id."""
    tables = filter(DYNAMIC_TABLE.fullmatch, extraction.report.parts)
    event_ids = events[events != NULL]
    if not len(event_ids):
        return
    order = np.argsort(events, kind="stable")
    where = f"{{eventId}} BETWEEN {event_ids.min()} AND {event_ids.max()}"
    for part in map(extraction.report.parts.__getitem__, tables):
        present = extraction.database.tables[part.table].columns
        fields = {_FIELD_OF.get(_normalize_field_name(column)): column for column in present}
        names = {field: column for field, column in fields.items() if field}
        if not names or "eventId" not in present:
            continue
        small = part.rows <= SMALL_TABLE
        read = extraction.read(part, ("eventId",), tuple(names.values()), "" if small else where)
        numbers = {}
        for field, column in names.items():
            codes, texts = read.texts[column]
            numbers[field] = _parse_numbers(field, decode_texts(texts.series).to_list())[codes]
        _count_bytes(numbers)
        place = np.minimum(np.searchsorted(events, read["eventId"], sorter=order), len(order) - 1)
        same = np.flatnonzero(events[order[place]] == read["eventId"])
        _fill_in(payloads, order[place][same], numbers, same)


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
    if not extraction.stores and not may_drop(extraction.nvtx_rules):
        yield make_rows(extraction, layout, columns)
        return
    ranges = nvtx.name_ranges(extraction, columns, "range")
    fields = ranges.fields | payloads
    fields["operation"] = np.where(operation == 0, ABSENT, operation)
    fields["communicator"] = name_communicators(extraction, payloads["communicator"])
    if layout == "nccl_operation":
        fields["any_domain"] = fields["range"]
    wanted = ranges.wanted & extraction.mask_long_enough(columns["start"], columns["end"])
    rows = make_rows(extraction, layout, columns, fields)
    yield replace(rows, domain=ranges.domain).where(wanted)


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
    """Add the calls to the index of NCCL calls, and store as facts what they say about
    communicators.
    """
    begin, end, thread = (columns[name] for name in ("start", "end", "globalTid"))
    calls = {
        "thread": thread,
        "begin": begin,
        "end": np.where(end == NULL, np.iinfo(np.int64).max, end),
        "operation": operation,
        **{name: payloads[name] for name in call_indexes.PAYLOAD_COLUMNS},
    }
    usable = (begin != NULL) & (thread != NULL)
    if not usable.all():
        calls = {name: column[usable] for name, column in calls.items()}
    extraction.found_nccl_calls.append(calls)
    made = (calls["operation"] >= call_indexes.FIRST_MAKING) & (
        calls["operation"] <= call_indexes.LAST_MAKING
    )
    process, communicator = calls["thread"] & PROCESS_MASK, calls["communicator"]
    reported = process, communicator, calls["ranks"], calls["rank"], made.astype(np.int64)
    telling = np.flatnonzero(made | (communicator != 0))
    if len(telling):
        first, _ = number_rows(*(column[telling] for column in reported))
        rows = telling[np.sort(first)]
        names = ("process", "communicator", "ranks", "rank", "made")
        facts = {name: column[rows] for name, column in zip(names, reported, strict=True)}
        extraction.add_fact(COMMUNICATORS, {**facts, "made": facts["made"] > 0})


def find_operation(name: str) -> int:
    """Return the nccl_operation of a range: of a C function (``ncclAllReduce``) or of the advanced
    trace (``AllReduce``); 0 for none.
    """
    return call_indexes.OPERATIONS.get(name.removeprefix("nccl").lower(), 0)


def attach_payloads(
    extraction: Extraction,
    columns: Columns,
    launches: call_indexes.Launches,
    objects: np.ndarray,
    names: Sequence[str],
    codes: np.ndarray,
) -> dict[str, np.ndarray]:
    """Return the payload fields of NCCL kernels, rows of the kernel table launched by the calls
    found, named by those at `codes`; sets facts aside.
    """
    begin, in_graph = columns["start"], columns["graphNodeId"] > 0
    call = np.where(in_graph, NULL, launches.or_null("begin"))
    by_name = np.array([find_nccl_operation(name) for name in names], np.int64)[codes]
    facts = {
        "process": columns["globalPid"],
        "device": columns["deviceId"],
        "stream": columns["streamId"],
        "object_kernel": objects,
        "time_begin": begin,
        "time_end": columns["end"],
        "time_call": call,
        "in_graph": in_graph.astype(np.int64),
        "by_name": by_name,
    }
    thread = np.where(in_graph, NULL, launches.or_null("thread"))
    tied = extraction.nccl_calls.match_kernels(thread, call, columns["deviceId"])
    extraction.add_fact(KERNELS, {**facts, **{name: tied[name] for name in KERNEL_FACTS}})
    _save_messages(extraction, tied, facts)
    if not extraction.settings.nccl_calls:
        return dict.fromkeys((*KERNEL_FIELDS, "communicator"), np.full(len(call), ABSENT))
    payloads = {field: tied[field] for field in KERNEL_FIELDS}
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
    of_group = {
        "messages": tied["messages"],
        "pure": (tied["fused"] == tied["messages"]).astype(np.int64),
    }
    of_kernel = ("process", "object_kernel", "time_begin", "time_end", "time_call")
    of_group |= {name: facts[name] for name in of_kernel}
    operations = extraction.nccl_calls.operations
    pairs = np.isin(operations["operation"], (call_indexes.SEND, call_indexes.RECEIVE))
    group = operations["call_group"][pairs]
    # The sends and receives of each kernel's group, which follow each other.
    low, high = (
        np.searchsorted(group, tied["call_group"][alone], side) for side in ("left", "right")
    )
    row = np.repeat(np.arange(len(alone)), high - low)
    place = low[row] + count_occurrences(row)
    facts = {name: column[alone][row] for name, column in of_group.items()}
    names = ("place", "communicator", "operation", "bytes", "peer", "ranks", "rank")
    facts |= {name: operations[name][pairs][place] for name in names}
    if len(row):
        extraction.add_fact(MESSAGES, facts)
