"""``python -m tools.samples OUTDIR [options]``, from the repository's folder."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from .additions import ADDITIONS
from .data import DATA
from .options import Options
from .simulate import generate


def _read_numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _read_additions(text: str) -> tuple[str, ...]:
    return tuple(ADDITIONS) if text == "all" else tuple(text.split(","))


def build_parser() -> argparse.ArgumentParser:
    """Build a parser with an option for every field of :class:`Options`."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.samples",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description="Generate Nsight Systems exports of an imagined training job, and their truth.",
    )
    parser.add_argument("outdir", type=Path, help="folder for rank0.sqlite ... and truth.json")
    for one in fields(Options):
        text, *choices = DATA["options"][one.name]
        more: dict[str, Any] = {"help": text, "default": one.default}
        if isinstance(one.default, bool):
            more["action"] = argparse.BooleanOptionalAction
        elif choices:
            more["choices"] = choices
        elif "tuple" in str(one.type):
            more["type"] = _read_additions if one.name == "additions" else _read_numbers
        else:
            more["type"] = float if "float" in str(one.type) else int
        if one.name.endswith("_metrics"):  # samples per second, 1000 unless told
            more |= {"nargs": "?", "const": 1000.0}
        parser.add_argument(f"--{one.name.replace('_', '-')}", **more)
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Generate a set, and report the files written."""
    parser = build_parser()
    chosen = vars(parser.parse_args(arguments))
    folder = chosen.pop("outdir")
    try:
        truth = generate(folder, Options(**chosen))
    except ValueError as error:
        parser.error(str(error))
    for rank in truth["ranks"]:
        print(f"{folder / rank['report']}  {rank['host']}  {rank['event_rows']:,} event rows")


if __name__ == "__main__":
    main()
