"""The sections of the page, in the order in which an engineer reads: what it is, what to look at,
then one thing after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from nsys2prv.analysis.page.device_figures import (
    compare_late_hosts,
    compare_path_of_ranks,
    compare_stragglers,
    divide_elapsed_time,
    divide_gaps,
    map_metrics,
    map_use,
    spread_kernel_durations,
)
from nsys2prv.analysis.page.iteration_figures import (
    compare_operations_of_ranks,
    make_operation_tree,
    show_iterations,
)
from nsys2prv.analysis.page.parts import (
    FAIR,
    GOOD,
    MOST_RANKS,
    MOST_ROWS,
    Block,
    Factor,
    Factors,
    Findings,
    Items,
    Material,
    Section,
    condense_rows,
)


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
        if blocks:
            sections.append(Section(name, title, [*map(condense_rows, blocks)]))
    return sections


def _show_table(material: Material, analysis: str, table: str) -> Sequence[Block]:
    """Return a table of an analysis, or its notes."""
    if table == "notes":
        return material.notes(analysis)
    most = MOST_RANKS if table in BY_RANK.get(analysis, "").split() else MOST_ROWS
    folded = table in FOLDED.get(analysis, "").split()
    source = f"{analysis}.{table}"
    return material.make_grid(source, most, folded, NOTES.get(source, ""))


def show_findings(material: Material) -> list[Block]:
    """Return what holds the job back."""
    result = material.results.get("findings")
    if result is None or result.missing:
        return []
    return [Findings("What holds the job back", result.findings, NOTES["findings"])]


def show_critical_path(material: Material) -> list[Block]:
    """Return the finding of the critical path."""
    result = material.results.get("critical_path")
    if result is None or not result.findings:
        return []
    return [Findings("What the time of the job goes to", result.findings, NOTES["critical_path"])]


def show_efficiencies(material: Material) -> list[Block]:
    """Return the trees of efficiencies (of devices those of the steady state, where one was found,
    else those of the whole job), and the tables of the job and its nodes.
    """
    steady = material.frame("efficiencies.steady")
    device = material.frame("efficiencies.device") if steady is None else steady
    host = material.frame("efficiencies.host")
    roots: list[Factor] = []
    if device is not None:
        roots += _make_factors("parallel_efficiency", device.row(-1, named=True))
    if host is not None:
        roots += _make_factors("host_parallel_efficiency", host.row(0, named=True))
    note = NOTES["efficiencies"]
    if steady is not None:
        roots[0] = replace(roots[0], name=f"{roots[0].name} in the steady state")
        note += OF_STEADY
    return [
        *([Factors("Efficiencies", roots, note)] if roots else []),
        *(
            block
            for table in ("notes", "steady", "nodes")
            for block in _show_table(material, "efficiencies", table)
        ),
    ]


#: Column -> name, and what it is.
EFFICIENCIES = {
    "parallel_efficiency": (
        "Parallel efficiency of devices",
        "useful time of all devices / (devices x elapsed time)",
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
    "host_parallel_efficiency": (
        "Parallel efficiency of hosts",
        "time outside MPI and the CUDA API / (tasks x elapsed time); a low value is fine where GPUs do the work and hosts wait for them",
    ),
    "mpi_parallel_efficiency": (
        "MPI parallel efficiency",
        "time outside MPI / (tasks x elapsed time)",
    ),
    "mpi_load_balance_efficiency": (
        "Load balance",
        "time outside MPI: the mean task / the busiest one",
    ),
    "mpi_communication_efficiency": (
        "Communication efficiency",
        "maximum time outside MPI / elapsed time",
    ),
    "offload_efficiency": (
        "Offload efficiency",
        "time outside MPI and the CUDA API / time outside MPI",
    ),
}
#: Column -> columns whose product it is.
FACTORS = {
    "parallel_efficiency": (
        "load_balance_efficiency",
        "communication_efficiency",
        "orchestration_efficiency",
    ),
    "host_parallel_efficiency": ("mpi_parallel_efficiency", "offload_efficiency"),
    "mpi_parallel_efficiency": ("mpi_load_balance_efficiency", "mpi_communication_efficiency"),
}


def _make_factors(column: str, row: Mapping[str, float | None]) -> list[Factor]:
    """Return the tree of an efficiency, or where the job lacks it those of its factors."""
    inner = [factor for one in FACTORS.get(column, ()) for factor in _make_factors(one, row)]
    if column not in row:
        return inner
    name, meaning = EFFICIENCIES[column]
    return [Factor(name, row[column], meaning, tuple(inner))]


def show_remarks(material: Material) -> list[Block]:
    """Return the warnings and notes about the job."""
    remarks = [str(one) for key in ("warnings", "notes") for one in material.job.get(key, ())]
    return [Items(remarks)] if remarks else []


def note_metrics(material: Material) -> list[Block]:
    """Return the notes on sampled metrics; without any only what the reports lack."""
    has_any = material.frame("metrics.metrics") is not None
    return [one for one in material.notes("metrics") if has_any or one.kind == "missing"]


#: Anchor of a section -> its title, an analysis, and what it consists of: names of tables of that
#: analysis (and `notes`), and functions that make blocks of the material.
SECTIONS: dict[str, tuple] = {
    "summary": (
        "Summary",
        "findings",
        show_findings,
        "notes phases",
        show_efficiencies,
        show_remarks,
    ),
    "devices": (
        "Where the GPUs' time went",
        "efficiencies",
        divide_elapsed_time,
        map_use,
        "devices hosts",
    ),
    "communication": (
        "Exposed communication",
        "overlap",
        "operations classes devices concurrency in_flight notes",
    ),
    "collectives": (
        "Stragglers and collectives",
        "collectives",
        compare_stragglers,
        "stragglers",
        compare_late_hosts,
        "meanwhile across_ranks nccl mpi notes",
    ),
    "critical_path": (
        "Critical path",
        "critical_path",
        show_critical_path,
        compare_path_of_ranks,
        "causes ranks classes by_kernel notes",
    ),
    "clocks": ("Clocks of hosts", "clocks", "hosts notes"),
    "kernels": (
        "Kernels",
        "kernels",
        "classes tensor_cores two_modes",
        spread_kernel_durations,
        "kernels tensor_cores_by_rank notes",
    ),
    "operations": (
        "Operations (NVTX ranges)",
        "operations",
        make_operation_tree,
        "operations",
        compare_operations_of_ranks,
        "notes",
    ),
    "idle": (
        "Idle devices, launches, copies",
        "idle",
        divide_gaps,
        "gaps long_gaps memory calls latencies queued rules notes",
    ),
    "metrics": (
        "Utilisation over time: GPU metrics and network",
        "metrics",
        "metrics",
        map_metrics,
        "means",
        note_metrics,
    ),
    "iterations": ("Iterations", "iterations", "summary each notes", show_iterations),
    "scaling": ("Scalability", "scaling", "scaling notes"),
}
#: Analysis -> its tables that are closed until they are asked for.
FOLDED = {
    "efficiencies": "nodes devices hosts",
    "overlap": "devices concurrency in_flight",
    "collectives": "nccl",
    "critical_path": "ranks classes",
    "kernels": "tensor_cores_by_rank",
    "operations": "operations",
    "idle": "long_gaps latencies queued",
    "metrics": "means",
    "iterations": "each",
}
#: Analysis -> its tables with a row for each rank or device.
BY_RANK = {
    "efficiencies": "devices hosts",
    "overlap": "devices in_flight",
    "collectives": "stragglers meanwhile",
    "critical_path": "ranks",
    "kernels": "tensor_cores_by_rank",
    "idle": "latencies queued",
}
#: Sentences above tables, findings and efficiencies.
NOTES = {
    "findings": (
        "One cause each, the most costly first. The bar: how much shorter the job (its steady state, where one was found) would be at most "
        "without this cause."
    ),
    "critical_path": (
        "The one chain of work and waiting, from the begin of the job to its end over all ranks, that explains how long it took. "
        "Only what is on it makes the job shorter when it gets faster."
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
