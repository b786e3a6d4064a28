"""What the operating system and the driver did: accesses to files by the data loaders, and switches of contexts on the rank's GPU.

A second process has a context on the GPU, too; it has the GPU for a while in every step. The first switch out has no switch in (that
was before the capture), one switch out is lost, and the last context stays on the GPU.
"""

from __future__ import annotations

from typing import Any

from ..added import insert_rows, totals
from ..cluster import VM_ID, Thread
from . import Scene

OPEN, CLOSE, READ, WRITE = 1, 2, 3, 4
REQUEST, SAVE_END, RESTORE_START, CONTEXT_START = 1, 7, 8, 9
OTHER = 2
"""Distance of the other process's pid (of bash, which sleeps) below the rank's."""

_SWITCH = 30_000
_FILES = (("/data/train/shard-0000{step}.bin", Thread.LOADER_0, "open64", "read", READ, 1 << 20),
          ("/scratch/checkpoint.pt", Thread.LOADER_1, "fopen", "fwrite", WRITE, 4096))  # fmt: skip


def add(scene: Scene) -> dict[str, Any]:
    """Accesses by thread offset, with bytes by file; contexts by process id, with what is lost of them."""
    return {"file_accesses": _files(scene), "gpu_contexts": _contexts(scene)}


def _files(scene: Scene) -> dict[str, Any]:
    rank, text = scene.report.rank, scene.report.export.string
    events: list[dict[str, Any]] = []
    files: list[dict[str, Any]] = []
    found: list[tuple[str, str, int, int]] = []
    moved: dict[str, int] = {}
    for step, (begin, _) in enumerate(scene.steps.tolist()):
        for path, thread, opens, moves, action, size in _FILES:
            name, number, at = path.format(step=step), len(files), int(begin) + 1_000 * int(thread)
            for call, kind, bytes_ in ((opens, OPEN, 0), (moves, action, size), (moves, action, size // 2), ("close", CLOSE, 0)):
                end = at + 20_000 + int(scene.random.integers(5_000))
                events.append({"fileAccessId": number, "threadId": rank.pid + thread, "startedAt": at, "endedAt": end, "eventType": kind,
                               "apiCallId": text(call), "bytesProcessed": bytes_, "context": ""})
                found.append((str(int(thread)), call, at, end))
                moved[name] = moved.get(name, 0) + bytes_
                at = end + 5_000
            files.append({"fileAccessId": number, "processId": rank.pid, "openedAt": int(begin), "closedAt": at, "filePath": name})
    insert_rows(scene.report, "OSRT_FILE_ACCESS_EVENTS", events)
    insert_rows(scene.report, "OSRT_FILE_ACCESS_DESCRIPTORS", files)
    return {"by_thread": totals(found), "bytes_by_file": moved}


def _contexts(scene: Scene) -> dict[str, Any]:
    rank = scene.report.rank
    own, other = (rank.global_pid, 1), (VM_ID | rank.pid - OTHER << 24, 2)
    rows: list[dict[str, Any]] = []
    held: list[tuple[str, str, int, int]] = []

    def tell(tag: int, who: tuple[int, int], at: int) -> None:
        rows.append({"tag": tag, "vmId": 1, "seqNo": len(rows), "contextId": who[1], "timestamp": at, "globalPid": who[0],
                     "gpuId": rank.gpu})

    def hold(who: tuple[int, int], begin: int, end: int) -> None:
        held.append(("GPU", str(who[0] >> 24 & 0xFFFFFF), begin, end))

    since: int | None = None
    for step, (begin, end) in enumerate(scene.steps.tolist()):
        out, back = int(begin) + _SWITCH, int(begin + end) // 2
        tell(REQUEST, own, out - 500)
        tell(SAVE_END, own, out)
        if since is not None:
            hold(own, since, out)
        tell(RESTORE_START, other, out + 10)
        tell(CONTEXT_START, other, out + 700)
        if step:
            tell(SAVE_END, other, back)
            hold(other, out + 10, back)
        else:
            hold(other, out + 10, back + 10)
        since = back + 10
        tell(RESTORE_START, own, since)
    insert_rows(scene.report, "GPU_CONTEXT_SWITCH_EVENTS", rows)
    return {"by_process": totals(held)["GPU"], "before": 1, "lost": 1, "open": {str(rank.pid): since}}
