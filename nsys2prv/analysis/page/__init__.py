"""Make one HTML page of a job's analyses and timeline, which refers to nothing outside itself.

In: results of :mod:`nsys2prv.analysis`, and :mod:`excerpts` of the events. Out: the page:
:mod:`sections` has what it says, :mod:`data` what its script draws, ``web/`` the templates and
scripts. Start here, then in :mod:`excerpts`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.data_files import read_data_text
from nsys2prv._util.errors import UsageError
from nsys2prv._util.text import capitalize
from nsys2prv._util.version import __version__
from nsys2prv.analysis.page import sections
from nsys2prv.analysis.page.data import Material, pack_data
from nsys2prv.analysis.page.excerpts import BUDGET, Excerpts, choose_excerpts
from nsys2prv.analysis.result import NOTHING, Result
from nsys2prv.analysis.text import format_nanoseconds, write_micro

if TYPE_CHECKING:
    from nsys2prv.analysis.comparison import ComparedJob
    from nsys2prv.analysis.job import OpenJob

#: Scripts of all pages, each behind those that it uses; the last one is that of the page.
MODULES = (
    *("format", "dom", "data", "layout", "describe", "drawing", "input", "timeline"),
    *("strip", "heatmap", "chart", "flame", "tables", "common", "cards", "whole", "iterations"),
)


def make_page(
    job: Mapping[str, Any], results: Mapping[str, Result], excerpts: Excerpts | None = None
) -> str:
    """Return the results of a job as one HTML page. job: as in JSON (:meth:`OpenJob.describe`).
    excerpts: what it shows of the events, None where these are not at hand.
    """
    material = Material(job, results, excerpts)
    mean, bars = sections.divide_time(material)
    return _fill_page(
        "report",
        str(job.get("title") or job["name"]),
        data=[pack_data(material)],
        facts=sections.describe_job_facts(material),
        verdict=sections.write_verdict(material, mean),
        mean=mean,
        bars=bars,
        part=material.part,
        has_iterations=bool(material.iterations),
        has_gpus=bool(job["devices"]),
        cards=[*sections.list_cards(material)],
        nothing=NOTHING,
        missing=results["findings"].missing if "findings" in results else None,
        has_lanes=material.lanes.height > 0,
        efficiencies=sections.list_efficiencies(material),
        has_kernels=material.find_frame("kernels", "kernels") is not None,
        flame=material.find_frame("stacks", "flame"),
        has_metrics=material.find_frame("metrics", "map") is not None,
        quality=sections.list_quality(material),
        warnings=job.get("warnings", ()),
        notes=job.get("notes", ()),
        excerpts=excerpts,
    )


def make_job_page(job: OpenJob) -> str:
    """Return an open job as one HTML page."""
    results = job.analyse()
    return make_page(job.describe(), results, choose_excerpts(job, results))


def make_timeline_page(job: OpenJob, number: int) -> str:
    """Return the timeline of the moment of a finding (from 1), or of an open job (0), as a page. Raises
    UsageError where there is no such finding.
    """
    results = job.analyse("findings", "time", "iterations")
    findings = results["findings"].findings
    if not 0 <= number <= len(findings):
        raise UsageError(f"finding {number}: there are {len(findings)}, from 1 on")
    chosen = findings[number - 1 : number] if number else []
    results["findings"] = replace(results["findings"], findings=chosen)
    material = Material(job.describe(), results, choose_excerpts(job, results, BUDGET // 3))
    cards = [*sections.list_cards(material)]
    return _fill_page("moment", f"finding {number}", data=[pack_data(material)], cards=cards)


def make_difference_page(
    name: str, headline: str, results: Sequence[Result], jobs: Sequence[ComparedJob]
) -> str:
    """Return the difference of two jobs as one HTML page: a sentence that says what changed, where the
    time of an iteration goes, a typical one of each, findings, and the tables. name: of both jobs.
    """
    whole = Material({}, {result.name: result for result in results})
    drawn = ("time", "iterations", "findings")
    materials = [
        Material(
            one.description,
            {name: one.results[name] for name in drawn if name in one.results},
            one.excerpts,
        )
        for one in jobs
    ]
    bars = [sections.divide_time(one)[0] for one in materials]
    lengths = [one.typical_length for one in materials]
    return _fill_page(
        "diff",
        name,
        data=[pack_data(one) for one in (whole, *materials)],
        verdict=headline,
        jobs=[*zip("AB", (one.description["name"] for one in jobs), bars, lengths, strict=True)],
        longest=max(*lengths, 1),
        has_timelines=all(one.excerpts for one in materials),
        findings=sections.compare_findings(*materials),
    )


class Frame(Struct, frozen=True):
    """A page in a notebook."""

    page: str
    #: Pixels.
    height: int

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{escape(self.page)}" sandbox="allow-scripts" '
            f'style="width: 100%; height: {self.height}px; border: 0"></iframe>'
        )


def frame_page(page: str, height: int = 900) -> Frame:
    """Return a page for a notebook: its script runs, and can do nothing to the notebook."""
    return Frame(page, height)


def _fill_page(page: str, title: str, **content: object) -> str:
    """Return a page: its template with the styles and the scripts in it."""
    environment = load_environment(_read_web)
    style = environment.get_template("page.css").render()
    script = join_modules(*MODULES, page)
    # The browser runs this script and takes these styles alone: nothing that a name in a report
    # might smuggle in.
    texts = {"style": style, "script": script}
    hashes = {f"{name}_hash": hash_text(text) for name, text in texts.items()}
    marked = {name: Markup(text) for name, text in texts.items()}
    template = environment.get_template(f"{page}.html")
    return template.render(title=title, version=__version__, **hashes, **marked, **content)


def join_modules(*names: str) -> str:
    """Return modules of JavaScript as one script without imports, each in a block of its own. Modules
    import by names (``import { a, b } from "./module.js";``) and export constants and classes.
    """
    blocks = []
    for name in names:
        text = _read_web(f"{name}.js")
        exported = ", ".join(re.findall(r"(?m)^export (?:const|class) (\w+)", text))
        text = re.sub(r'(?m)^import (\{.*\}) from "\./(\w+)\.js";', r"const \1 = modules.\2;", text)
        text = re.sub(r"(?m)^export ", "", text)
        blocks.append(f"{{\n{text}modules.{name} = {{ {exported} }};\n}}\n")
    return f"(async () => {{\n'use strict';\nconst modules = {{}};\n{''.join(blocks)}}})();\n"


def hash_text(text: str) -> str:
    """Return the hash that names a style or script in a page's policy (CSP)."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


_read_web = partial(read_data_text, "nsys2prv.analysis.page.web")


@cache
def load_environment(read: Callable[[str], str]) -> Environment:
    """Return the environment of templates, which escapes all values. read: returns a template."""
    environment = Environment(
        loader=FunctionLoader(read),
        autoescape=True,
        finalize=make_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "percent": lambda share, digits=1: f"{100 * share:.{digits}f} %",
        "ns": format_nanoseconds,
        "begin_sentence": capitalize,
    }
    return environment


def make_printable(value: object) -> object:
    """Return a value for a template, with replacement characters for what cannot be printed, and µs as
    people write it.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    value = write_micro(value)
    if value.isprintable():
        return value
    return "".join(one if one.isprintable() or one == "\u00a0" else "\ufffd" for one in value)
