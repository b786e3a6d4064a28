"""What was found: one finding for each broken rule, with its first place and how often it is broken."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from nsys2prv.check.rules import RULES, Severity

#: Distinct details that are kept for a message, and the longest text of a line that is quoted.
EXAMPLES, LONGEST = 4, 100


@dataclass
class Finding:
    """A broken rule in one of the trace's files. line: the first (from 1; 0: the file as a whole); count: how many places."""

    rule: str
    file: str
    line: int
    count: int
    examples: list[str] = field(default_factory=list)
    more: bool = False

    @property
    def severity(self) -> Severity:
        return RULES[self.rule].severity

    @property
    def message(self) -> str:
        """One sentence: what is wrong, with examples, and what it does."""
        rule = RULES[self.rule]
        shown = ", ".join([*self.examples, *(["..."] if self.more else [])])
        return f"{rule.wrong}{f' ({shown})' if shown else ''}: {rule.effect}"


class Findings:
    """Collects findings by file and rule."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Finding] = {}

    def add(self, rule: str, file: str, line: int = 0, *, count: int = 1, examples: Iterable[object] = ()) -> None:
        """Count places of a broken rule, of which `line` is the first; examples are kept up to a few, each once."""
        if rule not in RULES:
            raise KeyError(rule)
        finding = self._found.setdefault((file, rule), Finding(rule, file, line, 0))
        finding.count += count
        finding.line = min(finding.line, line)
        for example in examples:
            text = printable(str(example))
            if text in finding.examples:
                continue
            if len(finding.examples) == EXAMPLES:
                finding.more = True
                break
            finding.examples.append(text)

    def sorted(self) -> list[Finding]:
        """The worst first, then by file and line."""
        order = list(Severity)
        return sorted(self._found.values(), key=lambda found: (order.index(found.severity), found.file, found.line, found.rule))


def printable(text: str) -> str:
    """A text on one line, cut where it is long."""
    line = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
    return line if len(line) <= LONGEST else line[:LONGEST] + "..."
