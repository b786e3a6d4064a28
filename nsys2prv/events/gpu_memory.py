"""CUDA memory allocations and pools (``--cuda-memory-usage``), and page faults on unified memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsys2prv._util.columns import ABSENT, factorize_together
from nsys2prv.events.attributes import fill_with_zero, list_columns, make_rows, read_fields
from nsys2prv.events.extraction import GPU, DeviceKey, Extraction
from nsys2prv.events.kind import Rows, declare_kind
from nsys2prv.nsight.columns import NULL, Columns, decode_texts
from nsys2prv.nsight.source import Part

#: memoryOperationType, ENUM_CUDA_DEV_MEM_EVENT_OPER.
ALLOCATION, RELEASE = 0, 1
#: Values of the catalogue's memory_kind, Nsight's plus one: memory of the host.
HOST_KINDS = (1, 2)
#: Facts of each allocation and release; `memory`: memory_kind of the catalogue.
FACTS = "gpu_memory"


def extract_usage(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(
        part, ("start", "globalPid", "address", "bytes", *list_columns("memory_usage")), ("name",)
    )
    if not columns.rows:
        return
    fields = read_fields(extraction, "memory_usage", columns)
    operation, size = columns["memoryOperationType"], fill_with_zero(columns["bytes"])
    on_host = np.isin(fields["memory"], HOST_KINDS)

    def if_(which: np.ndarray, wanted: int) -> np.ndarray:
        return np.where(which & (operation == wanted), size, ABSENT)

    is_known = (operation == ALLOCATION) | (operation == RELEASE)
    extraction.add_fact(
        FACTS,
        {
            "time_at": columns["start"],
            "object_gpu": find_gpus(extraction, columns),
            "process": columns["globalPid"],
            "address": columns["address"],
            "bytes": size,
            "memory": fields["memory"].astype(np.int8),
            "operation": np.where(is_known, operation, -1).astype(np.int8),
        },
    )
    yield _make_points(
        "memory_usage",
        columns,
        _find_threads(extraction, columns),
        {
            "allocated": if_(~on_host, ALLOCATION),
            "freed": if_(~on_host, RELEASE),
            "host_allocated": if_(on_host, ALLOCATION),
            "host_freed": if_(on_host, RELEASE),
            "variable": _name_variables(extraction, columns),
            **fields,
        },
    )


def extract_pools(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(part, ("start", "globalPid", *list_columns("memory_pool")))
    if columns.rows:
        fields = read_fields(extraction, "memory_pool", columns)
        yield _make_points("memory_pool", columns, _find_threads(extraction, columns), fields)


def _make_points(
    layout: str, columns: Columns, threads: np.ndarray, fields: dict[str, np.ndarray]
) -> Rows:
    start = columns["start"]
    return Rows(layout, start, np.where(start == NULL, NULL, start + 1), threads, fields)


def find_gpus(extraction: Extraction, columns: Columns) -> np.ndarray:
    """Return objects of physical GPUs by globalPid and CUDA ordinal (deviceId), which is taken for the GPU's
    number where the report does not tell it.
    """
    ids = (columns["globalPid"], columns["deviceId"])
    (processes, ordinals), codes = factorize_together(
        *(np.where(column == NULL, 0, column) for column in ids)
    )
    objects = [
        extraction.number_device(
            DeviceKey(GPU, number=extraction.report.find_gpu_or_ordinal(pid, ordinal))
        )
        for pid, ordinal in zip(processes.tolist(), ordinals.tolist(), strict=True)
    ]
    return np.array(objects, np.int64)[codes]


def _find_threads(extraction: Extraction, columns: Columns) -> np.ndarray:
    """Return the thread of the call that did it, else the process's main one."""
    launches = extraction.launches.find(columns["globalPid"], columns["correlationId"])
    return extraction.number_callers(launches, columns["globalPid"])


def _name_variables(extraction: Extraction, columns: Columns) -> np.ndarray:
    codes, texts = columns.texts["name"]
    distinct = texts.series
    named = (distinct.bin.size() > 0).to_numpy()[codes]
    if not named.any():
        return np.full(columns.rows, ABSENT)
    names = extraction.number_names("memory_variable", codes, text=decode_texts(distinct))
    return np.where(named, names, ABSENT)


def extract_cpu_faults(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(
        part,
        ("start", "globalPid", "sourceFile", "sourceLine", *list_columns("cpu_page_fault")),
    )
    if not columns.rows:
        return
    fields = read_fields(extraction, "cpu_page_fault", columns)
    fields["source"] = _name_sources(extraction, columns)
    threads = extraction.number_threads(extraction.find_main_threads(columns["globalPid"]))
    yield _make_points("cpu_page_fault", columns, threads, fields)


def _name_sources(extraction: Extraction, columns: Columns) -> np.ndarray:
    """Return name indices of `file:line`; ABSENT where no file is known."""

    def make_texts(files: np.ndarray, lines: np.ndarray) -> list[str]:
        return [
            f"{file}:{line}" if line > 0 else file
            for file, line in zip(extraction.read_strings(files), lines.tolist(), strict=True)
        ]

    files = columns["sourceFile"]
    named = (files != NULL) & (files >= 0)
    place = files, columns["sourceLine"]
    return extraction.name_some_rows("page_fault_source", named, place, make_texts)


def extract_gpu_faults(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(
        part, ("start", "end", "globalPid", "deviceId", *list_columns("gpu_page_fault"))
    )
    if columns.rows:
        yield make_rows(
            extraction, "gpu_page_fault", columns, objects=find_gpus(extraction, columns)
        )


KINDS = (
    declare_kind("memory_usage", extract_usage),
    declare_kind("memory_pools", extract_pools),
    declare_kind("cpu_page_faults", extract_cpu_faults),
    declare_kind("gpu_page_faults", extract_gpu_faults),
)
