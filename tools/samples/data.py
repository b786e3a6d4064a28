"""The files of data beside the modules: ``data.yaml``, tables with tabs between columns, and the
kernels of ``kernels.tsv``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml


def read_text(name: str) -> str:
    """The text of a file of data."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


@cache
def read_rows(name: str) -> list[list[str]]:
    """The rows of a table, without comments."""
    return [line.split("\t") for line in read_text(name).splitlines() if not line.startswith("#")]


def as_json(value: Any) -> str:
    """JSON as exports have it: without spaces."""
    return json.dumps(value, separators=(",", ":"))


DATA: dict[str, Any] = yaml.load(
    read_text("data.yaml"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
)
LAUNCHES = {
    "runtime": "cudaLaunchKernel_v7000",
    "runtime_ex": "cudaLaunchKernelExC_v11060",
    "driver": "cuLaunchKernel",
    "driver_ex": "cuLaunchKernelEx",
}


@dataclass(frozen=True)
class Kernel:
    """A kernel function as the KERNEL table describes it; shared memory in bytes."""

    short: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    registers: int
    static_shared: int
    dynamic_shared: int
    shared_executed: int
    cluster: tuple[int, ...]
    mean_ns: float
    api: str  # that launches it
    demangled: str
    mangled: str


def _read_kernels() -> dict[str, Kernel]:
    """The kernels of the job by the key the programs use.

    Names, grids, registers and shared memory of the GEMM (nvjet, XMMA), elementwise, softmax,
    reduce and cat kernels were seen in public exports of H100 and H200 runs; those of flash
    attention, CUTLASS, layer norm, Adam, embedding, Triton and NCCL follow the same style.
    """
    found = {}
    for key, short, grid, block, *numbers, cluster, mean, api, demangled, mangled in read_rows(
        "kernels.tsv"
    )[1:]:
        grid, block, cluster = (tuple(map(int, one.split("x"))) for one in (grid, block, cluster))
        names = (short if name == "=" else name for name in (demangled, mangled))
        found[key] = Kernel(
            short, grid, block, *map(int, numbers), cluster, float(mean), LAUNCHES[api], *names
        )
    return found


KERNELS = _read_kernels()
