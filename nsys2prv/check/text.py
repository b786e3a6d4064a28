"""What was found, for people, and the table of rules for the documentation."""

from __future__ import annotations

from collections.abc import Iterator

from nsys2prv.check.findings import Finding
from nsys2prv.check.result import Contents, Result
from nsys2prv.check.rules import PARTS, RULES, Rule, Severity

#: Event types that are named one by one.
MOST_TYPES = 12


def lines(result: Result) -> Iterator[str]:
    """What a trace holds, then its findings, the worst first, then a line of counts."""
    yield f"{result.path}:"
    if result.contents:
        yield from (f"  {line}" for line in _contents(result.contents))
    yield from (f"  {_finding(finding)}" for finding in result.findings)
    counts = [f"{len(found)} {severity.value}{'' if len(found) == 1 else 's'}" for severity in Severity if (found := result.of(severity))]
    yield f"  {', '.join(counts) or 'nothing found'}"


def _contents(held: Contents) -> Iterator[str]:
    yield (f"{held.lines:,} lines: {held.events:,} events with {held.pairs:,} values, {held.states:,} states, "
           f"{held.comms:,} communications")
    objects = held.objects
    nodes, cpus, appls, tasks, threads = (f"{objects[level]} {what}{'' if objects[level] == 1 else 's'}" for level, what in (
        ("NODE", "node"), ("CPU", "CPU"), ("APPL", "application"), ("TASK", "task"), ("THREAD", "thread")))
    yield f"{nodes} with {cpus}, {appls}, {tasks}, {threads}"
    shown = ", ".join(map(str, sorted(held.types)[:MOST_TYPES]))
    yield f"{len(held.types)} event types{f': {shown}' if shown else ''}{', ...' if len(held.types) > MOST_TYPES else ''}"
    if held.first is not None:
        yield f"times from {held.first} to {held.last} {held.unit}, the trace ends at {held.end:.0f}"


def _finding(found: Finding) -> str:
    where = f"{found.file}:{found.line}" if found.line else found.file
    return f"{found.severity.value:<7} {found.rule} {where}{f' ({found.count} places)' if found.count > 1 else ''}: {found.message}"


def rules_page() -> str:
    """The text of docs/checks.md."""
    head = """# What `nsys2prv check` checks

Made from the declarations in `nsys2prv/check/rules.yaml` by `python tools/make_checks.py`.

    nsys2prv check trace.prv [more.prv.gz ...] [--strict] [--json]

reads a Paraver trace, whoever wrote it, with the .pcf and .row beside it, and tells what in it would crash, hang or mislead Paraver. An
*error* makes Paraver or one of its tools crash, hang, refuse, lose something or show it wrongly; a *warning* misleads; a *remark* is good
to know. Of each rule the first line is named at which it is broken, and how many are. What Paraver does was seen by running
paramedir (Paraver 4.11), or read in its source.

Records need no order among kinds at the same time: Paraver sorts states, events and communications of a thread itself, by rules of its
own. Within events (and within states) of the same thread and time it keeps the order of the file.

Exit status: 0 no error, 1 errors (with `--strict` warnings too, and what cannot be read), 2 usage.
"""
    sections = (f"\n## {title}\n\n| rule | | what is wrong | what it does |\n|---|---|---|---|\n"
                + "".join(_row(rule) for rule in RULES.values() if rule.part == part) for part, title in PARTS.items())
    return head + "".join(sections)


def _row(rule: Rule) -> str:
    return f"| `{rule.name}` | {rule.severity.value} | {rule.wrong.replace('|', chr(92) + '|')} | {rule.effect} |\n"
