"""Parse arguments; report errors in one line with a suggestion, and refuse command lines that are
probably mistakes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path, PureWindowsPath
from typing import Any, NoReturn

from nsys2prv._util.errors import UsageError
from nsys2prv._util.files import has_report_name, name_beside
from nsys2prv._util.terminal import fold_lines
from nsys2prv._util.text import list_some

#: What argparse says of an option that has no value behind it.
NO_VALUE = re.compile(r"argument (\S+): expected one argument$")
#: Its messages about a value that is not a number, and about missing arguments.
NO_NUMBER = re.compile(r"argument (\S+): invalid int value: '(.*)'$", re.S)
MISSING = re.compile(r"the following arguments are required: (.*)")
#: What it says of a value that is none of an option's, and of arguments that nothing takes.
NO_CHOICE = re.compile(r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)$", re.S)
TOO_MANY = re.compile(r"unrecognized arguments: (\S+)")
#: How commands are written that lack an argument.
EXAMPLES = {
    "nsys2prv report": "`nsys2prv report REPORT...`",
    "nsys2prv diff": "`nsys2prv diff A B`, where A and B are jobs: folders, quoted patterns, or JSON files of earlier reports",
    "nsys2prv study": "`nsys2prv study RUN RUN...`, where a run is a folder, a quoted pattern, or the JSON file of an earlier study",
    "nsys2prv cfgs": "`nsys2prv cfgs [DIR]`",
    "nsys2prv check": "`nsys2prv check TRACE...`",
}
#: Options that a command does not have, but that people try -> what to do instead.
ELSEWHERE = {
    "nsys2prv": {
        "--html": "`nsys2prv report REPORT... --html FILE` makes a page",
        "--json": "`nsys2prv report REPORT... --json FILE` writes what it finds",
        "--only": "`nsys2prv report REPORT... --only NAMES` analyses",
        "--iterations": "`nsys2prv report REPORT... --iterations PATTERN` analyses",
        "--output": "the trace to write is the last argument",
        "--out": "the trace to write is the last argument",
        "-o": "the trace to write is the last argument",
    },
    "nsys2prv report": {
        "--output": "--json FILE and --html FILE write what is found",
        "-o": "--json FILE and --html FILE write what is found",
        **dict.fromkeys(("--compare", "--scaling"), "`nsys2prv study RUN RUN...` compares runs"),
    },
    "nsys2prv cfgs": {"--trace": "`nsys2prv cfgs --for TRACE` lists the views of a trace"},
}


class _HelpFormatter(argparse.HelpFormatter):
    """Keeps the lines of descriptions, folded to the terminal."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(fold_lines(text.splitlines(), width, 0))


def split_entries(table: str) -> list[str]:
    """Return the titles and options of a table that :meth:`Parser.add_arguments` takes."""
    return re.split(r"\n(?! {6})", table.strip("\n"))


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line, say what may be meant, and are raised as UsageError."""

    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, allow_abbrev=False, formatter_class=_HelpFormatter, **settings)
        #: Options of other commands only -> what to do instead.
        self.elsewhere = dict(ELSEWHERE.get(prog, {}))

    def add_arguments(self, table: str, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the arguments of a table: titles of groups at the margin; below them each option as it
        is written (dots: it may be given several times), and in lines of their own its help. What is no option has its name before how it is written.
        settings: by the long name, further ones for argparse.
        """
        group: argparse._ActionsContainer = self
        for entry in split_entries(table):
            head, *lines = entry.split("\n")
            if not lines:
                group = self.add_argument_group(head)
                continue
            words = head.split()
            names = [word for word in words if word.startswith("-")]
            value, *dots = words[len(names) or 1 :] or [""]
            option: dict[str, Any] = {"help": " ".join(map(str.strip, lines))}
            if value.startswith("{"):
                option["choices"] = value[1:-1].split(",")
            elif value:
                option["metavar"] = value
            else:
                option["action"] = "store_true"
            if dots:
                option |= {"action": "append", "default": []} if names else {"nargs": "+"}
            names = names or words[:1]
            group.add_argument(*names, **{**option, **settings.get(names[-1], {})})

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with a complaint of argparse in our words."""
        if wanted := NO_VALUE.match(message):
            option = self._option_string_actions.get(wanted[1].rpartition("/")[2])
            value = option.metavar if option is not None and option.metavar else "VALUE"
            message = f"{wanted[1]} takes a value; write {wanted[1].rpartition('/')[2]} {value}"
        elif wanted := NO_NUMBER.match(message):
            message = f"{wanted[1].rpartition('/')[2]} {wanted[2]}: give a whole number"
        elif wanted := NO_CHOICE.match(message):
            choices = wanted[3].replace("'", "").split(", ")
            message = f"{wanted[1].rpartition('/')[2]} {wanted[2]}: give {' or '.join(choices)}"
        elif wanted := TOO_MANY.match(message):
            example = f"; write {EXAMPLES[self.prog]}" if self.prog in EXAMPLES else ""
            message = f"{wanted[1]}: there is one argument too many{example}"
            if wanted[1].startswith("-"):
                message = f"{wanted[1]} is not an option of {self.prog}"
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
        """Parse arguments, after a look at their names (:meth:`check_options`)."""
        self.check_options(args or ())
        return super().parse_known_args(args, namespace)

    def check_options(self, arguments: Sequence[str]) -> None:
        """Raise UsageError for a long option that the command does not have, or an option with an
        empty value, before anything else is found wrong.
        """
        before = ""
        for argument in arguments:
            if argument == "--":
                return
            name, equals, value = argument.partition("=")
            option = self._option_string_actions.get(name if equals and not value else before)
            if not value and (equals or not name) and option is not None and option.nargs != 0:
                raise UsageError(
                    f"{name or before} is given an empty value, as with a variable that is not set; "
                    f"write {name or before} {option.metavar or 'VALUE'}, or leave it out"
                )
            before = argument
            unknown = name.startswith("--") and name not in self._option_string_actions
            if unknown or name in self.elsewhere:
                raise UsageError(f"{name} is not an option of {self.prog}: {self._find_hint(name)}")

    def _find_hint(self, name: str) -> str:
        if hint := self.elsewhere.get(name):
            return hint
        options = self._option_string_actions.items()
        shown = [option for option, action in options if action.help is not argparse.SUPPRESS]
        bare = {option.lstrip("-"): option for option in shown}
        near = get_close_matches(name.lstrip("-"), bare, 1)
        return f"did you mean {bare[near[0]]}?" if near else self.help_hint


TRACES = (".prv", ".prv.gz", ".pftrace", ".pftrace.gz")
#: Endings of the files that belong to a trace.
PARTS = (".pcf", ".row")
#: Endings that no trace has, and what writes such files.
NO_TRACES = {
    **dict.fromkeys(PARTS, ""),
    ".cfg": "",
    ".perfetto-trace": "; for Perfetto, give .pftrace",
    ".csv": "",
    ".txt": "",
    ".yaml": "",
    ".json": "; `nsys2prv report REPORT... --json FILE` writes JSON",
    ".html": "; `nsys2prv report REPORT... --html FILE` writes a page",
    ".png": "",
}
#: Words that people take for commands, and what does it.
WORDS = {
    "list": "nsys2prv --list REPORT...",
    "convert": "nsys2prv REPORT... OUTPUT",
    "kinds": "nsys2prv --kinds",
    "version": "nsys2prv --version",
    "views": "nsys2prv cfgs",
    "compare": "nsys2prv diff",
    **dict.fromkeys(("pop", "scaling"), "nsys2prv study"),
    "analyse": "nsys2prv report",
    "analyze": "nsys2prv report",
    "stats": "nsys2prv report",
    "export": "nsys2prv REPORT... OUTPUT",
    **dict.fromkeys(("open", "view", "show"), "wxparaver out.prv"),
}


def suggest_command(word: str, commands: Collection[str], before: str = "nsys2prv") -> str:
    """Return the command that a misspelt word probably means, "" if none is similar."""
    if near := get_close_matches(word.lower(), commands, 1):
        return f"did you mean `{before} {near[0]}`?"
    return f"write `{WORDS[word]}`" if word in WORDS else ""


def check_command(word: str, commands: Collection[str]) -> None:
    """Raise UsageError for a first argument that is nearly a command, and neither an option nor a
    file.
    """
    if word.startswith("-") or set(word) & set("./*?[") or Path(word).exists():
        return
    if hint := suggest_command(word, commands):
        raise UsageError(f"{word}: there is no such command and no such file; {hint}")


def check_kinds(words: Sequence[str], paths: Sequence[str]) -> None:
    """Raise UsageError for a report given as kinds of events, as in `-t rank0.sqlite out.prv`.
    words: the values of -t.
    """
    for word in words:
        if has_report_name(Path(word)) or is_trace_name(word):
            rest = " ".join([word, *paths][:2])
            raise UsageError(
                f"-t {word}: -t takes kinds of events, but this is a file; name kinds, as in `nsys2prv -t kernels,nvtx "
                f"{rest}`, or leave -t out to have all"
            )


def check_conversion(paths: Sequence[str], kinds: Sequence[str]) -> None:
    """Raise UsageError for reports that are none: further kinds of events, or traces. kinds: the
    values of -t.
    """
    reports, output = paths[:-1], paths[-1]
    for word in reports:
        if f"nsys2prv {word}" in EXAMPLES and not Path(word).exists():
            raise UsageError(
                f"{word}: there is no such file; give a command before its options, as in `nsys2prv {word} ... -q`"
            )
    if is_trace_name(paths[0]) and has_report_name(Path(output)):
        raise UsageError(
            f"{paths[0]}: is a trace, not a report; the trace to write comes last: nsys2prv REPORT... {paths[0]}"
        )
    for path in reports:
        if is_trace_name(path):
            raise UsageError(
                f"{path}: is a trace, not a report; a conversion writes one trace, named last (here {output})"
            )
    if kinds and (further := _find_kinds_among(reports)):
        joined = ",".join([*kinds, *further])
        raise UsageError(
            f"{further[0]}: there is no such file; if it is a kind of events, join kinds by commas: -t {joined}"
        )


def _find_kinds_among(paths: Sequence[str]) -> list[str]:
    names = [
        path
        for path in paths
        if path.replace("_", "").replace("-", "").isalnum() and not Path(path).exists()
    ]
    if not names:
        return []
    from nsys2prv.events import list_kind_names

    kind_names = set(list_kind_names())
    return [name for name in names if name.lstrip("-") in kind_names]


def check_output(output: str) -> None:
    """Raise UsageError for a trace to write that is a folder, or named as a file of another kind."""
    path = Path(output)
    if not output:
        raise UsageError(
            "the last argument is empty, as with a variable that is not set; give the name of the trace to write"
        )
    if path.is_dir() and not is_trace_name(output):
        raise UsageError(
            f"{output}: is a folder; give the name of the trace to write, as in {path / 'out.prv'}"
        )
    if os.sep == "/" and PureWindowsPath(output).drive and "\\" in output:
        raise UsageError(
            f"{output}: is a path of Windows; give one of this system, as in ./out.prv"
        )
    if path.suffix.lower() == ".gz" and not is_trace_name(output):
        raise UsageError(
            f"{output}: a compressed trace ends in .prv.gz or .pftrace.gz; give {path.with_suffix('.prv.gz')}"
        )
    if path.suffix.lower() in NO_TRACES:
        raise UsageError(
            f"{output}: a conversion writes a trace, .prv for Paraver or .pftrace for Perfetto; give a name such as {path.with_suffix('.prv')}"
            f"{NO_TRACES[path.suffix.lower()]}"
        )


def check_folder_of_views(folder: Path) -> None:
    """Raise UsageError where the name is that of a file or of a view."""
    if is_trace_name(str(folder)):
        raise UsageError(
            f"{folder}: is a trace; `nsys2prv cfgs --for {folder}` lists the views that show something of it"
        )
    if folder.is_file() or (folder.suffix[1:].isalpha() and not folder.exists()):
        raise UsageError(
            f"{folder}: is the name of a file; give the folder to copy the views to, as in `nsys2prv cfgs views`"
        )
    # "states" is a view and a good name for a folder.
    if not folder.exists() and set(folder.name) & set("_-"):
        from nsys2prv.writers.paraver.cfg import list_core_views

        names = {Path(view).stem: view for view in list_core_views()}
        if near := get_close_matches(folder.name, names, 1, 0.85):
            raise UsageError(
                f"{folder}: nsys2prv cfgs takes a folder, and this is like the name of the view {names[near[0]]}; "
                "`nsys2prv cfgs views` copies all views to the folder views"
            )


def refuse_non_traces(command: str, paths: Sequence[str]) -> None:
    """Raise UsageError where a report, a folder or another file of a trace is given to a command
    that takes traces.
    """
    for path in paths:
        if has_report_name(Path(path)):
            raise UsageError(
                f"{path}: is a report; nsys2prv {command} takes the trace that is made of it, as in out.prv"
            )
        if Path(path).is_dir():
            traces = [str(one) for one in sorted(Path(path).glob("*")) if is_trace_name(one.name)]
            hint = f"give a trace of it: {list_some(traces)}" if traces else "it has no traces"
            raise UsageError(f"{path}: is a folder; {hint}")
        if is_trace_name(path) and ".prv" not in Path(path).suffixes:
            raise UsageError(
                f"{path}: is a trace for Perfetto; nsys2prv {command} takes those for Paraver, as {name_beside(Path(path), '.prv')}"
            )
        if Path(path).suffix.lower() in PARTS:
            raise UsageError(
                f"{path}: belongs to a trace; give the trace itself, {Path(path).with_suffix('.prv')}"
            )


def refuse_traces(command: str, paths: Sequence[str]) -> None:
    """Raise UsageError where a trace is given to a command that takes the reports it was made of."""
    for path in paths:
        if is_trace_name(path):
            raise UsageError(
                f"{path}: is a trace; nsys2prv {command} takes the reports that it was made of{_read_report_names(Path(path))}"
            )


def check_pages(reports: Sequence[str], outputs: Collection[str]) -> None:
    """Raise UsageError for a page or another file to write that is given as a further report.
    outputs: the options that name such files.
    """
    for path in map(Path, reports[1:]):
        if path.suffix[1:] in outputs and not path.exists():
            raise UsageError(f"{path}: no such file; to write it, give --{path.suffix[1:]} {path}")


def _read_report_names(trace: Path) -> str:
    """Return the reports that the file beside a trace names."""
    beside = name_beside(trace, ".nsys2prv.json")
    try:
        names = [str(entry["name"]) for entry in json.loads(beside.read_bytes())["inputs"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return f": {list_some(names, separator=' ')}"


def is_trace_name(path: str) -> bool:
    """Return whether the name is that of a trace."""
    return path.lower().endswith(TRACES)
