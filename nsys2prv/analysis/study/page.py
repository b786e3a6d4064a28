"""Write a study as one HTML page that refers to nothing outside itself and runs no script, and for
notebooks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from nsys2prv._util.data_files import read_data_text
from nsys2prv._util.version import __version__
from nsys2prv.analysis.page import hash_text, load_environment
from nsys2prv.analysis.study import plots
from nsys2prv.analysis.study.rows import FAIR, GOOD, SIGNS, Row, rate_efficiency
from nsys2prv.analysis.study.summary import summarise_study, write_title
from nsys2prv.analysis.study.tables import (
    Study,
    describe_comparison,
    find_label,
    find_name,
    format_figure,
    group_regions,
    list_findings,
    list_missing,
    list_region_figures,
    list_run_figures,
    measure_focus,
    name_focus,
    name_runs,
)

#: What the title of a page of `report` ends with.
REPORT_TITLE = " - nsys2prv report</title>"
#: Bytes at the begin of a page in which its title is.
HEAD = 4096
_read_template = partial(read_data_text, "nsys2prv.analysis.study.templates")


def make_study_page(study: Study, path: Path) -> str:
    """Return a study as an HTML page, with links to the pages of its runs that there are. path:
    where it will be.
    """
    links = {
        run["name"]: _find_page(Path(run["name"]), path.absolute().parent) for run in study["runs"]
    }
    style = _read_template("study.css")
    # The browser obeys this style alone, and no script: nothing that a name might smuggle in.
    return _fill("page.html", study, links, style=Markup(style), style_hash=hash_text(style))


def make_study_cell(study: Study) -> str:
    """Return a study as HTML for a cell of a notebook."""
    return _fill("cell.html", study, {}, style=Markup(_read_template("study.css")))


def _fill(template: str, study: Study, links: Mapping[str, str], **others: Any) -> str:
    return load_environment(_read_template).get_template(template).render(
        study=study,
        runs=study["runs"],
        heads=name_runs(study),
        comparison=describe_comparison(study),
        title=write_title(study),
        summary=re.sub(r"(?<=\d) (?=[%×])", "\u00a0", summarise_study(study)),
        figures=list_run_figures(study),
        label=partial(find_label, study),
        regions=list_region_figures(study),
        region_rows=group_regions(study, list_region_figures(study)),
        plots=list(plots.make_plots(study)),
        size=plots,
        links=links,
        findings=list_findings(study),
        missing=list_missing(study),
        signs=SIGNS,
        figure=format_figure,
        rate=rate_efficiency,
        shade_of=_choose_shade,
        name_of=find_name,
        measure=measure_focus,
        focus=name_focus,
        limits=(GOOD, FAIR),
        version=__version__,
        **others,
    )  # fmt: skip


def _choose_shade(row: Row, value: float | None) -> str:
    """Return the classes of a cell: rated, and shaded by tenths."""
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
