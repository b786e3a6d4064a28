"""What is worth attention, and the tree of efficiencies."""

from __future__ import annotations

from nsys2prv.analysis.page.parts import (
    FAIR,
    GOOD,
    Block,
    Factor,
    Factors,
    Findings,
    Items,
    Material,
    Section,
)

NOTE = (
    "One cause each, the most costly first. The bar is the share of the time (of the steady state, where one was found) that would be "
    "gained at most if the cause vanished."
)


def section(material: Material) -> Section:
    blocks: list[Block] = []
    roots = [root for root in (_devices(material), _hosts(material)) if root]
    if roots:
        blocks.append(
            Factors(
                "Efficiencies",
                roots,
                f"A product of the factors below it. Green from {GOOD:.0%} on, yellow from {FAIR:.0%} "
                "on, red below; POP takes less than 80 % for worth a look.",
            )
        )
    if "findings" in material.results:
        blocks.append(
            Findings("What holds the job back", material.results["findings"].findings, NOTE)
        )
        blocks += material.grid("findings", "phases")
    blocks += material.notes("efficiencies")
    blocks += material.grid("efficiencies", "steady")
    blocks += material.grid("efficiencies", "nodes", folded=True)
    warnings = [str(warning) for warning in material.job.get("warnings", [])]
    notes = [str(note) for note in material.job.get("notes", [])]
    return Section(
        "summary", "Summary", [*blocks, *([Items(warnings + notes)] if warnings or notes else [])]
    )


def _devices(material: Material) -> Factor | None:
    frame = material.frame("efficiencies", "device")
    if frame is None:
        return None
    row = frame.row(0, named=True)
    return Factor(
        "Parallel efficiency of devices",
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
                "greatest useful time / greatest active time",
            ),
            Factor(
                "Orchestration efficiency",
                row["orchestration_efficiency"],
                "greatest active time / elapsed time: devices wait for hosts",
            ),
        ),
    )


def _hosts(material: Material) -> Factor | None:
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
                "greatest time outside MPI / elapsed time",
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
            "elapsed time); low is as it should be where GPUs do the work and hosts wait for them",
            parts,
        )
    return parts[0] if parts else None
