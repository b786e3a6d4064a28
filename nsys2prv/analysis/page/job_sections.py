"""Sections on the job as a whole: efficiencies and findings, communication, clocks, scalability,
and the critical path where it was asked for.
"""

from __future__ import annotations

import numpy as np

from nsys2prv.analysis.page.parts import (
    FAIR,
    GOOD,
    MOST_RANKS,
    Block,
    Factor,
    Factors,
    Findings,
    Items,
    Material,
    Section,
    Stacked,
)

FINDINGS_NOTE = (
    "One cause each, the most costly first. The bar: how much shorter the job (its steady state, where one was found) would be at most "
    "without this cause."
)


def make_summary_section(material: Material) -> Section:
    blocks: list[Block] = []
    if "findings" in material.results:
        result = material.results["findings"]
        if not result.missing:
            blocks.append(Findings("What holds the job back", result.findings, FINDINGS_NOTE))
        blocks += material.notes("findings")
        blocks += material.make_grid("findings", "phases")
    roots = [
        root
        for root in (_get_device_efficiencies(material), _get_host_efficiencies(material))
        if root
    ]
    if roots:
        blocks.append(
            Factors(
                "Efficiencies",
                roots,
                f"Each is the product of the factors below it. Green from {GOOD:.0%} on, yellow from {FAIR:.0%} on, red below; "
                f"POP advises a closer look below 80 %.{_describe_part(material)}",
            )
        )
    blocks += material.notes("efficiencies")
    blocks += material.make_grid("efficiencies", "steady")
    blocks += material.make_grid("efficiencies", "nodes", folded=True)
    warnings = [str(warning) for warning in material.job.get("warnings", [])]
    notes = [str(note) for note in material.job.get("notes", [])]
    return Section(
        "summary", "Summary", [*blocks, *([Items(warnings + notes)] if warnings or notes else [])]
    )


def _describe_part(material: Material) -> str:
    """Say what part of the job the figures are of, where there are several."""
    if material.frame("efficiencies", "steady") is None:
        return ""
    return (
        " Those of devices are of the steady state, without start-up and shutdown; the table below has those of the whole "
        "job, too. Those of hosts are of the whole job."
    )


def _get_device_efficiencies(material: Material) -> Factor | None:
    """Return those of the steady state, where one was found, else those of the whole job."""
    steady = material.frame("efficiencies", "steady")
    frame = material.frame("efficiencies", "device") if steady is None else steady
    if frame is None:
        return None
    row = frame.row(-1, named=True)
    return Factor(
        "Parallel efficiency of devices" + ("" if steady is None else " in the steady state"),
        row["parallel_efficiency"],
        "useful time of all devices / (devices x elapsed time)",
        (
            Factor(
                "Load balance",
                row["load_balance_efficiency"],
                "useful time: the mean device / the busiest one",
            ),
            Factor(
                "Communication efficiency",
                row["communication_efficiency"],
                "maximum useful time / maximum active time",
            ),
            Factor(
                "Orchestration efficiency",
                row["orchestration_efficiency"],
                "maximum active time / elapsed time; low where devices wait for hosts",
            ),
        ),
    )


def _get_host_efficiencies(material: Material) -> Factor | None:
    frame = material.frame("efficiencies", "host")
    row = frame.row(0, named=True) if frame is not None else {}
    mpi = Factor(
        "MPI parallel efficiency",
        row.get("mpi_parallel_efficiency"),
        "time outside MPI / (tasks x elapsed time)",
        (
            Factor(
                "Load balance",
                row.get("mpi_load_balance_efficiency"),
                "time outside MPI: the mean task / the busiest one",
            ),
            Factor(
                "Communication efficiency",
                row.get("mpi_communication_efficiency"),
                "maximum time outside MPI / elapsed time",
            ),
        ),
    )
    parts = (
        *([mpi] if mpi.value is not None else []),
        *(
            [
                Factor(
                    "Offload efficiency",
                    row["offload_efficiency"],
                    "time outside MPI and the CUDA API / time outside MPI",
                )
            ]
            if row.get("offload_efficiency") is not None
            else []
        ),
    )
    if row.get("host_parallel_efficiency") is not None:
        return Factor(
            "Parallel efficiency of hosts",
            row["host_parallel_efficiency"],
            "time outside MPI and the CUDA API / (tasks x "
            "elapsed time); a low value is fine where GPUs do the work and hosts wait for them",
            parts,
        )
    return parts[0] if parts else None


def make_communication_section(material: Material) -> Section:
    return Section(
        "communication",
        "Exposed communication",
        [
            *material.make_grid("overlap", "operations"),
            *material.make_grid("overlap", "classes"),
            *material.make_grid("overlap", "devices", MOST_RANKS, folded=True),
            *material.make_grid("overlap", "concurrency", folded=True),
            *material.make_grid("overlap", "in_flight", MOST_RANKS, folded=True),
            *material.notes("overlap"),
        ],
    )


#: Ranks in the picture of what the last rank did.
MOST_STRAGGLERS = 30
#: As in the picture of devices; what the device was in, each on its own (they may be at the same
#: time).
HOSTS = {
    "host_mpi_ns": ("#CC79A7", "host in MPI"),
    "host_nccl_ns": ("#8C564B", "host in NCCL"),
    "host_io_ns": ("#009E73", "host in I/O"),
    "host_synchronisation_ns": ("#F0E442", "host waits for the device"),
    "host_launch_ns": ("#7F7FBF", "host in CUDA calls"),
}


def make_collectives_section(material: Material) -> Section:
    return Section(
        "collectives",
        "Stragglers and collectives",
        [
            *_make_stragglers(material),
            *material.make_grid("collectives", "stragglers", MOST_RANKS),
            *_make_meanwhile(material),
            *material.make_grid("collectives", "meanwhile", MOST_RANKS),
            *material.make_grid("collectives", "across_ranks"),
            *material.make_grid("collectives", "nccl", folded=True),
            *material.make_grid("collectives", "mpi"),
            *material.notes("collectives"),
        ],
    )


def _make_stragglers(material: Material) -> list[Block]:
    ranking = material.frame("collectives", "stragglers")
    if ranking is None or not ranking["others_waited_ns"].sum():
        return []
    first = ranking.head(MOST_STRAGGLERS)
    share = first["others_waited_ns"].to_numpy() / ranking["others_waited_ns"].sum()
    return [
        Stacked(
            "Which rank the others wait for",
            first["rank"].to_list(),
            {"time that others waited for this rank": ("#D55E00", share)},
            "% of all waits in matched collectives",
            ""
            if first.height == ranking.height
            else f"The first {MOST_STRAGGLERS} of {ranking.height:,} ranks.",
        )
    ]


def _make_meanwhile(material: Material) -> list[Block]:
    doing = material.frame("collectives", "meanwhile")
    doing = (
        None if doing is None else doing.filter(doing["total_late_ns"] > 0).head(MOST_STRAGGLERS)
    )
    if doing is None or not doing.height:
        return []
    late = doing["total_late_ns"].to_numpy()
    parts = {
        name: (colour, doing[column].to_numpy() / late)
        for column, (colour, name) in HOSTS.items()
        if doing[column].sum()
    }
    rest = np.clip(1 - sum((values for _, values in parts.values()), np.zeros(len(late))), 0, 1)
    parts["host elsewhere"] = ("#999999", rest)
    return [
        Stacked(
            "What the host threads of late ranks did while the others waited",
            doing["rank"].to_list(),
            parts,
            "% of the time that the rank was late",
            "The table below says what their GPUs did, which may do several things at a time.",
            folded=doing.height < 2,
        )
    ]


CLOCKS_NOTE = (
    "Times of two hosts can be compared to within the sum of their error bounds; a shorter wait or "
    "delay between them means nothing."
)


def make_clocks_section(material: Material) -> Section:
    return Section(
        "clocks",
        "Clocks of hosts",
        [*material.make_grid("clocks", "hosts", note=CLOCKS_NOTE), *material.notes("clocks")],
    )


def make_scalability_section(material: Material) -> Section:
    return Section(
        "scaling",
        "Scalability",
        [*material.make_grid("scaling", "scaling"), *material.notes("scaling")],
    )


NOTE = (
    "The one chain of work and waiting, from the begin of the job to its end over all ranks, that explains how long it took. "
    "Only what is on it makes the job shorter when it gets faster."
)
#: Ranks in the picture.
MOST_SHOWN = 30
#: Columns of the table of ranks -> colour and name of what the path does there.
PARTS = {
    "kernels_ns": ("#0072B2", "kernels"),
    "nccl_ns": ("#D55E00", "NCCL, after the last rank came"),
    "memory_ns": ("#009E73", "memory operations"),
    "other_ns": ("#999999", "no device works: launches, calls, hosts"),
}


def make_critical_path_section(material: Material) -> Section:
    blocks: list[Block] = []
    if path_findings := [
        finding
        for finding in getattr(material.results.get("critical_path"), "findings", ())
        if finding.kind == "critical_path"
    ]:
        blocks.append(Findings("What the time of the job goes to", path_findings, NOTE))
    return Section(
        "critical_path",
        "Critical path",
        [
            *blocks,
            *_make_by_rank(material),
            *material.make_grid("critical_path", "causes"),
            *material.make_grid("critical_path", "ranks", MOST_RANKS, folded=True),
            *material.make_grid("critical_path", "classes", folded=True),
            *material.make_grid("critical_path", "by_kernel"),
            *material.notes("critical_path"),
        ],
    )


def _make_by_rank(material: Material) -> list[Block]:
    """Show on which ranks the path is."""
    ranks = material.frame("critical_path", "ranks")
    if ranks is None:
        return []
    whole = ranks["time_ns"].sum()
    first = ranks.head(MOST_SHOWN)
    left = (
        f"The first {MOST_SHOWN} of {ranks.height:,} ranks." if first.height < ranks.height else ""
    )
    return [
        Stacked(
            "On which ranks the critical path is",
            first["rank"].to_list(),
            {
                name: (colour, first[column].to_numpy() / whole)
                for column, (colour, name) in PARTS.items()
            },
            "% of the path",
            left,
            folded=ranks.height < 2,
        )
    ]
