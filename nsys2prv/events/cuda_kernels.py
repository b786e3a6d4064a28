"""CUDA kernels and NCCL kernels on the rows of their streams, and lines from the calls that launched them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsys2prv.columns import ABSENT, factorize_together
from nsys2prv.events.extraction import Extraction, correlation_ids, number, present
from nsys2prv.events.kind import EventKind, Rows
from nsys2prv.events.lines import launch_lines
from nsys2prv.events.nccl_kernels import tie
from nsys2prv.naming.nccl import is_nccl_kernel
from nsys2prv.report.source import Part

TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
#: Field of the layout -> column of the table.
ATTRIBUTES = {
    "grid_x": "gridX", "grid_y": "gridY", "grid_z": "gridZ", "block_x": "blockX", "block_y": "blockY", "block_z": "blockZ",
    "static_shared_memory": "staticSharedMemory", "dynamic_shared_memory": "dynamicSharedMemory",
    "local_memory": "localMemoryTotal", "registers": "registersPerThread",
}


def extract(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(part, ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphNodeId",
                                     "demangledName", "shortName", *ATTRIBUTES.values()))
    (demangled, short), codes = factorize_together(columns["demangledName"], columns["shortName"])
    shorts = np.array(extraction.strings(short), object)
    names = np.array([full or brief for full, brief in zip(extraction.strings(demangled), shorts, strict=True)], object)
    of_nccl = np.fromiter((is_nccl_kernel(name) for name in names), bool, len(names))
    objects = extraction.streams(columns["globalPid"], columns["deviceId"], columns["streamId"])
    attributes = {field: number(columns[column]) for field, column in ATTRIBUTES.items()}
    attributes["correlation"] = correlation_ids(columns["correlationId"])
    attributes["graph_node"] = present(columns["graphNodeId"])
    attributes |= _classes(extraction, names, codes)
    found = extraction.launches.find(columns["globalPid"], columns["correlationId"])
    lines = launch_lines(extraction, "launch", columns, objects, np.zeros(columns.rows, np.int64), found)

    if not of_nccl.all():
        chosen = np.flatnonzero(~of_nccl[codes]) if of_nccl.any() else None
        kernel = _named(extraction, "kernels", names, shorts, ~of_nccl)[codes]
        yield Rows("cuda_kernel", columns["start"], columns["end"], objects, {**attributes, "kernel": kernel}, lines=lines, chosen=chosen)
        lines = None
    if of_nccl.any():
        rows = np.flatnonzero(of_nccl[codes])
        fields = {field: column[rows] for field, column in attributes.items()}
        fields["kernel"] = _named(extraction, "nccl_kernels", names, shorts, of_nccl)[codes[rows]]
        fields |= tie(extraction, {name: column[rows] for name, column in columns.integers.items()}, found.of(rows), objects[rows],
                      names, codes[rows])
        yield Rows("nccl_kernel", columns["start"][rows], columns["end"][rows], objects[rows], fields, lines=lines)


def _named(extraction: Extraction, name_set: str, names: np.ndarray, shorts: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """For each name its local index in a set; it has but those that are `wanted`, and what others get means nothing."""
    return extraction.name(name_set, np.cumsum(wanted) - 1, text=names[wanted].tolist(), short=shorts[wanted].tolist())


def _classes(extraction: Extraction, names: np.ndarray, codes: np.ndarray) -> dict[str, np.ndarray]:
    """Class, tensor cores and (name index of) layout and tile of kernels whose names are those at `codes`."""
    kinds, tensor_cores, shapes = extraction.classifier.columns(names)
    known = sorted(set(shapes) - {""})
    number = {shape: index for index, shape in enumerate(known)}
    shape = np.array([number.get(shape, ABSENT) for shape in shapes], np.int64)[codes]
    if known:
        shape = np.where(shape == ABSENT, ABSENT, extraction.name("gemm", shape, text=known))
    return {"class": kinds[codes], "tensor_cores": tensor_cores[codes], "gemm": shape}


KINDS = (
    EventKind("kernels", "CUDA and NCCL kernels", "GPU stream", (TABLE,), ("cuda_kernel", "nccl_kernel"), extract,
              groups=("cuda",), along=("nccl",), lanes="stream", on_gpu=True, needs_launches=True, needs_regions=True),
)
