"""Command lines that cannot mean what they say, and what was probably meant."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path

from nsys2prv._util.errors import UsageError
from nsys2prv._util.files import named_as_report

TRACES = (".prv", ".prv.gz")
#: Words that people take for commands, and what does it.
WORDS = {
    "list": "nsys2prv --list REPORT...",
    "convert": "nsys2prv REPORT... OUTPUT",
    "kinds": "nsys2prv --kinds",
    "version": "nsys2prv --version",
    "views": "nsys2prv cfgs",
    "compare": "nsys2prv diff",
    "analyse": "nsys2prv report",
    "analyze": "nsys2prv report",
    "stats": "nsys2prv report",
    "export": "nsys2prv REPORT... OUTPUT",
}
#: Reports named in one message.
MOST = 3


def check_command(word: str, commands: Collection[str]) -> None:
    """Raise UsageError for a first argument that is nearly a command, and neither an option nor a
    file.
    """
    if word.startswith("-") or set(word) & set("./*?[") or Path(word).exists():
        return
    if word in WORDS:
        raise UsageError(
            f"{word}: there is no such command and no such file; write `{WORDS[word]}`"
        )
    if near := get_close_matches(word.lower(), commands, 1):
        raise UsageError(
            f"{word}: there is no such command and no such file; did you mean `nsys2prv {near[0]}`?"
        )


def check_kinds(words: Sequence[str], paths: Sequence[str]) -> None:
    """Raise UsageError for a report given as kinds of events, as in `-t rank0.sqlite out.prv`.
    words: the values of -t.
    """
    for word in words:
        if named_as_report(Path(word)) or is_trace(word):
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
    if is_trace(paths[0]) and named_as_report(Path(output)):
        raise UsageError(
            f"{paths[0]}: is a trace, not a report; the trace to write comes last: nsys2prv REPORT... {paths[0]}"
        )
    for path in reports:
        if is_trace(path):
            raise UsageError(
                f"{path}: is a trace, not a report; a conversion writes one trace, named last (here {output})"
            )
    if kinds and (further := _kinds_among(reports)):
        joined = ",".join([*kinds, *further])
        raise UsageError(
            f"{further[0]}: there is no such file; if it is a kind of events, join kinds by commas: -t {joined}"
        )


def _kinds_among(paths: Sequence[str]) -> list[str]:
    names = [
        path
        for path in paths
        if path.replace("_", "").replace("-", "").isalnum() and not Path(path).exists()
    ]
    if not names:
        return []
    from nsys2prv.events.selection import names as kinds

    known = set(kinds())
    return [name for name in names if name.lstrip("-") in known]


def check_folder_of_views(folder: Path) -> None:
    """Raise UsageError where the name is that of a file."""
    if is_trace(str(folder)):
        raise UsageError(
            f"{folder}: is a trace; `nsys2prv cfgs --for {folder}` lists the views that show something of it"
        )
    if folder.is_file() or (folder.suffix[1:].isalpha() and not folder.exists()):
        raise UsageError(
            f"{folder}: is the name of a file; give the folder to copy the views to, as in `nsys2prv cfgs views`"
        )


def check_traces(command: str, paths: Sequence[str]) -> None:
    """Raise UsageError where a report is given to a command that takes traces."""
    for path in paths:
        if named_as_report(Path(path)):
            raise UsageError(
                f"{path}: is a report; nsys2prv {command} takes the trace that is made of it, as in out.prv"
            )


def check_reports(command: str, paths: Sequence[str]) -> None:
    """Raise UsageError where a trace is given to a command that takes the reports it was made of."""
    for path in paths:
        if is_trace(path):
            raise UsageError(
                f"{path}: is a trace; nsys2prv {command} takes the reports that it was made of{_made_of(Path(path))}"
            )


def _made_of(trace: Path) -> str:
    """Return the reports that the file beside a trace names."""
    beside = trace.with_name(trace.name.removesuffix(".gz").removesuffix(".prv") + ".nsys2prv.json")
    try:
        names = [str(found["name"]) for found in json.loads(beside.read_bytes())["inputs"]]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return f": {' '.join(names[:MOST])}{more}"


def is_trace(path: str) -> bool:
    """True if the name is that of a Paraver trace."""
    return path.lower().endswith(TRACES)
