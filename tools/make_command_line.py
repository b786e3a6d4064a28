"""Make the page of the command line and the man page from the parsers; ``python
tools/make_command_line.py`` writes the latter, ``docs/nsys2prv.1``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from nsys2prv.cli.arguments import Parser, load_commands

MAN_PAGE = Path(__file__).parent.parent / "docs" / "nsys2prv.1"
HEAD = """# Command line

`nsys2prv help COMMAND` and `man nsys2prv` show the same. For completion in bash and zsh: `. completions/nsys2prv` in the checkout.
"""
STATUS = """## Exit status

| status | meaning |
|---|---|
| 0 | done |
| 1 | an error, in one line; with `--keep-going`, some report was left out; `check`: the trace has errors |
| 2 | wrong command line |
| 3 | there are no events to convert |
| 4 | `diff --fail-above`: a run exceeds a limit |
| 5 | `diff --fail-above`: the runs cannot be compared |
| 130 | interrupted (Ctrl-C) |
| 128 + n | ended by signal n |

Warnings do not change it. [Troubleshooting](troubleshooting.md) says what happens on full disks and the like.
"""


def parsers() -> Iterator[Parser]:
    """The parser of every command."""
    return map(Parser, load_commands())


def options(parser: Parser) -> Iterator[tuple[str, str]]:
    """Yield the spelling and the description of each argument."""
    for action in parser._actions:
        if action.help is argparse.SUPPRESS or action.dest == "help":
            continue
        choices = "{" + ",".join(map(str, action.choices or ())) + "}"
        value = (
            ""
            if action.nargs == 0
            else action.metavar or (choices if action.choices else action.dest.upper())
        )
        names = ", ".join(action.option_strings)
        yield f"{names} {value}".strip(), " ".join((action.help or "").replace("%%", "%").split())


def written(action: argparse.Action) -> str:
    """Return the spelling of a positional argument in a usage line."""
    name = str(action.metavar)
    if isinstance(action.nargs, int):
        return " ".join([name] * action.nargs)
    return {"+": f"{name}...", "?": f"[{name}]"}.get(action.nargs or "", name)


def usage(parser: Parser) -> str:
    """Return the usage of the command in one line."""
    if parser.usage:
        return parser.usage
    return " ".join(
        [
            parser.prog,
            "[options]",
            *(written(action) for action in parser._actions if not action.option_strings),
        ]
    )


def page() -> str:
    """The reference in Markdown."""
    parts = [HEAD]
    for parser in parsers():
        parts.append(
            f"## {parser.prog}\n\n```\n{usage(parser)}\n\n{(parser.description or '').strip()}\n```\n"
        )
        parts.append(
            "| argument | meaning |\n|---|---|\n"
            + "".join(
                f"| `{name}` | {told.replace('|', chr(92) + '|')} |\n"
                for name, told in options(parser)
            )
        )
        if parser.epilog:
            parts.append(f"{parser.epilog.strip()}\n")
    return "\n".join([*parts, STATUS])


def roff(text: str) -> str:
    """Text as troff reads it: no line is a request, dashes and backslashes are themselves."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(
        f"\\&{line}" if line.startswith((".", "'")) else line for line in escaped.splitlines()
    )


def man_page() -> str:
    """The man page, of all commands."""
    found = list(parsers())
    lines = [
        '.TH NSYS2PRV 1 "" "nsys2prv" "User Commands"',
        ".SH NAME",
        roff("nsys2prv - one Paraver trace of a parallel GPU job, from its Nsight Systems reports"),
        ".SH SYNOPSIS",
    ]
    for parser in found:
        lines += [roff(usage(parser)), ".br"]
    for parser in found:
        title = "DESCRIPTION" if parser is found[0] else parser.prog.upper()
        lines += [f'.SH "{roff(title)}"', ".nf", roff((parser.description or "").strip()), ".fi"]
        for name, told in options(parser):
            lines += [".TP", f".B {roff(name)}", roff(told)]
    lines += [
        ".SH EXIT STATUS",
        roff(" ".join((found[0].epilog or "").split("Exit status: ")[-1].split())),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    MAN_PAGE.write_text(man_page(), encoding="utf-8")
