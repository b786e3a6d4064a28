"""NVTX ranges and marks on their host threads, with event types per domain."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from nsys2prv.columns import ABSENT, factorize, factorize_together
from nsys2prv.events.extraction import Extraction, Name
from nsys2prv.events.kind import EventKind, Rows
from nsys2prv.report.info import PROCESS_MASK
from nsys2prv.report.sqlite import NULL, Columns, Part

TABLE = "NVTX_EVENTS"
NO_TEXT = "(no text)"
#: eventType, as in Nsight's ENUM_NSYS_EVENT_TYPE; the second of each is the same from an nvtxt file.
MARK, PUSHPOP, STARTEND = "eventType IN (34, 65)", "eventType IN (59, 70)", "eventType IN (60, 71)"


def reader(layout: str, field: str, where: str) -> Callable[[Extraction, Part], Iterator[Rows]]:
    """The extraction of the NVTX events that `where` selects into a layout whose first field is `field`."""

    def extract(extraction: Extraction, part: Part) -> Iterator[Rows]:
        if not extraction.has(TABLE, "eventType"):
            return
        columns = extraction.read(part, ("start", "end", "globalTid", "domainId", "category", "textId"), ("text",), where)
        if not columns.rows:
            return
        domains, domain_of = _domains(extraction, columns)
        texts, text_of = _texts(extraction, columns)
        (domain_codes, text_codes), codes = factorize_together(domain_of, text_of)
        names = [Name(texts[text], domain=domains[domain]) for domain, text in zip(domain_codes, text_codes, strict=True)]
        fields = {field: extraction.name("nvtx", names, codes), "category": _categories(extraction, columns, domains, domain_of)}
        if layout == "nvtx_startend":
            fields["any_domain"] = fields[field]
        end = columns["start"] + 1 if where == MARK else columns["end"]
        yield Rows(layout, columns["start"], end, extraction.threads(columns["globalTid"]), fields,
                   domain=extraction.domains.number(domains)[domain_of])

    return extract


def _processes(columns: Columns) -> np.ndarray:
    thread = columns["globalTid"]
    return np.where(thread == NULL, 0, thread & PROCESS_MASK)


def _domains(extraction: Extraction, columns: Columns) -> tuple[list[str], np.ndarray]:
    """Names of the domains met, and each row's index into them. Domain numbers are per process."""
    number = np.where(columns["domainId"] == NULL, 0, columns["domainId"])
    (processes, numbers), codes = factorize_together(_processes(columns), number)
    known = extraction.report.domains
    names = ["" if domain == 0 else known.get((int(process), int(domain)), f"domain {domain}")
             for process, domain in zip(processes, numbers, strict=True)]
    return names, codes


def _texts(extraction: Extraction, columns: Columns) -> tuple[list[str], np.ndarray]:
    """Texts met, and each row's index into them: inline text, else the registered string, else a stand-in."""
    codes, inline = columns.texts["text"]
    ids, id_codes = factorize(columns["textId"])
    registered = extraction.strings(ids)
    empty = np.array([not text for text in inline], bool)[codes]
    texts = [text.decode("utf-8", "replace") for text in inline] + [text or NO_TEXT for text in registered]
    return texts, np.where(empty, len(inline) + id_codes, codes)


def _categories(extraction: Extraction, columns: Columns, domains: list[str], domain_of: np.ndarray) -> np.ndarray:
    """Local name indices of the categories, ABSENT where a row has none (NULL or 0)."""
    category = columns["category"]
    rows = np.flatnonzero(category > 0)
    result = np.full(columns.rows, ABSENT)
    if len(rows):
        number = np.where(columns["domainId"] == NULL, 0, columns["domainId"])
        (processes, numbers, categories, codes_of), codes = factorize_together(
            _processes(columns)[rows], number[rows], category[rows], domain_of[rows])
        known = extraction.report.categories
        names = [Name(known.get((int(process), int(domain), int(value)), f"category {value}"), domain=domains[code])
                 for process, domain, value, code in zip(processes, numbers, categories, codes_of, strict=True)]
        result[rows] = extraction.name("nvtx_category", names, codes)
    return result


KINDS = (
    EventKind("nvtx_pushpop_trace", "NVTX push/pop ranges", "host thread", (TABLE,), ("nvtx_pushpop",),
              reader("nvtx_pushpop", "range", PUSHPOP), groups=("nvtx", "nccl"), where=PUSHPOP, open_ended=True),
    EventKind("nvtx_startend_trace", "NVTX start/end ranges", "host thread", (TABLE,), ("nvtx_startend",),
              reader("nvtx_startend", "range", STARTEND), groups=("nvtx",), where=STARTEND, open_ended=True,
              parallel=True),
    EventKind("nvtx_marks", "NVTX marks", "host thread", (TABLE,), ("nvtx_mark",), reader("nvtx_mark", "mark", MARK), groups=("nvtx",),
              where=MARK),
)
