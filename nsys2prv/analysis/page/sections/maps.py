"""Sampled metrics of GPUs, network and other devices over time."""

from __future__ import annotations

import polars as pl

from nsys2prv.analysis.page.parts import Block, HeatMap, Items, Material, Section
from nsys2prv.analysis.page.sections.devices import grid_of

#: Shown open, in this order; others are folded away.
FIRST = (
    "SMs Active [Throughput %]",
    "Tensor Active [Throughput %]",
    "DRAM Read Bandwidth [Throughput %]",
    "DRAM Write Bandwidth [Throughput %]",
    "IB: Bytes sent [bytes/ms]",
    "IB: Bytes received [bytes/ms]",
)
#: Maps on a page.
MOST = 48


def section(material: Material) -> Section:
    blocks: list[Block] = [*material.grid("metrics", "metrics")]
    maps = material.frame("metrics", "map")
    if maps is not None:
        blocks += _maps(material, maps)
    blocks += material.grid("metrics", "means", folded=True)
    return Section(
        "metrics",
        "Utilisation over time: GPU metrics and network",
        [*blocks, *material.notes("metrics")],
    )


def _maps(material: Material, maps: pl.DataFrame) -> list[Block]:
    greatest = dict(maps.group_by("metric", maintain_order=True).agg(pl.col("mean").max()).rows())
    telling = [name for name, most in greatest.items() if most]
    order = [name for name in FIRST if name in telling] + sorted(
        name for name in telling if name not in FIRST
    )
    drawn: list[Block] = []
    parts = maps.with_columns(label=pl.format("{} {}", "node", "device")).partition_by(
        "metric", as_dict=True
    )
    end = material.duration / 1e9
    for name in order[:MOST]:
        labels, values = grid_of(parts[(name,)], "mean", "label")
        percent = "%" in name
        drawn.append(
            HeatMap(
                name,
                labels,
                values,
                (0, end),
                "time (s)",
                "%" if percent else _unit(name),
                high=100 if percent else None,
                folded=name not in FIRST,
            )
        )
    silent = [name for name, most in greatest.items() if not most]
    said = [f"0 all the time: {', '.join(silent)}"] if silent else []
    said += (
        [f"not drawn, for there are more than {MOST}: {', '.join(order[MOST:])}"]
        if order[MOST:]
        else []
    )
    return [*drawn, *([Items(said)] if said else [])]


def _unit(name: str) -> str:
    return name[name.rfind("[") + 1 : -1] if name.endswith("]") else "mean"
