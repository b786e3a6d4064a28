"""Define the permitted outcomes of a command for any input."""

import gzip
import json
import re
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from nsys2prv.writers.paraver.check import Severity, check_trace

from .bases import SECRET

STATUSES = (0, 1, 3)
#: Temporary names, and what SQLite writes beside a database.
LEFTOVER = re.compile(r"^\.|\.tmp$|\.new$|-(wal|shm|journal)$")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass
class Outcome:
    """The outcome of a command. raised: its exception, "" for a status. seconds: of wall time."""

    arguments: list[str]
    status: int | None
    raised: str
    stdout: str
    stderr: str
    seconds: float
    before: dict[str, tuple[int, int]] = field(default_factory=dict)


def read_state(folder: Path) -> dict[str, tuple[int, int]]:
    """Return every file of a folder with its size and time."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def find_faults(outcome: Outcome, folder: Path, output: Path | None) -> list[str]:
    """Return the faults of an outcome; none, as it should be.

    output: the trace that was asked for.
    """
    result = [f"raised {outcome.raised}"] if outcome.raised else []
    if not outcome.raised and outcome.status not in STATUSES:
        result.append(f"exit status {outcome.status}")
    lines = outcome.stderr.splitlines()
    odd = [
        line for line in lines if not line.startswith(("nsys2prv: error: ", "nsys2prv: warning: "))
    ]
    if odd:
        result.append(f"stderr: {odd[0][:200]!r}")
    errors = [line for line in lines if line.startswith("nsys2prv: error: ")]
    # What `check` finds wrong with a trace is its result, on stdout.
    reported = errors or (
        outcome.arguments[:1] == ["check"] and outcome.status == 1 and outcome.stdout
    )
    if (outcome.status in (1, 3) and not reported) or (outcome.status == 0 and errors):
        result.append(f"{len(errors)} lines of errors with exit status {outcome.status}")
    for name, text in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
        if control := CONTROL.search(text):
            result.append(
                f"{name}: control character {control[0]!r} in {text[max(0, control.start() - 40) : control.end() + 20]!r}"
            )
        if SECRET in text:
            result.append(f"{name}: secret")
    return result + _check_files(outcome, folder, output)


def _check_files(outcome: Outcome, folder: Path, output: Path | None) -> list[str]:
    after = read_state(folder)
    result = [
        f"input changed: {name}" for name, what in outcome.before.items() if after.get(name) != what
    ]
    new = sorted(after.keys() - outcome.before.keys())
    result += [
        f"left behind: {name}"
        for name in new
        if any(LEFTOVER.search(part) for part in Path(name).parts)
    ]
    complete = outcome.status == 0 or "--keep-going" in outcome.arguments
    if output is None or not complete:
        return result + [
            f"written although it failed: {name}" for name in new if not LEFTOVER.search(name)
        ]
    if outcome.status == 0 and not output.exists():
        return [*result, f"not written: {output.name}"]
    for name in new:
        if SECRET.encode() in _read_content(folder / name):
            result.append(f"secret in {name}")
    if output.exists() and ".prv" in output.suffixes:
        result += [
            f"check: {finding.file}:{finding.line} {finding.rule}: {finding.message}"
            for finding in check_trace(output).findings
            if finding.severity is Severity.ERROR
            and not _is_announced(finding.rule, outcome.stderr)
        ]
    if (report := output.with_name("out.report.json")).exists():
        json.loads(report.read_text())
    return result


def _is_announced(rule: str, stderr: str) -> bool:
    """Return whether the command itself named the fault of the trace: times are those of the
    reports.
    """
    return rule == "time-inexact" and "Paraver cannot resolve nanoseconds" in stderr


def _read_content(path: Path) -> bytes:
    """Return the content of a file, unpacked if it is compressed."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return data + b"".join(archive.read(name) for name in archive.namelist())
    return data
