"""Memory copies, sets and unified-memory migrations on the rows of their streams, and lines from their calls."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsys2prv.columns import ABSENT
from nsys2prv.events.extraction import Extraction, correlation_ids, number, present
from nsys2prv.events.kind import EventKind, Rows
from nsys2prv.events.lines import launch_lines
from nsys2prv.report.source import NULL, Part

COPIES, SETS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
#: Nsight's ENUM_CUDA_MEMCPY_OPER (by index) -> memory_operation of the catalogue.
UNKNOWN, DEVICE_TO_DEVICE, PEER_TO_PEER, MEMSET = 1, 3, 13, 6
OPERATIONS = np.array([UNKNOWN, 5, 4, 7, 8, 9, 10, 11, DEVICE_TO_DEVICE, 12, PEER_TO_PEER, 14, 15, 16])
#: Catalogue values of these sets are Nsight's plus one, up to this one.
LAST_MEMORY_KIND, LAST_CAUSE = 8, 6


def extract(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(part, ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphNodeId", "bytes",
                                     "copyKind", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId", "migrationCause", "memKind"))
    objects = extraction.streams(columns["globalPid"], columns["deviceId"], columns["streamId"])
    size = number(columns["bytes"])
    copies = part.table == COPIES
    fields = {
        "operation": copy_operations(columns["copyKind"], columns["srcDeviceId"], columns["dstDeviceId"]) if copies
        else np.full(columns.rows, MEMSET),
        "bytes": size,
        "source": _shifted(columns["srcKind"], LAST_MEMORY_KIND),
        "destination": _shifted(columns["dstKind"] if copies else columns["memKind"], LAST_MEMORY_KIND),
        "cause": _shifted(columns["migrationCause"], LAST_CAUSE),
        "correlation": correlation_ids(columns["correlationId"]),
        "graph_node": present(columns["graphNodeId"]),
    }
    lines = launch_lines(extraction, "memory", columns, objects, size)
    yield Rows("memory_operation", columns["start"], columns["end"], objects, fields, lines=lines)


def copy_operations(kind: np.ndarray, source: np.ndarray, destination: np.ndarray) -> np.ndarray:
    """memory_operation values of copies. A device-to-device copy between two devices is a peer-to-peer copy."""
    known = (kind >= 0) & (kind < len(OPERATIONS))
    operations = np.where(known, OPERATIONS[np.where(known, kind, 0)], UNKNOWN)
    between = (operations == DEVICE_TO_DEVICE) & (source != destination) & (source != NULL) & (destination != NULL)
    return np.where(between, PEER_TO_PEER, operations)


def _shifted(column: np.ndarray, last: int) -> np.ndarray:
    """Nsight's enumeration moved up by one, for 0 means End in Paraver."""
    return np.where((column < 0) | (column >= last), ABSENT, column + 1)


KINDS = (
    EventKind("memory", "Memory copies, sets and migrations", "GPU stream", (COPIES, SETS), ("memory_operation",), extract,
              groups=("cuda",), along=("kernels",), lanes="stream", on_gpu=True, needs_launches=True),
)
