"""Check a Paraver trace for what would crash, hang or mislead Paraver. No Nsight. Start in check_trace.py.

Here are the rules (rules.yaml), the findings, one for each broken rule with its first place, and the
checks of the declarations: in the first line of the .prv objects, CPUs and duration; in the .pcf labels
of event types, values and states; in the .row names of objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import accumulate
from pathlib import Path

from msgspec import Struct, field

from nsys2prv._util.errors import Nsys2prvError, name_damaged_file
from nsys2prv._util.files import load_shipped_file
from nsys2prv._util.text import escape_to_one_line
from nsys2prv.writers import MOST_OBJECTS

#: The longest text that is quoted.
LONGEST_QUOTE = 100
MAGIC = "#Paraver ("
_NUMBER = r"\d{1,18}"
_TASK = rf"{_NUMBER}:{_NUMBER}"
_APPLICATION = rf"({_NUMBER}):?\(({_TASK}(?:,{_TASK})*)\)"
#: Duration, unit, nodes, their CPUs, number of applications, these, number of communicators.
_HEADER = re.compile(
    rf"#Paraver \([^)]*\):(\d{{1,19}})([^:]*):({_NUMBER})(?:\(({_NUMBER}(?:,{_NUMBER})*)\))?"
    rf":({_NUMBER}):({_APPLICATION}(?:[,:]{_APPLICATION})*)(?:,({_NUMBER}))?"
)
UNITS = ("_ns", "_us", "_ms")
_ENTRY = re.compile(rf"({_NUMBER})\s+(\S.*)")
_TYPE = re.compile(rf"\d+\s+({_NUMBER})\s+(\S.*)")
_COLOR = re.compile(r"\d+\s+\{\s*(\d{1,9})\s*,\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\}")
_PRECISION = re.compile(r"PRECISION\s+\d+")
#: Sections of a .pcf whose lines are entries, and those whose lines are not looked at.
READ_SECTIONS = ("STATES", "STATES_COLOR", "EVENT_TYPE")
OTHER_SECTIONS = ("DEFAULT_OPTIONS", "DEFAULT_SEMANTIC", "GRADIENT_COLOR", "GRADIENT_NAMES")
#: Text that Paraver does not show as it is: control characters, invalid UTF-8, a label that is all
#: in brackets.
_UNREADABLE = re.compile("[\x00-\x1f\x7f\ufffd]|^\\[.*\\]$")
LEVELS = ("WORKLOAD", "APPL", "TASK", "THREAD", "SYSTEM", "NODE", "CPU")
_LEVEL = re.compile(rf"LEVEL ({'|'.join(LEVELS)}) SIZE ({_NUMBER})")


class Severity(Enum):
    """ERROR: Paraver or a tool of it crashes, hangs, refuses, loses something or shows it wrongly.
    WARNING: it misleads.
    """

    ERROR = "error"
    WARNING = "warning"


class Rule(Struct, frozen=True):
    """Rule of the check."""

    name: str
    #: Part of the trace that it applies to.
    part: str
    severity: Severity
    #: Description of the fault.
    wrong: str
    #: Effect of the fault in Paraver.
    effect: str


_DECLARED = load_shipped_file(__name__, "rules.yaml")
#: Part of a trace -> title.
PARTS: dict[str, str] = {part: declared["title"] for part, declared in _DECLARED.items()}
#: Name -> rule.
RULES = {
    name: Rule(name, part, Severity(severity), wrong, effect)
    for part, declared in _DECLARED.items()
    for name, rule in declared["rules"].items()
    for (severity, wrong), (_, effect) in [rule.items()]
}


class CheckFinding(Struct):
    """Broken rule in one of the trace's files."""

    rule: str
    file: str
    #: First line, from 1; 0 for the file as a whole.
    line: int
    #: Number of places where it is broken.
    count: int
    #: Quoted text of the first place.
    example: str

    @property
    def severity(self) -> Severity:
        """Return how bad it is."""
        return RULES[self.rule].severity

    @property
    def message(self) -> str:
        """Return one sentence: what is wrong, with an example, and its effect."""
        rule = RULES[self.rule]
        return f"{rule.wrong}{f' ({self.example})' if self.example else ''}: {rule.effect}"


class CheckFindings(list[CheckFinding]):
    """The findings of a trace."""

    def add(
        self, rule: str, file: str, line: int = 0, example: object = "", count: int = 1
    ) -> None:
        """Count places of a broken rule; the first decides the line and the example."""
        for finding in self:
            if (finding.rule, finding.file) == (rule, file):
                finding.count += count
                return
        text = escape_to_one_line(str(example))
        quoted = text if len(text) <= LONGEST_QUOTE else text[:LONGEST_QUOTE] + "..."
        self.append(CheckFinding(rule, file, line, count, quoted))

    def sort_by_severity(self) -> None:
        """Put the worst first, then by file and line."""
        order = list(Severity)
        self.sort(key=lambda one: (order.index(one.severity), one.file, one.line, one.rule))


class Header(Struct, frozen=True):
    """The objects of a trace."""

    #: End of the trace, in its unit.
    duration: int
    #: `_ns`, `_us` or any other text behind the duration.
    unit: str
    #: Number of CPUs of each node.
    nodes: list[int]
    #: Number of tasks of each application.
    applications: list[int]
    #: (threads, node from 1) of the tasks of all applications.
    tasks: list[tuple[int, int]]
    #: Number of lines of communicators behind the header.
    communicators: int

    def count_objects(self) -> dict[str, int]:
        """Return level of the .row file -> its objects."""
        threads = sum(threads for threads, _ in self.tasks)
        counts = 1, len(self.applications), len(self.tasks), threads, 1, len(self.nodes)
        return dict(zip(LEVELS, (*counts, sum(self.nodes)), strict=True))

    def list_task_columns(self) -> list[tuple[int, int, int]]:
        """Return the threads of each task, and the first and the last CPU of its node, from 1 (1 and
        0 where there is no such node).
        """
        last = [0, *accumulate(self.nodes)]
        return [
            (threads, last[node - 1] + 1, last[node]) if 0 < node < len(last) else (threads, 1, 0)
            for threads, node in self.tasks
        ]


def read_header(line: str, file: str, findings: CheckFindings) -> Header | None:
    """Check the first line of a .prv and return its contents, None if the lines behind it cannot be
    read without it.
    """
    match = _HEADER.fullmatch(line)
    if match is None:
        rule = "header-syntax" if line.startswith(MAGIC) else "not-a-trace"
        findings.add(rule, file, 1, line)
        return None
    duration, unit, node_count, cpus, count, applications = match.groups()[:6]
    found = [
        (int(announced), [tuple(map(int, task.split(":"))) for task in tasks.split(",")])
        for announced, tasks in re.findall(_APPLICATION, applications)
    ]
    nodes = (
        [int(number) for number in cpus.split(",")] if cpus else [1] * min(int(node_count), 1 << 17)
    )
    header = Header(
        min(int(duration), 2**63 - 1),
        unit,
        nodes if int(node_count) else [],
        [len(tasks) for _, tasks in found],
        [task for _, tasks in found for task in tasks],
        int(match.groups()[-1] or 0),
    )
    if (
        (len(nodes) != int(node_count) and cpus)
        or len(found) != int(count)
        or any(announced != len(tasks) for announced, tasks in found)
    ):
        findings.add(
            "header-syntax",
            file,
            1,
            "numbers of nodes, applications or tasks that are not those listed",
        )
        return None
    if unit not in UNITS:
        findings.add("unit", file, 1, unit)
    for node, number in enumerate(header.nodes, 1):
        if not number:
            findings.add("node-without-cpus", file, 1, f"node {node}")
    for task, (threads, node) in enumerate(header.tasks, 1):
        if not threads or (header.nodes and not 0 < node <= len(header.nodes)):
            example = f"task {task}: {threads} threads on node {node} of {len(header.nodes)}"
            findings.add("task-without-node", file, 1, example)
    for level, objects in header.count_objects().items():
        if objects > MOST_OBJECTS:
            findings.add("too-many-objects", file, 1, f"{level} {objects}")
            return None
    return header


class Labels(Struct):
    """Contents of a .pcf."""

    #: Event type -> label.
    types: dict[int, str] = field(default_factory=dict)
    #: State -> label.
    states: dict[int, str] = field(default_factory=dict)
    #: Value -> label, for each list of VALUES.
    sets: list[dict[int, str]] = field(default_factory=list)
    #: Type -> its place in `sets`, for types with VALUES.
    set_of_type: dict[int, int] = field(default_factory=dict)


def check_pcf(path: Path, findings: CheckFindings) -> Labels:
    """Check a .pcf and return its labels."""
    if path.exists():
        return read_labels(_read_lines(path), path.name, findings)
    findings.add("pcf-missing", path.name)
    return Labels()


def read_labels(lines: Iterable[str], file: str, findings: CheckFindings) -> Labels:
    """Check the lines of a .pcf and return its labels."""
    labels = Labels()
    section, types = "", list[int]()
    values: dict[int, str] | None = None
    texts: dict[str, set[str]] = {"STATES": set(), "EVENT_TYPE": set(), "VALUES": set()}

    def add_label(known: dict[int, str], number: str, label: str, line: int) -> None:
        seen = texts["VALUES" if known is values else section]
        for rule, broken in (
            ("label-twice", int(number) in known),
            ("labels-equal", label in seen and int(number) not in known),
            ("label-text", bool(_UNREADABLE.search(label))),
        ):
            if broken:
                findings.add(rule, file, line, f"{number} {label}")
        known[int(number)] = label
        seen.add(label)

    for number, text in enumerate(lines, 1):
        line = text.strip(" \t")
        if line in READ_SECTIONS or line in OTHER_SECTIONS:
            section, types, values = line, [], None
        elif not line or line.startswith("#") or section in OTHER_SECTIONS:
            continue
        elif section == "EVENT_TYPE" and line == "VALUES" and types:
            labels.sets.append(values := {})
            labels.set_of_type |= dict.fromkeys(types, len(labels.sets) - 1)
            texts["VALUES"] = set()
        elif section == "EVENT_TYPE" and values is None and (match := _TYPE.fullmatch(line)):
            types.append(int(match[1]))
            add_label(labels.types, match[1], match[2], number)
        elif section == "STATES_COLOR" and (match := _COLOR.fullmatch(line)):
            if max(map(int, match.groups())) > 255:
                findings.add("pcf-line", file, number, line)
        elif values is not None and (match := _ENTRY.fullmatch(line)):
            add_label(values, match[1], match[2], number)
        elif section == "STATES" and (match := _ENTRY.fullmatch(line)):
            add_label(labels.states, match[1], match[2], number)
        elif not (section == "EVENT_TYPE" and _PRECISION.fullmatch(line)):
            findings.add("pcf-line", file, number, line)
    return labels


def _read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, without their ends."""
    if not path.is_file():
        raise Nsys2prvError(f"{path}: is not a regular file")
    with (
        name_damaged_file(path),
        path.open(encoding="utf-8", errors="replace", newline="\n") as file,
    ):
        for line in file:
            yield line.removesuffix("\n")


def check_row(path: Path, header: Header, findings: CheckFindings) -> None:
    """Check a .row: names of the header's objects."""
    if not path.exists():
        findings.add("row-missing", path.name)
        return
    objects = header.count_objects()
    level, line_of_level, size, names = "", 0, 0, 0

    def close_level() -> None:
        if level and names != size:
            findings.add(
                "row-size", path.name, line_of_level, f"{level} SIZE {size}, {names} names"
            )
        elif level and size != objects[level] and header.nodes:
            example = f"{level} SIZE {size}, {objects[level]} in the header"
            findings.add("row-count", path.name, line_of_level, example)

    for number, line in enumerate(_read_lines(path), 1):
        if match := _LEVEL.fullmatch(line):
            close_level()
            level, line_of_level, size, names = match[1], number, int(match[2]), 0
        elif line.startswith("LEVEL ") or (line.strip() and not level):
            findings.add("row-line", path.name, number, line)
        elif names < size or line.strip():
            names += 1
            if not line.strip() or _UNREADABLE.search(line):
                findings.add("row-name", path.name, number, line)
    close_level()
