"""Findings as lines for people."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from nsys2prv.analysis.findings.finding import Finding

#: Columns of text, also of a wide terminal.
WIDEST = 110
#: Findings that are printed where not all are asked for.
MOST_SHORT = 5
NOTHING = "Nothing found: no rank is persistently late, and the GPUs are busy."


def finding_lines(
    findings: Sequence[Finding], width: int = WIDEST, full: bool = False, nothing: str = NOTHING
) -> list[str]:
    """Return the lines of what holds the job back: per finding its cost and title, what was
    measured, what to do, and where to look. full: all findings with all that was measured. nothing:
    what is said where there are none.
    """
    if not findings:
        return textwrap.wrap(nothing, width, initial_indent="  ", subsequent_indent="  ")
    width = min(width, WIDEST)
    lines: list[str] = []
    shown = findings if full else findings[:MOST_SHORT]
    for finding in shown:
        lines += _wrapped(f"{100 * finding.share:5.1f} %  {finding.title}", width, 9)
        for text in finding.evidence if full else finding.evidence[:1]:
            lines += _wrapped(f"         measured: {text}", width, 19)
        lines += _wrapped(f"         do: {finding.advice}", width, 13)
        if full and finding.views:
            lines += _wrapped(f"         views: {', '.join(finding.views)}", width, 16)
    if len(findings) > len(shown):
        lines.append(f"  and {len(findings) - len(shown)} smaller ones: --full")
    return lines


def _wrapped(text: str, width: int, indent: int) -> list[str]:
    """Lines of a text that begins with spaces of its own."""
    return (
        textwrap.wrap(
            text,
            width,
            subsequent_indent=" " * indent,
            drop_whitespace=True,
            break_on_hyphens=False,
            replace_whitespace=True,
        )
        if len(text) > width
        else [text.rstrip()]
    )
