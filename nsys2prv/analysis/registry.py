"""All analyses, in the order in which to read them."""

from __future__ import annotations

from nsys2prv.analysis import collectives, efficiencies, idle, kernels, metrics, operations, overlap
from nsys2prv.analysis.findings import analysis as findings

ANALYSES = tuple(module.ANALYSIS for module in (findings, efficiencies, overlap, collectives, kernels, operations, idle, metrics))
