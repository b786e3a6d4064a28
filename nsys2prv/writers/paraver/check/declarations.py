"""Check what a trace declares: in the first line of the .prv its objects, their CPUs and its
duration; in the .pcf labels of event types, values and states; in the .row names of objects.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from nsys2prv._util.errors import Nsys2prvError, name_damaged_file
from nsys2prv.writers.paraver.check import BlockReporter, CheckFindings

MAGIC = "#Paraver"
#: Paraver counts objects in 16 bits.
MOST_OBJECTS = 65_535
#: Date, duration, unit, nodes, their CPUs, number of applications, these. (Nodes that begin with 0
#: are none for Paraver.)
_HEAD = re.compile(
    r"#Paraver \(([^)]*)\):\s*(-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)([^:]*):"
    r"\s*(0|[1-9]\d*)(?:\(([^)]*)\))?:\s*(\d+):(.*)",
    re.DOTALL,
)
_APPLICATION = re.compile(r"\s*(\d+):?\(([^)]*)\)?")
_COMMUNICATORS = re.compile(r"[,:]\s*(\d+)\s*")
_DATE = re.compile(
    r"(\d{1,2}/(\d{1,2}|[A-Z][a-z]{2})/\d{4}|\d{4}/(\d{1,2}|[A-Z][a-z]{2})/\d{1,2}|[A-Z][a-z]{2}/\d{1,2}/\d{4})"
    r"( (at )?\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?)?"
)
SECTIONS = {
    *("DEFAULT_OPTIONS", "DEFAULT_SEMANTIC", "STATES", "STATES_COLOR", "EVENT_TYPE"),
    *("GRADIENT_COLOR", "GRADIENT_NAMES"),
}
LAST_LABELLED, LAST_COLOR = 2**31 - 1, 10_000_000
#: Labels of 0 that say that nothing is going on.
_NOTHING = re.compile(r"(end|exit|outside|none|no|not|idle|off|unknown)\b.*|-*", re.IGNORECASE)
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_NUMBERED = re.compile(r"(-?\d+)[:\s]?\s*(\S.*)")
_TYPE = re.compile(r"-?\d+\s+(-?\d+)\s+(\S.*)")
_COLOR = re.compile(r"(-?\d+)\s+\{\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\}")
_IN_BRACKETS = re.compile(r"\[.*\]")
LEVELS = ("WORKLOAD", "APPL", "TASK", "THREAD", "SYSTEM", "NODE", "CPU")
#: Levels whose names a trace should have: those that views show as rows.
WANTED_LEVELS = ("TASK", "THREAD", "NODE")
LONG_NAME = 100
_LEVEL = re.compile(rf"LEVEL ({'|'.join(LEVELS)}) SIZE (\d+)")
_LIKE_LEVEL = re.compile(rf"\s*LEVEL\s+({'|'.join(LEVELS)})\b.*")


class Header(Struct, frozen=True, dict=True):
    """The objects of a trace."""

    #: Date and time, as they are written.
    date: str
    #: End of the trace, in its unit.
    duration: float
    #: `_ns`, `_us` or what else stands behind the duration.
    unit: str
    #: Number of CPUs of each node.
    nodes: tuple[int, ...]
    #: For each application, (threads, node from 1) of its tasks.
    applications: tuple[tuple[tuple[int, int], ...], ...]
    #: Number of lines of communicators behind the header.
    communicators: int

    @cached_property
    def tasks(self) -> list[tuple[int, int]]:
        """Return (threads, node from 1) of the tasks of all applications."""
        return [task for tasks in self.applications for task in tasks]

    @cached_property
    def threads(self) -> int:
        """Return the number of threads of all tasks."""
        return sum(threads for threads, _ in self.tasks)

    @property
    def cpus(self) -> int:
        """Return the number of CPUs of all nodes."""
        return sum(self.nodes)

    def count_objects(self) -> dict[str, int]:
        """Return level of the .row file -> its objects."""
        return {
            "WORKLOAD": 1,
            "APPL": len(self.applications),
            "TASK": len(self.tasks),
            "THREAD": self.threads,
            "SYSTEM": 1,
            "NODE": len(self.nodes),
            "CPU": self.cpus,
        }


def read_header(line: str, findings: CheckFindings) -> Header | None:
    """Check the first line of a .prv and return what it says, or None where what follows cannot be understood without it; what is wrong
    goes to the findings.
    """
    if line.split(" ", 1)[0] != MAGIC:
        findings.add("not-a-trace", 1, line)
        return None
    match = _HEAD.fullmatch(line)
    if match is None:
        findings.add("header-syntax", 1, line)
        return None
    date, duration, unit, count, cpus, applications, rest = match.groups()
    try:
        tasks, communicators = _read_applications(rest, int(applications), findings)
        nodes = _read_nodes(int(count), cpus, findings)
        header = Header(date, float(duration), unit, nodes, tasks, communicators)
    except ValueError as error:
        findings.add("header-syntax", 1, error)
        return None
    _judge_header(header, findings)
    return None if max(header.threads, header.cpus, len(header.tasks)) > MOST_OBJECTS else header


def _read_nodes(count: int, cpus: str | None, findings: CheckFindings) -> tuple[int, ...]:
    if cpus is None:
        if count > MOST_OBJECTS:
            findings.add("too-many-objects", 1, f"{count} nodes")
            raise ValueError(f"{count} nodes")
        return (1,) * count
    numbers = [_read_number(text, "CPUs of a node") for text in cpus.split(",")] if count else []
    if len(numbers) < count:
        raise ValueError(f"{count} nodes, but the CPUs of {len(numbers)}")
    if len(numbers) > count:
        example = f"{count} nodes, the CPUs of {len(numbers)}"
        findings.add("nodes-beyond", 1, example, count=len(numbers) - count)
    return tuple(numbers[:count])


def _read_applications(
    rest: str, count: int, findings: CheckFindings
) -> tuple[tuple[tuple[tuple[int, int], ...], ...], int]:
    """Return tasks of each application, and the number of communicators."""
    if not count:
        raise ValueError("no application")
    applications = []
    for number in range(1, count + 1):
        if number > 1:
            if rest[:1] not in (",", ":"):
                raise ValueError(f"{count} applications, but the tasks of {number - 1}")
            rest = rest[1:]
        match = _APPLICATION.match(rest)
        if match is None:
            raise ValueError(f"application {number} is not tasks(threads:node,...)")
        rest = rest[match.end() :]
        announced = int(match[1])
        tasks = [_read_task(text) for text in match[2].split(",")]
        if not 0 < announced <= len(tasks):
            raise ValueError(
                f"application {number} announces {announced} tasks and has {len(tasks)}"
            )
        if announced < len(tasks):
            example = f"application {number}: {announced} announced, {len(tasks)} listed"
            findings.add("tasks-beyond", 1, example)
        applications.append(tuple(tasks[:announced]))
    if not rest:
        return tuple(applications), 0
    communicators = _COMMUNICATORS.fullmatch(rest)
    if communicators is None:
        raise ValueError(f"behind the applications stands {rest!r}")
    return tuple(applications), int(communicators[1])


def _read_task(text: str) -> tuple[int, int]:
    threads, colon, node = text.partition(":")
    if not colon:
        raise ValueError(f"a task is {text!r}, not threads:node")
    count = _read_number(threads, "threads of a task")
    if not count:
        raise ValueError("a task without threads")
    return count, _read_number(node, "node of a task")


def _read_number(text: str, noun: str) -> int:
    if not re.fullmatch(r"\s*\d{1,18}\s*", text):
        raise ValueError(f"{noun}: {text!r} is no number")
    return int(text)


def _judge_header(header: Header, findings: CheckFindings) -> None:
    if not _DATE.fullmatch(header.date):
        findings.add("date", 1, header.date or "empty")
    if not header.unit:
        findings.add("no-unit", 1)
    elif header.unit not in ("_ns", "_ms", "_us"):
        findings.add("unit", 1, header.unit)
    for noun, count in (
        ("applications", len(header.applications)),
        ("tasks", len(header.tasks)),
        ("threads", header.threads),
        ("nodes", len(header.nodes)),
        ("CPUs", header.cpus),
    ):
        if count > MOST_OBJECTS:
            findings.add("too-many-objects", 1, f"{count} {noun}")
    if not header.nodes:
        findings.add("no-resources", 1)
        return
    for number, cpus in enumerate(header.nodes, 1):
        if not cpus:
            findings.add("node-without-cpus", 1, f"node {number}")
    for number, (_, node) in enumerate(header.tasks, 1):
        if not node:
            findings.add("task-on-node-0", 1, f"task {number}")
        elif node > len(header.nodes):
            example = f"task {number} on node {node} of {len(header.nodes)}"
            findings.add("task-on-absent-node", 1, example)


class Objects:
    """Numbers the rows (threads over all tasks, from 0) of a trace, and keeps what its records say
    of CPUs.
    """

    def __init__(self, header: Header) -> None:
        counts = np.array([len(tasks) for tasks in header.applications], np.int64)
        self._first_task, self._tasks = np.cumsum(counts) - counts, counts
        threads = np.array([threads for threads, _ in header.tasks], np.int64)
        self._first_row, self._threads = np.cumsum(threads) - threads, threads
        last_cpus = np.concatenate(([0], np.cumsum(np.array(header.nodes, np.int64))))
        nodes = np.array(
            [node if 1 <= node <= len(header.nodes) else 0 for _, node in header.tasks], np.int64
        )
        #: CPUs of each task's node; none where there is no such node.
        self._first_cpu = np.where(nodes > 0, last_cpus[nodes - 1] + 1, 1)
        self._last_cpu = np.where(nodes > 0, last_cpus[nodes], 0)
        self._cpus = header.cpus
        self._row_of_cpu = np.full(header.cpus + 1, -1, np.int64)
        self.with_cpu = 0

    def find_rows(self, place: BlockReporter, lines: np.ndarray, at: int) -> np.ndarray:
        """Return the row of `cpu:appl:task:thread` from this field of each line on; -1 where
        Paraver would skip the record.
        """
        numbers, first = place.lines.numbers, place.lines.first[lines] + at
        cpu, appl, task, thread = (numbers[first + field] for field in range(4))
        wraps = (appl > MOST_OBJECTS) | (task > MOST_OBJECTS) | (thread > MOST_OBJECTS)
        sound = (appl >= 1) & (appl <= len(self._tasks))
        own = np.where(sound, appl - 1, 0)
        sound &= (task >= 1) & (task <= self._tasks[own])
        own = np.where(sound, self._first_task[own] + task - 1, 0)
        sound &= (thread >= 1) & (thread <= self._threads[own])
        rows = np.where(sound, self._first_row[own] + thread - 1, -1)
        if not sound.all():
            place.report("object-wraps", lines[wraps])
            place.report("object-absent", lines[~sound & ~wraps])
        self.with_cpu += int(np.count_nonzero(cpu))
        on_node = (cpu >= self._first_cpu[own]) & (cpu <= self._last_cpu[own])
        elsewhere = (cpu != 0) & ~on_node
        absent = (cpu < 0) | (cpu > self._cpus)
        place.report("cpu-absent", lines[absent])
        place.report("cpu-on-other-node", lines[(rows >= 0) & elsewhere & ~absent])
        used = (rows >= 0) & on_node
        self._check_shared(place, lines[used], cpu[used], rows[used])
        rows[elsewhere] = -1
        return rows

    def _check_shared(
        self, place: BlockReporter, lines: np.ndarray, cpu: np.ndarray, rows: np.ndarray
    ) -> None:
        """Report CPUs that several rows use."""
        new = self._row_of_cpu[cpu] < 0
        self._row_of_cpu[cpu[new]] = rows[new]
        place.report("cpu-shared", lines[self._row_of_cpu[cpu] != rows])


class Labels(Struct):
    """Contents of a .pcf."""

    #: Event type -> label.
    types: dict[int, str] = field(default_factory=dict)
    #: Type -> value -> label, for types with VALUES.
    values: dict[int, dict[int, str]] = field(default_factory=dict)
    #: State -> label.
    states: dict[int, str] = field(default_factory=dict)
    #: Type -> line number of its declaration.
    lines: dict[int, int] = field(default_factory=dict)
    #: (number, line) of labels of values that look like declarations of types.
    suspects: list[tuple[int, int]] = field(default_factory=list)


def check_pcf(path: Path, findings: CheckFindings) -> Labels:
    """Check a .pcf and return its labels; what is wrong with it goes to the findings."""
    if not path.exists():
        findings.add("pcf-missing")
        return Labels()
    reader = _PcfReader(findings)
    for number, line in enumerate(_read_lines(path), 1):
        reader.read_line(line, number)
    reader.close()
    labels = reader.labels
    if not labels.types and not labels.states:
        findings.add("pcf-empty")
    _judge_types(labels, findings)
    return labels


def _read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, without their ends."""
    if not path.is_file():
        raise Nsys2prvError(f"{path}: is not a regular file")
    with name_damaged_file(path), path.open("rb") as file:
        for line in file:
            yield line.removesuffix(b"\n")


class _PcfReader:
    """Reads the lines of a .pcf as Paraver does: sections, and within EVENT_TYPE types, then VALUES."""

    def __init__(self, findings: CheckFindings) -> None:
        self.labels = Labels()
        self._add = findings.add
        self._section, self._begun, self._types, self._in_values = "", 0, list[int](), False
        self._refused = False
        self._texts: dict[str, int] = {}
        self._labelled: set[int] = set()

    def read_line(self, raw: bytes, number: int) -> None:
        if raw.endswith(b"\r"):
            self._add("pcf-line-ends", number)
            raw = raw[:-1]
        try:
            line = raw.decode()
        except UnicodeDecodeError:
            line = raw.decode("utf-8", "replace")
            self._add("pcf-encoding", number, line)
        text = line.strip(" \t")
        if not text:
            if line:
                self._add("pcf-blank-line", number)
        elif text in SECTIONS:
            self.close()
            self._section, self._begun, self._types, self._in_values = text, number, [], False
            self._refused = False
        elif not text.startswith("#"):
            self._read_content(text, number)

    def close(self) -> None:
        """End a section."""
        if self._section == "EVENT_TYPE" and not (self._types or self._refused):
            self._add("event-type-empty", self._begun)
        for code in self._types if self._in_values else ():
            self._check_zero(code)

    def _read_content(self, text: str, number: int) -> None:
        if not self._section:
            self._add("outside-section", number, text)
        readers = {
            "STATES": self._read_state,
            "STATES_COLOR": self._read_color,
            "EVENT_TYPE": self._read_event,
        }
        if self._section in readers:
            readers[self._section](text, number)

    def _read_event(self, text: str, number: int) -> None:
        if text == "VALUES":
            self._in_values, self._texts, self._labelled = True, {}, set()
            for code in self._types:
                self.labels.values.setdefault(code, {})
        elif re.match(r"PRECISION\b", text):
            if not re.fullmatch(r"PRECISION\s+\d+", text):
                self._add("precision-line", number, text)
        elif self._in_values:
            self._read_value(text, number)
        else:
            self._read_type(text, number)

    def _read_type(self, text: str, number: int) -> None:
        match = _TYPE.fullmatch(text)
        if match is None:
            self._add("type-line", number, text)
            self._refused = True
            return
        code, label = int(match[1]), match[2]
        if code in self.labels.types:
            self._add("type-twice", number, code)
        if code > LAST_LABELLED:
            self._add("number-beyond-labels", number, code)
        self._check_label(label, number)
        if "*" in label:
            self._add("label-wildcard", number, label)
        self._types.append(code)
        self.labels.types[code] = label
        self.labels.lines[code] = number

    def _read_value(self, text: str, number: int) -> None:
        match = _NUMBERED.fullmatch(text)
        if match is None:
            self._add("value-line", number, text)
            return
        value, label = int(match[1]), match[2]
        if value > LAST_LABELLED:
            self._add("number-beyond-labels", number, value)
        self._check_label(label, number)
        if (inner := _NUMBERED.fullmatch(label)) and label[:1].isdigit():
            self.labels.suspects.append((int(inner[1]), number))
        if self._texts.setdefault(label, value) != value:
            self._add("value-labels-equal", number, label)
        for code in self._types:
            self.labels.values[code][value] = label
        if value in self._labelled:
            self._add("value-twice", number, value)
        self._labelled.add(value)

    def _read_state(self, text: str, number: int) -> None:
        match = _NUMBERED.fullmatch(text)
        if match is None:
            self._add("state-line", number, text)
            return
        self._check_label(match[2], number)
        self.labels.states[int(match[1])] = match[2]

    def _read_color(self, text: str, number: int) -> None:
        match = _COLOR.fullmatch(text)
        if match is None or max(int(match[place]) for place in (2, 3, 4)) > 255:
            self._add("color-line", number, text)
        elif not 0 <= int(match[1]) <= LAST_COLOR:
            self._add("color-number", number, match[1])

    def _check_label(self, label: str, number: int) -> None:
        if _CONTROL.search(label):
            self._add("label-control", number, label)
        if _IN_BRACKETS.fullmatch(label):
            self._add("label-in-brackets", number, label)
        elif _IN_BRACKETS.search(label):
            self._add("brackets-in-label", number, label)

    def _check_zero(self, code: int) -> None:
        zero = self.labels.values[code].get(0)
        if zero is None:
            self._add("zero-unlabelled", self.labels.lines[code], f"type {code}")
        elif not _NOTHING.fullmatch(zero):
            self._add("zero-label", self.labels.lines[code], f"type {code}: {zero}")


def _judge_types(labels: Labels, findings: CheckFindings) -> None:
    by_label = defaultdict(list)
    for code, label in labels.types.items():
        by_label[label].append(code)
    for label, codes in by_label.items():
        if len(codes) > 1:
            example = f"{label}: {', '.join(map(str, codes))}"
            first = labels.lines[codes[1]]
            findings.add("type-labels-equal", first, example, count=len(codes) - 1)


def judge_groups(labels: Labels, groups: Iterable[frozenset[int]], findings: CheckFindings) -> None:
    """Report types of a group, which views show together, that label a value differently."""
    reported: set[tuple[int, int, int]] = set()
    for group in groups:
        first_labels: dict[int, tuple[int, str]] = {}
        for code in sorted(group & labels.values.keys()):
            for value, label in labels.values[code].items():
                other, before = first_labels.setdefault(value, (code, label))
                if value and before != label and (value, other, code) not in reported:
                    reported.add((value, other, code))
                    example = f"{value}: {before} of {other}, {label} of {code}"
                    findings.add("values-overlap", labels.lines[code], example)


def check_row(path: Path, header: Header, findings: CheckFindings) -> None:
    """Compare a .row file with the objects of the header."""
    if not path.exists():
        findings.add("row-missing")
        return
    texts = []
    for number, line in enumerate(_read_lines(path), 1):
        if line.endswith(b"\r"):
            findings.add("row-line-ends", number)
        texts.append(line.removesuffix(b"\r").decode("utf-8", "replace"))
        if "\ufffd" in texts[-1] and "\ufffd".encode() not in line:
            findings.add("row-encoding", number, texts[-1])
    _check_levels(texts, header, findings)


def _check_levels(lines: list[str], header: Header, findings: CheckFindings) -> None:
    """Read levels as Paraver does: as many lines as SIZE says are names, whatever they are."""
    sizes, seen, at = header.count_objects(), set(), 0
    while at < len(lines):
        line, number = lines[at], at + 1
        at += 1
        if not line.strip():
            continue
        match = _LEVEL.fullmatch(line)
        if match is None:
            findings.add("row-header", number, line)
            continue
        level, size = match[1], int(match[2])
        names = lines[at : at + size]
        end = next(
            (place for place, text in enumerate(lines[at:], at) if _LIKE_LEVEL.fullmatch(text)),
            len(lines),
        )
        while end > at and not lines[end - 1].strip():
            end -= 1
        if end - at != size and any(text.strip() for text in names[:1]):
            findings.add("row-size", number, f"{line}, but {end - at} names")
        if any(_LIKE_LEVEL.fullmatch(text) for text in names):
            names = names[: max(end - at, 0)]
            at = end
        else:
            at += size
        if level in seen:
            findings.add("level-twice", number, level)
        elif size != sizes[level] and (header.nodes or level not in ("SYSTEM", "NODE", "CPU")):
            findings.add("row-count", number, f"{line}, but {sizes[level]} in the header")
        seen.add(level)
        _check_names(names, number + 1, level, header, findings)
    for level in WANTED_LEVELS:
        if level not in seen and (header.nodes or level != "NODE"):
            findings.add("level-missing", 0, level)


def _check_names(
    names: list[str], first: int, level: str, header: Header, findings: CheckFindings
) -> None:
    for number, text in enumerate(names, first):
        if not text.strip():
            findings.add("name-empty", number, level)
        if _CONTROL.search(text):
            findings.add("name-control", number, text)
        if len(text) > LONG_NAME:
            findings.add("name-long", number, text)
    # Threads of different tasks may well have the same name.
    parts = [threads for threads, _ in header.tasks] if level == "THREAD" else [len(names)]
    for begin, end in pairwise([0, *accumulate(parts)]):
        seen: set[str] = set()
        for number, text in enumerate(names[begin:end], first + begin):
            if text.strip() and text in seen:
                findings.add("name-twice", number, f"{level} {text}")
            seen.add(text)
