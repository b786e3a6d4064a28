"""The arguments of the command line that select a part of a job."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsys2prv._util.errors import UsageError
from nsys2prv._util.text import parse_size
from nsys2prv.cli.parsing import BOTH, WRITING, Group, Parser

if TYPE_CHECKING:
    from nsys2prv.conversion.cut_plan import CutOptions


def add_cut(parser: Parser, command: str) -> None:
    """Add the group of arguments."""
    less = Group(parser, "a part of the job (docs/cutting.md)", command)
    less.value(
        "--time",
        "FROM:TO",
        "convert only this time of the trace, in seconds, with a unit (ns, us, ms, s) or in %%; one end may be left out, as in 10:",
        WRITING,
        default="",
    )
    less.value(
        "--region",
        "NVTX[:N]",
        "convert only from the first begin to the last end of the NVTX ranges with this name (a glob pattern); NAME:N takes "
        "the N-th on each thread, NAME:N-M the N-th to M-th, counted from 1",
        WRITING,
        default="",
    )
    less.flag(
        "--keep-time", "keep the times of the whole trace; default: the part begins at 0", WRITING
    )
    less.values("--ranks", "LIST", "convert only these ranks, as in 0-7,64", BOTH)
    less.values("--hosts", "LIST", "convert only reports of these hosts, as in node01,'gpu*'", BOTH)
    less.values(
        "--devices",
        "LIST",
        "convert only these GPUs: their numbers, or the first 6 or more characters of their UUIDs",
        WRITING,
    )
    less.flag("--no-args", "write events without their attributes", WRITING)
    less.values(
        "--args",
        "KIND=NAMES",
        "keep only these attributes of this kind, as in kernels=class,registers; default: all; repeatable",
        WRITING,
        type=_parse_fields,
    )
    less.flag("--no-lines", "write no communication lines", WRITING)
    less.values(
        "--sample",
        "KIND=N",
        "keep at most N samples per second of each metric of this kind; default: all; repeatable",
        WRITING,
        type=_parse_rate,
    )
    less.value(
        "--max-size",
        "SIZE",
        "leave out less important events until the .prv (before compression) has at most this size, as in 500MB or 2GB",
        WRITING,
        type=_parse_size,
    )


def make_cut_options(options: argparse.Namespace) -> CutOptions:
    """Return the cut options that the arguments ask for."""
    from nsys2prv.conversion.cut_plan import CutOptions

    return CutOptions(
        time=options.time,
        region=options.region,
        keep_time=options.keep_time,
        ranks=split_list("--ranks", options.ranks),
        hosts=split_list("--hosts", options.hosts),
        devices=split_list("--devices", options.devices),
        arguments=not options.no_args,
        fields=dict(options.args),
        lines=not options.no_lines,
        rates=dict(options.sample),
        max_size=options.max_size,
    )


def join_kind_options(arguments: list[str]) -> list[str]:
    """Join `-t -nvtx` to one word: argparse would take `-nvtx` for an option."""
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
    """Return the values of -t, one by one. Raises UsageError where -t is given and names none, as
    with a variable that is not set.
    """
    kinds = tuple(word.strip() for text in lists for word in text.split(",") if word.strip())
    if lists and not kinds:
        raise UsageError(
            "-t names no kind of events; write them, as in -t kernels,nvtx, or leave -t out to have all"
        )
    return kinds


def split_list(option: str, lists: Sequence[str]) -> tuple[str, ...]:
    """Return the entries of lists separated by commas. Raises UsageError for an empty one."""
    entries = tuple(word.strip() for text in lists for word in text.split(","))
    if not all(entries):
        raise UsageError(f"{option} {','.join(lists)}: an entry of the list is empty")
    return entries


def _parse_fields(text: str) -> tuple[str, tuple[str, ...]]:
    kind, _, names = text.partition("=")
    if not kind or not names:
        raise UsageError(
            f"--args {text}: give a kind and names of its attributes, as in kernels=class,registers"
        )
    return kind, tuple(name.strip() for name in names.split(",") if name.strip())


def _parse_rate(text: str) -> tuple[str, int]:
    kind, _, rate = text.partition("=")
    if not kind or not rate.isdecimal() or len(rate) > 10:
        raise UsageError(
            f"--sample {text}: give a kind and how many samples a second may stay, as in gpu_metrics=100"
        )
    return kind, int(rate)


def _parse_size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError:
        raise UsageError(f"--max-size {text}: give a size such as 500MB or 2GB") from None
