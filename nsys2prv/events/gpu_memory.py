"""CUDA memory allocations and pools (``--cuda-memory-usage``), and page faults on unified memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsys2prv._util.columns import ABSENT, factorize, factorize_together
from nsys2prv.events.attributes import (
    enum_value,
    number_or_zero,
    optional,
    positive,
    registered_string_names,
)
from nsys2prv.events.extraction import GPU, DeviceKey, Extraction
from nsys2prv.events.kind import POINTS, EventKind, Index, Indexes, RowRules, Rows
from nsys2prv.nsight.source import NULL, Columns, Part, decode_texts

USAGE, POOLS = "CUDA_GPU_MEMORY_USAGE_EVENTS", "CUDA_GPU_MEMORY_POOL_EVENTS"
#: memoryOperationType, ENUM_CUDA_DEV_MEM_EVENT_OPER.
ALLOCATION, RELEASE = 0, 1
#: Values of the catalogue's memory_kind, Nsight's plus one: memory of the host, and what is
#: neither.
HOST_KINDS, UNKNOWN_MEMORY = (1, 2), 8
UNKNOWN = 99
POOL_FIELDS = {
    "pool_size": "localMemoryPoolSize",
    "pool_used": "localMemoryPoolUtilizedSize",
    "threshold": "localMemoryPoolReleaseThreshold",
}
#: Facts of each allocation and release; `memory`: memory_kind of the catalogue.
FACTS = "gpu_memory"


def extract_usage(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(
        part,
        (
            "start",
            "globalPid",
            "deviceId",
            "address",
            "bytes",
            "memKind",
            "memoryOperationType",
            "correlationId",
            *POOL_FIELDS.values(),
        ),
        ("name",),
    )
    if not columns.rows:
        return
    operation, size = columns["memoryOperationType"], number_or_zero(columns["bytes"])
    kind = columns["memKind"]
    memory = enum_value(kind, UNKNOWN_MEMORY, UNKNOWN_MEMORY)
    on_host = np.isin(memory, HOST_KINDS)

    def if_(which: np.ndarray, wanted: int) -> np.ndarray:
        return np.where(which & (operation == wanted), size, ABSENT)

    known = (operation == ALLOCATION) | (operation == RELEASE)
    extraction.fact(
        FACTS,
        {
            "time_at": columns["start"],
            "object_gpu": gpu_objects(extraction, columns["globalPid"], columns["deviceId"]),
            "process": columns["globalPid"],
            "address": columns["address"],
            "bytes": size,
            "memory": memory.astype(np.int8),
            "operation": np.where(known, operation, -1).astype(np.int8),
        },
    )
    yield Rows(
        "memory_usage",
        columns["start"],
        _point(columns["start"]),
        _threads(extraction, columns),
        {
            "operation": np.where(known, operation + 1, UNKNOWN),
            "memory": memory,
            "allocated": if_(~on_host, ALLOCATION),
            "freed": if_(~on_host, RELEASE),
            "host_allocated": if_(on_host, ALLOCATION),
            "host_freed": if_(on_host, RELEASE),
            "variable": _variables(extraction, columns),
            **_common(columns),
        },
    )


def extract_pools(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(
        part,
        (
            "start",
            "globalPid",
            "deviceId",
            "operationType",
            "poolType",
            "minBytesToKeep",
            "correlationId",
            *POOL_FIELDS.values(),
        ),
    )
    if not columns.rows:
        return
    operation, kind = columns["operationType"], columns["poolType"]
    yield Rows(
        "memory_pool",
        columns["start"],
        _point(columns["start"]),
        _threads(extraction, columns),
        {
            "operation": np.where(np.isin(operation, (1, 2, 3)), operation, UNKNOWN),
            "type": np.where(np.isin(kind, (1, 2)), kind, ABSENT),
            "kept": optional(columns["minBytesToKeep"]),
            **_common(columns),
        },
    )


def gpu_objects(extraction: Extraction, process: np.ndarray, device: np.ndarray) -> np.ndarray:
    """Return objects of physical GPUs by globalPid and CUDA ordinal, which is taken for the GPU's
    number where the report does not tell it.
    """
    (processes, ordinals), codes = factorize_together(
        np.where(process == NULL, 0, process), np.where(device == NULL, 0, device)
    )
    found = [
        extraction.device(DeviceKey(GPU, number=extraction.report.gpu_or_ordinal(pid, ordinal)))
        for pid, ordinal in zip(processes.tolist(), ordinals.tolist(), strict=True)
    ]
    return np.array(found, np.int64)[codes]


def _common(columns: Columns) -> dict[str, np.ndarray]:
    fields = {field: optional(columns[column]) for field, column in POOL_FIELDS.items()}
    return fields | {
        "device": optional(columns["deviceId"]),
        "correlation": positive(columns["correlationId"]),
    }


def _point(start: np.ndarray) -> np.ndarray:
    return np.where(start == NULL, NULL, start + 1)


def _threads(extraction: Extraction, columns: Columns) -> np.ndarray:
    """Return the thread of the call that did it, else the process's main one."""
    found = extraction.launches.find(columns["globalPid"], columns["correlationId"])
    return extraction.threads(
        np.where(found.hit, found.thread, extraction.main_threads(columns["globalPid"]))
    )


def _variables(extraction: Extraction, columns: Columns) -> np.ndarray:
    codes, texts = columns.texts["name"]
    distinct = texts.series
    named = (distinct.bin.size() > 0).to_numpy()[codes]
    if not named.any():
        return np.full(columns.rows, ABSENT)
    result = np.full(columns.rows, ABSENT)
    result[named] = extraction.name("memory_variable", codes[named], text=decode_texts(distinct))
    return result


CPU_FAULTS, GPU_FAULTS = "CUDA_UM_CPU_PAGE_FAULT_EVENTS", "CUDA_UM_GPU_PAGE_FAULT_EVENTS"
#: Catalogue values are ENUM_CUDA_UNIF_MEM_ACCESS_TYPE's plus one, up to this one.
UNKNOWN_ACCESS, LAST_ACCESS = 1, 5


def extract_cpu_faults(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(
        part, ("start", "globalPid", "CpuInstruction", "module", "sourceFile", "sourceLine")
    )
    if not columns.rows:
        return
    start = columns["start"]
    ids, codes = factorize(columns["CpuInstruction"])
    yield Rows(
        "cpu_page_fault",
        start,
        np.where(start == NULL, NULL, start + 1),
        extraction.threads(extraction.main_threads(columns["globalPid"])),
        {
            "function": extraction.name("page_fault_function", codes, text=extraction.strings(ids)),
            "module": registered_string_names(extraction, "page_fault_module", columns["module"]),
            "source": _sources(extraction, columns),
        },
    )


def _sources(extraction: Extraction, columns: Columns) -> np.ndarray:
    """Return name indices of `file:line`; ABSENT where no file is known."""
    known = np.flatnonzero((columns["sourceFile"] != NULL) & (columns["sourceFile"] >= 0))
    result = np.full(columns.rows, ABSENT)
    if len(known):
        (files, lines), codes = factorize_together(
            columns["sourceFile"][known], columns["sourceLine"][known]
        )
        texts = [
            f"{file}:{line}" if line > 0 else file
            for file, line in zip(extraction.strings(files), lines.tolist(), strict=True)
        ]
        result[known] = extraction.name("page_fault_source", codes, text=texts)
    return result


def extract_gpu_faults(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(
        part, ("start", "end", "globalPid", "deviceId", "numberOfPageFaults", "faultAccessType")
    )
    if not columns.rows:
        return
    access = columns["faultAccessType"]
    yield Rows(
        "gpu_page_fault",
        columns["start"],
        columns["end"],
        gpu_objects(extraction, columns["globalPid"], columns["deviceId"]),
        {
            "access": enum_value(access, LAST_ACCESS, UNKNOWN_ACCESS),
            "faults": number_or_zero(columns["numberOfPageFaults"]),
        },
    )


KINDS = (
    EventKind(
        "memory_usage",
        "Allocations and releases of memory",
        "host thread; memory in use: physical GPU",
        (USAGE,),
        ("memory_usage",),
        extract_usage,
        rows=POINTS,
        indexes=Indexes(needs=(Index.LAUNCHES,)),
    ),
    EventKind(
        "memory_pools",
        "Memory pool operations",
        "host thread",
        (POOLS,),
        ("memory_pool",),
        extract_pools,
        groups=("memory_usage",),
        rows=POINTS,
        indexes=Indexes(needs=(Index.LAUNCHES,)),
    ),
    EventKind(
        "cpu_page_faults",
        "Page faults of CPUs on unified memory",
        "main thread of the process",
        (CPU_FAULTS,),
        ("cpu_page_fault",),
        extract_cpu_faults,
        groups=("page_faults",),
        rows=POINTS,
    ),
    EventKind(
        "gpu_page_faults",
        "Page faults of GPUs on unified memory",
        "physical GPU",
        (GPU_FAULTS,),
        ("gpu_page_fault",),
        extract_gpu_faults,
        groups=("page_faults",),
        rows=RowRules(device_wide=False),
    ),
)
