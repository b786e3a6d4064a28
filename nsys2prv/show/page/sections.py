"""Compute the static text of a page: the division of time, the findings and the efficiencies; for a study,
the pages of its runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

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

#: Bars of single GPUs; of more the mean of each host.
MOST_BARS = 16
#: End of the title of a page of `report`, and the number of bytes at the start of the file that hold it.
REPORT_TITLE, HEAD = " - nsys2prv report</title>", 4096
#: Parts in which a GPU computes, or a rank without any is in MPI.
USEFUL = ("compute", "both", "mpi")
#: Width of bars.
ACROSS = 1000


class Part(Struct, frozen=True):
    """A part of a bar."""

    #: Of PARTS or HOST_PARTS.
    name: str
    title: str
    colour: str
    #: Of the whole bar.
    share: float
    #: Where it begins (of ACROSS).
    x: float
    time: str


class Bar(Struct, frozen=True):
    """Division of the time of a GPU, or of several, into parts."""

    label: str
    #: Number of the GPUs, or ranks.
    count: int
    parts: Sequence[Part]

    @property
    def useful(self) -> float:
        """The share of computing, or of MPI where no GPU works."""
        return sum(part.share for part in self.parts if part.name in USEFUL)


def divide_time(job: FinishedJob) -> tuple[Bar | None, list[Bar]]:
    """Divide the time of all GPUs, and of each GPU or host; if there are many, those with the least computing
    come first.
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
    """Yield the findings with their costs, and the moments to look at."""
    begin, end = job.span
    excerpts, findings = job.excerpts, job.findings
    moments = excerpts.moments if excerpts else [None] * len(findings)
    for finding, moment in zip(findings, moments, strict=True):
        of_job = finding.kind in OUTSIDE or not job.steady
        length = job.description.get("covered_ns", end) if of_job else end - begin
        of = " of the job" if of_job and job.steady else ""
        yield finding, format_nanoseconds(finding.share * length) + of, moment


def list_efficiencies(job: FinishedJob) -> list[tuple[Row, float, str]]:
    """Return the efficiencies of the steady state, or of the whole job without one, with value and rating.
    Each is the product of those one level deeper after it.
    """
    known = list_known_rows([job.metrics])
    return [(row, value, rate_efficiency(value)) for row, (value,) in known]


def find_page(run: Run, folder: Path | None) -> str:
    """Return the path, relative to a folder, of the page that `report` wrote for a run, in it or beside it;
    "" without one.
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
    """Return the missing data of the reports, with remedies."""
    return format_quality(
        [QualityNote(**one) for one in job.description.get("quality", ())], full=True
    )
