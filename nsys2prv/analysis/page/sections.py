"""The sections of the page, in the order in which an engineer reads: what it is, what to look at,
then one thing after another.
"""

from __future__ import annotations

from msgspec.structs import replace

from nsys2prv.analysis.page.device_sections import (
    devices_section,
    idle_section,
    kernels_section,
    maps_section,
)
from nsys2prv.analysis.page.iteration_sections import iterations_section, operations_section
from nsys2prv.analysis.page.job_sections import (
    clocks_section,
    collectives_section,
    communication_section,
    critical_path_section,
    scalability_section,
    summary_section,
)
from nsys2prv.analysis.page.parts import Material, Section, condense_rows

#: Functions that make a section each, in the order of the page.
SECTIONS = (
    summary_section,
    devices_section,
    communication_section,
    collectives_section,
    critical_path_section,
    clocks_section,
    kernels_section,
    operations_section,
    idle_section,
    maps_section,
    iterations_section,
    scalability_section,
)


def make_sections(material: Material) -> list[Section]:
    """Return all sections of which there is something to say."""
    made = [make_section(material) for make_section in SECTIONS]
    return [replace(one, blocks=[*map(condense_rows, one.blocks)]) for one in made if one.blocks]
