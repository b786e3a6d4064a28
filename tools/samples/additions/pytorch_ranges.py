"""Ranges as PyTorch's emit_nvtx makes them: names that differ from call to call, deep nesting, and two threads whose work takes turns on
one stream.

In every step a thread runs an operator four times within modules that lie DEPTH deep, and another thread runs what belongs to it in the
backward pass; all their kernels go to one stream, by turns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..nvtx import MARK, PUSH_POP
from ..rows import Report
from . import Scene

DEPTH, OPERATORS, STREAM = 24, 4, 31
#: Distances from the pid.
FORWARD, BACKWARD = 40, 41
#: All times are ns. A step's ranges begin so long after it; its kernels follow when all are launched.
LEAD, SPAN, TURN, LAUNCHED, KERNEL = 1_000, 20_000, 4_000, 30_000, 1_500
#: Correlation ids, far from those of the job.
FIRST_CORRELATION = 1 << 24
LAUNCH = "cudaLaunchKernel_v7000"


class Range(NamedTuple):
    """A range of a step: its name in the trace, the varying end of it ({seq} and {op} are filled in), thread, begin and end."""

    name: str
    tail: str
    thread: int
    begin: int
    end: int
    payload: int | None = None


def ranges() -> list[Range]:
    """The ranges of one step."""
    found = [Range(f"Module.{level}", "", FORWARD, 10 * level, SPAN - 10 * level, None if level else 1) for level in range(DEPTH)]
    found.append(Range("backward", "", BACKWARD, 0, SPAN))
    for turn in range(OPERATORS):
        at = _at(turn)
        found += [Range("aten::addmm", ", seq = {seq}, op_id = {op}", FORWARD, at, at + 3_000),
                  Range("aten::mm", ", op_id = {op}, sizes = [[8, 16], [16, 32]], input_op_ids = [(1,0)]", FORWARD, at + 500, at + 2_500),
                  Range("autograd::engine::evaluate_function: AddmmBackward0", ", op_id = {op}", BACKWARD, at, at + 3_000),
                  Range("AddmmBackward0", ", seq = {seq}, op_id = {op}", BACKWARD, at + 500, at + 2_500)]
    return found


def _at(turn: int) -> int:
    return 1_000 + TURN * turn


def add(scene: Scene) -> dict[str, Any]:
    """Write the ranges, calls and kernels of every step."""
    epochs = scene.steps[:, 1] + LEAD
    made = ranges()
    numbers = _write_ranges(scene.report, epochs, made)
    _write_work(scene.report, epochs)
    _write_marks(scene.report, epochs)
    steps, whole = len(epochs), KERNEL + (2 * OPERATORS - 2) * _pace()
    host: dict[str, list[int]] = {}
    for one in made:
        count, total = host.get(one.name, (0, 0))
        host[one.name] = [count + steps, total + steps * (one.end - one.begin)]
    inner = [OPERATORS * steps, OPERATORS * steps * KERNEL]
    return {
        "host": host,
        "sequence_numbers": numbers,
        "on_gpu": {one.name: inner if "::" in one.name or "Addmm" in one.name else [steps, steps * whole] for one in made},
        "stream": STREAM,
        "threads": [scene.report.rank.pid + FORWARD, scene.report.rank.pid + BACKWARD],
        "payloads": {"int64Value": steps, "floatValue": steps},
    }


def _pace() -> int:
    """From one kernel's begin to the next one's."""
    return KERNEL + 500


def _write_ranges(report: Report, epochs: np.ndarray, made: list[Range]) -> list[int]:
    """Returns the sequence numbers, ascending."""
    texts = np.empty((len(epochs), len(made)), object)
    used: list[int] = []
    for step in range(len(epochs)):
        seen = {FORWARD: 0, BACKWARD: 0}
        for place, one in enumerate(made):
            sequence = 100 * step + seen[one.thread]
            if "{seq}" in one.tail:
                seen[one.thread] += 1
                used.append(sequence)
            texts[step, place] = one.name + one.tail.format(seq=sequence, op=1 + step * len(made) + place)
    payload = np.empty(len(made), object)
    payload[:] = [one.payload for one in made]
    columns = {"eventType": PUSH_POP, "globalTid": np.array([report.rank.global_tid(one.thread) for one in made]), "domainId": 0,
               "text": texts, "int64Value": payload}
    begin, end = (epochs[:, None] + np.array([getattr(one, edge) for one in made]) for edge in ("begin", "end"))
    report.insert("NVTX_EVENTS", [f"pytorch/{one.name}" for one in made], columns, begin, end)
    return sorted(used)


def _write_work(report: Report, epochs: np.ndarray) -> None:
    """The launching calls of both threads, and their kernels by turns."""
    threads = np.array([FORWARD, BACKWARD] * OPERATORS)
    called = epochs[:, None] + np.array([_at(turn) + 800 for turn in range(OPERATORS) for _ in range(2)])
    begun = epochs[:, None] + LAUNCHED + _pace() * np.arange(2 * OPERATORS)
    correlation = FIRST_CORRELATION + np.arange(called.size).reshape(called.shape)
    string, rank = report.export.string, report.rank
    report.insert("CUPTI_ACTIVITY_KIND_RUNTIME", [LAUNCH] * len(threads), {
        "eventClass": 0, "globalTid": np.array([rank.global_tid(thread) for thread in threads.tolist()]), "correlationId": correlation,
        "nameId": string(LAUNCH), "returnValue": 0}, called, called + 400)
    names = ["addmm_forward" if thread == FORWARD else "addmm_backward" for thread in threads.tolist()]
    named = np.array([string(name) for name in names])
    zeros = dict.fromkeys(("staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread", "localMemoryTotal"), 0)
    ones = dict.fromkeys(("gridX", "gridY", "gridZ", "blockY", "blockZ"), 1)
    report.insert("CUPTI_ACTIVITY_KIND_KERNEL", names, {
        "deviceId": rank.device, "contextId": rank.context, "greenContextId": 0, "globalPid": rank.global_pid, "streamId": STREAM,
        "correlationId": correlation, "demangledName": named, "shortName": named, "mangledName": named, "registersPerThread": 32,
        "blockX": 128, **zeros, **ones, "gridId": correlation, "tensorSizeMinusOneElements": "[]"}, begun, begun + KERNEL)


def _write_marks(report: Report, epochs: np.ndarray) -> None:
    """A mark with the loss of each step."""
    columns = {"eventType": MARK, "globalTid": report.rank.global_tid(FORWARD), "domainId": 0, "text": "loss", "floatValue":
               np.full(1, 0.5)}
    report.insert("NVTX_EVENTS", ["pytorch/loss"], columns, epochs[:, None] + SPAN + 500, None)
