"""What a finding is, the kinds of findings, and findings as lines for people."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

#: Kind -> what it means, for the glossary.
KINDS = {
    "straggler": "a rank that is usually the last at collectives, so that the others wait for it",
    "slow_host": "all ranks of one host are usually last: what they share is slow",
    "slow_link": "a group of ranks takes longer than its peers to move the same data",
    "hiccup": "a rank that was held up once, or a few times, for much longer than usual",
    "imbalance": "ranks wait for each other, and not always for the same one",
    "exposed_communication": "devices move data between ranks without computing",
    "exposed_copies": "devices copy or set memory and do nothing else",
    "blocked_by_call": "devices are idle while their hosts wait in a call that synchronises",
    "launch_bound": "devices are idle while their hosts are in other CUDA API calls",
    "host_mpi": "devices are idle while their hosts are in MPI",
    "host_nccl": "devices are idle while their hosts are in NCCL calls",
    "host_io": "devices are idle while their hosts read or write files, or the network",
    "host_work": "devices are idle while their hosts are in no recorded call: they compute",
    "no_tensor_cores": "matrix products run without tensor cores",
    "critical_path": "what the critical path consists of, and how much of it no device works (only with `--only critical_path`)",
}


class Finding(Struct, frozen=True):
    """One cause that holds the job back."""

    # one of KINDS
    kind: str
    # one sentence: who and what
    title: str
    # share of the job's time (of its steady state, where one was found) that would be gained at
    # most if the cause were removed
    share: float
    # whose fault it is, the culprit first; empty where it is nobody's
    ranks: tuple[int, ...] = ()
    # their GPUs, as "host GPU number"
    devices: tuple[str, ...] = ()
    # what was measured, a sentence each
    evidence: tuple[str, ...] = ()
    # what to do
    advice: str = ""
    # Paraver views that show it (nsys2prv cfgs)
    views: tuple[str, ...] = field(default=())

    def __repr__(self) -> str:
        return f"<Finding {self.kind}, costs up to {self.share:.1%}: {self.title}>"

    def _repr_html_(self) -> str:
        lines = "".join(
            f"<li>{escape(line)}</li>" for line in (*self.evidence, self.advice) if line
        )
        return f"<p><b>{escape(self.title)}</b> (costs up to {self.share:.1%} of the time)</p><ul>{lines}</ul>"

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def of(cls, found: dict[str, Any]) -> Finding:
        """Return the finding that :meth:`as_dict` wrote."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in found.items()
        }
        return cls(**values)


#: Columns of text, also of a wide terminal.
TEXT_WIDTH = 110
#: Findings that are printed where not all are asked for.
MOST_SHORT = 5
NOTHING = "Nothing found: no rank is persistently late, and the GPUs are busy."


def finding_lines(
    findings: Sequence[Finding], width: int = TEXT_WIDTH, full: bool = False, nothing: str = NOTHING
) -> list[str]:
    """Return the lines of what holds the job back: per finding its cost and title, what was
    measured, what to do, and where to look. full: all findings with all that was measured. nothing:
    what is said where there are none.
    """
    if not findings:
        return textwrap.wrap(nothing, width, initial_indent="  ", subsequent_indent="  ")
    width = min(width, TEXT_WIDTH)
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
