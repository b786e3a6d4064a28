"""What Nsight Systems itself said went wrong, for the closing summary. Equal messages of all reports are told once, with their number."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nsys2prv.notes import Detail
from nsys2prv.report.diagnostics import ERROR, INFO, Message
from nsys2prv.report.info import ReportInfo

#: Lines of warnings and of notes at most.
MOST = 12


def lost(infos: Sequence[ReportInfo]) -> list[str]:
    """Warnings: losses first, then what was recorded otherwise than asked for, then errors."""
    return [*_grouped(infos, lambda message: message.loss, "says that events may be missing"),
            *_grouped(infos, lambda message: not message.loss and message.fallback, "says that it recorded in another way than asked for"),
            *_grouped(infos, lambda message: not (message.loss or message.fallback) and message.severity == ERROR, "reports an error")]


def said(infos: Sequence[ReportInfo]) -> list[str]:
    """Notes: its other warnings, but those about libraries that a program does not use."""
    return list(map(Detail, _grouped(
        infos, lambda message: not (message.loss or message.fallback or message.unused) and INFO < message.severity < ERROR, "warns")))


def _grouped(infos: Sequence[ReportInfo], wanted: Callable[[Message], bool], what: str) -> list[str]:
    found: dict[str, tuple[int, list[str]]] = {}
    for info in infos:
        for message in filter(wanted, info.messages):
            count, names = found.get(message.text, (0, []))
            found[message.text] = count + message.count, [*names, *([] if info.name in names else [info.name])]
    lines = [f'Nsight Systems {what}: "{text}" ({_times(count)}in {_some(names)})' for text, (count, names) in found.items()]
    return lines if len(lines) <= MOST else [*lines[:MOST], f"Nsight Systems {what}: {len(lines) - MOST} further messages"]


def _times(count: int) -> str:
    return f"{count:,} times, " if count > 1 else ""


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
