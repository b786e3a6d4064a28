"""Calls of graphics and video APIs, their work on GPUs, and calls of libraries of CUDA: every step draws a few frames.

OpenGL's rows are as nsys 2024.2 writes them: one context, frames counted from 1, workloads from the first to the last call they serve.
"""

from __future__ import annotations

from typing import Any

from ..added import insert_rows, totals
from ..cluster import Thread
from . import Scene

GL, GL_WORKLOAD, GL_DEBUG, VULKAN, VULKAN_WORKLOAD, VULKAN_DEBUG, ENCODER, DECODER = 2, 5, 4, 53, 54, 66, 83, 86
"""ENUM_NSYS_EVENT_CLASS."""

FRAMES = 3
_CALL, _FRAME = 40_000, 1_000_000
_OPENGL = ("glClear", "glDrawElements", "glDrawElements", "eglSwapBuffers")
_VULKAN = ("vkBeginCommandBuffer", "vkQueueSubmit", "vkQueuePresentKHR")


def add(scene: Scene) -> dict[str, Any]:
    """Names by table and place (thread offset or queue), each with rows and ns; frames drawn."""
    begins = [int(begin) + frame * _FRAME for begin, _ in scene.steps.tolist() for frame in range(FRAMES)]
    drawn = _Drawn(scene)
    for frame, at in enumerate(begins, 1):
        drawn.opengl(frame, at + int(scene.random.integers(10_000)))
        drawn.vulkan(at + 500_000 + int(scene.random.integers(10_000)))
    for at in begins[::FRAMES]:
        drawn.plain("NVVIDEO_DECODER_API", DECODER, Thread.LOADER_0, at, ("cuvidDecodePicture", "cuvidMapVideoFrame64"))
        drawn.plain("NVVIDEO_ENCODER_API", ENCODER, Thread.LOADER_1, at, ("nvEncEncodePicture",))
    return drawn.write() | {"frames": len(begins)}


class _Drawn:
    """Rows of all tables until they are written."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.found: dict[str, list[tuple[str, str, int, int]]] = {}
        self.calls = 0

    def row(self, table: str, place: str, thread: int, name: str, begin: int, end: int | None, **more: Any) -> None:
        report = self.scene.report
        self.rows.setdefault(table, []).append({"start": begin, "end": end, "globalTid": report.rank.global_tid(thread), **more})
        self.found.setdefault(table, []).append((place, name, begin, begin + 1 if end is None else end))

    def opengl(self, frame: int, at: int) -> None:
        text, thread = self.scene.report.export.string, Thread.LOADER_1
        common = {"endGlobalTid": None, "endNameId": None, "returnValue": 0, "contextId": 1, "gpu": self.scene.report.rank.gpu,
                  "display": None}
        for place, name in enumerate(_OPENGL):
            self.calls += 1
            begin = at + place * 2 * _CALL
            self.row("OPENGL_API", str(int(thread)), thread, name, begin, begin + _CALL + place, eventClass=GL, correlationId=self.calls,
                     endCorrelationId=None, nameId=text(name), frameId=frame, **common)
        self.row("OPENGL_WORKLOAD", "OpenGL", thread, "glClear", at + _CALL, at + 9 * _CALL, eventClass=GL_WORKLOAD,
                 correlationId=self.calls - 3, endCorrelationId=self.calls, nameId=text("glClear"), frameId=None,
                 **{**common, "endNameId": text("eglSwapBuffers")})
        debug: dict[str, Any] = {"eventClass": GL_DEBUG, "source": 33354, "khrdType": 33385, "id": 0, "severity": 33387,
                                 "correlationId": None, "context": 1}
        for name, begin, end in (("frame", at - 100, at + 8 * _CALL), ("swap", at + 50, None)):
            self.row("KHR_DEBUG_EVENTS", str(int(thread)), thread, name, begin, end, textId=text(name), **debug)

    def vulkan(self, at: int) -> None:
        text, thread = self.scene.report.export.string, Thread.LOADER_1
        for place, name in enumerate(_VULKAN):
            self.calls += 1
            begin = at + place * 2 * _CALL
            self.row("VULKAN_API", str(int(thread)), thread, name, begin, begin + _CALL, id=self.calls, eventClass=VULKAN,
                     correlationId=self.calls, endCorrelationId=None, nameId=text(name), contextId=7)
        common: dict[str, Any] = {"correlationId": self.calls, "endCorrelationId": None, "contextId": 7, "color": None}
        # Two command buffers at work at the same time, of which the report names one.
        for name, shift, label in (("vkQueueSubmit", 0, None), ("shadows", _CALL, "shadows")):
            self.row("VULKAN_WORKLOAD", "Vulkan", thread, name, at + 3 * _CALL + shift, at + 6 * _CALL + shift, eventClass=VULKAN_WORKLOAD,
                     nameId=text("vkQueueSubmit"), gpu=self.scene.report.rank.gpu, textId=None if label is None else text(label), **common)
        self.row("VULKAN_DEBUG_API", str(int(thread)), thread, "shadows", at - 50, at + 7 * _CALL, eventClass=VULKAN_DEBUG,
                 nameId=text("vkCmdBeginDebugUtilsLabelEXT"), textId=text("shadows"), **common)

    def plain(self, table: str, kind: int, thread: int, at: int, names: tuple[str, ...]) -> None:
        for place, name in enumerate(names):
            begin = at + place * 3 * _CALL
            self.row(table, str(int(thread)), thread, name, begin, begin + 2 * _CALL + place, eventClass=kind,
                     nameId=self.scene.report.export.string(name))

    def write(self) -> dict[str, Any]:
        for table, rows in self.rows.items():
            insert_rows(self.scene.report, table, rows)
        return {"tables": {table: totals(found) for table, found in sorted(self.found.items())}}
