"""Fill the page's templates (``templates/``). Every text is escaped, what is no character replaced."""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import polars as pl
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from nsys2prv._util.text import list_some
from nsys2prv._util.version import __version__
from nsys2prv._util.yaml_files import read_data_text
from nsys2prv.analysis.job_facts import format_machine_line
from nsys2prv.analysis.page.drawing import draw_all
from nsys2prv.analysis.page.parts import FAIR, FIGURES, GOOD, MOST_RANKS, Block, Material, Section
from nsys2prv.analysis.page.sections import make_sections
from nsys2prv.analysis.result import NOTHING, Result
from nsys2prv.analysis.text import format_cell, format_heading, format_nanoseconds, is_share

#: Kind of finding -> the section with its details; idle for those that are not here.
SECTION_OF = defaultdict(
    lambda: "idle",
    dict.fromkeys(("straggler", "slow_host", "slow_link", "hiccup", "imbalance"), "collectives")
    | {
        "exposed_communication": "communication",
        "no_tensor_cores": "kernels",
        "critical_path": "critical_path",
    },
)
#: Characters of the longest cell.
LONGEST = 400
#: Hosts that are named at the top.
MOST_HOSTS = 8


class Column(NamedTuple):
    """A column of a table: its name in JSON, its title, and whether it holds texts."""

    #: As in JSON.
    name: str
    #: For people.
    heading: str
    #: Whether it holds texts rather than figures.
    is_text: bool


class Cell(NamedTuple):
    """A cell: its attributes, with its figure as in JSON (`data-v`), and its text."""

    #: HTML attributes, with the figure as in JSON (`data-v`).
    attributes: Markup
    #: For people.
    text: str


class Row(NamedTuple):
    """A row, and in a tree how deep it lies; 0 for outermost."""

    #: How deep it lies in a tree, 0 for outermost.
    depth: int
    #: One for each column.
    cells: list[Cell]


class HtmlTable(NamedTuple):
    """A table to write."""

    #: `analysis.table`, where JSON has it.
    source: str
    #: In the order of the frame.
    columns: list[Column]
    #: In the order of the frame.
    rows: list[Row]
    #: Whether rows lie within each other.
    is_tree: bool


class Tile(NamedTuple):
    """A figure at the top of the page: its name, its text, its value as in JSON."""

    #: For people.
    name: str
    #: The figure for people.
    text: str
    #: The figure as in JSON.
    value: object


def make_page(job: Mapping[str, object], results: Mapping[str, Result]) -> str:
    """Return the results of a job as one HTML page. job: as in JSON (`describe_job` of cli/report.py).
    Needs matplotlib.
    """
    nodes = [str(node) for node in job["nodes"]]
    events = sum(job["records"].values())
    return _fill_page(
        str(job.get("title") or job["name"]),
        [format_machine_line(dict(job)), f"Hosts: {list_some(nodes, MOST_HOSTS)}"],
        make_sections(Material(job, results)),
        [
            Tile("elapsed", format_nanoseconds(float(str(job["duration_ns"]))), job["duration_ns"]),
            Tile("ranks", f"{job['ranks']:,}", job["ranks"]),
            Tile("hosts", f"{len(nodes):,}", len(nodes)),
            Tile("GPUs", f"{job['devices']:,}", job["devices"]),
            Tile("events", f"{events:,}", events),
        ],
    )


def make_difference_page(name: str, headline: str, results: Sequence[Result]) -> str:
    """Return the difference of two jobs as one HTML page: a sentence that says what changed, and
    the tables. name: of both jobs.
    """
    material = Material({"name": name}, {result.name: result for result in results})
    sections = [
        Section(
            result.name,
            result.title,
            [
                *(
                    grid
                    for table in result.tables
                    for grid in material.make_grid(result.name, table, MOST_RANKS)
                ),
                *material.notes(result.name),
            ],
        )
        for result in results
    ]
    return _fill_page(name, [headline], sections)


def _fill_page(
    title: str, headlines: Sequence[str], sections: Sequence[Section], tiles: Sequence[Tile] = ()
) -> str:
    """Return the page with a title, sentences below it, and sections."""
    figures = [
        block for section in sections for block in section.blocks if isinstance(block, FIGURES)
    ]
    drawn: Iterator[str] = iter(draw_all(figures) if figures else [])
    style, script = (
        read_data_text("nsys2prv.analysis.page.templates", name)
        for name in ("style.css", "script.js")
    )
    return (
        _load_environment()
        .get_template("page.html")
        .render(
            title=title,
            headlines=headlines,
            tiles=tiles,
            sections=sections,
            next_drawn=lambda: next(drawn),
            section_of=SECTION_OF,
            nothing=NOTHING,
            style=Markup(style),
            script=Markup(script),
            version=__version__,
            # The browser runs this script alone: nothing that a name in a report might smuggle in.
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


@cache
def _load_environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(
            lambda name: read_data_text("nsys2prv.analysis.page.templates", name)
        ),
        autoescape=True,
        finalize=make_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "kind": _find_macro,
        "level": rate_efficiency,
        "table": make_table,
        "titled": _add_title,
    }
    return environment


def make_printable(value: object) -> object:
    """Return a value for a template, with replacement characters for what cannot be printed."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(character if character.isprintable() else "\ufffd" for character in value)


def _find_macro(block: Block) -> str:
    """Return the macro that writes a block."""
    return "figure" if isinstance(block, FIGURES) else type(block).__name__.lower()


def _add_title(svg: str, title: str) -> Markup:
    """Return a figure with a title, which is read out, and shown beside the pointer."""
    start, _, rest = svg.partition(">")
    return Markup(start) + Markup("><title>{}</title>").format(make_printable(title)) + Markup(rest)


def rate_efficiency(value: float) -> str:
    """Return the class of an efficiency."""
    return "good" if value >= GOOD else "fair" if value >= FAIR else "poor"


def make_table(frame: pl.DataFrame, source: str, depths: list[int] | None = None) -> HtmlTable:
    """Return a frame as a table to write."""
    columns = [
        Column(
            name, format_heading(name), dtype in (pl.String, pl.Boolean, pl.Categorical, pl.Null)
        )
        for name, dtype in frame.schema.items()
    ]
    rows = [
        Row(
            depths[number] if depths else 0,
            [_make_cell(column, value) for column, value in zip(columns, row, strict=True)],
        )
        for number, row in enumerate(frame.iter_rows())
    ]
    return HtmlTable(source, columns, rows, bool(depths))


def _make_cell(column: Column, value: object) -> Cell:
    name = column.name
    if isinstance(value, str):
        return Cell(Markup(), value if len(value) <= LONGEST else f"{value[: LONGEST - 1]}…")
    if column.is_text:
        return Cell(Markup(), format_cell(name, value))
    if value is None:
        return Cell(Markup(" data-v class=n"), format_cell(name, value))
    figure = float(str(value))
    classes, style = "n", ""
    if name.endswith("efficiency"):
        classes += f" {rate_efficiency(figure)}"
    if is_share(name):
        classes += " b"
        style = f' style="--p:{100 * min(max(figure, 0), 1):.1f}%"'
    return Cell(Markup(f' data-v={value!r} class="{classes}"{style}'), format_cell(name, value))
