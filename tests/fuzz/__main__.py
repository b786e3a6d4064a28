"""Run ``python -m tests.fuzz --minutes N [--seed S] [--keep DIR]``: as many inputs as fit. The exit
status is 1 if any was handled wrongly.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from .bases import ROOT, make_bases

# Where pytest finds what tests have in common.
sys.path.insert(0, str(ROOT / "tests"))

from . import batch, runner

MANY = 1 << 60


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, help="how long; without it, as many inputs as --count says"
    )
    parser.add_argument("--count", type=int, default=MANY, help="how many inputs at most")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="the first input's number: the same number makes the same input",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="copy inputs that were handled wrongly to this folder",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=runner.LIMIT,
        metavar="S",
        help="seconds for an input (%(default)g)",
    )
    parser.add_argument("--batch", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.batch:
        first, last = map(int, options.batch.split(":"))
        bases = sorted((options.folder / "bases").iterdir(), key=lambda path: int(path.stem[4:]))
        batch.run_seeds(first, last, bases, options.folder / "work", options.keep)
        return 0
    runner.LIMIT = options.limit
    if options.minutes is None and options.count == MANY:
        parser.error("give --minutes or --count")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        folder = Path(temporary)
        (folder / "bases").mkdir()
        make_bases(folder / "bases")
        until = time.monotonic() + (
            60 * options.minutes if options.minutes is not None else float("inf")
        )
        tally = runner.run_all(
            range(options.seed, options.seed + options.count),
            folder,
            options.keep and options.keep.resolve(),
            until,
            report_progress,
        )
    return int(bool(tally.faults))


def report_progress(tally: runner.Tally) -> None:
    """Print the progress, and the inputs since handled wrongly."""
    for seed in list(tally.faults)[tally.told :]:
        print(f"seed {seed}:", *tally.faults[seed], sep="\n    ")
    tally.told = len(tally.faults)
    print(
        f"{tally.inputs} inputs, {len(tally.faults)} handled wrongly, slowest {tally.slowest:.1f} s; exit statuses "
        + ", ".join(f"{status}: {count}" for status, count in sorted(tally.statuses.items())),
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
