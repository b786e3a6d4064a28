"""Who is late at collectives, what it did meanwhile, and how fast they are."""

from __future__ import annotations

import numpy as np

from nsys2prv.analysis.page.parts import MOST_RANKS, Block, Material, Section, Stacked

#: Ranks in the picture of what the last did.
MOST = 30
#: As in the picture of devices; what the device was in, each on its own (they may be at the same
#: time).
HOSTS = {
    "host_mpi_ns": ("#CC79A7", "host in MPI"),
    "host_nccl_ns": ("#8C564B", "host in NCCL"),
    "host_io_ns": ("#009E73", "host in I/O"),
    "host_synchronisation_ns": ("#F0E442", "host waits for the device"),
    "host_launch_ns": ("#7F7FBF", "host in CUDA calls"),
}


def section(material: Material) -> Section:
    return Section(
        "collectives",
        "Stragglers and collectives",
        [
            *_stragglers(material),
            *material.grid("collectives", "stragglers", MOST_RANKS),
            *_meanwhile(material),
            *material.grid("collectives", "meanwhile", MOST_RANKS),
            *material.grid("collectives", "across_ranks"),
            *material.grid("collectives", "nccl", folded=True),
            *material.grid("collectives", "mpi"),
            *material.notes("collectives"),
        ],
    )


def _stragglers(material: Material) -> list[Block]:
    ranking = material.frame("collectives", "stragglers")
    if ranking is None or not ranking["made_wait_ns"].sum():
        return []
    first = ranking.head(MOST)
    share = first["made_wait_ns"].to_numpy() / ranking["made_wait_ns"].sum()
    return [
        Stacked(
            "Whom the others wait for",
            first["rank"].to_list(),
            {"waits that the rank causes": ("#D55E00", share)},
            "% of all waits in matched collectives",
            ""
            if first.height == ranking.height
            else f"The first {MOST} of {ranking.height:,} ranks.",
        )
    ]


def _meanwhile(material: Material) -> list[Block]:
    doing = material.frame("collectives", "meanwhile")
    doing = None if doing is None else doing.filter(doing["late_ns"] > 0).head(MOST)
    if doing is None or not doing.height:
        return []
    late = doing["late_ns"].to_numpy()
    parts = {
        name: (colour, doing[column].to_numpy() / late)
        for column, (colour, name) in HOSTS.items()
        if doing[column].sum()
    }
    rest = np.clip(1 - sum((values for _, values in parts.values()), np.zeros(len(late))), 0, 1)
    parts["host elsewhere"] = ("#999999", rest)
    return [
        Stacked(
            "What the host threads of the last did while the others waited",
            doing["rank"].to_list(),
            parts,
            "% of the time that the rank was late",
            "What its device did is in the table below; a device may do several at a time.",
            folded=doing.height < 2,
        )
    ]
