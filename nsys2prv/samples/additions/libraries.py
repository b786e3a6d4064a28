"""cuBLAS and cuDNN: calls in every step, some within others, and the rows that say where the tracing of a library began."""

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


def add(scene: Scene) -> dict[str, Any]:
    """Truth: table -> function -> rows and ns."""
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
    return truth
