"""What the CPU does: threads put on CPUs and taken off, samples of what they do there, and counters of cores and sockets.

As in real exports rows of the scheduler are almost in order of time, a state is recorded where a thread ends, and functions without a
symbol have their address for a name. Ranks of odd number record why their threads are off the CPU, as some systems do. Counters are of
the machine; the first rank of each host records them. The truth goes by thread id, by function, and by component and metric.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ..cluster import VM_ID, Ints, Thread
from . import Scene

_THREADS = {Thread.MAIN: 40, Thread.AUTOGRAD: 30, Thread.WATCHDOG: 12, Thread.LOADER_0: 25, Thread.LOADER_1: 25}
"""How often each is put on a CPU."""

_ENDING = (Thread.LOADER_0, Thread.LOADER_1)
_CPUS = 8
_OTHER_PID, _OTHER_NAME, _OTHER_TURNS = 1_777, "irqbalance", 7
_RUNNING, _INTERRUPTIBLE, _UNINTERRUPTIBLE, _TERMINATED = 1, 2, 3, 5
_STATES = np.array([_INTERRUPTIBLE, _UNINTERRUPTIBLE, _RUNNING])
"""States of threads that are taken off, where they are recorded; a running one is only out of turn."""

_BLOCKS = np.array([0, 6, 7])
"""Not blocked, mutex, condition variable: ENUM_SCHEDULING_THREAD_BLOCK."""

_SAMPLES = 30
"""Samples of each thread."""

_LIBRARY = "/usr/lib/x86_64-linux-gnu/"
_STACKS: tuple[tuple[tuple[str | None, str], ...], ...] = (
    ((None, "libcuda.so.580.95.05"), ("cudaLaunchKernel", "libcudart.so.13"), ("at::native::add_kernel", "libtorch_cuda.so")),
    (("__memmove_avx_unaligned_erms", "libc.so.6"), ("at::native::copy_", "libtorch_cpu.so")),
    (("_PyEval_EvalFrameDefault", "python3"), ("_PyFunction_Vectorcall", "python3"), ("[Max depth]", "[Max depth]")),
    ((None, "libc.so.6"), (None, "libtorch_python.so"), ("_PyEval_EvalFrameDefault", "python3"), ("_start", "python3")),
    (("entry_SYSCALL_64", "[kernel.kallsyms]"),),
)
"""Call chains, the innermost frame first: function (None: not resolved) and module."""

_SOCKETS, _CORES = 1, 4
_INTERVALS = 25
_EVENTS = {11: ("CPU_CYCLES", "cycles", "CPU Cycles"), 12: ("INST_RETIRED", "instructions", "Instructions Retired")}
_METRICS = {31: ("IPC", "instructions per cycle", "Instructions per Cycle")}


def add(scene: Scene) -> dict[str, Any]:
    """Write all tables."""
    truth: dict[str, Any] = {"threads": {}, "others": _OTHER_TURNS * 2}
    turns = {thread: _turns(scene, count) for thread, count in _THREADS.items()}
    _write_sched(scene, turns, truth)
    _write_samples(scene, turns, truth)
    if scene.report.rank.gpu == 0:
        truth["counters"] = _write_counters(scene)
    return truth


def _turns(scene: Scene, count: int) -> Ints:
    """Begin and end of a thread's turns on a CPU (turn, edge), local ns, apart from each other."""
    first, last = int(scene.steps[0, 0]) if len(scene.steps) else 0, scene.duration
    edges = np.sort(scene.random.choice(np.arange(first + 1, last - 1, 3), 2 * count, replace=False))
    return edges.reshape(count, 2)


def _write_sched(scene: Scene, turns: dict[Thread, Ints], truth: dict[str, Any]) -> None:
    rank, random = scene.report.rank, scene.random
    with_reasons = rank.rank % 2 == 1
    rows: list[tuple[int, int, int, int, int, int | None]] = []
    for thread, edges in turns.items():
        tid = rank.global_tid(thread)
        cpus = random.integers(0, _CPUS, len(edges)).tolist()
        states = random.choice(_STATES, len(edges)).tolist() if with_reasons else [0] * len(edges)
        blocks: list[int | None] = random.choice(_BLOCKS, len(edges)).tolist() if with_reasons else [None] * len(edges)
        if thread in _ENDING:
            states[-1] = _TERMINATED
        for (begin, end), cpu, state, block in zip(edges.tolist(), cpus, states, blocks, strict=True):
            rows += [(begin, cpu, 1, tid, 0, 0 if with_reasons else None), (end, cpu, 0, tid, state, block)]
        truth["threads"][str(rank.pid + thread)] = {
            "turns": len(edges), "running_ns": int((edges[:, 1] - edges[:, 0]).sum()), "ends": thread in _ENDING,
            "off_by_state": dict(sorted(Counter(map(str, states)).items())),
            "off_by_reason": dict(sorted(Counter(map(str, blocks)).items())) if with_reasons else {},
            "on_cpu": dict(sorted(Counter(map(str, cpus)).items()))}
    other = VM_ID | _OTHER_PID << 24 | _OTHER_PID
    for number in range(_OTHER_TURNS):
        at = int(turns[Thread.MAIN][number, 0])
        rows += [(at + 1, 0, 1, other, 0, None), (at + 2, 0, 0, other, 0, None)]
    scene.report.export.insert("ThreadNames", {"nameId": [scene.report.export.string(_OTHER_NAME)], "priority": 10, "globalTid": [other]})
    rows.sort()
    for place in range(10, len(rows) - 1, 37):
        rows[place], rows[place + 1] = rows[place + 1], rows[place]
    names = ("start", "cpu", "isSchedIn", "globalTid", "threadState", "threadBlock")
    scene.report.export.insert("SCHED_EVENTS", {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)})


def _write_samples(scene: Scene, turns: dict[Thread, Ints], truth: dict[str, Any]) -> None:
    """Samples at moments of the threads' turns, with their call chains."""
    rank, random, string = scene.report.rank, scene.random, scene.report.export.string
    samples: list[tuple[int, int, int, int]] = []
    frames: list[tuple[int, int, int, int, int, int, int, int]] = []
    for thread, edges in turns.items():
        chosen = np.sort(random.integers(0, len(edges), _SAMPLES))
        share = (np.arange(_SAMPLES) % 7 + 1) / 9
        times = edges[chosen, 0] + ((edges[chosen, 1] - edges[chosen, 0]) * share).astype(np.int64)
        stacks = random.integers(0, len(_STACKS), _SAMPLES).tolist()
        functions: Counter[str] = Counter()
        callers: Counter[str] = Counter()
        modules: Counter[str] = Counter()
        for at, number in zip(np.unique(times).tolist(), stacks, strict=False):
            samples.append((len(samples) + 1, at, int(random.integers(0, _CPUS)), rank.global_tid(thread)))
            for depth, (function, module) in enumerate(_STACKS[number]):
                address = 0x7F00_0000_0000 + 0x10_0000 * number + 0x1234 * depth + 16 * int(random.integers(0, 50))
                path = module if module.startswith("[") or module == "python3" else _LIBRARY + module
                special = bool(function and function.startswith("["))
                frames.append((len(samples), string(function or hex(address)), string(path), int(module == "[kernel.kallsyms]"),
                               int(function is None), int(special), address, depth))
                if depth < 2:
                    (callers if depth else functions)[function or f"unresolved in {module}"] += 1
            modules[_STACKS[number][0][1]] += 1
        counts = {"functions": functions, "callers": callers, "modules": modules}
        truth["threads"][str(rank.pid + thread)]["samples"] = {name: dict(sorted(found.items())) for name, found in counts.items()}
    columns: dict[str, Any] = dict(zip(("id", "start", "cpu", "globalTid"), map(list, zip(*samples, strict=True)), strict=True))
    scene.report.export.insert("COMPOSITE_EVENTS", columns | {"threadState": _RUNNING, "cpuCycles": 1})
    names = ("id", "symbol", "module", "kernelMode", "unresolved", "specialEntry", "originalIP", "stackDepth")
    columns = dict(zip(names, map(list, zip(*frames, strict=True)), strict=True))
    scene.report.export.insert("SAMPLING_CALLCHAINS", columns | {"thumbCode": 0, "unwindMethod": 1})


def _write_counters(scene: Scene) -> dict[str, dict[str, dict[str, float]]]:
    """Counters in intervals that follow each other, but for one that is left out. Returns component -> metric -> samples and sum."""
    export, random = scene.report.export, scene.random
    components = [(1 + socket, "Socket", socket, None) for socket in range(_SOCKETS)]
    components += [(100 + core, "Core", core, 1) for core in range(_CORES)]
    names = ("componentId", "name", "instance", "parentId")
    export.insert("TARGET_INFO_COMPONENT", dict(zip(names, map(list, zip(*components, strict=True)), strict=True)))
    described = {**_EVENTS, **_METRICS}
    export.insert("TARGET_INFO_PERF_METRIC", {
        "id": list(described), "name": [name for name, _, _ in described.values()], "description": "of a core",
        "unit": [unit for _, unit, _ in described.values()], "displayName": [shown for _, _, shown in described.values()]})
    edges = np.linspace(0, scene.duration, _INTERVALS + 2).astype(np.int64)
    kept = np.delete(np.arange(_INTERVALS), _INTERVALS // 2)
    truth: dict[str, dict[str, dict[str, float]]] = {}
    for core in range(_CORES):
        found = truth.setdefault(f"CPU Socket 0 Core {core}", {})
        placed = {"start": edges[kept], "end": edges[kept + 1], "vmId": VM_ID, "componentId": 100 + core}
        cycles = random.integers(10_000_000, 30_000_000, len(kept))
        instructions = (cycles * random.uniform(0.5, 3.0, len(kept))).astype(np.int64)
        for number, values in zip(_EVENTS, (cycles, instructions), strict=True):
            export.insert("PERF_EVENT_SOC_OR_CPU_RAW_EVENT", {**placed, "eventId": number, "count": values})
            found[_label(described[number])] = {"samples": len(kept), "sum": int(values.sum())}
        rates = instructions / cycles
        export.insert("PERF_EVENT_SOC_OR_CPU_METRIC_EVENT", {**placed, "metricId": 31, "value": rates})
        found[_label(described[31])] = {"samples": len(kept), "sum": float(rates.sum())}
    return truth


def _label(metric: tuple[str, str, str]) -> str:
    return f"{metric[2]} [{metric[1]}]"
