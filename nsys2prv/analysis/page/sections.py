"""The sections of the page, in the order in which an engineer reads: what it is, what to look at,
then one thing after another.
"""

from __future__ import annotations

from msgspec.structs import replace

from nsys2prv.analysis.page.device_sections import (
    make_devices_section,
    make_idle_section,
    make_kernels_section,
    make_maps_section,
)
from nsys2prv.analysis.page.iteration_sections import (
    make_iterations_section,
    make_operations_section,
)
from nsys2prv.analysis.page.job_sections import (
    make_clocks_section,
    make_collectives_section,
    make_communication_section,
    make_critical_path_section,
    make_scalability_section,
    make_summary_section,
)
from nsys2prv.analysis.page.parts import Material, Section, condense_rows

#: Functions that make a section each, in the order of the page.
SECTIONS = (
    make_summary_section,
    make_devices_section,
    make_communication_section,
    make_collectives_section,
    make_critical_path_section,
    make_clocks_section,
    make_kernels_section,
    make_operations_section,
    make_idle_section,
    make_maps_section,
    make_iterations_section,
    make_scalability_section,
)


def make_sections(material: Material) -> list[Section]:
    """Return all sections of which there is something to say."""
    sections = [make_section(material) for make_section in SECTIONS]
    return [
        replace(one, blocks=[*map(condense_rows, one.blocks)]) for one in sections if one.blocks
    ]
