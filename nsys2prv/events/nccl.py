"""NCCL calls on host threads (kinds of events) with their NVTX payloads, and their properties for
the NCCL kernels that they launched (:func:`attach_payloads`).

Payloads have three forms: a flat JSON object (``jsonText``); bytes (``binaryData``: four little-endian 64-bit
numbers - domain, schema, size, offset - and the payload, laid out by the schema tables); a table
per schema (``DYNAMIC_NVTXPAYLOAD_DATATYPE_...``, joined by event id). Fields are known by their
names, never by schema ids, which moved between versions of NCCL. The advanced NCCL trace of nsys
2025.6 and later is JSON with names of its own, and counts elements of a data type instead of bytes.
Everything is done on the distinct payloads; the only loops are over fields, schemas and shapes of
payloads.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TypeAlias

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import (
    ABSENT,
    count_occurrences,
    factorize,
    factorize_together,
    number_rows,
)
from nsys2prv._util.data_files import load_shipped_file
from nsys2prv.events.attributes import make_rows
from nsys2prv.events.call_indexes import (
    FIRST_MAKING,
    LAST_MAKING,
    OPERATIONS,
    PAYLOAD_COLUMNS,
    RECEIVE,
    SEND,
    Launches,
)
from nsys2prv.events.catalogue import map_labels
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kernel_classes import find_nccl_operation
from nsys2prv.events.kind import Reason, Rows
from nsys2prv.events.nvtx import (
    NAME_COLUMNS,
    PUSHPOP,
    STARTEND,
    find_texts,
    name_ranges,
    select_nccl_rows,
)
from nsys2prv.export.info import PROCESS_MASK
from nsys2prv.export.source import NULL, Columns, Part, decode_texts
from nsys2prv.export.sqlite import Database

#: What payloads call their fields and the values of these.
_PAYLOADS = load_shipped_file("nsys2prv.events.catalogue", "nccl_payloads.yaml")
#: Field -> the names it has.
SPELLINGS: Mapping[str, list[str]] = _PAYLOADS["fields"]
#: Columns of :func:`read_payloads`, with the value of rows that lack one: 0 for communicators (bits
#: of their hash).
NONE = dict.fromkeys(SPELLINGS, ABSENT) | {"communicator": 0}
del NONE["count"]
#: Fields that are read as text.
TEXTUAL = ("communicator", "data_type", "reduction")
#: Whether a payload cannot be read as a whole, beside its fields.
DAMAGED = "damaged"
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
COLUMNS, TEXTS = (*NAME_COLUMNS, "jsonTextId", "eventId"), ("text", "jsonText", "binaryData")
#: Facts of kernels; and of sends and receives, a row for each and its kernel, where one kernel does
#: all of its group.
KERNELS, MESSAGES = "nccl_kernels", "nccl_messages"
#: Fields of the layout, and columns of the group of calls.
KERNEL_FIELDS = (
    *("operation", "bytes", "reduction", "root", "peer", "ranks", "rank", "group", "fused"),
    *("data_type", "sequence"),
)
#: Columns of the facts KERNELS, from the group of calls: communicator (bits of the hash, 0 unknown),
#: fused: operations in the kernel, messages: sends and receives among them, sums of their bytes by
#: how they count, known: whether all bytes are.
KERNEL_FACTS = (
    *("communicator", "operation", "first_operation", "fused", "messages", "sequence", "ranks"),
    *("rank", "root", "reduction", "bytes", "known", "reduce_bytes", "share_bytes"),
    "message_bytes",
)


#: Conditions for the rows of the kinds, by report.
select_calls, select_operations = map(select_nccl_rows, (PUSHPOP, STARTEND))


def _normalize_field_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_FIELD_OF = {
    _normalize_field_name(spelling): field
    for field, spellings in SPELLINGS.items()
    for spelling in spellings
}


def read_payloads(extraction: Extraction, columns: Columns) -> dict[str, np.ndarray]:
    """Return the payload fields of rows read with eventId, jsonTextId, globalTid and the texts
    jsonText and binaryData.
    """
    payloads = {field: np.full(columns.rows, none) for field, none in NONE.items()}
    damaged, rows = np.zeros(columns.rows, bool), np.arange(columns.rows)
    for read in (_read_json, _read_binary):
        found, of_payloads, codes = read(extraction, columns)
        damaged |= of_payloads[codes]
        _fill_in(payloads, rows, found, codes)
    _read_dynamic(extraction, columns["eventId"], payloads)
    lost = damaged & np.all([payloads[field] == none for field, none in NONE.items()], axis=0)
    extraction.account.repaired[Reason.DAMAGED_PAYLOAD] += int(lost.sum())
    return payloads


#: Fields of distinct payloads, as text or integers; which of the payloads are damaged; and the
#: index of each row's payload.
Payloads: TypeAlias = "tuple[pl.DataFrame, np.ndarray, np.ndarray]"


def _fill_in(
    payloads: dict[str, np.ndarray], rows: np.ndarray, found: pl.DataFrame, codes: np.ndarray
) -> None:
    """Fill what rows lack with the fields of distinct payloads. codes: each row's index into these."""
    if not SPELLINGS.keys() & set(found.columns):
        return
    for field, values in _make_numbers(found).items():
        lacking = payloads[field][rows] == NONE[field]
        payloads[field][rows[lacking]] = values[codes[lacking]]


def _read_json(extraction: Extraction, columns: Columns) -> Payloads:
    """Return payloads of the form jsonText, inline or by the id of a registered string."""
    codes, distinct_texts = columns.texts["jsonText"]
    inline = distinct_texts.series
    ids, id_codes = factorize(columns["jsonTextId"])
    registered = pl.Series(extraction.read_strings(ids), dtype=pl.String)
    if not any(registered) and not any(inline):
        # As in most reports.
        return pl.DataFrame(), np.zeros(1, bool), np.zeros(columns.rows, np.int64)
    texts = pl.concat([decode_texts(inline), registered])
    is_empty = (inline.bin.size() == 0).to_numpy()[codes]
    row_codes = np.where(is_empty, len(inline) + id_codes, codes)
    whole = pl.col("json").str.contains(r"(?s)^(?:[ \t\r\n]*\{.*\}[ \t\r\n]*)?$")
    fields = {field: pl.when(whole).then(_make_json_query(field)) for field in SPELLINGS}
    found = texts.to_frame("json").select(~whole.alias(DAMAGED), **fields)
    return found, found[DAMAGED].to_numpy(), row_codes


@cache
def _make_json_query(field: str) -> pl.Expr:
    """Return a field's value as text: of a flat object, or one type name deeper (``"Root":
    {"int32": 3}``).
    """
    names = "|".join(re.escape(spelling) for spelling in SPELLINGS[field])
    # Of ASCII: patterns for all languages take three times as long to compile.
    blanks = r"[ \t\r\n]*"
    pattern = (
        rf'(?i-u:"(?:{names})"{blanks}:{blanks}(?:\{{{blanks}"\w+"{blanks}:{blanks})?)'
        rf'("[^"]*"|-?[0-9A-Za-z_]+)'
    )
    return pl.col("json").str.extract(pattern, 1).str.strip_chars('"')


def _make_numbers(found: pl.DataFrame) -> dict[str, np.ndarray]:
    """Return numbers from the fields' texts or integers, as in NONE where there is none.

    All in one question to polars, as each has its price.
    """
    lacking = {field: pl.lit(None, pl.String) for field in SPELLINGS if field not in found.columns}
    typed = found.with_columns(**lacking).with_columns(data_type=_look_up_values("data_type"))
    counted = _cast_to_integer("count") * pl.col("data_type").replace_strict(
        dict(enumerate(TYPE_SIZES, 1)), default=None, return_dtype=pl.Int64
    )
    numbers = {field: _cast_to_integer(field) for field in NONE} | {
        "reduction": _look_up_values("reduction"),
        "bytes": _cast_to_integer("bytes").fill_null(counted),
    }
    numbers = {
        field: pl.when(number >= 0).then(number).otherwise(ABSENT)
        for field, number in numbers.items()
    }
    numbers["communicator"] = _parse_communicators().fill_null(NONE["communicator"])
    return {column.name: column.to_numpy() for column in typed.select(**numbers).iter_columns()}


def _cast_to_integer(field: str) -> pl.Expr:
    return pl.col(field).cast(pl.Int64, strict=False)


def _look_up_values(field: str) -> pl.Expr:
    """Return values of the field's value set in the catalogue by NCCL's names (``ncclFloat32``), or
    by its numbers, which count from 0; else null.
    """
    values = map_labels(f"nccl_{field}")
    number, count = _cast_to_integer(field), len(values)
    values = values | {
        name: values[label] for name, label in _PAYLOADS["also_called"][field].items()
    }
    name = pl.col(field).str.to_lowercase().str.strip_prefix("nccl").str.replace_all("_", "")
    return name.replace_strict(values, default=None, return_dtype=pl.Int64).fill_null(
        pl.when(number.is_between(0, count - 1)).then(number + 1)
    )


def _parse_communicators() -> pl.Expr:
    """Return communicator hashes from decimal (signed or not) or hexadecimal text: their 64 bits as
    a signed number.
    """
    text = pl.col("communicator")
    digits = text.str.extract("^0[xX]([0-9a-fA-F]+)$", 1)
    unsigned = text.cast(pl.UInt64, strict=False)
    hexadecimal = digits.str.to_integer(base=16, dtype=pl.UInt64, strict=False)
    return pl.coalesce(
        unsigned.reinterpret(signed=True),
        _cast_to_integer("communicator"),
        hexadecimal.reinterpret(signed=True),
    )


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
    every = pl.DataFrame({"payload": np.arange(len(distinct))})
    data = np.frombuffer(b"".join(distinct), np.uint8)

    def take_bytes(rows: np.ndarray, first: int, last: int) -> np.ndarray:
        return data[begins[rows, None] + np.arange(first, last)]

    headed = np.flatnonzero(sizes >= HEADER_BYTES)
    if not len(headed):
        return every, damaged, codes
    schemas = extraction.find_once("NCCL schemas", lambda: read_schemas(extraction.database))
    heads = take_bytes(headed, 0, HEADER_BYTES).view("<i8")
    values, shape = factorize_together(heads[:, 0], heads[:, 1], heads[:, 3], sizes[headed])
    pieces = [every.clear()]
    for index, (domain, number, offset, length) in enumerate(
        zip(*(column.tolist() for column in values), strict=True)
    ):
        entries = schemas.get((domain, number))
        if entries is None or offset < 0:
            continue
        rows = headed[shape == index]
        piece = {"payload": pl.Series(rows)}
        for entry in entries:
            first = offset + entry.offset
            last = first + np.dtype(entry.kind).itemsize
            if last <= length:
                column = take_bytes(rows, first, last).view(entry.kind)[:, 0].astype(np.int64)
                piece[entry.field] = _name_values(entry, pl.Series(column))
        damaged[rows] = len(piece) <= len({entry.field for entry in entries})
        pieces.append(pl.DataFrame(piece))
    found = pl.concat(pieces, how="diagonal_relaxed")
    return every.join(found, on="payload", how="left", maintain_order="left"), damaged, codes


def _name_values(entry: PayloadField, column: pl.Series) -> pl.Series:
    """Return the integers of a field, as text where it has names for some."""
    if entry.names or entry.field in TEXTUAL:
        return column.cast(pl.String).replace(entry.names)
    return column


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
        texts = {
            field: decode_texts(read.texts[column][1].series).gather(read.texts[column][0])
            for field, column in names.items()
        }
        place = np.minimum(np.searchsorted(events, read["eventId"], sorter=order), len(order) - 1)
        same = np.flatnonzero(events[order[place]] == read["eventId"])
        frame = pl.DataFrame(texts).with_columns(pl.all().replace("", None))
        _fill_in(payloads, order[place][same], frame, same)


def extract_ranges(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield the ranges of NCCL's domain in the layout of the kind."""
    layout = extraction.kind.layouts[0]
    columns = extraction.read(part, COLUMNS, TEXTS, short=True)
    ranges = name_ranges(extraction, columns, "range")
    payloads = read_payloads(extraction, columns)
    texts, text_codes = find_texts(extraction, columns)
    operations = list(map(find_operation, texts.to_list()))
    operation = np.array(operations, np.int64)[text_codes]
    if layout == "nccl_call":
        _index_calls(extraction, columns, operation, payloads)
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
    extraction: Extraction,
    columns: Columns,
    operation: np.ndarray,
    payloads: dict[str, np.ndarray],
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
        **{name: payloads[name] for name in PAYLOAD_COLUMNS},
    }
    usable = (begin != NULL) & (thread != NULL)
    if not usable.all():
        calls = {name: column[usable] for name, column in calls.items()}
    extraction.found_nccl_calls.append(pl.DataFrame(calls))
    made = (calls["operation"] >= FIRST_MAKING) & (calls["operation"] <= LAST_MAKING)
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
    return OPERATIONS.get(name.removeprefix("nccl").lower(), 0)


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
    pairs = np.isin(operations["operation"], (SEND, RECEIVE))
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
