"""Write ``docs/checks.md`` from the rules of `nsys2prv check`: ``python tools/make_checks.py``."""

from __future__ import annotations

from pathlib import Path

from nsys2prv.paraver.check.findings import PARTS, RULES, Rule


def page() -> str:
    """Return the text of the page."""
    head = """# What `nsys2prv check` checks

Made from the declarations in `nsys2prv/paraver/check/rules.yaml` by `python tools/make_checks.py`.

    nsys2prv check trace.prv [more.prv.gz ...] [--strict] [--json]

reads a Paraver trace, whoever wrote it, with the .pcf and .row beside it, and tells what in it would crash, hang or mislead Paraver. An
*error* makes Paraver or one of its tools crash, hang, refuse, lose something or show it wrongly; a *warning* misleads; a *remark* is good
to know. Of each rule the first line is named at which it is broken, and how many are. What Paraver does was seen by running
paramedir (Paraver 4.11), or read in its source.

Records need no order among kinds at the same time: Paraver sorts states, events and communications of a thread itself, by rules of its
own. Within events (and within states) of the same thread and time it keeps the order of the file.

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


if __name__ == "__main__":
    (Path(__file__).parent.parent / "docs" / "checks.md").write_text(page(), encoding="utf-8")
