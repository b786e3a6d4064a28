"""The command line: arguments in, options out, messages and exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches

from nsys2prv._util import signals
from nsys2prv._util.errors import Nsys2prvError, UsageError
from nsys2prv._util.memory import check_address_space, keep_freed_memory
from nsys2prv.cli.arguments import make_conversion_parser
from nsys2prv.cli.commands import (
    check_traces_given,
    compare_jobs,
    copy_views,
    extract_reports,
    merge_stores,
    parse_conversion,
    print_message,
    report_job,
    run_conversion,
    show_clocks,
)
from nsys2prv.cli.parsing import WORDS, check_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    try:
        return _run(arguments)
    except signals.EndedBySignal as ended:
        print_message("error", str(ended))
        return ended.exit_code
    finally:
        signals.ignore_signals()


def _run(arguments: Sequence[str] | None) -> int:
    """Run the command; returns the exit status. May raise
    :class:`nsys2prv._util.signals.EndedBySignal`.
    """
    keep_freed_memory()
    # Before numpy is imported: its matrices here are of a few rows, and it starts a thread for
    # every CPU.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        if not {"-h", "--help", "--version"} & {*words} and words[:1] != ["help"]:
            check_address_space()
        command = COMMANDS.get(words[0]) if words else None
        if words and not command:
            check_command(words[0], COMMANDS)
        status = command(words[1:]) if command else _convert(words)
        sys.stdout.flush()
        return status
    except Nsys2prvError as error:
        print_message("error", str(error))
        return error.exit_code
    except KeyboardInterrupt:
        print_message("error", "interrupted; nothing was written")
        return 130
    except MemoryError:
        print_message("error", "out of memory; try fewer workers, -j 1")
        return 1
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:
        # What cannot be printed: a conversion names its own files.
        print(f"nsys2prv: error: standard output: {error.strerror or error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1


def _convert(words: list[str]) -> int:
    return run_conversion(parse_conversion("", words))


def _print_help(arguments: list[str]) -> int:
    """Run `nsys2prv help [COMMAND]`."""
    if not arguments or arguments[0] == "help":
        make_conversion_parser().print_help()
        return 0
    if arguments[0] not in COMMANDS:
        near = get_close_matches(arguments[0].lower(), COMMANDS, 1)
        if near:
            instead = f"did you mean `nsys2prv help {near[0]}`?"
        elif arguments[0] in WORDS:
            instead = f"write `{WORDS[arguments[0]]}`; `nsys2prv help` explains it"
        else:
            instead = f"the commands are {', '.join(COMMANDS)}"
        raise UsageError(f"{arguments[0]}: there is no such command; {instead}")
    return COMMANDS[arguments[0]](["--help"])


#: What stands before everything else on the command line.
COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "report": report_job,
    "cfgs": copy_views,
    "diff": compare_jobs,
    "clock": show_clocks,
    "check": check_traces_given,
    "extract": extract_reports,
    "merge": merge_stores,
    "help": _print_help,
}
