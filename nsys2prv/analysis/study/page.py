"""Write a study as one HTML page that refers to nothing outside itself."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nsys2prv.analysis.finished_job import FinishedJob
from nsys2prv.analysis.page import fill_page
from nsys2prv.analysis.study import tables
from nsys2prv.analysis.study.rows import FAIR, GOOD, ROW_OF, SIGNS, Row, rate_efficiency
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
#: Factors that are plotted: those of devices, and of MPI.
DEVICE_FACTORS = ("parallel", "load_balance", "communication", "orchestration", "computation_scalability")  # fmt: skip
MPI_FACTORS = ("parallel", "load_balance", "communication", "serialisation", "transfer")


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
        plots=list(list_plots(study)),
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


def list_plots(study: Study) -> Iterator[dict[str, Any]]:
    """List plots of lines over runs (lines.js draws them): speed-up, factors, regions; and the times of
    iterations.
    """
    runs, names = study["runs"], name_runs(study, False)
    counts = list(map(count_units, runs))
    x: dict[str, Any] = {"x": [*range(len(counts))], "names": names, "axis": "runs"}
    has_scale = len(set(counts)) == len(counts) > 1
    if has_scale:
        unit = "GPUs" if runs[-1]["devices"] else "ranks"
        x = {
            "x": list(map(math.log2, counts)),
            "names": [f"{one:,}" for one in counts],
            "axis": unit,
        }

    def plot(title: str, unit: str, lines: Mapping[str, Sequence[float | None]]) -> dict[str, Any]:
        known = {name: line for name, line in lines.items() if set(line) - {None}}
        guide = {f"{100 * GOOD:.0f} % (POP)": [GOOD] * len(runs)} if unit == "share" else {}
        return {"title": title, "unit": unit, "lines": known, "guide": guide, **x}

    def find(path: str) -> list[float | None]:
        return [ROW_OF[path].find_value(run["metrics"]) for run in runs]

    if has_scale and any(find("speedup")):
        reference = count_units(find_reference(study))
        ideal = {"ideal": [count / reference for count in counts]}
        yield {**plot("Speed-up", "ratio", {"measured": find("speedup")}), "guide": ideal}
    for part, factors, of in (("device", DEVICE_FACTORS, "devices"), ("mpi", MPI_FACTORS, "MPI")):
        lines = {ROW_OF[f"{part}.{one}"].bare_name: find(f"{part}.{one}") for one in factors}
        yield plot(f"Factors of {of}", "share", lines)
    if regions := list_region_figures(study):
        of_runs = [{row.path: values for row, values in one.rows} for _, one in regions]
        best, time = (
            ("device.global", GPU_TIME) if has_devices(study) else ("mpi.parallel", HOST_TIME)
        )
        for path, title, unit in ((best, ROW_OF[best].name, "share"), ("elapsed_ns", time, "time")):
            lines = {
                name: [one[path][number] if path in one else None for one in of_runs]
                for number, name in enumerate(regions[0][1].heads)
            }
            yield plot(f"Regions: {title}", unit, lines)
    times = [run.get("iteration_ns") or [] for run in runs]
    most = max(map(len, times), default=0)
    if most > 1:
        numbers = [str(number) for number in range(1, most + 1)]
        x = {"x": [*range(most)], "names": numbers, "axis": "iteration of the focus"}
        yield plot("Time of each iteration", "time", dict(zip(names, times, strict=True)))
