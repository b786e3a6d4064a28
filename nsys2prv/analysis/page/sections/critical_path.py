"""The section on the critical path, where it was asked for."""

from __future__ import annotations

from nsys2prv.analysis.page.parts import (
    MOST_RANKS,
    Block,
    Findings,
    Material,
    Section,
    Stacked,
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


def critical_path_section(material: Material) -> Section:
    blocks: list[Block] = []
    if found := [
        finding
        for finding in getattr(material.results.get("critical_path"), "findings", ())
        if finding.kind == "critical_path"
    ]:
        blocks.append(Findings("What the time of the job goes to", found, NOTE))
    return Section(
        "critical_path",
        "Critical path",
        [
            *blocks,
            *_by_rank(material),
            *material.grid("critical_path", "causes"),
            *material.grid("critical_path", "ranks", MOST_RANKS, folded=True),
            *material.grid("critical_path", "classes", folded=True),
            *material.grid("critical_path", "by_kernel"),
            *material.notes("critical_path"),
        ],
    )


def _by_rank(material: Material) -> list[Block]:
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
