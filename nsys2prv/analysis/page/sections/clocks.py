"""How the clocks of the hosts were corrected."""

from __future__ import annotations

from nsys2prv.analysis.page.parts import Material, Section

NOTE = (
    "Times of two hosts can be compared to within the sum of their bounds; shorter waits and lateness "
    "between them tell nothing."
)


def section(material: Material) -> Section:
    return Section(
        "clocks",
        "Clocks of hosts",
        [*material.grid("clocks", "hosts", note=NOTE), *material.notes("clocks")],
    )
