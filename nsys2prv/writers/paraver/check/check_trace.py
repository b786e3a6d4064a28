"""Go through the files of a trace: check them, with the result as text; or collect the event types,
small values of them, communication tags and states of the trace, and of each of its rows.

The lines of a .prv are read by the compiled core (`_util/native/trace.c`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from isal import igzip, isal_zlib
from msgspec import Struct
from msgspec.structs import asdict

from nsys2prv._util.errors import Nsys2prvError, name_damaged_file
from nsys2prv._util.files import describe_missing_file
from nsys2prv._util.native import core
from nsys2prv._util.text import format_count
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.writers.paraver.cfg.fits import Contents
from nsys2prv.writers.paraver.check import (
    MAGIC,
    CheckFinding,
    CheckFindings,
    Header,
    Labels,
    Severity,
    check_pcf,
    check_row,
    read_header,
)

ENDINGS = (".prv.gz", ".prv")
#: The rule for a file that is no trace at all.
NO_TRACE = "not-a-trace"
#: Event types and rows that are named one by one.
MOST_TYPES_NAMED, MOST_EXAMPLES = 12, 4
#: Bytes of text in a block, and the longest line that is taken for one.
BLOCK_BYTES, LONGEST_LINE = 1 << 20, 1 << 26
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


class CheckedContents(Struct, frozen=True):
    """Contents of a trace."""

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
    """Result of checking a trace."""

    #: The .prv or .prv.gz.
    path: Path
    #: Findings, the worst first.
    findings: list[CheckFinding]
    #: Contents of the trace; None if the header is invalid.
    contents: CheckedContents | None

    def select(self, severity: Severity) -> list[CheckFinding]:
        """Return the findings of this severity."""
        return [finding for finding in self.findings if finding.severity is severity]

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
    """Reads the lines of a trace. entries, types: arrays of ENTRIES and TYPES; counts: lines, states,
    events, communications, pairs, first and last time, end, lines of communicators.
    """

    def __init__(self, blocks: Iterator[bytes], header: Header, labels: Labels) -> None:
        trace = core.open_trace(
            np.array(header.applications, "<i8"),
            np.array(header.list_task_columns(), "<i8"),
            np.array([*labels.set_of_type.items()], "<i8"),
            np.array(
                [
                    (k, value)
                    for k, known in enumerate(labels.sets)
                    for value in known
                    if value < 1 << 31
                ],
                "<i8",
            ),
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
    """Return the first line of a trace, and the blocks of lines behind it."""
    blocks = _read_blocks(path, findings)
    opening, _, rest = next(blocks, b"").partition(b"\n")
    return opening.decode("utf-8", "replace").removesuffix("\r"), chain([rest], blocks)


def _read_blocks(path: Path, findings: CheckFindings) -> Iterator[bytes]:
    """Yield whole lines, of about BLOCK_BYTES bytes each time."""
    rest = b""
    with (
        name_damaged_file(path),
        (igzip.open if path.suffix == ".gz" else open)(path, "rb") as file,
    ):
        try:
            while piece := file.read(BLOCK_BYTES):
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

    Raises Nsys2prvError, in one line, for what cannot be read at all.
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
        contents = CheckedContents(
            *counts, tuple(types), first, last, end, unit, header.count_objects()
        )
    findings.sort_by_severity()
    return CheckResult(path, findings, contents)


def _report_whole_trace(
    trace: TraceReader, file: str, header: Header, labels: Labels, findings: CheckFindings
) -> None:
    """Report the rules that lines break, and those that concern the whole trace."""
    for rule, line, count, text in trace.faults:
        findings.add(rule, file, line, text.decode("utf-8", "replace"), count)
    _, states, events, comms, *_, end, communicators = trace.counts
    if not states + events + comms:
        findings.add("no-records", file)
    if communicators < header.communicators:
        example = f"{communicators} of {header.communicators}"
        findings.add("communicators-missing", file, communicators + 2, example)
    types, entries = trace.types[trace.types["pairs"] > 0], trace.entries
    unknown = types[~np.isin(types["code"], [*labels.types])]
    _report(findings, "type-unlabelled", file, unknown["line"], unknown["code"], unknown["pairs"])
    is_state = trace.kinds == STATES
    unknown = is_state & ~np.isin(trace.numbers, [*labels.states])
    _report(findings, "state-unlabelled", file, entries["line"][unknown], trace.numbers[unknown])
    is_event = trace.kinds == EVENTS
    is_open = is_event & (entries["value"] != 0) & (entries["time"] < end)
    _report(findings, "open-at-end", file, entries["line"][is_open], trace.numbers[is_open])
    # Types known to hold until the next event have no ranges; of others, those do where most begins
    # have an end of their own.
    holding = [
        field.code
        for layout in load_catalogue().layouts.values()
        if layout.is_state
        for field in layout.fields
        if isinstance(field.code, int)
    ]
    ranged = (trace.types["labels"] >= 0) & ~np.isin(trace.types["code"], holding)
    extra = trace.types[ranged & (trace.types["extra"] > 0)]
    _report(findings, "end-without-begin", file, extra["extra_line"], extra["code"], extra["extra"])
    paired = ranged & (3 * trace.types["zeros"] > trace.types["pairs"])
    unbalanced = is_event & (entries["value"] == 0) & (entries["depth"] > 0)
    unbalanced[is_event] &= paired[entries["type"][is_event]]
    _report(
        findings, "range-unbalanced", file, entries["line"][unbalanced], trace.numbers[unbalanced]
    )


def _report(
    findings: CheckFindings,
    rule: str,
    file: str,
    lines: np.ndarray,
    numbers: np.ndarray,
    counts: np.ndarray | None = None,
) -> None:
    """Report a rule that types or states break. lines, counts: where first, and how often."""
    if len(lines):
        named = [*dict.fromkeys(numbers[np.argsort(lines)].tolist())]
        example = ", ".join(map(str, named[:MOST_EXAMPLES])) + (
            ", ..." if len(named) > MOST_EXAMPLES else ""
        )
        count = len(lines) if counts is None else int(counts.sum())
        findings.add(rule, file, int(lines.min()), example, count)


def format_result(result: CheckResult) -> Iterator[str]:
    """Yield the contents of the trace, its findings, the worst first, and a line of counts."""
    yield f"{result.path}:"
    if result.contents:
        yield from (f"  {line}" for line in _format_contents(result.contents))
    for finding in result.findings:
        where = f"{finding.file}:{finding.line}" if finding.line else finding.file
        places = f" ({finding.count} places)" if finding.count > 1 else ""
        yield f"  {finding.severity.value:<7} {finding.rule} {where}{places}: {finding.message}"
    counts = [
        format_count(len(chosen), severity.value)
        for severity in Severity
        if (chosen := result.select(severity))
    ]
    yield f"  {', '.join(counts) or 'nothing found'}"


def _format_contents(contents: CheckedContents) -> Iterator[str]:
    yield (
        f"{contents.lines:,} lines: {contents.events:,} events with {contents.pairs:,} values, {contents.states:,} states, "
        f"{contents.comms:,} communications"
    )
    nouns = {
        "NODE": "node",
        "CPU": "CPU",
        "APPL": "application",
        "TASK": "task",
        "THREAD": "thread",
    }
    nodes, *others = (
        f"{contents.objects[level]} {noun}{'' if contents.objects[level] == 1 else 's'}"
        for level, noun in nouns.items()
    )
    yield f"{nodes} with {', '.join(others)}"
    shown = ", ".join(map(str, contents.types[:MOST_TYPES_NAMED]))
    more = ", ..." if len(contents.types) > MOST_TYPES_NAMED else ""
    yield f"{len(contents.types)} event types{f': {shown}' if shown else ''}{more}"
    if contents.first >= 0:
        yield f"times from {contents.first} to {contents.last} {contents.unit}, the trace ends at {contents.end}"


class TraceContents:
    """Contents of a .prv or .prv.gz, of all of it and of each of its rows. Raises Nsys2prvError, in
    one line, for anything else.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_file():
            raise Nsys2prvError(f"{path}: is not a regular file; give the name of a trace")
        findings = CheckFindings()
        opening, blocks = open_text(path, findings)
        _refuse_damaged(path, findings)
        if not opening.startswith(MAGIC):
            raise Nsys2prvError(f"{path}: not a Paraver trace: it does not begin with {MAGIC}")
        header = read_header(opening, path.name, findings)
        if header is None:
            raise Nsys2prvError(f"{path}: its header is damaged; `nsys2prv check` says how")
        self._trace = TraceReader(blocks, header, Labels())
        _refuse_damaged(path, findings)
        #: Task of each thread.
        self._tasks = np.repeat(np.arange(len(header.tasks)), [count for count, _ in header.tasks])

    @property
    def whole(self) -> Contents:
        """All contents."""
        return self._group_contents(np.zeros_like(self._tasks), 1)[0]

    @property
    def rows(self) -> dict[str, list[Contents]]:
        """Level (`thread`, `task`) -> contents of each of its rows, in Paraver's order. Lines count
        for every row.
        """
        threads = len(self._tasks)
        return {
            "thread": self._group_contents(np.arange(threads), threads),
            "task": self._group_contents(self._tasks, int(self._tasks[-1]) + 1),
        }

    def _group_contents(self, groups: np.ndarray, count: int) -> list[Contents]:
        """Return the contents of each group of rows. groups: that of each row."""
        trace, group = self._trace, groups[self._trace.rows]
        pairs, states = ([set() for _ in range(count)] for _ in range(2))
        events, is_state = np.flatnonzero(trace.kinds == EVENTS), trace.kinds == STATES
        bits = np.unpackbits(trace.entries["small"][events], axis=1, bitorder="little")
        entry, value = np.nonzero(bits)
        columns = group[events[entry]], trace.numbers[events[entry]], value
        for of_group, code, number in zip(*(one.tolist() for one in columns), strict=True):
            pairs[of_group].add((code, number))
        columns = group[is_state], trace.numbers[is_state]
        for of_group, state in zip(*(one.tolist() for one in columns), strict=True):
            states[of_group].add(state)
        tags = frozenset(trace.numbers[trace.kinds == TAGS].tolist())
        return [
            Contents(
                frozenset(code for code, _ in of_types),
                frozenset(code for code, value in of_types if value),
                tags,
                frozenset(of_states),
                frozenset(of_types),
            )
            for of_types, of_states in zip(pairs, states, strict=True)
        ]


def _refuse_damaged(path: Path, findings: CheckFindings) -> None:
    """Raise Nsys2prvError for a compressed file that was found to be damaged."""
    for finding in findings:
        if finding.rule == "damaged-gzip":
            raise Nsys2prvError(f"{path}: the compressed file is damaged: {finding.example}")
