"""Read NVTX ranges and marks on host threads, numbers in their payloads as counters, and push/pop
ranges projected to GPU streams.

Projection follows nsys's report ``nvtx_gpu_proj_trace``: a range contains a GPU operation (kernel,
memory copy, memory set) if the launching CUDA API call is within the range, on the same thread. The
projected range lasts from the start of the first operation to the end of the last. In that report,
a range has one projection; here it has one per stream, as in Nsight's timeline. Graphs traced as a
whole count as operations, too. Work that was captured in a range has one more projection per
replay, unless ranges of this name also replay graphs.

The launching call of an operation is found as for lines
(:class:`nsys2prv.events.launches.Launches`). Ranges without a duration last 1 ns. Ranges without an
end last until the end of the trace.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv._util.budget import (
    BYTES_PER_VALUE,
    LEAST_VALUES,
    PATH_BYTES,
    PAYLOAD_BYTES,
    RANGE_PAIRS,
    VALUES_TOGETHER,
    count_allowed,
)
from nsys2prv._util.columns import (
    ABSENT,
    OPEN,
    blank_nonpositive,
    count_occurrences,
    factorize,
    factorize_together,
    find_edges,
    group_rows,
    join_pieces,
    number_rows,
    reduce_slices,
    take_rows,
)
from nsys2prv.events import name_rules
from nsys2prv.events.attributes import (
    QUERIES,
    make_counters,
    make_rows,
    mask_most_frequent,
    query_json,
)
from nsys2prv.events.captures import find_captures
from nsys2prv.events.catalogue import FRACTION, UNSCALED, Metric, load_catalogue
from nsys2prv.events.extraction import STREAM_COLUMNS, Extraction, Numbering
from nsys2prv.events.kind import NEVER, Counters, Reason, Rows
from nsys2prv.events.range_texts import FACTS, read_facts, read_facts_of
from nsys2prv.export.info import PROCESS_MASK, ReportInfo, find_processes
from nsys2prv.export.outlines import NVTX_REALS, NVTX_WHOLE_NUMBERS
from nsys2prv.export.source import (
    FEW_TEXTS,
    NULL,
    Columns,
    Part,
    Texts,
    decode_texts,
    gather_texts,
    mask_empty,
    mask_usable,
    number_distinct,
    number_few,
    zero_nulls,
)

TABLE = "NVTX_EVENTS"
#: Columns with the names and places of ranges and marks.
NAME_COLUMNS = ("start", "end", "globalTid", "domainId", "category", "textId")
NAME_TEXTS = ("text",)
NO_TEXT = "(no text)"
#: eventType, as in Nsight's ENUM_NSYS_EVENT_TYPE; the second of each is the same from an nvtxt
#: file.
MARK, PUSHPOP = (load_catalogue().kinds[name]["where"] for name in ("nvtx_marks", "nvtx_on_gpu"))
STARTEND = "{eventType} IN (60, 71)"
MARK_TYPES = tuple(map(int, re.findall(r"\d+", MARK)))
RANGES, OPERATIONS = "nvtx_on_gpu_ranges", "nvtx_on_gpu_operations"
REPLAYS = "nvtx_on_gpu_replays"
#: Columns of projected ranges.
PROJECTED = dict.fromkeys(("range", "object", "begin", "end"), pl.Int64)
PAYLOAD_LAYOUT = "nvtx_payload"
#: Largest number of names kept per read, because a program may make up a name for every range.
MOST_NAMES = 256
#: The type that nsys writes around a value.
WRAPPING = re.compile(r"\.(?:u?int\d*|float\d*|double|size|address|u?char|bool)\Z")
#: Paths of real numbers that JSON may write as whole ones.
REAL_PATH = re.compile(r"\.(?:float\d*|double)\Z")
#: Columns with numbers; the first number of a row is used.
WHOLE_COLUMNS, REAL_COLUMNS = NVTX_WHOLE_NUMBERS, NVTX_REALS
#: Columns with the time, place and domain of an event.
PLACE = ("start", "end", "globalTid", "domainId", "eventType")
#: Path of the one number that an event carries in a column, as if it stood in JSON.
PATH = "$.payload"


def select_nccl_rows(where: str) -> Callable[[ReportInfo], str]:
    """Return a function that makes, for a report, the SQL condition for rows of NCCL's domain that
    meet `where`.
    """

    def select(info: ReportInfo) -> str:
        is_of_nccl = _match_nccl_domain(info)
        return NEVER if is_of_nccl == NEVER else f"{where} AND {is_of_nccl}"

    return select


def select_other_rows(where: str) -> Callable[[ReportInfo], str]:
    """Return a function that makes, for a report, the SQL condition for rows that meet `where` and
    belong to no other kind. NCCL's ranges have separate kinds.
    """
    return lambda info: f"{where} AND NOT {_match_nccl_domain(info)}"


def _match_nccl_domain(info: ReportInfo) -> str:
    """Return the SQL condition for rows in NCCL's domain, whose number differs between processes.
    The domain is compared first because this is fast.
    """
    processes: dict[int, list[int]] = {}
    for process, domain in sorted(key for key, name in info.domains.items() if name == "NCCL"):
        processes.setdefault(domain, []).append(process)
    conditions = [
        f"coalesce({{domainId}}, 0) = {domain} AND coalesce({{globalTid}}, 0) & {PROCESS_MASK} IN ({', '.join(map(str, of_domain))})"
        for domain, of_domain in processes.items()
    ]
    return f"({' OR '.join(conditions)})" if conditions else NEVER


def make_ranges(extraction: Extraction, layout: str, columns: Columns) -> Rows:
    """Make records of NVTX ranges or marks, with the name in the first field of the layout. Rows
    dropped by a rule are counted. columns: NAME_COLUMNS and NAME_TEXTS.
    """
    if not extraction.stores and not name_rules.may_drop(extraction.nvtx_rules):
        return make_rows(extraction, layout, columns)
    domains, domain_of = find_domains(extraction, columns["globalTid"], columns["domainId"])
    renamed, codes, number = _rename(extraction, columns, domains, domain_of)
    domain = extraction.domains.number(domains)[domain_of]
    is_few, names = renamed.height <= FEW_TEXTS, renamed["name"]
    texts, text_of = number_few(names.to_list()) if is_few else number_distinct(names)
    (named, of_domain), name_of = factorize_together(text_of[codes], domain)
    texts = gather_texts(texts, named, NO_TEXT)
    name = extraction.intern_names("nvtx", name_of, text=texts, domain=of_domain)
    # 0 is the end of a range in a trace.
    number = blank_nonpositive(number)
    own = np.array([one not in load_catalogue().domains for one in domains], bool)[domain_of]
    known = load_catalogue().layouts[layout]
    fields = {
        known.fields[0].name: name,
        "any_domain": name,
        "category": _name_categories(extraction, columns, domain),
        "number": number,
        "own": np.where(own, name, ABSENT),
        "own_number": np.where(own, number, ABSENT),
    }
    if "operations" in known.by_name:
        fields |= _read_facts(extraction, columns)
    fields = {name: column for name, column in fields.items() if name in known.by_name}
    wanted = renamed["wanted"].to_numpy()[codes]
    extraction.account.dropped[Reason.NVTX_RULE] += int(np.count_nonzero(~wanted))
    return replace(make_rows(extraction, layout, columns, fields), domain=domain).where(wanted)


def _read_facts(extraction: Extraction, columns: Columns) -> dict[str, np.ndarray]:
    """Return the values in range texts other than the name (range_texts.FACTS); empty if no text
    has any.
    """
    codes, texts = columns.texts["text"]
    facts = read_facts(texts)[:, codes]
    rows = np.flatnonzero((columns["textId"] != NULL) & (facts == ABSENT).all(axis=0))
    numbers, of_rows = factorize(columns["textId"][rows])
    facts[:, rows] = read_facts_of(extraction.read_strings(numbers))[:, of_rows]
    said = (facts != ABSENT).any(axis=1)
    return {name: facts[at] for at, name in enumerate(FACTS) if said[at]}


def _rename(
    extraction: Extraction, columns: Columns, domains: Sequence[str], domain_of: np.ndarray
) -> tuple[pl.DataFrame, np.ndarray, np.ndarray]:
    """Return renamed distinct texts (columns name_rules.RENAMED), the index of each row's text, and
    each row's number. domains: distinct domain names. domain_of: index of each row's domain.
    """
    pieces: list[pl.DataFrame] = []
    codes, numbers = np.zeros((2, columns.rows), np.int64)

    def add(
        rows: np.ndarray, renamed: pl.DataFrame, of_rows: np.ndarray, number: np.ndarray
    ) -> None:
        codes[rows] = sum(piece.height for piece in pieces) + of_rows
        numbers[rows] = number
        pieces.append(renamed)

    of_domains = name_rules.select_rules(extraction.nvtx_rules, tuple(domains))
    for rules in dict.fromkeys(of_domains):
        is_own = np.array([one == rules for one in of_domains])[domain_of]
        rows, own = np.flatnonzero(is_own), columns.where(is_own)
        text_of, inline = own.texts["text"]
        by_template = name_rules.rename_by_template(inline, rules)
        if by_template is not None:
            renamed, of_texts, of_numbers = by_template
            add(rows, renamed, of_texts[text_of], of_numbers[text_of])
            is_empty = (renamed["name"] == "").to_numpy()[of_texts[text_of]]
            rows, own = rows[is_empty], own.where(is_empty)
        if len(rows):
            # There is no text inline, the rules have left nothing of it, or there are few.
            texts, text_of = find_texts(extraction, own)
            renamed = name_rules.rename_texts(texts, rules)
            add(rows, renamed, text_of, renamed["number"].to_numpy()[text_of])
    if len(pieces) == 1:
        return pieces[0], codes, numbers
    return pl.concat(pieces or [pl.DataFrame(schema=name_rules.RENAMED)]), codes, numbers


#: Conditions for the rows of the kinds, by report.
select_pushpop, select_startend = map(select_other_rows, (PUSHPOP, STARTEND))


def extract_ranges(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield NVTX ranges or marks."""
    columns = extraction.read(part, NAME_COLUMNS, NAME_TEXTS)
    yield make_ranges(extraction, extraction.kind.layouts[0], columns)


def find_domains(
    extraction: Extraction, thread: np.ndarray, domain: np.ndarray
) -> tuple[list[str], np.ndarray]:
    """Find the NVTX domains of rows. Return the names of the domains ("" is the default domain),
    and the index of each row's domain. thread: globalTid. domain: domainId, which is numbered per
    process.
    """
    values, codes = factorize_together(find_processes(thread), zero_nulls(domain))
    domain_names = extraction.report.domains
    pairs = zip(*(column.tolist() for column in values), strict=True)
    names = [domain_names.get(key, f"domain {key[1]}") if key[1] else "" for key in pairs]
    return names, codes


def find_texts(
    extraction: Extraction,
    columns: Columns,
    inline: str = "text",
    ids: str = "textId",
    instead: str = NO_TEXT,
) -> tuple[Texts, np.ndarray]:
    """Find the texts of rows: the inline text, otherwise the registered string, otherwise
    `instead`. Return the distinct texts, and the index of each row's text. inline, ids: names of
    the columns with texts and string ids.
    """
    codes, texts = columns.texts[inline]
    texts = texts.decode()
    rows = np.flatnonzero(mask_empty(texts)[codes])
    if not len(rows):
        return texts, codes
    numbers, of_rows = factorize(columns[ids][rows])
    registered = [text or instead for text in extraction.read_strings(numbers)]
    if len(rows) == len(codes):
        return registered, of_rows
    codes = codes.copy()
    codes[rows] = len(texts) + of_rows
    return join_pieces([texts, registered]), codes


def _name_categories(extraction: Extraction, columns: Columns, domain: np.ndarray) -> np.ndarray:
    """Return the local name index of each row's category; ABSENT without one (NULL or 0). domain:
    index of each row's domain.
    """
    known = extraction.report.categories

    def make_texts(*places: np.ndarray) -> list[str]:
        keys = zip(*(column.tolist() for column in places[:3]), strict=True)
        return [known.get(key, f"category {key[2]}") for key in keys]

    category, processes = columns["category"], find_processes(columns["globalTid"])
    places = [processes, zero_nulls(columns["domainId"]), category, domain]
    return extraction.name_rows("nvtx_category", places, make_texts, category > 0, domain=3)


def collect_facts(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Store NVTX ranges as facts, from which :func:`derive_ranges` makes records when all parts
    have been read. Yield no rows.
    """
    save = _save_ranges if part.table == TABLE else _save_operations
    save(extraction, part)
    yield from ()


def _save_ranges(extraction: Extraction, part: Part) -> None:
    columns = extraction.read(part, NAME_COLUMNS, NAME_TEXTS)
    columns = columns.where(mask_usable(columns["start"]) & (columns["globalTid"] != NULL))
    if not columns.rows:
        return
    rows = make_ranges(extraction, "nvtx_on_gpu", columns)
    end = np.where(mask_usable(rows.end), np.maximum(rows.end, rows.begin + 1), OPEN)
    facts = {
        "thread": columns["globalTid"],
        "begin": rows.begin,
        "end": end,
        "name_nvtx": rows.columns["range"],
        "number": rows.columns["number"],
        "domain": rows.domain,
    }
    extraction.add_fact(RANGES, {name: rows.get_chosen(column) for name, column in facts.items()})


def _save_operations(extraction: Extraction, part: Part) -> None:
    wanted = ("start", "end", "correlationId", "graphNodeId", *STREAM_COLUMNS)
    columns = extraction.read(part, wanted, where="", short=True)
    calls, captures = extraction.find_launches(columns), find_captures(extraction, columns)
    found = (calls.thread != NULL) | (captures[0] != NULL)
    found &= mask_usable(columns["start"]) & mask_usable(columns["end"])
    calls, (captor, captured), columns = calls[found], captures[:, found], columns.where(found)
    objects = extraction.intern_streams(columns)
    spans = {"begin": columns["start"], "end": np.maximum(columns["end"], columns["start"] + 1)}
    launched = {
        "thread": calls.thread,
        "call_begin": calls.begin,
        "call_end": np.maximum(calls.end, calls.begin + 1),
        "is_replay": captor != NULL,
    }
    replayed = {"thread": captor, "captured": captured, "launch": columns["correlationId"]}
    for name, facts in ((OPERATIONS, launched), (REPLAYS, replayed)):
        operations = pl.DataFrame({**facts, "object_stream": objects, **spans})
        # A graph traced by node has many operations of one call.
        operations = _join_spans(
            operations.filter(pl.col("thread") != NULL), *facts, "object_stream"
        )
        if operations.height:
            extraction.add_fact(name, dict(operations.to_dict()))


def derive_ranges(facts: Mapping[str, pl.DataFrame]) -> Iterator[Rows]:
    """Yield NVTX ranges projected onto GPUs: on each stream, from the first to the last work
    launched in the range. facts: of one report.
    """
    ranges, operations, replays = (facts[name] for name in (RANGES, OPERATIONS, REPLAYS))
    if not ranges.height or not operations.height:
        return
    # Outer ranges first: if ranges enclose the same work, only the order shows which one is inside.
    outer_first = {"descending": [False, False, True], "maintain_order": True}
    ranges = ranges.sort("thread", "begin", "end", **outer_first)
    projected = project_ranges(ranges, operations).sort("range", "object")
    if replays.height:
        replaying = project_ranges(ranges, operations.filter("is_replay"))["range"]
        names = ranges["name_nvtx"].gather(replaying)
        is_captor = ~ranges["name_nvtx"].is_in(names.implode())
        projected.extend(
            _project_replays(ranges.with_row_index("range").filter(is_captor), replays)
        )
    place = projected["range"].to_numpy()
    name, number, domain, thread = (
        ranges[column].to_numpy()[place] for column in ("name_nvtx", "number", "domain", "thread")
    )
    fields = {"range": name, "number": number, "any_domain": name}
    places = (projected[column].to_numpy() for column in ("begin", "end", "object"))
    yield Rows("nvtx_on_gpu", *places, fields, domain=domain, nesting_owner=thread)


def project_ranges(ranges: pl.DataFrame, operations: pl.DataFrame) -> pl.DataFrame:
    """Project NVTX ranges onto streams. Return range (index of a row), object, begin and end (ns):
    the first start and last end of the work that each range launched on each stream.

    ranges: thread, begin, end. operations: thread, call_begin, call_end, object_stream, begin, end.
    Calls that begin within a range are adjacent in time, so each range and stream needs the
    extremes of a slice: O((ranges + calls) log) per thread and stream, however deeply ranges are
    nested.
    """
    columns = {name: ranges[name].to_numpy() for name in ("thread", "begin", "end")}
    of_thread = dict(group_rows(columns["thread"]))
    pieces = [pl.DataFrame(schema=PROJECTED)]
    by = ["thread", "object_stream"]
    for (thread, object_), calls in operations.sort("call_begin").group_by(by, maintain_order=True):
        if thread not in of_thread:
            continue
        chosen = np.arange(ranges.height)[of_thread[thread]]
        begin, end = columns["begin"][chosen], columns["end"][chosen]
        crossed = _mask_crossed(begin, end, calls)
        for own, project in ((~crossed, _project_whole), (crossed, _project_crossing)):
            if own.any():
                place, first, last = project(begin, end, calls.filter(own))
                piece = chosen[place], np.full(len(place), object_), first, last
                pieces.append(pl.DataFrame(piece, schema=PROJECTED))
    return _join_spans(pl.concat(pieces), "range", "object")


def _project_replays(ranges: pl.DataFrame, replays: pl.DataFrame) -> pl.DataFrame:
    """Project the work that was captured in each range as :func:`project_ranges` does, once per
    graph launch.
    """
    nodes = replays.select("thread", "captured").unique().sort("thread", "captured")
    pairs = [pl.DataFrame(schema={"range": pl.UInt32, "node": pl.Int64})]
    of_thread = dict(group_rows(ranges["thread"].to_numpy()))
    for thread, own in group_rows(nodes["thread"].to_numpy()):
        if thread in of_thread:
            chosen, rows = ranges[of_thread[thread]], np.arange(nodes.height)[own]
            at = nodes["captured"].to_numpy()[rows]
            begin, end = chosen["begin"].to_numpy(), chosen["end"].to_numpy()
            first, last = np.searchsorted(at, begin, "left"), np.searchsorted(at, end, "right")
            spans = chosen.select("range", first=pl.Series(first), last=pl.Series(last))
            spans = spans.filter(pl.col("first") < pl.col("last"))
            of_range = spans.select("range", node=pl.int_ranges("first", "last")).explode("node")
            pairs.append(of_range.with_columns(pl.col("node") + int(rows[0])))
    nodes = nodes.with_columns(node=pl.int_range(pl.len()))
    replays = replays.join(nodes, on=("thread", "captured")).sort("launch")
    within, pieces = pl.concat(pairs), [pl.DataFrame(schema={"launch": pl.Int64, **PROJECTED})]
    deepest = max(1, within["node"].unique_counts().max() or 1)
    for piece in replays.iter_slices(max(1, RANGE_PAIRS // deepest)):
        spans = piece.join(within, on="node").rename({"object_stream": "object"})
        spans = spans.cast({"range": pl.Int64})
        pieces.append(_join_spans(spans, "launch", "range", "object"))
    found = _join_spans(pl.concat(pieces), "launch", "range", "object")
    return found.sort("launch", "range", "object").select(*PROJECTED)


def _join_spans(spans: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return the first start and last end of the rows that are equal in these columns."""
    return spans.group_by(*by).agg(pl.col("begin").min(), pl.col("end").max())


def _mask_crossed(begin: np.ndarray, end: np.ndarray, calls: pl.DataFrame) -> np.ndarray:
    """Return a mask of the calls during which a range ends that began before or with them. (Clocks
    of NVTX and CUDA may differ by some ns.)
    """
    order = np.argsort(end)
    call_begin = calls["call_begin"].to_numpy()
    first = np.searchsorted(end[order], call_begin, "right")
    last = np.searchsorted(end[order], calls["call_end"].to_numpy(), "left")
    crossed = first < last
    rows = np.flatnonzero(crossed)
    earliest = reduce_slices(begin[order], first[rows], last[rows], np.minimum)
    crossed[rows] = earliest <= call_begin[rows]
    return crossed


def _find_slices(
    begin: np.ndarray, end: np.ndarray, calls: pl.DataFrame
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ranges in which calls begin, with the index of the first such call and of the one
    after the last.
    """
    called = calls["call_begin"].to_numpy()
    first, last = (np.searchsorted(called, edge, "left") for edge in (begin, end))
    spanning = np.flatnonzero(first < last)
    return spanning, first[spanning], last[spanning]


def _project_whole(
    begin: np.ndarray, end: np.ndarray, calls: pl.DataFrame
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ranges with work, its first start and its last end. calls: end within every range in
    which they begin.
    """
    spanning, first, last = _find_slices(begin, end, calls)
    begins = reduce_slices(calls["begin"].to_numpy(), first, last, np.minimum)
    return spanning, begins, reduce_slices(calls["end"].to_numpy(), first, last, np.maximum)


def _project_crossing(
    begin: np.ndarray, end: np.ndarray, calls: pl.DataFrame
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Project the few calls that end outside a range in which they begin, one pair at a time;
    result as in :func:`_project_whole`.
    """
    spanning, first, last = _find_slices(begin, end, calls)
    spans = pl.DataFrame({"place": spanning, "first": first, "last": last, "until": end[spanning]})
    spans = spans.with_columns(piece=(pl.col("last") - pl.col("first")).cum_sum() // RANGE_PAIRS)
    found = [pl.DataFrame(schema=dict.fromkeys(("place", "begin", "end"), pl.Int64))]
    for _, own in spans.group_by("piece", maintain_order=True):
        pairs = own.select("place", "until", call=pl.int_ranges("first", "last")).explode("call")
        pairs = pairs.hstack(calls[pairs["call"]].select("call_end", "begin", "end"))
        inside = pairs.filter(pl.col("call_end") <= pl.col("until"))
        found.append(_join_spans(inside, "place"))
    place, first, last = pl.concat(found).get_columns()
    return place.to_numpy(), first.to_numpy(), last.to_numpy()


# ---- numbers that ranges and marks carry ---------------------------------------------------------


def select_value_rows(_: ReportInfo) -> str:
    """Return the SQL condition for ranges and marks with a number in a column."""
    has_number = QUERIES["nvtx_has_plain_number"]
    return f"({has_number}) AND ({MARK} OR {PUSHPOP} OR {STARTEND})"


def select_payload_rows(info: ReportInfo) -> str:
    """Return the SQL condition for rows with a payload: marks of all domains, and ranges of all
    domains except NCCL's.
    """
    ranges = " OR ".join(f"({select_other_rows(where)(info)})" for where in (PUSHPOP, STARTEND))
    return f"({{jsonText}} IS NOT NULL OR {{jsonTextId}} IS NOT NULL) AND ({MARK} OR {ranges})"


def extract_payloads(extraction: Extraction, part: Part) -> Iterator[Counters]:
    """Yield the numbers in JSON payloads of NVTX events, as counters."""
    database, account = extraction.database, extraction.account
    if not (database.has(TABLE, "jsonText") or database.has(TABLE, "jsonTextId")):
        return
    columns = database.read(part, (*PLACE, "jsonTextId"), ("jsonText",), extraction.condition)
    texts, code = find_texts(extraction, columns, "jsonText", "jsonTextId", "")
    payloads = [text.encode() for text in texts]
    values, paths = _read_values(payloads)
    is_text = values["is_text"].to_numpy()
    in_payload = values["payload"].to_numpy()
    count, text_count = (
        np.bincount(own, minlength=len(payloads))[code] for own in (in_payload, in_payload[is_text])
    )
    allowed = count_allowed(LEAST_VALUES, database.size, BYTES_PER_VALUE)
    allowed = allowed * part.rows // max(part.rows, extraction.report.parts[TABLE].rows)
    fits = np.array([len(payload) <= PAYLOAD_BYTES for payload in payloads], bool)[code]
    fits &= np.cumsum(count) <= allowed
    account.rows += columns.rows
    account.dropped[Reason.PAYLOAD_TOO_LARGE] += int(np.count_nonzero(~fits))
    account.skipped[Reason.PAYLOAD_WITH_NUMBERS] += int(np.count_nonzero(fits))
    account.synthesized[Reason.VALUE_IN_PAYLOAD] += int(count[fits].sum())
    account.dropped[Reason.PAYLOAD_TEXT] += int(text_count[fits].sum())
    group = np.cumsum((count - text_count)[fits]) // VALUES_TOGETHER
    rows = pl.DataFrame({**_place_rows(columns), "payload": code}).filter(fits)
    rows = rows.with_columns(group=group)
    numbers = values.filter(~is_text)
    for _, own in rows.group_by("group", maintain_order=True):
        leaves = own.join(numbers, on="payload", maintain_order="left_right")
        columns_of_leaves = {one.name: one.to_numpy() for one in leaves.iter_columns()}
        yield from _count_numbers(extraction, columns_of_leaves, paths)


def extract_values(extraction: Extraction, part: Part) -> Iterator[Counters]:
    """Yield the single number that NVTX events may have in columns of the table, as counters."""
    database = extraction.database
    if not any(database.has(TABLE, name) for name in (*WHOLE_COLUMNS, *REAL_COLUMNS)):
        return
    wanted = (*PLACE, *WHOLE_COLUMNS)
    columns = database.read(part, wanted, (), extraction.condition, REAL_COLUMNS)
    extraction.account.rows += columns.rows
    if not columns.rows:
        return
    whole, fraction = np.full(columns.rows, NULL), np.full(columns.rows, np.nan)
    for name in WHOLE_COLUMNS:
        whole = np.where(whole == NULL, columns[name], whole)
    for name in REAL_COLUMNS:
        fraction = np.where(np.isnan(fraction), columns[name], fraction)
    # SQLite's integers are signed.
    beyond = (columns["uint64Value"] != NULL) & (whole < 0)
    leaves = {
        **_place_rows(columns),
        "path": np.zeros(columns.rows, np.int64),
        "whole": np.where(beyond, np.iinfo(np.int64).max, zero_nulls(whole)),
        "fraction": np.where(np.isnan(fraction), 0, fraction),
        "real": whole == NULL,
    }
    yield from _count_numbers(extraction, leaves, [PATH])


def _place_rows(columns: Columns) -> dict[str, np.ndarray]:
    """Return start, end, thread and domain of rows read with PLACE, and whether they are marks."""
    return {
        "begin": columns["start"],
        "end": columns["end"],
        "thread": zero_nulls(columns["globalTid"]),
        "domain": zero_nulls(columns["domainId"]),
        "mark": np.isin(columns["eventType"], MARK_TYPES),
    }


def _count_numbers(
    extraction: Extraction, leaves: Mapping[str, np.ndarray], paths: Sequence[str]
) -> Iterator[Counters]:
    """Yield counters of payload numbers on their threads. Ranges that are too short are skipped.

    leaves: columns of :func:`_place_rows`, `path` (index into the paths), and `fraction` for `real`
    values, otherwise `whole`.
    """
    account = extraction.account
    closed = np.where(leaves["mark"], NULL, leaves["end"])
    is_long = extraction.mask_long_enough(leaves["begin"], closed)
    leaves = take_rows(leaves, is_long)
    labels, metric = _label_leaves(extraction, leaves, paths)
    kept = mask_most_frequent(extraction, metric, MOST_NAMES, Reason.RARE_PAYLOAD_NAME)[metric]
    # Fractions are stored as the integers with the same bits; larger fractions have larger
    # integers. They are scaled when all values of a name are known (nsys2prv.table.samples). 0 is
    # added because the bits of -0.0 are a negative number.
    fraction = leaves["fraction"][kept]
    is_none = np.isnan(fraction)
    account.repaired[Reason.NOT_A_NUMBER] += int(np.count_nonzero(is_none))
    fraction = (np.where(is_none, 0.0, fraction) + 0.0).view(np.int64)
    value = np.where(leaves["real"][kept], fraction, leaves["whole"][kept])
    begin, thread, metric = leaves["begin"][kept], leaves["thread"][kept], metric[kept]
    end = np.where(leaves["mark"][kept], begin + 1, leaves["end"][kept])
    metrics = [Metric(label, UNSCALED if FRACTION in label else 0) for label in labels]
    for tid, rows in group_rows(thread):
        own = {"time": begin[rows], "metric": metric[rows], "value": value[rows]}
        zeros = _find_zeros(own["time"], end[rows], own["metric"])
        account.synthesized[Reason.ZERO_AT_END] += len(zeros["time"])
        samples = {name: np.append(column, zeros[name]) for name, column in own.items()}
        (object_,) = extraction.intern_threads(np.array([tid])).tolist()
        yield from make_counters(extraction, PAYLOAD_LAYOUT, object_, samples, metrics)


def _find_zeros(begin: np.ndarray, end: np.ndarray, metric: np.ndarray) -> dict[str, np.ndarray]:
    """Return zeros at the ends of ranges of a thread, except where a number of the same name
    begins.
    """
    closed = np.flatnonzero(end > begin)
    (times, metrics), codes = factorize_together(
        np.append(end[closed], begin), np.append(metric[closed], metric)
    )
    is_zero = np.ones(len(times), bool)
    is_zero[codes[len(closed) :]] = False
    time = times[is_zero]
    return {"time": time, "metric": metrics[is_zero], "value": np.zeros_like(time)}


def _label_leaves(
    extraction: Extraction, leaves: Mapping[str, np.ndarray], paths: Sequence[str]
) -> tuple[list[str], np.ndarray]:
    """Return sorted labels, and each number's index into them: `domain: name`, with array positions
    in brackets, and `#2` for the second occurrence of a name in a payload.
    """
    domains, domain_of = find_domains(extraction, leaves["thread"], leaves["domain"])
    keys, codes = factorize_together(domain_of, leaves["path"], leaves["real"])
    names = [
        f"{domains[of] or name_rules.DEFAULT_DOMAIN}: {_name_path(paths[at])}{FRACTION if real else ''}"
        for of, at, real in zip(*(key.tolist() for key in keys), strict=True)
    ]
    numbers = Numbering()
    name, known = numbers.number(names)[codes], list(numbers)
    place = [leaves[column] for column in ("begin", "end", "thread")]
    # A payload has each path once; a repetition is another event at the same time.
    event = _count_earlier(*place, leaves["domain"], leaves["path"])
    keys, codes = factorize_together(name, _count_earlier(*place, event, name))
    labels = [
        f"{known[of]} #{earlier + 1}" if earlier else known[of]
        for of, earlier in zip(*(key.tolist() for key in keys), strict=True)
    ]
    places = {label: place for place, label in enumerate(sorted({*labels}))}
    return list(places), np.array([places[label] for label in labels], np.int64)[codes]


def _count_earlier(*columns: np.ndarray) -> np.ndarray:
    """Return for each row the number of earlier rows that are equal in these columns."""
    return count_occurrences(number_rows(*columns)[1])


def _name_path(path: str) -> str:
    """Return the name of a number from its path in the JSON."""
    name = re.sub(r"\A\$(?:\.data\[\d+\])?\.?", "", path)
    return WRAPPING.sub("", name, count=1).replace('"', "") or "number"


def _read_values(payloads: Sequence[bytes]) -> tuple[pl.DataFrame, list[str]]:
    """Return the values in payloads (`payload` is an index), except in overlong payloads, and the
    texts of their paths (`path` is an index).
    """
    pieces, paths = [], Numbering()
    sizes = np.array([len(payload) for payload in payloads], np.int64)
    fitting = np.flatnonzero(sizes <= PAYLOAD_BYTES)
    # A path can be as long as half of the payload, if the other half is values of five characters.
    group = np.cumsum(sizes[fitting] * (sizes[fitting] + 512) // 16) // PATH_BYTES
    for numbers in np.split(fitting, find_edges(group)[1:-1]):
        own = ((number, payloads[number]) for number in numbers.tolist())
        frame = query_json("nvtx_payload_values", own)
        distinct, path = number_distinct(frame["path"].cast(pl.Binary))
        of_piece = paths.number(decode_texts(distinct).to_list())
        pieces.append(frame.with_columns(path=pl.Series(of_piece[path], dtype=pl.Int64)))
    texts = list(paths)
    is_real = np.array([REAL_PATH.search(path) is not None for path in texts], bool)
    values = pl.concat(pieces, how="vertical_relaxed")
    real = (values["real"].to_numpy() > 0) | is_real[values["path"].to_numpy()]
    return values.with_columns(pl.col("is_text").cast(pl.Boolean), real=real), texts
