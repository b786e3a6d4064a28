"""The page as a whole: the template filled."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from string import Template

from nsys2prv import __version__
from nsys2prv.analysis.result import Result
from nsys2prv.analysis.text import duration
from nsys2prv.data import data_text
from nsys2prv.page.drawing import draw_all
from nsys2prv.page.markup import escaped, figures_of, section_html
from nsys2prv.page.parts import Material
from nsys2prv.page.sections import sections

#: Hosts that are named at the top.
MOST_HOSTS = 8


def page(job: Mapping[str, object], results: Mapping[str, Result]) -> str:
    """The results of a job as one HTML page. job: as in JSON (analysis.command.describe). Needs matplotlib."""
    material = Material(job, results)
    made = sections(material)
    drawn = iter(draw_all([figure for section in made for figure in figures_of(section)]))
    body = "\n".join(section_html(section, drawn) for section in made)
    links = "".join(f'<li><a href="#{section.name}">{escaped(section.title)}</a></li>' for section in made)
    style, script = (data_text("nsys2prv.page.templates", name) for name in ("style.css", "script.js"))
    name = escaped(str(job["name"]))
    return Template(data_text("nsys2prv.page.templates", "page.html")).substitute(
        title=name, head=_head(job), links=links, body=body, style=style, script=script, version=__version__,
        # The browser runs this script alone: nothing that a name in a report might smuggle in.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode())


def _head(job: Mapping[str, object]) -> str:
    nodes = [str(node) for node in job["nodes"]]
    shown = ", ".join(nodes[:MOST_HOSTS]) + (f" and {len(nodes) - MOST_HOSTS:,} more" if len(nodes) > MOST_HOSTS else "")
    figures = {"elapsed": (duration(float(str(job["duration_ns"]))), job["duration_ns"]), "ranks": (f"{job['ranks']:,}", job["ranks"]),
               "hosts": (f"{len(nodes):,}", len(nodes)), "GPUs": (f"{job['devices']:,}", job["devices"]),
               "events": (f"{sum(job['records'].values()):,}", sum(job["records"].values()))}
    tiles = "".join(f'<div data-v="{value}"><b>{escaped(text)}</b>{what}</div>' for what, (text, value) in figures.items())
    return f'<div class="tiles">{tiles}</div><p>Hosts: {escaped(shown)}</p>'
