"""The sections of the page, in the order in which an engineer reads: what it is, what to look at,
then one thing after another.
"""

from __future__ import annotations

from nsys2prv.analysis.page.parts import Material, Section
from nsys2prv.analysis.page.sections import (
    clocks,
    collectives,
    communication,
    devices,
    idle,
    iterations,
    kernels,
    maps,
    operations,
    scalability,
    summary,
)

SECTIONS = (
    summary,
    devices,
    communication,
    collectives,
    clocks,
    kernels,
    operations,
    idle,
    maps,
    iterations,
    scalability,
)


def sections(material: Material) -> list[Section]:
    """Return all sections of which there is something to say."""
    made = [module.section(material) for module in SECTIONS]
    return [one for one in made if one.blocks]
