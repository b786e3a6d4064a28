"""Go through the files of a trace: check them, with the result as text; or collect the event types,
small values of them, communication tags and states of the trace, and of each of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import describe_missing_file
from nsys2prv.writers.paraver.cfg import load_views
from nsys2prv.writers.paraver.cfg.fits import LARGE_VALUE, Contents
from nsys2prv.writers.paraver.check import (
    BlockReporter,
    CheckFinding,
    CheckFindings,
    Severity,
    check_lines,
    sort_findings,
    split_lines,
    split_opening,
)
from nsys2prv.writers.paraver.check.declarations import (
    MAGIC,
    Header,
    Objects,
    check_pcf,
    check_row,
    judge_groups,
    read_header,
)
from nsys2prv.writers.paraver.check.records import (
    LAST_TYPE,
    STATE_VALUE,
    TAG,
    Records,
    ValueNumbers,
)

#: wxparaver's limit, and what it takes for the size of compressed text.
ASKS_FROM_BYTES, GZIP_FACTOR = 500 << 20, 6.3
ENDINGS = (".prv.gz", ".prv")
#: The rule for a file that is no trace at all.
NO_TRACE = "not-a-trace"
#: Event types that are named one by one.
MOST_TYPES_NAMED = 12
#: Bits that hold a value up to LARGE_VALUE, and the place of a row's number above these and those of
#: an event type or state.
VALUE_BITS, ROW_SHIFT = 7, 39


class CheckedContents(Struct, frozen=True):
    """Contents of a trace."""

    #: Number of lines of the .prv.
    lines: int
    #: Number of state records.
    states: int
    #: Number of event records.
    events: int
    #: Number of communication records.
    comms: int
    #: Number of type:value pairs of the events.
    pairs: int
    #: Event types in the order in which they occur.
    types: tuple[int, ...]
    #: First time, in the trace's unit.
    first: int | None
    #: Last time, in the trace's unit.
    last: int
    #: End of the trace as Paraver sees it.
    end: float
    #: Unit of times in the header.
    unit: str
    #: Number of objects by level.
    objects: dict[str, int]


class CheckResult(Struct, frozen=True):
    """Result of checking a trace."""

    #: The .prv or .prv.gz.
    path: Path
    #: Findings, the worst first.
    findings: tuple[CheckFinding, ...]
    #: Contents of the trace; None if the header is invalid.
    contents: CheckedContents | None

    def select(self, severity: Severity) -> list[CheckFinding]:
        """Return the findings of this severity."""
        return [finding for finding in self.findings if finding.severity is severity]

    @property
    def errors(self) -> list[CheckFinding]:
        """Return what makes Paraver fail or show something wrong."""
        return self.select(Severity.ERROR)

    @property
    def warnings(self) -> list[CheckFinding]:
        """Return what misleads."""
        return self.select(Severity.WARNING)

    def data(self) -> dict[str, Any]:
        """Return path, contents and findings as plain data, for JSON."""
        names = "rule", "file", "line", "count", "message"
        findings = [
            {"severity": one.severity.value} | {name: getattr(one, name) for name in names}
            for one in self.findings
        ]
        return {
            "trace": str(self.path),
            "contents": asdict(self.contents) if self.contents else None,
            "findings": findings,
        }


def check_trace(path: str | Path) -> CheckResult:
    """Check a .prv or .prv.gz with the .pcf and .row beside it, whoever wrote it.

    Raises Nsys2prvError, in one line, for what cannot be read at all.
    """
    path = Path(path)
    if not path.is_file():
        raise Nsys2prvError(describe_missing_file(path))
    findings = CheckFindings(path.name)
    ending = next(filter(path.name.endswith, ENDINGS), "")
    if not ending:
        findings.add("file-name")
    stem = path.name.removesuffix(ending or path.suffix)
    of_labels, of_names = CheckFindings(f"{stem}.pcf"), CheckFindings(f"{stem}.row")
    labels = check_pcf(path.with_name(of_labels.file), of_labels)
    # Those that one window of our views shows together by their values.
    judge_groups(labels, load_views().groups, of_labels)
    opening, text = split_opening(path, findings)
    header = read_header(opening.decode("utf-8", "replace"), findings)
    if header is None:
        return CheckResult(path, sort_findings(findings, of_labels), None)
    check_row(path.with_name(of_names.file), header, of_names)
    records = Records(header, labels, findings)
    for block in text:
        records.add(block)
    _report_whole_trace(records, path, header, findings, of_labels)
    all_findings = sort_findings(findings, of_labels, of_names)
    return CheckResult(path, all_findings, _summarize_contents(records, header))


def _report_whole_trace(
    records: Records, path: Path, header: Header, findings: CheckFindings, of_labels: CheckFindings
) -> None:
    """Report findings that only the whole trace shows."""
    if not records.states + records.events + records.comms:
        findings.add("no-records")
        return
    if records.lines - 1 < header.communicators:
        findings.add("communicators-missing", records.lines)
    records.times.close(findings)
    records.pairs.close(records.times.end, findings, of_labels)
    if header.nodes and not records.objects.with_cpu:
        findings.add("no-cpus")
    size = path.stat().st_size * (GZIP_FACTOR if path.suffix == ".gz" else 1)
    if size > ASKS_FROM_BYTES:
        findings.add("asks-to-cut", 0, f"{size / (1 << 20):.0f} MB")


def _summarize_contents(records: Records, header: Header) -> CheckedContents:
    times = records.times
    return CheckedContents(
        records.lines,
        records.states,
        records.events,
        records.comms,
        records.pairs.pairs,
        tuple(records.pairs.types.values.tolist()),
        times.first,
        times.last,
        times.end,
        header.unit.removeprefix("_") or "us",
        header.count_objects(),
    )


def format_result(result: CheckResult) -> Iterator[str]:
    """Yield the contents of the trace, its findings, the worst first, and a line of counts."""
    yield f"{result.path}:"
    if result.contents:
        yield from (f"  {line}" for line in _format_contents(result.contents))
    yield from (f"  {_format_finding(finding)}" for finding in result.findings)
    counts = [
        f"{len(chosen)} {severity.value}{'' if len(chosen) == 1 else 's'}"
        for severity in Severity
        if (chosen := result.select(severity))
    ]
    yield f"  {', '.join(counts) or 'nothing found'}"


def _format_contents(contents: CheckedContents) -> Iterator[str]:
    yield (
        f"{contents.lines:,} lines: {contents.events:,} events with {contents.pairs:,} values, {contents.states:,} states, "
        f"{contents.comms:,} communications"
    )
    objects = contents.objects
    nodes, cpus, appls, tasks, threads = (
        f"{objects[level]} {noun}{'' if objects[level] == 1 else 's'}"
        for level, noun in (
            ("NODE", "node"),
            ("CPU", "CPU"),
            ("APPL", "application"),
            ("TASK", "task"),
            ("THREAD", "thread"),
        )
    )
    yield f"{nodes} with {cpus}, {appls}, {tasks}, {threads}"
    shown = ", ".join(map(str, sorted(contents.types)[:MOST_TYPES_NAMED]))
    yield f"{len(contents.types)} event types{f': {shown}' if shown else ''}{', ...' if len(contents.types) > MOST_TYPES_NAMED else ''}"
    if contents.first is not None:
        yield f"times from {contents.first} to {contents.last} {contents.unit}, the trace ends at {contents.end:.0f}"


def _format_finding(finding: CheckFinding) -> str:
    where = f"{finding.file}:{finding.line}" if finding.line else finding.file
    return f"{finding.severity.value:<7} {finding.rule} {where}{f' ({finding.count} places)' if finding.count > 1 else ''}: {finding.message}"


class TraceContents:
    """Contents of a .prv or .prv.gz, of all of it and of each of its rows. Raises Nsys2prvError, in
    one line, for anything else.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_file():
            raise Nsys2prvError(f"{path}: is not a regular file; give the name of a trace")
        findings = CheckFindings(path.name)
        self._pairs, self._states, self._tags = ValueNumbers(), ValueNumbers(), ValueNumbers()
        opening, blocks = split_opening(path, findings)
        _refuse_damaged(path, findings)
        if not opening.startswith(MAGIC.encode()):
            raise Nsys2prvError(f"{path}: not a Paraver trace: it does not begin with {MAGIC}")
        header = read_header(opening.decode("latin-1"), CheckFindings(path.name))
        objects = Objects(header) if header else None
        tasks = header.tasks if header else []
        #: Task of each thread; empty where the header is damaged.
        self._tasks = np.repeat(np.arange(len(tasks)), [threads for threads, _ in tasks])
        for block in blocks:
            self._add(BlockReporter(split_lines(block), 2, CheckFindings(path.name)), objects)
        _refuse_damaged(path, findings)

    def _add(self, place: BlockReporter, objects: Objects | None) -> None:
        """Add the lines of a block; the first row is 1, and 0 stands for an unknown one."""
        sound, first, numbers = check_lines(place, 0), place.lines.first, place.lines.numbers
        rows_of_states, rows_of_events = (
            objects.find_rows(place, lines, 1) + 1 if objects else np.zeros(len(lines), np.int64)
            for lines in (sound.states, sound.events)
        )
        self._tags.number(numbers[first[sound.comms] + TAG])
        states = numbers[first[sound.states] + STATE_VALUE]
        self._states.number(
            (rows_of_states << ROW_SHIFT | states << VALUE_BITS)[_mask_representable(states)]
        )
        record, at = place.lines.find_pairs(sound.events)
        types, values = numbers[at], numbers[at + 1]
        values = np.where((values < 0) | (values > LARGE_VALUE), LARGE_VALUE, values)
        keys = rows_of_events[record] << ROW_SHIFT | types << VALUE_BITS | values
        self._pairs.number(keys[_mask_representable(types)])

    @property
    def whole(self) -> Contents:
        """All contents."""
        return self._group_contents(np.zeros(len(self._tasks) + 1, np.int64), 1)[0]

    @property
    def rows(self) -> dict[str, list[Contents]]:
        """Level (`thread`, `task`) -> contents of each of its rows, in Paraver's order; empty for a
        trace whose header is damaged. Lines count for every row.
        """
        threads = len(self._tasks)
        if not threads:
            return {}
        return {
            "thread": self._group_contents(np.arange(-1, threads), threads),
            "task": self._group_contents(np.append(-1, self._tasks), int(self._tasks[-1]) + 1),
        }

    def _group_contents(self, groups: np.ndarray, count: int) -> list[Contents]:
        """Return the contents of each group of rows. groups: that of unknown rows, then that of
        each row; -1 for none.
        """
        pairs = [set[tuple[int, int]]() for _ in range(count)]
        states = [set[tuple[int, int]]() for _ in range(count)]
        for numbers, distinct in ((pairs, self._pairs), (states, self._states)):
            keys = distinct.values
            keys = np.unique(groups[keys >> ROW_SHIFT] << ROW_SHIFT | keys & (1 << ROW_SHIFT) - 1)
            keys = keys[keys >= 0]
            for group, code, value in zip(
                (keys >> ROW_SHIFT).tolist(),
                (keys >> VALUE_BITS & LAST_TYPE).tolist(),
                (keys & (1 << VALUE_BITS) - 1).tolist(),
                strict=True,
            ):
                numbers[group].add((code, value))
        tags = frozenset(self._tags.values.tolist())
        return [
            Contents(
                frozenset(code for code, _ in of_types),
                frozenset(code for code, value in of_types if value),
                tags,
                frozenset(state for state, _ in of_states),
                frozenset(of_types),
            )
            for of_types, of_states in zip(pairs, states, strict=True)
        ]


def _refuse_damaged(path: Path, findings: CheckFindings) -> None:
    """Raise Nsys2prvError for a compressed file that was found to be damaged."""
    if damaged := findings.by_rule.get("damaged-gzip"):
        raise Nsys2prvError(f"{path}: the compressed file is damaged: {damaged.examples[0]}")


def _mask_representable(numbers: np.ndarray) -> np.ndarray:
    """Return which numbers of event types or states Paraver can keep."""
    return (numbers >= 0) & (numbers <= LAST_TYPE)
