"""Communication that computation does not hide."""

from __future__ import annotations

from nsys2prv.analysis.page.parts import MOST_RANKS, Material, Section


def section(material: Material) -> Section:
    return Section(
        "communication",
        "Exposed communication",
        [
            *material.grid("overlap", "operations"),
            *material.grid("overlap", "classes"),
            *material.grid("overlap", "devices", MOST_RANKS, folded=True),
            *material.grid("overlap", "concurrency", folded=True),
            *material.grid("overlap", "in_flight", MOST_RANKS, folded=True),
            *material.notes("overlap"),
        ],
    )
