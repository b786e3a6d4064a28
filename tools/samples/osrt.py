"""Calls into the OS runtime in volume: inside API and MPI calls, on the data loaders, and on threads that only wait.

On a thread, calls of one nesting level do not overlap, deeper ones lie within, and all lie within the API or MPI call
they were made from. As in real exports the functions nsys traces last about a microsecond to seconds (some here less,
as with a lowered threshold), nested calls appear in few functions, and ``[Unknown]`` rows without a nesting level mark
where tracing begins (event class 31) and ends (32) in a process. Call chains belong to calls of 80 us or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cluster import Ints, Thread
from .program import Kind, Op, Program
from .rows import Report
from .timeline import Block

_CLASS, _BEGINS, _ENDS = 27, 31, 32
_CHAINED_FROM_NS = 80_000
_EVENT_HANDLER, _WORKER, _STORE = 5, 6, 12
"""Distances of thread ids from the pid."""

_INNER = {"pthread_create": ("mmap", "mprotect"), "fread": ("read",), "fwrite": ("write",), "fopen": ("open64",),
          "getaddrinfo": ("fopen",)}  # fmt: skip
"""Functions and what they call, in this order."""

_RETURNS = {"read": 65_536, "write": 4_096, "poll": 1, "fread": 1, "fwrite": 1, "fopen": 0, "open64": 43,
            "pthread_cond_timedwait": 110, "sem_timedwait": 110, "accept": 57, "writev": 8_192}  # fmt: skip

_LOADING = ("read", "lseek64", "pthread_mutex_lock", "read", "fread", "mmap64", "munmap", "read", "open64", "close",
            "pthread_cond_signal", "sem_timedwait", "write", "fwrite", "pthread_cond_wait", "futex")  # fmt: skip

_FRAMES = {  # modules and symbols below the function itself; None: not resolved
    "ioctl": (("libcuda.so.580.95.05", None), ("libcuda.so.580.95.05", None), ("libcudart.so.13", "cudaMemcpyAsync")),
    "poll": (("libcuda.so.580.95.05", None), ("libc.so.6", "start_thread"), ("libc.so.6", "__clone3")),
    "read": (("libtorch_cpu.so", "at::detail::read_record"), ("libtorch_python.so", None), ("python3", "_start")),
}
_LIBRARY = "/usr/lib/x86_64-linux-gnu/"


def _functions(op: Op) -> Sequence[str]:
    """What an API or MPI call does in the OS runtime."""
    if op.kind is Kind.MPI:
        assert op.mpi is not None
        return ("fwrite", "pwrite64") if "File" in op.mpi.function else ("epoll_wait", "writev", "read", "sched_yield")
    if op.kind in (Kind.SYNC_STREAM, Kind.SYNC_EVENT, Kind.SYNC_DEVICE):
        return ("poll", "sched_yield", "ioctl")
    if op.api_ns > 50_000:
        return ("ioctl", "mmap64", "ioctl", "munmap")
    return ("pthread_mutex_lock", "ioctl")


class OsCalls:
    """Writes OS runtime calls into one report."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.per_step = report.options.osrt
        self.rng = np.random.default_rng([report.options.seed, 11, report.rank.rank])
        self.chains: dict[str, int] = {}

    def begin(self, at: int) -> None:
        """Before the process's work, which begins at local time ``at`` (ns): tracing begins, threads are made."""
        self._mark(_BEGINS, at - 24_000_000)
        starts = at - 20_000_000 + 1_500_000 * np.arange(7)
        main = [Thread.MAIN] * 7
        functions = ["pthread_create"] * 4 + ["getaddrinfo", "fopen", "fread"]
        lengths = np.array([310_000, 180_000, 95_000, 240_000, 870_000, 52_000, 640_000])
        self._insert(functions, main, starts[None, :], (starts + lengths)[None, :])

    def inside(self, program: Program, block: Block, epochs: Ints, step: bool) -> None:
        """Calls made from API and MPI calls: half of those of a step, else one from each."""
        rank = self.report.rank
        found = [index for index, op in enumerate(program.ops) if self._counts(op)]
        if not found:
            return
        ops = [program.ops[index] for index in found]
        weight = np.sqrt([op.api_ns + (op.work_ns if op.kind is Kind.MPI else 0.0) for op in ops])
        total = self.per_step // 2 if step else len(ops)
        counts = np.diff(np.floor(np.concatenate([[0.0], np.cumsum(weight)]) / weight.sum() * total + 1e-9)).astype(np.int64)
        which = np.repeat(np.arange(len(ops)), counts)
        if not len(which):
            return
        place = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        functions = [_functions(ops[op])[slot % len(_functions(ops[op]))] for op, slot in zip(which, place, strict=True)]
        edges = [
            rank.local(epochs[:, None] + np.rint(times[:, rank.rank, np.array(found)[which]]).astype(np.int64))
            for times in (block.host_begin, block.host_end)
        ]
        shape = edges[0].shape
        low = (place + 0.1 + 0.2 * self.rng.random(shape)) / counts[which]
        high = (place + 0.35 + 0.5 * self.rng.random(shape)) / counts[which]
        begin = edges[0] + ((edges[1] - edges[0]) * low).astype(np.int64)
        end = edges[0] + ((edges[1] - edges[0]) * high).astype(np.int64)
        self._insert(functions, [ops[op].thread for op in which], begin, end)

    def _counts(self, op: Op) -> bool:
        if op.kind is Kind.MPI:
            return bool(op.mpi and op.mpi.function_of(self.report.rank.rank))
        return bool(op.api)

    def beside(self, begin: Ints, end: Ints) -> None:
        """The data loaders' calls in steps from ``begin`` to ``end`` (local ns)."""
        count = (self.per_step - self.per_step // 2) // 2
        if not count:
            return
        for thread, low, high in ((Thread.LOADER_0, 0.35, 0.98), (Thread.LOADER_1, 0.01, 0.19)):
            length = (end - begin)[:, None] * (high - low)
            passed = np.cumsum(0.05 + self.rng.lognormal(0.0, 1.6, (len(begin), 2 * count)), axis=1)
            edges = passed / passed[:, -1:] * length
            times = (begin + (end - begin) * low)[:, None].astype(np.int64) + edges.astype(np.int64)
            names = [_LOADING[(index * 7 + int(thread)) % len(_LOADING)] for index in range(count)]
            self._insert(names, [thread] * count, times[:, 0::2], times[:, 1::2])

    def finish(self, first: int, duration: int) -> None:
        """Threads that wait from local time ``first`` to the capture's end, and that end; then the call chains."""
        last = duration - 4_000_000  # the longest call lasts about nine tenths of the capture
        for offset, function, length, pause in (
            (_EVENT_HANDLER, "poll", 100_210_000, 90_000),
            (_WORKER, "pthread_cond_timedwait", 500_080_000, 40_000),
        ):
            count = max(0, (last - first) // (length + pause))
            starts = first + 2_000_000 + (length + pause) * np.arange(count)
            ends = np.minimum(starts + length, last)
            if count:
                self._insert([function] * count, [offset] * count, starts[None, :], ends[None, :])
        whole = last - first
        starts = np.array([first + 1_000_000, first + 1_200_000 + whole * 9 // 10])
        ends = np.array([first + 1_100_000 + whole * 9 // 10, last])
        self._insert(["accept", "accept"], [_STORE, _STORE], starts[None, :], ends[None, :])
        for at in (duration - 3_000_000, duration - 2_995_000):
            self._mark(_ENDS, at)
        if self.chains:
            self._write_chains()

    def _mark(self, kind: int, at: int) -> None:
        """A row of no length that says that tracing begins or ends in the process."""
        report, when = self.report, np.array([[at]])
        columns: dict[str, Any] = {
            "eventClass": kind,
            "globalTid": report.rank.global_pid,
            "nameId": report.export.string("[Unknown]"),
            "returnValue": 0,
            "callchainId": 0,
            "argumentsId": 0,
        }
        report.insert("OSRT_API", ["[Unknown]"], columns, when, when)

    def _insert(self, functions: Sequence[str], threads: Sequence[int], begin: Ints, end: Ints, level: int = 0) -> None:
        """Calls with the axes (run, call), and what they call in turn."""
        report = self.report
        chained: NDArray[Any] | int = 0
        if report.options.osrt_callchains:
            numbers = np.array([self._chain(function) for function in functions])
            chained = np.where(end - begin >= _CHAINED_FROM_NS, numbers, 0)
        report.insert(
            "OSRT_API",
            functions,
            {
                "eventClass": _CLASS,
                "globalTid": np.array([report.rank.global_tid(thread) for thread in threads]),
                "nameId": np.array([report.export.string(function) for function in functions]),
                "returnValue": np.array([_RETURNS.get(function, 0) for function in functions]),
                "nestingLevel": level,
                "callchainId": chained,
                "argumentsId": 0,
            },
            begin,
            end,
        )
        for function in sorted({name for name in functions if name in _INNER}):
            outer = [index for index, name in enumerate(functions) if name == function]
            inner = _INNER[function]
            length = end[:, outer] - begin[:, outer]
            for place, name in enumerate(inner):
                low = begin[:, outer] + length * (8 * place + 1) // (8 * len(inner))
                high = begin[:, outer] + length * (8 * place + 6) // (8 * len(inner))
                self._insert([name] * len(outer), [threads[index] for index in outer], low, high, level + 1)

    def _chain(self, function: str) -> int:
        return self.chains.setdefault(function, len(self.chains) + 1)

    def _write_chains(self) -> None:
        string = self.report.export.string
        rows = []
        for function, chain in self.chains.items():
            frames = (("libc.so.6", f"{function}@@GLIBC_2.2.5"), *_FRAMES.get(function, (("python3", None),)))
            for depth, (module, symbol) in enumerate(frames):
                address = 0x7F00_0000_0000 + 0x10_0000 * chain + 0x1234 * depth
                path = module if module == "python3" else _LIBRARY + module
                rows.append((chain, string(symbol or hex(address)), string(path), int(symbol is None), address, depth))
        names = ("id", "symbol", "module", "unresolved", "originalIP", "stackDepth")
        columns: dict[str, Any] = {name: list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
        self.report.export.insert("OSRT_CALLCHAINS", columns | {"kernelMode": 0, "thumbCode": 0})
