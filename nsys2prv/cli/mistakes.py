"""Refuse command lines that are probably mistakes, and say what is probably meant."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path, PureWindowsPath

from nsys2prv._util.errors import UsageError
from nsys2prv._util.files import has_report_name, name_beside
from nsys2prv._util.text import list_some

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


def check_conversion(paths: Sequence[str], kinds: Sequence[str], commands: Collection[str]) -> None:
    """Raise UsageError for arguments in the place of reports that are something else: commands,
    kinds of events, or traces. kinds: the values of -t.
    """
    reports, output = paths[:-1], paths[-1]
    for word in reports:
        if word in commands and not Path(word).exists():
            raise UsageError(
                f"{word}: there is no such file; give a command before its options, as in `nsys2prv {word} ... -q`"
            )
    for path in filter(is_trace_name, reports):
        trace = output if is_trace_name(output) else path
        raise UsageError(
            f"{path}: is a trace, not a report; the trace to write comes last: nsys2prv REPORT... {trace}"
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
    """Raise UsageError where the trace to write is a folder, or has the ending of another sort of
    file.
    """
    path = Path(output)
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
    """Raise UsageError where the folder for views is a file, or the name of a view."""
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
    """Raise UsageError for a file to write that is given like a further report. outputs: the
    options that name such files.
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
