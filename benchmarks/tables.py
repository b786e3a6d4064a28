"""Results as text: Markdown tables, and on what they were measured."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from inputs import ROOT
from measure import Cell
from peers import Comparison

INTRODUCTION = """# Measured

Written by `python benchmarks/run.py --results FILE`. Compare the figures of one run with each other, not those of two
runs: machines differ, and so does their load. A row is one of an event table that the conversion reads; by default all kinds of events are
written. The floors are what reading the reports' bytes and writing the trace's bytes cost, and nothing else. Other converters get the same
report and write the kinds that all of them know, without NCCL's calls; `nsys_stats.py` answers what nsys2prv asks of `nsys stats`.
nsys-chrome is the program in the package `ncompass`; it writes Chrome's JSON, gzipped, and reads no GPU metrics.
"""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Text left in the first column, numbers right in the others."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        return (
            "| "
            + " | ".join(
                cell.ljust(width) if number == 0 else cell.rjust(width)
                for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
            )
            + " |"
        )

    rule = (
        "|"
        + "|".join(
            "-" * (width + 2) if number == 0 else "-" * (width + 1) + ":"
            for number, width in enumerate(widths)
        )
        + "|"
    )
    return "\n".join([line(head), rule, *map(line, rows)])


def conditions() -> str:
    """The machine, its load, and the versions of what matters."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(
        f"{name} {metadata.version(name)}"
        for name in ("numpy", "polars", "adbc-driver-sqlite", "isal")
    )
    compiled = any((ROOT / "nsys2prv" / "_util" / "native").glob("_core.*.so"))
    writer = "compiled" if compiled else "polars"
    return (
        f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC; {len(os.sched_getaffinity(0))} CPUs ({model}), {memory:.0f} GiB; "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {packages}; lines by the {writer} writer; "
        f"Linux {platform.release()}; "
        f"load of the machine as it began: {os.getloadavg()[0]:.1f}"
    )


def cell_text(cell: Cell) -> str:
    """A job's table, and what follows from it."""
    job = cell.job
    first = next(iter(cell.ways.values()))
    rows = []
    for name, way in cell.ways.items():
        wall, cpu = way.median("wall"), way.median("cpu")
        rows.append(
            [
                name,
                f"{wall:.2f}",
                f"{cpu:.2f}",
                f"{job.rows / wall / 1e6:.2f}",
                f"{way.lines / wall / 1e6:.2f}",
                f"{way.bytes / wall / 1e6:.0f}",
                f"{cpu / job.rows * 1e6:.2f}",
                f"{cpu / cell.floors(0):.2f}",
                f"{way.peak / 2**20:.0f}",
                f"{way.bytes / job.kernels:.0f}",
            ]
        )
    for name, runs in (("floor: bytes in", cell.read), ("floor: bytes out", cell.write)):
        cpu, wall = (statistics.median(run[which] for run in runs) for which in (0, 1))
        rows.append([name, f"{wall:.2f}", f"{cpu:.2f}", *[""] * 7])
    head = [
        "",
        "wall s",
        "CPU s",
        "M rows/s",
        "M lines/s",
        "MB/s",
        "CPU µs/row",
        "CPU / floors",
        "peak MiB",
        "trace B/kernel",
    ]
    text = [
        f"### {job.rows:,} rows of {len(job.reports):,} ranks",
        "",
        f"{job.kernels:,} kernels, {job.size / 1e6:,.0f} MB of SQLite; {first.lines:,} lines; medians of {len(first.runs)} rounds, "
        "peak memory the largest.",
        "",
        table(head, rows),
    ]
    return "\n".join([*text, "", *_ratios(cell)])


def _ratios(cell: Cell) -> list[str]:
    ways = cell.ways
    ratios = []
    for what, over, under in (
        ("one process over two", "-j 1", "-j 2"),
        (".prv.gz over .prv", "-z -j 2", "-j 2"),
        ("threads over processes", "threads", "-j 2"),
        ("Parquet over SQLite", "Parquet -j 2", "-j 2"),
    ):
        if over in ways and under in ways:
            values = [
                ways[over].median(name) / ways[under].median(name) for name in ("wall", "cpu")
            ]
            ratios.append(
                f"* {what}: {values[0]:.2f} of the wall time, {values[1]:.2f} of the CPU time"
            )
    if "-j 2" in ways:
        ratios.append(
            f"* first byte of the .prv after {ways['-j 2'].median('first'):.2f} s of {ways['-j 2'].median('wall'):.2f} s (-j 2)"
        )
    return ratios


def growth_text(cells: Sequence[Cell]) -> str:
    """Cost per row and memory over jobs."""
    rows = []
    for cell in cells:
        way, rows_read = next(iter(cell.ways.values())), cell.job.rows
        rows.append(
            [
                f"{rows_read:,} rows, {len(cell.job.reports):,} ranks",
                f"{way.median('cpu') / rows_read * 1e6:.2f}",
                f"{cell.floors(0) / rows_read * 1e6:.2f}",
                f"{way.peak / 2**20:.0f}",
            ]
        )
    return "\n".join(
        [
            f"### Over jobs ({next(iter(cells[0].ways))})",
            "",
            table(["", "CPU µs/row", "floors µs/row", "peak MiB"], rows),
        ]
    )


def peers_text(found: Comparison) -> str:
    """Converters side by side on one report."""
    ours = next(peer for peer in found.peers if peer.name == "ours")
    rows = []
    for peer in found.peers:
        wall, cpu = peer.median("wall"), peer.median("cpu")
        rows.append(
            [
                peer.name,
                f"{peer.rows:,}",
                f"{wall:.2f}",
                f"{cpu:.2f}",
                f"{peer.rows / wall:,.0f}",
                f"{wall / ours.median('wall'):.1f}",
                f"{cpu / ours.median('cpu'):.1f}",
                f"{peer.median('peak') / 2**20:.0f}",
                *([f"{size:.0f}" for size in peer.kernel_bytes] if peer.kernel_bytes else ["", ""]),
                *(
                    [
                        f"{min(load.cpu for load in peer.loads):.2f}",
                        f"{max(load.peak for load in peer.loads) / 2**20:.0f}",
                    ]
                    if peer.loads
                    else ["", ""]
                ),
            ]
        )
    cpu, wall = (statistics.median(floors[which] for floors in found.floors) for which in (0, 1))
    rows.append(
        [
            "floor: bytes in, bytes out",
            "",
            f"{wall:.2f}",
            f"{cpu:.2f}",
            "",
            f"{wall / ours.median('wall'):.2f}",
            f"{cpu / ours.median('cpu'):.2f}",
            *[""] * 5,
        ]
    )
    head = [
        "",
        "rows read",
        "wall s",
        "CPU s",
        "rows/s",
        "wall / ours",
        "CPU / ours",
        "peak MiB",
        "B/kernel",
        "with call, line",
        "Paraver CPU s",
        "Paraver MiB",
    ]
    return "\n".join(
        [
            f"### Converters on the same report: {found.job.rows:,} rows, {found.job.size / 1e6:,.0f} MB, one rank",
            "",
            f"Medians of {len(ours.runs)} rounds of whole commands. The last columns: bytes of the Paraver trace for a "
            "kernel's own records, and with its launching call's and the line between them; and what paramedir takes to "
            "load the trace and show one event type (least CPU time, largest memory).",
            "",
            table(head, rows),
        ]
    )
