"""Options of BSC's nsys2prv and report names of nsys stats, mapped to their equivalents here."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from nsys2prv._util.errors import UsageError


class LegacyOption(NamedTuple):
    """An option that is none here. value: whether it takes one. here: what to do instead, for
    people.
    """

    options: tuple[str, ...]
    value: bool
    here: str


HABITS = (
    LegacyOption(
        ("-f", "--filter-nvtx"),
        True,
        "use --region NVTX[:N]: of ranges of this name in all domains the N-th on each thread, from 1",
    ),
    LegacyOption(
        ("--time-limit-start", "--time-limit-end"),
        True,
        "use --time STARTns:ENDns, in the time of the trace, not each report's own",
    ),
    LegacyOption(("-s", "--sort"), False, "nothing is needed, traces are always sorted by time"),
    LegacyOption(
        ("--force-sqlite",),
        False,
        "nothing is needed, reports that are exported already are read as they are",
    ),
    LegacyOption(
        ("-N", "--thread-name"),
        False,
        "nothing is needed, threads have their names in the .row wherever a report tells them",
    ),
    LegacyOption(
        ("-c", "--clean"), False, "nothing is needed, no exports or temporary files are left behind"
    ),
    LegacyOption(("--exclude-kernels",), False, "use -t -kernels"),
    LegacyOption(("--filter-cuda-calls-duration",), True, "use --min-duration cuda_api_trace=NS"),
    LegacyOption(("--timing",), False, "use -v, which tells where the time went"),
    LegacyOption(("--dry-run",), False, "use --list REPORT..., which converts nothing"),
    LegacyOption(
        ("--config",),
        True,
        "use options of the command line, and --nvtx-rules FILE for names of NVTX ranges",
    ),
    LegacyOption(
        ("-L", "--label", "--description-text", "--description-file"),
        True,
        "labels and descriptions are not taken",
    ),
)


class _Elsewhere(argparse.Action):
    """Says what to do instead."""

    def __init__(self, option_strings: Sequence[str], dest: str, habit: LegacyOption) -> None:
        super().__init__(
            option_strings,
            dest,
            nargs="?" if habit.value else 0,
            help=argparse.SUPPRESS,
            default=argparse.SUPPRESS,
        )
        self.habit = habit

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> NoReturn:
        raise UsageError(
            f"{option_string} is an option of BSC's nsys2prv; here {self.habit.here} (docs/from-bsc.md)"
        )


def add_habits(parser: argparse.ArgumentParser) -> None:
    """Let the parser answer to these options, which its help does not show."""
    for habit in HABITS:
        parser.add_argument(*habit.options, action=_Elsewhere, habit=habit)
