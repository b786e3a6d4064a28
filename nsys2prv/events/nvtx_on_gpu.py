"""NVTX push/pop ranges on the rows of the streams that they launched work on.

The definition is that of nsys's own report ``nvtx_gpu_proj_trace``: a range encloses an operation
of a GPU (kernel, memory copy, memory set) if the CUDA API call that launched it lies within the
range, on its thread; the projected range goes from the begin of the first operation to the end of
the last. There each range has one projection; here it has one on every stream, as in Nsight's
timeline. Graphs that were traced as a whole count as operations, too.

Which call launched an operation is told as for lines (:mod:`nsys2prv.events.call_indexes`). What
lasts nothing lasts 1 ns, and a range without an end lasts to the end of the trace, as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from nsys2prv._util.columns import OPEN, reduce_slices
from nsys2prv.events.attributes import group_rows
from nsys2prv.events.extraction import STREAM_COLUMNS, Extraction
from nsys2prv.events.kind import Derived, Rows, declare_kind
from nsys2prv.events.nvtx import PUSHPOP, TABLE, name_ranges
from nsys2prv.nsight.columns import NULL, mask_usable
from nsys2prv.nsight.source import Part

RANGES, OPERATIONS = "nvtx_on_gpu_ranges", "nvtx_on_gpu_operations"
#: Pairs of calls and ranges looked at together, of calls in which a range ends.
PAIRS = 1 << 20


def collect_facts(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Set facts aside; the rows follow when all parts are read."""
    if part.table == TABLE:
        _save_ranges(extraction, part)
    else:
        _save_operations(extraction, part)
    yield from ()


def _save_ranges(extraction: Extraction, part: Part) -> None:
    columns = extraction.read(
        part, ("start", "end", "globalTid", "domainId", "category", "textId"), ("text",)
    )
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
    columns = extraction.read(
        part,
        ("start", "end", "deviceId", "streamId", "correlationId", "globalPid"),
        where="",
        short=True,
    )
    launches = extraction.launches.find(columns["globalPid"], columns["correlationId"])
    rows = np.flatnonzero(
        launches.hit
        & (launches.thread != NULL)
        & mask_usable(columns["start"])
        & mask_usable(columns["end"])
    )
    if not len(rows):
        return
    calls, begin = launches.take(rows), columns["start"][rows]
    operations = pl.DataFrame(
        {
            "thread": calls.thread,
            "call_begin": calls.begin,
            "call_end": np.maximum(calls.end, calls.begin + 1),
            "object_stream": extraction.number_streams(
                {name: columns[name][rows] for name in STREAM_COLUMNS}
            ),
            "begin": begin,
            "end": np.maximum(columns["end"][rows], begin + 1),
        }
    )
    # A graph traced by node has many operations of one call.
    operations = _join_spans(operations, "thread", "call_begin", "call_end", "object_stream")
    extraction.add_fact(OPERATIONS, dict(operations.to_dict()))


def derive_ranges(facts: Mapping[str, pl.DataFrame]) -> Iterator[Rows]:
    """Yield the projected ranges of one report."""
    ranges, operations = facts[RANGES], facts[OPERATIONS]
    if not ranges.height or not operations.height:
        return
    # Outer ranges first: of ranges that enclose the same work the order is all that tells which
    # lies within which.
    ranges = ranges.sort(
        "thread", "begin", "end", descending=[False, False, True], maintain_order=True
    )
    projected = project_ranges(ranges, operations).sort("range", "object")
    place = projected["range"].to_numpy()
    name = ranges["name_nvtx"].to_numpy()[place]
    number, domain, thread = (
        ranges[column].to_numpy()[place] for column in ("number", "domain", "thread")
    )
    yield Rows(
        "nvtx_on_gpu",
        *(projected[column].to_numpy() for column in ("begin", "end", "object")),
        {"range": name, "number": number, "any_domain": name},
        domain=domain,
        nesting_owner=thread,
    )


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
    pieces = [pl.DataFrame(schema=dict.fromkeys(("range", "object", "begin", "end"), pl.Int64))]
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
                    place, first, last = extremes(
                        begin, end, {name: column[pick] for name, column in of_stream.items()}
                    )
                    pieces.append(
                        pl.DataFrame(
                            {
                                "range": chosen[place],
                                "object": np.full(len(place), object_),
                                "begin": first,
                                "end": last,
                            }
                        )
                    )
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
    first, last = (
        np.searchsorted(end[order], call_begin, "right"),
        np.searchsorted(end[order], call_end, "left"),
    )
    crossed = np.zeros(len(call_begin), bool)
    spanning = np.flatnonzero(first < last)
    if len(spanning):
        crossed[spanning] = (
            reduce_slices(begin[order], first[spanning], last[spanning], np.minimum)
            <= call_begin[spanning]
        )
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
    cuts = (
        np.unique(np.searchsorted(total, np.arange(0, total[-1], PAIRS), "left"))
        if len(total)
        else np.zeros(0, np.int64)
    )
    pieces = []
    for rows in np.split(np.arange(len(begin)), cuts[cuts > 0]):
        place = np.repeat(rows, counts[rows])
        call = (
            np.arange(len(place))
            - np.repeat(np.cumsum(counts[rows]) - counts[rows], counts[rows])
            + first[place]
        )
        inside = calls["call_end"][call] <= end[place]
        pairs = pl.DataFrame(
            {
                "place": place[inside],
                "begin": calls["begin"][call[inside]],
                "end": calls["end"][call[inside]],
            }
        )
        pieces.append(_join_spans(pairs, "place"))
    result = pl.concat(pieces)
    return result["place"].to_numpy(), result["begin"].to_numpy(), result["end"].to_numpy()


KINDS = (
    declare_kind(
        "nvtx_on_gpu",
        collect_facts,
        where=PUSHPOP,
        derived=Derived((RANGES, OPERATIONS), derive_ranges),
    ),
)
