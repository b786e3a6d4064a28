"""``python -m tools.samples OUTDIR [options]``, from the repository's folder."""

from __future__ import annotations

import argparse
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

from .options import Options
from .simulate import ADDITIONS, TRUTH, generate


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _additions(text: str) -> tuple[str, ...]:
    return tuple(ADDITIONS) if text == "all" else tuple(text.split(","))


def build_parser() -> argparse.ArgumentParser:
    """A parser with an option for every field of :class:`Options`."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.samples",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description="Generate Nsight Systems exports of an imagined training job, and their truth.",
    )
    parser.add_argument("outdir", type=Path, help="folder for rank0.sqlite ... and truth.json")
    for one in fields(Options):
        text, choices, flag = (one.metadata[key] for key in ("help", "choices", "flag"))
        name, more = one.name.replace("_", "-"), dict[str, Any](help=text, default=one.default)
        if isinstance(one.default, bool):
            more["action"] = argparse.BooleanOptionalAction
        elif choices:
            more["choices"] = choices
        else:
            several = _additions if name == "additions" else _numbers
            single = float if "float" in str(one.type) else int
            more["type"] = several if "tuple" in str(one.type) else single
            more |= {"nargs": "?", "const": flag} if flag else {}
        parser.add_argument(f"--{name}", **more)
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Generate a set, and tell what was written."""
    parser = build_parser()
    chosen = vars(parser.parse_args(arguments))
    folder: Path = chosen.pop("outdir")
    begin = time.perf_counter()
    try:
        truth = generate(folder, Options(**chosen))
    except ValueError as error:
        parser.error(str(error))
    for rank in truth["ranks"]:
        size = (folder / rank["report"]).stat().st_size
        print(
            f"{folder / rank['report']}  {rank['host']}  {rank['event_rows']:,} event rows  {size / 1e6:.1f} MB"
        )
    print(
        f"{folder / TRUTH}  {truth['collectives_total']:,} collectives, in {time.perf_counter() - begin:.1f} s"
    )


if __name__ == "__main__":
    main()
