"""Derive the contents of a cut trace from the text of the whole trace.

This is plain Python over lines of the .prv and shares nothing with the package.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tools.trace_reader import HOLDING

Pairs = tuple[tuple[int, int], ...]
Row = tuple[int, int]


class Range(NamedTuple):
    row: Row
    begin: int
    end: int
    pairs: Pairs
    place: int


@dataclass
class ParsedTrace:
    """The records of a trace.

    ranges: in the order in which they begin. states, samples: (row, time, pairs). lines: (sender,
    send, receiver, (logical receive, receive), (size, tag)).
    """

    duration: int
    ranges: list[Range] = field(default_factory=list)
    states: list[tuple[Row, int, Pairs]] = field(default_factory=list)
    samples: list[tuple[Row, int, Pairs]] = field(default_factory=list)
    lines: list[tuple[Row, int, Row, tuple[int, int], tuple[int, int]]] = field(
        default_factory=list
    )


def parse_trace(prv: Path, keep: Callable[[Row], Row | None] = lambda row: row) -> ParsedTrace:
    """Parse a trace. `keep` returns the row's number in the cut, None for a row that is left out."""
    named = _find_named_types(prv.with_suffix(".pcf"))
    header, *body = prv.read_text().splitlines()
    trace = ParsedTrace(int(header.split("):", 1)[1].split("_ns", 1)[0]))
    opened: dict[tuple[Row, tuple[int, ...]], list[tuple[int, Pairs, int]]] = defaultdict(list)
    for place, line in enumerate(body):
        if line.startswith(("#", "c")):
            continue
        numbers = [int(word) for word in line.split(":")]
        row = (numbers[3], numbers[4])
        if numbers[0] == 3:
            receiver = (numbers[9], numbers[10])
            if keep(row) and keep(receiver):
                trace.lines.append(
                    (
                        keep(row),
                        numbers[5],
                        keep(receiver),
                        (numbers[11], numbers[12]),
                        (numbers[13], numbers[14]),
                    )
                )
            continue
        if keep(row) is None:
            continue
        row, time, pairs = (
            keep(row),
            numbers[5],
            tuple(zip(numbers[6::2], numbers[7::2], strict=True)),
        )
        if pairs[0][0] in HOLDING:
            trace.states.append((row, time, pairs))
        elif not any(code in named for code, _ in pairs):
            trace.samples.append((row, time, pairs))
        elif pairs[0][1]:
            opened[row, tuple(code for code, _ in pairs)].append((time, pairs, place))
        else:
            begin, began, place = opened[row, tuple(code for code, _ in pairs)].pop()
            trace.ranges.append(Range(row, begin, time, began, place))
    assert not any(opened.values())
    trace.ranges.sort(key=lambda interval: interval.place)
    _drop_closing_zeros(trace)
    return trace


def _find_named_types(pcf: Path) -> set[int]:
    """Return the event types whose values have labels."""
    named: set[int] = set()
    types: list[int] = []
    for line in pcf.read_text().splitlines():
        words = line.split(None, 2)
        if line == "EVENT_TYPE":
            types = []
        elif line == "VALUES":
            named.update(types)
            types = []
        elif len(words) == 3 and words[0] in ("0", "7") and words[1].isdecimal():
            types.append(int(words[1]))
    return named


def _drop_closing_zeros(trace: ParsedTrace) -> None:
    """Remove the zeros that close states and samples at the end of the trace."""
    trace.states = [
        record
        for record in trace.states
        if record[1] < trace.duration or any(value for _, value in record[2])
    ]
    trace.samples = [
        record
        for record in trace.samples
        if record[1] < trace.duration or any(value for _, value in record[2])
    ]


@dataclass(frozen=True)
class CutRequest:
    """The options of a cut.

    first, last: its bounds (ns); `last` is the trace's duration if it is cut at the beginning
    alone. attributes: whether events have them. lines: whether there are communication lines. rate:
    samples a second of each number. keep_time: whether times stay as they are.
    """

    first: int
    last: int
    attributes: bool = True
    lines: bool = True
    rate: int | None = None
    keep_time: bool = False


def filter_trace(
    trace: ParsedTrace, request: CutRequest
) -> tuple[Counter[str], dict[tuple[Row, int], list[Pairs]]]:
    """Return the lines of the cut, and the begins of every row and type in their order.

    A line is `kind row time pairs` as text, without CPUs, which another reader checks.
    """
    closed = request.last == trace.duration
    origin = 0 if request.keep_time else request.first
    lines: Counter[str] = Counter()
    order: dict[tuple[Row, int], list[tuple[int, int, Pairs]]] = defaultdict(list)

    def is_inside(time: int) -> bool:
        return request.first <= time and (time < request.last or closed)

    def put_event(row: Row, time: int, pairs: Pairs) -> None:
        lines[format_event(row, time - origin, pairs)] += 1

    for item in trace.ranges:
        if item.end <= request.first or (item.begin >= request.last and not closed):
            continue
        pairs = item.pairs if request.attributes else item.pairs[:1]
        begin = max(item.begin, request.first)
        put_event(item.row, begin, pairs)
        put_event(item.row, min(item.end, request.last), tuple((code, 0) for code, _ in pairs))
        order[item.row, pairs[0][0]].append((begin, item.place, pairs))
    in_force: dict[Row, Pairs] = {}
    closings: set[tuple[Row, Pairs]] = set()
    for row, time, pairs in trace.states:
        pairs = pairs if request.attributes else pairs[:1]
        if time <= request.first:
            in_force[row] = pairs
        elif is_inside(time):
            put_event(row, time, pairs)
            closings.add((row, tuple((code, 0) for code, _ in pairs)))
    for row, pairs in in_force.items():
        put_event(row, request.first, pairs)
        closings.add((row, tuple((code, 0) for code, _ in pairs)))
    for row, pairs in closings:
        put_event(row, request.last, pairs)
    _put_samples(trace, request, put_event, is_inside)
    if request.lines:
        for sender, send, receiver, (posted, received), rest in trace.lines:
            if is_inside(send) and is_inside(received):
                times = (max(posted - origin, 0), received - origin)
                lines[format_line(sender, send - origin, receiver, times, rest)] += 1
    return lines, {key: [pairs for _, _, pairs in sorted(item)] for key, item in order.items()}


def _put_samples(
    trace: ParsedTrace,
    request: CutRequest,
    put_event: Callable[[Row, int, Pairs], None],
    is_inside: Callable[[int], bool],
) -> None:
    """Write the samples within the cut, those in force at its begin, and closing zeros."""
    latest: dict[Row, dict[int, int]] = defaultdict(dict)
    codes: dict[Row, set[int]] = defaultdict(set)
    records: list[tuple[Row, int, Pairs]] = []
    for row, time, pairs in trace.samples:
        if time <= request.first:
            latest[row].update(pairs)
        elif is_inside(time):
            records.append((row, time, pairs))
    if request.rate:
        width = 1_000_000_000 // request.rate
        last = {
            (row, code, time // width): time for row, time, pairs in records for code, _ in pairs
        }
        records = [
            (
                row,
                time,
                tuple(
                    (code, value) for code, value in pairs if last[row, code, time // width] == time
                ),
            )
            for row, time, pairs in records
        ]
    for row, time, pairs in records:
        if pairs:
            put_event(row, time, pairs)
            codes[row].update(code for code, _ in pairs)
    for row, numbers in latest.items():
        put_event(row, request.first, tuple(sorted(numbers.items())))
        codes[row].update(numbers)
    for row, item in codes.items():
        put_event(row, request.last, tuple((code, 0) for code in sorted(item)))


def format_event(row: Row, time: int, pairs: Pairs) -> str:
    return f"event {row} {time} {pairs}"


def format_line(
    sender: Row, send: int, receiver: Row, receive: tuple[int, int], rest: tuple[int, int]
) -> str:
    return f"line {sender} {send} {receiver} {receive} {rest}"


def read_lines(prv: Path) -> tuple[Counter[str], dict[tuple[Row, int], list[Pairs]], int]:
    """Return lines and begins of a trace in the form of :func:`filter_trace`, and its duration."""
    header, *body = prv.read_text().splitlines()
    lines: Counter[str] = Counter()
    order: dict[tuple[Row, int], list[Pairs]] = defaultdict(list)
    for line in body:
        if line.startswith(("#", "c")):
            continue
        numbers = [int(word) for word in line.split(":")]
        row = (numbers[3], numbers[4])
        if numbers[0] == 3:
            lines[
                format_line(
                    row,
                    numbers[5],
                    (numbers[9], numbers[10]),
                    (numbers[11], numbers[12]),
                    (numbers[13], numbers[14]),
                )
            ] += 1
            continue
        pairs = tuple(zip(numbers[6::2], numbers[7::2], strict=True))
        lines[format_event(row, numbers[5], pairs)] += 1
        if pairs[0][1]:
            order[row, pairs[0][0]].append(pairs)
    return lines, order, int(header.split("):", 1)[1].split("_ns", 1)[0])
