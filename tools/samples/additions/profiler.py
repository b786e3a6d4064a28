"""Messages in which Nsight Systems says that it lost something, fell back to another way, or could not do what it was asked for."""

from __future__ import annotations

from typing import Any

from ..added import insert_rows
from ..cluster import VM_ID
from . import Scene

INFO, WARNING, ERROR = 1, 2, 3
INJECTION, DAEMON, ANALYSIS = 1, 2, 3
TARGET, HOST = 1, 2
"""ENUM_DIAGNOSTIC_TIMESTAMP_SOURCE."""

_MESSAGES = (
    (WARNING, ANALYSIS, HOST, "Not all CUDA events might have been collected.", "lost"),
    (INFO, INJECTION, TARGET, "Number of CUPTI events produced: \t31, CUPTI buffers: 49 of 50. Some CUPTI events might be missing. To make "
     "sure all the events are collected, let the application run until it quits.", "lost"),
    (INFO, INJECTION, TARGET, "CUDA hardware tracing is not supported on this system. A legacy (software instrumented) trace was collected "
     "instead.", "fallback"),
    (ERROR, DAEMON, TARGET, "Unable to configure the collection of context switch data.\nTry 'nsys status --environment'.", "error"),
    (WARNING, DAEMON, TARGET, "Scheduling information is absent.", "warning"),
    (WARNING, ANALYSIS, HOST, "No OpenGL events collected. Does the process use OpenGL?", "unused"),
    (INFO, INJECTION, TARGET, "Loaded CUPTI library: /home/planted-user/nsight/target-linux-x64/libcupti.so.13.1", "none"),
)  # fmt: skip


def add(scene: Scene) -> dict[str, Any]:
    """The messages: severity, the beginning of the text, and what each tells of."""
    rank = scene.report.rank
    end = scene.duration - 2_000_000
    insert_rows(scene.report, "DIAGNOSTIC_EVENT", [
        {"timestamp": end + 1_000 * place, "timestampType": clock, "source": source, "severity": severity, "text": text,
         "globalPid": VM_ID if source == DAEMON else rank.global_pid}
        for place, (severity, source, clock, text, _) in enumerate(_MESSAGES)])  # fmt: skip
    return {"messages": [{"severity": severity, "begins": text.split("\t")[0].split("\n")[0].split("/")[0], "tells": tells}
                         for severity, _, _, text, tells in _MESSAGES]}
