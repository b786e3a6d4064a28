"""What goes on beside the programs: data loading, NCCL's watchdog, marks and start/end ranges; and
calls into the OS runtime in volume.

On a thread, OS calls of one nesting level do not overlap, deeper ones lie within, and all lie
within the API or MPI call they were made from. As in real exports the functions nsys traces last
about a microsecond to seconds (some here less, as with a lowered threshold), nested calls appear in
few functions, and ``[Unknown]`` rows without a nesting level mark where tracing begins (event class
31) and ends (32) in a process.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from .cluster import Ints, Thread
from .data import DATA
from .nvtx import MARK, PUSH_POP, START_END, make_row, write_points
from .program import Domain, Kind, Op, Program
from .report import Report
from .timeline import Block

STEP_GAP_NS = 400_000  # between the last rank's end of a step and the next step's epoch, at least
AHEAD = 2  # batches are fetched so many steps ahead
POLLS = (0.31, 0.67)  # when in a step NCCL's watchdog asks whether the collectives have ended
NOT_READY = 600  # cudaErrorNotReady, the answer while the work goes on
#: Ranges on one thread that overlap without nesting.
WINDOWS = (("pin batch", 0.05, 0.55), ("copy batch", 0.35, 0.85))
ROWS_PER_STEP = len(DATA["os_calls"]) + 1 + len(POLLS) + len(WINDOWS) + 3


class Background:
    """Writes the rows outside the steps into one report."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.steps: list[Ints] = [np.zeros((0, 2), np.int64)]  # begin and end of each, by blocks
        self._fetched: dict[int, dict[str, Any]] = {}  # the open range of each batch

    def begin(self, at: int) -> None:
        """Ask for the first batches at local time ``at`` (ns), before the first step."""
        for batch in range(AHEAD):
            self._fetch(batch, at + 40_000 * batch)

    def _range(
        self, start: int, text: str, thread: int, domain: Domain = Domain.DEFAULT, **columns: Any
    ) -> dict[str, Any]:
        columns |= {"text": text, "start": start, "rangeId": self.report.range_id}
        self.report.range_id += 1
        return make_row(self.report, START_END, thread, domain, **columns)

    def _fetch(self, batch: int, at: int) -> None:
        thread = (Thread.LOADER_0, Thread.LOADER_1)[batch % 2]
        self._fetched[batch] = self._range(at, "batch in flight", thread, Domain.JOB, category=2)

    def write(self, begin: Ints, end: Ints, epochs: Ints, first_step: int) -> None:
        """Write rows of steps from ``begin`` to ``end`` (local ns); ``epochs`` (local ns) are when
        the first rank could begin.
        """
        report, length = self.report, end - begin
        self.steps.append(np.stack([begin, end], axis=1))

        def at(share: float) -> Ints:
            return begin + (length * share).astype(np.int64)

        threads, functions, lows, highs, returned = zip(*DATA["os_calls"], strict=True)
        columns = {"nameId": ["pthread_cond_wait", *functions], "returnValue": [0, *returned]}
        columns["thread"] = [Thread.MAIN, *(Thread[one] for one in threads)]
        starts = np.stack([epochs - STEP_GAP_NS // 2, *map(at, lows)], axis=1)
        ends = np.stack([begin - 20, *map(at, highs)], axis=1)
        report.insert("OSRT_API", starts, ends, **OS_CALL | columns)
        starts = np.stack([at(share) for share in POLLS], axis=1)
        columns = {"thread": Thread.WATCHDOG, "returnValue": NOT_READY}
        columns["correlationId"] = report.correlation + np.arange(starts.size).reshape(starts.shape)
        polled = ["cudaEventQuery_v3020"] * len(POLLS)
        report.insert_calls(starts, starts + 1_450, polled, **columns)
        report.correlation += starts.size
        rows = []
        for run, times in enumerate(zip(begin.tolist(), length.tolist(), strict=True)):
            rows += self._list_step_rows(first_step + run, *times)
        write_points(report, rows)

    def _list_step_rows(self, step: int, start: int, length: int) -> list[dict[str, Any]]:
        """List a batch that arrives, marks, and ranges that overlap."""
        main, pin = self.report.tids([Thread.MAIN, Thread.PIN_MEMORY]).tolist()
        self._fetch(step + AHEAD, start + length // 3)
        mark = partial(make_row, self.report, MARK, Thread.MAIN)
        loss = mark(Domain.JOB, category=1, doubleValue=round(11.0 / (1.0 + 0.05 * step), 4))
        rows = [
            {**self._fetched.pop(step), "end": start - 10, "endGlobalTid": main},
            {**loss, "start": start + length - 40, "text": "loss"},
            mark(start=start + length - 20, text="step done", uint64Value=step),
        ]
        for text, low, high in WINDOWS:
            begin, ends = start + int(length * low), {"end": start + int(length * high)}
            rows.append(self._range(begin, text, Thread.PIN_MEMORY, endGlobalTid=pin, **ends))
        return rows

    def finish(self, at: int) -> None:
        """Write the events cut off by the capture's end: batches, and a range pushed at ``at`` (ns)."""
        last = make_row(self.report, PUSH_POP, Thread.PIN_MEMORY, start=at, text="pin_memory_loop")
        write_points(self.report, [*self._fetched.values(), last])


#: Columns of a usual call into the OS runtime.
OS_CALL = {"eventClass": 27, "nestingLevel": 0, "callchainId": 0, "argumentsId": 0}
CHAINED_FROM_NS = 80_000
EVENT_HANDLER, WORKER, STORE = 5, 6, 12  # distances of thread ids from the pid
INNER, LOADING = DATA["os_inner"], DATA["os_loading"]


def _list_functions(op: Op) -> Sequence[str]:
    """List the OS runtime functions that an API or MPI call calls."""
    if op.kind is Kind.MPI and "File" in op.mpi.function:
        return ("fwrite", "pwrite64")
    if op.kind is Kind.MPI:
        return ("epoll_wait", "writev", "read", "sched_yield")
    if op.kind in (Kind.SYNC_STREAM, Kind.SYNC_EVENT, Kind.SYNC_DEVICE):
        return ("poll", "sched_yield", "ioctl")
    if op.api_ns > 50_000:
        return ("ioctl", "mmap64", "ioctl", "munmap")
    return ("pthread_mutex_lock", "ioctl")


class OsCalls:
    """Writes OS runtime calls into one report: inside other calls, on loaders and helpers."""

    def __init__(self, report: Report) -> None:
        self.report, self.per_step = report, report.options.osrt
        self.rng = np.random.default_rng([report.options.seed, 11, report.rank.rank])
        self.chains: dict[str, int] = {}  # of call chains, by function

    def begin(self, at: int) -> None:
        """Begin tracing and make threads before work that begins at local time ``at`` (ns)."""
        self._mark(31, at - 24_000_000)
        starts = at - 20_000_000 + 1_500_000 * np.arange(7)
        lengths = np.array([310_000, 180_000, 95_000, 240_000, 870_000, 52_000, 640_000])
        functions = ["pthread_create"] * 4 + ["getaddrinfo", "fopen", "fread"]
        self._insert(functions, [Thread.MAIN] * 7, starts[None, :], (starts + lengths)[None, :])

    def write_in_calls(self, program: Program, block: Block, epochs: Ints, step: bool) -> None:
        """Write calls made from API and MPI calls: half of those of a step, or otherwise one from each."""
        rank, ops = self.report.rank.rank, program.ops
        found = [
            index
            for index, op in enumerate(ops)
            if (op.mpi.function_of(rank) if op.mpi else op.api)
        ]
        works = [ops[index].api_ns + ops[index].work_ns * bool(ops[index].mpi) for index in found]
        weight = np.sqrt(works)
        total = self.per_step // 2 if step else len(found)
        passed = np.concatenate([[0.0], np.cumsum(weight)]) / weight.sum() * total + 1e-9
        counts = np.diff(np.floor(passed)).astype(np.int64)
        which = np.repeat(np.arange(len(found)), counts)
        place = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        called = np.array(found)[which]
        functions = []
        for index, slot in zip(called, place, strict=True):
            known = _list_functions(ops[index])
            functions.append(known[slot % len(known)])
        begin, end = self.report.edges(epochs, block.host, called)
        low, high = (
            (place + first + wide * self.rng.random(begin.shape)) / counts[which]
            for first, wide in ((0.1, 0.2), (0.35, 0.5))
        )
        edges = (begin + ((end - begin) * share).astype(np.int64) for share in (low, high))
        self._insert(functions, [ops[index].thread for index in called], *edges)

    def write_on_loaders(self, begin: Ints, end: Ints) -> None:
        """Write the data loaders' calls in steps from ``begin`` to ``end`` (local ns)."""
        count = (self.per_step - self.per_step // 2) // 2
        spans = ((Thread.LOADER_0, 0.35, 0.98), (Thread.LOADER_1, 0.01, 0.19))
        for thread, low, high in spans if count else ():
            passed = np.cumsum(0.05 + self.rng.lognormal(0.0, 1.6, (len(begin), 2 * count)), axis=1)
            edges = passed / passed[:, -1:] * ((end - begin)[:, None] * (high - low))
            times = (begin + (end - begin) * low)[:, None].astype(np.int64) + edges.astype(np.int64)
            names = [LOADING[(index * 7 + int(thread)) % len(LOADING)] for index in range(count)]
            self._insert(names, [thread] * count, times[:, 0::2], times[:, 1::2])

    def finish(self, first: int, duration: int) -> None:
        """Let threads wait from local time ``first`` to the capture's end; write call chains."""
        last = duration - 4_000_000  # the longest call lasts about nine tenths of the capture
        for thread, function, length, pause in (
            (EVENT_HANDLER, "poll", 100_210_000, 90_000),
            (WORKER, "pthread_cond_timedwait", 500_080_000, 40_000),
        ):
            count = max(0, (last - first) // (length + pause))
            starts = first + 2_000_000 + (length + pause) * np.arange(count)[None, :]
            ends = np.minimum(starts + length, last)
            self._insert([function] * count, [thread] * count, starts, ends)
        most = first + 1_100_000 + (last - first) * 9 // 10
        starts = np.array([[first + 1_000_000, most + 100_000]])
        self._insert(["accept"] * 2, [STORE] * 2, starts, np.array([[most, last]]))
        for at in (duration - 3_000_000, duration - 2_995_000):
            self._mark(32, at)
        if self.chains:
            self._write_chains()

    def _mark(self, kind: int, at: int) -> None:
        """Add a row of no length that marks the beginning or end of tracing in the process."""
        columns = {"globalTid": self.report.rank.global_pid, "nameId": "[Unknown]"}
        columns |= {"eventClass": kind, "nestingLevel": None, "returnValue": 0}
        self.report.insert("OSRT_API", np.array([at]), np.array([at]), **OS_CALL | columns)

    def _insert(
        self, functions: list[str], threads: list[int], begin: Ints, end: Ints, level: int = 0
    ) -> None:
        """Add calls with the axes (run, call), and their nested calls."""
        columns: dict[str, Any] = {"nameId": functions, "thread": threads, "nestingLevel": level}
        columns["returnValue"] = [DATA["os_returned"].get(function, 0) for function in functions]
        if self.report.options.osrt_callchains:
            numbers = [self.chains.setdefault(one, len(self.chains) + 1) for one in functions]
            columns["callchainId"] = np.where(end - begin >= CHAINED_FROM_NS, numbers, 0)
        self.report.insert("OSRT_API", begin, end, **OS_CALL | columns)
        for function in sorted(INNER.keys() & set(functions)):
            outer = [index for index, name in enumerate(functions) if name == function]
            inner, start, length = INNER[function], begin[:, outer], (end - begin)[:, outer]
            callers = [threads[index] for index in outer]
            for place, name in enumerate(inner):
                low, high = (
                    start + length * (8 * place + eighth) // (8 * len(inner)) for eighth in (1, 6)
                )
                self._insert([name] * len(outer), callers, low, high, level + 1)

    def _write_chains(self) -> None:
        rows = []
        for function, chain in self.chains.items():
            callers = DATA["os_callers"].get(function, (("python3", None),))
            frames = enumerate((("libc.so.6", f"{function}@@GLIBC_2.2.5"), *callers))
            for depth, (module, symbol) in frames:
                address = 0x7F00_0000_0000 + 0x10_0000 * chain + 0x1234 * depth
                path = module if module == "python3" else f"/usr/lib/x86_64-linux-gnu/{module}"
                rows.append(
                    (chain, symbol or hex(address), path, int(symbol is None), address, depth, 0, 0)
                )
        names = "id symbol module unresolved originalIP stackDepth kernelMode thumbCode"
        self.report.add("OSRT_CALLCHAINS", names, rows)
