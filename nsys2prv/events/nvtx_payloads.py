"""Numbers that NVTX ranges and marks carry (payloads), as counters on their host threads."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from nsys2prv._util.columns import (
    count_occurrences,
    factorize,
    factorize_together,
    group_rows,
    number_rows,
)
from nsys2prv.events.attributes import make_counters
from nsys2prv.events.catalogue import FRACTION, UNSCALED, Metric
from nsys2prv.events.extraction import Extraction, Numbering
from nsys2prv.events.kind import Counters, Reason
from nsys2prv.events.nvtx import MARK, PUSHPOP, STARTEND, TABLE, find_domains, select_other_rows
from nsys2prv.events.nvtx_names import DEFAULT_DOMAIN
from nsys2prv.export.info import ReportInfo
from nsys2prv.export.source import NULL, SQL_NULL, Part, decode_texts, number_distinct

LAYOUT = "nvtx_payload"
#: Names that are kept of one read: a program may make up a name for every range.
MOST_NAMES = 256
#: The type that nsys writes around a value.
WRAPPING = re.compile(r"\.(?:u?int\d*|float\d*|double|size|address|u?char|bool)\Z")
#: Where real numbers stand that JSON may write as whole ones.
REAL_PATH = re.compile(r"\.(?:float\d*|double)\Z")
#: Columns of the numbers.
NUMBER_COLUMNS = ("begin", "end", "thread", "domain", "mark", "whole", "fraction", "real")
#: Time and place of a range in SQL: columns begin, end, thread and domain, also of damaged rows.
PLACE_COLUMNS = ", ".join(
    f"CASE typeof({source}) WHEN 'integer' THEN {source} ELSE {other} END AS {name}"
    for name, source, other in (
        ("begin", "{start}", SQL_NULL),
        ("end", "{end}", SQL_NULL),
        ("thread", "{globalTid}", "0"),
        ("domain", "{domainId}", "0"),
    )
)
#: SQLite's integers are signed: of these the greater half reads as negative.
UNSIGNED_FIELD = "uint64Value"
#: Fields with integers, and with real numbers.
WHOLE, REAL = (
    (UNSIGNED_FIELD, "int64Value", "uint32Value", "int32Value"),
    ("doubleValue", "floatValue"),
)
#: Of the one number that an event carries, as if it stood in JSON.
PATH = "$.payload"
#: It looks at the types of the numbers, which are fewer than the numbers.
_ANY = " OR ".join(
    f"typeof({{{name}}}) IN ({kinds})"
    for names, kinds in ((WHOLE, "'integer'"), (REAL, "'integer', 'real'"))
    for name in names
)


def select_value_rows(_: ReportInfo) -> str:
    """Return the condition for ranges and marks with a number in a column."""
    return f"({_ANY}) AND ({MARK} OR {PUSHPOP} OR {STARTEND})"


def select_payload_rows(info: ReportInfo) -> str:
    """Return rows with a payload: ranges of other domains than NCCL's, and marks of all."""
    ranges = " OR ".join(f"({select_other_rows(where)(info)})" for where in (PUSHPOP, STARTEND))
    return f"({{jsonText}} IS NOT NULL OR {{jsonTextId}} IS NOT NULL) AND ({MARK} OR {ranges})"


def extract_payloads(extraction: Extraction, part: Part) -> Iterator[Counters]:
    """Yield the numbers in payloads that are JSON."""
    if not (
        extraction.database.has(TABLE, "jsonText") or extraction.database.has(TABLE, "jsonTextId")
    ):
        return
    rows = extraction.database.count_rows(part, extraction.condition)
    extraction.account.rows += rows
    extraction.account.skipped[Reason.PAYLOAD_WITH_NUMBERS] += rows
    leaves, paths = _read_leaves(extraction, part)
    yield from make_payload_counters(extraction, leaves, paths)


def make_payload_counters(
    extraction: Extraction, leaves: dict[str, np.ndarray], paths: Sequence[str]
) -> Iterator[Counters]:
    """Yield counters of numbers on their threads: begin, end, thread, domain, path (index into the
    paths), and where it is real, fraction, else whole. Ranges that are too short are left out.
    """
    end = np.where(leaves["mark"], NULL, leaves["end"])
    long = extraction.mask_long_enough(leaves["begin"], end)
    leaves = {name: column[long] for name, column in leaves.items()}
    leaves["end"] = np.where(leaves["mark"], leaves["begin"] + 1, leaves["end"])
    labels, codes = _label_leaves(extraction, leaves, paths)
    kept = _mask_common_labels(codes, len(labels))
    extraction.account.dropped[Reason.RARE_PAYLOAD_NAME] += int(np.count_nonzero(~kept))
    fraction = _to_sortable_bits(extraction, leaves["fraction"][kept])
    value = np.where(leaves["real"][kept], fraction, leaves["whole"][kept])
    begin, end, codes = leaves["begin"][kept], leaves["end"][kept], codes[kept]
    for tid, rows in group_rows(leaves["thread"][kept]):
        distinct, column = factorize(codes[rows])
        metrics = tuple(
            Metric(label, UNSCALED if FRACTION in label else 0)
            for label in map(labels.__getitem__, distinct.tolist())
        )
        times, ended = _find_zeros(begin[rows], end[rows], column)
        extraction.account.synthesized[Reason.ZERO_AT_END] += len(times)
        time, column = np.append(begin[rows], times), np.append(column, ended)
        values = np.append(value[rows], np.zeros(len(times), np.int64))
        (thread,) = extraction.intern_threads(np.array([tid])).tolist()
        yield from make_counters(extraction, LAYOUT, thread, time, column, metrics, values)


def _to_sortable_bits(extraction: Extraction, fraction: np.ndarray) -> np.ndarray:
    """Return fractions as the integers that their bits are: those of greater ones are greater. They
    are scaled once all of a name are known (:mod:`nsys2prv.store.samples`).
    """
    none = np.isnan(fraction)
    extraction.account.repaired[Reason.NOT_A_NUMBER] += int(none.sum())
    # 0 is added for -0.0, whose bits are those of a negative number.
    return (np.where(none, 0.0, fraction) + 0.0).view(np.int64)


def _read_leaves(extraction: Extraction, part: Part) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the numbers in the payloads of a part as columns, and where they stand in their
    payload: texts, which `path` is an index into.
    """
    database = extraction.database
    registered = (
        "(SELECT value FROM StringIds NOT INDEXED WHERE id = {jsonTextId})"
        if database.has("StringIds", "id", "value")
        else "NULL"
    )
    text = f"CAST(coalesce({{jsonText}}, {registered}) AS TEXT)"
    frame = database.select(
        f"SELECT {database.make_condition(TABLE, PLACE_COLUMNS)}, {database.make_condition(TABLE, MARK)} AS mark, j.fullkey AS path, "
        "j.type = 'text' AS words, CAST(j.atom AS INTEGER) AS whole, CAST(j.atom AS REAL) AS fraction, j.type = 'real' AS real "
        f"FROM (SELECT *, {database.make_condition(TABLE, text)} AS payload FROM {database.select_rows(part, extraction.condition)}), "
        "json_tree(CASE WHEN json_valid(payload) THEN payload END) j "
        "WHERE j.atom IS NOT NULL"
    )
    extraction.account.synthesized[Reason.VALUE_IN_PAYLOAD] += frame.height
    is_text = frame["words"].to_numpy() > 0
    extraction.account.dropped[Reason.PAYLOAD_TEXT] += int(is_text.sum())
    texts, path = number_distinct(frame["path"].cast(pl.Binary))
    paths = decode_texts(texts).to_list()
    columns = {name: frame[name].to_numpy()[~is_text] for name in NUMBER_COLUMNS}
    columns["path"] = path[~is_text]
    is_real = np.array([REAL_PATH.search(path) is not None for path in paths], bool)
    columns["real"] = (columns["real"] > 0) | is_real[columns["path"]]
    return columns, paths


def _label_leaves(
    extraction: Extraction, leaves: dict[str, np.ndarray], paths: Sequence[str]
) -> tuple[list[str], np.ndarray]:
    """Return labels in order, and the index of each number's: `domain: name`, array places in
    brackets, `#2` for a name that comes twice in a payload.
    """
    domains, domain_of = find_domains(extraction, leaves["thread"], leaves["domain"])
    (domain, path, real), codes = factorize_together(domain_of, leaves["path"], leaves["real"])
    names = [
        f"{domains[of] or DEFAULT_DOMAIN}: {_name_path(paths[at])}{FRACTION if fraction else ''}"
        for of, at, fraction in zip(domain.tolist(), path.tolist(), real.tolist(), strict=True)
    ]
    numbers = Numbering()
    name, known = numbers.number(names)[codes], list(numbers)
    place = [leaves[column] for column in ("begin", "end", "thread")]
    # A payload has each path once; a repetition is another event at the same time.
    event = _count_earlier(*place, leaves["domain"], leaves["path"])
    (name, earlier), codes = factorize_together(name, _count_earlier(*place, event, name))
    labels = [
        f"{known[of]} #{count + 1}" if count else known[of]
        for of, count in zip(name.tolist(), earlier.tolist(), strict=True)
    ]
    ordered = sorted(set(labels))
    return ordered, np.array([bisect_left(ordered, label) for label in labels], np.int64)[codes]


def _name_path(path: str) -> str:
    """Return what a number is called by where it stands."""
    name = re.sub(r"\A\$(?:\.data\[\d+\])?\.?", "", path)
    return WRAPPING.sub("", name, count=1).replace('"', "") or "number"


def _count_earlier(*columns: np.ndarray) -> np.ndarray:
    """Return how many earlier rows are equal to each in these columns."""
    return count_occurrences(number_rows(*columns)[1])


def _mask_common_labels(codes: np.ndarray, labels: int) -> np.ndarray:
    """Return a mask of the numbers with the most frequent labels."""
    if labels <= MOST_NAMES:
        return np.ones(len(codes), bool)
    common = np.argsort(-np.bincount(codes, minlength=labels), kind="stable")[:MOST_NAMES]
    return np.isin(codes, common)


def _find_zeros(
    begin: np.ndarray, end: np.ndarray, column: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return times and columns of the zeros behind ranges, but where a number of the same name
    begins.
    """
    closed = np.flatnonzero(end > begin)
    (times, columns), codes = factorize_together(
        np.concatenate([end[closed], begin]), np.concatenate([column[closed], column])
    )
    is_begin = np.zeros(len(times), bool)
    is_begin[codes[len(closed) :]] = True
    return times[~is_begin], columns[~is_begin]


def _select_number(columns: tuple[str, ...], kinds: str) -> str:
    """Return SQL for the first of these columns that has a number."""
    numbers = (f"CASE WHEN typeof({{{name}}}) IN ({kinds}) THEN {{{name}}} END" for name in columns)
    return f"coalesce({', '.join(numbers)})"


_INTEGER, _FLOAT = _select_number(WHOLE, "'integer'"), _select_number(REAL, "'integer', 'real'")


def extract_values(extraction: Extraction, part: Part) -> Iterator[Counters]:
    """Yield the one number that events carry in columns of the table."""
    database = extraction.database
    if not any(database.has(TABLE, name) for name in (*WHOLE, *REAL)):
        return
    columns = (
        f"{PLACE_COLUMNS}, {MARK} AS mark, typeof({{{UNSIGNED_FIELD}}}) = 'integer' AS large, coalesce({_INTEGER}, 0) AS whole, "
        f"CAST(coalesce({_FLOAT}, 0) AS REAL) AS fraction, {_INTEGER} IS NULL AS real"
    )
    frame = database.select(
        f"SELECT {database.make_condition(TABLE, columns)} FROM {database.select_rows(part)} "
        f"WHERE {database.make_condition(TABLE, extraction.condition)}"
    )
    extraction.account.rows += frame.height
    leaves = {name: frame[name].to_numpy() for name in NUMBER_COLUMNS}
    beyond = (frame["large"].to_numpy() > 0) & (leaves["whole"] < 0)
    leaves["whole"] = np.where(beyond, np.iinfo(np.int64).max, leaves["whole"])
    leaves |= {"path": np.zeros(frame.height, np.int64), "real": leaves["real"] > 0}
    yield from make_payload_counters(extraction, leaves, [PATH])
