"""What holds for every test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path

from nsys2prv import Summary, conversion
from nsys2prv.check import Severity, check

#: Warnings that are true of traces that tests ask for.
TRUE = {
    "received-before-sent": "clocks of hosts that a test leaves as they are",
}


def _checked(convert: Callable[..., Summary]) -> Callable[..., Summary]:
    """A conversion whose trace is checked once it is written."""

    @wraps(convert)
    def wrapper(job: object, outputs: Sequence[Path], *options: object) -> Summary:
        summary = convert(job, outputs, *options)
        findings = [finding for finding in check(outputs[0]).findings if finding.severity is not Severity.REMARK]
        wrong = [f"{found.file}:{found.line} ({found.count}) {found.rule}: {found.message}" for found in findings if found.rule not in TRUE]
        assert not wrong, "\n".join(wrong)
        return summary

    return wrapper


# Every trace that a test has this process write is checked, whatever for and through which door.
conversion._convert = _checked(conversion._convert)
