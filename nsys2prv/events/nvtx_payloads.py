"""Numbers that NVTX ranges and marks carry (payloads), as counters on their host threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from nsys2prv._util.columns import factorize, factorize_together, group_rows
from nsys2prv.events.attributes import make_counters
from nsys2prv.events.catalogue import FRACTION, UNSCALED, Metric
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import Counters, Reason
from nsys2prv.events.nvtx import MARK, PUSHPOP, STARTEND, TABLE, find_domains, select_other_rows
from nsys2prv.events.nvtx_names import DEFAULT_DOMAIN
from nsys2prv.export.info import ReportInfo
from nsys2prv.export.source import NULL, SQL_NULL, Part, decode_texts

LAYOUT = "nvtx_payload"
#: Names that are kept of one read: a program may make up a name for every range.
MOST_NAMES = 256
#: The type that nsys writes around a value.
WRAPPING = r"\.(?:u?int\d*|float\d*|double|size|address|u?char|bool)$"
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


def select_payload_rows(info: ReportInfo) -> str:
    """Return rows with a payload: ranges of other domains than NCCL's, and marks of all."""
    ranges = " OR ".join(f"({select_other_rows(where)(info)})" for where in (PUSHPOP, STARTEND))
    return f"({{jsonText}} IS NOT NULL OR {{jsonTextId}} IS NOT NULL) AND ({MARK} OR {ranges})"


def select_value_rows(_: ReportInfo) -> str:
    """Return the condition for ranges and marks with a number in a column."""
    return f"({_ANY}) AND ({MARK} OR {PUSHPOP} OR {STARTEND})"


def extract_payloads(extraction: Extraction, part: Part) -> Iterator[Counters]:
    """Yield the numbers in payloads that are JSON."""
    if not (
        extraction.database.has(TABLE, "jsonText") or extraction.database.has(TABLE, "jsonTextId")
    ):
        return
    rows = extraction.database.count_rows(part, extraction.condition)
    extraction.account.rows += rows
    extraction.account.skipped[Reason.PAYLOAD_WITH_NUMBERS] += rows
    leaves = _read_leaves(extraction, part)
    if leaves.height:
        yield from make_payload_counters(extraction, _label_leaves(extraction, leaves))


def make_payload_counters(extraction: Extraction, leaves: pl.DataFrame) -> Iterator[Counters]:
    """Yield counters of numbers on their threads: begin, end, thread, label, and where it is real,
    fraction, else whole.
    """
    codes = leaves["label"].rank("dense").to_numpy().astype(np.int64) - 1
    labels = leaves["label"].unique().sort()
    value = np.where(
        leaves["real"].to_numpy(),
        _to_sortable_bits(extraction, leaves["fraction"].to_numpy()),
        leaves["whole"].to_numpy(),
    )
    begin, end = leaves["begin"].to_numpy(), leaves["end"].to_numpy()
    for tid, rows in group_rows(leaves["thread"].to_numpy()):
        distinct, column = factorize(codes[rows])
        metrics = tuple(
            Metric(label, UNSCALED if FRACTION in label else 0)
            for label in labels.gather(distinct).to_list()
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


def _read_leaves(extraction: Extraction, part: Part) -> pl.DataFrame:
    """Return the numbers in the payloads of a part, a row each, with where they stand in their
    payload (`path`).
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
    if not frame.height:
        return frame
    extraction.account.synthesized[Reason.VALUE_IN_PAYLOAD] += frame.height
    frame = frame.with_columns(
        pl.col("mark", "words", "real").cast(pl.Boolean), path=decode_texts(frame["path"])
    )
    extraction.account.dropped[Reason.PAYLOAD_TEXT] += frame["words"].sum()
    frame = drop_short_ranges(extraction, frame.filter(~pl.col("words")))
    return frame.with_columns(
        real=pl.col("real") | pl.col("path").str.contains(r"\.(?:float\d*|double)$")
    )


def drop_short_ranges(extraction: Extraction, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows but for ranges that are too short, with the ends of marks."""
    end = frame.select(pl.when("mark").then(NULL).otherwise("end")).to_series()
    long = extraction.mask_long_enough(frame["begin"].to_numpy(), end.to_numpy())
    frame = frame.filter(pl.Series(long))
    return frame.with_columns(end=pl.when("mark").then(pl.col("begin") + 1).otherwise("end"))


def _label_leaves(extraction: Extraction, leaves: pl.DataFrame) -> pl.DataFrame:
    """Return the numbers with their labels: `domain: name`, array places in brackets, `#2` for a
    name that comes twice in a payload.
    """
    place = leaves["thread"].to_numpy(), leaves["domain"].to_numpy()
    names, codes = find_domains(extraction, *place)
    domain = pl.Series([name or DEFAULT_DOMAIN for name in names], dtype=pl.String).gather(codes)
    name = pl.col("path").str.replace(r"^\$(?:\.data\[\d+\])?\.?", "")
    name = name.str.replace(WRAPPING, "").str.replace_all('"', "")
    name = pl.when(name == "").then(pl.lit("number")).otherwise(name)
    name = pl.when(pl.col("real")).then(name + FRACTION).otherwise(name)
    leaves = leaves.with_columns(label=pl.concat_str(domain, pl.lit(": "), name))
    # A payload has each path once; a repetition is another event at the same time.
    leaves = leaves.with_columns(
        event=pl.int_range(pl.len()).over("begin", "end", "thread", "domain", "path")
    )
    count = pl.int_range(1, pl.len() + 1).over("begin", "end", "thread", "event", "label")
    leaves = leaves.with_columns(
        label=pl.when(count > 1)
        .then(pl.concat_str("label", pl.lit(" #"), count.cast(pl.String)))
        .otherwise("label")
    )
    kept = leaves.group_by("label").len().sort("len", "label", descending=[True, False])["label"]
    if len(kept) <= MOST_NAMES:
        return leaves
    common = leaves.filter(pl.col("label").is_in(kept.head(MOST_NAMES).implode()))
    extraction.account.dropped[Reason.RARE_PAYLOAD_NAME] += leaves.height - common.height
    return common


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
    if not frame.height:
        return
    frame = drop_short_ranges(
        extraction, frame.with_columns(pl.col("mark", "large", "real").cast(pl.Boolean))
    )
    beyond = pl.col("large") & (pl.col("whole") < 0)
    frame = frame.with_columns(
        path=pl.lit(PATH),
        whole=pl.when(beyond).then(np.iinfo(np.int64).max).otherwise("whole"),
    )
    yield from make_payload_counters(extraction, _label_leaves(extraction, frame))
