"""Fill the page's templates (``templates/``). Every text is escaped, what is no character replaced."""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, partial

import polars as pl
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from nsys2prv._util.text import list_some
from nsys2prv._util.version import __version__
from nsys2prv._util.yaml_files import read_data_text
from nsys2prv.analysis.job_facts import format_machine_line
from nsys2prv.analysis.page.drawing import draw_all
from nsys2prv.analysis.page.parts import FAIR, GOOD, MOST_RANKS, Block, Figure, Material, Section
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
            ("elapsed", format_nanoseconds(float(str(job["duration_ns"]))), job["duration_ns"]),
            ("ranks", f"{job['ranks']:,}", job["ranks"]),
            ("hosts", f"{len(nodes):,}", len(nodes)),
            ("GPUs", f"{job['devices']:,}", job["devices"]),
            ("events", f"{events:,}", events),
        ],
    )


def make_difference_page(name: str, headline: str, results: Sequence[Result]) -> str:
    """Return the difference of two jobs as one HTML page: a sentence that says what changed, and
    the tables. name: of both jobs.
    """
    material = Material({"name": name}, {result.name: result for result in results})
    sections = []
    for result in results:
        sources = [f"{result.name}.{table}" for table in result.tables]
        grids = [grid for one in sources for grid in material.make_grid(one, MOST_RANKS)]
        sections.append(Section(result.name, result.title, [*grids, *material.notes(result.name)]))
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
    blocks = [block for section in sections for block in section.blocks]
    figures = [block for block in blocks if isinstance(block, Figure)]
    drawn = iter(draw_all(figures) if figures else [])
    style, script = _read_template("style.css"), _read_template("script.js")
    page = _load_environment().get_template("page.html")
    return page.render(
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
        "kind": _find_macro,
        "level": rate_efficiency,
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
    return "figure" if isinstance(block, Figure) else type(block).__name__.lower()


def _add_title(svg: str, title: str) -> Markup:
    """Return a figure with a title, which is read out, and shown beside the pointer."""
    start, _, rest = svg.partition(">")
    return Markup(start) + Markup("><title>{}</title>").format(make_printable(title)) + Markup(rest)


def rate_efficiency(value: float) -> str:
    """Return the class of an efficiency."""
    return "good" if value >= GOOD else "fair" if value >= FAIR else "poor"


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
