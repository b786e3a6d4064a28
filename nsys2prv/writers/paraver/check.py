"""Check a Paraver trace for errors that crash, hang or mislead Paraver. This works for any trace.

Rules are declared in check_rules.yaml. Each broken rule gives one finding, with its first place.
The first line of the .prv contains objects, CPUs and duration; the compiled core
(`_util/native/trace.c`) reads the lines after it. Labels of event types, values and states are in
the .pcf, names of objects in the .row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
from isal import igzip, isal_zlib
from msgspec import Struct
from msgspec.structs import asdict

from nsys2prv._util.budget import BLOCK_BYTES, LONGEST_LINE, check_unpacked
from nsys2prv._util.errors import Nsys2prvError, name_damaged_file
from nsys2prv._util.files import describe_missing_file, load_shipped_file, load_templates
from nsys2prv._util.native import core, require_core
from nsys2prv._util.text import escape_to_one_line, format_count
from nsys2prv.events.catalogue import load_catalogue
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
#: Sections of a .pcf with entries in each line, and sections that are not read.
READ_SECTIONS = ("STATES", "STATES_COLOR", "EVENT_TYPE")
OTHER_SECTIONS = ("DEFAULT_OPTIONS", "DEFAULT_SEMANTIC", "GRADIENT_COLOR", "GRADIENT_NAMES")
#: Text that Paraver does not show as it is: control characters, invalid UTF-8, a label that is all
#: in brackets.
_UNREADABLE = re.compile("[\x00-\x1f\x7f\ufffd]|^\\[.*\\]$")
LEVELS = ("WORKLOAD", "APPL", "TASK", "THREAD", "SYSTEM", "NODE", "CPU")
_LEVEL = re.compile(rf"LEVEL ({'|'.join(LEVELS)}) SIZE ({_NUMBER})")
ENDINGS = (".prv.gz", ".prv")
#: The rule for a file that is no trace at all.
NO_TRACE = "not-a-trace"
#: Event types and rows that are named one by one.
MOST_TYPES_NAMED, MOST_EXAMPLES = 12, 4
#: Columns of `Entry` (a row with an event type, a state or a tag) and `Type` of trace.c, and the
#: kinds of entries.
ENTRIES = np.dtype(
    [(name, "<i8") for name in ("key", "time", "value", "line", "depth", "type")]
    + [("small", "u1", 16)]
)
TYPES = np.dtype(
    [(name, "<i8") for name in ("code", "labels", "line", "pairs", "zeros", "extra", "extra_line")]
)
EVENTS, STATES, TAGS = 0, 1, 2


class Severity(Enum):
    """Severity of a broken rule. ERROR: Paraver or one of its tools crashes, hangs, refuses the
    trace, or loses or misrepresents data. WARNING: the trace is misleading.
    """

    ERROR = "error"
    WARNING = "warning"


class Rule(Struct, frozen=True):
    """A rule that a trace is checked against."""

    name: str
    #: Part of the trace that it applies to.
    part: str
    severity: Severity
    #: Description of the fault.
    wrong: str
    #: Effect of the fault in Paraver.
    effect: str


_DECLARED = load_shipped_file(__package__, "check_rules.yaml")
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
    """A rule that one of the trace's files breaks, with the number of places and an example."""

    rule: str
    file: str
    #: First line, from 1; 0 for the file as a whole.
    line: int
    #: Number of violations.
    count: int
    #: Quoted text of the first place.
    example: str

    @property
    def severity(self) -> Severity:
        """Return the severity of the broken rule."""
        return RULES[self.rule].severity

    @property
    def message(self) -> str:
        """Return one sentence with the error, an example, and the effect."""
        rule = RULES[self.rule]
        return f"{rule.wrong}{f' ({self.example})' if self.example else ''}: {rule.effect}"


class CheckFindings(list[CheckFinding]):
    """All broken rules found in a trace."""

    def add(
        self, rule: str, file: str, line: int = 0, example: object = "", count: int = 1
    ) -> None:
        """Count places where a rule is broken. The first place (line of a file, with an example) is
        kept. rule: name of the rule. count: number of places.
        """
        for finding in self:
            if (finding.rule, finding.file) == (rule, file):
                finding.count += count
                return
        text = escape_to_one_line(str(example))
        quoted = text if len(text) <= LONGEST_QUOTE else text[:LONGEST_QUOTE] + "..."
        self.append(CheckFinding(rule, file, line, count, quoted))


class Header(Struct, frozen=True):
    """The first line of a .prv: duration, nodes, tasks and threads of the trace."""

    #: End of the trace, in its unit.
    duration: int
    #: `_ns`, `_us` or any other text after the duration.
    unit: str
    #: Number of CPUs of each node.
    nodes: list[int]
    #: Number of tasks of each application.
    applications: list[int]
    #: (threads, node from 1) of the tasks of all applications.
    tasks: list[tuple[int, int]]
    #: Number of lines of communicators after the header.
    communicators: int

    def count_objects(self) -> dict[str, int]:
        """Return the number of objects for each level of the .row file."""
        threads = sum(threads for threads, _ in self.tasks)
        counts = 1, len(self.applications), len(self.tasks), threads, 1, len(self.nodes)
        return dict(zip(LEVELS, (*counts, sum(self.nodes)), strict=True))

    def list_task_columns(self) -> list[tuple[int, int, int]]:
        """Return for each task the number of its threads, and the first and last CPU of its node
        (from 1; 1 and 0 without such a node).
        """
        last = [0, *accumulate(self.nodes)]
        return [
            (threads, last[node - 1] + 1, last[node]) if 0 < node < len(last) else (threads, 1, 0)
            for threads, node in self.tasks
        ]


def read_header(line: str, file: str, findings: CheckFindings) -> Header | None:
    """Check the first line of a .prv and return its contents; None if the following lines cannot be
    read without it. file: name for findings.
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
        example = "numbers of nodes, applications or tasks that differ from the listed ones"
        findings.add("header-syntax", file, 1, example)
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
    """The names in a .pcf: event types, values and states."""

    #: Event type -> label.
    types: dict[int, str] = {}
    #: State -> label.
    states: dict[int, str] = {}
    #: Value -> label, for each list of VALUES.
    sets: list[dict[int, str]] = []
    #: Type -> its place in `sets`, for types with VALUES.
    set_of_type: dict[int, int] = {}


def check_pcf(path: Path, findings: CheckFindings) -> Labels:
    """Check a .pcf and return its labels."""
    labels = Labels()
    if not path.exists():
        findings.add("pcf-missing", path.name)
        return labels
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
                findings.add(rule, path.name, line, f"{number} {label}")
        known[int(number)] = label
        seen.add(label)

    for number, text in enumerate(_read_lines(path), 1):
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
                findings.add("pcf-line", path.name, number, line)
        elif values is not None and (match := _ENTRY.fullmatch(line)):
            add_label(values, match[1], match[2], number)
        elif section == "STATES" and (match := _ENTRY.fullmatch(line)):
            add_label(labels.states, match[1], match[2], number)
        elif not (section == "EVENT_TYPE" and _PRECISION.fullmatch(line)):
            findings.add("pcf-line", path.name, number, line)
    return labels


def _read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, without their ends."""
    if not path.is_file():
        raise Nsys2prvError(f"{path}: this is not a regular file")
    with (
        name_damaged_file(path),
        path.open(encoding="utf-8", errors="replace", newline="\n") as file,
    ):
        for line in file:
            yield line.removesuffix("\n")


def check_row(path: Path, header: Header, findings: CheckFindings) -> None:
    """Check a .row file: whether it names the header's objects."""
    if not path.exists():
        findings.add("row-missing", path.name)
        return
    objects = header.count_objects()
    level, line_of_level, size, names = "", 0, 0, 0

    def close_level() -> None:
        if level and names != size:
            example = f"{level} SIZE {size}, {names} names"
            findings.add("row-size", path.name, line_of_level, example)
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


class CheckedContents(Struct, frozen=True):
    """Contents of a checked trace: numbers of lines, events, communications and objects, and its
    times.
    """

    #: Number of lines of the .prv.
    lines: int
    states: int
    events: int
    #: Number of communication records.
    comms: int
    #: Number of type:value pairs of the events.
    pairs: int
    #: Event types, ascending.
    types: tuple[int, ...]
    #: First and last time of a record, in the trace's unit; -1 and 0 without records.
    first: int
    last: int
    #: End of the trace as Paraver sees it.
    end: int
    #: Unit of times in the header.
    unit: str
    #: Number of objects by level.
    objects: dict[str, int]


class CheckResult(Struct, frozen=True):
    """Result of checking a trace: findings and contents."""

    #: The .prv or .prv.gz.
    path: Path
    #: Findings, the worst first.
    findings: list[CheckFinding]
    #: Contents of the trace; None if the header is invalid.
    contents: CheckedContents | None

    def data(self) -> dict[str, Any]:
        """Return path, contents and findings as plain data, for JSON."""
        names = "rule", "file", "line", "count", "message"
        findings = [
            {"severity": one.severity.value} | {name: getattr(one, name) for name in names}
            for one in self.findings
        ]
        contents = asdict(self.contents) if self.contents else None
        return {"trace": str(self.path), "contents": contents, "findings": findings}


class TraceReader:
    """Reads and checks the lines of a trace.

    entries, types: arrays of ENTRIES and TYPES. counts: lines, states, events, communications,
    pairs, first and last time, end, lines of communicators.
    """

    def __init__(self, blocks: Iterator[bytes], header: Header, labels: Labels) -> None:
        require_core("reading traces")
        values = [(k, one) for k, known in enumerate(labels.sets) for one in known if one < 1 << 31]
        trace = core.open_trace(
            np.array(header.applications, "<i8"),
            np.array(header.list_task_columns(), "<i8"),
            np.array([*labels.set_of_type.items()], "<i8"),
            np.array(values, "<i8"),
            header.duration,
            header.communicators,
        )
        for block in blocks:
            core.read_lines(trace, block)
        self.faults, entries, types, self.counts = core.close_trace(trace)
        self.entries, self.types = np.frombuffer(entries, ENTRIES), np.frombuffer(types, TYPES)
        key = self.entries["key"].view(np.uint64)
        #: EVENTS, STATES or TAGS of each entry, its row, and its event type, state or tag.
        self.kinds = (key >> np.uint64(62)).astype(np.int64)
        self.rows = (key >> np.uint64(32)).astype(np.int64) & (1 << 30) - 1
        self.numbers = self.entries["key"] & (1 << 32) - 1


def open_text(path: Path, findings: CheckFindings) -> tuple[str, Iterator[bytes]]:
    """Return the first line of a trace, and an iterator over the following text in blocks of whole
    lines.
    """
    blocks = _read_blocks(path, findings)
    opening, _, rest = next(blocks, b"").partition(b"\n")
    return opening.decode("utf-8", "replace").removesuffix("\r"), chain([rest], blocks)


def _read_blocks(path: Path, findings: CheckFindings) -> Iterator[bytes]:
    """Yield blocks of whole lines, about BLOCK_BYTES bytes each."""
    rest, read, size = b"", 0, path.stat().st_size
    with (
        name_damaged_file(path),
        (igzip.open if path.suffix == ".gz" else open)(path, "rb") as file,
    ):
        try:
            while piece := file.read(BLOCK_BYTES):
                read += len(piece)
                check_unpacked(path, read, size)
                text = rest + piece
                end = text.rfind(b"\n") + 1
                rest = text[end:]
                if len(rest) > LONGEST_LINE:
                    raise Nsys2prvError(
                        f"{path}: not a Paraver trace: a line of more than {LONGEST_LINE >> 20} MiB"
                    )
                if end:
                    yield text[:end]
        except (EOFError, igzip.BadGzipFile, isal_zlib.error) as error:
            findings.add("damaged-gzip", path.name, 0, error)
    if rest:
        yield rest


def check_trace(path: str | Path) -> CheckResult:
    """Check a .prv or .prv.gz with the .pcf and .row beside it.

    Raise Nsys2prvError, in one line, for unreadable files.
    """
    path = Path(path)
    if not path.is_file():
        raise Nsys2prvError(describe_missing_file(path))
    findings, contents = CheckFindings(), None
    ending = next(filter(path.name.endswith, ENDINGS), "")
    if not ending:
        findings.add("file-name", path.name)
    stem = path.name.removesuffix(ending or path.suffix)
    labels = check_pcf(path.with_name(f"{stem}.pcf"), findings)
    opening, blocks = open_text(path, findings)
    if header := read_header(opening, path.name, findings):
        check_row(path.with_name(f"{stem}.row"), header, findings)
        trace = TraceReader(blocks, header, labels)
        _report_whole_trace(trace, path.name, header, labels, findings)
        *counts, first, last, end, _ = trace.counts
        types = np.sort(trace.types["code"][trace.types["pairs"] > 0]).tolist()
        unit = header.unit.removeprefix("_") or "us"
        objects = header.count_objects()
        contents = CheckedContents(*counts, tuple(types), first, last, end, unit, objects)
    order = [*Severity]
    findings.sort(key=lambda one: (order.index(one.severity), one.file, one.line, one.rule))
    return CheckResult(path, findings, contents)


def _report_whole_trace(
    trace: TraceReader, file: str, header: Header, labels: Labels, findings: CheckFindings
) -> None:
    """Add findings for rules broken by lines, and for rules about the whole trace."""
    for rule, line, count, text in trace.faults:
        findings.add(rule, file, line, text.decode("utf-8", "replace"), count)
    _, states, events, comms, *_, end, communicators = trace.counts
    if not states + events + comms:
        findings.add("no-records", file)
    if communicators < header.communicators:
        example = f"{communicators} of {header.communicators}"
        findings.add("communicators-missing", file, communicators + 2, example)
    types, entries = trace.types[trace.types["pairs"] > 0], trace.entries
    is_state, is_event = trace.kinds == STATES, trace.kinds == EVENTS
    # Types known to last until the next event have no ranges. Other types have ranges if most
    # starts have an end of their own.
    layouts = load_catalogue().layouts.values()
    fields = (field for layout in layouts if layout.is_state for field in layout.fields)
    holding = [field.code for field in fields if isinstance(field.code, int)]
    ranged = (trace.types["labels"] >= 0) & ~np.isin(trace.types["code"], holding)
    extra = trace.types[ranged & (trace.types["extra"] > 0)]
    paired = ranged & (3 * trace.types["zeros"] > trace.types["pairs"])
    unbalanced = is_event & (entries["value"] == 0) & (entries["depth"] > 0)
    unbalanced[is_event] &= paired[entries["type"][is_event]]
    unknown = types[~np.isin(types["code"], [*labels.types])]
    masks = {
        "state-unlabelled": is_state & ~np.isin(trace.numbers, [*labels.states]),
        "open-at-end": is_event & (entries["value"] != 0) & (entries["time"] < end),
        "range-unbalanced": unbalanced,
    }
    broken = {rule: (entries["line"][mask], trace.numbers[mask]) for rule, mask in masks.items()}
    broken["type-unlabelled"] = unknown["line"], unknown["code"], unknown["pairs"]
    broken["end-without-begin"] = extra["extra_line"], extra["code"], extra["extra"]
    for rule, found in broken.items():
        _report(findings, rule, file, *found)


def _report(
    findings: CheckFindings,
    rule: str,
    file: str,
    lines: np.ndarray,
    numbers: np.ndarray,
    counts: np.ndarray | None = None,
) -> None:
    """Add findings for a rule broken by types or states. lines, counts: first place and number of
    each.
    """
    if len(lines):
        named = [*dict.fromkeys(numbers[np.argsort(lines)].tolist())]
        more = ", ..." if len(named) > MOST_EXAMPLES else ""
        example = ", ".join(map(str, named[:MOST_EXAMPLES])) + more
        count = len(lines) if counts is None else int(counts.sum())
        findings.add(rule, file, int(lines.min()), example, count)


def format_result(result: CheckResult) -> str:
    """Return the text of a check: contents of the trace, findings (errors first), and a line with
    counts.
    """
    severities = [finding.severity for finding in result.findings]
    counts = [
        format_count(severities.count(one), one.value) for one in Severity if one in severities
    ]
    template = load_templates(__package__).get_template("check.txt")
    return template.render(
        result=result, contents=result.contents, counts=counts, most=MOST_TYPES_NAMED
    )
