"""The .row file: names of objects by level."""

from __future__ import annotations

import re
from itertools import accumulate, pairwise
from pathlib import Path

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.paraver.check.findings import Findings
from nsys2prv.paraver.check.header import Header

LEVELS = ("WORKLOAD", "APPL", "TASK", "THREAD", "SYSTEM", "NODE", "CPU")
#: Levels whose names a trace should have: those that views show as rows.
WANTED = ("TASK", "THREAD", "NODE")
LONG_NAME = 100
_LEVEL = re.compile(rf"LEVEL ({'|'.join(LEVELS)}) SIZE (\d+)")
_LIKE_LEVEL = re.compile(rf"\s*LEVEL\s+({'|'.join(LEVELS)})\b.*")
_CONTROL = re.compile("[\x00-\x1f\x7f]")


def check_row(path: Path, header: Header, findings: Findings) -> None:
    """Compare a .row file with the objects of the header."""
    if not path.exists():
        findings.add("row-missing", path.name)
        return
    if not path.is_file():
        raise Nsys2prvError(f"{path}: is not a regular file")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Nsys2prvError(f"{path}: {error.strerror or error}") from None
    lines = content.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    texts = []
    for number, line in enumerate(lines, 1):
        if line.endswith(b"\r"):
            findings.add("row-line-ends", path.name, number)
        texts.append(line.removesuffix(b"\r").decode("utf-8", "replace"))
        if "\ufffd" in texts[-1] and "\ufffd".encode() not in line:
            findings.add("row-encoding", path.name, number, examples=texts[-1:])
    _levels(texts, path.name, header, findings)


def _levels(lines: list[str], name: str, header: Header, findings: Findings) -> None:
    """Read levels as Paraver does: as many lines as SIZE says are names, whatever they are."""
    sizes, seen, at = header.sizes(), set(), 0
    while at < len(lines):
        line, number = lines[at], at + 1
        at += 1
        if not line.strip():
            continue
        match = _LEVEL.fullmatch(line)
        if match is None:
            findings.add("row-header", name, number, examples=[line])
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
            findings.add("row-size", name, number, examples=[f"{line}, but {end - at} names"])
        if any(_LIKE_LEVEL.fullmatch(text) for text in names):
            names = names[: max(end - at, 0)]
            at = end
        else:
            at += size
        if level in seen:
            findings.add("level-twice", name, number, examples=[level])
        elif size != sizes[level] and (header.nodes or level not in ("SYSTEM", "NODE", "CPU")):
            findings.add(
                "row-count", name, number, examples=[f"{line}, but {sizes[level]} in the header"]
            )
        seen.add(level)
        _names(names, number + 1, level, name, header, findings)
    for level in WANTED:
        if level not in seen and (header.nodes or level != "NODE"):
            findings.add("level-missing", name, examples=[level])


def _names(
    names: list[str], first: int, level: str, file: str, header: Header, findings: Findings
) -> None:
    for number, text in enumerate(names, first):
        if not text.strip():
            findings.add("name-empty", file, number, examples=[level])
        if _CONTROL.search(text):
            findings.add("name-control", file, number, examples=[text])
        if len(text) > LONG_NAME:
            findings.add("name-long", file, number, examples=[text])
    # Threads of different tasks may well have the same name.
    bounds = (
        [0, *accumulate(threads for threads, _ in header.tasks)]
        if level == "THREAD"
        else [0, len(names)]
    )
    for begin, end in pairwise(bounds):
        seen: set[str] = set()
        for number, text in enumerate(names[begin:end], first + begin):
            if text.strip() and text in seen:
                findings.add("name-twice", file, number, examples=[f"{level} {text}"])
            seen.add(text)
