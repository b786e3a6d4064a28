"""What the page shows, in which order: sections of tables, findings, efficiencies and figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from nsys2prv.analysis.page.figures import (
    condense_rows,
    divide_elapsed_time,
    divide_iterations,
    make_operation_tree,
    map_metrics,
    map_use,
)
from nsys2prv.analysis.page.parts import (
    MOST_RANKS,
    MOST_ROWS,
    Block,
    Factor,
    Factors,
    Findings,
    Grid,
    Items,
    Material,
    Section,
)
from nsys2prv.analysis.result import Result
from nsys2prv.analysis.study.model import name_metrics
from nsys2prv.analysis.study.rows import FAIR, GOOD, list_known_rows
from nsys2prv.conversion.quality import QualityNote, format_quality

#: Sentences above tables, findings and efficiencies.
NOTES = {
    "findings": (
        "One cause each, the most costly first. The bar: how much shorter the job (its steady state, where one was found) would be "
        "without this cause. Behind them limits (≤): what is gained at most, if all of it goes."
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
#: Kinds of findings of ranks that others wait for, and of waiting that nobody alone causes.
OF_RANKS = ("straggler", "slow_host", "slow_link", "hiccup", "imbalance")
OF_WAITING = ("pipeline_bubble", "serialisation")
#: Kind of finding -> the section with its details; idle for those that are not here.
SECTION_OF = defaultdict(
    lambda: "idle",
    {"exposed_communication": "communication", "no_tensor_cores": "kernels"}
    | dict.fromkeys(OF_RANKS + OF_WAITING, "collectives"),
)


def make_sections(material: Material) -> list[Section]:
    """Return all sections of which there is something to say."""
    sections = []
    for name, (title, analysis, *contents) in SECTIONS.items():
        blocks: list[Block] = []
        for content in contents:
            if isinstance(content, str):
                blocks += _show_tables(material, analysis, content)
            else:
                blocks += content(material)
        blocks = _drop_empty(blocks)
        lacks_all = all(isinstance(one, Items) and one.is_missing for one in blocks)
        if blocks and not (lacks_all and name in OF_GPUS and not material.job["devices"]):
            sections.append(Section(name, title, [*map(condense_rows, blocks)]))
    return sections


def _show_tables(material: Material, analysis: str, names: str) -> Iterator[Block]:
    """Show tables of an analysis, and its notes. names: as SECTIONS has them."""
    for name in names.split():
        bare = name.strip("(*)")
        source = bare if "." in bare else f"{analysis}.{bare}"
        if source.endswith(".notes"):
            yield from material.list_notes(source.removesuffix(".notes"))
        elif table := material.find_table(source):
            yield Grid(
                title=table.title,
                frame=table.frame,
                source=source,
                note=NOTES.get(source, ""),
                most=MOST_RANKS if "*" in name else MOST_ROWS,
                folded=name.startswith("("),
            )


def make_result_section(material: Material, result: Result) -> Section:
    """Return a section with all tables of a result, and its notes."""
    names = " ".join([*(f"{name}*" for name in result.tables), "notes"])
    blocks = _drop_empty(_show_tables(material, result.name, names))
    return Section(result.name, result.title, blocks)


def _drop_empty(blocks: Iterable[Block]) -> list[Block]:
    """Return the blocks without lists of nothing."""
    return [one for one in blocks if not isinstance(one, Items) or one.items]


def show_findings(material: Material) -> Iterator[Block]:
    """Show what holds the job back."""
    result = material.results.get("findings")
    if result is not None and (result.findings or not result.missing):
        title = "What holds the job back"
        yield Findings(title=title, found=result.findings, note=NOTES["findings"])


def show_efficiencies(material: Material) -> Iterator[Block]:
    """Show the trees of efficiencies of the steady state, or of the whole job where none was found."""
    frames = (material.find_frame(f"efficiencies.{name}") for name in ("device", "host"))
    rows = [{} if frame is None else frame.row(0, named=True) for frame in frames]
    roots: list[Factor] = []
    above: list[tuple[int, Factor]] = []
    for row, (value,) in list_known_rows([name_metrics(*rows)]):
        factor = Factor(row.name, value, row.about, [])
        above = [(depth, one) for depth, one in above if depth < row.depth]
        (above[-1][1].factors if above else roots).append(factor)
        above.append((row.depth, factor))
    if roots:
        note = f"{NOTES['efficiencies']} They are of the {next(filter(None, rows))['part']}."
        yield Factors(title="Efficiencies", roots=roots, note=note)


def show_quality(material: Material) -> Iterator[Block]:
    """Show what the reports lack, and what to do about it."""
    notes = [QualityNote(**one) for one in material.job.get("quality", ())]
    yield Items(items=format_quality(notes, full=True))


def show_remarks(material: Material) -> Iterator[Block]:
    """Show the warnings and notes about the job."""
    yield Items(items=[*material.job.get("warnings", ()), *material.job.get("notes", ())])


def show_how_to_ask(material: Material) -> Iterator[Block]:
    """Show how to ask for efficiencies of iterations, where nobody has."""
    asked = material.find_frame("efficiencies.iterations") is not None
    if "efficiencies" in material.results and not asked:
        hint = (
            'efficiencies of iterations: give the name of an NVTX range, as in --iterations "step*"'
        )
        yield Items(items=[hint], is_missing=True)


#: Sections that say nothing of a job without GPUs.
OF_GPUS = {"communication", "kernels", "idle", "metrics", "iterations"}
#: Anchor of a section -> its title, an analysis, and what it consists of: names of tables of that
#: analysis (and `notes`) or of another (`analysis.table`), and functions that make blocks of the
#: material. Tables in parentheses are closed until they are asked for; those with a star have a row
#: for each rank or device.
SECTIONS: dict[str, tuple] = {
    "summary": (
        "Summary",
        "efficiencies",
        show_findings,
        "findings.notes findings.phases findings.places findings.what_if",
        show_efficiencies,
        "notes device host (nodes)",
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
        "operations classes ucx* (devices*) notes",
    ),
    "collectives": (
        "Stragglers and collectives",
        "collectives",
        "stragglers* across_ranks (nccl) mpi notes",
    ),
    "critical_path": ("Critical path", "critical_path", "causes ranks* (classes) by_kernel notes"),
    "clocks": ("Clocks of hosts", "clocks", "hosts notes"),
    "kernels": (
        "Kernels",
        "kernels",
        "classes tensor_cores two_modes kernels (tensor_cores_by_rank*) notes",
    ),
    "operations": (
        "Operations (NVTX ranges)",
        "operations",
        make_operation_tree,
        "(operations) (by_rank) notes",
    ),
    "idle": (
        "Idle devices, launches, copies",
        "idle",
        "gaps (long_gaps) memory calls (latencies*) (queued*) rules notes",
    ),
    "stacks": ("Call stacks of hosts", "stacks", "(stacks) notes"),
    "metrics": (
        "Utilisation over time: GPU metrics and network",
        "metrics",
        "metrics",
        map_metrics,
        "(means) notes",
    ),
    "iterations": (
        "Iterations",
        "iterations",
        divide_iterations,
        "summary (each) notes",
        "efficiencies.over_iterations (efficiencies.iterations) (efficiencies.host_iterations)",
        "(efficiencies.iterations_of_devices)",
        show_how_to_ask,
    ),
}
