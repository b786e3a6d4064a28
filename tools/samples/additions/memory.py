"""Memory: allocations and releases through CUDA, a memory pool, and page faults on unified memory.

In every step a data loader takes and returns device memory (at one address, of changing size) and pinned memory. What is taken
at the beginning stays; one release is of memory from before the capture, and one release is missing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..cluster import Ints, Thread
from . import Scene

USAGE, POOL = "CUDA_GPU_MEMORY_USAGE_EVENTS", "CUDA_GPU_MEMORY_POOL_EVENTS"
CPU_FAULTS, GPU_FAULTS = "CUDA_UM_CPU_PAGE_FAULT_EVENTS", "CUDA_UM_GPU_PAGE_FAULT_EVENTS"
PAGEABLE, PINNED, DEVICE, ARRAY, MANAGED, STATIC, MANAGED_STATIC, UNKNOWN = range(8)
ALLOCATED, FREED = 0, 1
BASE = 0x7F40_0000_0000
MIB = 1 << 20
LABELS = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device static", "Managed static", "Unknown")
"""Of memory, by ENUM_CUDA_MEM_KIND."""
ONCE = (PAGEABLE, ARRAY, MANAGED_STATIC, UNKNOWN)
CALLS = {(DEVICE, ALLOCATED): "cudaMalloc", (DEVICE, FREED): "cudaFree", (PINNED, ALLOCATED): "cudaMallocHost",
         (PINNED, FREED): "cudaFreeHost"}


def add(scene: Scene) -> dict[str, Any]:
    """Truth: bytes allocated and freed by kind of memory, as rows say; most bytes in use by kind; releases whose allocation is unknown;
    page faults."""
    usage = _Usage(scene)
    steps = scene.steps
    length = steps[:, 1] - steps[:, 0]
    early = steps[:1, 0] // 2
    usage.events(early, 0x100, 64 * MIB, STATIC, ALLOCATED, name="lookup_table")
    usage.events(early + 10, 0x200, 512 * MIB, MANAGED, ALLOCATED)
    for number, kind in enumerate(ONCE, 1):
        usage.events(early + 10 + number, 0x200 + number, number * 4096, kind, ALLOCATED)
    usage.events(early + 20, 0x300, 3 * MIB, DEVICE, FREED)  # from before the capture
    usage.events(early + 30, 0x400, 8 * MIB, DEVICE, ALLOCATED)
    sizes = (1 + np.arange(len(steps)) % 5) * 16 * MIB
    usage.events(steps[:, 0] + length // 10, 0x1000, sizes, DEVICE, ALLOCATED, call=True)
    usage.events(steps[:, 0] + length // 8, 0x2000, MIB, PINNED, ALLOCATED, call=True)
    usage.events(steps[:, 0] + length // 4, 0x3000, 2 * MIB, DEVICE, ALLOCATED, pool=True)
    usage.events(steps[:, 0] + length // 3, 0x3000, 2 * MIB, DEVICE, FREED, pool=True)
    usage.events(steps[:, 0] + length // 2, 0x2000, MIB, PINNED, FREED, call=True)
    # The last step's release is lost, and its address is taken again after all.
    usage.events((steps[:, 0] + length * 3 // 4)[:-1], 0x1000, sizes[:-1], DEVICE, FREED, call=True)
    usage.events((steps[:, 0] + length * 3 // 4)[-1:], 0x1000, 4 * MIB, DEVICE, ALLOCATED)
    largest = int(sizes.max())
    return {"allocated": usage.bytes[ALLOCATED], "freed": usage.bytes[FREED], "unknown_releases": 1, "missing_releases": 1,
            "most_in_use": {
                **{LABELS[kind]: number * 4096 for number, kind in enumerate(ONCE, 1)},
                "Pinned": MIB, "Device": 8 * MIB + largest + 2 * MIB, "Managed": 512 * MIB, "Device static": 64 * MIB},
            "pool": _pool(scene), "cpu_faults": _cpu_faults(scene), "gpu_faults": _gpu_faults(scene)}


class _Usage:
    """Writes allocations and releases, and the calls behind them. bytes: by operation and kind of memory."""

    def __init__(self, scene: Scene) -> None:
        self.report = scene.report
        self.bytes: tuple[dict[str, int], dict[str, int]] = {}, {}

    def events(self, start: Ints, address: int, size: Any, memory: int, operation: int, name: str | None = None,
               call: bool = False, pool: bool = False) -> None:
        report, rank = self.report, self.report.rank
        size = np.broadcast_to(np.asarray(size), len(start))
        correlation: Any = self._calls(start, CALLS[memory, operation]) if call else 0
        more = {"localMemoryPoolAddress": BASE, "localMemoryPoolReleaseThreshold": 0, "localMemoryPoolSize": 32 * MIB,
                "localMemoryPoolUtilizedSize": np.where(operation == ALLOCATED, size, 0)} if pool else {}
        report.export.insert(USAGE, {
            "start": start, "globalPid": rank.global_pid, "deviceId": rank.device, "contextId": rank.context, "address": BASE + address,
            "pc": 0, "bytes": size, "memKind": memory, "memoryOperationType": operation, "name": name, "correlationId": correlation,
            "streamId": 7, **more})
        found = self.bytes[operation]
        found[LABELS[memory]] = found.get(LABELS[memory], 0) + int(size.sum())

    def _calls(self, start: Ints, function: str) -> Ints:
        """CUDA API calls around these moments, on a data loader; returns their correlation ids."""
        report = self.report
        ids = report.correlation + 1 + np.arange(len(start))
        report.correlation += len(start) + 1
        report.insert("CUPTI_ACTIVITY_KIND_RUNTIME", [function], {
            "eventClass": 0, "globalTid": report.rank.global_tid(Thread.LOADER_0), "correlationId": ids[:, None],
            "nameId": report.export.string(function), "returnValue": 0}, start[:, None] - 2_000, start[:, None] + 3_000)
        return ids


def _pool(scene: Scene) -> dict[str, int]:
    report, rank = scene.report, scene.report.rank
    begin, end = int(scene.steps[0, 0]) // 3, int(scene.steps[-1, 1])
    report.export.insert(POOL, {
        "start": np.array([begin, end, end + 500]), "globalPid": rank.global_pid, "deviceId": rank.device, "address": BASE,
        "operationType": np.array([1, 3, 2]), "poolType": 1, "correlationId": 0, "minBytesToKeep": np.array([0, MIB, 0]),
        "localMemoryPoolReleaseThreshold": 0, "localMemoryPoolSize": np.array([0, 32 * MIB, 0]), "localMemoryPoolUtilizedSize": 0})
    return {"Created": 1, "Trimmed": 1, "Destroyed": 1}


def _cpu_faults(scene: Scene) -> dict[str, int]:
    report, rank = scene.report, scene.report.rank
    at = np.sort(scene.random.integers(int(scene.steps[0, 0]), int(scene.steps[-1, 1]), 12))
    functions = ["fill_field", "check_result"]
    which = np.arange(12) % 3 // 2
    string = report.export.string
    source = np.where(which == 0, string("/home/user/app/field.cpp"), None)
    report.export.insert(CPU_FAULTS, {
        "start": at, "globalPid": rank.global_pid, "address": BASE + 0x200 + 4096 * np.arange(12), "originalFaultPc": 0x401000,
        "CpuInstruction": np.array([string(name) for name in functions])[which], "module": string("/home/user/app/solver"),
        "unresolvedFaultPc": 0, "sourceFile": source, "sourceLine": np.where(which == 0, 17, None)})
    return {name: int((which == number).sum()) for number, name in enumerate(functions)}


def _gpu_faults(scene: Scene) -> dict[str, Any]:
    """Of each access: rows, ns and faults."""
    report, rank = scene.report, scene.report.rank
    begin = scene.steps[:, 0] + 1_000
    truth = {}
    for access, label, offset, length, faults in ((1, "Read", 0, 20_000, 3), (2, "Write", 30_000, 15_000, 8),
                                                  (3, "Atomic", 35_000, 5_000, 1)):
        report.export.insert(GPU_FAULTS, {
            "start": begin + offset, "end": begin + offset + length, "globalPid": rank.global_pid, "deviceId": rank.device,
            "address": BASE + 0x200, "numberOfPageFaults": faults, "faultAccessType": access})
        truth[label] = {"rows": len(begin), "ns": length * len(begin), "faults": faults * len(begin)}
    return truth
