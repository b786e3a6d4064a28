"""Compute the static text of a page: the division of time, findings and efficiencies; for a study,
links to the pages of its runs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from msgspec import Struct

from nsys2prv._util.text import format_count, format_nanoseconds
from nsys2prv.conversion.quality import QualityNote, format_quality
from nsys2prv.figures.result import OUTSIDE, Finding
from nsys2prv.figures.study_model import (
    Row,
    Run,
    list_known_rows,
    rate_efficiency,
)
from nsys2prv.figures.time_division import HOST_PARTS, PARTS
from nsys2prv.show.finished_job import FinishedJob
from nsys2prv.show.page.excerpts import Moment
from nsys2prv.show.text import use_micro_sign

#: Bars of single GPUs; of more the mean of each host.
MOST_BARS = 16
#: End of the title of a page of `report`, and the number of bytes at the start of the file that contain it.
REPORT_TITLE, HEAD = " - nsys2prv report</title>", 4096
#: Parts in which a GPU computes, or a rank without any is in MPI.
USEFUL = ("compute", "both", "mpi")
#: Width of bars.
ACROSS = 1000


class Part(Struct, frozen=True):
    """A part of a bar: its name, color, share and position."""

    #: Of PARTS or HOST_PARTS.
    name: str
    title: str
    colour: str
    #: Of the whole bar.
    share: float
    #: Its begin (of ACROSS).
    x: float
    time: str


class Bar(Struct, frozen=True):
    """The time of one or several GPUs, divided into parts."""

    label: str
    #: Number of the GPUs, or ranks.
    count: int
    parts: Sequence[Part]

    @property
    def useful(self) -> float:
        """Share of the time with computation; without GPU work, with MPI."""
        return sum(part.share for part in self.parts if part.name in USEFUL)


def divide_time(job: FinishedJob) -> tuple[Bar | None, list[Bar]]:
    """Return the division of time as bars: one for all GPUs (None without any), and a list with one
    for each GPU or host. If there are many, those with the least computation come first.
    """
    lanes = job.lanes
    if not lanes.height:
        return None, []
    if lanes["device"].count():
        # A GPU that several processes use is one.
        lanes = lanes.unique(["node", "device"], keep="first", maintain_order=True)
    lanes = lanes.filter(pl.col("length_ns") > 0)
    known = {
        name: said for name, said in (PARTS | HOST_PARTS).items() if f"{name}_ns" in lanes.columns
    }
    if not lanes.height or not known:
        return None, []
    noun = "GPU" if lanes["device"].count() else "rank"

    def make_bar(label: str, rows: pl.DataFrame) -> Bar:
        whole, x, parts = max(float(rows["length_ns"].sum()), 1.0), 0.0, []
        for name, (title, colour) in known.items():
            time = float(rows[f"{name}_ns"].sum())
            share = time / whole
            if time > 0:
                mean = format_nanoseconds(time / rows.height)
                parts.append(Part(name, title, colour, share, round(ACROSS * x, 3), mean))
            x += share
        return Bar(label, rows.height, parts)

    mean = f"mean of {format_count(lanes.height, noun)}" if lanes.height > 1 else "all"
    every = make_bar(mean, lanes)
    if lanes.height <= MOST_BARS:
        labels = [" · ".join(filter(None, row)) for row in lanes.select("rank", "device").rows()]
        return every, [make_bar(label, lanes[at]) for at, label in enumerate(labels)]
    nodes = lanes.partition_by("node", maintain_order=True)
    bars = [
        make_bar(f"{rows['node'][0]} · {format_count(rows.height, noun)}", rows) for rows in nodes
    ]
    return every, sorted(bars, key=lambda bar: bar.useful)


def list_cards(job: FinishedJob) -> Iterator[tuple[Finding, str, Moment | None]]:
    """Yield (finding, its savings as text, the moment to look at or None) for each finding."""
    begin, end = job.span
    excerpts, findings = job.excerpts, job.findings
    moments = excerpts.moments if excerpts else [None] * len(findings)
    for finding, moment in zip(findings, moments, strict=True):
        of_job = finding.kind in OUTSIDE or not job.steady
        length = job.description.get("covered_ns", end) if of_job else end - begin
        of = " of the job" if of_job and job.steady else ""
        yield finding, format_nanoseconds(finding.share * length) + of, moment


def list_efficiencies(job: FinishedJob) -> list[tuple[Row, float, str]]:
    """Return (row, value, rating) for each efficiency of the steady state (or the whole job). Each
    is the product of the following ones that are one level deeper.
    """
    known = list_known_rows([job.metrics])
    return [(row, value, rate_efficiency(value)) for row, (value,) in known]


class Roofline(Struct, frozen=True):
    """A plot of operations per second over operations per byte, both in powers of ten, in a picture
    of WIDE x HIGH.
    """

    #: Ticks: place and power of ten.
    across: list[tuple[float, str]]
    up: list[tuple[float, str]]
    #: Limits of GPUs with a type of data: corners of the line, height of its name, name.
    roofs: list[tuple[str, float, str]]
    #: Products: place, radius, whether they are attention with a known mask, and facts.
    points: list[tuple[float, float, float, bool, dict[str, Any]]]


#: Size of a roofline, margins, and the least and the largest radius of a product: areas are as times.
WIDE, HIGH, LEFT, RIGHT, TOP, BOTTOM, SMALLEST, LARGEST = 760, 400, 62, 190, 16, 44, 2.5, 14


def place_products(frame: pl.DataFrame) -> Roofline:
    """Return the roofline plot of products (GEMMs, attention, convolutions). frame: rows of the
    table of products.
    """
    known = frame.filter(pl.col("allowed_tflop_s").is_not_null() & (pl.col("tflop_s") > 0))
    roofs = known.select("data_type", "peak_tflop_s", "memory_gb_s").unique(maintain_order=True)
    turns = (1e3 * roofs["peak_tflop_s"] / roofs["memory_gb_s"]).to_list()
    ways = [*known["flop_per_byte"], *turns], [*known["tflop_s"], *roofs["peak_tflop_s"]]
    lows = [math.floor(math.log10(min(way))) for way in ways]
    highs = [
        max(math.ceil(math.log10(max(way))), low + 1) for way, low in zip(ways, lows, strict=True)
    ]

    def place(side: int, value: float) -> float:
        part = (math.log10(value) - lows[side]) / (highs[side] - lows[side])
        length = (HIGH - TOP - BOTTOM) if side else (WIDE - LEFT - RIGHT)
        return round(HIGH - BOTTOM - length * part if side else LEFT + length * part, 2)

    ticks = [
        [(place(side, 10.0**one), f"{10.0**one:g}") for one in range(low, high + 1)]
        for side, (low, high) in enumerate(zip(lows, highs, strict=True))
    ]
    lines = []
    for turn, (name, peak, memory) in zip(turns, roofs.rows(), strict=True):
        begin = max(10.0 ** lows[0], 1e3 * 10.0 ** lows[1] / memory)
        corners = (begin, begin * memory / 1e3), (turn, peak), (10.0 ** highs[0], peak)
        line = " ".join(f"{place(0, x)},{place(1, y)}" for x, y in corners)
        text = f"{name}: {peak:g} TFLOP/s, {memory / 1e3:.2f} TB/s"
        lines.append((line, place(1, peak), text))
    longest = known["time_ns"].max() or 1
    points = [
        (
            place(0, one["flop_per_byte"]),
            place(1, one["tflop_s"]),
            round(max(LARGEST * math.sqrt(one["time_ns"] / longest), SMALLEST), 2),
            one.get("mask") is not None,
            one,
        )
        for one in known.iter_rows(named=True)
    ]
    return Roofline(ticks[0], ticks[1], lines, points)


class Kernel(Struct, frozen=True):
    """A kernel in the table of the most expensive kernels."""

    #: Column of SHOWN -> value.
    row: dict[str, Any]
    #: Distribution of its durations: from, to, count.
    bins: list[tuple[str, str, int]]


#: Columns of kernels.
SHOWN = ["kernel", "class", "tensor_cores", "count", "time_ns", "time_share"]
SHOWN += ["median_ns", "min_ns", "max_ns", "imbalance"]


def list_kernels(job: FinishedJob, most: int = 1500) -> Iterator[Kernel]:
    """Yield the kernels with the most time, at most `most`, with their activity over time."""
    durations = job.find_frame("kernels", "durations")
    bins: dict[str, list[tuple[str, str, int]]] = {}
    for kernel, low, high, count in durations.rows() if durations is not None else ():
        bins.setdefault(kernel, []).append(
            (*(use_micro_sign(format_nanoseconds(one)) for one in (low, high)), count)
        )
    frame = job.find_frame("kernels", "kernels").head(most)
    shown = [name for name in SHOWN if name in frame.columns]
    for row in frame.select(shown).iter_rows(named=True):
        yield Kernel(row, bins.get(row["kernel"], []))


def list_signs(job: FinishedJob) -> Iterator[tuple[str, str]]:
    """Yield (color, meaning) of signs in the timeline other than parts of time."""
    events = job.excerpts and job.excerpts.events
    if events and "h" in events.tracks and (events.tracks["h"]["wait"] > 0).any():
        yield "wait", "a call waits for other ranks"
    if events and events.messages.height:
        yield "message", "a message, from send to receive"


def find_page(run: Run, folder: Path | None) -> str:
    """Return the path, relative to a folder, of the page that `report` wrote into a run's folder or
    beside it; "" without a page.
    """
    path = Path(run.name)
    inside = sorted(path.glob("*.html")) if path.is_dir() else []
    for page in (*inside, path.with_name(f"{path.name}.html"), path.with_suffix(".html")):
        if folder and page.is_file():
            with open(page, "rb") as file:
                if REPORT_TITLE.encode() in file.read(HEAD):
                    return Path(os.path.relpath(page.absolute(), folder)).as_posix()
    return ""


def list_quality(job: FinishedJob) -> list[str]:
    """Return the notes on missing data in the reports, with remedies."""
    return format_quality(
        [QualityNote(**one) for one in job.description.get("quality", ())], full=True
    )
