"""Parse arguments: errors in one line, suggestions for what was meant, the version with its commit."""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from nsys2prv._util.errors import UsageError
from nsys2prv._util.version import __version__

#: What argparse says of an option that has no value behind it.
NO_VALUE = re.compile(r"argument (\S+): expected one argument$")
#: What it says of a value that is no number, and of what is missing.
NO_NUMBER = re.compile(r"argument (\S+): invalid int value: '(.*)'$", re.S)
MISSING = re.compile(r"the following arguments are required: (.*)")
#: How commands are written that lack an argument.
EXAMPLES = {
    "nsys2prv report": "`nsys2prv report REPORT...`",
    "nsys2prv diff": "`nsys2prv diff A B`, where A and B are reports, folders or JSON files of earlier reports",
    "nsys2prv check": "`nsys2prv check TRACE...`",
    "nsys2prv clock": "`nsys2prv clock FILE.clock.yaml`",
    "nsys2prv extract": "`nsys2prv extract REPORT... -o STORE`",
}
#: Options that people give to a command that has none of that name, and what to do instead.
ELSEWHERE = {
    "nsys2prv": {
        "--html": "`nsys2prv report REPORT... --html FILE` makes a page",
        "--json": "`nsys2prv report REPORT... --json FILE` writes what it finds",
        "--only": "`nsys2prv report REPORT... --only NAMES` analyses",
        "--plot": "`nsys2prv clock FILE.clock.yaml --plot FILE.png` draws",
        "--output": "the trace to write is the last argument",
        "--out": "the trace to write is the last argument",
        "-o": "the trace to write is the last argument",
    },
    "nsys2prv report": {
        "--output": "--json FILE and --html FILE write what is found",
        "-o": "--json FILE and --html FILE write what is found",
    },
    "nsys2prv cfgs": {"--trace": "`nsys2prv cfgs --for TRACE` lists the views of a trace"},
}


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line, say what may be meant, and are raised as UsageError."""

    def error(self, message: str) -> NoReturn:
        if wanted := NO_VALUE.match(message):
            option = self._option_string_actions.get(wanted[1].rpartition("/")[2])
            value = option.metavar if option is not None and option.metavar else "VALUE"
            message = f"{wanted[1]} takes a value; write {wanted[1].rpartition('/')[2]} {value}"
        elif wanted := NO_NUMBER.match(message):
            message = f"{wanted[1].rpartition('/')[2]} {wanted[2]}: give a whole number"
        elif wanted := MISSING.match(message):
            message = f"{wanted[1]} is missing; write {EXAMPLES.get(self.prog, self.prog)}"
        raise UsageError(f"{message}; {self.help_hint}")

    @property
    def help_hint(self) -> str:
        """Return a hint to the command that lists all options."""
        _, _, command = self.prog.partition(" ")
        return f"`nsys2prv help{f' {command}' if command else ''}` lists the options"

    def parse_known_args(
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:  # type: ignore[override]
        self.check_options(args or ())
        return super().parse_known_args(args, namespace)

    def check_options(self, arguments: Sequence[str]) -> None:
        """Raise UsageError for a long option that the command does not have, before anything else
        is found wrong.
        """
        for argument in arguments:
            if argument == "--":
                return
            name = argument.partition("=")[0]
            known = name in self._option_string_actions
            if not known and (name.startswith("--") or name in ELSEWHERE.get(self.prog, {})):
                raise UsageError(f"{name} is not an option of {self.prog}: {self._instead(name)}")

    def _instead(self, name: str) -> str:
        if told := ELSEWHERE.get(self.prog, {}).get(name):
            return told
        shown = [
            option
            for option, action in self._option_string_actions.items()
            if action.help is not argparse.SUPPRESS
        ]
        near = get_close_matches(name, shown, 1)
        return f"did you mean {near[0]}?" if near else self.help_hint


def version_text(package: Path = Path(__file__).parents[1]) -> str:
    """Return the version, for users. package: the installed package; in a checkout the folder above
    has its pyproject.toml and .git.
    """
    checkout = package.parent
    if not ((checkout / ".git").exists() and (checkout / "pyproject.toml").is_file()):
        return f"nsys2prv {__version__}"
    try:
        told = subprocess.run(
            [
                "git",
                "-C",
                str(checkout),
                "describe",
                "--always",
                "--dirty",
                "--abbrev=12",
                "--exclude=*",
            ],
            capture_output=True,
            text=True,
            timeout=5,
            stdin=subprocess.DEVNULL,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return f"nsys2prv {__version__} (checkout {checkout})"
    return f"nsys2prv {__version__} (commit {told.stdout.strip()} in {checkout})"
