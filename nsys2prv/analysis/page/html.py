"""Fill the page's template, and write its blocks as HTML. Every text of a report goes through
:func:`escaped`.
"""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from string import Template

import polars as pl

from nsys2prv._util.data import data_text
from nsys2prv._util.version import __version__
from nsys2prv.analysis.findings.told import NOTHING
from nsys2prv.analysis.head import machine_line
from nsys2prv.analysis.page.drawing import draw_all
from nsys2prv.analysis.page.parts import (
    FAIR,
    FIGURES,
    GOOD,
    MOST_RANKS,
    Block,
    Factor,
    Factors,
    Figure,
    Findings,
    Grid,
    Items,
    Material,
    Section,
    Tree,
)
from nsys2prv.analysis.page.sections import sections
from nsys2prv.analysis.result import Result
from nsys2prv.analysis.text import cell, duration, heading

#: Kind of finding -> the section with its details; idle for those that are not here.
SECTION_OF = defaultdict(
    lambda: "idle",
    dict.fromkeys(("straggler", "slow_host", "slow_link", "hiccup", "imbalance"), "collectives")
    | {"exposed_communication": "communication", "no_tensor_cores": "kernels"},
)
#: Characters of the longest cell.
LONGEST = 400


def escaped(text: str) -> str:
    """Return text for HTML, attributes too; what cannot be printed is a replacement character."""
    return escape("".join(character if character.isprintable() else "\ufffd" for character in text))


def section_html(section: Section, drawn: Iterator[str]) -> str:
    """drawn: the SVG of the section's figures, in their order."""
    blocks = "\n".join(_block(block, drawn) for block in section.blocks)
    return f'<section id="{section.name}"><h2>{escaped(section.title)}</h2>\n{blocks}\n</section>'


def figures_of(section: Section) -> list[Figure]:
    return [block for block in section.blocks if isinstance(block, FIGURES)]


def _block(block: Block, drawn: Iterator[str]) -> str:
    if isinstance(block, FIGURES):
        return _figure(block, next(drawn))
    return WRITERS[type(block)](block)


def _figure(figure: Figure, svg: str) -> str:
    note = f"<p>{escaped(figure.note)}</p>" if figure.note else ""
    # The title of an SVG is read out, and shown beside the pointer.
    svg = svg.replace(">", f"><title>{escaped(figure.title)}</title>", 1)
    return _folding(
        figure.title, f'{note}<div class="wide picture">{svg}</div>', figure.folded, "figure"
    )


def _folding(title: str, body: str, folded: bool, tag: str = "div") -> str:
    head = f"<h3>{escaped(title)}</h3>"
    return (
        f"<details><summary>{head}</summary>{body}</details>"
        if folded
        else f"<{tag}>{head}{body}</{tag}>"
    )


def _grid(grid: Grid) -> str:
    shown = grid.frame.head(grid.most)
    left = grid.frame.height - shown.height
    notes = [grid.note] if grid.note else []
    notes += (
        [f"The first {shown.height:,} of {grid.frame.height:,} rows; all are in --json."]
        if left
        else []
    )
    return _folding(grid.title, _notes(notes) + table_html(shown, grid.source), grid.folded)


def _tree(tree: Tree) -> str:
    return _folding(
        tree.title,
        _notes([tree.note] if tree.note else []) + table_html(tree.frame, tree.source, tree.depths),
        False,
    )


def _notes(texts: list[str]) -> str:
    return "".join(f"<p>{escaped(text)}</p>" for text in texts)


def table_html(frame: pl.DataFrame, source: str, depths: list[int] | None = None) -> str:
    """Return a table; `data-v` of a cell is its figure as in JSON."""
    textual = {
        name
        for name in frame.columns
        if frame.schema[name] in (pl.String, pl.Boolean, pl.Categorical, pl.Null)
    }
    head = "".join(
        f'<th scope="col"{"" if name in textual else " class=n"} title="{escaped(name)}">{escaped(heading(name))}</th>'
        for name in frame.columns
    )
    rows = []
    for number, row in enumerate(frame.iter_rows()):
        cells = "".join(
            _cell(name, value, name in textual)
            for name, value in zip(frame.columns, row, strict=True)
        )
        rows.append(f"<tr data-d={depths[number]}>{cells}" if depths else f"<tr>{cells}")
    attributes = f'data-source="{escaped(source)}"' + (" class=tree" if depths else "")
    return (
        f'<div class="wide rows" tabindex="0"><table {attributes}><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{chr(10).join(rows)}\n</tbody></table></div>"
    )


def _cell(name: str, value: object, textual: bool) -> str:
    if textual or value is None:
        text = (
            cell(name, value)
            if not isinstance(value, str)
            else value
            if len(value) <= LONGEST
            else f"{value[: LONGEST - 1]}…"
        )
        return f"<td>{escaped(text)}" if textual else f"<td data-v class=n>{text}"
    style = ""
    if name.endswith("efficiency"):
        style = f" {level(float(str(value)))}"
    bar = (
        f' style="--p:{100 * min(max(float(str(value)), 0), 1):.1f}%"'
        if name.endswith("share")
        else ""
    )
    return f'<td data-v={value!r} class="n{style}{" b" if bar else ""}"{bar}>{escaped(cell(name, value))}'


def level(value: float) -> str:
    """Return the class of an efficiency."""
    return "good" if value >= GOOD else "fair" if value >= FAIR else "poor"


def _findings(block: Findings) -> str:
    items = "".join(
        f'<li><span class="bar" style="--p:{min(100 * finding.share, 100):.1f}%"></span><span class="share" data-v="{finding.share}">'
        f"{100 * finding.share:.1f} %</span> <span><b>{escaped(finding.title)}</b><br>{escaped('; '.join(finding.evidence))}.<br>"
        f"What to do: {escaped(finding.advice)}. Views: {escaped(', '.join(finding.views))} "
        f'<a href="#{SECTION_OF[finding.kind]}">more</a></span></li>'
        for finding in block.found
    )
    items = items or f"<li>{escaped(NOTHING)}</li>"
    return f'<h3>{escaped(block.title)}</h3><p>{escaped(block.note)}</p><ol class="findings">{items}</ol>'


def _factors(block: Factors) -> str:
    trees = "".join(f'<ul class="factors">{_factor(root)}</ul>' for root in block.roots)
    return f'<h3>{escaped(block.title)}</h3><p>{escaped(block.note)}</p><div class="forest">{trees}</div>'


def _factor(factor: Factor) -> str:
    inner = f"<ul>{''.join(map(_factor, factor.factors))}</ul>" if factor.factors else ""
    value = "-" if factor.value is None else f"{100 * factor.value:.2f} %"
    figure, kind = ("", "") if factor.value is None else (factor.value, level(factor.value))
    return (
        f'<li><span class="factor {kind}" data-v="{figure}"><b>{value}</b> '
        f"{escaped(factor.name)}<small>{escaped(factor.meaning)}</small></span>{inner}</li>"
    )


def _items(block: Items) -> str:
    head = "<h3>Not given</h3>" if block.kind == "missing" else ""
    return f'<div class="{block.kind}">{head}<ul>{"".join(f"<li>{escaped(text)}</li>" for text in block.items)}</ul></div>'


WRITERS: dict[type, Callable[..., str]] = {
    Grid: _grid,
    Tree: _tree,
    Findings: _findings,
    Factors: _factors,
    Items: _items,
}


#: Hosts that are named at the top.
MOST_HOSTS = 8


def page(job: Mapping[str, object], results: Mapping[str, Result]) -> str:
    """Return the results of a job as one HTML page. job: as in JSON (analysis.command.describe).
    Needs matplotlib.
    """
    return _filled(
        str(job.get("title") or job["name"]), _head(job), sections(Material(job, results))
    )


def difference_page(name: str, headline: str, results: Sequence[Result]) -> str:
    """Return the difference of two jobs as one HTML page: a sentence that says what changed, and
    the tables. name: of both jobs.
    """
    material = Material({"name": name}, {result.name: result for result in results})
    made = [
        Section(
            result.name,
            result.title,
            [
                *(
                    grid
                    for table in result.tables
                    for grid in material.grid(result.name, table, MOST_RANKS)
                ),
                *material.notes(result.name),
            ],
        )
        for result in results
    ]
    return _filled(name, f"<p>{escaped(headline)}</p>", made)


def _filled(name: str, head: str, made: Sequence[Section]) -> str:
    """Return the page's template with a title, a head in HTML, and sections."""
    figures = [figure for section in made for figure in figures_of(section)]
    drawn = iter(draw_all(figures) if figures else [])
    body = "\n".join(section_html(section, drawn) for section in made)
    links = "".join(
        f'<li><a href="#{section.name}">{escaped(section.title)}</a></li>' for section in made
    )
    style, script = (
        data_text("nsys2prv.analysis.page.templates", name) for name in ("style.css", "script.js")
    )
    return Template(data_text("nsys2prv.analysis.page.templates", "page.html")).substitute(
        title=escaped(name),
        head=head,
        links=links,
        body=body,
        style=style,
        script=script,
        version=__version__,
        # The browser runs this script alone: nothing that a name in a report might smuggle in.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _head(job: Mapping[str, object]) -> str:
    nodes = [str(node) for node in job["nodes"]]
    shown = ", ".join(nodes[:MOST_HOSTS]) + (
        f" and {len(nodes) - MOST_HOSTS:,} more" if len(nodes) > MOST_HOSTS else ""
    )
    figures = {
        "elapsed": (duration(float(str(job["duration_ns"]))), job["duration_ns"]),
        "ranks": (f"{job['ranks']:,}", job["ranks"]),
        "hosts": (f"{len(nodes):,}", len(nodes)),
        "GPUs": (f"{job['devices']:,}", job["devices"]),
        "events": (f"{sum(job['records'].values()):,}", sum(job["records"].values())),
    }
    tiles = "".join(
        f'<div data-v="{value}"><b>{escaped(text)}</b>{what}</div>'
        for what, (text, value) in figures.items()
    )
    return f'<div class="tiles">{tiles}</div><p>{escaped(machine_line(dict(job)))}</p><p>Hosts: {escaped(shown)}</p>'
