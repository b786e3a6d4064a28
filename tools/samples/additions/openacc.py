"""OpenACC: in every step a compute construct on the main thread, with what it does inside it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import schema
from ..cluster import Ints
from . import Scene

PREFIX = "CUPTI_ACTIVITY_KIND_OPENACC_"
FILE, FUNCTION = "/home/user/app/solver.f90", "relax"
NVIDIA, HOST = 4, 2


class Construct(NamedTuple):
    """One of a step. low, high: where in the step. more: further columns."""

    table: str
    kind: int
    name: str
    line: int
    low: float
    high: float
    more: dict[str, Any]


STEP = (
    Construct("OTHER", 9, "acc_compute_construct", 41, 0.10, 0.60, {}),
    Construct("DATA", 11, "acc_enter_data", 41, 0.11, 0.25, {"bytes": None}),
    Construct("DATA", 15, "acc_alloc", 41, 0.12, 0.14, {"bytes": 1 << 20, "varName": "u"}),
    Construct("DATA", 5, "acc_enqueue_upload", 41, 0.15, 0.22, {"bytes": 3 << 18, "varName": "u"}),
    Construct("LAUNCH", 4, "acc_enqueue_launch", 44, 0.26, 0.30,
              {"numGangs": 128, "numWorkers": 4, "vectorLength": 32, "kernelName": "relax_44_gpu"}),
    Construct("OTHER", 8, "acc_implicit_wait", 41, 0.31, 0.50, {}),
    Construct("DATA", 6, "acc_enqueue_download", 52, 0.51, 0.57, {"bytes": 1 << 18, "varName": "r"}),
    Construct("LAUNCH", 4, "acc_enqueue_launch", 63, 0.70, 0.74,
              {"numGangs": 16, "numWorkers": 1, "vectorLength": 128, "kernelName": None}),
)
BEFORE = Construct("OTHER", 1, "acc_device_init", 0, 0.0, 0.08, {})
"""Ahead of the first step's constructs, from a place without source."""


def add(scene: Scene) -> dict[str, Any]:
    """Truth: per table, `name@file:line` -> rows, ns and bytes; and by what kind of construct."""
    truth: dict[str, Any] = {}
    for construct in STEP:
        _insert(scene, construct, scene.steps, truth)
    _insert(scene, BEFORE, scene.steps[:1], truth)
    return truth


def _insert(scene: Scene, construct: Construct, steps: Ints, truth: dict[str, Any]) -> None:
    report = scene.report
    string, rank = report.export.string, report.rank
    length = steps[:, 1] - steps[:, 0]
    begin, end = (steps[:, 0] + (length * share).astype(np.int64) for share in (construct.low, construct.high))
    somewhere = construct.line > 0
    more = {name: string(value) if isinstance(value, str) else value for name, value in construct.more.items()}
    report.export.insert(PREFIX + construct.table, {
        "start": begin, "end": end, "nameId": string(construct.name), "globalTid": rank.global_tid(0), "eventKind": construct.kind,
        "DeviceType": NVIDIA if somewhere else HOST, "lineNo": construct.line, "cuDeviceId": rank.device, "cuContextId": rank.context,
        "cuStreamId": 7, "srcFile": string(FILE) if somewhere else None, "funcName": string(FUNCTION) if somewhere else None, **more})
    source = f"{construct.name}@{FILE}:{construct.line}" if somewhere else construct.name
    found = truth.setdefault(construct.table, {"by_source": {}, "by_construct": {}})
    label = schema.label("ENUM_OPENACC_EVENT_KIND", construct.kind)
    for kind, name in (("by_source", source), ("by_construct", label)):
        entry = found[kind].setdefault(name, {"rows": 0, "ns": 0, "bytes": 0})
        entry["rows"] += len(begin)
        entry["ns"] += int((end - begin).sum())
        entry["bytes"] += len(begin) * (construct.more.get("bytes") or 0)
