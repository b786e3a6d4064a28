"""A job's analyses as one HTML page that refers to nothing outside itself.

Data goes one way: results of :mod:`nsys2prv.analysis` -> :mod:`sections`, what is said in which order
(data classes of :mod:`parts`, with the :mod:`figures`) -> the templates (``templates/``), which lay
out and escape everything.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import polars as pl
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from nsys2prv._util.data_files import read_data_text
from nsys2prv._util.text import list_some
from nsys2prv._util.version import __version__
from nsys2prv.analysis.page.figures import encode_png
from nsys2prv.analysis.page.parts import Material, Section
from nsys2prv.analysis.page.sections import (
    SECTION_OF,
    make_result_section,
    make_sections,
)
from nsys2prv.analysis.result import NOTHING, Result
from nsys2prv.analysis.study.rows import rate_efficiency
from nsys2prv.analysis.text import (
    format_cell,
    format_heading,
    format_machine_line,
    format_nanoseconds,
    is_share,
)

#: Characters of the longest cell.
LONGEST = 400
#: Hosts that are named at the top.
MOST_HOSTS = 8


def make_page(job: Mapping[str, Any], results: Mapping[str, Result]) -> str:
    """Return the results of a job as one HTML page. job: as in JSON (`describe_job` of cli/report.py)."""
    counts = {
        "ranks": job["ranks"],
        "hosts": len(job["nodes"]),
        "GPUs": job["devices"],
        "events": sum(job["records"].values()),
    }
    return _fill_page(
        str(job.get("title") or job["name"]),
        [format_machine_line(job), f"Hosts: {list_some(job['nodes'], MOST_HOSTS)}"],
        make_sections(Material(job, results)),
        [
            ("elapsed", format_nanoseconds(job["duration_ns"]), job["duration_ns"]),
            *((name, f"{count:,}", count) for name, count in counts.items() if count),
        ],
    )


def make_difference_page(name: str, headline: str, results: Sequence[Result]) -> str:
    """Return the difference of two jobs as one HTML page: a sentence that says what changed, and
    the tables. name: of both jobs.
    """
    material = Material({"name": name}, {result.name: result for result in results})
    sections = [make_result_section(material, result) for result in results]
    return _fill_page(name, [headline], sections)


def _fill_page(
    title: str,
    headlines: Sequence[str],
    sections: Sequence[Section],
    tiles: Sequence[tuple[str, str, object]] = (),
) -> str:
    """Return the page with a title, sentences below it, and sections. tiles: figures at the top:
    name, text, value as in JSON.
    """
    style, script = _read_template("style.css"), _read_template("script.js")
    page = _load_environment().get_template("page.html")
    return page.render(
        title=title,
        headlines=headlines,
        tiles=tiles,
        sections=sections,
        section_of=SECTION_OF,
        nothing=NOTHING,
        style=Markup(style),
        script=Markup(script),
        version=__version__,
        # The browser runs this script alone: nothing that a name in a report might smuggle in.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


_read_template = partial(read_data_text, "nsys2prv.analysis.page.templates")


@cache
def _load_environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_read_template),
        autoescape=True,
        finalize=make_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "cell": _write_cell,
        "columns": _list_columns,
        "heading": format_heading,
        "level": rate_efficiency,
        "number": "{:,.4g}".format,
        "png": encode_png,
    }
    return environment


def make_printable(value: object) -> object:
    """Return a value for a template, with replacement characters for what cannot be printed."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(character if character.isprintable() else "\ufffd" for character in value)


def _list_columns(frame: pl.DataFrame) -> list[tuple[str, bool]]:
    """Return the names of columns, and whether each holds texts rather than figures."""
    texts = (pl.String, pl.Boolean, pl.Categorical, pl.Null)
    return [(name, dtype in texts) for name, dtype in frame.schema.items()]


def _write_cell(value: object, name: str, is_text: bool) -> Markup:
    """Return a cell of a table, with its figure as in JSON (`data-v`). name: of its column.
    is_text: whether the column holds texts rather than figures.
    """
    if isinstance(value, str):
        return _make_cell("", value if len(value) <= LONGEST else f"{value[: LONGEST - 1]}…")
    text = format_cell(name, value)
    if is_text or value is None:
        return _make_cell("" if is_text else " data-v class=n", text)
    figure = float(str(value))
    classes, style = "n", ""
    if name.endswith("efficiency"):
        classes += f" {rate_efficiency(figure)}"
    if is_share(name):
        classes += " b"
        style = f' style="--p:{100 * min(max(figure, 0), 1):.1f}%"'
    return _make_cell(f' data-v={value!r} class="{classes}"{style}', text)


def _make_cell(attributes: str, text: str) -> Markup:
    return Markup(f"<td{attributes}>{escape(make_printable(text))}")
