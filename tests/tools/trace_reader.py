"""Read Paraver traces independently: this knows the formats of .prv, .pcf and .row, and nothing of
the writer.

It reads events as Paraver's "Stacked Val" does: on each row, a value of a type begins a range
within those already open, and 0 ends the innermost. For types of states (HOLDING), a value ends the
previous one. Types without a list of values are plain numbers. Every trace that a test writes is
checked with the rules of `nsys2prv check` (conftest.py); further violations are collected in
:attr:`Trace.violations`.
"""

import gzip
import re
from collections import defaultdict
from pathlib import Path

from tools.trace import Comm, Interval, Row, Sample, State, Trace

#: Types of states: a value stands until the next one of its row.
HOLDING = frozenset({67000000, 67000001})

LAST_LABELLED = 2**31 - 1
SECTIONS = ("STATES", "STATES_COLOR", "EVENT_TYPE", "GRADIENT_COLOR", "GRADIENT_NAMES")
HEADER = re.compile(
    r"#Paraver \(([^)]*)\):(\d+)_ns:(\d+)\(([\d,]+)\):1:(\d+)\(([\d:,]+)\)(?:,(\d+))?"
)


def read_trace(path: Path) -> Trace:
    """Read a .prv or .prv.gz with its .pcf and .row."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        content = file.read()
    stem = path.name.removesuffix(".gz").removesuffix(".prv")
    pcf, row = (path.with_name(stem + ending).read_bytes() for ending in (".pcf", ".row"))
    trace = Trace()
    if b"\r" in content + pcf + row:
        trace.violations.add("carriage return", path.name)
    header, *body = content.decode("ascii").splitlines()
    communicators = _read_header(trace, header)
    _read_pcf(trace, pcf.decode("ascii"))
    _read_row(trace, row.decode("utf-8"))
    _Body(trace).read(body[communicators:])
    if bool(trace.states) != (trace.labels.states is not None):
        trace.violations.add("STATES section without states, or states without it", path.name)
    return trace


def _read_header(trace: Trace, line: str) -> int:
    """Read duration, nodes and tasks; return the number of lines of communicators that follow."""
    match = HEADER.fullmatch(line)
    if match is None:
        raise ValueError(f"not a header: {line[:200]}")
    _, duration, _, cpus, _, tasks, communicators = match.groups()
    trace.duration = int(duration)
    trace.nodes = [int(cpu) for cpu in cpus.split(",")]
    pairs = [entry.split(":") for entry in tasks.split(",")]
    trace.tasks = [(int(threads), int(node)) for threads, node in pairs]
    return int(communicators or 0)


def _read_row(trace: Trace, text: str) -> None:
    """Read the names of objects by level."""
    lines = iter(text.splitlines())
    for line in filter(None, lines):
        _, level, _, size = line.split()
        if level in trace.names:
            trace.violations.add("level twice in the .row", level)
        trace.names[level] = [next(lines) for _ in range(int(size))]


def _read_pcf(trace: Trace, text: str) -> None:
    """Read the labels of types, values and states."""
    section, in_values, types = "", False, list[int]()
    labels = trace.labels
    for line in filter(None, map(str.strip, text.splitlines())):
        if line in SECTIONS:
            section, in_values, types = line, False, []
            if section == "STATES":
                labels.states = {}
        elif section == "STATES":
            number, label = _parse_numbered_label(trace, line)
            labels.states[number] = label
        elif section == "EVENT_TYPE" and line == "VALUES":
            in_values = True
            labels.values |= {code: {} for code in types}
        elif section == "EVENT_TYPE" and in_values:
            number, label = _parse_numbered_label(trace, line)
            for code in types:
                labels.values[code][number] = label
        elif section == "EVENT_TYPE":
            types.append(_read_type(trace, line))
    for code, values in labels.values.items():
        if values.get(0) != "End":
            trace.violations.add("type with values whose 0 is not End", code)


def _read_type(trace: Trace, text: str) -> int:
    """Read a type, its label and its decimals."""
    _, code, label = text.split(maxsplit=2)
    if code.startswith("30000"):
        trace.violations.add("type that begins with 30000, which others take for CPU samples", text)
    label, zeros, power = re.fullmatch(r"(.*?)(?: \(x 1(0+)\)| \(x 10\^(\d+)\))?", label).groups()
    trace.labels.types[int(code)] = unescape_label(label)
    if zeros or power:
        trace.labels.precision[int(code)] = int(power) if power else len(zeros)
    return int(code)


def unescape_label(label: str) -> str:
    """Return a label with its \\u00e9 and \\U0001f600 escapes replaced by the characters."""
    return re.sub(
        r"\\u([0-9a-f]{4})|\\U([0-9a-f]{8})",
        lambda found: chr(int(found[1] or found[2], 16)),
        label,
    )


def _parse_numbered_label(trace: Trace, text: str) -> tuple[int, str]:
    """Return number and label of a line `number label`."""
    number, label = text.split(maxsplit=1)
    if int(number) > LAST_LABELLED:
        trace.violations.add("value beyond what can be labelled", text)
    return int(number), unescape_label(label)


class _Body:
    """Read the records of a trace and keep what is open on each row."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.stacks: dict[tuple[Row, int], list[tuple[int, int, dict[int, int]]]] = defaultdict(
            list
        )
        self.row_of_cpu: dict[int, Row] = {}

    def read(self, lines: list[str]) -> None:
        """Read all records."""
        kinds = {1: self._state, 2: self._event, 3: self._comm}
        for line in lines:
            if line.startswith("#"):
                continue
            self.trace.lines += 1
            kind, *fields = map(int, line.split(":"))
            kinds[kind](fields, line)

    def _row(self, address: list[int], line: str) -> Row:
        """Return the row of `cpu:appl:task:thread`."""
        cpu, _, *numbers = address
        row = (numbers[0], numbers[1])
        if cpu and self.row_of_cpu.setdefault(cpu, row) != row:
            self.trace.violations.add("CPU shared by two rows", line)
        return row

    def _event(self, fields: list[int], line: str) -> None:
        row, time = self._row(fields[:4], line), fields[4]
        pairs = dict(zip(fields[5::2], fields[6::2], strict=True))
        values = self.trace.labels.values
        if len(pairs) * 2 != len(fields) - 5:
            self.trace.violations.add("type twice in one record", line)
        if values.keys().isdisjoint(pairs):
            self.trace.samples.append(Sample(row, time, pairs))
        for code, value in pairs.items():
            if code not in values:
                continue
            stack = self.stacks[row, code]
            if stack and (not value or code in HOLDING):
                self._end(row, code, time)
            if value:
                stack.append((value, time, pairs))
                self.trace.deepest[code] = max(self.trace.deepest[code], len(stack))

    def _end(self, row: Row, code: int, time: int) -> None:
        value, begin, pairs = self.stacks[row, code].pop()
        others = {other: number for other, number in pairs.items() if other != code}
        self.trace.events[code].append(Interval(row, value, begin, time, others))

    def _comm(self, fields: list[int], line: str) -> None:
        sender, receiver = self._row(fields[:4], line), self._row(fields[6:10], line)
        logical_send, physical_send, physical_receive = fields[4], fields[5], fields[11]
        if physical_send < logical_send:
            self.trace.violations.add("line sent before it is sent logically", line)
        sizes = fields[12], fields[13]
        self.trace.comms.append(Comm(sender, logical_send, receiver, physical_receive, *sizes))

    def _state(self, fields: list[int], line: str) -> None:
        begin, end, value = fields[4:]
        self.trace.states.append(State(self._row(fields[:4], line), begin, end, value))
