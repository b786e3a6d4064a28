"""What people type who know other tools: options of BSC's nsys2prv and names of nsys stats, and what does the same here."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from nsys2prv.errors import UsageError


class Habit(NamedTuple):
    """An option that is none here. value: whether it takes one. here: what to do instead, for people."""

    options: tuple[str, ...]
    value: bool
    here: str


HABITS = (
    Habit(("-f", "--filter-nvtx"), True, "use --region NVTX[:N]: of ranges of this name in all domains the N-th on each thread, from 1"),
    Habit(("--time-limit-start", "--time-limit-end"), True, "use --time STARTns:ENDns, in the time of the trace, not each report's own"),
    Habit(("-s", "--sort"), False, "nothing is needed, traces are always sorted by time"),
    Habit(("--force-sqlite",), False, "nothing is needed, reports that are exported already are read as they are"),
    Habit(("-N", "--thread-name"), False, "nothing is needed, threads have their names in the .row wherever a report tells them"),
    Habit(("-c", "--clean"), False, "nothing is needed, no exports or temporary files are left behind"),
    Habit(("--exclude-kernels",), False, "use -t -kernels"),
    Habit(("--filter-cuda-calls-duration",), True, "use --min-duration cuda_api_trace=NS"),
    Habit(("--timing",), False, "use -v, which tells where the time went"),
    Habit(("--dry-run",), False, "use --list REPORT..., which converts nothing"),
    Habit(("--config",), True, "use options of the command line, and --nvtx-rules FILE for names of NVTX ranges"),
    Habit(("-L", "--label", "--description-text", "--description-file"), True, "labels and descriptions are not taken"),
)
#: Report of nsys stats -> the kinds that hold its rows, where the nearest name of a kind would mislead.
STATS = {
    "cuda_gpu_trace": "kernels,memory",
    "cuda_gpu_sum": "kernels,memory",
    "cuda_gpu_kern_sum": "kernels",
    "cuda_gpu_mem_time_sum": "memory",
    "cuda_gpu_mem_size_sum": "memory",
    "cuda_kern_exec_trace": "cuda_api_trace,kernels",
    "cuda_kern_exec_sum": "cuda_api_trace,kernels",
    "nvtx_gpu_proj_trace": "nvtx_on_gpu",
    "nvtx_gpu_proj_sum": "nvtx_on_gpu",
    "nvtx_kern_sum": "nvtx_on_gpu",
}


class _Elsewhere(argparse.Action):
    """Says what to do instead."""

    def __init__(self, option_strings: Sequence[str], dest: str, habit: Habit) -> None:
        super().__init__(option_strings, dest, nargs="?" if habit.value else 0, help=argparse.SUPPRESS, default=argparse.SUPPRESS)
        self.habit = habit

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object,
                 option_string: str | None = None) -> NoReturn:
        raise UsageError(f"{option_string} is an option of BSC's nsys2prv; here {self.habit.here} (docs/from-bsc.md)")


def add_habits(parser: argparse.ArgumentParser) -> None:
    """Let the parser answer to these options, which its help does not show."""
    for habit in HABITS:
        parser.add_argument(*habit.options, action=_Elsewhere, habit=habit)
