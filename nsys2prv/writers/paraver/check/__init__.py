"""Check a Paraver trace for what would crash, hang or mislead Paraver. No Nsight. Start in check_trace.py.

Here are the rules (rules.yaml), and the findings: one for each broken rule, with its first place.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from nsys2prv._util.data_files import load_shipped_file

#: The longest text that is quoted.
LONGEST_QUOTE = 100


class Severity(Enum):
    """ERROR: Paraver or a tool of it crashes, hangs, refuses, loses something or shows it wrongly.
    WARNING: it misleads.
    """

    ERROR = "error"
    WARNING = "warning"


class Rule(Struct, frozen=True):
    """Rule of the check."""

    name: str
    #: Part of the trace that it applies to.
    part: str
    severity: Severity
    #: What is wrong, in words.
    wrong: str
    #: What breaking it causes.
    effect: str


_DECLARED = load_shipped_file(__name__, "rules.yaml")
#: Part of a trace -> title.
PARTS: dict[str, str] = {part: declared["title"] for part, declared in _DECLARED.items()}
#: Name -> rule.
RULES = {
    name: Rule(name, part, Severity(severity), wrong, effect)
    for part, declared in _DECLARED.items()
    for name, rule in declared["rules"].items()
    for (severity, wrong), (_, effect) in [rule.items()]
}


class CheckFinding(Struct):
    """Broken rule in one of the trace's files."""

    rule: str
    file: str
    #: First line, from 1; 0 for the file as a whole.
    line: int
    #: Number of places where it is broken.
    count: int
    #: Quoted text of the first place.
    example: str

    @property
    def severity(self) -> Severity:
        """Return how bad it is."""
        return RULES[self.rule].severity

    @property
    def message(self) -> str:
        """Return one sentence: what is wrong, with an example, and its effect."""
        rule = RULES[self.rule]
        return f"{rule.wrong}{f' ({self.example})' if self.example else ''}: {rule.effect}"


class CheckFindings(list[CheckFinding]):
    """The findings of a trace."""

    def add(
        self, rule: str, file: str, line: int = 0, example: object = "", count: int = 1
    ) -> None:
        """Count places of a broken rule; the first decides the line and the example."""
        for finding in self:
            if (finding.rule, finding.file) == (rule, file):
                finding.count += count
                return
        self.append(CheckFinding(rule, file, line, count, make_printable(str(example))))

    def sort_by_severity(self) -> None:
        """Put the worst first, then by file and line."""
        order = list(Severity)
        self.sort(key=lambda one: (order.index(one.severity), one.file, one.line, one.rule))


def make_printable(text: str) -> str:
    """Return a text on one line, cut where it is long."""
    line = "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )
    return line if len(line) <= LONGEST_QUOTE else line[:LONGEST_QUOTE] + "..."
