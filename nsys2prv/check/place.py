"""Where in the .prv something is found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsys2prv.check.fields import Lines
from nsys2prv.check.findings import Findings


@dataclass(frozen=True)
class Place:
    """A block of the trace's lines, the first of which is line `base` of the file, and where findings go."""

    lines: Lines
    base: int
    name: str
    findings: Findings

    def report(self, rule: str, lines: np.ndarray, example: object = None) -> None:
        """A rule broken in these lines of the block (indices, ascending); the first is quoted unless an example is given."""
        if len(lines):
            shown = self.lines.quoted(int(lines[0])) if example is None else example
            self.findings.add(rule, self.name, self.base + int(lines[0]), count=len(lines), examples=[shown] if shown else [])
