"""Page faults on unified memory: those of CPUs on their processes' main threads, those of GPUs on the rows of the GPUs.

The report names the process of a CPU's fault, not its thread. Columns: NVIDIA's "SQLite Schema Reference", CUDA_UM_*_PAGE_FAULT_EVENTS.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsys2prv.columns import ABSENT, factorize, factorize_together
from nsys2prv.events.extraction import Extraction, number
from nsys2prv.events.gpu_memory import gpus
from nsys2prv.events.kind import EventKind, Rows
from nsys2prv.events.registered import names_of
from nsys2prv.report.source import NULL, Columns, Part

CPU, GPU = "CUDA_UM_CPU_PAGE_FAULT_EVENTS", "CUDA_UM_GPU_PAGE_FAULT_EVENTS"
#: Catalogue values are ENUM_CUDA_UNIF_MEM_ACCESS_TYPE's plus one, up to this one.
UNKNOWN_ACCESS, LAST_ACCESS = 1, 5


def of_cpus(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(part, ("start", "globalPid", "CpuInstruction", "module", "sourceFile", "sourceLine"))
    if not columns.rows:
        return
    start = columns["start"]
    ids, codes = factorize(columns["CpuInstruction"])
    yield Rows("cpu_page_fault", start, np.where(start == NULL, NULL, start + 1),
               extraction.threads(extraction.main_threads(columns["globalPid"])), {
                   "function": extraction.name("page_fault_function", codes, text=extraction.strings(ids)),
                   "module": names_of(extraction, "page_fault_module", columns["module"]),
                   "source": _sources(extraction, columns),
               })


def _sources(extraction: Extraction, columns: Columns) -> np.ndarray:
    """Name indices of `file:line`; ABSENT where no file is known."""
    known = np.flatnonzero((columns["sourceFile"] != NULL) & (columns["sourceFile"] >= 0))
    result = np.full(columns.rows, ABSENT)
    if len(known):
        (files, lines), codes = factorize_together(columns["sourceFile"][known], columns["sourceLine"][known])
        texts = [f"{file}:{line}" if line > 0 else file for file, line in zip(extraction.strings(files), lines.tolist(), strict=True)]
        result[known] = extraction.name("page_fault_source", codes, text=texts)
    return result


def of_gpus(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(part, ("start", "end", "globalPid", "deviceId", "numberOfPageFaults", "faultAccessType"))
    if not columns.rows:
        return
    access = columns["faultAccessType"]
    yield Rows("gpu_page_fault", columns["start"], columns["end"], gpus(extraction, columns["globalPid"], columns["deviceId"]), {
        "access": np.where((access >= 0) & (access < LAST_ACCESS), access + 1, UNKNOWN_ACCESS),
        "faults": number(columns["numberOfPageFaults"]),
    })


KINDS = (
    EventKind("cpu_page_faults", "Page faults of CPUs on unified memory", "main thread of the process", (CPU,), ("cpu_page_fault",),
              of_cpus, groups=("page_faults",), lasting=False),
    EventKind("gpu_page_faults", "Page faults of GPUs on unified memory", "physical GPU", (GPU,), ("gpu_page_fault",), of_gpus,
              groups=("page_faults",), sampled=False),
)
