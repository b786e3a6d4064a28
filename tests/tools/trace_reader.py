"""An independent reader of Paraver traces: it knows the formats of .prv, .pcf and .row, and nothing
of who wrote them.

It reads events as Paraver's "Stacked Val" does: on each row, a value of a type begins a range
within those already open, 0 ends the innermost. Of a type of states (HOLDING) a value ends the one
before. Types without a list of values are plain numbers. What breaks the formats, or what Paraver
would accept and then show wrongly, is collected in :attr:`Trace.violations`.
"""

from __future__ import annotations

import gzip
import re
from collections import Counter, defaultdict
from itertools import accumulate, pairwise
from pathlib import Path

from tools.trace import Comm, Interval, Row, Sample, State, Trace

#: The one type whose values need no label: its known error codes have one, others are shown as
#: numbers.
ERROR_CODES = 63000020

#: Types of states: a value stands until the next one of its row.
HOLDING = frozenset({67000000, 67000001})

LAST_LABELLED = 2**31 - 1
LAST_EXACT = 2**53
LAST_OBJECT = 65_535
DEFAULTS = ("DEFAULT_OPTIONS", "DEFAULT_SEMANTIC")
SECTIONS = {*DEFAULTS, "STATES", "STATES_COLOR", "EVENT_TYPE", "GRADIENT_COLOR", "GRADIENT_NAMES"}
HEADER = re.compile(
    r"#Paraver \(([^)]*)\):(\d+)_ns:(\d+)\(([\d,]+)\):1:(\d+)\(([\d:,]+)\)(?:,(\d+))?"
)
RECORD = re.compile(r"-?\d+(?::-?\d+)+")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
FIELDS_OF_STATE, FIELDS_OF_COMM, FIRST_PAIR = 8, 15, 6


def read_trace(path: Path) -> Trace:
    """Read a .prv or .prv.gz with its .pcf and .row."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        content = file.read()
    stem = path.name.removesuffix(".gz").removesuffix(".prv")
    trace = Trace()
    for ending in (".pcf", ".row"):
        if b"\r" in path.with_name(stem + ending).read_bytes():
            trace.violations.add("carriage return", ending)
    if b"\r" in content:
        trace.violations.add("carriage return", path.name)
    header, *body = content.decode("ascii").split("\n")
    if body and body[-1] == "":
        body.pop()
    communicators = _read_header(trace, header)
    if any(not line.startswith("c:1:") for line in body[:communicators]):
        trace.violations.add("lines of communicators", header)
    del body[:communicators]
    _read_pcf(trace, path.with_name(f"{stem}.pcf"))
    _read_row(trace, path.with_name(f"{stem}.row"))
    _Body(trace).read(body)
    _check_labels(trace)
    return trace


def _read_header(trace: Trace, line: str) -> int:
    """Read duration, nodes and tasks; return the number of lines of communicators that follow."""
    match = HEADER.fullmatch(line)
    if match is None:
        raise ValueError(f"not a header: {line[:200]}")
    _, duration, nodes, cpus, count, tasks, communicators = match.groups()
    trace.duration = int(duration)
    trace.nodes = [int(cpu) for cpu in cpus.split(",")]
    pairs = [entry.split(":") for entry in tasks.split(",")]
    trace.tasks = [(int(threads), int(node)) for threads, node in pairs]
    if len(trace.nodes) != int(nodes) or len(trace.tasks) != int(count):
        trace.violations.add("wrong number of nodes or tasks in the header", line)
    if min(trace.nodes) < 1 or any(not 1 <= node <= len(trace.nodes) for _, node in trace.tasks):
        trace.violations.add("node without CPU, or task on an unknown node", line)
    if max(sum(trace.nodes), sum(threads for threads, _ in trace.tasks)) > LAST_OBJECT:
        trace.violations.add("more objects than Paraver holds", line)
    return int(communicators or 0)


def _read_row(trace: Trace, path: Path) -> None:
    """Read the names of objects by level, and check that each level has as many lines as its SIZE."""
    lines = path.read_bytes().decode("utf-8").split("\n")
    sizes = {
        "THREAD": sum(threads for threads, _ in trace.tasks),
        "TASK": len(trace.tasks),
        "NODE": len(trace.nodes),
        "CPU": sum(trace.nodes),
        "APPL": 1,
    }
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if not line:
            continue
        match = re.fullmatch(r"LEVEL (WORKLOAD|APPL|TASK|THREAD|SYSTEM|NODE|CPU) SIZE (\d+)", line)
        if match is None:
            trace.violations.add("line of the .row outside a level", line)
            continue
        level, size = match[1], int(match[2])
        names = lines[number : number + size]
        number += size
        if level in trace.names:
            trace.violations.add("level twice in the .row", level)
        trace.names[level] = names
        if (
            size != sizes.get(level, size)
            or len(names) != size
            or any(name.startswith("LEVEL ") for name in names)
        ):
            trace.violations.add("wrong SIZE in the .row", line)
        for name in names:
            if not name.strip() or CONTROL.search(name):
                trace.violations.add("row name empty or with control characters", repr(name))
    for level in ("THREAD", "TASK", "NODE"):
        if level not in trace.names:
            trace.violations.add("level without names in the .row", level)


def _read_pcf(trace: Trace, path: Path) -> None:
    """Read the labels of types, values and states."""
    section, in_values, types = "", False, list[int]()
    for line in path.read_bytes().decode("ascii").split("\n"):
        text = line.strip(" \t")
        if not text or text.startswith("#"):
            continue
        if text in SECTIONS:
            if section == "EVENT_TYPE" and not types:
                trace.violations.add("EVENT_TYPE without a type", line)
            section, in_values, types = text, False, []
            if section == "STATES":
                trace.labels.states = {}
        elif section == "STATES" and trace.labels.states is not None:
            number, label = _parse_numbered_label(trace, text)
            trace.labels.states[number] = label
        elif section == "EVENT_TYPE" and text == "VALUES":
            in_values = True
            for code in types:
                trace.labels.values.setdefault(code, {})
        elif section == "EVENT_TYPE" and in_values:
            number, label = _parse_numbered_label(trace, text)
            for code in types:
                if number in trace.labels.values[code]:
                    trace.violations.add("value labelled twice", f"{code} {line}")
                trace.labels.values[code][number] = label
        elif section == "EVENT_TYPE":
            types.append(_read_type(trace, text))
        elif section == "":
            trace.violations.add("line of the .pcf outside a section", line)


def _read_type(trace: Trace, text: str) -> int:
    """Read a type, its label and its decimals."""
    match = re.fullmatch(r"(\d+) +(\d+) +(\S.*)", text)
    if match is None:
        trace.violations.add("EVENT_TYPE line is not `colour type label`", text)
        return -1
    code = int(match[2])
    if code in trace.labels.types:
        trace.violations.add("type declared twice", text)
    if not 0 < code <= LAST_LABELLED:
        trace.violations.add("type beyond what can be labelled", text)
    if str(code).startswith("30000"):
        trace.violations.add("type that begins with 30000, which others take for CPU samples", text)
    label, zeros, power = re.fullmatch(
        r"(.*?)(?: \(x 1(0+)\)| \(x 10\^(\d+)\))?", match[3]
    ).groups()
    trace.labels.types[code] = unescape_label(label)
    if zeros or power:
        trace.labels.precision[code] = int(power) if power else len(zeros)
    return code


def unescape_label(label: str) -> str:
    """Return a label with its \\u00e9 and \\U0001f600 escapes replaced by the characters."""
    return re.sub(
        r"\\u([0-9a-f]{4})|\\U([0-9a-f]{8})",
        lambda found: chr(int(found[1] or found[2], 16)),
        label,
    )


def _parse_numbered_label(trace: Trace, text: str) -> tuple[int, str]:
    """Return number and label of a line `number label`."""
    match = re.fullmatch(r"(\d+) +(\S.*)", text)
    if match is None:
        trace.violations.add("line of the .pcf is not `number label`", text)
        return -1, text
    if int(match[1]) > LAST_LABELLED:
        trace.violations.add("value beyond what can be labelled", text)
    return int(match[1]), unescape_label(match[2])


def _check_labels(trace: Trace) -> None:
    """Report labels that Paraver cuts, confuses or cannot show, and states without their section or
    a section without states.
    """
    labels = trace.labels
    for label, count in Counter(labels.types.values()).items():
        if count > 1:
            trace.violations.add("label of several types", label)
    for code, values in labels.values.items():
        if values.get(0) != "End":
            trace.violations.add("type with values whose 0 is not End", code)
        for label, count in Counter(values.values()).items():
            if count > 1:
                trace.violations.add("label of several values of a type", f"{code} {label}")
    every = [
        *labels.types.values(),
        *(label for values in labels.values.values() for label in values.values()),
    ]
    for label in every:
        if re.fullmatch(r"\[.*\]", label):
            trace.violations.add("label all in brackets", label)
        if CONTROL.search(label):
            trace.violations.add("label with a tab or control character", repr(label))
    if bool(trace.states) != (labels.states is not None):
        trace.violations.add(
            "STATES section without states, or states without it", f"{len(trace.states)} states"
        )


class _Body:
    """Read the records of a trace and keep what is open on each row."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.complain = trace.violations.add
        self.stacks: dict[tuple[Row, int], list[tuple[int, int, dict[int, int]]]] = defaultdict(
            list
        )
        self.numbers: dict[tuple[Row, int], int] = {}
        self.row_of_cpu: dict[int, Row] = {}
        bounds = [0, *accumulate(trace.nodes)]
        self.cpus = [range(first + 1, last + 1) for first, last in pairwise(bounds)]
        self.known: set[tuple[int, int, int, int]] = set()

    def read(self, lines: list[str]) -> None:
        """Read all records and check their order."""
        before = 0
        for line in lines:
            if line.startswith("#"):
                continue
            self.trace.lines += 1
            if not RECORD.fullmatch(line):
                self.complain("not a record", line)
                continue
            fields = [int(number) for number in line.split(":")]
            if min(fields) < 0:
                self.complain("negative number", line)
            kind = fields[0]
            if kind == 2 and len(fields) > FIRST_PAIR and not len(fields) % 2:
                self._event(fields, line)
            elif kind == 3 and len(fields) == FIELDS_OF_COMM:
                self._comm(fields, line)
            elif kind == 1 and len(fields) == FIELDS_OF_STATE:
                self._state(fields, line)
            else:
                self.complain("record of unknown kind or length", line)
                continue
            if fields[5] < before:
                self.complain("not sorted by time", line)
            before = fields[5]
        self._close()

    def _row(self, fields: list[int], at: int, line: str) -> Row:
        """Return the row of `cpu:appl:task:thread` at this field, and check it."""
        cpu, application, task, thread = address = (
            fields[at],
            fields[at + 1],
            fields[at + 2],
            fields[at + 3],
        )
        row = (task, thread)
        if address in self.known:
            return row
        self.known.add(address)
        tasks = self.trace.tasks
        if application != 1 or not 1 <= task <= len(tasks) or not 1 <= thread <= tasks[task - 1][0]:
            self.complain("unknown object", line)
            return row
        node = tasks[task - 1][1]
        if cpu and not (node <= len(self.cpus) and cpu in self.cpus[node - 1]):
            self.complain("CPU not on the node of the task", line)
        if cpu and self.row_of_cpu.setdefault(cpu, row) != row:
            self.complain("CPU shared by two rows", line)
        return row

    def _times(self, line: str, *times: int) -> None:
        """Check that times lie within the trace."""
        for time in times:
            if not 0 <= time <= self.trace.duration:
                self.complain("time outside the trace", line)
            if time > LAST_EXACT:
                self.complain("time beyond exact numbers", line)

    def _event(self, fields: list[int], line: str) -> None:
        row, time = self._row(fields, 1, line), fields[5]
        self._times(line, time)
        pairs = dict(zip(fields[FIRST_PAIR::2], fields[FIRST_PAIR + 1 :: 2], strict=True))
        labels = self.trace.labels
        if len(pairs) * 2 != len(fields) - FIRST_PAIR:
            self.complain("type twice in one record", line)
        if not any(code in labels.values for code in pairs):
            self.trace.samples.append(Sample(row, time, pairs))
        for code, value in pairs.items():
            if code not in labels.types:
                self.complain("type without a label", line)
            named = labels.values.get(code)
            if named is None:
                self.numbers[row, code] = value
            elif value:
                if value not in named and code != ERROR_CODES:
                    self.complain("value without a label", line)
                stack = self.stacks[row, code]
                if code in HOLDING and stack:
                    self._end(row, code, time, line)
                stack.append((value, time, pairs))
                self.trace.deepest[code] = max(self.trace.deepest[code], len(stack))
            else:
                self._end(row, code, time, line)

    def _end(self, row: Row, code: int, time: int, line: str) -> None:
        stack = self.stacks[row, code]
        if not stack and code in HOLDING:
            return
        if not stack:
            self.complain("end of a range that never began", line)
            return
        value, begin, pairs = stack.pop()
        if begin == time:
            self.complain("range of no length", line)
        others = {other: number for other, number in pairs.items() if other != code}
        self.trace.events[code].append(Interval(row, value, begin, time, others))

    def _comm(self, fields: list[int], line: str) -> None:
        sender, receiver = self._row(fields, 1, line), self._row(fields, 7, line)
        logical_send, physical_send, logical_receive, physical_receive = (
            fields[5],
            fields[6],
            fields[11],
            fields[12],
        )
        self._times(line, logical_send, physical_send, logical_receive, physical_receive)
        if physical_send < logical_send:
            self.complain("line sent physically before it is sent logically", line)
        self.trace.comms.append(
            Comm(sender, logical_send, receiver, physical_receive, fields[13], fields[14])
        )

    def _state(self, fields: list[int], line: str) -> None:
        row, begin, end, value = self._row(fields, 1, line), fields[5], fields[6], fields[7]
        self._times(line, begin, end)
        if end <= begin:
            self.complain("state of no length", line)
        if value not in (self.trace.labels.states or {}):
            self.complain("state without a label", line)
        self.trace.states.append(State(row, begin, end, value))

    def _close(self) -> None:
        for (row, code), stack in self.stacks.items():
            if stack:
                self.complain(
                    "ranges left open at the end", f"row {row} type {code}: {stack[-1][:2]}"
                )
        for (row, code), value in self.numbers.items():
            if value:
                self.complain("number left standing at the end", f"row {row} type {code}: {value}")
