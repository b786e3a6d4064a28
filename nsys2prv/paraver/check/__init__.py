"""Checking a Paraver trace, whoever wrote it: what would crash, hang or mislead Paraver. No Nsight.

Here are the rules that are checked (rules.yaml), and what was found: one finding for each broken
rule, with its first place.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from msgspec import Struct, field

from nsys2prv._util.yaml_files import load_shipped, read_data_text


class Severity(Enum):
    """ERROR: Paraver or a tool of it crashes, hangs, refuses, loses something or shows it wrongly.
    WARNING: it misleads. REMARK: good to know.
    """

    ERROR = "error"
    WARNING = "warning"
    REMARK = "remark"


class Rule(Struct, frozen=True):
    """Rule of the check."""

    #: Identifier.
    name: str
    #: Part of the trace that it applies to.
    part: str
    #: How bad breaking it is.
    severity: Severity
    #: What is wrong, in words.
    wrong: str
    #: What that causes.
    effect: str


_DECLARED = load_shipped(read_data_text("nsys2prv.paraver.check", "rules.yaml"))

PARTS: dict[str, str] = {part: declared["title"] for part, declared in _DECLARED.items()}
"""Part of a trace -> title."""


def _load_rules() -> Iterator[Rule]:
    for part, declared in _DECLARED.items():
        for name, rule in declared["rules"].items():
            (severity, wrong), (_, effect) = rule.items()
            yield Rule(name, part, Severity(severity), wrong, effect)


RULES = {rule.name: rule for rule in _load_rules()}
"""Id -> rule."""


#: Distinct details that are kept for a message, and the longest text of a line that is quoted.
EXAMPLES, LONGEST = 4, 100


class CheckFinding(Struct):
    """Broken rule in one of the trace's files."""

    #: Name of the rule.
    rule: str
    #: Name of the file.
    file: str
    #: First line, from 1; 0 for the file as a whole.
    line: int
    #: Number of places.
    count: int
    #: Of what is wrong.
    examples: list[str] = field(default_factory=list)
    #: Whether there are further examples.
    more: bool = False

    @property
    def severity(self) -> Severity:
        return RULES[self.rule].severity

    @property
    def message(self) -> str:
        """Return one sentence: what is wrong, with examples, and its effect."""
        rule = RULES[self.rule]
        shown = ", ".join([*self.examples, *(["..."] if self.more else [])])
        return f"{rule.wrong}{f' ({shown})' if shown else ''}: {rule.effect}"


class CheckFindings:
    """Collects findings of one file by rule."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.by_rule: dict[str, CheckFinding] = {}

    def add(self, rule: str, line: int = 0, *examples: object, count: int = 1) -> None:
        """Count places of a broken rule, of which `line` is the first; examples are kept up to a
        few, each once.
        """
        if rule not in RULES:
            raise KeyError(rule)
        finding = self.by_rule.setdefault(rule, CheckFinding(rule, self.file, line, 0))
        finding.count += count
        finding.line = min(finding.line, line)
        for example in examples:
            text = make_printable(str(example))
            if text in finding.examples:
                continue
            if len(finding.examples) == EXAMPLES:
                finding.more = True
                break
            finding.examples.append(text)


def sort_findings(*files: CheckFindings) -> tuple[CheckFinding, ...]:
    """Return the findings of all files: the worst first, then by file and line."""
    order = list(Severity)
    return tuple(
        sorted(
            (finding for file in files for finding in file.by_rule.values()),
            key=lambda one: (order.index(one.severity), one.file, one.line, one.rule),
        )
    )


def make_printable(text: str) -> str:
    """Return a text on one line, cut where it is long."""
    line = "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )
    return line if len(line) <= LONGEST else line[:LONGEST] + "..."
