"""Libraries: calls of cuBLAS and cuDNN in every step, some within others, rows that say where the tracing of a library began, and the
NVTX domains by which communication libraries and Python's interpreter lock are traced (their ranges' texts are made up)."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import Scene

CUDNN, CUBLAS, CUDNN_BEGINS, CUBLAS_BEGINS = 28, 29, 33, 35
CALLS = {
    ("CUBLAS_EVENTS", CUBLAS): (("cublasGemmEx", 0.10, 0.20), ("cublasGemmEx", 0.21, 0.24), ("cublasSetStream_v2", 0.205, 0.207),
                                ("cublasLtMatmul", 0.12, 0.19)),
    ("CUDNN_EVENTS", CUDNN): (("cudnnConvolutionForward", 0.30, 0.50), ("cudnnSetTensorNdDescriptor", 0.31, 0.315),
                              ("cudnnBatchNormalizationForwardInference", 0.55, 0.60)),
}
"""Function, and where in the step it lies. cublasLtMatmul is called within cublasGemmEx."""
DOMAIN_CREATED, PUSH_POP = 75, 59
FIRST_DOMAIN = 21
DOMAINS = {
    "UCX": (("ucp_tag_send_nbx", 0.62, 0.63), ("ucp_worker_progress", 0.64, 0.66)),
    "NVSHMEM": (("nvshmem_barrier_all", 0.67, 0.69),),
    "OpenSHMEM": (("shmem_putmem", 0.70, 0.71), ("shmem_quiet", 0.702, 0.708)),
    "Python GIL": (("waiting for the lock", 0.72, 0.75), ("holding the lock", 0.75, 0.80)),
}
"""NVTX domain -> text of its ranges, and where in the step they lie."""


def add(scene: Scene) -> dict[str, Any]:
    """Truth: table, or NVTX domain -> function, or text -> rows and ns."""
    report, truth = scene.report, {}
    length = scene.steps[:, 1] - scene.steps[:, 0]
    for (table, event_class), calls in CALLS.items():
        found = truth.setdefault(table, {})
        for function, low, high in calls:
            begin, end = (scene.steps[:, 0] + (length * share).astype(np.int64) for share in (low, high))
            report.export.insert(table, {"start": begin, "end": end, "eventClass": event_class, "globalTid": report.rank.global_tid(0),
                                         "nameId": report.export.string(function)})
            entry = found.setdefault(function, {"rows": 0, "ns": 0})
            entry["rows"] += len(begin)
            entry["ns"] += int((end - begin).sum())
    at = np.array([scene.steps[0, 0] // 2])
    for table, event_class, text in (("CUDNN_EVENTS", CUDNN_BEGINS, "cuDNN profiling started"),
                                     ("CUBLAS_EVENTS", CUBLAS_BEGINS, "cuBLAS profiling started")):
        report.export.insert(table, {"start": at, "end": at, "eventClass": event_class, "globalTid": report.rank.global_pid,
                                     "nameId": report.export.string(text)})
    for number, (domain, ranges) in enumerate(DOMAINS.items(), FIRST_DOMAIN):
        truth[domain] = _ranges(scene, number, domain, ranges)
    return truth


def _ranges(scene: Scene, number: int, domain: str, ranges: tuple[tuple[str, float, float], ...]) -> dict[str, dict[str, int]]:
    report, found = scene.report, {}
    common = {"globalTid": report.rank.global_tid(0), "domainId": number}
    report.export.insert("NVTX_EVENTS", {"start": scene.steps[:1, 0] // 2, "eventType": DOMAIN_CREATED,
                                         "textId": report.export.string(domain), **common})
    length = scene.steps[:, 1] - scene.steps[:, 0]
    for text, low, high in ranges:
        begin, end = (scene.steps[:, 0] + (length * share).astype(np.int64) for share in (low, high))
        report.export.insert("NVTX_EVENTS", {"start": begin, "end": end, "eventType": PUSH_POP,
                                             "textId": report.export.string(text), **common})
        found[text] = {"rows": len(begin), "ns": int((end - begin).sum())}
    return found
