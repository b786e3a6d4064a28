"""Speed and memory of conversions, beside the floors of reading their inputs' bytes and writing
their traces', in the same run.

    python benchmarks/run.py                                        1 M and 10 M rows of 8 ranks
    python benchmarks/run.py --sizes 1m --ranks 1,8,64,256,1000     over ranks
    python benchmarks/run.py --peers 1m,4m --peer-runs 1            other converters too, from the package index, on the same reports
    python benchmarks/run.py --results FILE                        and write what was found to this file

Machines are noisy: compare the ratios of one run, never absolute figures of two. Needs Linux
(/proc).
"""

from __future__ import annotations

import argparse
import compileall
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import inputs
import peers
import tables
from measure import PARQUET, WAYS, Cell, measure

ALL = [*WAYS, PARQUET]
#: Parquet is made in memory, a table at a time.
MOST_ROWS_AS_PARQUET = 20_000_000


def _size(text: str) -> int:
    """Rows: 20k, 1m, 1500000."""
    number, unit = (text[:-1], text[-1].lower()) if text[-1:].lower() in ("k", "m") else (text, "")
    return int(float(number) * {"": 1, "k": 1_000, "m": 1_000_000}[unit])


def _sizes(text: str) -> list[int]:
    return [_size(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--sizes",
        type=_sizes,
        default=[1_000_000, 10_000_000],
        help="rows of a job: 1m,10m,100m (default: 1m,10m)",
    )
    options.add_argument(
        "--ranks",
        type=lambda text: [int(part) for part in text.split(",")],
        default=[8],
        help="each size with each of these (default: 8)",
    )
    options.add_argument(
        "--runs", type=int, default=3, help="rounds, of which medians are taken (default: 3)"
    )
    options.add_argument(
        "--ways",
        type=lambda text: [part.strip() for part in text.split(",")],
        default=ALL,
        help=f"of: {', '.join(ALL)} (default: all)",
    )
    options.add_argument(
        "--peers",
        type=_sizes,
        default=[],
        help="install other converters and run them too, on one rank of so many rows",
    )
    options.add_argument(
        "--peer-runs",
        type=int,
        default=1,
        help="rounds of these; the slowest takes minutes (default: 1)",
    )
    options.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="folder for inputs and peers, used again when they are there",
    )
    options.add_argument(
        "--work", type=Path, metavar="DIR", help="folder for traces (default: a temporary one)"
    )
    options.add_argument(
        "--results", type=Path, metavar="FILE", help="write the results to this file, too"
    )
    options.add_argument(
        "--note", default="", help="a line for the results: what else the machine did"
    )
    given = options.parse_args()
    if unknown := set(given.ways) - set(ALL):
        options.error(
            f"--ways knows no {', '.join(sorted(unknown))}; it takes of: {', '.join(ALL)}"
        )
    return given


@contextmanager
def folder_of(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
    else:
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)


def cells(asked: argparse.Namespace, kept: Path, work: Path) -> Iterator[Cell]:
    """Every job, largest last."""
    for size in sorted(asked.sizes):
        for ranks in sorted(asked.ranks):
            free, needed = shutil.disk_usage(work).free, sum(inputs.DISK_PER_ROW) * size
            if free < needed:
                print(
                    f"{size:,} rows of {ranks} ranks are left out: they need about {needed / 1e9:.0f} GB, {work} has {free / 1e9:.0f}\n"
                )
                continue
            folder = kept / f"{size}x{ranks}"
            job = inputs.generate(folder, size, ranks)
            wanted = PARQUET in asked.ways and job.rows <= MOST_ROWS_AS_PARQUET
            yield measure(
                job,
                inputs.parquet(job.reports, folder) if wanted else [],
                work,
                asked.runs,
                asked.ways,
            )


def main() -> None:
    asked = arguments()
    # As pip does where it installs a package.
    compileall.compile_dir(inputs.ROOT / "nsys2prv", quiet=2)
    begun = tables.conditions()
    said = [f"## {begun}", "", *([asked.note, ""] if asked.note else [])]
    print("\n".join(said))
    with folder_of(asked.keep) as kept, folder_of(asked.work) as work:
        done = []
        for cell in cells(asked, kept, work):
            done.append(cell)
            said += [tables.cell_text(cell), ""]
            print(said[-2] + "\n", flush=True)
        if len(done) > 1:
            said += [tables.growth_text(done), ""]
            print(said[-2] + "\n", flush=True)
        for size in asked.peers:
            report = inputs.generate(kept / f"peers-{size}", size, 1)
            said += [tables.peers_text(peers.measure(report, kept, asked.peer_runs)), ""]
            print(said[-2] + "\n", flush=True)
    if asked.results:
        asked.results.write_text("\n".join([tables.INTRODUCTION, *said]), encoding="utf-8")


if __name__ == "__main__":
    main()
