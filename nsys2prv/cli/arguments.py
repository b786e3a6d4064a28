"""Parse command lines. ``options.yaml`` declares all commands and options. Errors of argparse
become one line with advice. Command lines that are probably mistakes are refused, with a
suggestion.

Input: the words of a command line. Output: a namespace, and the `Options` of a conversion made from
it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
from functools import partial
from itertools import pairwise
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Struct
from msgspec.structs import asdict

from nsys2prv._util import errors
from nsys2prv._util.errors import UsageError
from nsys2prv._util.files import (
    check_folder,
    check_not_read,
    has_report_name,
    load_shipped_file,
    name_beside,
    read_data_text,
)
from nsys2prv._util.text import find_width, fold_lines, list_some, parse_duration
from nsys2prv.export.report_files import is_report

if TYPE_CHECKING:
    from nsys2prv.conversion.options import CutOptions, Options
    from nsys2prv.show.difference.facts import Limit

#: Complaints of argparse that are put into other words. Groups: 1: the option, or the argument; 2 and 3: its
#: value, and the values that it may have.
NO_VALUE = re.compile(r"argument (?:\S+/)?(\S+): expected one argument$")
NO_CHOICE = re.compile(
    r"argument (?:\S+/)?(\S+): invalid choice: '(.*)' \(choose from (.*)\)$", re.S
)
TOO_MANY = re.compile(r"unrecognized arguments: (\S+)")
MISSING = re.compile(r"the following arguments are required: (.*)")
#: The command without a name: a conversion.
CONVERSION = "conversion"
#: Options that name an output file.
OUTPUTS = ("json", "html", "md", "csv")
#: Endings of traces.
TRACES = (".prv", ".prv.gz", ".pftrace", ".pftrace.gz")
#: Endings of the files that belong to a trace.
PARTS = (".pcf", ".row")
_MISTAKES = load_shipped_file(__package__, "mistakes.yaml")
#: Endings that no trace has -> what writes such files; words that people take for commands -> what
#: does it; mistakes -> messages; values of options (VALUES) -> what to give.
NO_TRACES: dict[str, str] = _MISTAKES["endings"]
WORDS: dict[str, str] = _MISTAKES["words"]
MESSAGES: dict[str, str] = _MISTAKES["messages"]
HINTS: dict[str, str] = _MISTAKES["values"]


def refuse(mistake: str, **words: object) -> NoReturn:
    """Raise UsageError for a mistake listed in ``mistakes.yaml``. mistake: its key. words: values
    for the placeholders in the message.
    """
    raise UsageError(MESSAGES[mistake].format(**words))


def load_commands() -> dict[str, Any]:
    """Return the declarations of commands and their options in ``options.yaml``, by command name."""
    return load_shipped_file(__package__, "options.yaml")


class _HelpFormatter(argparse.HelpFormatter):
    """Formatter that keeps the lines of descriptions, folded to the terminal."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(fold_lines(text.splitlines(), width, 0))


class Parser(argparse.ArgumentParser):
    """Parser of a command's arguments. Errors are one line with the intended command, raised as
    UsageError.
    """

    def __init__(self, command: str) -> None:
        declared = load_commands()[command]
        super().__init__(
            "nsys2prv" if command == CONVERSION else f"nsys2prv {command}",
            allow_abbrev=False,
            formatter_class=_HelpFormatter,
            **{name: declared.get(name) for name in ("usage", "description", "epilog")},
        )
        #: The text of its short help; "" for the list of all options.
        self.overview = read_data_text(__package__, "help.txt") if command == CONVERSION else ""
        #: Usage of the command.
        self.example: str = declared.get("example", "")
        #: Options only of other commands -> advice.
        self.elsewhere: dict[str, str] = {
            name: instead
            for names, instead in declared.get("elsewhere", {}).items()
            for name in names.split()
        }
        for options in declared["options"]:
            title = options.get("title")
            group = self.add_argument_group(title) if title else self
            for head, settings in options.items():
                if head != "title":
                    _declare(group, head, settings)
        unseen: dict[str, Any] = {
            "nargs": "?",
            "help": argparse.SUPPRESS,
            "default": argparse.SUPPRESS,
        }
        for names, instead in declared.get("legacy", {}).items():
            self.add_argument(*names.split(), action=_RefuseLegacyOption, const=instead, **unseen)

    def print_help(self, file: Any = None) -> None:
        """Print the short help if there is one, otherwise the list of all options."""
        text = self.overview or self.format_help()
        print("\n".join(fold_lines(text.rstrip().splitlines(), find_width())), file=file)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with argparse's message in the words of this program."""
        if wanted := NO_VALUE.match(message):
            message = f"{wanted[1]} takes a value; write {self._show_option(wanted[1])}"
        elif wanted := NO_CHOICE.match(message):
            choices = wanted[3].replace("'", "").split(", ")
            message = f"{wanted[1]} {wanted[2]}: give {' or '.join(choices)}"
        elif wanted := TOO_MANY.match(message):
            example = f"; write {self.example}" if self.example else ""
            message = f"{wanted[1]}: one argument too many{example}"
            if wanted[1].startswith("-"):
                message = f"{wanted[1]} is not an option of {self.prog}"
        elif wanted := MISSING.match(message):
            message = f"{wanted[1]} is missing; write {self.example}"
        raise UsageError(f"{message}; {self.help_hint}")

    def _show_option(self, name: str) -> str:
        """Return how an option with a value is written."""
        option = self._option_string_actions.get(name)
        return f"{name} {(option.metavar if option else None) or 'VALUE'}"

    @property
    def help_hint(self) -> str:
        """Return a hint that names the command that lists all options."""
        command = self.prog.removeprefix("nsys2prv").strip() or "convert"
        return f"`nsys2prv help {command}` lists the options"

    def parse_known_args(
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:  # type: ignore[override]
        """Parse arguments after checking the names of options (:meth:`check_options`). Return the
        options, and the unknown arguments.
        """
        self.check_options(args or ())
        return super().parse_known_args(args, namespace)

    def check_options(self, arguments: Sequence[str]) -> None:
        """Raise UsageError for an unknown long option, or an option with an empty value, before any other
        error.
        """
        before = ""
        for argument in arguments:
            if argument == "--":
                return
            name, equals, value = argument.partition("=")
            option = self._option_string_actions.get(name if equals and not value else before)
            if not value and (equals or not name) and option is not None and option.nargs != 0:
                given = name or before
                refuse("empty_value", option=given, shown=self._show_option(given))
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


def _declare(
    group: argparse._ActionsContainer, head: str, settings: str | dict[str, Any] | None
) -> None:
    """Add an option or an argument. head: its names and value, as written in help. settings: its
    help, or further settings of argparse.
    """
    words = head.split()
    names = [word for word in words if word.startswith("-")]
    value, *dots = words[len(names) or 1 :] or [""]
    option: dict[str, Any] = {"help": argparse.SUPPRESS}
    if value.startswith("{"):
        option["choices"] = value[1:-1].split(",")
    elif value:
        option["metavar"] = value
    elif names:
        option["action"] = "store_true"
    if dots and names:
        option |= {"action": "extend" if value == "LIST" else "append", "default": []}
    elif dots:
        option["nargs"] = "+"
    if value in VALUES and (names or not dots):
        option["type"] = partial(_parse_value, words[0], value)
    option |= {"help": settings} if isinstance(settings, str) else settings or {}
    option["help"] = option["help"].replace("%", "%%")
    if option.get("action") in ACTIONS:
        option["action"] = ACTIONS[option["action"]]
    group.add_argument(*(names or words[:1]), **option)


class _RefuseLegacyOption(argparse.Action):
    """Action that refuses an option of BSC's nsys2prv. Its constant names the replacement."""

    def __call__(self, parser: object, namespace: object, values: object, name: str) -> NoReturn:
        refuse("option_of_bsc", option=name, here=self.const)


class _Version(argparse.Action):
    """Action that prints the version."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from nsys2prv._util import format_version

        print(format_version(Path(__file__).parents[1]))
        parser.exit()


def _split_pair(text: str) -> tuple[str, str]:
    """Return KIND=VALUE as (kind, value)."""
    kind, _, value = text.partition("=")
    if not kind or not value:
        raise ValueError(text)
    return kind, value


def _parse_min_duration(text: str) -> tuple[str, int]:
    """Return [KIND=]DURATION as (kind, ns)."""
    kind, equals, duration = text.strip().rpartition("=")
    return kind if equals else "all", parse_duration(duration)


def _parse_fields(text: str) -> tuple[str, tuple[str, ...]]:
    kind, names = _split_pair("all=all" if text == "all" else text)
    return kind, tuple(name.strip() for name in names.split(",") if name.strip())


def _parse_rate(text: str) -> tuple[str, int]:
    kind, rate = _split_pair(text)
    if not rate.isdecimal() or len(rate) > 10:
        raise ValueError(text)
    return kind, int(rate)


def _parse_path(text: str) -> Path:
    if text == "-":
        raise ValueError(text)
    return Path(text)


def _parse_count(text: str) -> int:
    if not text.isdecimal() or int(text[:9]) < 1:
        raise ValueError(text)
    return int(text[:9])


#: Quantities that may have a limit.
LIMITED = ("", "job", "iteration", "communication", "region", "kernel", "efficiency")


def _parse_limit(text: str) -> Limit:
    """Return the limit for a text [WHAT=]SHARE, such as 5% or kernel:gemm=0.05."""
    from nsys2prv.show.difference.facts import Limit

    wanted, _, number = text.rpartition("=")
    what, _, name = wanted.partition(":")
    share = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    if (
        what not in LIMITED
        or bool(name) < (what in ("region", "kernel"))
        or not 0 <= share < float("inf")
    ):
        raise ValueError(text)
    return Limit(what, name, share)


def _parse_list(text: str) -> list[str]:
    entries = [word.strip() for word in text.split(",")]
    if not all(entries):
        raise ValueError(text)
    return entries


#: Notation of an option's value -> function that parses it, or raises ValueError.
VALUES: dict[str, Callable[[str], Any]] = {
    "FILE": _parse_path,
    "DIR": _parse_path,
    "TRACE": _parse_path,
    "N": _parse_count,
    "[KIND=]NS": _parse_min_duration,
    "KIND=NAMES": _parse_fields,
    "KIND=N": _parse_rate,
    "[WHAT=]SHARE": _parse_limit,
    "LIST": _parse_list,
}


def _parse_value(option: str, value: str, text: str) -> Any:
    """Return the value of an option from its text. value: kind of value. Raise UsageError for
    invalid text.
    """
    try:
        return VALUES[value](text)
    except ValueError:
        raise UsageError(f"{option} {text}: {HINTS[value]}") from None


#: The actions that ``options.yaml`` names, beside those of argparse.
ACTIONS = {"boolean": argparse.BooleanOptionalAction, "version": _Version}


def parse_analysis(command: str, arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of `report`, `diff` or `study`. Raise UsageError if a file to write is a
    report, which happens if its name was forgotten.
    """
    # --moment names a trace to write.
    words = [
        word
        for before, word in pairwise(("", *arguments))
        if not word.startswith("-") and before != "--moment"
    ]
    refuse_traces(command, words)
    options = Parser(command).parse_args(join_kind_options(arguments))
    for name in ("reports", "runs", "what_if", "only"):
        vars(options).setdefault(name, [])
    options.only = [name for names in options.only for name in names.split(",") if name]
    given = options.reports or options.runs
    # Two runs that are compared may be such files.
    for path in map(Path, given[1 + (command == "diff") :]):
        if path.suffix[1:] in OUTPUTS and not path.exists():
            refuse("output_among_inputs", path=path, option=path.suffix[1:])
    written = {name: path for name in OUTPUTS if (path := vars(options).get(name))}
    for name, path in written.items():
        if has_report_name(path) or is_report(path):
            refuse("output_is_report", option=name, path=path)
        if path.is_dir():
            refuse("output_is_folder", option=name, path=path, example=path / f"job.{name}")
        check_folder(path.parent)
    further = filter(None, (options.kernel_rules, options.nvtx_rules, options.align))
    check_not_read(written.values(), [*given, *vars(options).get("versus", ()), *further])
    if len(written) > len({path.absolute() for path in written.values()}):
        refuse("same_outputs", options=" and ".join(f"--{name}" for name in written))
    errors.raise_on_signal()
    return options


def make_options(arguments: argparse.Namespace) -> Options:
    """Return the options given on the command line."""
    from nsys2prv.conversion.options import Options

    errors.raise_on_signal()
    chosen = _choose_fields(Options, arguments)
    chosen["kinds"] = parse_kinds(arguments.trace)
    chosen["full_kernel_names"] = arguments.kernel_names == "full"
    return Options(**chosen, cut=make_cut_options(arguments))


def make_cut_options(arguments: argparse.Namespace) -> CutOptions:
    """Return the options of a cut that the arguments set; `report` has only some of them."""
    from nsys2prv.conversion.options import CutOptions

    return CutOptions(**_choose_fields(CutOptions, arguments))


def _choose_fields(struct: type[Struct], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return name -> value for given arguments that have the name of a field in a struct."""
    defaults = asdict(struct())
    given = {name: value for name, value in vars(arguments).items() if value not in (None, [])}
    # Options that may be given several times: pairs, or values.
    return {
        name: type(default)(given[name]) if isinstance(given[name], list) else given[name]
        for name, default in defaults.items()
        if name in given
    }


def name_files_plainly(arguments: list[str]) -> list[str]:
    """Return the arguments without `--`. Files after it that look like options get their folder as
    a prefix.
    """
    if "--" not in arguments:
        return arguments
    place = arguments.index("--")
    behind = (
        os.path.join(".", name) if name.startswith("-") and name != "-" else name
        for name in arguments[place + 1 :]
    )
    return [*arguments[:place], *behind]


def join_kind_options(arguments: Sequence[str]) -> list[str]:
    """Join `-t -nvtx` into one word, because argparse would take `-nvtx` for an option."""
    joined: list[str] = []
    waiting = iter(arguments)
    for argument in waiting:
        if argument in ("-t", "--trace"):
            value = next(waiting, None)
            joined.append(argument if value is None else f"--trace={value}")
        else:
            joined.append(argument)
    return joined


def parse_kinds(lists: Sequence[str]) -> tuple[str, ...]:
    """Return the kinds given with -t. Raise UsageError if -t is given without kinds, as with an
    unset variable.
    """
    kinds = tuple(word.strip() for text in lists for word in text.split(",") if word.strip())
    if lists and not kinds:
        refuse("no_kinds")
    return kinds


def suggest_command(word: str, commands: Collection[str], before: str = "nsys2prv") -> str:
    """Return a suggestion of the command that is most similar to a misspelled word, or "". before:
    text before the command.
    """
    if near := get_close_matches(word.lower(), commands, 1):
        return f"did you mean `{before} {near[0]}`?"
    return f"write `{WORDS[word]}`" if word in WORDS else ""


def check_command(word: str, commands: Collection[str]) -> None:
    """Raise UsageError if the first argument is similar to a command, and neither an option nor a
    file.
    """
    if word.startswith("-") or set(word) & set("./*?[") or Path(word).exists():
        return
    if hint := suggest_command(word, commands):
        refuse("no_command_or_file", word=word, hint=hint)


def check_kinds(words: Sequence[str], paths: Sequence[str]) -> None:
    """Raise UsageError if a report is given as an event kind, as in `-t rank0.sqlite out.prv`.
    words: values of -t.
    """
    for word in words:
        if has_report_name(Path(word)) or is_trace_name(word):
            refuse("file_for_kinds", word=word, rest=" ".join([word, *paths][:2]))


def check_conversion(paths: Sequence[str], kinds: Sequence[str], commands: Collection[str]) -> None:
    """Raise UsageError if commands, event kinds or traces are given as reports to convert. paths:
    the arguments. kinds: values of -t.
    """
    reports, output = paths[:-1], paths[-1]
    for word in reports:
        if word in commands and not Path(word).exists():
            refuse("command_behind_options", word=word)
    for path in filter(is_trace_name, reports):
        trace = output if is_trace_name(output) else path
        refuse("trace_for_report", path=path, trace=trace)
    if kinds and (further := _find_kinds_among(reports)):
        refuse("kind_for_report", word=further[0], joined=",".join([*kinds, *further]))


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
    """Raise UsageError if the trace to write is a folder, or has the ending of another file type."""
    path = Path(output)
    if os.sep == "/" and PureWindowsPath(output).drive and "\\" in output:
        refuse("windows_path", path=output)
    if path.suffix.lower() == ".gz" and not is_trace_name(output):
        refuse("compressed_ending", path=output, trace=path.with_suffix(".prv.gz"))
    if path.suffix.lower() in NO_TRACES:
        instead = NO_TRACES[path.suffix.lower()]
        refuse("no_trace_ending", path=output, trace=path.with_suffix(".prv"), instead=instead)


def check_folder_of_views(folder: Path) -> None:
    """Raise UsageError if the folder for views is a file, or the name of a view."""
    if is_trace_name(str(folder)):
        refuse("trace_for_folder", path=folder)
    if folder.is_file() or (folder.suffix[1:].isalpha() and not folder.exists()):
        refuse("file_for_folder", path=folder)
    # "states" is a view and a good name for a folder.
    if not folder.exists() and set(folder.name) & set("_-"):
        from nsys2prv.writers.paraver.cfg import list_core_views

        names = {Path(view).stem: view for view in list_core_views()}
        if near := get_close_matches(folder.name, names, 1, 0.85):
            refuse("view_for_folder", path=folder, view=names[near[0]])


def refuse_non_traces(command: str, paths: Sequence[str]) -> None:
    """Raise UsageError if a command for traces gets a report, a folder, or another file of a trace."""
    for path in paths:
        if has_report_name(Path(path)):
            refuse("report_for_trace", path=path, command=command)
        if Path(path).is_dir():
            traces = [str(one) for one in sorted(Path(path).glob("*")) if is_trace_name(one.name)]
            hint = (
                f"give a trace in it, such as {list_some(traces)}" if traces else "it has no traces"
            )
            refuse("folder_for_trace", path=path, hint=hint)
        if is_trace_name(path) and ".prv" not in Path(path).suffixes:
            trace = name_beside(Path(path), ".prv")
            refuse("perfetto_trace", path=path, command=command, trace=trace)
        if Path(path).suffix.lower() in PARTS:
            refuse("part_of_trace", path=path, trace=Path(path).with_suffix(".prv"))


def refuse_traces(command: str, paths: Sequence[str]) -> None:
    """Raise UsageError if a command for reports gets a trace."""
    for path in paths:
        if is_trace_name(path):
            reports = _read_report_names(Path(path))
            refuse("trace_for_reports", path=path, command=command, reports=reports)


def _read_report_names(trace: Path) -> str:
    """Return the names of the reports, from the file beside a trace."""
    beside = name_beside(trace, ".nsys2prv.json")
    try:
        names = [str(entry["name"]) for entry in json.loads(beside.read_bytes())["inputs"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return f": {list_some(names, separator=' ')}"


def is_trace_name(path: str) -> bool:
    """Return True if the name is that of a trace."""
    return path.lower().endswith(TRACES)
