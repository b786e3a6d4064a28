"""CUDA kernels, graphs and memory operations on the rows of their streams, and lines from the calls
that launched them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsys2prv._util.columns import ABSENT, factorize, factorize_together
from nsys2prv.events.attributes import columns_of, read_fields
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import GpuWork, Lines, Rows, declare_kind
from nsys2prv.events.launches import FoundLaunches
from nsys2prv.events.names.calls import is_nccl_kernel
from nsys2prv.events.nccl import attach_payloads
from nsys2prv.nsight.source import NULL, Columns, Part, Source

#: Columns of every operation of a stream.
OPERATION = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")


def launch_lines(
    extraction: Extraction,
    kind: str,
    columns: Columns,
    objects: np.ndarray,
    size: np.ndarray,
    found: FoundLaunches | None = None,
) -> Lines | None:
    """Return lines to operations with the columns start, end, globalPid and correlationId, on these
    objects, with these sizes (bytes).

    found: their calls, where these have been looked up already.
    """
    if not extraction.settings.lines:
        return None
    if found is None:
        found = extraction.launches.find(columns["globalPid"], columns["correlationId"])
    hit = slice(None) if found.hit.all() else found.hit
    kinds, codes = factorize(found.code[hit])
    senders = extraction.threads(found.kinds["thread"][kinds])[codes]
    return Lines(
        kind,
        found.begin[hit],
        senders,
        columns["start"][hit],
        objects[hit],
        columns["end"][hit],
        size[hit],
    )


KERNEL_TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"


def extract_kernels(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(
        part, (*OPERATION, "demangledName", "shortName", *columns_of("cuda_kernel"))
    )
    (demangled, short), codes = factorize_together(columns["demangledName"], columns["shortName"])
    shorts = np.array(extraction.strings(short), object)
    names = np.array(
        [full or brief for full, brief in zip(extraction.strings(demangled), shorts, strict=True)],
        object,
    )
    of_nccl = np.fromiter((is_nccl_kernel(name) for name in names), bool, len(names))
    objects = extraction.streams(columns["globalPid"], columns["deviceId"], columns["streamId"])
    attributes = read_fields(extraction, "cuda_kernel", columns)
    attributes |= _classes(extraction, names, codes)
    found = extraction.launches.find(columns["globalPid"], columns["correlationId"])
    lines = launch_lines(
        extraction, "launch", columns, objects, np.zeros(columns.rows, np.int64), found
    )

    if not of_nccl.all():
        chosen = np.flatnonzero(~of_nccl[codes]) if of_nccl.any() else None
        kernel = _named(extraction, "kernels", names, shorts, ~of_nccl)[codes]
        yield Rows(
            "cuda_kernel",
            columns["start"],
            columns["end"],
            objects,
            {**attributes, "kernel": kernel},
            lines=lines,
            selection=chosen,
        )
        lines = None
    if of_nccl.any():
        rows = np.flatnonzero(of_nccl[codes])
        fields = {field: column[rows] for field, column in attributes.items()}
        fields["kernel"] = _named(extraction, "nccl_kernels", names, shorts, of_nccl)[codes[rows]]
        fields |= attach_payloads(
            extraction,
            {name: column[rows] for name, column in columns.integers.items()},
            found.of(rows),
            objects[rows],
            names,
            codes[rows],
        )
        yield Rows(
            "nccl_kernel",
            columns["start"][rows],
            columns["end"][rows],
            objects[rows],
            fields,
            lines=lines,
        )


def _named(
    extraction: Extraction, name_set: str, names: np.ndarray, shorts: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    """Return for each name its local index in a set; it has but those that are `wanted`, and what
    others get means nothing.
    """
    return extraction.name(
        name_set, np.cumsum(wanted) - 1, text=names[wanted].tolist(), short=shorts[wanted].tolist()
    )


def _classes(extraction: Extraction, names: np.ndarray, codes: np.ndarray) -> dict[str, np.ndarray]:
    """Return class, tensor cores and (name index of) layout and tile of kernels whose names are
    those at `codes`.
    """
    kinds, tensor_cores, shapes = extraction.classifier.columns(names)
    known = sorted(set(shapes) - {""})
    number = {shape: index for index, shape in enumerate(known)}
    shape = np.array([number.get(shape, ABSENT) for shape in shapes], np.int64)[codes]
    if known:
        shape = np.where(shape == ABSENT, ABSENT, extraction.name("gemm", shape, text=known))
    return {"class": kinds[codes], "tensor_cores": tensor_cores[codes], "gemm": shape}


GRAPH_TABLE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"


def extract_graphs(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield one row per graph launch. Traced by node instead, a graph's kernels are rows of the
    kernel table with a graphNodeId.
    """
    columns = extraction.read(part, (*OPERATION, *columns_of("cuda_graph")))
    objects = extraction.streams(columns["globalPid"], columns["deviceId"], columns["streamId"])
    ids, codes = factorize(columns["graphExecId"])
    names = ["CUDA graph" if number == NULL else f"CUDA graph exec {number}" for number in ids]
    lines = launch_lines(extraction, "launch", columns, objects, np.zeros(columns.rows, np.int64))
    yield Rows(
        "cuda_graph",
        columns["start"],
        columns["end"],
        objects,
        {
            "execution": extraction.name("graphs", codes, text=names),
            **read_fields(extraction, "cuda_graph", columns),
        },
        lines=lines,
    )


def traced_by_node(source: Source) -> str:
    """True if graphs were traced node by node."""
    if source.has(KERNEL_TABLE, "graphNodeId") and source.count(KERNEL_TABLE, "{graphNodeId} > 0"):
        return "graphs were traced node by node, and their nodes are rows of `kernels`"
    return ""


COPIES, SETS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
#: Nsight's ENUM_CUDA_MEMCPY_OPER (by index) -> memory_operation of the catalogue.
UNKNOWN, DEVICE_TO_DEVICE, PEER_TO_PEER, MEMSET = 1, 3, 13, 6
OPERATIONS = np.array(
    [UNKNOWN, 5, 4, 7, 8, 9, 10, 11, DEVICE_TO_DEVICE, 12, PEER_TO_PEER, 14, 15, 16]
)


def extract_memory_operations(extraction: Extraction, part: Part) -> Iterator[Rows]:
    copies = part.table == COPIES
    further = ("copyKind", "srcDeviceId", "dstDeviceId") if copies else ("memKind",)
    columns = extraction.read(part, (*OPERATION, *columns_of("memory_operation"), *further))
    if not copies:
        columns.integers["dstKind"] = columns["memKind"]
    objects = extraction.streams(columns["globalPid"], columns["deviceId"], columns["streamId"])
    fields = read_fields(extraction, "memory_operation", columns)
    fields["operation"] = (
        copy_operations(*(columns[name] for name in further))
        if copies
        else np.full(columns.rows, MEMSET)
    )
    lines = launch_lines(extraction, "memory", columns, objects, fields["bytes"])
    yield Rows("memory_operation", columns["start"], columns["end"], objects, fields, lines=lines)


def copy_operations(kind: np.ndarray, source: np.ndarray, destination: np.ndarray) -> np.ndarray:
    """Return memory_operation values of copies. A device-to-device copy between two devices is a
    peer-to-peer copy.
    """
    known = (kind >= 0) & (kind < len(OPERATIONS))
    operations = np.where(known, OPERATIONS[np.where(known, kind, 0)], UNKNOWN)
    between = (
        (operations == DEVICE_TO_DEVICE)
        & (source != destination)
        & (source != NULL)
        & (destination != NULL)
    )
    return np.where(between, PEER_TO_PEER, operations)


KINDS = (
    declare_kind("kernels", extract_kernels),
    declare_kind("graphs", extract_graphs, gpu_work=GpuWork(hint_when_missing=traced_by_node)),
    declare_kind("memory", extract_memory_operations),
)
