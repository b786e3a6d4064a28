"""Write a study as one HTML page that refers to nothing outside itself."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from nsys2prv.analysis.finished_job import FinishedJob
from nsys2prv.analysis.page import fill_page
from nsys2prv.analysis.study import tables
from nsys2prv.analysis.study.model import FAIR, GOOD, ROW_OF, SIGNS, Row, rate_efficiency
from nsys2prv.analysis.study.summary import summarise_study, write_title
from nsys2prv.analysis.study.tables import (
    GPU_TIME,
    HOST_TIME,
    Study,
    count_units,
    find_label,
    find_reference,
    group_regions,
    has_devices,
    list_region_figures,
    list_run_figures,
    name_runs,
)

#: What the title of a page of `report` ends with.
REPORT_TITLE = " - nsys2prv report</title>"
#: Bytes at the begin of a page in which its title is.
HEAD = 4096


def make_study_page(
    study: Study, path: Path | None = None, drawn: Mapping[str, FinishedJob] | None = None
) -> str:
    """Return a study as an HTML page. path: where it will be, for links to the pages of its runs that
    there are. drawn: run -> what is drawn of its job: the timeline of a typical iteration.
    """
    runs, regions = study["runs"], list_region_figures(study)
    folder = path.absolute().parent if path else None
    links = {run["name"]: _find_page(Path(run["name"]), folder) if folder else "" for run in runs}
    heads = name_runs(study)
    return fill_page(
        "study",
        write_title(study),
        None,
        [
            (head, drawn[run["name"]])
            for head, run in zip(heads, runs, strict=True)
            if drawn and run["name"] in drawn
        ],
        study=study,
        heads=heads,
        summary=re.sub(r"(?<=\d) (?=[%×])", "\u00a0", summarise_study(study)),
        figures=list_run_figures(study),
        label=partial(find_label, study),
        regions=regions,
        region_rows=group_regions(study, regions),
        plots=list_plotted(study),
        links=links,
        signs=SIGNS,
        rate=rate_efficiency,
        shade_of=_choose_shade,
        limits=(GOOD, FAIR),
        tables=tables,
    )


def _choose_shade(row: Row, value: float | None) -> str:
    """Return the class of a cell: rated, and shaded by tenths."""
    if value is None or not row.is_efficiency:
        return ""
    return f"p{min(max(int(round(value, 3) * 10), 0), 10)}"


def _find_page(run: Path, folder: Path) -> str:
    """Return the page that `report` wrote of a run, in it or beside it, as seen from a folder; empty
    where there is none.
    """
    inside = sorted(run.glob("*.html")) if run.is_dir() else []
    for page in (*inside, run.with_name(f"{run.name}.html"), run.with_suffix(".html")):
        if page.is_file():
            with open(page, "rb") as file:
                if REPORT_TITLE.encode() in file.read(HEAD):
                    return Path(os.path.relpath(page.absolute(), folder)).as_posix()
    return ""


def list_plotted(study: Study) -> dict[str, Any]:
    """Return the figures that plots.js plots over the runs, and over their iterations."""
    runs, regions = study["runs"], list_region_figures(study)
    best, time = ("device.global", GPU_TIME) if has_devices(study) else ("mpi.parallel", HOST_TIME)
    return {
        "names": name_runs(study, False),
        "counts": list(map(count_units, runs)),
        "unit": "GPUs" if runs[-1]["devices"] else "ranks",
        "reference": count_units(find_reference(study)),
        "good": GOOD,
        "figures": {
            row.path: (row.bare_name, values) for row, values in list_run_figures(study).rows
        },
        "regions": regions[0][1].heads if regions else [],
        "ofRegions": [{row.path: values for row, values in one.rows} for _, one in regions],
        "best": best,
        "titles": [ROW_OF[best].name, time],
        "times": [run.get("iteration_ns") or [] for run in runs],
    }
