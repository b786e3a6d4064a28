"""Checking a trace: the way through its files, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from nsys2prv.check.blocks import blocks
from nsys2prv.check.findings import Finding, Findings
from nsys2prv.check.header import Header, read_header
from nsys2prv.check.pcf import judge_groups, read_pcf
from nsys2prv.check.records import Records
from nsys2prv.check.row import check_row
from nsys2prv.check.rules import Severity
from nsys2prv.check.size import check_size, memory
from nsys2prv.errors import Nsys2prvError

ENDINGS = (".prv.gz", ".prv")
#: Views that show types with more names than this together show more than anyone tells apart by label.
MOST_TOGETHER = 64


@dataclass(frozen=True)
class Contents:
    """What a trace holds: lines of the .prv, records by kind, pairs of events, types in the order in which they come, times (in the
    trace's unit; end: as Paraver sees it), objects by level, and the bytes that its records take in Paraver."""

    lines: int
    states: int
    events: int
    comms: int
    pairs: int
    types: tuple[int, ...]
    first: int | None
    last: int
    end: float
    unit: str
    objects: dict[str, int]
    memory: int


@dataclass(frozen=True)
class Result:
    """findings: the worst first. contents: None where the header could not be understood."""

    path: Path
    findings: tuple[Finding, ...]
    contents: Contents | None

    def of(self, severity: Severity) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity is severity]

    @property
    def errors(self) -> list[Finding]:
        return self.of(Severity.ERROR)

    @property
    def warnings(self) -> list[Finding]:
        return self.of(Severity.WARNING)

    def data(self) -> dict[str, Any]:
        """All of it as plain data, for JSON."""
        found = [{"severity": finding.severity.value, "rule": finding.rule, "file": finding.file, "line": finding.line,
                  "count": finding.count, "message": finding.message} for finding in self.findings]
        return {"trace": str(self.path), "contents": asdict(self.contents) if self.contents else None, "findings": found}


def check(path: str | Path) -> Result:
    """Check a .prv or .prv.gz with the .pcf and .row beside it, whoever wrote it.

    Raises Nsys2prvError, in one line, for what cannot be read at all.
    """
    path = Path(path)
    if not path.is_file():
        raise Nsys2prvError(f"{path}: no such file")
    findings = Findings()
    stem = path.name
    for ending in ENDINGS:
        if stem.endswith(ending):
            stem = stem.removesuffix(ending)
            break
    else:
        findings.add("file-name", path.name)
        stem = path.stem
    labels = read_pcf(path.with_name(f"{stem}.pcf"), findings)
    judge_groups(labels, _groups(), f"{stem}.pcf", findings)
    text = blocks(path, findings)
    opening = next(text, b"\n")
    end = opening.index(b"\n") + 1
    header = read_header(opening[:end - 1].decode("utf-8", "replace"), path.name, findings)
    if header is None:
        return Result(path, tuple(findings.sorted()), None)
    check_row(path.with_name(f"{stem}.row"), header, findings)
    records = Records(header, labels, path.name, findings)
    for block in _after(opening[end:], text):
        records.add(block)
    _close(records, path, header, findings)
    return Result(path, tuple(findings.sorted()), _contents(records, header))


def _after(rest: bytes, text: Iterator[bytes]) -> Iterator[bytes]:
    if rest:
        yield rest
    yield from text


def _close(records: Records, path: Path, header: Header, findings: Findings) -> None:
    """What only the whole trace tells."""
    if not records.states + records.events + records.comms:
        findings.add("no-records", path.name)
        return
    if records.lines - 1 < header.communicators:
        findings.add("communicators-missing", path.name, records.lines)
    records.times.close(path.name, findings)
    records.pairs.close(path.name, records.times.end, findings)
    if header.nodes and not records.objects.with_cpu:
        findings.add("no-cpus", path.name)
    check_size(path, records, findings)


def _contents(records: Records, header: Header) -> Contents:
    times = records.times
    return Contents(records.lines, records.states, records.events, records.comms, records.pairs.pairs,
                    tuple(records.pairs.types.values.tolist()), times.first, times.last, times.end, header.unit.removeprefix("_") or "us",
                    header.sizes(), memory(records))


@cache
def _groups() -> tuple[frozenset[int], ...]:
    """Types that one window of our views shows together by their values."""
    from nsys2prv.paraver.cfg.catalogue import FILE, load
    from nsys2prv.views import folder

    return tuple({group for view in load(folder() / FILE) for window in view.cfg.windows for group in _types_of(window)})


def _types_of(window: object) -> Iterator[frozenset[int]]:
    types = getattr(window, "types", None)
    if types is not None and types.condition == "=" and not window.guards and 1 < len(types.values) <= MOST_TOGETHER:
        yield frozenset(int(code) for code in types.values)
