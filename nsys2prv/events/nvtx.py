"""NVTX ranges and marks on their host threads, with event types per domain; the numbers that they
carry (payloads), as counters there; and push/pop ranges on the rows of the streams that they
launched work on.

The last are defined as in nsys's own report ``nvtx_gpu_proj_trace``: a range encloses an operation of a GPU (kernel, memory copy, memory set) if the CUDA API call that launched it lies
within the range, on its thread; the projected range goes from the begin of the first operation to
the end of the last. There each range has one projection; here it has one on every stream, as in
Nsight's timeline. Graphs that were traced as a whole count as operations, too.

The call that launched an operation is found as for lines (:class:`nsys2prv.events.kind.Launches`).
Ranges of no length last 1 ns, and those without an end last to the end of the trace, as everywhere.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.budget import (
    BYTES_PER_VALUE,
    LEAST_VALUES,
    PATH_BYTES,
    PAYLOAD_BYTES,
    VALUES_TOGETHER,
    count_allowed,
)
from nsys2prv._util.columns import (
    ABSENT,
    OPEN,
    count_occurrences,
    factorize,
    factorize_together,
    group_rows,
    join_pieces,
    number_rows,
    reduce_slices,
)
from nsys2prv.events import name_rules
from nsys2prv.events.attributes import QUERIES, make_counters, query_json
from nsys2prv.events.catalogue import FRACTION, UNSCALED, Metric, load_catalogue
from nsys2prv.events.extraction import STREAM_COLUMNS, Extraction, Numbering
from nsys2prv.events.kind import NEVER, Counters, Reason, Rows
from nsys2prv.export.info import PROCESS_MASK, ReportInfo, find_processes
from nsys2prv.export.source import (
    NULL,
    Columns,
    Part,
    Texts,
    decode_texts,
    gather_texts,
    mask_empty,
    mask_usable,
    number_distinct,
    zero_nulls,
)

TABLE = "NVTX_EVENTS"
#: Columns that tell the names and places of ranges and marks.
NAME_COLUMNS = ("start", "end", "globalTid", "domainId", "category", "textId")
NAME_TEXTS = ("text",)
NO_TEXT = "(no text)"
#: eventType, as in Nsight's ENUM_NSYS_EVENT_TYPE; the second of each is the same from an nvtxt
#: file.
MARK, PUSHPOP = (load_catalogue().kinds[name]["where"] for name in ("nvtx_marks", "nvtx_on_gpu"))
STARTEND = "{eventType} IN (60, 71)"
MARK_TYPES = tuple(map(int, re.findall(r"\d+", MARK)))
RANGES, OPERATIONS = "nvtx_on_gpu_ranges", "nvtx_on_gpu_operations"
#: Largest number of pairs of ranges and calls that are looked at together.
PAIRS = 1 << 20
#: Columns of projected ranges.
PROJECTED = dict.fromkeys(("range", "object", "begin", "end"), pl.Int64)
PAYLOAD_LAYOUT = "nvtx_payload"
#: Largest number of names kept of one read: a program may make up a name for every range.
MOST_NAMES = 256
#: The type that nsys writes around a value.
WRAPPING = re.compile(r"\.(?:u?int\d*|float\d*|double|size|address|u?char|bool)\Z")
#: Paths of real numbers that JSON may write as whole ones.
REAL_PATH = re.compile(r"\.(?:float\d*|double)\Z")
#: Columns with numbers: of those of a row the first counts.
WHOLE_COLUMNS = ("uint64Value", "int64Value", "uint32Value", "int32Value")
REAL_COLUMNS = ("doubleValue", "floatValue")
#: Path of the one number that an event carries in a column, as if it stood in JSON.
PATH = "$.payload"


def select_nccl_rows(where: str) -> Callable[[ReportInfo], str]:
    """Return the condition for rows of NCCL's domain that `where` selects."""

    def select(info: ReportInfo) -> str:
        is_of_nccl = _match_nccl_domain(info)
        return NEVER if is_of_nccl == NEVER else f"{where} AND {is_of_nccl}"

    return select


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
    return f"({' OR '.join(conditions)})" if conditions else NEVER


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
    renamed = _rename(extraction, columns, domains, domain_of)
    numbers = extraction.domains.number(domains)
    (names, domain_codes), name_of = factorize_together(renamed.codes, domain_of)
    own = np.array([one not in load_catalogue().domains for one in domains], bool)[domain_of]
    texts = gather_texts(renamed.texts, names, NO_TEXT)
    name = extraction.intern_names("nvtx", name_of, text=texts, domain=numbers[domain_codes])
    # 0 is the end of a range in a trace.
    number = np.where(renamed.numbers > 0, renamed.numbers, ABSENT)
    fields = {
        field: name,
        "category": _name_categories(extraction, columns, numbers[domain_of]),
        "number": number,
        "own": np.where(own, name, ABSENT),
        "own_number": np.where(own, number, ABSENT),
    }
    extraction.account.dropped[Reason.NVTX_RULE] += int(np.count_nonzero(~renamed.wanted))
    return NamedRanges(fields, numbers[domain_of], renamed.wanted)


def _rename(
    extraction: Extraction, columns: Columns, domains: Sequence[str], domain_of: np.ndarray
) -> name_rules.RenamedRanges:
    """Return the text of each row as the rules rename it. domains: names, of which each row has
    one.
    """
    of_domains = name_rules.select_rules(extraction.nvtx_rules, tuple(domains))
    first, *others = dict.fromkeys(of_domains) or [()]
    renamed = _rename_texts(extraction, columns, first)
    for other in others:
        rows = np.array([of_domain == other for of_domain in of_domains])[domain_of]
        of_rows = _rename_texts(extraction, columns.where(rows), other)
        renamed = renamed.replace_some(rows, of_rows)
    return renamed


def _rename_texts(
    extraction: Extraction, columns: Columns, rules: tuple[name_rules.NvtxRule, ...]
) -> name_rules.RenamedRanges:
    """Return the text of each row as the rules rename it."""
    codes, inline = columns.texts["text"]
    renamed = name_rules.rename_by_template(inline, rules)
    if renamed is None:
        texts, codes = find_texts(extraction, columns)
        return name_rules.rename_texts(texts, rules).take(codes)
    renamed = renamed.take(codes)
    empty = mask_empty(renamed.texts)[renamed.codes]
    if not empty.any():
        return renamed
    # There is no text inline, or the rules have left nothing of it.
    texts, of_rows = find_texts(extraction, columns.where(empty))
    return renamed.replace_some(empty, name_rules.rename_texts(texts, rules).take(of_rows))


#: Conditions for the rows of the kinds, by report.
select_pushpop, select_startend = map(select_other_rows, (PUSHPOP, STARTEND))


def extract_ranges(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield ranges or marks in the layout of the kind, whose first field has their name."""
    layout = extraction.kind.layouts[0]
    field = load_catalogue().layouts[layout].fields[0].name
    columns = extraction.read(part, NAME_COLUMNS, NAME_TEXTS)
    ranges = name_ranges(extraction, columns, field)
    if layout == "nvtx_startend":
        ranges.fields["any_domain"] = ranges.fields[field]
    start, threads = columns["start"], extraction.intern_threads(columns["globalTid"])
    end = start + 1 if layout == "nvtx_mark" else columns["end"]
    rows = Rows(layout, start, end, threads, ranges.fields, domain=ranges.domain)
    yield rows.where(ranges.wanted)


def find_domains(
    extraction: Extraction, thread: np.ndarray, domain: np.ndarray
) -> tuple[list[str], np.ndarray]:
    """Return names of the domains met ("" is the default one), and each row's index into them, by
    globalTid and domainId.

    Domain numbers are per process.
    """
    values, codes = factorize_together(find_processes(thread), zero_nulls(domain))
    domain_names = extraction.report.domains
    pairs = zip(*(column.tolist() for column in values), strict=True)
    names = [domain_names.get(key, f"domain {key[1]}") if key[1] else "" for key in pairs]
    return names, codes


def find_texts(extraction: Extraction, columns: Columns) -> tuple[Texts, np.ndarray]:
    """Return texts met, and each row's index into them, as they are in the report: inline text,
    else the registered string, else a stand-in.
    """
    codes, texts = columns.texts["text"]
    inline = texts.decode()
    rows = np.flatnonzero(mask_empty(inline)[codes])
    if not len(rows):
        return inline, codes
    ids, id_codes = factorize(columns["textId"][rows])
    registered = [text or NO_TEXT for text in extraction.read_strings(ids)]
    if len(rows) == len(codes):
        return registered, id_codes
    codes = codes.copy()
    codes[rows] = len(inline) + id_codes
    return join_pieces([inline, registered]), codes


def _name_categories(extraction: Extraction, columns: Columns, domain: np.ndarray) -> np.ndarray:
    """Return local name indices of the categories, ABSENT where a row has none (NULL or 0).
    `domain`: index of each row's domain.
    """
    known = extraction.report.categories

    def make_texts(*places: np.ndarray) -> list[str]:
        keys = zip(*(column.tolist() for column in places[:3]), strict=True)
        return [known.get(key, f"category {key[2]}") for key in keys]

    category, processes = columns["category"], find_processes(columns["globalTid"])
    places = [processes, zero_nulls(columns["domainId"]), category, domain]
    return extraction.name_rows("nvtx_category", places, make_texts, category > 0, domain=3)


def collect_facts(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Set facts aside; the rows follow when all parts are read."""
    save = _save_ranges if part.table == TABLE else _save_operations
    save(extraction, part)
    yield from ()


def _save_ranges(extraction: Extraction, part: Part) -> None:
    columns = extraction.read(part, NAME_COLUMNS, NAME_TEXTS)
    columns = columns.where(mask_usable(columns["start"]) & (columns["globalTid"] != NULL))
    if not columns.rows:
        return
    ranges = name_ranges(extraction, columns, "range")
    begin, end = columns["start"], columns["end"]
    facts = {
        "thread": columns["globalTid"],
        "begin": begin,
        "end": np.where(mask_usable(end), np.maximum(end, begin + 1), OPEN),
        "name_nvtx": ranges.fields["range"],
        "number": ranges.fields["number"],
        "domain": ranges.domain,
    }
    extraction.add_fact(RANGES, {name: column[ranges.wanted] for name, column in facts.items()})


def _save_operations(extraction: Extraction, part: Part) -> None:
    wanted = ("start", "end", "correlationId", *STREAM_COLUMNS)
    columns = extraction.read(part, wanted, where="", short=True)
    launches = extraction.find_launches(columns)
    usable = mask_usable(columns["start"]) & mask_usable(columns["end"])
    usable &= launches.hit & (launches.thread != NULL)
    calls, columns = launches[usable], columns.where(usable)
    if not columns.rows:
        return
    facts = {
        "thread": calls.thread,
        "call_begin": calls.begin,
        "call_end": np.maximum(calls.end, calls.begin + 1),
        "object_stream": extraction.intern_streams(columns),
        "begin": columns["start"],
        "end": np.maximum(columns["end"], columns["start"] + 1),
    }
    # A graph traced by node has many operations of one call.
    operations = _join_spans(pl.DataFrame(facts), *list(facts)[:4])
    extraction.add_fact(OPERATIONS, dict(operations.to_dict()))


def derive_ranges(facts: Mapping[str, pl.DataFrame]) -> Iterator[Rows]:
    """Yield the projected ranges of one report."""
    ranges, operations = facts[RANGES], facts[OPERATIONS]
    if not ranges.height or not operations.height:
        return
    # Outer ranges first: where ranges enclose the same work, only the order shows which one is
    # inside.
    outer_first = {"descending": [False, False, True], "maintain_order": True}
    ranges = ranges.sort("thread", "begin", "end", **outer_first)
    projected = project_ranges(ranges, operations).sort("range", "object")
    place = projected["range"].to_numpy()
    name, number, domain, thread = (
        ranges[column].to_numpy()[place] for column in ("name_nvtx", "number", "domain", "thread")
    )
    fields = {"range": name, "number": number, "any_domain": name}
    places = (projected[column].to_numpy() for column in ("begin", "end", "object"))
    yield Rows("nvtx_on_gpu", *places, fields, domain=domain, nesting_owner=thread)


def project_ranges(ranges: pl.DataFrame, operations: pl.DataFrame) -> pl.DataFrame:
    """Return the first begin and the last end (ns) of the work that each range launched on each
    stream.

    ranges: thread, begin, end. operations: thread, call_begin, call_end, object_stream, begin, end.
    Returns range (a row's index), object, begin and end. Calls that begin within a range are
    neighbours in time, so each range and stream asks for the extremes of a slice: O((ranges +
    calls) log) for each thread and stream, however deep ranges lie within each other.
    """
    columns = {name: ranges[name].to_numpy() for name in ("thread", "begin", "end")}
    of_thread = dict(group_rows(columns["thread"]))
    pieces = [pl.DataFrame(schema=PROJECTED)]
    twice = False
    operations = operations.sort("call_begin")
    for thread, rows in group_rows(operations["thread"].to_numpy()):
        if thread not in of_thread:
            continue
        chosen = np.arange(len(columns["thread"]))[of_thread[thread]]
        begin, end = columns["begin"][chosen], columns["end"][chosen]
        calls = {
            name: operations[name].to_numpy()[rows]
            for name in ("call_begin", "call_end", "object_stream", "begin", "end")
        }
        crossed = _find_crossed(begin, end, calls["call_begin"], calls["call_end"])
        twice |= bool(crossed.any())
        for object_, stream_rows in group_rows(calls["object_stream"]):
            of_stream = {name: column[stream_rows] for name, column in calls.items()}
            for pick, extremes in (
                (~crossed[stream_rows], _project_whole),
                (crossed[stream_rows], _project_crossing),
            ):
                if pick.any():
                    picked = {name: column[pick] for name, column in of_stream.items()}
                    place, first, last = extremes(begin, end, picked)
                    object_of = np.full(len(place), object_)
                    piece = (chosen[place], object_of, first, last)
                    pieces.append(pl.DataFrame(piece, schema=PROJECTED))
    projected = pl.concat(pieces)
    return _join_spans(projected, "range", "object") if twice else projected


def _join_spans(spans: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return the first begin and the last end of those that are alike in these columns."""
    return spans.group_by(*by).agg(pl.col("begin").min(), pl.col("end").max())


def _find_crossed(
    begin: np.ndarray, end: np.ndarray, call_begin: np.ndarray, call_end: np.ndarray
) -> np.ndarray:
    """Return the calls in which a range ends that began before or with them. (Clocks of NVTX and
    CUDA may differ by some ns.)
    """
    order = np.argsort(end)
    first = np.searchsorted(end[order], call_begin, "right")
    last = np.searchsorted(end[order], call_end, "left")
    crossed = first < last
    rows = np.flatnonzero(crossed)
    earliest = reduce_slices(begin[order], first[rows], last[rows], np.minimum)
    crossed[rows] = earliest <= call_begin[rows]
    return crossed


def _project_whole(
    begin: np.ndarray, end: np.ndarray, calls: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ranges with work, its first begin and its last end, of calls that end in every range
    in which they begin.
    """
    first, last = (np.searchsorted(calls["call_begin"], edge, "left") for edge in (begin, end))
    spanning = np.flatnonzero(first < last)
    first, last = first[spanning], last[spanning]
    return (
        spanning,
        reduce_slices(calls["begin"], first, last, np.minimum),
        reduce_slices(calls["end"], first, last, np.maximum),
    )


def _project_crossing(
    begin: np.ndarray, end: np.ndarray, calls: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what :func:`_project_whole` does, of the few calls that end outside a range in which
    they begin, pair by pair.
    """
    first, last = (np.searchsorted(calls["call_begin"], edge, "left") for edge in (begin, end))
    counts = np.maximum(last - first, 0)
    total = np.cumsum(counts)
    cuts = np.unique(np.searchsorted(total, np.arange(0, counts.sum(), PAIRS), "left"))
    pieces = []
    for rows in np.split(np.arange(len(begin)), cuts[cuts > 0]):
        place = np.repeat(rows, counts[rows])
        call = count_occurrences(place) + first[place]
        inside = calls["call_end"][call] <= end[place]
        place, call = place[inside], call[inside]
        pairs = {"place": place, "begin": calls["begin"][call], "end": calls["end"][call]}
        pieces.append(_join_spans(pl.DataFrame(pairs), "place"))
    result = pl.concat(pieces)
    return result["place"].to_numpy(), result["begin"].to_numpy(), result["end"].to_numpy()


# ---- numbers that ranges and marks carry ---------------------------------------------------------


def select_value_rows(_: ReportInfo) -> str:
    """Return the condition for ranges and marks with a number in a column."""
    has_number = QUERIES["nvtx_has_plain_number"]
    return f"({has_number}) AND ({MARK} OR {PUSHPOP} OR {STARTEND})"


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
    wanted = ("start", "end", "globalTid", "domainId", "eventType", "jsonTextId")
    database, account = extraction.database, extraction.account
    columns = database.read(part, wanted, ("jsonText",), extraction.condition)
    payloads, code = _find_payloads(extraction, columns)
    values = _read_values(payloads)
    count = values.count[code]
    allowed = count_allowed(LEAST_VALUES, database.size, BYTES_PER_VALUE)
    allowed = allowed * part.rows // max(part.rows, extraction.report.parts[TABLE].rows)
    fits = np.array([len(payload) <= PAYLOAD_BYTES for payload in payloads], bool)[code]
    fits &= np.cumsum(count) <= allowed
    account.rows += columns.rows
    account.dropped[Reason.PAYLOAD_TOO_LARGE] += int(np.count_nonzero(~fits))
    account.skipped[Reason.PAYLOAD_WITH_NUMBERS] += int(np.count_nonzero(fits))
    account.synthesized[Reason.VALUE_IN_PAYLOAD] += int(count[fits].sum())
    account.dropped[Reason.PAYLOAD_TEXT] += int(values.texts[code[fits]].sum())
    rows = np.flatnonzero(fits)
    numbers = (values.count - values.texts)[code[rows]]
    group = np.cumsum(numbers) // VALUES_TOGETHER
    for own in np.split(rows, np.flatnonzero(np.diff(group)) + 1):
        yield from make_payload_counters(
            extraction, values.expand(columns, own, code), values.paths
        )


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
        yield from make_counters(extraction, PAYLOAD_LAYOUT, thread, time, column, metrics, values)


def _to_sortable_bits(extraction: Extraction, fraction: np.ndarray) -> np.ndarray:
    """Return fractions as the integers that their bits are: those of greater ones are greater. They
    are scaled once all of a name are known (:mod:`nsys2prv.table.samples`).
    """
    none = np.isnan(fraction)
    extraction.account.repaired[Reason.NOT_A_NUMBER] += int(none.sum())
    # 0 is added for -0.0, whose bits are those of a negative number.
    return (np.where(none, 0.0, fraction) + 0.0).view(np.int64)


class _PayloadValues(Struct, frozen=True):
    """Values in distinct payloads."""

    #: Of each payload the number of its values, and of those that are texts.
    count: np.ndarray
    texts: np.ndarray
    #: Where values stand in their payload: texts, which `path` is an index into.
    paths: list[str]
    #: Columns of the numbers, by payload: `path`, `whole`, `fraction`, `real`.
    numbers: dict[str, np.ndarray]

    def expand(self, columns: Columns, rows: np.ndarray, code: np.ndarray) -> dict[str, np.ndarray]:
        """Return the numbers of some rows with times and places of these. code: of each row its
        payload.
        """
        counts = self.count - self.texts
        own, first = counts[code[rows]], (np.cumsum(counts) - counts)[code[rows]]
        row = np.repeat(rows, own)
        place = np.arange(len(row)) + np.repeat(first - (np.cumsum(own) - own), own)
        return {
            "begin": columns["start"][row],
            "end": columns["end"][row],
            "thread": zero_nulls(columns["globalTid"])[row],
            "domain": zero_nulls(columns["domainId"])[row],
            "mark": np.isin(columns["eventType"], MARK_TYPES)[row],
            **{name: column[place] for name, column in self.numbers.items()},
        }


def _find_payloads(extraction: Extraction, columns: Columns) -> tuple[list[bytes], np.ndarray]:
    """Return distinct payloads, and each row's index into them: text in the row, else a registered
    string.
    """
    code, inline = columns.texts["jsonText"]
    payloads = inline.as_list()
    rows = np.flatnonzero(np.array([not payload for payload in payloads], bool)[code])
    if not len(rows):
        return payloads, code
    ids, id_codes = factorize(columns["jsonTextId"][rows])
    known = extraction.database.read_strings(ids[ids != NULL])
    code = code.copy()
    code[rows] = len(payloads) + id_codes
    return [*payloads, *(known.get(one, "").encode() for one in ids.tolist())], code


def _read_values(payloads: Sequence[bytes]) -> _PayloadValues:
    """Return the values of payloads; of those that are too long none."""
    pieces, paths = [], Numbering()
    sizes = np.array([len(payload) for payload in payloads], np.int64)
    fitting = np.flatnonzero(sizes <= PAYLOAD_BYTES)
    # A path is as long as half of the payload where the other half is values of five characters.
    group = np.cumsum(sizes[fitting] * (sizes[fitting] + 512) // 16) // PATH_BYTES
    for numbers in np.split(fitting, np.flatnonzero(np.diff(group)) + 1):
        own = ((number, payloads[number]) for number in numbers.tolist())
        frame = query_json("nvtx_payload_values", own)
        distinct, path = number_distinct(frame["path"].cast(pl.Binary))
        of_piece = paths.number(decode_texts(distinct).to_list())
        pieces.append(frame.with_columns(path=pl.Series(of_piece[path], dtype=pl.Int64)))
    frame = pl.concat(pieces, how="vertical_relaxed")
    number, is_text = frame["number"].to_numpy(), frame["words"].to_numpy() > 0
    count, texts = (np.bincount(own, minlength=len(payloads)) for own in (number, number[is_text]))
    chosen = ("path", "whole", "fraction", "real")
    columns = {name: frame[name].to_numpy()[~is_text] for name in chosen}
    is_real = np.array([REAL_PATH.search(path) is not None for path in paths], bool)
    columns["real"] = (columns["real"] > 0) | is_real[columns["path"]]
    return _PayloadValues(count, texts, list(paths), columns)


def _label_leaves(
    extraction: Extraction, leaves: dict[str, np.ndarray], paths: Sequence[str]
) -> tuple[list[str], np.ndarray]:
    """Return labels in order, and the index of each number's: `domain: name`, array places in
    brackets, `#2` for a name that comes twice in a payload.
    """
    domains, domain_of = find_domains(extraction, leaves["thread"], leaves["domain"])
    (domain, path, real), codes = factorize_together(domain_of, leaves["path"], leaves["real"])
    names = [
        f"{domains[of] or name_rules.DEFAULT_DOMAIN}: {_name_path(paths[at])}{FRACTION if fraction else ''}"
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


def extract_values(extraction: Extraction, part: Part) -> Iterator[Counters]:
    """Yield the one number that events carry in columns of the table."""
    database = extraction.database
    if not any(database.has(TABLE, name) for name in (*WHOLE_COLUMNS, *REAL_COLUMNS)):
        return
    integers = ("start", "end", "globalTid", "domainId", "eventType", *WHOLE_COLUMNS)
    columns = database.read(part, integers, (), extraction.condition, REAL_COLUMNS)
    extraction.account.rows += columns.rows
    whole, fraction = np.full(columns.rows, NULL), np.full(columns.rows, np.nan)
    for name in reversed(WHOLE_COLUMNS):
        whole = np.where(columns[name] == NULL, whole, columns[name])
    for name in reversed(REAL_COLUMNS):
        fraction = np.where(np.isnan(columns[name]), fraction, columns[name])
    # SQLite's integers are signed.
    beyond = (columns["uint64Value"] != NULL) & (whole < 0)
    leaves = {
        "begin": columns["start"],
        "end": columns["end"],
        "thread": zero_nulls(columns["globalTid"]),
        "domain": zero_nulls(columns["domainId"]),
        "path": np.zeros(columns.rows, np.int64),
        "mark": np.isin(columns["eventType"], MARK_TYPES),
        "whole": np.where(beyond, np.iinfo(np.int64).max, zero_nulls(whole)),
        "fraction": np.where(np.isnan(fraction), 0, fraction),
        "real": whole == NULL,
    }
    yield from make_payload_counters(extraction, leaves, [PATH])
