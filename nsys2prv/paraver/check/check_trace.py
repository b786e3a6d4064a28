"""Check a trace: the way through its files, and the result as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import describe_missing_file
from nsys2prv.paraver.check import CheckFinding, CheckFindings, Severity, sort_findings
from nsys2prv.paraver.check.header import Header, read_header
from nsys2prv.paraver.check.labels import check_row, judge_groups, read_pcf
from nsys2prv.paraver.check.lines import split_opening
from nsys2prv.paraver.check.records import Records
from nsys2prv.paraver.views import GROUPS, find_views_folder

#: wxparaver's limit, and what it takes for the size of compressed text.
ASKS_FROM, GZIP_FACTOR = 500 << 20, 6.3
ENDINGS = (".prv.gz", ".prv")
#: The rule for a file that is no trace at all.
NO_TRACE = "not-a-trace"


class CheckedContents(Struct, frozen=True):
    """Contents of a trace."""

    #: Lines of the .prv.
    lines: int
    #: State records.
    states: int
    #: Event records.
    events: int
    #: Communication records.
    comms: int
    #: type:value pairs of the events.
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

    #: Of the trace.
    path: Path
    #: Findings, the worst first.
    findings: tuple[CheckFinding, ...]
    #: Contents of the trace; None if the header is invalid.
    contents: CheckedContents | None

    def select(self, severity: Severity) -> list[CheckFinding]:
        return [finding for finding in self.findings if finding.severity is severity]

    @property
    def errors(self) -> list[CheckFinding]:
        return self.select(Severity.ERROR)

    @property
    def warnings(self) -> list[CheckFinding]:
        return self.select(Severity.WARNING)

    def data(self) -> dict[str, Any]:
        """Return all of it as plain data, for JSON."""
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
    stem = path.name
    for ending in ENDINGS:
        if stem.endswith(ending):
            stem = stem.removesuffix(ending)
            break
    else:
        findings.add("file-name")
        stem = path.stem
    of_labels, of_names = CheckFindings(f"{stem}.pcf"), CheckFindings(f"{stem}.row")
    labels = read_pcf(path.with_name(of_labels.file), of_labels)
    judge_groups(labels, _list_type_groups(), of_labels)
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
    if size > ASKS_FROM:
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
        header.sizes(),
    )


def _list_type_groups() -> list[frozenset[int]]:
    """Return types that one window of our views shows together by their values."""
    return list(
        map(frozenset, json.loads((find_views_folder() / GROUPS).read_text(encoding="utf-8")))
    )


#: Event types that are named one by one.
MOST_TYPES = 12


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
    shown = ", ".join(map(str, sorted(contents.types)[:MOST_TYPES]))
    yield f"{len(contents.types)} event types{f': {shown}' if shown else ''}{', ...' if len(contents.types) > MOST_TYPES else ''}"
    if contents.first is not None:
        yield f"times from {contents.first} to {contents.last} {contents.unit}, the trace ends at {contents.end:.0f}"


def _format_finding(finding: CheckFinding) -> str:
    where = f"{finding.file}:{finding.line}" if finding.line else finding.file
    return f"{finding.severity.value:<7} {finding.rule} {where}{f' ({finding.count} places)' if finding.count > 1 else ''}: {finding.message}"
