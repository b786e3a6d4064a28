"""Make the page of checks from the rules of `nsys2prv check`."""

from __future__ import annotations

from nsys2prv.writers.paraver.check import PARTS, RULES, Rule


def page() -> str:
    """Return the text of the page."""
    head = """# What `nsys2prv check` checks

Made from the declarations in `nsys2prv/writers/paraver/check_rules.yaml`.

    nsys2prv check trace.prv [more.prv.gz ...] [--strict] [--json]

finds what would crash, hang or mislead Paraver in a trace, with the .pcf and .row beside it. An *error* makes Paraver or one of its tools
crash, hang, refuse, lose something or show it wrongly; a *warning* misleads. For each rule it prints the first line that breaks it, and how
many do. A file that is no trace at all gets one line on standard error. What Paraver does was found by running paramedir (Paraver 4.11) or
by reading its source.

The rules are those that traces of nsys2prv must keep. Traces of other programs are read by the same; what only they can have (the date, CPUs
that threads share, names that come twice, colours, labels of 0 or with a wildcard, comments of Paraver's cutter) is not looked at.

Records of different kinds at the same time may come in any order: Paraver sorts states, events and communications of a thread itself.
Events of the same thread and time, and states likewise, keep the order of the file.

Exit status: 0 no error, 1 errors (with `--strict` warnings too, and what cannot be read), 2 usage.
"""
    sections = (
        f"\n## {title}\n\n| rule | | what is wrong | what it does |\n|---|---|---|---|\n"
        + "".join(_row(rule) for rule in RULES.values() if rule.part == part)
        for part, title in PARTS.items()
    )
    return head + "".join(sections)


def _row(rule: Rule) -> str:
    return f"| `{rule.name}` | {rule.severity.value} | {rule.wrong.replace('|', chr(92) + '|')} | {rule.effect} |\n"
