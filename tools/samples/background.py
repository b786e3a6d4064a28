"""What goes on beside the programs, step by step: data loading, NCCL's watchdog, marks, start/end ranges.

Its times follow from the begin and end of each step on the rank: a share of the step, or a fixed time before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import names, nvtx
from .cluster import Ints, Thread
from .program import Domain
from .rows import Report

STEP_GAP_NS = 400_000
"""Between the last rank's end of a step and the next step's epoch, at least."""

NOT_READY = 600
"""cudaErrorNotReady, what cudaEventQuery returns while the work goes on."""

_OSRT_CLASS = 27
_DEPTH = 2  # batches are fetched so many steps ahead
_POLLS = (0.31, 0.67)

# OS calls: thread, function, begin and end as shares of the step, returned value
_CALLS = (
    (Thread.LOADER_0, "open64", 0.02, 0.03, 41),
    (Thread.LOADER_0, "read", 0.04, 0.33, 524_288),
    (Thread.LOADER_1, "read", 0.21, 0.58, 262_144),
    (Thread.LOADER_1, "sem_wait", 0.60, 0.94, 0),
    (Thread.PIN_MEMORY, "poll", 0.05, 0.48, 1),
    (Thread.PIN_MEMORY, "poll", 0.50, 0.97, 1),
    (Thread.WATCHDOG, "pthread_cond_timedwait", 0.33, 0.64, 110),
)
# start/end ranges that begin and end on one thread and overlap without nesting: text, begin, end
_WINDOWS = (("pin batch", 0.05, 0.55), ("copy batch", 0.35, 0.85))

ROWS_PER_STEP = len(_CALLS) + 1 + len(_POLLS) + len(_WINDOWS) + 3


class Background:
    """Writes the rows beside the steps into one report."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.steps: list[Ints] = [np.zeros((0, 2), np.int64)]  # begin and end of each, by blocks
        self._fetched: dict[int, tuple[int, int, int]] = {}  # batch: begin (local ns), globalTid, range id

    def begin(self, at: int) -> None:
        """The first batches are asked for at local time ``at`` (ns), before the first step."""
        for batch in range(_DEPTH):
            self._fetch(batch, at + 40_000 * batch)

    def _fetch(self, batch: int, at: int) -> None:
        thread = (Thread.LOADER_0, Thread.LOADER_1)[batch % 2]
        self._fetched[batch] = (at, self.report.rank.global_tid(thread), self._range_id())

    def _range_id(self) -> int:
        self.report.range_id += 1
        return self.report.range_id - 1

    def write(self, begin: Ints, end: Ints, epochs: Ints, first_step: int) -> None:
        """Rows of steps from ``begin`` to ``end`` (local ns); ``epochs`` (local ns) are when the first rank could
        begin.
        """
        length = end - begin
        self.steps.append(np.stack([begin, end], axis=1))
        self._write_calls(begin, length, epochs)
        self._write_polls(begin, length)
        rows: list[dict[str, Any]] = []
        for step, (start, stop) in enumerate(zip(begin.tolist(), end.tolist(), strict=True), first_step):
            rows += self._step_rows(step, start, stop - start)
        nvtx.write_points(self.report, rows, "marks and start/end ranges")

    def _write_calls(self, begin: Ints, length: Ints, epochs: Ints) -> None:
        report, rank = self.report, self.report.rank
        starts = [epochs - STEP_GAP_NS // 2] + [begin + (length * call[2]).astype(np.int64) for call in _CALLS]
        ends = [begin - 20] + [begin + (length * call[3]).astype(np.int64) for call in _CALLS]
        functions = ["pthread_cond_wait"] + [call[1] for call in _CALLS]
        threads = [Thread.MAIN] + [call[0] for call in _CALLS]
        report.insert(
            "OSRT_API",
            functions,
            {
                "eventClass": _OSRT_CLASS,
                "globalTid": np.array([rank.global_tid(thread) for thread in threads]),
                "nameId": np.array([report.export.string(function) for function in functions]),
                "returnValue": np.array([0] + [call[4] for call in _CALLS]),
                "nestingLevel": 0,
                "callchainId": 0,
                "argumentsId": 0,
            },
            np.stack(starts, axis=1),
            np.stack(ends, axis=1),
        )

    def _write_polls(self, begin: Ints, length: Ints) -> None:
        """NCCL's watchdog asks whether the collectives have ended."""
        report = self.report
        starts = np.stack([begin + (length * share).astype(np.int64) for share in _POLLS], axis=1)
        report.insert(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            [names.EVENT_QUERY] * len(_POLLS),
            {
                "eventClass": 0,
                "globalTid": report.rank.global_tid(Thread.WATCHDOG),
                "correlationId": report.correlation + np.arange(starts.size).reshape(starts.shape),
                "nameId": report.export.string(names.EVENT_QUERY),
                "returnValue": NOT_READY,
            },
            starts,
            starts + 1_450,
        )
        report.correlation += starts.size

    def _step_rows(self, step: int, start: int, length: int) -> list[dict[str, Any]]:
        main, pin = self.report.rank.global_tid(Thread.MAIN), self.report.rank.global_tid(Thread.PIN_MEMORY)
        self._fetch(step + _DEPTH, start + length // 3)
        at, loader, number = self._fetched.pop(step)
        rows: list[dict[str, Any]] = [
            {**_batch(at, loader, number), "end": start - 10, "endGlobalTid": main},
            {
                "start": start + length - 40,
                "eventType": nvtx.MARK,
                "text": "loss",
                "globalTid": main,
                "category": 1,
                "domainId": int(Domain.JOB),
                "doubleValue": round(11.0 / (1.0 + 0.05 * step), 4),
            },
            {
                "start": start + length - 20,
                "eventType": nvtx.MARK,
                "text": "step done",
                "globalTid": main,
                "domainId": 0,
                "uint64Value": step,
            },
        ]
        for text, first, last in _WINDOWS:
            rows.append(
                {
                    "start": start + int(length * first),
                    "end": start + int(length * last),
                    "eventType": nvtx.START_END,
                    "rangeId": self._range_id(),
                    "text": text,
                    "globalTid": pin,
                    "endGlobalTid": pin,
                    "domainId": 0,
                }
            )
        return rows

    def finish(self, at: int) -> None:
        """What the capture's end cuts off: batches nobody took, and a range pushed at local time ``at`` (ns) and
        never popped.
        """
        rows = [_batch(start, loader, number) for start, loader, number in self._fetched.values()]
        rows.append(
            {
                "start": at,
                "eventType": nvtx.PUSH_POP,
                "text": "pin_memory_loop",
                "globalTid": self.report.rank.global_tid(Thread.PIN_MEMORY),
                "domainId": 0,
            }
        )
        nvtx.write_points(self.report, rows, "unfinished ranges")


def _batch(start: int, loader: int, number: int) -> dict[str, Any]:
    """The range of a batch that ``loader`` (a globalTid) fetches from ``start`` (local ns) on, without its end."""
    return {
        "start": start,
        "eventType": nvtx.START_END,
        "rangeId": number,
        "category": 2,
        "text": "batch in flight",
        "globalTid": loader,
        "domainId": int(Domain.JOB),
    }
