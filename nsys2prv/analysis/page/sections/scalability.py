"""Several runs, where --compare named some."""

from __future__ import annotations

from nsys2prv.analysis.page.parts import Material, Section


def section(material: Material) -> Section:
    return Section(
        "scaling", "Scalability", [*material.grid("scaling", "scaling"), *material.notes("scaling")]
    )
