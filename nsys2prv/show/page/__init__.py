"""Make HTML pages of jobs that need no other files.

Input: jobs with finished analyses (:mod:`nsys2prv.show.finished_job`), and :mod:`excerpts` of their
events. Output: a page. :mod:`sections` computes its text, :mod:`data` the data that its script
draws. ``web/`` contains templates and scripts. Start here, then read :mod:`excerpts`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment
from markupsafe import Markup, escape
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util import __version__
from nsys2prv._util.errors import UsageError
from nsys2prv._util.files import load_templates, read_data_text
from nsys2prv._util.text import (
    capitalize,
    format_count,
    format_nanoseconds,
    format_share,
    format_span,
    shorten_name,
)
from nsys2prv.export.roles import describe_processes
from nsys2prv.figures.result import NOTHING, TEXTS, Result
from nsys2prv.figures.study_model import FAIR, GOOD, SIGNS, ComparedRuns, rate_efficiency
from nsys2prv.show.difference.facts import UNITS, Comparison
from nsys2prv.show.difference.pictures import list_bars
from nsys2prv.show.finished_job import FinishedJob
from nsys2prv.show.page import compared as compared_runs
from nsys2prv.show.page import sections
from nsys2prv.show.page.data import pack_data
from nsys2prv.show.page.excerpts import BUDGET, choose_excerpts
from nsys2prv.show.study.plots import draw_study
from nsys2prv.show.study.summary import describe_history, summarise_study, write_title
from nsys2prv.show.text import (
    WORKS,
    count_gpus,
    format_cell,
    format_figure,
    format_heading,
    format_machine_line,
    format_work,
    join_units,
    use_micro_sign,
)

if TYPE_CHECKING:
    from nsys2prv.open_job import OpenJob

#: The folder of templates, styles and scripts.
WEB = f"{__package__}.web"
#: Traces of moments, if none was written.
NO_CUTS: Mapping[int, str] = {}
#: An import of a module of JavaScript: names, module.
IMPORT = re.compile(r'(?m)^import (\{.*\}) from "\./(\w+)\.js";')
#: A comment in lines of its own, and the indentation of code.
COMMENT = re.compile(r"(?m)^ *(?://.*\n|/\*\*(?:.|\n)*?\*/\n)|^ +")


def make_page(job: FinishedJob, cuts: Mapping[int, str] = NO_CUTS) -> str:
    """Return an HTML page with the results of a job. cuts: number of a finding (from 1) -> path of
    the trace of its time, relative to the page.
    """
    mean, bars = sections.divide_time(job)
    title = str(job.description.get("title") or job.description["name"])
    return fill_page("report", title, job, job=job, mean=mean, bars=bars, cuts=cuts)


def make_job_page(job: OpenJob) -> str:
    """Return an HTML page with the results of an open job."""
    results = job.analyse()
    return make_page(FinishedJob(job.describe(), results, choose_excerpts(job, results)))


def make_timeline_page(job: OpenJob, number: int) -> str:
    """Return an HTML page with the timeline of a finding (from 1), or of an open job (0). Raise
    UsageError if there is no such finding.
    """
    results = job.analyse("findings", "time", "iterations")
    findings = results["findings"].findings
    if not 0 <= number <= len(findings):
        raise UsageError(f"finding {number}: there are {len(findings)}, from 1 on")
    chosen = findings[number - 1 : number] if number else []
    results["findings"] = replace(results["findings"], findings=chosen)
    shown = FinishedJob(job.describe(), results, choose_excerpts(job, results, BUDGET // 3))
    return fill_page("moment", f"finding {number}", shown, job=shown)


def make_difference_page(
    name: str,
    comparison: Comparison,
    headline: str,
    difference: Result,
    jobs: Sequence[FinishedJob],
) -> str:
    """Return an HTML page with the difference between two jobs: the headline, bars of the time, the
    headline's moment and a typical iteration of each job, findings, and tables. name: of both jobs.
    """
    names = [f"{letter}: {job.description['name']}" for letter, job in zip("AB", jobs, strict=True)]
    return fill_page(
        "diff",
        name,
        FinishedJob({}, {"difference": difference}),
        [*zip(names, compared_runs.show_headline(comparison, jobs), strict=True)],
        verdict=headline,
        unit=UNITS[comparison.unit],
        bars=compared_runs.place_bars(list_bars(comparison, difference)),
        findings=compared_runs.compare_findings(*jobs),
    )


def make_study_page(
    study: ComparedRuns, path: Path | None = None, drawn: Mapping[str, FinishedJob] | None = None
) -> str:
    """Return an HTML page with a study. path: its destination, for links to existing pages of its
    runs. drawn: run -> its job with events, to draw a typical iteration.
    """
    folder = path.absolute().parent if path else None
    named = zip(study.name_runs(), study.runs, strict=True)
    return fill_page(
        "study",
        write_title(study),
        None,
        [(head, drawn[run.name]) for head, run in named if drawn and run.name in drawn],
        study=study,
        summary=join_units(summarise_study(study)),
        figures=study.list_figures(),
        history=describe_history(study),
        plots=[Markup(one) for one in draw_study(study).values()],
        links={run.name: sections.find_page(run, folder) for run in study.runs},
        signs=SIGNS,
        rate=rate_efficiency,
        format=format_figure,
        limits=(GOOD, FAIR),
        works=WORKS,
        format_work=format_work,
    )


class Frame(Struct, frozen=True):
    """A page in a frame, which notebooks show."""

    page: str
    #: Pixels.
    height: int = 900

    def __repr__(self) -> str:
        return f"<page of {len(self.page):,} characters, which a notebook shows>"

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{escape(self.page)}" sandbox="allow-scripts" '
            f'style="width: 100%; height: {self.height}px; border: 0"></iframe>'
        )


def fill_page(
    page: str,
    title: str,
    shown: FinishedJob | None,
    compared: Sequence[tuple[str, FinishedJob]] = (),
    **content: object,
) -> str:
    """Make a page from its template, with styles, scripts and data of jobs. shown: job whose tables
    the page has. compared: (name, job) of jobs whose typical iterations are drawn.
    """
    environment = load_environment()
    style = environment.get_template("page.css").render()
    # The browser runs this script and takes these styles alone: nothing that a name in a report
    # might smuggle in.
    texts = {"style": style, "script": join_modules(read_data_text(WEB, f"{page}.js"))}
    hashes = {f"{name}_hash": hash_text(text) for name, text in texts.items()}
    marked = {name: Markup(text) for name, text in texts.items()}
    return environment.get_template(f"{page}.html").render(
        title=title,
        version=__version__,
        data=[
            *([pack_data(shown)] if shown else []),
            *(pack_data(job, False) for _, job in compared),
        ],
        compared=compared,
        sections=sections,
        **hashes,
        **marked,
        **content,
    )


def join_modules(script: str) -> str:
    """Return a JavaScript script preceded by all modules that it needs, without imports, each in
    its own block.

    Modules import by name (``import { a, b } from "./module.js";``), and export constants and
    classes.
    """
    blocks: dict[str, str] = {}

    def add(name: str, text: str) -> None:
        for _, needed in IMPORT.findall(text):
            if needed not in blocks:
                add(needed, read_data_text(WEB, f"{needed}.js"))
        exported = ", ".join(re.findall(r"(?m)^export (?:const|class) (\w+)", text))
        text = COMMENT.sub("", IMPORT.sub(r"const \1 = modules.\2;", text))
        text = re.sub(r"(?m)^export ", "", text)
        blocks[name] = f"{{\n{text}modules.{name} = {{ {exported} }};\n}}\n"

    add("page", script)
    whole = "".join(blocks.values())
    return f"(async () => {{\n'use strict';\nconst modules = {{}};\n{whole}}})();\n"


def hash_text(text: str) -> str:
    """Return the hash by which a page's content security policy allows a style or script."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def load_environment() -> Environment:
    """Return the jinja2 templates of pages. They escape all values."""
    environment = load_templates(WEB, autoescape=True, finalize=make_printable)
    environment.globals |= {
        "format_count": format_count,
        "describe_processes": describe_processes,
        "count_gpus": count_gpus,
        "format_machine_line": format_machine_line,
        "nothing_found": NOTHING,
        "groups": TEXTS["groups"],
    }
    environment.filters |= {
        "percent": format_share,
        "ns": lambda ns: use_micro_sign(format_nanoseconds(ns)),
        "begin_sentence": capitalize,
        "short": shorten_name,
        "heading": format_heading,
        "cell": format_cell,
        "span": lambda span: format_span(*span),
    }
    return environment


def make_printable(value: object) -> object:
    """Convert a value for a template: replace unprintable characters, and write µs instead of us."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    value = use_micro_sign(value)
    if value.isprintable():
        return value
    return "".join(one if one.isprintable() or one == "\u00a0" else "\ufffd" for one in value)
