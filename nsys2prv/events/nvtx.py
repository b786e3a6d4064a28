"""NVTX ranges and marks on their host threads, with event types per domain."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import ABSENT, factorize, factorize_together
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import Reading, Rows, declare_kind
from nsys2prv.events.names.nvtx import NvtxRule, RenamedRanges, rename_by_template, rename_ranges
from nsys2prv.events.reasons import Reason
from nsys2prv.nsight.columns import NULL, Columns, decode_texts
from nsys2prv.nsight.info import PROCESS_MASK, ReportInfo
from nsys2prv.nsight.source import Part

TABLE = "NVTX_EVENTS"
#: What names and places of ranges and marks are told by.
COLUMNS, TEXTS = ("start", "end", "globalTid", "domainId", "category", "textId"), ("text",)
NO_TEXT = "(no text)"
#: eventType, as in Nsight's ENUM_NSYS_EVENT_TYPE; the second of each is the same from an nvtxt
#: file.
MARK, PUSHPOP, STARTEND = (
    "{eventType} IN (34, 65)",
    "{eventType} IN (59, 70)",
    "{eventType} IN (60, 71)",
)


def select_nccl_rows(where: str) -> Callable[[ReportInfo], str]:
    """Return the condition for rows of NCCL's domain that `where` selects."""
    return lambda info: f"{where} AND {_match_nccl_domain(info)}"


def select_other_rows(where: str) -> Callable[[ReportInfo], str]:
    """Return the condition for rows that `where` selects and that no other kind translates: NCCL's
    ranges have kinds of their own.
    """
    return lambda info: f"{where} AND NOT {_match_nccl_domain(info)}"


def _match_nccl_domain(info: ReportInfo) -> str:
    """Return a mask of the rows in NCCL's domain, whose number differs from process to process. The
    domain is compared first, since that is cheap.
    """
    processes: dict[int, list[int]] = {}
    for process, domain in sorted(key for key, name in info.domains.items() if name == "NCCL"):
        processes.setdefault(domain, []).append(process)
    conditions = [
        f"coalesce({{domainId}}, 0) = {domain} AND coalesce({{globalTid}}, 0) & {PROCESS_MASK} IN ({', '.join(map(str, of_domain))})"
        for domain, of_domain in processes.items()
    ]
    return f"({' OR '.join(conditions)})" if conditions else "0"


class NamedRanges(Struct):
    """Ranges with their names and categories as fields, and their domains."""

    #: Field -> local name indices.
    fields: dict[str, np.ndarray]
    #: Local index of each row's domain.
    domain: np.ndarray
    #: Whether no rule drops the row.
    wanted: np.ndarray


def name_ranges(extraction: Extraction, columns: Columns, field: str) -> NamedRanges:
    """Return the names of rows read with globalTid, domainId, category, textId and text. field: the
    layout's first.
    """
    domains, domain_of = find_domains(extraction, columns["globalTid"], columns["domainId"])
    rules = extraction.nvtx_rules
    if any(rule.domain for rule in rules):
        texts, text_of = find_texts(extraction, columns)
        (domain_codes, text_codes), codes = factorize_together(domain_of, text_of)
        renamed = rename_ranges(
            texts.gather(text_codes),
            pl.Series(domains, dtype=pl.String).gather(domain_codes),
            rules,
        )
    else:
        renamed, codes = _rename_texts(extraction, columns, rules)
    numbers = extraction.domains.number(domains)
    (names, domain_codes), name_of = factorize_together(renamed.codes[codes], domain_of)
    own = ~np.isin(np.array(domains), load_catalogue().domains)[domain_of]
    name = extraction.number_names(
        "nvtx",
        name_of,
        text=renamed.texts.replace("", NO_TEXT).gather(names),
        domain=numbers[domain_codes],
    )
    # 0 is the end of a range in a trace.
    number = np.where(renamed.numbers > 0, renamed.numbers, ABSENT)[codes]
    fields = {
        field: name,
        "category": _name_categories(extraction, columns, numbers[domain_of]),
        "number": number,
        "own": np.where(own, name, ABSENT),
        "own_number": np.where(own, number, ABSENT),
    }
    wanted = renamed.wanted[codes]
    if not wanted.all():
        extraction.account.dropped[Reason.NVTX_RULE] += int(np.count_nonzero(~wanted))
    return NamedRanges(fields, numbers[domain_of], wanted)


def _rename_texts(
    extraction: Extraction, columns: Columns, rules: tuple[NvtxRule, ...]
) -> tuple[RenamedRanges, np.ndarray]:
    """Return what rules that ask for no domain make of the texts, and each row's index into it."""
    codes, inline = columns.texts["text"]
    renamed = rename_by_template(inline, rules)
    if renamed is None:
        texts, codes = find_texts(extraction, columns)
        return rename_ranges(texts, None, rules), codes
    empty = (renamed.texts == "").to_numpy()[renamed.codes][codes]
    if not empty.any():
        return renamed, codes
    # There is no text inline, or the rules have left nothing of it.
    texts, of_rows = find_texts(extraction, columns.where(empty))
    single = rename_ranges(texts, None, rules)
    codes = codes.copy()
    codes[empty] = len(renamed.codes) + of_rows
    return (
        RenamedRanges(
            pl.concat([renamed.texts, single.texts]),
            np.concatenate([renamed.codes, len(renamed.texts) + single.codes]),
            np.concatenate([renamed.wanted, single.wanted]),
            np.concatenate([renamed.numbers, single.numbers]),
        ),
        codes,
    )


def make_extract(layout: str, field: str) -> Callable[[Extraction, Part], Iterator[Rows]]:
    """Return the function that extracts NVTX events into a layout whose first field is `field`."""

    def extract(extraction: Extraction, part: Part) -> Iterator[Rows]:
        columns = extraction.read(part, COLUMNS, TEXTS)
        if not columns.rows:
            return
        ranges = name_ranges(extraction, columns, field)
        if layout == "nvtx_startend":
            ranges.fields["any_domain"] = ranges.fields[field]
        end = columns["start"] + 1 if layout == "nvtx_mark" else columns["end"]
        yield Rows(
            layout,
            columns["start"],
            end,
            extraction.number_threads(columns["globalTid"]),
            ranges.fields,
            domain=ranges.domain,
        ).where(ranges.wanted)

    return extract


def _find_processes(thread: np.ndarray) -> np.ndarray:
    return np.where(thread == NULL, 0, thread & PROCESS_MASK)


def find_domains(
    extraction: Extraction, thread: np.ndarray, domain: np.ndarray
) -> tuple[list[str], np.ndarray]:
    """Return names of the domains met ("" is the default one), and each row's index into them, by
    globalTid and domainId.

    Domain numbers are per process.
    """
    number = np.where(domain == NULL, 0, domain)
    (processes, numbers), codes = factorize_together(_find_processes(thread), number)
    domain_names = extraction.report.domains
    names = [
        "" if domain == 0 else domain_names.get((int(process), int(domain)), f"domain {domain}")
        for process, domain in zip(processes, numbers, strict=True)
    ]
    return names, codes


def find_texts(extraction: Extraction, columns: Columns) -> tuple[pl.Series, np.ndarray]:
    """Return texts met, and each row's index into them, as they are in the report: inline text,
    else the registered string, else a stand-in.
    """
    codes, texts = columns.texts["text"]
    inline = texts.series
    rows = np.flatnonzero((inline.bin.size() == 0).to_numpy()[codes])
    if not len(rows):
        return decode_texts(inline), codes
    ids, id_codes = factorize(columns["textId"][rows])
    registered = pl.Series(
        [text or NO_TEXT for text in extraction.read_strings(ids)], dtype=pl.String
    )
    if len(rows) == len(codes):
        return registered, id_codes
    codes = codes.copy()
    codes[rows] = len(inline) + id_codes
    return pl.concat([decode_texts(inline), registered]), codes


def _name_categories(extraction: Extraction, columns: Columns, domain: np.ndarray) -> np.ndarray:
    """Return local name indices of the categories, ABSENT where a row has none (NULL or 0).
    `domain`: index of each row's domain.
    """
    category = columns["category"]
    rows = np.flatnonzero(category > 0)
    result = np.full(columns.rows, ABSENT)
    if len(rows):
        number = np.where(columns["domainId"] == NULL, 0, columns["domainId"])
        (processes, numbers, categories, domains), codes = factorize_together(
            _find_processes(columns["globalTid"])[rows], number[rows], category[rows], domain[rows]
        )
        category_names = extraction.report.categories
        names = [
            category_names.get((int(process), int(number), int(value)), f"category {value}")
            for process, number, value in zip(processes, numbers, categories, strict=True)
        ]
        result[rows] = extraction.number_names("nvtx_category", codes, text=names, domain=domains)
    return result


KINDS = tuple(
    declare_kind(name, make_extract(layout, field), where=where, reads=Reading(COLUMNS, TEXTS))
    for name, layout, field, where in (
        ("nvtx_pushpop_trace", "nvtx_pushpop", "range", select_other_rows(PUSHPOP)),
        ("nvtx_startend_trace", "nvtx_startend", "range", select_other_rows(STARTEND)),
        ("nvtx_marks", "nvtx_mark", "mark", MARK),
    )
)
