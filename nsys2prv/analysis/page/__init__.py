"""A job's analyses as one HTML page that refers to nothing outside itself.

Data goes one way: results of :mod:`nsys2prv.analysis` -> SECTIONS, what is said in which order (data
classes of :mod:`parts`, with the :mod:`figures`) -> :mod:`drawing`, pictures as SVG, and the
templates (``templates/``), which escape every text.
"""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial

import polars as pl
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape
from msgspec.structs import replace

from nsys2prv._util.data_files import read_data_text
from nsys2prv._util.text import list_some
from nsys2prv._util.version import __version__
from nsys2prv.analysis.page.drawing import draw_all
from nsys2prv.analysis.page.figures import (
    compare_late_hosts,
    compare_operations_of_ranks,
    compare_path_of_ranks,
    compare_stragglers,
    divide_elapsed_time,
    divide_gaps,
    make_operation_tree,
    map_metrics,
    map_use,
    show_iterations,
    spread_kernel_durations,
)
from nsys2prv.analysis.page.parts import (
    FAIR,
    GOOD,
    MOST_RANKS,
    MOST_ROWS,
    Block,
    Factor,
    Factors,
    Figure,
    Findings,
    Items,
    Material,
    Section,
    condense_rows,
)
from nsys2prv.analysis.result import NOTHING, Result
from nsys2prv.analysis.text import (
    format_cell,
    format_heading,
    format_machine_line,
    format_nanoseconds,
    is_share,
)
from nsys2prv.conversion.quality import QualityNote, format_quality

#: Characters of the longest cell.
LONGEST = 400
#: Hosts that are named at the top.
MOST_HOSTS = 8
#: Column -> name, what it is, and the columns whose product it is.
EFFICIENCIES = {
    "parallel_efficiency": (
        "Parallel efficiency of devices",
        "useful time of all devices / (devices x elapsed time)",
        "load_balance_efficiency",
        "communication_efficiency",
        "orchestration_efficiency",
    ),
    "load_balance_efficiency": ("Load balance", "useful time: the mean device / the busiest one"),
    "communication_efficiency": (
        "Communication efficiency",
        "maximum useful time / maximum active time",
    ),
    "orchestration_efficiency": (
        "Orchestration efficiency",
        "maximum active time / elapsed time; low where devices wait for hosts",
    ),
    "busiest_efficiency": (
        "Communication x orchestration efficiency",
        "maximum useful time / elapsed time; by a replay of the job on an ideal network",
        "serialisation_efficiency",
        "transfer_efficiency",
    ),
    "serialisation_efficiency": (
        "Serialisation efficiency",
        "maximum useful time / time on an ideal network; low where ranks wait for each other",
    ),
    "transfer_efficiency": (
        "Transfer efficiency",
        "time on an ideal network / elapsed time; low where data takes long between ranks",
    ),
    "host_parallel_efficiency": (
        "Parallel efficiency of hosts",
        "time outside MPI and the CUDA API / (tasks x elapsed time); a low value is fine where GPUs do the work and hosts wait for them",
        "mpi_parallel_efficiency",
        "offload_efficiency",
    ),
    "mpi_parallel_efficiency": (
        "MPI parallel efficiency",
        "time outside MPI / (tasks x elapsed time)",
        "mpi_load_balance_efficiency",
        "mpi_communication_efficiency",
    ),
    "mpi_load_balance_efficiency": (
        "Load balance",
        "time outside MPI: the mean task / the busiest one",
    ),
    "mpi_communication_efficiency": (
        "Communication efficiency",
        "maximum time outside MPI / elapsed time",
        "mpi_serialisation_efficiency",
        "mpi_transfer_efficiency",
    ),
    "mpi_serialisation_efficiency": (
        "Serialisation efficiency",
        "maximum time outside MPI on an ideal network / time there; low where ranks wait for each other",
    ),
    "mpi_transfer_efficiency": (
        "Transfer efficiency",
        "what messages of MPI take beyond that",
    ),
    "offload_efficiency": (
        "Offload efficiency",
        "time outside MPI and the CUDA API / time outside MPI",
    ),
}
#: Sentences above tables, findings and efficiencies.
NOTES = {
    "findings": (
        "One cause each, the most costly first. The bar: how much shorter the job (its steady state, where one was found) would be at most "
        "without this cause."
    ),
    "efficiencies": (
        f"Each is the product of the factors below it. Green from {GOOD:.0%} on, yellow from {FAIR:.0%} on, red below; "
        "POP advises a closer look below 80 %."
    ),
    "clocks.hosts": (
        "Times of two hosts can be compared to within the sum of their error bounds; a shorter wait or "
        "delay between them means nothing."
    ),
}
#: What is added where there is a steady state.
OF_STEADY = (
    " Those of devices are of the steady state, without start-up and shutdown; the table below has those of the whole "
    "job, too. Those of hosts are of the whole job."
)
#: Kind of finding -> the section with its details; idle for those that are not here.
SECTION_OF = defaultdict(
    lambda: "idle",
    dict.fromkeys(("straggler", "slow_host", "slow_link", "hiccup", "imbalance"), "collectives")
    | {
        "exposed_communication": "communication",
        "no_tensor_cores": "kernels",
    },
)


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
            *([("GPUs", f"{job['devices']:,}", job["devices"])] if job["devices"] else []),
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
        sections.append(
            Section(result.name, result.title, [*grids, *material.list_notes(result.name)])
        )
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


def make_sections(material: Material) -> list[Section]:
    """Return all sections of which there is something to say."""
    sections = []
    for name, (title, analysis, *contents) in SECTIONS.items():
        blocks: list[Block] = []
        for content in contents:
            if isinstance(content, str):
                for table in content.split():
                    blocks += _show_table(material, analysis, table)
            else:
                blocks += content(material)
        lacks_all = all(isinstance(one, Items) and one.kind == "missing" for one in blocks)
        if blocks and not (lacks_all and name in OF_GPUS and not material.job["devices"]):
            sections.append(Section(name, title, [*map(condense_rows, blocks)]))
    return sections


def _show_table(material: Material, analysis: str, table: str) -> Sequence[Block]:
    """Return a table of an analysis, or its notes. table: as SECTIONS has it."""
    if table == "notes":
        return material.list_notes(analysis)
    folded, by_rank = table.startswith("("), "*" in table
    source = f"{analysis}.{table.strip('(*)')}"
    most = MOST_RANKS if by_rank else MOST_ROWS
    return material.make_grid(source, most, folded, NOTES.get(source, ""))


def show_findings(material: Material) -> Iterator[Block]:
    """Show what holds the job back."""
    result = material.results.get("findings")
    if result is not None and (result.findings or not result.missing):
        yield Findings("What holds the job back", result.findings, NOTES["findings"])


def show_efficiencies(material: Material) -> Iterator[Block]:
    """Show the trees of efficiencies (of devices those of the steady state, where one was found,
    else those of the whole job), and the tables of the job and its nodes.
    """
    steady = material.find_frame("efficiencies.steady")
    device = material.find_frame("efficiencies.device") if steady is None else steady
    host = material.find_frame("efficiencies.host")
    roots: list[Factor] = []
    if device is not None:
        row = device.row(-1, named=True)
        roots += _make_factors("parallel_efficiency", row)
        if "transfer_efficiency" in row:
            product = row["communication_efficiency"] * row["orchestration_efficiency"]
            roots += _make_factors("busiest_efficiency", row | {"busiest_efficiency": product})
    if host is not None:
        roots += _make_factors("host_parallel_efficiency", host.row(0, named=True))
    note = NOTES["efficiencies"]
    if steady is not None:
        roots[0] = replace(roots[0], name=f"{roots[0].name} in the steady state")
        note += OF_STEADY
    if roots:
        yield Factors("Efficiencies", roots, note)
    for table in ("notes", "steady", "(nodes)"):
        yield from _show_table(material, "efficiencies", table)


def _make_factors(column: str, row: Mapping[str, float | None]) -> list[Factor]:
    """Return the tree of an efficiency, or where the job lacks it those of its factors."""
    name, meaning, *factors = EFFICIENCIES[column]
    inner = [factor for one in factors for factor in _make_factors(one, row)]
    if column not in row:
        return inner
    return [Factor(name, row[column], meaning, tuple(inner))]


def show_quality(material: Material) -> Iterator[Block]:
    """Show what the reports lack, and what to do about it."""
    if notes := [QualityNote(**one) for one in material.job.get("quality", ())]:
        yield Items(format_quality(notes, full=True))


def show_remarks(material: Material) -> Iterator[Block]:
    """Show the warnings and notes about the job."""
    remarks = [str(one) for key in ("warnings", "notes") for one in material.job.get(key, ())]
    if remarks:
        yield Items(remarks)


def note_metrics(material: Material) -> Iterator[Block]:
    """Show the notes on sampled metrics; without any only what the reports lack."""
    has_any = material.find_frame("metrics.metrics") is not None
    yield from (one for one in material.list_notes("metrics") if has_any or one.kind == "missing")


#: Sections that say nothing of a job without GPUs.
OF_GPUS = {"communication", "kernels", "idle", "metrics", "iterations"}
#: Anchor of a section -> its title, an analysis, and what it consists of: names of tables of that
#: analysis (and `notes`), and functions that make blocks of the material. Tables in parentheses are
#: closed until they are asked for; those with a star have a row for each rank or device.
SECTIONS: dict[str, tuple] = {
    "summary": (
        "Summary",
        "findings",
        show_findings,
        "notes phases",
        show_efficiencies,
        show_remarks,
    ),
    "quality": ("Quality of the capture", "", show_quality),
    "devices": (
        "Where the time went",
        "efficiencies",
        divide_elapsed_time,
        map_use,
        "(devices*) (hosts*)",
    ),
    "communication": (
        "Exposed communication",
        "overlap",
        "operations classes (devices*) (concurrency) (in_flight*) notes",
    ),
    "collectives": (
        "Stragglers and collectives",
        "collectives",
        compare_stragglers,
        "stragglers*",
        compare_late_hosts,
        "meanwhile* across_ranks (nccl) mpi notes",
    ),
    "critical_path": (
        "Critical path",
        "critical_path",
        compare_path_of_ranks,
        "causes (ranks*) (classes) by_kernel notes",
    ),
    "clocks": ("Clocks of hosts", "clocks", "hosts notes"),
    "kernels": (
        "Kernels",
        "kernels",
        "classes tensor_cores two_modes",
        spread_kernel_durations,
        "kernels (tensor_cores_by_rank*) notes",
    ),
    "operations": (
        "Operations (NVTX ranges)",
        "operations",
        make_operation_tree,
        "(operations)",
        compare_operations_of_ranks,
        "notes",
    ),
    "idle": (
        "Idle devices, launches, copies",
        "idle",
        divide_gaps,
        "gaps (long_gaps) memory calls (latencies*) (queued*) rules notes",
    ),
    "metrics": (
        "Utilisation over time: GPU metrics and network",
        "metrics",
        "metrics",
        map_metrics,
        "(means)",
        note_metrics,
    ),
    "iterations": ("Iterations", "iterations", "summary (each) notes", show_iterations),
    "scaling": ("Scalability", "scaling", "scaling notes"),
}
