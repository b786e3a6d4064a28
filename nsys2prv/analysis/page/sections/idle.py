"""Idle devices and why, launches, API calls, memory operations."""

from __future__ import annotations

import numpy as np

from nsys2prv.analysis.page.parts import MOST_RANKS, Block, Material, Section, Stacked
from nsys2prv.analysis.page.sections.devices import IDLE


def section(material: Material) -> Section:
    return Section(
        "idle",
        "Idle devices, launches, copies",
        [
            *_gaps(material),
            *material.grid("idle", "gaps"),
            *material.grid("idle", "long_gaps", folded=True),
            *material.grid("idle", "memory"),
            *material.grid("idle", "calls"),
            *material.grid("idle", "latencies", MOST_RANKS, folded=True),
            *material.grid("idle", "queued", MOST_RANKS, folded=True),
            *material.grid("idle", "rules"),
            *material.notes("idle"),
        ],
    )


def _gaps(material: Material) -> list[Block]:
    gaps = material.frame("idle", "gaps")
    if gaps is None or not gaps["time_ns"].sum():
        return []
    # Of what all devices could have done.
    whole = gaps["elapsed_share"].to_numpy() / np.maximum(gaps["time_ns"].to_numpy(), 1)
    parts = {
        name.removeprefix("idle: "): (colour, gaps[column].to_numpy() * whole)
        for column, (colour, name) in IDLE.items()
        if gaps[column].sum()
    }
    return [
        Stacked(
            "Idle time by length of the gap, and what the host did",
            gaps["length"].to_list(),
            parts,
            "% of the elapsed time of all devices",
        )
    ]
