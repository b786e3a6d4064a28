"""What is checked: every rule with its severity, what is wrong where it is broken, and what that does in Paraver (rules.yaml)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from nsys2prv.data import data_text, parsed


class Severity(Enum):
    """ERROR: Paraver or a tool of it crashes, hangs, refuses, loses something or shows it wrongly. WARNING: it misleads. REMARK: good to
    know."""

    ERROR = "error"
    WARNING = "warning"
    REMARK = "remark"


@dataclass(frozen=True)
class Rule:
    """name: its id. part: where it applies. wrong: what is wrong; effect: what that does."""

    name: str
    part: str
    severity: Severity
    wrong: str
    effect: str


_DECLARED = parsed(data_text("nsys2prv.check", "rules.yaml"))

PARTS: dict[str, str] = {part: declared["title"] for part, declared in _DECLARED.items()}
"""Part of a trace -> title."""


def _rules() -> Iterator[Rule]:
    for part, declared in _DECLARED.items():
        for name, rule in declared["rules"].items():
            (severity, wrong), (_, effect) = rule.items()
            yield Rule(name, part, Severity(severity), wrong, effect)


RULES = {rule.name: rule for rule in _rules()}
"""Id -> rule."""
